#include "app/cli/lesson_site.h"

#include "app/base/version.h"
#include "app/lessons/lesson_claims.h"
#include "app/lessons/typed_prediction.h"
#include "app/manual/html.h"
#include "app/view/page.h"
#include "app/view/page_source.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/figure/drawing.h"

#include <fmt/ranges.h>

#include <map>

namespace keyhole {

namespace {

std::string site_text(std::string_view text) {
    return escape_xml(page_text(text));
}

/// Returns a whole page. up: "../" for pages in a folder below.
std::string site_page(const std::string& title, const std::string& body, std::string_view up = "") {
    const std::map<std::string_view, std::string> values = {
        {"program", escape_xml(program_name())},
        {"title", site_text(title)},
        {"style", std::string(page_source("page.css")) + std::string(page_source("site.css"))},
        {"up", std::string(up)},
        {"body", body},
        {"script", std::string(page_source("site.js"))}};
    return filled(page_source("site.html"), [&](std::string_view name) { return values.at(name); });
}

std::string choices_html(const Prediction& asked, std::size_t step) {
    std::string out;
    for (std::size_t i = 0; i < asked.choices.size(); ++i)
        out += fmt::format("<label><input type=\"radio\" name=\"step{}\" value=\"{}\" required> {}</label>\n",
                           step, i, site_text(asked.choices[i]));
    return out;
}

std::string slider_html(const Prediction& asked, const LessonStep& step) {
    const auto text_at = [&](double value) {
        Measured bound;
        bound.value = value;
        return site_text(measured_text(step.claims[to_index(asked.claim)], bound));
    };
    const double middle = (asked.low + asked.high) / 2, by = (asked.high - asked.low) / 100;
    return fmt::format(
        "<label>Between {} and {} <input type=\"range\" min=\"{}\" max=\"{}\" step=\"{}\" value=\"{}\">"
        "</label> <output></output>\n",
        text_at(asked.low), text_at(asked.high), asked.low, asked.high, by, middle);
}

/// Returns the form of a prediction, which the page checks; of a token, which only the window shows, the
/// question alone.
std::string prediction_html(const LessonStep& step, const StepCheck& check, std::size_t number) {
    const Prediction& asked = *step.predict;
    if (prediction_form(asked).empty())
        return fmt::format("<p class=\"ask\"><b>Think first:</b> {}</p>\n", site_text(asked.question));
    const std::string truth = prediction_answer(asked, std::nullopt, step.claims, check.claims);
    std::string data = fmt::format("data-truth=\"{}\"", site_text(truth));
    const bool is_choice = asked.kind == Prediction::Kind::choice;
    if (is_choice) {
        data += fmt::format(" data-right=\"{}\"", asked.right);
    } else if (to_index(asked.claim) < check.claims.size()) {
        data += fmt::format(" data-value=\"{}\" data-near=\"{}\"", check.claims[to_index(asked.claim)].value,
                            kNearPrediction * (asked.high - asked.low));
    }
    return fmt::format(
        "<form class=\"ask\" {}>\n<fieldset>\n<legend>Predict: {}</legend>\n{}"
        "<button type=\"submit\">Check</button>\n<p class=\"verdict\" role=\"status\"></p>\n</fieldset>\n"
        "</form>\n",
        data, site_text(asked.question), is_choice ? choices_html(asked, number) : slider_html(asked, step));
}

std::string claims_html(const LessonStep& step, const StepCheck& check) {
    if (step.claims.empty() || check.claims.size() < step.claims.size()) return "";
    std::string out =
        "<details><summary>What was measured</summary><div class=\"scroll\"><table>\n<caption>Claims of this "
        "step</caption>\n<tr><th scope=\"col\">claim</th><th scope=\"col\">measured</th>"
        "<th scope=\"col\">holds</th></tr>\n";
    for (std::size_t i = 0; i < step.claims.size(); ++i)
        out += fmt::format(
            "<tr><td>{}</td><td>{}</td><td>{}</td></tr>\n", site_text(claim_text(step.claims[i])),
            site_text(measured_text(step.claims[i], check.claims[i])), check.claims[i].holds ? "yes" : "no");
    return out + "</table></div></details>\n";
}

std::string step_html(const LessonOfSite& of, std::size_t i) {
    static const StepCheck kNone;
    const LessonStep& step = of.lesson.steps[i];
    const StepCheck& check = i < of.check.steps.size() ? of.check.steps[i] : kNone;
    std::string seen;
    if (i < of.figures.size()) seen += of.figures[i];
    if (!step.reveal.empty())
        seen += fmt::format("<p class=\"reveal\">{}</p>\n",
                            site_text(with_values(step.reveal, step.claims, check.claims)));
    if (!check.fault.empty())
        seen += fmt::format("<p class=\"no\">This step could not be run: {}</p>\n", site_text(check.fault));
    seen += claims_html(step, check);
    if (i < of.runs.size() && !of.runs[i].empty())
        seen += fmt::format("<p><a href=\"{}\">Open this run as a page</a></p>\n", of.runs[i]);
    if (step.play && !step.play->text.empty())
        seen += fmt::format("<p><b>Try in the window:</b> {}</p>\n", site_text(step.play->text));
    std::string out = fmt::format("<section class=\"step\">\n<h2>{}. {}</h2>\n<p>{}</p>\n", i + 1,
                                  site_text(step.title), site_text(step.text));
    if (!step.predict) return out + seen + "</section>\n";
    // Without a script the reader opens it.
    return out + prediction_html(step, check, i) +
           fmt::format(
               "<details class=\"seen\"><summary>What this run did</summary>\n{}</details>\n</section>\n",
               seen);
}

}  // namespace

std::string site_name(const Lesson& lesson, std::string_view name) {
    return lesson.number > 0 ? fmt::format("{:02}-{}", lesson.number, name) : std::string(name);
}

std::string site_lesson_page(const LessonOfSite& of) {
    const Lesson& lesson = of.lesson;
    const std::string title =
        lesson.number > 0 ? fmt::format("{}. {}", lesson.number, lesson.title) : lesson.title;
    std::string body =
        fmt::format("<h1>{}</h1>\n<p class=\"lede\">{}</p>\n<p class=\"hint\">Model {}. Lanes: {}.</p>\n",
                    site_text(title), site_text(lesson.question), site_text(lesson.run.model),
                    site_text(fmt::format("{}", fmt::join(lesson.run.lanes, ", "))));
    for (std::size_t i = 0; i < lesson.steps.size(); ++i) body += step_html(of, i);
    body += "<p id=\"score\" class=\"lede\" role=\"status\"></p>\n";
    return site_page(title, body);
}

std::string site_index_page(const std::vector<LessonOfSite>& lessons,
                            const std::vector<std::string>& manual_pages) {
    std::string body =
        "<h1>KV-cache eviction, in lessons</h1>\n<p class=\"lede\">Predict, then see what a run did. "
        "Nothing leaves your browser.</p>\n<ol class=\"lessons\">\n";
    for (const LessonOfSite& of : lessons)
        body += fmt::format("<li><a href=\"{}.html\">{}</a><br><span class=\"soft\">{}</span></li>\n",
                            of.name, site_text(of.lesson.title), site_text(of.lesson.question));
    body += "</ol>\n<h2>The manual</h2>\n<ul>\n";
    for (const std::string& page : manual_pages)
        body += fmt::format("<li><a href=\"manual/{0}.html\">{0}</a></li>\n", site_text(page));
    return site_page("KV-cache eviction, in lessons", body + "</ul>\n");
}

void write_manual_pages(const std::filesystem::path& manual, const std::filesystem::path& folder) {
    for (const std::string& name : manual_page_names(manual)) {
        const std::filesystem::path file = folder / "manual" / (name + ".html");
        std::filesystem::create_directories(file.parent_path());
        write_text_file(file,
                        site_page("The manual: " + name, manual_html(read_manual_page(manual, name)), "../"));
    }
    const std::filesystem::path pictures = folder / "manual" / "pictures";
    std::filesystem::create_directories(pictures);
    for (const auto& entry : std::filesystem::directory_iterator(manual / "pictures"))
        write_text_file(pictures / entry.path().filename(), read_text_file(entry.path()));
}

}  // namespace keyhole
