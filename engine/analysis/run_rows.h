/// Rows of a run as the window shows them: by position, NaN where there is nothing to show. Prompt rows come
/// from the prompt's image, decode rows from the records. Pure reading; window thread; knows no GL.
#pragma once

#include "engine/analysis/heat_mode.h"
#include "engine/trace/run_history.h"

#include <functional>
#include <span>
#include <string>

namespace keyhole {

/// In place of a probability: the token was stored, and the row did not see it (dilated gaps, released H2O's one-row blink).
inline constexpr float kHiddenValue = -1;

/// Index of the lane that lived a row of a lane's past: before a fork its parent, or the parent's.
int lane_of_row(const RunHistory& history, int lane, int row);

/// Attention probabilities of (layer, head) at a row; out [>= row + 1] is filled up to row. NaN where the
/// position was evicted before, kHiddenValue where it was stored and hidden. False, out untouched: this row is not recorded.
bool attention_values(const RunHistory& history, int lane, int row, int layer, int head,
                      std::span<float> out);

/// The one of the two that a picture of the mode shows, with kNotFinite where a position was attended to and its value is none.
bool picture_values(const RunHistory& history, int lane, int row, int layer, int head, HeatMode mode,
                    std::span<float> out);

/// Attention of every head at a row: `each` gets values [row + 1] of one head after the other. Faster than one
/// by one, since the attended positions are found once a KV head; values that are none are kNotFinite. False: not recorded.
using HeadRow = std::function<void(int layer, int head, std::span<const float> values)>;
bool attention_values_of_all(const RunHistory& history, int lane, int row, const HeadRow& each);

/// The image that holds attention of the prompt's rows [0, n_prompt - 1) for a lane (PromptRows::attention); null: those rows are not
/// recorded.
const PromptRows* prompt_image_of(const RunHistory& history, int lane);

/// A row as maxima over blocks of positions, [ceil((row + 1) / block)], NaN where a block has no value, kHiddenValue where it has no
/// other; and the largest beyond the first HeadMatrix::kSinks positions, NaN: none.
struct BlockRow {
    std::span<const float> maxima;
    float past_sinks = 0;
};
/// What attention_values_of_all() gives, reduced to blocks of 2^log2_block positions on the way: for thumbnails of many heads. For rows
/// from n_prompt - 1 on. False: not recorded.
using HeadBlocks = std::function<void(int layer, int head, const BlockRow&)>;
bool attention_blocks_of_all(const RunHistory& history, int lane, int row, int log2_block,
                             const HeadBlocks& each);

/// Pooled scores of a KV head; NaN where not attended. False: not recorded (all prompt rows but the last).
bool score_values(const RunHistory& history, int lane, int row, int kv_head, std::span<float> out);

/// Lowest score that stayed at a row, NaN where nothing competed or nothing is recorded.
float threshold_at(const RunHistory& history, int lane, int row, int kv_head);

/// Share of the KV heads [first, last) that still hold each position after the row; out [>= row + 1].
void kept_share(const RunHistory& history, int lane, int row, int first, int last, std::span<float> out);

/// What the picture lacks or reduces, one sentence; empty: nothing.
std::string recording_note(const RunHistory& history, int lane, int stride, int dense_from);

/// "L4 KV head 3": layer and number within it, as files name it; indices over all layers are for no one's eyes.
std::string kv_head_text(const KvLayout& layout, int kv_head);

/// What one pixel of a reduced matrix stands for: "each pixel the highest attention of 4×4 cells"; side: cells each way. Empty for 1.
std::string reduction_note(HeatMode mode, bool difference, int side);
/// What an atlas thumbnail shows beside the focused view's mode: it has no scores. factor: cells of a block, each way.
std::string atlas_note(HeatMode mode, int n_layers, int n_heads, int factor);

/// Text of the token that a lane consumed at a position, "" beyond its end.
const std::string& token_text(const RunHistory& history, int lane, int position);

}  // namespace keyhole
