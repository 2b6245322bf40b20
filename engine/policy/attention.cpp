#include "engine/policy/attention.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

void ideal_set(std::span<const float> full, int k, std::vector<std::int32_t>& out) {
    KH_ASSERT(!full.empty() && k >= 0, "{} positions, k={}", full.size(), k);
    const std::size_t n_older = full.size() - 1, n = std::min(n_older, to_index(k));
    out.resize(n_older);
    std::iota(out.begin(), out.end(), 0);
    if (n < n_older) {
        const auto value = [&](std::int32_t p) {
            const float f = full[to_index(p)];
            return std::isnan(f) ? -1.0f : f;
        };
        std::nth_element(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(n), out.end(),
                         [&](std::int32_t a, std::int32_t b) {
                             const float x = value(a), y = value(b);
                             return x != y ? x > y : a > b;
                         });
        out.resize(n);
        std::sort(out.begin(), out.end());
    }
    out.push_back(static_cast<std::int32_t>(n_older));
}

namespace {

double ratio(double product, double a, double b) {
    return a == 0 || b == 0 ? 0.0 : product / std::sqrt(a * b);  // 1 exactly for equal vectors
}

float mean(const std::vector<float>& values) {
    return static_cast<float>(std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size()));
}

}  // namespace

double cosine(std::span<const float> a, std::span<const float> b) {
    KH_ASSERT(a.size() == b.size(), "{} and {} values", a.size(), b.size());
    double product = 0, aa = 0, bb = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        const double x = a[i], y = b[i];
        product += x * y;
        aa += x * x;
        bb += y * y;
    }
    return ratio(product, aa, bb);
}

double cosine_ideal(std::span<const float> a, std::span<const float> full,
                    std::span<const std::int32_t> ideal) {
    KH_ASSERT(a.size() == full.size(), "{} and {} values", a.size(), full.size());
    double product = 0, aa = 0, rr = 0;
    for (const float x : a) aa += static_cast<double>(x) * x;
    for (const std::int32_t p : ideal) {
        const double x = a[to_index(p)], f = full[to_index(p)];
        product += x * f;
        rr += f * f;
    }
    return ratio(product, aa, rr);
}

double retained_mass(std::span<const float> full, std::span<const std::int32_t> attended) {
    double sum = 0;
    for (const std::int32_t p : attended) sum += full[to_index(p)];
    return sum;
}

double sink_share(std::span<const std::int32_t> positions, std::span<const float> attention) {
    double sum = 0;
    for (std::size_t i = 0; i < attention.size() && positions[i] < kSinkTokens; ++i) sum += attention[i];
    return sum;
}

RowMeasures mean_measures(const KvLayout& layout, const RowOutput& out, bool has_sinks) {
    RowMeasures mean_of;
    if (const ShadowRow& shadow = out.shadow; !shadow.retained_mass.empty()) {
        mean_of.retained_mass = mean(shadow.retained_mass);
        mean_of.cosine_ideal = mean(shadow.cosine_ideal);
        mean_of.cosine_full = mean(shadow.cosine_full);
        mean_of.output_similarity = mean(shadow.output_similarity);
    }
    const RowValues& values = out.values;
    double sum = 0;
    if (values.attention.empty()) {
        if (out.sink_attention.empty()) return mean_of;
        const int n_heads = layout.n_layers() * layout.n_heads();
        for (int head = 0; head < n_heads; ++head) {
            const auto first = out.sink_attention.begin() + head * kSinkTokens;
            sum += std::accumulate(first, first + kSinkTokens, 0.0);
        }
        mean_of.sink_share = static_cast<float>(sum / n_heads);
        return mean_of;
    }
    for (int layer = 0; layer < layout.n_layers(); ++layer)
        for (int head = 0; head < layout.n_heads(); ++head) {
            const auto g = to_index(layout.kv_head_from_head(layer, head));
            const auto from = to_index(values.offset[g]);
            const std::size_t n = to_index(values.offset[g + 1]) - from;
            const auto at = to_index(values.head_offset[to_index(layer * layout.n_heads() + head)]);
            sum += sink_share(std::span(values.positions).subspan(from, n),
                              std::span(values.attention).subspan(at, n));
        }
    const int n_all = layout.n_layers() * layout.n_heads();
    mean_of.sink_share = static_cast<float>(sum / n_all);
    if (has_sinks) {
        const double of_tokens = std::accumulate(values.attention.begin(), values.attention.end(), 0.0);
        mean_of.learned_sink = static_cast<float>(1 - of_tokens / n_all);
    }
    return mean_of;
}

}  // namespace keyhole
