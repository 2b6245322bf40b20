// Names of lanes that stand side by side.
#include "engine/policy/lane_names.h"

#include "engine/base/error.h"
#include "tests/reference/session_run.h"

#include <gtest/gtest.h>

namespace keyhole::test_lane_names {
namespace {

using Names = std::vector<std::string>;

Names names(const std::vector<std::string>& specs) {
    std::vector<LaneSpec> lanes;
    for (const std::string& spec : specs) lanes.push_back(parse_lane_spec(spec));
    return lane_names(lanes);
}

TEST(LaneNames, APresetAloneIsAName) {
    EXPECT_EQ(names({"full", "h2o:budget=64", "tova:budget=32"}), (Names{"full", "h2o", "tova"}));
    EXPECT_EQ(names({}), Names{});
}

TEST(LaneNames, LanesOfOnePresetNameWhatDiffers) {
    EXPECT_EQ(names({"a2sf:budget=64,alpha=0", "a2sf:budget=64,alpha=0.5", "h2o:budget=16"}),
              (Names{"a2sf alpha=0", "a2sf alpha=0.5", "h2o"}));
    EXPECT_EQ(names({"h2o:budget=64,recent=8", "h2o:budget=32,recent=8"}),
              (Names{"h2o budget=64", "h2o budget=32"}));
    EXPECT_EQ(names({"h2o", "h2o:scope=layer,sinks=2"}),
              (Names{"h2o sinks=0 scope=head", "h2o sinks=2 scope=layer"}));
    EXPECT_EQ(names({"h2o:budget=64", "h2o:budget=64"}), (Names{"h2o", "h2o"}));
    // A default is a value too.
    EXPECT_EQ(names({"a2sf:alpha=0.2", "a2sf:alpha=0.9"}), (Names{"a2sf alpha=0.2", "a2sf alpha=0.9"}));
}

TEST(LaneNames, ShortTitlesThatWouldLookTheSameLoseWhatTheyHaveInCommon) {
    const auto shortened = [](const Names& titles, std::size_t width) {
        return shortened_titles(titles, [&](std::string_view title) {
            return title.size() <= width ? std::string(title) : std::string(title.substr(0, width - 1)) + "~";
        });
    };
    const Names far = {"0 full", "1 a2sf alpha=0.1", "2 a2sf alpha=0.5", "3 tova"};
    EXPECT_EQ(shortened(far, 40), far);
    EXPECT_EQ(shortened(far, 15), (Names{"0 full", "1 …alpha=0.1", "2 …alpha=0.5", "3 tova"}));
    EXPECT_EQ(shortened(far, 12), (Names{"0 full", "1 …0.1", "2 …0.5", "3 tova"}));
    EXPECT_EQ(shortened({"1 h2o recent=8 sinks=2", "2 h2o recent=8 sinks=4", "3 h2o recent=9 sinks=2"}, 18),
              (Names{"1 …sinks=2", "2 …sinks=4", "3 h2o recent=9 si~"}));
    EXPECT_EQ(shortened({"1 h2o", "2 h2o"}, 4), (Names{"1 h~", "2 h~"})) << "equal lanes";
    EXPECT_EQ(shortened({"1 abcdefgh", "2 abcdefgi"}, 6), (Names{"1 abc~", "2 abc~"})) << "no whole word";
    EXPECT_EQ(shortened({"1 sink positions=original", "2 sink positions=cache", "3 tova positions=original",
                         "4 tova positions=cache"},
                        14),
              (Names{"1 sink origin~", "2 sink cache", "3 tova origin~", "4 tova cache"}));
    EXPECT_EQ(shortened({}, 4), Names{});
}

/// What ranks by a formula of the user's is not what the preset's name promises.
TEST(LaneNames, AFormulaOfOnesOwnIsNamed) {
    EXPECT_EQ(names({"full", "h2o:budget=64,choose=(s/age)"}), (Names{"full", "h2o choose=(s/age)"}));
    EXPECT_EQ(names({"h2o:choose=(s/age)", "h2o:choose=(s/age),budget=9"}),
              (Names{"h2o budget=50% choose=(s/age)", "h2o budget=9 choose=(s/age)"}));
    EXPECT_EQ(names({"mine=h2o:choose=(s/age)", "knorm:budget=9"}), (Names{"mine", "knorm"}));
}

TEST(LaneNames, CommasInParenthesesBelongToAValue) {
    EXPECT_EQ(names({"h2o:kv=(mlkv:m=2,g=1)", "h2o:kv=(mlkv:m=3,g=1)"}),
              (Names{"h2o kv=(mlkv:m=2,g=1)", "h2o kv=(mlkv:m=3,g=1)"}));
}

TEST(LaneNames, OverridesAreSettings) {
    EXPECT_EQ(names({"tova:budget=64,budget@L0=16", "tova:budget=64"}), (Names{"tova budget@L0=16", "tova"}));
}

/// A name is part of a lane's text, so that it goes wherever lanes go, and changes nothing that a lane does.
TEST(LaneNames, ANameIsReadAndWrittenWithItsLane) {
    const LaneSpec ten = parse_lane_spec(" ten heads = sink:budget=32,budget@L5.G2=all");
    EXPECT_EQ(ten.name, "ten heads");
    EXPECT_EQ(format_lane_spec(ten), "ten heads=sink:budget=32,budget@L5.G2=all");
    EXPECT_EQ(parse_lane_spec(format_lane_spec(ten)), ten);
    EXPECT_EQ(parse_stored_lane_spec("é=full").name, "é");
    EXPECT_EQ(format_effective_spec(parse_lane_spec("ten=h2o:budget=50%"), 100, 10),
              "ten=h2o:budget=50,recent=25");
    EXPECT_EQ(format_effective_spec(parse_lane_spec("h2o:budget=50%"), 100, 10), "h2o:budget=50,recent=25");
    EXPECT_EQ(changed_lane_spec(ten, "budget=16").name, "ten heads");
    EXPECT_EQ(names({"full", "ten=h2o:budget=64", "h2o:budget=32"}), (Names{"full", "ten", "h2o budget=32"}));
    const LaneSpec other = parse_lane_spec("other=sink:budget=32,budget@L5.G2=all");
    EXPECT_NE(ten, other);
    EXPECT_TRUE(same_settings(ten, other));
    EXPECT_FALSE(same_settings(ten, parse_lane_spec("ten heads=sink:budget=32")));
    // Values after the first colon may hold an equals sign.
    EXPECT_EQ(parse_lane_spec("key:budget=64,score=(p)").name, "");
    const std::string fault =
        reference::error_of([] { (void)parse_lane_spec("ten=h2o:budgt=64"); }, ErrorCode::wrong_use);
    EXPECT_NE(fault.find("character 9"), std::string::npos) << fault;
}

TEST(LaneNames, ALaneMayHaveANameOfItsOwn) {
    const NamedLane ten = parse_named_lane("ten heads = sink:budget=32,budget@L5.G2=all");
    EXPECT_EQ(ten.name, "ten heads");
    EXPECT_EQ(format_lane_spec(ten.spec), "sink:budget=32,budget@L5.G2=all");
    EXPECT_EQ(parse_named_lane("tova=sink").name, "tova");
    EXPECT_EQ(parse_named_lane("h2o:budget=8").name, "");
    EXPECT_EQ(parse_named_lane("full").spec, parse_lane_spec("full"));
    const auto fault = [](std::string_view text) {
        return reference::error_of([&] { (void)parse_named_lane(text); }, ErrorCode::wrong_use);
    };
    EXPECT_NE(fault("=h2o").find("lane '=h2o': a name has 1 to 60 characters"), std::string::npos);
    EXPECT_NE(fault("a\nb=h2o").find("a name has 1 to 60"), std::string::npos);
    EXPECT_NE(fault(std::string(61, 'x') + "=h2o").find("a name has 1 to 60"), std::string::npos);
    EXPECT_NE(fault("h2o=budget=64").find("unknown preset 'budget=64'"), std::string::npos);
}

}  // namespace
}  // namespace keyhole::test_lane_names
