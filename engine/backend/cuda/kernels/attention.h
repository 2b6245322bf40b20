/// Attention of one row: finishes queries and the new token's key and value, computes logits and weighted
/// values over splits of the stored tokens, then the final probabilities, and folds every running score. Host
/// and device. Knows a lane's device tables, no model. CPU twins: backend/cpu/cpu_backend.cpp
/// (attend_kv_head) and backend/cpu/score.h.
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/lane.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kSplit = 256;  ///< slots per block

/// Rotates a pair of dimensions (i, i + half) by an angle.
KH_FN void rotate_pair(float a, float b, float cosine, float sine, float& x, float& y) {
    x = add(mul(a, cosine), -mul(b, sine));
    y = add(mul(b, cosine), mul(a, sine));
}

/// Rounds a score to the type in which it accumulates.
KH_FN float rounded(float score, ScoreType type) {
    if (type == ScoreType::fp16) {
        Fp16 half;
        narrow(score, half);
        return widen(half);
    }
    if (type == ScoreType::bf16) {
        Bf16 half;
        narrow(score, half);
        return widen(half);
    }
    return score;
}

/// Steps from projection to attention for a head's query or key, in this order: clip, norm, rotate. Values
/// are only clipped.
struct HeadRule {
    const float* q_norm;       ///< [head_dim] gains of an RMSNorm of each head, or null
    const float* k_norm;       ///< [head_dim] the same for keys, or null
    float clip;                ///< 0: no limit
    float eps;                 ///< of the norms
    float magnitude;           ///< factor on cosines and sines
    std::int32_t dims;         ///< dimensions that rotate, the first of head_dim; 0: none
    std::int32_t interleaved;  ///< pairs (2 i, 2 i + 1); else (i, i + dims / 2)
    std::int32_t head_dim;

    KH_FN float clipped(float value) const {
        if (clip <= 0) return value;
        return value > clip ? clip : value < -clip ? -clip : value;
    }
    KH_FN int first_of(int pair) const { return interleaved != 0 ? 2 * pair : pair; }
    KH_FN int second_of(int pair) const { return interleaved != 0 ? 2 * pair + 1 : pair + dims / 2; }
};

/// Finishes one head with the threads of a block, in three phases: load, norm, rotate. The last calls
/// out(dimension, value).
struct HeadFinish {
    struct Shared {
        float x[kMaxHeadDim];
        float squares[kMaxThreads];
    };

    KH_FN static void load(const HeadRule& rule, const Block& block, Shared& shared, const float* head) {
        float squares = 0;
        for (int i = block.thread; i < rule.head_dim; i += block.n_threads) {
            const float value = rule.clipped(head[i]);
            shared.x[i] = value;
            squares = add(squares, mul(value, value));
        }
        shared.squares[block.thread] = squares;
    }
    KH_FN static void norm(const HeadRule& rule, const Block& block, Shared& shared, const float* gain) {
        if (gain == nullptr) return;
        float sum = 0;
        for (int i = 0; i < block.n_threads; ++i) sum = add(sum, shared.squares[i]);
        const float scale = 1.0f / sqrtf(add(sum / static_cast<float>(rule.head_dim), rule.eps));
        for (int i = block.thread; i < rule.head_dim; i += block.n_threads)
            shared.x[i] = mul(mul(shared.x[i], scale), gain[i]);
    }
    /// turns: [dims], cosines of the position's angles, then sines.
    template <class Out>
    KH_FN static void rotate(const HeadRule& rule, const Block& block, const Shared& shared,
                             const float* turns, Out out) {
        for (int i = block.thread; i < rule.dims / 2; i += block.n_threads) {
            const int a = rule.first_of(i), b = rule.second_of(i);
            const float c = mul(turns[i], rule.magnitude), s = mul(turns[rule.dims / 2 + i], rule.magnitude);
            float x, y;
            rotate_pair(shared.x[a], shared.x[b], c, s, x, y);
            out(a, x);
            out(b, y);
        }
        for (int i = rule.dims + block.thread; i < rule.head_dim; i += block.n_threads) out(i, shared.x[i]);
    }
};

/// Finishes q in place and writes the new token's key and value to the last slot of every KV head of the
/// layer. Grid: x = query heads + KV heads that the layer owns (none where it borrows), y = lanes.
template <class T>
struct RotateAppend {
    static constexpr int kPhases = 3;
    using Shared = HeadFinish::Shared;
    using Local = NoLocal;
    float* q;        ///< [lanes, n_heads, head_dim]
    const float* k;  ///< [lanes, n_kv, head_dim]
    const float* v;
    const float* turns;  ///< [positions, rule.dims] cosines of a position's angles, then their sines
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;  ///< [n_heads] of the layer
    HeadRule rule;
    std::int32_t first_kv;  ///< the layer's first KV head
    std::int32_t n_heads, n_kv, unused = 0;
    float* raw_keys =
        nullptr;  ///< [lanes, n_kv, head_dim] keys before rotation, for layers that borrow them; or null

    KH_FN void phase(int p, const Block& block, Shared& shared, Local&) const {
        const int lane = block.y, d = rule.head_dim, g = block.x - n_heads;
        const bool is_query = block.x < n_heads;
        float* query = q + (static_cast<std::int64_t>(lane) * n_heads + block.x) * d;
        const std::int64_t key_at = (static_cast<std::int64_t>(lane) * n_kv + g) * d;
        if (p == 0) return HeadFinish::load(rule, block, shared, is_query ? query : k + key_at);
        if (p == 1) return HeadFinish::norm(rule, block, shared, is_query ? rule.q_norm : rule.k_norm);
        const LaneView<T>& view = lanes[lane];
        const int place = is_query && view.places != nullptr ? view.places[kv_of_head[block.x]] : view.row;
        const float* turn = turns + static_cast<std::int64_t>(place) * rule.dims;
        if (is_query) return HeadFinish::rotate(rule, block, shared, turn, WriteQuery{query});
        const DeviceHead<T>& head = view.heads[first_kv + g];
        const std::int64_t slot = head.count - 1;
        KH_DEVICE_ASSERT(slot >= 0 && slot < head.capacity);
        HeadFinish::rotate(rule, block, shared, turn, WriteKey{head, slot});
        for (int i = block.thread; i < d; i += block.n_threads)
            narrow(rule.clipped(v[key_at + i]), head.values[slot * d + i]);
        if (raw_keys != nullptr)
            for (int i = block.thread; i < d; i += block.n_threads) raw_keys[key_at + i] = shared.x[i];
    }

    struct WriteQuery {
        float* out;
        KH_FN void operator()(int i, float value) const { out[i] = value; }
    };
    struct WriteKey {
        const DeviceHead<T>& head;
        std::int64_t slot;
        KH_FN void operator()(int i, float value) const {
            narrow(value, head.keys[(static_cast<std::int64_t>(i / 8) * head.capacity + slot) * 8 + i % 8]);
        }
    };
};

/// A buffer of row values: those of a lane's query head h start at [lane * lane_stride + h * stride].
struct RowBuffer {
    float* data;
    std::int64_t lane_stride;

    KH_FN float* of(int lane, int h, int stride) const {
        return data + lane * lane_stride + static_cast<std::int64_t>(h) * stride;
    }
};

/// Maximum and sum of one split. The softmax over the whole row follows from those of all splits.
struct SplitSum {
    float max = 0, sum = 0;                    ///< sum of exp(logit - max)
    float tempered_max = 0, tempered_sum = 0;  ///< the same for the tempered logits
};

/// Computes the logits of up to kSplit slots of one query head, their maximum and sum, and the values
/// weighted by exp(logit - max). Blocks of kSplit threads, one thread per slot. Grid: x = splits, y = query
/// heads of the layer, z = lanes. Blocks beyond a head's slots do nothing, so one grid fits all counts up to
/// a capacity.
template <class T>
struct AttendSplit {
    static constexpr int kPhases = 6;
    static constexpr int kGroups = 32;   ///< threads that reduce a first share
    static constexpr int kInFlight = 4;  ///< reads of keys or values under way in a thread
    struct Shared {
        float q[kMaxHeadDim];
        float logit[kSplit], tempered[kSplit];  ///< from phase 3 on: the weights exp(. - max)
        SplitSum group[kGroups];
        float values[kSplit][8];
    };
    struct Local {
        float logit, tempered;
    };
    const float* q;  ///< [lanes, n_heads, head_dim], rotated
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;  ///< [n_heads] of the layer
    RowBuffer logits;                ///< -inf where hidden
    RowBuffer tempered;              ///< (logit + gain * noise) / tau; not written where nothing tempers
    RowBuffer noise;                 ///< null when not wanted
    SplitSum* sums;                  ///< [lanes, n_heads, max_splits]
    float* partial_values;           ///< [lanes, n_heads, max_splits, head_dim]
    std::int32_t layer, n_heads, head_dim;
    float scale;              ///< factor of q.k
    std::int32_t row_stride;  ///< slots that the row buffers have room for
    std::int32_t max_splits;
    const float* turns;  ///< see RotateAppend
    const float*
        slopes;  ///< [n_heads] ALiBi: logit += slope * (place of the key - place of the query); or null
    std::int32_t window;             ///< the layer sees this many newest positions; 0: all
    std::int32_t dims, interleaved;  ///< see HeadRule
    std::int32_t unused = 0;
    /// Keys before rotation (see RotateAppend), used for the row's own token where a borrowing layer sees it
    /// so (ModelConfig::borrows_unrotated); or null.
    const float* raw_keys = nullptr;
    std::int32_t first_kv = 0, n_kv = 0;  ///< the owner's first KV head, and how many it has

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const int split = block.x, h = block.y, lane = block.z, t = block.thread;
        const DeviceHead<T>& head = lanes[lane].heads[kv_of_head[h]];
        const int first = split * kSplit;
        if (first >= head.count) return;
        const int n = head.count - first < kSplit ? head.count - first : kSplit;
        const std::int64_t head_at = static_cast<std::int64_t>(lane) * n_heads + h;
        switch (p) {
            case 0:
                for (int i = t; i < head_dim; i += block.n_threads) shared.q[i] = q[head_at * head_dim + i];
                return;
            case 1:
                local.logit = local.tempered = -INFINITY;
                if (t < n) score_slot(shared, local, head, lane, h, first + t);
                shared.logit[t] = local.logit;
                shared.tempered[t] = local.tempered;
                return;
            case 2:
                if (t < kGroups) {
                    shared.group[t].max = max_of_group(shared.logit, t);
                    shared.group[t].tempered_max = max_of_group(shared.tempered, t);
                }
                return;
            case 3: {
                float most = -INFINITY, most_tempered = -INFINITY;
                for (int i = 0; i < kGroups; ++i) {
                    most = shared.group[i].max > most ? shared.group[i].max : most;
                    const float m = shared.group[i].tempered_max;
                    most_tempered = m > most_tempered ? m : most_tempered;
                }
                shared.logit[t] = weight_of(local.logit, most);
                shared.tempered[t] = weight_of(local.tempered, most_tempered);
                return;
            }
            case 4:
                add_values(block, shared, head, first, n);
                if (t < kGroups) {
                    shared.group[t].sum = sum_of_group(shared.logit, t);
                    shared.group[t].tempered_sum = sum_of_group(shared.tempered, t);
                }
                return;
            default:
                finish_values(block, shared, partial_values + (head_at * max_splits + split) * head_dim);
                if (t == 0) sums[head_at * max_splits + split] = whole(shared);
        }
    }

    KH_FN void score_slot(const Shared& shared, Local& local, const DeviceHead<T>& head, int lane, int h,
                          int slot) const {
        const LaneView<T>& view = lanes[lane];
        const HeadScores& scores = view.scores[layer * n_heads + h];
        const RowRule& rule = view.rules[scores.variant];
        const int row = view.row, position = head.positions[slot], g = kv_of_head[h];
        KH_DEVICE_ASSERT(slot < row_stride && position >= 0 && position <= row);
        const int steps = view.steps != nullptr ? view.steps[g * view.steps_stride + slot] : 0;
        float dot = 0;
        if (raw_keys != nullptr && slot == head.count - 1) {
            const float* key = raw_keys + (static_cast<std::int64_t>(lane) * n_kv + g - first_kv) * head_dim;
            for (int i = 0; i < head_dim; ++i) dot = add(dot, mul(shared.q[i], key[i]));
        } else if (steps != 0 && dims > 0) {
            dot = dot_turned(shared.q, head, slot, steps);
        } else {
            const Pack<T>* packs = in_device_memory(reinterpret_cast<const Pack<T>*>(head.keys)) + slot;
            const std::int64_t capacity = head.capacity;
            int c = 0;
            // The same terms in the same order as one by one.
            for (; c + kInFlight <= head_dim / 8; c += kInFlight) {
                Pack<T> pack[kInFlight];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
                for (int k = 0; k < kInFlight; ++k) pack[k] = packs[(c + k) * capacity];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
                for (int k = 0; k < kInFlight; ++k) dot = add_pack(dot, shared.q + (c + k) * 8, pack[k]);
            }
            for (; c < head_dim / 8; ++c) dot = add_pack(dot, shared.q + c * 8, packs[c * capacity]);
        }
        float zeta = 0;
        if (rule.noise_kind != static_cast<int>(NoiseKind::none))
            zeta = scores.noise != nullptr ? scores.noise[slot] : noise_of(rule, layer, h, row, position);
        if (!is_hidden(rule, row, position) && (window <= 0 || position > row - window)) {
            local.logit = mul(dot, scale);
            if (slopes != nullptr) {
                const int place = view.places != nullptr ? view.places[g] : row;
                local.logit = add(local.logit, mul(slopes[h], static_cast<float>(position - steps - place)));
            }
            local.tempered = tempered_logit(local.logit, rule.gain, zeta, rule.tau);
        }
        logits.of(lane, h, row_stride)[slot] = local.logit;
        if (rule.tempers != 0) tempered.of(lane, h, row_stride)[slot] = local.tempered;
        if (noise.data != nullptr) noise.of(lane, h, row_stride)[slot] = zeta;
    }

    KH_FN static float add_pack(float dot, const float* q_row, const Pack<T>& pack) {
        for (int j = 0; j < 8; ++j) dot = add(dot, mul(q_row[j], widen(pack.x[j])));
        return dot;
    }

    KH_FN static float key_at(const DeviceHead<T>& head, int slot, int i) {
        return widen(head.keys[(static_cast<std::int64_t>(i / 8) * head.capacity + slot) * 8 + i % 8]);
    }

    /// Returns the product of q and a key turned back by `steps` positions.
    KH_FN float dot_turned(const float* q_row, const DeviceHead<T>& head, int slot, int steps) const {
        const int half = dims / 2;
        const float* cosine = turns + static_cast<std::int64_t>(steps) * dims;
        const float* sine = cosine + half;
        float dot = 0;
        for (int i = 0; i < half; ++i) {
            const int one = interleaved != 0 ? 2 * i : i, other = interleaved != 0 ? 2 * i + 1 : i + half;
            float x, y;
            rotate_pair(key_at(head, slot, one), key_at(head, slot, other), cosine[i], -sine[i], x, y);
            dot = add(dot, add(mul(q_row[one], x), mul(q_row[other], y)));
        }
        for (int i = dims; i < head_dim; ++i) dot = add(dot, mul(q_row[i], key_at(head, slot, i)));
        return dot;
    }

    /// Returns exp(logit - most); 0 for a hidden slot, whose logit is -inf.
    KH_FN static float weight_of(float logit, float most) {
        return logit == -INFINITY ? 0.0f : expf(add(logit, -most));
    }

    KH_FN static float max_of_group(const float* values, int group) {
        float most = -INFINITY;
        for (int i = group; i < kSplit; i += kGroups)
            most = values[i] > most ? values[i] : most;  // never true for NaN
        return most;
    }
    KH_FN static float sum_of_group(const float* values, int group) {
        float sum = 0;
        for (int i = group; i < kSplit; i += kGroups) sum = add(sum, values[i]);
        return sum;
    }
    KH_FN static SplitSum whole(const Shared& shared) {
        SplitSum out{-INFINITY, 0, -INFINITY, 0};
        for (int i = 0; i < kGroups; ++i) {
            const SplitSum& g = shared.group[i];
            out.max = g.max > out.max ? g.max : out.max;
            out.tempered_max = g.tempered_max > out.tempered_max ? g.tempered_max : out.tempered_max;
            out.sum = add(out.sum, g.sum);
            out.tempered_sum = add(out.tempered_sum, g.tempered_sum);
        }
        return out;
    }

    /// Thread (part, pack of 8 dimensions) sums every parts-th slot.
    KH_FN void add_values(const Block& block, Shared& shared, const DeviceHead<T>& head, int first,
                          int n) const {
        const int packs = head_dim / 8, parts = kSplit / packs;
        const int part = block.thread / packs, pack = block.thread % packs;
        if (part >= parts) return;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const Pack<T>* values = in_device_memory(reinterpret_cast<const Pack<T>*>(head.values)) +
                                static_cast<std::int64_t>(first) * packs + pack;
        const auto add_slot = [&](int i, const Pack<T>& v) {
            for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], mul(shared.logit[i], widen(v.x[j])));
        };
        int i = part;
        for (; i + (kInFlight - 1) * parts < n; i += kInFlight * parts) {
            Pack<T> v[kInFlight];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int k = 0; k < kInFlight; ++k) v[k] = values[(i + k * parts) * packs];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int k = 0; k < kInFlight; ++k) add_slot(i + k * parts, v[k]);
        }
        for (; i < n; i += parts) add_slot(i, values[i * packs]);
        for (int j = 0; j < 8; ++j) shared.values[block.thread][j] = sum[j];
    }

    KH_FN void finish_values(const Block& block, const Shared& shared, float* out) const {
        const int packs = head_dim / 8, parts = kSplit / packs;
        for (int i = block.thread; i < head_dim; i += block.n_threads) {
            float sum = 0;
            for (int part = 0; part < parts; ++part)
                sum = add(sum, shared.values[part * packs + i / 8][i % 8]);
            out[i] = sum;
        }
    }
};

/// Combines the splits: probabilities of the whole row, every running score folded, and the head's output.
/// One thread per slot; the first block of a head writes the output. Grid as in AttendSplit.
template <class T>
struct FinishRow {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;
    RowBuffer probabilities;  ///< null when not wanted; may be `logits` itself
    RowBuffer logits;         ///< as AttendSplit wrote them
    RowBuffer tempered;
    const SplitSum* sums;
    const float* partial_values;
    float* out;  ///< [lanes, n_heads, head_dim]
    std::int32_t layer, n_heads, head_dim;
    std::int32_t row_stride, max_splits;
    std::int32_t unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int h = block.y, lane = block.z, slot = block.x * kSplit + block.thread;
        const LaneView<T>& view = lanes[lane];
        const DeviceHead<T>& head = view.heads[kv_of_head[h]];
        const std::int64_t head_at = static_cast<std::int64_t>(lane) * n_heads + h;
        const int n_splits = (head.count + kSplit - 1) / kSplit;
        if (block.x >= n_splits) return;
        const SplitSum* of_split = sums + head_at * max_splits;
        const SplitSum all = whole(of_split, n_splits);
        if (block.x == 0)
            for (int i = block.thread; i < head_dim; i += block.n_threads) {
                float sum = 0;
                for (int s = 0; s < n_splits; ++s) {
                    const float scale = of_split[s].sum != 0 ? expf(add(of_split[s].max, -all.max)) : 0.0f;
                    sum = add(sum, mul(scale, partial_values[(head_at * max_splits + s) * head_dim + i]));
                }
                out[head_at * head_dim + i] =
                    all.sum != 0 ? sum / all.sum : 0.0f;  // 0 for a row that sees nothing
            }
        if (slot >= head.count) return;
        const HeadScores& scores = view.scores[layer * n_heads + h];
        const RowRule& rule = view.rules[scores.variant];
        const float p = share(logits.of(lane, h, row_stride)[slot], all.max, all.sum);
        const float warm = rule.tempers != 0 ? share(tempered.of(lane, h, row_stride)[slot], all.tempered_max,
                                                     all.tempered_sum)
                                             : p;
        if (probabilities.data != nullptr) probabilities.of(lane, h, row_stride)[slot] = p;
        for (int a = 0; a < kScores; ++a) {
            if (scores.score[a] == nullptr) continue;
            const bool forgets = (a & 1) != 0, tempers = (a & 2) != 0;
            const float folded = folded_score(scores.score[a][slot], forgets ? rule.alpha : 1.0f, rule.weight,
                                              tempers ? warm : p);
            scores.score[a][slot] = rounded(folded, static_cast<ScoreType>(rule.score_dtype));
        }
    }

    KH_FN static float share(float logit, float most, float sum) {
        return logit == -INFINITY || sum == 0 ? 0.0f : expf(add(logit, -most)) / sum;
    }

    KH_FN static SplitSum whole(const SplitSum* of_split, int n_splits) {
        SplitSum out{-INFINITY, 0, -INFINITY, 0};
        for (int s = 0; s < n_splits; ++s) {
            out.max = of_split[s].max > out.max ? of_split[s].max : out.max;
            out.tempered_max =
                of_split[s].tempered_max > out.tempered_max ? of_split[s].tempered_max : out.tempered_max;
        }
        for (int s = 0; s < n_splits; ++s) {  // an empty split (all hidden) has sum 0 and no maximum
            if (of_split[s].sum != 0)
                out.sum = add(out.sum, mul(of_split[s].sum, expf(add(of_split[s].max, -out.max))));
            if (of_split[s].tempered_sum != 0)
                out.tempered_sum = add(
                    out.tempered_sum,
                    mul(of_split[s].tempered_sum, expf(add(of_split[s].tempered_max, -out.tempered_max))));
        }
        return out;
    }
};

}  // namespace keyhole::cuda
