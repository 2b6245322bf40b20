#include "engine/backend/cuda/selftest.h"

#include "engine/backend/cuda/selftest_cases.h"
#include "engine/base/error.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace keyhole::cuda {
namespace {

using namespace selftest;

/// Returns the largest difference as a share of the largest value. NaN and infinities must be where the host
/// has them.
double difference(const Output& host, const Output& device) {
    if (host.values.size() != device.values.size()) return INFINITY;
    double scale = 1e-30, worst = 0;
    for (const double v : host.values)
        if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
    for (std::size_t i = 0; i < host.values.size(); ++i) {
        const double a = host.values[i], b = device.values[i];
        if (std::isfinite(a) && std::isfinite(b))
            worst = std::max(worst, std::abs(a - b) / scale);
        else if (!(std::isnan(a) && std::isnan(b)) && a != b)
            return INFINITY;
    }
    return worst;
}

/// Returns what the host computes in a case. Kept, since tests compare many executors with it.
const std::vector<Output>& host_outputs(const std::string& shape, const Case& run) {
    thread_local std::map<std::string, std::vector<Output>> kept;
    const auto [entry, is_new] = kept.try_emplace(shape);
    if (is_new) {
        Side host(make_host_executor(5));
        run(host);
        entry->second = std::move(host.outputs);
    }
    return entry->second;
}

void run_case(const std::string& shape, const Case& run, const std::shared_ptr<Executor>& executor,
              const std::function<void(const std::string&)>& next, std::vector<SelfTestLine>& lines) {
    const std::vector<Output>& host = host_outputs(shape, run);
    Side device(executor);
    device.noted = [&](std::size_t n) {
        if (n < host.size() && (n == 0 || host[n].kernel != host[n - 1].kernel))
            next(host[n].kernel + ", " + shape);
    };
    device.noted(0);
    SelfTestLine failed{"", shape, INFINITY, 0, false, ""};
    try {
        run(device);
    } catch (const Error& error) {
        failed.failure = error.what();
    }
    for (std::size_t i = 0; i < device.outputs.size(); ++i) {
        const Output& output = host[i];
        const double worst = difference(output, device.outputs[i]);
        // Outputs of one kernel share a line.
        if (i > 0 && lines.back().kernel == output.kernel) {
            lines.back().worst = std::max(lines.back().worst, worst);
            lines.back().tolerance = std::max(lines.back().tolerance, output.tolerance);
            lines.back().passed = lines.back().passed && worst <= output.tolerance;
        } else {
            lines.push_back({output.kernel, shape, worst, output.tolerance, worst <= output.tolerance, ""});
        }
    }
    if (failed.failure.empty()) return;
    failed.kernel = device.outputs.size() < host.size() ? host[device.outputs.size()].kernel : "end of case";
    lines.push_back(failed);
}

}  // namespace

std::vector<SelfTestLine> run_selftest(
    const std::shared_ptr<Executor>& executor, std::string_view only,
    const std::function<void(double share, const std::string& what)>& progress) {
    std::vector<SelfTestLine> lines;
    constexpr double kCases = 36;
    int n_run = 0;
    const auto run = [&](const std::string& shape, const Case& c) {
        const double share = std::min(1.0, n_run++ / kCases);
        const auto next = [&](const std::string& what) {
            if (progress) progress(share, what);
        };
        if (shape.starts_with(only)) run_case(shape, c, executor, next, lines);
    };
    run("999 floats", copies);
    run("3 of 37 x 53 x 65", products);
    run("3 lanes, width 328", plain_layers);
    const auto typed = [&]<class T>(const std::string& type) {
        run("520 to 11008 columns, 53 rows, " + type, weights<T>);
        run("1 to 601 slots, head size 16 to 128, " + type, attention_cases<T>);
        run("300 slots, 1 to 50 leave, " + type, selection_cases<T>);
        run("40 to 300 slots, KV heads share a budget, " + type, sharing_cases<T>);
        // Apart, since tests run the first case of a kernel many times.
        const auto choice = [&](const std::string& how, ChoiceUnits units) {
            run("300 slots, formulas of " + how + ", " + type,
                [units](Side& side) { choice_cases<T>(side, units); });
        };
        choice("one unit", ChoiceUnits::one);
        choice("KV heads", ChoiceUnits::heads);
        choice("KV heads as in R-KV's code", ChoiceUnits::as_rkv_code);
        run("70 slots of 2 KV heads, " + type, rebuilding<T>);
    };
    typed.template operator()<float>("f32");
    typed.template operator()<Fp16>("f16");
    typed.template operator()<Bf16>("bf16");
    run("every type of block, 96 to 4352 columns", stored_weights);
    run("products in integers, 96 to 4864 columns", laid_weights);
    run("rows 171 to 203 of 300", prompt);
    const auto fused = [&]<class T>(const std::string& of_type) {
        run(of_type + ", head size 48, slopes",
            [](Side& side) { prompt_attention<T, 64>(side, 48, 0, true); });
        run(of_type + ", head size 80, window of 50",
            [](Side& side) { prompt_attention<T, 128>(side, 80, 50, false); });
        run(of_type + ", head size 144", [](Side& side) { prompt_attention<T, 256>(side, 144, 0, false); });
    };
    fused.template operator()<Fp16>("140 tokens in f16");
    fused.template operator()<Bf16>("140 tokens in bf16");
    run("2 lanes of 601 and 3 entries", packing);
    return lines;
}

}  // namespace keyhole::cuda
