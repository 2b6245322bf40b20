#include "app/view/deflate.h"

#include <zlib.h>

#include <new>

namespace keyhole {

std::vector<std::byte> deflate_bytes(std::span<const std::byte> bytes) {
    const auto n = static_cast<uLong>(bytes.size());
    uLongf size = compressBound(n);
    std::vector<std::byte> packed(size);
    // The room suffices, so only memory can lack.
    if (compress2(reinterpret_cast<Bytef*>(packed.data()), &size,
                  reinterpret_cast<const Bytef*>(bytes.data()), n, Z_BEST_COMPRESSION) != Z_OK)
        throw std::bad_alloc();
    packed.resize(size);
    return packed;
}

}  // namespace keyhole
