#include "engine/backend/common/key_pages.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

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

void KeyPages::choose(const float* q, int n_read, bool own, std::vector<float>& bounds,
                      std::vector<int>& chosen) const {
    const std::size_t n = starts_.size();
    KH_ASSERT(n_read > 0 && to_index(n_read) < n, "{} of {} pages", n_read, n);
    bounds.resize((n + kTogether - 1) / kTogether * kTogether);
    const float* from = extremes_.data();
    for (std::size_t first = 0; first < n; first += kTogether) {
        float sum[kTogether] = {};
        for (int c = 0; c < head_dim_; ++c, from += 2 * kTogether)
            for (std::size_t i = 0; i < kTogether; ++i) {
                const float a = q[c] * from[i], b = q[c] * from[kTogether + i];
                sum[i] += a > b ? a : b;
            }
        // NaN has no order: a page with one comes last.
        std::transform(sum, sum + kTogether, bounds.begin() + static_cast<std::ptrdiff_t>(first),
                       [](float bound) { return std::isnan(bound) ? -INFINITY : bound; });
    }
    const std::size_t n_free = own ? n - 1 : n;
    const auto n_best = static_cast<std::ptrdiff_t>(own ? n_read - 1 : n_read);
    chosen.resize(n_free);
    std::iota(chosen.begin(), chosen.end(), 0);
    std::nth_element(chosen.begin(), chosen.begin() + n_best, chosen.end(), [&](int a, int b) {
        const float x = bounds[to_index(a)], y = bounds[to_index(b)];
        return x > y || (x == y && a > b);
    });
    chosen.resize(to_index(static_cast<int>(n_best)));
    if (own) chosen.push_back(static_cast<int>(n) - 1);
    std::sort(chosen.begin(), chosen.end());
}

}  // namespace keyhole
