#include "engine/policy/option_help.h"

#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

namespace {

/// Returns whether a formula reads what rows add to the scores, or the option itself by its name.
bool reads_scores(const PolicyParams& params, std::string_view option) {
    const FormulaRef choose = choose_formula(params), protect = protect_formula(params),
                     score = score_formula(params);
    const auto names = [&](Quantity q) {
        return (choose && choose->names(q)) || (protect && protect->names(q)) || (score && score->names(q));
    };
    const bool by_name = (option == "alpha" && names(Quantity::alpha)) ||
                         (option == "tau" && names(Quantity::tau)) ||
                         (option == "gain" && names(Quantity::gain));
    if (score) {  // it reads alpha, and what makes ptau, where it names them
        const bool is_sum = option == "score_dtype";
        return by_name || is_sum ||
               (option != "alpha" && option != "damping" && score->names(Quantity::ptau));
    }
    return !choose || names(Quantity::s) || names(Quantity::caote) || by_name;
}

/// Returns the reason by the lane's own formulas.
std::string reason_by_own(const PolicyParams& params, std::string_view name, const HeadGrid& heads) {
    using Acts = LaneOption::Acts;
    const LaneOption& option = lane_option(name);
    const auto own_reason = [&] {
        return std::string(option.idle == nullptr ? "" : option.idle(params, heads));
    };
    if (option.acts == Acts::always) return own_reason();
    if (params.preset == Preset::full)
        return "full keeps every token, so nothing is chosen and no gap opens.";
    if (option.acts == Acts::evicting) return own_reason();
    if (params.dialect == Dialect::released && is_fixed_by_release(params.preset, name))
        return fmt::format("The released code of {} fixes it.",
                           params.preset == Preset::sink ? "StreamingLLM" : "this preset");
    if (params.budget.unit == Amount::Unit::all && params.threshold == 0 && params.overrides.empty() &&
        params.heads.empty())
        return "The budget is all tokens, so nothing leaves.";
    const bool windowed = params.preset == Preset::dilated || params.recent.unit == Amount::Unit::rest;
    if (windowed && option.acts == Acts::scores)
        return "The newest tokens fill the budget: no score decides.";
    if (option.of_rows && !reads_scores(params, name))
        return params.score.text != "attention" ? "The formula of score does not read it."
                                                : "choose ranks by other things, and no score is read.";
    return own_reason();
}

/// Returns the values that heads with an override of a formula have, one for each such formula.
std::vector<PolicyParams> with_each_formula(const PolicyParams& params) {
    PolicyParams of_all = params;
    std::erase_if(of_all.overrides, [](const Override& o) { return o.is_formula(); });
    std::vector<PolicyParams> out;
    for (const Override& o : params.overrides) {
        if (!o.is_formula()) continue;
        PolicyParams own = of_all;
        set_override(o, own);
        if (std::find(out.begin(), out.end(), own) == out.end()) out.push_back(std::move(own));
    }
    return out;
}

}  // namespace

std::string no_effect_reason(const PolicyParams& params, std::string_view name, const HeadGrid& heads) {
    std::string reason = reason_by_own(params, name, heads);
    if (reason.empty() || !params.has_formula_overrides()) return reason;
    for (const PolicyParams& own : with_each_formula(params))
        if (reason_by_own(own, name, heads).empty()) return {};
    return reason;
}

std::string replaced_by_release(const LaneSpec& spec) {
    if (spec.policy.dialect != Dialect::released) return {};
    const auto settings_of = [](const PolicyParams& policy) { return lane_settings({policy}); };
    const std::vector<LaneSetting> asked = settings_of(spec.policy),
                                   usual = settings_of(preset_params(spec.policy.preset)),
                                   used = settings_of(with_released_values(spec.policy));
    std::string text;
    for (std::size_t i = 0; i < lane_keys().size(); ++i) {  // the overrides come after them
        const std::string& key = asked[i].key;
        if (!is_fixed_by_release(spec.policy.preset, key)) continue;
        if (asked[i].value == used[i].value || asked[i].value == usual[i].value) continue;
        text += fmt::format("{}{}={} (not {})", text.empty() ? "" : ", ", key, used[i].value, asked[i].value);
    }
    return text;
}

std::string settings_without_effect(const LaneSpec& spec) {
    const std::vector<LaneSetting> asked = lane_settings({spec.policy}),
                                   usual = lane_settings({preset_params(spec.policy.preset)});
    std::string text;
    for (std::size_t i = 0; i < lane_keys().size(); ++i) {  // the overrides come after them
        if (asked[i].value == usual[i].value) continue;
        const bool is_replaced =
            spec.policy.dialect == Dialect::released && is_fixed_by_release(spec.policy.preset, asked[i].key);
        std::string reason = is_replaced ? "" : no_effect_reason(spec.policy, asked[i].key);
        if (reason.empty()) continue;
        if (reason.ends_with('.')) reason.pop_back();
        text += fmt::format("{}{}={} has no effect: {}", text.empty() ? "" : "; ", asked[i].key,
                            asked[i].value, reason);
    }
    return text;
}

std::string raised_budget(const LaneSpec& spec) {
    const Amount& budget = spec.policy.budget;
    const bool is_none = budget.unit == Amount::Unit::tokens && budget.value < 1;
    return is_none ? fmt::format("budget={:g} counts as 1: a lane keeps one token at least", budget.value)
                   : "";
}

std::string filled_by_protection(const LaneSpec& spec) {
    constexpr int kLong = 1 << 20, kMore = 1 << 12;  // tokens
    const Amount& budget = spec.policy.budget;
    const auto ranks = [](const PolicyParams& params) {
        const ResolvedPolicy policy = resolve(params, kLong, 0);
        return !policy.evicts() || policy.newest + policy.sinks < policy.budget;
    };
    PolicyParams wide = spec.policy;
    wide.budget.value += kMore;
    if (budget.unit != Amount::Unit::tokens || ranks(spec.policy) || !ranks(wide)) return {};
    const ResolvedPolicy policy = resolve(spec.policy, kLong, 0);
    return fmt::format(
        "the newest tokens{} fill the budget of {}, so nothing is ranked; give a larger budget, or a "
        "smaller recent",
        policy.sinks > 0 ? " and the sinks" : "", policy.budget);
}

std::string accounting_text(const ResolvedPolicy& policy) {
    if (!policy.evicts() && policy.reads_pages())
        return fmt::format("keeps all tokens; a decode step attends to {} pages of {}", policy.n_pages_read(),
                           policy.page);
    if (!policy.evicts()) return "keeps all tokens and attends to all";
    const int stored = policy.stored, attended = policy.attended_when_full();
    const std::string ranked =
        policy.has_threshold() ? fmt::format("what ranks {} or more", policy.threshold) : "";
    if (policy.has_threshold() && stored == kMostTokens)
        return fmt::format("keeps {}, and {} tokens that do not compete", ranked,
                           policy.sinks + policy.newest);
    std::string text =
        fmt::format("keeps {}{} token{}, attends to ", ranked.empty() ? "" : ranked + ", at most ", stored,
                    stored == 1 ? "" : "s");
    text += attended == stored + 1 ? fmt::format("{} and the new one", stored == 1 ? "it" : "those")
                                   : fmt::format("{}, the new one included", attended);
    if (policy.sinks >= stored && policy.newest == 0 && !policy.choose)
        text += "; the first tokens fill it, so that no later one stays";
    if (const int more = policy.most_stored() - stored - 1; more > 0)
        text += fmt::format("; up to {} more between evictions", more);
    if (policy.alloc != Alloc::uniform)
        text += policy.alloc == Alloc::adaptive ? "; a mean, which the heads of a layer share"
                                                : "; a mean, which all heads share";
    if (policy.evict == Evict::prompt) text += "; once after the prompt, then it grows";
    if (policy.evict == Evict::decode) text += "; the prompt stays whole until the first decode step";
    return text;
}

}  // namespace keyhole
