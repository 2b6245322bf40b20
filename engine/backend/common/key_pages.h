/// Bounds of the keys of each page of the text, and which pages a query reads: Quest, section 3. One KV head;
/// one thread at a time. Knows no cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace keyhole {

/// Bounds by query and page.
struct PageBounds {
    std::vector<std::vector<float>> values;
    /// Makes room for bounds.
    void begin(std::size_t n_queries, std::size_t n_pages);
};

/// Writes the pages that a query reads to `chosen`, ascending: those with the largest bounds, of equal ones
/// the younger. own: the youngest page is one of them. best: scratch.
void choose_pages(std::span<const float> bounds, int n_read, bool own, std::vector<float>& best,
                  std::vector<int>& chosen);

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

    /// Writes for each query [head_dim] a bound of each page in [first, last),
    ///     sum over channels of max(q min, q max), which is at least q.k of each of the page's keys
    /// and -inf where that is NaN. first: a multiple of 16. Threads may compute other pages meanwhile.
    void bound(std::span<const float* const> queries, int first, int last, PageBounds& bounds) const;

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
