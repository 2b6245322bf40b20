#include "app/cli/export_options.h"

#include "app/base/command_text.h"
#include "app/base/version.h"
#include "app/cli/options.h"
#include "engine/base/error.h"
#include "engine/figure/film.h"

namespace keyhole {

std::vector<CliOption> add_print_options(const CliCommand& command, PrintForm& print) {
    return {command.add_flag("--bare", print.bare,
                             "pictures without title, subtitle and caption; NAME.caption.txt has them"),
            command.add_option("--height", print.height, "height of pictures in pixels (default: as needed)")
                .within(PrintForm::kLeastHeight, PrintForm::kMostHeight),
            command
                .add_option("--font-size", print.font_size,
                            "size of the numbers on the axes in points (default: by the width)")
                .within(PrintForm::kLeastFont, PrintForm::kMostFont)};
}

void ExportArguments::add(const CliCommand& command) {
    CliOption out =
        command.add_option("-o,--out", folder, "folder for the exports, made when missing").some_path();
    std::vector<CliOption> others;
    const auto option = [&](const char* name, auto& value, const std::string& help) {
        return others.emplace_back(command.add_option(name, value, help));
    };
    list_option = option("--export", list,
                         fmt::format("{} (but frames, gif, q, k, v and queries), comma between; or views of "
                                     "the window: {} (default: {}, "
                                     "the curves with several lanes)",
                                     export_word_list(), view_word_list(), usual_export_list(2, true)));
    option("--rows", rows, "decode rows, or all: prompt rows too").one_of({"decode", "all"});
    option("--layers", layers, "only these layers").comma_list().from(0);
    option("--heads", heads, "only these query heads").comma_list().from(0);
    option("--last-rows", last_rows, "only this many rows from the end").from(1);
    option("--dtype", dtype, "number type of arrays").one_of({"f32", "f16"});
    option("--row", row, "views: the shown row (default: the last one)").from(0);
    option("--focus", focus, "views: the shown lane").from(0);
    option("--look", look,
           "pictures and GIFs: dark; views: colour map, linear, LOW..HIGH, gamma=G, no-sinks, no-nan, clips, "
           "comma between");
    option("--width", width, "width of pictures in pixels; text scales with it")
        .within(PictureChoice::kLeastWidth, PictureChoice::kMostWidth);
    for (const CliOption& print_option : add_print_options(command, print)) others.push_back(print_option);
    option(
        "--watch", watch,
        "words, or FIRST..LAST, that heat maps mark and pages explain (default: those of the prompt's file)");
    option("--format", formats,
           "formats, comma between: png, svg, pdf of pictures (default: png; curves svg); gif, webm, mp4 of "
           "animations");
    option("--right", right, "answers: the right answer, if the prompt's file does not name it");
    yes_option = add_yes(command, "write more than 2 GB without asking");
    for (const CliOption other : others) other.needs(out);
}

RunExport ExportArguments::parsed(int n_lanes, bool with_answers) const {
    RunExport out;
    if (!given()) return out;
    out.files.all_rows = rows == "all";  // which the words of a trace depend on
    const bool is_usual = !list_option.is_given();
    parse_run_export(is_usual ? usual_export_list(n_lanes, with_answers) : list, out, of_records);
    ExportOptions& options = out.files;
    const bool draws = options.draws() || !out.views.empty();
    options.pictures = pictures();
    const bool dark = options.pictures.background == Background::dark && !options.animates();
    if (!options.animates() && options.pictures.film != FilmFormat::gif)
        fail(ErrorCode::wrong_use,
             "--format {} is for animations; name some with --export: gif, gif-attention",
             film_name(options.pictures.film));
    if (!draws && (width > 0 || !options.pictures.formats.empty() || dark || print != PrintForm{}))
        fail(ErrorCode::wrong_use,
             "--width, --height, --font-size, --bare, --format and --look dark are for pictures; name some "
             "with --export: mask, heatmap, "
             "scores or a view; frames and GIFs take --look dark alone");
    options.program = program_name();
    options.command = command_text();
    options.folder = folder;
    options.layers = layers;
    options.heads = heads;
    options.last_rows = last_rows;
    options.f16 = dtype == "f16";
    options.yes = yes_option.is_given();
    options.leaves_out = true;
    out.how = {folder, layers, heads, focus, row, look};
    (void)take_background(out.how.look);
    out.how.pictures = options.pictures;
    out.watch(watch);
    out.how.all_rows = options.all_rows;
    out.how.last_rows = last_rows;
    return out;
}

PictureChoice ExportArguments::pictures() const {
    std::string rest = look;
    PictureChoice choice;
    choice.background = take_background(rest);
    choice.width = width;
    choice.print = print;
    std::string stills = formats;
    choice.film = take_film(stills);
    check_film(choice.film);
    if (!stills.empty() || formats.ends_with(',')) choice.formats = formats_from_list(stills);
    return choice;
}

}  // namespace keyhole
