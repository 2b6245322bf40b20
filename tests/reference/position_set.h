/// A sorted set of positions in one block of memory. Has the members of std::set that the simulation uses; a
/// node for each position would take most of a test's time under AddressSanitizer.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <vector>

namespace reference {

class PositionSet {
  public:
    PositionSet() = default;
    PositionSet(std::initializer_list<int> positions) : PositionSet(positions.begin(), positions.end()) {}
    template <class Iterator>
    PositionSet(Iterator first, Iterator last) : sorted_(first, last) {
        std::sort(sorted_.begin(), sorted_.end());
        sorted_.erase(std::unique(sorted_.begin(), sorted_.end()), sorted_.end());
    }

    auto begin() const { return sorted_.begin(); }
    auto end() const { return sorted_.end(); }
    std::size_t size() const { return sorted_.size(); }
    bool empty() const { return sorted_.empty(); }
    bool contains(int position) const { return std::binary_search(sorted_.begin(), sorted_.end(), position); }
    bool operator==(const PositionSet&) const = default;

    void clear() { sorted_.clear(); }
    void insert(int position) {
        const auto at = std::lower_bound(sorted_.begin(), sorted_.end(), position);
        if (at == sorted_.end() || *at != position) sorted_.insert(at, position);
    }
    void erase(int position) { std::erase(sorted_, position); }
    void merge(const PositionSet& others) {
        for (const int position : others) insert(position);
    }

  private:
    std::vector<int> sorted_;
};

}  // namespace reference
