/// What a run's records add up to, lane by lane: for run.json, `decode` and `replay`. Pure; any thread; knows trace.
#pragma once

#include "engine/analysis/token_class.h"
#include "engine/trace/run_history.h"

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// Means over a lane's decode rows; equations in measures.h. NaN or empty: nothing to take a mean of.
struct LaneMetrics {
    static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

    int n_rows = 0;  ///< decode rows
    std::int64_t evictions = 0;
    double entropy = kNone;

    // Against lane 0.
    int n_compared = 0;  ///< rows with a KL: until free lanes part
    double kl = kNone, agreement = kNone;
    std::optional<int> first_divergence;

    // Of the attention.
    int n_shadow_rows = 0;
    double retained_mass = kNone, cosine_ideal = kNone, cosine_full = kNone, output_similarity = kNone;
    double sink_share = kNone;
    /// The same four by (layer, query head), [n_layers * n_heads]; empty without a shadow.
    std::vector<double> retained_by_head, cosine_ideal_by_head, cosine_full_by_head, output_by_head;

    // Of the kept sets, means over KV heads too.
    double recent_share = kNone;
    std::vector<double> recent_by_layer;       ///< [n_layers], NaN where no row had more than k tokens
    std::vector<double> lifetime_by_position;  ///< of the first kLifetimePositions positions that there are
    std::array<double, kTokenClasses> lifetime_by_class;  ///< NaN where the text has none
    std::array<int, kTokenClasses> tokens_by_class{};
    double lifetime = kNone;  ///< of all tokens
    /// [lane][n_layers] over rows before the texts part, the record of the prompt included; 1 with itself, NaN without such rows.
    std::vector<std::vector<double>> jaccard;
};

inline constexpr int kLifetimePositions = 25;  ///< TOVA's figure 9

/// One for every lane of the history.
std::vector<LaneMetrics> run_metrics(const RunHistory& history);

/// Mean of [n_layers * n_heads] values over the heads of each layer.
std::vector<double> by_layer(std::span<const double> by_head, int n_layers);
/// Mean; NaN of nothing.
double mean_of(std::span<const double> values);

/// The means that a table of lanes shows, in its order, as (name in measures(), member).
std::span<const std::pair<std::string_view, double LaneMetrics::*>> lane_means();

}  // namespace keyhole
