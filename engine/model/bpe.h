/// Byte-pair encoding: symbols of a piece merged in the order of their ranks. Const after building; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace keyhole {

class Bpe {
  public:
    /// left + right -> merged, in this order of rank; ids index the vocabulary.
    void add_merge(int left, int right, int merged);
    /// Merges the symbols in place: always the pair of lowest rank, the leftmost among equals (Sennrich et al. 2016).
    void merge(std::vector<int>& symbols) const;

  private:
    struct Merge {
        int rank, merged;
    };
    static std::uint64_t key(int left, int right) {
        return static_cast<std::uint64_t>(static_cast<std::uint32_t>(left)) << 32 |
               static_cast<std::uint32_t>(right);
    }
    std::unordered_map<std::uint64_t, Merge> merges_;
};

}  // namespace keyhole
