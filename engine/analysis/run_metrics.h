/// Summarises a run's records lane by lane, for run.json, `decode` and `replay`. Pure functions, for any
/// thread; knows records.
#pragma once

#include "engine/analysis/token_class.h"
#include "engine/analysis/word_class.h"
#include "engine/trace/run_history.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// Means over a lane's decode rows. Equations: measure_table.h. NaN or empty: no values to average.
struct LaneMetrics {
    static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

    int n_rows = 0;  ///< decode rows
    std::int64_t evictions = 0;
    double entropy = kNone;
    std::vector<double> means;  ///< [measures()], of those with Measure::of_row

    // Compared with lane 0.
    int n_compared = 0;  ///< rows with a KL: until free-running lanes diverge
    double kl = kNone, agreement = kNone;
    std::optional<int> first_divergence;

    // Attention.
    int n_shadow_rows = 0;
    double retained_mass = kNone, cosine_ideal = kNone, cosine_full = kNone, output_similarity = kNone;
    double sink_share = kNone;
    /// The last four means by (layer, query head), [n_layers * n_heads]; empty without a shadow.
    std::vector<double> retained_by_head, cosine_ideal_by_head, cosine_full_by_head, output_by_head;

    // Kept sets; these are means over KV heads too.
    double recent_share = kNone;
    std::vector<double> recent_by_layer;  ///< [n_layers], NaN where no row had more than k tokens
    /// Lifetimes of the first kLifetimePositions positions, fewer if the text is shorter.
    std::vector<double> lifetime_by_position;
    std::array<double, kTokenClasses> lifetime_by_class;  ///< NaN for classes that the text lacks
    std::array<int, kTokenClasses> tokens_by_class{};
    /// The same by Keyhole's own classes of words (word_class.h), beside the tags of TOVA's table 2.
    std::array<double, kWordClasses> lifetime_by_word_class;
    std::array<int, kWordClasses> tokens_by_word_class{};
    double lifetime = kNone;  ///< of all tokens
    /// [lane][n_layers], over rows before the texts diverge, including the record of the prompt; 1 with
    /// itself, NaN if there are no such rows.
    std::vector<std::vector<double>> jaccard;
};

inline constexpr int kLifetimePositions = 25;  ///< as in TOVA's figure 9

/// Returns one entry per lane of the history.
std::vector<LaneMetrics> run_metrics(const RunHistory& history);

/// Averages [n_layers * n_heads] values over the heads of each layer.
std::vector<double> by_layer(std::span<const double> by_head, int n_layers);
/// Returns the mean; NaN if there are no values.
double mean_of(std::span<const double> values);

/// A mean that a table of lanes shows.
struct LaneMean {
    std::string_view name;        ///< in measures()
    double LaneMetrics::*member;  ///< null: it is means[index]
    std::size_t index;
    double of(const LaneMetrics& m) const { return member != nullptr ? m.*member : m.means[index]; }
};
/// Returns the means that a table of lanes shows, in order.
std::span<const LaneMean> lane_means();

}  // namespace keyhole
