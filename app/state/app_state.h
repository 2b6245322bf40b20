/// Holds all that the window knows, free of GL and ImGui: the shown run, the view, the lanes' cards, and the
/// requests of commands to the frame loop. Window thread.
#pragma once

#include "app/base/assets.h"
#include "app/manual/page.h"
#include "app/state/background_job.h"
#include "engine/analysis/doctor.h"
#include "app/state/export_job.h"
#include "app/state/frame_meter.h"
#include "app/view/glyphs.h"
#include "app/view/heat_data.h"
#include "app/state/lane_editor.h"
#include "app/state/opened_run.h"
#include "app/state/settings.h"
#include "app/state/shadow_job.h"
#include "app/state/view_history.h"
#include "app/view/view_state.h"
#include "engine/session/engine.h"

#include <chrono>
#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace keyhole {

/// The input of a new run. The top bar and the lanes panel edit it.
struct RunSetup {
    std::filesystem::path model_folder;
    std::string prompt;
    std::vector<LaneSpec> lanes;
    std::uint64_t seed = 1;
};

enum class Dialog {
    none,
    palette,
    keys,
    export_run,
    open_trace,
    save_trace,
    save_picture,
    save_screenshot,
    go_to,
    find,
    overrides,
    say,
    edit_token,
    why,
    doctor,
    notes,
    about,
    manual
};

struct AppState {
    AppState(BackendOptions backend, std::function<void()> wake);

    const BackendOptions backend_options;
    const std::function<void()> wake;

    // --- the run ---
    RunSetup setup;
    RunHistory history;
    EngineStatus status;
    int stride = 1;                     ///< between stored rows, where the recorder thinned them
    int dense_from = 0;                 ///< all rows from here on are stored
    std::filesystem::path opened_file;  ///< the shown trace; empty: a live run
    LaneEditor lane_editor;
    HeatData heat;
    std::deque<HeatData> others;  ///< lanes beside the focused one, in the order of compared_cards()
    HeatData difference{HeatData::Kind::difference};
    MeasureCurves curves;
    bool heat_complete = true;  ///< false: some rows remain for the next frame
    DoctorWatch doctor;         ///< findings for the cards at the shown step

    mutable Glyphs glyphs;  ///< mutable, since it caches texts on request

    // --- time and memory of the window ---
    FrameMeter frames;
    std::size_t texture_bytes = 0;        ///< in the last frame
    std::size_t record_bytes = 0;         ///< size of row blocks in the recorder
    std::size_t record_budget_bytes = 0;  ///< upper bound of record_bytes
    std::size_t record_scalar_bytes = 0;  ///< size of everything else in the recorder

    // --- the view ---
    ViewState view;
    CanvasPoint heat_canvas;  ///< pixels of the large heat map in the last frame; 0: none was drawn
    ViewHistory views;
    Annotations annotations;
    RecentFiles recent;
    Dialog dialog = Dialog::none;
    std::string hovered_pane;  ///< id of the pane under the pointer; "": none
    ManualPlace manual_place;  ///< place that the manual shows
    ManualPage manual_page;    ///< its page
    std::string palette_text;
    double speed = 0;    ///< steps per second; 0: no limit
    std::string notice;  ///< last result or failure of a command, for the status line
    bool notice_is_fault = false;
    std::string refusal;          ///< why the engine refused the last command, until a script reads it
    std::int64_t n_commands = 0;  ///< commands of the table that were run
    std::deque<std::string> last_commands;  ///< their ids, newest last; at most 16

    // --- requests to the frame loop ---
    std::optional<std::filesystem::path> screenshot;
    std::optional<std::filesystem::path> dump_cells;
    bool quit = false;
    std::string clipboard_out;         ///< text to copy
    std::optional<int> paste_to_lane;  ///< lane that waits for the clipboard's text
    bool scale_changed = true;

    ExportJob export_job;
    ShadowJob shadow_job;
    BackgroundJob<OpenedRun> open_job;

    // --- what commands do ---
    void start();  ///< starts a new run from setup
    void play();
    void stop(bool work = false);  ///< work: as for Engine::stop
    void step(int n_rows);
    void set_speed(double rows_per_second);
    /// Reads a trace in the background. The shown run stays until the trace is read. Throws Error(wrong_use)
    /// while another trace is being read.
    void open_trace(const std::filesystem::path& path);
    void cancel_opening();
    /// Shows a finished run in place of the live one.
    void show_run(OpenedRun run);
    void save_trace(const std::filesystem::path& path);
    /// Calls `write` on another thread to write a file. Throws Error(wrong_use) without a run, and while
    /// another file is being written.
    void save_in_background(const std::filesystem::path& path, std::function<void()> write);
    /// Saves the focused view with axes, scale and caption, drawn from the data and not from the window.
    /// width: pixels, 0: cells of whole pixels; shown: only the part that the zoom shows. Throws
    /// Error(wrong_use) if the name does not end in .png or the width is out of bounds.
    void save_picture(const std::filesystem::path& path, int width = 0, bool shown = false);
    /// Returns to the state after a step; the later steps become a branch. The lanes get the settings that
    /// they had there, or with `keeps_settings` the current ones. Throws Error(wrong_use) for a row that the
    /// run does not have.
    void rewind(int row, bool keeps_settings = false);
    /// Returns true if the settings of lanes, follow or sampling at this row differ from the current ones.
    bool settings_differ_at(int row) const;
    /// Goes to the end of a branch that a rewind left behind. Throws Error(wrong_use).
    void go_to_branch(int id);
    /// Throws Error(wrong_use) without a run, and for an opened trace, which cannot be continued.
    void need_live_run() const;
    /// See Engine::request_counterfactual. The answer arrives in the engine's status.
    void request_counterfactual(int card, int position, int row, int n_tokens);
    /// Opens a trace, a model folder or a prompt (.txt). Throws Error(wrong_use) for any other file.
    void open_any(const std::filesystem::path& path);
    /// Records changes of the view or of a lane's settings since the last call, for undo(). Call once a
    /// frame, while no button is held.
    void remember_changes();
    /// Undoes the last change of view or settings. Returns false if there is none.
    bool undo();
    bool redo();
    void say(std::string text, bool fault = false);

    /// Takes what the engine and the background jobs made since the last frame. Returns true if something
    /// visible changed.
    bool refresh();
    /// Moves the focus to an existing lane. Commands, rewinds and other files may remove lanes.
    void keep_lane_in_range();

    bool saving() const { return !saving_.empty(); }    ///< a file is being written in the background
    bool opening() const { return !opening_.empty(); }  ///< a trace is being read in the background
    bool live() const { return opened_file.empty(); }
    bool has_run() const { return !history.empty(); }
    bool running() const { return live() && status.phase == EnginePhase::running; }
    /// The engine replays steps for a command, and it takes a while: see EngineStatus::work.
    bool working() const { return live() && !status.work.empty(); }
    /// The engine decodes, or does work that stop(true) ends: a replay, or a prompt.
    bool stoppable() const {
        return running() || working() || (live() && status.phase == EnginePhase::prefill);
    }
    /// Every request to the engine has taken effect or was refused, as far as refresh() has seen.
    bool settled() const;
    /// Settled, and nothing is under way: no decoding, no prompt, no file.
    bool idle() const;
    int first_row() const { return has_run() ? history.steps().front()->row : 0; }
    int last_row() const { return has_run() ? history.last_row() : 0; }
    int n_decoded() const { return has_run() ? history.last_row() - history.n_prompt() + 1 : 0; }
    /// Returns the index into history.lanes() of a card; nullopt before its first record.
    std::optional<int> history_lane(int card) const;
    /// Returns the index into history.lanes() of the focused card; lane 0 while the card has no record.
    int shown_lane() const;
    /// Returns the record of a card at the shown step, or null.
    const LaneRecord* record(int card) const;
    int focused_kv_head() const;
    /// Returns the card that the focused one is compared with; the focused one itself if it is the only
    /// card.
    int other_card() const;
    /// Returns the cards shown beside the focused one, the other card first; at most three. Empty if no pane
    /// shows them.
    std::vector<int> compared_cards() const;
    bool shows_difference() const;
    /// Side by side: shows the watched words in place of overlap and agreement.
    bool compares_watched() const { return view.watched && view.measure_curve == ViewState::kWatchedSpan; }
    /// Returns the row where a fitted zoom begins: row 0 or the prompt's last row. In automatic mode it
    /// skips the prompt once a few tokens are decoded and the mask, scores or a difference are shown: with
    /// one-shot prefill no lane evicts within the prompt, so the lanes are alike there.
    int first_fitted_row() const;
    /// Fits the zoom to the chosen rows. A choice that equals the automatic one stays automatic.
    void fit_rows(FittedRows rows);
    /// Updates the shown matrices to the run, one slice a frame: see heat_complete.
    void update_heat(double budget_ms);
    /// Updates the doctor's findings on all lanes, as far as the time allows.
    void update_doctor(double budget_ms);
    Engine& engine() { return *engine_; }

  private:
    std::unique_ptr<Engine> engine_;
    std::uint64_t seen_version_ = 0;
    RequestId seen_refusal_ = 0;
    int doctor_row_ = -1;
    std::chrono::steady_clock::time_point doctor_row_came_;
    bool export_running_ = false, shadow_running_ = false;
    std::filesystem::path saving_, opening_;  // files being written and read; empty: none
    enum class Change { view, lane };
    std::vector<Change> changes_, taken_back_;
    std::size_t seen_lane_changes_ = 0;
};

}  // namespace keyhole
