#include "app/state/lesson_steps.h"

#include "app/lessons/lesson_file.h"
#include "app/models/find_model.h"
#include "app/view/atlas_colors.h"
#include "engine/analysis/opening_head.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/make_folder.h"
#include "engine/base/model_name.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

constexpr const char* kBringsBack = "bringing back the run from before the lesson";

void need_lesson(const AppState& app) {
    if (!app.lesson.shown) fail(ErrorCode::wrong_use, "no lesson is open; choose one in the menu Lessons");
}

/// Returns where a lesson's model lies, or the one that the user took instead; nullopt: it can be got.
std::optional<std::filesystem::path> place_of_model(const AppState& app, const std::string& name) {
    const FoundModel found =
        name == app.lesson.model ? find_model(name, app.catalog) : find_catalog_model(name, app.catalog);
    if (found.to_get != nullptr) return std::nullopt;
    return found.path;
}

std::filesystem::path loaded_model(AppState& app) {
    const std::shared_ptr<const Model> model = app.run.model();
    return model == nullptr ? std::filesystem::path() : model->path();
}

LessonState::RunMark mark_of(const AppState& app) {
    std::vector<std::string> lanes;
    for (const LaneSpec& lane : app.run.lane_editor.lanes()) lanes.push_back(format_lane_spec(lane));
    return {app.run.history.generation(), app.run.last_row(), app.run.status.run.commands.size(),
            std::move(lanes)};
}

void forget_prediction(LessonState& lesson) {
    lesson.revealed = false;
    lesson.choice.reset();
    lesson.guess.reset();
    lesson.token.reset();
    lesson.now.clear();
    lesson.at_reveal.clear();
    lesson.measured_of.reset();
    lesson.fault.clear();
}

void queue(LessonState& lesson, const std::vector<LessonCommand>& commands) {
    lesson.waiting.insert(lesson.waiting.end(), commands.begin(), commands.end());
    lesson.awaits_run = true;
}

std::vector<LaneSpec> lanes_of(const LessonRun& run) {
    std::vector<LaneSpec> lanes;
    for (const std::string& lane : run.lanes) lanes.push_back(parse_lane_spec(lane));
    return lanes;
}

/// Starts the run that a step belongs to, with these lanes, and queues all that the steps before it do.
void begin_run(AppState& app, int step, std::vector<LaneSpec> lanes) {
    LessonState& lesson = app.lesson;
    const LessonRun& run = run_of_step(lesson.lesson(), step);
    const std::string& name =
        run.model == lesson.lesson().run.model && !lesson.model.empty() ? lesson.model : run.model;
    const std::optional<std::filesystem::path> model = place_of_model(app, name);
    if (!model)
        fail(ErrorCode::wrong_use,
             "this step needs the model {0}, which is not here; get it with: keyhole get {0}", name);
    lesson.altered = lesson.is_played = false;
    RunSetup& setup = app.run.setup;
    setup.model_folder = *model;
    setup.prompt = words_of(run.prompt);
    setup.guide.answer = run.answer;
    setup.guide.watch = run.watch;
    setup.guide.end.stop = run.stop;
    setup.chat = run.chat;
    setup.lanes = lanes;
    lesson.begun = {setup.prompt, setup.model_folder};
    app.run.lane_editor.reset(std::move(lanes), run.follow);
    lesson.requested_counterfactual.reset();
    lesson.waiting.clear();
    app.start();
    if (!run.then.empty())
        lesson.waiting.push_back({"then", Command(SayText{words_of(run.then), false, false})});
    for (int i = first_step_of_run(lesson.lesson(), step); i < step; ++i) {
        const LessonStep& before = lesson.lesson().steps[to_index(i)];
        queue(lesson, before.commands);
        queue(lesson, before.reveal_commands);
    }
    queue(lesson, lesson.lesson().steps[to_index(step)].commands);
}

void arrive(AppState& app, int step) {
    app.lesson.step = step;
    app.lesson.lists = app.lesson.asks = false;
    forget_prediction(app.lesson);
    app.view.pick.reset();
    app.lesson.look_due = false;
    app.refusal.clear();           // of an earlier action of the user
    app.lesson.awaits_run = true;  // the view follows when the run is idle
}

void begin(AppState& app, int step) {
    arrive(app, step);
    begin_run(app, step, lanes_of(run_of_step(app.lesson.lesson(), step)));
}

bool at_rest(const AppState& app) {
    if (!app.run.live()) return true;
    return app.run.recorded() && app.run.has_taken_requests() && !app.run.stoppable() &&
           app.run.status.phase != EnginePhase::loading;
}

/// Runs one command on the shown run. Throws Error.
void run_command(AppState& app, const LessonCommand& command) {
    if (const auto* steps = std::get_if<DecodeSteps>(&command.what)) {
        app.run.need_live_run();
        if (app.lesson.speed_before < 0) {
            app.lesson.speed_before = app.run.speed;
            app.run.set_speed(0);
        }
        app.step(steps->n);
        return;
    }
    if (const auto* fault = std::get_if<AlterRecords>(&command.what)) {
        OpenedRun altered = opened_run(altered_records(app.run.history.steps(), *fault), {});
        altered.from = fmt::format("lane {} with a fault", fault->lane);
        app.run.show(altered);
        app.lesson.altered = true;
        return;
    }
    app.run.need_live_run();
    for (const Command& own : engine_commands(command, app.run.history)) {
        if (const auto* back = std::get_if<Rewind>(&own))
            app.rewind(back->row);
        else
            app.run.lane_editor.run(own);
    }
}

bool run_waiting(AppState& app) {
    LessonState& lesson = app.lesson;
    bool changed = false;
    try {
        while (!lesson.waiting.empty() && at_rest(app)) {
            const LessonCommand command = std::move(lesson.waiting.front());
            lesson.waiting.pop_front();
            run_command(app, command);
            changed = true;
        }
        // A refused command is a fault of the step, not of the window.
        if (lesson.awaits_run && !app.refusal.empty())
            fail(ErrorCode::wrong_use, "{}", std::exchange(app.refusal, ""));
    } catch (const Error& error) {
        lesson.waiting.clear();
        lesson.fault = error.what();
        app.notify(lesson.fault, true);
    }
    if (lesson.waiting.empty() && lesson.awaits_run && at_rest(app)) {
        lesson.awaits_run = false;
        if (lesson.speed_before >= 0) app.run.set_speed(std::exchange(lesson.speed_before, -1));
        // The next step does not go on from a run that was played with.
        lesson.mark = lesson.is_played ? LessonState::RunMark() : mark_of(app);
        lesson.look_due = lesson.shown.has_value() || lesson.restores_run;
        changed = true;
    }
    return changed;
}

/// Measures the claims of a revealed step whenever the run has changed and stands still.
bool measure(AppState& app) {
    LessonState& lesson = app.lesson;
    if (!lesson.revealed || lesson.awaits_run || app.run.running() || !app.run.has_steps() || !at_rest(app))
        return false;
    const LessonState::MeasuredOf of{app.run.history.generation(), app.run.last_row(),
                                     app.run.status.answers.get(), app.run.status.counterfactual.get()};
    if (lesson.measured_of == of) return false;
    lesson.measured_of = of;
    const Evidence evidence = lesson_evidence(app);
    lesson.now.clear();
    for (const Claim& claim : lesson.at().claims) lesson.now.push_back(measure_claim(claim, evidence));
    const bool pending =
        std::any_of(lesson.now.begin(), lesson.now.end(), [](const Measured& m) { return m.pending; });
    if (lesson.at_reveal.empty() && !pending) lesson.at_reveal = lesson.now;
    return true;
}

BeforeLessons on_show(const AppState& app) {
    BeforeLessons before;
    before.setup = app.run.setup;
    before.annotations = app.annotations;
    before.view = app.view;
    before.follow = app.run.lane_editor.follow();
    if (app.run.live() && app.run.lane_editor.n_lanes() > 0) before.setup.lanes = app.run.lane_editor.lanes();
    if (!app.run.has_steps()) return before;
    before.run_id = app.run.history.run().id;
    if (!app.run.live()) {
        before.trace = OpenedRun{app.run.opened_file,
                                 app.run.history,
                                 app.run.curves,
                                 app.annotations,
                                 app.run.lane_editor.lanes(),
                                 app.run.lane_editor.follow(),
                                 app.run.opened_answers};
    } else if (app.run.recorded()) {
        before.setup.lanes = app.run.status.run.lanes;
        before.follow = app.run.status.run.follow;
        before.commands = app.run.status.run.commands;
        before.first_row = app.run.first_row();
        before.last_row = app.run.last_row();
    }  // else a start is under way, and the history is that of the run before
    return before;
}

/// Returns whether the run on show is one that the lesson began, as far as the user has not replaced it.
bool shows_own_run(const AppState& app) {
    const LessonState& lesson = app.lesson;
    if (!lesson.begun || !lesson.before) return false;
    if (app.run.has_steps() && app.run.history.run().id == lesson.before->run_id && app.run.recorded())
        return false;
    if (!app.run.live()) return lesson.altered;
    return *lesson.begun == std::pair(app.run.setup.prompt, app.run.setup.model_folder);
}

/// Starts what was on show before: the same prompt and lanes, with every command at its step.
void bring_back(AppState& app) {
    LessonState& lesson = app.lesson;
    BeforeLessons before = std::move(*lesson.before);
    app.view.arrangement = before.view.arrangement;
    app.run.setup = before.setup;
    if (before.trace) {
        OpenedRun trace = *before.trace;
        app.run.show(trace);
    } else {
        app.run.lane_editor.reset(before.setup.lanes, before.follow);
        app.start();
        std::vector<LessonCommand> way;
        int row = before.first_row;
        const auto decode_to = [&](int to) {
            if (to > row) way.push_back({"", DecodeSteps{to - row}});
            row = std::max(row, to);
        };
        for (const LoggedCommand& logged : before.commands) {
            decode_to(logged.row);
            way.push_back({"", logged.command});
        }
        decode_to(before.last_row);
        queue(lesson, way);
    }
    app.annotations = before.annotations;
    lesson.before = std::move(before);
    lesson.restores_run = lesson.awaits_run = true;
}

void check_on_loaded_model(AppState& app) {
    LessonState& lesson = app.lesson;
    const std::shared_ptr<const Model> model = app.run.model();
    if (model == nullptr || lesson.check_job.running()) return;
    lesson.check.reset();
    lesson.check_job.take();
    lesson.check_job.begin(
        [model, what = lesson.lesson(), own = lesson.lesson().run.model, catalog = app.catalog,
         backend = app.run.backend_options](const BackgroundJob<LessonCheck>::Progress& progress) {
            return check_lesson(
                what,
                [&](const std::string& name) {
                    if (name == own) return model;
                    const FoundModel found = find_catalog_model(name, catalog);
                    if (found.to_get != nullptr) fail(ErrorCode::wrong_use, "the model {} is not here", name);
                    return std::shared_ptr<const Model>(load_model(found.path));
                },
                backend, progress);
        },
        app.wake);
}

}  // namespace

void list_lessons(AppState& app) {
    app.lesson.all = list_all_lessons();
    app.lesson.lists = true;
}

void open_lesson(AppState& app, std::string_view name) {
    LessonState& lesson = app.lesson;
    lesson.all = list_all_lessons();
    ListedLesson found = find_lesson(name, lesson.all);
    const bool knows = lesson.before && (lesson.restores_run || (lesson.shown && shows_own_run(app)));
    if (!knows) lesson.before = on_show(app);
    lesson.restores_run = false;
    if (lesson.check_job.running()) lesson.check_job.cancel();
    lesson.shown = std::move(found);
    lesson.model.clear();
    lesson.check.reset();
    lesson.lists = lesson.edits = lesson.gets_model = false;
    lesson.waiting.clear();
    lesson.awaits_run = false;
    lesson.step = 0;
    forget_prediction(lesson);
    app.dialog = Dialog::none;
    const std::filesystem::path loaded = loaded_model(app);
    const std::optional<std::filesystem::path> own = place_of_model(app, lesson.lesson().run.model);
    std::error_code ignored;
    if (own && (loaded.empty() || *own == loaded || std::filesystem::equivalent(*own, loaded, ignored)))
        return begin(app, 0);
    lesson.asks = true;
    check_on_loaded_model(app);
}

void begin_with_own_model(AppState& app) {
    need_lesson(app);
    app.lesson.model.clear();
    app.lesson.check_job.cancel();
    const std::string& name = app.lesson.lesson().run.model;
    if (place_of_model(app, name)) return begin(app, 0);
    app.get_model(name);
    app.lesson.gets_model = true;
}

void begin_with_loaded_model(AppState& app) {
    need_lesson(app);
    const std::filesystem::path loaded = loaded_model(app);
    if (loaded.empty()) fail(ErrorCode::wrong_use, "no model is loaded");
    app.lesson.check_job.cancel();
    app.lesson.model = loaded.string();
    begin(app, 0);
}

void close_lesson(AppState& app, bool keeps) {
    LessonState& lesson = app.lesson;
    lesson.check_job.cancel();
    if (lesson.speed_before >= 0) app.run.set_speed(std::exchange(lesson.speed_before, -1));
    const bool was_open = lesson.shown.has_value();
    lesson.shown.reset();
    lesson.lists = lesson.asks = lesson.edits = lesson.gets_model = lesson.awaits_run = lesson.look_due =
        false;
    lesson.waiting.clear();
    lesson.wanted.clear();
    lesson.in_sight.reset();
    forget_prediction(lesson);
    if (was_open && !keeps && shows_own_run(app)) {
        bring_back(app);
        app.notify(kBringsBack);
    } else if (was_open) {
        lesson.before.reset();
    }
    lesson.begun.reset();
}

void forget_run_before_lessons(LessonState& lesson) {
    if (lesson.shown) return;
    lesson.waiting.clear();
    lesson.restores_run = lesson.awaits_run = false;
    lesson.before.reset();
}

void go_to_lesson_step(AppState& app, int step) {
    need_lesson(app);
    LessonState& lesson = app.lesson;
    if (step < 0 || step >= static_cast<int>(lesson.lesson().steps.size()))
        fail(ErrorCode::wrong_use, "the lesson has {} steps", lesson.lesson().steps.size());
    const LessonStep& next = lesson.lesson().steps[to_index(step)];
    const bool unchanged =
        !lesson.asks && lesson.fault.empty() && !lesson.awaits_run && lesson.mark == mark_of(app);
    if (step != lesson.step + 1 || next.run || !unchanged) return begin(app, step);
    std::vector<LessonCommand> rest;
    if (!lesson.revealed) rest = lesson.at().reveal_commands;
    arrive(app, step);
    queue(lesson, rest);
    queue(lesson, next.commands);
}

bool plays_anew(const LessonState& lesson) {
    const LessonRun& run = run_of_step(lesson.lesson(), lesson.step);
    if (run.then.empty() || run.answer.empty()) return false;
    const auto keeps_lanes = [](const LessonCommand& command) {
        return !std::holds_alternative<Command>(command.what);
    };
    for (int i = first_step_of_run(lesson.lesson(), lesson.step); i <= lesson.step; ++i) {
        const LessonStep& step = lesson.lesson().steps[to_index(i)];
        if (!std::ranges::all_of(step.commands, keeps_lanes) ||
            !std::ranges::all_of(step.reveal_commands, keeps_lanes))
            return false;
    }
    return true;
}

void play_with_lane(AppState& app, int lane, const LaneSpec& spec) {
    LessonState& lesson = app.lesson;
    if (!plays_anew(lesson)) return app.run.lane_editor.set(lane, spec);
    std::vector<LaneSpec> lanes = app.run.lane_editor.lanes();
    if (same_settings(lanes.at(to_index(lane)), spec)) return;
    lanes.at(to_index(lane)) = spec;
    app.refusal.clear();  // of an earlier action of the user
    lesson.fault.clear();
    begin_run(app, lesson.step, std::move(lanes));
    if (lesson.revealed) queue(lesson, lesson.at().reveal_commands);
    lesson.is_played = lesson.awaits_run = true;
}

void reset_lesson_step(AppState& app) {
    need_lesson(app);
    begin(app, app.lesson.step);
}

/// Shows the view from before the lessons. Settings of the window, such as its theme, stay as they are.
static void show_view_again(AppState& app) {
    LessonState& lesson = app.lesson;
    ViewState view = std::move(lesson.before->view);
    view.background = app.view.background;
    view.interface_scale = app.view.interface_scale;
    app.view = std::move(view);
    app.fit_view();
    lesson.before.reset();
    lesson.restores_run = lesson.look_due = false;
    if (app.notice.text == kBringsBack) app.notify("the run from before the lesson is back");
}

bool has_reveal(const LessonStep& step) {
    return step.predict || !step.reveal.empty() || !step.claims.empty() || !step.reveal_commands.empty();
}

/// Remembers a lesson whose last step was seen.
static void note_finished(AppState& app) {
    const LessonState& lesson = app.lesson;
    const bool last = lesson.step + 1 == static_cast<int>(lesson.lesson().steps.size());
    if (last && (lesson.revealed || !has_reveal(lesson.at()))) app.recent.add_lesson(lesson.shown->name);
}

void advance_lesson(AppState& app) {
    need_lesson(app);
    LessonState& lesson = app.lesson;
    if (lesson.asks) return begin_with_own_model(app);
    if (lesson.awaits_run) return app.notify("the lesson's run is still under way");
    if (!lesson.revealed && has_reveal(lesson.at())) {
        if (lesson.at().predict && lesson.at().predict->kind == Prediction::Kind::token && app.view.pick)
            lesson.token = app.view.pick->position;
        lesson.revealed = true;
        app.refusal.clear();
        queue(lesson, lesson.at().reveal_commands);
        return note_finished(app);
    }
    if (lesson.step + 1 >= static_cast<int>(lesson.lesson().steps.size()))
        return app.notify("this was the lesson's last step; the menu Lessons has more");
    go_to_lesson_step(app, lesson.step + 1);
    note_finished(app);
}

void predict_choice(AppState& app, int choice) {
    need_lesson(app);
    const std::optional<Prediction>& asked = app.lesson.at().predict;
    if (!asked || asked->kind != Prediction::Kind::choice || choice < 0 ||
        choice >= static_cast<int>(asked->choices.size()))
        fail(ErrorCode::wrong_use, "this step has {} choices", asked ? asked->choices.size() : 0);
    if (!app.lesson.revealed) app.lesson.choice = choice;
}

void predict_number(AppState& app, double guess) {
    need_lesson(app);
    const std::optional<Prediction>& asked = app.lesson.at().predict;
    if (!asked || asked->kind != Prediction::Kind::slider)
        fail(ErrorCode::wrong_use, "this step asks for no number");
    if (!app.lesson.revealed) app.lesson.guess = std::clamp(guess, asked->low, asked->high);
}

Evidence lesson_evidence(AppState& app) {
    Evidence evidence;
    evidence.history = &app.run.history;
    for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane)
        evidence.lanes.push_back(app.run.history_lane(lane).value_or(-1));
    if (app.run.live() && app.run.status.answers != nullptr) evidence.answers = *app.run.status.answers;
    if (app.run.live())
        evidence.restored = [&app](const CounterfactualRequest& asked) -> std::optional<Counterfactual> {
            const auto& known = app.run.status.counterfactual;
            const int lane = app.run.history_lane(asked.lane).value_or(-1);
            if (known != nullptr && lane >= 0 &&
                known->lane_id == app.run.history.lanes()[to_index(lane)].id &&
                known->position == asked.position && known->n_tokens == asked.n_tokens &&
                known->row == asked.row)
                return *known;
            std::optional<CounterfactualRequest>& before = app.lesson.requested_counterfactual;
            if (!before || before->lane != asked.lane || before->position != asked.position ||
                before->n_tokens != asked.n_tokens || before->row != asked.row) {
                before = asked;
                app.run.request_counterfactual(asked.lane, asked.position, asked.row, asked.n_tokens);
            }
            return std::nullopt;
        };
    return evidence;
}

std::optional<bool> predicted_right(const AppState& app) {
    const LessonState& lesson = app.lesson;
    if (!lesson.shown || !lesson.revealed || !lesson.at().predict) return std::nullopt;
    const Prediction& asked = *lesson.at().predict;
    switch (asked.kind) {
        case Prediction::Kind::choice:
            if (!lesson.choice) return std::nullopt;
            return *lesson.choice == asked.right;
        case Prediction::Kind::slider: {
            if (!lesson.guess || to_index(asked.claim) >= lesson.at_reveal.size()) return std::nullopt;
            const double off = std::abs(*lesson.guess - lesson.at_reveal[to_index(asked.claim)].value);
            return off <= 0.1 * (asked.high - asked.low);
        }
        case Prediction::Kind::token: {
            if (!lesson.token || !app.run.has_steps()) return std::nullopt;
            const std::optional<TokenSpan> span = span_of(asked.tokens, app.run.history, app.text_lane());
            return span && span->holds(*lesson.token);
        }
    }
    return std::nullopt;
}

bool refresh_lesson(AppState& app) {
    LessonState& lesson = app.lesson;
    bool changed = false;
    if (!lesson.wanted.empty() && app.run.has_steps() && at_rest(app)) {
        try {
            open_lesson(app, std::exchange(lesson.wanted, ""));
        } catch (const Error& error) {
            app.notify(error.what(), true);
        }
        changed = true;
    }
    if (!lesson.shown) return (lesson.restores_run && run_waiting(app)) || changed;
    if (const std::shared_ptr<LessonCheck> check = lesson.check_job.take()) {
        lesson.check = check;
        changed = true;
    }
    if (lesson.check_job.running()) changed = true;
    if (lesson.gets_model && !app.jobs.getting()) {
        lesson.gets_model = false;
        if (place_of_model(app, lesson.lesson().run.model)) begin(app, 0);
        changed = true;
    }
    if (lesson.asks) return changed;
    changed = run_waiting(app) || changed;
    // The engine refused to give tokens back, for a claim.
    if (lesson.revealed && !lesson.awaits_run && lesson.requested_counterfactual && !app.refusal.empty()) {
        lesson.fault = std::exchange(app.refusal, "");
        changed = true;
    }
    return measure(app) || changed;
}

void apply_lesson_look(AppState& app) {
    LessonState& lesson = app.lesson;
    if (lesson.look_due && lesson.restores_run && app.run.has_steps()) {
        show_view_again(app);
        return;
    }
    if (!lesson.look_due || !lesson.shown || !app.run.has_steps()) return;
    lesson.look_due = false;
    const Look& look = lesson.at().look;
    ViewState& view = app.view;
    for (const Arrangement a : kArrangements)
        if (look.arrangement == arrangement_name(a)) view.arrangement = a;
    const bool left_compare =
                   lesson.step > 0 && view.arrangement == Arrangement::compare && look.pane != Pane::compare,
               left_story = view.arrangement == Arrangement::story && look.pane != Pane::story;
    if (look.arrangement.empty() && (left_compare || left_story)) view.arrangement = Arrangement::teach;
    if (look.lane) view.lane = std::min(*look.lane, app.run.lane_editor.n_lanes() - 1);
    if (look.other) view.other = std::min(*look.other, app.run.lane_editor.n_lanes() - 1);
    const ModelConfig& model = app.run.history.run().config;
    if (look.layer) view.layer = std::min(*look.layer, model.n_layers - 1);
    if (look.head) view.head = std::min(*look.head, model.n_heads - 1);
    for (const HeatMode mode : {HeatMode::attention, HeatMode::mask, HeatMode::score})
        if (look.mode == mode_name(mode)) view.mode = mode;
    // Before the reveal the words to click are neither marked nor scrolled to, and no others draw the eye.
    const bool asks_token =
        !lesson.revealed && lesson.at().predict && lesson.at().predict->kind == Prediction::Kind::token;
    lesson.in_sight.reset();
    if (asks_token) {
        view.watched.reset();
        view.curve_positions.clear();
        lesson.in_sight = {0, app.run.last_row()};
    } else if (look.tokens == TokenSet{}) {
        const std::string& watch = run_of_step(lesson.lesson(), lesson.step).watch;
        view.watched = find_span(app.run.history, 0, watch);  // none for an empty text
    } else {
        if (const auto span = span_of(look.tokens, app.run.history, app.text_lane())) {
            if (!look.tokens.words.empty()) view.watched = span;
            lesson.in_sight = {span->last, app.run.last_row()};
        }
    }
    if (!look.layer && !lesson.revealed)
        if (const auto place = opening_head(app.run.history, app.text_lane(), view.watched)) {
            view.layer = place->layer;
            view.head = place->head;
        }
    if (view.watched && !lesson.revealed) {
        view.curve_positions.clear();
        for (int p = view.watched->first;
             p <= view.watched->last && view.curve_positions.size() < ViewState::kMaxCurves; ++p)
            view.curve_positions.push_back(p);
    }
    if (look.curve.empty() && view.watched) view.measure_curve = ViewState::kWatchedSpan;
    if (look.curve.empty() && !view.watched && view.measure_curve == ViewState::kWatchedSpan)
        view.measure_curve = -1;
    if (look.curve == "watched") view.measure_curve = ViewState::kWatchedSpan;
    if (const int curve = curve_index(look.curve); curve >= 0) view.measure_curve = curve;
    // If the window has no room for all panes, show the one that the step looks at.
    if (const Pane home = home_of(look.pane); has_tab(home)) view.side = home;
    const AtlasColor* color = atlas_color(look.color);
    view.atlas_measure = color != nullptr ? color->code : -1;
    view.follows_newest = true;
    view.row = app.run.last_row();
    view.heat.fitted = look.zoom == 0;
    if (look.zoom > 0) {
        view.heat.cell_width = view.heat.cell_height =
            std::clamp(double(look.zoom), HeatView::kMinCell, HeatView::kMaxCell);
        view.center_request = Pick{view.row, view.watched ? view.watched->first : view.row};
    }
    view.fitted_rows = FittedRows::automatic;
}

/// Sets what to look at as a view or a bookmark has it.
template <class View>
static void look_at(const View& view, Look& look) {
    look.pane = view.arrangement == Arrangement::compare ? Pane::compare : Pane::heatmap;
    look.lane = view.lane;
    look.layer = view.layer;
    look.head = view.head;
    look.mode = mode_name(view.mode);
    look.arrangement = arrangement_name(view.arrangement);
    if (view.pick) {
        look.pane = Pane::text;
        look.tokens.range = TokenSpan{view.pick->position, view.pick->position};
    }
}

LessonStep step_of_view(const AppState& app, std::string text) {
    LessonStep step;
    step.text = std::move(text);
    look_at(app.view, step.look);
    return step;
}

Lesson lesson_of_run(const AppState& app, std::string title) {
    app.run.need_live_run();
    const CatalogModel* model = find_by_path(app.catalog, app.run.setup.model_folder);
    if (model == nullptr)
        fail(ErrorCode::wrong_use,
             "cannot make a lesson of this run: its model {} is not in the catalogue, so others could not "
             "open the lesson; make the run with a model of the menu Model",
             model_name(app.run.setup.model_folder));
    Lesson lesson;
    lesson.title = std::move(title);
    lesson.question = "What do these lanes keep, and what does it cost?";
    const RunSpec& run = app.run.status.run;
    lesson.run.model = model->name;
    lesson.run.prompt.text = app.run.history.run().prompt;
    lesson.run.lanes.clear();
    for (const LaneSpec& lane : run.lanes) lesson.run.lanes.push_back(format_lane_spec(lane));
    lesson.run.follow = run.follow;
    lesson.run.chat = run.chat;
    lesson.run.answer = app.run.setup.guide.answer;
    lesson.run.stop = app.run.setup.guide.end.stop;
    if (app.view.watched) {
        const std::vector<int>& tokens = app.run.history.lanes()[to_index(app.text_lane())].tokens;
        for (int p = app.view.watched->first; p <= app.view.watched->last && to_index(p) < tokens.size(); ++p)
            lesson.run.watch += app.run.history.run().token_bytes[to_index(tokens[to_index(p)])];
    }
    // The bookmarks in the order of their steps, and between them what the user did, at its steps.
    std::vector<Bookmark> marks = app.annotations.bookmarks;
    std::stable_sort(marks.begin(), marks.end(),
                     [](const Bookmark& a, const Bookmark& b) { return a.row < b.row; });
    const int first_row = app.run.first_row();
    if (marks.empty()) {
        Bookmark here;
        here.name = "Describe here what to look at.";
        here.lane = app.view.lane;
        here.layer = app.view.layer;
        here.head = app.view.head;
        here.mode = app.view.mode;
        here.arrangement = app.view.arrangement;
        here.row = app.run.last_row();
        marks.push_back(std::move(here));
    }
    int row = first_row;
    std::size_t next = 0;
    for (const Bookmark& mark : marks) {
        LessonStep step;
        const auto decode_to = [&](int to) {
            if (to <= row) return;
            step.commands.push_back(parse_lesson_command(fmt::format("step {}", to - row)));
            row = to;
        };
        for (; next < run.commands.size() && run.commands[next].row <= mark.row; ++next) {
            decode_to(run.commands[next].row);
            step.commands.push_back(parse_lesson_command(format_command(run.commands[next].command)));
        }
        decode_to(mark.row);
        step.text = mark.name;
        look_at(mark, step.look);
        lesson.steps.push_back(std::move(step));
    }
    // The lesson claims the answers that the lanes give now.
    if (app.run.status.answers != nullptr && !lesson.run.answer.empty()) {
        LessonStep& last = lesson.steps.back();
        const std::vector<LaneAnswer>& answers = *app.run.status.answers;
        for (std::size_t i = 0; i < answers.size(); ++i) {
            if (!answers[i].complete || !answers[i].failure.empty() || answers[i].turn >= 0) continue;
            Claim claim;
            claim.measure = "answer";
            claim.lane = static_cast<int>(i);
            claim.text = lesson.run.answer;
            claim.is = answer_holds(answers[i].text, claim.text) ? Claim::Is::contains : Claim::Is::lacks;
            last.claims.push_back(std::move(claim));
            last.reveal += fmt::format("{}Lane {}: {{{}}}.", i == 0 ? "" : " ", i, last.claims.size());
        }
    }
    for (LessonStep& step : lesson.steps)
        while (count_words(step.text) > Lesson::kMostWords) step.text.erase(step.text.find_last_of(" \t\n"));
    return lesson;
}

void save_shown_lesson(AppState& app) {
    need_lesson(app);
    ListedLesson& shown = *app.lesson.shown;
    if (!shown.own) {
        const std::filesystem::path folder = own_lessons_folder();
        if (folder.empty()) fail(ErrorCode::io, "no folder for your lessons: set HOME or XDG_DATA_HOME");
        make_folder(folder, "your lessons");
        shown.file = folder / (shown.name + ".json");
        shown.own = true;
        shown.lesson.number = 0;
        const auto original = std::ranges::find(app.lesson.all, shown.name, &ListedLesson::name);
        if (original != app.lesson.all.end() && original->lesson.title == shown.lesson.title)
            shown.lesson.title += " (copy)";
        app.notify("this is your own copy of the lesson now: " + shown.file.string());
    }
    // A written file must be readable, so the reader's checks come first.
    const std::string text = lesson_text(shown.lesson);
    (void)parse_lesson(text, shown.file.string());
    write_lesson(shown.lesson, shown.file);
}

}  // namespace keyhole
