/// A command of Keyhole in a process of its own, in the background, and what the window shows of it.
#pragma once

#include "app/state/background_job.h"

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace keyhole {

/// One command at a time. Window thread.
class ChildJob {
  public:
    /// Begins a command; no effect while one runs. name: of what it makes, for messages. wake: called on any
    /// thread when progress moved and at the end.
    void begin(std::vector<std::string> command, std::string name, std::function<void()> wake);
    /// Ends the command. What it wrote stays.
    void cancel() { job_.cancel(); }
    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }  ///< 0..1, of its last line of progress
    double seconds() const;                              ///< since it began

    enum class State { idle, runs, ended };
    /// Returns ended once after each command, however it ended.
    State refresh();
    /// Returns why the last one failed: its last line, its status, or that it was cancelled; empty if it did
    /// not.
    std::string fault() const { return job_.fault(); }

  private:
    std::chrono::steady_clock::time_point began_;
    bool was_running_ = false;
    BackgroundJob<bool> job_;  // last: joins first
};

}  // namespace keyhole
