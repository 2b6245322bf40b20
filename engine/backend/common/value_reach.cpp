#include "engine/backend/common/value_reach.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"

#include <algorithm>
#include <cmath>
#include <vector>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/common/value_reach.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#if HWY_HAVE_SCALABLE == 0 && HWY_MAX_BYTES >= 32
using Eight = hn::CappedTag<float, 8>;
using Sums = hn::Vec<Eight>;
// Adds neighbours of two registers.
HWY_INLINE Sums in_pairs(Sums low, Sums high) {
    return hn::Add(hn::ConcatEven(Eight(), high, low), hn::ConcatOdd(Eight(), high, low));
}
#endif

// Writes |dot_channels(d, row, value)| of eight rows that are `stride` apart.
void eight_lengths(const float* rows, std::int64_t stride, const float* value, int d, float* out) {
#if HWY_HAVE_SCALABLE == 0 && HWY_MAX_BYTES >= 32
    if (d % 8 == 0) {
        Sums sums[8];
        HWY_UNROLL(8)
        for (int r = 0; r < 8; ++r) sums[r] = hn::Zero(Eight());
        for (int c = 0; c < d; c += 8) {
            const Sums x = hn::LoadU(Eight(), value + c);
            HWY_UNROLL(8)
            for (int r = 0; r < 8; ++r)
                sums[r] = hn::Add(sums[r], hn::Mul(hn::LoadU(Eight(), rows + r * stride + c), x));
        }
        // After three additions, lane r is the sum of row r.
        const Sums low = in_pairs(in_pairs(sums[0], sums[1]), in_pairs(sums[2], sums[3]));
        const Sums high = in_pairs(in_pairs(sums[4], sums[5]), in_pairs(sums[6], sums[7]));
        return hn::StoreU(hn::Abs(in_pairs(low, high)), Eight(), out);
    }
#endif
    for (int r = 0; r < 8; ++r)
        out[r] = std::fabs(dot_channels(
            d, [&](int c) { return rows[r * stride + c]; }, [&](int c) { return value[c]; }));
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {
namespace {

HWY_EXPORT(eight_lengths);

/// The columns of W_o that query heads [first, last) of a layer have, and whole blocks around them.
struct HeadColumns {
    std::int64_t first, n, skipped;
    HeadColumns(const Weight& w, std::int64_t first_head, std::int64_t last_head, std::int64_t d) {
        const std::int64_t block = block_elements(w.dtype);
        first = first_head * d / block * block;
        n = (last_head * d + block - 1) / block * block - first;
        skipped = first_head * d - first;
    }
};

/// Returns the end of the readers from `first` on that are neighbours in one layer.
std::size_t neighbours_end(std::span<const HeadRef> readers, std::size_t first) {
    std::size_t end = first + 1;
    while (end < readers.size() && readers[end].layer == readers[first].layer &&
           readers[end].head == readers[end - 1].head + 1)
        ++end;
    return end;
}

/// Adds |W_o v| of neighbouring query heads, one after the other, each over the channels in order.
void add_reach(const Weight& w, std::span<const HeadRef> readers, int d, const float* values,
               std::span<float> reach) {
    constexpr std::int64_t kRows = 8;
    auto* const lengths = &HWY_DYNAMIC_DISPATCH(eight_lengths);
    const HeadColumns columns(w, readers.front().head, readers.back().head + 1, d);
    std::vector<float> tile(to_index(kRows * columns.n));
    std::vector<float> length(readers.size() * reach.size() * to_index(w.rows + kRows));
    const auto of = [&](std::size_t reader, std::size_t i) {
        return &length[(reader * reach.size() + i) * to_index(w.rows + kRows)];
    };
    for (std::int64_t r = 0; r < w.rows; r += kRows) {
        widen_columns(w, r, std::min(r + kRows, w.rows), columns.first, columns.n, tile.data());
        for (std::size_t reader = 0; reader < readers.size(); ++reader)
            for (std::size_t i = 0; i < reach.size(); ++i)
                lengths(tile.data() + columns.skipped + to_index(d) * reader, columns.n,
                        values + i * to_index(d), d, of(reader, i) + r);
    }
    for (std::size_t reader = 0; reader < readers.size(); ++reader)
        for (std::size_t i = 0; i < reach.size(); ++i)
            for (std::int64_t r = 0; r < w.rows; ++r) reach[i] = add(reach[i], of(reader, i)[r]);
}

}  // namespace

void reach_of_values(const Model& model, const KvHead& head, const float* values, std::span<float> reach) {
    constexpr std::size_t kAtOnce = 16;  // bounds what add_reach() keeps
    const std::span<const HeadRef> readers = head.readers;
    const int d = model.config().head_dim;
    std::fill(reach.begin(), reach.end(), 0.0f);
    for (std::size_t first = 0; first < readers.size();) {
        const std::size_t end = neighbours_end(readers, first);
        const Weight& w = model.weights().layers[to_index(readers[first].layer)].o;
        for (std::size_t i = 0; i < reach.size(); i += kAtOnce)
            add_reach(w, readers.subspan(first, end - first), d, values + i * to_index(d),
                      reach.subspan(i, std::min(kAtOnce, reach.size() - i)));
        first = end;
    }
    for (float& one : reach) one /= static_cast<float>(readers.size());
}

bool can_measure_laid(const KvLayout& layout, int layer, int head_dim) {
    if (head_dim % kCellColumns != 0 || !layout.owns(layer)) return false;
    for (int g = layout.first_of_layer(layer); g < layout.first_of_layer(layer + 1); ++g)
        if (layout.kv_head(g).readers.back().layer != layer) return false;
    return true;
}

void measure_outputs(IntegerPath path, const LaidMatrix& w, std::int64_t first, std::int64_t last,
                     const KvLayout& layout, int layer, int head_dim, const float* values, float* lengths) {
    for (std::int64_t group = first; group < last; ++group)
        for (int g = layout.first_of_layer(layer); g < layout.first_of_layer(layer + 1); ++g)
            for (const HeadRef& reader : layout.kv_head(g).readers)
                measure_laid(path, w, group, std::int64_t{reader.head} * head_dim, head_dim,
                             values + std::int64_t{layout.kv_head(g).index} * head_dim,
                             lengths + (reader.head * w.n_groups() + group) * kLaidRows);
}

float reach_of_lengths(const LaidMatrix& w, const KvHead& head, const float* lengths) {
    float reach = 0;
    for (const HeadRef& reader : head.readers) {
        const float* of = lengths + reader.head * w.n_groups() * kLaidRows;
        for (std::int64_t r = 0; r < w.rows; ++r) reach = add(reach, of[r]);
    }
    return reach / static_cast<float>(head.readers.size());
}

}  // namespace keyhole
#endif
