#include "engine/policy/lane_names.h"

#include "engine/policy/option_table.h"
#include "engine/policy/option_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>

namespace keyhole {

namespace {

/// Returns the value of a key, or nullptr where the lane does not have it (an override).
const std::string* value_of(const std::vector<LaneSetting>& settings, const std::string& key) {
    const auto found = std::find_if(settings.begin(), settings.end(),
                                    [&](const LaneSetting& setting) { return setting.key == key; });
    return found == settings.end() ? nullptr : &found->value;
}

bool is_formula(std::string_view key) {
    return key == "score" || key == "choose" || key == "protect";
}

std::string usual_value(Preset preset, std::string_view key) {
    return option_text(lane_option(key), {preset_params(preset), {}});
}

}  // namespace

std::vector<std::string> lane_names(std::span<const LaneSpec> lanes) {
    std::vector<std::vector<LaneSetting>> settings;
    for (const LaneSpec& lane : lanes) settings.push_back(lane_settings(lane));
    std::vector<std::string> names;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        std::string& name = names.emplace_back(lanes[i].name);
        if (!name.empty()) continue;
        name = preset_name(lanes[i].policy.preset);
        for (const auto& [key, value] : settings[i]) {
            bool shared = true;
            for (std::size_t other = 0; other < lanes.size(); ++other) {
                if (lanes[other].policy.preset != lanes[i].policy.preset) continue;
                const std::string* there = value_of(settings[other], key);
                shared = shared && there != nullptr && *there == value;
            }
            // With a formula of one's own it is no longer the preset's policy.
            const bool is_own = is_formula(key) && value != usual_value(lanes[i].policy.preset, key);
            const bool is_table = key == "heads" && !lanes[i].policy.heads.empty();
            if (!shared || is_own)
                name += fmt::format(" {}={}", key, is_table ? head_table_name(lanes[i].policy.heads) : value);
        }
    }
    return names;
}

namespace {

/// Returns a title without the lane's number.
std::string_view name_of(std::string_view title) {
    return title.substr(std::min(title.find(' ') + 1, title.size()));  // find() may return npos
}

/// Returns a name without its keys: "tova positions=cache" is "tova cache".
std::string without_keys(std::string_view name) {
    std::string out;
    while (!name.empty()) {
        const std::string_view word = name.substr(0, name.find(' '));
        name.remove_prefix(std::min(word.size() + 1, name.size()));
        if (!out.empty()) out += ' ';
        out += word.substr(out.empty() ? 0 : word.find('=') + 1);  // find() may return npos
    }
    return out;
}

}  // namespace

std::vector<std::string> shortened_titles(std::span<const std::string> titles,
                                          const std::function<std::string(std::string_view)>& cut) {
    std::vector<std::string> shortened;
    for (const std::string& title : titles) shortened.push_back(cut(title));
    for (const bool whole_words : {true, false}) {
        const std::vector<std::string> before = shortened;
        for (std::size_t i = 0; i < titles.size(); ++i) {
            const std::string_view name = name_of(titles[i]);
            std::size_t n_same = name.size();  // bytes that all of them begin with
            bool is_unclear = false;
            for (std::size_t other = 0; other < titles.size(); ++other) {
                const std::string_view its = name_of(titles[other]);
                if (its == name || name_of(before[other]) != name_of(before[i])) continue;
                is_unclear = true;
                const auto n = static_cast<std::size_t>(std::ranges::mismatch(name, its).in1 - name.begin());
                const std::size_t end = name.substr(0, n).find_last_of(whole_words ? " " : " =:,");
                n_same = std::min(n_same, end == std::string_view::npos ? 0 : end + 1);
            }
            if (is_unclear && n_same > 0)
                shortened[i] = cut(titles[i].substr(0, titles[i].size() - name.size()) + "…" +
                                   std::string(name.substr(n_same)));
        }
    }
    const std::vector<std::string> before = shortened;
    for (std::size_t i = 0; i < titles.size(); ++i) {
        const std::string_view name = name_of(titles[i]);
        const bool is_unclear = std::ranges::any_of(titles, [&](const std::string& other) {
            const std::string& its = before[static_cast<std::size_t>(&other - titles.data())];
            return name_of(other) != name && name_of(its) == name_of(before[i]);
        });
        if (is_unclear)
            shortened[i] = cut(titles[i].substr(0, titles[i].size() - name.size()) + without_keys(name));
    }
    return shortened;
}

NamedLane parse_named_lane(std::string_view text) {
    NamedLane lane{{}, parse_lane_spec(text)};
    lane.name = std::exchange(lane.spec.name, {});
    return lane;
}

}  // namespace keyhole
