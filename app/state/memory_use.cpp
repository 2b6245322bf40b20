#include "app/state/memory_use.h"

#include "engine/base/resource_use.h"
#include "engine/live/engine.h"

#include <algorithm>
#include <numeric>

namespace keyhole {

namespace {

constexpr std::int64_t kRowLimit = Recorder::kRowBudgetBytes, kCheckpointLimit = kCheckpointBytes;

}  // namespace

std::vector<MemoryPart> memory_parts(const AppState& app) {
    const EngineMemory& engine = app.run.status.memory;
    std::size_t matrices = app.maps.lane.bytes() + app.maps.difference.bytes();
    for (const HeatData& other : app.maps.others) matrices += other.bytes();
    std::vector<MemoryPart> parts = {
        {"weights", "weights of the model",
         "As they are read: on the CPU the file's pages, which the system may drop and read again, or copies "
         "for products in integers in their place.",
         engine.weights, 0, engine.on_device},
        {"caches", "K, V and scores of all lanes", "Grows with the tokens that lanes keep. Shadows count.",
         engine.caches, 0, engine.on_device},
        {"recorded_rows", "attention and scores of recorded steps",
         "At the limit, older steps are thinned: every second one is dropped, then three of four, and so on.",
         static_cast<std::int64_t>(app.run.record_use.rows), kRowLimit},
        {"recorded_steps", "tokens, choices and measures of all steps",
         "One record a step and lane, and the prompt's attention (64 MB at most). A run pauses each time "
         "its text has filled or doubled the model's context.",
         static_cast<std::int64_t>(app.run.record_use.scalars)},
        {"checkpoints", "states to rewind to",
         "At the limit, every second state is dropped; a rewind then decodes a few more steps again.",
         engine.checkpoints, kCheckpointLimit, engine.on_device},
        {"matrices", "shown matrices", "The focused head and its maxima, thumbnails, the lanes beside it.",
         static_cast<std::int64_t>(matrices)},
        {"textures", "textures", "The same for the graphics driver; without a GPU they are in this memory.",
         static_cast<std::int64_t>(app.texture_bytes)}};
    const std::int64_t sum = std::accumulate(
        parts.begin(), parts.end(), std::int64_t{0},
        [](std::int64_t all, const MemoryPart& part) { return part.on_device ? all : all + part.bytes; });
    parts.push_back({"other", "program, libraries, graphics driver",
                     "The rest of the process, including memory that is free for reuse.",
                     std::max<std::int64_t>(0, resident_memory().now_bytes - sum)});
    return parts;
}

}  // namespace keyhole
