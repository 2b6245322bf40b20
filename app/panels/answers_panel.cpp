#include "app/panels/answers_panel.h"

#include "app/panels/strip_view.h"
#include "app/view/story_text.h"
#include "engine/base/index.h"
#include "engine/policy/lane_names.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace keyhole {

namespace {

using Mark = ShownAnswer::Mark;

const std::vector<AnswerBound> kNoBounds;

void update(AnswersPanel& panel, const AppState& app) {
    AnswersPanel::MadeOf now = answers_made_of(app);
    if (panel.made_of == now) return;
    panel.made_of = std::move(now);
    panel.answers = shown_answers(app);
    panel.titles = answer_titles(app, panel.answers);
    panel.caption = answers_caption(app, panel.answers);
    panel.waits = app.run.records() != RunState::Records::unread;
    panel.settings.clear();
    for (const ShownAnswer& shown : panel.answers) {
        const bool of_prompt = shown.answer.turn < 0;  // a turn is answered by copies of the lanes
        const auto change = of_prompt ? app.run.new_settings(shown.lane) : std::nullopt;
        panel.settings.push_back(change ? change->before : "");
    }
}

float line_height(const PanelContext& context) {
    return ImGui::GetFrameHeight() + context.px(2);
}

/// Where the words of an answer stand, from the place of the first on.
struct LaidWords {
    std::vector<std::string> words;
    std::vector<ImVec2> at;
    ImVec2 end{0, 0};  ///< behind the last one
    bool all = true;   ///< false: the rest had no room
};

/// wraps: words without room in a line go on in the next one.
LaidWords laid_words(const AppState& app, const ShownAnswer& shown, float width, bool wraps) {
    LaidWords laid;
    const float dots = ImGui::CalcTextSize("…").x;
    for (std::size_t i = 0; i < shown.answer.tokens.size(); ++i) {
        const std::string& word = token_words(app, shown.answer.tokens[i]);
        const std::string text = shown.differs[i] ? visible(word) : word;  // a frame needs something inside
        const float wide = ImGui::CalcTextSize(text.c_str()).x;
        const bool last = i + 1 == shown.answer.tokens.size();
        if (wraps && laid.end.x > 0 && laid.end.x + wide > width)
            laid.end = {0, laid.end.y + ImGui::GetTextLineHeightWithSpacing()};
        laid.all = wraps || laid.end.x + wide + (last ? 0 : dots) <= width;
        if (!laid.all) break;
        laid.words.push_back(text);
        laid.at.push_back(laid.end);
        laid.end.x += wide + (shown.differs[i] ? 3 : 0);
    }
    return laid;
}

/// Draws the words of an answer. waits: more of it is to come, unless it is complete.
void draw_words(const ShownAnswer& shown, const LaidWords& laid, bool waits, ImVec2 from) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float line = ImGui::GetFontSize();
    for (std::size_t i = 0; i < laid.words.size(); ++i) {
        const ImVec2 at(from.x + laid.at[i].x, from.y + laid.at[i].y);
        const float wide = ImGui::CalcTextSize(laid.words[i].c_str()).x;
        if (shown.differs[i])
            list.AddRect({at.x - 1, at.y - 1}, {at.x + wide + 1, at.y + line + 2}, theme::colors().warm, 2);
        list.AddText(at, theme::colors().text, laid.words[i].c_str());
    }
    const ImVec2 end(from.x + laid.end.x, from.y + laid.end.y);
    if (!laid.all)
        list.AddText(end, theme::colors().dim, "…");
    else if (!shown.answer.complete)
        list.AddText(end, theme::colors().dim, !waits ? "–" : laid.words.empty() ? "…" : " …");
    else if (shown.answer.cut)
        list.AddText(end, theme::colors().dim, " …");
    else if (laid.words.empty())
        list.AddText(end, theme::colors().dim, kSaysNothing);
}

/// Returns how much higher than one line a text is that is wrapped.
float more_lines(const std::string& text, float width) {
    return ImGui::CalcTextSize(text.c_str(), nullptr, false, std::max(width, 1.0f)).y -
           ImGui::GetTextLineHeight();
}

/// wraps: as for laid_words().
void draw_dim(ImVec2 at, const std::string& text, float width, bool wraps) {
    const std::string shown = wraps ? text : fitted(text, width);
    ImGui::GetWindowDrawList()->AddText(nullptr, 0, at, theme::colors().dim, shown.c_str(), nullptr,
                                        wraps ? std::max(width, 1.0f) : 0);
}

constexpr const char* kNewSettings = "new settings";

float chip_width(const PanelContext& context) {
    const ScopedFont font(context.fonts.small);
    return ImGui::CalcTextSize(kNewSettings).x + context.px(14);
}

/// What all lines share.
struct Columns {
    float name = 0;   ///< width of the names
    float strip = 0;  ///< width of the strips; 0: there is no room for them
    float width = 0;
    std::vector<std::string> titles;  ///< of the lanes, as wide as `name`
};

/// What stands in a lane's line beside the name, from its left edge on.
struct AnswerLayout {
    bool explains = false;  ///< *Why?* stands at its end
    float button = 0, chip = 0, strip_x = 0, words_x = 0, words_end = 0, room = 0, height = 0;
    LaidWords laid;
};

/// wraps: a long answer goes on in next lines.
AnswerLayout layout_of(const PanelContext& context, const AnswersPanel& panel, std::size_t i,
                       const Columns& columns, bool wraps) {
    const ShownAnswer& shown = panel.answers[i];
    const std::string& failure = shown.answer.failure;
    AnswerLayout out;
    out.explains = shown.lane > 0 && shown.answer.turn < 0 && shown.answer.complete &&
                   shown.mark != Mark::right && shown.answer.had_evicted() &&
                   std::find(shown.differs.begin(), shown.differs.end(), true) != shown.differs.end();
    out.button = out.explains ? ImGui::CalcTextSize("Why?").x + context.px(14) : 0;
    out.chip = panel.settings[i].empty() ? 0 : chip_width(context);
    const float pad = context.px(3);
    out.strip_x = columns.width - out.button - out.chip - columns.strip;
    out.words_x = columns.name + context.px(18);
    out.words_end = out.strip_x - (columns.strip > 0 ? pad : 0);
    out.room = out.words_end - pad - out.words_x;
    out.laid = laid_words(context.app, shown, out.room, wraps);
    out.height = ImGui::GetFrameHeight();
    if (wraps) out.height += failure.empty() ? out.laid.end.y : more_lines(failure, out.room);
    return out;
}

/// Draws a lane's line: its name, whether it is right, its words, and what explains a wrong answer.
/// i: of the answer. wraps: as for layout_of().
void draw_answer(const PanelContext& context, const AnswersPanel& panel, std::size_t i,
                 const Columns& columns, bool wraps) {
    const ShownAnswer& shown = panel.answers[i];
    const std::string &title = panel.titles[i], &before = panel.settings[i];
    const std::string& failure = shown.answer.failure;
    const AppState& app = context.app;
    const ScopedId id(shown.lane);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const AnswerLayout of = layout_of(context, panel, i, columns, wraps);
    const float line = ImGui::GetFrameHeight(), mark_x = min.x + columns.name;
    const ImVec2 max(min.x + columns.width, min.y + of.height), words_at(min.x + of.words_x, min.y);
    if (app.view.lane == shown.lane) list.AddRectFilled(min, max, theme::colors().card_focused, 3);
    list.AddRectFilled(min, {min.x + context.px(4), max.y}, lane_ink(context, shown.lane), 2);
    const float text_y = min.y + (line - ImGui::GetFontSize()) / 2;
    list.AddText({min.x + context.px(10), text_y}, theme::colors().text, columns.titles[i].c_str());
    if (shown.mark == Mark::right)
        list.AddText({mark_x, text_y}, theme::colors().good, "✓");
    else if (shown.mark == Mark::wrong)
        list.AddText({mark_x, text_y}, theme::colors().fault, "✗");
    if (of.chip > 0) {
        const ScopedFont font(context.fonts.small);
        list.AddText({max.x - of.button - of.chip + context.px(4), min.y + (line - ImGui::GetFontSize()) / 2},
                     theme::colors().warm, kNewSettings);
    }
    if (columns.strip > 0) draw_strip_in_line(context, shown.lane, {min.x + of.strip_x, min.y}, line);
    if (failure.empty())
        draw_words(shown, of.laid, panel.waits, {words_at.x, text_y});
    else
        draw_dim({words_at.x, text_y}, failure, of.room, wraps);
    ImGui::SetCursorScreenPos(min);
    const float end = (columns.strip > 0 ? of.words_end : columns.width - of.button) - context.px(3);
    if (ImGui::InvisibleButton("line", {std::max(end, 1.0f), of.height}))
        run(context, fmt::format("lane.focus {}", shown.lane));
    mark_item(context, fmt::format("answer {}", shown.lane));
    const bool all = failure.empty() ? of.laid.all : wraps;
    std::string words = all ? "" : shown.answer.text + failure;
    if (columns.titles[i] != title) words = words.empty() ? title : title + "\n" + words;
    if (shown.mark == Mark::wrong)
        words +=
            fmt::format("{}The right answer is {}.", words.empty() ? "" : "\n", app.run.setup.guide.answer);
    if (!before.empty())
        words += fmt::format(
            "{}With the new settings from the prompt on. The text, the curves and the next "
            "tokens are of the run as it is, which processed the prompt as {}.",
            words.empty() ? "" : "\n", before);
    if (!words.empty() && ImGui::IsItemHovered()) show_tooltip(context, words);
    if (of.explains) {
        ImGui::SetCursorScreenPos({max.x - of.button, min.y});
        if (ImGui::Button("Why?", {of.button, line})) run(context, fmt::format("why.answer {}", shown.lane));
        mark_item(context, fmt::format("why {}", shown.lane));
        tooltip(context, "Opens the page on the token that this lane evicted and lane 0 kept.");
    }
    ImGui::SetCursorScreenPos({min.x, min.y + of.height + line_height(context) - line});
}

/// The name of a floor or a ceiling in the lanes' column, which has no room for a spec.
std::string title_of(const AnswerBound& bound) {
    return fmt::format("{} {}", bound.is_ceiling ? "ceiling" : "floor", bound.budget);
}

/// Returns how many seeds of a floor or a ceiling are right, and the words of one that is, or of the first.
std::string words_of(const AppState& app, const AnswerBound& bound) {
    std::string words = bound.words(!right_answer(app).empty());
    const StripCell* shown = nullptr;
    for (const StripCell& cell : bound.cells)
        if (cell.answer != nullptr &&
            (shown == nullptr || (cell.mark == Mark::right && shown->mark != Mark::right)))
            shown = &cell;
    if (shown != nullptr && !shown->answer->failure.empty()) {
        words = shown->answer->failure;
    } else if (shown != nullptr) {
        const std::string said = app.glyphs.text(shown->answer->text);
        words += fmt::format(": {}", without_blanks(said).empty() ? kSaysNothing : without_blanks(said));
    }
    std::ranges::replace(words, '\n', ' ');
    return words.empty() ? "…" : words;
}

float bound_height(const PanelContext& context, const std::string& words, const Columns& columns,
                   bool wraps) {
    const float room = columns.width - columns.name - context.px(18);
    return ImGui::GetFrameHeight() + (wraps ? more_lines(words, room) : 0);
}

/// Draws a line of the floor or the ceiling below the lanes.
void draw_bound(const PanelContext& context, const AnswerBound& bound, const Columns& columns, bool wraps) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const float line = ImGui::GetFrameHeight(), text_y = min.y + (line - ImGui::GetFontSize()) / 2;
    list.AddText({min.x + context.px(10), text_y}, theme::colors().dim,
                 fitted(title_of(bound), columns.name - context.px(12)).c_str());
    const std::string words = words_of(context.app, bound);
    const float words_x = columns.name + context.px(18),
                height = bound_height(context, words, columns, wraps);
    draw_dim({min.x + words_x, text_y}, words, columns.width - words_x, wraps);
    ImGui::Dummy({columns.width, height});
    mark_item(context, "bound " + bound.name);
    tooltip(context,
            fmt::format("{}\n{}\n{}", bound.name, words,
                        bound.is_ceiling
                            ? "It keeps what the coming text attends to most, which no policy can know."
                            : "Tokens by chance. A lane that does no better has no evidence.\n" +
                                  bound.interval_words()));
    ImGui::SetCursorScreenPos({min.x, min.y + height + line_height(context) - line});
}

/// Returns the height that each answer, and then each bound, needs beyond one line.
std::vector<float> more_lines_of(const PanelContext& context, const AnswersPanel& panel,
                                 std::span<const AnswerBound> bounds, const Columns& columns) {
    const float line = ImGui::GetFrameHeight();
    std::vector<float> more;
    for (std::size_t i = 0; i < panel.answers.size(); ++i)
        more.push_back(layout_of(context, panel, i, columns, true).height - line);
    for (const AnswerBound& bound : bounds)
        more.push_back(bound_height(context, words_of(context.app, bound), columns, true) - line);
    return more;
}

/// Returns which of them go on in next lines: as many as leave all others in sight, without scrolling. A long
/// answer that does not is whole in its tooltip.
std::vector<bool> wrapped_lines(const PanelContext& context, const std::vector<float>& more, float height) {
    float left = height - static_cast<float>(more.size()) * line_height(context);
    std::vector<bool> wraps;
    for (const float one : more) {
        wraps.push_back(one <= left);
        if (wraps.back()) left -= one;
    }
    return wraps;
}

/// Draws the box that shows floor and ceiling, where there is room beside the heading.
void draw_bounds_choice(const PanelContext& context) {
    constexpr const char* kName = "floor and ceiling";
    const float wide = ImGui::CalcTextSize(kName).x + ImGui::GetFrameHeight() + context.px(24);
    if (ImGui::GetWindowPos().x + ImGui::GetWindowWidth() - ImGui::GetItemRectMax().x < wide) return;
    ImGui::SameLine(0, context.px(16));
    bool on = context.app.view.bounds;
    if (ImGui::Checkbox(kName, &on)) run(context, on ? "answers.bounds on" : "answers.bounds off");
    mark_item(context, "answers.bounds");
    tooltip(context, "Below the lanes: what three seeds of random and an oracle answer with their budgets.");
}

/// Returns the room of the sentence below the answers.
float caption_height(const PanelContext& context, const std::string& caption) {
    const ScopedFont font(context.fonts.small);
    const float words =
        ImGui::CalcTextSize(caption.c_str(), nullptr, false, ImGui::GetContentRegionAvail().x).y;
    return std::max(words + ImGui::GetStyle().ItemSpacing.y, ImGui::GetFrameHeightWithSpacing());
}

}  // namespace

AnswersPanel::MadeOf answers_made_of(const AppState& app) {
    return {app.run.history.generation(),
            app.run.last_row(),
            app.view.lane,
            app.run.lane_editor.version(),
            app.view.watched,
            app.watched_since_turn(),
            app.run.records(),
            right_answer(app),
            app.run.status.answering,
            app.run.answers_need_stop(),
            app.run.status.answers};
}

float answers_height(const AnswersPanel& panel, const PanelContext& context) {
    const ImGuiStyle& style = ImGui::GetStyle();
    const auto n = static_cast<float>(std::max(context.app.run.lane_editor.n_lanes(), 1) +
                                      static_cast<int>(context.app.strips.bounds().size()));
    constexpr float kMostMore = 6;  // lines
    const float more = std::min(panel.more_lines, kMostMore * ImGui::GetTextLineHeightWithSpacing());
    return n * line_height(context) + more + 2 * ImGui::GetFrameHeightWithSpacing() + style.ItemSpacing.y +
           2 * style.WindowPadding.y;
}

void draw(AnswersPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    if (!app.run.has_steps()) return;
    update(panel, app);
    ImGui::AlignTextToFramePadding();
    heading(context, "Answers");
    ImGui::SameLine();
    const bool of_turn = answered_turn(panel.answers) >= 0;
    dim_text(context, of_turn ? "what each lane says by itself after the last turn"
                              : "what each lane says by itself after the prompt");
    tooltip(
        context,
        fmt::format("{} It is computed beside the run, in copies, also while all lanes read lane 0's words. "
                    "Framed: lane 0 says another word there.",
                    of_turn ? "The answer of a lane with what it stored at the end of the turn."
                            : "The answer of a lane with its present settings from the prompt on."));
    if (app.run.live() && !of_turn) draw_bounds_choice(context);
    if (panel.answers.empty()) {
        small_words(context,
                    "The lanes of this trace followed lane 0, so it does not hold their own answers.");
        return;
    }
    {
        const ScopedChild lines("answers", {0, -caption_height(context, panel.caption)}, false, 0);
        Columns columns;
        float answer_width = 0;
        for (std::size_t i = 0; i < panel.answers.size(); ++i) {
            const std::string& words = panel.answers[i].answer.text;
            columns.name = std::max(columns.name, ImGui::CalcTextSize(panel.titles[i].c_str()).x);
            answer_width = std::max(answer_width, ImGui::CalcTextSize(words.c_str()).x);
        }
        const std::vector<AnswerBound>& bounds = of_turn ? kNoBounds : app.strips.bounds();
        for (const AnswerBound& bound : bounds)
            columns.name = std::max(columns.name, ImGui::CalcTextSize(title_of(bound).c_str()).x);
        // Beside short answers there is room for long names.
        const ImVec2 room = ImGui::GetContentRegionAvail();
        columns.width = room.x;
        columns.name = std::min(columns.name + context.px(18),
                                std::max(room.x * 0.35f, room.x - answer_width - context.px(110)));
        for (const ShownAnswer& shown : panel.answers)
            columns.strip = std::max(columns.strip, strip_width(context, shown.lane) + context.px(6));
        if (room.x < columns.name + answer_width + context.px(150) + columns.strip) columns.strip = 0;
        columns.titles = shortened_titles(panel.titles, [&](std::string_view title) {
            return fitted(title, columns.name - context.px(12));
        });
        const std::vector<float> more = more_lines_of(context, panel, bounds, columns);
        const float all_more = std::accumulate(more.begin(), more.end(), 0.0f);
        if (std::exchange(panel.more_lines, all_more) != all_more) context.shared.panes_lag = true;
        const std::vector<bool> wraps = wrapped_lines(context, more, room.y);
        const std::size_t n = panel.answers.size();
        for (std::size_t i = 0; i < n; ++i) draw_answer(context, panel, i, columns, wraps[i]);
        for (std::size_t i = 0; i < bounds.size(); ++i) draw_bound(context, bounds[i], columns, wraps[n + i]);
        ImGui::Dummy({0, 0});  // Dear ImGui 1.92 refuses a window that ends with a place and no item
    }
    small_words(context, panel.caption,
                has_other_answer(panel.answers) ? theme::colors().warm : theme::colors().dim);
}

}  // namespace keyhole
