/// Quantised matrices as products in integers read them: sixteen rows side by side, so that a register holds
/// the same columns of neighbouring rows, with the codes still packed. Made once, const afterwards; any
/// thread. Knows no processor.
#pragma once

#include "engine/backend/common/laid_layout.h"
#include "engine/model/model.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace keyhole {

/// The values of what four bits store, of a type whose codes are looked up.
template <class Block>
inline constexpr auto kCodeValues = [] {
    std::array<std::int8_t, 16> values{};
    for (int i = 0; i < 16; ++i)
        values[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(Block::value(i));
    return values;
}();

/// A matrix that is laid; rows beyond the last of a whole group are zero.
struct LaidMatrix {
    DType dtype = DType::q8_0;
    const std::byte* data = nullptr;  ///< begins at a multiple of 64 bytes
    std::int64_t rows = 0, cols = 0;
    std::int64_t n_groups() const { return (rows + kLaidRows - 1) / kLaidRows; }
};

/// Returns whether products with this weight can be computed in integers.
bool can_be_laid(const Weight& weight);
/// Returns the bytes that a weight has when laid.
std::int64_t laid_bytes(const Weight& weight);
/// Writes groups [first, last) of a weight to data, where the whole matrix lies.
void lay_groups(const Weight& weight, std::int64_t first, std::int64_t last, std::byte* data);

}  // namespace keyhole
