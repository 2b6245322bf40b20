#include "app/base/command_text.h"

namespace keyhole {

namespace {

std::string& kept() {
    static std::string text;
    return text;
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
    constexpr std::string_view kOut = "--out";
    std::string text = "keyhole";
    bool is_folder = false;
    for (const std::string& argument : arguments) {
        if (is_folder)
            text += " OUT";
        else if (argument.starts_with("--out="))
            text += " --out OUT";
        else
            text += " " + shell_word(argument);
        is_folder = !is_folder && (argument == kOut || argument == "-o");
    }
    kept() = text;
}

std::string command_text() {
    return kept();
}

}  // namespace keyhole
