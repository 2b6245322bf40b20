/// The pictures of a sweep: curves against the first varied key, panels and maps for two keys, quality
/// against memory for several models, and the place of a needle against the length of the text. Plain data
/// in, drawings out. Main thread; measures nothing.
#pragma once

#include "engine/eval/evaluate.h"
#include "engine/eval/sweep_grid.h"
#include "engine/figure/curves.h"
#include "engine/figure/value_map.h"

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// A lane on a model, and what was measured of it.
struct SweepPoint {
    std::string model;
    std::string lane;                 ///< as typed
    std::vector<std::string> values;  ///< one per Vary, see GridCell
    double kv_bytes = 0;              ///< of K and V that it stores after a context, divided by its tokens
    LaneScore score;
    std::vector<Outcome> outcomes = {};  ///< question by question, to compare any two lanes
    bool is_bound = false;               ///< of the floor or the ceiling: no finding is about it
};

/// The results of a sweep on one set of questions. Points stand model by model; the others of a model are
/// compared with its first one.
struct SweepResult {
    std::string name, description;
    bool is_task = false;
    std::vector<MeasureKind> measures;  ///< of a user's own questions
    std::vector<Vary> varies;
    std::vector<SweepPoint> points;
    int length = 0, depth = 0;  ///< of a needle map: tokens, and per cent of the text before the needle
    std::size_t against = 0;    ///< of a model's points, the one that differences refer to
    std::string floors = {};    ///< lines on the floor of each budget, and on lanes that protect otherwise
};

/// Returns a lane as typed with the varied values: those that equal a preset's default too.
std::string lane_label(const std::string& typed, std::span<const std::string> values,
                       std::span<const Vary> varies);

/// The quantity of a score that is drawn.
struct SweepQuantity {
    std::string suffix;  ///< of the file's name
    std::string title, y_label, caption;
    bool is_paired = false;                        ///< compared with the first lane, question by question
    std::function<Estimate(const LaneScore&)> of;  ///< with its interval
    std::function<std::string(const LaneScore&)> of_first{};  ///< paired: what the first lane has by itself
};
/// Returns right answers and their difference to the first lane; for texts, the paired ratio of perplexities
/// and the perplexity; for a user's own questions, each measure and its difference.
std::vector<SweepQuantity> sweep_quantities(const SweepResult& result);

/// Returns a plot of a quantity. One key: a curve a lane, a panel a model. More keys: a curve for each value
/// of the second, a panel for each lane, model and value of the others. No key, or one value: lanes stand
/// side by side. share_lines: level lines at these shares of the first lane's value.
CurvePlot sweep_plot(const SweepResult& result, const SweepQuantity& quantity,
                     std::span<const double> share_lines = {});
/// Returns several tasks side by side: a curve a lane with its values, or a model if there are several.
CurvePlot tasks_plot(std::span<const SweepResult> results,
                     const std::function<SweepQuantity(const SweepResult&)>& quantity_of);
/// Adds a value without interval to the curve of a lane, at a word that is added if it is new.
void add_column(CurvePlot& plot, std::string_view word, std::string_view lane, double value);
/// Returns the same of two keys as a map: columns are the values of the first key, rows those of the second.
ValueMap sweep_map(const SweepResult& result, const SweepQuantity& quantity);
/// Returns a quantity against the bytes of K and V. Several models: a curve a model, a panel a lane; one: a
/// curve a lane.
CurvePlot memory_plot(const SweepResult& result, const SweepQuantity& quantity);
/// Returns whether the points store different numbers of bytes, all known.
bool has_several_bytes(const SweepResult& result);
/// Returns the share of right answers by depth (rows) and length (columns), a panel a lane and model.
ValueMap depth_map(std::span<const SweepResult> cells);
/// Returns the same as text: a table a lane and model.
std::string depth_table(std::span<const SweepResult> cells);

}  // namespace keyhole
