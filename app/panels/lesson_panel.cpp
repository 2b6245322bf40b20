#include "app/panels/lesson_panel.h"

#include "app/models/find_model.h"
#include "app/state/lesson_steps.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <utility>

namespace keyhole {

namespace {

struct Box {
    ImVec2 min, max;
    bool empty() const { return !(min.x < max.x && min.y < max.y); }
};

Box item_box(const PanelContext& context, std::string_view name) {
    const auto found = context.shared.items.find(name);
    if (found == context.shared.items.end()) return {};
    return {found->second.seen_min, found->second.seen_max};
}

/// Returns where a pane is drawn. If the window has no room for all panes, several share a place.
Box pane_box(const PanelContext& context, Pane pane) {
    if (pane == Pane::none || pane == Pane::lesson) return {};
    const std::string own = pane == Pane::doctor ? "doctor verdict" : fmt::format("pane {}", pane_name(pane));
    const Box text = home_of(pane) == Pane::text ? item_box(context, "pane text") : Box{};
    for (const Box& box :
         {item_box(context, own), text, item_box(context, "pane details"), item_box(context, "pane side")})
        if (!box.empty()) return box;
    return {};
}

/// Returns the tokens to ring that are in sight, by their place in the text.
std::vector<Box> token_boxes(const PanelContext& context, const LessonState& lesson) {
    const AppState& app = context.app;
    std::vector<Box> boxes;
    const TokenSet& tokens = lesson.at().look.tokens;
    // A ring would give the answer away.
    const bool asked =
        !lesson.revealed && lesson.at().predict && lesson.at().predict->kind == Prediction::Kind::token;
    if (asked || tokens == TokenSet{} || !app.run.has_steps()) return boxes;
    const std::optional<TokenSpan> span = span_of(tokens, app.run.history, app.text_lane());
    if (!span) return boxes;
    for (int p = span->first; p <= std::min(span->last, span->first + 200); ++p) {
        const Box box = item_box(context, fmt::format("token {}", p));
        if (box.empty()) continue;
        const bool same_line = !boxes.empty() && std::abs(boxes.back().min.y - box.min.y) < 2;
        if (same_line)
            boxes.back().max.x = box.max.x;
        else
            boxes.push_back(box);
    }
    return boxes;
}

bool measures(const LessonStep& step, std::string_view measure) {
    return std::any_of(step.claims.begin(), step.claims.end(),
                       [&](const Claim& claim) { return claim.measure == measure; });
}

void draw_cover(const PanelContext& context, ImDrawList& list, ImVec2 min, ImVec2 max) {
    list.AddRectFilled(min, max, theme::colors().panel, context.px(4));
    context.shared.covers_drawn.emplace_back(min.x, min.y, max.x, max.y);
}

/// Covers all panes but the one to look at: before the reveal none of them may give the answer away.
void cover_other_panes(const PanelContext& context, ImDrawList& list, const Box& looked) {
    constexpr std::string_view kPrefix = "pane ";
    const ImVec2 middle((looked.min.x + looked.max.x) / 2, (looked.min.y + looked.max.y) / 2);
    for (const auto& [name, item] : context.shared.items) {
        const bool covers_look = middle.x >= item.min.x && middle.x <= item.max.x && middle.y >= item.min.y &&
                                 middle.y <= item.max.y;
        if (!name.starts_with(kPrefix) || name == "pane lesson" || covers_look) continue;
        draw_cover(context, list, item.seen_min, item.seen_max);
        mark_area(context, "lesson.cover of " + name.substr(kPrefix.size()), item.seen_min, item.seen_max);
    }
}

/// Covers an item that shows what the class is asked to predict.
void cover(const PanelContext& context, ImDrawList& list, std::string_view item, const char* words) {
    const Box box = item_box(context, item);
    if (box.empty()) return;
    draw_cover(context, list, box.min, box.max);
    const ImVec2 size = ImGui::CalcTextSize(words);
    list.PushClipRect(box.min, box.max);
    list.AddText(
        {std::max(box.min.x, (box.min.x + box.max.x - size.x) / 2), (box.min.y + box.max.y - size.y) / 2},
        theme::colors().dim, words);
    list.PopClipRect();
}

/// Fills all from {0, 0} to `end` but the boxes, in bands from one edge of a box to the next.
void shade_around(ImDrawList& list, const std::vector<Box>& boxes, ImVec2 end, ImU32 color) {
    std::vector<float> edges = {0, end.y};
    for (const Box& box : boxes) edges.insert(edges.end(), {box.min.y, box.max.y});
    std::ranges::sort(edges);
    for (std::size_t i = 1; i < edges.size(); ++i) {
        const float top = edges[i - 1], bottom = edges[i];
        std::vector<Box> here;
        for (const Box& box : boxes)
            if (box.min.y < bottom && box.max.y > top) here.push_back(box);
        std::ranges::sort(here, {}, [](const Box& box) { return box.min.x; });
        float x = 0;
        for (const Box& box : here) {
            if (box.min.x > x) list.AddRectFilled({x, top}, {box.min.x, bottom}, color);
            x = std::max(x, box.max.x);
        }
        if (x < end.x && top < bottom) list.AddRectFilled({x, top}, {end.x, bottom}, color);
    }
}

/// Dims all but the thing to look at, and draws the ring. The ring takes no input.
void draw_look(const PanelContext& context, float width) {
    const LessonState& lesson = context.app.lesson;
    if (!lesson.shown || lesson.lists || lesson.asks || context.app.dialog != Dialog::none) return;
    const Box pane = pane_box(context, lesson.at().look.pane);
    if (pane.empty()) return;
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    const ImVec2 end(size.x - width, size.y);
    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize(end);
    const ScopedVar rounding(ImGuiStyleVar_WindowRounding, 0), border(ImGuiStyleVar_WindowBorderSize, 0);
    ImGui::Begin("look", nullptr,
                 ImGuiWindowFlags_NoDecoration | ImGuiWindowFlags_NoInputs | ImGuiWindowFlags_NoNav |
                     ImGuiWindowFlags_NoMove | ImGuiWindowFlags_NoSavedSettings |
                     ImGuiWindowFlags_NoBackground | ImGuiWindowFlags_NoFocusOnAppearing);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const std::vector<Box> tokens = token_boxes(context, lesson);
    const float pad = context.px(3), thick = context.px(3);
    const ImVec2 low(std::max(pane.min.x - pad, thick / 2), std::max(pane.min.y - pad, thick / 2)),
        high(std::min(pane.max.x + pad, end.x - thick / 2), std::min(pane.max.y + pad, end.y - thick / 2));
    // Before the reveal all other panes are dimmed strongly, since they could give the answer away.
    const LessonStep& step = lesson.at();
    const bool hides = step.predict && !lesson.revealed && !lesson.edits;
    const ImU32 shade = theme::faded(theme::colors().window, hides ? 0.9f : 0.5f);
    // After the reveal the answers are clear too, if the step claims something about them or its control
    // changes them.
    std::vector<Box> clear = {{low, high}};
    const bool answers_count =
        measures(step, "answer") || (step.play && !run_of_step(lesson.lesson(), lesson.step).answer.empty());
    if (const Box answers = item_box(context, "pane answers");
        lesson.revealed && step.look.pane != Pane::answers && answers_count && !answers.empty()) {
        clear.push_back(
            {{answers.min.x - pad, answers.min.y - pad}, {answers.max.x + pad, answers.max.y + pad}});
        list.AddRect(clear.back().min, clear.back().max, theme::colors().warm, context.px(6), 0, thick);
        mark_area(context, "lesson.ring of answers", answers.min, answers.max);
    }
    shade_around(list, clear, end, shade);
    if (hides) {
        cover_other_panes(context, list, pane);
        if (measures(step, "answer"))
            cover(context, list, "pane answers", "The answers are covered until the reveal.");
        if (measures(step, "broken"))
            cover(context, list, "doctor verdict", "The doctor's verdict is covered until the reveal.");
        // A curve of KL would also give the perplexities away.
        if (step.look.pane == Pane::curves && (measures(step, "kl") || measures(step, "perplexity")))
            cover(context, list, "pane curves", "The curves are covered until the reveal.");
    }
    list.AddRect(low, high, theme::colors().warm, context.px(6), 0,
                 tokens.empty() ? thick : context.px(1.5f));
    for (const Box& token : tokens)
        list.AddRect({token.min.x - pad, token.min.y - pad}, {token.max.x + pad, token.max.y + pad},
                     theme::colors().warm, context.px(4), 0, thick);
    mark_area(context, tokens.empty() ? "lesson.ring" : "lesson.ring of words",
              tokens.empty() ? low : tokens.front().min, tokens.empty() ? high : tokens.front().max);
    ImGui::End();
}

/// Returns the text with blanks that no line breaks at before a % and after a ×, as in "× 2.6".
std::string with_whole_numbers(std::string text) {
    for (const auto& [parted, whole] : {std::pair{" %", "\u00A0%"}, std::pair{"× ", "×\u00A0"}})
        for (std::size_t at = 0; (at = text.find(parted, at)) != std::string::npos;)
            text.replace(at, std::string_view(parted).size(), whole);
    return text;
}

/// Draws words in a font, wrapped at blanks: Dear ImGui would also break a number at its point.
void words(const PanelContext& context, ImFont* font, std::string_view text,
           ImU32 color = theme::colors().text) {
    const ScopedFont in(font);
    WrappedText lines;
    lines.set(context.app.glyphs.text(with_whole_numbers(std::string(text))),
              ImGui::GetContentRegionAvail().x, drawn_width);
    colored_text(color, lines.shown());
}

/// Draws a button that runs an action with arguments.
void act_button(const PanelContext& context, const std::string& action, const std::string& label,
                float width = 0, bool lit = false) {
    if (lit_button(fmt::format("{}##{}", label, action).c_str(), lit, width)) run(context, action);
    mark_item(context, action);
    action_tooltip(context, action.substr(0, action.find(' ')));
}

/// Names a field of the lesson for who edits it.
std::string_view caption_of(std::string_view field) {
    if (field == "predict") return "predict: the question before the reveal; empty: none";
    if (field == "choices") return "choices: | between them, * before the right one";
    if (field == "look") return "look: words of the text to ring";
    return field;
}

/// Draws a text of the lesson; while it is edited, a field. A changed text is set when the field is left.
void text_or_field(LessonPanel& panel, const PanelContext& context, const char* field,
                   const std::string& text, ImFont* font, int lines, ImU32 color = theme::colors().text) {
    if (!context.app.lesson.edits) {
        if (!text.empty()) words(context, font, text, color);
        return;
    }
    small_words(context, caption_of(field));
    // A field that is not edited shows the lesson's text.
    WrappedText own;
    if (panel.edited != field)
        own.set(for_field(text), room_for_lines(ImGui::GetContentRegionAvail().x), drawn_width);
    draw_wrapped_field(fmt::format("##{}", field).c_str(), panel.field,
                       panel.edited == field ? panel.field.lines.shown() : own.shown(),
                       {-1, ImGui::GetTextLineHeight() * static_cast<float>(lines) + context.px(10)});
    mark_item(context, fmt::format("lesson.field {}", field));
    if (ImGui::IsItemActivated()) {
        panel.edited = field;
        panel.field.lines = own;
    }
    if (ImGui::IsItemDeactivatedAfterEdit())
        run(context, fmt::format("lesson.set {} {}", field, from_field(panel.field.lines.text())));
    // Escape ends editing too, and leaves the lesson's text.
    if (!ImGui::IsItemActive() && panel.edited == field) panel.edited.clear();
}

/// Draws a text of one line likewise. Enter ends editing.
void line_or_field(LessonPanel& panel, const PanelContext& context, const char* field,
                   const std::string& text, ImFont* font) {
    if (!context.app.lesson.edits) {
        if (!text.empty()) words(context, font, text);
        return;
    }
    small_words(context, caption_of(field));
    std::string line = panel.edited == field ? panel.line : for_field(text);
    ImGui::SetNextItemWidth(-1);
    const bool entered =
        ImGui::InputText(fmt::format("##{}", field).c_str(), &line, ImGuiInputTextFlags_EnterReturnsTrue);
    mark_item(context, fmt::format("lesson.field {}", field));
    const bool ended = ImGui::IsItemDeactivatedAfterEdit();
    if (ImGui::IsItemActive()) panel.edited = field;
    if (panel.edited == field) panel.line = line;
    if ((entered || ended) && line != for_field(text))
        run(context, fmt::format("lesson.set {} {}", field, from_field(line)));
    if (!ImGui::IsItemActive() && panel.edited == field) panel.edited.clear();
}

void draw_rail(const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    const int n = static_cast<int>(lesson.lesson().steps.size());
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ImVec2 at = ImGui::GetCursorScreenPos();
    const float height = context.px(22);
    const float apart = std::min(ImGui::GetContentRegionAvail().x / static_cast<float>(n), context.px(44));
    for (int i = 0; i < n; ++i) {
        const ImVec2 centre(at.x + apart * (static_cast<float>(i) + 0.5f), at.y + height / 2);
        const float radius = context.px(i == lesson.step ? 9 : 6);
        if (i > 0)
            list.AddLine({centre.x - apart + context.px(9), centre.y}, {centre.x - context.px(9), centre.y},
                         i <= lesson.step ? theme::colors().accent : theme::colors().line, context.px(2));
        const bool done = i < lesson.step || (i == lesson.step && lesson.revealed);
        list.AddCircleFilled(centre, radius, done ? theme::colors().accent : theme::colors().card);
        list.AddCircle(centre, radius, i <= lesson.step ? theme::colors().accent : theme::colors().line, 0,
                       context.px(2));
        const ScopedFont small(context.fonts.small);
        if (i == lesson.step) {
            const std::string number = std::to_string(i + 1);
            const ImVec2 wide = ImGui::CalcTextSize(number.c_str());
            list.AddText({centre.x - wide.x / 2, centre.y - wide.y / 2},
                         done ? theme::colors().window : theme::colors().text, number.c_str());
        }
        ImGui::SetCursorScreenPos({centre.x - apart / 2, at.y});
        const ScopedId id(i);
        if (ImGui::InvisibleButton("step", {apart, height}))
            run(context, fmt::format("lesson.step {}", i + 1));
        mark_item(context, fmt::format("lesson.step {}", i + 1));
        tooltip(context, fmt::format("Step {}: {}", i + 1, lesson.lesson().steps[to_index(i)].title));
    }
    ImGui::SetCursorScreenPos({at.x, at.y + height + context.px(4)});
}

/// Marks the measured value on the slider of a guess.
void draw_truth(const PanelContext& context, const Prediction& asked, ImVec2 min, ImVec2 max) {
    const LessonState& lesson = context.app.lesson;
    if (!lesson.revealed || to_index(asked.claim) >= lesson.at_reveal.size()) return;
    const double part =
        (lesson.at_reveal[to_index(asked.claim)].value - asked.low) / (asked.high - asked.low);
    if (!(part >= 0 && part <= 1)) return;
    const float x = min.x + (max.x - min.x) * static_cast<float>(part), half = context.px(1.5f);
    ImGui::GetWindowDrawList()->AddRectFilled({x - half, min.y - context.px(3)},
                                              {x + half, max.y + context.px(3)}, theme::colors().good);
    mark_area(context, "lesson.truth", {x - half, min.y}, {x + half, max.y});
}

/// Says how a prediction turned out: of a guessed number both, since near is not right.
std::string how_it_was(const LessonState& lesson, const Prediction& asked, bool right) {
    if (asked.kind != Prediction::Kind::slider)
        return right ? "Your prediction was right." : "Your prediction was different.";
    const Claim& claim = lesson.at().claims[to_index(asked.claim)];
    Measured guess;
    guess.value = *lesson.guess;
    return fmt::format("You: {}. It is {}{}.", measured_text(claim, guess),
                       measured_text(claim, lesson.at_reveal[to_index(asked.claim)]), right ? ": near" : "");
}

void draw_prediction(LessonPanel& panel, const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    const Prediction& asked = *lesson.at().predict;
    ImGui::Spacing();
    text_or_field(panel, context, "predict", asked.question, context.fonts.large, 2, theme::colors().accent);
    if (asked.kind == Prediction::Kind::choice) {
        for (std::size_t i = 0; i < asked.choices.size(); ++i) {
            const bool mine = lesson.choice == static_cast<int>(i),
                       right = lesson.revealed && asked.right == static_cast<int>(i);
            const ScopedColor background(ImGuiCol_Button, right  ? theme::colors().run
                                                          : mine ? theme::colors().lit
                                                                 : theme::colors().card);
            const ScopedVar align(ImGuiStyleVar_ButtonTextAlign, {0, 0.5f});
            const float room = ImGui::GetContentRegionAvail().x;
            const char* const sign = right ? "✓" : mine ? "●" : "○";
            WrappedText label;
            label.set(fmt::format("{} {}", sign, context.app.glyphs.text(asked.choices[i])),
                      room - context.px(12), drawn_width);
            const auto n_more = std::ranges::count(label.shown(), '\n');
            const float height =
                ImGui::GetFrameHeight() + static_cast<float>(n_more) * ImGui::GetTextLineHeight();
            if (ImGui::Button(fmt::format("{}##choice{}", label.shown(), i).c_str(), {room, height}))
                run(context, fmt::format("lesson.predict {}", i + 1));
            mark_item(context, fmt::format("lesson.predict {}", i + 1));
        }
    } else if (asked.kind == Prediction::Kind::slider) {
        float value = static_cast<float>(lesson.guess.value_or((asked.low + asked.high) / 2));
        const Claim& claim = lesson.at().claims[to_index(asked.claim)];
        Measured shown;
        shown.value = double(value);
        const std::string text = lesson.guess      ? "your guess: " + measured_text(claim, shown)
                                 : lesson.revealed ? std::string("no guess")
                                                   : std::string("drag to guess");
        ImGui::SetNextItemWidth(-1);
        {
            const ScopedDisabled disabled(lesson.revealed);
            if (bar_slider(context, "##guess", value, static_cast<float>(asked.low),
                           static_cast<float>(asked.high), "%.3g"))
                run(context, fmt::format("lesson.predict {}", value));
            mark_item(context, "lesson.predict");
        }
        draw_truth(context, asked, ImGui::GetItemRectMin(), ImGui::GetItemRectMax());
        words(context, context.fonts.book, text, theme::colors().dim);
    } else {
        const std::optional<int> token = lesson.revealed ? lesson.token
                                         : context.app.view.pick
                                             ? std::optional<int>(context.app.view.pick->position)
                                             : std::nullopt;
        words(context, context.fonts.book,
              token ? fmt::format("you clicked “{}”",
                                  visible(token_words(context.app, context.app.text_lane(), *token)))
                    : std::string("click a token in the text"),
              theme::colors().dim);
    }
    if (const std::optional<bool> right = predicted_right(context.app))
        words(context, context.fonts.bold, how_it_was(lesson, asked, *right),
              *right ? theme::colors().good : theme::colors().warm);
}

/// Returns the settings that the slider gives its lane; nullopt: the user has changed the lane so that it
/// cannot have them.
std::optional<LaneSpec> played_settings(const AppState& app, const LessonControl& play, double value) {
    if (play.lane >= app.run.lane_editor.n_lanes()) return std::nullopt;
    try {
        return changed_lane_spec(app.run.lane_editor.lanes()[to_index(play.lane)],
                                 fmt::format("{}={:.4g}", play.key, value));
    } catch (const Error&) {
        return std::nullopt;
    }
}

/// Draws what the claims say, what was measured, and whether it holds: behind a button, unless one does not.
void draw_claims(LessonPanel& panel, const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    const std::vector<Claim>& claims = lesson.at().claims;
    const std::vector<Measured>& shown = lesson.at_reveal.empty() ? lesson.now : lesson.at_reveal;
    bool all = true;
    for (const Measured& m : shown) all = all && (m.holds || m.pending);
    if (!all)
        words(context, context.fonts.bold, "This model does not show all of it: see the red lines.",
              theme::colors().fault);
    if (claims.empty()) return;
    if (all && lit_button("Measured", panel.shows_claims)) panel.shows_claims = !panel.shows_claims;
    if (all) {
        mark_item(context, "lesson.measured");
        tooltip(context, "What each number of the text is, and what the lesson expects of it.");
    }
    if (all && !panel.shows_claims) return;
    for (std::size_t i = 0; i < claims.size() && i < shown.size(); ++i) {
        const Measured& m = shown[i];
        const ImU32 color = m.pending ? theme::colors().dim
                            : m.holds ? theme::colors().good
                                      : theme::colors().fault;
        colored_text(color, m.pending ? "…" : m.holds ? "✓" : "✗");
        ImGui::SameLine();
        std::string line = fmt::format("{}: {} (expected: {})", claim_subject(claims[i]),
                                       measured_text(claims[i], m), claim_limit(claims[i]));
        if (i < lesson.now.size() && !lesson.now[i].pending)
            if (const std::string now = measured_text(claims[i], lesson.now[i]);
                now != measured_text(claims[i], m))
                line += fmt::format(" (now {})", now);
        words(context, context.fonts.book, line, theme::colors().dim);
    }
}

void draw_play(LessonPanel& panel, const PanelContext& context) {
    const AppState& app = context.app;
    const LessonControl& play = *app.lesson.at().play;
    ImGui::Spacing();
    words(context, context.fonts.bold, "Try it", theme::colors().accent);
    words(context, context.fonts.book, play.text);
    if (play.key.empty()) {
        for (std::size_t i = 0; i < play.buttons.size(); ++i) {
            if (i > 0) next_to(play.buttons[i].label.c_str(), context.px(4));
            act_button(context, fmt::format("lesson.play {}", i + 1), play.buttons[i].label);
        }
        return;
    }
    // Shows the lane's value unless the user drags the slider.
    if (!panel.slides && play.lane < app.run.lane_editor.n_lanes()) {
        panel.slider = (play.low + play.high) / 2;
        double value = 0;
        for (const LaneSetting& set : lane_settings(app.run.lane_editor.lanes()[to_index(play.lane)]))
            if (set.key == play.key && std::sscanf(set.value.c_str(), "%lf", &value) == 1)
                panel.slider = std::clamp(value, play.low, play.high);
    }
    const bool whole = play.high - play.low > 4;
    float value = static_cast<float>(panel.slider);
    ImGui::SetNextItemWidth(-1);
    if (bar_slider(context, "##play", value, static_cast<float>(play.low), static_cast<float>(play.high),
                   whole ? "%.0f" : "%.2f"))
        panel.slider = double(whole ? std::round(value) : value);
    mark_item(context, "lesson.play");
    panel.slides = ImGui::IsItemActive();
    // The engine needs time for a change, so it is sent when the slider is released. The answer follows at
    // once.
    const std::optional<LaneSpec> wanted = played_settings(app, play, panel.slider);
    if (panel.slides && wanted && !plays_anew(app.lesson))
        try_settings(panel.tried, context, play.lane, *wanted);
    else
        end_trying(panel.tried, context, play.lane);
    if (ImGui::IsItemDeactivatedAfterEdit()) run(context, fmt::format("lesson.play {:.4g}", panel.slider));
    words(context, context.fonts.book,
          fmt::format("lane {}, {} {}", play.lane, play.key,
                      whole ? fmt::format("{:.0f}", panel.slider) : fmt::format("{:.2f}", panel.slider)),
          theme::colors().dim);
}

/// Returns the choices as a teacher writes them: "*Yes | No", a star before the right one.
std::string choices_text(const std::optional<Prediction>& asked) {
    std::string text;
    if (!asked) return text;
    for (std::size_t i = 0; i < asked->choices.size(); ++i)
        text += fmt::format("{}{}{}", i > 0 ? " | " : "", static_cast<int>(i) == asked->right ? "*" : "",
                            asked->choices[i]);
    return text;
}

void draw_step(LessonPanel& panel, const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    const LessonStep& step = lesson.at();
    if (lesson.edits || !step.title.empty()) {
        ImGui::Spacing();
        line_or_field(panel, context, "step.title", step.title, context.fonts.bold);
    }
    text_or_field(panel, context, "text", step.text, context.fonts.large, 5);
    if (lesson.edits) {
        line_or_field(panel, context, "look", step.look.tokens.words, context.fonts.book);
        if (!step.predict) text_or_field(panel, context, "predict", "", context.fonts.book, 2);
    }
    if (step.predict) draw_prediction(panel, context);
    if (lesson.edits && (!step.predict || step.predict->kind == Prediction::Kind::choice))
        text_or_field(panel, context, "choices", choices_text(step.predict), context.fonts.book, 2);
    ImGui::Spacing();
    if (!lesson.fault.empty()) words(context, context.fonts.book, lesson.fault, theme::colors().fault);
    if (lesson.awaits_run)
        words(context, context.fonts.book, "the lesson's run is under way…", theme::colors().dim);
    if (lesson.revealed && !lesson.awaits_run) {
        const std::vector<Measured>& shown = lesson.at_reveal.empty() ? lesson.now : lesson.at_reveal;
        if (lesson.edits)
            text_or_field(panel, context, "reveal", step.reveal, context.fonts.book, 5);
        else if (!step.reveal.empty())
            words(context, context.fonts.large, with_values(step.reveal, step.claims, shown));
        draw_claims(panel, context);
        if (step.play) draw_play(panel, context);
        if (!panel.shows_reveal) ImGui::SetScrollHereY(1);  // in a small window it begins below
    }
    panel.shows_reveal = lesson.revealed && !lesson.awaits_run;
    if (lesson.shows_notes) {
        const bool any = !step.note.empty() || (lesson.step == 0 && !lesson.lesson().note.empty());
        ImGui::Spacing();
        words(context, context.fonts.bold, "For the teacher", theme::colors().accent);
        if (!any && !lesson.edits)
            words(context, context.fonts.small, "This step has no notes.", theme::colors().dim);
        if (lesson.step == 0 || lesson.edits)
            text_or_field(panel, context, "note", lesson.lesson().note, context.fonts.small, 3,
                          theme::colors().dim);
        text_or_field(panel, context, "step.note", step.note, context.fonts.small, 3, theme::colors().dim);
    }
}

void draw_pre_flight(const PanelContext& context) {
    const AppState& app = context.app;
    const LessonState& lesson = app.lesson;
    const std::string& own = lesson.lesson().run.model;
    const std::string loaded =
        app.run.has_steps() ? model_name(app.run.history.run().model_path) : std::string("the loaded model");
    words(context, context.fonts.book, fmt::format("This lesson is made for {}. {} is loaded.", own, loaded));
    ImGui::Spacing();
    if (lesson.check_job.running()) {
        words(context, context.fonts.book, fmt::format("Checking what {} shows…", loaded),
              theme::colors().dim);
        ImGui::ProgressBar(static_cast<float>(lesson.check_job.progress()), {-1, 0});
    } else if (lesson.check != nullptr) {
        const std::vector<int> failing = lesson.check->failing();
        words(context, context.fonts.book,
              failing.empty()
                  ? fmt::format("{} shows all of it.", loaded)
                  : fmt::format("On {} {} {} not show what {}: {}.", loaded,
                                failing.size() == 1 ? "one step" : "these steps",
                                failing.size() == 1 ? "does" : "do",
                                failing.size() == 1 ? "it says" : "they say", fmt::join(failing, ", ")),
              failing.empty() ? theme::colors().good : theme::colors().warm);
    } else if (const std::string fault = lesson.check_job.fault(); !fault.empty()) {
        words(context, context.fonts.book, fault, theme::colors().fault);
    }
    ImGui::Spacing();
    const CatalogModel* model = find_in_catalog(app.catalog, own);
    if (model != nullptr && !path_if_here(*model) && model->package) {
        if (app.jobs.wanted_model == own) {
            ImGui::ProgressBar(static_cast<float>(app.jobs.get_job.progress()), {-1, 0});
            action_button(context, "model.cancel", "Cancel");
        } else {
            act_button(context, "lesson.model",
                       fmt::format("Get {} ({}) and open", own, megabytes_text(model->download_bytes())), -1,
                       true);
        }
    } else {
        act_button(context, "lesson.model", fmt::format("Open with {}", own), -1, true);
    }
    act_button(context, "lesson.stay", fmt::format("Stay with {}", loaded), -1);
}

/// Returns the model that a lesson needs and that does not come with Keyhole; empty: none.
std::string model_to_get(const PanelContext& context, const Lesson& lesson) {
    const CatalogModel* model = find_in_catalog(context.app.catalog, lesson.run.model);
    return model != nullptr && model->package ? model->name : "";
}

void draw_list(const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    heading(context, "Lessons");
    ImGui::SameLine();
    act_button(context, "lesson.close", "Close");
    std::string asked;
    for (const ListedLesson& one : lesson.all) {
        const ScopedId id(static_cast<int>(&one - lesson.all.data()));
        std::string label = one.lesson.number > 0
                                ? fmt::format("{:>2}  {}", one.lesson.number, one.lesson.title)
                            : one.fault.empty() ? "•  " + one.lesson.title
                                                : "✗  " + one.name;
        if (context.app.recent.has_finished(one.name)) label += "  ✓";
        const std::string needs = model_to_get(context, one.lesson);
        const float room = ImGui::GetContentRegionAvail().x, right = ImGui::GetCursorPosX() + room,
                    mark = needs.empty() ? 0 : ImGui::CalcTextSize(needs.c_str()).x + context.px(8);
        if (ImGui::Selectable(fitted(context.app.glyphs.text(label), room - mark).c_str()) &&
            one.fault.empty())
            asked = one.file.string();
        mark_item(context, fmt::format("lesson {}",
                                       one.lesson.number > 0 ? std::to_string(one.lesson.number) : one.name));
        tooltip(context, one.fault.empty()
                             ? fmt::format("{}\n{}{}", one.lesson.question, one.lesson.run.model,
                                           context.app.recent.has_finished(one.name)
                                               ? "\n✓: you have seen its last step."
                                               : "")
                             : one.fault);
        if (needs.empty()) continue;
        ImGui::SameLine(right - mark + context.px(8));
        colored_text(theme::colors().dim, needs);
    }
    if (!asked.empty()) run(context, "lesson " + asked);
}

/// Returns the lesson that comes after the shown one, whose last step is done; null: none.
const ListedLesson* next_lesson(const LessonState& lesson) {
    const bool last = lesson.step + 1 == static_cast<int>(lesson.lesson().steps.size());
    if (!last || (!lesson.revealed && has_reveal(lesson.at())) || lesson.lesson().number == 0) return nullptr;
    for (const ListedLesson& one : lesson.all)
        if (one.lesson.number == lesson.lesson().number + 1) return &one;
    return nullptr;
}

/// Draws the buttons at the panel's lower edge.
void draw_buttons(const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    const float gap = context.px(4), width = (ImGui::GetContentRegionAvail().x - 2 * gap) / 3;
    const bool last = lesson.step + 1 == static_cast<int>(lesson.lesson().steps.size());
    const bool reveals = !lesson.revealed && has_reveal(lesson.at());
    if (const ListedLesson* next = next_lesson(lesson)) {
        // For a reader who works alone. A line of its own has room for the lesson's name.
        const ScopedDisabled under_way(lesson.awaits_run);
        const std::string label = "Next lesson: " + context.app.glyphs.text(next->lesson.title);
        act_button(context, fmt::format("lesson {}", next->lesson.number),
                   fitted(label, ImGui::GetContentRegionAvail().x - context.px(12)), -1, true);
    }
    {
        const ScopedDisabled first(lesson.step == 0);
        act_button(context, "lesson.back", "◀ Back", width);
    }
    ImGui::SameLine(0, gap);
    act_button(context, "lesson.reset", "Reset", width);
    ImGui::SameLine(0, gap);
    if (last && !reveals) {
        act_button(context, "lesson", "All lessons", width);
        return;
    }
    const ScopedDisabled over(lesson.awaits_run);
    act_button(context, "lesson.next", reveals ? (lesson.at().predict ? "Reveal" : "Show") : "Next ▶", width,
               true);
}

void draw_panel(LessonPanel& panel, const PanelContext& context, float width) {
    const LessonState& lesson = context.app.lesson;
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    ImGui::SetNextWindowPos({size.x - width, 0});
    ImGui::SetNextWindowSize({width, size.y});
    const ScopedVar rounding(ImGuiStyleVar_WindowRounding, 0),
        padding(ImGuiStyleVar_WindowPadding, {context.px(12), context.px(10)});
    const ScopedColor background(ImGuiCol_WindowBg, theme::colors().panel);
    ImGui::Begin("lesson", nullptr,
                 ImGuiWindowFlags_NoTitleBar | ImGuiWindowFlags_NoResize | ImGuiWindowFlags_NoMove |
                     ImGuiWindowFlags_NoSavedSettings | ImGuiWindowFlags_NoBringToFrontOnFocus);
    mark_area(context, "pane lesson", {size.x - width, 0}, size);
    if (lesson.lists || !lesson.shown) {
        draw_list(context);
        ImGui::End();
        return;
    }
    {
        const ScopedFont font(context.fonts.small);
        const std::string number =
            lesson.lesson().number > 0 ? fmt::format("Lesson {}", lesson.lesson().number) : "Lesson";
        colored_text(theme::colors().dim, number);
        ImGui::SameLine();
        act_button(context, "lesson", "All");
        ImGui::SameLine(0, context.px(3));
        act_button(context, "lesson.notes", "Notes", 0, lesson.shows_notes);
        ImGui::SameLine(0, context.px(3));
        act_button(context, "lesson.edit", "Edit", 0, lesson.edits);
        ImGui::SameLine(0, context.px(3));
        act_button(context, "lesson.close", "Close");
        if (lesson.edits) {
            act_button(context, "lesson.add", "Add a step");
            ImGui::SameLine(0, context.px(3));
            act_button(context, "lesson.drop", "Drop this step");
        }
    }
    const float foot =
        ImGui::GetFrameHeight() + context.px(12) +
        (!lesson.asks && next_lesson(lesson) != nullptr ? ImGui::GetFrameHeightWithSpacing() : 0);
    {
        const ScopedChild body("body", {0, -foot});
        line_or_field(panel, context, "title", lesson.lesson().title, context.fonts.large);
        text_or_field(panel, context, "question", lesson.lesson().question, context.fonts.book, 2,
                      theme::colors().dim);
        ImGui::Spacing();
        if (lesson.asks) {
            draw_pre_flight(context);
        } else {
            draw_rail(context);
            draw_step(panel, context);
        }
    }
    if (!lesson.asks) draw_buttons(context);
    ImGui::End();
}

}  // namespace

float lesson_width(const PanelContext& context) {
    if (!context.app.lesson.open()) return 0;
    const float wide = ImGui::GetIO().DisplaySize.x;
    return std::round(std::min(std::clamp(wide * 0.26f, context.px(300), context.px(440)), wide * 0.45f));
}

Pane lesson_looks_at(const PanelContext& context) {
    const LessonState& lesson = context.app.lesson;
    if (!lesson.shown || lesson.lists || lesson.asks) return Pane::none;
    return lesson.at().look.pane;
}

void draw(LessonPanel& panel, const PanelContext& context) {
    const float width = lesson_width(context);
    if (width <= 0) return;
    draw_look(context, width);
    // An action may close the lesson or open another, so it runs once this one is drawn.
    std::vector<std::string> asked;
    const std::function<void(std::string_view)> later = [&](std::string_view text) {
        asked.emplace_back(text);
    };
    const PanelContext drawn{context.app,    later,         context.painters,   context.fonts,
                             context.shared, context.scale, context.frame_scale};
    draw_panel(panel, drawn, width);
    for (const std::string& text : asked) run(context, text);
}

}  // namespace keyhole
