/// The matrix of one head on the CPU: rows of values by position, with its pyramid of maxima. Grows by
/// doubling. Window thread; knows neither GL nor the run.
///
/// A matrix longer than `max_side` keeps blocks of factor() x factor() cells, reduced by maximum: a single hot
/// cell never vanishes, and the picture says by how much it was reduced. Differences reduce by largest magnitude. NaN: no value, kNotFinite: one that is none.
#pragma once

#include "engine/figure/reduce.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

class HeadMatrix {
  public:
    static constexpr int kSinks = 4;  ///< first positions that a range of colours may leave out

    /// Sides are powers of two between the two.
    explicit HeadMatrix(int first_side = 64, int max_side = 4096, Reduction reduction = Reduction::max);

    /// Row `row` (values by position) joins the matrix; again: reduced with what is there where rows share a block.
    void add_row(int row, std::span<const float> values);
    /// The same for many rows, quicker: the pyramid is behind until finish_rows().
    void fold_row(int row, std::span<const float> values);
    /// Row `row` as maxima over blocks of factor() positions, after make_room(row + 1); past_sinks: the largest beyond the sinks.
    void fold_blocks(int row, std::span<const float> maxima, float past_sinks);
    /// Rows [0, n_rows) out of a max-reduced image, [size, size] halves of blocks of `reduction` cells (a power of two), which holds
    /// 0 and more; after make_room(). hidden: stands for what lies beyond the model's window (0: none) where no cell is reduced.
    void fold_image(std::span<const std::uint16_t> image, int size, int reduction, int n_rows, int window = 0,
                    float hidden = 0);
    void finish_rows();
    /// Grows until n cells fit.
    void make_room(int n);
    void clear();

    int side() const { return pyramid_.front().width; }  ///< blocks
    std::size_t bytes() const;                           ///< of the pyramid
    int factor() const { return factor_; }               ///< cells a block, each way
    const std::vector<Plane>& pyramid() const { return pyramid_; }
    /// Largest finite value (of differences: magnitude), that of the sinks among them or not; NaN without one.
    float largest(bool sinks_count) const { return largest_[sinks_count ? 0 : 1]; }
    /// Some value is kNotFinite.
    bool has_not_finite() const { return has_not_finite_; }

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
    std::array<float, 2> largest_;             // of all, and past the sinks
    int folded_first_ = 0, folded_last_ = -1;  // rows of level 0 that the pyramid does not know
    bool has_not_finite_ = false;
    Changes changes_;

    void grow();
    void folded(int first, int last);
    void note_largest(float value, bool is_sink);
};

}  // namespace keyhole
