#include "engine/analysis/measure_table.h"

#include "engine/analysis/lane_so_far.h"
#include "engine/analysis/no_value.h"
#include "engine/analysis/run_metrics.h"
#include "engine/base/error.h"

#include <algorithm>
#include <array>
#include <vector>

namespace keyhole {

namespace {

template <auto Member>
float of_measures(const LaneRecord& record) {
    return record.measures.*Member;
}

template <auto Member>
float by_head(const ShadowRow& shadow, std::size_t i) {
    const std::vector<float>& values = shadow.*Member;
    return i < values.size() ? values[i] : kNoValue;
}

constexpr std::array kMeasures = {
    Measure{.name = "retained_mass",
            .label = "Retained mass",
            .unit = "1",
            .equation = "sum over p in A of f_p",
            .help = "Share of the full attention row on the tokens that the lane still attends to.",
            .of_row = of_measures<&RowMeasures::retained_mass>,
            .of_head = by_head<&ShadowRow::retained_mass>,
            .mean = &LaneMetrics::retained_mass,
            .column = 4,
            .curve = 7,
            .needs_shadow = true},
    Measure{.name = "lost_mass",
            .label = "Lost mass",
            .unit = "1",
            .equation = "1 - retained_mass = sum over p not in A of f_p",
            .help = "Share of the full attention row on tokens that are evicted or hidden.",
            .of_row = [](const LaneRecord& record) { return 1 - record.measures.retained_mass; },
            .of_head = [](const ShadowRow& shadow,
                          std::size_t i) { return 1 - by_head<&ShadowRow::retained_mass>(shadow, i); },
            .curve = 8,
            .needs_shadow = true,
            .logarithmic = true},
    Measure{
        .name = "cosine_ideal",
        .label = "Cosine to Ideal",
        .unit = "1",
        .equation = "<a, r> / (|a| |r|), r_p = f_p / sum over I of f for p in I, else 0",
        .help = "Cosine between the lane's attention row and the row that keeps the best k: A2SF's table 2.",
        .of_row = of_measures<&RowMeasures::cosine_ideal>,
        .of_head = by_head<&ShadowRow::cosine_ideal>,
        .mean = &LaneMetrics::cosine_ideal,
        .column = 5,
        .curve = 9,
        .needs_shadow = true},
    Measure{.name = "cosine_full",
            .label = "Cosine to Full",
            .unit = "1",
            .equation = "<a, f> / (|a| |f|)",
            .help = "Cosine between the lane's attention row and the full one: what A2SF's released code "
                    "measures.",
            .of_row = of_measures<&RowMeasures::cosine_full>,
            .of_head = by_head<&ShadowRow::cosine_full>,
            .mean = &LaneMetrics::cosine_full,
            .column = 6,
            .curve = 10,
            .needs_shadow = true},
    Measure{.name = "output_similarity",
            .label = "Output similarity",
            .unit = "1",
            .equation = "<o, u> / (|o| |u|), o = sum of a_p v_p, u = sum of f_p v_p",
            .help = "Cosine between the head's output and that of full attention, before the output "
                    "projection.",
            .of_row = of_measures<&RowMeasures::output_similarity>,
            .of_head = by_head<&ShadowRow::output_similarity>,
            .mean = &LaneMetrics::output_similarity,
            .column = 7,
            .curve = 11,
            .needs_shadow = true},
    Measure{.name = "sink_share",
            .label = "Sink share",
            .unit = "1",
            .equation = "sum over p < 4 of a_p",
            .help = "Share of the lane's attention on the first four tokens, StreamingLLM's sinks.",
            .of_row = of_measures<&RowMeasures::sink_share>,
            .mean = &LaneMetrics::sink_share,
            .column = 8,
            .curve = 6},
    Measure{.name = "learned_sink",
            .label = "Learned sink",
            .unit = "1",
            .equation = "1 - sum over p in A of a_p",
            .help = "Share of the lane's attention that the model's learned sinks take: no token's, neither "
                    "kept nor lost.",
            .of_row = of_measures<&RowMeasures::learned_sink>,
            .curve = 14,
            .needs_sinks = true},
    Measure{.name = "recent_share",
            .label = "Recent share",
            .unit = "1",
            .equation = "|{p in S_t: p > t - k}| / |S_t|, rows with t + 1 > k",
            .help = "Share of the stored tokens that are among the newest k: 73 to 76 % in TOVA's paper.",
            .so_far = recent_share_so_far,
            .mean = &LaneMetrics::recent_share,
            .column = 9,
            .curve = 5},
    Measure{.name = "jaccard",
            .label = "Overlap of kept sets",
            .unit = "1",
            .equation = "|S_t and S'_t| / |S_t or S'_t|, 1 where both are empty",
            .help =
                "How far two lanes store the same positions in a KV head. The mean takes the steps before "
                "their texts diverge.",
            .so_far = jaccard_so_far,
            .curve = 4},
    Measure{
        .name = "lifetime",
        .label = "Lifetime",
        .unit = "steps",
        .equation = "e_p - p, e_p = step that evicted p, or the lane's last step + 1 where p is still stored",
        .help = "Rows after which a token was still stored: TOVA's figure 9 and table 2.",
        .mean = &LaneMetrics::lifetime,
        .column = 10},
    Measure{.name = "entropy",
            .label = "Entropy",
            .unit = "nats",
            .equation = "-sum over v of p_v ln p_v",
            .help = "How undecided the next-token distribution is.",
            .of_row = [](const LaneRecord& record) { return record.entropy; },
            .mean = &LaneMetrics::entropy,
            .column = 3,
            .curve = 2},
    Measure{.name = "kl",
            .label = "KL to lane 0",
            .unit = "nats",
            .equation = "sum over v of p_v (ln p_v - ln q_v), p of lane 0, q of the lane",
            .help =
                "How far the next-token distribution moved from lane 0's. The mean takes the steps before "
                "their texts diverge.",
            .of_row = [](const LaneRecord& record) { return record.kl.value_or(kNoValue); },
            .mean = &LaneMetrics::kl,
            .column = 1,
            .curve = 1,
            .logarithmic = true},
    Measure{.name = "agreement",
            .label = "Agreement",
            .unit = "1",
            .equation = "share of steps with argmax p = argmax q",
            .help = "How often lane 0 and the lane have the same most likely next token.",
            .so_far = agreement_so_far,
            .mean = &LaneMetrics::agreement,
            .column = 2,
            .curve = 3},
    Measure{.name = "first_divergence",
            .label = "First divergence",
            .unit = "step",
            .equation = "the least t for which step t - 1 of the lane chose another token than lane 0's",
            .help = "Position of the first token that the lane chooses differently from lane 0."},
    Measure{.name = "kv_megabytes",
            .label = "Keys and values",
            .unit = "MB",
            .equation = "bytes of K and V that are stored after the step, in millions",
            .help = "How large the lane's cache is, without room that is allocated and not used.",
            .of_row =
                [](const LaneRecord& record) {
                    return static_cast<float>(1e-6 * double(record.use.stored_bytes));
                },
            .curve = 12},
    Measure{.name = "kv_peak_megabytes",
            .label = "Peak of keys and values",
            .unit = "MB",
            .equation = "the most bytes of K and V that were stored at a time up to the step, in millions",
            .help = "How large the lane's cache has been: before it evicts, a prompt in one piece is stored "
                    "whole, and each step stores its own token.",
            .so_far = kv_peak_so_far,
            .curve = 13},
    Measure{
        .name = "kv_paged_megabytes",
        .label = "Keys and values in pages",
        .unit = "MB",
        .equation = "16 b n / 10^6, n = pages of 16 neighbours of the text, by layer, of which any KV head "
                    "of the layer stores a token; b = bytes of K and V of a token in the layer",
        .help = "How much memory a paged cache would hold: it frees 16 tokens of all KV heads of a layer at "
                "once, or nothing.",
        .so_far = kv_paged_so_far,
        .curve = 15},
};

}  // namespace

std::span<const Measure> measures() {
    return kMeasures;
}

std::vector<const Measure*> measures_by(int Measure::*place) {
    std::vector<const Measure*> placed;
    for (const Measure& one : kMeasures)
        if (one.*place > 0) placed.push_back(&one);
    std::sort(placed.begin(), placed.end(),
              [&](const Measure* a, const Measure* b) { return a->*place < b->*place; });
    return placed;
}

const Measure& measure(std::string_view name) {
    const auto it =
        std::find_if(kMeasures.begin(), kMeasures.end(), [&](const Measure& m) { return m.name == name; });
    KH_ASSERT(it != kMeasures.end(), "no measure {}", name);
    return *it;
}

}  // namespace keyhole
