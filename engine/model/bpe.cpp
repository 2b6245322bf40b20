#include "engine/model/bpe.h"

#include <queue>

namespace keyhole {

void Bpe::add_merge(int left, int right, int merged) {
    merges_.try_emplace(key(left, right), Merge{static_cast<int>(merges_.size()), merged});
}

// A heap of candidate pairs over a linked list of symbols: texts without a pre-tokenizer are one long piece, where searching
// every pair again after each merge would be quadratic.
void Bpe::merge(std::vector<int>& symbols) const {
    struct Candidate {
        int rank, at, left, right, merged;
        bool operator>(const Candidate& other) const {
            return rank != other.rank ? rank > other.rank : at > other.at;
        }
    };
    const int n = static_cast<int>(symbols.size());
    if (n < 2) return;
    std::vector<int> next(symbols.size()), previous(symbols.size());
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
    auto symbol = [&](int i) -> int& { return symbols[static_cast<std::size_t>(i)]; };
    auto after = [&](int i) -> int& { return next[static_cast<std::size_t>(i)]; };
    auto before = [&](int i) -> int& { return previous[static_cast<std::size_t>(i)]; };
    auto offer = [&](int i) {
        if (i < 0 || after(i) >= n) return;
        const auto found = merges_.find(key(symbol(i), symbol(after(i))));
        if (found != merges_.end())
            heap.push({found->second.rank, i, symbol(i), symbol(after(i)), found->second.merged});
    };
    for (int i = 0; i < n; ++i) {
        after(i) = i + 1;
        before(i) = i - 1;
    }
    for (int i = 0; i + 1 < n; ++i) offer(i);
    constexpr int kGone = -1;
    while (!heap.empty()) {
        const Candidate best = heap.top();
        heap.pop();
        const int right = symbol(best.at) == best.left ? after(best.at) : n;
        if (right >= n || symbol(right) != best.right) continue;  // one of the two was merged meanwhile
        symbol(best.at) = best.merged;
        symbol(right) = kGone;
        after(best.at) = after(right);
        if (after(right) < n) before(after(right)) = best.at;
        offer(before(best.at));
        offer(best.at);
    }
    std::erase(symbols, kGone);
}

}  // namespace keyhole
