#include "app/panels/range_bar.h"

#include "app/view/range_histogram.h"
#include "engine/base/index.h"
#include "engine/figure/ticks.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

/// Draws a histogram on a square root scale, with the clipped values at its ends. Counts a pyramid level
/// that is quick to read.
void draw_histogram(const PanelContext& context, ImDrawList& list, const HeadMatrix& matrix,
                    const ColorScale& scale, ImVec2 at, ImVec2 size) {
    constexpr int kBins = 32, kQuick = 256;
    const std::vector<Plane>& pyramid = matrix.pyramid();
    std::size_t level = 0;
    while (level + 1 < pyramid.size() && pyramid[level].width > kQuick) ++level;
    const RangeHistogram counts = histogram_of(pyramid[level], scale, kBins);
    const int most = *std::max_element(counts.bins.begin(), counts.bins.end());
    if (most == 0) return;
    const float step = size.y / kBins, wide = context.px(26);
    for (int i = 0; i < kBins; ++i) {
        const float part = std::sqrt(static_cast<float>(counts.bins[to_index(i)]) / static_cast<float>(most));
        const float y = at.y + size.y - step * static_cast<float>(i + 1);
        list.AddRectFilled({at.x + size.x + 1, y}, {at.x + size.x + 1 + wide * part, y + step},
                           theme::colors().line);
    }
    if (counts.above > 0)
        list.AddTriangleFilled({at.x, at.y - 2}, {at.x + size.x, at.y - 2},
                               {at.x + size.x / 2, at.y - context.px(8)}, theme::colors().warm);
}

/// Draws the meaning of special colours outside the map that can occur. Returns their number; draws only if
/// `list` is given.
int draw_marks(const PanelContext& context, ImDrawList* list, const HeadMatrix& matrix,
               const ColorScale& scale, ImVec2 at) {
    int n = 0;
    const auto item = [&](Rgb8 color, const char* text) {
        const float y = at.y + context.px(18) * static_cast<float>(n++), box = context.px(10);
        if (list == nullptr) return;
        list->AddRectFilled({at.x, y}, {at.x + box, y + box}, theme::opaque(color));
        list->AddText({at.x + box + context.px(4), y - context.px(2)}, theme::colors().dim, text);
    };
    if (scale.marks_clips) item(kAboveColor, "above");
    if (scale.marks_clips && !scale.diverging) item(kBelowColor, "below");
    if (scale.marks_nan && matrix.has_not_finite()) item(kNanColor, "NaN");
    return n;
}

}  // namespace

void draw_range_bar(RangeBar& panel, const PanelContext& context, const HeadMatrix& matrix,
                    const ColorScale& scale, ImVec2 at, float height) {
    ImDrawList& list = *ImGui::GetWindowDrawList();
    const float marks = context.px(18) * static_cast<float>(draw_marks(context, nullptr, matrix, scale, at));
    height = std::min(height, context.px(260));
    if (marks > 0 && height > marks + context.px(60)) {
        height -= marks + context.px(10);
        draw_marks(context, &list, matrix, scale, {at.x, at.y + height + context.px(14)});
    }
    const float x = at.x, top = at.y, width = context.px(10);
    const auto& table = colormap_table(scale.map);
    for (int i = 0; i < 256; ++i) {
        const Rgb8 c = table[to_index(255 - i)];
        const float y = top + height * static_cast<float>(i) / 256;
        list.AddRectFilled({x, y}, {x + width, y + height / 256 + 1}, theme::opaque(c));
    }
    draw_histogram(context, list, matrix, scale, {x, top}, {width, height});
    const std::vector<double> ticks =
        scale.logarithmic ? log_ticks(scale.low, scale.high, 6) : linear_ticks(scale.low, scale.high, 6);
    const ScaleTerms terms = scale_terms(scale);
    std::vector<float> marked;
    const auto mark = [&](double place, const std::string& words) {
        const float y = top + height * static_cast<float>(1 - place);
        // A low bar has no room for all.
        for (const float other : marked)
            if (std::abs(y - other) < ImGui::GetFontSize() * 0.9f) return;
        marked.push_back(y);
        list.AddLine({x + width, y}, {x + width + 3, y}, theme::colors().dim);
        list.AddText({x + width + context.px(5), y - ImGui::GetFontSize() / 2}, theme::colors().dim,
                     words.c_str());
    };
    if (scale.diverging) mark(0.5, "0");
    std::vector<Tick> labels = labelled(ticks);
    std::reverse(labels.begin(), labels.end());  // the ends matter most
    for (const auto& [tick, text] : labels) {
        double u =
            ((scale.logarithmic ? std::log2(tick) : tick) - double(terms.offset)) * double(terms.factor);
        if (u < -0.01 || u > 1.01) continue;
        u = std::pow(std::max(u, 0.0), double(terms.gamma));
        // The least magnitude of a logarithmic scale has the colour of 0, and its place.
        if (scale.diverging && u <= 0.02) continue;
        mark(scale.diverging ? 0.5 + 0.5 * u : u, text);
        if (scale.diverging) mark(0.5 - 0.5 * u, "-" + text);
    }
    ImGui::SetCursorScreenPos({x - context.px(3), top});
    ImGui::InvisibleButton("range", {context.px(52), height});
    mark_item(context, "range");
    tooltip(context, fmt::format("The range of the colours ({}). The grey histogram counts the head's cells "
                                 "by value. Click to set the range.",
                                 colormap_name(scale.map)));
    if (ImGui::IsItemClicked()) {
        panel.low = scale.low;
        panel.high = scale.high;
        ImGui::OpenPopup("set range");
    }
    const ScopedPopup popup("set range");
    if (popup.open()) {
        const RangeChoice& range = context.app.view.range();
        const auto choice = [&](const char* label, bool on, std::string_view action) {
            if (ImGui::Checkbox(label, &on)) run(context, fmt::format("{} {}", action, on ? "on" : "off"));
        };
        choice("Automatic", range.automatic, "range.auto");
        choice("Logarithmic", range.logarithmic, "range.log");
        choice("Count the first four tokens", range.sinks_count, "range.sinks");
        choice("Mark values outside the range", context.app.view.marks_clips, "range.clips");
        choice("Mark NaN and infinite values", context.app.view.marks_nan, "range.nan");
        action_button(context, "range.fit", "Fit to 99 % of the cells");
        for (const Colormap map : {Colormap::viridis, Colormap::cividis, Colormap::gray}) {
            if (map != Colormap::viridis) ImGui::SameLine();
            if (ImGui::RadioButton(std::string(colormap_name(map)).c_str(), context.app.view.colors == map))
                run(context, fmt::format("colors {}", colormap_name(map)));
        }
        ImGui::SetNextItemWidth(context.px(110));
        float gamma = range.gamma;
        if (bar_slider(context, "##gamma", gamma, 0.2f, 5, "%.2f", ImGuiSliderFlags_Logarithmic))
            run(context, fmt::format("range.gamma {}", gamma));
        mark_item(context, "gamma");
        action_tooltip(context, "range.gamma");
        ImGui::SameLine();
        ImGui::TextUnformatted(fmt::format("gamma {:.2f}", double(gamma)).c_str());
        ImGui::SetNextItemWidth(context.px(110));
        const bool low = ImGui::InputFloat("lowest", &panel.low, 0, 0, "%.3g");
        mark_item(context, "range.low");
        ImGui::SetNextItemWidth(context.px(110));
        const bool high = ImGui::InputFloat("highest", &panel.high, 0, 0, "%.3g");
        if ((low || high) && panel.low >= 0 && panel.low < panel.high)
            run(context, fmt::format("range.set {} {}", panel.low, panel.high));
    }
}

}  // namespace keyhole
