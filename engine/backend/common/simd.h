/// Registers of floats for sources that Highway compiles once for each instruction set: such a source
/// includes this file after foreach_target.h. Any thread.
#if defined(KEYHOLE_ENGINE_BACKEND_COMMON_SIMD_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_ENGINE_BACKEND_COMMON_SIMD_H
#undef KEYHOLE_ENGINE_BACKEND_COMMON_SIMD_H
#else
#define KEYHOLE_ENGINE_BACKEND_COMMON_SIMD_H
#endif

#include "engine/backend/common/widen_halves.h"
#include "engine/base/half.h"

#include <hwy/highway.h>

#include <bit>
#include <cstdint>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Floats = hn::Vec<FloatTag>;

HWY_INLINE std::int64_t lanes() {
    return static_cast<std::int64_t>(hn::Lanes(FloatTag()));
}

HWY_INLINE Floats load(const float* p) {
    return hn::LoadU(FloatTag(), p);
}
HWY_INLINE Floats load(const hwy::float16_t* p) {
    const hn::Rebind<std::uint16_t, FloatTag> tag;
    return widen_halves(FloatTag(), hn::LoadU(tag, reinterpret_cast<const std::uint16_t*>(p)));
}
HWY_INLINE Floats load(const hwy::bfloat16_t* p) {
    return hn::PromoteTo(FloatTag(), hn::LoadU(hn::Rebind<hwy::bfloat16_t, FloatTag>(), p));
}
HWY_INLINE void store(Floats v, float* p) {
    hn::StoreU(v, FloatTag(), p);
}
HWY_INLINE Floats all(float value) {
    return hn::Set(FloatTag(), value);
}
HWY_INLINE float sum(Floats v) {
    return hn::GetLane(hn::SumOfLanes(FloatTag(), v));
}
HWY_INLINE float widen(float value) {
    return value;
}
HWY_INLINE float widen(hwy::float16_t value) {
    return float_from_fp16(std::bit_cast<std::uint16_t>(value));
}
HWY_INLINE float widen(hwy::bfloat16_t value) {
    return hwy::F32FromBF16(value);
}

// Calls visit(first, count) with count queries together, a constant, until all n have had their turn.
template <int kMost, class Visit>
HWY_INLINE void in_groups(int first, int n, Visit visit) {
    for (; first + kMost <= n; first += kMost) visit(first, std::integral_constant<int, kMost>());
    if constexpr (kMost > 1) in_groups<kMost - 1>(first, n, visit);
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
