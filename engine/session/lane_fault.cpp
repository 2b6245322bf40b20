#include "engine/session/lane_fault.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/policy/lane_spec.h"

#include <cmath>

namespace keyhole {

namespace {

/// Returns the largest number that a cache of the type holds, as users read it.
std::string_view largest(KvType type) {
    switch (type) {
        case KvType::f16:
            return "65504";
        case KvType::q8:
            return "8.3 million";  // 127 * 65504
        default:
            return "3.4e38";
    }
}

std::string text_of(const KvFault& fault, const KvLayout& layout) {
    const std::string what = fmt::format("{} of token {} in layer {}", fault.is_key ? "K" : "V",
                                         fault.position, layout.kv_head(fault.kv_head).owner_layer);
    if (!fault.by_rounding)
        return what + " is not finite as the model computes it; its weights may be damaged";
    return fmt::format("{} is beyond {}, the largest number that {} holds; take kv_dtype={}", what,
                       largest(fault.type), kv_type_name(fault.type),
                       fault.type == KvType::bf16 ? "f32" : "bf16");
}

}  // namespace

void find_fault(Lane& lane, int row) {
    if (!lane.failure.empty()) return;
    const std::optional<KvFault> fault = lane.cache->fault();
    if (fault) {
        lane.failure = text_of(*fault, lane.model->layout());
        const bool was_read = !lane.tokens.empty() || lane.policy().prefill == PrefillMode::stepwise;
        if (fault->by_rounding && was_read) {
            lane.log_probs.clear();
            lane.out.drop_values();
        }
    } else if (!lane.log_probs.empty() && std::isnan(lane.log_probs.front())) {
        lane.failure =
            fmt::format("the model's logits after token {} are not finite; its weights may be damaged", row);
    }
}

void throw_if_failed(const Lane& lane) {
    if (!lane.failure.empty())
        fail(ErrorCode::unsupported, "lane '{}': {}", shown_text(format_lane_spec(lane.spec)), lane.failure);
}

}  // namespace keyhole
