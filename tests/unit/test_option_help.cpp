// The table of options: every key of the spec has a description, its examples parse, and idle options are
// idle.
#include "engine/policy/lane_spec.h"
#include "engine/policy/option_help.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keyhole::test_option_help {
namespace {

std::vector<std::string> examples(std::string_view values) {
    std::vector<std::string> out;
    while (!values.empty()) {
        const std::size_t gap = values.find("  ");
        out.emplace_back(values.substr(0, gap));
        values.remove_prefix(gap == std::string_view::npos ? values.size() : gap + 2);
    }
    return out;
}

PolicyParams params(std::string_view spec) {
    return parse_lane_spec(spec).policy;
}

TEST(OptionHelp, NamesEveryKeyOfTheSpecInItsOrder) {
    std::vector<std::string_view> names;
    for (const OptionHelp& o : option_helps()) {
        names.push_back(o.name);
        EXPECT_GT(o.help.size(), 10u) << o.name;
        EXPECT_FALSE(o.paper.empty()) << o.name;
    }
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.front(), "preset");
    names.erase(names.begin());
    EXPECT_EQ(names, lane_spec_keys());
    EXPECT_EQ(option_help("alpha").name, "alpha");
}

TEST(OptionHelp, ExamplesParse) {
    for (const OptionHelp& o : option_helps())
        for (const std::string& value : examples(o.values)) {
            if (o.name == "preset") {
                EXPECT_EQ(preset_name(params(value).preset), value);
                continue;
            }
            const std::string spec = std::string(o.name == "dilation" ? "dilated" : "keyformer") + ":" +
                                     std::string(o.name) + "=" + value;
            EXPECT_NO_THROW(params(spec)) << spec;
        }
}

TEST(OptionHelp, SaysWhatIsIdleAndWhy) {
    const auto idle = [](std::string_view spec, std::string_view option) {
        return no_effect_reason(params(spec), option);
    };
    for (const OptionHelp& o : option_helps()) {
        const bool acts = o.name == "preset" || o.name == "kv_dtype" || o.name == "shadow" ||
                          o.name == "kv" || o.name == "merge" || o.name == "compensate";
        EXPECT_EQ(idle("full", o.name).empty(), acts) << o.name;
    }
    for (const char* option : {"alpha", "tau", "noise", "scope", "pool", "damping", "score_dtype", "seed"}) {
        EXPECT_NE(idle("window", option), "") << option;
        EXPECT_NE(idle("sink", option), "") << option;
        EXPECT_NE(idle("dilated", option), "") << option;
    }
    EXPECT_EQ(idle("window:recent=10", "alpha"), "");  // differs from the preset
    EXPECT_EQ(idle("window", "budget"), "");
    EXPECT_NE(idle("h2o", "dilation"), "");
    EXPECT_EQ(idle("dilated", "dilation"), "");
    EXPECT_NE(idle("h2o", "gain"), "");
    EXPECT_EQ(idle("keyformer", "gain"), "");
    EXPECT_NE(idle("keyformer:noise=constant", "gain"), "");
    EXPECT_NE(idle("keyformer:gain=0", "seed"), "");
    EXPECT_EQ(idle("keyformer:gain=0", "gain"), "");
    EXPECT_EQ(idle("keyformer", "horizon"), "");
    EXPECT_NE(idle("keyformer:tau=1.5", "horizon"), "");
    EXPECT_NE(idle("keyformer:tau=(0:1 9:2)", "horizon"), "");
    EXPECT_EQ(idle("keyformer", "tau_delta"), "");
    EXPECT_NE(idle("keyformer:tau_delta=0.01", "horizon"), "");
    EXPECT_NE(idle("keyformer:tau=1..2@cosine", "tau_delta"), "");
    EXPECT_NE(idle("h2o", "tau_delta"), "");
    EXPECT_NE(idle("tova", "damping"), "");
    EXPECT_NE(idle("key", "dialect"), "");
    EXPECT_EQ(idle("tova", "dialect"), "");
}

/// Options reported as fixed by the released code do not change the resolved policy. All others do.
TEST(OptionHelp, ReleasedCodeFixesWhatIsCalledFixed) {
    const std::vector<std::pair<std::string, std::string>> changes = {{"prefill", "prefill=stepwise"},
                                                                      {"every", "every=3"},
                                                                      {"scope", "scope=shared"},
                                                                      {"pool", "pool=max"},
                                                                      {"draw", "draw=token"},
                                                                      {"damping", "damping=0.5"},
                                                                      {"positions", "positions=compressed"}};
    for (const char* preset : {"h2o", "tova", "keyformer", "a2sf"})
        for (const auto& [option, change] : changes) {
            const LaneSpec released =
                parse_lane_spec(std::string(preset) + ":dialect=released,noise=gumbel,draw=row,alpha=0.5");
            const LaneSpec other = changed_lane_spec(released, change);
            const bool reaches = !(resolve(released.policy, 100, 10) == resolve(other.policy, 100, 10));
            EXPECT_EQ(no_effect_reason(released.policy, option).empty(), reaches) << preset << " " << option;
        }
}

TEST(OptionHelp, PoolingNeedsHeadsThatShare) {
    HeadGrid alone{1, 4, {0, 1, 2, 3}}, shared{1, 4, {0, 0, 1, 1}};
    EXPECT_NE(no_effect_reason(params("h2o"), "pool", alone), "");
    EXPECT_EQ(no_effect_reason(params("h2o"), "pool", shared), "");
    EXPECT_EQ(no_effect_reason(params("tova"), "pool", alone), "");
}

TEST(OptionHelp, AccountingIsInWords) {
    const auto text = [](std::string_view spec) { return accounting_text(resolve(params(spec), 100, 10)); };
    EXPECT_EQ(text("h2o:budget=64"), "keeps 64 tokens, attends to those and the new one");
    EXPECT_EQ(text("h2o:budget=64,dialect=released"), "keeps 64 tokens, attends to 64, the new one included");
    EXPECT_EQ(text("keyformer:budget=64,dialect=released"),
              "keeps 63 tokens, attends to those and the new one");
    EXPECT_EQ(text("dilated:budget=8"), "keeps 15 tokens, attends to 8, the new one included");
    EXPECT_EQ(text("h2o:budget=64,every=8"),
              "keeps 64 tokens, attends to those and the new one; up to 7 more between evictions");
    EXPECT_EQ(text("full"), "keeps all tokens and attends to all");
}

TEST(ChangedLaneSpec, SetsKeysAndReplacesOverrides) {
    const LaneSpec spec = parse_lane_spec("keyformer:budget=64,alpha@L0=0.5,alpha@L1.H2=0.25");
    EXPECT_EQ(format_lane_spec(changed_lane_spec(spec, "budget=32,dialect=released")),
              "keyformer:budget=32,dialect=released,alpha@L0=0.5,alpha@L1.H2=0.25");
    EXPECT_EQ(format_lane_spec(changed_lane_spec(spec, "alpha@L0=0.75")),
              "keyformer:budget=64,alpha@L1.H2=0.25,alpha@L0=0.75");
    EXPECT_THROW(changed_lane_spec(spec, "bugdet=3"), std::exception);
}

}  // namespace
}  // namespace keyhole::test_option_help
