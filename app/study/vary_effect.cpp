#include "app/study/vary_effect.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/option_help.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

/// Returns why a key changes nothing in a lane, whatever its value; empty: it changes something.
std::string idle_reason(std::span<const GridCell> cells, std::size_t lane, const std::string& key) {
    std::string reason;
    for (const GridCell& cell : cells) {
        if (to_index(cell.lane_index) != lane) continue;
        reason = no_effect_reason(cell.spec.policy, key.substr(0, key.find('@')));
        if (reason.empty()) return reason;
    }
    return reason;
}

bool is_full(std::span<const GridCell> cells, std::size_t lane) {
    for (const GridCell& cell : cells)
        if (to_index(cell.lane_index) == lane) return cell.spec.policy.preset == Preset::full;
    return false;
}

}  // namespace

std::vector<std::string> check_vary_effects(std::span<const GridCell> cells, std::span<const Vary> varies,
                                            std::span<const std::string> labels, std::size_t n_lanes) {
    std::vector<std::string> notes;
    for (const Vary& vary : varies) {
        std::string list, of_full;
        std::size_t n_idle = 0;
        for (std::size_t lane = 0; lane < n_lanes; ++lane) {
            const std::string reason = idle_reason(cells, lane, vary.key);
            if (reason.empty()) continue;
            ++n_idle;
            (is_full(cells, lane) ? of_full : list) += fmt::format(" {}: {}", labels[lane], reason);
        }
        if (n_idle == n_lanes)
            fail(ErrorCode::wrong_use,
                 "--vary {}: none of its values changes a lane; leave it out, or give a lane that it "
                 "changes.{}",
                 vary.key, list.empty() ? of_full : list);
        if (!list.empty())
            notes.push_back(fmt::format("--vary {} does not change every lane.{}", vary.key, list));
    }
    return notes;
}

}  // namespace keyhole
