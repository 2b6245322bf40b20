#include "app/view/number_text.h"

#include <fmt/format.h>

#include <cmath>

namespace keyhole {

std::string number_text(double value) {
    if (std::isnan(value)) return "–";
    if (std::isinf(value)) return "NaN";  // pictures write it so: kNotFinite
    if (value == 0) return "0";
    const double size = std::abs(value);
    if (size >= 100) return fmt::format("{:.1f}", value);
    if (size >= 0.001) return fmt::format("{:.4g}", value);
    return fmt::format("{:.1e}", value);
}

}  // namespace keyhole
