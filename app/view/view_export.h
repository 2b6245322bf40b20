/// Words of --export for what views of the window show, so that "copy as command" makes the same file without one. Drawn by the window's
/// own code from the records. One thread; knows no GL.
#pragma once

#include "app/view/focus_picture.h"
#include "app/view/view_files.h"
#include "app/view/view_state.h"
#include "engine/trace/run_history.h"

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// One view. As text:
///   view, view-mask, view-scores             the large heat map of the focused lane, as file.picture saves it
///   difference:A-B, difference-mask:A-B, difference-scores:A-B    lane A minus lane B
///   overlap:A-B                              kept sets, a line a KV head
///   curve:MEASURE, tokens:P+P, watched:FIRST..LAST, watched:WORDS  the curves panel
///   atlas                                    all heads of the focused lane
/// Lanes are numbered as the window does: by their order at the end of the run.
struct ViewWord {
    enum class Kind { picture, difference, overlap, measure, tokens, watched, atlas };
    Kind kind = Kind::picture;
    HeatMode mode = HeatMode::attention;
    int a = 0, b = 0;            ///< lanes
    std::string words;           ///< measure, or words to be found
    std::vector<int> positions;  ///< of tokens; or of the watched span, its first and last
    bool operator==(const ViewWord&) const = default;
};

/// Takes the words of views out of a list of --export. Throws Error(wrong_use) for one that is not whole, or a measure that there is
/// not.
std::vector<ViewWord> take_view_words(std::string& list);
std::string format_view_word(const ViewWord& word);
/// "view, view-mask, ...", for help.
std::string view_word_list();

/// How views are drawn, beyond their words.
struct ViewExport {
    std::filesystem::path folder;
    std::vector<int> layers, heads;  ///< of pictures and of tokens' scores; empty: all
    int focus = 0;                   ///< lane on show
    int row = -1;                    ///< the shown row; -1: the last
    std::string look;                ///< see format_look
};

/// Colours and range where they are not those of a new window, comma between: "cividis", "linear", "0.001..0.5", "gamma=0.5", "no-sinks", "no-nan",
/// "clips". Empty: as a new window has them.
std::string format_look(const ViewState& view);
/// Throws Error(wrong_use).
void parse_look(std::string_view look, ViewState& view);

/// What a run has of what views may name, or will have when it is made: -1 where that shows only then.
struct ViewLimits {
    int n_layers = 0, n_heads = 0;
    int n_lanes = -1;                  ///< at its end
    int first_row = 0, last_row = -1;  ///< rows that can be shown
};
ViewLimits view_limits(const RunHistory& history);

/// Throws Error(wrong_use) for a lane, layer, head, row, position or look that is not there, and for options of views where `words`
/// is empty.
void check_views(const std::vector<ViewWord>& words, const ViewExport& how, const ViewLimits& limits);

/// Lanes with a record at the end of the run, the focused one first: as curves are drawn.
std::vector<ShownLane> shown_lanes(const RunHistory& history, int focus);

/// The views as files in the folder; returns their names. stride, dense_from: which rows the recorder kept. progress: 0..1. Throws
/// Error(wrong_use) as check_views, and for words that are not in the text; Error(io).
std::vector<std::string> write_views(const RunHistory& history, const std::vector<ViewWord>& words,
                                     const ViewExport& how, int stride, int dense_from,
                                     const std::function<void(double)>& progress = {});

}  // namespace keyhole
