/// Chooses the head that a view of a new run opens with. Only reads the history; window's thread; knows no
/// GL.
#pragma once

#include "engine/analysis/token_span.h"
#include "engine/trace/run_history.h"

#include <optional>

namespace keyhole {

struct HeadPlace {
    int layer = 0;
    int head = 0;
    bool operator==(const HeadPlace&) const = default;
};

/// Returns the head that matters most to the end of the prompt. With a = lane 0's attention in the prompt's
/// last row and p a position, it is the head with the largest
///
///     sum of a[p] over p in `watched`, if words are watched and some head attends to them
///     a[p] of a p that `lane` has evicted after this row, otherwise
///
/// The second takes no sum, because heads that attend evenly to everything lose most, and show least. lane:
/// index into history.lanes(). Returns nullopt if the row is not recorded, and if nothing is watched and
/// nothing was evicted.
std::optional<HeadPlace> opening_head(const RunHistory& history, int lane,
                                      const std::optional<TokenSpan>& watched);

}  // namespace keyhole
