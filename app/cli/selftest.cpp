#include "engine/backend/cuda/selftest.h"
#include "app/cli/commands.h"
#include "app/cli/number_option.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "engine/base/error.h"
#include "engine/device/proof.h"
#include "engine/device/prover.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <system_error>

namespace keyhole {

namespace {

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
                  verdict.lines.empty() ? "" : cuda::selftest_table(verdict.lines));
    if (!verdict.passed) fail(ErrorCode::device, "selftest: {}; take --backend cpu there", text_of(verdict));
    if (!options.json)
        print_out("{}; --backend auto takes {}\n", text_of(verdict), verdict.is_taken() ? "it" : "the CPU");
}

void run_on_device(const Options& options) {
    ProofSetup setup = proof_setup(options.device);
    setup.again = true;
    constexpr const char* kRemedy = "--backend cpu runs the kernels on the host";
    std::error_code error;
    if (!std::filesystem::exists(setup.module, error))
        fail(ErrorCode::device, "selftest: this build has no CUDA backend; {}", kRemedy);
    const DeviceVerdict verdict = prove_device(setup, proof_progress());
    if (!verdict.available) fail(ErrorCode::device, "selftest: {}; {}", verdict.reason, kRemedy);
    show(options, verdict);
}

void run_on_host(const Options& options) {
    const std::shared_ptr<cuda::Executor> executor = cuda::make_host_executor(77);
    DeviceVerdict verdict;
    verdict.device = executor->identity();
    {
        const auto progress = proof_progress();
        verdict.lines =
            run_proof(executor, [&](double share, const std::string& what) { (void)progress(share, what); });
    }
    verdict.reason = proof_failure(verdict.lines);
    verdict.passed = verdict.reason.empty();
    if (options.json) return show(options, verdict);
    print_out("{}\n{}", executor->name(), cuda::selftest_table(verdict.lines));
    if (!verdict.passed)
        fail(ErrorCode::device, "selftest: kernels on the host do not give what they should: {}",
             verdict.reason);
}

}  // namespace

void add_selftest_command(CLI::App& app) {
    const auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "selftest",
        "check that the CUDA device computes what the CPU computes: every kernel, and a tiny model; takes "
        "under a minute");
    command
        ->add_option("--backend", options->backend,
                     "cuda; or cpu: the kernels' own code on the host, where no device is needed")
        ->check(CLI::IsMember({"cuda", "cpu"}))
        ->capture_default_str();
    command->add_option("--device", options->device, "CUDA device by index")
        ->transform(number_in(0, 1024))
        ->capture_default_str();
    command->add_flag("--json", options->json, "print the result as JSON");
    command->add_option("--proof", options->proof, "for the process that runs the proof: file for its report")
        ->group("");
    command->callback([options] {
        if (!options->proof.empty())
            prove_as_child(options->device, options->proof);
        else if (options->backend == "cpu")
            run_on_host(*options);
        else
            run_on_device(*options);
    });
}

}  // namespace keyhole
