#include "engine/analysis/head_matrix.h"

#include "engine/analysis/no_value.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

constexpr std::uint16_t kHalfInfinity = 0x7C00;  // NaN is above it

/// Returns all levels for a side that is a power of two, without values.
std::vector<Plane> empty_pyramid(int side) {
    std::vector<Plane> levels;
    for (; side > 0; side /= 2) levels.emplace_back(side, side, kNoValue);
    return levels;
}

}  // namespace

HeadMatrix::HeadMatrix(int first_side, int max_side, Reduction reduction)
    : first_side_(first_side), max_side_(max_side), reduction_(reduction) {
    clear();
}

std::size_t HeadMatrix::bytes() const {
    std::size_t sum = 0;
    for (const Plane& plane : pyramid_) sum += plane.values.capacity() * sizeof(float);
    return sum;
}

void HeadMatrix::clear() {
    factor_ = 1;
    pyramid_ = empty_pyramid(first_side_);
    largest_ = {kNoValue, kNoValue};
    folded_first_ = 0;
    folded_last_ = -1;
    has_not_finite_ = has_not_recorded_ = false;
    changes_ = {true, 0, -1};
}

/// The old levels become the upper left quarters of the new ones: on the same level if the side doubles, on
/// the level below if the blocks double. Nothing is reduced again.
void HeadMatrix::grow() {
    finish_rows();
    const bool wider = side() < max_side_;
    const std::size_t skipped = wider ? 0 : 1;
    std::vector<Plane> levels = empty_pyramid(wider ? 2 * side() : side());
    for (std::size_t j = 0; j + 1 < levels.size(); ++j) {
        const Plane& old = pyramid_[j + skipped];
        for (int y = 0; y < old.height; ++y)
            std::copy_n(&old.values[to_index(y) * to_index(old.width)], old.width, &levels[j].at(0, y));
    }
    levels.back() = pyramid_.back();
    pyramid_ = std::move(levels);
    if (!wider) factor_ *= 2;
    changes_ = {true, 0, -1};
}

void HeadMatrix::make_room(int n) {
    if (n <= side() * factor_) return;
    const bool empty = std::isnan(pyramid_.back().at(0, 0)) && folded_last_ < folded_first_;
    if (!empty) {
        while (n > side() * factor_) grow();
        return;
    }
    int wanted = side();
    while (n > wanted * factor_ && wanted < max_side_) wanted *= 2;
    while (n > wanted * factor_) factor_ *= 2;
    pyramid_ = empty_pyramid(wanted);
    changes_ = {true, 0, -1};
}

void HeadMatrix::note_largest(float value, bool is_sink) {
    if (std::isinf(value)) {
        (value == kNotRecorded ? has_not_recorded_ : has_not_finite_) = true;
        return;
    }
    if (value > largest_[0] || std::isnan(largest_[0])) largest_[0] = value;
    if (!is_sink && (value > largest_[1] || std::isnan(largest_[1]))) largest_[1] = value;
}

void HeadMatrix::folded(int first, int last) {
    if (folded_last_ < folded_first_) folded_first_ = first, folded_last_ = last;
    folded_first_ = std::min(folded_first_, first);
    folded_last_ = std::max(folded_last_, last);
}

void HeadMatrix::fold_row(int row, std::span<const float> values) {
    make_room(std::max(row + 1, static_cast<int>(values.size())));
    const int y = row / factor_;
    for (std::size_t p = 0; p < values.size(); ++p) {
        const float value = values[p];
        if (std::isnan(value)) continue;
        float& cell = pyramid_.front().at(static_cast<int>(p) / factor_, y);
        cell = combine(cell, value, reduction_);
        const bool by_size = reduction_ == Reduction::magnitude && value != kNotRecorded;
        note_largest(by_size ? std::abs(value) : value, p < kSinks);
    }
    folded(y, y);
}

void HeadMatrix::fold_blocks(int row, std::span<const float> maxima, float past_sinks) {
    const int y = row / factor_;
    for (std::size_t b = 0; b < maxima.size(); ++b) {
        if (std::isnan(maxima[b])) continue;
        float& cell = pyramid_.front().at(static_cast<int>(b), y);
        cell = combine(cell, maxima[b], reduction_);
        note_largest(maxima[b], true);
    }
    if (!std::isnan(past_sinks)) note_largest(past_sinks, false);
    folded(y, y);
}

void HeadMatrix::fold_image(std::span<const std::uint16_t> image, int size, int reduction, int n_rows,
                            int window, float hidden) {
    if (n_rows <= 0) return;
    const int n_blocks = (n_rows + factor_ - 1) / factor_;
    std::vector<std::uint16_t> line(to_index(side()));  // fp16 values of one sign are ordered like their bits
    std::uint16_t past_sinks = 0;
    for (int y = 0; y < n_blocks; ++y) {
        const int last_row = std::min((y + 1) * factor_, n_rows) - 1, n_columns = last_row / factor_ + 1;
        std::fill(line.begin(), line.end(), std::uint16_t{0});
        for (int v = y * factor_ / reduction; v <= last_row / reduction; ++v) {
            const std::uint16_t* from = &image[to_index(v) * to_index(size)];
            if (factor_ >= reduction)
                for (int u = 0; u <= last_row / reduction; ++u) {
                    std::uint16_t& to = line[to_index(u * reduction / factor_)];
                    to = std::max(to, from[u]);
                }
            else
                for (int x = 0; x < n_columns; ++x) line[to_index(x)] = from[x * factor_ / reduction];
            const int first = (kSinks + reduction - 1) / reduction;
            for (int u = first; u <= last_row / reduction; ++u)
                if (from[u] < kHalfInfinity) past_sinks = std::max(past_sinks, from[u]);
        }
        for (int x = 0; x < n_columns; ++x) {
            float value = float_from_fp16(line[to_index(x)]);
            if (!std::isfinite(value)) value = kNotFinite;
            // No row of the block sees any of its positions.
            if (window > 0 && reduction == 1 && (x + 1) * factor_ - 1 <= y * factor_ - window) value = hidden;
            float& cell = pyramid_.front().at(x, y);
            cell = combine(cell, value, reduction_);
            note_largest(value, true);
        }
    }
    note_largest(float_from_fp16(past_sinks), false);
    folded(0, n_blocks - 1);
}

void HeadMatrix::finish_rows() {
    if (folded_last_ < folded_first_) return;
    update_pyramid(pyramid_, folded_first_, folded_last_ - folded_first_ + 1, reduction_);
    if (!changes_.all) {
        const bool none = changes_.last < changes_.first;
        changes_.first = none ? folded_first_ : std::min(changes_.first, folded_first_);
        changes_.last = none ? folded_last_ : std::max(changes_.last, folded_last_);
    }
    folded_first_ = 0;
    folded_last_ = -1;
}

void HeadMatrix::add_row(int row, std::span<const float> values) {
    fold_row(row, values);
    finish_rows();
}

HeadMatrix::Changes HeadMatrix::take_changes() {
    const Changes changes = changes_;
    changes_ = {false, 0, -1};
    return changes;
}

}  // namespace keyhole
