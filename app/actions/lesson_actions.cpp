#include "app/actions/action_areas.h"
#include "app/lessons/lesson_file.h"
#include "app/lessons/lesson_page.h"
#include "app/models/find_model.h"
#include "app/state/lesson_steps.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/number.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <system_error>

namespace keyhole {

namespace {

using namespace key;

Lesson& shown_lesson(AppState& app) {
    if (!app.lesson.shown) fail(ErrorCode::wrong_use, "no lesson is open; choose one in the menu Lessons");
    return app.lesson.shown->lesson;
}

void open(AppState& app, std::string_view name) {
    if (name.empty())
        list_lessons(app);
    else
        open_lesson(app, name);
}

void go_to_step(AppState& app, std::string_view arguments) {
    go_to_lesson_step(app, whole_numbers(arguments, 1, 1)[0] - 1);
}

void go_back(AppState& app, std::string_view) {
    (void)shown_lesson(app);
    go_to_lesson_step(app, std::max(app.lesson.step - 1, 0));
}

void close_it(AppState& app, std::string_view arguments) {
    if (!arguments.empty() && arguments != "keep")
        fail(ErrorCode::wrong_use, "'{}' is not 'keep'", shown_text(arguments));
    close_lesson(app, arguments == "keep");
}

/// arguments: the number of a choice, from 1 on; the value of a slider.
void predict(AppState& app, std::string_view arguments) {
    (void)shown_lesson(app);
    const std::optional<Prediction>& asked = app.lesson.at().predict;
    if (!asked) fail(ErrorCode::wrong_use, "this step asks for no prediction");
    if (asked->kind == Prediction::Kind::token)
        fail(ErrorCode::wrong_use, "click a token of the text instead");
    if (asked->kind == Prediction::Kind::slider)
        predict_number(app, real_numbers(arguments, 1, 1)[0]);
    else
        predict_choice(app, whole_numbers(arguments, 1, 1)[0] - 1);
}

/// arguments: the number of a button, from 1 on; the value of the slider.
void play_with(AppState& app, std::string_view arguments) {
    (void)shown_lesson(app);
    const std::optional<LessonControl>& play = app.lesson.at().play;
    if (!play) fail(ErrorCode::wrong_use, "this step has no control to play with");
    app.run.need_live_run();
    if (!play->key.empty()) {
        const double value = std::clamp(real_numbers(arguments, 1, 1)[0], play->low, play->high);
        if (play->lane >= app.run.lane_editor.n_lanes())
            fail(ErrorCode::wrong_use, "there is no lane {}", play->lane);
        const LaneSpec& now = app.run.lane_editor.lanes()[to_index(play->lane)];
        play_with_lane(app, play->lane, changed_lane_spec(now, fmt::format("{}={:.4g}", play->key, value)));
        app.view.lane = play->lane;
        return;
    }
    const int i = whole_numbers(arguments, 1, 1)[0];
    if (i < 1 || to_index(i) > play->buttons.size())
        fail(ErrorCode::wrong_use, "there are {} buttons", play->buttons.size());
    for (const LessonCommand& command : play->buttons[to_index(i - 1)].commands) {
        if (const auto* steps = std::get_if<DecodeSteps>(&command.what)) app.step(steps->n);
        for (const Command& own : engine_commands(command, app.run.history)) app.run.lane_editor.run(own);
    }
}

/// Writes the lesson as a page, from a run of its own.
void print_for(AppState& app, std::string_view file, Reader reader) {
    const Lesson& lesson = shown_lesson(app);
    const std::string own_name =
        app.lesson.shown->name + (reader == Reader::pupil ? "-handout.html" : ".html");
    const std::filesystem::path path(file.empty() ? own_name : std::string(file));
    const std::shared_ptr<const Model> loaded = app.run.model();
    app.save_in_background(path, [path, lesson, loaded, reader, on = app.lesson.model, catalog = app.catalog,
                                  backend = app.run.backend_options] {
        std::map<std::string, std::shared_ptr<const Model>> models;
        const auto load = [&](const std::string& name) {
            std::shared_ptr<const Model>& known = models[name];
            if (known != nullptr) return known;
            const FoundModel found =
                name == on ? find_model(name, catalog) : find_catalog_model(name, catalog);
            if (found.to_get != nullptr) fail(ErrorCode::wrong_use, "the model {} is not here", name);
            known = loaded != nullptr && loaded->path() == found.path ? loaded : load_model(found.path);
            return known;
        };
        const PrintedLesson printed =
            run_for_print(on.empty() ? lesson : on_model(lesson, on), load, backend);
        write_text_file(path, lesson_page({&printed, 1}, reader));
    });
}

void print(AppState& app, std::string_view file) {
    print_for(app, file, Reader::teacher);
}

void print_handout(AppState& app, std::string_view file) {
    print_for(app, file, Reader::pupil);
}

/// Makes a lesson of the run on show, writes it to the user's folder and opens it for editing.
void save(AppState& app, std::string_view title) {
    const std::string words(title.empty() ? std::string_view("My lesson") : title);
    ListedLesson made;
    made.lesson = lesson_of_run(app, words);
    made.own = true;
    for (const char c : words)
        made.name += (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ? c
                     : c >= 'A' && c <= 'Z'                           ? static_cast<char>(c - 'A' + 'a')
                                                                      : '-';
    const std::filesystem::path folder = own_lessons_folder();
    if (folder.empty()) fail(ErrorCode::io, "no folder for your lessons: set HOME or XDG_DATA_HOME");
    std::error_code ignored;
    make_folder(folder, "your lessons");
    made.file = folder / (made.name + ".json");
    for (int n = 2; std::filesystem::exists(made.file, ignored); ++n)
        made.file = folder / fmt::format("{}-{}.json", made.name, n);
    made.name = made.file.stem().string();
    (void)parse_lesson(lesson_text(made.lesson), made.file.string());
    write_lesson(made.lesson, made.file);
    const std::string name = made.file.string();
    open_lesson(app, name);
    app.lesson.edits = true;
    app.notify("saved " + name);
}

/// Returns the text of the lesson, to be edited, that a name such as "step.title" stands for.
std::string& field_of(Lesson& lesson, LessonStep& step, std::string_view name) {
    if (name == "title") return lesson.title;
    if (name == "question") return lesson.question;
    if (name == "note") return lesson.note;
    if (name == "step.title") return step.title;
    if (name == "text") return step.text;
    if (name == "reveal") return step.reveal;
    if (name == "step.note") return step.note;
    fail(ErrorCode::wrong_use,
         "'{}' is no text of this step: title, question, note, step.title, text, predict, choices, look, "
         "reveal, step.note",
         shown_text(name));
}

/// Sets the question of a prediction, which a step without one gets with two choices; empty: none.
void set_prediction(LessonStep& step, std::string_view question) {
    if (question.empty()) return step.predict.reset();
    if (!step.predict) {
        step.predict.emplace();
        step.predict->choices = {"Yes", "No"};
    }
    step.predict->question = question;
}

/// text: choices with | between them, a * before the right one.
void set_choices(LessonStep& step, std::string_view text) {
    Prediction made;
    made.question = step.predict ? step.predict->question : "What do you expect?";
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('|'), text.size());
        std::string_view choice = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        while (choice.starts_with(' ')) choice.remove_prefix(1);
        while (choice.ends_with(' ')) choice.remove_suffix(1);
        if (choice.starts_with('*')) {
            made.right = static_cast<int>(made.choices.size());
            choice.remove_prefix(1);
        }
        if (!choice.empty()) made.choices.emplace_back(choice);
    }
    if (made.choices.size() < 2)
        fail(ErrorCode::wrong_use,
             "give at least two choices, with | between them and * before the right one");
    step.predict = std::move(made);
}

/// Rings these words in the text; empty: none.
void set_look(LessonStep& step, std::string_view words) {
    step.look.tokens = {};
    step.look.tokens.words = words;
    if (!words.empty()) step.look.pane = Pane::text;
}

void set_field(Lesson& lesson, LessonStep& step, std::string_view name, std::string_view text) {
    if (name == "predict") return set_prediction(step, text);
    if (name == "choices") return set_choices(step, text);
    if (name == "look") return set_look(step, text);
    field_of(lesson, step, name) = text;
}

void edit_text(AppState& app, std::string_view arguments) {
    Lesson& lesson = shown_lesson(app);
    const std::size_t blank = std::min(arguments.find(' '), arguments.size());
    Lesson before = lesson;
    set_field(lesson, lesson.steps[to_index(app.lesson.step)], arguments.substr(0, blank),
              arguments.substr(std::min(blank + 1, arguments.size())));
    try {
        save_shown_lesson(app);
    } catch (const Error&) {
        shown_lesson(app) = std::move(before);  // such as more words than a step may have
        throw;
    }
    app.lesson.look_due = true;
}

void change_steps(AppState& app, std::vector<LessonStep> steps, int now) {
    Lesson& lesson = shown_lesson(app);
    std::swap(lesson.steps, steps);
    try {
        save_shown_lesson(app);
    } catch (const Error&) {
        std::swap(lesson.steps, steps);
        throw;
    }
    go_to_lesson_step(app, now);
}

void add_step(AppState& app, std::string_view text) {
    std::vector<LessonStep> steps = shown_lesson(app).steps;
    const std::ptrdiff_t next = app.lesson.step + 1;
    steps.insert(steps.begin() + next,
                 step_of_view(app, std::string(text.empty() ? "Describe here what to look at." : text)));
    change_steps(app, std::move(steps), static_cast<int>(next));
    app.lesson.edits = true;
}

void drop_step(AppState& app, std::string_view) {
    std::vector<LessonStep> steps = shown_lesson(app).steps;
    if (steps.size() == 1) fail(ErrorCode::wrong_use, "a lesson needs a step");
    steps.erase(steps.begin() + app.lesson.step);
    change_steps(app, std::move(steps), std::max(app.lesson.step - 1, 0));
}

constexpr std::array kTable = {
    UserAction{"lesson",
               "Lessons",
               "[NUMBER|NAME|FILE.json]: opens a lesson; without: the list of lessons.",
               {},
               open,
               {.menu = {MenuGroup::lessons_list, 1}}},
    UserAction{"lesson.next",
               "Reveal, or next step",
               "Reveals the lesson's step; once it is revealed, goes to the next.",
               {kPageDown, 0},
               [](AppState& app, std::string_view) { advance_lesson(app); },
               {.menu = {MenuGroup::lessons_step, 1}, .lacks = need::lesson}},
    UserAction{"lesson.back",
               "Step before",
               "Goes back to the lesson's step before.",
               {kPageUp, 0},
               go_back,
               {.menu = {MenuGroup::lessons_step, 2}, .lacks = need::lesson}},
    UserAction{"lesson.step", "Go to a step of the lesson", "N: the first is 1.", {}, go_to_step},
    UserAction{"lesson.reset",
               "Reset the step",
               "Brings the run back to where the lesson's step begins.",
               {},
               [](AppState& app, std::string_view) { reset_lesson_step(app); },
               {.menu = {MenuGroup::lessons_step, 3}, .lacks = need::lesson}},
    UserAction{
        "lesson.predict", "Predict", "N: the number of a choice, or the value of the slider.", {}, predict},
    UserAction{"lesson.play",
               "Play with the lesson's control",
               "N: the value of the slider, or the number of a button.",
               {},
               play_with},
    UserAction{"lesson.notes",
               "Notes for the teacher",
               "[on|off]: shows the lesson's notes for the teacher.",
               {},
               [](AppState& app, std::string_view text) {
                   app.lesson.shows_notes = on_or_off(text, app.lesson.shows_notes);
               },
               {.menu = {MenuGroup::lessons_step, 4},
                .is_on = [](const AppState& app) { return app.lesson.shows_notes; }}},
    UserAction{"lesson.model",
               "Open the lesson with its own model",
               "Downloads the model that the lesson was made for if it is not here.",
               {},
               [](AppState& app, std::string_view) { begin_with_own_model(app); },
               {.elsewhere = "a button of the question before a lesson"}},
    UserAction{"lesson.stay",
               "Open the lesson with the loaded model",
               "Steps that do not show the effect there say so.",
               {},
               [](AppState& app, std::string_view) { begin_with_loaded_model(app); },
               {.elsewhere = "a button of the question before a lesson"}},
    UserAction{"lesson.print",
               "Save the lesson as a page",
               "[FILE.html]: the lesson with its answers, pictures and what a run of it measured, to print.",
               {},
               print,
               {.menu = {MenuGroup::lessons_save, 2}, .lacks = need::lesson}},
    UserAction{"lesson.handout",
               "Save the lesson as a handout",
               "[FILE.html]: the questions with room to write and no answers, to print for pupils.",
               {},
               print_handout,
               {.menu = {MenuGroup::lessons_save, 3}, .lacks = need::lesson}},
    UserAction{
        "lesson.save",
        "Save as lesson",
        "[TITLE]: makes a lesson of this run: its lanes, changes, watched words, and a step a bookmark.",
        {},
        save,
        {.menu = {MenuGroup::lessons_save, 1}, .lacks = need::steps}},
    UserAction{
        "lesson.edit",
        "Edit the lesson",
        "[on|off]: the lesson's texts become fields.",
        {},
        [](AppState& app, std::string_view text) { app.lesson.edits = on_or_off(text, app.lesson.edits); },
        {.menu = {MenuGroup::lessons_step, 5},
         .lacks = need::lesson,
         .is_on = [](const AppState& app) { return app.lesson.edits; }}},
    UserAction{
        "lesson.set",
        "Set a text of the lesson",
        "FIELD TEXT: title, question, note, step.title, text, predict, choices, look, reveal, step.note.",
        {},
        edit_text},
    UserAction{"lesson.add",
               "Add a step to the lesson",
               "[TEXT]: after this one, with the view as it is.",
               {},
               add_step,
               {.elsewhere = "a button of the lesson while it is edited"}},
    UserAction{"lesson.drop",
               "Drop the lesson's step",
               "",
               {},
               drop_step,
               {.elsewhere = "a button of the lesson while it is edited"}},
    UserAction{"lesson.close",
               "Close the lesson",
               "[keep]: the run from before it comes back, step by step; with `keep` the lesson's run stays.",
               {},
               close_it,
               {.menu = {MenuGroup::lessons_step, 6}, .lacks = need::lesson}},
};

}  // namespace

std::span<const UserAction> lesson_actions() {
    return kTable;
}

}  // namespace keyhole
