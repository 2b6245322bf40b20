#include "engine/analysis/run_rows.h"

#include "engine/analysis/head_matrix.h"
#include "engine/analysis/no_value.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/figure/reduce.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

int lane_of_row(const RunHistory& history, int lane, int row) {
    const auto lanes = history.lanes();
    for (std::size_t i = to_index(lane);
         lanes[i].forked_from >= 0 && row <= lanes[i].forked_at && !lanes[i].replayed; i = to_index(lane))
        lane = lanes[i].forked_from;
    return lane;
}

int n_tokens_at(const RunHistory& history, int lane, int row) {
    return std::min(row, history.lanes()[to_index(lane)].last_row) + 1;
}

namespace {

/// Returns the prompt image that holds this row of the lane; null if there is none.
const PromptRows* prompt_image(const RunHistory& history, int lane, int row) {
    if (row >= history.n_prompt() - 1) return nullptr;
    lane = lane_of_row(history, lane, row);
    // Lanes that evict inside the prompt saw other rows than the image shows. An added lane saw the same
    // rows.
    const int first = std::max(history.lanes()[to_index(lane)].first_row, history.steps().front()->row);
    const LaneRecord* record = history.lane_record(first, lane);
    if (record == nullptr || record->info->policy.prefill == PrefillMode::stepwise) return nullptr;
    // A lane that shares KV heads differently has its own image, or none if it came later.
    return record->info->layout != nullptr || record->prompt_rows != nullptr
               ? record->prompt_rows.get()
               : history.steps().front()->prompt_rows.get();
}

/// window: of the layer; 0: none.
void image_row(const PromptRows& image, std::size_t head, int row, int window, std::span<float> out) {
    const std::size_t size = to_index(image.size);
    const std::uint16_t* line =
        image.attention.data() + (head * size + to_index(row / image.reduction)) * size;
    for (int p = 0; p <= row; ++p) out[to_index(p)] = float_from_fp16(line[p / image.reduction]);
    // Cells of a reduced image may hold positions on both sides of the model's window.
    if (window > 0 && image.reduction == 1)
        for (int p = 0; p <= row - window; ++p) out[to_index(p)] = kHiddenValue;
}

int window_of(const RunHistory& history, int layer) {
    const std::vector<int>& window = history.run().config.window;
    return window.empty() ? 0 : window[to_index(layer)];
}

const RowBlock* row_block(const RunHistory& history, int lane, int row) {
    lane = lane_of_row(history, lane, row);
    const LaneRecord* record = history.lane_record(row, lane);
    return record == nullptr ? nullptr : record->rows.get();
}

}  // namespace

bool attention_values(const RunHistory& history, int lane, int row, int layer, int head,
                      std::span<float> out) {
    const KvLayout& layout = history.layout(lane);
    if (const PromptRows* image = prompt_image(history, lane, row)) {
        image_row(*image, to_index(layer * layout.n_heads() + head), row, window_of(history, layer), out);
        return true;
    }
    lane = lane_of_row(history, lane, row);
    if (!history.attention_row(lane, row, layer, head, out)) return false;
    const int g = layout.kv_head_from_head(layer, head);
    for (int p = 0; p <= row; ++p)
        if (!history.attended(lane, g, p, row))
            out[to_index(p)] = history.hidden(lane, g, p, row) ? kHiddenValue : kNoValue;
    return true;
}

float left_to_sink(std::span<const float> values) {
    double of_tokens = 0;
    for (const float value : values)
        if (value > 0) of_tokens += static_cast<double>(value);
    return std::isfinite(of_tokens) ? static_cast<float>(std::clamp(1 - of_tokens, 0.0, 1.0)) : kNoValue;
}

float learned_sink_share(const RunHistory& history, int lane, int row, int layer, int head) {
    if (!history.run().config.has_sinks) return kNoValue;
    const PromptRows* image = prompt_image(history, lane, row);
    if (image != nullptr && image->reduction > 1) return kNoValue;  // it holds maxima
    std::vector<float> values(to_index(row) + 1);
    return attention_values(history, lane, row, layer, head, values) ? left_to_sink(values) : kNoValue;
}

bool is_recorded(const RunHistory& history, int lane, int row) {
    return row < history.steps().front()->row ||
           history.lane_record(row, lane_of_row(history, lane, row)) != nullptr;
}

bool picture_values(const RunHistory& history, int lane, int row, int layer, int head, HeatMode mode,
                    std::span<float> out) {
    const int g = history.layout(lane).kv_head_from_head(layer, head);
    if (!(mode == HeatMode::score ? score_values(history, lane, row, g, out)
                                  : attention_values(history, lane, row, layer, head, out)))
        return false;
    const int by = lane_of_row(history, lane, row);
    mark_not_finite(out.first(to_index(row) + 1), [&](int p) { return history.attended(by, g, p, row); });
    return true;
}

bool attention_values_of_all(const RunHistory& history, int lane, int row, const HeadRow& each) {
    const KvLayout& layout = history.layout(lane);
    std::vector<float> values(to_index(row) + 1);
    if (const PromptRows* image = prompt_image(history, lane, row)) {
        for (int l = 0; l < layout.n_layers(); ++l)
            for (int h = 0; h < layout.n_heads(); ++h) {
                image_row(*image, to_index(l * layout.n_heads() + h), row, window_of(history, l), values);
                mark_not_finite(std::span(values), [](int) { return true; });
                each(l, h, values);
            }
        return true;
    }
    lane = lane_of_row(history, lane, row);
    const RowBlock* block = row_block(history, lane, row);
    if (block == nullptr || block->attention.empty()) return false;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const std::vector<std::int32_t> positions = history.held_positions(lane, g, row);
        for (const HeadRef& reader : layout.kv_head(g).readers) {
            const std::size_t index = to_index(reader.layer * layout.n_heads() + reader.head);
            const std::size_t begin = to_index(block->head_offset[index]);
            const std::size_t n = std::min(positions.size(), to_index(block->head_offset[index + 1]) - begin);
            std::fill(values.begin(), values.end(), kNoValue);
            for (std::size_t i = 0; i < n; ++i) {
                const float value = history.hidden(lane, g, positions[i], row)
                                        ? kHiddenValue
                                        : float_from_fp16(block->attention[begin + i]);
                values[to_index(positions[i])] = std::isfinite(value) ? value : kNotFinite;
            }
            each(reader.layer, reader.head, values);
        }
    }
    return true;
}

const PromptRows* prompt_image_of(const RunHistory& history, int lane) {
    return prompt_image(history, lane, 0);
}

bool attention_blocks_of_all(const RunHistory& history, int lane, int row, int log2_block,
                             const HeadBlocks& each) {
    const KvLayout& layout = history.layout(lane);
    lane = lane_of_row(history, lane, row);
    const RowBlock* block = row_block(history, lane, row);
    if (block == nullptr || block->attention.empty()) return false;
    const LaneRecord& record = *history.lane_record(row, lane);
    constexpr std::int16_t kNothing = -1;  // fp16 values of one sign are ordered like their bits
    const std::size_t n_blocks = to_index(row >> log2_block) + 1;
    std::vector<std::int16_t> top(n_blocks);
    std::vector<float> maxima(n_blocks);
    std::vector<std::int32_t> positions;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const std::span<const HeadRef> readers = layout.kv_head(g).readers;
        const auto index_of = [&](const HeadRef& reader) {
            return to_index(reader.layer * layout.n_heads() + reader.head);
        };
        if (readers.empty()) continue;
        const std::size_t first = index_of(readers.front());
        const std::size_t n = to_index(block->head_offset[first + 1] - block->head_offset[first]);
        history.held_positions(lane, g, row, positions);
        for (const HeadRef& reader : readers) {
            const std::uint16_t* values = block->attention.data() + block->head_offset[index_of(reader)];
            std::fill(top.begin(), top.end(), kNothing);
            const auto fold = [&](std::size_t i, std::int16_t& to) {
                // NaN becomes infinity, which is kNotFinite.
                const auto value = static_cast<std::int16_t>(std::min(values[i], std::uint16_t{0x7C00}));
                to = std::max(to, value);
            };
            std::size_t n_sinks = 0;
            while (n_sinks < std::min(n, positions.size()) && positions[n_sinks] < HeadMatrix::kSinks)
                ++n_sinks;
            std::int16_t past = kNothing;
            if (record.hidden == nullptr) {
                for (std::size_t i = n_sinks; i < std::min(n, positions.size()); ++i)
                    fold(i, top[to_index(positions[i] >> log2_block)]);
                past = *std::max_element(top.begin(), top.end());
                for (std::size_t i = 0; i < n_sinks; ++i) fold(i, top[to_index(positions[i] >> log2_block)]);
                for (std::size_t b = 0; b < n_blocks; ++b)
                    maxima[b] = top[b] < 0 ? kNoValue : float_from_fp16(static_cast<std::uint16_t>(top[b]));
            } else {
                std::vector<bool> hides(n_blocks, false);
                for (std::size_t i = 0; i < std::min(n, positions.size()); ++i) {
                    const std::size_t b = to_index(positions[i] >> log2_block);
                    if (history.hidden(lane, g, positions[i], row)) {
                        hides[b] = true;
                        continue;
                    }
                    fold(i, top[b]);
                    if (i >= n_sinks) fold(i, past);
                }
                for (std::size_t b = 0; b < n_blocks; ++b)
                    maxima[b] = top[b] >= 0 ? float_from_fp16(static_cast<std::uint16_t>(top[b]))
                                : hides[b]  ? kHiddenValue
                                            : kNoValue;
            }
            each(reader.layer, reader.head,
                 {maxima, past < 0 ? kNoValue : float_from_fp16(static_cast<std::uint16_t>(past))});
        }
    }
    return true;
}

bool score_values(const RunHistory& history, int lane, int row, int kv_head, std::span<float> out) {
    if (row < history.n_prompt() - 1) return false;
    return history.score_row(lane_of_row(history, lane, row), row, kv_head, out);
}

float threshold_at(const RunHistory& history, int lane, int row, int kv_head) {
    const RowBlock* block = row_block(history, lane, row);
    if (block == nullptr || to_index(kv_head) >= block->threshold.size()) return kNoValue;
    return block->threshold[to_index(kv_head)];
}

void kept_share(const RunHistory& history, int lane, int row, int first, int last, std::span<float> out) {
    // Does what RunHistory::stored() does, for many heads at once: it runs every frame while rows come.
    std::vector<std::uint32_t> n(to_index(row) + 1, 0);
    const auto shown = static_cast<std::uint32_t>(row);
    for (int g = first; g < last; ++g) {
        const std::int32_t* evicted =
            &history.lanes()[to_index(lane)].evicted_at[to_index(std::int64_t{g} * history.capacity())];
        for (std::size_t p = 0; p < n.size(); ++p)
            n[p] += static_cast<std::uint32_t>(evicted[p]) > shown ? 1 : 0;  // -1 (never) is the largest
    }
    for (std::size_t p = 0; p < n.size(); ++p)
        out[p] = static_cast<float>(n[p]) / static_cast<float>(std::max(last - first, 1));
}

std::string recording_note(const RunHistory& history, int lane, int stride, int dense_from) {
    std::string note;
    const StepTrace& start = *history.steps().front();
    const PromptRows* image = start.prompt_rows.get();
    const LaneRecord* record =
        history.lane_record(std::max(history.lanes()[to_index(lane)].first_row, start.row), lane);
    if (record != nullptr && record->prompt_rows) image = record->prompt_rows.get();
    if (image == nullptr)
        note = "prompt rows not recorded";
    else if (image->reduction > 1)
        note = fmt::format("prompt rows: maxima of {0} x {0} cells", image->reduction);
    if (stride > 1)
        note += fmt::format("{}of the steps before {} one in {} is recorded", note.empty() ? "" : ", ",
                            dense_from, stride);
    const int first = history.lanes()[to_index(lane)].first_row;
    const int parent = history.lanes()[to_index(lane)].forked_from;
    if (parent >= 0 && history.lanes()[to_index(lane)].replayed) {
        // The mask is complete: all evictions came with the first record.
        const int begin = std::max(history.n_prompt() - 1, start.row);
        if (begin < first)
            note += fmt::format("{}KV heads changed after step {}: steps {} to {} ran again without a record",
                                note.empty() ? "" : ", ", first - 1, begin, first - 1);
    } else if (parent >= 0)
        note += fmt::format("{}lane forked after step {}", note.empty() ? "" : ", ",
                            history.lanes()[to_index(lane)].forked_at);
    else if (first > history.steps().front()->row)
        note += fmt::format("{}lane added at step {}", note.empty() ? "" : ", ", first);
    return note;
}

std::string kv_head_text(const KvLayout& layout, int kv_head) {
    const KvHead& head = layout.kv_head(kv_head);
    return fmt::format("L{} KV head {}", head.owner_layer, head.index);
}

std::string reduction_note(HeatMode mode, bool difference, int side) {
    if (side <= 1) return "";
    const char* words = difference                ? "the largest difference"
                        : mode == HeatMode::mask  ? "the kept share"
                        : mode == HeatMode::score ? "the highest score"
                                                  : "the highest attention";
    return fmt::format("each pixel {} of {}×{} cells", words, side, side);
}

std::string atlas_note(HeatMode mode, int n_layers, int n_heads, int factor) {
    if (mode == HeatMode::score)  // the words must fit on one line
        return "attention, not scores" + (factor > 1 ? fmt::format(", maxima of {0}×{0}", factor) : "");
    const std::string grid = fmt::format("{} layers × {} heads · ", n_layers, n_heads);
    if (mode == HeatMode::mask)
        return grid + (factor > 1 ? fmt::format("kept share of {0}×{0} cells", factor) : "kept tokens");
    return grid + (factor > 1 ? fmt::format("maxima of {0}×{0} cells", factor) : "attention");
}

const std::string& token_text(const RunHistory& history, int lane, int position) {
    static const std::string kNothing;
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    if (position < 0 || to_index(position) >= tokens.size()) return kNothing;
    return history.run().token_display[to_index(tokens[to_index(position)])];
}

}  // namespace keyhole
