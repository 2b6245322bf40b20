/// Defines the --export words for views of the window, so that "copy as command" writes the same files
/// without a window. The window's own code draws them from the records. One thread; knows no GL.
#pragma once

#include "app/view/pictures.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// As text, a word is:
///   view, view-mask, view-scores           the large heat map of the focused lane, as file.picture saves it
///   story, story-mask, story-scores        the story: answers, and what each lane attends to meanwhile
///   lanes, lanes-mask, lanes-scores        the large heat map of all lanes, side by side
///   lanes:A+B, ...                         the same of some lanes
///   difference:A-B, difference-mask:A-B, difference-scores:A-B    lane A minus lane B
///   overlap:A-B                            kept sets, a line a KV head
///   curve:MEASURE, tokens:P+P, watched:FIRST..LAST, watched:WORDS    the curves panel
///   atlas                                  heads of the focused lane
///   answers                                what each lane answers by itself
///   page                                   the run as one HTML file
/// Lanes are numbered as the window does: by their order at the end of the run. See picture_kinds().

/// Removes the view words from an --export list and returns them. Throws Error(wrong_use) for an incomplete
/// word or an unknown measure.
std::vector<ViewWord> take_view_words(std::string& list);
std::string format_view_word(const ViewWord& word);
std::vector<std::string_view> view_names();
/// Returns "view, view-mask, ..." for the help.
std::string view_word_list();

/// Options for drawing views, beyond their words.
struct ViewExport {
    std::filesystem::path folder;
    std::vector<int> layers, heads;  ///< of heads, scores of tokens and the atlas; empty: all
    int focus = 0;                   ///< the focused lane
    int row = -1;                    ///< the shown step; -1: the last one
    std::string look;                ///< see format_look; without the background, which `pictures` names
    /// How pictures are written. By default curves are SVG, all others PNG.
    PictureChoice pictures = {};
    std::vector<ShownAnswer> answers = {};  ///< marked; for `answers`
    std::string right_answer = {};          ///< empty: not known
    /// Of heat maps and the atlas: false leaves the prompt's rows out.
    bool all_rows = true;
    int last_rows = 0;  ///< of heat maps and the atlas: only this many rows up to the shown one; 0: all
    /// Words, or FIRST..LAST, that heat maps mark and pages explain, where the text has them.
    std::string watch = {};
    std::string program = {}, command = {};  ///< for pages: what made them; empty: not known
    /// Gets a line for each picture that does not fit; null: such a picture ends the export.
    std::vector<std::string>* left_out = nullptr;
};

/// Lists the colours and range that differ from those of a new window, separated by commas: "cividis",
/// "linear", "0.001..0.5", "gamma=0.5", "no-sinks", "no-nan", "clips". Returns "" if none differ.
std::string format_look(const ViewState& view);
/// Removes "dark" and "light" from a look and returns the background.
Background take_background(std::string& look);
/// Throws Error(wrong_use).
void parse_look(std::string_view look, ViewState& view);

/// Counts and rows that view words may refer to. -1: known only after the run is made.
struct ViewLimits {
    int n_layers = 0, n_heads = 0;
    int n_lanes = -1;                  ///< at the end of the run
    int first_row = 0, last_row = -1;  ///< rows that can be shown
};
ViewLimits view_limits(const RunHistory& history);

/// Throws Error(wrong_use) for a lane, layer, head, row, position or look that does not exist, and for view
/// options if `words` is empty.
void check_views(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits);

/// The files that words make, and their bytes, before the run is made.
struct ViewsSize {
    std::int64_t n_files = 0, n_bytes = 0;
};
/// limits: with the last row that may come.
ViewsSize views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits);
/// Throws Error(wrong_use) for a word that makes files of more than 64 heads that nobody chose.
void check_views_size(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits);

/// Writes the views into the folder and returns the file names. stride, dense_from: which rows the recorder
/// stored. progress: 0..1, after each file; it may throw to stop. Throws Error(wrong_use) as check_views
/// does, and for words that the text does not contain; Error(io).
std::vector<std::string> write_views(const RunHistory& history, const std::vector<ViewWord>& words,
                                     const ViewExport& how, int stride, int dense_from,
                                     const std::function<void(double)>& progress = {});

}  // namespace keyhole
