#include "app/window/head_matrix.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

constexpr float kNone = std::numeric_limits<float>::quiet_NaN();

}  // namespace

HeadMatrix::HeadMatrix(int first_side, int max_side, Reduction reduction)
    : first_side_(first_side), max_side_(max_side), reduction_(reduction) {
    clear();
}

void HeadMatrix::clear() {
    factor_ = 1;
    pyramid_ = make_pyramid(Plane(first_side_, first_side_, kNone), reduction_);
    column_largest_.clear();
    changes_ = {true, 0, -1};
}

void HeadMatrix::grow() {
    const Plane old = pyramid_.front();
    if (old.width < max_side_) {
        Plane larger(old.width * 2, old.height * 2, kNone);
        for (int y = 0; y < old.height; ++y)
            for (int x = 0; x < old.width; ++x) larger.at(x, y) = old.at(x, y);
        pyramid_ = make_pyramid(std::move(larger), reduction_);
    } else {
        const Plane half = pyramid_.at(1);
        Plane same(old.width, old.height, kNone);
        for (int y = 0; y < half.height; ++y)
            for (int x = 0; x < half.width; ++x) same.at(x, y) = half.at(x, y);
        pyramid_ = make_pyramid(std::move(same), reduction_);
        factor_ *= 2;
    }
    changes_ = {true, 0, -1};
}

void HeadMatrix::add_row(int row, std::span<const float> values) {
    const int n = std::max(row + 1, static_cast<int>(values.size()));
    while (n > side() * factor_) grow();
    if (column_largest_.size() < values.size()) column_largest_.resize(values.size(), kNone);
    Plane& base = pyramid_.front();
    const int y = row / factor_;
    for (std::size_t p = 0; p < values.size(); ++p) {
        const float value = values[p];
        if (std::isnan(value)) continue;
        float& cell = base.at(static_cast<int>(p) / factor_, y);
        cell = combine(cell, value, reduction_);
        const float size = reduction_ == Reduction::magnitude ? std::abs(value) : value;
        if (!(column_largest_[p] >= size)) column_largest_[p] = size;  // NaN gives way
    }
    update_pyramid(pyramid_, y, 1, reduction_);
    if (changes_.all) return;
    if (changes_.last < changes_.first) {
        changes_.first = changes_.last = y;
    } else {
        changes_.first = std::min(changes_.first, y);
        changes_.last = std::max(changes_.last, y);
    }
}

float HeadMatrix::largest(int first_position) const {
    float most = kNone;
    for (std::size_t p = static_cast<std::size_t>(std::max(first_position, 0)); p < column_largest_.size();
         ++p)
        if (!(most >= column_largest_[p])) most = std::isnan(column_largest_[p]) ? most : column_largest_[p];
    return most;
}

HeadMatrix::Changes HeadMatrix::take_changes() {
    const Changes changes = changes_;
    changes_ = {false, 0, -1};
    return changes;
}

}  // namespace keyhole
