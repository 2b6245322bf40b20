#include "engine/backend/common/value_reach.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace keyhole {
namespace {

/// Writes columns [first, first + n) of a row of a matrix. row: room for a whole one.
const float* widen_columns(const Weight& w, std::int64_t at_row, std::int64_t first, std::int64_t n,
                           std::vector<float>& row) {
    const std::int64_t at = at_row * w.cols + first, block = block_elements(w.dtype);
    if (at % block != 0 || n % block != 0) {  // a block belongs to several heads
        widen_rows(w, at_row, at_row + 1, row.data());
        return row.data() + first;
    }
    Weight part = w;
    part.data = static_cast<const std::byte*>(w.data) + stored_bytes(w.dtype, at);
    part.rows = 1;
    part.cols = n;
    widen_rows(part, 0, 1, row.data());
    return row.data();
}

}  // namespace

void reach_of_values(const Model& model, const KvHead& head, const float* values, std::span<float> reach) {
    const int d = model.config().head_dim;
    std::fill(reach.begin(), reach.end(), 0.0f);
    std::vector<float> row;
    for (const HeadRef& reader : head.readers) {
        const Weight& w = model.weights().layers[to_index(reader.layer)].o;
        row.resize(to_index(w.cols));
        for (std::int64_t r = 0; r < w.rows; ++r) {
            const float* a = widen_columns(w, r, std::int64_t{reader.head} * d, d, row);
            for (std::size_t i = 0; i < reach.size(); ++i) {
                const float* v = values + i * to_index(d);
                const float dot = dot_channels(
                    d, [&](int c) { return a[c]; }, [&](int c) { return v[c]; });
                reach[i] = add(reach[i], fabsf(dot));
            }
        }
    }
    for (float& one : reach) one /= static_cast<float>(head.readers.size());
}

}  // namespace keyhole
