#include "engine/backend/common/integer_products.h"

#include "engine/backend/common/integer_targets.h"
#include "engine/base/error.h"
#include "engine/base/half.h"

#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>

#if HWY_ARCH_X86
// GCC 12 warns of vectors that its own header leaves unset on purpose.
HWY_DIAGNOSTICS(push)
HWY_DIAGNOSTICS_OFF(disable : 4701, ignored "-Wuninitialized")
HWY_DIAGNOSTICS_OFF(disable : 4703, ignored "-Wmaybe-uninitialized")
#include <cpuid.h>
#include <immintrin.h>
HWY_DIAGNOSTICS(pop)
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#endif

namespace keyhole {
namespace {

// Weights are read from one end to the other. So many are fetched before their use, into the second-level
// cache: the first level holds few reads that wait for memory (Zen 4 reads at 0.8 of this speed with it).
constexpr int kBytesAhead = 8192, kSecondLevel = 2;

/// Writes numbers of two columns as one element.
[[maybe_unused]] void pack_halves(const std::int16_t* numbers, std::int32_t (&to)[2][8]) {
    for (int k = 0; k < 8; ++k)
        for (int odd = 0; odd < 2; ++odd) {
            const auto low = static_cast<std::uint16_t>(numbers[4 * k + odd]);
            const auto high =
                static_cast<std::uint32_t>(static_cast<std::uint16_t>(numbers[4 * k + odd + 2]));
            to[odd][k] = static_cast<std::int32_t>(low | high << 16);
        }
}

}  // namespace

namespace integers_plain {

struct Isa {
    static constexpr int kLanes = 1, kColumns = 1;
    using Ints = std::uint32_t;  // four codes of one row
    using Codes = Ints;
    struct Sum {
        std::int32_t upper, lower;
    };
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
    static Sum sum_from(std::int32_t upper, std::int32_t lower) { return {upper, lower}; }
    static std::int32_t product(Codes codes, std::int32_t even, std::int32_t odd) {
        const auto code = [&](int i) { return static_cast<std::int32_t>(codes >> 8 * i & 255); };
        return code(0) * static_cast<std::int16_t>(even) + code(1) * static_cast<std::int16_t>(odd) +
               code(2) * (even >> 16) + code(3) * (odd >> 16);
    }
    template <int k>
    static void add_products(Sum& sum, Codes codes, const NarrowBlock& x) {
        sum.upper += product(codes, x.upper[0][k], x.upper[1][k]);
        sum.lower += product(codes, x.lower[0][k], x.lower[1][k]);
    }
    static Floats total(Sum sum) {
        return static_cast<float>(sum.upper) * 256.0f + static_cast<float>(sum.lower);
    }
    template <int i>
    static Floats code_floats(Ints codes) {
        return static_cast<float>(codes >> 8 * i & 255);
    }
    static Floats magnitude(Floats a) { return std::fabs(a); }
    static Floats all(float value) { return value; }
    static Floats mul(Floats a, Floats b) { return a * b; }
    static Floats add(Floats a, Floats b) { return a + b; }
    static Floats mul_add(Floats a, Floats b, Floats sum) { return std::fma(a, b, sum); }
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
    static void round_all(const float* x, float inverse, std::int16_t* upper, std::int16_t* lower) {
        for (int i = 0; i < kCellColumns; ++i) {
            const auto q = static_cast<std::int32_t>(std::nearbyint(x[i] * inverse));
            lower[i] = static_cast<std::int8_t>(q);
            upper[i] = static_cast<std::int16_t>((q - lower[i]) >> 8);
        }
    }
    static std::int32_t sum_of_16(const std::int16_t* q) {
        std::int32_t sum = 0;
        for (int i = 0; i < 16; ++i) sum += q[i];
        return sum;
    }
    static void pack(const std::int16_t* upper, const std::int16_t* lower, NarrowBlock& to) {
        pack_halves(upper, to.upper);
        pack_halves(lower, to.lower);
    }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_plain

#if KH_INTEGERS_AVX2
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c")
namespace integers_avx2 {

#include "engine/backend/common/integer_eight_inl.h"

// Codes and numbers of 16 bits, in pairs.
struct Isa : Eight {
    static constexpr int kColumns = 2;
    struct Codes {
        __m256i even, odd;
    };
    struct Sum {
        __m256i upper, lower;
    };
    static Codes prepare(Ints codes) {
        return {_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srli_epi16(codes, 8)};
    }
    static Sum sum_from(std::int32_t upper, std::int32_t lower) {
        return {_mm256_set1_epi32(upper), _mm256_set1_epi32(lower)};
    }
    // Hides a sum from GCC, which else adds all products at last and has no registers for so many.
    static void keep(__m256i& sum) { asm("" : "+x"(sum)); }
    static __m256i plus_pairs(__m256i sum, const Codes& codes, std::int32_t even, std::int32_t odd) {
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.even, _mm256_set1_epi32(even)));
        keep(sum);
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(codes.odd, _mm256_set1_epi32(odd)));
        keep(sum);
        return sum;
    }
    template <int k>
    static void add_products(Sum& sum, const Codes& codes, const NarrowBlock& x) {
        sum.upper = plus_pairs(sum.upper, codes, x.upper[0][k], x.upper[1][k]);
        sum.lower = plus_pairs(sum.lower, codes, x.lower[0][k], x.lower[1][k]);
    }
    static Floats total(const Sum& sum) { return joined(sum.upper, sum.lower); }
    static void pack(const std::int16_t* upper, const std::int16_t* lower, NarrowBlock& to) {
        pack_halves(upper, to.upper);
        pack_halves(lower, to.lower);
    }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx2
namespace integers_avx2_bytes {

#include "engine/backend/common/integer_bytes_inl.h"

}  // namespace integers_avx2_bytes
HWY_POP_ATTRIBUTES
#endif

#if KH_INTEGERS_AVX_VNNI
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avxvnni")
namespace integers_avx_vnni {

#include "engine/backend/common/integer_eight_inl.h"

struct Isa : Eight {
    static constexpr int kColumns = 2;
    using Codes = Ints;
    struct Sum {
        __m256i first, second, lower;  // u is 256 first + second
    };
    static Codes prepare(Ints codes) { return codes; }
    static Sum sum_from(std::int32_t upper, std::int32_t lower) {
        return {_mm256_setzero_si256(), _mm256_set1_epi32(upper), _mm256_set1_epi32(lower)};
    }
    template <int k>
    static void add_products(Sum& sum, Codes codes, const NarrowBlock& x) {
        sum.first = _mm256_dpbusd_avx_epi32(sum.first, codes, _mm256_set1_epi32(x.upper[0][k]));
        sum.second = _mm256_dpbusd_avx_epi32(sum.second, codes, _mm256_set1_epi32(x.upper[1][k]));
        sum.lower = _mm256_dpbusd_avx_epi32(sum.lower, codes, _mm256_set1_epi32(x.lower[0][k]));
    }
    static Floats total(const Sum& sum) {
        return joined(_mm256_add_epi32(_mm256_slli_epi32(sum.first, 8), sum.second), sum.lower);
    }
    static void pack(const std::int16_t* upper, const std::int16_t* lower, NarrowBlock& to) {
        pack_bytes(upper, lower, to);
    }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx_vnni
HWY_POP_ATTRIBUTES
#endif

#if KH_INTEGERS_AVX512_VNNI
HWY_PUSH_ATTRIBUTES("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")
namespace integers_avx512_vnni {

#include "engine/backend/common/integer_eight_inl.h"

struct Isa : Eight {  // whose way to narrow it takes: registers of 16 are no faster there
    static constexpr int kLanes = 16, kColumns = 6;
    using Ints = __m512i;
    using Codes = Ints;
    using Floats = __m512;
    struct Sum {
        __m512i first, second, lower;  // u is 256 first + second
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
    static Sum sum_from(std::int32_t upper, std::int32_t lower) {
        return {_mm512_setzero_si512(), _mm512_set1_epi32(upper), _mm512_set1_epi32(lower)};
    }
    template <int k>
    static void add_products(Sum& sum, Codes codes, const NarrowBlock& x) {
        sum.first = _mm512_dpbusd_epi32(sum.first, codes, _mm512_set1_epi32(x.upper[0][k]));
        sum.second = _mm512_dpbusd_epi32(sum.second, codes, _mm512_set1_epi32(x.upper[1][k]));
        sum.lower = _mm512_dpbusd_epi32(sum.lower, codes, _mm512_set1_epi32(x.lower[0][k]));
    }
    static Floats total(const Sum& sum) {
        const __m512i upper = _mm512_add_epi32(_mm512_slli_epi32(sum.first, 8), sum.second);
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(upper), _mm512_set1_ps(256.0f),
                               _mm512_cvtepi32_ps(sum.lower));
    }
    template <int i>
    static Floats code_floats(Ints codes) {
        if constexpr (i > 0) codes = _mm512_srli_epi32(codes, 8 * i);
        if constexpr (i < 3) codes = _mm512_and_si512(codes, _mm512_set1_epi32(255));
        return _mm512_cvtepi32_ps(codes);
    }
    static Floats magnitude(Floats a) { return _mm512_abs_ps(a); }
    static Floats all(float value) { return _mm512_set1_ps(value); }
    static Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
    static Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
    static Floats mul_add(Floats a, Floats b, Floats sum) { return _mm512_fmadd_ps(a, b, sum); }
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
    static void pack(const std::int16_t* upper, const std::int16_t* lower, NarrowBlock& to) {
        pack_bytes(upper, lower, to);
    }
};

#include "engine/backend/common/integer_products_inl.h"

}  // namespace integers_avx512_vnni

#if KH_INTEGERS_AMX
namespace integers_amx {

#include "engine/backend/common/integer_tiles_inl.h"

}  // namespace integers_amx
#endif
HWY_POP_ATTRIBUTES
#endif

namespace {

/// The functions of a path.
struct PathFunctions {
    IntegerPath path;
    std::string_view name;
    void (*narrow)(const float*, std::int64_t, NarrowBlock*);
    void (*multiply)(const LaidMatrix&, std::int64_t, std::int64_t, NarrowInputs, int, float*, std::int64_t);
    void (*measure)(const LaidMatrix&, std::int64_t, std::int64_t, std::int64_t, const float*, float*);
    bool (*is_here)();
    std::int64_t (*ordered_bytes)(DType, std::int64_t, int) = nullptr;  // null: it has no order
    void (*order)(DType, const NarrowBlock*, std::int64_t, int, std::byte*) = nullptr;
};

#if HWY_ARCH_X86
bool may_use(std::int64_t target) {
    return (hwy::SupportedTargets() & target) != 0;
}
[[maybe_unused]] bool has_avx2() {
    return may_use(HWY_AVX2 | HWY_AVX3) && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
[[maybe_unused]] bool has_avx_vnni() {
    return has_avx2() && __builtin_cpu_supports("avxvnni");
}
[[maybe_unused]] bool has_avx512_vnni() {
    return may_use(HWY_AVX3) && __builtin_cpu_supports("avx512vnni");
}
[[maybe_unused]] bool has_tiles() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kTiles = 1u << 24, kBytes = 1u << 25;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) != 0 && (d & kTiles) != 0 && (d & kBytes) != 0;
}
/// Asks Linux to save tiles, for all threads of the process.
[[maybe_unused]] bool ask_for_tiles() {
#ifdef __linux__
    constexpr int kAsk = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
    return syscall(SYS_arch_prctl, kAsk, kTileData) == 0;
#else
    return false;
#endif
}
[[maybe_unused]] bool has_amx() {
    static const bool has = has_tiles() && ask_for_tiles();
    return has && has_avx512_vnni();
}
#endif

constexpr PathFunctions kPaths[] = {
    {IntegerPath::plain, "plain", integers_plain::narrow, integers_plain::multiply, integers_plain::measure,
     [] { return true; }},
#if KH_INTEGERS_AVX2
    {IntegerPath::avx2, "AVX2", integers_avx2::narrow, integers_avx2_bytes::multiply, integers_avx2::measure,
     has_avx2, integers_avx2_bytes::ordered_bytes, integers_avx2_bytes::order},
#endif
#if KH_INTEGERS_AVX_VNNI
    {IntegerPath::avx_vnni, "AVX-VNNI", integers_avx_vnni::narrow, integers_avx_vnni::multiply,
     integers_avx_vnni::measure, has_avx_vnni},
#endif
#if KH_INTEGERS_AVX512_VNNI
    {IntegerPath::avx512_vnni, "AVX-512 VNNI", integers_avx512_vnni::narrow, integers_avx512_vnni::multiply,
     integers_avx512_vnni::measure, has_avx512_vnni},
#endif
#if KH_INTEGERS_AMX
    {IntegerPath::amx, "AMX", integers_avx512_vnni::narrow, integers_amx::multiply,
     integers_avx512_vnni::measure, has_amx, integers_amx::ordered_bytes, integers_amx::order},
#endif
};

std::atomic<IntegerPath> last_path = IntegerPath::amx;

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
        if (functions.path <= last_path && functions.is_here()) paths.push_back(functions.path);
    return paths;
}

void limit_integer_paths(IntegerPath last) {
    last_path = last;
}

IntegerPath integer_path_limit() {
    return last_path;
}

IntegerPath best_integer_path() {
    return integer_paths().back();
}

void narrow_input(IntegerPath path, const float* x, std::int64_t n, NarrowBlock* out) {
    KH_ASSERT(n % kCellColumns == 0, "n={}", n);
    functions_of(path).narrow(x, n, out);
}

std::int64_t ordered_bytes(IntegerPath path, DType type, std::int64_t cols, int n_batch) {
    const PathFunctions& functions = functions_of(path);
    return functions.ordered_bytes != nullptr ? functions.ordered_bytes(type, cols, n_batch) : 0;
}

void order_inputs(IntegerPath path, DType type, const NarrowBlock* x, std::int64_t cols, int n_batch,
                  std::byte* to) {
    if (const PathFunctions& functions = functions_of(path); functions.order != nullptr)
        functions.order(type, x, cols, n_batch, to);
}

void multiply_laid(IntegerPath path, const LaidMatrix& w, std::int64_t first, std::int64_t last,
                   NarrowInputs x, int n_batch, float* y, std::int64_t y_stride) {
    functions_of(path).multiply(w, first, last, x, n_batch, y, y_stride);
}

void measure_laid(IntegerPath path, const LaidMatrix& w, std::int64_t group, std::int64_t first,
                  std::int64_t n, const float* x, float* lengths) {
    functions_of(path).measure(w, group, first, n, x, lengths);
}

}  // namespace keyhole
