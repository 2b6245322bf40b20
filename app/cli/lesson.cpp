#include "app/base/assets.h"
#include "app/base/command_text.h"
#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/lesson_site.h"
#include "app/cli/model_option.h"
#include "app/cli/options.h"
#include "app/cli/output.h"
#include "app/lessons/lesson_figure.h"
#include "app/lessons/lesson_file.h"
#include "app/lessons/lesson_list.h"
#include "app/lessons/lesson_page.h"
#include "app/lessons/lesson_runner.h"
#include "app/lessons/typed_prediction.h"
#include "app/manual/page.h"
#include "app/models/catalog.h"
#include "app/models/find_model.h"
#include "app/view/page.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/staged_folder.h"
#include "engine/export/export_files.h"
#include "engine/figure/image.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

namespace {

struct LessonOptions {
    RunOptions run;
    std::vector<std::string> names;
    std::string print, reader, exports, out;
    bool list = false, check = false, json = false;
};

/// Loads each model once. `of_lesson` replaces the lesson's own where --model is given.
class Models {
  public:
    explicit Models(const LessonOptions& options) : options_(options), catalog_(own_catalog()) {}

    std::shared_ptr<const Model> operator()(const std::string& name) {
        std::shared_ptr<const Model>& known = loaded_[name];
        if (known == nullptr) {
            RunOptions run = options_.run;
            run.model = name;
            // The user may name any model, a lesson only one of the catalogue.
            known = load_model(name == options_.run.model ? model_path(run) : catalog_model_path(run));
            print_warnings(*known);
        }
        return known;
    }
    /// Returns why a lesson cannot run here: a model of the catalogue was not fetched. Empty: it can run.
    std::string why_not(const Lesson& lesson) const {
        if (options_.run.says_yes()) return "";
        std::vector<std::string> names = {lesson.run.model};
        for (const LessonStep& step : lesson.steps)
            if (step.run) names.push_back(step.run->model);
        for (const std::string& name : names) {
            const CatalogModel* model = find_in_catalog(catalog_, name);
            if (model != nullptr && !path_if_here(*model))
                return fmt::format("{0} is not here: keyhole get {0}", name);
        }
        return "";
    }

  private:
    const LessonOptions& options_;
    std::vector<CatalogModel> catalog_;
    std::map<std::string, std::shared_ptr<const Model>> loaded_;
};

/// The lesson as it is run here: on the model that --model names, if any.
Lesson wanted(const LessonOptions& options, const Lesson& lesson) {
    return options.run.model.empty() ? lesson : on_model(lesson, options.run.model);
}

/// Reports a lesson's progress as the part of the command's from `done_before`, with a length of 1.
ProgressReport part_of(Progress& progress, double done_before) {
    return [&progress, done_before](double done) {
        check_termination();
        progress.update(done_before + done);
        return true;
    };
}

LessonCheck run_lesson(const LessonOptions& options, const Lesson& lesson, Models& models, Progress& progress,
                       double done_before = 0, const LessonStepSeen& seen = {}) {
    const TerminationGuard guard;
    progress.set_part(lesson.title);
    return check_lesson(lesson, std::ref(models), options.run.backend_options(),
                        part_of(progress, done_before), seen);
}

void print_list_as_json(const std::vector<ListedLesson>& all) {
    nlohmann::json lessons = nlohmann::json::array();
    for (const ListedLesson& one : all) {
        nlohmann::json& json = lessons.emplace_back();
        json = {{"name", one.name}, {"file", one.file.string()}, {"own", one.own}};
        if (!one.fault.empty()) {
            json["fault"] = one.fault;
            continue;
        }
        if (one.lesson.number > 0) json["number"] = one.lesson.number;
        json["title"] = one.lesson.title;
        json["question"] = one.lesson.question;
        json["model"] = one.lesson.run.model;
        json["steps"] = one.lesson.steps.size();
    }
    const nlohmann::json json = {{"version", program_version()}, {"lessons", lessons}};
    print_out("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

void print_list(const std::vector<ListedLesson>& all) {
    for (const ListedLesson& one : all) {
        if (!one.fault.empty()) {
            print_out("    {}: {}\n", printable_text(one.name), printable_text(one.fault));
            continue;
        }
        print_out("{:>3} {:<22} {:<13} {}{}\n",
                  one.lesson.number > 0 ? std::to_string(one.lesson.number) : "", printable_text(one.name),
                  printable_text(one.lesson.run.model), printable_text(one.lesson.question),
                  one.own ? "  (yours)" : "");
    }
    if (const auto own = own_lessons_folder(); !own.empty())
        print_note("your own lessons lie in {}\n", printable_text(own.string()));
}

/// A text in lines of at most 88 characters, each after an indent.
std::string wrapped(std::string_view text, std::string_view indent) {
    std::string out, line;
    const std::string whole = printable_text(text);
    for (std::size_t begin = 0; begin < whole.size();) {
        std::size_t end = whole.find(' ', begin);
        if (end == std::string::npos) end = whole.size();
        const std::string_view word(whole.data() + begin, end - begin);
        if (!line.empty() && line.size() + 1 + word.size() > 88) {
            out += fmt::format("{}{}\n", indent, line);
            line.clear();
        }
        line += line.empty() ? std::string(word) : " " + std::string(word);
        begin = end + 1;
    }
    return line.empty() ? out : out + fmt::format("{}{}\n", indent, line);
}

void wait_for_enter() {
    flush_output();
    print_note("  (Enter goes on) ");
    std::string line;
    std::getline(std::cin, line);
}

/// Asks until a line is a prediction. Enter alone, or the end of the input, goes on without one.
std::optional<double> ask_prediction(const Prediction& asked) {
    const std::string form = prediction_form(asked);
    if (form.empty()) return std::nullopt;
    flush_output();
    for (;;) {
        print_note("  Your prediction ({}; Enter alone shows the answer): ", form);
        std::string line;
        if (!std::getline(std::cin, line)) print_note("\n");
        if (line.empty()) return std::nullopt;
        if (const auto typed = typed_prediction(asked, line)) return typed;
        print_note("  '{}' is not {}.\n", shown_text(line), form);
    }
}

void print_step(const LessonStep& step, std::size_t number, std::size_t of, const StepCheck& check,
                bool asks) {
    print_out("\n{} of {}  {}\n{}", number, of, printable_text(step.title), wrapped(step.text, "  "));
    if (step.predict) {
        print_out("\n{}", wrapped("Predict: " + step.predict->question, "  "));
        for (std::size_t i = 0; i < step.predict->choices.size(); ++i)
            print_out("    {}  {}\n", i + 1, printable_text(step.predict->choices[i]));
    }
    const std::optional<double> typed = asks && step.predict ? ask_prediction(*step.predict) : std::nullopt;
    if (asks && (!step.predict || prediction_form(*step.predict).empty())) wait_for_enter();
    if (step.predict)
        print_out("{}", wrapped(prediction_answer(*step.predict, typed, step.claims, check.claims), "  "));
    if (!step.reveal.empty())
        print_out("\n{}", wrapped(with_values(step.reveal, step.claims, check.claims), "  "));
    if (!check.fault.empty()) print_out("  could not be run: {}\n", printable_text(check.fault));
    for (std::size_t i = 0; i < check.claims.size(); ++i)
        if (!check.claims[i].holds)
            print_out("  not so on this model: {}; measured {}\n", claim_text(step.claims[i]),
                      measured_text(step.claims[i], check.claims[i]));
    if (step.play && !step.play->text.empty())
        print_out("\n{}", wrapped("Try in the window: " + step.play->text, "  "));
}

void read_aloud(const LessonOptions& options, const ListedLesson& listed, Models& models) {
    const Lesson lesson = wanted(options, listed.lesson);
    const bool asks = ::isatty(STDIN_FILENO) != 0 && ::isatty(STDOUT_FILENO) != 0;
    const LessonCheck check = [&] {
        Progress progress("lesson", 1);
        return run_lesson(options, lesson, models, progress);
    }();
    print_out("{}{}\n{}", lesson.number > 0 ? fmt::format("{}. ", lesson.number) : "",
              printable_text(lesson.title), wrapped(lesson.question, ""));
    print_out("model {}; lanes {}\n", printable_text(lesson.run.model),
              printable_text(fmt::format("{}", fmt::join(lesson.run.lanes, ", "))));
    for (std::size_t i = 0; i < lesson.steps.size(); ++i)
        print_step(lesson.steps[i], i + 1, lesson.steps.size(), check.steps[i], asks);
}

PrintedLesson printed_lesson(const LessonOptions& options, const Lesson& lesson, Models& models,
                             Progress& progress, double done_before) {
    const TerminationGuard guard;
    progress.set_part(lesson.title);
    return run_for_print(lesson, std::ref(models), options.run.backend_options(),
                         part_of(progress, done_before));
}

/// Writes one lesson as a page, or several as a booklet, without those whose model is not here.
void print_page(const LessonOptions& options, const std::vector<ListedLesson>& lessons, Models& models) {
    std::vector<PrintedLesson> printed;
    {
        Progress progress("lesson --print", static_cast<double>(lessons.size()));
        for (std::size_t i = 0; i < lessons.size(); ++i) {
            const Lesson lesson = wanted(options, lessons[i].lesson);
            if (!lessons[i].fault.empty()) fail(ErrorCode::bad_file, "{}", lessons[i].fault);
            if (const std::string why = models.why_not(lesson); lessons.size() > 1 && !why.empty()) {
                print_note("{} is left out: {}\n", printable_text(lessons[i].name), why);
                continue;
            }
            printed.push_back(printed_lesson(options, lesson, models, progress, static_cast<double>(i)));
        }
    }
    if (printed.empty()) fail(ErrorCode::wrong_use, "no lesson is left to print; keyhole get fetches models");
    write_text_file(options.print,
                    lesson_page(printed, options.reader == "pupil" ? Reader::pupil : Reader::teacher));
    print_note("written to {}\n", options.print);
}

/// Returns the page of a lesson's run as it is now; empty if it has no steps.
std::string page_of_run(const LessonRun& run, const Evidence& evidence) {
    const RunHistory& history = *evidence.history;
    if (history.empty()) return "";
    PictureSource source;
    source.history = &history;
    source.focus = shown_lane(history, 0);
    source.program = program_name();
    source.right_answer = run.answer;
    if (!run.watch.empty()) source.view.watched = find_span(history, 0, run.watch);
    for (const LaneAnswer& answer : evidence.answers)
        source.answers.push_back({static_cast<int>(source.answers.size()), answer, {}, {}});
    if (source.answers.size() != history.steps().back()->lanes.size()) source.answers.clear();
    mark_answers(source.answers, run.answer);
    return run_page(source);
}

/// Runs a lesson and writes the pages of its runs into a folder.
LessonOfSite lesson_of_site(const LessonOptions& options, const ListedLesson& listed, Models& models,
                            Progress& progress, double done_before, const std::filesystem::path& folder) {
    LessonOfSite of;
    of.lesson = wanted(options, listed.lesson);
    of.name = site_name(of.lesson, listed.name);
    const std::vector<LessonStep>& steps = of.lesson.steps;
    of.figures.resize(steps.size());
    of.runs.resize(steps.size());
    const auto seen = [&](int step, const Evidence& evidence) {
        const std::size_t i = to_index(step);
        of.figures[i] = step_figure(steps[i], of.lesson, evidence);
        if (i + 1 < steps.size() && !steps[i + 1].run) return;  // the run goes on
        const std::string page = page_of_run(run_of_step(of.lesson, step), evidence);
        if (page.empty()) return;
        of.runs[i] = fmt::format("{}-run{}.html", of.name, i + 1);
        write_text_file(folder / of.runs[i], page);
    };
    of.check = run_lesson(options, of.lesson, models, progress, done_before, seen);
    return of;
}

/// Writes the lessons as pages, with an index and the manual, or the pages of their runs alone.
void write_site(const LessonOptions& options, const std::vector<ListedLesson>& lessons, Models& models) {
    const bool whole = options.exports == "site";
    StagedFolder staged(options.out, "lessons");
    std::vector<LessonOfSite> made;
    {
        Progress progress("lesson --export", static_cast<double>(lessons.size()));
        for (std::size_t i = 0; i < lessons.size(); ++i) {
            if (!lessons[i].fault.empty()) fail(ErrorCode::bad_file, "{}", lessons[i].fault);
            if (const std::string why = models.why_not(wanted(options, lessons[i].lesson)); !why.empty()) {
                print_note("{} is left out: {}\n", printable_text(lessons[i].name), why);
                continue;
            }
            made.push_back(
                lesson_of_site(options, lessons[i], models, progress, static_cast<double>(i), staged.path()));
            if (whole)
                write_text_file(staged.path() / (made.back().name + ".html"), site_lesson_page(made.back()));
        }
    }
    if (whole) {
        const std::filesystem::path manual = find_assets() / "manual";
        write_text_file(staged.path() / "index.html", site_index_page(made, manual_page_names(manual)));
        write_manual_pages(manual, staged.path());
    }
    publish_exports(staged, program_name(), command_text());
    print_note("written to {}\n", printable_text(options.out));
}

/// Prints a line a claim, or the reason why a lesson was skipped. Returns whether all that ran holds.
bool check_all(const LessonOptions& options, const std::vector<ListedLesson>& lessons, Models& models) {
    bool all = true;
    int n_skipped = 0, n_claims = 0, n_broken = 0;
    nlohmann::json json = nlohmann::json::array();
    if (!options.json)
        print_out("{:<24} {:>4}  {:<68} {:<16} {}\n", "lesson", "step", "claim", "measured", "holds");
    const auto n_lessons = lessons.size();
    Progress progress("lesson --check", static_cast<double>(n_lessons));
    KeptNote kept("no lesson was checked yet");
    for (std::size_t at = 0; at < n_lessons; ++at) {
        const ListedLesson& listed = lessons[at];
        flush_output();
        if (at > 0)
            kept.set(fmt::format("{} of {} lessons were checked{}", at, n_lessons,
                                 options.json ? "" : "; the lines printed are whole"));
        const std::string name = printable_text(
            listed.lesson.number > 0 ? fmt::format("{:>2} {}", listed.lesson.number, listed.name)
                                     : listed.name);
        if (!listed.fault.empty()) fail(ErrorCode::bad_file, "{}", listed.fault);
        const Lesson lesson = wanted(options, listed.lesson);
        if (const std::string why = models.why_not(lesson); !why.empty()) {
            ++n_skipped;
            if (options.json)
                json.push_back({{"lesson", listed.name}, {"skipped", why}});
            else
                print_out("{:<24} {:>4}  skipped: {}\n", name, "", why);
            continue;
        }
        const LessonCheck check = run_lesson(options, lesson, models, progress, static_cast<double>(at));
        all = all && check.holds();
        for (std::size_t i = 0; i < check.steps.size(); ++i) {
            const StepCheck& step = check.steps[i];
            if (!step.fault.empty()) {
                ++n_broken;
                if (options.json)
                    json.push_back({{"lesson", listed.name}, {"step", i + 1}, {"fault", step.fault}});
                else
                    print_out("{:<24} {:>4}  could not be run: {}\n", name, i + 1,
                              printable_text(step.fault));
            }
            for (std::size_t k = 0; k < step.claims.size(); ++k) {
                const Claim& claim = lesson.steps[i].claims[k];
                const Measured& measured = step.claims[k];
                ++n_claims;
                n_broken += measured.holds ? 0 : 1;
                if (options.json)
                    json.push_back({{"lesson", listed.name},
                                    {"step", i + 1},
                                    {"claim", claim_text(claim)},
                                    {"measured", measured_text(claim, measured)},
                                    {"holds", measured.holds}});
                else
                    print_out("{:<24} {:>4}  {:<68} {:<16} {}\n", name, i + 1, claim_text(claim),
                              measured_text(claim, measured), measured.holds ? "yes" : "NO");
            }
        }
    }
    if (options.json)
        print_out("{}\n", json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
    else
        print_out("{} claims, {} do not hold; {} lessons skipped\n", n_claims, n_broken, n_skipped);
    return all;
}

void check_exports(LessonOptions& options) {
    if (options.exports.empty()) {
        if (!options.out.empty())
            fail(ErrorCode::wrong_use, "--out is the folder of --export site or --export page; add one");
        return;
    }
    if (options.list || options.check || options.json || !options.print.empty())
        fail(ErrorCode::wrong_use, "--export writes pages; leave out --list, --check, --json and --print");
    // `lesson --export site DIR`
    if (options.out.empty() && !options.names.empty()) {
        options.out = options.names.back();
        options.names.pop_back();
    }
    if (options.out.empty())
        fail(ErrorCode::wrong_use, "--export {} needs a folder: --out DIR", options.exports);
}

void run_command(LessonOptions options) {
    check_exports(options);
    const std::vector<ListedLesson> all = list_all_lessons();
    if (!options.print.empty() && (options.list || options.check))
        fail(ErrorCode::wrong_use, "--print writes lessons to a file; leave out --list and --check");
    if (options.print.empty() && !options.reader.empty())
        fail(ErrorCode::wrong_use, "--for says who reads a printed lesson; add --print FILE");
    const bool names_none = options.names.empty() && options.print.empty() && options.exports.empty();
    if (options.list || (names_none && !options.check)) {
        options.json ? print_list_as_json(all) : print_list(all);
        return;
    }
    if (options.json && !options.check)
        fail(ErrorCode::wrong_use, "--json goes with --list or --check; a lesson is read as text");
    std::vector<ListedLesson> lessons;
    for (const std::string& name : options.names) lessons.push_back(find_lesson(name, all));
    if (lessons.empty()) lessons = all;
    Models models(options);
    if (!options.exports.empty()) return write_site(options, lessons, models);
    if (options.check) {
        if (!check_all(options, lessons, models))
            fail(ErrorCode::bad_file, "some claims do not hold on this model; see the table");
        return;
    }
    if (!options.print.empty()) return print_page(options, lessons, models);
    for (const ListedLesson& lesson : lessons) read_aloud(options, lesson, models);
}

}  // namespace

void add_lesson_command(const CliCommand& program) {
    auto options = std::make_shared<LessonOptions>();
    const CliCommand command = program.add_command(
        "lesson", "list lessons, read one in the terminal, check what they say, or write them as pages");
    command.add_option("NAME", options->names,
                       "lessons by number or name, or a .json file (default: list all)");
    command.add_flag("--list", options->list, "print the lessons that are here");
    command.add_flag("--check", options->check,
                     "measure every claim of the lessons (without NAME: of all) and print a table");
    command
        .add_option("--print", options->print,
                    "file to write the lessons to, as a page with pictures (HTML): one, or a booklet of "
                    "several (without NAME: of all)")
        .some_path();
    command
        .add_option("--for", options->reader,
                    "with --print: teacher: answers in front, all that was measured, notes; pupil: "
                    "questions with room to write, no answers (default: teacher)")
        .one_of({"teacher", "pupil"});
    command
        .add_option("--export", options->exports,
                    "site: all lessons, or those named, as pages for a web server, with an index and the "
                    "manual; page: the pages of their runs alone")
        .one_of({"site", "page"});
    command
        .add_option("-o,--out", options->out,
                    "folder for --export, made when missing; it may also stand as the last argument")
        .some_path();
    command.add_flag("--json", options->json, "with --list or --check: print the result as JSON");
    options->run.add_model(command);
    command.option("--model").set_help(
        "run the lessons on another model: a folder, a GGUF file, ORG/NAME of the hub, or a name of the "
        "catalogue (default: the lesson's own)");
    options->run.add_backend(command);
    command.does([options] { run_command(*options); });
}

}  // namespace keyhole
