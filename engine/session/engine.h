/// The running engine: a thread that loads models and decodes. It receives requests through one queue and
/// sends records through one recorder; it shares nothing else with the window. All member functions are
/// called on the window's thread and return at once. A request takes effect later: see EngineStatus::handled.
#pragma once

#include "engine/session/command_queue.h"
#include "engine/session/session.h"
#include "engine/trace/recorder.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

enum class EnginePhase { idle, loading, prefill, running, finished, failed };

/// Memory held by the engine's thread, in bytes.
struct EngineMemory {
    std::int64_t weights = 0;      ///< as stored; mapped from the file where no copy is needed
    std::int64_t caches = 0;       ///< K, V and scores of all lanes, as allocated; shadows included
    std::int64_t checkpoints = 0;  ///< earlier states, for rewinding: at most kCheckpointBytes
};

/// Limit of the states that are kept for rewinding. A lane of the demo model takes a few MB in each state.
inline constexpr std::size_t kCheckpointBytes = std::size_t{96} << 20;

struct EngineStatus {
    EnginePhase phase = EnginePhase::idle;
    std::string message;     ///< current activity or error, for the status line
    std::string work;        ///< purpose of a replay in progress, once it takes a while
    double progress = 0;     ///< of prefill, or of `work` if there is any, 0..1
    double steps_per_s = 0;  ///< of the last second of running; 0: the run was too short to tell
    std::string backend;
    EngineMemory memory;
    /// RunInfo::id of the run that goes on; 0: none has processed its prompt, or it was lost. lane_ids,
    /// answers and branches are of this run.
    std::uint64_t run_id = 0;
    std::vector<int> lane_ids;  ///< of the lanes as they are now: LaneInfo::id; empty: not known yet
    RunSpec run;     ///< as requested, with the log of the shown branch: the input of an export that re-runs
    int branch = 0;  ///< the shown one
    std::vector<Branch> other_branches;                    ///< branches that one can go to
    std::shared_ptr<const Counterfactual> counterfactual;  ///< the last answer; null: none in this run
    /// Each lane's own answer, as far as it is known; null: none yet, or RunSpec::answer_end was not set.
    /// They are computed while nothing else is to be done, and between the rows of a run.
    std::shared_ptr<const std::vector<LaneAnswer>> answers;
    bool answering = false;  ///< some of them are not complete
    /// This request and all before it have taken effect or were refused. A start has once its prompt is
    /// processed; play() and step() have once decoding has begun.
    RequestId handled = 0;
    RequestId refused = 0;        ///< the last refused start, command or question; 0: none
    std::string refusal_message;  ///< why it was refused
};

class Engine {
  public:
    /// wake: called on the engine's thread after every record and change of status (the window posts itself
    /// an empty event).
    Engine(BackendOptions options, std::function<void()> wake,
           std::size_t row_budget_bytes = Recorder::kRowBudgetBytes);
    ~Engine();  ///< stops the thread and joins it

    /// Loads the model, if the folder differs from the loaded one, starts the run and processes its prompt.
    /// If the model, the lanes or the prompt cannot be used, the start is refused, and the current run goes
    /// on. new_backend: chooses the backend anew, though the model is the loaded one.
    void start(std::filesystem::path model_folder, RunSpec run, bool new_backend = false);
    /// Decodes until stopped or finished. Pauses where the answer is complete (see Session::answered), when
    /// the text fills the context that the model was trained on, and again each time it has doubled, because
    /// the caches of full lanes grow with every token. The status says so, and play() continues.
    void play();
    /// Stops within one step. work: also cancels a replay in progress, within one of its rows. The run then
    /// stays as it was before the command, and the status says so. On the way to the end of a branch it stays
    /// at the row it has reached, and play() continues. Without `work`, a replay is completed first.
    void stop(bool work = false);
    /// Decodes n_rows rows, then stops. While the rows of an earlier step are decoded, these come after them.
    void step(int n_rows = 1);
    void set_speed(double rows_per_second);  ///< 0: as fast as possible
    /// Applies a command before the next row. Rewind and GoToBranch work on a finished run too, which can
    /// then continue; the recorder drops the rows that they cut off. The rows up to a branch's end are
    /// decoded at once.
    void send(Command command);
    /// Runs Session::counterfactual after a row (-1: the current one). The status brings the answer or
    /// the refusal.
    void request_counterfactual(int index, int position, int row = -1, int n_tokens = 1);

    Recorder& recorder();
    EngineStatus status() const;
    /// Returns the id of the newest request; 0: none yet.
    RequestId last_request() const;
    /// Returns the loaded model (const, shared), for exports that re-run; null before the first load.
    std::shared_ptr<const Model> model() const;
    /// Returns the backend of the run if it is on a device, for jobs on other threads that replay the run
    /// (see SharedBackend); null otherwise.
    std::shared_ptr<Backend> device_backend() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
