#include "app/view/memory_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace keyhole::test_memory_plan {
namespace {

TEST(MemoryPlan, CountsBytes) {
    const auto schemes = memory_schemes(6, 8, 32, 48, {1000, 2, 2}, 64);
    const auto find = [&](std::string_view name) {
        return *std::find_if(schemes.begin(), schemes.end(),
                             [&](const MemoryScheme& s) { return s.name.starts_with(name); });
    };
    EXPECT_EQ(find("MHA").full_bytes, 2LL * 48 * 32 * 1000 * 2 * 2);
    EXPECT_EQ(find("MHA").budget_bytes, 2LL * 48 * 32 * 64 * 2 * 2);
    EXPECT_EQ(find("MQA").n_kv_heads, 6);
    EXPECT_EQ(find("MLKV").n_kv_heads, 3);
    EXPECT_EQ(find("GQA: 4").full_bytes, find("MHA").full_bytes / 4);
    EXPECT_EQ(find("this model").full_bytes, find("MHA").full_bytes);
    EXPECT_TRUE(std::is_sorted(schemes.begin(), schemes.end(),
                               [](const auto& a, const auto& b) { return a.full_bytes > b.full_bytes; }));
    // A budget above the text's length holds the whole text.
    EXPECT_EQ(memory_schemes(6, 8, 32, 48, {10, 1, 2}, 64).front().budget_bytes,
              memory_schemes(6, 8, 32, 48, {10, 1, 2}, 64).front().full_bytes);
}

}  // namespace
}  // namespace keyhole::test_memory_plan
