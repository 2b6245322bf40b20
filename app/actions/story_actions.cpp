#include "app/actions/action_areas.h"
#include "app/state/story.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

void rewind_to_prompt(AppState& app, std::string_view) {
    app.run.need_live_run();
    const int row = app.run.history.n_prompt() - 1;
    if (app.run.last_row() == row) return app.notify("the run is at the end of the prompt");
    app.rewind(row);
}

/// Asks what the lane would answer if it had kept the watched words. The answer stands below the sentence of
/// the story, and on the page Why.
void give_words_back(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    if (!app.view.watched) fail(ErrorCode::wrong_use, "no words are watched; pick some and press W");
    const int lane = arguments.empty() ? app.view.lane : whole_numbers(arguments, 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes())
        fail(ErrorCode::wrong_use, "there are lanes 0 to {}", app.run.lane_editor.n_lanes() - 1);
    app.view.lane = lane;
    app.run.request_counterfactual(lane, app.view.watched->first, story_of(app).first_row,
                                   app.view.watched->size());
}

/// text: the right answer to the prompt; empty: it is not known. The answer then ends with its sentence,
/// unless the right one has more. A run whose answer ends elsewhere starts again.
void set_right_answer(AppState& app, std::string_view text) {
    PromptGuide& guide = app.run.setup.guide;
    if (guide.answer == text) return;
    const AnswerEnd before = guide.end;
    guide.answer = text;
    if (!text.empty())
        guide.end.stop = text.find('.') == std::string_view::npos ? std::vector<std::string>{".", "\n"}
                                                                  : std::vector<std::string>{"\n"};
    if (app.run.live() && !(guide.end == before)) app.start();
}

/// key: an option of a lane spec, or "off".
void choose_strips(AppState& app, std::string_view key) {
    if (key == "off") return app.view.strip_key.clear();
    if (std::ranges::find(kStripOptions, key, &StripOption::key) == kStripOptions.end()) {
        std::string known;
        for (const StripOption& option : kStripOptions) known += fmt::format("{}, ", option.key);
        fail(ErrorCode::wrong_use, "there is no strip of '{}'; choose {}or off", key, known);
    }
    app.view.strip_key = key;
}

void show_bounds(AppState& app, std::string_view state) {
    app.view.bounds = on_or_off(state, app.view.bounds);
}

/// arguments: LANE VALUE of the option that the strips try.
void take_strip_value(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    if (app.view.strip_key.empty()) fail(ErrorCode::wrong_use, "strips are off; choose an option");
    const std::size_t blank = std::min(arguments.find(' '), arguments.size());
    const int lane = whole_numbers(arguments.substr(0, blank), 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes())
        fail(ErrorCode::wrong_use, "there are lanes 0 to {}", app.run.lane_editor.n_lanes() - 1);
    const LaneSpec& now = app.run.lane_editor.lanes()[to_index(lane)];
    const std::string_view value = arguments.substr(std::min(blank + 1, arguments.size()));
    app.run.lane_editor.set(lane, changed_lane_spec(now, fmt::format("{}={}", app.view.strip_key, value)));
    app.view.lane = lane;
}

std::string_view needs_watched_words(const AppState& app) {
    if (const std::string_view lacks = need::live_run(app); !lacks.empty()) return lacks;
    return app.view.watched ? "" : "no words are watched";
}

constexpr std::array kStoryActions = {
    UserAction{"rewind.prompt",
               "Rewind to the prompt",
               "Goes back to the end of the prompt; the later steps are kept as a branch.",
               {'Z', 0},
               rewind_to_prompt,
               {.menu = {MenuGroup::run_rewind, 0}, .lacks = need::live_run}},
    UserAction{"prompt.answer",
               "Set the right answer to the prompt",
               "[TEXT]: an answer that contains it is right; without a text none is known.",
               {},
               set_right_answer,
               {.elsewhere = "a field below the prompt"}},
    UserAction{
        "story.give",
        "Give the watched words back",
        "[LANE]: answers once more, with the watched words back in the lane's cache.",
        {},
        give_words_back,
        {.menu = {MenuGroup::token_why, 9}, .lacks = needs_watched_words, .arguments_are_plain = true}},
    UserAction{"strips",
               "Try other values beside each answer",
               "budget|recent|sinks|alpha|tau|scope|kv_dtype|off: is the answer right with other values?",
               {},
               choose_strips,
               {.elsewhere = "a list below the story", .arguments_are_plain = true}},
    UserAction{"answers.bounds",
               "Show a floor and a ceiling below the answers",
               "[on|off]: what three seeds of random and an oracle answer with the lanes' budgets.",
               {},
               show_bounds,
               {.elsewhere = "a box over the answers",
                .is_on = [](const AppState& app) { return app.view.bounds; },
                .arguments_are_plain = true}},
    UserAction{"strips.take",
               "Give a lane a value of its strip",
               "LANE VALUE: of the option that the strips try.",
               {},
               take_strip_value,
               {.elsewhere = "a click on a strip", .arguments_are_plain = true}},
};

}  // namespace

std::span<const UserAction> story_actions() {
    return kStoryActions;
}

}  // namespace keyhole
