/// What a lane's own shadow would have paid to one token after it went, row by row: records hold measures of a shadow but no rows, so
/// the run on show is replayed in the background, as an export is. Started and asked on the window's thread.
#pragma once

#include "app/state/background_job.h"
#include "engine/backend/backend.h"
#include "engine/session/session.h"
#include "engine/trace/row_sink.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ShadowAttention {
    std::uint64_t history = 0;  ///< RunHistory::generation() that was asked about
    int lane_id = -1;
    int position = 0;
    int last_row = -1;  ///< that was replayed
    std::vector<float>
        by_row;  ///< [last_row + 1] mean over the query heads that had lost it by then; NaN: none had, or no shadow
};

/// The sink of a replay that keeps the attention of a lane's shadow on one token. about: all of the result but its values.
class ShadowPicker final : public RowSink {
  public:
    ShadowPicker(KvLayout of_run, ShadowAttention about);
    void row(const StepTrace& step, int lane, const RowOutput& out) override;
    void rewind(int row) override;
    PrefillSink* prefill() override { return nullptr; }
    const ShadowAttention& result() const { return result_; }

  private:
    KvLayout of_run_;
    ShadowAttention result_;
};

class ShadowJob {
  public:
    /// run: as the engine's status gives it. about: history, lane, position and last row of the result. wake: when progress moved, any
    /// thread.
    void start(std::shared_ptr<const Model> model, RunSpec run, BackendOptions options, ShadowAttention about,
               std::function<void()> wake);
    void cancel() { job_.cancel(); }

    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }
    /// Of the last job that came to its end; null: none yet.
    std::shared_ptr<const ShadowAttention> result() const { return job_.result(); }
    /// Why the last job has none; empty: it has.
    std::string fault() const { return job_.fault(); }

  private:
    BackgroundJob<ShadowAttention> job_;
};

}  // namespace keyhole
