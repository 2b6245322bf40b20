// Gives the unit tests of the CUDA backend the host executor: kernels run on the host.
#include "tests/reference/executor_under_test.h"

namespace reference {

std::shared_ptr<keyhole::cuda::Executor> executor_under_test(unsigned shuffle, std::string&) {
    return keyhole::cuda::make_host_executor(shuffle);
}

}  // namespace reference
