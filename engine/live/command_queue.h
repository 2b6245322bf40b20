/// Carries requests from the window to the engine's thread, in order. Thread-safe; a lock is held only while
/// requests are moved. Knows nothing of either end.
#pragma once

#include "engine/base/backend_options.h"
#include "engine/run/engine_status.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <mutex>
#include <optional>
#include <variant>

namespace keyhole {

struct StartRun {
    std::filesystem::path model_folder;
    RunSpec run;
    bool new_backend = false;              ///< choose the backend anew, though the model is the loaded one
    std::optional<Precision> precision{};  ///< of a backend that is chosen; nullopt: as Engine was made
};
struct Play {};
struct Answer {};  ///< Engine::answer
struct Stop {
    bool work = false;  ///< cancel a replay in progress too
};
struct StepRows {
    int n_rows = 1;
};
struct SetSpeed {
    double rows_per_s = 0;  ///< 0: as fast as possible
};
struct RequestCounterfactual {  ///< Session::counterfactual
    int index = 0;
    int position = 0;
    int row = -1;
    int n_tokens = 1;
};
struct RequestRanks {  ///< Session::ranks
    RanksRequest asked;
};
struct TrySettings {  ///< Session::try_settings
    int index = 0;
    std::optional<LaneSpec> spec;
};
struct Quit {};

using Request = std::variant<StartRun, Play, Answer, Stop, StepRows, SetSpeed, Command, RequestCounterfactual,
                             RequestRanks, TrySettings, Quit>;

struct QueuedRequest {
    RequestId id = 0;
    Request request;
    RequestId follows = 0;  ///< dropped where that request was refused; 0: none
};

class CommandQueue {
  public:
    RequestId push(Request request, RequestId follows = 0) {
        RequestId id = 0;
        {
            const std::lock_guard lock(mutex_);
            id = ++last_id_;
            requests_.push_back({id, std::move(request), follows});
        }
        arrived_.notify_one();
        return id;
    }

    /// Returns the id of the newest request, handled or not; 0: none yet.
    RequestId last_id() const {
        const std::lock_guard lock(mutex_);
        return last_id_;
    }

    bool empty() const {
        const std::lock_guard lock(mutex_);
        return requests_.empty();
    }

    /// Returns the oldest request, if any.
    std::optional<QueuedRequest> pop() {
        const std::lock_guard lock(mutex_);
        if (requests_.empty()) return std::nullopt;
        QueuedRequest oldest = std::move(requests_.front());
        requests_.pop_front();
        return oldest;
    }

    /// Returns whether a waiting request cancels a replay in progress.
    bool stops_work() const {
        const std::lock_guard lock(mutex_);
        return std::any_of(requests_.begin(), requests_.end(), [](const QueuedRequest& queued) {
            const auto* stop = std::get_if<Stop>(&queued.request);
            return (stop != nullptr && stop->work) || supersedes(queued);
        });
    }

    /// Returns whether a waiting request replaces the current run.
    bool is_superseded() const {
        const std::lock_guard lock(mutex_);
        return std::any_of(requests_.begin(), requests_.end(), supersedes);
    }

    /// Blocks until a request arrives.
    void wait() {
        std::unique_lock lock(mutex_);
        arrived_.wait(lock, [&] { return !requests_.empty(); });
    }

    /// Blocks until a request arrives or the time is reached.
    void wait_until(std::chrono::steady_clock::time_point time) {
        std::unique_lock lock(mutex_);
        arrived_.wait_until(lock, time, [&] { return !requests_.empty(); });
    }

  private:
    static bool supersedes(const QueuedRequest& queued) {
        return std::holds_alternative<StartRun>(queued.request) ||
               std::holds_alternative<Quit>(queued.request);
    }

    mutable std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<QueuedRequest> requests_;
    RequestId last_id_ = 0;
};

}  // namespace keyhole
