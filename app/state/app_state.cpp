#include "app/state/app_state.h"

#include "app/base/saved_policies.h"
#include "app/models/find_model.h"
#include "app/models/get_model.h"
#include "app/state/lesson_steps.h"
#include "app/state/shown_answers.h"
#include "app/state/story.h"
#include "app/view/focus_picture.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/resource_use.h"
#include "engine/device/prover.h"
#include "engine/live/engine.h"
#include "engine/run/text_notice.h"
#include "engine/trace/trace_file.h"

#include <algorithm>
#include <utility>

namespace keyhole {

AppState::AppState(BackendOptions backend, std::function<void()> wake_window)
    : wake(std::move(wake_window)), run(backend, wake) {
    try {
        catalog = own_catalog();
    } catch (const Error& error) {
        notify(error.what(), true);
    }
}

namespace {

/// Resets picks and zoom, which belong to another run.
void look_at_new_run(ViewState& view) {
    view.follows_newest = true;
    view.heat.fitted = true;
    view.fitted_rows = FittedRows::automatic;
    view.pick.reset();
    view.curve_positions.clear();
}

/// Says how a proof of the CUDA device ended, unless it only took the kept verdict.
void say_what_proof_said(AppState& app) {
    const std::shared_ptr<const DeviceVerdict> verdict = app.device_proof.verdict();
    if (const std::string fault = app.device_proof.fault(); !fault.empty())
        app.notify(fault, !app.device_proof.dismissed());
    else if (verdict != nullptr && verdict->is_new)
        app.notify(text_of(*verdict), !verdict->passed && verdict->available);
}

}  // namespace

void AppState::start(bool new_backend) {
    cancel_opening();
    forget_run_before_lessons(lesson);
    run.start(new_backend);
    choose_by_itself([&] { look_at_new_run(view); });
    notify("");
}

void AppState::play() {
    if (!run.live()) return;
    if (notice.text == paused_text_) notify("");
    if (const int shown = view.row; run.has_steps() && shown < run.last_row())
        notify(fmt::format("Run continues after the newest step, {}; Rewind at step {} continues from there",
                           run.last_row(), shown));
    view.follows_newest = true;
    run.play();
}

void AppState::step(int n_rows) {
    if (!run.live() || !run.has_steps()) return;
    if (notice.text == paused_text_) notify("");
    view.follows_newest = true;
    run.step(n_rows);
}

void AppState::rewind(int row, bool keeps_settings) {
    const bool differ = run.settings_differ_at(row);
    run.rewind(row, keeps_settings);
    view.follows_newest = true;
    view.pick.reset();
    const std::string settings = !differ ? "."
                                 : keeps_settings
                                     ? ". The lanes keep their current settings."
                                     : fmt::format(
                                           ". The lanes are as they were set at step {}. To keep the later "
                                           "settings, choose “and keep settings” in the time bar next time.",
                                           row);
    announce(fmt::format("going back to step {}", row), [row, settings](const RunState&) {
        return fmt::format("went back to step {}; the later steps are kept as a branch{}", row, settings);
    });
}

void AppState::go_to_branch(int id) {
    const int last_row = run.go_to_branch(id);
    view.follows_newest = true;
    announce(fmt::format("going to branch {}, to its step {}", id, last_row),
             [id, last_row](const RunState& after) -> std::string {
                 if (after.last_row() < last_row) return "";  // stopped on the way: the status says where
                 return fmt::format("went to branch {}, to its step {}", id, last_row);
             });
}

void AppState::announce(std::string doing, std::function<std::string(const RunState&)> done) {
    notify(std::move(doing));
    deeds_.push_back({run.engine().last_request(), std::move(done)});
}

void AppState::say_deeds() {
    while (!deeds_.empty() && deeds_.front().id <= run.status.handled) {
        const Deed deed = std::move(deeds_.front());
        deeds_.pop_front();
        if (!run.status.was_refused(deed.id)) notify(deed.done(run));
    }
}

void AppState::open_trace(const std::filesystem::path& path) {
    if (jobs.opening() || jobs.open_job.running())
        fail(ErrorCode::wrong_use, "cannot open {}: {} is being read; wait for it or cancel it",
             path.string(), jobs.opening() ? jobs.read_file.string() : "another trace");
    jobs.open_job.take();
    jobs.open_job.begin(
        [path](const BackgroundJob<OpenedRun>::Progress& progress) { return open_run(path, progress); },
        wake);
    jobs.read_file = path;
    notify("opening " + path.string());
}

void AppState::cancel_opening() {
    if (!jobs.opening()) return;
    jobs.open_job.cancel();
    notify("cancelled opening " + std::exchange(jobs.read_file, {}).string());
}

void AppState::show_run(OpenedRun opened) {
    forget_run_before_lessons(lesson);
    run.show(opened);
    annotations = std::move(opened.annotations);
    choose_by_itself([&] { look_at_new_run(view); });
    if (!run.opened_file.empty()) recent.add(run.opened_file);
    notify("opened " + run.opened_file.string());
}

void AppState::save_trace(const std::filesystem::path& path) {
    TraceAnswers answers{{}, right_answer(*this), view.watched};
    for (const ShownAnswer& shown : shown_answers(*this))
        if (shown.answer.complete) answers.answers.push_back(shown.answer);
    save_in_background(path, [steps = run.history.steps(), kept = annotations, answers, path] {
        write_trace(steps, path, {}, format_trace_answers(answers));
        save_annotations(kept, annotations_file(path));
    });
}

void AppState::need_free_writer(const std::string& doing) const {
    if (jobs.export_job.running())
        fail(ErrorCode::wrong_use, "cannot {}: another file is being written; wait for it or cancel it",
             doing);
}

void AppState::save_in_background(const std::filesystem::path& path, std::function<void()> write) {
    if (!run.has_steps()) fail(ErrorCode::wrong_use, "no run yet");
    need_free_writer("save " + path.string());
    jobs.export_job.save(path, std::move(write), wake);
    jobs.was_exporting = true;
    jobs.written_file = path;
    notify("saving " + std::filesystem::absolute(path).string());
}

void AppState::fit(ViewState& to_fit) const {
    const int n_lanes = run.lane_editor.n_lanes();
    if (n_lanes > 0) to_fit.lane = std::clamp(to_fit.lane, 0, n_lanes - 1);
    if (!run.has_steps()) return;
    const ModelConfig& model = run.history.run().config;
    to_fit.fit_to(n_lanes, model.n_layers, model.n_heads, run.first_row(), run.last_row());
}

void AppState::fit_view() {
    choose_by_itself([&] { fit(view); });
}

void AppState::open_model(std::string_view name) {
    const FoundModel found = find_model(name, catalog);
    if (found.to_get != nullptr)
        fail(ErrorCode::wrong_use,
             "{0} is not here yet ({1}); click the model's name and choose Get, or: keyhole get {0}",
             found.to_get->name, terms_text(*found.to_get));
    start_with_model(found.path);
}

void AppState::start_with_model(const std::filesystem::path& folder) {
    ReplacedPrompt before{0, run.setup.prompt, run.setup.guide};
    run.setup.model_folder = folder;
    const bool replaced = take_prompt_of_model();
    start();
    replaced_prompt_.reset();
    if (!replaced) return;
    before.start = run.engine().last_request();
    replaced_prompt_ = std::move(before);
}

/// A model of the catalogue opens with the story that suits it, in place of another model's. A prompt of the
/// user's stays. Returns whether the prompt changed.
bool AppState::take_prompt_of_model() {
    const CatalogModel* model = find_by_path(catalog, run.setup.model_folder);
    if (model == nullptr) return false;
    const auto is_on_show = [&](const CatalogModel& of) {
        std::error_code error;
        const std::filesystem::path story = story_of(of);
        return std::filesystem::exists(story, error) && read_prompt_file(story).text == run.setup.prompt;
    };
    if (is_on_show(*model) || std::none_of(catalog.begin(), catalog.end(), is_on_show)) return false;
    PromptFile prompt = read_prompt_file(story_of(*model));
    run.setup.prompt = std::move(prompt.text);
    run.setup.guide = std::move(prompt.guide);
    return true;
}

/// Keeps the watched words as text.
void AppState::remember_watched() {
    if (!run.has_steps()) return;
    const bool known = watched_text_ && view.watched && watched_text_->run->id == run.history.run().id &&
                       watched_text_->span == *view.watched;
    if (known || (!view.watched && !watched_text_)) return;
    watched_text_.reset();
    if (!view.watched) return;
    WatchedText text{run.history.steps().front()->run, *view.watched, {}, 0, -1};
    if (const auto& answers = run.status.answers; run.live() && answers != nullptr && !answers->empty())
        text.turn = answers->front().turn;
    const std::vector<int>& tokens = run.history.lanes()[to_index(text_lane())].tokens;
    for (int p = 0; p <= text.span.last && to_index(p) < tokens.size(); ++p) {
        const std::string& bytes = run.history.run().token_bytes[to_index(tokens[to_index(p)])];
        if (p < text.span.first)
            text.first_byte += bytes.size();
        else
            text.words += bytes;
    }
    watched_text_ = std::move(text);
}

/// Finds the watched words in a new run of the same prompt, whose tokens may be others.
void AppState::find_watched_again() {
    if (!view.watched || !watched_text_ || !run.has_steps()) return;
    const RunInfo& now = run.history.run();
    const RunInfo& before = *watched_text_->run;
    if (before.id == now.id || before.prompt != now.prompt || before.prompt_tokens == now.prompt_tokens)
        return;
    int from = 0;
    for (std::size_t bytes = 0; from + 1 < now.n_prompt(); ++from) {
        bytes += now.token_bytes[to_index(now.prompt_tokens[to_index(from)])].size();
        if (bytes > watched_text_->first_byte) break;
    }
    view.watched = find_span(run.history, 0, watched_text_->words, from);
    if (!view.watched && view.measure_curve == ViewState::kWatchedSpan) view.measure_curve = -1;
    if (!view.watched && view.atlas_measure == ViewState::kWatchedSpan) view.atlas_measure = -1;
}

void AppState::get_model(std::string_view name) {
    const CatalogModel* model = find_in_catalog(catalog, name);
    if (model == nullptr || !model->package)
        fail(ErrorCode::wrong_use,
             "'{}' is no model of the catalogue that can be downloaded; keyhole get --list lists it",
             shown_text(name));
    if (jobs.getting() || jobs.get_job.running())
        fail(ErrorCode::wrong_use, "cannot get {}: a model is being downloaded; wait for it or cancel it",
             model->name);
    jobs.get_job.take();
    jobs.get_job.begin(
        [model = *model,
         folder = got_models_folder()](const BackgroundJob<std::filesystem::path>::Progress& progress) {
            return keyhole::get_model(model, folder, progress);
        },
        wake);
    jobs.wanted_model = model->name;
    notify(fmt::format("getting {}: {}; from {}", model->name, terms_text(*model), model->source));
}

void AppState::cancel_getting() {
    if (!jobs.getting()) return;
    jobs.get_job.cancel();
    notify("stopped getting " + std::exchange(jobs.wanted_model, {}) + "; nothing of it was kept");
}

void AppState::prove_device(bool again) {
    ProofSetup setup = proof_setup(run.backend_options.device);
    std::error_code error;
    if (!std::filesystem::exists(setup.module, error))
        fail(ErrorCode::wrong_use, "this build has no CUDA backend to prove");
    if (device_proof.running()) fail(ErrorCode::wrong_use, "the CUDA device is being proven; wait for it");
    setup.again = again;
    device_proof.start(setup, wake);
}

void AppState::prove_device_once() {
    std::error_code error;
    const bool may_find = run.backend_options.choice == BackendChoice::automatic && driver_may_be_here() &&
                          std::filesystem::exists(proof_setup(run.backend_options.device).module, error);
    if (may_find && !device_proof.running()) prove_device(false);
}

void AppState::use_device() {
    const std::shared_ptr<const DeviceVerdict> verdict = device_proof.verdict();
    if (verdict != nullptr && verdict->passed && !verdict->is_taken())
        fail(ErrorCode::wrong_use, "{}; start Keyhole with --backend cuda to take it all the same",
             text_of(*verdict));
    if (verdict == nullptr || !verdict->passed || device_proof.running())
        fail(ErrorCode::wrong_use, "no CUDA device has passed its proof; Prove the CUDA device runs it");
    if (run.backend_options.choice != BackendChoice::automatic)
        fail(ErrorCode::wrong_use,
             "the window was started with a backend of its own; --backend auto chooses");
    start(true);
}

AppState::DeviceStrip AppState::device_strip() const {
    if (device_proof.running()) return device_proof.part().empty() ? DeviceStrip::none : DeviceStrip::proving;
    const std::shared_ptr<const DeviceVerdict> verdict = device_proof.verdict();
    if (verdict == nullptr || device_proof.dismissed()) return DeviceStrip::none;
    if (!verdict->passed)
        return verdict->available && verdict->is_new ? DeviceStrip::failed : DeviceStrip::none;
    if (!verdict->is_taken()) return DeviceStrip::none;  // the status line has said why
    const bool on_cpu = run.live() && run.status.backend.starts_with("cpu");
    return on_cpu && run.backend_options.choice == BackendChoice::automatic ? DeviceStrip::passed
                                                                            : DeviceStrip::none;
}

/// Starts a run with the model that has come. Returns true while one comes and once after it.
bool AppState::take_got_model() {
    if (!jobs.getting()) return false;
    if (jobs.get_job.running()) return true;
    jobs.wanted_model.clear();
    if (const std::shared_ptr<std::filesystem::path> path = jobs.get_job.take()) {
        start_with_model(*path);
        notify("got " + path->string());
    } else {
        refusal = jobs.get_job.fault();
        notify(refusal, true);
    }
    return true;
}

/// Adds the model of a new run to the recent ones. A model that could not be loaded makes no run.
void AppState::remember_model() {
    if (!run.live() || !run.has_steps() || run.history.run().id == seen_run_) return;
    seen_run_ = run.history.run().id;
    recent.add_model(run.history.run().model_path);
}

bool AppState::take_opened_run() {
    if (!jobs.opening()) return false;
    if (jobs.open_job.running()) return true;
    jobs.read_file.clear();
    if (const std::shared_ptr<OpenedRun> opened = jobs.open_job.take()) {
        show_run(std::move(*opened));
    } else {
        refusal = jobs.open_job.fault();
        notify(refusal, true);
    }
    return true;
}

/// Says how jobs ended. Returns true while one runs and once after it.
bool AppState::report_jobs() {
    const bool exports = jobs.export_job.running(), asks = jobs.shadow_job.running();
    const bool export_ended = std::exchange(jobs.was_exporting, exports) && !exports;
    const bool shadow_ended = std::exchange(jobs.was_asking_shadow, asks) && !asks;
    if (export_ended) {
        notify(jobs.export_job.result(), jobs.export_job.failed());
        return_freed_memory();  // of the replayed run
        const std::filesystem::path saved = std::exchange(jobs.written_file, {});
        if (saved.extension() == ".keyhole" && !jobs.export_job.failed()) recent.add(saved);
    }
    if (shadow_ended && !jobs.shadow_job.fault().empty()) notify(jobs.shadow_job.fault(), true);
    return exports || asks || export_ended || shadow_ended;
}

bool AppState::refresh_papers() {
    if (!papers.refresh()) return false;
    if (!papers.running()) {
        const std::string fault = papers.fault();
        notify(fault.empty() ? fmt::format("{} is made on {}; Help, Figures of the papers shows it",
                                           papers.wanted(), papers.wanted_model())
                             : fault,
               !fault.empty());
    }
    return true;
}

bool AppState::refresh_attribution() {
    if (!attribution.refresh()) return false;
    if (attribution.running()) return true;
    const std::string fault = attribution.fault();
    if (fault.empty())
        notify("the attribution is made; Lanes, What does the eviction cost? shows it");
    else
        notify(fault, true);
    return true;
}

void AppState::choose_path(std::string command, FileQuestion question) {
    if (jobs.choosing() || jobs.choose_job.running())
        fail(ErrorCode::wrong_use, "a file dialog of the desktop is open already");
    jobs.choose_job.take();
    jobs.chosen_for = std::move(command);
    jobs.choose_job.begin(
        [question = std::move(question)](const auto& progress) {
            return choose_file(question, [&] { return progress(0); });
        },
        wake);
}

bool AppState::take_chosen_path() {
    if (!jobs.choosing() || jobs.choose_job.running()) return false;
    std::string command = std::exchange(jobs.chosen_for, {});
    const auto chosen = jobs.choose_job.take();
    if (chosen == nullptr) {
        notify(jobs.choose_job.fault(), true);
        return true;
    }
    if (!*chosen) return true;  // the user closed the dialog
    constexpr std::string_view kPlace = "{}";
    const std::size_t at = command.find(kPlace);
    if (at == std::string::npos)
        command += " " + (*chosen)->string();
    else
        command.replace(at, kPlace.size(), (*chosen)->string());
    requests.action = std::move(command);
    dialog = Dialog::none;
    return true;
}

bool AppState::refresh() {
    bool changed = take_opened_run();
    changed = take_chosen_path() || changed;
    changed = take_got_model() || changed;
    if (device_proof.refresh()) {
        changed = true;
        if (!device_proof.running()) say_what_proof_said(*this);
    }
    remember_watched();
    const RunState::Changes news = run.refresh();
    changed = changed || news.visible;
    find_watched_again();
    say_deeds();
    if (replaced_prompt_ && run.status.handled >= replaced_prompt_->start) {
        if (run.status.was_refused(replaced_prompt_->start)) {
            run.setup.prompt = std::move(replaced_prompt_->prompt);
            run.setup.guide = std::move(replaced_prompt_->guide);
        }
        replaced_prompt_.reset();
    }
    // The notes of a trace stay with it where a run takes its place.
    if (run.live() && run.recorded() && !annotations.trace.empty()) annotations = {};
    if (news.paused) notify(paused_text_ = run.status.message);
    // A failed run shows its message by itself.
    if (news.refused && (!run.live() || run.status.phase != EnginePhase::failed)) {
        refusal = run.status.refusal_message;
        notify(refusal, true);
    }
    changed = report_jobs() || changed;
    changed = refresh_papers() || changed;
    changed = refresh_attribution() || changed;
    changed = refresh_lesson(*this) || changed;
    refresh_story(*this, news.lanes);
    changed = strips.update(*this) || changed;
    fit_view();
    remember_model();
    return changed;
}

void AppState::choose_by_itself(const std::function<void()>& choose) {
    const ViewState before = view;
    choose();
    undo_history.adopt(before, view);
}

const RunOnShow& AppState::shown() const {
    Joined now;
    if (run.has_steps()) {
        now.generation = run.history.generation();
        now.last_row = run.last_row();
        now.row = std::clamp(view.row, run.first_row(), run.last_row());
    }
    now.records = run.records();
    now.lanes = run.lane_editor.version();
    if (shown_ == nullptr || now != joined_) {
        shown_ = std::make_shared<const RunOnShow>(run_on_show(run, now.row));
        joined_ = now;
    }
    return *shown_;
}

int AppState::need_drawn_lane(int lane) const {
    if (const std::optional<int> known = run.drawn_lane(lane)) return *known;
    if (!run.has_steps()) fail(ErrorCode::wrong_use, "no run yet");
    fail(ErrorCode::wrong_use, "lane {} has no step yet; step once", lane);
}

const LaneRecord* AppState::record(int lane) const {
    const std::optional<int> recorded = run.history_lane(lane);
    return recorded ? run.history.lane_record(view.row, *recorded) : nullptr;
}

const KvLayout& AppState::layout(int lane) const {
    const std::optional<int> known = run.drawn_lane(lane);
    return known ? run.history.layout(*known) : run.history.run().layout;
}

int AppState::focused_kv_head() const {
    return layout(view.lane).kv_head_from_head(view.layer, view.head);
}

void AppState::open_any(const std::filesystem::path& path) {
    if (path.extension() == ".keyhole") {
        open_trace(path);
    } else if (looks_like_model(path)) {
        open_model(path.string());
    } else if (path.string().ends_with(kPolicyFileEnd)) {
        run.need_live_run();
        const SavedPolicy policy = read_saved_policy(path);
        LaneSpec lane = parse_lane_spec(policy.spec);
        lane.name = policy.name;
        run.lane_editor.add(std::move(lane));
        view.lane = run.lane_editor.n_lanes() - 1;
        notify(fmt::format("lane {}: {}. {}", view.lane, policy.name, policy.about));
    } else if (path.extension() == ".txt") {
        PromptFile prompt = read_prompt_file(path);
        if (prompt.text.empty()) fail(ErrorCode::bad_file, "{} has no text to start from", path.string());
        const std::string doubt = notice_of_bytes(prompt.text, path);
        run.setup.prompt = std::move(prompt.text);
        run.setup.guide = std::move(prompt.guide);
        start();
        if (!doubt.empty()) notify(doubt);
    } else {
        fail(ErrorCode::wrong_use,
             "cannot open {}: it is no trace (.keyhole), no model (.gguf, or a folder with config.json), "
             "no prompt (.txt) and no saved policy (.policy.json)",
             path.string());
    }
    if (!jobs.opening()) recent.add(path);  // a trace is added when it is read
}

int AppState::other_lane() const {
    // Lanes may have been removed.
    if (view.other != view.lane && view.other < run.lane_editor.n_lanes()) return view.other;
    return view.lane > 0 ? 0 : std::min(1, run.lane_editor.n_lanes() - 1);
}

std::vector<int> AppState::compared_lanes() const {
    std::vector<int> lanes;
    if (tells_story()) {
        for (int lane = 0; lane < run.lane_editor.n_lanes() && lanes.size() < kMostInStory; ++lane)
            if (lane != view.lane) lanes.push_back(lane);
        return lanes;
    }
    const bool side_by_side = view.arrangement == Arrangement::compare;
    if ((!side_by_side && !view.blink) || run.lane_editor.n_lanes() < 2) return lanes;
    lanes.push_back(other_lane());
    for (int lane = 0;
         side_by_side && view.compares_all && lane < run.lane_editor.n_lanes() && lanes.size() < 3; ++lane)
        if (lane != view.lane && lane != lanes.front()) lanes.push_back(lane);
    return lanes;
}

bool AppState::shows_difference() const {
    return (view.arrangement == Arrangement::compare || view.difference) && run.lane_editor.n_lanes() > 1;
}

int AppState::first_fitted_row() const {
    const int from_prompt = run.has_steps() ? std::max(run.history.n_prompt() - 1, 0) : 0;
    if (view.fitted_rows != FittedRows::automatic)
        return view.fitted_rows == FittedRows::decoded ? from_prompt : 0;
    constexpr int kSome = 4;  // fewer rows would be thick bars
    if (run.n_decoded() < kSome) return 0;
    std::vector<int> lanes = compared_lanes();
    lanes.push_back(view.lane);
    if (shows_difference()) lanes.push_back(other_lane());
    for (const int lane : lanes)
        if (const LaneRecord* known = record(lane);
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

void AppState::heat_was_drawn(const DrawnHeat& drawn) {
    maps.canvas = drawn.canvas;
    if (!(view.heat == drawn.before)) return;
    view.heat = drawn.drawn;
    view.center_request.reset();
}

void AppState::update_maps(double budget_ms) {
    if (run.history.empty()) return;
    maps.complete = true;
    const auto update = [&](HeatData& data, std::optional<int> lane, std::optional<int> versus = {}) {
        if (!lane || (&data == &maps.difference && !versus)) return data.clear();  // there is no picture yet
        maps.complete =
            data.update(run.history, *lane, view, budget_ms, versus.value_or(-1)) && maps.complete;
    };
    update(maps.lane, shown_lane());
    const std::vector<int> lanes = compared_lanes();
    while (maps.others.size() > lanes.size()) maps.others.pop_back();
    while (maps.others.size() < lanes.size()) maps.others.emplace_back(HeatData::Kind::head);
    for (std::size_t i = 0; i < lanes.size(); ++i) update(maps.others[i], run.drawn_lane(lanes[i]));
    if (shows_difference()) update(maps.difference, shown_lane(), run.drawn_lane(other_lane()));
}

void AppState::update_doctor(double budget_ms) {
    std::vector<int> lanes;
    for (int lane = 0; lane < run.lane_editor.n_lanes(); ++lane)
        lanes.push_back(run.history_lane(lane).value_or(-1));
    // A dragged row changes in every frame, as the newest row of a running lane does.
    const auto now = std::chrono::steady_clock::now();
    if (std::exchange(doctor_row_, view.row) != view.row) doctor_row_came_ = now;
    const bool moves = now - doctor_row_came_ < std::chrono::milliseconds(200);
    doctor.update(run.history, lanes, view.row, budget_ms, run.running() || moves);
}

}  // namespace keyhole
