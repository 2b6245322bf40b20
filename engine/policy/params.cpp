#include "engine/policy/params.h"

#include "engine/base/counted.h"
#include "engine/base/index.h"
#include "engine/policy/allocation.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

namespace keyhole {
namespace {

constexpr int kDefaultHorizon = 256;

int int_from_tokens(double tokens) {
    return static_cast<int>(std::clamp(tokens, 0.0, static_cast<double>(kMostTokens)));
}

/// of_all: the lane's values without overrides.
void check_override(const PolicyParams& of_all, const Override& o, std::vector<std::string>& faults) {
    if (o.first_layer < 0 || o.last_layer < o.first_layer || o.first_head < 0 || o.last_head < o.first_head) {
        faults.push_back("an override names layers and heads in ascending order, such as @L0-3.H2");
    }
    if (of_all.preset == Preset::full && o.field == Override::Field::budget) {
        faults.push_back("full keeps every token; take another preset to set a budget");
        return;
    }
    if (o.is_formula()) {
        for (std::string& fault : formula_override_faults(of_all, o)) faults.push_back(std::move(fault));
        return;
    }
    PolicyParams own = preset_params(of_all.preset);
    set_override(o, own);
    add_faults(lane_option(o.field), own, faults);
}

PolicyParams without_overrides(PolicyParams params) {
    params.overrides.clear();
    params.heads = {};
    return params;
}

}  // namespace

std::vector<std::string> PolicyParams::formula_texts(Override::Field field) const {
    const auto member = std::get<FormulaText PolicyParams::*>(lane_option(field).member);
    std::vector<std::string> texts = {(this->*member).text};
    for (const Override& o : overrides)
        if (o.field == field && std::find(texts.begin(), texts.end(), o.formula.text) == texts.end())
            texts.push_back(o.formula.text);
    return texts;
}

bool names_anywhere(const PolicyParams& params, Quantity q) {
    using Field = Override::Field;
    for (const Field field : {Field::score, Field::choose, Field::protect})
        for (const std::string& text : params.formula_texts(field)) {
            const FormulaRef formula =
                formula_of(lane_option(field), {text}, formula_setting(params), nullptr);
            if (formula && formula->names(q)) return true;
        }
    return false;
}

std::vector<std::string> formula_override_faults(const PolicyParams& params, const Override& o) {
    std::vector<std::string> faults;
    PolicyParams own = params;
    set_override(o, own);
    if (o.field == Override::Field::score) own.choose = PolicyParams{}.choose;
    add_faults(lane_option(o.field), own, faults);
    return faults;
}

std::vector<std::string> validate(const PolicyParams& params) {
    std::vector<std::string> faults;
    const PolicyParams of_all = without_overrides(params);
    for (const Override& o : params.overrides) check_override(of_all, o, faults);
    for (const LaneOption& option : lane_options()) add_faults(option, params, faults);
    return faults;
}

namespace {

/// Returns int(ratio * n) with the ratio as a double, as in the released code of H2O and A2SF: 29 % of 100
/// is 28.
double tokens_from_ratio(double percent, int n) {
    return std::floor(percent / 100 * n);
}

/// Sets k, w and sinks by the general rule.
void resolve_amounts(const PolicyParams& params, int n_prompt, ResolvedPolicy& policy) {
    const bool ratio_form = params.dialect == Dialect::released && preset_row(params.preset).truncates_ratios;
    policy.sinks = std::max(params.sinks, 0);
    // Without eviction, shares of the budget mean nothing.
    if (params.budget.unit == Amount::Unit::all) {
        policy.recent = params.recent.unit == Amount::Unit::tokens ? int_from_tokens(params.recent.value) : 0;
        return;
    }
    const bool percent = params.budget.unit == Amount::Unit::percent;
    const double beside = params.budget.unit == Amount::Unit::beside ? n_prompt : 0;
    // Multiply before dividing: 29 % of 100 is 29, while int(0.29 * 100) is 28 (policies: rounding).
    policy.budget = !percent     ? int_from_tokens(params.budget.value + beside)
                    : ratio_form ? int_from_tokens(tokens_from_ratio(params.budget.value, n_prompt))
                                 : int_from_tokens(n_prompt * params.budget.value / 100);
    if (ratio_form && percent && params.recent.unit == Amount::Unit::percent) {
        // Heavy and recent are two ratios of the prompt, each truncated on its own.
        const double recent = params.budget.value * params.recent.value / 100;
        policy.recent = int_from_tokens(tokens_from_ratio(recent, n_prompt));
        policy.budget =
            policy.recent + int_from_tokens(tokens_from_ratio(params.budget.value - recent, n_prompt));
    }
    policy.budget = std::clamp(policy.budget, 1, kMostTokens);
    policy.sinks = std::min(policy.sinks, policy.budget);
    const int room = policy.budget - policy.sinks;
    switch (params.recent.unit) {
        case Amount::Unit::tokens:
            policy.recent = int_from_tokens(params.recent.value);
            break;
        case Amount::Unit::percent:
            if (!(ratio_form && percent))
                policy.recent = int_from_tokens(policy.budget * params.recent.value / 100);
            break;
        case Amount::Unit::beside:
        case Amount::Unit::all:
        case Amount::Unit::rest:
            policy.recent = room;
            break;
    }
    policy.recent = std::min(policy.recent, room);
    policy.stored = policy.budget;
}

/// Gives tau the slope that the user asks for. The released code does not stop at the end of tau.
void set_tau_delta(double delta, ResolvedPolicy& policy) {
    TauSchedule& tau = policy.tau;
    if (delta <= 0 || tau.shape != TauSchedule::Shape::linear || tau.begin == tau.end) return;
    const double n_rows = std::min<double>(std::abs(tau.end - tau.begin) / delta, kMostTokens);
    const double last = policy.tau_runs_on ? kMostTokens : n_rows;
    tau.shape = TauSchedule::Shape::points;
    tau.points = {{0, tau.begin}, {last, tau.begin + (tau.end > tau.begin ? delta : -delta) * last}};
    policy.horizon = std::max(static_cast<int>(std::ceil(n_rows)), 1);
}

void set_formulas(const PolicyParams& params, ResolvedPolicy& policy) {
    policy.score = score_formula(params);
    policy.choose = choose_formula(params);
    if (policy.score && !is_of_rows(*policy.score)) {  // a choice in other words
        policy.choose = choose_formula(params.score.text, nullptr, {0, params.spans.text});
        policy.score = {};
    }
    policy.protect = protect_formula(params);
    const Spans spans = spans_of(params.spans.text, nullptr);
    if (!spans.fair) return;
    policy.fair = spans.named;
    const bool reads_scores = !policy.choose || policy.names(Quantity::s) || policy.names(Quantity::caote);
    if (reads_scores && !spans.named.empty())
        policy.score = score_formula(params.score.text, nullptr, {0, params.spans.text, true});
}

/// Resolves one policy without overrides.
ResolvedPolicy resolve_base(const PolicyParams& asked, int n_prompt, int n_generate) {
    const PolicyParams params = with_released_values(asked);
    ResolvedPolicy policy;
    policy.alpha = static_cast<float>(params.alpha);
    policy.gain = static_cast<float>(params.gain);
    policy.damping = static_cast<float>(params.damping);
    policy.noise = params.noise;
    policy.draw = params.draw;
    policy.scope = params.scope;
    policy.pool = params.pool;
    policy.prefill = params.prefill;
    policy.score_dtype = params.score_dtype;
    policy.kv_dtype = params.kv_dtype;
    policy.every = std::max(params.every, 1);
    policy.buffer = std::max(params.buffer, 0);
    policy.evict = params.evict;
    policy.alloc = params.alloc;
    policy.unit = std::max(params.unit, 1);
    policy.floor = params.alloc == Alloc::adaptive ? params.floor.value / 100 : 0;
    policy.window = std::clamp(params.window, 1, kMostWindow);
    policy.mix = static_cast<float>(params.mix);
    policy.ahead = std::max(params.ahead, 1);
    policy.calibration = params.calibration;
    policy.page = std::max(params.page, 1);
    if (params.read.unit != Amount::Unit::all && params.positions == Positions::original)
        policy.read = std::max(int_from_tokens(params.read.value), 1);
    set_formulas(params, policy);
    policy.horizon = params.horizon > 0 ? params.horizon : n_generate > 0 ? n_generate : kDefaultHorizon;
    policy.n_prompt = n_prompt;
    policy.seed = params.seed;
    policy.tau = params.tau;
    policy.positions = params.positions;
    policy.shadow = params.shadow;
    resolve_amounts(params, n_prompt, policy);
    policy.threshold = params.preset == Preset::full ? 0 : static_cast<float>(params.threshold);
    if (policy.has_threshold()) policy.stored = std::min(policy.stored, kMostTokens);
    policy.newest = policy.recent;
    if (params.preset == Preset::dilated && policy.evicts()) {
        // k tokens d + 1 apart, the row's own included. The next row attends to other remainders of the
        // distance, so the whole span stays stored.
        policy.dilation = params.dilation;
        const std::int64_t span = std::int64_t{policy.budget} * (params.dilation + 1) - 1;
        policy.stored = static_cast<int>(std::min<std::int64_t>(span, kMostTokens));
        policy.newest = policy.stored;
    }
    const auto count = preset_row(params.preset).count;
    if (params.dialect == Dialect::released && count != nullptr) count(policy);
    set_tau_delta(params.tau_delta, policy);
    return policy;
}

/// Returns the parameters of one head: those of all heads, with the overrides that cover it applied.
PolicyParams params_of_head(const PolicyParams& of_all, const std::vector<Override>& overrides,
                            const HeadGrid& heads, int layer, int head) {
    PolicyParams own = of_all;
    for (const Override& o : overrides)
        if (o.covers(layer, head, heads.kv_in_layer(layer, head))) set_override(o, own);
    return own;
}

/// Returns the largest number of a KV head within a layer.
int most_kv_head(const HeadGrid& heads) {
    int most = 0;
    for (int layer = 0; layer < heads.n_layers; ++layer)
        most = std::max(most, heads.kv_in_layer(layer, heads.n_heads - 1));
    return most;
}

/// Returns the layer that owns the KV heads of a layer: the first that reads them.
int owner_of(const HeadGrid& heads, int layer) {
    const auto of_layer = [&](int l) { return heads.kv_head[to_index(l * heads.n_heads)]; };
    int owner = 0;
    while (of_layer(owner) != of_layer(layer)) ++owner;
    return owner;
}

}  // namespace

namespace {

/// Returns whether there are tokens to share; a threshold evicts without them.
bool has_budget(const ResolvedPolicy& base) {
    return base.budget != ResolvedPolicy::kUnlimited;
}

/// Returns the parameters of each layer, the budgets shared as a pyramid says. Layers that borrow KV heads
/// have none of their own and do not count.
std::vector<PolicyParams> params_of_layers(const PolicyParams& params, const ResolvedPolicy& base,
                                           const HeadGrid& heads) {
    std::vector<PolicyParams> layers(to_index(heads.n_layers), without_overrides(params));
    if (params.pyramid <= 0 || !has_budget(base)) return layers;
    std::vector<int> owners;
    for (int layer = 0; layer < heads.n_layers; ++layer)
        if (owner_of(heads, layer) == layer) owners.push_back(layer);
    const int kept = base.recent + base.sinks;
    const auto share = params.dialect == Dialect::released ? released_pyramid_budgets : pyramid_budgets;
    const std::vector<int> budgets =
        share(static_cast<int>(owners.size()), base.budget, kept, base.n_prompt, params.pyramid);
    for (std::size_t i = 0; i < owners.size(); ++i) {
        PolicyParams& of_layer = layers[to_index(owners[i])];
        of_layer.budget = {Amount::Unit::tokens, static_cast<double>(budgets[i] + kept)};
        of_layer.recent = {Amount::Unit::tokens, static_cast<double>(base.recent)};
    }
    return layers;
}

}  // namespace

namespace {

/// Returns the column of a table that has a query head's budget: the KV head in its layer, or the query head.
int column_of(const HeadTable& table, const HeadGrid& heads, int layer, int head) {
    const int first = heads.kv_head[to_index(layer * heads.n_heads)];
    return table.n_columns == heads.n_heads ? head
                                            : heads.kv_head[to_index(layer * heads.n_heads + head)] - first;
}

/// Returns how many times the lane's budget each KV head has; nullopt where it has a budget of another kind.
/// A KV head with several columns has their mean.
std::map<int, std::optional<double>> times_of_heads(const HeadTable& table, const HeadGrid& heads) {
    std::map<int, std::optional<double>> times;
    std::map<int, int> count;
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 0; head < heads.n_heads && owner_of(heads, layer) == layer; ++head) {
            const int g = heads.kv_head[to_index(layer * heads.n_heads + head)];
            const HeadBudget& cell = table.at(layer, column_of(table, heads, layer, head));
            std::optional<double>& sum = times.emplace(g, 0.0).first->second;
            ++count[g];
            if (cell.unit != HeadBudget::Unit::times)
                sum = std::nullopt;
            else if (sum)
                sum = *sum + cell.value;
        }
    for (auto& [g, sum] : times)
        if (sum) sum = *sum / count[g];
    return times;
}

/// Returns the budgets of KV heads as the lane's table says: times of the budget beside what is protected, in
/// whole numbers by the largest remainder over all such heads.
std::map<int, PolicyParams> params_of_table(const PolicyParams& params, const ResolvedPolicy& base,
                                            const HeadGrid& heads) {
    const PolicyParams of_all = without_overrides(params);
    const bool keeps_recent = params.recent.unit != Amount::Unit::rest;
    const int kept = keeps_recent ? base.recent + base.sinks : 0;
    const auto times = times_of_heads(params.heads, heads);
    std::vector<double> parts;
    for (const auto& [g, n] : times)
        parts.push_back(n && has_budget(base) ? std::min(*n * (base.budget - kept), double{kMostTokens}) : 0);
    const std::vector<int> whole = by_largest_remainder(parts);
    std::map<int, PolicyParams> of_head;
    std::size_t i = 0;
    for (const auto& [g, n] : times) {
        PolicyParams& own = of_head.emplace(g, of_all).first->second;
        const int tokens = whole[i++];
        if (!n || !has_budget(base)) continue;
        own.budget = {Amount::Unit::tokens, static_cast<double>(std::min(tokens, kMostTokens - kept) + kept)};
        if (keeps_recent) own.recent = {Amount::Unit::tokens, static_cast<double>(base.recent)};
    }
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 0; head < heads.n_heads && owner_of(heads, layer) == layer; ++head) {
            const HeadBudget& cell = params.heads.at(layer, column_of(params.heads, heads, layer, head));
            Amount& budget = of_head.at(heads.kv_head[to_index(layer * heads.n_heads + head)]).budget;
            if (cell.unit == HeadBudget::Unit::all) budget = {Amount::Unit::all, 0};
            if (cell.unit == HeadBudget::Unit::tokens) budget = {Amount::Unit::tokens, cell.value};
            if (cell.unit == HeadBudget::Unit::percent) budget = {Amount::Unit::percent, cell.value};
        }
    return of_head;
}

/// Returns why a table of budgets does not fit the model; empty: it does.
std::string table_fault(const HeadTable& table, const HeadGrid& heads) {
    const int n_kv = *std::max_element(heads.kv_head.begin(), heads.kv_head.begin() + heads.n_heads) + 1;
    if (table.n_layers() != heads.n_layers || (table.n_columns != n_kv && table.n_columns != heads.n_heads))
        return fmt::format(
            "heads has budgets of {} with {} heads each, and the model has {} with {} KV heads that {} "
            "query heads read; give a file that was made for this model",
            counted(table.n_layers(), "layer"), table.n_columns, counted(heads.n_layers, "layer"), n_kv,
            heads.n_heads);
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 1; head < heads.n_heads && owner_of(heads, layer) == layer; ++head) {
            const auto kv_head = [&](int h) { return heads.kv_head[to_index(layer * heads.n_heads + h)]; };
            const HeadBudget &own = table.at(layer, column_of(table, heads, layer, head)),
                             &before = table.at(layer, column_of(table, heads, layer, head - 1));
            const bool are_times = own.unit == HeadBudget::Unit::times && before.unit == own.unit;
            if (kv_head(head) != kv_head(head - 1) || own == before || are_times) continue;
            return fmt::format(
                "heads sets query heads {} and {} of layer {} apart, and they read the same "
                "KV head; give them one budget",
                head - 1, head, layer);
        }
    return {};
}

}  // namespace

ResolvedPolicy resolve(const PolicyParams& params, int n_prompt, int n_generate, const HeadGrid& heads) {
    const ResolvedPolicy base = resolve_base(params, n_prompt, n_generate);
    ResolvedPolicy policy = base;
    if (!params.differs_by_head() || heads.kv_head.empty()) return policy;
    const bool has_table = !params.heads.empty() && table_fault(params.heads, heads).empty();
    const std::map<int, PolicyParams> of_table =
        has_table ? params_of_table(params, base, heads) : std::map<int, PolicyParams>{};
    policy.n_heads = heads.n_heads;
    const std::vector<PolicyParams> layers = params_of_layers(params, base, heads);
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 0; head < heads.n_heads; ++head) {
            const int owner = owner_of(heads, layer);
            const auto in_table = of_table.find(heads.kv_head[to_index(owner * heads.n_heads + head)]);
            const PolicyParams& of_all =
                in_table == of_table.end() ? layers[to_index(owner)] : in_table->second;
            const ResolvedPolicy own = resolve_base(
                params_of_head(of_all, params.overrides, heads, owner, head), n_prompt, n_generate);
            if (own == base) {
                policy.variant_of_head.push_back(-1);
                continue;
            }
            const auto found = std::find(policy.variants.begin(), policy.variants.end(), own);
            policy.variant_of_head.push_back(static_cast<int>(found - policy.variants.begin()));
            if (found == policy.variants.end()) policy.variants.push_back(own);
        }
    return policy;
}

namespace {

/// Returns the first head whose formulas do not go together, with the reason.
std::vector<std::string> faults_of_formulas(const PolicyParams& params, const HeadGrid& heads) {
    const PolicyParams of_all = without_overrides(params);
    std::vector<PolicyParams> known;
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 0; head < heads.n_heads && owner_of(heads, layer) == layer; ++head) {
            PolicyParams own = params_of_head(of_all, params.overrides, heads, layer, head);
            if (std::find(known.begin(), known.end(), own) != known.end()) continue;
            std::vector<std::string> faults;
            for (const std::string_view name : {"score", "choose", "protect", "spans", "calibration"})
                add_faults(lane_option(name), own, faults);
            if (!faults.empty()) return {fmt::format("layer {}, head {}: {}", layer, head, faults.front())};
            known.push_back(std::move(own));
        }
    return {};
}

}  // namespace

/// Returns what an override lacks that names some readers of a KV head alone; head: one of them.
static std::string fault_of_readers(const HeadGrid& heads, int layer, int head) {
    const auto reads = [&](int other) {
        return heads.kv_head[to_index(layer * heads.n_heads + other)] ==
               heads.kv_head[to_index(layer * heads.n_heads + head)];
    };
    int first = head, last = head;
    while (first > 0 && reads(first - 1)) --first;
    while (last + 1 < heads.n_heads && reads(last + 1)) ++last;
    return fmt::format(
        "an override sets some query heads of layer {0} apart from others that read the same KV head; name "
        "all of them, L{0}.H{1}-{2}, or the KV head, L{0}.G{3}",
        layer, first, last, heads.kv_in_layer(layer, head));
}

std::vector<std::string> check_overrides(const PolicyParams& params, const HeadGrid& heads) {
    std::vector<std::string> faults;
    for (const Override& o : params.overrides) {
        const bool named_layer = o.last_layer != Override::kAll, named_head = o.last_head != Override::kAll;
        if (named_layer && o.last_layer >= heads.n_layers)
            faults.push_back(fmt::format("an override names layer {}; the model has layers 0 to {}",
                                         o.last_layer, heads.n_layers - 1));
        else if (named_head && o.by_kv_head && o.last_head > most_kv_head(heads))
            faults.push_back(
                fmt::format("an override names KV head {} (G{}); the layers have KV heads 0 to {}",
                            o.last_head, o.last_head, most_kv_head(heads)));
        else if (named_head && !o.by_kv_head && o.last_head >= heads.n_heads)
            faults.push_back(fmt::format("an override names head {}; the model has heads 0 to {}",
                                         o.last_head, heads.n_heads - 1));
    }
    if (faults.empty() && !params.heads.empty())
        if (std::string fault = table_fault(params.heads, heads); !fault.empty())
            faults.push_back(std::move(fault));
    if (const Scope scope = with_released_values(params).scope; faults.empty() && scope == Scope::column)
        for (int layer = 1; layer < heads.n_layers && faults.empty(); ++layer)
            if (owner_of(heads, layer) != layer)
                faults.push_back(fmt::format(
                    "scope=column joins the KV heads of equal number of all layers, and layer {} has none of "
                    "its own; take another scope",
                    layer));
    if (!faults.empty() || params.overrides.empty()) return faults;
    for (const Override& o : params.overrides) {
        const int last = std::min(o.last_layer, heads.n_layers - 1);
        int owner = o.first_layer;
        while (owner <= last && owner_of(heads, owner) != owner) ++owner;
        if (owner <= last) continue;
        faults.push_back(fmt::format(
            "an override names layer {}, which borrows the KV heads of layer {} and takes its values; name "
            "layer {}",
            last, owner_of(heads, last), owner_of(heads, last)));
        return faults;
    }
    if (params.has_formula_overrides()) faults = faults_of_formulas(params, heads);
    if (!faults.empty()) return faults;
    // Heads that are selected together must have the same values.
    const Scope scope = resolve_base(params, 1, 1).scope;
    const PolicyParams of_all = without_overrides(params);
    std::map<int, PolicyParams> of_unit;
    for (int layer = 0; layer < heads.n_layers; ++layer)
        for (int head = 0; head < heads.n_heads && owner_of(heads, layer) == layer; ++head) {
            const int g = heads.kv_head[to_index(layer * heads.n_heads + head)];
            const int unit = scope == Scope::head     ? g
                             : scope == Scope::layer  ? layer
                             : scope == Scope::column ? heads.kv_in_layer(layer, head)
                                                      : 0;
            const PolicyParams own = params_of_head(of_all, params.overrides, heads, layer, head);
            const auto [at, is_new] = of_unit.emplace(unit, own);
            if (is_new || at->second == own) continue;
            faults.push_back(
                scope == Scope::head ? fault_of_readers(heads, layer, head)
                : scope == Scope::column
                    ? std::string("an override sets layers apart, and scope=column keeps one set for the KV "
                                  "heads of equal number of all layers; name KV heads only, such as @G0, or "
                                  "take scope=head")
                : scope == Scope::layer
                    ? fmt::format(
                          "an override sets heads of layer {} apart, and scope=layer keeps one set a layer; "
                          "name layers only, or take scope=head",
                          layer)
                    : std::string(
                          "an override sets heads apart, and scope=shared keeps one set for the model; take "
                          "another scope"));
            return faults;
        }
    return faults;
}

}  // namespace keyhole
