#include "app/cli/commands.h"
#include "app/cli/number_option.h"
#include "app/cli/output.h"
#include "engine/backend/cuda/module.h"
#include "engine/backend/cuda/selftest.h"
#include "engine/base/error.h"

#include <algorithm>
#include <memory>

namespace keyhole {

void add_selftest_command(CLI::App& app) {
    struct Options {
        std::string backend = "cuda";
        int device = 0;
    };
    const auto options = std::make_shared<Options>();
    CLI::App* command =
        app.add_subcommand("selftest", "Run every CUDA kernel against the host, in under a minute");
    command
        ->add_option("--backend", options->backend,
                     "cuda; or cpu: the kernels' own code on the host, where no device is needed")
        ->check(CLI::IsMember({"cuda", "cpu"}))
        ->capture_default_str();
    command->add_option("--device", options->device, "CUDA device by index")
        ->transform(number_in(0, 1024))
        ->capture_default_str();
    command->callback([options] {
        std::shared_ptr<cuda::Executor> executor;
        if (options->backend == "cpu") {
            executor = cuda::make_host_executor(77);
        } else {
            std::string reason;
            executor = open_cuda_executor(cuda_module_path(), options->device, reason);
            if (executor == nullptr)
                fail(ErrorCode::device, "selftest: {}; --backend cpu runs the kernels on the host", reason);
        }
        const std::vector<cuda::SelfTestLine> lines = cuda::run_selftest(executor);
        print_out("{}\n{}", executor->name(), cuda::selftest_table(lines));
        if (!std::all_of(lines.begin(), lines.end(), [](const auto& line) { return line.passed; }))
            fail(ErrorCode::device,
                 "selftest: kernels on {} do not give what they should; take --backend cpu there",
                 executor->name());
    });
}

}  // namespace keyhole
