/// The matrix of one head on the CPU: rows of values by position, with a pyramid of maxima. Grows by
/// doubling. Used on the window's thread; knows neither GL nor the run.
///
/// A matrix longer than `max_side` keeps blocks of factor() x factor() cells, reduced by maximum, so that a
/// single large cell never vanishes; the picture says how much was reduced. Differences are reduced by
/// largest magnitude. NaN stands for no value, kNotFinite for a value that is not finite.
#pragma once

#include "engine/figure/reduce.h"

#include <array>
#include <cstdint>
#include <span>
#include <vector>

namespace keyhole {

class HeadMatrix {
  public:
    static constexpr int kSinks = 4;  ///< first positions, which a colour range may leave out

    /// first_side, max_side: both powers of two; the side stays between them.
    explicit HeadMatrix(int first_side = 64, int max_side = 4096, Reduction reduction = Reduction::max);

    /// Adds a row (values by position). Rows that share a block, or come again, are combined by the
    /// reduction.
    void add_row(int row, std::span<const float> values);
    /// Adds a row without updating the pyramid, which is faster for many rows. finish_rows() must follow.
    void fold_row(int row, std::span<const float> values);
    /// Adds a row as maxima over blocks of factor() positions. Call make_room(row + 1) first. past_sinks: the
    /// largest value beyond the sinks.
    void fold_blocks(int row, std::span<const float> maxima, float past_sinks);
    /// Adds rows [0, n_rows) from a max-reduced image: [size, size] fp16 values, each for a block of
    /// `reduction` cells (a power of two), all >= 0. Call make_room() first. window: of the model, 0: none;
    /// if no cell is reduced, `hidden` stands for positions beyond it.
    void fold_image(std::span<const std::uint16_t> image, int size, int reduction, int n_rows, int window = 0,
                    float hidden = 0);
    void finish_rows();
    /// Grows until n rows and columns fit.
    void make_room(int n);
    void clear();

    int side() const { return pyramid_.front().width; }  ///< in blocks
    std::size_t bytes() const;                           ///< of the pyramid
    int factor() const { return factor_; }               ///< cells of a block along each side
    const std::vector<Plane>& pyramid() const { return pyramid_; }
    /// Returns the largest finite value (magnitude for differences), with or without the sinks; NaN if there
    /// is none.
    float largest(bool sinks_count) const { return largest_[sinks_count ? 0 : 1]; }
    /// Returns whether any value is kNotFinite.
    bool has_not_finite() const { return has_not_finite_; }
    /// Returns whether any value is kNotRecorded.
    bool has_not_recorded() const { return has_not_recorded_; }

    /// The rows of level 0 that changed since the last take_changes(). all: the size or everything changed.
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
    int folded_first_ = 0, folded_last_ = -1;  // rows of level 0 that the levels above do not contain yet
    bool has_not_finite_ = false, has_not_recorded_ = false;
    Changes changes_;

    void grow();
    void folded(int first, int last);
    void note_largest(float value, bool is_sink);
};

}  // namespace keyhole
