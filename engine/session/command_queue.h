/// The one way down: requests from the window to the engine's thread, in order. Thread-safe; a lock is held
/// only for moving requests.
#pragma once

#include "engine/session/session.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <variant>

namespace keyhole {

struct StartRun {
    std::filesystem::path model_folder;
    RunSpec run;
};
struct Play {};
struct Stop {
    bool work = false;  ///< what is being lived again too
};
struct StepRows {
    int n_rows = 1;
};
struct SetSpeed {
    double rows_per_s = 0;  ///< 0: as fast as it goes
};
struct RequestCounterfactual {  ///< Session::with_token_restored
    int index = 0;
    int position = 0;
    int row = -1;
    int n_tokens = 1;
};
struct Quit {};

using Request = std::variant<StartRun, Play, Stop, StepRows, SetSpeed, Command, RequestCounterfactual, Quit>;

class CommandQueue {
  public:
    void push(Request request) {
        {
            const std::lock_guard lock(mutex_);
            requests_.push_back(std::move(request));
        }
        arrived_.notify_one();
    }

    /// The oldest request, if any.
    std::optional<Request> pop() {
        const std::lock_guard lock(mutex_);
        if (requests_.empty()) return std::nullopt;
        Request oldest = std::move(requests_.front());
        requests_.pop_front();
        return oldest;
    }

    /// A waiting request makes the present run pointless: a new start, or the end.
    bool supersedes_run() const {
        const std::lock_guard lock(mutex_);
        return std::any_of(requests_.begin(), requests_.end(), supersedes);
    }

    /// A waiting request stops what is being lived again.
    bool stops_work() const {
        const std::lock_guard lock(mutex_);
        return std::any_of(requests_.begin(), requests_.end(), [](const Request& request) {
            const auto* stop = std::get_if<Stop>(&request);
            return (stop != nullptr && stop->work) || supersedes(request);
        });
    }

    /// Blocks until a request is there.
    void wait() {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] { return !requests_.empty(); });
    }

    /// Blocks until a request is there or the time has come.
    void wait_until(std::chrono::steady_clock::time_point time) {
        std::unique_lock lock(mutex_);
        arrived_.wait_until(lock, time, [&] { return !requests_.empty(); });
    }

  private:
    static bool supersedes(const Request& request) {
        return std::holds_alternative<StartRun>(request) || std::holds_alternative<Quit>(request);
    }

    mutable std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<Request> requests_;
};

}  // namespace keyhole
