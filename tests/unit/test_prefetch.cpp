#include "engine/backend/common/prefetch.h"

#include <gtest/gtest.h>

#include <set>

namespace keyhole::test_prefetch {
namespace {

struct Shape {
    std::int64_t length, at_once, element_bytes;
};
constexpr std::int64_t kRows = 4;

/// Returns what a block fetches: offsets from its beginning, a line each.
std::multiset<std::int64_t> fetched(const Shape& shape, Ahead soon) {
    std::multiset<std::int64_t> all;
    for (std::int64_t c = 0; c < shape.length; c += shape.at_once)
        for (std::int64_t r = 0; r < kRows; ++r)
            all.insert(soon.first + r * soon.of_row + c * soon.of_column);
    return all;
}

/// Short blocks: every line of one later block, each once, and none beyond the rows.
TEST(Prefetch, FetchesEachLineOfALaterBlockOnce) {
    for (const Shape& shape : {Shape{768, 32, 2}, Shape{576, 32, 2}, Shape{3072, 32, 2}, Shape{18, 1, 20},
                               Shape{64, 16, 4}, Shape{4096, 32, 2}}) {
        const BlocksAhead blocks(kRows, shape.length, shape.at_once, shape.element_bytes);
        const std::int64_t block = kRows * shape.length, n_rows = 6 * kRows + 1;
        std::set<std::int64_t> starts;
        for (std::int64_t row = 0; row + kRows <= n_rows; row += kRows) {
            const Ahead soon = blocks.after(row, n_rows);
            if (soon.first == 0) continue;
            ASSERT_EQ(soon.first % block, 0) << shape.length;
            const std::int64_t begin = row * shape.length + soon.first;
            EXPECT_LE(begin + block, n_rows * shape.length) << shape.length;
            EXPECT_TRUE(starts.insert(begin).second);
            std::multiset<std::int64_t> lines;
            for (std::int64_t at = 0; at < block; at += shape.at_once) lines.insert(soon.first + at);
            EXPECT_EQ(fetched(shape, soon), lines) << shape.length;
        }
        EXPECT_GE(starts.size(), 4u) << shape.length << ": most blocks are fetched before their turn";
    }
}

/// Long blocks: each row fetches further along itself, and the last block nothing new.
TEST(Prefetch, LongRowsFetchAlongThemselves) {
    const BlocksAhead blocks(kRows, 11008, 32, 2);
    const Ahead soon = blocks.after(0, 4096);
    EXPECT_EQ(soon.first, 1024);
    EXPECT_EQ(soon.of_row, 11008);
    EXPECT_EQ(soon.of_column, 1);
    EXPECT_EQ(blocks.after(4092, 4096).first, 0);
}

}  // namespace
}  // namespace keyhole::test_prefetch
