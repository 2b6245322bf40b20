#include "engine/backend/common/integer_products.h"

#include "engine/base/error.h"
#include "engine/base/half.h"

#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cstring>

#if HWY_ARCH_X86
// GCC 12 warns of vectors that its own header leaves unset on purpose.
HWY_DIAGNOSTICS(push)
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wuninitialized")
HWY_DIAGNOSTICS_OFF(disable : 4703, ignored "-Wmaybe-uninitialized")
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)
#endif

namespace keyhole {
namespace {

/// Writes the numbers of two columns as one element: first has columns 4 k and 4 k + 2, second the others.
[[maybe_unused]] void pack_halves(const std::int16_t* q, NarrowBlock& to) {
    for (int k = 0; k < 8; ++k) {
        const auto pair = [&](int low, int high) {
            return static_cast<std::int32_t>(
                static_cast<std::uint16_t>(q[4 * k + low]) |
                static_cast<std::uint32_t>(static_cast<std::uint16_t>(q[4 * k + high])) << 16);
        };
        to.first[k] = pair(0, 2);
        to.second[k] = pair(1, 3);
    }
}

}  // namespace

namespace integers_plain {

struct Isa {
    static constexpr int kLanes = 1, kColumns = 1;
    using Ints = std::uint32_t;  // four codes of one row
    using Codes = Ints;
    using Sum = std::int32_t;
    using Floats = float;
    static Ints load(const std::uint8_t* p) {
        Ints codes = 0;
        std::memcpy(&codes, p, sizeof codes);
        return codes;
    }
    static Ints and_all(Ints a, int byte) { return a & static_cast<Ints>(byte) * 0x01010101u; }
    static Ints either(Ints a, Ints b) { return a | b; }
    template <int kLeft>
    static Ints shift(Ints a) {
        return kLeft >= 0 ? a << std::max(kLeft, 0) : a >> std::max(-kLeft, 0);
    }
    static Ints look_up(const std::int8_t* values, int zero, Ints codes) {
        Ints found = 0;
        for (int i = 0; i < 32; i += 8) found |= static_cast<Ints>(values[codes >> i & 15] + zero) << i;
        return found;
    }
    static Codes prepare(Ints codes) { return codes; }
    static Sum sum_from(std::int32_t value) { return value; }
    static void add_products(Sum& sum, Codes codes, std::int32_t first, std::int32_t second) {
        const auto code = [&](int i) { return static_cast<std::int32_t>(codes >> 8 * i & 255); };
        sum += code(0) * static_cast<std::int16_t>(first) + code(1) * static_cast<std::int16_t>(second) +
               code(2) * (first >> 16) + code(3) * (second >> 16);
    }
    static Floats total(Sum sum) { return static_cast<float>(sum); }
    static Floats all(float value) { return value; }
    static Floats mul(Floats a, Floats b) { return a * b; }
    static Floats add(Floats a, Floats b) { return a + b; }
    static Floats load_halves(const std::byte* p) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, p, sizeof bits);
        return float_from_fp16(bits);
    }
    static Floats load_exponents(const std::byte* p) {
        return std::bit_cast<float>(BlockMXFP4::factor_bits(static_cast<std::uint8_t>(*p)));
    }
    static Floats load_steps(const std::byte* p) { return static_cast<std::int8_t>(*p); }
    static void store(Floats v, int, float* p) { *p = v; }
    static std::uint32_t largest_bits(const float* x) {
        std::uint32_t most = 0;
        for (int i = 0; i < kCellColumns; ++i)
            most = std::max(most, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffffu);
        return most;
    }
    static void round_all(const float* x, float inverse, float round, std::int16_t* q) {
        for (int i = 0; i < kCellColumns; ++i)
            q[i] = static_cast<std::int16_t>(std::bit_cast<std::int32_t>(x[i] * inverse + round));
    }
    static std::int32_t sum_of_16(const std::int16_t* q) {
        std::int32_t sum = 0;
        for (int i = 0; i < 16; ++i) sum += q[i];
        return sum;
    }
    static void pack(const std::int16_t* q, NarrowBlock& to) { pack_halves(q, to); }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_plain

#if HWY_ARCH_X86

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace integers_avx2 {

#include "engine/backend/common/integer_eight_inl.h"

// Codes and numbers of 16 bits, in pairs.
struct Isa : Eight {
    static constexpr int kColumns = 4;
    struct Codes {
        __m256i even, odd;
    };
    using Sum = __m256i;
    static Codes prepare(Ints codes) {
        return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
    }
    static Sum sum_from(std::int32_t value) { return _mm256_set1_epi32(value); }
    static void add_products(Sum& sum, const Codes& codes, std::int32_t first, std::int32_t second) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, _mm256_set1_epi32(first)));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, _mm256_set1_epi32(second)));
    }
    static Floats total(Sum sum) { return _mm256_cvtepi32_ps(sum); }
    static void pack(const std::int16_t* q, NarrowBlock& to) { pack_halves(q, to); }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx2
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")
namespace integers_avx_vnni {

#include "engine/backend/common/integer_eight_inl.h"

struct Isa : Eight {
    static constexpr int kColumns = 2;
    using Codes = Ints;
    struct Sum {
        __m256i upper, lower;
    };
    static Codes prepare(Ints codes) { return codes; }
    static Sum sum_from(std::int32_t value) { return {_mm256_setzero_si256(), _mm256_set1_epi32(value)}; }
    static void add_products(Sum& sum, Codes codes, std::int32_t first, std::int32_t second) {
        sum.upper = _mm256_dpbusd_avx_epi32(sum.upper, codes, _mm256_set1_epi32(first));
        sum.lower = _mm256_dpbusd_avx_epi32(sum.lower, codes, _mm256_set1_epi32(second));
    }
    static Floats total(const Sum& sum) {
        return _mm256_cvtepi32_ps(_mm256_add_epi32(_mm256_slli_epi32(sum.upper, 8), sum.lower));
    }
    static void pack(const std::int16_t* q, NarrowBlock& to) { pack_terms(q, to); }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx_vnni
HWY_POP_ATTRIBUTES

HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace integers_avx512_vnni {

#include "engine/backend/common/integer_eight_inl.h"

struct Isa : Eight {  // whose way to narrow it takes
    static constexpr int kLanes = 16, kColumns = 4;
    using Ints = __m512i;
    using Codes = Ints;
    using Floats = __m512;
    struct Sum {
        __m512i upper, lower;
    };
    static Ints load(const std::uint8_t* p) { return _mm512_loadu_si512(p); }
    static Ints and_all(Ints a, int byte) {
        return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(byte)));
    }
    static Ints either(Ints a, Ints b) { return _mm512_or_si512(a, b); }
    template <int kLeft>
    static Ints shift(Ints a) {
        if constexpr (kLeft > 0) return _mm512_slli_epi16(a, kLeft);
        if constexpr (kLeft < 0) return _mm512_srli_epi16(a, -kLeft);
        return a;
    }
    static Ints look_up(const std::int8_t* values, int zero, Ints codes) {
        const __m128i table = _mm_add_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)),
                                           _mm_set1_epi8(static_cast<char>(zero)));
        return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), codes);
    }
    static Codes prepare(Ints codes) { return codes; }
    static Sum sum_from(std::int32_t value) { return {_mm512_setzero_si512(), _mm512_set1_epi32(value)}; }
    static void add_products(Sum& sum, Codes codes, std::int32_t first, std::int32_t second) {
        sum.upper = _mm512_dpbusd_epi32(sum.upper, codes, _mm512_set1_epi32(first));
        sum.lower = _mm512_dpbusd_epi32(sum.lower, codes, _mm512_set1_epi32(second));
    }
    static Floats total(const Sum& sum) {
        return _mm512_cvtepi32_ps(_mm512_add_epi32(_mm512_slli_epi32(sum.upper, 8), sum.lower));
    }
    static Floats all(float value) { return _mm512_set1_ps(value); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats load_halves(const std::byte* p) {
        return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    }
    static Floats load_exponents(const std::byte* p) {
        const __m512i d = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
        const __m512i usual = _mm512_slli_epi32(_mm512_sub_epi32(d, _mm512_set1_epi32(1)), 23);
        const __m512i small = _mm512_sllv_epi32(_mm512_set1_epi32(0x00200000), d);
        return _mm512_castsi512_ps(
            _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(d, _mm512_set1_epi32(2)), usual, small));
    }
    static Floats load_steps(const std::byte* p) {
        return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
    }
    static void store(Floats v, int n, float* p) {
        _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), v);
    }
    static void pack(const std::int16_t* q, NarrowBlock& to) { pack_terms(q, to); }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx512_vnni
HWY_POP_ATTRIBUTES

#endif

namespace {

/// The functions of a path.
struct PathFunctions {
    IntegerPath path;
    std::string_view name;
    void (*narrow)(const float*, std::int64_t, NarrowBlock*);
    void (*multiply)(const LaidMatrix&, std::int64_t, std::int64_t, const NarrowBlock*, int, float*,
                     std::int64_t);
    bool (*is_here)();
};

#if HWY_ARCH_X86
bool may_use(std::int64_t target) {
    return (hwy::SupportedTargets() & target) != 0;
}
bool has_avx2() {
    return may_use(HWY_AVX2 | HWY_AVX3) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avx_vnni() {
    return has_avx2() && __builtin_cpu_supports("avxvnni");
}
bool has_avx512_vnni() {
    return may_use(HWY_AVX3) && __builtin_cpu_supports("avx512vnni");
}
#endif

constexpr PathFunctions kPaths[] = {
    {IntegerPath::plain, "plain", integers_plain::narrow, integers_plain::multiply, [] { return true; }},
#if HWY_ARCH_X86
    {IntegerPath::avx2, "AVX2", integers_avx2::narrow, integers_avx2::multiply, has_avx2},
    {IntegerPath::avx_vnni, "AVX-VNNI", integers_avx_vnni::narrow, integers_avx_vnni::multiply, has_avx_vnni},
    {IntegerPath::avx512_vnni, "AVX-512 VNNI", integers_avx512_vnni::narrow, integers_avx512_vnni::multiply,
     has_avx512_vnni},
#endif
};

const PathFunctions& functions_of(IntegerPath path) {
    for (const PathFunctions& functions : kPaths)
        if (functions.path == path) return functions;
    KH_ASSERT(false, "no such path");
    return kPaths[0];
}

}  // namespace

std::string_view integer_path_name(IntegerPath path) {
    return functions_of(path).name;
}

std::vector<IntegerPath> integer_paths() {
    std::vector<IntegerPath> paths;
    for (const PathFunctions& functions : kPaths)
        if (functions.is_here()) paths.push_back(functions.path);
    return paths;
}

IntegerPath best_integer_path() {
    return integer_paths().back();
}

void narrow_input(IntegerPath path, const float* x, std::int64_t n, NarrowBlock* out) {
    KH_ASSERT(n % kCellColumns == 0, "n={}", n);
    functions_of(path).narrow(x, n, out);
}

void multiply_laid(IntegerPath path, const LaidMatrix& w, std::int64_t first, std::int64_t last,
                   const NarrowBlock* x, int n_batch, float* y, std::int64_t y_stride) {
    functions_of(path).multiply(w, first, last, x, n_batch, y, y_stride);
}

}  // namespace keyhole
