/// Lists where the memory of the window's process goes, with the limit of each part.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"

#include <cstdint>
#include <string_view>
#include <vector>

namespace keyhole {

struct MemoryPart {
    std::string_view id;    ///< for files: "recorded_rows"
    std::string_view name;  ///< for people: "attention and scores of recorded steps"
    std::string_view help;  ///< purpose, and what makes it grow
    std::int64_t bytes = 0;
    std::int64_t limit_bytes = 0;  ///< 0: limited only by the model's size and the text's length
    bool on_device = false;        ///< in the memory of the CUDA device, and not in that of the process
};

/// Returns the parts, then "other" (program, libraries, graphics driver): the rest of the process. Those that
/// are not on the device add up to resident_memory().now_bytes as long as every part is resident; a mapped
/// file may be resident only in part.
std::vector<MemoryPart> memory_parts(const AppState& app);

}  // namespace keyhole
