/// All that the window knows, free of GL and ImGui: the run on show, the view, the lanes on the desk, and what
/// commands have asked the frame loop to do. Window thread.
#pragma once

#include "app/base/assets.h"
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

/// What a start of the run uses; edited by the top bar and the lanes panel.
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
    about
};

struct AppState {
    AppState(BackendOptions backend, std::function<void()> wake);

    const BackendOptions backend_options;
    const std::function<void()> wake;

    // --- the run ---
    RunSetup setup;
    RunHistory history;
    EngineStatus status;
    int stride = 1;                     ///< of thinned rows
    int dense_from = 0;                 ///< rows from here are all held
    std::filesystem::path opened_file;  ///< a trace on show instead of a live run; empty: live
    LaneEditor lane_editor;
    HeatData heat;
    std::deque<HeatData> others;  ///< lanes beside the focused one, as compared_cards() has them
    HeatData difference{HeatData::Kind::difference};
    MeasureCurves curves;
    bool heat_complete = true;  ///< no rows remain for the next frame
    DoctorWatch doctor;         ///< of the cards, at the shown row

    mutable Glyphs glyphs;  ///< mutable: keeps texts that were asked for

    // --- what the window takes ---
    FrameMeter frames;
    std::size_t texture_bytes = 0;        ///< of the last frame
    std::size_t record_bytes = 0;         ///< of row blocks, in the recorder
    std::size_t record_budget_bytes = 0;  ///< that they stay below
    std::size_t record_scalar_bytes = 0;  ///< of all else in the recorder

    // --- the view ---
    ViewState view;
    CanvasPoint heat_canvas;  ///< pixels of the large heat map in the last frame; 0: none was drawn
    ViewHistory views;
    Annotations annotations;
    RecentFiles recent;
    Dialog dialog = Dialog::none;
    std::string palette_text;
    double speed = 0;    ///< rows per second; 0: as fast as it goes
    std::string notice;  ///< last result or failure of a command, for the status line
    bool notice_is_fault = false;
    std::string refusal;          ///< of the last command that the engine refused, until a script has read it
    std::int64_t n_commands = 0;  ///< of the table that were run
    std::deque<std::string> last_commands;  ///< their ids, newest last; at most 16

    // --- requests to the frame loop ---
    std::optional<std::filesystem::path> screenshot;
    std::optional<std::filesystem::path> dump_cells;
    bool quit = false;
    std::string clipboard_out;         ///< to be copied
    std::optional<int> paste_to_lane;  ///< wants the clipboard's text
    bool scale_changed = true;

    ExportJob export_job;
    ShadowJob shadow_job;
    BackgroundJob<OpenedRun> open_job;

    // --- what commands do ---
    void start();  ///< a new run from setup
    void play();
    void stop(bool work = false);  ///< work: as Engine::stop
    void step(int n_rows);
    void set_speed(double rows_per_second);
    /// Reads it in the background; what is on show stays until it is there. Throws Error(wrong_use) while another one is read.
    void open_trace(const std::filesystem::path& path);
    void cancel_opening();
    /// A finished run instead of a live one.
    void show_run(OpenedRun run);
    void save_trace(const std::filesystem::path& path);
    /// write makes the file, on another thread. Throws Error(wrong_use) without a run, and while another file is being written.
    void save_in_background(const std::filesystem::path& path, std::function<void()> write);
    /// The focused view with axes, scale and caption, drawn from the data, not from the window. width: pixels, 0: as the cells ask;
    /// shown: only what the zoom shows. Throws Error(wrong_use) for another ending than .png and a width out of bounds.
    void save_picture(const std::filesystem::path& path, int width = 0, bool shown = false);
    /// Back to the state after a row; what comes after becomes a branch. The lanes are set as they were there, or with `keeps_settings`
    /// as they are now. Throws Error(wrong_use) for a row that is not there.
    void rewind(int row, bool keeps_settings = false);
    /// Going back to the row would set a lane, follow or sampling otherwise than now.
    bool settings_differ_at(int row) const;
    /// To the end of a branch that a rewind left. Throws Error(wrong_use).
    void go_to_branch(int id);
    /// Throws Error(wrong_use) without a run, and for an opened trace, which cannot go on.
    void need_live_run() const;
    /// Engine::request_counterfactual; the answer comes with the status.
    void request_counterfactual(int card, int position, int row, int n_tokens);
    /// A trace, a model folder or a prompt (.txt), whichever the path is. Throws Error(wrong_use) for another thing.
    void open_any(const std::filesystem::path& path);
    /// Notes what changed since the last call, in the view or in a lane's settings, for undo(). Once a frame, with no button held.
    void remember_changes();
    /// The last change of view or settings; false: there is none.
    bool undo();
    bool redo();
    void say(std::string text, bool fault = false);

    /// Takes what the engine and exports have made since the last frame. True when something changed that is on show.
    bool refresh();
    /// Lanes may go with a command, a rewind or another file: the one in focus is one of those that are there.
    void keep_lane_in_range();

    bool saving() const { return !saving_.empty(); }    ///< one file, in the background
    bool opening() const { return !opening_.empty(); }  ///< a trace, the same way
    bool live() const { return opened_file.empty(); }
    bool has_run() const { return !history.empty(); }
    bool running() const { return live() && status.phase == EnginePhase::running; }
    /// Rows are lived again for a command, and it takes a while: see EngineStatus::work.
    bool working() const { return live() && !status.work.empty(); }
    /// Decoding, or other work that stop(true) ends: living rows again, a prompt.
    bool stoppable() const {
        return running() || working() || (live() && status.phase == EnginePhase::prefill);
    }
    /// Nothing under way: every request so far has had its effect.
    bool idle() const;
    int first_row() const { return has_run() ? history.steps().front()->row : 0; }
    int last_row() const { return has_run() ? history.last_row() : 0; }
    int n_decoded() const { return has_run() ? history.last_row() - history.n_prompt() + 1 : 0; }
    /// Index into history.lanes() of a card; nullopt until its first record.
    std::optional<int> history_lane(int card) const;
    /// The focused card's, or lane 0's while it has no record.
    int shown_lane() const;
    /// Record of a card at the shown row, or null.
    const LaneRecord* record(int card) const;
    int focused_kv_head() const;
    /// The lane that the focused one is compared with: another one where there are two.
    int other_card() const;
    /// Cards on show beside the focused one, the other first; at most three. Empty unless something shows them.
    std::vector<int> compared_cards() const;
    bool shows_difference() const;
    /// Side by side: the watched words in place of overlap and agreement.
    bool compares_watched() const { return view.watched && view.measure_curve == ViewState::kWatchedSpan; }
    /// Where a fitted zoom begins: at row 0 or at the prompt's last row. By itself it leaves the prompt out once a few rows are decoded
    /// and the mask, scores or a difference are on show: with one-shot prefill no lane evicts in the prompt, and lanes are alike there.
    int first_fitted_row() const;
    /// Fits, by choice; what would be shown anyway stays automatic.
    void fit_rows(FittedRows rows);
    /// Brings the matrices on show up to the run, a slice a frame: see heat_complete.
    void update_heat(double budget_ms);
    /// The doctor's findings on all lanes up to the run, as much as fits the time.
    void update_doctor(double budget_ms);
    Engine& engine() { return *engine_; }

  private:
    std::unique_ptr<Engine> engine_;
    std::uint64_t seen_version_ = 0;
    std::uint64_t shown_run_ = 0;
    std::optional<std::uint64_t> start_pending_;  // id of the run before it
    bool start_stopped_ = false;                  // its prompt was told to end
    int awaited_row_ = -1;
    std::optional<int> turned_to_;                       // row of a rewind that is under way
    std::optional<std::string> message_before_command_;  // the engine's; another one after it is its refusal
    int doctor_row_ = -1;
    std::chrono::steady_clock::time_point doctor_row_came_;
    bool export_running_ = false, shadow_running_ = false;
    std::filesystem::path saving_, opening_;  // files that are being written and read; empty: none
    std::chrono::steady_clock::time_point requested_at_;
    enum class Change { view, lane };
    std::vector<Change> changes_, taken_back_;
    std::size_t seen_lane_changes_ = 0;
    void requested();
};

}  // namespace keyhole
