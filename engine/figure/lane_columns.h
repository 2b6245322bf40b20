/// The picture of lanes side by side: for each its name, its answer and a drawing of its own, such as a heat
/// map, below one heading and above one caption. Plain data in, a drawing out; any thread. Knows no run.
#pragma once

#include "engine/figure/answers.h"
#include "engine/figure/frame.h"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct LaneColumn {
    std::string name;    ///< "1 H2O"
    std::string note;    ///< below it: what the lane keeps, or its settings
    bool warns = false;  ///< the note is a warning
    int look = 0;        ///< see lane_look()
    AnswerLine::Mark mark = AnswerLine::Mark::none;
    std::string answer;  ///< in large type; empty: it is not shown
    /// Returns what stands below, at this width; null: nothing does. A drawing in pixels, of scale 1.
    std::function<Drawing(const FigureSize&)> drawing;
    // A square for each KV head, lit if it held the watched words.
    std::vector<bool> holds = {};  ///< [line by line]; empty: there are no squares
    int squares_across = 1;
    std::string holds_note = {};  ///< above them
};

/// A word of a text.
struct ShownWord {
    std::string text;     ///< with its blanks
    bool gone = false;    ///< struck through
    bool marked = false;  ///< underlined
    bool soft = false;    ///< says that words are left out
};

struct LaneColumnsFigure {
    FigureTexts texts;
    std::vector<ShownWord> words = {};  ///< below the heading
    std::vector<LaneColumn> lanes = {};
    int plot_height = 0;  ///< of the cells of each drawing, in pixels at text of normal size; 0: square cells
    std::string sentence = {};  ///< below the lanes: what happened
    bool warns = false;         ///< it says that something is wrong
    std::string remedy = {};    ///< below the sentence: what mends it; empty: not known
    std::optional<LegendBar> bar = {};
    std::vector<LegendItem> items = {};  ///< of the legend
    int width = 0;                       ///< of the picture in pixels; 0: by the number of lanes
    PrintForm print = {};
    Background background = Background::light;
};
/// Draws at most four lanes beside each other, and the others below them.
Drawing lane_columns_drawing(const LaneColumnsFigure& figure);

}  // namespace keyhole
