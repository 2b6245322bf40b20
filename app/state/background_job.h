/// Runs one piece of work at a time on its own thread, and holds its progress, result and fault. Started and
/// queried on the window's thread.
#pragma once

#include "engine/base/crash_message.h"

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace keyhole {

template <class Result>
class BackgroundJob {
  public:
    /// Reports progress, 0..1. Returns false if the job is cancelled or the program ends; the work should
    /// then stop.
    using Progress = std::function<bool(double)>;

    /// Starts the work; no effect while a job runs. wake: called on any thread when progress moved and at
    /// the end; may be empty.
    void begin(std::function<Result(const Progress&)> work, std::function<void()> wake) {
        if (running_) return;
        {
            const std::lock_guard lock(mutex_);
            fault_.clear();
        }
        running_ = true;
        progress_ = 0;
        auto body = [this, work = std::move(work), wake = std::move(wake)](std::stop_token stop) {
            guard_stack();
            std::shared_ptr<Result> result;
            std::string fault;
            try {
                result = std::make_shared<Result>(work([&](double done) {
                    if (stop.stop_requested()) return false;
                    progress_ = done;
                    if (wake) wake();
                    return true;
                }));
            } catch (const std::exception& error) {
                fault = error.what();
            }
            {
                const std::lock_guard lock(mutex_);
                if (result != nullptr) result_ = std::move(result);
                fault_ = std::move(fault);
            }
            running_ = false;
            if (wake) wake();
        };
        try {
            thread_ = std::jthread(std::move(body));
        } catch (const std::system_error& error) {
            const std::lock_guard lock(mutex_);
            fault_ = std::string("cannot start a thread: ") + error.what();
            running_ = false;
        }
    }
    void cancel() { thread_.request_stop(); }

    bool running() const { return running_; }
    double progress() const { return progress_; }
    /// Returns the result of the last job that finished; null: none yet.
    std::shared_ptr<const Result> result() const {
        const std::lock_guard lock(mutex_);
        return result_;
    }
    /// Returns the result and stops storing it.
    std::shared_ptr<Result> take() {
        const std::lock_guard lock(mutex_);
        return std::exchange(result_, nullptr);
    }
    /// Returns why the last job failed; empty if it did not.
    std::string fault() const {
        const std::lock_guard lock(mutex_);
        return fault_;
    }

  private:
    std::atomic<bool> running_{false};
    std::atomic<double> progress_{0};
    mutable std::mutex mutex_;
    std::shared_ptr<Result> result_;
    std::string fault_;
    std::jthread thread_;  // last: joins first
};

}  // namespace keyhole
