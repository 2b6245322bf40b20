#include "engine/policy/kept_set.h"

#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

constexpr int kBits = 64;

std::size_t word_of(int position) {
    return to_index(position / kBits);
}
std::uint64_t bit_of(int position) {
    return std::uint64_t{1} << (position % kBits);
}

}  // namespace

void KeptSet::insert(int position) {
    if (word_of(position) >= words_.size()) words_.resize(word_of(position) + 1);
    std::uint64_t& word = words_[word_of(position)];
    count_ += (word & bit_of(position)) == 0;
    word |= bit_of(position);
}

void KeptSet::erase(int position) {
    if (!contains(position)) return;
    words_[word_of(position)] &= ~bit_of(position);
    --count_;
}

bool KeptSet::contains(int position) const {
    return word_of(position) < words_.size() && (words_[word_of(position)] & bit_of(position)) != 0;
}

int KeptSet::count_from(int first) const {
    if (first <= 0) return count_;
    int n = 0;
    for (std::size_t w = word_of(first); w < words_.size(); ++w) {
        const std::uint64_t below = w == word_of(first) ? bit_of(first) - 1 : 0;
        n += std::popcount(words_[w] & ~below);
    }
    return n;
}

int KeptSet::count_common(const KeptSet& other) const {
    int n = 0;
    for (std::size_t w = 0; w < std::min(words_.size(), other.words_.size()); ++w)
        n += std::popcount(words_[w] & other.words_[w]);
    return n;
}

int KeptSet::count_pages(std::span<const KeptSet> sets) {
    static_assert(kBits % kPageTokens == 0, "a page lies in one word");
    constexpr std::uint64_t kPage = (std::uint64_t{1} << kPageTokens) - 1;
    std::size_t n_words = 0;
    for (const KeptSet& set : sets) n_words = std::max(n_words, set.words_.size());
    int n = 0;
    for (std::size_t w = 0; w < n_words; ++w) {
        std::uint64_t any = 0;
        for (const KeptSet& set : sets) any |= w < set.words_.size() ? set.words_[w] : 0;
        for (; any != 0; any >>= kPageTokens) n += (any & kPage) != 0 ? 1 : 0;
    }
    return n;
}

double jaccard(const KeptSet& a, const KeptSet& b) {
    const int n_common = a.count_common(b);
    return jaccard(n_common, a.size() + b.size() - n_common);
}

double jaccard(int n_common, int n_either) {
    return n_either == 0 ? 1.0 : static_cast<double>(n_common) / n_either;
}

double recent_share(const KeptSet& stored, int row, int k) {
    if (stored.size() == 0) return 0;
    return static_cast<double>(stored.count_from(k > row ? 0 : row - k + 1)) / stored.size();
}

int lifetime(int position, int evicted_at, int last_row) {
    return (evicted_at < 0 ? last_row + 1 : evicted_at) - position;
}

}  // namespace keyhole
