#include "engine/policy/lane_names.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/policy/spec_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

namespace {

/// Returns the value of a key, or nullptr where the lane does not have it (an override).
const std::string* value_of(const std::vector<LaneSetting>& settings, const std::string& key) {
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const LaneSetting& setting) { return setting.key == key; });
    return found == settings.end() ? nullptr : &found->value;
}

}  // namespace

std::vector<std::string> lane_names(std::span<const LaneSpec> lanes) {
    std::vector<std::vector<LaneSetting>> settings;
    for (const LaneSpec& lane : lanes) settings.push_back(lane_settings(lane));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::string& name = names.emplace_back(preset_name(lanes[i].policy.preset));
        for (const auto& [key, value] : settings[i]) {
            bool shared = true;
            for (std::size_t other = 0; other < lanes.size(); ++other) {
                if (lanes[other].policy.preset != lanes[i].policy.preset) continue;
                const std::string* there = value_of(settings[other], key);
                shared = shared && there != nullptr && *there == value;
            }
            const bool is_table = key == "heads" && !lanes[i].policy.heads.empty();
            if (!shared)
                name += fmt::format(" {}={}", key, is_table ? head_table_name(lanes[i].policy.heads) : value);
        }
    }
    return names;
}

NamedLane parse_named_lane(std::string_view text) {
    constexpr std::size_t kLongestName = 60;
    const std::size_t equals = text.find('='), colon = text.find(':');
    if (equals == std::string_view::npos || equals > colon) return {"", parse_lane_spec(text)};
    const std::string_view name = spec_text::trimmed({text.substr(0, equals), 0}).text;
    const bool is_plain =
        std::none_of(name.begin(), name.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; });
    if (name.empty() || name.size() > kLongestName || !is_plain)
        fail(ErrorCode::wrong_use,
             "lane '{}': a name has 1 to {} characters before its '=', such as ten=h2o:budget=10",
             shown_text(text), kLongestName);
    return {std::string(name), parse_lane_spec(text.substr(equals + 1))};
}

}  // namespace keyhole
