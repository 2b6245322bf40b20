#include "engine/backend/common/rotation_table.h"

#include "engine/base/index.h"

#include <cmath>

namespace keyhole {

void RotationTable::grow(int last) {
    const std::size_t width = 2 * inverse_frequency_.size();
    const int had = static_cast<int>(rows_.size() / width);
    if (last < had) return;
    constexpr int kMore = 256;
    const int rows = last + kMore;
    rows_.resize(to_index(rows) * width);
    for (int position = had; position < rows; ++position) {
        float* cosine = rows_.data() + to_index(position) * width;
        float* sine = cosine + width / 2;
        for (std::size_t i = 0; i < width / 2; ++i) {
            const double angle = position * inverse_frequency_[i];
            cosine[i] = static_cast<float>(std::cos(angle));
            sine[i] = static_cast<float>(std::sin(angle));
        }
    }
}

}  // namespace keyhole
