#include "app/cli/man_page.h"

#include "app/base/assets.h"
#include "app/base/version.h"
#include "app/cli/help_form.h"
#include "app/manual/page.h"
#include "app/manual/roff.h"

#include <fmt/format.h>

#include <string_view>
#include <vector>

namespace keyhole {

namespace {

ManualPage page_named(const std::string& name) {
    return read_manual_page(find_assets() / "manual", name);
}

std::string title(const std::string& name, int section) {
    return fmt::format(".TH \"{}\" {} \"\" \"{}\" \"Keyhole\"\n.nh\n.ad l\n", roff_escaped(name), section,
                       roff_escaped(program_name()));
}

std::string name_line(const std::string& name, std::string_view what) {
    return fmt::format(".SH NAME\n{} \\- {}\n", roff_escaped(name), roff_escaped(what));
}

std::string option_text(const CliOption& option) {
    std::string names;
    for (const std::string& name : option.short_names())
        names += fmt::format("{}\\fB\\-{}\\fR", names.empty() ? "" : ", ", roff_escaped(name));
    for (const std::string& name : option.long_names())
        names += fmt::format("{}\\fB\\-\\-{}\\fR", names.empty() ? "" : ", ", roff_escaped(name));
    if (names.empty())
        names = fmt::format("\\fI{}\\fR", roff_escaped(option.argument_name()));
    else if (const std::string value = value_word(option); !value.empty())
        names += fmt::format(" \\fI{}\\fR", roff_escaped(value));
    const std::string standard = option.default_text();
    return fmt::format(".TP\n{}\n{}{}\n", names, roff_escaped(option.help()),
                       standard.empty() ? "" : fmt::format(" (default: {})", roff_escaped(standard)));
}

std::string man_of_command(const CliCommand& command) {
    const std::string name = command.name();
    std::string text =
        fmt::format(".SS \"keyhole {}\"\n{}\n", roff_escaped(name), roff_escaped(command.help()));
    for (const CliOption& option : command.options())
        if (!option.group().empty() && option.long_names() != std::vector<std::string>{"help"})
            text += option_text(option);
    text += ".PP\n.nf\n";
    for (const std::string_view line : help_examples(name))
        text += fmt::format("    {}\n", roff_escaped(line));
    return text + ".fi\n";
}

}  // namespace

std::string program_man_page(const CliCommand& program) {
    std::string text = title("KEYHOLE", 1) + name_line("keyhole", "a playground for KV-cache eviction");
    text +=
        ".SH SYNOPSIS\n\\fBkeyhole\\fR [\\fICOMMAND\\fR] [\\fIOPTION\\fR...]\n.br\n\\fBkeyhole\\fR "
        "\\fIFILE.keyhole\\fR\n.SH DESCRIPTION\n" +
        roff_escaped(program.help()) +
        "\n.SH COMMANDS\nEach command prints its options with \\fB\\-\\-help\\fR or \\fB\\-h\\fR.\n";
    for (const CliCommand& command : program.commands())
        if (!command.group().empty()) text += man_of_command(command);
    return text + ".SH \"THE MANUAL\"\n" + roff_text(page_named("index"));
}

std::string manual_man_page(const std::string& page) {
    const ManualPage read = page_named(page);
    const std::string name = "keyhole-" + page;
    const auto& blocks = read.blocks;
    const std::string what = blocks.empty() ? "" : plain_text(blocks.front().text);
    return title(name, 7) + name_line(name, what) + ".SH DESCRIPTION\n" + roff_text(read) +
           ".SH \"SEE ALSO\"\n\\fBkeyhole\\fR(1)\n";
}

}  // namespace keyhole
