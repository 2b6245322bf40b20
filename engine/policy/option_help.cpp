#include "engine/policy/option_help.h"

#include "engine/base/error.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

namespace keyhole {
namespace {

constexpr std::array kHelps = {
    OptionHelp{"preset", "full  window  sink  dilated  key  h2o  tova  keyformer  a2sf",
               "The named policy that the other options start from. Presets are points in one space: every "
               "option may be moved away from them.",
               "one paper each: see the preset"},
    OptionHelp{"budget", "64  50%  all",
               "Tokens that stay in the cache after each step; a percentage is a share of the prompt.",
               "k in all papers; cache ratio in A2SF"},
    OptionHelp{"recent", "32  30%  rest",
               "The newest tokens, which are always kept, inside the budget; a percentage is a share of it. "
               "The rest of the budget goes to the tokens with the best scores.",
               "w: Keyformer, section 3.4 and figure 12; H2O, section 4"},
    OptionHelp{"sinks", "0  4", "The first tokens, which are always kept, inside the budget.",
               "StreamingLLM, section 3.2; Window+i: TOVA, section 5.1"},
    OptionHelp{"alpha", "0  0.2  1",
               "Forgetting factor: a step's scores count this much in the next step. 1 sums all, 0 keeps "
               "the last step alone.",
               "A2SF, section 3.3; 0: TOVA, section 4"},
    OptionHelp{
        "tau", "1  1..2  1..2@cosine  (0:1 20:1.4 100:2)",
        "Temperature of the score's softmax, constant or a schedule over the decode steps. High values "
        "even the scores out. Attention itself keeps temperature 1.",
        "Keyformer, section 3.3.1, equation (10), and section A.8"},
    OptionHelp{
        "horizon", "0  256",
        "T, the decode steps over which tau runs from its first to its last value; 0: the number of tokens "
        "to generate, 256 if that is open.",
        "Keyformer, equation (10)"},
    OptionHelp{
        "tau_delta", "0  0.01",
        "The rise of a linear tau in every decode step until it reaches its last value; 0: the horizon "
        "says how fast it rises.",
        "delta tau: Keyformer, equation (10); 0.01 in its code where no script sets it"},
    OptionHelp{"noise", "none  gumbel  gaussian  constant",
               "Added to the logits before the score's softmax, so that the kept set is partly a draw. A "
               "constant changes nothing: softmax does not see shifts.",
               "Keyformer, sections 3.1, 3.2 and 4.4.3 (table 4)"},
    OptionHelp{"draw", "token  row",
               "Noise drawn once a token for the whole run (the paper), or anew in every step (the released "
               "code), so that it averages out.",
               "Keyformer, algorithm 1"},
    OptionHelp{"gain", "1", "Factor on the noise.", "1 in Keyformer; other values are Keyhole's"},
    OptionHelp{"scope", "head  layer  shared",
               "The scope of a kept set: one set a KV head, one a layer, or one for the whole model.",
               "TOVA, section 4 and appendix A; shared: Keyformer, section 4.4.1 (table 3)"},
    OptionHelp{"pool", "mean  sum  max",
               "How the scores of the query heads that share a set become one score.",
               "mean: TOVA, section 4; sum and max: practice under GQA"},
    OptionHelp{"prefill", "oneshot  stepwise",
               "Evict once when the whole prompt is processed, or after every token of the prompt beyond the "
               "budget, so that later tokens of the prompt already see less.",
               "stepwise: TOVA's language-model runs, section 6.1; oneshot: all released code"},
    OptionHelp{"every", "1  8",
               "Steps between evictions: between them the cache grows, so its size is a sawtooth.",
               "Keyformer's shrinking code: every 8"},
    OptionHelp{"damping", "1  0.9", "Factor on what decode steps add to the scores; the prompt counts fully.",
               "Keyformer, section 2.3.3 and figure 5"},
    OptionHelp{"score_dtype", "fp32  fp16  bf16",
               "Number type in which scores add up. With few bits a long sum stops growing, and late "
               "evidence is lost.",
               "fp16 in H2O's code, bf16 in Keyformer's"},
    OptionHelp{
        "kv_dtype", "auto  f32  f16  bf16  q8",
        "Number type in which keys and values are stored; q8 is 8 bits with a scale for each 32 "
        "numbers. Fewer bytes and more rounding, which can be compared with eviction. Sums stay fp32. A "
        "wider type brings no bits back.",
        "f16 in llama.cpp; q8 as its q8_0"},
    OptionHelp{"seed", "1", "Of the noise: another seed is another draw.", "12345 in Keyformer's scripts"},
    OptionHelp{
        "positions", "original  cache  compressed",
        "The positions that the model sees for kept keys: those in the text, their index in the cache, "
        "or those in the text with long gaps shortened.",
        "cache: StreamingLLM, section 3.2, and Keyformer, section 4.4.2 (table 3); compressed: TOVA, "
        "section 7.2"},
    OptionHelp{"dilation", "1  2",
               "Tokens skipped between two that a step attends to. All between them stay stored, since the "
               "next step needs them: dilation saves work, not memory.",
               "Keyformer, figure 2c"},
    OptionHelp{"dialect", "paper  released",
               "The paper's algorithm, or what its released code does where the two differ.",
               "the repositories of the papers"},
    OptionHelp{"shadow", "off  on",
               "Also runs full attention on the lane's own queries, for measures alone: retained mass, "
               "cosine to the ideal and to the full row, similarity of outputs. Costs memory and time.",
               "ideal mask and cosine: A2SF, section 4.3 (table 2)"},
    OptionHelp{"kv", "own  mha  gqa:4  mqa  (mlkv:m=4,g=1)",
               "Which query heads share a KV head: all their own, groups of a layer, one a layer, or one for "
               "several layers. K and V "
               "are merged, and nothing is trained after: another, damaged model. The lane runs again from "
               "the prompt.",
               "GQA and MQA: Ainslie et al. 2023, section 2; MLKV: Zuhri et al. 2024, section 3"},
    OptionHelp{"merge", "uniform  released",
               "How K and V of several layers become one: their mean, or what the released code does, a "
               "running average in which the "
               "last layer counts half, and borrowed keys that are not rotated.",
               "MLKV, section 4.2; its convert_to_mlkv.py and modeling_gpt_neox.py"},
    OptionHelp{"compensate", "off  on",
               "Widens every MLP by the parameters that merging took away, as the paper did before it "
               "trained on. The new neurons "
               "are copies of the first ones, so the function changes.",
               "MLKV, section 4.2 and table 2"},
};

bool one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns whether the released code of a preset fixes an option: apply_released() in params.cpp.
bool fixed_by_release(Preset preset, std::string_view name) {
    if (one_of(name, {"prefill", "every"})) return true;
    switch (preset) {
        case Preset::sink:
            return name == "positions";
        case Preset::h2o:
        case Preset::a2sf:
            return name == "scope";
        case Preset::tova:
            return one_of(name, {"scope", "pool"});
        case Preset::keyformer:
            return one_of(name, {"scope", "draw", "damping"});
        case Preset::full:
        case Preset::window:
        case Preset::dilated:
        case Preset::key:
            return false;
    }
    return false;
}

/// Returns whether an option acts only through the scores.
bool is_of_scores(std::string_view name) {
    return one_of(name, {"alpha", "tau", "horizon", "tau_delta", "noise", "draw", "gain", "seed", "damping",
                         "score_dtype", "scope", "pool"});
}

}  // namespace

std::span<const OptionHelp> option_helps() {
    return kHelps;
}

const OptionHelp& option_help(std::string_view name) {
    const auto found =
        std::find_if(kHelps.begin(), kHelps.end(), [&](const OptionHelp& o) { return o.name == name; });
    KH_ASSERT(found != kHelps.end(), "no option '{}'", name);
    return *found;
}

std::string no_effect_reason(const PolicyParams& params, std::string_view name, const HeadGrid& heads) {
    const Preset preset = params.preset;
    if (one_of(name, {"preset", "kv_dtype", "shadow", "kv", "merge", "compensate"})) return {};
    if (name == "dialect")
        return has_released_code(preset) ? ""
                                         : "Nobody released code for this preset: the paper is all there is.";
    if (preset == Preset::full) return "full keeps every token, so nothing is chosen and no gap opens.";
    if (name == "dilation") return preset == Preset::dilated ? "" : "Only the preset dilated skips tokens.";
    if (params.dialect == Dialect::released && fixed_by_release(preset, name))
        return fmt::format("The released code of {} fixes it.",
                           preset == Preset::sink ? "StreamingLLM" : "this preset");
    if (params.budget.unit == Amount::Unit::all && params.overrides.empty() && name != "budget")
        return "The budget is all tokens, so nothing leaves.";
    if (preset == Preset::dilated && name == "recent")
        return "A dilated window keeps the whole span of its budget.";
    const bool windowed = preset == Preset::dilated || params.recent.unit == Amount::Unit::rest;
    if (windowed && is_of_scores(name)) return "The newest tokens fill the budget: no score decides.";
    if (name == "horizon") {
        if (params.tau.shape == TauSchedule::Shape::constant) return "tau is constant.";
        if (params.tau.shape == TauSchedule::Shape::points)
            return "The points of tau name their steps themselves.";
        if (params.tau.shape == TauSchedule::Shape::linear && params.tau_delta > 0)
            return "tau_delta says how fast tau rises.";
    }
    if (name == "tau_delta" && params.tau.shape != TauSchedule::Shape::linear)
        return "Only a linear tau, such as 1..2, rises by the same amount in every step.";
    if (one_of(name, {"draw", "gain", "seed"})) {
        if (params.noise == NoiseKind::none) return "There is no noise.";
        if (params.noise == NoiseKind::constant)
            return "A constant shifts all logits alike, and softmax does not see shifts.";
        if (params.gain == 0 && name != "gain") return "The gain is 0: there is no noise.";
    }
    if (name == "damping" && params.alpha == 0)
        return "alpha 0 keeps the last step alone; one factor on all of it changes no rank.";
    if (name == "pool" && params.scope == Scope::head && !heads.kv_head.empty()) {
        const int n_kv = *std::max_element(heads.kv_head.begin(), heads.kv_head.end()) + 1;
        if (n_kv == heads.n_layers * heads.n_heads)
            return "Each KV head of this model has one query head: nothing is pooled.";
    }
    return {};
}

std::string replaced_by_release(const LaneSpec& spec) {
    if (spec.policy.dialect != Dialect::released) return {};
    const auto settings_of = [](const PolicyParams& policy) { return lane_settings({policy}); };
    const std::vector<LaneSetting> asked = settings_of(spec.policy),
                                   usual = settings_of(preset_params(spec.policy.preset)),
                                   used =
                                       settings_of(parse_lane_spec(format_effective_spec(spec, 1, 0)).policy);
    std::string text;
    for (std::size_t i = 0; i < usual.size(); ++i) {  // the overrides come after them
        const std::string& key = asked[i].key;
        if (!fixed_by_release(spec.policy.preset, key)) continue;
        if (asked[i].value == used[i].value || asked[i].value == usual[i].value) continue;
        text += fmt::format("{}{}={} (not {})", text.empty() ? "" : ", ", key, used[i].value, asked[i].value);
    }
    return text;
}

std::string accounting_text(const ResolvedPolicy& policy) {
    if (!policy.evicts()) return "keeps all tokens and attends to all";
    const int stored = policy.stored, attended = policy.attended_when_full();
    std::string text = fmt::format("keeps {} token{}, attends to ", stored, stored == 1 ? "" : "s");
    text += attended == stored + 1 ? fmt::format("{} and the new one", stored == 1 ? "it" : "those")
                                   : fmt::format("{}, the new one included", attended);
    if (policy.every > 1) text += fmt::format("; up to {} more between evictions", policy.every - 1);
    return text;
}

}  // namespace keyhole
