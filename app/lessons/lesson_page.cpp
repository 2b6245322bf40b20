#include "app/lessons/lesson_page.h"

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
        const std::string spec = i < last.lanes.size() ? last.lanes[i].info->spec : "";
        out += fmt::format("<tr><td>{}</td><td><code>{}</code></td><td>{}</td><td>{}</td></tr>\n", i,
                           html(spec), html(answer.text), mark);
    }
    return out + "</table>\n";
}

/// The text, darker where more KV heads keep a token, struck through where none does.
std::string kept_text(const RunHistory& history, int index, int lane) {
    std::vector<float> share(to_index(history.n_positions()));
    const int row = history.last_row();
    kept_share(history, lane, row, 0, history.layout(lane).n_kv_heads(), share);
    std::string out = "<p class=\"kept\">";
    for (int p = 0; p <= row; ++p) {
        const float kept = share[to_index(p)];
        const std::string word = html(token_text(history, lane, p));
        if (kept <= 0)
            out += fmt::format("<s>{}</s>", word);
        else
            out += fmt::format("<span style=\"background:rgba(60,130,220,{:.2f})\">{}</span>",
                               0.6 * double(kept), word);
    }
    return out + fmt::format(
                     "</p>\n<p class=\"caption\">The text of lane {}. Bluer: more KV heads keep the "
                     "token. Struck through: none does.</p>\n",
                     index);
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

std::string lesson_page(const Lesson& lesson, const LessonCheck& check,
                        const std::vector<std::string>& figures) {
    std::string out = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n<title>{0}</title>\n"
        "<style>body{{font:16px/1.5 sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color:#202024}}"
        "h1{{margin-bottom:0}}.question{{font-size:1.3em}}.step{{break-inside:avoid;border-top:1px solid "
        "#ccc;padding-top:.5em}}img,svg{{max-width:100%;height:auto}}table{{border-collapse:collapse}}"
        "td,th{{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}}"
        ".caption,.note{{color:#555;font-size:.9em}}.no{{color:#b00020;font-weight:bold}}</style>\n"
        "</head>\n<body>\n<h1>{1}{0}</h1>\n<p class=\"question\">{2}</p>\n",
        html(lesson.title), lesson.number > 0 ? fmt::format("{}. ", lesson.number) : "",
        html(lesson.question));
    const auto name_run = [&](const LessonRun& run) {
        out += fmt::format("<p class=\"caption\">Model: {}. Lanes: {}.</p>\n", html(model_name(run.model)),
                           html(fmt::format("{}", fmt::join(run.lanes, ", "))));
    };
    const auto add_note = [&](const std::string& note) {
        if (!note.empty()) out += fmt::format("<p class=\"note\">For the teacher: {}</p>\n", html(note));
    };
    name_run(lesson.run);
    add_note(lesson.note);
    for (std::size_t i = 0; i < lesson.steps.size(); ++i) {
        const LessonStep& step = lesson.steps[i];
        static const StepCheck kNone;
        const StepCheck& measured = i < check.steps.size() ? check.steps[i] : kNone;
        out += fmt::format("<div class=\"step\">\n<h2>{}. {}</h2>\n<p>{}</p>\n", i + 1, html(step.title),
                           html(step.text));
        if (step.run) name_run(*step.run);
        if (step.predict) {
            out += fmt::format("<p><b>Predict:</b> {}</p>\n", html(step.predict->question));
            if (!step.predict->choices.empty()) {
                out += "<ul>\n";
                for (const std::string& choice : step.predict->choices)
                    out += fmt::format("<li>☐ {}</li>\n", html(choice));
                out += "</ul>\n";
            }
            if (step.predict->kind == Prediction::Kind::slider) {
                const auto value = [&](double at) {
                    Measured bound;
                    bound.value = at;
                    return html(measured_text(step.claims[to_index(step.predict->claim)], bound));
                };
                out += fmt::format("<p>Between {} and {}: ________</p>\n", value(step.predict->low),
                                   value(step.predict->high));
            }
        }
        if (i < figures.size()) out += figures[i];
        if (!step.reveal.empty())
            out += fmt::format("<p><b>Seen:</b> {}</p>\n",
                               html(with_values(step.reveal, step.claims, measured.claims)));
        if (!measured.fault.empty())
            out += fmt::format("<p class=\"no\">This step could not be run: {}</p>\n", html(measured.fault));
        if (!step.claims.empty() && !measured.claims.empty()) {
            out += "<table>\n<tr><th>claim</th><th>measured</th><th></th></tr>\n";
            for (std::size_t k = 0; k < step.claims.size() && k < measured.claims.size(); ++k)
                out += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n",
                                   html(claim_text(step.claims[k])),
                                   html(measured_text(step.claims[k], measured.claims[k])),
                                   measured.claims[k].holds ? "✓" : "<span class=\"no\">✗</span>");
            out += "</table>\n";
        }
        if (step.play && !step.play->text.empty())
            out += fmt::format("<p><b>Try:</b> {}</p>\n", html(step.play->text));
        add_note(step.note);
        out += "</div>\n";
    }
    return out + "</body>\n</html>\n";
}

}  // namespace keyhole
