/// What the engine's thread says about itself and its run. Plain values, for any thread.
#pragma once

#include "engine/run/answer.h"
#include "engine/run/branch_tree.h"
#include "engine/run/counterfactual.h"
#include "engine/run/ranks.h"
#include "engine/run/run_spec.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// Names a request. A later request has a greater id; the first has 1.
using RequestId = std::uint64_t;

enum class EnginePhase { idle, loading, prefill, running, finished, failed };

/// Memory held by the engine's thread, in bytes.
struct EngineMemory {
    bool on_device = false;        ///< all of it is in the memory of a CUDA device
    std::int64_t weights = 0;      ///< as the backend reads them: Backend::weight_bytes()
    std::int64_t caches = 0;       ///< K, V and scores of all lanes, as allocated; shadows included
    std::int64_t checkpoints = 0;  ///< earlier states, for rewinding: at most kCheckpointBytes
};

struct EngineStatus {
    EnginePhase phase = EnginePhase::idle;
    std::string message;     ///< current activity or error, for the status line
    std::string work;        ///< purpose of a replay in progress, once it takes a while
    double progress = 0;     ///< of prefill, or of `work` if there is any, 0..1
    double steps_per_s = 0;  ///< of the last second of running; 0: the run was too short to tell
    std::string backend;
    std::string precision;  ///< Backend::precision_text(): what its products change; empty: nothing
    EngineMemory memory;
    /// RunInfo::id of the run that goes on; 0: none has processed its prompt, or it was lost. lane_ids,
    /// answers and branches are of this run.
    std::uint64_t run_id = 0;
    std::vector<int> lane_ids;  ///< of the lanes as they are now: LaneInfo::id; empty: not known yet
    RunSpec run;  ///< as requested, with the log of the shown branch: the input of an export that re-runs
    /// `run` can go on: its prompt was not stopped, and no device failed. Without one, lanes that commands
    /// set, add or remove are those of the next start.
    bool has_session = false;
    int branch = 0;                                        ///< the shown one
    std::vector<Branch> other_branches;                    ///< branches that one can go to
    std::shared_ptr<const Counterfactual> counterfactual;  ///< the last answer; null: none in this run
    std::shared_ptr<const Ranks> ranks;                    ///< the last since a command; null: none
    /// Each lane's own answer, as far as it is known; null: none yet, or RunSpec::answer_end was not set.
    /// They are computed while nothing else is to be done, and between the rows of a run.
    std::shared_ptr<const std::vector<LaneAnswer>> answers;
    bool answering = false;  ///< some of them are not complete
    /// These need the prompt, which is not processed while rows are decoded.
    bool answers_need_stop = false;
    /// This request and all before it have taken effect or were refused. A start has once its prompt is
    /// processed; play() and step() have once decoding has begun.
    RequestId handled = 0;
    RequestId refused = 0;        ///< the last refused start, command or question; 0: none
    std::string refusal_message;  ///< why it was refused
    /// The newest refused requests, and those that were dropped with one: see Engine::Together.
    std::vector<RequestId> refusals;

    bool was_refused(RequestId id) const {
        return std::find(refusals.begin(), refusals.end(), id) != refusals.end();
    }
    void note_refusal(RequestId id) {
        constexpr std::size_t kMost = 64;
        if (refusals.size() == kMost) refusals.erase(refusals.begin());
        refusals.push_back(id);
    }
};

}  // namespace keyhole
