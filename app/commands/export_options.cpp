#include "app/commands/export_options.h"

#include <fmt/format.h>

namespace keyhole {

void ExportArguments::add(CLI::App& command) {
    command.add_option("--out", folder, "folder for the exports, made when missing");
    command
        .add_option("--export", list,
                    fmt::format("{} (but frames and gif), comma between", export_word_list()))
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
    command.add_flag("--yes", yes, "write more than 2 GB without asking");
}

ExportOptions ExportArguments::parsed() const {
    ExportOptions options;
    if (!given()) return options;
    parse_export_list(list, options);
    options.folder = folder;
    options.all_rows = rows == "all";
    options.layers = layers;
    options.heads = heads;
    options.last_rows = last_rows;
    options.f16 = dtype == "f16";
    options.yes = yes;
    return options;
}

}  // namespace keyhole
