// Copies of a lane's settings keep every option but those that a question or a choice changes.
#include "engine/policy/option_help.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"
#include "engine/policy/spec_copies.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

namespace reference::test_spec_copies {
namespace {

using namespace keyhole;

/// Returns a value of the option that is not the usual one, for every option of the table. An option that is
/// missing here fails the tests.
std::string other_value(const std::string& option) {
    const std::map<std::string, std::string> values = {{"budget", "17"},        {"recent", "3"},
                                                       {"sinks", "2"},          {"alpha", "0.375"},
                                                       {"tau", "1.5"},          {"horizon", "99"},
                                                       {"tau_delta", "0.02"},   {"noise", "gaussian"},
                                                       {"draw", "row"},         {"gain", "0.75"},
                                                       {"scope", "shared"},     {"pool", "max"},
                                                       {"prefill", "stepwise"}, {"every", "4"},
                                                       {"damping", "0.875"},    {"score_dtype", "bf16"},
                                                       {"kv_dtype", "q8"},      {"seed", "7"},
                                                       {"positions", "cache"},  {"dilation", "3"},
                                                       {"dialect", "released"}, {"shadow", "on"},
                                                       {"kv", "mqa"},           {"merge", "released"},
                                                       {"compensate", "on"},    {"choose", "(u+1)"},
                                                       {"protect", "0..3"},     {"buffer", "6"},
                                                       {"evict", "decode"},     {"score", "(s+p)"},
                                                       {"window", "12"},        {"kernel", "max:5"},
                                                       {"mix", "0.25"},         {"alloc", "global"},
                                                       {"floor", "35%"},        {"pyramid", "6"},
                                                       {"unit", "8"},           {"heads", "(all 2*1x)"},
                                                       {"threshold", "0.25"},   {"spans", "(a@0..4 b@5..)"}};
    return values.at(option);
}

/// Returns whether a preset can have this value.
bool is_possible(Preset preset, const std::string& option, LaneSpec& spec) {
    try {
        spec = changed_lane_spec({preset_params(preset)}, option + "=" + other_value(option));
    } catch (const std::exception&) {
        return false;
    }
    return validate(spec.policy).empty();
}

/// Returns the options in which two specs differ. Overrides have names with an @.
std::set<std::string> differences(const LaneSpec& a, const LaneSpec& b) {
    std::map<std::string, std::string> of_a, of_b;
    for (const LaneSetting& s : lane_settings(a)) of_a[s.key] = s.value;
    for (const LaneSetting& s : lane_settings(b)) of_b[s.key] = s.value;
    std::set<std::string> names;
    for (const auto& [key, value] : of_a)
        if (!of_b.contains(key) || of_b[key] != value) names.insert(key);
    for (const auto& [key, value] : of_b)
        if (!of_a.contains(key)) names.insert(key);
    return names;
}

/// Calls visit(spec, option) for every preset and every option that it can have, one at a time.
template <class Visit>
int for_all_options(Visit visit) {
    int n = 0;
    for (const PresetRow& row : presets())
        for (const LaneOption& option : lane_options()) {
            const std::string name(option.name);
            LaneSpec spec;
            if (name == "preset" || !is_possible(row.preset, name, spec)) continue;
            SCOPED_TRACE(format_lane_spec(spec));
            visit(spec, name);
            ++n;
        }
    return n;
}

// What a question about evictions changes is eviction; a shadow is for measures alone.
TEST(SpecCopies, WithoutEvictionDiffersInEvictionAlone) {
    const int n = for_all_options([](const LaneSpec& spec, const std::string&) {
        std::set<std::string> changed = {"budget", "dialect", "shadow",    "dilation",
                                         "heads",  "read",    "read@L0-1", "threshold"};
        // Released codes process the prompt at once.
        if (spec.policy.dialect == Dialect::released) changed.insert("prefill");
        const LaneSpec copy = without_eviction(spec);
        for (const std::string& option : differences(spec, copy))
            EXPECT_TRUE(changed.contains(option)) << option;
        EXPECT_TRUE(validate(copy.policy).empty());
        const ResolvedPolicy policy = resolve(copy.policy, 40, 8), asked = resolve(spec.policy, 40, 8);
        EXPECT_FALSE(policy.evicts() || policy.hides_any() || policy.shadow);
        EXPECT_EQ(policy.prefill, asked.prefill);
        EXPECT_EQ(policy.kv_dtype, asked.kv_dtype);
        EXPECT_EQ(policy.positions, spec.policy.positions);
    });
    EXPECT_GT(n, 150);
}

TEST(SpecCopies, WithoutEvictionKeepsOverridesThatDoNotEvict) {
    const LaneSpec lane = parse_lane_spec("a2sf:budget=9,kv_dtype=q8,alpha@L0=0.5,budget@L1=4");
    EXPECT_EQ(format_lane_spec(without_eviction(lane)), "full:alpha=0.2,kv_dtype=q8,alpha@L0=0.5");
}

TEST(SpecCopies, AnotherPresetSharesNoBudgetWhereItCannot) {
    const PolicyParams lane = parse_lane_spec("h2o:budget=9,spans=(fair a@0..4 b@5..)").policy;
    EXPECT_EQ(with_preset(lane, Preset::tova).spans.text, "fair a@0..4 b@5..");
    EXPECT_EQ(with_preset(lane, Preset::snapkv).spans.text, "fair a@0..4 b@5..");
    EXPECT_EQ(with_preset(lane, Preset::adakv).spans.text, "a@0..4 b@5..");
    const PolicyParams alone = parse_lane_spec("h2o:budget=9,spans=fair").policy;
    EXPECT_EQ(with_preset(alone, Preset::adakv).spans.text, "none");
}

// A preset sets what the table of options says that it does; the others are the user's.
TEST(SpecCopies, AnotherPresetKeepsWhatNoPresetSets) {
    const std::set<std::string> of_presets = {
        "budget",  "recent",  "sinks",  "alpha", "tau",   "noise",  "scope",  "dilation", "choose",
        "prefill", "every",   "buffer", "evict", "score", "window", "kernel", "mix",      "alloc",
        "floor",   "pyramid", "unit",   "heads", "ahead", "read",   "page",   "threshold"};
    const int n = for_all_options([&](const LaneSpec& spec, const std::string& option) {
        for (const PresetRow& row : presets()) {
            const Preset preset = row.preset;
            const LaneSpec now{with_preset(spec.policy, preset), spec.sharing};
            EXPECT_EQ(now.policy.preset, preset);
            EXPECT_TRUE(validate(now.policy).empty());
            const bool keeps = (!of_presets.contains(option) || option == "budget") &&
                               (option != "budget" || (preset != Preset::full && preset != Preset::quest)) &&
                               (option != "dialect" || has_released_code(preset));
            std::set<std::string> wanted;
            if (keeps && !std::set<std::string>{"kv", "merge", "compensate"}.contains(option))
                wanted.insert(option);
            const LaneSpec usual{preset_params(preset), spec.sharing};
            EXPECT_EQ(differences(now, usual), wanted) << preset_name(preset);
        }
    });
    EXPECT_GT(n, 150);
}

// The line that `decode` prints: only what was asked for and is replaced.
TEST(SpecCopies, SaysWhatTheReleasedDialectReplaces) {
    const auto said = [](const char* spec) { return replaced_by_release(parse_lane_spec(spec)); };
    EXPECT_EQ(said("h2o:budget=8,dialect=released,scope=layer,every=8"),
              "scope=head (not layer), every=1 (not 8)");
    EXPECT_EQ(said("tova:dialect=released,pool=max"), "pool=mean (not max)");
    EXPECT_EQ(said("keyformer:dialect=released,damping=0.5"), "damping=1 (not 0.5)");
    EXPECT_EQ(said("sink:dialect=released,positions=compressed"), "positions=cache (not compressed)");
    for (const char* silent : {"keyformer:dialect=released", "sink:dialect=released", "tova:dialect=released",
                               "h2o:scope=layer,every=8", "h2o:dialect=released,alpha=0.5"})
        EXPECT_EQ(said(silent), "") << silent;
}

// A cosine has reached its last value at the horizon and stays there, also where the released code lets a
// linear tau go on.
TEST(SpecCopies, ACosineEndsAtItsLastValue) {
    const auto tau = [](const char* spec, int t) {
        return resolve(parse_lane_spec(spec).policy, 10, 20).tau_at(9 + t);
    };
    for (const char* spec : {"keyformer:tau=1..2@cosine", "keyformer:tau=1..2@cosine,dialect=released"}) {
        EXPECT_FLOAT_EQ(tau(spec, 10), 1.5f) << spec;
        EXPECT_FLOAT_EQ(tau(spec, 20), 2) << spec;
        EXPECT_FLOAT_EQ(tau(spec, 30), 2) << spec;
        EXPECT_FLOAT_EQ(tau(spec, 40), 2) << spec;
    }
    EXPECT_FLOAT_EQ(tau("keyformer:tau=1..2,dialect=released", 40), 3);
}

}  // namespace
}  // namespace reference::test_spec_copies
