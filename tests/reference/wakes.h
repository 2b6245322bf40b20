/// Waits for what an engine or a background job reports: it calls back after every change, so a test needs no
/// sleep. Any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>

namespace reference {

class Wakes {
  public:
    /// Returns the function to give as `wake`. It must not be called after this object is gone.
    std::function<void()> callback() {
        return [this] {
            {
                const std::lock_guard lock(mutex_);
                ++n_;
            }
            changed_.notify_all();
        };
    }
    int count() const {
        const std::lock_guard lock(mutex_);
        return n_;
    }

    /// Waits until the condition holds, and tests it after every wake. Returns false after the limit, which
    /// is long, since sanitizers are slow.
    template <class Condition>
    bool wait_until(Condition condition, std::chrono::milliseconds limit = std::chrono::seconds(60)) {
        const auto end = std::chrono::steady_clock::now() + limit;
        for (;;) {
            const int before = count();
            if (condition()) return true;
            std::unique_lock lock(mutex_);
            if (!changed_.wait_until(lock, end, [&] { return n_ != before; })) return false;
        }
    }

  private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    int n_ = 0;
};

}  // namespace reference
