/// Keys and values as caches store them, and the two loops of attention over them: vectorised with Highway,
/// sums in float, each output summed in one fixed order. Keys of q8 are multiplied in integers where the
/// processor can (key_codes.h). No state; any thread. CUDA twin: backend/cuda/kernels/attention.h.
#pragma once

#include "engine/base/kv_type.h"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

/// Rows of head_dim numbers, one a slot, kv_row_bytes(type, head_dim) apart.
struct KvRows {
    std::byte* data = nullptr;
    KvType type = KvType::f32;
    int head_dim = 0;

    std::int64_t row_bytes() const { return kv_row_bytes(type, head_dim); }
    KvRows from_row(std::int64_t s) const { return {data + s * row_bytes(), type, head_dim}; }
};

/// out[s] = scale * sum_d q[d] * k[s, d]      q [head_dim], k [n, head_dim], out [n]
void dot_keys(const float* q, const float* k, int n, int head_dim, float scale, float* out);
void dot_keys(const float* q, const KvRows& k, int n, float scale, float* out);
/// The same for several queries and the rows [first, last), with the same bits: keys are read once.
void dot_keys(std::span<const float* const> q, const KvRows& k, int first, int last, float scale,
              std::span<float* const> out);

/// out[d] = sum_s p[s] * v[s, d]      v [n, head_dim]
void weighted_sum(const float* p, const float* v, int n, int head_dim, float* out);
void weighted_sum(const float* p, const KvRows& v, int n, float* out);
/// The same for several rows of attention and the dimensions [first, last), with the same bits: values are
/// read once. first is a multiple of kKvBlock, last too or head_dim.
void weighted_sums(std::span<const float* const> p, const KvRows& v, int n, int first, int last,
                   std::span<float* const> out);

/// Writes the first n rows as float: out [n, head_dim].
void widen_kv(const KvRows& rows, int n, float* out);

/// Stores x [head_dim] as the first row. f16 and bf16 round to nearest even, f16 above 65504 to infinity; for
/// q8 see KvType, and a block with a number that is not finite becomes NaN.
void narrow_kv(const float* x, const KvRows& to);

/// Returns n rows of float as they come back once they are stored in a type. x, result: [n, head_dim]
std::vector<float> rounded_as(KvType type, const float* x, std::int64_t n, int head_dim);

/// Returns the length of each of them.
std::vector<float> lengths_as(KvType type, const float* x, std::int64_t n, int head_dim);

/// Returns whether all numbers of the first row are finite as they are stored.
bool is_finite_kv(const KvRows& row);

/// Copies the first n rows of `from` to `to`, through float where the types differ. They must not overlap.
void convert_kv(const KvRows& from, int n, const KvRows& to);

}  // namespace keyhole
