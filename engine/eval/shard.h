/// A share of the questions, for one of several machines. Plain values, for any thread.
#pragma once

#include <string>
#include <string_view>

namespace keyhole {

/// Every n-th question from the index-th on. Which one answers a question does not depend on the lanes.
struct Shard {
    int index = 1, n = 1;  ///< index: from 1
    bool is_part() const { return n > 1; }
    bool has(int question) const { return question % n == index - 1; }
    bool operator==(const Shard&) const = default;
};

inline constexpr int kMostShards = 10'000;

/// Parses `2/4`; an empty text is all questions. Throws Error(wrong_use).
Shard parse_shard(std::string_view text);
std::string shard_text(const Shard& shard);

}  // namespace keyhole
