#include "engine/policy/spec_copies.h"

#include "engine/policy/option_table.h"

#include <algorithm>

namespace keyhole {

LaneSpec without_eviction(LaneSpec lane) {
    PolicyParams& policy = lane.policy;
    // The released codes process the prompt in one pass, whatever the option says.
    if (policy.dialect == Dialect::released) policy.prefill = PrefillMode::oneshot;
    policy.dialect = Dialect::paper;
    policy.preset = Preset::full;
    policy.budget = {Amount::Unit::all, 0};
    policy.threshold = 0;
    policy.dilation = 0;
    policy.shadow = false;
    policy.heads = {};
    policy.read = {Amount::Unit::all, 0};
    std::erase_if(policy.overrides, [](const Override& o) {
        return o.field == Override::Field::budget || o.field == Override::Field::read;
    });
    return lane;
}

FormulaText named_alone(const FormulaText& spans) {
    const std::size_t n = spans.text.starts_with(kFairSpans) ? kFairSpans.size() : 0;
    const std::size_t first = spans.text.find_first_not_of(' ', n);
    return {first == std::string::npos ? std::string(kNoSpans) : spans.text.substr(first)};
}

PolicyParams with_preset(const PolicyParams& before, Preset preset) {
    const PolicyParams own = preset_params(preset);
    PolicyParams policy = before;
    policy.preset = preset;
    for (const LaneOption& option : lane_options())
        if (option.of_preset && option.name != "budget") copy_option(option, own, policy);
    const bool keeps_budget =
        own.budget.unit != Amount::Unit::all && before.budget.unit == Amount::Unit::tokens;
    if (!keeps_budget) policy.budget = own.budget;
    if (!has_released_code(preset)) policy.dialect = Dialect::paper;
    std::erase_if(policy.overrides,
                  [&](const Override& o) { return !keeps_budget || o.field != Override::Field::budget; });
    policy.overrides.insert(policy.overrides.begin(), own.overrides.begin(), own.overrides.end());
    if (!validate(policy).empty()) policy.spans = named_alone(policy.spans);
    return policy;
}

}  // namespace keyhole
