#include "engine/analysis/heat_mode.h"

namespace keyhole {

std::string_view mode_name(HeatMode mode) {
    switch (mode) {
        case HeatMode::attention:
            return "attention";
        case HeatMode::mask:
            return "mask";
        case HeatMode::score:
            return "score";
    }
    return "";
}

}  // namespace keyhole
