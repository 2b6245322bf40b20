#include "app/cli/export_options.h"

#include "app/cli/number_option.h"
#include "app/cli/options.h"
#include "app/cli/path_option.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <algorithm>

namespace keyhole {

void ExportArguments::add(CLI::App& command) {
    CLI::Option* out = command.add_option("-o,--out", folder, "folder for the exports, made when missing")
                           ->check(some_path());
    std::vector<CLI::Option*> others;
    const auto option = [&](const char* name, auto& value, const std::string& help) {
        return others.emplace_back(command.add_option(name, value, help));
    };
    option("--export", list,
           fmt::format("{} (but frames and gif), comma between; or views of the window: {}",
                       export_word_list(), view_word_list()))
        ->capture_default_str();
    option("--rows", rows, "decode rows, or all: prompt rows too")->check(CLI::IsMember({"decode", "all"}));
    option("--layers", layers, "only these layers")->delimiter(',')->transform(number_from(0));
    option("--heads", heads, "only these query heads")->delimiter(',')->transform(number_from(0));
    option("--last-rows", last_rows, "only this many rows from the end")->transform(number_from(0));
    option("--dtype", dtype, "number type of arrays")->check(CLI::IsMember({"f32", "f16"}));
    option("--row", row, "views: the shown row (default: the last one)")->transform(number_from(0));
    option("--focus", focus, "views: the shown lane")->transform(number_from(0));
    option("--look", look,
           "pictures and GIFs: dark; views: colour map, linear, LOW..HIGH, gamma=G, no-sinks, no-nan, clips, "
           "comma between");
    option("--width", width, "width of pictures in pixels; text scales with it")
        ->transform(number_in(PictureChoice::kLeastWidth, PictureChoice::kMostWidth));
    option("--format", formats,
           "format of pictures: png, svg, pdf, comma between (default: png; curves svg)");
    option("--right", right, "answers: the right answer, if the prompt's file does not name it");
    yes_option = add_yes(command, "write more than 2 GB without asking");
    for (CLI::Option* other : others) other->needs(out);
}

ExportOptions ExportArguments::parsed() const {
    ExportOptions options;
    if (!given()) return options;
    std::string files = list;
    const std::vector<ViewWord> of_views = take_view_words(files);
    parse_export_list(files, options, of_records);
    const auto is_on = [&](const ExportWord& word) { return options.*word.flag; };
    if (of_views.empty() && std::none_of(export_words().begin(), export_words().end(), is_on))
        fail(ErrorCode::wrong_use, "--export '{}' names nothing; known are {}", shown_text(list),
             export_word_list());
    const bool draws = options.draws() || !of_views.empty();
    options.pictures = pictures();
    const bool dark = options.pictures.background == Background::dark && !options.animates();
    if (!draws && (width > 0 || !formats.empty() || dark))
        fail(ErrorCode::wrong_use,
             "--width, --format and --look dark are for pictures; name some with --export: mask, heatmap, "
             "scores or a view; frames and GIFs take --look dark alone");
    options.folder = folder;
    options.all_rows = rows == "all";
    options.layers = layers;
    options.heads = heads;
    options.last_rows = last_rows;
    options.f16 = dtype == "f16";
    options.yes = yes_option != nullptr && yes_option->count() > 0;
    return options;
}

std::vector<ViewWord> ExportArguments::views() const {
    std::string rest = list;
    return given() ? take_view_words(rest) : std::vector<ViewWord>{};
}

ViewExport ExportArguments::view_export() const {
    ViewExport how{folder, layers, heads, focus, row, look};
    (void)take_background(how.look);
    how.pictures = pictures();
    return how;
}

PictureChoice ExportArguments::pictures() const {
    std::string rest = look;
    PictureChoice choice;
    choice.background = take_background(rest);
    choice.width = width;
    if (!formats.empty()) choice.formats = formats_from_list(formats);
    return choice;
}

bool ExportArguments::has_answers() const {
    const std::vector<ViewWord> words = views();
    return std::any_of(words.begin(), words.end(),
                       [](const ViewWord& word) { return word.kind == ViewWord::Kind::answers; });
}

bool ExportArguments::has_files() const {
    std::string rest = list;
    (void)take_view_words(rest);
    return given() && !rest.empty();
}

}  // namespace keyhole
