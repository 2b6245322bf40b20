/// Rows of a run for display: values by position, NaN where there is nothing to show. Prompt rows come from
/// the prompt's image, decode rows from the records. Only reads the history; window's thread; knows no GL.
#pragma once

#include "engine/analysis/heat_mode.h"
#include "engine/trace/run_history.h"

#include <functional>
#include <span>
#include <string>

namespace keyhole {

/// Used in place of a probability where the token was stored but not visible to the row (dilated gaps, and
/// the single row that released H2O hides).
inline constexpr float kHiddenValue = -1;

/// Returns the index of the lane that processed a row of a lane's past: before a fork its parent, or the
/// parent's.
int lane_of_row(const RunHistory& history, int lane, int row);

/// Returns how many tokens a lane's text has after a row: none follow its end, though other lanes go on.
int n_tokens_at(const RunHistory& history, int lane, int row);

/// Returns the share of a row that the head's learned sink took: what the tokens leave to 1. NaN: the model
/// has no learned sinks, or not every value of the row is known.
float learned_sink_share(const RunHistory& history, int lane, int row, int layer, int head);
/// The same of a row's values as attention_values() writes them.
float left_to_sink(std::span<const float> values);

/// Returns whether a lane has a record of a row, or of the prompt that holds the row. Where it has none it
/// was not there, or its step was not recorded: no value of the row is known.
bool is_recorded(const RunHistory& history, int lane, int row);

/// Writes the attention probabilities of (layer, head) by position: NaN where the position was evicted before
/// the row, kHiddenValue where it was stored but hidden. out: at least row + 1 values, filled up to row.
/// Returns false, with out unchanged, if the row is not recorded.
bool attention_values(const RunHistory& history, int lane, int row, int layer, int head,
                      std::span<float> out);

/// Writes attention or scores, whichever the mode shows, with kNotFinite where an attended position has a
/// value that is not finite.
bool picture_values(const RunHistory& history, int lane, int row, int layer, int head, HeatMode mode,
                    std::span<float> out);

/// Passes the attention of every head at a row to `each`, head by head, as values [row + 1]. Faster than
/// separate calls, since the attended positions are found once per KV head. Values that are not finite become
/// kNotFinite. Returns false if the row is not recorded.
using HeadRow = std::function<void(int layer, int head, std::span<const float> values)>;
bool attention_values_of_all(const RunHistory& history, int lane, int row, const HeadRow& each);

/// Returns the image with the attention of prompt rows [0, n_prompt - 1) for a lane (PromptRows::attention);
/// null if these rows are not recorded.
const PromptRows* prompt_image_of(const RunHistory& history, int lane);

/// A row reduced to maxima over blocks of positions, [ceil((row + 1) / block)]. A block is NaN if it has no
/// value, kHiddenValue if it has no other value. past_sinks: the largest value beyond the first
/// HeadMatrix::kSinks positions, NaN: none.
struct BlockRow {
    std::span<const float> maxima;
    float past_sinks = 0;
};
/// Like attention_values_of_all(), but reduced to blocks of 2^log2_block positions, for thumbnails of many
/// heads. row: at least n_prompt - 1. Returns false if the row is not recorded.
using HeadBlocks = std::function<void(int layer, int head, const BlockRow&)>;
bool attention_blocks_of_all(const RunHistory& history, int lane, int row, int log2_block,
                             const HeadBlocks& each);

/// Writes the pooled scores of a KV head, NaN where not attended. Returns false if the row is not recorded,
/// as are all prompt rows but the last.
bool score_values(const RunHistory& history, int lane, int row, int kv_head, std::span<float> out);

/// Returns the lowest score that was retained at a row; NaN if nothing competed or nothing is recorded.
float threshold_at(const RunHistory& history, int lane, int row, int kv_head);

/// Writes the share of the KV heads [first, last) that still hold each position after the row. out: at least
/// row + 1 values.
void kept_share(const RunHistory& history, int lane, int row, int first, int last, std::span<float> out);

/// Returns one sentence on what the picture lacks or reduces; empty if nothing.
std::string recording_note(const RunHistory& history, int lane, int stride, int dense_from);

/// Returns "L4 KV head 3": the layer and the number within it, as in file names. Users never see indices over
/// all layers.
std::string kv_head_text(const KvLayout& layout, int kv_head);

/// Returns what one pixel of a reduced matrix shows: "each pixel the highest attention of 4×4 cells". side:
/// cells along each side; for 1 the text is empty.
std::string reduction_note(HeatMode mode, bool difference, int side);
/// Returns what an atlas thumbnail shows; it has no scores, whatever the focused view's mode. factor: cells
/// along each side of a block.
std::string atlas_note(HeatMode mode, int n_layers, int n_heads, int factor);

/// Returns the text of the token that a lane consumed at a position, "" beyond its end.
const std::string& token_text(const RunHistory& history, int lane, int position);

}  // namespace keyhole
