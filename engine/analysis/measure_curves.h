/// Measures of all lanes by row, updated as the run grows. Definitions: engine/analysis/measure_table.h. Used
/// on the window's thread; knows no GL.
#pragma once

#include "engine/analysis/lane_so_far.h"
#include "engine/analysis/measure_table.h"
#include "engine/trace/run_history.h"

#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// A measure that can be plotted by row.
struct CurveKind {
    std::string_view measure;   ///< name in measures()
    bool needs_shadow = false;  ///< lanes without shadow=on have no values
    bool logarithmic = false;
    bool needs_sinks = false;  ///< only of models with learned sinks
};
std::span<const CurveKind> curve_kinds();
/// Returns the index of a measure in curve_kinds(); -1: it has no curve.
int curve_index(std::string_view measure);
/// Returns whether a run, which may be empty, can have values of a curve. kind: index into curve_kinds().
bool has_curve(const RunHistory& history, int kind);

/// Returns a measure of one head at one row from the shadow: retained_mass, lost_mass, cosine_ideal,
/// cosine_full or output_similarity. NaN: none.
float head_measure(const LaneRecord& record, std::string_view measure, int n_heads, int layer, int head);

class MeasureCurves {
  public:
    void update(const RunHistory& history);
    /// Returns one value per record of the history, NaN where there is none. kind: index into curve_kinds();
    /// lane: index into history.lanes().
    std::span<const float> curve(int kind, int lane) const;

  private:
    struct LaneCurves {
        LaneSoFar so_far;
        std::vector<std::vector<float>> values;  // [kind][record]
    };
    std::uint64_t generation_ = 0;
    std::size_t n_rows_ = 0;
    std::vector<LaneCurves> lanes_;

    void add_row(const RunHistory& history, const StepTrace& step);
};

}  // namespace keyhole
