/// Attention of one row: the new token's slot, logits and weighted values over splits of the stored tokens, then the final
/// probabilities, written as they are made, and every running score folded. CPU twin: backend/cpu (attend, score).
///
/// Layout of a KV head's slots on the device, so that neighbouring threads read neighbouring bytes:
///     keys    [head_dim / 8][capacity][8]    a thread a slot
///     values  [capacity][head_dim]           a thread a pack of dimensions
#pragma once

#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"
#include "engine/policy/math.h"

#include <cmath>
#include <cstdint>

namespace keyhole::cuda {

inline constexpr int kMaxHeadDim = 256;
inline constexpr int kSplit = 256;  ///< slots that one block attends to
inline constexpr int kScores = 4;   ///< accumulators, in the order of the CPU's

/// One KV head of one lane. Lists of these lie in device memory; a step reads `count` there, so that a captured graph stays valid
/// while caches fill and empty.
template <class T>
struct DeviceHead {
    T* keys;
    T* values;
    std::int32_t* positions;  ///< [capacity]
    std::uint8_t* pinned;     ///< [capacity]
    std::int32_t count;       ///< stored tokens, the new one included once it is appended
    std::int32_t capacity;
};

/// What scoring needs to know of one query head of one lane.
struct HeadScoring {
    float* score[kScores];  ///< [capacity] each, null where it does not run
    float* noise;           ///< [capacity] drawn once a token, or null
    float alpha, gain, tau, weight;
    std::int32_t tempers;
    std::int32_t score_dtype;
    std::int32_t noise_kind, noise_draw;
    std::uint64_t seed;
    // What a row may not see, ResolvedPolicy::hides in numbers: the row blinks at `hidden_position` (-1: none), and a dilated
    // window sees every (dilation + 1)-th of `span` tokens back.
    std::int32_t hidden_position, dilation, span;
};

KH_FN bool is_hidden(const HeadScoring& s, int row, int position) {
    if (s.dilation > 0) {
        const int back = row - position;
        return back % (s.dilation + 1) != 0 || back / (s.dilation + 1) >= s.span;
    }
    return position == s.hidden_position;
}

/// Rotates a pair of dimensions (i, i + half) by an angle.
KH_FN void rotate_pair(float a, float b, float cosine, float sine, float& x, float& y) {
    x = add(mul(a, cosine), -mul(b, sine));
    y = add(mul(b, cosine), mul(a, sine));
}

/// Rotates q in place and puts the new token into a slot of every KV head of the layer. Grid: x = query heads + KV heads of the layer,
/// y = lanes.
template <class T>
struct RotateAppend {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    float* q;        ///< [lanes, n_heads, head_dim]
    const float* k;  ///< [lanes, n_kv, head_dim]
    const float* v;
    const float* cosine;  ///< [lanes, head_dim / 2] of the lane's position
    const float* sine;
    const std::int32_t* rows;  ///< [lanes]
    DeviceHead<T>* heads;      ///< [lanes, heads_stride], the layer's first KV head at heads_at
    int heads_stride, heads_at;
    int n_heads, n_kv, head_dim;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int half = head_dim / 2, lane = block.y;
        const float* c = cosine + static_cast<std::int64_t>(lane) * half;
        const float* s = sine + static_cast<std::int64_t>(lane) * half;
        if (block.x < n_heads) {
            float* x = q + (static_cast<std::int64_t>(lane) * n_heads + block.x) * head_dim;
            for (int i = block.thread; i < half; i += block.n_threads)
                rotate_pair(x[i], x[i + half], c[i], s[i], x[i], x[i + half]);
            return;
        }
        const int g = block.x - n_heads;
        DeviceHead<T>& head = heads[static_cast<std::int64_t>(lane) * heads_stride + heads_at + g];
        const std::int64_t slot = head.count - 1, capacity = head.capacity;
        const float* key = k + (static_cast<std::int64_t>(lane) * n_kv + g) * head_dim;
        const float* value = v + (static_cast<std::int64_t>(lane) * n_kv + g) * head_dim;
        for (int i = block.thread; i < half; i += block.n_threads) {
            float a, b;
            rotate_pair(key[i], key[i + half], c[i], s[i], a, b);
            narrow(a, head.keys[(i / 8 * capacity + slot) * 8 + i % 8]);
            narrow(b, head.keys[((i + half) / 8 * capacity + slot) * 8 + (i + half) % 8]);
        }
        for (int i = block.thread; i < head_dim; i += block.n_threads)
            narrow(value[i], head.values[slot * head_dim + i]);
        if (block.thread == 0) {
            head.positions[slot] = rows[lane];
            head.pinned[slot] = 0;
        }
    }
};

/// What a split says about the whole row: softmax over all follows from these.
struct SplitSum {
    float max = 0, sum = 0;                    ///< of exp(logit - max)
    float tempered_max = 0, tempered_sum = 0;  ///< of the tempered logits
};

/// Logits of up to kSplit slots of one query head, their maximum and sum, and the values weighted by exp(logit - max). Blocks of
/// kSplit threads, a thread a slot. Grid: x = splits, y = query heads of the layer, z = lanes; blocks beyond a head's slots do nothing,
/// so one grid fits all counts up to a capacity.
template <class T>
struct AttendSplit {
    static constexpr int kPhases = 6;
    static constexpr int kGroups = 32;  ///< threads that take a first share of a reduction
    struct Shared {
        float q[kMaxHeadDim];
        float logit[kSplit], tempered[kSplit];  ///< from phase 3 on weights exp(. - max)
        SplitSum group[kGroups];
        float values[kSplit][8];
    };
    struct Local {
        float logit, tempered;
    };
    const float* q;  ///< [lanes, n_heads, head_dim], rotated
    const DeviceHead<T>* heads;
    const std::int32_t* kv_of_head;  ///< [n_heads] KV head within the lane's list
    int heads_stride;
    const HeadScoring* scoring;  ///< [lanes, scoring_stride], the layer's first head at scoring_at
    int scoring_stride, scoring_at;
    const std::int32_t* rows;  ///< [lanes]
    int layer, n_heads, head_dim;
    float scale;            ///< 1 / sqrt(head_dim)
    int row_stride;         ///< slots that the row buffers have room for
    float* logits;          ///< [lanes, n_heads, row_stride]; NaN where hidden
    float* tempered;        ///< same: (logit + gain * noise) / tau; untouched where nothing tempers
    float* noise;           ///< same, or null when nobody asked
    SplitSum* sums;         ///< [lanes, n_heads, max_splits]
    float* partial_values;  ///< [lanes, n_heads, max_splits, head_dim]
    int max_splits;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const int split = block.x, h = block.y, lane = block.z, t = block.thread;
        const DeviceHead<T>& head = heads[static_cast<std::int64_t>(lane) * heads_stride + kv_of_head[h]];
        const int first = split * kSplit;
        if (first >= head.count) return;
        const int n = head.count - first < kSplit ? head.count - first : kSplit;
        const std::int64_t head_at = static_cast<std::int64_t>(lane) * n_heads + h;
        const HeadScoring& score = scoring[static_cast<std::int64_t>(lane) * scoring_stride + scoring_at + h];
        switch (p) {
            case 0:
                for (int i = t; i < head_dim; i += block.n_threads) shared.q[i] = q[head_at * head_dim + i];
                return;
            case 1:
                local.logit = local.tempered = nanf("");
                if (t < n) score_slot(shared, local, head, score, lane, h, first + t);
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

    KH_FN void score_slot(const Shared& shared, Local& local, const DeviceHead<T>& head,
                          const HeadScoring& score, int lane, int h, int slot) const {
        const int row = rows[lane], position = head.positions[slot];
        float dot = 0;
        for (int c = 0; c < head_dim / 8; ++c) {
            const Pack<T> pack = reinterpret_cast<const Pack<T>*>(
                head.keys)[static_cast<std::int64_t>(c) * head.capacity + slot];
            for (int j = 0; j < 8; ++j) dot = add(dot, mul(shared.q[c * 8 + j], widen(pack.x[j])));
        }
        float zeta = 0;
        if (score.noise_kind != static_cast<int>(NoiseKind::none))
            zeta = score.noise != nullptr ? score.noise[slot]
                                          : noise_at(static_cast<NoiseKind>(score.noise_kind),
                                                     static_cast<NoiseDraw>(score.noise_draw), score.seed,
                                                     layer, h, row, position);
        if (!is_hidden(score, row, position)) {
            local.logit = mul(dot, scale);
            local.tempered = tempered_logit(local.logit, score.gain, zeta, score.tau);
        }
        const std::int64_t at = (static_cast<std::int64_t>(lane) * n_heads + h) * row_stride + slot;
        logits[at] = local.logit;
        if (score.tempers != 0) tempered[at] = local.tempered;
        if (noise != nullptr) noise[at] = zeta;
    }

    /// 0 for a hidden slot, whose logit is NaN.
    KH_FN static float weight_of(float logit, float most) {
        return logit == logit ? expf(add(logit, -most)) : 0.0f;
    }

    KH_FN static float max_of_group(const float* values, int group) {
        float most = -INFINITY;
        for (int i = group; i < kSplit; i += kGroups)
            most = values[i] > most ? values[i] : most;  // NaN never is
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

    /// Thread (part, pack of 8 dimensions) adds up every parts-th slot.
    KH_FN void add_values(const Block& block, Shared& shared, const DeviceHead<T>& head, int first,
                          int n) const {
        const int packs = head_dim / 8, parts = kSplit / packs;
        const int part = block.thread / packs, pack = block.thread % packs;
        if (part >= parts) return;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        for (int i = part; i < n; i += parts) {
            const Pack<T> v = reinterpret_cast<const Pack<T>*>(
                head.values)[static_cast<std::int64_t>(first + i) * packs + pack];
            for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], mul(shared.logit[i], widen(v.x[j])));
        }
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

/// The splits put together: probabilities of the whole row, every running score folded, and the head's output. A thread a slot; the
/// first block of a head writes the output. Grid as AttendSplit's.
template <class T>
struct FinishRow {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const DeviceHead<T>* heads;
    const std::int32_t* kv_of_head;
    int heads_stride;
    const HeadScoring* scoring;
    int scoring_stride, scoring_at;
    int n_heads, head_dim;
    int row_stride;
    float* probabilities;  ///< [lanes, n_heads, row_stride], or null; may be `logits` itself
    const float* logits;   ///< same, as AttendSplit left them
    const float* tempered;
    const SplitSum* sums;
    const float* partial_values;
    int max_splits;
    float* out;  ///< [lanes, n_heads, head_dim]

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int h = block.y, lane = block.z, slot = block.x * kSplit + block.thread;
        const DeviceHead<T>& head = heads[static_cast<std::int64_t>(lane) * heads_stride + kv_of_head[h]];
        const std::int64_t head_at = static_cast<std::int64_t>(lane) * n_heads + h;
        const int n_splits = (head.count + kSplit - 1) / kSplit;
        if (block.x >= n_splits) return;
        const SplitSum* of_split = sums + head_at * max_splits;
        const SplitSum all = whole(of_split, n_splits);
        if (block.x == 0)
            for (int i = block.thread; i < head_dim; i += block.n_threads) {
                float sum = 0;
                for (int s = 0; s < n_splits; ++s) {
                    const float scale = of_split[s].sum > 0 ? expf(add(of_split[s].max, -all.max)) : 0.0f;
                    sum = add(sum, mul(scale, partial_values[(head_at * max_splits + s) * head_dim + i]));
                }
                out[head_at * head_dim + i] =
                    all.sum > 0 ? sum / all.sum : 0.0f;  // a row that sees nothing gives nothing
            }
        if (slot >= head.count) return;
        const HeadScoring& score = scoring[static_cast<std::int64_t>(lane) * scoring_stride + scoring_at + h];
        const std::int64_t at = head_at * row_stride + slot;
        const float p = share(logits[at], all.max, all.sum);
        const float warm = score.tempers != 0 ? share(tempered[at], all.tempered_max, all.tempered_sum) : p;
        if (probabilities != nullptr) probabilities[at] = p;
        for (int a = 0; a < kScores; ++a) {
            if (score.score[a] == nullptr) continue;
            const bool forgets = (a & 1) != 0, tempers = (a & 2) != 0;
            const float folded = folded_score(score.score[a][slot], forgets ? score.alpha : 1.0f,
                                              score.weight, tempers ? warm : p);
            score.score[a][slot] = rounded(folded, static_cast<ScoreType>(score.score_dtype));
        }
    }

    KH_FN static float share(float logit, float most, float sum) {
        return logit == logit && sum > 0 ? expf(add(logit, -most)) / sum : 0.0f;
    }

    KH_FN static SplitSum whole(const SplitSum* of_split, int n_splits) {
        SplitSum out{-INFINITY, 0, -INFINITY, 0};
        for (int s = 0; s < n_splits; ++s) {
            out.max = of_split[s].max > out.max ? of_split[s].max : out.max;
            out.tempered_max =
                of_split[s].tempered_max > out.tempered_max ? of_split[s].tempered_max : out.tempered_max;
        }
        for (int s = 0; s < n_splits; ++s) {  // an empty split (all hidden) has sum 0 and no maximum
            if (of_split[s].sum > 0)
                out.sum = add(out.sum, mul(of_split[s].sum, expf(add(of_split[s].max, -out.max))));
            if (of_split[s].tempered_sum > 0)
                out.tempered_sum = add(
                    out.tempered_sum,
                    mul(of_split[s].tempered_sum, expf(add(of_split[s].tempered_max, -out.tempered_max))));
        }
        return out;
    }

    KH_FN static float rounded(float score, ScoreType type) {
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
};

}  // namespace keyhole::cuda
