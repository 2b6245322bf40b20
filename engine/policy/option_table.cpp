#include "engine/policy/option_table.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <type_traits>

namespace keyhole {
namespace {

using Acts = LaneOption::Acts;
using Field = Override::Field;

/// Scores are floats: with larger factors their sums could become infinite, and infinite scores have no
/// order.
constexpr double kMostFactor = 1e6;

constexpr OptionBounds kCount{0, kMostTokens}, kFactor{0, kMostFactor};

// --- words -------------------------------------------------------------------------------------------------

template <class T>
constexpr OptionWord word(std::string_view text, T value, std::string_view label = {}) {
    return {text, static_cast<int>(value), label};
}

constexpr std::array kNoiseWords = {word("none", NoiseKind::none), word("gumbel", NoiseKind::gumbel),
                                    word("gaussian", NoiseKind::gaussian),
                                    word("constant", NoiseKind::constant)};
constexpr std::array kDrawWords = {word("token", NoiseDraw::token, "per token"),
                                   word("row", NoiseDraw::row, "per row")};
constexpr std::array kScopeWords = {word("head", Scope::head, "KV head"), word("layer", Scope::layer),
                                    word("shared", Scope::shared, "whole model"),
                                    word("column", Scope::column, "KV head of all layers")};
constexpr std::array kPoolWords = {word("mean", Pool::mean), word("sum", Pool::sum), word("max", Pool::max)};
constexpr std::array kPrefillWords = {word("oneshot", PrefillMode::oneshot, "whole prompt first"),
                                      word("stepwise", PrefillMode::stepwise, "after every token")};
constexpr std::array kEvictWords = {word("always", Evict::always),
                                    word("prompt", Evict::prompt, "after the prompt"),
                                    word("decode", Evict::decode, "while decoding")};
constexpr std::array kScoreWords = {word("fp32", ScoreType::fp32), word("fp16", ScoreType::fp16),
                                    word("bf16", ScoreType::bf16)};
constexpr std::array kKvTypeWords = {word("auto", KvType::automatic), word("f32", KvType::f32),
                                     word("f16", KvType::f16), word("bf16", KvType::bf16),
                                     word("q8", KvType::q8)};
constexpr std::array kDialectWords = {word("paper", Dialect::paper), word("released", Dialect::released)};
constexpr std::array kPositionWords = {word("original", Positions::original),
                                       word("cache", Positions::cache, "cache index"),
                                       word("compressed", Positions::compressed)};
constexpr std::array kAllocWords = {word("uniform", Alloc::uniform, "each head its own"),
                                    word("adaptive", Alloc::adaptive, "heads of a layer"),
                                    word("global", Alloc::global, "the whole model")};
constexpr std::array kKernelWords = {
    OptionWord{"none", 0},   OptionWord{"avg:3", 3},  OptionWord{"avg:5", 5},
    OptionWord{"avg:7", 7},  OptionWord{"avg:9", 9},  OptionWord{"max:3", -3},
    OptionWord{"max:5", -5}, OptionWord{"max:7", -7}, OptionWord{"max:9", -9},
};
constexpr std::array kSwitchWords = {word("on", true), word("off", false)};
constexpr std::array kMergeWords = {word("uniform", KvMerge::uniform), word("released", KvMerge::released)};

/// Makes the member of an option whose value is one of a few words.
template <class Owner, class T, T Owner::*Member>
constexpr WordsOf<Owner> make_words(std::span<const OptionWord> words, std::string_view beside) {
    return {words, [](const Owner& owner) { return static_cast<int>(owner.*Member); },
            [](Owner& owner, int value) { owner.*Member = static_cast<T>(value); }, beside,
            std::is_same_v<T, bool>};
}

template <auto Member>
constexpr auto words_of(std::span<const OptionWord> words, std::string_view beside = {}) {
    return []<class Owner, class T>(T Owner::*, std::span<const OptionWord> of, std::string_view text) {
        return make_words<Owner, T, Member>(of, text);
    }(Member, words, beside);
}

// --- faults and idleness that only one option knows --------------------------------------------------------

std::string budget_fault(const PolicyParams& params) {
    if (params.preset == Preset::full && params.budget.unit != Amount::Unit::all)
        return "full keeps every token; take another preset to set a budget";
    return params.budget.unit == Amount::Unit::rest ? "budget cannot be 'rest'" : "";
}

std::string recent_fault(const PolicyParams& params) {
    if (params.recent.unit == Amount::Unit::beside) return "recent is no number beside the prompt";
    return params.recent.unit == Amount::Unit::all ? "recent cannot be 'all'; say 'rest'" : "";
}

std::string dilation_fault(const PolicyParams& params) {
    const bool right = params.preset == Preset::dilated
                           ? params.dilation >= 1 && params.dilation <= kMostTokens
                           : params.dilation == 0;
    return right ? ""
                 : fmt::format("dilation is 1 or more in preset dilated and 0 in all others, and at most {}",
                               kMostTokens);
}

std::string dialect_fault(const PolicyParams& params) {
    return params.dialect == Dialect::released && !has_released_code(params.preset)
               ? "this preset has no dialect of its released code; its dialect is paper"
               : "";
}

/// Of the choice and of what is protected. member: the formula's own; a released code has that of its preset.
std::string formula_fault(std::string_view name, const FormulaRef& formula, const FormulaFault& fault,
                          const PolicyParams& params, FormulaText PolicyParams::*member) {
    if (!fault.what.empty()) return fmt::format("{}, character {}: {}", name, fault.at + 1, fault.what);
    if (!formula) return "";
    if (params.dialect == Dialect::released && !(params.*member == preset_params(params.preset).*member))
        return fmt::format("a released code chooses in its own way; {} needs dialect=paper", name);
    if (formula->names(Quantity::future) && params.prefill == PrefillMode::stepwise)
        return "future begins after the prompt, so it takes prefill=oneshot";
    if (formula->names(Quantity::repeat) && params.prefill == PrefillMode::stepwise)
        return "repeat needs the whole prompt before tokens leave, so it takes prefill=oneshot";
    return "";
}

std::string choose_fault(const PolicyParams& params) {
    FormulaFault fault;
    const FormulaRef formula = choose_formula(params, &fault);
    return formula_fault("choose", formula, fault, params, &PolicyParams::choose);
}

std::string alloc_fault(const PolicyParams& params) {
    if (params.alloc == Alloc::uniform) return "";
    if (params.dialect == Dialect::released && params.alloc != preset_params(params.preset).alloc)
        return "the released code of this preset shares no budget; alloc needs dialect=paper";
    if (params.scope != Scope::head)
        return "alloc shares budgets between KV heads, each with a set of its own: it takes scope=head";
    return "";
}

std::string floor_fault(const PolicyParams& params) {
    return params.floor.unit != Amount::Unit::percent || !(params.floor.value <= 100)
               ? "floor is a share of a head's budget, from 0% to 100%"
               : "";
}

std::string pyramid_fault(const PolicyParams& params) {
    if (params.pyramid <= 0) return "";
    if (params.pyramid < 1) return "pyramid is 1 or more, or 0 for layers that are alike";
    if (spans_layers(params.scope))
        return fmt::format(
            "pyramid gives layers budgets of their own, and scope={} keeps one set for all; take another "
            "scope",
            params.scope == Scope::shared ? "shared" : "column");
    return params.dialect == Dialect::released && preset_params(params.preset).pyramid <= 0
               ? "the released code of this preset has one budget for all layers; "
                 "pyramid needs dialect=paper"
               : "";
}

std::string heads_fault(const PolicyParams& params) {
    if (params.heads.empty()) return "";
    if (params.preset == Preset::full)
        return "full keeps every token; take another preset to give heads budgets";
    if (params.dialect == Dialect::released)
        return "the released code of this preset has one budget for all heads; heads needs dialect=paper";
    if (with_released_values(params).scope != Scope::head)
        return "heads gives KV heads budgets of their own: it takes scope=head";
    if (params.pyramid > 0) return "pyramid and heads both give out budgets; leave one of them out";
    if (params.alloc != Alloc::uniform) return "alloc and heads both give out budgets; leave one of them out";
    return head_table_fault(params.heads);
}

std::string_view idle_heads(const PolicyParams& params, const HeadGrid&) {
    return params.heads.empty() ? "All heads have the lane's budget: no file of budgets is given." : "";
}

std::string_view idle_floor(const PolicyParams& params, const HeadGrid&) {
    return params.alloc == Alloc::adaptive ? "" : "Only alloc=adaptive leaves each head a floor.";
}

std::string score_fault(const PolicyParams& params) {
    FormulaFault fault;
    const FormulaRef formula = score_formula(params, &fault);
    if (formula && !is_of_rows(*formula) && params.choose.text != "s")
        return "score names nothing of a row, so it is what a selection ranks, and choose says that too; "
               "leave one of them out";
    return formula_fault("score", formula, fault, params, &PolicyParams::score);
}

std::string protect_fault(const PolicyParams& params) {
    FormulaFault fault;
    const FormulaRef formula = protect_formula(params, &fault);
    return formula_fault("protect", formula, fault, params, &PolicyParams::protect);
}

std::string unit_fault(const PolicyParams& params) {
    if (params.unit == 1) return "";
    if (params.dialect == Dialect::released)
        return "a released code evicts token by token; unit needs dialect=paper";
    return params.alloc != Alloc::uniform
               ? "alloc counts tokens, and unit keeps them in blocks; leave one of them out"
               : "";
}

std::string threshold_fault(const PolicyParams& params) {
    if (params.threshold == 0) return "";
    if (params.dialect == Dialect::released)
        return "a released code evicts by number; threshold needs dialect=paper";
    if (params.alloc != Alloc::uniform)
        return "alloc shares a number of tokens, and threshold keeps no number; leave one of them out";
    return params.unit > 1 ? "threshold looks at single tokens, and unit at blocks; leave one of them out"
                           : "";
}

std::string evict_fault(const PolicyParams& params) {
    return params.dialect == Dialect::released && params.evict != preset_params(params.preset).evict
               ? "a released code evicts when it evicts; evict needs dialect=paper"
               : "";
}

std::string buffer_fault(const PolicyParams& params) {
    const int of_code = preset_params(params.preset).buffer;  // where it has one, its scripts set it
    return params.dialect == Dialect::released && of_code == 0 && params.buffer != of_code
               ? "a released code evicts when it evicts; buffer needs dialect=paper"
               : "";
}

/// Returns whether choose or protect names a quantity.
bool selection_names(const PolicyParams& params, Quantity q) {
    const FormulaRef choose = choose_formula(params), protect = protect_formula(params),
                     score = score_formula(params);
    return (choose && choose->names(q)) || (protect && protect->names(q)) || (score && score->names(q));
}

std::string spans_fault(const PolicyParams& params) {
    FormulaFault fault;
    const Spans spans = spans_of(params.spans.text, &fault);
    if (!fault.what.empty()) return fmt::format("spans, character {}: {}", fault.at + 1, fault.what);
    if (!spans.fair) return "";
    if (params.dialect == Dialect::released)
        return "a released code has one budget for the whole text; fair spans need dialect=paper";
    if (params.preset == Preset::dilated)
        return "a dilated window keeps the newest tokens alone; fair spans take another preset";
    if (params.alloc != Alloc::uniform || !params.heads.empty())
        return "fair spans and alloc or heads both give out budgets; leave one of them out "
               "(alloc=uniform where the preset has an alloc)";
    if (params.read.unit != Amount::Unit::all)
        return "read and fair spans both cut the text; leave one of them out";
    if (params.damping != 1) return "damping is no part of the scores of fair spans; leave one of them out";
    (void)score_formula(params.score.text, &fault, {0, params.spans.text, true});
    return fault.what.empty() ? "" : fmt::format("score and fair spans together: {}", fault.what);
}

std::string_view idle_window(const PolicyParams& params, const HeadGrid&) {
    return selection_names(params, Quantity::win) || selection_names(params, Quantity::window) ||
                   selection_names(params, Quantity::lag)
               ? ""
               : "No formula names win, the mean over the newest rows, or lag, which it cuts into parts.";
}

std::string_view idle_ahead(const PolicyParams& params, const HeadGrid&) {
    return selection_names(params, Quantity::expected)
               ? ""
               : "No formula names expected, which looks at coming positions.";
}

std::string calibration_fault(const PolicyParams& params) {
    const Calibration* known = params.calibration.read.get();
    return known != nullptr && !known->has_covariance && selection_names(params, Quantity::expected)
               ? "expected needs the covariance of queries, and the file of calibration has none"
               : "";
}

std::string_view idle_calibration(const PolicyParams& params, const HeadGrid&) {
    if (!selection_names(params, Quantity::expected) && !selection_names(params, Quantity::tri))
        return "No formula names expected or tri, which rank by queries.";
    return params.calibration ? "" : "The lane's own queries are taken: no file is given.";
}

std::string read_fault(const PolicyParams& params) {
    if (params.read.unit == Amount::Unit::all) return "";
    if (params.read.unit != Amount::Unit::tokens) return "read is a number of tokens, such as 1024, or all";
    if (params.preset == Preset::dilated)
        return "a dilated window reads its own gaps; read takes another preset";
    return params.unit > 1 ? "read and unit both cut the text into blocks; leave one of them out" : "";
}

std::string_view idle_read(const PolicyParams& params, const HeadGrid&) {
    return params.positions != Positions::original
               ? "Bounds are of keys as they are stored: with other positions each step reads all."
               : "";
}

std::string_view idle_page(const PolicyParams& params, const HeadGrid&) {
    const bool reads_all = params.read.unit == Amount::Unit::all &&
                           std::none_of(params.overrides.begin(), params.overrides.end(),
                                        [](const Override& o) { return o.field == Field::read; });
    return reads_all ? "Every step reads all that is stored: read is all." : idle_read(params, {});
}

std::string_view idle_mix(const PolicyParams& params, const HeadGrid&) {
    return selection_names(params, Quantity::mix) ? "" : "No formula names mix.";
}

std::string_view idle_kernel(const PolicyParams& params, const HeadGrid&) {
    // Another kernel makes another formula where smooth takes it.
    const auto operations = [&](int kernel) {
        const FormulaRef choose = choose_formula(params.choose.text, nullptr, {kernel, params.spans.text}),
                         protect = protect_formula(params.protect.text, nullptr, {kernel, params.spans.text});
        return (choose ? choose->n_ops : 0) + (protect ? protect->n_ops : 0);
    };
    return operations(0) == operations(5) ? "No formula has a smooth(x) that leaves its kernel open." : "";
}

std::string_view idle_score(const PolicyParams& params, const HeadGrid&) {
    const FormulaRef choose = choose_formula(params), protect = protect_formula(params);
    const auto reads = [](const FormulaRef& f) { return f->names(Quantity::s) || f->names(Quantity::caote); };
    const bool is_read = !choose || reads(choose) || (protect && reads(protect));
    return is_read ? "" : "choose ranks by other things, and no score is read.";
}

std::string_view idle_choose(const PolicyParams& params, const HeadGrid&) {
    const FormulaRef formula = choose_formula(params);
    if (!formula) return "";
    for (int q = 0; q < kQuantities; ++q)
        if (formula->names(static_cast<Quantity>(q)) && differs_by_token(static_cast<Quantity>(q))) return "";
    return "It gives all tokens one value and decides nothing: ties keep the newest.";
}

std::string_view idle_recent(const PolicyParams& params, const HeadGrid&) {
    return params.preset == Preset::dilated ? "A dilated window keeps the whole span of its budget." : "";
}

std::string_view idle_horizon(const PolicyParams& params, const HeadGrid&) {
    switch (params.tau.shape) {
        case TauSchedule::Shape::constant:
            return "tau is constant.";
        case TauSchedule::Shape::points:
            return "The points of tau name their steps themselves.";
        case TauSchedule::Shape::linear:
            return params.tau_delta > 0 ? "tau_delta says how fast tau rises." : "";
        case TauSchedule::Shape::cosine:
            break;
    }
    return "";
}

std::string_view idle_tau_delta(const PolicyParams& params, const HeadGrid&) {
    return params.tau.shape != TauSchedule::Shape::linear
               ? "Only a linear tau, such as 1..2, rises by the same amount in every step."
               : "";
}

std::string_view idle_gain(const PolicyParams& params, const HeadGrid&) {
    if (params.noise == NoiseKind::none) return "There is no noise.";
    if (params.noise == NoiseKind::constant)
        return "A constant shifts all logits alike, and softmax does not see shifts.";
    return "";
}

std::string_view idle_draw(const PolicyParams& params, const HeadGrid& heads) {
    const std::string_view idle = idle_gain(params, heads);
    return idle.empty() && params.gain == 0 ? "The gain is 0: there is no noise." : idle;
}

std::string_view idle_seed(const PolicyParams& params, const HeadGrid& heads) {
    return selection_names(params, Quantity::u) ? "" : idle_draw(params, heads);
}

std::string_view idle_damping(const PolicyParams& params, const HeadGrid&) {
    return params.alpha == 0 ? "alpha 0 keeps the last step alone; one factor on all of it changes no rank."
                             : "";
}

std::string_view idle_pool(const PolicyParams& params, const HeadGrid& heads) {
    if (params.scope != Scope::head || heads.kv_head.empty()) return "";
    const int n_kv = *std::max_element(heads.kv_head.begin(), heads.kv_head.end()) + 1;
    return n_kv == heads.n_layers * heads.n_heads
               ? "Each KV head of this model has one query head: nothing is pooled."
               : "";
}

std::string_view idle_dilation(const PolicyParams& params, const HeadGrid&) {
    return params.preset == Preset::dilated ? "" : "Only the preset dilated skips tokens.";
}

std::string_view idle_dialect(const PolicyParams& params, const HeadGrid&) {
    return has_released_code(params.preset) ? "" : "This preset has no dialect of its released code.";
}

// --- the table ---------------------------------------------------------------------------------------------

constexpr std::array kOptions = {
    LaneOption{.name = "preset",
               .help = "The named policy that the other options start from. Presets are points in one space: "
                       "every option may be moved away from them.",
               .paper = "one paper each: see the preset",
               .acts = Acts::always},
    LaneOption{.name = "budget",
               .member = &PolicyParams::budget,
               .values = "64  50%  prompt+64  all",
               .help = "Tokens that stay in the cache after each step; a percentage is a share of the "
                       "prompt, and prompt+64 is 64 tokens beside it.",
               .paper = "k in all papers; cache ratio in A2SF",
               .acts = Acts::evicting,
               .card_row = 1,
               .of_preset = true,
               .by_head = Field::budget,
               .fault = budget_fault},
    LaneOption{.name = "recent",
               .word = "recent window",
               .member = &PolicyParams::recent,
               .values = "32  30%  rest",
               .help = "The newest tokens, which are always kept, inside the budget; a percentage is a share "
                       "of it. The rest of the budget goes to the tokens with the best scores.",
               .paper = "w: Keyformer, section 3.4 and figure 12; H2O, section 4",
               .card_row = 2,
               .of_preset = true,
               .by_head = Field::recent,
               .fault = recent_fault,
               .idle = idle_recent},
    LaneOption{.name = "sinks",
               .word = "attention sinks",
               .member = &PolicyParams::sinks,
               .values = "0  4",
               .help = "The first tokens, which are always kept, inside the budget.",
               .paper = "StreamingLLM, section 3.2; Window+i: TOVA, section 5.1",
               .bounds = kCount,
               .drag = {.high = 4096},
               .card_row = 3,
               .of_preset = true},
    LaneOption{.name = "alpha",
               .word = "forgetting factor",
               .member = &PolicyParams::alpha,
               .values = "0  0.2  1",
               .help = "Forgetting factor: a step's scores count this much in the next step. 1 sums all, 0 "
                       "keeps the last step alone.",
               .paper = "A2SF, section 3.3; 0: TOVA, section 4",
               .bounds = OptionBounds{0, 1},
               .drag = {0.004f, 0, 1, "%.3f"},
               .acts = Acts::scores,
               .card_row = 5,
               .of_preset = true,
               .of_rows = true,
               .by_head = Field::alpha},
    LaneOption{.name = "tau",
               .word = "temperature",
               .member = &PolicyParams::tau,
               .values = "1  1..2  1..2@cosine  (0:1 20:1.4 100:2)",
               .help = "Temperature of the score's softmax, constant or a schedule over the decode steps. "
                       "High values even the scores out. Attention itself keeps temperature 1.",
               .paper = "Keyformer, section 3.3.1, equation (10), and section A.8",
               .acts = Acts::scores,
               .card_row = 6,
               .of_preset = true,
               .of_rows = true,
               .by_head = Field::tau},
    LaneOption{.name = "horizon",
               .word = "steps of its rise",
               .member = &PolicyParams::horizon,
               .values = "0  256",
               .help = "T, the decode steps over which tau runs from its first to its last value; 0: the "
                       "number of tokens to generate, 256 if that is open.",
               .paper = "Keyformer, equation (10)",
               .bounds = kCount,
               .drag = {0.1f, 0, 100000, "%d steps", 0, "auto"},
               .acts = Acts::scores,
               .card_row = 7,
               .of_rows = true,
               .idle = idle_horizon},
    LaneOption{.name = "tau_delta",
               .word = "rise in a step",
               .member = &PolicyParams::tau_delta,
               .values = "0  0.01",
               .help = "The rise of a linear tau in every decode step until it reaches its last value; 0: "
                       "the horizon says how fast it rises.",
               .paper = "delta tau: Keyformer, equation (10); 0.01 in its code where no script sets it",
               .bounds = kFactor,
               .drag = {0.001f, 0, 10, "+%.3f a step", 0, "by horizon"},
               .acts = Acts::scores,
               .card_row = 7,
               .of_rows = true,
               .idle = idle_tau_delta},
    LaneOption{.name = "noise",
               .member = words_of<&PolicyParams::noise>(kNoiseWords),
               .help = "Added to the logits before the score's softmax, so that the kept set is partly a "
                       "draw. A constant changes nothing: softmax does not see shifts.",
               .paper = "Keyformer, sections 3.1, 3.2 and 4.4.3 (table 4)",
               .acts = Acts::scores,
               .card_row = 8,
               .of_preset = true,
               .of_rows = true},
    LaneOption{.name = "draw",
               .member = words_of<&PolicyParams::draw>(kDrawWords),
               .help = "Noise drawn once a token for the whole run (the paper), or anew in every step (the "
                       "released code), so that it averages out.",
               .paper = "Keyformer, algorithm 1",
               .acts = Acts::scores,
               .card_row = 8,
               .of_rows = true,
               .idle = idle_draw},
    LaneOption{.name = "gain",
               .member = &PolicyParams::gain,
               .values = "1",
               .help = "Factor on the noise.",
               .paper = "1 in Keyformer; other values are Keyhole's",
               .bounds = OptionBounds{-kMostFactor, kMostFactor},
               .drag = {0.01f, 0, 20, "%.2f"},
               .acts = Acts::scores,
               .card_row = 9,
               .of_rows = true,
               .by_head = Field::gain,
               .idle = idle_gain},
    LaneOption{.name = "scope",
               .word = "one kept set for each",
               .member = words_of<&PolicyParams::scope>(kScopeWords),
               .help =
                   "The scope of a kept set: one set a KV head, one a layer, one for the whole model, or one "
                   "for the KV heads of equal number of all layers.",
               .paper = "TOVA, section 4 and appendix A; shared: Keyformer, section 4.4.1 (table 3)",
               .acts = Acts::scores,
               .card_row = 11,
               .of_preset = true},
    LaneOption{.name = "pool",
               .member = words_of<&PolicyParams::pool>(kPoolWords),
               .help = "How the scores of the query heads that share a set become one score.",
               .paper = "mean: TOVA, section 4; sum and max: practice under GQA",
               .acts = Acts::scores,
               .card_row = 11,
               .idle = idle_pool},
    LaneOption{.name = "alloc",
               .word = "who shares the budget",
               .member = words_of<&PolicyParams::alloc>(kAllocWords),
               .help =
                   "Whether each KV head keeps its own budget, or the heads of a layer or of the model share "
                   "the sum, so that heads with many good tokens keep more.",
               .paper = "adaptive: Ada-KV, section 3; global: KVzip",
               .card_row = 21,
               .of_preset = true,
               .fault = alloc_fault},
    LaneOption{.name = "floor",
               .member = &PolicyParams::floor,
               .values = "20%  0%",
               .help =
                   "The share of its own budget that a head keeps in any case, where the heads of a layer "
                   "share theirs.",
               .paper = "safeguard: Ada-KV, section 3; 20% in its code",
               .card_row = 21,
               .of_preset = true,
               .fault = floor_fault,
               .idle = idle_floor},
    LaneOption{.name = "pyramid",
               .member = &PolicyParams::pyramid,
               .values = "0  20",
               .help =
                   "Gives lower layers more of the budget: the top layer keeps 1/pyramid of the mean beside "
                   "the newest tokens, in a straight line down to the lowest. 0: all layers alike.",
               .paper = "beta: PyramidKV, section 4; 20 in its code",
               .bounds = OptionBounds{0, 1000},
               .drag = {0.1f, 0, 100, "%.0f", 0, "off"},
               .card_row = 20,
               .of_preset = true,
               .fault = pyramid_fault},
    LaneOption{.name = "heads",
               .word = "budgets by head",
               .member = &PolicyParams::heads,
               .values = "none  FILE  (64 all / 2*1x)",
               .help =
                   "Budgets of the KV heads, from a file: Keyhole's own, or one that DuoAttention or HeadKV "
                   "published. The lane keeps the numbers, a row for each layer.",
               .paper = "retrieval heads: DuoAttention, section 2.2; HeadKV, section 3",
               .card_row = 22,
               .of_preset = true,
               .fault = heads_fault,
               .idle = idle_heads},
    LaneOption{.name = "score",
               .member = &PolicyParams::score,
               .values = "attention  (s+p)  (0.2*s+p)  (max(s, p))",
               .help = "What a row makes of a token's score, a formula for each query head: s is the score "
                       "before the row, p the row's probability. attention is alpha*s+ptau. A formula that "
                       "names nothing of a row is taken as choose.",
               .paper = "s+p: H2O, section 4; the language is Keyhole's",
               .acts = Acts::scores,
               .card_row = 19,
               .of_preset = true,
               .by_head = Field::score,
               .fault = score_fault,
               .idle = idle_score},
    LaneOption{.name = "choose",
               .member = &PolicyParams::choose,
               .values = "s  (-knorm)  (u)  (smooth(win))  (s/(age+1))",
               .help = "What a selection ranks, a formula of each stored token; the larger stays. s is the "
                       "score. A selection computes it anew.",
               .paper = "KNorm: Devoto et al. 2024, section 3; KeyDiff: Park et al. 2025, section 3; the "
                        "language is Keyhole's",
               .acts = Acts::scores,
               .card_row = 16,
               .of_preset = true,
               .by_head = Field::choose,
               .fault = choose_fault,
               .idle = idle_choose},
    LaneOption{.name = "window",
               .word = "rows observed",
               .member = &PolicyParams::window,
               .values = "32  8",
               .help =
                   "The newest rows whose attention win is the mean of, kept only by lanes whose formulas "
                   "name it; for lag, the tokens of a partition.",
               .paper = "observation window: SnapKV, section 4; 8 in R-KV",
               .bounds = OptionBounds{1, kMostWindow},
               .drag = {0.1f, 1, kMostWindow, "%d rows", 1, "1 row"},
               .acts = Acts::scores,
               .card_row = 18,
               .of_preset = true,
               .idle = idle_window},
    LaneOption{.name = "kernel",
               .word = "smoothing",
               .member = words_of<&PolicyParams::kernel>(kKernelWords),
               .values = "none  avg:3  avg:5  avg:7  avg:9  max:3  max:5  max:7  max:9",
               .help = "How smooth(x) joins a token's value with those of its neighbours, so that runs of "
                       "tokens stay together.",
               .paper = "avg:5: SnapKV, section 4; max:7 in its LongBench runs and in R-KV",
               .acts = Acts::scores,
               .card_row = 18,
               .of_preset = true,
               .idle = idle_kernel},
    LaneOption{.name = "mix",
               .word = "weight of attention",
               .member = &PolicyParams::mix,
               .values = "0.1  0.5",
               .help = "The share of attention in R-KV's rank; the rest goes against tokens whose keys "
                       "resemble others. Formulas name it.",
               .paper = "lambda: R-KV, equation (5); 0.07 in its code, 0.5 in other papers",
               .bounds = OptionBounds{0, 1},
               .drag = {0.004f, 0, 1, "%.2f"},
               .acts = Acts::scores,
               .card_row = 20,
               .of_preset = true,
               .idle = idle_mix},
    LaneOption{.name = "protect",
               .member = &PolicyParams::protect,
               .values = "none  prompt  system  0..15  (position<4 or age<8)",
               .help = "Tokens that never compete, beside sinks and recent, inside the budget: the prompt, "
                       "the system part of a chat, positions, or where a formula holds. Equal protection "
                       "makes lanes comparable.",
               .paper = "the prompt: Random-Attention 2026, section 4",
               .card_row = 17,
               .by_head = Field::protect,
               .fault = protect_fault},
    LaneOption{.name = "spans",
               .word = "named positions",
               .member = &PolicyParams::spans,
               .values = "none  (rules@0..31 text@32..)  (fair rules@0..31 text@32..)  fair",
               .help = "Positions with names, for in(NAME) in formulas; alone they change nothing. fair "
                       "divides the budget over them by "
                       "their lengths, and each keeps its best tokens, by its own rows; a window of rows is "
                       "divided in equal parts. fair alone: the system part of a chat and the rest.",
               .paper = "fair eviction: 2510.00231, pitfalls of KV cache compression",
               .card_row = 27,
               .fault = spans_fault},
    LaneOption{.name = "prefill",
               .member = words_of<&PolicyParams::prefill>(kPrefillWords),
               .help = "Evict once when the whole prompt is processed, or after every token of the prompt "
                       "beyond the budget, so that later tokens of the prompt already see less.",
               .paper = "stepwise: TOVA's language-model runs, section 6.1; oneshot: all released code",
               .card_row = 12,
               .of_preset = true},
    LaneOption{.name = "every",
               .member = &PolicyParams::every,
               .values = "1  8",
               .help = "Steps between evictions: between them the cache grows, so its size is a sawtooth.",
               .paper = "Keyformer's shrinking code: every 8",
               .bounds = OptionBounds{1, kMostTokens},
               .drag = {0.1f, 1, 1024, "%d steps", 1, "1 step"},
               .card_row = 3,
               .of_preset = true},
    LaneOption{.name = "buffer",
               .member = &PolicyParams::buffer,
               .values = "0  128",
               .help = "Tokens over the budget at which an eviction is due; it goes back down to the budget. "
                       "0: one is enough. With every, both must hold.",
               .paper = "128 in R-KV and TriAttention, 64 in Random-Attention",
               .bounds = kCount,
               .drag = {.high = 4096},
               .card_row = 4,
               .of_preset = true,
               .fault = buffer_fault},
    LaneOption{.name = "unit",
               .word = "tokens that leave together",
               .member = &PolicyParams::unit,
               .values = "1  16",
               .help = "Tokens of the text that stay or leave as one block, by the mean of what they rank. "
                       "Whole blocks leave, so that less than the budget may stay.",
               .paper = "chunks: ChunkKV, section 3; 20 in kvpress, 32 in OpenVINO",
               .bounds = OptionBounds{1, 4096},
               .drag = {0.1f, 1, 256, "%d tokens", 1, "1 token"},
               .card_row = 16,
               .of_preset = true,
               .fault = unit_fault},
    LaneOption{.name = "threshold",
               .word = "least rank that stays",
               .member = &PolicyParams::threshold,
               .values = "0  0.01",
               .help = "Tokens that compete and rank below this number leave, even where the budget has room "
                       "for them. budget=all: nothing else leaves. 0: no threshold.",
               .paper = "theta: DMS and KVzap; DMSPress of kvpress",
               .bounds = OptionBounds{-1e9, 1e9},
               .drag = {0.001f, -1000, 1000, "%.4f", 0, "none"},
               .acts = Acts::evicting,
               .card_row = 26,
               .of_preset = true,
               .fault = threshold_fault},
    LaneOption{.name = "evict",
               .member = words_of<&PolicyParams::evict>(kEvictWords),
               .help = "When tokens may leave: always, once after the prompt (the cache then grows), or from "
                       "the first decode step on (the prompt stays whole until then).",
               .paper = "prompt: SnapKV, section 3, and most code since; decode: kvpress",
               .card_row = 12,
               .of_preset = true,
               .fault = evict_fault},
    LaneOption{.name = "ahead",
               .word = "positions looked ahead",
               .member = &PolicyParams::ahead,
               .values = "512  64",
               .help = "How many coming positions expected looks at: the mean over their rotations.",
               .paper = "Expected Attention, section 3; 512 in kvpress",
               .bounds = OptionBounds{1, 1 << 20},
               .drag = {1.0f, 1, 4096, "%d positions", 1, "1 position"},
               .acts = Acts::scores,
               .card_row = 24,
               .of_preset = true,
               .idle = idle_ahead},
    LaneOption{.name = "calibration",
               .word = "queries of another text",
               .member = &PolicyParams::calibration,
               .values = "none  FILE",
               .help = "Queries that expected and tri rank by, from a file that --export queries wrote of "
                       "another text; without one, the lane's own.",
               .paper = "TriAttention, section 3: statistics of a text of some thousand tokens",
               .acts = Acts::scores,
               .card_row = 25,
               .of_preset = true,
               .fault = calibration_fault,
               .idle = idle_calibration},
    LaneOption{.name = "read",
               .word = "tokens that a step reads",
               .member = &PolicyParams::read,
               .values = "all  1024",
               .help = "Stored tokens that a decode step attends to, in whole pages: those whose keys may "
                       "match its query best, and its own. Nothing leaves. Rows of the prompt read all.",
               .paper = "token budget: Quest, section 3",
               .acts = Acts::always,
               .card_row = 23,
               .of_preset = true,
               .by_head = Field::read,
               .fault = read_fault,
               .idle = idle_read},
    LaneOption{.name = "page",
               .word = "tokens of a page",
               .member = &PolicyParams::page,
               .values = "16  32",
               .help = "Neighbours in the text that a step reads together or not at all.",
               .paper = "page size: Quest, section 3; 16 in its code",
               .bounds = OptionBounds{1, 4096},
               .drag = {0.1f, 1, 256, "%d tokens", 1, "1 token"},
               .acts = Acts::always,
               .card_row = 23,
               .of_preset = true,
               .idle = idle_page},
    LaneOption{.name = "damping",
               .word = "damping of later scores",
               .member = &PolicyParams::damping,
               .values = "1  0.9",
               .help = "Factor on what decode steps add to the scores; the prompt counts fully.",
               .paper = "Keyformer, section 2.3.3 and figure 5",
               .bounds = kFactor,
               .drag = {0.005f, 0, 1, "%.2f"},
               .acts = Acts::scores,
               .card_row = 10,
               .of_rows = true,
               .idle = idle_damping},
    LaneOption{.name = "score_dtype",
               .label = "sums in",
               .word = "number type of the sums",
               .member = words_of<&PolicyParams::score_dtype>(kScoreWords),
               .help = "Number type in which scores add up. With few bits a long sum stops growing, and late "
                       "evidence is lost.",
               .paper = "fp16 in H2O's code, bf16 in Keyformer's",
               .acts = Acts::scores,
               .card_row = 10,
               .of_rows = true},
    LaneOption{.name = "kv_dtype",
               .label = "K, V in",
               .word = "number type of K and V",
               .member = words_of<&PolicyParams::kv_dtype>(kKvTypeWords),
               .help = "Number type in which keys and values are stored; q8 is 8 bits with a scale for each "
                       "32 numbers. Fewer bytes and more rounding, which can be compared with eviction. Sums "
                       "stay fp32. A wider type brings no bits back.",
               .paper = "f16 in llama.cpp; q8 as its q8_0",
               .acts = Acts::always,
               .card_row = 14},
    LaneOption{.name = "seed",
               .member = &PolicyParams::seed,
               .values = "1",
               .help = "Of the noise and of u: another seed is another draw.",
               .paper = "12345 in Keyformer's scripts",
               .drag = {.high = 1 << 30},
               .acts = Acts::scores,
               .card_row = 9,
               .idle = idle_seed},
    LaneOption{.name = "positions",
               .word = "positions of the keys",
               .member = words_of<&PolicyParams::positions>(kPositionWords),
               .help = "The positions that the model sees for kept keys: those in the text, their index in "
                       "the cache, or those in the text with long gaps shortened.",
               .paper = "cache: StreamingLLM, section 3.2, and Keyformer, section 4.4.2 (table 3); "
                        "compressed: TOVA, section 7.2",
               .card_row = 13},
    LaneOption{.name = "dilation",
               .word = "tokens skipped",
               .member = &PolicyParams::dilation,
               .values = "1  2",
               .help = "Tokens skipped between two that a step attends to. All between them stay stored, "
                       "since the next step needs them: dilation saves work, not memory.",
               .paper = "Keyformer, figure 2c",
               .drag = {.low = 1, .high = 64},
               .acts = Acts::evicting,
               .card_row = 4,
               .of_preset = true,
               .fault = dilation_fault,
               .idle = idle_dilation},
    LaneOption{.name = "dialect",
               .member = words_of<&PolicyParams::dialect>(kDialectWords),
               .help = "The paper's algorithm, or what its released code does where the two differ.",
               .paper = "the repositories of the papers",
               .acts = Acts::always,
               .fault = dialect_fault,
               .idle = idle_dialect},
    LaneOption{.name = "shadow",
               .label = "measure",
               .member = words_of<&PolicyParams::shadow>(kSwitchWords, "against full attention"),
               .help = "Also runs full attention on the lane's own queries, for measures alone: retained "
                       "mass, cosine to the ideal and to the full row, similarity of outputs. Costs memory "
                       "and time.",
               .paper = "ideal mask and cosine: A2SF, section 4.3 (table 2)",
               .acts = Acts::always,
               .card_row = 15},
    LaneOption{.name = "kv",
               .word = "shared KV heads",
               .member = &LaneSpec::sharing,
               .values = "own  mha  gqa:4  mqa  (mlkv:m=4,g=1)",
               .help = "Which query heads share a KV head: all their own, groups of a layer, one a layer, or "
                       "one for several layers. K and V are merged, and nothing is trained after: another, "
                       "damaged model. The lane runs again from the prompt.",
               .paper = "GQA and MQA: Ainslie et al. 2023, section 2; MLKV: Zuhri et al. 2024, section 3",
               .acts = Acts::always},
    LaneOption{.name = "merge",
               .member = words_of<&KvSharing::merge>(kMergeWords),
               .help = "How K and V of several layers become one: their mean, or what the released code "
                       "does, a running average in which the last layer counts half, and borrowed keys that "
                       "are not rotated.",
               .paper = "MLKV, section 4.2; its convert_to_mlkv.py and modeling_gpt_neox.py",
               .acts = Acts::always},
    LaneOption{.name = "compensate",
               .label = "grow MLP",
               .member = words_of<&KvSharing::compensate>(kSwitchWords),
               .help = "Widens every MLP by the parameters that merging took away, as the paper did before "
                       "it trained on. The new neurons are copies of the first ones, so the function "
                       "changes.",
               .paper = "MLKV, section 4.2 and table 2",
               .acts = Acts::always},
};

// --- faults by type ----------------------------------------------------------------------------------------

bool is_whole(double value) {
    return std::isfinite(value) && value == std::floor(value);
}

void add_amount_faults(std::string_view name, const Amount& amount, std::vector<std::string>& faults) {
    if (amount.unit == Amount::Unit::all || amount.unit == Amount::Unit::rest) return;
    if (!std::isfinite(amount.value) || amount.value < 0) {
        faults.push_back(fmt::format("{} must not be negative", name));
    } else if (amount.unit != Amount::Unit::percent &&
               !(is_whole(amount.value) && amount.value <= kMostTokens)) {
        faults.push_back(fmt::format("{} in tokens must be a whole number up to {}", name, kMostTokens));
    }
}

void add_tau_faults(const TauSchedule& tau, std::vector<std::string>& faults) {
    constexpr double kHighest = 1e30;  // as a float, far from infinity
    const auto is_temperature = [](double value) { return value > 0 && value <= kHighest; };
    const std::string fault = fmt::format("tau must be above 0 and at most {}", kHighest);
    if (tau.shape != TauSchedule::Shape::points) {
        if (!is_temperature(tau.begin) || !is_temperature(tau.end)) faults.push_back(fault);
        return;
    }
    if (tau.points.empty()) faults.push_back("a tau schedule by points needs at least one point");
    double last_t = -1;
    for (const auto& [t, value] : tau.points) {
        if (!is_temperature(value)) {
            faults.push_back(fault);
            return;
        }
        if (!std::isfinite(t) || t < 0 || t <= last_t) {
            faults.push_back("the steps of a tau schedule must ascend from 0 or later");
            return;
        }
        last_t = t;
    }
}

void add_number_faults(const LaneOption& option, double value, std::string_view noun,
                       std::vector<std::string>& faults) {
    if (option.bounds && !(value >= option.bounds->low && value <= option.bounds->high))
        faults.push_back(fmt::format("{} must be {}from {} to {}", option.name, noun, option.bounds->low,
                                     option.bounds->high));
}

}  // namespace

std::span<const LaneOption> lane_options() {
    return kOptions;
}

std::span<const LaneOption> lane_keys() {
    return lane_options().subspan(1);
}

const LaneOption& lane_option(std::string_view name) {
    const auto* const found =
        std::find_if(kOptions.begin(), kOptions.end(), [&](const LaneOption& o) { return o.name == name; });
    KH_ASSERT(found != kOptions.end(), "no option '{}'", name);
    return *found;
}

std::optional<FormulaUse> use_of(const LaneOption& option) {
    if (option.name == "score") return FormulaUse::score;
    if (option.name == "choose") return FormulaUse::choose;
    if (option.name == "protect") return FormulaUse::protect;
    return std::nullopt;
}

FormulaRef formula_of(const LaneOption& option, const FormulaText& value, const FormulaSetting& setting,
                      FormulaFault* fault) {
    if (option.name == "score") return score_formula(value.text, fault, {0, setting.spans});
    if (option.name == "choose") return choose_formula(value.text, fault, setting);
    if (option.name == "protect") return protect_formula(value.text, fault, setting);
    (void)spans_of(value.text, fault);
    return {};
}

const LaneOption& lane_option(Override::Field field) {
    const auto* const found = std::find_if(kOptions.begin(), kOptions.end(),
                                           [&](const LaneOption& o) { return o.by_head == field; });
    KH_ASSERT(found != kOptions.end(), "no option differs by head as field {}", static_cast<int>(field));
    return *found;
}

std::vector<std::string_view> override_names() {
    std::vector<std::string_view> names;
    for (const LaneOption& option : kOptions)
        if (option.by_head) names.push_back(option.name);
    return names;
}

std::span<const OptionWord> option_words(const LaneOption& option) {
    if (const auto* words = std::get_if<WordsOf<PolicyParams>>(&option.member)) return words->words;
    if (const auto* words = std::get_if<WordsOf<KvSharing>>(&option.member)) return words->words;
    return {};
}

std::string option_values(const LaneOption& option) {
    if (!option.values.empty()) return std::string(option.values);
    std::string text;
    const auto add = [&](std::string_view value) { text.append(text.empty() ? "" : "  ").append(value); };
    if (option.name == "preset") {
        for (const PresetRow& preset : presets()) add(preset.name);
        return text;
    }
    const std::span<const OptionWord> given = option_words(option);
    std::vector<OptionWord> words(given.begin(), given.end());
    std::sort(words.begin(), words.end(),
              [](const OptionWord& a, const OptionWord& b) { return a.value < b.value; });
    for (const OptionWord& one : words) add(one.text);
    return text;
}

void copy_option(const LaneOption& option, const PolicyParams& from, PolicyParams& to) {
    std::visit(
        [&]<class Member>(const Member& member) {
            if constexpr (std::is_same_v<Member, WordsOf<PolicyParams>>) {
                member.set(to, member.get(from));
            } else if constexpr (requires { to.*member; }) {
                to.*member = from.*member;
            }
        },
        option.member);
}

void set_override(const Override& o, PolicyParams& to) {
    const OptionMember& member = lane_option(o.field).member;
    if (const auto* amount = std::get_if<Amount PolicyParams::*>(&member)) to.*(*amount) = o.amount;
    if (const auto* number = std::get_if<double PolicyParams::*>(&member)) to.*(*number) = o.value;
    if (const auto* tau = std::get_if<TauSchedule PolicyParams::*>(&member)) to.*(*tau) = o.tau;
    if (const auto* formula = std::get_if<FormulaText PolicyParams::*>(&member)) to.*(*formula) = o.formula;
}

void add_faults(const LaneOption& option, const PolicyParams& params, std::vector<std::string>& faults) {
    if (option.fault != nullptr)
        if (std::string fault = option.fault(params); !fault.empty()) faults.push_back(std::move(fault));
    if (const auto* count = std::get_if<int PolicyParams::*>(&option.member))
        return add_number_faults(option, params.*(*count), "", faults);
    if (const auto* number = std::get_if<double PolicyParams::*>(&option.member))
        return add_number_faults(option, params.*(*number), "a number ", faults);
    if (const auto* amount = std::get_if<Amount PolicyParams::*>(&option.member))
        return add_amount_faults(option.name, params.*(*amount), faults);
    if (const auto* tau = std::get_if<TauSchedule PolicyParams::*>(&option.member))
        return add_tau_faults(params.*(*tau), faults);
}

}  // namespace keyhole
