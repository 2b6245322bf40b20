/// The parts of line plots: ranges, axes, lines with their markers. Used by curves.cpp only; any thread.
/// Lengths are units of text of normal size.
#pragma once

#include "engine/figure/canvas.h"
#include "engine/figure/curves.h"

#include <limits>
#include <map>
#include <string>
#include <vector>

namespace keyhole::curve_parts {

// Sizes in em of DejaVu Sans times 1.16, its height from ascent to descent; the background gives the colours.
inline const TextStyle kTitle{1.16f * 18.0f, {}, TextAlign::left, FontWeight::bold};
inline const TextStyle kSubtitle{1.16f * 13.0f}, kAxisTitle{1.16f * 13.0f};
inline const TextStyle kSmall{1.16f * 12.0f};
inline const TextStyle kPanelTitle{1.16f * 12.0f, {}, TextAlign::left, FontWeight::bold};

TextStyle styled(TextStyle style, Rgb8 color, TextAlign align = TextAlign::left, bool upward = false);

struct Range {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    void add(double v);
};

struct Ranges {
    Range x, y;
};
/// Returns what the axes cover. The curves' points, bars and crosses lie within.
Ranges ranges_of(const CurvePlot& plot, const std::vector<const Curve*>& curves);

/// Converts data to places.
struct Axes {
    double left, top, width, height;
    Range x, y;
    bool log_x, log_y;
    double px(double v) const;
    double py(double v) const;
    double bottom() const { return top + height; }
    double right() const { return left + width; }
};

/// The words below an axis of words. A word that is wider than its place is broken behind colons, commas and
/// blanks; if that does not help, all words stand upright.
struct WordLabels {
    static constexpr double kLine = 16;
    std::vector<std::vector<std::string>> lines = {};  ///< of each word
    bool upward = false;
    double more = 0;  ///< height that they take beyond one line
};
/// width: of the axis.
WordLabels word_labels(const std::vector<std::string>& words, double width);

/// How a line looks.
struct LineLook {
    Stroke stroke;
    int marker = -1;  ///< -1: none (a threshold)
};
/// The looks of a plot's curves, by name, in order of appearance.
class Looks {
  public:
    /// ordered: see CurvePlot.
    Looks(const std::vector<const Curve*>& curves, const FigureColors& colors, bool ordered = false);
    const LineLook& of(const Curve& curve) const { return looks_.at(curve.name); }
    /// Returns the curves that a legend lists: one of each name.
    const std::vector<const Curve*>& listed() const { return listed_; }

  private:
    std::map<std::string, LineLook> looks_;
    std::vector<const Curve*> listed_;
};

/// The texts of an axis.
struct AxisTexts {
    bool x = true, y = true;
};
void draw_axes(Canvas& canvas, const CurvePlot& plot, const Axes& axes,
               const std::vector<const Curve*>& curves, AxisTexts texts = {});
/// Draws all curves of a panel. Bars of several curves stand side by side.
void draw_curves(Canvas& canvas, const CurvePlot& plot, const std::vector<Curve>& curves, const Axes& axes,
                 const Looks& looks);
/// Draws a line with its marker, as a legend shows it.
void draw_sample(Canvas& canvas, double x, double y, double width, const LineLook& look);

/// A name beside the end of its line.
struct EndLabel {
    const Curve* curve = nullptr;
    double x = 0, y = 0;  ///< the end of the line
    double at = 0;        ///< y of the label
    bool has_end = false;
};
/// Returns the labels of the curves' ends from top to bottom, at least `gap` apart, as near to their ends as
/// that allows, within the axes' height where they fit.
std::vector<EndLabel> end_labels(const std::vector<const Curve*>& curves, const Axes& axes, double gap);
/// Returns the curves of a plot without panels that have a name beside or below it: all; of an ordered ramp
/// the first, the last and some between, with the thresholds.
std::vector<const Curve*> named_curves(const CurvePlot& plot);

}  // namespace keyhole::curve_parts
