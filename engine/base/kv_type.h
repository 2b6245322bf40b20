/// The number types in which a cache stores keys and values. Any thread. Knows no cache.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace keyhole {

/// automatic: the backend chooses (Backend::kv_type). q8: blocks of kKvBlock neighbours of a row with one
/// scale, as q8_0 of GGUF files:
///     scale = fp16(max |x| / 127)    code(i) = round(x(i) * 127 / max |x|), halves away from zero
///     value(i) = scale * code(i)
/// A block is its scale (2 bytes) and its codes (1 byte each). Where head_dim is no multiple of kKvBlock, the
/// last block of a row is shorter.
enum class KvType { automatic, f32, f16, bf16, q8 };

inline constexpr int kKvBlock = 32;
inline constexpr int kKvScaleBytes = 2;

/// "auto", "f32", "f16", "bf16", "q8"
std::string_view kv_type_name(KvType type);
std::optional<KvType> kv_type_from_name(std::string_view name);

/// Returns the bytes of one key or value of head_dim numbers. Needs a type that is not automatic (asserted).
std::int64_t kv_row_bytes(KvType type, int head_dim);

}  // namespace keyhole
