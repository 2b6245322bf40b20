/// Watches words of the text (the needle of a question): how much of them each lane still holds, and from
/// which row on they were lost. Only reads the history; window's thread; knows no GL. Lanes are indices into
/// history.lanes().
#pragma once

#include "engine/analysis/token_span.h"
#include "engine/trace/run_history.h"

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns the tokens that cover the first occurrence of `words` in a lane's text, searched from `from` on
/// and then from the beginning.
std::optional<TokenSpan> find_span(const RunHistory& history, int lane, std::string_view words, int from = 0);
/// Returns those of the last occurrence that begins before `before`, else of the last one of all.
std::optional<TokenSpan> find_span_before(const RunHistory& history, int lane, std::string_view words,
                                          int before);

/// Returns the tokens that `watch` names: FIRST..LAST, or words as above. nullopt: the text has none, or
/// nothing is named.
std::optional<TokenSpan> watched_span(const RunHistory& history, int lane, std::string_view watch);

/// Returns the words at these positions, without the blanks around them.
std::string span_text(const RunHistory& history, int lane, const TokenSpan& span);
/// Returns them with their place: "“4821”, positions 80 to 83".
std::string span_name(const RunHistory& history, int lane, const TokenSpan& span);

/// Returns the share of the span's tokens, of those up to the row, that a KV head stores after it; NaN before
/// the first.
float span_share(const RunHistory& history, int lane, int kv_head, TokenSpan span, int row);

/// Returns how many KV heads store the whole span after a row; none if the row is before its end.
int heads_with_all(const RunHistory& history, int lane, TokenSpan span, int row);

/// The history of a span in a lane.
struct SpanLifetime {
    std::vector<float> share;  ///< one per record: mean over KV heads, NaN if the lane has none
    /// First row after which no KV head stores the whole span: the answer cannot be read whole.
    std::optional<int> no_head_has_all;
    std::optional<int> all_gone;  ///< first row after which no KV head stores any of it
    /// First row from the span's end on after which the lane's own next token differs from lane 0's.
    std::optional<int> first_other_token;
    /// Last row before it, and from the span's end on, at which one of the two choices is not recorded.
    std::optional<int> unknown_until;
    bool is_read = true;  ///< the row of the counts is not before the span's end
    /// KV heads that store the whole span after the row of the counts, and all KV heads.
    int n_heads_with_all = 0, n_heads = 0;
};
/// row: of the counts; -1: the last one.
SpanLifetime span_lifetime(const RunHistory& history, int lane, TokenSpan span, int row = -1);
/// Returns the answer to a user's first question in words: "1 of 48 heads hold all of it; first
/// word unlike lane 0's at 371".
std::string span_verdict(const SpanLifetime& lifetime);

}  // namespace keyhole
