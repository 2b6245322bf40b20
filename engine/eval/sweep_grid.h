/// A grid of lanes: `--vary budget=64..1024*2 --vary alpha=0..1+0.1`. Plain values; any thread; knows policy.
#pragma once

#include "engine/policy/lane_spec.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// One key and its values, as they stand in a lane spec.
struct Vary {
    std::string key;
    std::vector<std::string> values;
    bool geometric = false;  ///< a range with `*`: drawn on a logarithmic axis
    bool operator==(const Vary&) const = default;
};

/// `key=items`, items a comma list of values and ranges: `a..b*f` (a, a f, a f^2 ... up to b) and `a..b+s`; with `%` behind a the values
/// are percents. Throws Error(wrong_use) naming the item and what is wrong, or a key that lanes have not.
Vary parse_vary(std::string_view text);

struct GridCell {
    LaneSpec spec;
    std::string lane;  ///< as given, before it was varied
    std::vector<std::string>
        values;  ///< one for each Vary, "" where it says nothing to `full`; none: not varied
};

/// Every lane with every combination of values, the last key fastest. `full` varies in KV sharing alone, else it stands once. Lanes that come out
/// equal stand once. Throws Error(wrong_use) when a lane refuses a value, a key is varied twice, or there are more than 10,000.
std::vector<GridCell> make_grid(const std::vector<LaneSpec>& lanes, const std::vector<Vary>& varies);

/// "64" or "12.5%" as a number; NaN for words.
double value_number(std::string_view value);

}  // namespace keyhole
