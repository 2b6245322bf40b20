#include "app/state/frame_meter.h"

#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>

namespace keyhole {

namespace {

double cpu_ms(clockid_t clock) {
    timespec t{};
    clock_gettime(clock, &t);
    return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

}  // namespace

void FrameMeter::begin() {
    begin_ = Clock::now();
    thread_begin_ms_ = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
    process_begin_ms_ = cpu_ms(CLOCK_PROCESS_CPUTIME_ID);
    longest_cpu_ms_ = 0;
    frame_ms_.clear();
    started_ = false;
}

void FrameMeter::frame_begins() {
    frame_begin_ = Clock::now();
    frame_cpu_ms_ = cpu_ms(CLOCK_THREAD_CPUTIME_ID);
    started_ = true;
}

void FrameMeter::frame_ends() {
    if (!started_) return;  // the measurement began inside this frame
    started_ = false;
    if (frame_ms_.size() == kMostFrames) begin();
    longest_cpu_ms_ = std::max(longest_cpu_ms_, cpu_ms(CLOCK_THREAD_CPUTIME_ID) - frame_cpu_ms_);
    frame_ms_.push_back(std::chrono::duration<float, std::milli>(Clock::now() - frame_begin_).count());
}

FrameMeter::Report FrameMeter::report() const {
    Report report;
    report.n_frames = static_cast<int>(frame_ms_.size());
    report.seconds = std::chrono::duration<double>(Clock::now() - begin_).count();
    const double process_ms = cpu_ms(CLOCK_PROCESS_CPUTIME_ID) - process_begin_ms_;
    report.process_cpu_share = 1e-3 * process_ms / std::max(report.seconds, 1e-9);
    if (frame_ms_.empty()) return report;
    report.frames_per_s = report.n_frames / std::max(report.seconds, 1e-9);
    report.thread_cpu_ms = (cpu_ms(CLOCK_THREAD_CPUTIME_ID) - thread_begin_ms_) / report.n_frames;
    report.process_cpu_ms = process_ms / report.n_frames;
    report.longest_cpu_ms = longest_cpu_ms_;
    std::vector<float> sorted = frame_ms_;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](double part) {
        return double(sorted[to_index(std::lround(part * double(sorted.size() - 1)))]);
    };
    report.median_ms = at(0.5);
    report.p99_ms = at(0.99);
    report.longest_ms = double(sorted.back());
    return report;
}

std::string frame_text(const FrameMeter::Report& r) {
    return fmt::format(
        "{} frames in {:.1f} s ({:.1f} a second): median {:.1f} ms, p99 {:.1f}, longest {:.1f}; {:.1f} ms of "
        "the window's thread a frame; {:.0f} % of a core in total",
        r.n_frames, r.seconds, r.frames_per_s, r.median_ms, r.p99_ms, r.longest_ms, r.thread_cpu_ms,
        100 * r.process_cpu_share);
}

}  // namespace keyhole
