#include "engine/policy/preset_table.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/option_table.h"

#include <algorithm>
#include <array>

namespace keyhole {
namespace {

using AmountUnit = Amount::Unit;

// --- how the released codes count --------------------------------------------------------------------------

/// H2O's mask with no heavy tokens: k counts the row's own token.
void count_window(ResolvedPolicy& policy) {
    policy.counts_columns = policy.keeps_memory = true;
    if (policy.evicts()) policy.stored = policy.budget - 1;
    policy.newest = std::min(policy.newest, policy.stored);
}

void count_h2o(ResolvedPolicy& policy) {
    policy.gap = ResolvedPolicy::Gap::hidden;
    policy.counts_columns = policy.keeps_memory = true;
}

void count_keyformer(ResolvedPolicy& policy) {
    policy.gap = ResolvedPolicy::Gap::dropped;
    policy.newest = std::max(policy.recent - 1, 0);
    policy.counts_columns = policy.keeps_memory = policy.tau_runs_on = true;
    // With a window of 0 its slice runs to the end, so nothing is ever masked.
    if (policy.evicts()) policy.stored = policy.recent == 0 ? ResolvedPolicy::kUnlimited : policy.budget - 1;
}

void count_a2sf(ResolvedPolicy& policy) {
    // A text of k tokens is kept whole, even where an eviction would leave fewer.
    policy.counts_columns = policy.keeps_memory = true;
    if (!policy.evicts()) return;
    // The newest token is no candidate and always kept; a recent ratio that gives 1 costs one more slot.
    if (policy.recent == 1) policy.stored = std::max(policy.budget - 1, 1);
    policy.newest = std::max(policy.newest, 1);
}

/// R-KV's code, but for its order of tokens after the first compression.
void count_rkv(ResolvedPolicy& policy) {
    policy.ranks_as_rkv_code = true;
}

/// Quest's evaluation code: the page of the row's own token competes, and three are read at least.
void count_quest(ResolvedPolicy& policy) {
    policy.reads_own_page = false;
}

/// SnapKV with a window of its own, inside the budget.
void set_snapkv(PolicyParams& p, int window, int kernel) {
    p.choose.text = "smooth(win)";
    p.window = window;
    p.recent = {AmountUnit::tokens, static_cast<double>(window)};
    p.kernel = kernel;
    p.evict = Evict::prompt;
}

constexpr std::array kGroups = {
    PresetGroup{LooksAt::nothing, "nothing", "They look at no token: one keeps all, one draws lots."},
    PresetGroup{LooksAt::place, "place",
                "They look at where a token stands in the text, and at nothing else."},
    PresetGroup{LooksAt::attention, "attention", "They look at how much rows attended to a token so far."},
    PresetGroup{LooksAt::keys, "keys", "They look at the keys that the cache stores."},
    PresetGroup{LooksAt::values, "values", "They look at values too: what a token adds to the output."},
    PresetGroup{LooksAt::future, "future",
                "They ask what rows to come will attend to: by guessing it, or by knowing the text ahead."},
};

// --- the table ---------------------------------------------------------------------------------------------

constexpr std::array kPresets = {
    PresetRow{.preset = Preset::full,
              .name = "full",
              .looks_at = LooksAt::nothing,
              .help = "Keeps every token: the reference for every measure.",
              .set =
                  [](PolicyParams& p) {
                      p.budget = {AmountUnit::all, 0};
                  },
              .offered = 7},
    PresetRow{.preset = Preset::window,
              .name = "window",
              .title = "Window attention",
              .looks_at = LooksAt::place,
              .help = "Keeps the newest tokens only.",
              .released = "The local baseline of H2O's code counts the step's own token in the budget: it "
                          "stores k - 1 and attends to k.",
              .set =
                  [](PolicyParams& p) {
                      p.recent = {AmountUnit::rest, 0};
                  },
              .count = count_window,
              .front = "recent,sinks",
              .offered = 6},
    PresetRow{.preset = Preset::sink,
              .name = "sink",
              .title = "StreamingLLM",
              .looks_at = LooksAt::place,
              .help = "Keeps the first tokens, which soak up spare attention, and the newest (StreamingLLM, "
                      "Xiao et al. 2023).",
              .released = "The released code rotates every key by its index in the cache, so positions never "
                          "pass the budget.",
              .set =
                  [](PolicyParams& p) {
                      p.sinks = 4;
                      p.recent = {AmountUnit::rest, 0};
                  },
              .fixed = "positions=cache",
              .front = "sinks,recent",
              .offered = 5},
    PresetRow{.preset = Preset::dilated,
              .name = "dilated",
              .title = "Keyformer's dilated window",
              .looks_at = LooksAt::place,
              .help = "Attends to every (dilation + 1)-th of the newest tokens; all between them stay "
                      "stored, since later steps need them (Keyformer, figure 2c).",
              .set =
                  [](PolicyParams& p) {
                      p.recent = {AmountUnit::rest, 0};
                      p.dilation = 1;
                  },
              .front = "dilation"},
    PresetRow{.preset = Preset::key,
              .name = "key",
              .title = "Keyformer's key attention",
              .looks_at = LooksAt::attention,
              .help = "Keeps the tokens with the most accumulated attention and protects none (Keyformer, "
                      "section 2.3).",
              .set = [](PolicyParams&) {},  // accumulated attention alone: the struct's own defaults
              .front = "recent"},
    PresetRow{.preset = Preset::h2o,
              .name = "h2o",
              .looks_at = LooksAt::attention,
              .help = "Keeps the newest tokens and those with the most accumulated attention (H2O, Zhang et "
                      "al. 2023).",
              .released = "The released mask code hides the token that leaves the recent window for one step "
                          "before it competes, attends to k tokens instead of k + 1, truncates the heavy and "
                          "recent shares one by one, and frees nothing.",
              .set =
                  [](PolicyParams& p) {
                      p.recent = {AmountUnit::percent, 50};
                  },
              .fixed = "scope=head",
              .count = count_h2o,
              .truncates_ratios = true,
              .front = "recent",
              .offered = 1},
    PresetRow{.preset = Preset::tova,
              .name = "tova",
              .looks_at = LooksAt::attention,
              .help = "Drops the token that the last step attended to least, one set a layer (TOVA, Oren et "
                      "al. 2024).",
              .released = "The released code reads the whole prompt with full attention and evicts once "
                          "after it, and so do both dialects here; the paper's language-model runs evict "
                          "after every prompt row, which is prefill=stepwise. Its compressed positions "
                          "follow T + ln(ln(g - T + e)), rounded up, where the paper prints ln(ln g).",
              .set =
                  [](PolicyParams& p) {
                      p.alpha = 0;
                      p.scope = Scope::layer;
                  },
              .fixed = "scope=layer,pool=mean",
              .front = "recent,scope",
              .offered = 2},
    PresetRow{.preset = Preset::keyformer,
              .name = "keyformer",
              .looks_at = LooksAt::attention,
              .help = "As H2O, with Gumbel noise and a rising temperature on the scores (Keyformer, Adnan et "
                      "al. 2024).",
              .released = "The released code evicts the token that leaves the recent window, so no generated "
                          "token ever becomes a key token and the keys stay those of the prompt; it draws "
                          "noise anew in every step, lets tau run past its end, attends to k tokens instead "
                          "of k + 1, never evicts with recent 0, and frees nothing.",
              .set =
                  [](PolicyParams& p) {
                      p.recent = {AmountUnit::percent, 30};
                      p.tau.shape = TauSchedule::Shape::linear;
                      p.tau.end = 2;
                      p.noise = NoiseKind::gumbel;
                  },
              .fixed = "scope=head,draw=row,damping=1",
              .count = count_keyformer,
              .front = "recent,tau,horizon",
              .offered = 3},
    PresetRow{.preset = Preset::a2sf,
              .name = "a2sf",
              .looks_at = LooksAt::attention,
              .help = "Accumulates attention and forgets old steps by a factor (A2SF, Jo and Shin 2024).",
              .released = "The released code always keeps the newest token instead of letting it compete, "
                          "truncates shares as int(ratio * n), loses a slot with recent 1, and frees "
                          "nothing.",
              .set = [](PolicyParams& p) { p.alpha = 0.2; },
              .fixed = "scope=head",
              .count = count_a2sf,
              .truncates_ratios = true,
              .front = "recent,alpha",
              .offered = 4},
    PresetRow{.preset = Preset::random,
              .name = "random",
              .looks_at = LooksAt::nothing,
              .help = "Keeps tokens by chance, drawn anew at each eviction: the floor that a policy has to "
                      "beat (Random-Attention 2026; kvpress RandomPress).",
              .set = [](PolicyParams& p) { p.choose.text = "u"; },
              .front = "recent",
              .offered = 10},
    PresetRow{.preset = Preset::oracle,
              .name = "oracle",
              .title = "Ceiling by attention",
              .looks_at = LooksAt::future,
              .help = "Keeps the tokens that a full cache attends to most in the rows to come. It knows the "
                      "text ahead: a ceiling, not a policy.",
              .set = [](PolicyParams& p) { p.choose.text = "future"; },
              .front = "recent"},
    PresetRow{.preset = Preset::knorm,
              .name = "knorm",
              .title = "KNorm",
              .looks_at = LooksAt::keys,
              .help = "Keeps the tokens with the shortest keys; no attention is read (Devoto et al. 2024).",
              .set = [](PolicyParams& p) { p.choose.text = "-knorm"; },
              .front = "recent",
              .offered = 8},
    PresetRow{.preset = Preset::keydiff,
              .name = "keydiff",
              .title = "KeyDiff",
              .looks_at = LooksAt::keys,
              .help =
                  "Keeps the tokens whose keys differ most from the mean direction of all keys, and reads "
                  "the prompt in blocks (Park et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "-keydiff";
                      p.prefill = PrefillMode::stepwise;
                      p.every = 128;
                  },
              .front = "recent,every",
              .offered = 9},
    PresetRow{.preset = Preset::snapkv,
              .name = "snapkv",
              .title = "SnapKV",
              .looks_at = LooksAt::attention,
              .help =
                  "Keeps what the last rows of the prompt attend to, smoothed over neighbours; once after "
                  "the prompt, then the cache grows (Li et al. 2024).",
              .set = [](PolicyParams& p) { set_snapkv(p, 32, 5); },
              .front = "recent,window,kernel,evict,buffer",
              .offered = 11},
    PresetRow{.preset = Preset::pyramidkv,
              .name = "pyramidkv",
              .title = "PyramidKV",
              .looks_at = LooksAt::attention,
              .help =
                  "As SnapKV, with more of the budget for lower layers, window and recent 8 for its 32, and "
                  "kernel max:7 for its avg:5 (Cai et al. 2024). snapkv:pyramid=20 changes the allocation "
                  "alone.",
              .released = "The released code (KVCache-Factory) takes whole steps between layers, so that all "
                          "together store more than they say, and gives all layers the same where the prompt "
                          "is shorter than twice the budget.",
              .set =
                  [](PolicyParams& p) {
                      set_snapkv(p, 8, -7);
                      p.pyramid = 20;
                  },
              .fixed = "scope=head",
              .front = "recent,window,kernel,pyramid",
              .offered = 13},
    PresetRow{
        .preset = Preset::adakv,
        .name = "adakv",
        .title = "Ada-KV",
        .looks_at = LooksAt::attention,
        .help = "As SnapKV, and the heads of a layer share their budgets: a head with many tokens that are "
                "looked at keeps more; kernel max:7 for its avg:5 (Feng et al. 2024). snapkv:alloc=adaptive "
                "changes the allocation alone.",
        .released = "The released code rounds the share of each head by itself, so that a layer stores "
                    "up to a few tokens more or fewer than its budgets together.",
        .set =
            [](PolicyParams& p) {
                set_snapkv(p, 32, -7);
                p.alloc = Alloc::adaptive;
            },
        .fixed = "scope=head",
        .count = [](ResolvedPolicy& policy) { policy.rounds_shares = true; },
        .front = "recent,window,kernel,alloc,floor",
        .offered = 14},
    PresetRow{.preset = Preset::rkv,
              .name = "rkv",
              .title = "R-KV",
              .looks_at = LooksAt::keys,
              .help =
                  "Keeps what the newest rows attend to and drops tokens whose keys resemble others; made "
                  "for long answers (Cai et al. 2025).",
              .released = "The released code takes the largest logit of the query heads and a softmax over "
                          "the tokens before the window alone, spares the first token in rows without a "
                          "like key, and has mix 0.07. Its order of tokens by score after the first "
                          "compression is left out.",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "mix*smooth(win)-(1-mix)*redundancy";
                      p.window = 8;
                      p.recent = {AmountUnit::tokens, 8};
                      p.kernel = -7;
                      p.buffer = 128;
                  },
              .fixed = "scope=head,mix=0.07",
              .count = count_rkv,
              .front = "recent,window,kernel,mix,buffer",
              .offered = 12},
    PresetRow{.preset = Preset::duo,
              .name = "duo",
              .title = "DuoAttention",
              .looks_at = LooksAt::place,
              .help = "Heads that a file names keep everything, the others the first tokens and the newest "
                      "(Xiao et al. 2024). The file is heads=FILE; without one all heads do as the others.",
              .set =
                  [](PolicyParams& p) {
                      p.sinks = 64;
                      p.recent = {AmountUnit::rest, 0};
                  },
              .front = "heads,sinks,recent"},
    PresetRow{.preset = Preset::chunk,
              .name = "chunk",
              .title = "ChunkKV",
              .looks_at = LooksAt::attention,
              .help = "As SnapKV, by blocks of neighbours that stay or leave together, one set a layer (Liu "
                      "et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      set_snapkv(p, 32, 5);
                      p.unit = 20;
                      p.scope = Scope::layer;
                  },
              .front = "recent,window,kernel,unit,evict",
              .offered = 15},
    PresetRow{.preset = Preset::lagkv,
              .name = "lagkv",
              .title = "LagKV",
              .looks_at = LooksAt::values,
              .help = "Keeps tokens whose keys and values stand out against those of the next partition of "
                      "the text; no attention is read (Liang et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "lag";
                      p.window = 128;
                      p.sinks = 4;
                      p.every = 128;
                  },
              .front = "recent,window,sinks,every",
              .offered = 16},
    PresetRow{.preset = Preset::caote,
              .name = "caote",
              .title = "CAOTE",
              .looks_at = LooksAt::values,
              .help = "Drops the token whose loss changes the head's output least, by attention and values "
                      "together (Goel et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      p.alpha = 0;
                      p.choose.text = "caote";
                  },
              .front = "recent,alpha",
              .offered = 17},
    PresetRow{.preset = Preset::kvzip,
              .name = "kvzip",
              .title = "KVzip",
              .looks_at = LooksAt::future,
              .help = "Keeps what the model looks at when it reads the prompt a second time; all heads share "
                      "one budget; once after the prompt (Kim et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "repeat";
                      p.sinks = 4;
                      p.alloc = Alloc::global;
                      p.evict = Evict::prompt;
                  },
              .front = "recent,sinks,alloc",
              .offered = 18},
    PresetRow{.preset = Preset::critical,
              .name = "critical",
              .title = "CriticalKV",
              .looks_at = LooksAt::values,
              .help =
                  "As SnapKV for half of the budget; the rest goes to tokens that are looked at and whose "
                  "values reach the output (Feng et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      set_snapkv(p, 32, 5);
                      p.choose.text = "first(50%, smooth(win), (smooth(win)+1e-4)*wvnorm)";
                  },
              .front = "recent,window,kernel,evict",
              .offered = 19},
    PresetRow{.preset = Preset::expected,
              .name = "expected",
              .title = "Expected Attention",
              .looks_at = LooksAt::future,
              .help = "Keeps what the queries to come will look at, as the mean and spread of past queries "
                      "say, times the length of the value (Devoto et al. 2025).",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "(expected+0.01)*vnorm";
                      p.sinks = 4;
                      p.evict = Evict::prompt;
                      p.alloc = Alloc::adaptive;
                  },
              .front = "recent,sinks,ahead,alloc,floor,evict",
              .offered = 20},
    PresetRow{.preset = Preset::quest,
              .name = "quest",
              .title = "Quest",
              .looks_at = LooksAt::keys,
              .help = "Keeps every token, and each step reads the pages alone whose keys may match its query "
                      "best; the first two layers read all (Tang et al. 2024).",
              .released = "The released evaluation code lets the page of the step's own token compete with "
                          "the others, and reads three pages at least.",
              .set =
                  [](PolicyParams& p) {
                      p.budget = {AmountUnit::all, 0};
                      p.read = {AmountUnit::tokens, 1024};
                      Override first_layers;
                      first_layers.field = Override::Field::read;
                      first_layers.last_layer = 1;
                      first_layers.amount = {AmountUnit::all, 0};
                      p.overrides = {first_layers};
                  },
              .count = count_quest,
              .front = "read,page",
              .offered = 21},
    PresetRow{.preset = Preset::tri,
              .name = "tri",
              .title = "TriAttention",
              .looks_at = LooksAt::future,
              .help = "Keeps the keys that the mean query, turned to places near and far ahead, agrees with; "
                      "made for long answers (TriAttention 2026).",
              .set =
                  [](PolicyParams& p) {
                      p.choose.text = "tri";
                      p.buffer = 128;
                      p.evict = Evict::decode;
                  },
              .front = "recent,pool,buffer,protect",
              .offered = 22},
};

static_assert([] {
    for (std::size_t i = 0; i < kPresets.size(); ++i)
        if (to_index(kPresets[i].preset) != i || kPresets[i].looks_at == LooksAt::unsaid) return false;
    return true;
}());

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
    OtherName{"scissorhands", "Scissorhands is not built in"},
    OtherName{"fastgen", "FastGen is not built in"},
    OtherName{"triattention", "TriAttention is 'tri'"},
};

/// Returns the parts of a list such as "a,b=1".
std::vector<std::string_view> parts_of(std::string_view list) {
    std::vector<std::string_view> parts;
    while (!list.empty()) {
        const std::size_t comma = std::min(list.find(','), list.size());
        parts.push_back(list.substr(0, comma));
        list.remove_prefix(std::min(comma + 1, list.size()));
    }
    return parts;
}

/// The options that a released code fixes, and the parameters that hold their values.
struct Fixed {
    std::vector<const LaneOption*> options;
    PolicyParams values;
};

Fixed parse_fixed(const PresetRow& row) {
    Fixed fixed{{}, preset_params(row.preset)};
    const auto set = [&](std::string_view item) {
        fixed.values = changed_lane_spec({fixed.values}, item).policy;
        fixed.options.push_back(&lane_option(item.substr(0, item.find('='))));
    };
    set("prefill=oneshot");
    set("every=1");
    for (const std::string_view item : parts_of(row.fixed)) set(item);
    return fixed;
}

const Fixed& fixed_of(Preset preset) {
    static const std::vector<Fixed> all = [] {
        std::vector<Fixed> parsed;
        for (const PresetRow& row : kPresets) parsed.push_back(parse_fixed(row));
        return parsed;
    }();
    return all[to_index(preset)];
}

}  // namespace

std::span<const PresetRow> presets() {
    return kPresets;
}

const PresetRow& preset_row(Preset preset) {
    KH_ASSERT(to_index(preset) < kPresets.size(), "preset {} has no row", static_cast<int>(preset));
    return kPresets[to_index(preset)];
}

std::span<const PresetGroup> preset_groups() {
    return kGroups;
}

std::vector<const PresetRow*> presets_that_look_at(LooksAt what) {
    std::vector<const PresetRow*> rows;
    for (const PresetRow& row : kPresets)
        if (row.looks_at == what) rows.push_back(&row);
    return rows;
}

std::vector<Preset> offered_presets() {
    std::vector<Preset> offered;
    for (int place = 1; place <= static_cast<int>(kPresets.size()); ++place)
        for (const PresetRow& row : kPresets)
            if (row.offered == place) offered.push_back(row.preset);
    return offered;
}

std::vector<std::string_view> front_options(Preset preset) {
    return parts_of(preset_row(preset).front);
}

PolicyParams preset_params(Preset preset) {
    PolicyParams params;
    params.preset = preset;
    preset_row(preset).set(params);
    return params;
}

bool has_released_code(Preset preset) {
    return !preset_row(preset).released.empty();
}

PolicyParams with_released_values(PolicyParams params) {
    if (params.dialect != Dialect::released) return params;
    const Fixed& fixed = fixed_of(params.preset);
    for (const LaneOption* option : fixed.options) copy_option(*option, fixed.values, params);
    return params;
}

bool is_fixed_by_release(Preset preset, std::string_view option) {
    const auto& options = fixed_of(preset).options;
    return std::any_of(options.begin(), options.end(),
                       [&](const LaneOption* fixed) { return fixed->name == option; });
}

std::span<const OtherName> other_preset_names() {
    return kOtherNames;
}

std::string_view preset_name(Preset preset) {
    return preset_row(preset).name;
}

std::string_view preset_title(Preset preset) {
    return preset_row(preset).title;
}

std::string_view preset_help(Preset preset) {
    return preset_row(preset).help;
}

std::string_view dialect_help(Preset preset) {
    return has_released_code(preset) ? preset_row(preset).released
                                     : "It has no dialect of its released code.";
}

}  // namespace keyhole
