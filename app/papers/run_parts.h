/// Parts that the figures of runs share: whole attention matrices, means over heads, and the figures
/// themselves. Main thread; reads a history, runs nothing.
#pragma once

#include "app/papers/figure.h"
#include "engine/figure/reduce.h"

#include <functional>
#include <span>

namespace keyhole::figure_parts {

/// Returns the attention of lane 0 in a head, prompt rows included: [rows, positions], 0 above the diagonal.
/// Throws Error(wrong_use) if the prompt is too long to be recorded whole.
Plane attention_matrix(const RunHistory& run, int layer, int head);
/// Calls each(layer, head) for all query heads.
void each_head(const RunHistory& run, const std::function<void(int, int)>& each);
/// Returns "keyhole-base, 120 + 64 tokens".
std::string run_subtitle(const RunHistory& run);
/// Returns what a legend calls a lane: its own name, else the spec as it is.
std::string lane_title(const std::string& spec);
/// Returns the lane's tokens stored or attended: a lane that keeps k of n tokens has k.
int stored_tokens(const RunHistory& run, int lane);
double entropy_of(std::span<const double> p);

/// Rows of attention of one lane, from a run or from its exported arrays.
struct AttentionRows {
    int n_layers = 0;
    std::vector<int> layers = {};    ///< of a part of a model: the numbers of its layers
    std::int64_t rows_of_layer = 0;  ///< rows x heads
    std::string subtitle;
    /// Calls each(layer, probabilities up to the row's own position) for every row and head.
    std::function<void(const std::function<void(int, std::span<const float>)>&)> for_each;
    /// Returns the model's number of a layer that each() names.
    int layer_number(std::size_t layer) const {
        return layers.empty() ? static_cast<int>(layer) : layers.at(layer);
    }
};
AttentionRows rows_of_run(const RunHistory& run, int lane);
RunPicture sparsity_by_layer(const AttentionRows& rows);
RunPicture sparsity_by_threshold(const AttentionRows& rows);
RunPicture attention_mass(const AttentionRows& rows);

// What decides a finding, of the run of one prompt.
RunGains gains_of_entropy(const RunHistory& run);
RunGains gains_of_forgetting(const RunHistory& run);
RunGains gains_of_masks(const RunHistory& run);
RunGains gains_of_cosine(const RunHistory& run);
RunGains gains_of_punctuation(const RunHistory& run);

RunPicture score_shift(const RunHistory& run);
RunPicture score_entropy(const RunHistory& run);
RunPicture accumulated_scores(const RunHistory& run);
RunPicture toy_matrix(const RunHistory& run);
RunPicture masked_maps(const RunHistory& run);
RunPicture scores_over_steps(const RunHistory& run);
RunPicture cosine_to_ideal(const RunHistory& run);
RunPicture heat_maps_4x4(const RunHistory& run);
RunPicture heat_maps_6x8(const RunHistory& run);
RunPicture kept_by_last_layer(const RunHistory& run);
RunPicture kept_by_every_layer(const RunHistory& run);
RunPicture lifetime_by_position(const RunHistory& run);
RunPicture lifetime_by_class(const RunHistory& run);

}  // namespace keyhole::figure_parts
