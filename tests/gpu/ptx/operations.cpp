// What each instruction computes. Names are those of the PTX ISA with all that follows the dots.
#include "engine/base/half.h"
#include "tests/gpu/ptx/options.h"
#include "tests/gpu/ptx/warp.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>

namespace ptx {
namespace {

using u16 = std::uint16_t;
using u32 = std::uint32_t;
using u64 = std::uint64_t;
using s16 = std::int16_t;
using s32 = std::int32_t;
using s64 = std::int64_t;

using Table = std::unordered_map<std::string, Operation>;

struct Pred {};
template <class T>
constexpr std::uint8_t kSize = std::is_same_v<T, Pred> ? 0 : sizeof(T);

/// A source of one operand: lane by lane.
template <class T>
struct Source {
    const T* data;
    Source(const Warp& warp, u32 at) : data(warp.lanes<T>(at)) {}
    T operator[](int lane) const { return data[lane]; }
};
template <>
struct Source<Pred> {
    u32 bits;
    Source(const Warp& warp, u32 at) : bits(*warp.lanes<u32>(at)) {}
    bool operator[](int lane) const { return (bits >> lane & 1u) != 0; }
};

/// d = f(sources) in the lanes of the mask.
template <class F, class D, class... S, std::size_t... kI>
void apply(Warp& warp, const Op& op, std::index_sequence<kI...>) {
    const std::tuple<Source<S>...> source(Source<S>(warp, op.at[kI + 1])...);
    if constexpr (std::is_same_v<D, Pred>) {
        u32 bits = 0;
        for (int i = 0; i < kLanes; ++i) bits |= static_cast<u32>(F{}(std::get<kI>(source)[i]...)) << i;
        u32& out = *warp.lanes<u32>(op.at[0]);
        out = (out & ~warp.mask) | (bits & warp.mask);
    } else {
        D* out = warp.lanes<D>(op.at[0]);
        if (warp.mask == kAllLanes) {
#pragma GCC ivdep
            for (int i = 0; i < kLanes; ++i) out[i] = static_cast<D>(F{}(std::get<kI>(source)[i]...));
        } else {
            for_lanes(warp.mask, [&](int i) { out[i] = static_cast<D>(F{}(std::get<kI>(source)[i]...)); });
        }
    }
}
template <class F, class D, class... S>
void run(Warp& warp, const Op& op) {
    apply<F, D, S...>(warp, op, std::index_sequence_for<S...>{});
}

template <class D, class... S, class F>
void add(Table& table, const std::string& name, F) {
    table[name] = {&run<F, D, S...>, Kind::plain, {kSize<D>, kSize<S>...}, 0};
}

// --- numbers -----------------------------------------------------------------------------------------------

/// Moves an approximate result by -1, 0 or 1 places, as the operand's bits say, where options().approximate
/// is set.
float approximate(double exact, float operand) {
    const auto value = static_cast<float>(exact);
    if (!options().approximate || !std::isfinite(value) || value == 0) return value;
    const u32 hash = (std::bit_cast<u32>(operand) * 2654435761u) >> 7;
    if (hash % 3 == 1) return value;
    return std::nextafterf(value, hash % 3 == 0 ? -INFINITY : INFINITY);
}
float flushed(float value) {
    return std::abs(value) < std::numeric_limits<float>::min() ? std::copysign(0.0f, value) : value;
}

/// a * b + c, rounded down. The product of two floats is exact in double; the sum's error is known.
float fused_down(float a, float b, float c) {
    const double product = double{a} * double{b}, sum = product + double{c};
    const double part = sum - product, error = (product - (sum - part)) + (double{c} - part);
    auto value = static_cast<float>(sum);
    if (double{value} > sum || (double{value} == sum && error < 0)) value = std::nextafterf(value, -INFINITY);
    return value;
}

u32 permuted(u32 a, u32 b, u32 selector) {
    const u64 bytes = u64{b} << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; ++i) {
        const u32 nibble = selector >> 4 * i & 0xf;
        u32 byte = static_cast<u32>(bytes >> 8 * (nibble & 7)) & 0xff;
        if ((nibble & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
        out |= byte << 8 * i;
    }
    return out;
}

template <class T>
T inserted(T a, T b, u32 at, u32 n) {
    constexpr u32 kBits = 8 * sizeof(T);
    at &= 0xff, n &= 0xff;
    if (at >= kBits || n == 0) return b;
    const T mask = (n >= kBits ? ~T{0} : (T{1} << n) - 1) << at;
    return (b & ~mask) | (a << at & mask);
}
template <class T>
T extracted(T a, u32 at, u32 n) {
    constexpr u32 kBits = 8 * sizeof(T);
    using U = std::make_unsigned_t<T>;
    at &= 0xff, n &= 0xff;
    if (n == 0) return 0;
    const u32 end = std::min(kBits, at + n);
    if (at >= kBits) return std::is_signed_v<T> && a < 0 ? T(-1) : T{0};
    const U left = static_cast<U>(static_cast<U>(a) << (kBits - end));
    return static_cast<T>(static_cast<T>(left) >> (kBits - end + at));
}

// --- the table ---------------------------------------------------------------------------------------------

template <class T>
void add_integers(Table& t, const std::string& type) {
    using U = std::make_unsigned_t<T>;
    add<T, T, T>(t, "add." + type, [](T a, T b) { return T(U(a) + U(b)); });
    add<T, T, T>(t, "sub." + type, [](T a, T b) { return T(U(a) - U(b)); });
    add<T, T, T>(t, "mul.lo." + type, [](T a, T b) { return T(u64(a) * u64(b)); });
    add<T, T, T, T>(t, "mad.lo." + type, [](T a, T b, T c) { return T(u64(a) * u64(b) + u64(c)); });
    add<T, T, T>(t, "min." + type, [](T a, T b) { return a < b ? a : b; });
    add<T, T, T>(t, "max." + type, [](T a, T b) { return a > b ? a : b; });
    add<T, T, T>(t, "div." + type, [](T a, T b) {
        return b == 0 ? T(-1) : T(b) == T(-1) ? T(U(0) - U(a)) : T(a / b);
    });
    add<T, T, T>(t, "rem." + type, [](T a, T b) {
        return b == 0 ? a : b == T(-1) && std::is_signed_v<T> ? T(0) : T(a % b);
    });
    add<T, T>(t, "neg." + type, [](T a) { return T(U(0) - U(a)); });
    add<T, T>(t, "abs." + type, [](T a) { return a < 0 ? T(U(0) - U(a)) : a; });
    add<T, T, u32>(t, "shr." + type, [](T a, u32 n) {
        constexpr u32 kBits = 8 * sizeof(T);
        return n < kBits ? T(a >> n) : std::is_signed_v<T> ? T(a >> (kBits - 1)) : T(0);
    });
    if constexpr (sizeof(T) < 8) {
        using Wide = std::conditional_t<std::is_signed_v<T>, std::conditional_t<sizeof(T) == 2, s32, s64>,
                                        std::conditional_t<sizeof(T) == 2, u32, u64>>;
        add<Wide, T, T>(t, "mul.wide." + type, [](T a, T b) { return Wide(Wide(a) * Wide(b)); });
        add<Wide, T, T, Wide>(t, "mad.wide." + type,
                              [](T a, T b, Wide c) { return Wide(u64(Wide(a) * Wide(b)) + u64(c)); });
        add<T, T, T>(t, "mul.hi." + type, [](T a, T b) { return T(Wide(a) * Wide(b) >> 8 * sizeof(T)); });
    } else {
        add<T, T, T>(t, "mul.hi." + type, [](T a, T b) {
            using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
            return T(Wide(a) * Wide(b) >> 64);
        });
    }
    if constexpr (sizeof(T) >= 4)
        add<T, T, u32, u32>(t, "bfe." + type, [](T a, u32 at, u32 n) { return extracted(a, at, n); });
}

template <class T>
void add_bits(Table& t, const std::string& type) {
    add<T, T>(t, "mov." + type, [](T a) { return a; });
    add<T, T, T>(t, "and." + type, [](T a, T b) { return T(a & b); });
    add<T, T, T>(t, "or." + type, [](T a, T b) { return T(a | b); });
    add<T, T, T>(t, "xor." + type, [](T a, T b) { return T(a ^ b); });
    add<T, T>(t, "not." + type, [](T a) { return T(~a); });
    add<T, T, u32>(t, "shl." + type, [](T a, u32 n) { return n < 8 * sizeof(T) ? T(a << n) : T(0); });
    add<T, T, u32>(t, "shr." + type, [](T a, u32 n) { return n < 8 * sizeof(T) ? T(a >> n) : T(0); });
    if constexpr (sizeof(T) >= 4) {
        add<u32, T>(t, "popc." + type, [](T a) { return u32(std::popcount(a)); });
        add<u32, T>(t, "clz." + type, [](T a) { return u32(std::countl_zero(a)); });
        add<T, T, T, u32, u32>(t, "bfi." + type,
                               [](T a, T b, u32 at, u32 n) { return inserted(a, b, at, n); });
    }
}

template <class T>
void add_choice(Table& t, const std::string& type) {
    add<T, T>(t, "mov." + type, [](T a) { return a; });
    add<T, T, T, Pred>(t, "selp." + type, [](T a, T b, bool p) { return p ? a : b; });
    add<Pred, T, T>(t, "setp.eq." + type, [](T a, T b) { return a == b; });
    add<Pred, T, T>(t, "setp.ne." + type,
                    [](T a, T b) { return std::is_floating_point_v<T> ? a < b || a > b : a != b; });
    add<Pred, T, T>(t, "setp.lt." + type, [](T a, T b) { return a < b; });
    add<Pred, T, T>(t, "setp.le." + type, [](T a, T b) { return a <= b; });
    add<Pred, T, T>(t, "setp.gt." + type, [](T a, T b) { return a > b; });
    add<Pred, T, T>(t, "setp.ge." + type, [](T a, T b) { return a >= b; });
    if constexpr (std::is_floating_point_v<T>) {
        add<Pred, T, T>(t, "setp.equ." + type, [](T a, T b) { return !(a < b || a > b); });
        add<Pred, T, T>(t, "setp.neu." + type, [](T a, T b) { return a != b; });
        add<Pred, T, T>(t, "setp.ltu." + type, [](T a, T b) { return !(a >= b); });
        add<Pred, T, T>(t, "setp.leu." + type, [](T a, T b) { return !(a > b); });
        add<Pred, T, T>(t, "setp.gtu." + type, [](T a, T b) { return !(a <= b); });
        add<Pred, T, T>(t, "setp.geu." + type, [](T a, T b) { return !(a < b); });
        add<Pred, T, T>(t, "setp.num." + type, [](T a, T b) { return a == a && b == b; });
        add<Pred, T, T>(t, "setp.nan." + type, [](T a, T b) { return a != a || b != b; });
    }
}

template <class T>
void add_floats(Table& t, const std::string& type) {
    for (const std::string rounding : {"", "rn."}) {
        add<T, T, T>(t, "add." + rounding + type, [](T a, T b) { return a + b; });
        add<T, T, T>(t, "sub." + rounding + type, [](T a, T b) { return a - b; });
        add<T, T, T>(t, "mul." + rounding + type, [](T a, T b) { return a * b; });
    }
    add<T, T, T>(t, "div.rn." + type, [](T a, T b) { return a / b; });
    add<T, T>(t, "rcp.rn." + type, [](T a) { return T(1) / a; });
    add<T, T>(t, "sqrt.rn." + type, [](T a) { return std::sqrt(a); });
    add<T, T, T, T>(t, "fma.rn." + type, [](T a, T b, T c) { return std::fma(a, b, c); });
    add<T, T>(t, "neg." + type, [](T a) { return -a; });
    add<T, T>(t, "abs." + type, [](T a) { return std::abs(a); });
    add<T, T, T>(t, "copysign." + type, [](T a, T b) { return std::copysign(b, a); });
    // A number where the other one is NaN; -0 is less than 0.
    add<T, T, T>(t, "max." + type, [](T a, T b) {
        return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
    });
    add<T, T, T>(t, "min." + type, [](T a, T b) {
        return a != a ? b : b != b ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
    });
}

void add_approximations(Table& t) {
    const auto both = [&](const std::string& name, auto f) {
        add<float, float>(t, name + ".approx.f32", f);
        // With .ftz: subnormal operands and results are 0.
        add<float, float>(t, name + ".approx.ftz.f32",
                          [](float a) { return flushed(decltype(f){}(flushed(a))); });
    };
    both("ex2", [](float a) { return approximate(std::exp2(double{a}), a); });
    both("lg2", [](float a) { return approximate(std::log2(double{a}), a); });
    both("rcp", [](float a) { return approximate(1 / double{a}, a); });
    both("rsqrt", [](float a) { return approximate(1 / std::sqrt(double{a}), a); });
    both("sqrt", [](float a) { return approximate(std::sqrt(double{a}), a); });
    both("sin", [](float a) { return approximate(std::sin(double{a}), a); });
    both("cos", [](float a) { return approximate(std::cos(double{a}), a); });
    add<float, float>(t, "tanh.approx.f32", [](float a) { return approximate(std::tanh(double{a}), a); });
    for (const char* name : {"div.approx.f32", "div.full.f32"})
        add<float, float, float>(t, name,
                                 [](float a, float b) { return approximate(double{a} / double{b}, a); });
    add<float, float, float, float>(t, "fma.rm.f32",
                                    [](float a, float b, float c) { return fused_down(a, b, c); });
}

/// Predicates are masks, so that these work on all lanes at once.
template <class F>
void run_masks(Warp& warp, const Op& op) {
    u32& out = *warp.lanes<u32>(op.at[0]);
    const u32 a = *warp.lanes<u32>(op.at[1]), b = *warp.lanes<u32>(op.at[2]);
    out = (out & ~warp.mask) | (F{}(a, b) & warp.mask);
}
void add_masks(Table& t) {
    const auto two = [&]<class F>(const char* name, F, std::vector<std::uint8_t> sizes) {
        t[name] = {&run_masks<F>, Kind::plain, std::move(sizes), 0};
    };
    two("and.pred", [](u32 a, u32 b) { return a & b; }, {0, 0, 0});
    two("or.pred", [](u32 a, u32 b) { return a | b; }, {0, 0, 0});
    two("xor.pred", [](u32 a, u32 b) { return a ^ b; }, {0, 0, 0});
    two("not.pred", [](u32 a, u32) { return ~a; }, {0, 0});
    two("mov.pred", [](u32 a, u32) { return a; }, {0, 0});
}

/// Whole registers and their parts.
template <class Whole, class Part>
void pack(Warp& warp, const Op& op) {
    Whole* whole = warp.lanes<Whole>(op.at[0]);
    constexpr int kParts = sizeof(Whole) / sizeof(Part);
    for_lanes(warp.mask, [&](int lane) {
        Part parts[kParts];
        for (int i = 0; i < kParts; ++i) parts[i] = warp.lanes<Part>(op.at[static_cast<u32>(i) + 1])[lane];
        std::memcpy(&whole[lane], parts, sizeof(Whole));
    });
}
template <class Whole, class Part>
void unpack(Warp& warp, const Op& op) {
    constexpr int kParts = sizeof(Whole) / sizeof(Part);
    for_lanes(warp.mask, [&](int lane) {
        Part parts[kParts];
        std::memcpy(parts, &warp.lanes<Whole>(op.at[0])[lane], sizeof(Whole));
        for (int i = 0; i < kParts; ++i) warp.lanes<Part>(op.at[static_cast<u32>(i) + 1])[lane] = parts[i];
    });
}

// --- a warp together ---------------------------------------------------------------------------------------

/// The number of a register's half, as fp16 or bf16.
float half_of(u32 bits, int which, bool is_bf16) {
    const auto half = static_cast<u16>(bits >> 16 * which);
    return is_bf16 ? keyhole::float_from_bf16(half) : keyhole::float_from_fp16(half);
}

/// d [16, 8] = a [16, kK] * b [kK, 8] + c. Lane 4 g + t has rows g and g + 8, and factors from 2 t on, of a;
/// factors from 2 t on of column g of b; columns 2 t and 2 t + 1 of c and d. A device's order of the sums is
/// not known: here they are exact and rounded once; cut, where options().approximate is set.
template <int kK, bool kBf16>
void multiply(Warp& warp, const Op& op) {
    constexpr int kAParts = kK / 4, kBParts = kK / 8;
    float a[16][kK], b[8][kK];
    for (int lane = 0; lane < kLanes; ++lane) {
        const int g = lane / 4, t = lane % 4;
        for (int j = 0; j < kAParts; ++j)
            for (int h = 0; h < 2; ++h)
                a[g + j % 2 * 8][t * 2 + j / 2 * 8 + h] =
                    half_of(warp.lanes<u32>(op.at[static_cast<u32>(4 + j)])[lane], h, kBf16);
        for (int j = 0; j < kBParts; ++j)
            for (int h = 0; h < 2; ++h)
                b[g][t * 2 + j * 8 + h] =
                    half_of(warp.lanes<u32>(op.at[static_cast<u32>(4 + kAParts + j)])[lane], h, kBf16);
    }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < 4; ++i) {
            const float* row = a[lane / 4 + i / 2 * 8];
            const float* column = b[lane % 4 * 2 + i % 2];
            double sum = 0;
            for (int k = 0; k < kK; ++k) sum += double{row[k]} * double{column[k]};
            const float c = warp.lanes<float>(op.at[static_cast<u32>(4 + kAParts + kBParts + i)])[lane];
            sum += double{c};
            auto value = static_cast<float>(sum);
            if (options().approximate && std::abs(double{value}) > std::abs(sum))
                value = std::nextafterf(value, 0);
            warp.lanes<float>(op.at[static_cast<u32>(i)])[lane] = value;
        }
}

/// d [kRows, 8] = a [kRows, kK] * b [kK, 8] + c, of signed bytes. Lane 4 g + t has rows g and g + 8, and
/// factors from 4 t on, of a; factors from 4 t on of column g of b; columns 2 t and 2 t + 1 of c and d.
template <int kRows, int kK>
void multiply_bytes(Warp& warp, const Op& op) {
    constexpr int kHalves = kRows / 8, kSums = 2 * kHalves, kAParts = kHalves * kK / 16, kBParts = kK / 16;
    std::int8_t a[kRows][kK], b[8][kK];
    for (int lane = 0; lane < kLanes; ++lane) {
        const int g = lane / 4, t = lane % 4;
        const auto put = [&](int operand, std::int8_t* to) {
            const u32 four = warp.lanes<u32>(op.at[static_cast<u32>(operand)])[lane];
            for (int i = 0; i < 4; ++i) to[i] = static_cast<std::int8_t>(four >> 8 * i);
        };
        for (int j = 0; j < kAParts; ++j) put(kSums + j, a[g + j % kHalves * 8] + 4 * t + j / kHalves * 16);
        for (int j = 0; j < kBParts; ++j) put(kSums + kAParts + j, b[g] + 4 * t + j * 16);
    }
    for (int lane = 0; lane < kLanes; ++lane)
        for (int i = 0; i < kSums; ++i) {
            u32 sum = warp.lanes<u32>(op.at[static_cast<u32>(kSums + kAParts + kBParts + i)])[lane];
            for (int k = 0; k < kK; ++k)  // which wraps
                sum += static_cast<u32>(a[lane / 4 + i / 2 * 8][k] * b[lane % 4 * 2 + i % 2][k]);
            warp.lanes<u32>(op.at[static_cast<u32>(i)])[lane] = sum;
        }
}

/// mode: 0 up, 1 down, 2 butterfly, 3 index. Of six operands the fifth is a predicate: the lane is in range.
void shuffle(Warp& warp, const Op& op) {
    const u32 *a = warp.lanes<u32>(op.at[1]), *b = warp.lanes<u32>(op.at[2]), *c = warp.lanes<u32>(op.at[3]);
    u32 out[kLanes], in_range = 0;
    for_lanes(warp.mask, [&](int lane) {
        const int clamp = static_cast<int>(c[lane] & 31), segment = static_cast<int>(c[lane] >> 8 & 31);
        const int by = static_cast<int>(b[lane] & 31), low = lane & segment;
        const int high = low | (clamp & ~segment);
        int from = op.mode == 0   ? lane - by
                   : op.mode == 1 ? lane + by
                   : op.mode == 2 ? lane ^ by
                                  : low | (by & ~segment);
        const bool is_in = op.mode == 0 ? from >= high : from <= high;
        if (!is_in) from = lane;
        in_range |= static_cast<u32>(is_in) << lane;
        if ((warp.mask >> from & 1u) == 0) fault(warp, op, lane, "takes a value of a lane that is not there");
        out[lane] = a[from];
    });
    for_lanes(warp.mask, [&](int lane) { warp.lanes<u32>(op.at[0])[lane] = out[lane]; });
    if (op.n_elements != 6) return;
    u32& predicate = *warp.lanes<u32>(op.at[4]);
    predicate = (predicate & ~warp.mask) | in_range;
}

/// mode: 0 all, 1 any, 2 uni, 3 ballot.
void vote(Warp& warp, const Op& op) {
    const u32 yes = *warp.lanes<u32>(op.at[1]) & warp.mask;
    if (op.mode == 3) return for_lanes(warp.mask, [&](int lane) { warp.lanes<u32>(op.at[0])[lane] = yes; });
    const bool result = op.mode == 1 ? yes != 0 : yes == warp.mask || (op.mode == 2 && yes == 0);
    u32& out = *warp.lanes<u32>(op.at[0]);
    out = (out & ~warp.mask) | (result ? warp.mask : 0);
}

void add_together(Table& t) {
    const auto mma = [&](const std::string& shape, const std::string& type, Run run, std::size_t n_parts) {
        t["mma.sync.aligned." + shape + ".row.col.f32." + type + "." + type + ".f32"] = {
            run, Kind::collective, std::vector<std::uint8_t>(8 + n_parts, 4), 0};
    };
    mma("m16n8k16", "f16", &multiply<16, false>, 6);
    mma("m16n8k16", "bf16", &multiply<16, true>, 6);
    mma("m16n8k8", "f16", &multiply<8, false>, 3);
    mma("m16n8k8", "bf16", &multiply<8, true>, 3);
    const auto mma_of_bytes = [&](const std::string& shape, Run run, std::size_t n_operands) {
        t["mma.sync.aligned." + shape + ".row.col.s32.s8.s8.s32"] = {
            run, Kind::collective, std::vector<std::uint8_t>(n_operands, 4), 0};
    };
    mma_of_bytes("m16n8k32", &multiply_bytes<16, 32>, 14);
    mma_of_bytes("m16n8k16", &multiply_bytes<16, 16>, 11);
    mma_of_bytes("m8n8k16", &multiply_bytes<8, 16>, 6);
    std::uint8_t mode = 0;
    for (const char* name : {"up", "down", "bfly", "idx"}) {
        const std::string whole = std::string("shfl.sync.") + name + ".b32";
        t[whole] = {shuffle, Kind::collective, {4, 4, 4, 4, 4}, mode};
        t[whole + "|p"] = {shuffle, Kind::collective, {4, 4, 4, 4, 0, 4}, mode++};
    }
    mode = 0;
    for (const char* name : {"all.pred", "any.pred", "uni.pred", "ballot.b32"}) {
        t[std::string("vote.sync.") + name] = {
            vote, Kind::collective, {std::uint8_t(mode == 3 ? 4 : 0), 0, 4}, mode};
        ++mode;
    }
    t["bar.warp.sync"] = {[](Warp&, const Op&) {}, Kind::collective, {4}, 0};
    t["activemask.b32"] = {[](Warp& warp, const Op& op) {
                               for_lanes(warp.mask, [&](int i) { warp.lanes<u32>(op.at[0])[i] = warp.mask; });
                           },
                           Kind::plain,
                           {4},
                           0};
}

// --- order between blocks ----------------------------------------------------------------------------------

void fence(Warp& warp, const Op&) {
    for_lanes(warp.mask,
              [&](int lane) { fence_of_thread(*warp.block, warp.first_thread + static_cast<u32>(lane)); });
}

void add_order(Table& t) {
    for (const char* name : {"membar.gl", "membar.sys", "fence.acq_rel.gpu", "fence.sc.gpu",
                             "fence.acq_rel.sys", "fence.sc.sys"})
        t[name] = {fence, Kind::plain, {}, 0};
    for (const char* name : {"membar.cta", "fence.acq_rel.cta", "fence.sc.cta"})
        t[name] = {[](Warp&, const Op&) {}, Kind::plain, {}, 0};  // of the block alone
    t["trap"] = {[](Warp& warp, const Op& op) {
                     const std::string& said = warp.block->launch->printed;
                     fault(warp, op, std::countr_zero(warp.mask), said.empty() ? "trap" : "trap: " + said);
                 },
                 Kind::plain,
                 {},
                 0};
}

Table make_table() {
    Table t;
    add_bits<u16>(t, "b16"), add_bits<u32>(t, "b32"), add_bits<u64>(t, "b64");
    add_integers<u16>(t, "u16"), add_integers<u32>(t, "u32"), add_integers<u64>(t, "u64");
    add_integers<s16>(t, "s16"), add_integers<s32>(t, "s32"), add_integers<s64>(t, "s64");
    add_choice<u16>(t, "b16"), add_choice<u32>(t, "b32"), add_choice<u64>(t, "b64");
    add_choice<u16>(t, "u16"), add_choice<u32>(t, "u32"), add_choice<u64>(t, "u64");
    add_choice<s16>(t, "s16"), add_choice<s32>(t, "s32"), add_choice<s64>(t, "s64");
    add_choice<float>(t, "f32"), add_choice<double>(t, "f64");
    add_floats<float>(t, "f32"), add_floats<double>(t, "f64");
    add_approximations(t);
    add<u32, u32, u32, u32>(t, "prmt.b32", [](u32 a, u32 b, u32 s) { return permuted(a, b, s); });
    add<s32, u32, u32, s32>(t, "dp4a.s32.s32", [](u32 a, u32 b, s32 c) {
        u32 sum = u32(c);  // which wraps
        for (u32 i = 0; i < 32; i += 8) sum += u32(s32(std::int8_t(a >> i)) * s32(std::int8_t(b >> i)));
        return s32(sum);
    });
    add_masks(t);
    t["pack.2x16"] = {&pack<u32, u16>, Kind::plain, {}, 0};
    t["unpack.2x16"] = {&unpack<u32, u16>, Kind::plain, {}, 0};
    t["pack.2x32"] = {&pack<u64, u32>, Kind::plain, {}, 0};
    t["unpack.2x32"] = {&unpack<u64, u32>, Kind::plain, {}, 0};
    t["pack.4x16"] = {&pack<u64, u16>, Kind::plain, {}, 0};
    t["unpack.4x16"] = {&unpack<u64, u16>, Kind::plain, {}, 0};
    add_together(t);
    add_order(t);
    return t;
}

// --- conversions -------------------------------------------------------------------------------------------

/// Numbers of registers of any size: integers by their bits, floats by their value.
u64 bits_at(const Warp& warp, u32 at, std::uint8_t size, int lane) {
    if (size == 2) return warp.lanes<u16>(at)[lane];
    return size == 4 ? warp.lanes<u32>(at)[lane] : warp.lanes<u64>(at)[lane];
}
void set_bits(const Warp& warp, u32 at, std::uint8_t size, int lane, u64 bits) {
    if (size == 2)
        warp.lanes<u16>(at)[lane] = static_cast<u16>(bits);
    else if (size == 4)
        warp.lanes<u32>(at)[lane] = static_cast<u32>(bits);
    else
        warp.lanes<u64>(at)[lane] = bits;
}

template <class T>
T value_of(u64 bits) {
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<float>(static_cast<u32>(bits));
    else if constexpr (std::is_same_v<T, double>)
        return std::bit_cast<double>(bits);
    else
        return static_cast<T>(bits);
}
template <class T>
u64 bits_of(T value) {
    if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<u32>(value);
    else if constexpr (std::is_same_v<T, double>)
        return std::bit_cast<u64>(value);
    else
        return static_cast<u64>(static_cast<s64>(value));  // a wider register has its sign
}

enum class Rounding { none, nearest, integer, zero, down, up };

template <Rounding kRounding>
double rounded(double value) {
    switch (kRounding) {
        case Rounding::zero:
            return std::trunc(value);
        case Rounding::down:
            return std::floor(value);
        case Rounding::up:
            return std::ceil(value);
        default:
            return std::nearbyint(value);
    }
}

template <class D, class S, Rounding kRounding, bool kSaturates>
D converted(S value) {
    if constexpr (std::is_floating_point_v<S> && std::is_integral_v<D>) {
        if (value != value) return 0;
        const double whole = rounded<kRounding>(static_cast<double>(value));
        using Limits = std::numeric_limits<D>;
        if (whole <= static_cast<double>(Limits::min())) return Limits::min();
        return whole >= static_cast<double>(Limits::max()) ? Limits::max() : static_cast<D>(whole);
    } else if constexpr (std::is_floating_point_v<S> && std::is_floating_point_v<D>) {
        if constexpr (kSaturates) return value >= 0 ? static_cast<D>(value < 1 ? value : 1) : D{0};
        if constexpr (kRounding != Rounding::none && kRounding != Rounding::nearest)
            return static_cast<D>(rounded<kRounding>(static_cast<double>(value)));
        return static_cast<D>(value);
    } else {
        return static_cast<D>(value);
    }
}

template <class D, class S, Rounding kRounding, bool kSaturates>
void convert(Warp& warp, const Op& op) {
    if (op.size[0] == sizeof(D) && op.size[1] == sizeof(S) && warp.mask == kAllLanes) {
        D* out = warp.lanes<D>(op.at[0]);
        const S* in = warp.lanes<S>(op.at[1]);
        if (sizeof(D) == sizeof(S) || static_cast<void*>(out) != static_cast<const void*>(in)) {
            for (int i = 0; i < kLanes; ++i) out[i] = converted<D, S, kRounding, kSaturates>(in[i]);
            return;
        }
    }
    for_lanes(warp.mask, [&](int lane) {
        const S value = value_of<S>(bits_at(warp, op.at[1], op.size[1], lane));
        u64 bits = bits_of(converted<D, S, kRounding, kSaturates>(value));
        if constexpr (std::is_unsigned_v<D> && sizeof(D) < 8) bits &= (u64{1} << 8 * sizeof(D)) - 1;
        set_bits(warp, op.at[0], op.size[0], lane, bits);
    });
}

template <class D, class S>
Run conversion(std::string_view rounding, bool saturates) {
    constexpr bool kToInteger = std::is_floating_point_v<S> && std::is_integral_v<D>;
    constexpr bool kInFloats = std::is_floating_point_v<S> && std::is_floating_point_v<D>;
    if constexpr (kInFloats)
        if (saturates && rounding.empty()) return &convert<D, S, Rounding::none, true>;
    if (saturates) return nullptr;
    if (rounding.empty()) return kToInteger ? nullptr : &convert<D, S, Rounding::none, false>;
    if constexpr (!kToInteger && (std::is_floating_point_v<S> || std::is_floating_point_v<D>))
        if (rounding == "rn") return &convert<D, S, Rounding::nearest, false>;
    if constexpr (kToInteger || (kInFloats && sizeof(D) == sizeof(S))) {
        if (rounding == "rni") return &convert<D, S, Rounding::integer, false>;
        if (rounding == "rzi") return &convert<D, S, Rounding::zero, false>;
        if (rounding == "rmi") return &convert<D, S, Rounding::down, false>;
        if (rounding == "rpi") return &convert<D, S, Rounding::up, false>;
    }
    return nullptr;
}

/// Calls f.operator()<T>() with the type of that name.
template <class F>
Run with_type(std::string_view type, F f) {
    if (type == "u8" || type == "b8") return f.template operator()<std::uint8_t>();
    if (type == "s8") return f.template operator()<std::int8_t>();
    if (type == "u16" || type == "b16") return f.template operator()<u16>();
    if (type == "s16") return f.template operator()<s16>();
    if (type == "u32" || type == "b32") return f.template operator()<u32>();
    if (type == "s32") return f.template operator()<s32>();
    if (type == "u64" || type == "b64") return f.template operator()<u64>();
    if (type == "s64") return f.template operator()<s64>();
    if (type == "f32") return f.template operator()<float>();
    if (type == "f64") return f.template operator()<double>();
    return nullptr;
}

template <u16 (*kNarrow)(float)>
void narrow(Warp& warp, const Op& op) {
    for_lanes(warp.mask,
              [&](int i) { warp.lanes<u16>(op.at[0])[i] = kNarrow(warp.lanes<float>(op.at[1])[i]); });
}
template <float (*kWiden)(u16)>
void widen(Warp& warp, const Op& op) {
    for_lanes(warp.mask,
              [&](int i) { warp.lanes<float>(op.at[0])[i] = kWiden(warp.lanes<u16>(op.at[1])[i]); });
}
/// The first source is the high half.
template <u16 (*kNarrow)(float)>
void narrow_pair(Warp& warp, const Op& op) {
    for_lanes(warp.mask, [&](int i) {
        const u32 high = kNarrow(warp.lanes<float>(op.at[1])[i]),
                  low = kNarrow(warp.lanes<float>(op.at[2])[i]);
        warp.lanes<u32>(op.at[0])[i] = high << 16 | low;
    });
}

}  // namespace

const Operation* find_operation(std::string_view name) {
    static const Table table = make_table();
    const auto found = table.find(std::string(name));
    return found == table.end() ? nullptr : &found->second;
}

Run conversion_of(std::string_view to, std::string_view from, std::string_view rounding, bool saturates) {
    if (!saturates && from == "f32" && rounding == "rn") {
        if (to == "f16") return &narrow<keyhole::fp16_from_float>;
        if (to == "bf16") return &narrow<keyhole::bf16_from_float>;
        if (to == "f16x2") return &narrow_pair<keyhole::fp16_from_float>;
        if (to == "bf16x2") return &narrow_pair<keyhole::bf16_from_float>;
    }
    if (!saturates && to == "f32" && rounding.empty()) {
        if (from == "f16") return &widen<keyhole::float_from_fp16>;
        if (from == "bf16") return &widen<keyhole::float_from_bf16>;
    }
    return with_type(to, [&]<class D>() {
        return with_type(from, [&]<class S>() { return conversion<D, S>(rounding, saturates); });
    });
}

}  // namespace ptx
