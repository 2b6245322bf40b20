// Names of lanes that stand side by side.
#include "engine/policy/lane_names.h"

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

TEST(LaneNames, CommasInParenthesesBelongToAValue) {
    EXPECT_EQ(names({"h2o:kv=(mlkv:m=2,g=1)", "h2o:kv=(mlkv:m=3,g=1)"}),
              (Names{"h2o kv=(mlkv:m=2,g=1)", "h2o kv=(mlkv:m=3,g=1)"}));
}

TEST(LaneNames, OverridesAreSettings) {
    EXPECT_EQ(names({"tova:budget=64,budget@L0=16", "tova:budget=64"}), (Names{"tova budget@L0=16", "tova"}));
}

}  // namespace
}  // namespace keyhole::test_lane_names
