/// The live engine: a thread that loads models and decodes. Commands go down one queue, records come up
/// through one recorder, nothing else is shared with the window. All member functions are called from the
/// window's thread and return at once.
#pragma once

#include "engine/session/session.h"
#include "engine/trace/recorder.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

enum class EnginePhase { idle, loading, prefill, running, finished, failed };

/// What the engine's thread holds, in bytes.
struct EngineMemory {
    std::int64_t weights = 0;      ///< as stored; mapped from the file where they need no copy
    std::int64_t caches = 0;       ///< K, V and scores of all lanes, as allocated; shadows included
    std::int64_t checkpoints = 0;  ///< earlier states, for rewinding: at most kCheckpointBytes
};

/// Upper bound of the states that are kept for rewinding. A lane of the demo model takes a few MB a state.
inline constexpr std::size_t kCheckpointBytes = std::size_t{96} << 20;

struct EngineStatus {
    EnginePhase phase = EnginePhase::idle;
    std::string message;      ///< what went on or wrong, for the status line
    std::string work;         ///< rows being lived again for a command or a question, once it takes a while
    double progress = 0;      ///< of prefill, or of `work` while there is any, 0..1
    double tokens_per_s = 0;  ///< of the last second of running
    std::string backend;
    EngineMemory memory;
    RunSpec run;     ///< as asked for, log of the shown branch included: what an export re-runs
    int branch = 0;  ///< shown
    std::vector<Branch> other_branches;                    ///< to go back to
    int pending_commands = 0;                              ///< questions too
    std::shared_ptr<const Counterfactual> counterfactual;  ///< the last answer; null: none in this run
};

class Engine {
  public:
    /// wake is called from the engine's thread whenever a record or the status changed (posts an empty event
    /// to the window).
    Engine(BackendOptions options, std::function<void()> wake,
           std::size_t row_budget_bytes = Recorder::kRowBudgetBytes);
    ~Engine();  ///< stops and joins

    /// Loads (when the folder differs from the loaded one), starts the run and processes its prompt. Stops
    /// what runs now.
    void start(std::filesystem::path model_folder, RunSpec run);
    /// Decodes until stopped or finished. Pauses where the text fills the context that the model was trained on, and again
    /// each time it has doubled; the status says so, and play() goes on. Caches of full lanes grow with every token.
    void play();
    /// Within one step. work: what is being lived again too, within a row of it; the run stays as it was before and the status
    /// says so; on the way to the end of a branch it stays at the row, and play() goes on. Without, such work goes to its end first.
    void stop(bool work = false);
    void step(int n_rows = 1);               ///< decode so many rows, then stop
    void set_speed(double rows_per_second);  ///< 0: as fast as it goes
    /// Takes effect before the next row. Rewind and GoToBranch work on a finished run too, which can go on then; the recorder
    /// loses the rows that were cut. The rows to a branch's end are decoded at once.
    void send(Command command);
    /// Session::with_token_restored after a row (-1: the present one): the answer comes with the status, a refusal as its message.
    void request_counterfactual(int index, int position, int row = -1, int n_tokens = 1);

    Recorder& recorder();
    EngineStatus status() const;
    /// The loaded model: const, shared; null before the first load. For exports that re-run.
    std::shared_ptr<const Model> model() const;

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
