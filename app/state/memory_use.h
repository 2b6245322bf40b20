/// Where the memory of the window's process goes, and the bound of each part. Window thread.
#pragma once

#include "app/state/app_state.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace keyhole {

struct MemoryPart {
    std::string_view id;    ///< for files: "recorded_rows"
    std::string_view name;  ///< for people: "attention and scores of recorded steps"
    std::string_view help;  ///< what it is for and what makes it grow
    std::int64_t bytes = 0;
    std::int64_t limit_bytes = 0;  ///< 0: none but the model's size and the length of the text
};

/// The parts, then "other" (program, libraries, graphics driver), which is what the process has beyond them. They add up to
/// resident_memory().now_bytes as long as every part is resident; a mapped file may be so in part.
std::vector<MemoryPart> memory_parts(const AppState& app);

}  // namespace keyhole
