/// A grid of lanes: `--vary budget=64..1024*2 --vary alpha=0..1+0.1`. Plain values, for any thread; knows
/// policies.
#pragma once

#include "engine/policy/lane_spec.h"

#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// One key and its values, as written in a lane spec.
struct Vary {
    std::string key;
    std::vector<std::string> values;
    bool geometric = false;  ///< a range with `*`: plotted on a logarithmic axis
    bool operator==(const Vary&) const = default;
};

/// Parses `key=items`. items: a comma list of values and ranges; `a..b*f` is a, a f, a f^2 ... up to b,
/// `a..b+s` adds s. With `%` after a the values are percentages. Throws Error(wrong_use), naming the item and
/// the fault, or a key that lanes do not have.
Vary parse_vary(std::string_view text);

/// Parses the items alone, for lists of other things. where: what messages begin with, such as "--depths".
std::vector<std::string> parse_values(std::string_view where, std::string_view items);

struct GridCell {
    LaneSpec spec;
    std::string lane;    ///< its name, or its spec before values were varied
    int lane_index = 0;  ///< in the list of lanes
    /// One per Vary, "" where the key does not apply to `full`; empty: not varied.
    std::vector<std::string> values;
};

/// Combines every lane with all combinations of values; the last key changes fastest. `full` varies only in
/// KV sharing, and otherwise appears once. Equal lanes appear once. Throws Error(wrong_use) if a lane refuses
/// a value, a key is varied twice, or there are more than 10,000 lanes. names: of the lanes, "" for none;
/// may be shorter.
std::vector<GridCell> make_grid(const std::vector<LaneSpec>& lanes, const std::vector<Vary>& varies,
                                const std::vector<std::string>& names = {});

/// Returns "64" or "12.5%" as a number; NaN for words.
double value_number(std::string_view value);

}  // namespace keyhole
