/// Bounds of the keys of each page of the text, and which pages a query reads: Quest, section 3. One KV head;
/// one thread at a time. Knows no cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace keyhole {

class KeyPages {
  public:
    /// Starts anew where pages have had another length. page: tokens of the text in one; position p is in
    /// page p / page.
    void begin(int page, int head_dim);
    void clear();
    /// Adds the next stored token in text order. key [head_dim]
    void add(int position, const float* key);

    int n_tokens() const { return n_tokens_; }
    /// Returns how many pages hold stored tokens.
    int n_pages() const { return static_cast<int>(starts_.size()); }
    /// Returns the first token of a page and the one after its last, by their places in text order.
    std::pair<int, int> tokens(int page) const;
    std::int64_t bytes() const;

    /// Writes the pages that a query reads to `chosen`, ascending: those with the largest bounds,
    ///     sum over channels of max(q min, q max), which is at least q.k of each of their keys
    /// and of equal ones the younger; a bound that is NaN is the smallest. own: the youngest page is one of
    /// them. bounds: scratch.
    void choose(const float* q, int n_read, bool own, std::vector<float>& bounds,
                std::vector<int>& chosen) const;

  private:
    static constexpr std::size_t kTogether = 16;  // pages whose channels lie side by side

    float* channel(std::size_t page, int c, int which) {
        return extremes_.data() +
               ((page / kTogether * static_cast<std::size_t>(head_dim_) + static_cast<std::size_t>(c)) * 2 +
                static_cast<std::size_t>(which)) *
                   kTogether +
               page % kTogether;
    }

    int page_ = 0, head_dim_ = 0, n_tokens_ = 0, last_page_ = -1;
    std::vector<int> starts_;      // first token of each page
    std::vector<float> extremes_;  // [n_pages / kTogether, head_dim, least and largest, kTogether]
};

}  // namespace keyhole
