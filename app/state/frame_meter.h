/// Measures the time of the window's frames since the start of a measurement. Window thread; knows neither
/// GL nor ImGui.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace keyhole {

class FrameMeter {
  public:
    static constexpr std::size_t kMostFrames = 1 << 16;  ///< after these the measurement restarts

    /// Discards the measurement and starts a new one.
    void begin();
    /// Call these around a frame, without the wait for events: they measure how long the window was busy.
    void frame_begins();
    void frame_ends();

    /// The results of the last measurement. Frame times are in milliseconds; 0 if there were no frames.
    struct Report {
        int n_frames = 0;
        double seconds = 0;  ///< since begin(), waits included
        double frames_per_s = 0;
        double median_ms = 0, p99_ms = 0, longest_ms = 0;
        double thread_cpu_ms = 0;  ///< processor time of the window's thread per frame
        /// Largest processor time of the window's thread in one frame; does not depend on other load.
        double longest_cpu_ms = 0;
        double process_cpu_ms = 0;     ///< processor time of all threads per frame
        double process_cpu_share = 0;  ///< fraction of one core, over all of `seconds`
    };
    Report report() const;

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point begin_ = Clock::now(), frame_begin_;
    double thread_begin_ms_ = 0, process_begin_ms_ = 0, frame_cpu_ms_ = 0, longest_cpu_ms_ = 0;
    std::vector<float> frame_ms_;
    bool started_ = false;
};

/// Formats a report: "61 frames in 2.0 s (30.5 a second): median 8.1 ms, p99 20.3, longest 22.1; ..."
std::string frame_text(const FrameMeter::Report& report);

}  // namespace keyhole
