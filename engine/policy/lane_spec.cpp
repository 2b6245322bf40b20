#include "engine/policy/lane_spec.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/policy/spec_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <span>
#include <utility>

namespace keyhole {
namespace {

using spec_text::Item;
using spec_text::Reader;

struct PresetText {
    Preset preset;
    std::string_view name;
    std::string_view title;  ///< where the name hides it: what papers call it
    std::string_view help;
    std::string_view released;  ///< how the released code differs from the paper
};

constexpr std::string_view kNoCode = "Nobody released code for it.";

constexpr std::array kPresets = {
    PresetText{Preset::full, "full", "", "Keeps every token: the reference for every measure.", kNoCode},
    PresetText{
        Preset::window, "window", "Window attention", "Keeps the newest tokens only.",
        "The local baseline of H2O's code counts the step's own token in the budget: it stores k - 1 and "
        "attends to k."},
    PresetText{Preset::sink, "sink", "StreamingLLM",
               "Keeps the first tokens, which soak up spare attention, and the newest (StreamingLLM, Xiao et "
               "al. 2023).",
               "The released code rotates every key by its index in the cache, so positions never pass the "
               "budget."},
    PresetText{Preset::dilated, "dilated", "Keyformer's dilated window",
               "Attends to every (dilation + 1)-th of the newest tokens; all between them stay stored, since "
               "later steps need them (Keyformer, figure 2c).",
               kNoCode},
    PresetText{
        Preset::key, "key", "Keyformer's key attention",
        "Keeps the tokens with the most accumulated attention and protects none (Keyformer, section 2.3).",
        kNoCode},
    PresetText{
        Preset::h2o, "h2o", "",
        "Keeps the newest tokens and those with the most accumulated attention (H2O, Zhang et al. 2023).",
        "The released mask code hides the token that leaves the recent window for one step before it "
        "competes, "
        "attends to k tokens instead of k + 1, truncates the heavy and recent shares one by one, and frees "
        "nothing."},
    PresetText{
        Preset::tova, "tova", "",
        "Drops the token that the last step attended to least, one set a layer (TOVA, Oren et al. 2024).",
        "The released code reads the whole prompt with full attention and evicts once after it, and so do "
        "both dialects here; the paper's language-model runs evict after every prompt row, which is "
        "prefill=stepwise. Its compressed positions follow T + ln(ln(g - T + e)), rounded up, where the "
        "paper "
        "prints ln(ln g)."},
    PresetText{
        Preset::keyformer, "keyformer", "",
        "As H2O, with Gumbel noise and a rising temperature on the scores (Keyformer, Adnan et al. 2024).",
        "The released code evicts the token that leaves the recent window, so no generated token ever "
        "becomes "
        "a key token and the keys stay those of the prompt; it draws noise anew in every step, lets tau run "
        "past "
        "its end, attends to k tokens instead of k + 1, never evicts with recent 0, and frees nothing."},
    PresetText{
        Preset::a2sf, "a2sf", "",
        "Accumulates attention and forgets old steps by a factor (A2SF, Jo and Shin 2024).",
        "The released code always keeps the newest token instead of letting it compete, truncates shares as "
        "int(ratio * n), loses a slot with recent 1, and frees nothing."},
};

template <class T>
struct Word {
    std::string_view text;
    T value;
};
template <class T>
Word(std::string_view, T) -> Word<T>;  // clang 16 does not deduce it on its own

constexpr std::array kNoiseWords = {Word{"none", NoiseKind::none}, Word{"gumbel", NoiseKind::gumbel},
                                    Word{"gaussian", NoiseKind::gaussian},
                                    Word{"constant", NoiseKind::constant}};
constexpr std::array kDrawWords = {Word{"token", NoiseDraw::token}, Word{"row", NoiseDraw::row}};
constexpr std::array kScopeWords = {Word{"head", Scope::head}, Word{"layer", Scope::layer},
                                    Word{"shared", Scope::shared}};
constexpr std::array kPoolWords = {Word{"mean", Pool::mean}, Word{"sum", Pool::sum}, Word{"max", Pool::max}};
constexpr std::array kPrefillWords = {Word{"oneshot", PrefillMode::oneshot},
                                      Word{"stepwise", PrefillMode::stepwise}};
constexpr std::array kScoreWords = {Word{"fp32", ScoreType::fp32}, Word{"fp16", ScoreType::fp16},
                                    Word{"bf16", ScoreType::bf16}};
constexpr std::array kKvTypeWords = {Word{"auto", KvType::automatic}, Word{"f32", KvType::f32},
                                     Word{"f16", KvType::f16}, Word{"bf16", KvType::bf16},
                                     Word{"q8", KvType::q8}};
constexpr std::array kDialectWords = {Word{"paper", Dialect::paper}, Word{"released", Dialect::released}};
constexpr std::array kPositionWords = {Word{"original", Positions::original}, Word{"cache", Positions::cache},
                                       Word{"compressed", Positions::compressed}};
constexpr std::array kSwitchWords = {Word{"on", true}, Word{"off", false}};
constexpr std::array kCurveWords = {Word{"linear", TauSchedule::Shape::linear},
                                    Word{"cosine", TauSchedule::Shape::cosine}};

template <class T, std::size_t N>
T value_of(const Reader& reader, std::string_view what, Item item, const std::array<Word<T>, N>& words) {
    std::array<std::string_view, N> texts;
    for (std::size_t i = 0; i < N; ++i) texts[i] = words[i].text;
    return words[reader.word(what, item, texts)].value;
}

template <class T, std::size_t N>
std::string text_of(T value, const std::array<Word<T>, N>& words) {
    for (const auto& word : words) {
        if (word.value == value) return std::string(word.text);
    }
    KH_ASSERT(false, "no word for value {}", static_cast<int>(value));
    return {};
}

// --- amounts and the tau schedule --------------------------------------------------------------------------

/// Reads `64`, `50%`, or the key's own word: all for budget, rest for recent.
Amount read_amount(const Reader& reader, Item item, std::string_view word, Amount::Unit unit) {
    if (item.text == word) return {unit, 0};
    const bool is_percent = item.text.ends_with('%');
    const std::string form = fmt::format("a number of tokens, a percentage such as 50%, or {}", word);
    const double value =
        reader.number({item.text.substr(0, item.text.size() - (is_percent ? 1 : 0)), item.at}, form);
    return {is_percent ? Amount::Unit::percent : Amount::Unit::tokens, value};
}

std::string text_of_amount(const Amount& amount) {
    switch (amount.unit) {
        case Amount::Unit::all:
            return "all";
        case Amount::Unit::rest:
            return "rest";
        case Amount::Unit::percent:
            return fmt::format("{}%", amount.value);
        case Amount::Unit::tokens:
            break;
    }
    return fmt::format("{}", amount.value);
}

constexpr std::string_view kTauForm = "1, 1..2, 1..2@cosine or points (0:1 20:1.4 100:2)";

TauSchedule read_tau(const Reader& reader, Item item) {
    TauSchedule tau;
    if (item.text.find(':') != std::string_view::npos) {
        tau.shape = TauSchedule::Shape::points;
        for (const Item& point : spec_text::split_blanks(item)) {
            const std::size_t colon = point.text.find(':');
            if (colon == std::string_view::npos) reader.fault(point, fmt::format("tau is {}", kTauForm));
            tau.points.emplace_back(reader.number(point.part(0, colon), kTauForm),
                                    reader.number(point.part(colon + 1), kTauForm));
        }
        tau.begin = tau.points.front().second;  // held before the first point, also for prompt rows
        tau.end = tau.points.back().second;
        return tau;
    }
    const std::size_t at_sign = item.text.find('@');
    const Item range = item.part(0, at_sign);
    const std::size_t dots = range.text.find("..");
    if (dots == std::string_view::npos) {
        if (at_sign != std::string_view::npos) reader.fault(item, "a curve needs two ends: 1..2@cosine");
        tau.begin = tau.end = reader.number(range, kTauForm);
        return tau;
    }
    tau.shape = TauSchedule::Shape::linear;
    tau.begin = reader.number(range.part(0, dots), kTauForm);
    tau.end = reader.number(range.part(dots + 2), kTauForm);
    if (at_sign != std::string_view::npos) {
        tau.shape = value_of(reader, "curve of tau", item.part(at_sign + 1), kCurveWords);
    }
    return tau;
}

std::string text_of_tau(const TauSchedule& tau) {
    switch (tau.shape) {
        case TauSchedule::Shape::constant:
            return fmt::format("{}", tau.begin);
        case TauSchedule::Shape::linear:
            return fmt::format("{}..{}", tau.begin, tau.end);
        case TauSchedule::Shape::cosine:
            return fmt::format("{}..{}@cosine", tau.begin, tau.end);
        case TauSchedule::Shape::points:
            break;
    }
    std::string text;
    for (const auto& [t, value] : tau.points) {
        text += fmt::format("{}{}:{}", text.empty() ? "(" : " ", t, value);
    }
    return text + ")";
}

// --- keys --------------------------------------------------------------------------------------------------

/// One key of the spec, with the functions that read its value into the parameters and write it back.
struct Key {
    std::string_view name;
    void (*read)(const Reader&, std::string_view name, Item, PolicyParams&);
    std::string (*write)(const PolicyParams&);
};

/// Makes a key whose field takes one of a few words.
template <auto Field, const auto& Words>
Key word_key(std::string_view name) {
    return {name,
            [](const Reader& reader, std::string_view what, Item item, PolicyParams& params) {
                params.*Field = value_of(reader, what, item, Words);
            },
            [](const PolicyParams& params) { return text_of(params.*Field, Words); }};
}

/// Makes a key whose field is a number; Read is the member function for its type.
template <auto Field, auto Read>
Key number_key(std::string_view name) {
    return {name,
            [](const Reader& reader, std::string_view, Item item, PolicyParams& params) {
                params.*Field = (reader.*Read)(item);
            },
            [](const PolicyParams& params) { return fmt::format("{}", params.*Field); }};
}

const std::array kKeys = {
    Key{"budget",
        [](const Reader& r, std::string_view, Item i, PolicyParams& p) {
            p.budget = read_amount(r, i, "all", Amount::Unit::all);
        },
        [](const PolicyParams& p) { return text_of_amount(p.budget); }},
    Key{"recent",
        [](const Reader& r, std::string_view, Item i, PolicyParams& p) {
            p.recent = read_amount(r, i, "rest", Amount::Unit::rest);
        },
        [](const PolicyParams& p) { return text_of_amount(p.recent); }},
    number_key<&PolicyParams::sinks, &Reader::integer>("sinks"),
    number_key<&PolicyParams::alpha, &Reader::real>("alpha"),
    Key{"tau", [](const Reader& r, std::string_view, Item i, PolicyParams& p) { p.tau = read_tau(r, i); },
        [](const PolicyParams& p) { return text_of_tau(p.tau); }},
    number_key<&PolicyParams::horizon, &Reader::integer>("horizon"),
    number_key<&PolicyParams::tau_delta, &Reader::real>("tau_delta"),
    word_key<&PolicyParams::noise, kNoiseWords>("noise"),
    word_key<&PolicyParams::draw, kDrawWords>("draw"),
    number_key<&PolicyParams::gain, &Reader::real>("gain"),
    word_key<&PolicyParams::scope, kScopeWords>("scope"),
    word_key<&PolicyParams::pool, kPoolWords>("pool"),
    word_key<&PolicyParams::prefill, kPrefillWords>("prefill"),
    number_key<&PolicyParams::every, &Reader::integer>("every"),
    number_key<&PolicyParams::damping, &Reader::real>("damping"),
    word_key<&PolicyParams::score_dtype, kScoreWords>("score_dtype"),
    word_key<&PolicyParams::kv_dtype, kKvTypeWords>("kv_dtype"),
    number_key<&PolicyParams::seed, &Reader::unsigned_integer>("seed"),
    word_key<&PolicyParams::positions, kPositionWords>("positions"),
    number_key<&PolicyParams::dilation, &Reader::integer>("dilation"),
    word_key<&PolicyParams::dialect, kDialectWords>("dialect"),
    word_key<&PolicyParams::shadow, kSwitchWords>("shadow"),
};

// --- sharing of KV heads -----------------------------------------------------------------------------------

constexpr std::array kMergeWords = {Word{"uniform", KvMerge::uniform}, Word{"released", KvMerge::released}};
constexpr std::array kKvWords = {Word{"own", KvSharing::Kind::own}, Word{"mha", KvSharing::Kind::mha},
                                 Word{"gqa", KvSharing::Kind::gqa}, Word{"mqa", KvSharing::Kind::mqa},
                                 Word{"mlkv", KvSharing::Kind::mlkv}};

/// The largest number of layers or heads.
constexpr int kMostParts = 1'000'000;

int read_count(const Reader& reader, Item item) {
    const int value = reader.integer(item);
    if (value < 1 || value > kMostParts)
        reader.fault(item, fmt::format("layers and KV heads are 1 or more, and at most {}", kMostParts));
    return value;
}

/// Reads `gqa:4`, `mlkv:m=4,g=1`.
void read_kv(const Reader& reader, Item item, KvSharing& sharing) {
    const std::size_t colon = item.text.find(':');
    sharing.kind = value_of(reader, "sharing", item.part(0, colon), kKvWords);
    sharing.n_kv_layers = sharing.n_kv_heads = 0;
    const bool counts = sharing.kind == KvSharing::Kind::gqa || sharing.kind == KvSharing::Kind::mlkv;
    if (counts && colon == std::string_view::npos)
        reader.fault(item, sharing.kind == KvSharing::Kind::gqa
                               ? "gqa names its KV heads: gqa:4"
                               : "mlkv names its layers and KV heads: (mlkv:m=4,g=1)");
    if (!counts) {
        if (colon != std::string_view::npos)
            reader.fault(item.part(colon), fmt::format("{} takes no number", item.text.substr(0, colon)));
        return;
    }
    const Item rest = item.part(colon + 1);
    if (sharing.kind == KvSharing::Kind::gqa) {
        sharing.n_kv_heads = read_count(reader, rest);
        return;
    }
    for (const Item& part : reader.split_commas(rest)) {
        const std::size_t equals = part.text.find('=');
        if (equals == std::string_view::npos) reader.fault(part, "m=layers and g=heads are expected");
        constexpr std::array<std::string_view, 2> kNames = {"m", "g"};
        int& to = reader.word("part of mlkv", part.part(0, equals), kNames) == 0 ? sharing.n_kv_layers
                                                                                 : sharing.n_kv_heads;
        if (to != 0) reader.fault(part, "it is given twice");
        to = read_count(reader, part.part(equals + 1));
    }
    if (sharing.n_kv_layers == 0 || sharing.n_kv_heads == 0)
        reader.fault(rest, "mlkv names its layers and KV heads: (mlkv:m=4,g=1)");
}

/// As Key, for how KV heads are merged before a policy acts.
struct SharingKey {
    std::string_view name;
    void (*read)(const Reader&, Item, KvSharing&);
    std::string (*write)(const KvSharing&);
};

const std::array kSharingKeys = {
    SharingKey{"kv", read_kv,
               [](const KvSharing& s) {
                   const std::string text = format_kv_sharing(s);
                   return text.find(',') == std::string::npos ? text : "(" + text + ")";
               }},
    SharingKey{"merge",
               [](const Reader& r, Item i, KvSharing& s) { s.merge = value_of(r, "merge", i, kMergeWords); },
               [](const KvSharing& s) { return text_of(s.merge, kMergeWords); }},
    SharingKey{"compensate",
               [](const Reader& r, Item i, KvSharing& s) {
                   s.compensate = value_of(r, "compensate", i, kSwitchWords);
               },
               [](const KvSharing& s) { return text_of(s.compensate, kSwitchWords); }},
};

/// The keys that may differ between layers and heads, in the order of Override::Field.
constexpr std::array<std::string_view, 5> kOverrideKeys = {"budget", "recent", "alpha", "tau", "gain"};

/// Reads `0-3` or `5`, the part after the letter of `L0-3`, `L5` or `H2`.
void read_range(const Reader& reader, Item item, int& first, int& last) {
    const std::size_t dash = item.text.find('-');
    first = reader.integer(item.part(0, dash));
    last = dash == std::string_view::npos ? first : reader.integer(item.part(dash + 1));
    if (first < 0 || last < first || last >= kMostParts)
        reader.fault(item, fmt::format("layers and heads ascend from 0, such as L0-3.H2, and stay below {}",
                                       kMostParts));
}

/// Reads `@L0-3.H2`. item begins at the @.
void read_heads(const Reader& reader, Item item, Override& to) {
    constexpr std::string_view kForm = "an override names layers, heads or both: @L0-3.H2, @L5, @H0-1";
    Item rest = item.part(1);
    if (rest.text.starts_with('L')) {
        const std::size_t dot = rest.text.find('.');
        read_range(reader, rest.part(1, dot == std::string_view::npos ? dot : dot - 1), to.first_layer,
                   to.last_layer);
        if (dot == std::string_view::npos) return;
        rest = rest.part(dot + 1);
    }
    if (!rest.text.starts_with('H')) reader.fault(item, std::string(kForm));
    read_range(reader, rest.part(1), to.first_head, to.last_head);
}

void read_override(const Reader& reader, std::string_view key, Item heads, Item value, PolicyParams& params) {
    Override o;
    const auto found = std::find(kOverrideKeys.begin(), kOverrideKeys.end(), key);
    if (found == kOverrideKeys.end())
        reader.fault(heads, fmt::format("'{}' is the same for all heads; only {} may differ", key,
                                        fmt::join(kOverrideKeys, ", ")));
    o.field = static_cast<Override::Field>(found - kOverrideKeys.begin());
    read_heads(reader, heads, o);
    switch (o.field) {
        case Override::Field::budget:
            o.amount = read_amount(reader, value, "all", Amount::Unit::all);
            break;
        case Override::Field::recent:
            o.amount = read_amount(reader, value, "rest", Amount::Unit::rest);
            break;
        case Override::Field::tau:
            o.tau = read_tau(reader, value);
            break;
        case Override::Field::alpha:
        case Override::Field::gain:
            o.value = reader.real(value);
            break;
    }
    PolicyParams alone = preset_params(params.preset);  // the other keys were checked when they were read
    alone.overrides = {o};
    const std::vector<std::string> faults = validate(alone);
    if (!faults.empty()) reader.fault(value, faults.front());
    params.overrides.push_back(std::move(o));
}

std::string text_of_override(const Override& o) {
    std::string value;
    switch (o.field) {
        case Override::Field::budget:
        case Override::Field::recent:
            value = text_of_amount(o.amount);
            break;
        case Override::Field::tau:
            value = text_of_tau(o.tau);
            break;
        case Override::Field::alpha:
        case Override::Field::gain:
            value = fmt::format("{}", o.value);
            break;
    }
    return fmt::format("{}@{}={}", kOverrideKeys[to_index(o.field)], format_override_heads(o), value);
}

/// Names of the field for what has another name here, or is not here.
struct OtherName {
    std::string_view name, here;
};
constexpr std::array kOtherNames = {
    OtherName{"streamingllm", "StreamingLLM is 'sink'"},
    OtherName{"streaming", "StreamingLLM is 'sink'"},
    OtherName{"streaming-llm", "StreamingLLM is 'sink'"},
    OtherName{"streaming_llm", "StreamingLLM is 'sink'"},
    OtherName{"local", "a sliding window is 'window'"},
    OtherName{"sliding", "a sliding window is 'window'"},
    OtherName{"recent", "a sliding window is 'window'"},
    OtherName{"heavy-hitter", "the heavy-hitter oracle is 'h2o'"},
    OtherName{"heavy_hitter", "the heavy-hitter oracle is 'h2o'"},
    OtherName{"none", "a lane that evicts nothing is 'full'"},
    OtherName{"snapkv", "SnapKV is not built in"},
    OtherName{"pyramidkv", "PyramidKV is not built in; a budget may differ by layer: budget@L0-3=64"},
    OtherName{"adakv", "Ada-KV is not built in; a budget may differ by head: budget@L0.H0-1=64"},
    OtherName{"scissorhands", "Scissorhands is not built in"},
    OtherName{"fastgen", "FastGen is not built in"},
    OtherName{"quest", "Quest is not built in: it evicts nothing, and reads a part"},
};

/// Reads a value. validate() passed before, so any message now is the fault of this value.
void read_key(const Reader& reader, const Key& key, Item value, PolicyParams& params) {
    key.read(reader, key.name, value, params);
    const std::vector<std::string> faults = validate(params);
    if (!faults.empty()) reader.fault(value, faults.front());
}

Preset read_preset(const Reader& reader, Item name) {
    std::vector<std::string_view> names;
    for (const PresetText& preset : kPresets) names.push_back(preset.name);
    const auto other = std::find_if(kOtherNames.begin(), kOtherNames.end(), [&](const OtherName& known) {
        return spec_text::lower_case(name.text) == known.name;
    });
    if (other != kOtherNames.end())
        reader.fault(
            name, fmt::format("unknown preset '{}': {} ({})", name.text, other->here, fmt::join(names, " ")));
    return kPresets[reader.word("preset", name, names)].preset;
}

/// Reads the items after the colon.
void read_items(const Reader& reader, Item items, LaneSpec& spec) {
    PolicyParams& params = spec.policy;
    const std::vector<std::string_view> names = lane_spec_keys();
    std::set<std::string> seen;
    for (const Item& item : reader.split_commas(items)) {
        const std::size_t equals = item.text.find('=');
        if (equals == std::string_view::npos) reader.fault(item, "key=value is expected");
        Item key = spec_text::trimmed(item.part(0, equals));
        const std::size_t at_sign = key.text.find('@');
        const Item override_of = at_sign == std::string_view::npos ? Item{} : key.part(at_sign);
        key = key.part(0, at_sign);
        if (key.text == "model") reader.fault(key, "all lanes have the run's model; name it by --model");
        const std::size_t index = reader.word("key", key, names);
        if (!seen.insert(std::string(names[index]).append(override_of.text)).second)
            reader.fault(key, fmt::format("'{}{}' is given twice", key.text, shown_text(override_of.text)));
        const Item value = spec_text::unwrapped(item.part(equals + 1));
        if (value.text.empty()) reader.fault(value, fmt::format("'{}' has no value", key.text));
        if (!override_of.text.empty()) {
            read_override(reader, names[index], override_of, value, params);
        } else if (index < kKeys.size()) {
            read_key(reader, kKeys[index], value, params);
        } else {
            kSharingKeys[index - kKeys.size()].read(reader, value, spec.sharing);
        }
    }
}

}  // namespace

LaneSpec parse_lane_spec(std::string_view text) {
    const Reader reader(text);
    const Item whole = spec_text::trimmed({text, 0});
    const std::size_t colon = whole.text.find(':');
    LaneSpec spec{preset_params(read_preset(reader, spec_text::trimmed(whole.part(0, colon))))};
    if (colon != std::string_view::npos) read_items(reader, whole.part(colon + 1), spec);
    return spec;
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
    for (const Key& key : kKeys) names.push_back(key.name);
    for (const SharingKey& key : kSharingKeys) names.push_back(key.name);
    return names;
}

KvSharing parse_kv_sharing(std::string_view text) {
    KvSharing sharing;
    read_kv(Reader(text), spec_text::unwrapped({text, 0}), sharing);
    return sharing;
}

std::string format_kv_sharing(const KvSharing& sharing) {
    const std::string kind = text_of(sharing.kind, kKvWords);
    if (sharing.kind == KvSharing::Kind::gqa) return fmt::format("{}:{}", kind, sharing.n_kv_heads);
    if (sharing.kind == KvSharing::Kind::mlkv)
        return fmt::format("{}:m={},g={}", kind, sharing.n_kv_layers, sharing.n_kv_heads);
    return kind;
}

std::vector<LaneSetting> lane_settings(const LaneSpec& spec) {
    std::vector<LaneSetting> settings;
    for (const Key& key : kKeys) settings.push_back({std::string(key.name), key.write(spec.policy)});
    for (const SharingKey& key : kSharingKeys)
        settings.push_back({std::string(key.name), key.write(spec.sharing)});
    for (const Override& o : spec.policy.overrides) {
        const std::string text = text_of_override(o);
        const std::size_t equals = text.find('=');
        settings.push_back({text.substr(0, equals), text.substr(equals + 1)});
    }
    return settings;
}

std::string format_lane_spec(const LaneSpec& spec) {
    const std::vector<LaneSetting> settings = lane_settings(spec),
                                   defaults = lane_settings({preset_params(spec.policy.preset), {}});
    std::string text(preset_name(spec.policy.preset));
    char separator = ':';
    for (std::size_t i = 0; i < settings.size(); ++i) {
        if (i < defaults.size() && settings[i] == defaults[i]) continue;
        text += fmt::format("{}{}={}", separator, settings[i].key, settings[i].value);
        separator = ',';
    }
    return text;
}

std::string format_override_heads(const Override& o) {
    const auto range = [](char letter, int first, int last) {
        return first == last ? fmt::format("{}{}", letter, first)
                             : fmt::format("{}{}-{}", letter, first, last);
    };
    std::string text;
    if (o.last_layer != Override::kAll) text = range('L', o.first_layer, o.last_layer);
    if (o.last_head != Override::kAll)
        text += (text.empty() ? "" : ".") + range('H', o.first_head, o.last_head);
    return text;
}

std::string format_effective_spec(const LaneSpec& spec, int n_prompt, int n_generate) {
    const ResolvedPolicy policy = resolve(spec.policy, n_prompt, n_generate);
    LaneSpec effective = spec;
    const bool has_budget = policy.budget != ResolvedPolicy::kUnlimited;
    if (has_budget) effective.policy.budget = {Amount::Unit::tokens, static_cast<double>(policy.budget)};
    if (has_budget) effective.policy.recent = {Amount::Unit::tokens, static_cast<double>(policy.recent)};
    effective.policy.sinks = policy.sinks;
    effective.policy.prefill = policy.prefill;
    effective.policy.every = policy.every;
    effective.policy.scope = policy.scope;
    effective.policy.pool = policy.pool;
    effective.policy.draw = policy.draw;
    effective.policy.damping =
        policy.damping == static_cast<float>(spec.policy.damping) ? spec.policy.damping : policy.damping;
    effective.policy.positions = policy.positions;
    const auto shape = spec.policy.tau.shape;
    const bool has_slope = shape == TauSchedule::Shape::linear && spec.policy.tau_delta > 0;
    if (!has_slope && (shape == TauSchedule::Shape::linear || shape == TauSchedule::Shape::cosine)) {
        effective.policy.horizon = policy.horizon;
    }
    return format_lane_spec(effective);
}

std::string_view preset_name(Preset preset) {
    return kPresets[to_index(preset)].name;
}

std::string_view preset_title(Preset preset) {
    return kPresets[to_index(preset)].title;
}

std::string_view preset_help(Preset preset) {
    return kPresets[to_index(preset)].help;
}

std::string_view dialect_name(Dialect dialect) {
    return kDialectWords[to_index(dialect)].text;
}

std::string_view dialect_help(Preset preset) {
    return kPresets[to_index(preset)].released;
}

}  // namespace keyhole
