#include "engine/model/dtype.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <array>

namespace keyhole {
namespace {

struct Layout {
    std::string_view name;
    std::int64_t n = 1;
    std::size_t bytes = 0;
};

template <class Block>
constexpr Layout layout_of_block(std::string_view name) {
    return {name, Block::kElements, sizeof(Block)};
}

constexpr std::array<Layout, 11> kLayouts = {
    Layout{"f32", 1, 4},
    Layout{"f16", 1, 2},
    Layout{"bf16", 1, 2},
    layout_of_block<BlockQ8_0>("q8_0"),
    layout_of_block<BlockQ4_0>("q4_0"),
    layout_of_block<BlockQ4_1>("q4_1"),
    layout_of_block<BlockQ5_0>("q5_0"),
    layout_of_block<BlockQ5_1>("q5_1"),
    layout_of_block<BlockQ4_K>("q4_k"),
    layout_of_block<BlockQ5_K>("q5_k"),
    layout_of_block<BlockQ6_K>("q6_k"),
};

const Layout& layout(DType dtype) {
    return kLayouts[to_index(dtype)];
}

}  // namespace

std::string_view dtype_name(DType dtype) {
    return layout(dtype).name;
}

std::int64_t block_elements(DType dtype) {
    return layout(dtype).n;
}

std::size_t block_bytes(DType dtype) {
    return layout(dtype).bytes;
}

std::size_t dtype_bytes(DType dtype) {
    KH_ASSERT(!is_quantised(dtype), "dtype={}", dtype_name(dtype));
    return layout(dtype).bytes;
}

std::size_t stored_bytes(DType dtype, std::int64_t n) {
    const Layout& of = layout(dtype);
    KH_ASSERT(n % of.n == 0, "n={} dtype={}", n, of.name);
    return to_index(n / of.n) * of.bytes;
}

}  // namespace keyhole
