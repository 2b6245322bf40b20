#include "app/cli/commands.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/device/open_cuda.h"
#include "engine/device/proof.h"
#include "engine/device/prover.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <system_error>

namespace keyhole {

namespace {

constexpr const char* kBuildIt = "build Keyhole where nvcc is installed (keyhole help cuda)";

struct Options {
    std::string backend = "cuda";
    int device = 0;
    bool json = false;
    std::string proof;  // the report of a child
};

nlohmann::json json_of(const std::vector<SelfTestLine>& lines) {
    nlohmann::json out = nlohmann::json::array();
    for (const SelfTestLine& line : lines)
        out.push_back({{"what", line.kernel},
                       {"where", line.shape},
                       {"worst", std::isfinite(line.worst) ? nlohmann::json(line.worst) : nullptr},
                       {"tolerance", line.tolerance},
                       {"passed", line.passed},
                       {"failure", line.failure}});
    return out;
}

/// Prints the verdict; throws where it failed.
void show(const Options& options, const DeviceVerdict& verdict) {
    const std::string name = verdict.device.name.empty() ? "the CUDA device" : verdict.device.name;
    if (options.json)
        print_out("{}\n", nlohmann::json{{"device", verdict.device.name},
                                         {"uuid", verdict.device.uuid},
                                         {"driver", verdict.device.driver},
                                         {"passed", verdict.passed},
                                         {"step_ms", json_of(verdict.step)},
                                         {"reason", verdict.reason},
                                         {"seconds", verdict.seconds},
                                         {"report", verdict.report.string()},
                                         {"lines", json_of(verdict.lines)}}
                              .dump(2));
    else
        print_out("{}{}{}\n{}", name, verdict.device.driver.empty() ? "" : ", driver ", verdict.device.driver,
                  verdict.lines.empty() ? "" : selftest_table(verdict.lines));
    if (!verdict.passed) fail(ErrorCode::device, "selftest: {}; take --backend cpu there", text_of(verdict));
    if (!options.json)
        print_out("{}; --backend auto takes {}\n", text_of(verdict), verdict.is_taken() ? "it" : "the CPU");
}

void run_on_device(const Options& options) {
    ProofSetup setup = proof_setup(options.device);
    setup.again = true;
    std::error_code error;
    if (!std::filesystem::exists(setup.module, error))
        fail(ErrorCode::device, "selftest: this build has no CUDA backend; {}", kBuildIt);
    const DeviceVerdict verdict = prove_device(setup, proof_progress());
    if (!verdict.available)
        fail(ErrorCode::device, "selftest: {}; --backend cpu runs the kernels on the host", verdict.reason);
    show(options, verdict);
}

void run_on_host(const Options& options) {
    std::string reason;
    const auto host = open_cuda_device(cuda_module_path(), kHostDevice, reason);
    if (host == nullptr) fail(ErrorCode::device, "selftest: {}; {}", reason, kBuildIt);
    DeviceVerdict verdict;
    verdict.device = host->identity();
    {
        const auto progress = proof_progress();
        verdict.lines =
            run_proof(*host, [&](double share, const std::string& what) { (void)progress(share, what); });
    }
    verdict.reason = proof_failure(verdict.lines);
    verdict.passed = verdict.reason.empty();
    if (options.json) return show(options, verdict);
    print_out("{}\n{}", verdict.device.name, selftest_table(verdict.lines));
    if (!verdict.passed)
        fail(ErrorCode::device, "selftest: kernels on the host do not give what they should: {}",
             verdict.reason);
}

}  // namespace

void add_selftest_command(const CliCommand& program) {
    const auto options = std::make_shared<Options>();
    const CliCommand command = program.add_command(
        "selftest",
        "check that the CUDA device computes what the CPU computes: every kernel, and a tiny model; takes "
        "under a minute");
    command
        .add_option(
            "--backend", options->backend,
            "cuda; or cpu: the kernels' own code on the host, which needs the CUDA module and no device")
        .one_of({"cuda", "cpu"})
        .shows_default();
    command.add_option("--device", options->device, "CUDA device by index").within(0, 1024).shows_default();
    command.add_flag("--json", options->json, "print the result as JSON");
    command.add_option("--proof", options->proof, "for the process that runs the proof: file for its report")
        .hidden();
    command.does([options] {
        if (!options->proof.empty())
            prove_as_child(options->device, options->proof);
        else if (options->backend == "cpu")
            run_on_host(*options);
        else
            run_on_device(*options);
    });
}

}  // namespace keyhole
