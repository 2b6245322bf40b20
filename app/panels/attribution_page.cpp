#include "app/panels/attribution_page.h"

#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/figure/head_map.h"
#include "engine/figure/value_map.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

constexpr std::array<const char*, 5> kParts = {"a KV head", "a query head", "a layer", "a group of tokens",
                                               "each few tokens"};
constexpr std::array<const char*, 5> kPartWords = {"head", "query-head", "layer", "group", "token"};
constexpr std::array<const char*, 6> kQuestions = {"this prompt", "needle", "fact",
                                                   "needles",     "latest", "list"};
constexpr std::array<const char*, 3> kRanks = {"nats of the answer", "KL to the full cache", "right answers"};
constexpr std::array<const char*, 3> kRankWords = {"nats", "kl", "right"};

/// Returns the parts as `attribute --by` calls them.
std::string_view parts_of(const AttributionPage& page) {
    return kPartWords[to_index(page.by)];
}

bool of_this_prompt(const AttributionPage& page) {
    return page.questions == 0 || parts_of(page) == "token";
}

const LaneSpec* focused_spec(const AppState& app) {
    const std::vector<LaneSpec>& lanes = app.run.lane_editor.lanes();
    return app.view.lane < std::ssize(lanes) ? &lanes[to_index(app.view.lane)] : nullptr;
}

void label(const PanelContext& context, const char* words) {
    ImGui::AlignTextToFramePadding();
    colored_text(theme::colors().dim, words);
    ImGui::SameLine(0, context.px(6));
}

void draw_choices(AttributionPage& page, const PanelContext& context) {
    label(context, page.takes ? "Take" : "Give back");
    ImGui::SetNextItemWidth(context.px(150));
    combo("##by", page.by, kParts);
    mark_item(context, "attribution by");
    ImGui::SameLine(0, context.px(14));
    label(context, "asked by");
    ImGui::SetNextItemWidth(context.px(120));
    int questions = of_this_prompt(page) ? 0 : page.questions;
    {
        const ScopedDisabled disabled(parts_of(page) == "token");
        if (combo("##questions", questions, kQuestions)) page.questions = questions;
    }
    mark_item(context, "attribution questions");
    tooltip(context,
            "The answer whose likelihood says what was lost: that of lane 0 to this prompt (also as a chat "
            "turn), or the right ones to questions that are made by a task. One question gives no "
            "interval.");
    ImGui::SameLine(0, context.px(14));
    label(context, "ranked by");
    ImGui::SetNextItemWidth(context.px(160));
    combo("##rank", page.rank, kRanks);
    mark_item(context, "attribution rank");
    if (!of_this_prompt(page)) {
        label(context, "questions");
        ImGui::SetNextItemWidth(context.px(90));
        ImGui::InputInt("##samples", &page.n_questions, 1, 8);
        page.n_questions = std::clamp(page.n_questions, 1, 10'000);
        mark_item(context, "attribution samples");
        ImGui::SameLine(0, context.px(14));
        label(context, "tokens each");
        ImGui::SetNextItemWidth(context.px(110));
        ImGui::InputInt("##context", &page.context, 64, 256);
        page.context = std::clamp(page.context, 32, 1 << 20);
        mark_item(context, "attribution context");
        ImGui::SameLine(0, context.px(14));
    }
    const std::string_view by = parts_of(page);
    const ScopedDisabled disabled(by == "group" || by == "token");
    ImGui::Checkbox("take from the full cache instead", &page.takes);
    mark_item(context, "attribution take");
}

void draw_start(const AttributionPage& page, const PanelContext& context) {
    const AttributionRun& made = context.app.attribution;
    if (made.running()) {
        if (ImGui::Button("Cancel")) run(context, "attribution.cancel");
        mark_item(context, "attribution.cancel");
        tooltip(context, "What is answered stays: the same attribution goes on from there.");
        ImGui::SameLine();
        ImGui::ProgressBar(static_cast<float>(made.progress()), {context.px(260), 0},
                           fmt::format("{:.0f} %, {:.0f} s", 100 * made.progress(), made.seconds()).c_str());
        mark_item(context, "attribution progress");
        return;
    }
    const LaneSpec* lane = focused_spec(context.app);
    const bool can_run = context.app.run.live() && lane != nullptr;
    {
        const ScopedDisabled disabled(!can_run);
        if (ImGui::Button(fmt::format("Measure lane {}", context.app.view.lane).c_str())) {
            const std::string_view by = parts_of(page);
            const bool takes = page.takes && by != "group" && by != "token";
            run(context, fmt::format("attribution.run by={} questions={} samples={} context={} rank={}{}", by,
                                     of_this_prompt(page) ? "prompt" : kQuestions[to_index(page.questions)],
                                     page.n_questions, page.context, kRankWords[to_index(page.rank)],
                                     takes ? " take=on" : ""));
        }
    }
    mark_item(context, "attribution.run");
    tooltip(context, "Runs `keyhole attribute` beside the run. Focus another lane to measure that one.");
    if (lane == nullptr) return;
    ImGui::SameLine();
    dim_text(context, context.app.run.lane_editor.title(context.app.view.lane));
    if (const std::string fault = made.fault(); !fault.empty())
        small_words(context, capitalised(fault), theme::colors().fault);
}

ColorScale scale_of(const ShownAttribution& shown, Background background) {
    return {difference_map(background), false, true, 0, static_cast<float>(std::max(shown.most, 1e-6))};
}

std::string interval_words(const AttributedPart& part) {
    return std::isfinite(part.low) ? fmt::format("{:+.3f} .. {:+.3f}", part.low, part.high) : "";
}

std::string part_words(const AttributedPart& part) {
    const std::string interval = interval_words(part);
    return fmt::format("{}: {:+.3f} nats{}{}", part.name, part.nats,
                       interval.empty() ? "" : " (" + interval + ")",
                       part.words.empty() ? "" : "\n" + printable_text(part.words));
}

void take_part(const PanelContext& context, std::size_t index) {
    run(context, fmt::format("attribution.take {}", index + 1));
}

/// Draws layers down and heads across, as the atlas, or the other way as the pictures of `attribute`: see
/// layers_lie_across(). A click gives the part under the pointer back.
void draw_map(AttributionPage& page, const PanelContext& context, const ShownAttribution& shown) {
    const bool across = layers_lie_across(to_index(shown.n_layers), to_index(shown.n_heads));
    const int n_columns = across ? shown.n_layers : shown.n_heads,
              n_rows = across ? shown.n_heads : shown.n_layers;
    const float left = context.px(30), row = context.px(n_rows > 1 ? 14 : 22);
    const float width = ImGui::GetContentRegionAvail().x - left;
    const float cell = std::min(width / static_cast<float>(n_columns), context.px(40));
    const ImVec2 at = ImGui::GetCursorScreenPos(), origin(at.x + left, at.y);
    const ImVec2 size(cell * static_cast<float>(n_columns), row * static_cast<float>(n_rows));
    ImGui::SetCursorScreenPos(origin);
    const bool clicked = ImGui::InvisibleButton("map", size);
    mark_plot(context, "attribution map");
    const bool hovered = ImGui::IsItemHovered();
    const ImVec2 mouse = ImGui::GetIO().MousePos;
    const int under_column = static_cast<int>((mouse.x - origin.x) / cell),
              under_row = static_cast<int>((mouse.y - origin.y) / row);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const ColorScale scale = scale_of(shown, context.app.view.background);
    page.map_under = -1;
    for (std::size_t i = 0; i < shown.parts.size(); ++i) {
        const AttributedPart& part = shown.parts[i];
        const int column = across ? part.layer : part.head, line = across ? part.head : part.layer;
        const ImVec2 min(origin.x + cell * static_cast<float>(column),
                         origin.y + row * static_cast<float>(line));
        const ImVec2 max(min.x + cell - 1, min.y + row - 1);
        list.AddRectFilled(min, max, theme::opaque(color_of(scale, static_cast<float>(part.nats))));
        if (part.is_sure) list.AddRect(min, max, theme::colors().text);
        if (hovered && column == under_column && line == under_row) page.map_under = static_cast<int>(i);
    }
    {
        const ScopedFont font(context.fonts.small);
        const char of_head = shown.by == "query-head" ? 'H' : 'G';
        const char of_column = across ? 'L' : of_head, of_row = across ? of_head : 'L';
        for (int line = 0; (of_row == 'L' || shown.by != "layer") && line < n_rows; ++line)
            list.AddText({at.x, origin.y + row * static_cast<float>(line)}, theme::colors().dim,
                         fmt::format("{}{}", of_row, line).c_str());
        const int every = std::max(1, static_cast<int>(std::ceil(context.px(30) / cell)));
        for (int column = 0; column < n_columns; column += every)
            list.AddText({origin.x + cell * static_cast<float>(column), origin.y + size.y},
                         theme::colors().dim, fmt::format("{}{}", of_column, column).c_str());
    }
    ImGui::SetCursorScreenPos({at.x, origin.y + size.y});
    ImGui::Dummy({0, ImGui::GetTextLineHeight()});
    if (page.map_under < 0) return;
    show_tooltip(context, part_words(shown.parts[to_index(page.map_under)]) + "\nA click gives it back.");
    if (clicked) take_part(context, to_index(page.map_under));
}

/// Draws the text, each part shaded by its gain. A click gives it back.
void draw_text(const PanelContext& context, const ShownAttribution& shown) {
    std::vector<std::size_t> order(shown.parts.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::ranges::sort(order, {}, [&](std::size_t i) { return shown.parts[i].tokens->first; });
    const ScopedChild child("text", {0, context.px(170)}, true);
    const ColorScale scale = scale_of(shown, context.app.view.background);
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float left = ImGui::GetCursorScreenPos().x, right = left + ImGui::GetContentRegionAvail().x;
    const float line = ImGui::GetTextLineHeightWithSpacing();
    ImVec2 pen = ImGui::GetCursorScreenPos();
    for (const std::size_t i : order) {
        const AttributedPart& part = shown.parts[i];
        const Rgb8 color = color_of(scale, static_cast<float>(part.nats));
        const std::string text = printable_text(part.words, true);
        // Words are laid out one by one, so that a part may go on in the next line.
        for (std::size_t begin = 0; begin < text.size();) {
            if (text[begin] == '\n') {
                pen = {left, pen.y + line};
                ++begin;
                continue;
            }
            const std::size_t end = std::min(text.find_first_of(" \n", begin + 1), text.size());
            const std::string word = text.substr(begin, end - begin);
            const float width = ImGui::CalcTextSize(word.c_str()).x;
            if (pen.x + width > right && pen.x > left) pen = {left, pen.y + line};
            const ImVec2 max(pen.x + width, pen.y + ImGui::GetTextLineHeight());
            list.AddRectFilled(pen, max, theme::opaque(color));
            const Rgb8 ink = ink_on(color);
            list.AddText(pen, theme::opaque(ink), word.c_str());
            if (ImGui::IsWindowHovered() && ImGui::IsMouseHoveringRect(pen, max)) {
                show_tooltip(context, part_words(part) + "\nA click keeps it beside the budget.");
                if (ImGui::IsMouseClicked(0)) take_part(context, i);
            }
            if (begin == 0) mark_area(context, fmt::format("attribution text {}", part.name), pen, max);
            pen.x += width;
            begin = end;
        }
    }
    ImGui::SetCursorScreenPos({left, pen.y + line});
    ImGui::Dummy({0, 0});
}

void draw_list(const PanelContext& context, const ShownAttribution& shown) {
    const bool is_task = !shown.of_prompt;
    constexpr ImGuiTableFlags kFlags = ImGuiTableFlags_ScrollY | ImGuiTableFlags_RowBg;
    if (!ImGui::BeginTable("parts", is_task ? 6 : 4, kFlags, {0, context.px(210)})) return;
    ImGui::TableSetupScrollFreeze(0, 1);
    ImGui::TableSetupColumn("", ImGuiTableColumnFlags_WidthFixed, context.px(34));
    ImGui::TableSetupColumn(shown.takes ? "taken" : "given back", ImGuiTableColumnFlags_WidthStretch);
    ImGui::TableSetupColumn("nats", ImGuiTableColumnFlags_WidthFixed, context.px(70));
    if (is_task) ImGui::TableSetupColumn("95 %", ImGuiTableColumnFlags_WidthFixed, context.px(150));
    if (is_task) ImGui::TableSetupColumn("right %", ImGuiTableColumnFlags_WidthFixed, context.px(70));
    ImGui::TableSetupColumn("KL", ImGuiTableColumnFlags_WidthFixed, context.px(70));
    ImGui::TableHeadersRow();
    ImGuiListClipper clipper;
    clipper.Begin(static_cast<int>(shown.parts.size()));
    while (clipper.Step())
        for (int i = clipper.DisplayStart; i < clipper.DisplayEnd; ++i) {
            const AttributedPart& part = shown.parts[to_index(i)];
            const ScopedId id(i);
            ImGui::TableNextRow();
            ImGui::TableNextColumn();
            if (ImGui::Selectable(fmt::format("{}", i + 1).c_str(), false,
                                  ImGuiSelectableFlags_SpanAllColumns))
                take_part(context, to_index(i));
            mark_item(context, fmt::format("attribution {}", i + 1));
            tooltip(context, "A click gives it back to the focused lane; Ctrl+Z undoes that.");
            ImGui::TableNextColumn();
            const std::string words = printable_text(part.words);
            const std::string text =
                words.empty() || words == part.name ? part.name : fmt::format("{}  {}", part.name, words);
            colored_text(part.is_sure ? theme::colors().text : theme::colors().dim,
                         fitted(text, ImGui::GetContentRegionAvail().x));
            ImGui::TableNextColumn();
            colored_text(theme::colors().text, fmt::format("{:+.3f}", part.nats));
            if (is_task) {
                ImGui::TableNextColumn();
                dim_text(context, interval_words(part));
                ImGui::TableNextColumn();
                dim_text(context, fmt::format("{:+.1f}", 100 * part.right));
            }
            ImGui::TableNextColumn();
            dim_text(context, std::isfinite(part.kl) ? fmt::format("{:+.3f}", part.kl) : "");
        }
    ImGui::EndTable();
}

/// Draws how a total of tokens is spent on heads by what was found, and the button that does it.
void draw_budget(AttributionPage& page, const PanelContext& context) {
    const LaneSpec* lane = focused_spec(context.app);
    if (lane == nullptr) return;
    const Amount& of_lane = lane->policy.budget;
    if (page.budget == 0)
        page.budget = of_lane.unit == Amount::Unit::tokens ? static_cast<int>(of_lane.value) : 64;
    if (page.rest == 0) page.rest = std::max(1, page.budget / 2);
    static const std::vector<BudgetChoice> kForms = budget_choices();
    std::vector<const char*> names;
    for (const BudgetChoice& form : kForms) names.push_back(form.name.data());
    label(context, "Tokens a head");
    ImGui::SetNextItemWidth(context.px(100));
    ImGui::InputInt("##budget", &page.budget, 8, 32);
    page.budget = std::clamp(page.budget, 1, 1 << 20);
    mark_item(context, "attribution tokens");
    ImGui::SameLine(0, context.px(14));
    label(context, "spent");
    ImGui::SetNextItemWidth(context.px(110));
    combo("##form", page.form, names);
    mark_item(context, "attribution form");
    tooltip(context, kForms[to_index(page.form)].help);
    const std::string_view form = kForms[to_index(page.form)].name;
    if (form == "streaming" || form == "whole" || form == "gain") {
        ImGui::SameLine(0, context.px(14));
        label(context, "elsewhere");
        ImGui::SetNextItemWidth(context.px(100));
        ImGui::InputInt("##rest", &page.rest, 4, 16);
        page.rest = std::clamp(page.rest, 1, page.budget);
        mark_item(context, "attribution rest");
    }
    if (ImGui::Button(fmt::format("Budget for lane {}", context.app.view.lane).c_str()))
        run(context, fmt::format("attribution.budget {} {} {}", form, page.budget, page.rest));
    mark_item(context, "attribution.budget");
    tooltip(context, "Gives the lane these budgets by head and opens them to be painted. Ctrl+Z undoes it.");
    ImGui::SameLine(0, context.px(6));
    {
        const ScopedDisabled disabled(form == "pyramid" || form == "adaptive");
        if (ImGui::Button("Write files…"))
            run(context, fmt::format("file.browse attribution.files {} {} {}", form, page.budget, page.rest));
    }
    mark_item(context, "attribution.files");
    tooltip(
        context,
        "Asks for a folder with the desktop's dialog, and writes these budgets there: heads.json, which a "
        "lane reads by heads=FILE, and the files that DuoAttention and HeadKV read.");
    small_words(context, kForms[to_index(page.form)].help);
}

}  // namespace

void draw(AttributionPage& page, const PanelContext& context) {
    draw_choices(page, context);
    draw_start(page, context);
    const ShownAttribution* shown = context.app.attribution.shown();
    if (shown == nullptr)
        return small_words(
            context,
            "One part at a time keeps all its tokens while the rest evicts as before. What the "
            "answer gains ranks the parts: it says which eviction cost it.");
    ImGui::Separator();
    small_words(context,
                fmt::format("{}: eviction costs {:.3f} nats an answer, over {} question{}.{}", shown->lane,
                            shown->lost, shown->n_questions, shown->n_questions == 1 ? "" : "s",
                            shown->of_prompt ? ""
                                             : fmt::format(" Right {:.0f} %, the full cache {:.0f} %.",
                                                           100 * shown->right, 100 * shown->right_full)),
                theme::colors().text);
    if (shown->n_layers > 0) draw_map(page, context, *shown);
    if (shown->by == "token") draw_text(context, *shown);
    draw_list(context, *shown);
    if (shown->by == "head" || shown->by == "layer") draw_budget(page, context);
}

}  // namespace keyhole
