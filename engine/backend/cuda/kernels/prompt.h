/// The prompt's rows, tile by tile: rotation, softmax, and scores folded row by row. The executor computes
/// the products between them. Host and device. Knows no cache. CPU twin: backend/cpu/prefill.cpp.
///
/// Tiles are [n_heads, n_rows, n_columns]: row i of a tile is row first_row + i of the prompt and sees the
/// columns up to itself.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/attention.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

/// Finishes q in place and writes finished keys, and values, head by head. Grid: x = tokens, y = query heads
/// + KV heads that the layer owns.
struct RotatePrompt {
    static constexpr int kPhases = 3;
    using Shared = HeadFinish::Shared;
    using Local = NoLocal;
    float* q;                ///< [n, n_heads, head_dim]
    const float* k;          ///< [n, n_kv, head_dim]
    const float* v;          ///< same
    float* keys;             ///< [n_kv, n, head_dim]
    float* values;           ///< same
    const float* rotations;  ///< see AttendSplit
    HeadRule rule;
    std::int32_t n, n_heads, n_kv, unused = 0;
    float* raw_keys = nullptr;  ///< keys before rotation, for layers that borrow them; or null

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int token = block.x, d = rule.head_dim, g = block.y - n_heads;
        const bool is_query = block.y < n_heads;
        float* query = q + (static_cast<std::int64_t>(token) * n_heads + block.y) * d;
        const std::int64_t from = (static_cast<std::int64_t>(token) * n_kv + g) * d;
        if (p == 0) return HeadFinish::load(rule, block, shared, is_query ? query : k + from);
        if (p == 1) return HeadFinish::norm(rule, block, shared, is_query ? rule.q_norm : rule.k_norm);
        const float* turn = rotations + static_cast<std::int64_t>(token) * rule.dims;
        const std::int64_t to = (static_cast<std::int64_t>(g) * n + token) * d;
        HeadFinish::rotate(rule, block, shared, turn, Write{is_query ? query : keys + to});
        if (is_query) return;
        for (int i = block.thread; i < d; i += block.n_threads) values[to + i] = rule.clipped(v[from + i]);
        if (raw_keys != nullptr)
            for (int i = block.thread; i < d; i += block.n_threads) raw_keys[to + i] = shared.x[i];
    }

    struct Write {
        float* out;
        KH_FN void operator()(int i, float value) const { out[i] = value; }
    };
};

/// A score that accumulates over the prompt for one query head. Lanes with equal settings share one.
struct StreamRule {
    std::uint64_t seed;
    float alpha, tau, gain;
    std::int32_t runs;  ///< 0: the head has no such stream
    std::int32_t tempered, dtype, noise_kind, noise_draw;
    std::int32_t budget = 0, window = 0;  ///< what a formula may name, as the next
    float mix = 0;
    const FormulaTable* score = nullptr;  ///< folds it; null: FoldTile does
    /// Lengths of the layer's keys and values as they are stored, [n_kv_heads, n]; null: it names none.
    const float *key_lengths = nullptr, *value_lengths = nullptr;
    const float* reach = nullptr;  ///< the same of how far values reach
};

/// p = softmax of a tile's rows over the columns that they see, 0 beyond. With a tempered stream: softmax of
/// (logit + gain * noise) / tau. The plain attention runs first: it adds ALiBi's distances to the logits, and
/// -inf outside the window. Grid: x = rows, y = heads.
struct SoftmaxTile {
    static constexpr int kPhases = 3;
    struct Shared {
        float partial[kMaxThreads];
        float sum[kMaxThreads];
    };
    struct Local {
        float most;
    };
    float* logits;
    float* p;
    float* noise;               ///< same shape as p, or null when not wanted
    const StreamRule* streams;  ///< [n_heads], or null: plain attention
    const float* slopes;        ///< see AttendSplit
    std::int32_t first_row, n_rows, n_columns, layer;
    std::int32_t window, unused = 0;

    KH_FN void phase(int step, const Block& block, Shared& shared, Local& local) const {
        const int row = block.x, h = block.y, visible = first_row + row + 1, t = block.thread;
        const StreamRule* stream = streams != nullptr ? streams + h : nullptr;
        if (stream != nullptr && (stream->runs == 0 || stream->tempered == 0)) return;
        const std::int64_t at = (static_cast<std::int64_t>(h) * n_rows + row) * n_columns;
        if (step == 0) {
            float most = -INFINITY;
            for (int i = t; i < visible; i += block.n_threads) {
                float value = logits[at + i];
                if (stream != nullptr) {
                    value = temper(*stream, value, h, i, at);
                } else if (slopes != nullptr || window > 0) {
                    if (slopes != nullptr)
                        value = add(value, mul(slopes[h], static_cast<float>(i - visible + 1)));
                    if (window > 0 && i < visible - window) value = -INFINITY;
                    logits[at + i] = value;
                }
                p[at + i] = value;
                most = value > most ? value : most;
            }
            shared.partial[t] = most;
        } else if (step == 1) {
            local.most = -INFINITY;
            for (int i = 0; i < block.n_threads; ++i)
                local.most = shared.partial[i] > local.most ? shared.partial[i] : local.most;
            float sum = 0;
            for (int i = t; i < n_columns; i += block.n_threads) {
                const float value =
                    i < visible && p[at + i] != -INFINITY ? expf(add(p[at + i], -local.most)) : 0.0f;
                p[at + i] = value;
                sum = add(sum, value);
            }
            shared.sum[t] = sum;
        } else if (step == 2) {
            float sum = 0;
            for (int i = 0; i < block.n_threads; ++i) sum = add(sum, shared.sum[i]);
            for (int i = t; i < visible; i += block.n_threads) p[at + i] = sum == 0 ? 0.0f : p[at + i] / sum;
        }
    }

    KH_FN float temper(const StreamRule& stream, float logit, int h, int column, std::int64_t at) const {
        float zeta = 0;
        if (stream.noise_kind != static_cast<int>(NoiseKind::none)) {
            const int row = first_row + static_cast<int>((at / n_columns) % n_rows);
            zeta = noise_at(static_cast<NoiseKind>(stream.noise_kind),
                            static_cast<NoiseDraw>(stream.noise_draw), stream.seed, layer, h, row, column);
            if (noise != nullptr) noise[at + column] = zeta;
        }
        return tempered_logit(logit, stream.gain, zeta, stream.tau);
    }
};

/// Folds a tile's rows, in order, into the scores of one stream. One thread per column. Grid: x covers the
/// columns, y = heads.
struct FoldTile {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* p;         ///< attention of the tile
    const float* tempered;  ///< the same for a tempered stream
    const StreamRule* streams;
    float* score;  ///< [n_heads, n]
    float* rows;   ///< [n_heads, n_rows, n_columns] the scores after each row, or null
    std::int32_t first_row, n_rows, n_columns, n;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int column = block.x * block.n_threads + block.thread, h = block.y;
        const StreamRule& stream = streams[h];
        if (column >= n_columns || stream.runs == 0 || stream.score != nullptr) return;
        const float* source = stream.tempered != 0 ? tempered : p;
        float value = score[static_cast<std::int64_t>(h) * n + column];
        for (int i = 0; i < n_rows; ++i) {
            const std::int64_t at = (static_cast<std::int64_t>(h) * n_rows + i) * n_columns + column;
            if (column <= first_row + i)
                value = rounded(folded_score(value, stream.alpha, 1.0f, source[at]),
                                static_cast<ScoreType>(stream.dtype));
            if (rows != nullptr) rows[at] = value;
        }
        score[static_cast<std::int64_t>(h) * n + column] = value;
    }
};

/// Does what FoldTile does for streams that have a formula. One thread per column. Grid: x covers the
/// columns, y = heads.
struct FoldTileByFormula {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    FoldTile fold;
    const float* logits;  ///< of the tile
    std::int32_t layer, group;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int column = block.x * block.n_threads + block.thread, h = block.y;
        const StreamRule& stream = fold.streams[h];
        if (column >= fold.n_columns || stream.runs == 0 || stream.score == nullptr) return;
        float& score = fold.score[static_cast<std::int64_t>(h) * fold.n + column];
        for (int i = 0; i < fold.n_rows; ++i) {
            const std::int64_t at =
                (static_cast<std::int64_t>(h) * fold.n_rows + i) * fold.n_columns + column;
            const int row = fold.first_row + i;
            if (column <= row) {
                const PlaceFacts facts{row,          fold.n,     row + 1,     stream.budget,
                                       layer,        h,          h / group,   stream.window,
                                       stream.alpha, stream.tau, stream.gain, stream.mix};
                const float p = fold.p[at];
                RowToken token{score,  p,     logits[at], stream.tempered != 0 ? fold.tempered[at] : p,
                               column, column};
                if (stream.key_lengths != nullptr) {
                    const std::int64_t of_key = static_cast<std::int64_t>(h / group) * fold.n + column;
                    token.knorm = stream.key_lengths[of_key];
                    token.vnorm = stream.value_lengths[of_key];
                }
                if (stream.reach != nullptr)
                    token.wvnorm = stream.reach[static_cast<std::int64_t>(h / group) * fold.n + column];
                score = rounded(score_after_row(*stream.score, facts, token),
                                static_cast<ScoreType>(stream.dtype));
            }
            if (fold.rows != nullptr) fold.rows[at] = score;
        }
    }
};

/// Keeps rows of a tile that follow each other; columns that they do not see are 0. Grid: x = these rows, y =
/// heads.
struct KeepRows {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const float* p;   ///< [n_heads, n_rows, n_columns] of the tile
    float* win_rows;  ///< [n_heads, n_win_rows, n]
    std::int32_t first_row, n_rows, n_columns, n, n_win_rows;
    std::int32_t first_kept;  ///< row of the tile that is the first to keep
    std::int32_t at;          ///< its place in win_rows
    std::int32_t unused;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int h = block.y, row = first_kept + block.x;
        const float* from =
            p + (static_cast<std::int64_t>(h) * n_rows + row) * static_cast<std::int64_t>(n_columns);
        float* to = win_rows + (static_cast<std::int64_t>(h) * n_win_rows + at + block.x) * n;
        for (int c = block.thread; c < n; c += block.n_threads) to[c] = c <= first_row + row ? from[c] : 0.0f;
    }
};

}  // namespace keyhole::cuda
