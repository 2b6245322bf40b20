/// Random numbers of one question: Philox words counted by (seed, stream, index), so that question 17 of a seed is the same in
/// whatever order questions are made, here and in assets/training/tasks.py. Values; any thread; knows base only.
#pragma once

#include "engine/base/philox.h"

#include <cstdint>

namespace keyhole {

class Draw {
  public:
    Draw(std::uint64_t seed, std::uint32_t stream, std::uint32_t index)
        : seed_(seed), stream_(stream), index_(index) {}

    /// 32 uniform bits: words 0..3 of the blocks at counter (0, index, stream, 0), (1, index, stream, 0) ...
    std::uint32_t word() {
        if (used_ == 4) {
            block_ = philox4x32_10({{n_blocks_++, index_, stream_, 0}}, seed_);
            used_ = 0;
        }
        return block_.x[used_++];
    }
    /// 0 .. n - 1: the high half of word * n. Needs n > 0.
    std::uint32_t below(std::uint32_t n) {
        return static_cast<std::uint32_t>((static_cast<std::uint64_t>(word()) * n) >> 32);
    }

  private:
    std::uint64_t seed_;
    std::uint32_t stream_, index_;
    std::uint32_t n_blocks_ = 0;
    int used_ = 4;
    PhiloxCounter block_{};
};

}  // namespace keyhole
