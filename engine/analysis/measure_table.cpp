#include "engine/analysis/measure_table.h"

#include "engine/base/error.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

constexpr std::array kMeasures = {
    Measure{"retained_mass", "Retained mass", "1", "sum over p in A of f_p",
            "Share of the full attention row on the tokens that the lane still attends to."},
    Measure{"lost_mass", "Lost mass", "1", "1 - retained_mass = sum over p not in A of f_p",
            "Share of the full attention row on tokens that are evicted or hidden."},
    Measure{"cosine_ideal", "Cosine to Ideal", "1",
            "<a, r> / (|a| |r|), r_p = f_p / sum over I of f for p in I, else 0",
            "Cosine between the lane's attention row and the row that keeps the best k: A2SF's table 2."},
    Measure{"cosine_full", "Cosine to Full", "1", "<a, f> / (|a| |f|)",
            "Cosine between the lane's attention row and the full one: what A2SF's released code measures."},
    Measure{"output_similarity", "Output similarity", "1",
            "<o, u> / (|o| |u|), o = sum of a_p v_p, u = sum of f_p v_p",
            "Cosine between the head's output and that of full attention, before the output projection."},
    Measure{"sink_share", "Sink share", "1", "sum over p < 4 of a_p",
            "Share of the lane's attention on the first four tokens, StreamingLLM's sinks."},
    Measure{"recent_share", "Recent share", "1", "|{p in S_t: p > t - k}| / |S_t|, rows with t + 1 > k",
            "Share of the stored tokens that are among the newest k: 73 to 76 % in TOVA's paper."},
    Measure{"jaccard", "Overlap of kept sets", "1", "|S_t and S'_t| / |S_t or S'_t|, 1 where both are empty",
            "How far two lanes store the same positions in a KV head, over the steps before their texts "
            "diverge."},
    Measure{"lifetime", "Lifetime", "steps",
            "e_p - p, e_p = step that evicted p, or the lane's last step + 1 where p is still stored",
            "Rows after which a token was still stored: TOVA's figure 9 and table 2."},
    Measure{"entropy", "Entropy", "nats", "-sum over v of p_v ln p_v",
            "How undecided the next-token distribution is."},
    Measure{"kl", "KL to lane 0", "nats", "sum over v of p_v (ln p_v - ln q_v), p of lane 0, q of the lane",
            "How far the next-token distribution moved from lane 0's, over the steps before their texts "
            "diverge."},
    Measure{"agreement", "Agreement", "1", "share of steps with argmax p = argmax q",
            "How often lane 0 and the lane have the same most likely next token."},
    Measure{"first_divergence", "First divergence", "step",
            "the least t for which step t - 1 of the lane chose another token than lane 0's",
            "Position of the first token that the lane chooses differently from lane 0."},
};

}  // namespace

std::span<const Measure> measures() {
    return kMeasures;
}

const Measure& measure(std::string_view name) {
    const auto it =
        std::find_if(kMeasures.begin(), kMeasures.end(), [&](const Measure& m) { return m.name == name; });
    KH_ASSERT(it != kMeasures.end(), "no measure {}", name);
    return *it;
}

}  // namespace keyhole
