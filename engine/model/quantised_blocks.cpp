#include "engine/model/quantised_blocks.h"

#include "engine/base/error.h"
#include "engine/base/half.h"

#include <bit>

namespace keyhole {
namespace {

template <class Block>
float factor_of(const Block& block) {
    if constexpr (Block::kType == DType::mxfp4)
        return std::bit_cast<float>(Block::factor_bits(block.d));
    else
        return float_from_fp16(block.d);
}

template <class Block>
void widen_blocks(const Block* blocks, std::int64_t n_blocks, float* out) {
    for (std::int64_t b = 0; b < n_blocks; ++b) {
        const Block& block = blocks[b];
        const float d = factor_of(block);
        for (int i = 0; i < Block::kElements; ++i) {
            const int j = i / Block::kPerScale;
            float value = d * static_cast<float>(block.scale(j)) * static_cast<float>(block.code(i));
            if constexpr (Block::kHasOffset)
                value += float_from_fp16(block.m) * static_cast<float>(block.offset(j));
            *out++ = value;
        }
    }
}

}  // namespace

void widen_stored(DType dtype, const void* data, std::int64_t n, float* out) {
    KH_ASSERT(n % block_elements(dtype) == 0, "n={} dtype={}", n, dtype_name(dtype));
    if (dtype == DType::f32) {
        const auto* from = static_cast<const float*>(data);
        for (std::int64_t i = 0; i < n; ++i) out[i] = from[i];
    } else if (!is_quantised(dtype)) {
        const auto* from = static_cast<const std::uint16_t*>(data);
        for (std::int64_t i = 0; i < n; ++i)
            out[i] = dtype == DType::f16 ? float_from_fp16(from[i]) : float_from_bf16(from[i]);
    } else {
        with_block(dtype, [&]<class Block>(Block) {
            widen_blocks(static_cast<const Block*>(data), n / Block::kElements, out);
        });
    }
}

}  // namespace keyhole
