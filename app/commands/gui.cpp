#include "app/commands/commands.h"

#include "app/window/window.h"
#include "engine/base/error.h"

#include <fstream>
#include <memory>
#include <sstream>

namespace keyhole {

namespace {

struct GuiArguments {
    std::string model, prompt, prompt_file, open, script, size;
    std::vector<std::string> lanes;
    int threads = 0;
};

std::string read_text(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    if (!file)
        fail(ErrorCode::bad_file, "reading the prompt {}: cannot be read; check the path", path.string());
    return text.str();
}

void run_gui(const GuiArguments& arguments) {
    WindowOptions options;
    const std::filesystem::path assets = find_assets();
    options.setup.model_folder =
        arguments.model.empty() ? assets / "models" / "keyhole-base" : std::filesystem::path(arguments.model);
    if (!arguments.prompt.empty())
        options.setup.prompt = arguments.prompt;
    else
        options.setup.prompt =
            read_text(arguments.prompt_file.empty() ? assets / "prompts" / "garden-gate.txt"
                                                    : std::filesystem::path(arguments.prompt_file));
    if (arguments.lanes.empty()) {
        for (const char* spec : {"full", "h2o:budget=64", "keyformer:budget=64,tau=1..2"})
            options.setup.lanes.push_back(parse_lane_spec(spec));
    } else {
        for (const std::string& spec : arguments.lanes) options.setup.lanes.push_back(parse_lane_spec(spec));
    }
    options.open = arguments.open;
    options.backend.n_threads = arguments.threads;
    if (!arguments.script.empty()) options.script = Script::from_file(arguments.script);
    if (!arguments.size.empty() &&
        std::sscanf(arguments.size.c_str(), "%dx%d", &options.width, &options.height) != 2)
        fail(ErrorCode::wrong_use, "--size '{}': WIDTHxHEIGHT is needed, 1280x720", arguments.size);
    run_window(std::move(options));
}

}  // namespace

void add_gui_command(CLI::App& app) {
    const auto arguments = std::make_shared<GuiArguments>();
    CLI::App* gui = app.add_subcommand("gui", "Open the window (also without any command)");
    gui->add_option("--model", arguments->model, "Folder of the model; without: the demo model");
    auto* prompt = gui->add_option("--prompt", arguments->prompt, "Text to begin with");
    gui->add_option("--prompt-file", arguments->prompt_file, "File with the text to begin with")
        ->excludes(prompt);
    gui->add_option("--lane", arguments->lanes, "Lane spec, preset[:key=value,...]; once a lane");
    gui->add_option("--open", arguments->open, "A trace (.keyhole) to look at");
    gui->add_option("--script", arguments->script, "File with one command a line, run in the window");
    gui->add_option("--threads", arguments->threads, "Threads of the engine; 0: one a core");
    gui->add_option("--size", arguments->size, "WIDTHxHEIGHT of the window");
    gui->callback([arguments] { run_gui(*arguments); });
}

}  // namespace keyhole
