/// Writes a number as the window's tables do. Any thread.
#pragma once

#include <string>

namespace keyhole {

/// Returns 4 digits from 0.001 on, 2 digits below; "–" for NaN, which stands for no number.
std::string number_text(double value);

}  // namespace keyhole
