/// What can colour the squares of the atlas: attention, or one number a head at the shown step. One row each:
/// the list over the atlas, its legend and the action `atlas.color` read this table. Plain values; any
/// thread; knows neither GL nor ImGui.
#pragma once

#include "engine/analysis/token_span.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct AtlasColor {
    enum class Needs { nothing, watched_words, other_lane, shadow };

    int code = 0;  ///< ViewState::atlas_measure
    std::string_view name;
    std::string_view label;
    std::string_view help;
    Needs needs = Needs::nothing;
    float high = 1;  ///< end of its range, which begins at 0; 0: the largest value
};

/// Returns attention first.
std::span<const AtlasColor> atlas_colors();
/// Returns the row of a code or name; null: none has it.
const AtlasColor* atlas_color(int code);
const AtlasColor* atlas_color(std::string_view name);

/// What the numbers are of. lane, other: indices into RunHistory::lanes(), which have a record at the row.
struct AtlasSource {
    const RunHistory& history;
    int lane = 0, row = 0;
    std::optional<int> other;  ///< lane to compare with
    std::optional<TokenSpan> watched;
};

/// Returns why the colour has no numbers, as a sentence that says what to do; empty: it has some.
std::string why_no_colors(const AtlasColor& color, const AtlasSource& of);

/// Returns a number for layer * n_heads + query head, NaN where there is none.
std::vector<float> atlas_values(const AtlasColor& color, const AtlasSource& of);

}  // namespace keyhole
