#include "engine/base/device_verdict.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

/// "0.21 ms", "42 ms"
std::string ms_text(double ms) {
    return ms < 9.95 ? fmt::format("{:.2g} ms", ms) : fmt::format("{:.0f} ms", ms);
}

}  // namespace

std::string text_of(const DeviceVerdict& verdict) {
    const std::string name = verdict.device.name.empty() ? "the CUDA device" : verdict.device.name;
    if (verdict.passed) {
        const TimedStep step = verdict.step.value_or(TimedStep{});
        return fmt::format("{} passed its proof{}{} a step of its model takes {} there and {} on the CPU",
                           name, verdict.is_new ? fmt::format(" in {:.1f} s", verdict.seconds) : "",
                           verdict.is_taken() ? ";" : ", but is not faster:", ms_text(step.device_ms),
                           ms_text(step.cpu_ms));
    }
    if (!verdict.available) return verdict.reason;
    return fmt::format("{} failed its proof: {}{}", name, verdict.reason,
                       verdict.report.empty() ? "" : fmt::format("; report: {}", verdict.report.string()));
}

std::string selftest_table(const std::vector<SelfTestLine>& lines) {
    std::string table = fmt::format("{:<52}{:<38}{:>10}{:>12}\n", "kernel", "case", "worst", "tolerance");
    std::size_t n_failed = 0;
    for (const SelfTestLine& line : lines) {
        n_failed += line.passed ? 0 : 1;
        table += fmt::format("{:<52}{:<38}{:>10.1e}{:>12.0e}  {}{}{}\n", line.kernel, line.shape, line.worst,
                             line.tolerance, line.passed ? "ok" : "FAILED", line.failure.empty() ? "" : ": ",
                             line.failure);
    }
    return table + fmt::format("{} of {} passed\n", lines.size() - n_failed, lines.size());
}

}  // namespace keyhole
