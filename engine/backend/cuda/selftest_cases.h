/// What the cases of the self test share: an executor that runs one, numbers, and a lane's cache. Knows no
/// comparison: selftest.cpp.
#pragma once

#include "engine/backend/cuda/choice_launch.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace keyhole::cuda::selftest {

inline constexpr double kSumTolerance = 2e-6;      // sums in one order; exp, log and division differ
inline constexpr double kProductTolerance = 2e-5;  // cuBLAS sums in its own order

/// Returns about normally distributed numbers: each is a sum of four uniform ones, which is faster to compute
/// than the exact distribution.
inline std::vector<float> normal(std::int64_t n, unsigned seed, float scale = 1) {
    std::mt19937_64 generator(seed);
    const float unit = scale * std::sqrt(3.0f) / 65536;
    std::vector<float> values(to_index(n));
    for (float& v : values) {
        const std::uint64_t bits = generator();
        const std::uint64_t sum =
            (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        v = unit * (static_cast<float>(sum) - 2 * 65535.0f);
    }
    return values;
}

template <class T>
std::vector<T> stored(const std::vector<float>& values) {
    std::vector<T> out(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) narrow(values[i], out[i]);
    return out;
}

/// The output of a kernel, as numbers to compare.
struct Output {
    std::string kernel;
    std::vector<double> values;
    double tolerance = 0;
};

/// One executor that runs a case.
class Side {
  public:
    explicit Side(std::shared_ptr<Executor> on) : executor(std::move(on)) {}

    template <class V>
    Buffer<V> up(const std::vector<V>& values) {
        Buffer<V> buffer(executor, values.size());
        executor->upload(buffer.data(), values.data(), buffer.size_bytes());
        executor->wait();
        return buffer;
    }
    Buffer<float> floats(std::int64_t n) { return up(std::vector<float>(to_index(n), -7.0f)); }

    template <class V>
    std::vector<V> down(const V* data, std::size_t n) {
        std::vector<V> out(n);
        executor->download(out.data(), data, n * sizeof(V));
        executor->wait();
        return out;
    }
    template <class V>
    void note(const std::string_view kernel, double tolerance, const V* data, std::size_t n) {
        Output output{std::string(kernel), {}, tolerance};
        for (const V value : down(data, n)) {
            if constexpr (std::is_same_v<V, Fp16> || std::is_same_v<V, Bf16>)
                output.values.push_back(widen(value));
            else
                output.values.push_back(static_cast<double>(value));
        }
        outputs.push_back(std::move(output));
        if (noted) noted(outputs.size());
    }
    template <class Kernel, class V>
    void note(const Kernel&, double tolerance, const Buffer<V>& buffer) {
        note(kernel_name<Kernel>(), tolerance, buffer.data(), buffer.size());
    }

    std::shared_ptr<Executor> executor;
    std::vector<Output> outputs;
    std::function<void(std::size_t n_outputs)> noted;  ///< called after each output, if not empty
};

using Case = std::function<void(Side&)>;

/// A layer of two KV heads with two readers each, one lane, filled with noise.
template <class T>
struct LaneCase {
    static constexpr int kHeads = 4, kKv = 2, kWindow = 6;
    int head_dim, n, capacity, row;
    Buffer<T> keys, values;
    Buffer<std::int32_t> positions, order, readers, offset, kv_of_head, unit_of_head, steps, places;
    Buffer<std::uint8_t> pinned;
    Buffer<float> scores, noise, kept, reach, rotations;
    Buffer<DeviceHead<T>> heads;
    Buffer<HeadScores> head_scores;
    Buffer<DeviceUnit> units;
    Buffer<RowRule> rules;
    Buffer<LaneView<T>> lane;
    LaneView<T> view{};  ///< what `lane` holds

    LaneCase(Side& side, int size, int n_stored, RowRule rule, bool turned, bool one_unit)
        : head_dim(size), n(n_stored), capacity(n + 5), row(2 * n + 3) {
        const std::int64_t slots = std::int64_t{kKv} * capacity;
        keys = side.up(stored<T>(normal(slots * head_dim, 1)));
        values = side.up(stored<T>(normal(slots * head_dim, 2)));
        std::vector<std::int32_t> p;
        for (int g = 0; g < kKv; ++g) {  // shuffled, with gaps
            std::vector<std::int32_t> of_head(to_index(capacity));
            std::iota(of_head.begin(), of_head.end(), 0);
            std::shuffle(of_head.begin(), of_head.begin() + n,
                         std::mt19937(one_unit ? 1u : static_cast<unsigned>(g)));
            for (std::int32_t& slot : of_head) slot *= 2;
            p.insert(p.end(), of_head.begin(), of_head.end());
        }
        positions = side.up(p);
        std::vector<std::uint8_t> pins(to_index(slots), 0);
        for (std::size_t i = 0; i < pins.size(); i += 97) pins[i] = 1;
        pinned = side.up(pins);
        scores = side.up(normal(std::int64_t{kHeads} * kScores * capacity, 3));
        noise = side.up(normal(std::int64_t{kHeads} * capacity, 4));
        std::vector<float> of_rows = normal(std::int64_t{kWindow} * kHeads * capacity, 5);
        for (float& share : of_rows) share = std::abs(share);
        kept = side.up(of_rows);
        std::vector<float> far = normal(slots, 6);
        for (std::size_t i = 0; i < far.size(); ++i) far[i] = i % 3 == 0 ? kReachDue : std::abs(far[i]);
        reach = side.up(far);
        std::vector<float> angles;
        for (int position = 0; position <= row; ++position)
            for (const bool is_sine : {false, true})
                for (int i = 0; i < head_dim / 2; ++i) {
                    const double angle = position * std::pow(10000.0, -2.0 * i / head_dim);
                    angles.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
                }
        rotations = side.up(angles);
        readers = side.up(std::vector<std::int32_t>{0, 1, 2, 3});
        offset = side.up(std::vector<std::int32_t>{0, 2, 4});
        kv_of_head = side.up(std::vector<std::int32_t>{0, 0, 1, 1});
        std::vector<DeviceHead<T>> h;
        for (std::int64_t g = 0; g < kKv; ++g)
            h.push_back({keys.data() + g * capacity * head_dim, values.data() + g * capacity * head_dim,
                         positions.data() + g * capacity, pinned.data() + g * capacity, n, capacity,
                         reach.data() + g * capacity});
        heads = side.up(h);
        std::vector<HeadScores> s(kHeads);
        for (std::int64_t i = 0; i < kHeads; ++i) {
            for (std::int64_t a = 0; a < kScores; ++a)
                s[to_index(i)].score[a] = a == 1 ? nullptr : scores.data() + (i * kScores + a) * capacity;
            const bool draws = rule.noise_kind != 0 && rule.noise_draw == static_cast<int>(NoiseDraw::token);
            s[to_index(i)].noise = draws ? noise.data() + i * capacity : nullptr;
            s[to_index(i)].kept = kept.data() + i * capacity;
            s[to_index(i)].kept_stride = std::int64_t{kHeads} * capacity;
            s[to_index(i)].variant = i + 1 == kHeads ? 1 : 0;
            s[to_index(i)].window = kWindow;
        }
        head_scores = side.up(s);
        units = side.up(one_unit ? std::vector<DeviceUnit>{{0, 2, 0, 0}}
                                 : std::vector<DeviceUnit>{{0, 1, 0, 0}, {1, 2, 0, 0}});
        unit_of_head = side.up(std::vector<std::int32_t>{0, one_unit ? 0 : 1});
        RowRule without = rule;  // of the last head
        without.score = -1;
        rules = side.up(std::vector<RowRule>{rule, without});
        std::vector<std::int32_t> in_order(to_index(slots), 0);
        for (int g = 0; g < kKv; ++g)  // position 2 i is in the slot that it was shuffled to
            for (int slot = 0; slot < n; ++slot)
                in_order[to_index(g * capacity + p[to_index(g * capacity + slot)] / 2)] = slot;
        order = side.up(in_order);
        std::vector<std::int32_t> back(to_index(slots));
        for (std::size_t i = 0; i < back.size(); ++i) back[i] = static_cast<std::int32_t>(i % 7);
        steps = side.up(back);
        places = side.up(std::vector<std::int32_t>{row / 2, row / 3});
        view.heads = heads.data();
        view.scores = head_scores.data();
        view.units = units.data();
        view.unit_of_head = unit_of_head.data();
        view.rules = rules.data();
        view.order = order.data();
        view.list_stride = capacity;
        view.n_units = one_unit ? 1 : 2;
        view.row = row;
        view.n_kept_rows = kWindow - 1;
        if (turned) {
            view.steps = steps.data();
            view.places = places.data();
            view.steps_stride = capacity;
        }
        lane = side.up(std::vector<LaneView<T>>{view});
    }
    ReaderTable table() const { return {readers.data(), offset.data()}; }
    /// Two spans, of few rows and of many; the prompt's rows are the newest kWindow of each.
    KeptSpans spans() const {
        KeptSpans two{};
        std::fill(two.begin, two.begin + KeptSpans::kMost, 0x7fffffff);
        two.begin[0] = 0;
        two.begin[1] = 20;
        two.last[0] = two.at[0] = 1;
        two.last[1] = n - 1;
        two.at[1] = kWindow + 1;
        return two;
    }
};

inline RowRule plain_rule() {
    RowRule rule{};
    rule.seed = 5;
    rule.alpha = 0.5f;
    rule.gain = rule.tau = rule.weight = 1;
    rule.hidden_position = rule.dropped_position = -1;
    rule.stored = ResolvedPolicy::kUnlimited;
    return rule;
}

/// A value that differs in its last bit may be stored one step away.
template <class T>
inline constexpr double rounding = std::is_same_v<T, float>  ? kSumTolerance
                                   : std::is_same_v<T, Fp16> ? 1e-3
                                                             : 8e-3;

/// Blocks of random bytes whose factors are small numbers.
std::vector<std::uint8_t> random_blocks(DType type, std::int64_t n, unsigned seed);
/// A laid matrix of random bytes whose factors are small numbers.
std::vector<std::byte> random_laid(DType type, int rows, int cols, unsigned seed);
/// Returns s / 2 + p + ptau / position.
FormulaTable scoring_formula();

// The cases. T: float, Fp16 or Bf16.

void copies(Side& side);
void products(Side& side);
void plain_layers(Side& side);
template <class T>
void weights(Side& side);
void stored_weights(Side& side);
void laid_weights(Side& side);
template <class T>
void attention_cases(Side& side);
void prompt(Side& side);
template <class T, int kDim>
void prompt_attention(Side& side, int head_dim, int window, bool slopes);
template <class T>
void selection_cases(Side& side);
template <class T>
void sharing_cases(Side& side);
/// Units that choose by formulas: KV heads, or all of them as one; and KV heads as R-KV's code chooses.
enum class ChoiceUnits { heads, one, as_rkv_code };
template <class T>
void choice_cases(Side& side, ChoiceUnits units);
template <class T>
void rebuilding(Side& side);
void packing(Side& side);

}  // namespace keyhole::cuda::selftest
