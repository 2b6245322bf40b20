/// The matrix of one head on the CPU: rows of values by position, with its pyramid of maxima. Grows by
/// doubling. Window thread; knows neither GL nor the run.
///
/// A matrix longer than `max_side` keeps blocks of factor() x factor() cells, reduced by maximum: a single hot
/// cell never vanishes, and the picture says by how much it was reduced. Differences reduce by largest magnitude. NaN: no value.
#pragma once

#include "engine/figure/reduce.h"

#include <span>
#include <vector>

namespace keyhole {

class HeadMatrix {
  public:
    /// Sides are powers of two between the two.
    explicit HeadMatrix(int first_side = 64, int max_side = 4096, Reduction reduction = Reduction::max);

    /// Row `row` (values by position) joins the matrix; again: reduced with what is there where rows share a block.
    void add_row(int row, std::span<const float> values);
    void clear();

    int side() const { return pyramid_.front().width; }  ///< blocks
    int factor() const { return factor_; }               ///< cells a block, each way
    const std::vector<Plane>& pyramid() const { return pyramid_; }
    /// Largest value (of differences: magnitude) among positions >= first_position; NaN without one.
    float largest(int first_position) const;

    /// Rows of level 0 that changed since take_changes(). all: the size or everything changed.
    struct Changes {
        bool all = true;
        int first = 0;
        int last = -1;  ///< inclusive; below first: none
    };
    Changes take_changes();

  private:
    int first_side_;
    int max_side_;
    Reduction reduction_;
    int factor_ = 1;
    std::vector<Plane> pyramid_;
    std::vector<float> column_largest_;  // by position
    Changes changes_;

    void grow();
};

}  // namespace keyhole
