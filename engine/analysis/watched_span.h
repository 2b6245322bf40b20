/// Words of the text that are watched (the needle of a question): how much of them each lane still holds, and from which row on it was
/// lost. Pure reading; window thread; knows no GL. Lanes are indices into history.lanes().
#pragma once

#include "engine/analysis/token_span.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// The tokens of a lane that cover the first place of `words` in its text, from `from` on and then from the beginning.
std::optional<TokenSpan> find_span(const RunHistory& history, int lane, std::string_view words, int from = 0);

/// Share of the span's tokens that a KV head stores after a row, of those that are there by then; NaN before the first.
float span_share(const RunHistory& history, int lane, int kv_head, TokenSpan span, int row);

/// What became of a span in a lane.
struct SpanLifetime {
    std::vector<float> share;  ///< one a record: mean over KV heads, NaN where the lane has none
    std::optional<int>
        no_head_has_all;  ///< first row after which no KV head stores all of it: the answer cannot be read whole
    std::optional<int> all_gone;    ///< first row after which no KV head stores any of it
    std::optional<int> says_other;  ///< first row from the span's end on whose own next token is not lane 0's
    int n_heads_with_all = 0,
        n_heads = 0;  ///< KV heads that store all of it after the last record, of so many
};
SpanLifetime span_lifetime(const RunHistory& history, int lane, TokenSpan span);
/// In words, what a person asks first: "○ other word at 370 · whole in 1/48 heads".
std::string span_verdict(const SpanLifetime& lifetime);

}  // namespace keyhole
