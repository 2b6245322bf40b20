#include "engine/policy/lane_spec.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/policy/option_text.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_change.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

namespace keyhole {
namespace {

using spec_text::Item;
using spec_text::Reader;

/// Reads `0-3` or `5`, the part after the letter of `L0-3`, `L5` or `H2`.
void read_range(const Reader& reader, Item item, int& first, int& last) {
    const std::size_t dash = item.text.find('-');
    first = reader.integer(item.part(0, dash));
    last = dash == std::string_view::npos ? first : reader.integer(item.part(dash + 1));
    if (first < 0 || last < first || last >= kMostSpecParts)
        reader.fault(item, fmt::format("layers and heads ascend from 0, such as L0-3.H2, and stay below {}",
                                       kMostSpecParts));
}

/// Reads `L0-3.H2` or `L5.G0-1`, what stands between the @ and the value.
void read_heads(const Reader& reader, Item item, Override& to) {
    constexpr std::string_view kForm =
        "an override names layers, heads or both: @L0-3.H2, @L5, @H0-1, KV heads as @L5.G2, and several as "
        "@L5.G2,L7.G0-1";
    Item rest = spec_text::trimmed(item);
    if (rest.text.starts_with('L')) {
        const std::size_t dot = rest.text.find('.');
        read_range(reader, rest.part(1, dot == std::string_view::npos ? dot : dot - 1), to.first_layer,
                   to.last_layer);
        if (dot == std::string_view::npos) return;
        rest = rest.part(dot + 1);
    }
    to.by_kv_head = rest.text.starts_with('G');
    if (!to.by_kv_head && !rest.text.starts_with('H')) reader.fault(item, std::string(kForm));
    read_range(reader, rest.part(1), to.first_head, to.last_head);
}

/// heads: as in read_heads().
void read_override(const Reader& reader, const LaneOption& option, Item heads, Item value,
                   PolicyParams& params) {
    Override o;
    o.field = *option.by_head;
    read_heads(reader, heads, o);
    read_override_value(reader, value, o);
    if (o.is_formula()) return params.overrides.push_back(std::move(o));  // read_items() checks it at the end
    PolicyParams alone = preset_params(params.preset);  // the other keys were checked when they were read
    alone.overrides = {o};
    const std::vector<std::string> faults = validate(alone);
    if (!faults.empty()) reader.fault(value, faults.front());
    params.overrides.push_back(std::move(o));
}

/// A fault of a value that a later one may mend, as `scope=layer,alloc=uniform` does where the preset shares.
struct OpenFault {
    Item value{};
    std::string what{};
};

/// Reads a value. Where validate() passed before, any message now is the fault of this value.
void read_key(const Reader& reader, const LaneOption& option, Item value, LaneSpec& spec, OpenFault& fault) {
    read_option(reader, option, value, spec);
    if (!fault.what.empty()) return;
    const std::vector<std::string> faults = validate(spec.policy);
    if (!faults.empty()) fault = {value, faults.front()};
}

Preset read_preset(const Reader& reader, Item name) {
    std::vector<std::string_view> names;
    for (const PresetRow& preset : presets()) names.push_back(preset.name);
    const auto others = other_preset_names();
    const auto other = std::find_if(others.begin(), others.end(), [&](const OtherName& known) {
        return spec_text::lower_case(name.text) == known.name;
    });
    if (other != others.end())
        reader.fault(
            name, fmt::format("unknown preset '{}': {} ({})", name.text, other->here, fmt::join(names, " ")));
    return presets()[reader.word("preset", name, names)].preset;
}

/// Returns the ranges of `@L5.G2,L7.G0-1`; one empty item for none.
std::vector<Item> split_heads(Item override_of) {
    std::vector<Item> ranges;
    if (override_of.text.empty()) return {override_of};
    for (std::size_t begin = 1; begin <= override_of.text.size();) {
        const std::size_t end = std::min(override_of.text.find(',', begin), override_of.text.size());
        ranges.push_back(spec_text::trimmed(override_of.part(begin, end - begin)));
        begin = end + 1;
    }
    return ranges;
}

/// Returns the items after the colon: those between commas, but an override that names several ranges of
/// heads is one.
std::vector<Item> split_items(const Reader& reader, Item items) {
    std::vector<Item> whole;
    bool is_open = false;  // the last item is an override that goes on
    for (const Item& item : reader.split_commas(items)) {
        const bool has_value = item.text.find('=') != std::string_view::npos;
        if (is_open)
            whole.back() =
                items.part(whole.back().at - items.at, item.at + item.text.size() - whole.back().at);
        else
            whole.push_back(item);
        is_open = !has_value && (is_open || item.text.find('@') != std::string_view::npos);
    }
    return whole;
}

/// An override that is a formula, and its value in the spec.
struct ReadFormula {
    Override of_heads;
    Item value;
};

/// Checks them once the lane's spans and dialect are known.
void check_formula_overrides(const Reader& reader, PolicyParams of_all,
                             const std::vector<ReadFormula>& formulas) {
    of_all.overrides.clear();
    for (const auto& [of_heads, value] : formulas)
        if (const auto faults = formula_override_faults(of_all, of_heads); !faults.empty())
            reader.fault(value, faults.front());
}

/// Reads the items after the colon.
void read_items(const Reader& reader, Item items, LaneSpec& spec) {
    const std::vector<std::string_view> names = lane_spec_keys();
    std::set<std::string> seen;
    OpenFault fault;
    std::vector<ReadFormula> formulas;
    for (const Item& item : split_items(reader, items)) {
        const std::size_t equals = item.text.find('=');
        if (equals == std::string_view::npos) reader.fault(item, "key=value is expected");
        Item key = spec_text::trimmed(item.part(0, equals));
        const std::size_t at_sign = key.text.find('@');
        const Item override_of = at_sign == std::string_view::npos ? Item{} : key.part(at_sign);
        key = key.part(0, at_sign);
        if (key.text == "model") reader.fault(key, "all lanes have the run's model; name it by --model");
        const std::size_t index = reader.word("key", key, names);
        const LaneOption& option = lane_keys()[index];
        if (!override_of.text.empty() && !option.by_head)
            reader.fault(override_of, fmt::format("'{}' is the same for all heads; only {} may differ",
                                                  option.name, fmt::join(override_names(), ", ")));
        const Item value = spec_text::unwrapped(item.part(equals + 1));
        for (const Item& heads : split_heads(override_of)) {
            const std::string at = heads.text.empty() ? "" : fmt::format("@{}", heads.text);
            if (!seen.insert(std::string(names[index]) + at).second)
                reader.fault(key, fmt::format("'{}{}' is given twice", key.text, shown_text(at)));
            if (value.text.empty()) reader.fault(value, fmt::format("'{}' has no value", key.text));
            if (override_of.text.empty()) {
                read_key(reader, option, value, spec, fault);
                continue;
            }
            read_override(reader, option, heads, value, spec.policy);
            if (const Override& o = spec.policy.overrides.back(); o.is_formula())
                formulas.push_back({o, value});
        }
    }
    if (!formulas.empty()) check_formula_overrides(reader, spec.policy, formulas);
    if (fault.what.empty()) return;
    const std::vector<std::string> faults = validate(spec.policy);  // other options may say it otherwise
    const bool stands = std::find(faults.begin(), faults.end(), fault.what) != faults.end();
    if (!faults.empty()) reader.fault(fault.value, stands ? fault.what : faults.front());
}

}  // namespace

namespace {

/// Reads what stands before the `=` of `NAME=SPEC`. text: for the message.
std::string read_lane_name(Item item, std::string_view text) {
    constexpr std::size_t kLongestName = 60;
    const std::string_view name = spec_text::trimmed(item).text;
    if (name.empty() || name.size() > kLongestName || printable_text(name) != name)
        fail(ErrorCode::wrong_use,
             "lane '{}': a name has 1 to {} characters before its '=', such as ten=h2o:budget=10",
             shown_text(text), kLongestName);
    return std::string(name);
}

LaneSpec read_lane_spec(const Reader& reader, std::string_view text) {
    Item whole = spec_text::trimmed({text, 0});
    std::string name;
    if (const std::size_t equals = whole.text.find('='); equals < whole.text.find(':')) {
        name = read_lane_name(whole.part(0, equals), text);
        whole = spec_text::trimmed(whole.part(equals + 1));
    }
    const std::size_t colon = whole.text.find(':');
    LaneSpec spec{preset_params(read_preset(reader, spec_text::trimmed(whole.part(0, colon))))};
    if (colon != std::string_view::npos) read_items(reader, whole.part(colon + 1), spec);
    spec.name = std::move(name);
    return spec;
}

}  // namespace

LaneSpec parse_lane_spec(std::string_view text) {
    return read_lane_spec(Reader(text), text);
}

LaneSpec parse_stored_lane_spec(std::string_view text) {
    return read_lane_spec(Reader(text, false), text);
}

LaneSpec changed_lane_spec(LaneSpec spec, std::string_view items) {
    std::vector<Override> before = std::exchange(spec.policy.overrides, {});
    read_items(Reader(items), spec_text::trimmed({items, 0}), spec);
    std::erase_if(before, [&](const Override& old) {
        return std::any_of(
            spec.policy.overrides.begin(), spec.policy.overrides.end(), [&](const Override& o) {
                return o.field == old.field && format_override_heads(o) == format_override_heads(old);
            });
    });
    spec.policy.overrides.insert(spec.policy.overrides.begin(), before.begin(), before.end());
    return spec;
}

std::vector<std::string_view> lane_spec_keys() {
    std::vector<std::string_view> names;
    for (const LaneOption& option : lane_keys()) names.push_back(option.name);
    return names;
}

std::vector<LaneSetting> lane_settings(const LaneSpec& spec) {
    std::vector<LaneSetting> settings;
    for (const LaneOption& option : lane_keys())
        settings.push_back({std::string(option.name), option_text(option, spec)});
    for (const Override& o : spec.policy.overrides)
        settings.push_back({fmt::format("{}@{}", lane_option(o.field).name, format_override_heads(o)),
                            override_value_text(o)});
    return settings;
}

namespace {

/// Returns the heads of `budget@L5.G2`.
std::string heads_of(const std::string& key) {
    return key.substr(key.find('@') + 1);
}

/// Returns whether setting i and the next one are overrides of one key with one value.
bool is_same_override(const std::vector<LaneSetting>& settings, std::size_t i) {
    if (i + 1 == settings.size()) return false;
    const LaneSetting &one = settings[i], &next = settings[i + 1];
    const std::size_t at = one.key.find('@');
    return at != std::string::npos && one.value == next.value &&
           next.key.starts_with(one.key.substr(0, at + 1));
}

}  // namespace

std::string format_lane_spec(const LaneSpec& spec) {
    const std::vector<LaneSetting> settings = lane_settings(spec),
                                   defaults = lane_settings({preset_params(spec.policy.preset), {}});
    std::string text = spec.name.empty() ? "" : spec.name + "=";
    text += preset_name(spec.policy.preset);
    char separator = ':';
    for (std::size_t i = 0; i < settings.size(); ++i) {
        if (i < defaults.size() && settings[i] == defaults[i]) continue;
        text += separator + settings[i].key;
        // Overrides of one key that follow one another with one value name their heads together.
        while (is_same_override(settings, i)) text += "," + heads_of(settings[++i].key);
        text += "=" + settings[i].value;
        separator = ',';
    }
    return text;
}

namespace {

/// Returns the keys of items as lane_settings() names them: `budget`, `alpha@L0`.
std::set<std::string> keys_of(std::string_view items) {
    const Reader reader(items);
    std::set<std::string> keys;
    for (const Item& item : split_items(reader, spec_text::trimmed({items, 0}))) {
        const Item key = spec_text::trimmed(item.part(0, item.text.find('=')));
        const std::size_t at_sign = key.text.find('@');
        const std::string name = spec_text::lower_case(spec_text::trimmed(key.part(0, at_sign)).text);
        const bool is_override = at_sign != std::string_view::npos;
        for (const Item& heads : split_heads(is_override ? key.part(at_sign) : Item{}))
            keys.insert(heads.text.empty() ? name : fmt::format("{}@{}", name, heads.text));
    }
    return keys;
}

}  // namespace

std::string changed_spec_text(const LaneSpec& spec, std::string_view items) {
    const std::set<std::string> given = keys_of(items);
    const std::vector<LaneSetting> settings = lane_settings(spec),
                                   defaults = lane_settings({preset_params(spec.policy.preset), {}});
    std::string text = fmt::format("{}:", preset_name(spec.policy.preset));
    for (std::size_t i = 0; i < settings.size(); ++i) {
        const bool is_default = i < defaults.size() && settings[i] == defaults[i];
        if (!is_default && !given.contains(settings[i].key))
            text += fmt::format("{}={},", settings[i].key, settings[i].value);
    }
    return text.append(items);
}

bool same_settings(LaneSpec a, LaneSpec b) {
    a.name.clear();
    b.name.clear();
    return a == b || format_lane_spec(a) == format_lane_spec(b);
}

bool same_results(LaneSpec a, LaneSpec b) {
    a.policy.shadow = b.policy.shadow = false;
    return same_settings(std::move(a), std::move(b));
}

std::string format_override_heads(const Override& o) {
    const auto range = [](char letter, int first, int last) {
        return first == last ? fmt::format("{}{}", letter, first)
                             : fmt::format("{}{}-{}", letter, first, last);
    };
    std::string text;
    if (o.last_layer != Override::kAll) text = range('L', o.first_layer, o.last_layer);
    if (o.last_head != Override::kAll)
        text += (text.empty() ? "" : ".") + range(o.by_kv_head ? 'G' : 'H', o.first_head, o.last_head);
    return text;
}

std::string format_effective_spec(const LaneSpec& spec, int n_prompt, int n_generate) {
    const ResolvedPolicy policy = resolve(spec.policy, n_prompt, n_generate);
    LaneSpec effective{with_released_values(spec.policy), spec.sharing, spec.name};
    const bool has_budget = policy.budget != ResolvedPolicy::kUnlimited;
    if (has_budget) effective.policy.budget = {Amount::Unit::tokens, static_cast<double>(policy.budget)};
    if (has_budget) effective.policy.recent = {Amount::Unit::tokens, static_cast<double>(policy.recent)};
    effective.policy.sinks = policy.sinks;
    effective.policy.evict = policy.evict;
    effective.policy.prefill = policy.prefill;
    const auto shape = spec.policy.tau.shape;
    const bool has_slope = shape == TauSchedule::Shape::linear && spec.policy.tau_delta > 0;
    if (!has_slope && (shape == TauSchedule::Shape::linear || shape == TauSchedule::Shape::cosine)) {
        effective.policy.horizon = policy.horizon;
    }
    return format_lane_spec(effective);
}

std::string_view dialect_name(Dialect dialect) {
    return option_words(lane_option("dialect"))[to_index(dialect)].text;
}

}  // namespace keyhole
