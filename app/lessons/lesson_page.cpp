#include "app/lessons/lesson_page.h"

#include "app/base/version.h"
#include "app/lessons/lesson_figure.h"
#include "app/lessons/typed_prediction.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/model_name.h"
#include "engine/figure/drawing.h"

#include <fmt/ranges.h>

namespace keyhole {

namespace {

constexpr std::string_view kStyle =
    "body{font:16px/1.5 sans-serif;max-width:46em;margin:2em auto;padding:0 1em;color:#202024}"
    "h1{margin-bottom:0}h1,h2{break-after:avoid}.question{font-size:1.3em}"
    ".step{border-top:1px solid #ccc;padding-top:.5em}"
    "img,svg{max-width:100%;max-height:12cm;height:auto}img,svg,table,ul,.lines{break-inside:avoid}"
    "table{border-collapse:collapse;max-width:100%}code{overflow-wrap:anywhere}"
    "td,th{border:1px solid #ccc;padding:.2em .6em;text-align:left;vertical-align:top}"
    ".choices{list-style:none;padding-left:1em}.kept{font-size:.85em;line-height:1.4}"
    ".token{box-shadow:inset 0 0 0 1px #b8c4d4}.lines{color:#555}.lines span{display:block;height:2em;"
    "border-bottom:1px solid #999}.caption,.note{color:#555;font-size:.9em}"
    ".no{color:#b00020;font-weight:bold}"
    "@page{size:A4;margin:16mm 14mm}"
    "@media print{body{margin:0;max-width:none;padding:0;font-size:11pt}article+article,nav+article"
    "{break-before:page}}";

std::string on_paper(std::string_view text) {
    return escape_xml(printable_text(text, true));
}

std::string numbered_title(const Lesson& lesson) {
    return lesson.number > 0 ? fmt::format("{}. {}", lesson.number, lesson.title) : lesson.title;
}

std::string lines_to_write(std::string_view label, int n) {
    std::string out = fmt::format("<div class=\"lines\">{}", label);
    for (int i = 0; i < n; ++i) out += "<span></span>";
    return out + "</div>\n";
}

std::string run_line(const LessonRun& run) {
    return fmt::format("<p class=\"caption\">Model: {}. Lanes: {}.</p>\n", on_paper(model_name(run.model)),
                       on_paper(fmt::format("{}", fmt::join(run.lanes, ", "))));
}

/// right: the choice that is ticked, -1: none.
std::string choices_on_paper(const Prediction& asked, int right) {
    if (asked.choices.empty()) return "";
    std::string out = "<ul class=\"choices\">\n";
    for (std::size_t i = 0; i < asked.choices.size(); ++i)
        out += fmt::format("<li>{} {}</li>\n", static_cast<int>(i) == right ? "☑" : "☐",
                           on_paper(asked.choices[i]));
    return out + "</ul>\n";
}

std::string range_on_paper(const Prediction& asked, const LessonStep& step) {
    const auto value = [&](double at) {
        Measured bound;
        bound.value = at;
        return on_paper(measured_text(step.claims[to_index(asked.claim)], bound));
    };
    return fmt::format("<p>Between {} and {}: ________</p>\n", value(asked.low), value(asked.high));
}

std::string prediction_on_paper(const LessonStep& step, Reader reader) {
    const Prediction& asked = *step.predict;
    std::string out = fmt::format("<p><b>Predict:</b> {}</p>\n", on_paper(asked.question));
    out += choices_on_paper(asked, reader == Reader::teacher ? asked.right : -1);
    if (asked.kind == Prediction::Kind::slider) out += range_on_paper(asked, step);
    return out;
}

std::string claims_on_paper(const LessonStep& step, const StepCheck& check) {
    if (step.claims.empty() || check.claims.empty()) return "";
    std::string out = "<table>\n<tr><th>claim</th><th>measured</th><th></th></tr>\n";
    for (std::size_t k = 0; k < step.claims.size() && k < check.claims.size(); ++k)
        out +=
            fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", on_paper(claim_text(step.claims[k])),
                        on_paper(measured_text(step.claims[k], check.claims[k])),
                        check.claims[k].holds ? "✓" : "<span class=\"no\">✗</span>");
    return out + "</table>\n";
}

std::string note_on_paper(const std::string& note) {
    if (note.empty()) return "";
    return fmt::format("<p class=\"note\">For the teacher: {}</p>\n", on_paper(note));
}

const StepCheck& check_of(const PrintedLesson& printed, std::size_t step) {
    static const StepCheck kNone;
    return step < printed.check.steps.size() ? printed.check.steps[step] : kNone;
}

/// What a teacher reads of a step: all that was seen and measured.
std::string answers_of_step(const PrintedLesson& printed, std::size_t i) {
    const LessonStep& step = printed.lesson.steps[i];
    const StepCheck& check = check_of(printed, i);
    std::string out;
    if (!step.reveal.empty())
        out += fmt::format("<p><b>Seen:</b> {}</p>\n",
                           on_paper(with_values(step.reveal, step.claims, check.claims)));
    if (!check.fault.empty())
        out += fmt::format("<p class=\"no\">This step could not be run: {}</p>\n", on_paper(check.fault));
    return out + claims_on_paper(step, check);
}

/// A pupil's has no titles of steps and, where something is asked, no picture: both would tell the answer.
std::string step_on_paper(const PrintedLesson& printed, std::size_t i, Reader reader) {
    const LessonStep& step = printed.lesson.steps[i];
    const bool has_answers = reader == Reader::teacher;
    std::string out = fmt::format("<div class=\"step\">\n<h2>{}{}</h2>\n<p>{}</p>\n",
                                  has_answers ? fmt::format("{}. ", i + 1) : fmt::format("Step {}", i + 1),
                                  has_answers ? on_paper(step.title) : "", on_paper(step.text));
    if (step.run) out += run_line(*step.run);
    if (step.predict) out += prediction_on_paper(step, reader);
    if (i < printed.figures.size() && (has_answers || !step.predict)) out += printed.figures[i];
    out += has_answers ? answers_of_step(printed, i) : lines_to_write("What I see, and why:", 2);
    if (step.play && !step.play->text.empty())
        out += fmt::format("<p><b>Try:</b> {}</p>\n", on_paper(step.play->text));
    if (has_answers) out += note_on_paper(step.note);
    return out + "</div>\n";
}

/// The right answers of all steps that ask for a prediction.
std::string answer_key(const PrintedLesson& printed) {
    std::string rows;
    for (std::size_t i = 0; i < printed.lesson.steps.size(); ++i) {
        const LessonStep& step = printed.lesson.steps[i];
        if (!step.predict) continue;
        const std::string truth = prediction_truth(*step.predict, step.claims, check_of(printed, i).claims);
        if (!truth.empty())
            rows += fmt::format("<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", i + 1,
                                on_paper(step.predict->question), on_paper(truth));
    }
    if (rows.empty()) return "";
    return "<table>\n<tr><th>step</th><th>asked</th><th>answer</th></tr>\n" + rows + "</table>\n";
}

std::string lesson_on_paper(const PrintedLesson& printed, std::size_t index, Reader reader) {
    const Lesson& lesson = printed.lesson;
    std::string out = fmt::format("<article id=\"lesson{}\">\n<h1>{}</h1>\n<p class=\"question\">{}</p>\n",
                                  index, on_paper(numbered_title(lesson)), on_paper(lesson.question));
    out += run_line(lesson.run);
    if (reader == Reader::teacher)
        out += note_on_paper(lesson.note) + answer_key(printed);
    else
        out += "<p>Name: ____________________ Date: ____________</p>\n";
    for (std::size_t i = 0; i < lesson.steps.size(); ++i) out += step_on_paper(printed, i, reader);
    return out + "</article>\n";
}

std::string list_on_paper(std::span<const PrintedLesson> lessons, Reader reader) {
    std::string out = fmt::format(
        "<nav>\n<h1>KV-cache eviction, in {} lessons</h1>\n<p class=\"question\">{}"
        "</p>\n<ul class=\"choices\">\n",
        lessons.size(), reader == Reader::teacher ? "For the teacher, with all answers" : "Handout");
    for (std::size_t i = 0; i < lessons.size(); ++i)
        out += fmt::format("<li><a href=\"#lesson{}\">{}</a><br>{}</li>\n", i,
                           on_paper(numbered_title(lessons[i].lesson)), on_paper(lessons[i].lesson.question));
    return out + "</ul>\n</nav>\n";
}

}  // namespace

PrintedLesson run_for_print(const Lesson& lesson, const LessonModels& models, const BackendOptions& backend,
                            const ProgressReport& progress) {
    for (std::size_t i = 0; i < lesson.steps.size(); ++i)
        (void)models(run_of_step(lesson, static_cast<int>(i)).model);
    PrintedLesson printed{lesson, {}, std::vector<std::string>(lesson.steps.size())};
    printed.check = check_lesson(lesson, models, backend, progress, [&](int step, const Evidence& evidence) {
        printed.figures[to_index(step)] = step_figure(lesson.steps[to_index(step)], lesson, evidence);
    });
    return printed;
}

std::string lesson_page(std::span<const PrintedLesson> lessons, Reader reader) {
    const std::string title = lessons.size() == 1 ? lessons[0].lesson.title : "KV-cache eviction, in lessons";
    std::string out = fmt::format(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
        "<meta name=\"generator\" content=\"{}\">\n<title>{}</title>\n<style>{}</style>\n</head>\n<body>\n",
        on_paper(program_name()), on_paper(title), kStyle);
    if (lessons.size() > 1) out += list_on_paper(lessons, reader);
    for (std::size_t i = 0; i < lessons.size(); ++i) out += lesson_on_paper(lessons[i], i, reader);
    return out + "</body>\n</html>\n";
}

}  // namespace keyhole
