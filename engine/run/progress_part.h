/// Progress of long work, 0..1, and its cancellation. Any thread; does not know what the work is.
#pragma once

#include "engine/base/error.h"

#include <functional>

namespace keyhole {

/// Receives the share that is done. Returns false to cancel. Empty: the work cannot be cancelled.
using ProgressReport = std::function<bool(double)>;

/// Reports the progress of one part of some work to the callback for the whole, which must outlive it.
class ProgressPart {
  public:
    ProgressPart() = default;
    explicit ProgressPart(const ProgressReport& report) : report_(report ? &report : nullptr) {}

    /// Returns the progress of the part that begins at `from` and takes `share`, both 0..1.
    ProgressPart part(double from, double share) const {
        ProgressPart part = *this;
        part.from_ += share_ * from;
        part.share_ *= share;
        return part;
    }

    /// Returns false to cancel.
    bool report(double done) const { return report_ == nullptr || (*report_)(from_ + share_ * done); }
    void report_or_cancel(double done) const {
        if (!report(done)) fail(ErrorCode::cancelled, "stopped before the end");
    }
    /// Returns the form that a backend takes.
    ProgressReport callback() const {
        if (report_ == nullptr) return {};
        return [part = *this](double done) { return part.report(done); };
    }

  private:
    const ProgressReport* report_ = nullptr;
    double from_ = 0, share_ = 1;
};

}  // namespace keyhole
