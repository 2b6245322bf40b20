/// What stays the same while a session runs: the model, the backend, the start and its description for
/// records. Used on the session's thread, by the session only.
#pragma once

#include "engine/backend/backend.h"
#include "engine/model/weight_files.h"
#include "engine/run/run_spec.h"
#include "engine/session/look_ahead.h"
#include "engine/trace/row_sink.h"

#include <memory>
#include <span>
#include <string>

namespace keyhole {

/// Returns why a model cannot have a lane, whatever the prompt and the backend; empty if it can.
std::string lane_fault(const Model& model, const LaneSpec& spec);
/// Throws Error(wrong_use) for the first such lane.
void check_lanes(const Model& model, std::span<const LaneSpec> lanes);

struct RunContext {
    std::shared_ptr<const Model> model;
    WeightFiles weight_files;  ///< of the model
    Backend& backend;
    RunSpec start;  ///< as requested, but for with_system_part()
    RowSink* sink;  ///< null: none
    std::shared_ptr<const RunInfo> run;
    std::shared_ptr<LookAhead> ahead = std::make_shared<LookAhead>();  ///< changes with the text

    /// Tokenizes the prompt. Throws Error(wrong_use) if the model cannot start the run, and Error(bad_file)
    /// if its tokenizer does not belong to it.
    RunContext(std::shared_ptr<const Model> model, Backend& backend, RunSpec start, RowSink* sink);

    int n_prompt() const { return run->n_prompt(); }
    /// Returns the lane with positions in place of `protect=system`; unchanged where the prompt has no system
    /// part, which check() refuses.
    LaneSpec with_system_part(LaneSpec spec) const;
    /// The same of the lane that a command brings, if it brings one.
    Command with_system_part(Command command) const;
    /// Returns why the model cannot run a lane; empty if it can. The text forms check this while parsing, but
    /// the window fills structs directly.
    std::string fault_of(const LaneSpec& spec) const;
    /// Throws Error(wrong_use) if the model cannot run the lane, and Error(unsupported) if the backend
    /// cannot.
    void check(const LaneSpec& spec) const;
};

}  // namespace keyhole
