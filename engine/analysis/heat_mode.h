/// The quantities that a heat map can show, and their names in scripts and settings.
/// Plain values, for any thread; knows nothing else.
#pragma once

#include <string_view>

namespace keyhole {

/// attention: probabilities; mask: stored or evicted; score: what the policy selects by.
enum class HeatMode { attention, mask, score };
/// Returns the mode's name in scripts and settings.
std::string_view mode_name(HeatMode mode);

}  // namespace keyhole
