// Limits all tests of the process to the instruction set that KEYHOLE_TEST_SIMD names. ctest runs the tests
// of kernels once more for each (Simd.NAME): a new processor would otherwise never run what an older one
// runs.
#include "engine/backend/common/kernels.h"

#include "tests/reference/instruction_set.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>

namespace keyhole::one_instruction_set {
namespace {

class OneInstructionSet : public ::testing::Environment {
    void SetUp() override {
        const char* name = std::getenv("KEYHOLE_TEST_SIMD");
        if (name == nullptr) return;
        if (!reference::use_instruction_set(name)) {
            std::printf("skipped: this processor or build has no %s\n", name);
            std::exit(0);
        }
        EXPECT_EQ(simd_name(), name);
    }
};

const auto* const environment = ::testing::AddGlobalTestEnvironment(new OneInstructionSet);

}  // namespace
}  // namespace keyhole::one_instruction_set
