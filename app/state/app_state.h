/// Holds all that the window knows, free of GL and ImGui: the run on show, the view of it, background jobs,
/// and what actions ask of the frame loop. Actions change it; panels read it. Window thread.
#pragma once

#include "app/base/file_chooser.h"
#include "app/manual/page.h"
#include "app/models/catalog.h"
#include "app/state/annotations.h"
#include "app/state/answer_strips.h"
#include "app/state/attribution_run.h"
#include "app/state/device_proof.h"
#include "app/state/dialog.h"
#include "app/state/frame_meter.h"
#include "app/state/jobs.h"
#include "app/state/lesson_state.h"
#include "app/state/paper_figures.h"
#include "app/state/requests.h"
#include "app/state/run_state.h"
#include "app/state/settings.h"
#include "app/state/shown_run.h"
#include "app/state/story_run.h"
#include "app/state/undo_history.h"
#include "app/view/glyphs.h"
#include "app/view/heat_data.h"
#include "app/view/view_state.h"
#include "engine/analysis/doctor.h"
#include "engine/base/backend_options.h"

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// The zoom of a heat map before a frame and in it, and its canvas in pixels. They differ where the frame
/// fitted the zoom or centred a cell, which needs the canvas.
struct DrawnHeat {
    HeatView before, drawn;
    CanvasPoint canvas;
};

/// The matrices on show.
struct HeatMaps {
    HeatData lane;                ///< of the focused lane
    std::deque<HeatData> others;  ///< lanes beside it, in the order of AppState::compared_lanes()
    HeatData difference{HeatData::Kind::difference};
    bool complete = true;  ///< false: some rows remain for the next frame
    CanvasPoint canvas;    ///< pixels of the large heat map in the last frame; 0: none was drawn
};

/// The last result or failure, for the status line.
struct Notice {
    std::string text;
    bool is_fault = false;
    std::int64_t number = 0;  ///< grows with each notice, also with one of the same text
};

struct ShownManual {
    ManualPlace place;
    ManualPage page;  ///< the page of `place`
};

/// The actions that were run.
struct ActionLog {
    std::int64_t count = 0;
    std::deque<std::string> last_ids;  ///< newest last; at most 16
};

struct AppState {
    AppState(BackendOptions backend, std::function<void()> wake);

    const std::function<void()> wake;
    RunState run;
    ViewState view;
    HeatMaps maps;
    std::filesystem::path last_run;  ///< kept records of the window before this one; empty: none
    DoctorWatch doctor;              ///< findings for all lanes at the shown step
    mutable Glyphs glyphs;           ///< mutable, since it caches texts on request
    Jobs jobs;
    DeviceProof device_proof;  ///< the proof after which `--backend auto` takes the CUDA device
    LessonState lesson;
    StoryRun story_run;
    AnswerStrips strips;
    PaperFigures papers;
    AttributionRun attribution;
    Requests requests;
    Annotations annotations;
    RecentFiles recent;
    std::vector<CatalogModel> catalog;
    UndoHistory undo_history{[this](ViewState& restored) { fit(restored); }};
    Dialog dialog = Dialog::none;
    std::string palette_text;
    ShownManual manual;
    std::string hovered_pane;  ///< id of the pane under the pointer; empty: none
    Notice notice;
    std::string refusal;  ///< why the engine refused the last command, until a script reads it
    ActionLog action_log;
    FrameMeter frames;
    std::size_t texture_bytes = 0;  ///< in the last frame

    // --- actions on more than one of these ---
    /// Starts a new run from run.setup. new_backend: as for Engine::start().
    void start(bool new_backend = false);
    void play();
    void step(int n_rows);
    /// Do what RunState's functions of these names do. The view goes to the newest step, and the notice says
    /// what happened.
    void rewind(int row, bool keeps_settings = false);
    void go_to_branch(int id);
    /// Starts a run with a model (see find_model). Throws as find_model() does, and Error(wrong_use) for a
    /// model of the catalogue that is not here.
    void open_model(std::string_view name);
    /// Gets a model of the catalogue in the background, and starts a run with it when it is there. Throws
    /// Error(wrong_use) for an unknown name, and while another model is being downloaded.
    void get_model(std::string_view name);
    void cancel_getting();
    /// Asks with the desktop's file dialog for a path, in the background. It then runs the action `command`
    /// with the path in place of {}, or at its end. Throws Error(wrong_use) while a dialog is open.
    void choose_path(std::string command, FileQuestion question);
    /// Proves the CUDA device in the background. Throws Error(wrong_use) where the build has no CUDA backend,
    /// and while a proof runs.
    void prove_device(bool again);
    /// Proves the device at the start of the window, if `--backend auto` may find one; else has no effect.
    void prove_device_once();
    /// Starts the run again on the proven device. Throws Error(wrong_use) where there is none.
    void use_device();
    /// Opens a trace, a model or a prompt (.txt). Throws Error(wrong_use) for any other file.
    void open_any(const std::filesystem::path& path);
    /// Reads a trace in the background. The shown run stays until the trace is read. Throws Error(wrong_use)
    /// while another trace is being read.
    void open_trace(const std::filesystem::path& path);
    void cancel_opening();
    /// Shows a finished run in place of the live one.
    void show_run(OpenedRun run);
    void save_trace(const std::filesystem::path& path);
    /// Throws Error(wrong_use) while a file is being written. doing: what waits, such as "save run.keyhole".
    void need_free_writer(const std::string& doing) const;
    /// Calls `write` on another thread to write a file. Throws Error(wrong_use) without a run, and while
    /// another file is being written.
    void save_in_background(const std::filesystem::path& path, std::function<void()> write);
    /// Records changes of the view or of a lane's settings, for undo(). Call once a frame, while no button is
    /// held.
    void remember_changes() { undo_history.remember(view, run.lane_editor); }
    /// Calls `choose`, which changes the view without the user: undo() does not stop there.
    void choose_by_itself(const std::function<void()>& choose);
    /// Return the change that was undone or redone; empty: none.
    std::string undo() { return undo_history.undo(view, run.lane_editor); }
    std::string redo() { return undo_history.redo(view, run.lane_editor); }
    std::string next_undo() const { return undo_history.next_undo(run.lane_editor); }
    std::string next_redo() const { return undo_history.next_redo(run.lane_editor); }
    void notify(std::string text, bool fault = false) {
        notice = {std::move(text), fault, notice.number + 1};
    }
    /// Says what the last request to the engine does, and once it is done what it did; nothing if it was
    /// refused. done: returns the text, from the run as it then is.
    void announce(std::string doing, std::function<std::string(const RunState&)> done);
    /// Fits the zoom to the chosen rows. A choice that equals the automatic one stays automatic.
    void fit_rows(FittedRows rows);

    // --- what the frame loop calls ---
    /// Takes the zoom that a fit or a requested cell gave, unless an action has set another one since.
    void heat_was_drawn(const DrawnHeat& drawn);
    /// Takes what the engine and the background jobs made since the last frame. Returns true if something
    /// visible changed.
    bool refresh();
    /// Updates the shown matrices to the run, one slice a frame: see HeatMaps::complete.
    void update_maps(double budget_ms);
    /// Updates the doctor's findings on all lanes, as far as the time allows.
    void update_doctor(double budget_ms);
    /// Fits the view to the lanes, heads and steps on show. Actions, rewinds and other files may remove some.
    void fit_view();

    /// What the strip at the bottom says about the CUDA device.
    enum class DeviceStrip { none, proving, passed, failed };
    DeviceStrip device_strip() const;

    // --- what is on show. A lane is an index into run.lane_editor.lanes() ---
    /// Returns true if no work is in progress: every request so far has taken effect.
    bool idle() const { return is_settled() && strips.complete(); }
    /// The same, but for the strips, which wait until all else rests.
    bool is_settled() const {
        return maps.complete && !jobs.any() && !device_proof.running() && !papers.running() &&
               !attribution.running() && run.idle() && lesson.is_idle();
    }
    /// Returns the turn that the lanes had answered when the watched words were chosen; -1: none, so the
    /// answers followed the prompt.
    int watched_since_turn() const { return watched_text_ ? watched_text_->turn : -1; }
    /// Returns whether people look from a distance: type is large, and panes say less.
    bool for_projector() const { return view.arrangement == Arrangement::teach || lesson.shown.has_value(); }
    /// Returns whether the answers and what the lanes attend to meanwhile are on show: see story.h.
    bool tells_story() const {
        return view.arrangement == Arrangement::story ||
               (view.arrangement == Arrangement::teach && !lesson.shown);
    }
    /// Returns the lanes joined with their records at the shown step. The reference holds until the run, its
    /// lanes or the shown step change.
    const RunOnShow& shown() const;
    /// Returns the index into history.lanes() of what the focused lane shows: see RunState::drawn_lane().
    std::optional<int> shown_lane() const { return run.drawn_lane(view.lane); }
    /// The same for actions. Throws Error(wrong_use) if the lane (default: the focused one) has no step yet.
    int need_shown_lane() const { return need_drawn_lane(view.lane); }
    int need_drawn_lane(int lane) const;
    /// Returns the index of the lane whose text is on show. A lane that joins reads lane 0's.
    int text_lane() const { return shown_lane().value_or(0); }
    /// Returns the record of a lane at the shown step, or null.
    const LaneRecord* record(int lane) const;
    /// Returns the KV heads of what a lane shows; the model's own while there is nothing to show.
    const KvLayout& layout(int lane) const;
    /// Returns the KV head of the focused query head in what the focused lane shows.
    int focused_kv_head() const;
    /// Returns the lane that the focused one is compared with; the focused one itself if it is the only one.
    int other_lane() const;
    /// Returns the lanes shown beside the focused one: of a comparison the other lane first, at most three;
    /// of the story all in their order, at most kMostInStory. Empty if no pane shows them.
    std::vector<int> compared_lanes() const;
    static constexpr std::size_t kMostInStory = 11;
    bool shows_difference() const;
    /// Side by side: shows the watched words in place of overlap and agreement.
    bool compares_watched() const { return view.watched && view.measure_curve == ViewState::kWatchedSpan; }
    /// Returns the row where a fitted zoom begins: row 0 or the prompt's last row. In automatic mode it
    /// skips the prompt once a few tokens are decoded: with one-shot prefill no lane evicts within the
    /// prompt, so the lanes are alike there.
    int first_fitted_row() const;

  private:
    /// What a snapshot was made of.
    struct Joined {
        std::uint64_t generation = 0;
        int row = -1, last_row = -1;
        RunState::Records records = RunState::Records::current;
        std::uint64_t lanes = 0;  // LaneEditor::version()
        bool operator==(const Joined&) const = default;
    };
    struct Deed {
        RequestId id = 0;
        std::function<std::string(const RunState&)> done;
    };
    std::deque<Deed> deeds_;  // announced ones, in the order of their requests
    /// The prompt that a change of the model replaced, until the start has taken effect.
    struct ReplacedPrompt {
        RequestId start = 0;
        std::string prompt;
        PromptGuide guide;
    };
    std::optional<ReplacedPrompt> replaced_prompt_;
    std::string paused_text_;  ///< why decoding ended by itself; the notice is cleared when it goes on
    /// The watched words as text, since another tokenizer has them at other positions.
    struct WatchedText {
        std::shared_ptr<const RunInfo> run;
        TokenSpan span;
        std::string words;
        std::size_t first_byte = 0;  // in the text
        int turn = -1;               // the turn that was answered when they were chosen
    };
    std::optional<WatchedText> watched_text_;
    mutable Joined joined_;
    mutable std::shared_ptr<const RunOnShow> shown_;
    int doctor_row_ = -1;
    std::chrono::steady_clock::time_point doctor_row_came_;

    std::uint64_t seen_run_ = 0;  // whose model is among the recent ones

    void fit(ViewState& to_fit) const;
    bool take_opened_run();
    bool take_got_model();
    bool take_chosen_path();
    void start_with_model(const std::filesystem::path& folder);
    bool take_prompt_of_model();
    void say_deeds();
    void remember_watched();
    void find_watched_again();
    void remember_model();
    bool report_jobs();
    bool refresh_papers();
    bool refresh_attribution();
};

}  // namespace keyhole
