// The window's memory: its parts are those of the run, and they stay within their bounds.
#include "app/state/memory_use.h"
#include "engine/base/resource_use.h"
#include "engine/live/engine.h"
#include "tests/app/live_run.h"

#include <numeric>
#include <set>

namespace keyhole::test_memory_use {
namespace {

using MemoryUse = testing::LiveRun;

std::int64_t part(const AppState& app, std::string_view id) {
    for (const MemoryPart& p : memory_parts(app))
        if (p.id == id) return p.bytes;
    ADD_FAILURE() << "no part " << id;
    return 0;
}

TEST_F(MemoryUse, EveryPartOfTheRunCounts) {
    std::set<std::string_view> ids;
    for (const MemoryPart& p : memory_parts(app)) {
        EXPECT_TRUE(ids.insert(p.id).second) << p.id;
        EXPECT_FALSE(p.name.empty() || p.help.empty()) << p.id;
        EXPECT_GE(p.bytes, 0) << p.id;
        if (p.limit_bytes > 0) {
            EXPECT_LE(p.bytes, p.limit_bytes) << p.id;
        }
    }
    EXPECT_EQ(part(app, "recorded_rows"),
              static_cast<std::int64_t>(app.run.engine().recorder().snapshot().row_bytes));
    const RunInfo& run = app.run.history.run();
    const std::int64_t per_token = kv_bytes_per_token(run.config, KvType::f16);
    EXPECT_GE(part(app, "caches"), per_token * app.run.history.n_positions()) << "lane 0 keeps every token";
    EXPECT_GE(part(app, "recorded_steps"), 5 * std::int64_t{sizeof(StepTrace)});
    app.update_maps(1e6);
    EXPECT_GE(part(app, "matrices"), 64 * 64 * 4);
}

TEST_F(MemoryUse, PartsAddUpToTheProcess) {
    const std::vector<MemoryPart> parts = memory_parts(app);
    const std::int64_t sum = std::accumulate(parts.begin(), parts.end(), std::int64_t{0},
                                             [](std::int64_t s, const MemoryPart& p) { return s + p.bytes; });
    const std::int64_t resident = resident_memory().now_bytes;
    EXPECT_NEAR(static_cast<double>(sum), static_cast<double>(resident), 0.2 * static_cast<double>(resident));
}

TEST_F(MemoryUse, MatricesGrowWithTheTextAndAreCounted) {
    app.update_maps(1e6);
    const std::int64_t before = part(app, "matrices");
    run_action(app, "step 80");
    settle();
    app.update_maps(1e6);
    EXPECT_GT(part(app, "matrices"), before) << "more than 64 tokens";
}

}  // namespace
}  // namespace keyhole::test_memory_use
