#include "app/base/assets.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/help_form.h"
#include "app/cli/man_page.h"
#include "app/cli/output.h"
#include "app/manual/page.h"
#include "app/manual/terminal.h"
#include "engine/base/error.h"

#include <nlohmann/json.hpp>

#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

namespace keyhole {

namespace {

constexpr int kWidest = 110;  // longer lines are hard to read

struct HelpOptions {
    std::string page = "index", section;
    bool json = false, man = false;
};

/// Returns the columns of the terminal; 80 if unknown.
int terminal_width() {
    winsize size{};
    if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return 80;
    return std::clamp<int>(size.ws_col, 40, kWidest);
}

/// Shows the text with the user's pager. Returns false if the pager cannot be started.
bool show_in_pager(const std::string& text) {
    const char* named = std::getenv("PAGER");
    const std::string pager = named != nullptr && *named != '\0' ? named : "less";
    // As git does: less prints a text that fits the screen, and passes bold text through.
    ::setenv("LESS", "FRX", 0);
    std::signal(SIGPIPE, SIG_IGN);  // the reader may quit before the end
    std::FILE* to = ::popen(pager.c_str(), "w");
    if (to == nullptr) return false;
    std::fwrite(text.data(), 1, text.size(), to);
    const int status = ::pclose(to);
    return status != -1 &&
           !(WIFEXITED(status) && WEXITSTATUS(status) == 127);  // 127: the shell found no pager
}

nlohmann::json option_json(const CliOption& option) {
    nlohmann::json json = {{"help", option.help()}, {"value", value_word(option)}};
    json["names"] = nlohmann::json::array();
    for (const std::string& name : option.long_names()) json["names"].push_back("--" + name);
    for (const std::string& name : option.short_names()) json["names"].push_back("-" + name);
    if (option.is_argument()) json["argument"] = option.argument_name();
    if (option.is_required()) json["required"] = true;
    if (!option.default_text().empty()) json["default"] = option.default_text();
    return json;
}

/// Prints commands, options and pages for programs, such as those that complete words in a shell.
void print_help_as_json(const CliCommand& program) {
    nlohmann::json json = {{"version", program_version()},
                           {"pages", manual_page_names(find_assets() / "manual")},
                           {"commands", nlohmann::json::array()}};
    for (const CliCommand& command : program.commands()) {
        nlohmann::json options = nlohmann::json::array();
        for (const CliOption& option : command.options())
            if (!option.group().empty()) options.push_back(option_json(option));
        json["commands"].push_back({{"name", command.name()},
                                    {"help", command.help()},
                                    {"options", options},
                                    {"examples", help_examples(command.name())}});
    }
    print_out("{}\n", json.dump(2));
}

void run_help(const CliCommand& program, const HelpOptions& options) {
    if (options.json) return print_help_as_json(program);
    if (options.man)
        return write_output(options.page == "index" ? program_man_page(program)
                                                    : manual_man_page(options.page));
    // `keyhole help decode` is `keyhole decode --help`.
    if (const CliCommand command = program.command(options.page)) {
        print_out("{}", command.help_text());
        return;
    }
    ManualPage page = read_manual_page(find_assets() / "manual", options.page);
    if (!options.section.empty()) {
        page = section_of(page, options.section);
        if (page.blocks.empty())
            fail(ErrorCode::wrong_use, "the page {} has no section {}; keyhole help {} shows all of it",
                 options.page, options.section, options.page);
    }
    if (::isatty(STDOUT_FILENO) == 0) {
        print_out("{}", terminal_text(page, {}));
        return;
    }
    const char* terminal = std::getenv("TERM");
    const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
    const std::string text = terminal_text(page, {terminal_width(), !dumb});
    if (!show_in_pager(text)) print_out("{}", text);
}

}  // namespace

void add_help_command(const CliCommand& program) {
    auto options = std::make_shared<HelpOptions>();
    const CliCommand command =
        program.add_command("help", "print the manual: the list of its pages, a page, or a section");
    command.add_option("PAGE", options->page, "a page or a command (default: the list of pages)");
    command.add_option("SECTION", options->section,
                       "number of a section of the page, such as 2.11 of policies");
    CliOption json =
        command.add_flag("--json", options->json, "print all commands, their options and the pages as JSON");
    command.add_flag("--man", options->man, "print the source of a page for man: keyhole(1), keyhole-PAGE(7)")
        .excludes(json);
    command.does([program, options] { run_help(program, *options); });
}

}  // namespace keyhole
