/// Computes how much attention a lane's shadow (its full-attention reference) gives to one token after its
/// eviction, step by step. Records hold only measures of a shadow, so the job replays the run in the
/// background, as an export does. Started and queried on the window's thread.
#pragma once

#include "app/state/background_job.h"
#include "app/state/job_backend.h"
#include "engine/run/run_spec.h"
#include "engine/trace/row_sink.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

struct ShadowAttention {
    std::uint64_t history = 0;  ///< RunHistory::generation() of the question
    int lane_id = -1;
    int position = 0;
    int last_row = -1;  ///< last replayed row
    /// [last_row + 1] mean over the query heads whose KV head had evicted the token by then; NaN: none had
    /// or no shadow
    std::vector<float> by_row;
};

/// Receives a replay and keeps the shadow's attention to one token. about: the result without its values.
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
    /// run: from the engine's status. about: history, lane, position and last row of the result. wake:
    /// called on any thread when progress moved.
    void start(std::shared_ptr<const Model> model, RunSpec run, JobBackend backend, ShadowAttention about,
               std::function<void()> wake);
    void cancel() { job_.cancel(); }

    bool running() const { return job_.running(); }
    double progress() const { return job_.progress(); }
    /// Returns the result of the last job that finished; null: none yet.
    std::shared_ptr<const ShadowAttention> result() const { return job_.result(); }
    /// Returns why the last job failed; empty if it did not.
    std::string fault() const { return job_.fault(); }

  private:
    BackgroundJob<ShadowAttention> job_;
};

}  // namespace keyhole
