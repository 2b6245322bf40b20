#include "engine/base/half.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/base/half.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

void demote_row(const float* in, std::size_t n, std::uint16_t* out) {
    namespace hn = hwy::HWY_NAMESPACE;
    const hn::ScalableTag<float> floats;
    const hn::Rebind<hwy::float16_t, decltype(floats)> halves;
    const std::size_t step = hn::Lanes(floats);
    // Highway rounds towards zero where the processor has no instruction for it.
    constexpr bool kRoundsToNearest = !(HWY_ARCH_X86 && HWY_TARGET > HWY_AVX2);
    std::size_t i = 0;
    for (; kRoundsToNearest && i + step <= n; i += step)
        hn::StoreU(hn::DemoteTo(halves, hn::LoadU(floats, in + i)), halves,
                   reinterpret_cast<hwy::float16_t*>(out + i));
    for (; i < n; ++i) out[i] = fp16_from_float(in[i]);
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(demote_row);

void fp16_from_floats(std::span<const float> values, std::span<std::uint16_t> out) {
    HWY_DYNAMIC_DISPATCH(demote_row)(values.data(), values.size(), out.data());
}

}  // namespace keyhole
#endif
