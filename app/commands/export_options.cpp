#include "app/commands/export_options.h"

#include <fmt/format.h>

namespace keyhole {

void ExportArguments::add(CLI::App& command) {
    command.add_option("--out", folder, "folder for the exports, made when missing");
    command
        .add_option("--export", list,
                    fmt::format("{} (but frames and gif), comma between; or what the window's views show: {}",
                                export_word_list(), view_word_list()))
        ->capture_default_str();
    command.add_option("--rows", rows, "decode rows, or all: prompt rows too")
        ->check(CLI::IsMember({"decode", "all"}));
    command.add_option("--layers", layers, "only these layers")
        ->delimiter(',')
        ->check(CLI::NonNegativeNumber);
    command.add_option("--heads", heads, "only these query heads")
        ->delimiter(',')
        ->check(CLI::NonNegativeNumber);
    command.add_option("--last-rows", last_rows, "only so many rows from the end")
        ->check(CLI::NonNegativeNumber);
    command.add_option("--dtype", dtype, "of arrays")->check(CLI::IsMember({"f32", "f16"}));
    command.add_option("--row", row, "of views: up to this row, not the last")->check(CLI::NonNegativeNumber);
    command.add_option("--focus", focus, "of views: the lane on show")->check(CLI::NonNegativeNumber);
    command.add_option(
        "--look", look,
        "of views: colour map, linear, LOW..HIGH, gamma=G, no-sinks, no-nan, clips, comma between");
    command.add_flag("--yes", yes, "write more than 2 GB without asking");
}

ExportOptions ExportArguments::parsed() const {
    ExportOptions options;
    if (!given()) return options;
    std::string files = list;
    (void)take_view_words(files);
    parse_export_list(files, options);
    options.folder = folder;
    options.all_rows = rows == "all";
    options.layers = layers;
    options.heads = heads;
    options.last_rows = last_rows;
    options.f16 = dtype == "f16";
    options.yes = yes;
    return options;
}

std::vector<ViewWord> ExportArguments::views() const {
    std::string rest = list;
    return given() ? take_view_words(rest) : std::vector<ViewWord>{};
}

ViewExport ExportArguments::view_export() const {
    return {folder, layers, heads, focus, row, look};
}

bool ExportArguments::has_files() const {
    std::string rest = list;
    (void)take_view_words(rest);
    return given() && !rest.empty();
}

}  // namespace keyhole
