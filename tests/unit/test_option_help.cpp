// The tables of options and presets: every row parses, prints, has help and bounds that hold, and idle
// options are idle.
#include "engine/policy/lane_spec.h"
#include "engine/policy/option_help.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <variant>
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

std::string fault_of(const std::string& spec) {
    try {
        parse_lane_spec(spec);
    } catch (const std::exception& fault) {
        return fault.what();
    }
    return "";
}

/// Returns a preset that can have the option.
std::string preset_for(const LaneOption& option) {
    return option.name == "dilation" ? "dilated" : "keyformer";
}

TEST(OptionTable, NamesEveryKeyOfTheSpecInItsOrder) {
    std::vector<std::string_view> names;
    for (const LaneOption& o : lane_options()) {
        names.push_back(o.name);
        EXPECT_GT(o.help.size(), 10u) << o.name;
        EXPECT_FALSE(o.paper.empty()) << o.name;
        EXPECT_FALSE(option_values(o).empty()) << o.name;
        EXPECT_EQ(&lane_option(o.name), &o) << o.name;
    }
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.front(), "preset");
    names.erase(names.begin());
    EXPECT_EQ(names, lane_spec_keys());
    EXPECT_EQ(std::set<std::string_view>(names.begin(), names.end()).size(), names.size());
}

// An option whose value is lost on the way from text to text, or that no key prints, is found here.
TEST(OptionTable, ExamplesParseAndPrintAgain) {
    for (const LaneOption& o : lane_options())
        for (const std::string& value : examples(option_values(o))) {
            if (o.name == "preset") {
                EXPECT_EQ(preset_name(params(value).preset), value);
                continue;
            }
            if (value == "FILE") continue;  // test_head_table.cpp reads files
            const std::string spec = preset_for(o) + ":" + std::string(o.name) + "=" + value;
            ASSERT_EQ(fault_of(spec), "");
            const LaneSpec lane = parse_lane_spec(spec);
            EXPECT_EQ(parse_lane_spec(format_lane_spec(lane)), lane) << spec;
            const std::vector<LaneSetting> settings = lane_settings(lane);
            EXPECT_NE(std::find(settings.begin(), settings.end(), LaneSetting{std::string(o.name), value}),
                      settings.end())
                << spec;
        }
}

TEST(OptionTable, EveryWordIsAValueOfItsOwn) {
    int n = 0;
    for (const LaneOption& o : lane_keys()) {
        std::set<int> values;
        for (const OptionWord& word : option_words(o)) {
            EXPECT_TRUE(values.insert(word.value).second) << o.name << " " << word.text;
            const auto all = examples(option_values(o));
            EXPECT_NE(std::find(all.begin(), all.end(), word.text), all.end()) << o.name << " " << word.text;
            ++n;
        }
        if (values.empty() || o.name == "kernel") continue;  // its values are widths
        EXPECT_EQ(*values.begin(), 0) << o.name;
        EXPECT_EQ(*values.rbegin(), static_cast<int>(values.size()) - 1) << o.name;
    }
    EXPECT_GT(n, 25);
}

TEST(OptionTable, BoundsHoldAtBothEnds) {
    int n = 0;
    for (const LaneOption& o : lane_keys()) {
        if (!o.bounds) continue;
        const auto spec = [&](double value) {
            return preset_for(o) + ":" + std::string(o.name) + "=" + fmt::format("{}", value);
        };
        EXPECT_EQ(fault_of(spec(o.bounds->low)), "");
        EXPECT_EQ(fault_of(spec(o.bounds->high)), "");
        const std::string below = fault_of(spec(o.bounds->low - 1)),
                          above = fault_of(spec(o.bounds->high + 1));
        EXPECT_NE(below.find(fmt::format("{} must be", o.name)), std::string::npos) << below;
        EXPECT_NE(above.find(fmt::format("{} must be", o.name)), std::string::npos) << above;
        // The card drags inside the bounds.
        EXPECT_GE(static_cast<double>(o.drag.low), o.bounds->low) << o.name;
        EXPECT_LE(static_cast<double>(o.drag.high), o.bounds->high) << o.name;
        ++n;
    }
    EXPECT_EQ(n, 15);
}

// The policy card draws what has a row; preset, dialect and the sharing have widgets of their own.
TEST(OptionTable, EveryOptionHasAPlaceOnTheCard) {
    std::set<std::string_view> without;
    std::map<int, int> in_row;
    for (const LaneOption& o : lane_options()) {
        if (o.card_row == 0)
            without.insert(o.name);
        else
            EXPECT_LE(++in_row[o.card_row], 2) << o.name;
        const bool is_number = std::holds_alternative<int PolicyParams::*>(o.member) ||
                               std::holds_alternative<double PolicyParams::*>(o.member) ||
                               std::holds_alternative<std::uint64_t PolicyParams::*>(o.member);
        if (!is_number) continue;
        EXPECT_LT(o.drag.low, o.drag.high) << o.name;
        EXPECT_EQ(std::string_view(o.drag.format).find("%d") == std::string_view::npos,
                  std::holds_alternative<double PolicyParams::*>(o.member))
            << o.name;
    }
    EXPECT_EQ(without, (std::set<std::string_view>{"preset", "dialect", "kv", "merge", "compensate"}));
}

TEST(OptionTable, NineOptionsMayDifferByHead) {
    const std::vector<std::string_view> names = override_names();
    EXPECT_EQ(names, (std::vector<std::string_view>{"budget", "recent", "alpha", "tau", "gain", "score",
                                                    "choose", "protect", "read"}));
    for (const LaneOption& o : lane_keys()) {
        const bool may = std::find(names.begin(), names.end(), o.name) != names.end();
        const std::string value = examples(option_values(o)).front();
        const std::string spec = preset_for(o) + ":" + std::string(o.name) + "@L1=" + value;
        EXPECT_EQ(fault_of(spec).empty(), may) << spec;
        if (!may) continue;
        EXPECT_EQ(&lane_option(*o.by_head), &o);
        EXPECT_EQ(format_lane_spec(parse_lane_spec(spec)), spec);
    }
}

// with_preset() copies what presets set; a value that a row sets and no option with `of_preset` names would
// stay behind.
TEST(PresetTable, PresetsSetOnlyWhatTheTableOfOptionsSays) {
    for (const PresetRow& row : presets()) {
        const std::vector<LaneSetting> own = lane_settings({preset_params(row.preset)}),
                                       plain = lane_settings({PolicyParams{}});
        for (std::size_t i = 0; i < lane_keys().size(); ++i)
            EXPECT_TRUE(own[i] == plain[i] || lane_option(own[i].key).of_preset) << row.name << own[i].key;
    }
}

TEST(PresetTable, EveryRowIsComplete) {
    std::set<std::string_view> names;
    std::set<int> offered;
    for (const PresetRow& row : presets()) {
        EXPECT_EQ(&preset_row(row.preset), &row);
        EXPECT_TRUE(names.insert(row.name).second) << row.name;
        EXPECT_TRUE(row.help.ends_with('.')) << row.name;
        EXPECT_EQ(row.released.empty(), !has_released_code(row.preset)) << row.name;
        // Only a released code fixes something or counts otherwise.
        EXPECT_TRUE(!row.released.empty() || (row.fixed.empty() && row.count == nullptr)) << row.name;
        EXPECT_TRUE(row.offered == 0 || offered.insert(row.offered).second) << row.name;
        EXPECT_EQ(parse_lane_spec(row.name).policy, preset_params(row.preset));
    }
    EXPECT_EQ(
        offered_presets(),
        (std::vector{Preset::h2o,    Preset::tova,  Preset::keyformer, Preset::a2sf,     Preset::sink,
                     Preset::window, Preset::full,  Preset::knorm,     Preset::keydiff,  Preset::random,
                     Preset::snapkv, Preset::rkv,   Preset::pyramidkv, Preset::adakv,    Preset::chunk,
                     Preset::lagkv,  Preset::caote, Preset::kvzip,     Preset::critical, Preset::expected,
                     Preset::quest,  Preset::tri}));
}

TEST(OptionHelp, SaysWhatIsIdleAndWhy) {
    const auto idle = [](std::string_view spec, std::string_view option) {
        return no_effect_reason(params(spec), option);
    };
    for (const LaneOption& o : lane_options()) {
        const bool acts = o.name == "preset" || o.name == "read" || o.name == "kv_dtype" ||
                          o.name == "shadow" || o.name == "kv" || o.name == "merge" || o.name == "compensate";
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
    EXPECT_NE(idle("h2o", "ahead"), "");
    EXPECT_EQ(idle("expected", "ahead"), "");
    EXPECT_NE(idle("full", "page"), "");
    EXPECT_EQ(idle("quest", "page"), "");
    EXPECT_EQ(idle("full:read@L2=64", "page"), "");
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
    for (const char* option : {"alpha", "tau", "damping", "score_dtype"}) {
        EXPECT_NE(idle("knorm", option), "") << option;
        EXPECT_EQ(idle("key:choose=(s/(age+1))", option), "") << option;
    }
    EXPECT_EQ(idle("key:choose=(u+alpha)", "alpha"), "");
    EXPECT_NE(idle("knorm", "seed"), "");
    EXPECT_EQ(idle("random", "seed"), "");
    EXPECT_NE(idle("key:choose=(1)", "choose"), "");
    EXPECT_EQ(idle("key:choose=(u)", "choose"), "");
    EXPECT_EQ(idle("knorm", "scope"), "");
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
    EXPECT_EQ(text("h2o:budget=64,buffer=8"),
              "keeps 64 tokens, attends to those and the new one; up to 7 more between evictions");
    EXPECT_EQ(text("h2o:budget=64,evict=prompt"),
              "keeps 64 tokens, attends to those and the new one; once after the prompt, then it grows");
    EXPECT_EQ(text("duo:budget=64"),
              "keeps 64 tokens, attends to those and the new one; the first tokens fill it, so that no later "
              "one stays");
    EXPECT_EQ(text("duo:budget=65"), "keeps 65 tokens, attends to those and the new one");
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
