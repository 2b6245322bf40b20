/// The three stored number types in one form for kernels: widened to float in registers, narrowed with
/// rounding to nearest even. Host and device. Knows nothing else of the engine.
#pragma once

#include "engine/base/host_device.h"

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#else
#include "engine/base/half.h"
#endif

namespace keyhole::cuda {

struct Fp16 {
    std::uint16_t bits;
};
struct Bf16 {
    std::uint16_t bits;
};

enum class NumberType : std::int32_t { f32, f16, bf16 };
template <class T>
inline constexpr NumberType kNumberType = NumberType::f32;
template <>
inline constexpr NumberType kNumberType<Fp16> = NumberType::f16;
template <>
inline constexpr NumberType kNumberType<Bf16> = NumberType::bf16;

/// Calls visit.template operator()<T>() for the type of stored numbers. Host only.
template <class Visit>
void with_number(NumberType type, Visit visit) {
    switch (type) {
        case NumberType::f32:
            return visit.template operator()<float>();
        case NumberType::f16:
            return visit.template operator()<Fp16>();
        case NumberType::bf16:
            return visit.template operator()<Bf16>();
    }
}

KH_FN std::uint32_t bits_of(float value) {
#ifdef __CUDA_ARCH__
    return __float_as_uint(value);
#else
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
#endif
}

KH_FN float widen(float value) {
    return value;
}
KH_FN float widen(Fp16 value) {
#ifdef __CUDA_ARCH__
    return __half2float(__ushort_as_half(value.bits));
#elif defined(__CUDACC__)
    return __half2float(__half(__half_raw{value.bits}));
#else
    return float_from_fp16(value.bits);
#endif
}
KH_FN float widen(Bf16 value) {
#ifdef __CUDA_ARCH__
    return __uint_as_float(static_cast<unsigned>(value.bits) << 16);
#elif defined(__CUDACC__)
    return __bfloat162float(__nv_bfloat16(__nv_bfloat16_raw{value.bits}));
#else
    return float_from_bf16(value.bits);
#endif
}

KH_FN void narrow(float value, float& out) {
    out = value;
}
KH_FN void narrow(float value, Fp16& out) {
#ifdef __CUDACC__
    out.bits = __half_raw(__float2half_rn(value)).x;
#else
    out.bits = fp16_from_float(value);
#endif
}
KH_FN void narrow(float value, Bf16& out) {
#ifdef __CUDACC__
    out.bits = __nv_bfloat16_raw(__float2bfloat16_rn(value)).x;
#else
    out.bits = bf16_from_float(value);
#endif
}

KH_FN bool is_finite(float value) {
    return value - value == 0;  // infinity and NaN give NaN
}

/// Returns a * b + c, rounded once on a device and twice on the host, whose processors may lack the
/// instruction. For sums over weights; policy maths rounds every step (policy/math.h).
KH_FN float fused(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return add(c, mul(a, b));
#endif
}

/// Returns a * b + c, rounded once everywhere.
KH_FN float rounded_once(float a, float b, float c) {
#ifdef __CUDA_ARCH__
    return __fmaf_rn(a, b, c);
#else
    return std::fma(a, b, c);
#endif
}

/// Neighbouring values that one thread loads together: 16 bytes of 16-bit numbers, 32 of floats.
template <class T>
struct alignas(16) Pack {
    static constexpr int kSize = 8;
    T x[kSize];
};

/// Four neighbouring numbers, which a thread reads at once.
struct alignas(16) HalfPack {
    float x[4];
};

/// Lets the compiler assume that a pointer, itself read from memory, points to device memory: loads then need
/// not find out.
template <class T>
KH_FN const T* in_device_memory(const T* data) {
#ifdef __CUDA_ARCH__
    __builtin_assume(__isGlobal(data));
#endif
    return data;
}

}  // namespace keyhole::cuda
