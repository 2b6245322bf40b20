#include "engine/policy/next_token_measures.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/policy/next_token_measures.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::ScalableTag<double>;
using Floats = hn::Rebind<float, Doubles>;
using Vector = hn::Vec<Doubles>;

HWY_INLINE Vector load(const float* x) {
    return hn::PromoteTo(Doubles(), hn::LoadU(Floats(), x));
}

/// Returns the largest value, skipping NaN; -inf where there is no other.
float largest(const float* x, std::size_t n) {
    const hn::ScalableTag<float> tag;
    const std::size_t step = hn::Lanes(tag);
    auto top = hn::Set(tag, -std::numeric_limits<float>::infinity());
    std::size_t v = 0;
    for (; v + step <= n; v += step) {
        const auto here = hn::LoadU(tag, x + v);
        top = hn::IfThenElse(hn::Gt(here, top), here, top);
    }
    float most = hn::GetLane(hn::MaxOfLanes(tag, top));
    for (; v < n; ++v) most = x[v] > most ? x[v] : most;
    return most;
}

/// Returns the index of the first element equal to `value`; n when there is none.
std::size_t first_of(const float* x, std::size_t n, float value) {
    const hn::ScalableTag<float> tag;
    const std::size_t step = hn::Lanes(tag);
    const auto wanted = hn::Set(tag, value);
    std::size_t v = 0;
    for (; v + step <= n && hn::AllFalse(tag, hn::Eq(hn::LoadU(tag, x + v), wanted)); v += step) {
    }
    while (v < n && x[v] != value) ++v;
    return v;
}

/// Returns exp(x). The library's exp does not take -inf, so values below -1000 are raised to it (exp gives
/// 0). NaN stays NaN.
HWY_INLINE Vector exp_of(Vector x) {
    const Vector least = hn::Set(Doubles(), -1000.0);
    const Vector e = hn::Exp(Doubles(), hn::IfThenElse(hn::Lt(x, least), least, x));
    return hn::IfThenElse(hn::IsNaN(x), x, e);
}

/// Returns p * (a - b), and 0 where p is 0: an impossible token adds no term.
HWY_INLINE Vector term(Vector p, Vector a, Vector b) {
    const Vector zero = hn::Zero(Doubles());
    return hn::IfThenElse(hn::Eq(p, zero), zero, hn::Mul(p, hn::Sub(a, b)));
}

/// Returns sum_v exp(x[v] - shift).
double sum_exp(const float* x, std::size_t n, double shift) {
    const std::size_t step = hn::Lanes(Doubles());
    Vector sum = hn::Zero(Doubles());
    std::size_t v = 0;
    for (; v + step <= n; v += step)
        sum = hn::Add(sum, exp_of(hn::Sub(load(x + v), hn::Set(Doubles(), shift))));
    double total = hn::GetLane(hn::SumOfLanes(Doubles(), sum));
    for (; v < n; ++v) total += std::exp(static_cast<double>(x[v]) - shift);
    return total;
}

/// Returns sum_v p[v] (log_p[v] - log_q[v]); a null log_q means 0.
double expected_log(const float* log_p, const float* log_q, std::size_t n) {
    const std::size_t step = hn::Lanes(Doubles());
    Vector sum = hn::Zero(Doubles());
    std::size_t v = 0;
    for (; v + step <= n; v += step) {
        const Vector a = load(log_p + v), b = log_q != nullptr ? load(log_q + v) : hn::Zero(Doubles());
        sum = hn::Add(sum, term(exp_of(a), a, b));
    }
    double total = hn::GetLane(hn::SumOfLanes(Doubles(), sum));
    for (; v < n; ++v) {
        const double a = log_p[v], b = log_q != nullptr ? log_q[v] : 0.0, p = std::exp(a);
        if (p != 0) total += p * (a - b);
    }
    return total;
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {

HWY_EXPORT(largest);
HWY_EXPORT(first_of);
HWY_EXPORT(sum_exp);
HWY_EXPORT(expected_log);

void log_softmax(std::span<const float> logits, std::span<float> log_probs) {
    KH_ASSERT(!logits.empty() && logits.size() == log_probs.size(), "{} and {} values", logits.size(),
              log_probs.size());
    const double most = HWY_DYNAMIC_DISPATCH(largest)(logits.data(), logits.size());
    const double shift = most + std::log(HWY_DYNAMIC_DISPATCH(sum_exp)(logits.data(), logits.size(), most));
    for (std::size_t v = 0; v < logits.size(); ++v)
        log_probs[v] = static_cast<float>(static_cast<double>(logits[v]) - shift);
}

double entropy(std::span<const float> log_probs) {
    return 0.0 - HWY_DYNAMIC_DISPATCH(expected_log)(log_probs.data(), nullptr, log_probs.size());
}

double kl_divergence(std::span<const float> log_p, std::span<const float> log_q) {
    KH_ASSERT(log_p.size() == log_q.size(), "{} and {} values", log_p.size(), log_q.size());
    const double sum = HWY_DYNAMIC_DISPATCH(expected_log)(log_p.data(), log_q.data(), log_p.size());
    return sum < 0 ? 0 : sum;  // rounding of float inputs; NaN passes through
}

int best(std::span<const float> values) {
    const float most = HWY_DYNAMIC_DISPATCH(largest)(values.data(), values.size());
    const std::size_t index = HWY_DYNAMIC_DISPATCH(first_of)(values.data(), values.size(), most);
    return index < values.size() ? static_cast<int>(index) : 0;
}

// Keeps the best values so far in order, in one pass. A vocabulary is long and k is small, so most
// stretches of it hold nothing better than the worst kept value.
std::vector<int> top_k(std::span<const float> values, int k) {
    constexpr std::size_t kStretch = 256;
    const std::size_t most = to_index(std::max(k, 0));
    std::vector<int> best;
    if (most == 0) return best;
    auto value = [&](int v) { return values[to_index(v)]; };
    for (std::size_t first = 0; first < values.size(); first += kStretch) {
        const std::size_t last = std::min(values.size(), first + kStretch);
        if (best.size() == most &&
            !(HWY_DYNAMIC_DISPATCH(largest)(values.data() + first, last - first) > value(best.back())))
            continue;
        for (std::size_t v = first; v < last; ++v) {
            if (std::isnan(values[v]) || (best.size() == most && !(values[v] > value(best.back())))) continue;
            if (best.size() == most) best.pop_back();
            const auto at = std::upper_bound(best.begin(), best.end(), values[v],
                                             [&](float x, int b) { return x > value(b); });
            best.insert(at, static_cast<int>(v));
        }
    }
    return best;
}

}  // namespace keyhole
#endif
