/// Holds the run on show, live or opened from a trace, and carries the user's changes of it to the engine.
/// Knows neither the view nor the window. Window thread.
#pragma once

#include "app/state/job_backend.h"
#include "app/state/lane_editor.h"
#include "app/state/opened_run.h"
#include "engine/analysis/measure_curves.h"
#include "engine/run/engine_status.h"
#include "engine/run/prompt_file.h"
#include "engine/trace/run_history.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

class Engine;

/// The input of a new run.
struct RunSetup {
    std::filesystem::path model_folder;
    std::string prompt;
    PromptGuide guide;  ///< what is known about the prompt
    std::vector<LaneSpec> lanes;
    std::uint64_t seed = 1;
    bool chat = false;  ///< see RunSpec::chat
};

/// Memory that the recorder's records take, in bytes.
struct RecordUse {
    std::size_t rows = 0;        ///< attention and scores
    std::size_t row_budget = 0;  ///< upper bound of `rows`
    std::size_t scalars = 0;     ///< everything else
};

class RunState {
  public:
    /// wake: see Engine.
    RunState(BackendOptions backend, std::function<void()> wake);
    ~RunState();

    BackendOptions backend_options;  ///< `precision` may change before a start; the rest stays
    /// Returns the backend for a job that replays the run.
    JobBackend job_backend() const;
    RunSetup setup;
    RunHistory history;
    MeasureCurves curves;
    EngineStatus status;                ///< as of the last refresh()
    std::filesystem::path opened_file;  ///< the shown trace; empty: a live run
    TraceAnswers opened_answers;        ///< that the shown trace holds
    LaneEditor lane_editor;
    int stride = 1;      ///< between stored rows, where the recorder thinned them
    int dense_from = 0;  ///< all rows from here on are stored
    RecordUse record_use;
    double speed = 0;  ///< steps per second; 0: no limit

    // --- requests of the user. An opened trace ignores them unless a comment says otherwise ---
    /// Starts a new run from `setup` in place of the shown one. Lanes of a shown run keep their settings. If
    /// the engine refuses it or the user stops it, the shown run stays with its model, and `setup` has its
    /// prompt again.
    /// new_backend: as for Engine::start().
    void start(bool new_backend = false);
    void play();
    void answer();                 ///< see Engine::answer
    void stop(bool work = false);  ///< work: as for Engine::stop
    void step(int n_rows);         ///< no effect before the first record
    void set_speed(double steps_per_second);
    /// Returns to the state after a step; the later steps become a branch. The lanes get the settings that
    /// they had there, or with `keeps_settings` the current ones. Throws Error(wrong_use) for a step that the
    /// run does not have, and as need_live_run() does.
    void rewind(int row, bool keeps_settings);
    /// Goes to the end of a branch that a rewind left behind, and returns its last row. Throws
    /// Error(wrong_use) if there is none, and as need_live_run() does.
    int go_to_branch(int id);
    /// See Engine::try_settings. The answer arrives in `status`.
    void try_settings(int lane, std::optional<LaneSpec> spec);
    /// See Engine::request_counterfactual. The answer arrives in `status`.
    void request_counterfactual(int lane, int position, int row, int n_tokens);
    /// See Engine::request_ranks. The answer arrives in `status`.
    void request_ranks(RanksRequest asked);
    /// Shows an opened run in place of the live one. Leaves its annotations to the caller.
    void show(OpenedRun& run);

    /// Takes what the engine made since the last call.
    struct Changes {
        bool visible = false;  ///< something that is shown changed
        bool paused = false;   ///< decoding ended by itself; the status says why
        bool refused = false;  ///< a command was refused: EngineStatus::refusal_message
        bool lanes = false;    ///< the lanes became the engine's, without the user: see LaneEditor::adopt()
    };
    Changes refresh();

    /// Throws Error(wrong_use) without a run, and for an opened trace, which cannot be continued.
    void need_live_run() const;
    /// Throws as need_live_run() does, and while the history is still that of the run or trace before: jobs
    /// replay the engine's run and compare it with the history.
    void need_recorded_run() const;
    /// Returns whether the history is that of the engine's run; see need_recorded_run().
    bool recorded() const { return is_recorded_; }
    /// Returns true if the settings of lanes, follow or sampling at this row differ from the current ones.
    bool settings_differ_at(int row) const;

    bool live() const { return opened_file.empty(); }
    bool has_steps() const { return !history.empty(); }
    bool running() const { return live() && status.phase == EnginePhase::running; }
    /// Returns true if the engine replays steps for a command and this takes a while: see EngineStatus::work.
    bool is_replaying() const { return live() && !status.work.empty(); }
    /// Returns true if the engine decodes, or does work that stop(true) ends: a replay, or a prompt.
    bool stoppable() const {
        return running() || is_replaying() || (live() && status.phase == EnginePhase::prefill);
    }
    /// Returns true if every request to the engine has taken effect or was refused, as of the last refresh().
    bool has_taken_requests() const;
    /// Returns true if lanes have no answer yet and give it when the run stops.
    bool answers_need_stop() const {
        return status.answers_need_stop && status.phase == EnginePhase::running;
    }
    /// Returns true if has_taken_requests(), the lanes have answered, and no decoding and no prompt is in
    /// progress. Always true for an opened trace.
    bool idle() const;

    int first_row() const { return has_steps() ? history.steps().front()->row : 0; }
    int last_row() const { return has_steps() ? history.last_row() : 0; }
    int n_decoded() const { return has_steps() ? history.last_row() - history.n_prompt() + 1 : 0; }
    /// Returns the index into history.lanes() of the records of a lane of the editor; nullopt before its
    /// first record.
    std::optional<int> history_lane(int lane) const;
    /// Returns the same for the lane whose picture stands for this one: its own, or before its first record
    /// that of the lane whose state it begins with (a fork); nullopt: there is none.
    std::optional<int> drawn_lane(int lane) const;
    /// What the records on show are to the run that the user asked for.
    enum class Records {
        current,  ///< they are its own
        reading,  ///< of the run before: the prompt is being processed
        unread,   ///< of the run before: the prompt was not processed
    };
    Records records() const;
    /// A lane whose settings are not those with which it processed the prompt: its text, its curves and its
    /// next tokens then belong to several settings.
    struct NewSettings {
        int from = -1;       ///< the first step with the present settings; -1: the next one
        std::string before;  ///< the spec at its first step
    };
    /// Returns nullopt for other lanes, for new ones, and in an opened trace.
    std::optional<NewSettings> new_settings(int lane) const;
    /// Returns the loaded model; null before the first load.
    std::shared_ptr<const Model> model() const;
    Engine& engine() { return *engine_; }
    const Engine& engine() const { return *engine_; }

  private:
    std::unique_ptr<Engine> engine_;
    std::uint64_t seen_version_ = 0;
    bool is_recorded_ = false;  // the history is that of the engine's run
    RequestId seen_refusal_ = 0;

    /// A start that has not taken effect, and what comes back if it is refused.
    struct Starting {
        RequestId id = 0;
        std::uint64_t engine_run = 0;  // EngineStatus::run_id before it
        std::filesystem::path opened_file;
        bool is_recorded = false;
        std::string prompt;
        PromptGuide guide;
        std::vector<std::pair<std::string, PromptGuide>> earlier;  // of starts that this one replaced
    };
    std::optional<Starting> starting_;
    std::string begun_prompt_;  // of the last start that took effect
    PromptGuide begun_guide_;

    bool take_records();
    void name_lanes();
    void take_start();
    void take_back_prompt(const Starting& refused);
};

}  // namespace keyhole
