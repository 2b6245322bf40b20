#include "app/study/budget_forms.h"

#include "app/study/head_budgets.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

constexpr std::array kForms = {
    BudgetFormRow{BudgetForm::uniform, "uniform", "The same budget in each head."},
    BudgetFormRow{BudgetForm::pyramid, "pyramid", "Low layers keep more, the top layer half (PyramidKV)."},
    BudgetFormRow{BudgetForm::adaptive, "adaptive",
                  "The heads of a layer share their budgets by attention (Ada-KV)."},
    BudgetFormRow{BudgetForm::streaming, "streaming",
                  "Retrieval heads, those that gain most, keep all tokens; the others sinks and the newest "
                  "(DuoAttention)."},
    BudgetFormRow{BudgetForm::whole, "whole",
                  "Greedy: the heads that gain most keep all tokens, the others the rest by the policy."},
    BudgetFormRow{BudgetForm::gain, "gain", "Each has the rest, and a share by what it gains."},
};

/// Returns the parts that keep all tokens.
std::vector<CachePart> whole_of(const Attribution& found, const BudgetTotal& total, RankBy by) {
    const int n =
        whole_parts(static_cast<int>(found.effects.size()), total.budget, total.rest, total.context);
    if (n < 1)
        fail(ErrorCode::wrong_use,
             "a budget of {} with {} in the rest leaves no part all its {} tokens; raise it, or lower the "
             "rest",
             total.budget, total.rest, total.context);
    std::vector<CachePart> chosen;
    for (const std::size_t i : ranked(found, by))
        if (static_cast<int>(chosen.size()) < n) chosen.push_back(found.effects[i].part);
    return chosen;
}

std::vector<CachePart> parts_of(const Attribution& found) {
    std::vector<CachePart> parts;
    for (const PartEffect& effect : found.effects) parts.push_back(effect.part);
    return parts;
}

LaneSpec without_own_budgets(LaneSpec lane) {
    lane.policy.heads = {};
    std::erase_if(lane.policy.overrides,
                  [](const Override& o) { return o.field == Override::Field::budget; });
    return lane;
}

LaneSpec streaming_lane(const LaneSpec& lane) {
    LaneSpec streaming = parse_lane_spec("sink");
    streaming.sharing = lane.sharing;
    streaming.name = lane.name;
    streaming.policy.shadow = lane.policy.shadow;
    return streaming;
}

}  // namespace

std::span<const BudgetFormRow> budget_forms() {
    return kForms;
}

std::optional<BudgetForm> budget_form_from_name(std::string_view name) {
    const auto found = std::ranges::find(kForms, name, &BudgetFormRow::name);
    return found == kForms.end() ? std::nullopt : std::optional(found->form);
}

std::optional<std::vector<int>> budget_tokens(BudgetForm form, const Attribution& found,
                                              const BudgetTotal& total, RankBy by) {
    switch (form) {
        case BudgetForm::pyramid:
        case BudgetForm::adaptive:
            return std::nullopt;
        case BudgetForm::uniform:
            return std::vector<int>(found.effects.size(), total.budget);
        case BudgetForm::gain: {
            std::vector<double> gains;
            for (const PartEffect& effect : found.effects) gains.push_back(effect.nats.value);
            if (total.rest < 1 || total.rest > total.budget || total.budget > total.context)
                fail(ErrorCode::wrong_use,
                     "a budget of {} with {} in the rest: needs 1 <= rest <= budget <= {} tokens of context",
                     total.budget, total.rest, total.context);
            return budgets_by_gain(gains, total.budget, total.rest, total.context);
        }
        case BudgetForm::streaming:
        case BudgetForm::whole:
            break;
    }
    const std::vector<CachePart> chosen = whole_of(found, total, by);
    std::vector<int> tokens;
    for (const PartEffect& effect : found.effects)
        tokens.push_back(std::ranges::find(chosen, effect.part) == chosen.end() ? total.rest : total.context);
    return tokens;
}

LaneSpec lane_with_budget(const LaneSpec& lane, BudgetForm form, const Attribution& found,
                          const BudgetTotal& total, RankBy by) {
    const LaneSpec bare = without_own_budgets(lane);
    if (form == BudgetForm::streaming)
        return lane_with_whole_parts(streaming_lane(bare), whole_of(found, total, by), total.rest);
    if (form == BudgetForm::whole) return lane_with_whole_parts(bare, whole_of(found, total, by), total.rest);
    const LaneSpec uniform = changed_lane_spec(bare, fmt::format("budget={}", total.budget));
    if (form == BudgetForm::pyramid) return changed_lane_spec(uniform, "pyramid=2");
    if (form == BudgetForm::adaptive) return changed_lane_spec(uniform, "alloc=adaptive");
    if (form == BudgetForm::uniform) return uniform;
    return lane_with_tokens_by_part(uniform, parts_of(found), *budget_tokens(form, found, total, by),
                                    total.context);
}

}  // namespace keyhole
