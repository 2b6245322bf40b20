#include "engine/backend/common/kernels.h"

#include "engine/backend/common/block_kernels.h"
#include "engine/backend/common/prefetch.h"
#include "engine/base/half.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/common/kernels.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include "engine/backend/common/simd.h"

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

// Multiplies kRows weight rows with kColumns inputs. Each sum is independent and runs over the columns in
// ascending order, so the rows and the batch computed with it do not change its bits. Meanwhile the weights
// that `soon` names are prefetched. The loops are written out; only then do the sums stay in registers.
template <int kRows, int kColumns, class T>
HWY_INLINE void multiply_block(const T* w, std::int64_t cols, Ahead soon, const float* x,
                               std::int64_t x_stride, float* y, std::int64_t y_stride) {
    Floats total[kRows][kColumns];
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b) total[r][b] = hn::Zero(FloatTag());
    }
    const std::int64_t step = lanes();
    constexpr std::int64_t kLine = 64 / sizeof(T);
    std::int64_t c = 0;
    for (; c + step <= cols; c += step) {
        Floats in[kColumns];
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b) in[b] = load(x + b * x_stride + c);
        if (c % kLine == 0) {
            HWY_UNROLL(8)
            for (int r = 0; r < kRows; ++r)
                hwy::Prefetch(w + soon.first + r * soon.of_row + c * soon.of_column);
        }
        HWY_UNROLL(8)
        for (int r = 0; r < kRows; ++r) {
            const Floats weight = load(w + r * cols + c);
            HWY_UNROLL(8)
            for (int b = 0; b < kColumns; ++b) total[r][b] = hn::MulAdd(weight, in[b], total[r][b]);
        }
    }
    HWY_UNROLL(8)
    for (int r = 0; r < kRows; ++r) {
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b) {
            float rest = 0;
            for (std::int64_t i = c; i < cols; ++i) rest += widen(w[r * cols + i]) * x[b * x_stride + i];
            y[b * y_stride + r] = sum(total[r][b]) + rest;
        }
    }
}

// Columns multiplied at once: up to six, so that a comparison of six lanes widens each weight once. AVX2
// widens f16 in one instruction and has 16 registers: there, sums of 4 rows and 3 columns that stay in
// registers take 0.97 of the time of six lanes. Older sets widen so slowly that six columns take 0.76 of the
// time of three (SSE4).
constexpr int kColumnsAtOnce = HWY_TARGET == HWY_AVX2 ? 3 : 6;
constexpr int kColumnsOfMany = HWY_TARGET == HWY_AVX2 ? 3 : 4;

template <int kRows, int kColumns, class T>
HWY_INLINE void multiply_rest(const T* w, std::int64_t cols, Ahead soon, const float* x,
                              std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    if (n_batch == kColumns) return multiply_block<kRows, kColumns>(w, cols, soon, x, x_stride, y, y_stride);
    if constexpr (kColumns > 1)
        multiply_rest<kRows, kColumns - 1>(w, cols, soon, x, x_stride, n_batch, y, y_stride);
}

template <int kRows, class T>
HWY_INLINE void multiply_columns(const T* w, std::int64_t cols, Ahead soon, const float* x,
                                 std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    int b = 0;
    for (; n_batch - b > kColumnsAtOnce; b += kColumnsOfMany)
        multiply_block<kRows, kColumnsOfMany>(w, cols, soon, x + b * x_stride, x_stride, y + b * y_stride,
                                              y_stride);
    multiply_rest<kRows, kColumnsAtOnce>(w, cols, soon, x + b * x_stride, x_stride, n_batch - b,
                                         y + b * y_stride, y_stride);
}

template <class T>
HWY_INLINE void multiply_typed(const T* w, std::int64_t n_rows, std::int64_t cols, const float* x,
                               std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    constexpr std::int64_t kBlock = 4;
    const BlocksAhead blocks(kBlock, cols, 64 / sizeof(T), sizeof(T));
    std::int64_t r = 0;
    for (; r + kBlock <= n_rows; r += kBlock)
        multiply_columns<kBlock>(w + r * cols, cols, blocks.after(r, n_rows), x, x_stride, n_batch, y + r,
                                 y_stride);
    for (; r < n_rows; ++r)  // three rows at most, so one lane at a time will do
        for (int b = 0; b < n_batch; ++b)
            multiply_block<1, 1>(w + r * cols, cols, Ahead{}, x + b * x_stride, x_stride,
                                 y + r + b * y_stride, y_stride);
}

void multiply(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
              std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    const std::int64_t n = last_row - first_row, skip = first_row * w.cols;
    float* out = y + first_row;
    switch (w.dtype) {
        case DType::f32:
            return multiply_typed(static_cast<const float*>(w.data) + skip, n, w.cols, x, x_stride, n_batch,
                                  out, y_stride);
        case DType::f16:
            return multiply_typed(static_cast<const hwy::float16_t*>(w.data) + skip, n, w.cols, x, x_stride,
                                  n_batch, out, y_stride);
        case DType::bf16:
            return multiply_typed(static_cast<const hwy::bfloat16_t*>(w.data) + skip, n, w.cols, x, x_stride,
                                  n_batch, out, y_stride);
            KH_BLOCK_LABELS
            return multiply_block_rows(w, first_row, last_row, x, x_stride, n_batch, y, y_stride);
    }
}

template <class T>
HWY_INLINE void widen_typed(const T* in, std::int64_t n, float* out) {
    const std::int64_t step = lanes();
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(load(in + i), out + i);
    for (; i < n; ++i) out[i] = widen(in[i]);
}

template <class T>
HWY_INLINE void widen_rows_typed(const T* in, std::int64_t n_rows, std::int64_t cols, std::int64_t n,
                                 float* out) {
    if (n == cols) return widen_typed(in, n_rows * n, out);
    for (std::int64_t r = 0; r < n_rows; ++r) widen_typed(in + r * cols, n, out + r * n);
}

void widen_part(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                std::int64_t n, float* out) {
    const std::int64_t n_rows = last_row - first_row, skip = first_row * w.cols + first;
    switch (w.dtype) {
        case DType::f32:
            return widen_rows_typed(static_cast<const float*>(w.data) + skip, n_rows, w.cols, n, out);
        case DType::f16:
            return widen_rows_typed(static_cast<const hwy::float16_t*>(w.data) + skip, n_rows, w.cols, n,
                                    out);
        case DType::bf16:
            return widen_rows_typed(static_cast<const hwy::bfloat16_t*>(w.data) + skip, n_rows, w.cols, n,
                                    out);
            KH_BLOCK_LABELS
            return widen_block_columns(w, first_row, last_row, first, n, out);
    }
}

void softmax(const float* x, int n, float* p, const void* const* soon, std::size_t n_soon) {
    const int step = static_cast<int>(lanes());
    const int whole = n / step * step;
    float highest = x[0];
    if (whole > 0) {
        Floats top = load(x);
        for (int i = step; i < whole; i += step) top = hn::Max(top, load(x + i));
        highest = hn::GetLane(hn::MaxOfLanes(FloatTag(), top));
    }
    for (int i = whole; i < n; ++i) highest = x[i] > highest ? x[i] : highest;
    if (highest == -std::numeric_limits<float>::infinity()) {  // the row sees nothing
        std::fill_n(p, n, 0.0f);
        return;
    }

    Floats totals = hn::Zero(FloatTag());
    for (int i = 0; i < whole; i += step) {
        for (std::size_t j = 0; j < n_soon; ++j)
            hwy::Prefetch(static_cast<const char*>(soon[j]) + 4 * static_cast<std::int64_t>(i));
        const Floats logit = load(x + i);
        if (hn::AllTrue(FloatTag(), hn::Eq(logit, all(-std::numeric_limits<float>::infinity())))) {
            store(hn::Zero(FloatTag()), p + i);  // a row that reads some pages hides most
            continue;
        }
        const Floats e = hn::Exp(FloatTag(), hn::Sub(logit, all(highest)));
        store(e, p + i);
        totals = hn::Add(totals, e);
    }
    float total = sum(totals);
    for (int i = whole; i < n; ++i) {
        p[i] = hn::GetLane(hn::Exp(FloatTag(), all(x[i] - highest)));
        total += p[i];
    }
    const float scale = 1.0f / total;
    for (int i = 0; i < whole; i += step) store(hn::Mul(load(p + i), all(scale)), p + i);
    for (int i = whole; i < n; ++i) p[i] *= scale;
}

void fold_scores(const float* p, int n, float alpha, float weight, float* score) {
    const int step = static_cast<int>(lanes());
    int i = 0;
    for (; i + step <= n; i += step)
        store(hn::Add(hn::Mul(all(alpha), load(score + i)), hn::Mul(all(weight), load(p + i))), score + i);
    for (; i < n; ++i) score[i] = alpha * score[i] + weight * p[i];
}

int lowest_slot(const float* score, const std::int32_t* position, int n, std::int32_t first,
                std::int32_t last) {
    using IntTag = hn::RebindToSigned<FloatTag>;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    constexpr std::int32_t kFar = std::numeric_limits<std::int32_t>::max();
    const int step = static_cast<int>(lanes());
    const auto before = hn::Set(IntTag(), first - 1),
               behind = hn::Set(IntTag(), last == kFar ? kFar : last + 1);
    const auto competes = [&](int i) {
        const auto p = hn::LoadU(IntTag(), position + i);
        return hn::RebindMask(FloatTag(), hn::And(hn::Gt(p, before), hn::Lt(p, behind)));
    };
    const auto rank = [&](int i) {
        const Floats s = load(score + i);
        return hn::IfThenElse(hn::IsNaN(s), all(-kInfinity), s);
    };
    const auto competes_one = [&](int i) { return position[i] >= first && position[i] <= last; };
    // Positions are read only where they matter.
    const bool all_compete = first <= 0 && last == kFar;
    const auto rank_one = [&](int i) { return std::isnan(score[i]) ? -kInfinity : score[i]; };

    Floats least = all(kInfinity);
    int i = 0;
    for (; i + step <= n; i += step)
        least = hn::Min(least, all_compete ? rank(i) : hn::IfThenElse(competes(i), rank(i), all(kInfinity)));
    float lowest = hn::GetLane(hn::MinOfLanes(FloatTag(), least));
    for (; i < n; ++i)
        if (competes_one(i)) lowest = std::min(lowest, rank_one(i));

    int oldest = -1;
    for (i = 0; i < n; ++i) {
        if (i + step <= n) {  // skips higher ranks, a register at a time
            if (hn::AllFalse(FloatTag(), hn::Eq(rank(i), all(lowest)))) {
                i += step - 1;
                continue;
            }
        }
        for (const int end = std::min(i + step, n); i < end; ++i)
            if (rank_one(i) == lowest && competes_one(i) && (oldest < 0 || position[i] < position[oldest]))
                oldest = i;
        --i;
    }
    return oldest;
}

int index_of(const std::int32_t* values, int n, std::int32_t value) {
    using IntTag = hn::RebindToSigned<FloatTag>;
    const int step = static_cast<int>(lanes());
    int i = 0;
    while (i + step <= n &&
           hn::AllFalse(IntTag(), hn::Eq(hn::LoadU(IntTag(), values + i), hn::Set(IntTag(), value))))
        i += step;
    while (i < n && values[i] != value) ++i;
    return i;
}

void temper_logits(const float* logit, const float* noise, int n, float gain, float tau, float* out) {
    const int step = static_cast<int>(lanes());
    int i = 0;
    for (; i + step <= n; i += step) {
        Floats x = load(logit + i);
        if (noise != nullptr) x = hn::Add(x, hn::Mul(all(gain), load(noise + i)));
        store(hn::Div(x, all(tau)), out + i);
    }
    for (; i < n; ++i) out[i] = (noise != nullptr ? logit[i] + gain * noise[i] : logit[i]) / tau;
}

void rms_norm(std::span<const float> in, const float* gain, float eps, float* out) {
    const float* x = in.data();
    const std::int64_t n = static_cast<std::int64_t>(in.size()), step = lanes();
    Floats squares = hn::Zero(FloatTag());
    std::int64_t i = 0;
    for (; i + step <= n; i += step) squares = hn::MulAdd(load(x + i), load(x + i), squares);
    float total = sum(squares);
    for (std::int64_t j = i; j < n; ++j) total += x[j] * x[j];
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (std::int64_t j = 0; j < i; j += step)
        store(hn::Mul(hn::Mul(load(x + j), all(scale)), load(gain + j)), out + j);
    for (std::int64_t j = i; j < n; ++j) out[j] = x[j] * scale * gain[j];
}

void layer_norm(std::span<const float> in, const float* gain, const float* bias, float eps, float* out) {
    const float* x = in.data();
    const std::int64_t n = static_cast<std::int64_t>(in.size()), step = lanes(), whole = n / step * step;
    Floats sums = hn::Zero(FloatTag());
    for (std::int64_t i = 0; i < whole; i += step) sums = hn::Add(sums, load(x + i));
    float mean = sum(sums);
    for (std::int64_t i = whole; i < n; ++i) mean += x[i];
    mean /= static_cast<float>(n);
    Floats squares = hn::Zero(FloatTag());
    for (std::int64_t i = 0; i < whole; i += step) {
        const Floats centred = hn::Sub(load(x + i), all(mean));
        squares = hn::MulAdd(centred, centred, squares);
    }
    float total = sum(squares);
    for (std::int64_t i = whole; i < n; ++i) total += (x[i] - mean) * (x[i] - mean);
    const float scale = 1.0f / std::sqrt(total / static_cast<float>(n) + eps);
    for (std::int64_t i = 0; i < whole; i += step) {
        const Floats normal = hn::Mul(hn::Mul(hn::Sub(load(x + i), all(mean)), all(scale)), load(gain + i));
        store(bias != nullptr ? hn::Add(normal, load(bias + i)) : normal, out + i);
    }
    for (std::int64_t i = whole; i < n; ++i) {
        const float normal = (x[i] - mean) * scale * gain[i];
        out[i] = bias != nullptr ? normal + bias[i] : normal;
    }
}

// Highway's Exp is wrong above 104. The bound changes nothing: at 80 the results here are already 0 relative
// to x.
HWY_INLINE Floats exp_of(Floats x) {
    return hn::Exp(FloatTag(), hn::Min(x, all(80.0f)));
}

struct Silu {
    HWY_INLINE Floats operator()(Floats x) const {
        return hn::Div(x, hn::Add(all(1.0f), exp_of(hn::Neg(x))));
    }
};

// x * Phi(x), where
//     Phi(-|x|) = erfc(|x| / sqrt 2) / 2 = (a1 t + ... + a5 t^5) exp(-x^2 / 2) / 2
//     t = 1 / (1 + p |x| / sqrt 2)
struct Gelu {
    HWY_INLINE Floats operator()(Floats x) const {
        const Floats u = hn::Mul(hn::Abs(x), all(0.70710678f));
        const Floats t = hn::Div(all(1.0f), hn::MulAdd(all(0.3275911f), u, all(1.0f)));
        Floats sum = all(1.061405429f);
        for (const float a : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f})
            sum = hn::MulAdd(sum, t, all(a));
        const Floats tail = hn::Mul(hn::Mul(sum, t), hn::Mul(all(0.5f), exp_of(hn::Neg(hn::Mul(u, u)))));
        const Floats share = hn::IfThenElse(hn::Lt(x, hn::Zero(FloatTag())), tail, hn::Sub(all(1.0f), tail));
        return hn::Mul(x, share);
    }
};

// (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u))
struct GeluTanh {
    HWY_INLINE Floats operator()(Floats x) const {
        const Floats cubic = hn::MulAdd(hn::Mul(all(0.044715f), hn::Mul(x, x)), x, x);
        return hn::Div(x, hn::Add(all(1.0f), exp_of(hn::Mul(all(-2.0f * 0.79788456f), cubic))));
    }
};

struct Relu {
    HWY_INLINE Floats operator()(Floats x) const { return hn::Max(x, hn::Zero(FloatTag())); }
};

template <class Act>
HWY_INLINE void activate_by(Act act, float* x, const float* up, std::int64_t n) {
    const std::int64_t step = lanes();
    std::int64_t i = 0;
    if (up == nullptr) {
        for (; i + step <= n; i += step) store(act(load(x + i)), x + i);
        for (; i < n; ++i) x[i] = hn::GetLane(act(all(x[i])));
        return;
    }
    for (; i + step <= n; i += step) store(hn::Mul(act(load(x + i)), load(up + i)), x + i);
    for (; i < n; ++i) x[i] = hn::GetLane(hn::Mul(act(all(x[i])), all(up[i])));
}

void clamped_swiglu(float* x, const float* up, std::int64_t n) {
    constexpr float kLimit = 7.0f, kSlope = 1.702f;
    for (std::int64_t i = 0; i < n; ++i) {
        const float gate = std::min(x[i], kLimit), linear = std::clamp(up[i], -kLimit, kLimit);
        x[i] = gate / (1.0f + std::exp(-kSlope * gate)) * (linear + 1.0f);
    }
}

void activate(Activation kind, float* x, const float* up, std::int64_t n) {
    switch (kind) {
        case Activation::silu:
            return activate_by(Silu(), x, up, n);
        case Activation::gelu:
            return activate_by(Gelu(), x, up, n);
        case Activation::gelu_tanh:
            return activate_by(GeluTanh(), x, up, n);
        case Activation::relu:
            return activate_by(Relu(), x, up, n);
        case Activation::clamped_swiglu:
            return clamped_swiglu(x, up, n);
    }
}

void clip(float* x, float limit, std::int64_t n) {
    const std::int64_t step = lanes();
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(hn::Min(hn::Max(load(x + i), all(-limit)), all(limit)), x + i);
    for (; i < n; ++i) x[i] = std::min(std::max(x[i], -limit), limit);
}

void soft_cap(float* x, float cap, std::int64_t n) {
    const std::int64_t step = lanes();
    const auto capped = [cap](Floats v) {
        return hn::Mul(all(cap), hn::Tanh(FloatTag(), hn::Div(v, all(cap))));
    };
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(capped(load(x + i)), x + i);
    for (; i < n; ++i) x[i] = hn::GetLane(capped(all(x[i])));
}

void add_distances(const std::int32_t* position, const std::int32_t* steps_back, int n, float slope,
                   int place, float* logit) {
    using IntTag = hn::RebindToSigned<FloatTag>;
    const int step = static_cast<int>(lanes());
    int i = 0;
    for (; i + step <= n; i += step) {
        auto distance = hn::Sub(hn::LoadU(IntTag(), position + i), hn::Set(IntTag(), place));
        if (steps_back != nullptr) distance = hn::Sub(distance, hn::LoadU(IntTag(), steps_back + i));
        store(hn::MulAdd(all(slope), hn::ConvertTo(FloatTag(), distance), load(logit + i)), logit + i);
    }
    for (; i < n; ++i) {
        const int distance = position[i] - place - (steps_back != nullptr ? steps_back[i] : 0);
        logit[i] = std::fma(slope, static_cast<float>(distance), logit[i]);
    }
}

void add_to(float* x, const float* y, std::int64_t n) {
    const std::int64_t step = lanes();
    std::int64_t i = 0;
    for (; i + step <= n; i += step) store(hn::Add(load(x + i), load(y + i)), x + i);
    for (; i < n; ++i) x[i] += y[i];
}

void rotate_head(float* x, const float* cosine, const float* sine, const Rotary& rotary) {
    const int half = rotary.dims / 2;
    const int second = rotary.interleaved ? 1 : half, next = rotary.interleaved ? 2 : 1;
    for (int i = 0; i < half; ++i, x += next) {
        const float a = x[0], b = x[second];
        x[0] = a * cosine[i] - b * sine[i];
        x[second] = b * cosine[i] + a * sine[i];
    }
}

// Rotates a key back; pairs lie in two halves, processed a register at a time.
HWY_INLINE void turn_halves(const float* k, const float* cosine, const float* sine, int half, float* out) {
    const int step = static_cast<int>(lanes());
    int i = 0;
    for (; i + step <= half; i += step) {
        const Floats a = load(k + i), b = load(k + half + i), c = load(cosine + i), d = load(sine + i);
        store(hn::MulAdd(a, c, hn::Mul(b, d)), out + i);
        store(hn::MulSub(b, c, hn::Mul(a, d)), out + half + i);
    }
    for (; i < half; ++i) {
        const float a = k[i], b = k[half + i];
        out[i] = a * cosine[i] + b * sine[i];
        out[half + i] = b * cosine[i] - a * sine[i];
    }
}

void turn_keys(const float* k, const std::int32_t* steps, int n, int head_dim, const Rotary& rotary,
               const float* turns, float* out) {
    const int half = rotary.dims / 2;
    for (int s = 0; s < n; ++s, k += head_dim, out += head_dim) {
        const float* cosine = turns + static_cast<std::int64_t>(steps[s]) * rotary.dims;
        const float* sine = cosine + half;
        if (!rotary.interleaved) {
            turn_halves(k, cosine, sine, half, out);
        } else {
            for (int i = 0; i < half; ++i) {
                const float a = k[2 * i], b = k[2 * i + 1];
                out[2 * i] = a * cosine[i] + b * sine[i];
                out[2 * i + 1] = b * cosine[i] - a * sine[i];
            }
        }
        if (out != k) std::copy(k + rotary.dims, k + head_dim, out + rotary.dims);
    }
}

const char* target_name() {
    return hwy::TargetName(HWY_TARGET);
}

void and_bytes(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
    const hn::ScalableTag<std::uint8_t> tag;
    const auto step = static_cast<std::int64_t>(hn::Lanes(tag));
    std::int64_t i = 0;
    for (; i + step <= n; i += step)
        hn::StoreU(hn::And(hn::LoadU(tag, from + i), hn::LoadU(tag, to + i)), tag, to + i);
    for (; i < n; ++i) to[i] &= from[i];
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(multiply);
HWY_EXPORT(widen_part);
HWY_EXPORT(softmax);
HWY_EXPORT(fold_scores);
HWY_EXPORT(lowest_slot);
HWY_EXPORT(index_of);
HWY_EXPORT(temper_logits);
HWY_EXPORT(rms_norm);
HWY_EXPORT(layer_norm);
HWY_EXPORT(activate);
HWY_EXPORT(clip);
HWY_EXPORT(soft_cap);
HWY_EXPORT(add_distances);
HWY_EXPORT(add_to);
HWY_EXPORT(and_bytes);
HWY_EXPORT(rotate_head);
HWY_EXPORT(turn_keys);
HWY_EXPORT(target_name);

void multiply_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, const float* x,
                   std::int64_t x_stride, int n_batch, float* y, std::int64_t y_stride) {
    HWY_DYNAMIC_DISPATCH(multiply)(w, first_row, last_row, x, x_stride, n_batch, y, y_stride);
}
void widen_rows(const Weight& w, std::int64_t first_row, std::int64_t last_row, float* out) {
    widen_columns(w, first_row, last_row, 0, w.cols, out);
}
void widen_columns(const Weight& w, std::int64_t first_row, std::int64_t last_row, std::int64_t first,
                   std::int64_t n, float* out) {
    HWY_DYNAMIC_DISPATCH(widen_part)(w, first_row, last_row, first, n, out);
}
void softmax(const float* x, int n, float* p, std::span<const void* const> soon) {
    HWY_DYNAMIC_DISPATCH(softmax)(x, n, p, soon.data(), soon.size());
}
float share_with_sink(const float* x, int n, float sink, float* p) {
    // With m the largest x and S the sum of exp(x - m), the largest p is 1 / S.
    const auto at = static_cast<std::size_t>(std::max_element(x, x + n) - x);
    if (!(p[at] > 0)) return 1.0f;  // the row sees no token
    const float kept = 1.0f / (1.0f + std::exp(sink - x[at]) * p[at]);
    for (int i = 0; i < n; ++i) p[i] *= kept;
    return 1.0f - kept;
}
void add_scaled(const float* x, float scale, std::int64_t n, float* y) {
    for (std::int64_t i = 0; i < n; ++i) y[i] = std::fma(scale, x[i], y[i]);
}
void soft_cap(float* x, float cap, std::int64_t n) {
    HWY_DYNAMIC_DISPATCH(soft_cap)(x, cap, n);
}
void fold_scores(const float* p, int n, float alpha, float weight, float* score) {
    HWY_DYNAMIC_DISPATCH(fold_scores)(p, n, alpha, weight, score);
}
int lowest_slot(const float* score, const std::int32_t* position, int n, std::int32_t first,
                std::int32_t last) {
    return HWY_DYNAMIC_DISPATCH(lowest_slot)(score, position, n, first, last);
}
int index_of(const std::int32_t* values, int n, std::int32_t value) {
    return HWY_DYNAMIC_DISPATCH(index_of)(values, n, value);
}
void temper_logits(const float* logit, const float* noise, int n, float gain, float tau, float* out) {
    HWY_DYNAMIC_DISPATCH(temper_logits)(logit, noise, n, gain, tau, out);
}
void rms_norm(std::span<const float> x, const float* gain, float eps, float* out) {
    HWY_DYNAMIC_DISPATCH(rms_norm)(x, gain, eps, out);
}
void layer_norm(std::span<const float> x, const float* gain, const float* bias, float eps, float* out) {
    HWY_DYNAMIC_DISPATCH(layer_norm)(x, gain, bias, eps, out);
}
void activate(Activation kind, float* x, const float* up, std::int64_t n) {
    HWY_DYNAMIC_DISPATCH(activate)(kind, x, up, n);
}
void clip(float* x, float limit, std::int64_t n) {
    HWY_DYNAMIC_DISPATCH(clip)(x, limit, n);
}
void add_distances(const std::int32_t* position, const std::int32_t* steps_back, int n, float slope,
                   int place, float* logit) {
    HWY_DYNAMIC_DISPATCH(add_distances)(position, steps_back, n, slope, place, logit);
}
void add_to(float* x, const float* y, std::int64_t n) {
    HWY_DYNAMIC_DISPATCH(add_to)(x, y, n);
}
void and_bytes(const std::uint8_t* from, std::int64_t n, std::uint8_t* to) {
    HWY_DYNAMIC_DISPATCH(and_bytes)(from, n, to);
}
void rotate_head(float* x, const float* cosine, const float* sine, const Rotary& rotary) {
    HWY_DYNAMIC_DISPATCH(rotate_head)(x, cosine, sine, rotary);
}
void turn_keys(const float* k, const std::int32_t* steps, int n, int head_dim, const Rotary& rotary,
               const float* turns, float* out) {
    HWY_DYNAMIC_DISPATCH(turn_keys)(k, steps, n, head_dim, rotary, turns, out);
}
std::string simd_name() {
    return HWY_DYNAMIC_DISPATCH(target_name)();
}

}  // namespace keyhole
#endif
