#include "app/base/command_text.h"

#include <algorithm>

namespace keyhole {

namespace {

std::vector<std::string>& kept() {
    static std::vector<std::string> arguments;
    return arguments;
}

}  // namespace

std::string shell_word(std::string_view text) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,@%+";
    if (!text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos) return std::string(text);
    std::string out = "'";
    for (const char c : text) out += c == '\'' ? "'\\''" : std::string(1, c);
    return out + "'";
}

void keep_command_line(const std::vector<std::string>& arguments) {
    kept() = arguments;
}

void keep_option(std::string_view long_name, std::string_view short_name, const std::string& value) {
    const auto names_it = [&](const std::string& argument) {
        return argument == long_name || argument.starts_with(std::string(long_name) + "=") ||
               (argument.starts_with(short_name) && !argument.starts_with("--"));
    };
    if (kept().empty() || std::ranges::any_of(kept(), names_it)) return;
    const int at = kept().front().starts_with('-') ? 0 : 1;  // behind the command
    kept().insert(kept().begin() + at, {std::string(long_name), value});
}

std::string command_text() {
    return command_text([](std::string_view, const std::string& value) { return value; });
}

std::string command_text(
    const std::function<std::string(std::string_view option, const std::string& value)>& rewritten) {
    constexpr std::string_view kOut = "--out";
    if (kept().empty()) return "";
    std::string text = "keyhole";
    std::string_view option;  // whose value comes next, if it has one
    for (const std::string& argument : kept()) {
        const bool is_folder = option == kOut || option == "-o";
        const bool is_option = !is_folder && argument.starts_with('-') && argument != "-";
        const bool is_short = is_option && !argument.starts_with("--");
        const std::size_t end = is_short ? 2 : std::min(argument.find('='), argument.size());
        const std::string name = argument.substr(0, end);  // "-l" of "-lh2o"
        if (is_folder)
            text += " OUT";
        else if (is_option && !is_short && name == kOut && end < argument.size())
            text += " --out OUT";
        else if (is_option && end < argument.size())
            text += " " + shell_word(name + (is_short ? "" : "=") +
                                     rewritten(name, argument.substr(end + (is_short ? 0 : 1))));
        else
            text += " " + shell_word(is_option || option.empty() ? argument : rewritten(option, argument));
        option = is_option && end >= argument.size() ? argument : std::string_view();
    }
    return text;
}

}  // namespace keyhole
