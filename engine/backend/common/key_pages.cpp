#include "engine/backend/common/key_pages.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <functional>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/backend/common/key_pages.cpp"
#include <hwy/foreach_target.h>  // compiles this file once for each instruction set

#include "engine/backend/common/simd.h"

HWY_BEFORE_NAMESPACE();
namespace keyhole::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Writes the bounds of n pages whose channels lie side by side, -inf where one is NaN: it has no order.
// extremes: [head_dim, least and largest, n_together]. bounds: of each query; the first page is page `at`.
template <int kQueries>
HWY_INLINE void bound_group(const float* extremes, std::size_t n_together, const float* const* q,
                            int head_dim, std::vector<float>* bounds, std::size_t at, std::size_t n) {
    const hn::CappedTag<float, 16> tag;
    for (std::size_t i = 0; i < n; i += hn::Lanes(tag)) {
        hn::Vec<decltype(tag)> sum[kQueries];
        HWY_UNROLL(4)
        for (int j = 0; j < kQueries; ++j) sum[j] = hn::Zero(tag);
        const float* from = extremes + i;
        for (int c = 0; c < head_dim; ++c, from += 2 * n_together) {
            HWY_UNROLL(4)
            for (int j = 0; j < kQueries; ++j) {
                const float x = q[j][c];  // whose sign says which product is larger
                const auto extreme = hn::LoadU(tag, x >= 0 ? from + n_together : from);
                sum[j] = hn::Add(sum[j], hn::Mul(hn::Set(tag, x), extreme));
            }
        }
        HWY_UNROLL(4)
        for (int j = 0; j < kQueries; ++j) {
            float bound[16];
            hn::StoreU(hn::IfThenElse(hn::IsNaN(sum[j]), hn::Set(tag, -INFINITY), sum[j]), tag, bound);
            std::copy_n(bound, std::min(hn::Lanes(tag), n - i), bounds[j].data() + at + i);
        }
    }
}

// As many queries as have their sums in registers are computed at once: the extremes are read once for them.
void bound_pages(const float* extremes, std::size_t n_together, const float* const* q, int n_queries,
                 int head_dim, std::vector<float>* bounds, std::size_t at, std::size_t n) {
    in_groups<4>(0, n_queries, [&]<int kQueries>(int i, std::integral_constant<int, kQueries>) HWY_ATTR {
        bound_group<kQueries>(extremes, n_together, q + i, head_dim, bounds + i, at, n);
    });
}

}  // namespace keyhole::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace keyhole {
namespace {

HWY_EXPORT(bound_pages);

}  // namespace

void KeyPages::begin(int page, int head_dim) {
    if (page == page_ && head_dim == head_dim_) return;
    clear();
    page_ = page;
    head_dim_ = head_dim;
}

void KeyPages::clear() {
    n_tokens_ = 0;
    last_page_ = -1;
    starts_.clear();
    extremes_.clear();
}

void KeyPages::add(int position, const float* key) {
    const bool is_new = position / page_ != last_page_;
    if (is_new) {
        last_page_ = position / page_;
        if (starts_.size() % kTogether == 0)
            extremes_.resize(extremes_.size() + to_index(head_dim_) * 2 * kTogether, 0.0f);
        starts_.push_back(n_tokens_);
    }
    const std::size_t page = starts_.size() - 1;
    for (int c = 0; c < head_dim_; ++c) {
        float *least = channel(page, c, 0), *largest = channel(page, c, 1);
        *least = is_new ? key[c] : std::min(*least, key[c]);
        *largest = is_new ? key[c] : std::max(*largest, key[c]);
    }
    ++n_tokens_;
}

std::pair<int, int> KeyPages::tokens(int page) const {
    const std::size_t next = to_index(page) + 1;
    return {starts_[to_index(page)], next < starts_.size() ? starts_[next] : n_tokens_};
}

std::int64_t KeyPages::bytes() const {
    return static_cast<std::int64_t>(extremes_.size() * sizeof(float) + starts_.size() * sizeof(int));
}

void PageBounds::begin(std::size_t n_queries, std::size_t n_pages) {
    values.resize(n_queries);
    for (std::vector<float>& of_query : values) of_query.resize(n_pages);
}

void KeyPages::bound(std::span<const float* const> queries, int first, int last, PageBounds& bounds) const {
    auto* const bound_some = &HWY_DYNAMIC_DISPATCH(bound_pages);
    for (std::size_t page = to_index(first); page < to_index(last); page += kTogether)
        bound_some(extremes_.data() + page * to_index(head_dim_) * 2, kTogether, queries.data(),
                   static_cast<int>(queries.size()), head_dim_, bounds.values.data(), page,
                   std::min(kTogether, to_index(last) - page));
}

void choose_pages(std::span<const float> bounds, int n_read, bool own, std::vector<float>& best,
                  std::vector<int>& chosen) {
    KH_ASSERT(n_read > 0 && to_index(n_read) < bounds.size(), "{} of {} pages", n_read, bounds.size());
    const std::size_t n_free = bounds.size() - (own ? 1 : 0);
    const std::span<const float> free = bounds.first(n_free);
    chosen.clear();
    if (const std::ptrdiff_t n_best = n_read - (own ? 1 : 0); n_best > 0) {
        best.assign(free.begin(), free.end());
        std::nth_element(best.begin(), best.begin() + n_best - 1, best.end(), std::greater<>());
        const float least = best[to_index(n_best - 1)];
        std::ptrdiff_t n_equal =
            n_best - std::count_if(free.begin(), free.end(), [&](float bound) { return bound > least; });
        std::size_t first_equal = n_free;
        while (n_equal > 0)
            if (free[--first_equal] == least) --n_equal;
        for (std::size_t i = 0; i < n_free; ++i)
            if (free[i] > least || (free[i] == least && i >= first_equal))
                chosen.push_back(static_cast<int>(i));
    }
    if (own) chosen.push_back(static_cast<int>(n_free));
}

}  // namespace keyhole
#endif
