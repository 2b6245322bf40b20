// The estimate of memory against a cache's real size, and the estimate's inverse.
#include "engine/backend/memory_need.h"

#include "engine/backend/backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <filesystem>

namespace keyhole::test_memory_need {
namespace {

namespace fs = std::filesystem;

std::shared_ptr<const Model> fixture(const char* name) {
    return load_model(reference::source_folder() / "tests/fixtures" / name);
}

TEST(MemoryNeed, CacheIsWhatTheBackendAllocates) {
    for (const char* name : {"llama_gqa", "llama_mha"}) {
        const auto model = fixture(name);
        const auto backend = make_backend(model, {BackendChoice::cpu, 2, 0}, nullptr);
        for (const int n : {1, 17, 200}) {
            const ResolvedPolicy policy = resolve(parse_lane_spec("full").policy, n, 32);
            const auto cache = backend->make_cache(policy);
            RowOutput out;
            const LanePrefill lane{cache.get(), {}, &out};
            backend->prefill(std::vector<int>(to_index(n), 3), {&lane, 1}, nullptr, {});
            EXPECT_EQ(memory_need(*model, n, 1, 2).cache, cache->use().allocated_bytes) << name << " " << n;
        }
    }
}

TEST(MemoryNeed, WeightsAreThoseOfTheFileAndTiedOnesCountOnce) {
    const auto mha = fixture("llama_mha");  // bf16, except the first norm of a layer
    EXPECT_EQ(memory_need(*mha, 1, 1, 1).weights, 2 * mha->n_parameters() + 2 * 2 * 32);
    EXPECT_EQ(memory_need(*mha, 500, 9, 1).weights, memory_need(*mha, 1, 1, 1).weights);
}

TEST(MemoryNeed, ScratchByHand) {
    // 3 x d_model, 2 x q, 4 x KV and one score per head for each of 100 tokens; hidden rows; two threads'
    // tiles; one row of logits.
    const auto model = fixture("llama_gqa");
    EXPECT_EQ(
        memory_need(*model, 100, 1, 2).scratch,
        4 * (100 * (3 * 48 + 2 * 48 + 4 * 16 + 6) + 2 * 100 * 80 + 2 * 2 * 64 * 100 + 320 + 4 * 48 + 2 * 80));
}

TEST(MemoryNeed, WhatFitsIsTheMostThatFits) {
    const auto model = fixture("llama_gqa");
    for (const std::int64_t bytes :
         {std::int64_t{500'000}, std::int64_t{10'000'000}, std::int64_t{3'000'000'000}}) {
        for (const int batch : {1, 5}) {
            const std::int64_t n = longest_context(*model, batch, 2, bytes);
            ASSERT_GT(n, 0);
            EXPECT_LE(memory_need(*model, n, batch, 2).total(), bytes);
            EXPECT_GT(memory_need(*model, n + 1, batch, 2).total(), bytes);
        }
        const int lanes = largest_batch(*model, 10, 2, bytes);
        ASSERT_GT(lanes, 0);
        EXPECT_LE(memory_need(*model, 10, lanes, 2).total(), bytes);
        EXPECT_GT(memory_need(*model, 10, lanes + 1, 2).total(), bytes);
    }
    EXPECT_EQ(longest_context(*model, 1, 2, 1000), 0);
    EXPECT_EQ(largest_batch(*model, 10, 2, 1000), 0);
}

TEST(MemoryNeed, TheMachineHasMemory) {
    const SystemMemory memory = system_memory();
    EXPECT_GT(memory.total, std::int64_t{1} << 26);
    EXPECT_GE(memory.available, 0);
    EXPECT_LE(memory.available, memory.total);
}

}  // namespace
}  // namespace keyhole::test_memory_need
