/// The running engine: a thread that loads models and decodes. It receives requests through one queue and
/// sends records through one recorder; it shares nothing else with the window. All member functions are
/// called on the window's thread and return at once. A request takes effect later: see EngineStatus::handled.
#pragma once

#include "engine/base/backend_options.h"
#include "engine/run/engine_status.h"
#include "engine/trace/recorder.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// Limit of the states that are kept for rewinding. A lane of the demo model takes a few MB in each state.
inline constexpr std::size_t kCheckpointBytes = std::size_t{96} << 20;

class Backend;

class Engine {
  public:
    /// wake: called on the engine's thread after every record and change of status (the window posts itself
    /// an empty event).
    Engine(BackendOptions options, std::function<void()> wake,
           std::size_t row_budget_bytes = Recorder::kRowBudgetBytes);
    ~Engine();  ///< stops the thread and joins it

    /// Commands and steps that are sent while it exists belong together: where the first command is refused
    /// or stopped, the engine drops the others. One change of the user may take several.
    class Together {
      public:
        explicit Together(Engine& engine);
        ~Together();
        Together(const Together&) = delete;
        Together& operator=(const Together&) = delete;

      private:
        Engine& engine_;
    };

    /// Loads the model, if the folder differs from the loaded one, starts the run and processes its prompt.
    /// If the model, the lanes or the prompt cannot be used, the start is refused, and the current run goes
    /// on; a prompt that is stopped refuses it too, where the memory holds both runs. new_backend: chooses
    /// the backend anew, though the model is the loaded one. precision: of a backend that is chosen; nullopt:
    /// as BackendOptions said.
    void start(std::filesystem::path model_folder, RunSpec run, bool new_backend = false,
               std::optional<Precision> precision = std::nullopt);
    /// Decodes until stopped or finished. Pauses where the answer is complete (see Session::answered), when
    /// the text fills the context that the model was trained on, and again each time it has doubled, because
    /// the caches of full lanes grow with every token. The status says so, and play() continues.
    void play();
    /// Decodes the answer as fast as possible, whatever set_speed() says, and stops where it is complete: as
    /// play() does, but after AnswerEnd::max_tokens rows at the latest. Without RunSpec::answer_end, and
    /// where the answer is complete already, it has no effect.
    void answer();
    /// Stops within one step. work: also cancels a replay in progress, within one of its rows. The run then
    /// stays as it was before the command, and the status says so. On the way to the end of a branch it stays
    /// at the row it has reached, and play() continues. Without `work`, a replay is completed first.
    void stop(bool work = false);
    /// Decodes n_rows rows, then stops. While the rows of an earlier step are decoded, these come after them.
    void step(int n_rows = 1);
    void set_speed(double rows_per_second);  ///< 0: as fast as possible
    /// Applies a command before the next row. Without a session, those that set lanes have no effect: see
    /// EngineStatus::has_session. Rewind and GoToBranch work on a finished run too, which can
    /// then continue; the recorder drops the rows that they cut off. The rows up to a branch's end are
    /// decoded at once.
    void send(Command command);
    /// Runs Session::counterfactual after a row (-1: the current one). The status brings the answer or
    /// the refusal.
    void request_counterfactual(int index, int position, int row = -1, int n_tokens = 1);

    /// Runs Session::ranks after the newest row, if no other request waits. The status brings the answer
    /// until the next command.
    void request_ranks(RanksRequest asked);

    /// Runs Session::try_settings: the status brings the answer that a lane gives with other settings.
    void try_settings(int index, std::optional<LaneSpec> spec);

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
