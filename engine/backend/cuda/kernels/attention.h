/// Attention of one row: finishes queries and the new token's key and value, computes logits and each head's
/// output over splits of the stored tokens; later, for many layers at once, the final probabilities, and
/// folds every running score. Host and device. Knows a lane's device tables, no model. CPU twins:
/// backend/cpu/cpu_backend.cpp (attend_kv_head) and backend/cpu/score.h.
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
    /// rotations: [dims], cosines of the position's angles, then sines.
    template <class Out>
    KH_FN static void rotate(const HeadRule& rule, const Block& block, const Shared& shared,
                             const float* rotations, Out out) {
        for (int i = block.thread; i < rule.dims / 2; i += block.n_threads) {
            const int a = rule.first_of(i), b = rule.second_of(i);
            const float c = mul(rotations[i], rule.magnitude),
                        s = mul(rotations[rule.dims / 2 + i], rule.magnitude);
            float x, y;
            rotate_pair(shared.x[a], shared.x[b], c, s, x, y);
            out(a, x);
            out(b, y);
        }
        for (int i = rule.dims + block.thread; i < rule.head_dim; i += block.n_threads) out(i, shared.x[i]);
    }
};

/// A buffer of values by query head: those of a lane's head h start at [lane * lane_stride + h * stride].
template <class V>
struct HeadBuffer {
    V* data;
    std::int64_t lane_stride;

    KH_FN V* of(int lane, int h, int stride) const {
        return data + lane * lane_stride + static_cast<std::int64_t>(h) * stride;
    }
};
using RowBuffer = HeadBuffer<float>;

/// Returns channel c of a stored key.
template <class T>
KH_FN float stored_key(const DeviceHead<T>& head, int slot, int c) {
    return widen(head.keys[(static_cast<std::int64_t>(c / 8) * head.capacity + slot) * 8 + c % 8]);
}

/// Maximum and sum of one split, or of a whole row. The softmax over the row follows from the latter.
struct SplitSum {
    float max = 0, sum = 0;                    ///< sum of exp(logit - max)
    float tempered_max = 0, tempered_sum = 0;  ///< the same for the tempered logits
};

/// Computes the logits of up to kSplit slots of one query head, their maximum and sum, and the values
/// weighted by exp(logit - max). The last block of a head to do so (is_last_block) combines the splits, in
/// their order: the head's output, and the row's maximum and sum for FoldRow. Each block finishes its query
/// itself, and the new token's key and value where it sees them; one block of a KV head writes these two to
/// their slot, and none reads them there. Blocks of kSplit threads, one thread per slot. Grid: x = splits,
/// y = query heads of the layer, z = lanes. Blocks beyond a head's slots do nothing and are not counted, so
/// one grid fits all counts up to a capacity.
template <class T>
struct AttendSplit {
    static constexpr int kPhases = 12;
    static constexpr int kGroups = 32;     ///< threads that reduce a first share
    static constexpr int kInFlight = 4;    ///< reads of keys or values under way in a thread
    static constexpr int kFinishers = 64;  ///< threads that finish the query and the new key
    struct Shared {
        HeadFinish::Shared query, key;
        float q[kMaxHeadDim];                                        // rotated
        alignas(16) T new_key[kMaxHeadDim], new_value[kMaxHeadDim];  // as they are stored
        float logit[kSplit], tempered[kSplit];  ///< from phase 5 on: the weights exp(. - max)
        std::uint8_t unread[kSplit];            ///< of a head that reads pages
        SplitSum group[kGroups];
        alignas(16) float values[2][kSplit][4];  ///< halves of a thread's eight sums: no bank conflicts
        std::int32_t combines;
    };
    struct Local {
        float logit, tempered;  ///< from phase 10 on: the row's maxima
    };
    const float* q;  ///< [lanes, n_heads, head_dim]
    const float* k;  ///< [lanes, n_kv, head_dim] of the new token; null in a layer that borrows
    const float* v;
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;  ///< [n_heads] of the layer
    RowBuffer logits;                ///< -inf where hidden
    RowBuffer tempered;              ///< (logit + gain * noise) / tau; not written where nothing tempers
    RowBuffer noise;                 ///< null when not wanted
    SplitSum* sums;                  ///< [lanes, n_heads, max_splits]
    float* partial_values;           ///< [lanes, n_heads, max_splits, head_dim]
    std::uint32_t* n_done;           ///< [lanes, n_heads] blocks that have written; 0 between launches
    float* out;                      ///< [lanes, n_heads, head_dim]
    HeadBuffer<SplitSum> totals;     ///< of the whole row, 1 a head
    std::int32_t layer, n_heads, head_dim;
    float scale;              ///< factor of q.k
    std::int32_t row_stride;  ///< slots that the row buffers have room for
    std::int32_t max_splits;
    const float* rotations;  ///< [positions, finish.dims] cosines of a position's angles, then their sines
    const float*
        slopes;  ///< [n_heads] ALiBi: logit += slope * (place of the key - place of the query); or null
    HeadRule finish;
    std::int32_t window;            ///< the layer sees this many newest positions; 0: all
    std::int32_t first_kv;          ///< the owner's first KV head
    std::int32_t n_kv;              ///< how many KV heads it has
    std::int32_t fault_stride = 0;  ///< KV heads of a lane in `faults`
    /// [lanes, n_kv, head_dim] keys before rotation, or null: written by a layer that owns them, and read for
    /// the row's own token by one that borrows them so (ModelConfig::borrows_unrotated).
    float* raw_keys = nullptr;
    std::uint8_t* faults = nullptr;  ///< [lanes, fault_stride, kFaultKinds] only ever set here; or null
    /// The pages that a head reads, of ChoosePages: 0: keys and values of its tokens are not read. Null data
    /// where no lane reads pages.
    HeadBuffer<const std::uint8_t> read{};
    std::int32_t page_stride = 0;
    std::int32_t unused = 0;

    KH_FN void phase(int p, const Block& block, Shared& shared, Local& local) const {
        const int split = block.x, h = block.y, lane = block.z, t = block.thread;
        const DeviceHead<T>& head = lanes[lane].heads[kv_of_head[h]];
        const int first = split * kSplit;
        if (first >= head.count) return;
        const int n = head.count - first < kSplit ? head.count - first : kSplit;
        const std::int64_t head_at = static_cast<std::int64_t>(lane) * n_heads + h;
        const bool holds_new = k != nullptr && first + n == head.count;
        if (p < 3) return finish_heads(p, block, shared, holds_new);
        switch (p) {
            case 3:
                local.logit = local.tempered = -INFINITY;
                if (t < n) score_slot(shared, local, head, lane, h, first + t);
                shared.logit[t] = local.logit;
                shared.tempered[t] = local.tempered;
                if (holds_new && (h == 0 || kv_of_head[h - 1] != kv_of_head[h])) store(block, shared, head);
                return;
            case 4:
                if (t < kGroups) {
                    shared.group[t].max = max_of_group(shared.logit, t);
                    shared.group[t].tempered_max = max_of_group(shared.tempered, t);
                }
                return;
            case 5: {
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
            case 6:
                add_values(block, shared, head, first, n, holds_new);
                if (t < kGroups) {
                    shared.group[t].sum = sum_of_group(shared.logit, t);
                    shared.group[t].tempered_sum = sum_of_group(shared.tempered, t);
                }
                return;
            case 7:
                finish_values(block, shared, partial_values + (head_at * max_splits + split) * head_dim);
                if (t == 0) sums[head_at * max_splits + split] = whole(shared);
                return;
            case 8:
                if (t == 0) shared.combines = is_last_block(n_done[head_at], n_splits(head)) ? 1 : 0;
                return;
            default:
                if (shared.combines != 0) combine(p, block, shared, local, head_at, n_splits(head));
        }
    }

    KH_FN static int n_splits(const DeviceHead<T>& head) { return (head.count + kSplit - 1) / kSplit; }

    /// Combines the splits of all blocks, in three phases: the row's maxima, each split's weights, sums.
    KH_FN void combine(int p, const Block& block, Shared& shared, Local& local, std::int64_t head_at,
                       int n) const {
        SplitSum* of_split = sums + head_at * max_splits;
        if (p == 9) {
            float most = -INFINITY, most_tempered = -INFINITY;
            for (int s = block.thread; s < n; s += block.n_threads) {
                most = larger(most, read_across(&of_split[s].max));
                most_tempered = larger(most_tempered, read_across(&of_split[s].tempered_max));
            }
            shared.logit[block.thread] = most;
            shared.tempered[block.thread] = most_tempered;
        } else if (p == 10) {
            local.logit = local.tempered = -INFINITY;
            for (int i = 0; i < n && i < block.n_threads; ++i) {
                local.logit = larger(local.logit, shared.logit[i]);
                local.tempered = larger(local.tempered, shared.tempered[i]);
            }
            for (int s = block.thread; s < n; s += block.n_threads) {
                const float sum = read_across(&of_split[s].sum);
                const float sum_tempered = read_across(&of_split[s].tempered_sum);
                // From here on with its weights in place of its maxima, and written by this block.
                of_split[s] = {
                    weight_of_split(read_across(&of_split[s].max), sum, local.logit), sum,
                    weight_of_split(read_across(&of_split[s].tempered_max), sum_tempered, local.tempered),
                    sum_tempered};
            }
        } else if (block.thread < head_dim) {
            SplitSum all{local.logit, 0, local.tempered, 0};
            for (int s = 0; s < n; ++s) {
                all.sum = add(all.sum, mul(of_split[s].sum, of_split[s].max));
                all.tempered_sum =
                    add(all.tempered_sum, mul(of_split[s].tempered_sum, of_split[s].tempered_max));
            }
            if (block.thread == 0) *totals.of(block.z, block.y, 1) = all;
            for (int i = block.thread; i < head_dim; i += block.n_threads) {
                const float sum = combined(of_split, partial_values + head_at * max_splits * head_dim + i, n);
                out[head_at * head_dim + i] =
                    all.sum != 0 ? sum / all.sum : 0.0f;  // 0 for a row that sees nothing
            }
        }
    }

    /// Returns the larger one; a where b is NaN.
    KH_FN static float larger(float a, float b) { return b > a ? b : a; }

    /// Returns exp(max - most); 0 for a split whose slots are all hidden: it has no maximum.
    KH_FN static float weight_of_split(float max, float sum, float most) {
        return sum != 0 ? expf(add(max, -most)) : 0.0f;
    }

    /// Returns the weighted sum of one dimension's partial values.
    KH_FN float combined(const SplitSum* of_split, const float* of_dimension, int n) const {
        constexpr int kRead = 16 / sizeof(T);  // more take registers from the rest of the kernel (sm_90)
        float sum = 0;
        for (int first = 0; first < n; first += kRead) {
            float value[kRead];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kRead; ++j)
                if (first + j < n)
                    value[j] = read_across(of_dimension + static_cast<std::int64_t>(first + j) * head_dim);
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kRead; ++j)
                if (first + j < n) sum = add(sum, mul(of_split[first + j].max, value[j]));
        }
        return sum;
    }

    /// Loads, norms and rotates the query, and the new token's key where the block sees it.
    KH_FN void finish_heads(int p, const Block& block, Shared& shared, bool holds_new) const {
        if (block.thread >= kFinishers) return;
        Block few = block;
        few.n_threads = block.n_threads < kFinishers ? block.n_threads : kFinishers;
        const int lane = block.z, h = block.y, g = kv_of_head[h];
        const LaneView<T>& view = lanes[lane];
        const std::int64_t key_at = (static_cast<std::int64_t>(lane) * n_kv + g - first_kv) * head_dim;
        if (p == 0) {
            HeadFinish::load(finish, few, shared.query,
                             q + (static_cast<std::int64_t>(lane) * n_heads + h) * head_dim);
            if (holds_new) HeadFinish::load(finish, few, shared.key, k + key_at);
        } else if (p == 1) {
            HeadFinish::norm(finish, few, shared.query, finish.q_norm);
            if (holds_new) HeadFinish::norm(finish, few, shared.key, finish.k_norm);
        } else {
            const std::int64_t place = view.places != nullptr ? view.places[g] : view.row;
            HeadFinish::rotate(finish, few, shared.query, rotations + place * finish.dims, Keep{shared.q});
            if (!holds_new) return;
            HeadFinish::rotate(finish, few, shared.key,
                               rotations + static_cast<std::int64_t>(view.row) * finish.dims,
                               KeepStored{shared.new_key});
            for (int i = few.thread; i < head_dim; i += few.n_threads)
                narrow(finish.clipped(v[key_at + i]), shared.new_value[i]);
        }
    }
    struct Keep {
        float* out;
        KH_FN void operator()(int i, float value) const { out[i] = value; }
    };
    struct KeepStored {
        T* out;
        KH_FN void operator()(int i, float value) const { narrow(value, out[i]); }
    };

    /// Writes the new token's key and value to the last slot.
    KH_FN void store(const Block& block, const Shared& shared, const DeviceHead<T>& head) const {
        const std::int64_t slot = head.count - 1, capacity = head.capacity;
        KH_DEVICE_ASSERT(slot >= 0 && slot < capacity);
        const std::int64_t at =
            (static_cast<std::int64_t>(block.z) * n_kv + kv_of_head[block.y] - first_kv) * head_dim;
        for (int i = block.thread; i < head_dim; i += block.n_threads) {
            head.keys[(i / 8 * capacity + slot) * 8 + i % 8] = shared.new_key[i];
            head.values[slot * head_dim + i] = shared.new_value[i];
            if (raw_keys != nullptr) raw_keys[at + i] = shared.key.x[i];
            if (faults == nullptr) continue;
            if (!is_finite(widen(shared.new_key[i])))
                set_fault(block, is_finite(shared.key.x[i]) ? kRoundedKey : kBadKey);
            if (!is_finite(widen(shared.new_value[i])))
                set_fault(block, is_finite(v[at + i]) ? kRoundedValue : kBadValue);
        }
    }
    /// Threads may write the same byte; all write 1.
    KH_FN void set_fault(const Block& block, FaultKind kind) const {
        const std::int64_t head = static_cast<std::int64_t>(block.z) * fault_stride + kv_of_head[block.y];
        faults[head * kFaultKinds + kind] = 1;
    }

    KH_FN bool reads_pages(const LaneView<T>& view, int g) const {
        return read.data != nullptr && view.pages.reads_some(g);
    }
    KH_FN bool is_read(const LaneView<T>& view, int lane, int h, int g, int position) const {
        return read.of(lane, h, page_stride)[position / view.pages.rules[g].length] != 0;
    }

    KH_FN void score_slot(Shared& shared, Local& local, const DeviceHead<T>& head, int lane, int h,
                          int slot) const {
        const LaneView<T>& view = lanes[lane];
        const HeadScores& scores = view.scores[layer * n_heads + h];
        const RowRule& rule = view.rules[scores.variant];
        const int row = view.row, position = head.positions[slot], g = kv_of_head[h];
        KH_DEVICE_ASSERT(slot < row_stride && position >= 0 && position <= row);
        const int steps = view.steps != nullptr ? view.steps[g * view.steps_stride + slot] : 0;
        const bool is_own = slot == head.count - 1, is_new = is_own && k != nullptr;
        const bool is_unread = reads_pages(view, g) && !is_read(view, lane, h, g, position);
        if (reads_pages(view, g)) shared.unread[slot % kSplit] = is_unread ? 1 : 0;
        float dot = 0;
        if (!is_unread && is_own && !is_new && raw_keys != nullptr) {
            const float* key = raw_keys + (static_cast<std::int64_t>(lane) * n_kv + g - first_kv) * head_dim;
            for (int i = 0; i < head_dim; ++i) dot = add(dot, mul(shared.q[i], key[i]));
        } else if (!is_unread) {
            dot = dot_of(shared, head, slot, steps, is_new);
        }
        float zeta = 0;
        if (rule.noise_kind != static_cast<int>(NoiseKind::none))
            zeta = scores.noise != nullptr ? scores.noise[slot] : noise_of(rule, layer, h, row, position);
        if (!is_unread && !is_hidden(rule, row, position) && (window <= 0 || position > row - window)) {
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

    /// Returns the product of q and a stored key, or the new one, turned back by `steps` positions.
    KH_FN float dot_of(const Shared& shared, const DeviceHead<T>& head, int slot, int steps,
                       bool is_new) const {
        float dot = 0;
        if (steps != 0 && finish.dims > 0) return dot_rotated_back(shared, head, slot, steps, is_new);
        if (is_new) {
            for (int i = 0; i < head_dim; ++i) dot = add(dot, mul(shared.q[i], widen(shared.new_key[i])));
            return dot;
        }
        const Pack<T>* packs = in_device_memory(reinterpret_cast<const Pack<T>*>(head.keys)) + slot;
        const std::int64_t capacity = head.capacity;
        int c = 0;
        // The same terms in the same order as one by one.
        for (; c + kInFlight <= head_dim / 8; c += kInFlight) {
            Pack<T> pack[kInFlight];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kInFlight; ++j) pack[j] = packs[(c + j) * capacity];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kInFlight; ++j) dot = add_pack(dot, shared.q + (c + j) * 8, pack[j]);
        }
        for (; c < head_dim / 8; ++c) dot = add_pack(dot, shared.q + c * 8, packs[c * capacity]);
        return dot;
    }

    KH_FN static float add_pack(float dot, const float* q_row, const Pack<T>& pack) {
        for (int j = 0; j < 8; ++j) dot = add(dot, mul(q_row[j], widen(pack.x[j])));
        return dot;
    }

    KH_FN static float key_at(const Shared& shared, const DeviceHead<T>& head, int slot, int i, bool is_new) {
        if (is_new) return widen(shared.new_key[i]);
        return stored_key(head, slot, i);
    }

    /// Returns the product of q and a key turned back by `steps` positions.
    KH_FN float dot_rotated_back(const Shared& shared, const DeviceHead<T>& head, int slot, int steps,
                                 bool is_new) const {
        const int half = finish.dims / 2;
        const float* cosine = rotations + static_cast<std::int64_t>(steps) * finish.dims;
        const float* sine = cosine + half;
        float dot = 0;
        for (int i = 0; i < half; ++i) {
            const int one = finish.first_of(i), other = finish.second_of(i);
            float x, y;
            rotate_pair(key_at(shared, head, slot, one, is_new), key_at(shared, head, slot, other, is_new),
                        cosine[i], -sine[i], x, y);
            dot = add(dot, add(mul(shared.q[one], x), mul(shared.q[other], y)));
        }
        for (int i = finish.dims; i < head_dim; ++i)
            dot = add(dot, mul(shared.q[i], key_at(shared, head, slot, i, is_new)));
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

    /// Thread (part, pack of 8 dimensions) sums every parts-th slot; the new token's is the last.
    KH_FN void add_values(const Block& block, Shared& shared, const DeviceHead<T>& head, int first, int n,
                          bool holds_new) const {
        const int packs = head_dim / 8, parts = kSplit / packs;
        const int part = block.thread / packs, pack = block.thread % packs;
        if (part >= parts) return;
        float sum[8] = {0, 0, 0, 0, 0, 0, 0, 0};
        const Pack<T>* values = in_device_memory(reinterpret_cast<const Pack<T>*>(head.values)) +
                                static_cast<std::int64_t>(first) * packs + pack;
        const auto add_slot = [&](int i, const Pack<T>& of) {
            for (int j = 0; j < 8; ++j) sum[j] = add(sum[j], mul(shared.logit[i], widen(of.x[j])));
        };
        const int n_old = holds_new ? n - 1 : n;
        int i = part;
        const bool by_pages = reads_pages(lanes[block.z], kv_of_head[block.y]);
        for (; by_pages && i < n_old; i += parts)
            if (shared.unread[i] == 0) add_slot(i, values[i * packs]);
        for (; i + (kInFlight - 1) * parts < n_old; i += kInFlight * parts) {
            Pack<T> of_slot[kInFlight];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kInFlight; ++j) of_slot[j] = values[(i + j * parts) * packs];
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
            for (int j = 0; j < kInFlight; ++j) add_slot(i + j * parts, of_slot[j]);
        }
        for (; i < n_old; i += parts) add_slot(i, values[i * packs]);
        if (i < n && !(by_pages && shared.unread[i] != 0))
            add_slot(i, reinterpret_cast<const Pack<T>*>(shared.new_value)[pack]);
        for (int j = 0; j < 8; ++j) shared.values[j / 4][block.thread][j % 4] = sum[j];
    }

    KH_FN void finish_values(const Block& block, const Shared& shared, float* to) const {
        const int packs = head_dim / 8, parts = kSplit / packs;
        for (int i = block.thread; i < head_dim; i += block.n_threads) {
            float sum = 0;
            for (int part = 0; part < parts; ++part)
                sum = add(sum, shared.values[i % 8 / 4][part * packs + i / 8][i % 4]);
            to[i] = sum;
        }
    }
};

/// Writes the probabilities of whole rows and folds every running score, for the query heads of one layer or
/// of several. One thread per slot. Grid: x = splits, y = query heads, from first_head on, z = lanes.
template <class T>
struct FoldRow {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    const LaneView<T>* lanes;
    const std::int32_t* kv_of_head;  ///< [query heads]
    RowBuffer probabilities;         ///< null when not wanted; may be `logits` itself
    RowBuffer logits;                ///< as AttendSplit wrote them
    RowBuffer tempered;
    HeadBuffer<SplitSum> totals;
    std::int32_t first_head;  ///< numbered over the whole model
    std::int32_t row_stride;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int h = block.y, lane = block.z, slot = block.x * kSplit + block.thread;
        const LaneView<T>& view = lanes[lane];
        if (slot >= view.heads[kv_of_head[h]].count) return;
        const HeadScores& scores = view.scores[first_head + h];
        const RowRule& rule = view.rules[scores.variant];
        const SplitSum& all = *totals.of(lane, h, 1);
        const float logit = logits.of(lane, h, row_stride)[slot], p = share(logit, all.max, all.sum);
        const float warm = rule.tempers != 0 ? share(tempered.of(lane, h, row_stride)[slot], all.tempered_max,
                                                     all.tempered_sum)
                                             : p;
        if (probabilities.data != nullptr) probabilities.of(lane, h, row_stride)[slot] = p;
        if (scores.kept != nullptr &&
            (rule.kept_from == 0 || view.heads[kv_of_head[h]].positions[slot] >= rule.kept_from))
            scores.kept_row(view.row)[slot] = rule.as_rkv_code != 0 ? logit : p;
        for (int a = 0; a < kByScoreFormula; ++a) {
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
};

/// Returns the length of a stored key or value.
template <class T>
KH_FN float key_length(const DeviceHead<T>& head, int head_dim, int slot) {
    return length_of(head_dim, [&](int c) { return stored_key(head, slot, c); });
}
template <class T>
KH_FN float value_length(const DeviceHead<T>& head, int head_dim, int slot) {
    return length_of(
        head_dim, [&](int c) { return widen(head.values[static_cast<std::int64_t>(slot) * head_dim + c]); });
}

/// Folds the scores of lanes that have a formula for them. Runs before FoldRow, which may write probabilities
/// where the logits are. One thread per token, in text order. Grid: as FoldRow.
template <class T>
struct FoldByFormula {
    static constexpr int kPhases = 1;
    using Shared = NoShared;
    using Local = NoLocal;
    FoldRow<T> fold;
    std::int32_t n_heads, group;  ///< of a layer; query heads that share a KV head
    std::int32_t head_dim, unused = 0;

    KH_FN void phase(int, const Block& block, Shared&, Local&) const {
        const int h = block.y, lane = block.z, i = block.x * kSplit + block.thread, g = fold.kv_of_head[h];
        const LaneView<T>& view = fold.lanes[lane];
        const HeadScores& scores = view.scores[fold.first_head + h];
        const DeviceHead<T>& head = view.heads[g];
        if (view.score == nullptr || i >= head.count || scores.score[kByScoreFormula] == nullptr) return;
        const RowRule& rule = view.rules[scores.variant];
        if (rule.score < 0) return;
        const FormulaTable& formula = view.score[rule.score];
        const SplitSum& all = *fold.totals.of(lane, h, 1);
        const int slot = view.order[static_cast<std::int64_t>(g) * view.list_stride + i];
        const float logit = fold.logits.of(lane, h, fold.row_stride)[slot];
        const float p = FoldRow<T>::share(logit, all.max, all.sum);
        const float ptau = rule.tempers != 0
                               ? FoldRow<T>::share(fold.tempered.of(lane, h, fold.row_stride)[slot],
                                                   all.tempered_max, all.tempered_sum)
                               : p;
        const int of_layer = (fold.first_head + h) % n_heads;
        const PlaceFacts row{
            view.row,  rule.n_prompt,    head.count,  rule.span,  (fold.first_head + h) / n_heads,
            of_layer,  of_layer / group, rule.window, rule.alpha, rule.tau,
            rule.gain, rule.mix};
        float& score = scores.score[kByScoreFormula][slot];
        RowToken token{score, p, logit, ptau, head.positions[slot], i};
        if (formula.names(Quantity::knorm)) token.knorm = key_length(head, head_dim, slot);
        if (formula.names(Quantity::vnorm)) token.vnorm = value_length(head, head_dim, slot);
        if (formula.names(Quantity::wvnorm)) token.wvnorm = head.reach != nullptr ? head.reach[slot] : NAN;
        score = rounded(score_after_row(formula, row, token), static_cast<ScoreType>(rule.score_dtype));
    }
};

}  // namespace keyhole::cuda
