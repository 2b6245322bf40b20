/// What a heat map shows.
#pragma once

#include <string_view>

namespace keyhole {

/// attention: probabilities; mask: stored or evicted; score: what the policy selects by.
enum class HeatMode { attention, mask, score };
/// The mode as scripts and settings write it.
std::string_view mode_name(HeatMode mode);

}  // namespace keyhole
