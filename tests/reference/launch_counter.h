/// A host executor that counts launches by kernel.
#pragma once

#include "engine/backend/cuda/kernel_list.h"
#include "tests/reference/executor_over_host.h"

#include <map>
#include <string_view>

namespace reference {

class LaunchCounter : public ExecutorOverHost {
  public:
    std::map<int, int> n_of_kernel;  ///< by kernel index
    /// Launches of the kernels whose name begins so.
    int n_of(std::string_view name) const {
        int sum = 0, index = 0;
        keyhole::cuda::Kernels::for_each([&]<class Kernel>() {
            if (const auto found = n_of_kernel.find(index++);
                found != n_of_kernel.end() && keyhole::cuda::kernel_name<Kernel>().starts_with(name))
                sum += found->second;
        });
        return sum;
    }

  protected:
    void run_one(const keyhole::cuda::Launch& launch) override {
        ++n_of_kernel[launch.kernel];
        ExecutorOverHost::run_one(launch);
    }
};

}  // namespace reference
