#include "app/window/export_job.h"

#include "engine/base/error.h"

namespace keyhole {

void ExportJob::start(std::shared_ptr<const Model> model, RunSpec run, int last_row, BackendOptions options,
                      std::function<void()> wake) {
    if (running_) return;
    running_ = true;
    failed_ = false;
    progress_ = 0;
    thread_ =
        std::jthread([this, model, run, last_row, options, wake, w = wish](std::stop_token stop) mutable {
            std::string result;
            try {
                (void)stop;
                (void)last_row;
                fail(ErrorCode::unsupported, "exporting to {}: not in this build; run keyhole decode",
                     w.folder.string());
            } catch (const std::exception& error) {
                failed_ = true;
                result = error.what();
            }
            {
                const std::lock_guard lock(mutex_);
                result_ = std::move(result);
            }
            running_ = false;
            if (wake) wake();
        });
}

void ExportJob::cancel() {
    thread_.request_stop();
}

std::string ExportJob::result() const {
    const std::lock_guard lock(mutex_);
    return result_;
}

}  // namespace keyhole
