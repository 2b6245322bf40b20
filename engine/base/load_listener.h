/// Tells who loads a model how far its weights are. They are read deep in backends, which know nobody of the
/// kind: the loading thread names its listener for as long as it loads. Each thread has its own.
#pragma once

#include <functional>
#include <utility>

namespace keyhole {

class LoadListener {
  public:
    using Report = std::function<void(double share)>;
    explicit LoadListener(Report report) : before_(std::exchange(current(), std::move(report))) {}
    ~LoadListener() { current() = std::move(before_); }
    LoadListener(const LoadListener&) = delete;
    LoadListener& operator=(const LoadListener&) = delete;

    /// share: of the work, 0 to 1. Does nothing where this thread has no listener.
    static void tell(double share) {
        if (current()) current()(share);
    }

  private:
    static Report& current() {
        static thread_local Report report;
        return report;
    }

    Report before_;
};

}  // namespace keyhole
