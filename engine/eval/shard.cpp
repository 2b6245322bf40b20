#include "engine/eval/shard.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <algorithm>

namespace keyhole {

Shard parse_shard(std::string_view text) {
    if (text.empty()) return {};
    const std::size_t slash = std::min(text.find('/'), text.size());
    const int index = number_from_text<int>(text.substr(0, slash), 1).value_or(0);
    const int n = slash == text.size() ? 0 : number_from_text<int>(text.substr(slash + 1), 1).value_or(0);
    if (index < 1 || index > n || n > kMostShards)
        fail(ErrorCode::wrong_use,
             "--shard '{}' is no share of the questions; write 1/4 to 4/4 on four machines (at most {})",
             shown_text(text), kMostShards);
    return {index, n};
}

std::string shard_text(const Shard& shard) {
    return fmt::format("{}/{}", shard.index, shard.n);
}

}  // namespace keyhole
