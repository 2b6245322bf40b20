/// Widens f16 in registers, with one rule for every instruction set. For sources that Highway compiles once
/// for each: they include this file after foreach_target.h. Any thread.
#if defined(KEYHOLE_ENGINE_BACKEND_COMMON_WIDEN_HALVES_H) == defined(HWY_TARGET_TOGGLE)
#ifdef KEYHOLE_ENGINE_BACKEND_COMMON_WIDEN_HALVES_H
#undef KEYHOLE_ENGINE_BACKEND_COMMON_WIDEN_HALVES_H
#else
#define KEYHOLE_ENGINE_BACKEND_COMMON_WIDEN_HALVES_H
#endif

#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// Returns the numbers that halves of these bits stand for.
template <class Tag>
HWY_INLINE hn::Vec<Tag> widen_halves(Tag tag, hn::Vec<hn::Rebind<std::uint16_t, Tag>> halves) {
#if HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2
    // No instruction widens there, and Highway gives infinities and NaN finite values.
    const hn::RebindToUnsigned<Tag> unsigned_tag;
    const hn::RebindToSigned<Tag> signed_tag;
    const auto bits = hn::PromoteTo(unsigned_tag, halves);
    const auto magnitude = hn::ShiftLeft<13>(hn::And(bits, hn::Set(unsigned_tag, 0x7fffu)));
    const auto scaled = hn::Mul(hn::BitCast(tag, magnitude), hn::Set(tag, 0x1p112f));
    const auto no_number = hn::BitCast(tag, hn::Or(magnitude, hn::Set(unsigned_tag, 0x7f800000u)));
    const auto is_no_number =
        hn::Gt(hn::BitCast(signed_tag, magnitude), hn::Set(signed_tag, (0x7c00 << 13) - 1));
    const auto wide = hn::IfThenElse(hn::RebindMask(tag, is_no_number), no_number, scaled);
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(unsigned_tag, 0x8000u)));
    return hn::Or(wide, hn::BitCast(tag, sign));
#else
    return hn::PromoteTo(tag, hn::BitCast(hn::Rebind<hwy::float16_t, Tag>(), halves));
#endif
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
