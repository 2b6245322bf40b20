#include "app/state/app_state.h"

#include "app/view/focus_picture.h"
#include "engine/base/error.h"
#include "engine/base/measure.h"
#include "engine/session/run_settings.h"
#include "engine/trace/trace_file.h"

#include <algorithm>
#include <fstream>
#include <sstream>

namespace keyhole {

AppState::AppState(BackendOptions backend, std::function<void()> wake_window)
    : backend_options(backend),
      wake(std::move(wake_window)),
      lane_editor([this](Command command) {
          if (live()) engine_->send(std::move(command));
      }),
      engine_(std::make_unique<Engine>(backend, wake)) {}

namespace {

/// Resets picks and zoom, which belong to another run.
void look_at_new_run(ViewState& view) {
    view.follows_newest = true;
    view.heat.fitted = true;
    view.fitted_rows = FittedRows::automatic;
    view.pick.reset();
    view.curve_positions.clear();
}

}  // namespace

void AppState::say(std::string text, bool fault) {
    notice = std::move(text);
    notice_is_fault = fault;
}

void AppState::start() {
    cancel_opening();
    opened_file.clear();
    RunSpec run;
    run.prompt = setup.prompt;
    run.lanes = setup.lanes;
    run.seed = setup.seed;
    run.follow = lane_editor.follow();
    run.wants.attention = true;
    run.wants.scores = true;
    lane_editor.reset(setup.lanes, lane_editor.follow());
    look_at_new_run(view);
    say("");
    engine_->start(setup.model_folder, std::move(run));
}

void AppState::play() {
    if (!live()) return;
    view.follows_newest = true;
    engine_->play();
}

void AppState::stop(bool work) {
    if (!live()) return;
    engine_->stop(work);
}

void AppState::step(int n_rows) {
    if (!live() || !has_run()) return;
    view.follows_newest = true;
    engine_->step(n_rows);
}

void AppState::need_live_run() const {
    if (!live()) fail(ErrorCode::wrong_use, "an opened trace cannot be changed; start a run");
    if (!has_run()) fail(ErrorCode::wrong_use, "no run yet");
}

bool AppState::settings_differ_at(int row) const {
    return live() && has_run() &&
           !settings_since(status.run, row, lane_editor.lanes(), lane_editor.follow()).empty();
}

void AppState::rewind(int row, bool keeps_settings) {
    need_live_run();
    if (row < first_row() || row > last_row())
        fail(ErrorCode::wrong_use, "choose a step from {} (the end of the prompt) to {}", first_row(),
             last_row());
    stop();
    view.follows_newest = true;
    view.pick.reset();
    const bool differ = settings_differ_at(row);
    lane_editor.rewind(status.run, row, keeps_settings);
    const std::string settings = !differ ? "."
                                 : keeps_settings
                                     ? ". The lanes keep their current settings."
                                     : fmt::format(
                                           ". The lanes are as they were set at step {0}; 'rewind {0} keep' "
                                           "goes there with the later settings.",
                                           row);
    say(fmt::format("went back to step {}; the later steps are kept as a branch{}", row, settings));
}

void AppState::go_to_branch(int id) {
    need_live_run();
    for (const Branch& branch : status.other_branches) {
        if (branch.id != id) continue;
        stop();
        view.follows_newest = true;
        lane_editor.run(GoToBranch{id});
        say(fmt::format("went to branch {}, to its step {}", id, branch.last_row));
        return;
    }
    fail(ErrorCode::wrong_use, "there is no other branch {}", id);
}

void AppState::set_speed(double rows_per_second) {
    speed = rows_per_second;
    engine_->set_speed(rows_per_second);
}

void AppState::open_trace(const std::filesystem::path& path) {
    if (opening() || open_job.running())
        fail(ErrorCode::wrong_use, "cannot open {}: {} is being read; wait for it or cancel it",
             path.string(), opening() ? opening_.string() : "another trace");
    open_job.take();
    open_job.begin([path](const BackgroundJob<OpenedRun>::Tell& tell) { return open_run(path, tell); }, wake);
    opening_ = path;
    say("opening " + path.string());
}

void AppState::cancel_opening() {
    if (!opening()) return;
    open_job.cancel();
    say("cancelled opening " + std::exchange(opening_, {}).string());
}

void AppState::show_run(OpenedRun run) {
    engine_->stop();
    opened_file = std::move(run.from);
    history = std::move(run.history);
    curves = std::move(run.curves);
    annotations = std::move(run.annotations);
    stride = 1;
    dense_from = first_row();
    lane_editor.reset(std::move(run.lanes), true);
    look_at_new_run(view);
    if (!opened_file.empty()) recent.add(opened_file);
    say("opened " + opened_file.string());
}

void AppState::save_trace(const std::filesystem::path& path) {
    save_in_background(path, [steps = history.steps(), kept = annotations, path] {
        write_trace(steps, path);
        save_annotations(kept, annotations_file(path));
    });
}

void AppState::save_in_background(const std::filesystem::path& path, std::function<void()> write) {
    if (!has_run()) fail(ErrorCode::wrong_use, "no run yet");
    if (export_job.running())
        fail(ErrorCode::wrong_use, "cannot save {}: another file is being written; wait for it or cancel it",
             path.string());
    export_job.save(path, std::move(write), wake);
    export_running_ = true;
    saving_ = path;
    say("saving " + path.string());
}

void AppState::save_picture(const std::filesystem::path& path, int width, bool shown) {
    if (!has_run()) fail(ErrorCode::wrong_use, "no run yet");
    if (path.extension() != ".png")
        fail(ErrorCode::wrong_use, "cannot save {}: the name of a picture of this view must end in .png",
             path.string());
    if (width != 0 && (width < PictureOptions::kLeastWidth || width > PictureOptions::kMostWidth))
        fail(ErrorCode::wrong_use, "a picture is {} to {} pixels wide, not {}", PictureOptions::kLeastWidth,
             PictureOptions::kMostWidth, width);
    PictureOptions request{width, {}, 1, stride, dense_from};
    if (shown) {
        request.shown = shown_cells(view.heat, heat_canvas, view.row);
        request.cell_aspect = std::clamp(view.heat.cell_height / view.heat.cell_width, 0.1, 10.0);
    }
    if (view.difference && shows_difference()) {
        const float most = difference.focus().largest(view.range().sinks_count);
        write_png(difference_picture(history, shown_lane(), history_lane(other_card()).value_or(0), view,
                                     difference_scale(view, most), request),
                  path);
    } else {
        const float largest = heat.focus().largest(view.range().sinks_count);
        write_png(focus_picture(history, shown_lane(), view, color_scale(view, largest), request), path);
    }
    say("saved " + path.string());
}

void AppState::keep_lane_in_range() {
    if (lane_editor.n_lanes() > 0) view.lane = std::clamp(view.lane, 0, lane_editor.n_lanes() - 1);
}

bool AppState::refresh() {
    bool changed = opening();
    if (opening() && !open_job.running()) {
        opening_.clear();
        if (const std::shared_ptr<OpenedRun> run = open_job.take()) {
            show_run(std::move(*run));
        } else {
            refusal = open_job.fault();
            say(refusal, true);
        }
    }
    if (live()) {
        EngineStatus now = engine_->status();
        changed = now.phase != status.phase || now.progress != status.progress ||
                  now.message != status.message || now.handled != status.handled ||
                  now.counterfactual != status.counterfactual || now.branch != status.branch;
        const bool paused = status.phase == EnginePhase::running && now.phase == EnginePhase::idle;
        status = std::move(now);
        if (paused && !status.message.empty()) say(status.message);
        if (engine_->recorder().version() != seen_version_) {
            const Recorder::Snapshot snapshot = engine_->recorder().snapshot();
            seen_version_ = snapshot.version;
            history.update(snapshot.steps);
            stride = snapshot.stride;
            dense_from = snapshot.dense_from;
            constexpr std::size_t kWorthReturning = std::size_t{32} << 20;
            if (snapshot.row_bytes + kWorthReturning < record_bytes) return_freed_memory();
            record_bytes = snapshot.row_bytes;
            record_scalar_bytes = snapshot.scalar_bytes;
            record_budget_bytes = snapshot.budget_bytes;
            changed = true;
        }
    }
    const bool failed = status.phase == EnginePhase::failed;
    if (live() && status.refused > seen_refusal_) {
        seen_refusal_ = status.refused;
        if (!failed) {
            refusal = status.refusal_message;
            say(refusal, true);
        }
    }
    changed = changed || export_running_ || export_job.running() || shadow_running_ || shadow_job.running();
    if (export_running_ && !export_job.running()) {
        say(export_job.result(), export_job.failed());
        return_freed_memory();  // of the replayed run
        const std::filesystem::path saved = std::exchange(saving_, {});
        if (saved.extension() == ".keyhole" && !export_job.failed()) recent.add(saved);
    }
    export_running_ = export_job.running();
    if (shadow_running_ && !shadow_job.running() && !shadow_job.fault().empty())
        say(shadow_job.fault(), true);
    shadow_running_ = shadow_job.running();
    keep_lane_in_range();
    if (live() && settled()) lane_editor.adopt(status.run);
    if (has_run()) {
        curves.update(history);
        view.fit_to(lane_editor.n_lanes(), history.run().config.n_layers, history.run().config.n_heads,
                    first_row(), last_row());
    }
    return changed;
}

bool AppState::settled() const {
    return status.handled == engine_->last_request();
}

bool AppState::idle() const {
    if (!heat_complete || opening() || export_job.running() || shadow_job.running()) return false;
    if (!live()) return true;
    return settled() &&
           status.phase != EnginePhase::loading && status.phase != EnginePhase::prefill &&
           status.phase != EnginePhase::running;
}

std::optional<int> AppState::history_lane(int card) const {
    if (!has_run()) return std::nullopt;
    const std::vector<LaneRecord>& lanes = history.steps().back()->lanes;
    if (card < 0 || card >= static_cast<int>(lanes.size())) return std::nullopt;
    return history.lane_from_id(lanes[static_cast<std::size_t>(card)].info->id);
}

int AppState::shown_lane() const {
    return history_lane(view.lane).value_or(0);
}

const LaneRecord* AppState::record(int card) const {
    const std::optional<int> lane = history_lane(card);
    return lane ? history.lane_record(view.row, *lane) : nullptr;
}

int AppState::focused_kv_head() const {
    return history.layout(shown_lane()).kv_head_from_head(view.layer, view.head);
}

void AppState::request_counterfactual(int card, int position, int row, int n_tokens) {
    engine_->request_counterfactual(card, position, row, n_tokens);
}

void AppState::open_any(const std::filesystem::path& path) {
    std::error_code ignored;
    if (path.extension() == ".keyhole") {
        open_trace(path);
    } else if (std::filesystem::exists(path / "config.json", ignored)) {
        setup.model_folder = path;
        if (lane_editor.n_lanes() > 0) setup.lanes = lane_editor.lanes();
        start();
    } else if (path.extension() == ".txt") {
        std::ostringstream text;
        text << std::ifstream(path, std::ios::binary).rdbuf();
        std::string words = text.str();
        while (!words.empty() && (words.back() == '\n' || words.back() == '\r')) words.pop_back();
        if (words.empty()) fail(ErrorCode::bad_file, "{} has no text to start from", path.string());
        setup.prompt = words;
        if (lane_editor.n_lanes() > 0) setup.lanes = lane_editor.lanes();
        start();
    } else {
        fail(ErrorCode::wrong_use,
             "cannot open {}: it is no trace (.keyhole), no model folder (with config.json) and no prompt "
             "(.txt)",
             path.string());
    }
    if (!opening()) recent.add(path);  // a trace is added when it is read
}

void AppState::remember_changes() {
    const auto note = [&](Change change) {
        changes_.push_back(change);
        taken_back_.clear();
    };
    if (views.remember(view)) note(Change::view);
    for (; seen_lane_changes_ < lane_editor.n_changes(); ++seen_lane_changes_) note(Change::lane);
    if (lane_editor.n_changes() <
        seen_lane_changes_) {  // lanes were removed or the run started over, so their changes are gone
        seen_lane_changes_ = lane_editor.n_changes();
        std::erase(changes_, Change::lane);
    }
}

bool AppState::undo() {
    remember_changes();
    while (!changes_.empty()) {
        const Change change = changes_.back();
        changes_.pop_back();
        if (!(change == Change::lane ? lane_editor.undo() : views.undo(view))) continue;
        seen_lane_changes_ = lane_editor.n_changes();
        taken_back_.push_back(change);
        return true;
    }
    return false;
}

bool AppState::redo() {
    while (!taken_back_.empty()) {
        const Change change = taken_back_.back();
        taken_back_.pop_back();
        if (!(change == Change::lane ? lane_editor.redo() : views.redo(view))) continue;
        seen_lane_changes_ = lane_editor.n_changes();
        changes_.push_back(change);
        return true;
    }
    return false;
}

int AppState::other_card() const {
    // Lanes may have been removed.
    if (view.other != view.lane && view.other < lane_editor.n_lanes()) return view.other;
    return view.lane > 0 ? 0 : std::min(1, lane_editor.n_lanes() - 1);
}

std::vector<int> AppState::compared_cards() const {
    std::vector<int> cards;
    const bool side_by_side = view.arrangement == Arrangement::compare;
    if ((!side_by_side && !view.blink) || lane_editor.n_lanes() < 2) return cards;
    cards.push_back(other_card());
    for (int card = 0; side_by_side && view.compares_all && card < lane_editor.n_lanes() && cards.size() < 3;
         ++card)
        if (card != view.lane && card != cards.front()) cards.push_back(card);
    return cards;
}

bool AppState::shows_difference() const {
    return (view.arrangement == Arrangement::compare || view.difference) && lane_editor.n_lanes() > 1;
}

int AppState::first_fitted_row() const {
    const int from_prompt = has_run() ? std::max(history.n_prompt() - 1, 0) : 0;
    if (view.fitted_rows != FittedRows::automatic)
        return view.fitted_rows == FittedRows::decoded ? from_prompt : 0;
    constexpr int kSome = 4;  // fewer rows would be thick bars
    if (n_decoded() < kSome || (view.mode == HeatMode::attention && !shows_difference())) return 0;
    std::vector<int> cards = compared_cards();
    cards.push_back(view.lane);
    if (shows_difference()) cards.push_back(other_card());
    for (const int card : cards)
        if (const LaneRecord* known = record(card);
            known != nullptr && known->info->policy.prefill != PrefillMode::oneshot)
            return 0;
    return from_prompt;
}

void AppState::fit_rows(FittedRows rows) {
    view.heat.fitted = true;
    view.fitted_rows = FittedRows::automatic;
    const int by_itself = first_fitted_row();
    view.fitted_rows = rows;
    if (first_fitted_row() == by_itself) view.fitted_rows = FittedRows::automatic;
}

void AppState::update_heat(double budget_ms) {
    if (history.empty()) return;
    heat_complete = heat.update(history, shown_lane(), view, budget_ms);
    const std::vector<int> cards = compared_cards();
    while (others.size() > cards.size()) others.pop_back();
    while (others.size() < cards.size()) others.emplace_back(HeatData::Kind::head);
    for (std::size_t i = 0; i < cards.size(); ++i)
        heat_complete =
            others[i].update(history, history_lane(cards[i]).value_or(0), view, budget_ms) && heat_complete;
    if (shows_difference())
        heat_complete = difference.update(history, shown_lane(), view, budget_ms,
                                          history_lane(other_card()).value_or(0)) &&
                        heat_complete;
}

void AppState::update_doctor(double budget_ms) {
    std::vector<int> lanes;
    for (int card = 0; card < lane_editor.n_lanes(); ++card) lanes.push_back(history_lane(card).value_or(-1));
    // A dragged row changes in every frame, as the newest row of a running lane does.
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(doctor_row_, view.row) != view.row) doctor_row_came_ = now;
    const bool moves = now - doctor_row_came_ < std::chrono::milliseconds(200);
    doctor.update(history, lanes, view.row, budget_ms, running() || moves);
}

}  // namespace keyhole
