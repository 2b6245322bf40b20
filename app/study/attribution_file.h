/// Reads attribution.json back. Any thread; knows no backend.
#pragma once

#include "app/study/attribution.h"

#include <string_view>

namespace keyhole {

struct StoredAttribution {
    Attribution found;  ///< without gains where the file is from before it had them
    int context = 0;    ///< of the questions
    std::string asked;  ///< asked_on() of the questions; empty: the file is from before it said so
    std::string lane;   ///< answer_lane() of the lane, or empty likewise
};

/// Returns what attribution_json() wrote, with the effects in the order of parts. name: for messages. Throws
/// Error(bad_file) for another text.
StoredAttribution read_attribution(std::string_view text, std::string_view name);

}  // namespace keyhole
