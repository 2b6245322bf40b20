#include "app/panels/answers_panel.h"

#include "app/panels/strip_view.h"
#include "engine/base/index.h"

#include <algorithm>

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

/// Draws the words of an answer. waits: more of it is to come, unless it is complete. Returns false if they
/// did not all fit.
bool draw_words(const PanelContext& context, const ShownAnswer& shown, bool waits, float right) {
    const AppState& app = context.app;
    ImDrawList& list = *ImGui::GetWindowDrawList();
    ImVec2 at = ImGui::GetCursorScreenPos();
    const float line = ImGui::GetFontSize(), dots = ImGui::CalcTextSize("…").x;
    for (std::size_t i = 0; i < shown.answer.tokens.size(); ++i) {
        const bool last = i + 1 == shown.answer.tokens.size();
        const std::string& word = token_words(app, shown.answer.tokens[i]);
        const std::string text = shown.differs[i] ? visible(word) : word;  // a frame needs something inside
        const float wide = ImGui::CalcTextSize(text.c_str()).x;
        if (at.x + wide + (last ? 0 : dots) > right) {
            list.AddText(at, theme::colors().dim, "…");
            return false;
        }
        if (shown.differs[i])
            list.AddRect({at.x - 1, at.y - 1}, {at.x + wide + 1, at.y + line + 2}, theme::colors().warm, 2);
        list.AddText(at, theme::colors().text, text.c_str());
        at.x += wide + (shown.differs[i] ? 3 : 0);
    }
    if (!shown.answer.complete)
        list.AddText(at, theme::colors().dim, !waits ? "–" : shown.answer.tokens.empty() ? "…" : " …");
    else if (shown.answer.cut)
        list.AddText(at, theme::colors().dim, " …");
    else if (shown.answer.tokens.empty())
        list.AddText(at, theme::colors().dim, "(nothing)");
    return true;
}

/// Draws a lane's line: its name, whether it is right, its words, and what explains a wrong answer.
/// i: of the answer. strip: the width of the strips; 0: there is no room for them.
void draw_answer(const PanelContext& context, const AnswersPanel& panel, std::size_t i, float name_width,
                 float strip) {
    const ShownAnswer& shown = panel.answers[i];
    const std::string &title = panel.titles[i], &before = panel.settings[i];
    const AppState& app = context.app;
    const ScopedId id(shown.lane);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFrameHeight();
    const ImVec2 max(min.x + width, min.y + line);
    if (app.view.lane == shown.lane) list.AddRectFilled(min, max, theme::colors().card_focused, 3);
    list.AddRectFilled(min, {min.x + context.px(4), max.y}, theme::lane_color(shown.lane), 2);
    const float pad = context.px(3), text_y = min.y + (line - ImGui::GetFontSize()) / 2;
    const std::string cut = fitted(title, name_width - context.px(12));
    list.AddText({min.x + context.px(10), text_y}, theme::colors().text, cut.c_str());
    const float mark_x = min.x + name_width;
    if (shown.mark == Mark::right)
        list.AddText({mark_x, text_y}, theme::colors().good, "✓");
    else if (shown.mark == Mark::wrong)
        list.AddText({mark_x, text_y}, theme::colors().fault, "✗");
    const float words_x = mark_x + context.px(18);
    const bool explains = shown.lane > 0 && shown.answer.turn < 0 && shown.answer.complete &&
                          shown.mark != Mark::right && shown.answer.had_evicted() &&
                          std::find(shown.differs.begin(), shown.differs.end(), true) != shown.differs.end();
    const float button = explains ? ImGui::CalcTextSize("Why?").x + context.px(14) : 0;
    float chip = 0;
    if (!before.empty()) {
        const ScopedFont font(context.fonts.small);
        constexpr const char* kNew = "new settings";
        chip = ImGui::CalcTextSize(kNew).x + context.px(14);
        list.AddText({max.x - button - chip + context.px(4), min.y + (line - ImGui::GetFontSize()) / 2},
                     theme::colors().warm, kNew);
    }
    const float strip_x = max.x - button - chip - strip, words_end = strip_x - (strip > 0 ? pad : 0);
    if (strip > 0) draw_strip_in_line(context, shown.lane, {strip_x, min.y}, line);
    bool all = true;
    if (!shown.answer.failure.empty()) {
        list.AddText({words_x, text_y}, theme::colors().dim,
                     fitted(shown.answer.failure, words_end - words_x).c_str());
    } else {
        ImGui::SetCursorScreenPos({words_x, text_y});
        all = draw_words(context, shown, panel.waits, words_end - pad);
    }
    ImGui::SetCursorScreenPos(min);
    if (ImGui::InvisibleButton(
            "line", {std::max((strip > 0 ? words_end - min.x : width - button) - pad, 1.0f), line}))
        run(context, fmt::format("lane.focus {}", shown.lane));
    mark_item(context, fmt::format("answer {}", shown.lane));
    std::string words = all && shown.answer.failure.empty() ? "" : shown.answer.text + shown.answer.failure;
    if (cut != title) words = words.empty() ? title : title + "\n" + words;
    if (shown.mark == Mark::wrong)
        words +=
            fmt::format("{}The right answer is {}.", words.empty() ? "" : "\n", app.run.setup.guide.answer);
    if (!before.empty())
        words += fmt::format(
            "{}With the new settings from the prompt on. The text, the curves and the next "
            "tokens are of the run as it is, which processed the prompt as {}.",
            words.empty() ? "" : "\n", before);
    if (!words.empty() && ImGui::IsItemHovered()) show_tooltip(context, words);
    if (explains) {
        ImGui::SetCursorScreenPos({max.x - button, min.y});
        if (ImGui::Button("Why?", {button, line})) run(context, fmt::format("why.answer {}", shown.lane));
        mark_item(context, fmt::format("why {}", shown.lane));
        tooltip(context, "Opens the page on the token that this lane evicted and lane 0 kept.");
    }
    ImGui::SetCursorScreenPos({min.x, min.y + line_height(context)});
}

/// The name of a floor or a ceiling in the lanes' column, which has no room for a spec.
std::string title_of(const AnswerBound& bound) {
    return fmt::format("{} {}", bound.is_ceiling ? "ceiling" : "floor", bound.budget);
}

/// Draws a line of the floor or the ceiling below the lanes: how many of its seeds are right, and the words
/// of one that is, or of the first.
void draw_bound(const PanelContext& context, const AnswerBound& bound, float name_width) {
    const AppState& app = context.app;
    const bool right_known = !right_answer(app).empty();
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 min = ImGui::GetCursorScreenPos();
    const float width = ImGui::GetContentRegionAvail().x, line = ImGui::GetFrameHeight();
    const float text_y = min.y + (line - ImGui::GetFontSize()) / 2;
    list.AddText({min.x + context.px(10), text_y}, theme::colors().dim,
                 fitted(title_of(bound), name_width - context.px(12)).c_str());
    std::string words = bound.words(right_known);
    const StripCell* shown = nullptr;
    for (const StripCell& cell : bound.cells)
        if (cell.answer != nullptr &&
            (shown == nullptr || (cell.mark == Mark::right && shown->mark != Mark::right)))
            shown = &cell;
    if (shown != nullptr && !shown->answer->failure.empty())
        words = shown->answer->failure;
    else if (shown != nullptr)
        words += ":" + app.glyphs.text(shown->answer->text);
    std::ranges::replace(words, '\n', ' ');
    list.AddText({min.x + name_width + context.px(18), text_y}, theme::colors().dim,
                 fitted(words.empty() ? "…" : words, width - name_width - context.px(18)).c_str());
    ImGui::Dummy({width, line});
    mark_item(context, "bound " + bound.name);
    tooltip(
        context,
        fmt::format("{}\n{}", bound.name,
                    bound.is_ceiling
                        ? "It keeps what the coming text attends to most, which no policy can know."
                        : "Three seeds of tokens by chance. A lane that does no better has no evidence."));
    ImGui::SetCursorScreenPos({min.x, min.y + line_height(context)});
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
            app.run.lane_editor.version(),
            app.view.watched,
            app.watched_since_turn(),
            app.run.records(),
            right_answer(app),
            app.run.status.answering,
            app.run.answers_need_stop(),
            app.run.status.answers};
}

float answers_height(const PanelContext& context) {
    const ImGuiStyle& style = ImGui::GetStyle();
    const auto n = static_cast<float>(std::max(context.app.run.lane_editor.n_lanes(), 1) +
                                      static_cast<int>(context.app.strips.bounds().size()));
    return n * line_height(context) + 2 * ImGui::GetFrameHeightWithSpacing() + style.ItemSpacing.y +
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
        float name_width = 0, answer_width = 0;
        for (std::size_t i = 0; i < panel.answers.size(); ++i) {
            const std::string& words = panel.answers[i].answer.text;
            name_width = std::max(name_width, ImGui::CalcTextSize(panel.titles[i].c_str()).x);
            answer_width = std::max(answer_width, ImGui::CalcTextSize(words.c_str()).x);
        }
        const std::vector<AnswerBound>& bounds = of_turn ? kNoBounds : app.strips.bounds();
        for (const AnswerBound& bound : bounds)
            name_width = std::max(name_width, ImGui::CalcTextSize(title_of(bound).c_str()).x);
        // Beside short answers there is room for long names.
        const float room = ImGui::GetContentRegionAvail().x;
        name_width = std::min(name_width + context.px(18),
                              std::max(room * 0.35f, room - answer_width - context.px(110)));
        float strip = 0;
        for (const ShownAnswer& shown : panel.answers)
            strip = std::max(strip, strip_width(context, shown.lane) + context.px(6));
        if (room < name_width + answer_width + context.px(150) + strip) strip = 0;
        for (std::size_t i = 0; i < panel.answers.size(); ++i)
            draw_answer(context, panel, i, name_width, strip);
        for (const AnswerBound& bound : bounds) draw_bound(context, bound, name_width);
        ImGui::Dummy({0, 0});  // Dear ImGui 1.92 refuses a window that ends with a place and no item
    }
    small_words(context, panel.caption,
                has_other_answer(panel.answers) ? theme::colors().warm : theme::colors().dim);
}

}  // namespace keyhole
