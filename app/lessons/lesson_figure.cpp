#include "app/lessons/lesson_figure.h"

#include "app/view/focus_picture.h"
#include "app/view/view_files.h"
#include "engine/analysis/heat_mode.h"
#include "engine/analysis/opening_head.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/base64.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/model_name.h"
#include "engine/figure/curves.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <span>

namespace keyhole {

namespace {

std::string html(std::string_view text) {
    return escape_xml(printable_text(text, true));
}

std::string picture(const Drawing& drawing) {
    const std::vector<std::byte> png = encode_png(drawing.image());
    return fmt::format("<img alt=\"\" src=\"data:image/png;base64,{}\">\n", base64(png));
}

std::string answers_table(const LessonRun& run, const Evidence& evidence) {
    std::string out = "<table>\n";
    const StepTrace& last = *evidence.history->steps().back();
    for (std::size_t i = 0; i < evidence.answers.size(); ++i) {
        const LaneAnswer& answer = evidence.answers[i];
        const std::string mark = run.answer.empty() || !answer.complete  ? ""
                                 : answer_holds(answer.text, run.answer) ? "✓"
                                                                         : "✗";
        const std::string spec = i < evidence.specs.size() ? evidence.specs[i]
                                 : i < last.lanes.size()   ? last.lanes[i].info->spec
                                                           : "";
        out += fmt::format("<tr><td>{}</td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n", i,
                           html(spec), html(answer.text), mark);
    }
    return out + "</table>\n";
}

/// The text, darker where more KV heads keep a token, struck through where none does; each token in a box
/// where all keep all.
std::string kept_text(const RunHistory& history, int index, int lane) {
    std::vector<float> share(to_index(history.n_positions()));
    const int row = history.last_row();
    kept_share(history, lane, row, 0, history.layout(lane).n_kv_heads(), share);
    const std::span<const float> shown(share.data(), to_index(row) + 1);
    const bool whole = std::all_of(shown.begin(), shown.end(), [](float kept) { return kept >= 1; });
    std::string out = "<p class=\"kept\">";
    for (int p = 0; p <= row; ++p) {
        const float kept = share[to_index(p)];
        const std::string word = html(token_text(history, lane, p));
        if (whole)
            out += fmt::format("<span class=\"token\">{}</span>", word);
        else if (kept <= 0)
            out += fmt::format("<s>{}</s>", word);
        else
            out += fmt::format("<span style=\"background:rgba(60,130,220,{:.2f})\">{}</span>",
                               0.6 * double(kept), word);
    }
    return out + fmt::format("</p>\n<p class=\"caption\">The text of lane {}. {}</p>\n", index,
                             whole ? "Each box is a token. Every KV head keeps all of them."
                                   : "Bluer: more KV heads keep the token. Struck through: none does.");
}

}  // namespace

std::string step_figure(const LessonStep& step, const Lesson& lesson, const Evidence& evidence) {
    const RunHistory& history = *evidence.history;
    const int index = std::min(step.look.lane.value_or(0), static_cast<int>(evidence.lanes.size()) - 1);
    const int lane = evidence.lanes[to_index(index)];
    const Pane pane = step.look.pane;
    if (pane == Pane::answers) return answers_table(step.run ? *step.run : lesson.run, evidence);
    if (lane < 0) return "";
    if (pane == Pane::text) return kept_text(history, index, lane);
    ViewState view;
    view.lane = index;
    view.row = history.last_row();
    if (!step.look.tokens.words.empty()) view.watched = span_of(step.look.tokens, history, lane);
    const ModelConfig& model = history.run().config;
    const HeadPlace place =
        opening_head(history, lane, view.watched).value_or(HeadPlace{model.n_layers / 2, 0});
    view.layer = std::min(step.look.layer.value_or(place.layer), model.n_layers - 1);
    view.head = std::min(step.look.head.value_or(place.head), model.n_heads - 1);
    for (const HeatMode mode : {HeatMode::attention, HeatMode::mask, HeatMode::score})
        if (step.look.mode == mode_name(mode)) view.mode = mode;
    if (pane == Pane::heatmap) return picture(focus_picture(history, lane, view, color_scale(view, 1)));
    if (pane == Pane::atlas)
        return picture(atlas_picture(history, view, {index, lane, std::to_string(index)}));
    if (pane == Pane::curves && curve_index(step.look.curve) >= 0) {
        view.measure_curve = curve_index(step.look.curve);
        MeasureCurves measures;
        measures.update(history);
        std::vector<ShownLane> lanes;
        const StepTrace& last = *history.steps().back();
        for (std::size_t i = 0; i < last.lanes.size(); ++i)
            lanes.push_back(
                {static_cast<int>(i), evidence.lanes[i], fmt::format("{} {}", i, last.lanes[i].info->spec)});
        return curves_drawing(curve_figure(history, measures, view, lanes)).svg() + "\n";
    }
    return "";
}

}  // namespace keyhole
