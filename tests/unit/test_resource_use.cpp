#include "engine/base/error.h"
#include "engine/base/resource_use.h"
#include "tests/reference/data_bytes.h"
#include "tests/reference/sanitizer.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace keyhole::test_resource_use {
namespace {

TEST(Measure, MedianOfOddAndEvenCounts) {
    EXPECT_EQ(median({3, 1, 2}), 2);
    EXPECT_EQ(median({4, 1, 3, 2}), 2.5);
    EXPECT_EQ(median({7}), 7);
    EXPECT_TRUE(std::isnan(median({})));
}

TEST(Measure, OwnWorkIsNotCountedToOthers) {
    const CpuTimes before = CpuTimes::now();
    volatile double sink = 0;
    CpuTimes after = before;
    while (after.own - before.own < 5) {  // some jiffies of our own
        for (int i = 0; i < 1000000; ++i) sink = sink + 1;
        after = CpuTimes::now();
    }
    const double share = share_of_others(before, after);
    EXPECT_GE(share, 0);
    EXPECT_LT(share, 1) << "we were busy too";
    EXPECT_EQ(share_of_others(before, before), 0);
    EXPECT_DOUBLE_EQ(share_of_others({100, 10}, {200, 35}), 0.75);
}

// In a child, since limits stay.
TEST(SystemMemory, LimitsOfTheProcessCount) {
    if (reference::under_a_sanitizer()) GTEST_SKIP() << "sanitizers need terabytes";
    const auto works = [] {
        constexpr rlim_t kMiB = 1 << 20;
        const rlim_t most = reference::data_bytes() + 300 * kMiB;
        const rlimit limit{most, most};
        if (::setrlimit(RLIMIT_DATA, &limit) != 0) std::_Exit(2);
        const SystemMemory memory = system_memory();
        if (memory.total > static_cast<std::int64_t>(most) ||
            memory.available > static_cast<std::int64_t>(300 * kMiB))
            std::_Exit(3);
        check_room(static_cast<std::int64_t>(100 * kMiB), "this", "go");  // as much is left
        try {
            check_room(static_cast<std::int64_t>(400 * kMiB), "a thing", "take less");
        } catch (const Error& error) {
            const std::string said = error.what();
            const bool right = error.code() == ErrorCode::no_memory &&
                               said.starts_with("a thing would take 419 MB, and ") &&
                               said.ends_with(" are free; take less");
            std::_Exit(right ? 0 : 4);
        }
        std::_Exit(5);
    };
    EXPECT_EXIT(works(), ::testing::ExitedWithCode(0), "");
    EXPECT_NO_THROW(check_room(1 << 20, "little", ""));
}

TEST(Measure, FreedMemoryGoesBackToTheSystem) {
#ifndef __GLIBC__
    GTEST_SKIP() << "another allocator";
#endif
    if (reference::under_a_sanitizer()) GTEST_SKIP() << "another allocator";
    // A block is smaller than the sizes that the allocator maps separately.
    constexpr std::size_t kBlock = 100'000, kBlocks = 2'000;
    std::jthread([] {
        std::vector<std::unique_ptr<std::vector<char>>> blocks;
        for (std::size_t i = 0; i < kBlocks; ++i)
            blocks.push_back(std::make_unique<std::vector<char>>(std::size_t{kBlock}, 'x'));
        // The last block stays allocated, as happens in practice: the blocks below it are free but not
        // returned to the system.
        static std::unique_ptr<std::vector<char>> last;
        last = std::move(blocks.back());
    }).join();
    const ResidentMemory before = resident_memory();
    return_freed_memory();
    const ResidentMemory after = resident_memory();
    EXPECT_GE(before.peak_bytes, static_cast<std::int64_t>(kBlock * kBlocks));
    EXPECT_GT(before.now_bytes - after.now_bytes, static_cast<std::int64_t>(kBlock * kBlocks) * 8 / 10);
    EXPECT_GT(after.now_bytes, 0);
}

}  // namespace
}  // namespace keyhole::test_resource_use
