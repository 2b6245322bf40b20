/// Named spans of positions, the value of `spans=(...)`: formulas name them, and with `fair` the budget is
/// divided over them. Pure; any thread. Knows neither caches nor policies.
#pragma once

#include "engine/policy/formula.h"

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Positions [first, last].
struct NamedSpan {
    static constexpr std::int32_t kOpen = std::numeric_limits<std::int32_t>::max();  ///< as last: no end
    std::string name;
    std::int32_t first = 0, last = 0;
    bool operator==(const NamedSpan&) const = default;
};

struct Spans {
    static constexpr std::size_t kMost = 8;
    bool fair = false;               ///< each has its share of the budget
    std::vector<NamedSpan> named{};  ///< fair: ascending, without gaps, from 0 on; empty: parts of a chat
};

/// Reads `none` or `[fair] [NAME@A..B NAME@C..]`; a span without its last position has no end. `fair` alone
/// names no span: a run puts those of its prompt there. A fault sets *fault and returns none.
Spans spans_of(std::string_view text, FormulaFault* fault);

/// Makes a name of a span of any words, which none of the others has: "rule 1" becomes rule_1.
std::string span_name(std::string_view words, const std::vector<NamedSpan>& others);
/// Returns these spans as fair ones, as spans_of() reads them.
std::string fair_spans_text(const std::vector<NamedSpan>& spans);

/// The words of `spans` that stand for no span.
inline constexpr std::string_view kNoSpans = "none", kFairSpans = "fair";

}  // namespace keyhole
