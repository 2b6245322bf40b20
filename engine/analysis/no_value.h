/// Stands for a value that a record does not hold. Knows nothing of the other headers.
#pragma once

#include <limits>

namespace keyhole {

inline constexpr float kNoValue = std::numeric_limits<float>::quiet_NaN();

}  // namespace keyhole
