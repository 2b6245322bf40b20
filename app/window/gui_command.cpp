#include "app/window/gui_command.h"

#include "app/base/assets.h"
#include "app/cli/model_option.h"
#include "app/cli/options.h"
#include "app/lessons/lesson_file.h"
#include "app/lessons/lesson_list.h"
#include "app/models/catalog.h"
#include "app/state/run_backups.h"
#include "app/window/window.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/run/prompt_file.h"
#include "engine/run/text_notice.h"

#include <algorithm>
#include <memory>
#include <tuple>

namespace keyhole {

namespace {

struct GuiArguments {
    RunOptions run;
    std::string open, file, lesson, script, size, settings, report, keep;
};

/// Parses `1280x720`.
std::pair<int, int> parse_size(std::string_view text) {
    constexpr int kLeast = 64, kMost = 16384;
    const std::size_t x = std::min(text.find('x'), text.size());
    const auto width = number_from_text(text.substr(0, x), kLeast, kMost),
               height = number_from_text(text.substr(std::min(x + 1, text.size())), kLeast, kMost);
    if (!width || !height)
        fail(ErrorCode::wrong_use, "--size '{}': WIDTHxHEIGHT is needed, 1280x720, each from {} to {}",
             shown_text(text), kLeast, kMost);
    return {*width, *height};
}

/// Adds prompt and lanes where none are given: those of the model in the catalogue, else those of the demo,
/// so that the first view is never empty.
void add_story(const RunOptions& run, RunSetup& setup) {
    const std::vector<CatalogModel> catalog = own_catalog();
    const CatalogModel* model = find_by_path(catalog, setup.model_folder);
    if (setup.prompt.empty()) {
        const std::filesystem::path from = !run.prompt_file.empty() ? std::filesystem::path(run.prompt_file)
                                           : model != nullptr       ? story_of(*model)
                                                                    : demo_story();
        PromptFile file = read_prompt_file(from);
        print_warning(notice_of_bytes(file.text, from));
        setup.prompt = std::move(file.text);
        setup.guide = std::move(file.guide);
    }
    std::vector<std::string> lanes = run.lanes;
    if (lanes.empty() && model != nullptr && run.prompt.empty() && run.prompt_file.empty())
        lanes = model->lanes;
    if (lanes.empty()) lanes = {"full", "h2o:budget=64", "tova:budget=64"};
    for (const std::string& lane : lanes) setup.lanes.push_back(parse_lane_spec(lane));
}

void run_gui(const GuiArguments& arguments) {
    WindowOptions options;
    options.setup.prompt = arguments.run.prompt;
    options.setup.chat = arguments.run.chat;
    options.follow = arguments.run.follow;
    options.open = arguments.open;
    options.report = arguments.report;
    options.backend = arguments.run.backend_options();
    if (!arguments.script.empty()) options.script = Script::from_file(arguments.script);
    // A script ignores the user's settings, so that it makes the same pictures everywhere.
    if (!arguments.settings.empty())
        options.settings = arguments.settings;
    else if (arguments.script.empty())
        options.settings = settings_file();
    if (!arguments.keep.empty())
        options.run_backups = arguments.keep;
    else if (arguments.script.empty())
        options.run_backups = run_backups_folder();
    if (!arguments.size.empty()) std::tie(options.width, options.height) = parse_size(arguments.size);
    RunOptions run = arguments.run;
    if (!arguments.lesson.empty()) {
        const Lesson lesson = find_lesson(arguments.lesson, list_all_lessons()).lesson;
        options.lesson = arguments.lesson;
        if (run.model.empty()) run.model = lesson.run.model;
        if (options.setup.prompt.empty() && run.prompt_file.empty()) {
            options.setup.prompt = words_of(lesson.run.prompt);
            options.setup.guide = {lesson.run.answer, lesson.run.watch, {lesson.run.stop}, {}};
        }
        if (run.lanes.empty()) {
            run.lanes = lesson.run.lanes;
            options.follow = options.follow || lesson.run.follow;
        }
    }
    // Last but for the story, since it may get a model. A trace shows itself without one.
    options.setup.model_folder = !arguments.open.empty() && run.model.empty()
                                     ? std::filesystem::path(demo_model_folder())
                                     : model_path(run);
    add_story(run, options.setup);
    run_window(std::move(options));
}

}  // namespace

void add_gui_command(const CliCommand& program) {
    const auto arguments = std::make_shared<GuiArguments>();
    const CliCommand gui = program.add_command("gui", "open the window; the command when none is given");
    arguments->run.add_model(gui);
    arguments->run.add_prompt(gui);
    arguments->run.add_lanes(gui);
    gui.add_flag("--follow", arguments->run.follow, "feed every lane the first lane's token");
    arguments->run.add_backend(gui);
    CliOption open = gui.add_option("--open", arguments->open, "trace (.keyhole) to look at").some_path();
    gui.add_option("FILE", arguments->file, "the same as --open").some_path().excludes(open);
    gui.add_option("--lesson", arguments->lesson, "lesson, by number or name, or a .json file");
    gui.add_option("--script", arguments->script,
                   "file of commands that are run in the window, each in a line of its own; - for standard "
                   "input")
        .some_path();
    gui.add_option(
           "--settings", arguments->settings,
           "file of what the window remembers (default: ~/.config/keyhole/window.json; none with --script)")
        .some_path();
    gui.add_option("--report", arguments->report,
                   "JSON file of what is on show and where, kept up to date, for tools that drive the window")
        .some_path();
    gui.add_option("--keep-in", arguments->keep,
                   "folder where the run is kept until the window closes, for a crash (default: "
                   "~/.local/state/keyhole/runs; nowhere with --script)")
        .some_path();
    gui.add_option("--size", arguments->size, "width and height of the window, such as 1280x720");
    gui.does([arguments] {
        if (!arguments->file.empty()) arguments->open = arguments->file;
        run_gui(*arguments);
    });
}

}  // namespace keyhole
