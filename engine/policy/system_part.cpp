#include "engine/policy/system_part.h"

#include "engine/policy/spans.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

namespace {

constexpr std::string_view kSystem = "system";

/// Calls `use` for the protections of a lane and of its overrides, those of `other` beside them.
template <class Lane, class Use>
void for_protections(Lane& lane, const LaneSpec& other, Use use) {
    use(lane.policy.protect, other.policy.protect);
    for (std::size_t i = 0; i < lane.policy.overrides.size() && i < other.policy.overrides.size(); ++i)
        if (lane.policy.overrides[i].field == Override::Field::protect)
            use(lane.policy.overrides[i].formula, other.policy.overrides[i].formula);
}

}  // namespace

bool protects_system_part(const PolicyParams& policy) {
    const std::vector<std::string> texts = policy.formula_texts(Override::Field::protect);
    return std::find(texts.begin(), texts.end(), kSystem) != texts.end();
}

bool asks_for_system_part(const PolicyParams& policy) {
    return protects_system_part(policy) || policy.spans.text == kFairSpans;
}

LaneSpec with_system_part(LaneSpec lane, int n) {
    if (n <= 0) return lane;
    for_protections(lane, lane, [n](FormulaText& protect, const FormulaText&) {
        if (protect.text == kSystem) protect.text = fmt::format("0..{}", n - 1);
    });
    if (lane.policy.spans.text == kFairSpans)
        lane.policy.spans.text = fmt::format("{} {}@0..{} text@{}..", kFairSpans, kSystem, n - 1, n);
    return lane;
}

bool is_with_system_part(const LaneSpec& asked, const LaneSpec& put) {
    if (!asks_for_system_part(asked.policy) || asks_for_system_part(put.policy)) return false;
    LaneSpec back = put;
    for_protections(back, asked, [](FormulaText& protect, const FormulaText& wanted) {
        if (wanted.text == kSystem && protect.text.starts_with("0..")) protect = wanted;
    });
    if (asked.policy.spans.text == kFairSpans && back.policy.spans.text.starts_with(kFairSpans))
        back.policy.spans = asked.policy.spans;
    return back == asked;
}

}  // namespace keyhole
