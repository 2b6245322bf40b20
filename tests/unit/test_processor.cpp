#include "engine/base/processor.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

namespace keyhole {
namespace {

TEST(Processor, HasWhatThisBuildNeeds) {
    EXPECT_EQ(lacking_instruction_set(), "");
}

TEST(Processor, OneOfTheSetsOfABuildIsEnough) {
    EXPECT_EQ(lacking_instruction_set(HWY_AVX3 | HWY_AVX2 | HWY_SCALAR, HWY_SCALAR), "");
    EXPECT_EQ(lacking_instruction_set(HWY_AVX3, HWY_AVX3 | HWY_AVX2 | HWY_SCALAR), "");
}

TEST(Processor, LacksTheLeastSetOfABuildForAnother) {
    EXPECT_EQ(lacking_instruction_set(HWY_AVX3, HWY_AVX2 | HWY_SSE4 | HWY_SCALAR), "AVX3");
    EXPECT_EQ(lacking_instruction_set(HWY_AVX3 | HWY_AVX2, HWY_SSE4 | HWY_SCALAR), "AVX2");
}

}  // namespace
}  // namespace keyhole
