/// What the window's frames cost, from a measurement's begin on. Window thread; knows neither GL nor ImGui.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

namespace keyhole {

class FrameMeter {
  public:
    static constexpr std::size_t kMostFrames = 1 << 16;  ///< then a measurement begins anew

    /// Forgets what was measured.
    void begin();
    /// Around a frame, the wait for events left out: how long the window was busy with it.
    void frame_begins();
    void frame_ends();

    /// The last measurement. Times of a frame in milliseconds; 0 where there were no frames.
    struct Report {
        int n_frames = 0;
        double seconds = 0;  ///< since begin(), waits included
        double frames_per_s = 0;
        double median_ms = 0, p99_ms = 0, longest_ms = 0;
        double thread_cpu_ms = 0;  ///< processor time of the window's thread a frame
        double longest_cpu_ms =
            0;  ///< the same of the frame that took most: long whatever else the machine does
        double process_cpu_ms = 0;     ///< of all threads, the engine's and the driver's among them, a frame
        double process_cpu_share = 0;  ///< of one core, over all of `seconds`
    };
    Report report() const;

  private:
    using Clock = std::chrono::steady_clock;
    Clock::time_point begin_ = Clock::now(), frame_begin_;
    double thread_begin_ms_ = 0, process_begin_ms_ = 0, frame_cpu_ms_ = 0, longest_cpu_ms_ = 0;
    std::vector<float> frame_ms_;
    bool started_ = false;
};

/// "61 frames in 2.0 s (30.5 a second): median 8.1 ms, p99 20.3, longest 22.1; ..."
std::string frame_text(const FrameMeter::Report& report);

}  // namespace keyhole
