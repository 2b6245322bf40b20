/// The types in which weights are stored: plain numbers, and the blocks of GGUF files. Any thread. Knows no
/// file format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace keyhole {

/// Types from q8_0 on are quantised: neighbours in a row share scales, in blocks of block_elements().
enum class DType {
    f32,
    f16,
    bf16,
    q8_0,
    q4_0,
    q4_1,
    q5_0,
    q5_1,
    q4_k,
    q5_k,
    q6_k,
    q2_k,
    q3_k,
    iq4_nl,
    iq4_xs,
    mxfp4,
    tq2_0,
    tq1_0
};

/// "f16", "q4_k"
std::string_view dtype_name(DType dtype);

constexpr bool is_quantised(DType dtype) {
    return dtype >= DType::q8_0;
}
/// Returns the number of elements that are stored together; 1 for plain numbers.
std::int64_t block_elements(DType dtype);
/// Returns the bytes of a block, or of an element of a plain type.
std::size_t block_bytes(DType dtype);
/// Returns the bytes of an element of a plain type (asserted).
std::size_t dtype_bytes(DType dtype);
/// Returns the bytes of n elements, a whole number of blocks (asserted).
std::size_t stored_bytes(DType dtype, std::int64_t n);

}  // namespace keyhole
