/// The presets, one row each: name, card text, values, and what the released code does otherwise. Command
/// line, policy card, parser and resolve() read this table. Constant; any thread.
#pragma once

#include "engine/policy/params.h"

#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// What decides which tokens a policy keeps. Lists of presets are grouped by it, in this order.
enum class LooksAt { unsaid, nothing, place, attention, keys, values, future };

struct PresetGroup {
    LooksAt looks_at;
    std::string_view name;
    std::string_view help;  ///< a sentence on what its policies see
};
/// Returns the groups of presets in their order.
std::span<const PresetGroup> preset_groups();

struct PresetRow {
    Preset preset;
    std::string_view name;
    std::string_view title{};            ///< what papers call it, where the name hides that
    LooksAt looks_at = LooksAt::unsaid;  ///< every row says it
    std::string_view help;               ///< a sentence: what it keeps, and its paper
    /// How the released code differs from the paper; empty: the preset has no such dialect.
    std::string_view released{};
    /// Sets the values in which it differs from PolicyParams{}.
    void (*set)(PolicyParams&);
    /// Options that the released code fixes, beside prefill=oneshot and every=1, as in a lane spec.
    std::string_view fixed{};
    /// Sets how the released code counts tokens and masks them: policies, sections 1 and 2.
    void (*count)(ResolvedPolicy&) = nullptr;
    /// The released code truncates int(ratio * n) with the ratio as a double, heavy and recent one by one.
    bool truncates_ratios = false;
    /// Options that make the preset what it is, as `a,b`: the policy card has them in front.
    std::string_view front{};
    int offered = 0;  ///< its place among the presets that a new lane takes, from 1; 0: it is not offered
};

/// Returns one row for each Preset, in their order.
std::span<const PresetRow> presets();
const PresetRow& preset_row(Preset preset);

/// Returns the rows of a group, in the order of the table.
std::vector<const PresetRow*> presets_that_look_at(LooksAt what);

/// Returns the presets for a new lane, the first wanted first.
std::vector<Preset> offered_presets();

/// Returns the options that make the preset what it is.
std::vector<std::string_view> front_options(Preset preset);

/// Returns the values that take effect: the options that the released code fixes have its values.
PolicyParams with_released_values(PolicyParams params);
/// Returns whether the released code of the preset fixes an option of this name.
bool is_fixed_by_release(Preset preset, std::string_view option);

/// A name that other programs and papers use, and where it is here, or that it is not.
struct OtherName {
    std::string_view name, here;
};
std::span<const OtherName> other_preset_names();

}  // namespace keyhole
