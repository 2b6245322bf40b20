// Attention of a prompt and its scores, tile by tile.
#include "engine/backend/cpu/prefill.h"

#include "engine/backend/common/kernels.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/common/value_reach.h"
#include "engine/backend/cpu/gemm.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"
#include "engine/policy/math.h"

#include <algorithm>
#include <limits>

namespace keyhole::cpu {

void Prefill::measure(int layer, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    lengths_.clear();
    for (int head = 0; head < c.n_heads; ++head)
        for (const ScoreStream& stream : plan_.streams[to_index(layer * c.n_heads + head)]) {
            const KvType type = kv_type_for(stream.kv_dtype, model_);
            const std::int64_t n_rows = std::int64_t{c.n_kv_heads} * n_;
            if (!names_lengths(stream.score) && !names_reach(stream.score)) continue;
            Lengths& lengths = lengths_[type];
            if (names_lengths(stream.score) && lengths.keys.empty()) {
                lengths.keys = lengths_as(type, data(owner.keys), n_rows, c.head_dim);
                lengths.values = lengths_as(type, data(owner.values), n_rows, c.head_dim);
            }
            if (names_reach(stream.score) && lengths.reach.empty())
                lengths.reach = reach_of_layer(layer, owner, type);
        }
}

/// Several tokens at once, since each call widens the head's part of W_o.
std::vector<float> Prefill::reach_of_layer(int layer, const LayerStore& owner, KvType type) {
    const KvLayout& layout = model_.layout();
    const int n_kv = model_.config().n_kv_heads, d = model_.config().head_dim,
              first_head = layout.first_read(layer), n_tiles = (n_ + kTileRows - 1) / kTileRows;
    std::vector<float> reach(to_index(n_kv) * to_index(n_));
    pool_.parallel_for(std::int64_t{n_kv} * n_tiles, [&](std::int64_t task, int) {
        const auto g = static_cast<int>(task / n_tiles);
        const auto first = static_cast<int>(task % n_tiles) * kTileRows, n = std::min(kTileRows, n_ - first);
        const std::int64_t at = std::int64_t{g} * n_ + first;
        const std::vector<float> rows = rounded_as(type, data(owner.values) + at * d, n, d);
        reach_of_values(model_, layout.kv_head(first_head + g), rows.data(),
                        {reach.data() + at, to_index(n)});
    });
    return reach;
}

void Prefill::attend(int layer, const LayerStore& own, const LayerStore& owner) {
    measure(layer, owner);
    for (int first = 0; first < n_; first += kTileRows) {
        const int last = std::min(n_, first + kTileRows);
        pool_.parallel_for(model_.config().n_heads, [&](std::int64_t head, int worker) {
            attend_tile(layer, owner, static_cast<int>(head), first, last, worker);
            fold_tile(layer, own, static_cast<int>(head), first, last, worker);
        });
        if (sink_requests_.scores) emit_scores(layer, first, last);
        worked(tile_products(first));
    }
}

/// Attends rows [first_row, last_row) of one head: logits and probabilities [rows, last_row] go to the
/// worker's scratch, the output to attended_.
void Prefill::attend_tile(int layer, const LayerStore& owner, int head, int first_row, int last_row,
                          int worker) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, columns = last_row, rows = last_row - first_row, d_q = c.n_heads * d;
    const std::int64_t g = model_.layout().kv_head(model_.layout().kv_head_from_head(layer, head)).index;
    Worker& scratch = workers_[to_index(worker)];
    for (auto* v : {&scratch.logits, &scratch.probabilities}) have_room(*v, rows * columns);
    float* logits = scratch.logits.data();
    float* p = scratch.probabilities.data();
    const bool raw = c.borrows_unrotated && !model_.layout().owns(layer);
    const float* keys = data(raw ? owner.raw_keys : owner.keys) + g * n_ * d;
    const float* values = data(owner.values) + g * n_ * d;
    const std::int64_t at = first_row * d_q + head * d;
    const AttentionRule rule = attention_rule(c, layer, head);
    const auto mark_hidden = [&](float value) {
        for (std::int64_t i = 0; i < rows; ++i) {
            const int n_hidden = rule.window > 0 ? first_row + static_cast<int>(i) - rule.window + 1 : 0;
            std::fill_n(logits + i * columns, std::max(0, n_hidden), value);
        }
    };
    multiply_transposed(rows, columns, d, rule.scale, data(q_) + at, d_q, keys, d, logits, columns);
    if (rule.cap > 0) soft_cap(logits, rule.cap, rows * columns);
    const std::vector<float>& sinks = tables_.layers[to_index(layer)].sinks;
    mark_hidden(-std::numeric_limits<float>::infinity());
    for (std::int64_t i = 0; i < rows; ++i) {
        const int visible = first_row + static_cast<int>(i) + 1;
        if (rule.slope != 0)
            add_distances(positions_.data(), nullptr, visible, rule.slope, visible - 1, logits + i * columns);
        softmax(logits + i * columns, visible, p + i * columns);
        if (!sinks.empty())
            share_with_sink(logits + i * columns, visible, sinks[to_index(head)], p + i * columns);
        std::fill(p + i * columns + visible, p + (i + 1) * columns, 0.0f);
    }
    multiply_plain(rows, d, columns, p, columns, values, d, data(attended_) + at, d_q);

    PrefillTile tile{-1, layer, head, first_row, static_cast<int>(rows), static_cast<int>(columns), p};
    if (sink_requests_.attention) sink_->attention(tile);
    tile.values = logits;
    if (rule.window > 0) mark_hidden(std::numeric_limits<float>::quiet_NaN());  // for the sink
    if (sink_requests_.logits) sink_->logits(tile);
    if (last_row == n_) write_last_row(layer, head, static_cast<int>(rows), p, logits);
    if (rule.window > 0) mark_hidden(-std::numeric_limits<float>::infinity());
}

/// Copies the last row of the last tile to the lanes that want it.
void Prefill::write_last_row(int layer, int head, int rows, const float* p, const float* logits) const {
    const ModelConfig& c = model_.config();
    const std::int64_t columns = n_;
    const std::int64_t out = static_cast<std::int64_t>(layer * c.n_heads + head) * n_;
    for (const LanePrefill& lane : lanes_) {
        if (lane.requested.attention)
            std::copy_n(p + (rows - 1) * columns, n_, lane.out->values.attention.data() + out);
        if (lane.requested.logits)
            std::copy_n(logits + (rows - 1) * columns, n_, lane.out->values.logits.data() + out);
    }
}

/// Folds the tile's rows, in order, into every score stream of the head.
void Prefill::fold_tile(int layer, const LayerStore& store, int head, int first_row, int last_row,
                        int worker) {
    const std::int64_t columns = last_row, rows = last_row - first_row;
    Worker& scratch = workers_[to_index(worker)];
    have_room(scratch.tempered, columns);
    const std::vector<float>& sinks = tables_.layers[to_index(layer)].sinks;
    const int global_head = layer * model_.config().n_heads + head;
    for (auto row = std::lower_bound(win_rows_.begin(), win_rows_.end(), first_row);
         row != win_rows_.end() && *row < last_row; ++row) {
        const std::int64_t at = (*row - first_row) * columns;
        std::copy_n(scratch.probabilities.data() + at, columns, win_row_of(store, head, *row));
        if (wants_win_logits_)
            std::copy_n(scratch.logits.data() + at, columns, win_row_of(store, head, *row, true));
    }
    const std::vector<ScoreStream>& streams = plan_.streams[to_index(global_head)];
    for (std::size_t s = 0; s < streams.size(); ++s) {
        const ScoreStream& stream = streams[s];
        const bool noisy = stream.tempered && stream.noise != NoiseKind::none;
        if (noisy) have_room(scratch.noise, rows * columns);
        float* score = score_row(store, static_cast<int>(s), head);
        for (std::int64_t i = 0; i < rows; ++i) {
            const int row = first_row + static_cast<int>(i), visible = row + 1;
            const float* source = scratch.probabilities.data() + i * columns;
            if (stream.tempered) {
                float* noise = noisy ? scratch.noise.data() + i * columns : nullptr;
                if (noisy && (i == 0 || stream.draw == NoiseDraw::row)) {
                    for (int p = 0; p < columns; ++p)
                        noise[p] = noise_at(stream.noise, stream.draw, stream.seed, layer, head, row, p);
                } else if (noisy) {
                    std::copy_n(scratch.noise.data(), columns, noise);
                }
                temper_logits(scratch.logits.data() + i * columns, noise, visible, stream.gain, stream.tau,
                              scratch.tempered.data());
                if (!sinks.empty())
                    scratch.with_sink.assign(scratch.tempered.data(), scratch.tempered.data() + visible);
                softmax(scratch.tempered.data(), visible, scratch.tempered.data());
                if (!sinks.empty())
                    share_with_sink(scratch.with_sink.data(), visible, sinks[to_index(head)] / stream.tau,
                                    scratch.tempered.data());
                source = scratch.tempered.data();
            }
            if (stream.score) {
                fold_by_formula(stream, layer, head, row, scratch.probabilities.data() + i * columns,
                                scratch.logits.data() + i * columns, source, score, scratch);
            } else {
                fold_scores(source, visible, stream.alpha, 1.0f, score);
                round_scores({score, to_index(visible)}, stream.dtype);
            }
            if (sink_requests_.scores) {
                const std::int64_t stream_head =
                    static_cast<std::int64_t>(s) * model_.config().n_heads + head;
                std::copy_n(score, columns, data(score_tile_) + (stream_head * kTileRows + i) * n_);
            }
        }
        if (!noisy) continue;
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            if (plan_.own(lanes_[lane], lane, layer, head) != static_cast<int>(s)) continue;
            if (sink_requests_.noise)
                sink_->noise({static_cast<int>(lane), layer, head, first_row, static_cast<int>(rows),
                              static_cast<int>(columns), scratch.noise.data()});
            std::vector<float>& out = lanes_[lane].out->values.noise;
            if (last_row == n_ && !out.empty())
                std::copy_n(scratch.noise.data() + (rows - 1) * columns, n_,
                            out.data() + static_cast<std::int64_t>(global_head) * n_);
        }
    }
}

/// Folds a row of the prompt into a stream that has a formula.
void Prefill::fold_by_formula(const ScoreStream& stream, int layer, int head, int row, const float* p,
                              const float* logits, const float* ptau, float* score, Worker& scratch) const {
    const KvLayout& layout = model_.layout();
    ScoredRowOf of{{}, p, logits, ptau};
    of.row = {row,
              n_,
              row + 1,
              stream.budget,
              layer,
              head,
              layout.kv_head(layout.kv_head_from_head(layer, head)).index,
              stream.window,
              stream.alpha,
              stream.tau,
              stream.gain,
              stream.mix};
    if (!tables_.layers[to_index(layer)].sinks.empty() && stream.score->names(Quantity::sinkmass)) {
        double seen = 0;
        for (int column = 0; column <= row; ++column) seen += double{p[column]};
        of.row.sinkmass = static_cast<float>(std::max(1 - seen, 0.0));
    }
    const std::int64_t of_kv_head = std::int64_t{of.row.kv_head} * n_;
    if (names_lengths(stream.score)) {
        const Lengths& lengths = lengths_.at(kv_type_for(stream.kv_dtype, model_));
        of.knorm = lengths.keys.data() + of_kv_head;
        of.vnorm = lengths.values.data() + of_kv_head;
    }
    if (names_reach(stream.score))
        of.wvnorm = lengths_.at(kv_type_for(stream.kv_dtype, model_)).reach.data() + of_kv_head;
    keyhole::fold_by_formula(*stream.score, of, stream.dtype, {score, to_index(row + 1)}, scratch.by_formula);
}

}  // namespace keyhole::cpu
