#include "app/actions/action_areas.h"
#include "app/base/version.h"
#include "app/state/shown_answers.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/export/captions.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

int number_within(std::string_view key, std::string_view value, int low, int high) {
    const auto number = number_from_text<int>(value, low, high);
    if (!number)
        fail(ErrorCode::wrong_use, "{}={} is no whole number from {} to {}", key, shown_text(value), low,
             high);
    return *number;
}

/// Reads `by=head questions=needle samples=8 context=384 take=on rank=kl`; what is missing stays as it is.
AttributionRequest parse_request(std::string_view text) {
    AttributionRequest request;
    while (!text.empty()) {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(word.size() + 1, text.size()));
        if (word.empty()) continue;
        const std::size_t equals = std::min(word.find('='), word.size());
        const std::string_view key = word.substr(0, equals),
                               value = word.substr(std::min(equals + 1, word.size()));
        if (key == "by")
            request.by = value;
        else if (key == "questions")
            request.questions = value;
        else if (key == "samples")
            request.n_questions = number_within(key, value, 1, 1 << 20);
        else if (key == "context")
            request.context = number_within(key, value, 2, 1 << 24);
        else if (key == "take")
            request.takes = on_or_off(value, false);
        else if (key == "rank")
            request.rank = value;
        else
            fail(ErrorCode::wrong_use, "'{}' is none of by, questions, samples, context, take and rank",
                 shown_text(key));
    }
    return request;
}

/// Returns the run's prompt with the answer of the full cache: what lane 0 says, unless it is known to be
/// wrong.
PromptQuestion question_of_prompt(const AppState& app) {
    const RunInfo& run = app.run.history.run();
    const std::vector<ShownAnswer> answers = shown_answers(app);
    const std::string right = right_answer(app);
    PromptQuestion question{run.prompt, right, !run.start.chat.empty()};
    if (!answers.empty() && answers.front().answer.complete &&
        (right.empty() || answers.front().mark == ShownAnswer::Mark::right))
        question.answer = answers.front().answer.text;
    if (question.answer.find_first_not_of(" \n\t") == std::string::npos)
        fail(ErrorCode::wrong_use, "lane 0 has not answered yet; wait for it, or give the right answer");
    return question;
}

const LaneSpec& focused_lane(const AppState& app) {
    if (app.run.lane_editor.n_lanes() == 0) fail(ErrorCode::wrong_use, "no lane yet");
    return app.run.lane_editor.lanes()[to_index(app.view.lane)];
}

void begin_attribution(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    AttributionRequest request = parse_request(arguments);
    // The heads of a layer choose together, so that none can have a budget of its own.
    const bool by_layer = request.by == "head" && focused_lane(app).policy.scope == Scope::layer;
    if (by_layer) request.by = "layer";
    std::optional<PromptQuestion> question;
    if (request.questions == "prompt") question = question_of_prompt(app);
    app.attribution.begin(request, app.run.setup.model_folder, focused_lane(app), question, app.wake);
    app.notify(fmt::format("asking what lane {} loses, in the background{}", app.view.lane,
                           by_layer ? ": by layer, because all heads of a layer keep the same tokens" : ""));
}

/// Returns whether tokens of the prompt are still those whose words were found.
bool has_words(const AppState& app, const TokenSpan& tokens, const std::string& words) {
    const RunInfo& run = app.run.history.run();
    if (tokens.last >= run.n_prompt()) return false;
    std::string text;
    for (int p = tokens.first; p <= tokens.last; ++p)
        text += run.token_bytes[to_index(run.prompt_tokens[to_index(p)])];
    return text == words;
}

/// arguments: the number of a part in the list, from 1.
void take_part_back(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    const ShownAttribution* shown = app.attribution.shown();
    const int number = whole_numbers(arguments, 1, 1)[0];
    if (shown == nullptr || number < 1 || number > std::ssize(shown->parts))
        fail(ErrorCode::wrong_use, "there is no part {}; run an attribution, and take one of its list",
             number);
    const AttributedPart& part = shown->parts[to_index(number) - 1];
    if (part.tokens && !has_words(app, *part.tokens, part.words))
        fail(ErrorCode::wrong_use, "tokens {} of this prompt have other words by now; ask once more",
             part.name);
    const LaneSpec spec = app.attribution.with_part(focused_lane(app), to_index(number) - 1,
                                                    app.run.history.run().n_prompt(), app.view.watched);
    app.run.lane_editor.set(app.view.lane, spec);
    if (part.tokens) app.view.watched = part.tokens;
    app.notify(fmt::format("lane {} keeps {}", app.view.lane, part.name));
}

/// FORM TOKENS [REST], and what follows.
struct BudgetWords {
    std::string_view form;
    int budget = 0, rest = 0;
    std::string_view after;
};

BudgetWords budget_words(std::string_view text) {
    const auto next = [&] {
        const std::string_view word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(word.size() + 1, text.size()));
        return word;
    };
    BudgetWords words;
    words.form = next();
    words.budget = whole_numbers(next(), 1, 1)[0];
    words.rest = std::max(1, words.budget / 2);
    const std::string_view before = text;
    if (const auto rest = number_from_text<int>(next()))
        words.rest = *rest;
    else
        text = before;
    words.after = text;
    return words;
}

/// arguments: FORM TOKENS [REST].
void give_budget(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    const BudgetWords words = budget_words(arguments);
    if (!words.after.empty())
        fail(ErrorCode::wrong_use, "'{}' is one word too much; give FORM TOKENS [REST]",
             shown_text(words.after));
    const RunInfo& run = app.run.history.run();
    const LaneSpec spec = app.attribution.with_budget(focused_lane(app), words.form, words.budget, words.rest,
                                                      run.n_prompt() + run.n_generate);
    app.run.lane_editor.set(app.view.lane, spec);
    open_dialog<Dialog::overrides>(app, {});
    app.notify(fmt::format("lane {} has {} tokens a head, {}", app.view.lane, words.budget, words.form));
}

/// arguments: FORM TOKENS [REST] FOLDER.
void write_budget_files(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    const BudgetWords words = budget_words(arguments);
    if (words.after.empty())
        fail(ErrorCode::wrong_use, "give the folder for the files: FORM TOKENS [REST] FOLDER");
    const RunInfo& run = app.run.history.run();
    const bool is_shown = app.view.lane < std::ssize(app.run.history.lanes());
    const std::filesystem::path folder = words.after;
    const std::vector<std::string> files = app.attribution.write_heads(
        folder, focused_lane(app), words.form, words.budget, words.rest, run.n_prompt() + run.n_generate,
        is_shown ? app.run.history.layout(app.view.lane) : run.layout,
        made_by(
            run, program_name(),
            fmt::format("{} --budget {} --rest {}", app.attribution.command(), words.budget, words.rest)));
    app.notify(fmt::format("{} in {}; a lane reads them by heads={}", fmt::join(files, ", "), folder.string(),
                           (folder / files.front()).string()));
}

std::string_view needs_attribution_job(const AppState& app) {
    return app.attribution.running() ? "" : "no attribution is being made";
}

constexpr std::array kAttributionActions = {
    UserAction{"attribution.run",
               "Give parts of the focused lane back",
               "[by=head|query-head|layer|group|token] [questions=prompt|TASK] [samples=N] [context=N] "
               "[take=on] [rank=nats|right|kl]: runs `keyhole attribute` in the background.",
               {},
               begin_attribution,
               {.elsewhere = "the page What does the eviction cost", .lacks = need::live_run}},
    UserAction{"attribution.cancel",
               "Cancel the attribution",
               "The same one goes on from there.",
               {},
               [](AppState& app, std::string_view) { app.attribution.cancel(); },
               {.menu = {MenuGroup::lanes_options, 5}, .lacks = needs_attribution_job}},
    UserAction{"attribution.take",
               "Give one part back to the focused lane",
               "NUMBER: of the list. A head or layer keeps all tokens by an override; tokens stay beside the "
               "budget.",
               {},
               take_part_back,
               {.elsewhere = "a click on a line or cell of the page", .arguments_are_plain = true}},
    UserAction{"attribution.budget",
               "Spend a budget on the focused lane's heads",
               "uniform|pyramid|adaptive|streaming|whole|gain TOKENS [REST]: by what was found; then opens "
               "the overrides.",
               {},
               give_budget,
               {.elsewhere = "the button Budget of the page", .arguments_are_plain = true}},
    UserAction{"attribution.files",
               "Write budgets by head as files",
               "uniform|streaming|whole|gain TOKENS [REST] FOLDER: heads.json, which a lane reads by "
               "heads=FILE, and those that DuoAttention and HeadKV read.",
               {},
               write_budget_files,
               {.elsewhere = "the button Write files of the page", .lacks = need::live_run}},
};

}  // namespace

std::span<const UserAction> attribution_actions() {
    return kAttributionActions;
}

}  // namespace keyhole
