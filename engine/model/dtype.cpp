#include "engine/model/dtype.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

namespace keyhole {
namespace {

struct Layout {
    std::string_view name;
    std::int64_t n = 1;  ///< elements of a block
    std::size_t bytes = 0;
};

constexpr Layout layout(DType dtype) {
    switch (dtype) {
        case DType::f32:
            return {"f32", 1, 4};
        case DType::f16:
            return {"f16", 1, 2};
        case DType::bf16:
            return {"bf16", 1, 2};
#define KH_LAYOUT(type, Block, number, name) \
    case DType::type:                        \
        return {#type, Block::kElements, sizeof(Block)};
            KH_BLOCK_TYPES(KH_LAYOUT)
#undef KH_LAYOUT
    }
    return {};
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
    const Layout of = layout(dtype);
    KH_ASSERT(n % of.n == 0, "n={} dtype={}", n, of.name);
    return to_index(n / of.n) * of.bytes;
}

}  // namespace keyhole
