#include "engine/base/kv_type.h"

#include "engine/base/error.h"

namespace keyhole {

std::string_view kv_type_name(KvType type) {
    switch (type) {
        case KvType::automatic:
            return "auto";
        case KvType::f32:
            return "f32";
        case KvType::f16:
            return "f16";
        case KvType::bf16:
            return "bf16";
        case KvType::q8:
            return "q8";
    }
    return "";
}

std::optional<KvType> kv_type_from_name(std::string_view name) {
    for (const KvType type : {KvType::automatic, KvType::f32, KvType::f16, KvType::bf16, KvType::q8})
        if (kv_type_name(type) == name) return type;
    return {};
}

std::int64_t kv_row_bytes(KvType type, int head_dim) {
    KH_ASSERT(type != KvType::automatic);
    if (type == KvType::q8)
        return head_dim + std::int64_t{kKvScaleBytes} * ((head_dim + kKvBlock - 1) / kKvBlock);
    return std::int64_t{head_dim} * (type == KvType::f32 ? 4 : 2);
}

}  // namespace keyhole
