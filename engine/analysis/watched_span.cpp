#include "engine/analysis/watched_span.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/no_value.h"
#include "engine/base/index.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <string>

namespace keyhole {

namespace {

/// Returns the row after which a KV head no longer stores the position; a large number if it is still stored.
int leaves_at(const RunHistory& history, int lane, int kv_head, int position) {
    const std::int32_t evicted = history.evicted_at(lane, kv_head, position);
    return evicted < 0 ? std::numeric_limits<int>::max() : evicted;
}

/// A lane's text, and the byte at which each of its tokens begins.
struct LaneText {
    std::string text;
    std::vector<std::size_t> begins;

    LaneText(const RunHistory& history, int lane) {
        for (const int token : history.lanes()[to_index(lane)].tokens) {
            begins.push_back(text.size());
            text += history.run().token_bytes[to_index(token)];
        }
    }
    /// Returns the tokens that cover some bytes; nullopt: first is npos.
    std::optional<TokenSpan> tokens_at(std::size_t first, std::size_t n_bytes) const {
        if (first == std::string::npos) return std::nullopt;
        const auto token_at = [&](std::size_t byte) {
            return static_cast<int>(std::upper_bound(begins.begin(), begins.end(), byte) - begins.begin()) -
                   1;
        };
        return TokenSpan{token_at(first), token_at(first + n_bytes - 1)};
    }
};

}  // namespace

std::optional<TokenSpan> find_span(const RunHistory& history, int lane, std::string_view words, int from) {
    const LaneText known(history, lane);
    if (words.empty() || known.begins.empty()) return std::nullopt;
    const bool is_within = from > 0 && from < static_cast<int>(known.begins.size());
    std::size_t found = known.text.find(words, is_within ? known.begins[to_index(from)] : 0);
    if (found == std::string::npos) found = known.text.find(words);
    return known.tokens_at(found, words.size());
}

std::optional<TokenSpan> find_span_before(const RunHistory& history, int lane, std::string_view words,
                                          int before) {
    const LaneText known(history, lane);
    if (words.empty() || known.begins.empty()) return std::nullopt;
    std::size_t found = std::string::npos;
    if (before > 0)
        found = before < static_cast<int>(known.begins.size())
                    ? known.text.rfind(words, known.begins[to_index(before)] - 1)
                    : known.text.rfind(words);
    if (found == std::string::npos) found = known.text.rfind(words);
    return known.tokens_at(found, words.size());
}

std::optional<TokenSpan> watched_span(const RunHistory& history, int lane, std::string_view watch) {
    const std::size_t dots = watch.find("..");
    if (dots != std::string_view::npos && history.last_row() >= 0) {
        const int last = history.last_row();
        const auto from = number_from_text<int>(watch.substr(0, dots), 0, last);
        const auto to = number_from_text<int>(watch.substr(dots + 2), 0, last);
        if (from && to && *from <= *to) return TokenSpan{*from, *to};
    }
    return find_span(history, lane, watch);
}

std::string span_text(const RunHistory& history, int lane, const TokenSpan& span) {
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    const std::vector<std::string>& bytes = history.run().token_bytes;
    std::string text;
    for (int p = span.first; p <= span.last && to_index(p) < tokens.size(); ++p)
        if (const int token = tokens[to_index(p)]; token >= 0 && to_index(token) < bytes.size())
            text += bytes[to_index(token)];
    const std::size_t first = text.find_first_not_of(" \n");
    if (first == std::string::npos) return text;
    text = text.substr(first, text.find_last_not_of(" \n") + 1 - first);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
}

std::string span_name(const RunHistory& history, int lane, const TokenSpan& span) {
    return fmt::format("“{}”, positions {} to {}", span_text(history, lane, span), span.first, span.last);
}

float span_share(const RunHistory& history, int lane, int kv_head, TokenSpan span, int row) {
    const int last = std::min(span.last, row);
    if (last < span.first) return kNoValue;
    int n = 0;
    for (int p = span.first; p <= last; ++p) n += leaves_at(history, lane, kv_head, p) > row ? 1 : 0;
    return static_cast<float>(n) / static_cast<float>(last - span.first + 1);
}

int heads_with_all(const RunHistory& history, int lane, TokenSpan span, int row) {
    if (row < span.last) return 0;
    int n = 0;
    for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g) {
        bool all = true;
        for (int p = span.first; p <= span.last && all; ++p) all = leaves_at(history, lane, g, p) > row;
        n += all ? 1 : 0;
    }
    return n;
}

SpanLifetime span_lifetime(const RunHistory& history, int lane, TokenSpan span, int row_of_counts) {
    SpanLifetime lifetime;
    if (row_of_counts < 0) row_of_counts = history.last_row();
    lifetime.is_read = row_of_counts >= span.last;
    lifetime.n_heads_with_all = heads_with_all(history, lane, span, row_of_counts);
    const RunHistory::Lane& known = history.lanes()[to_index(lane)];
    const int n_kv = lifetime.n_heads = history.layout(lane).n_kv_heads();
    // Rows at which the last head loses its first token of the span, and at which the last head loses its
    // last one.
    int whole_until = 0, some_until = 0;
    for (int g = 0; g < n_kv; ++g) {
        int first = std::numeric_limits<int>::max(), last = 0;
        for (int p = span.first; p <= std::min(span.last, history.last_row()); ++p) {
            first = std::min(first, leaves_at(history, lane, g, p));
            last = std::max(last, leaves_at(history, lane, g, p));
        }
        whole_until = std::max(whole_until, first);
        some_until = std::max(some_until, last);
    }
    const bool there = span.last <= known.last_row;
    if (there && whole_until <= known.last_row) lifetime.no_head_has_all = std::max(whole_until, span.last);
    if (there && some_until <= known.last_row) lifetime.all_gone = std::max(some_until, span.last);
    // Count how many of the span's entries in all KV heads are gone after each row, once: the result is drawn
    // every frame.
    std::vector<int> gone(to_index(history.last_row()) + 2, 0);
    for (int g = 0; g < n_kv; ++g)
        for (int p = span.first; p <= std::min(span.last, history.last_row()); ++p)
            if (const int at = history.evicted_at(lane, g, p); at >= 0) ++gone[to_index(at)];
    for (std::size_t row = 1; row < gone.size(); ++row) gone[row] += gone[row - 1];
    for (const auto& step : history.steps()) {
        const int row = step->row;
        const int entries = (std::min(span.last, row) - span.first + 1) * n_kv;
        const bool shown = row <= known.last_row && entries > 0;
        lifetime.share.push_back(
            shown ? 1 - static_cast<float>(gone[to_index(row)]) / static_cast<float>(entries) : kNoValue);
        const int own = own_choice(history, lane, row + 1), reference = own_choice(history, 0, row + 1);
        const bool is_chosen = row >= span.last && row + 1 >= history.n_prompt();
        if (!lifetime.first_other_token && is_chosen && (own < 0 || reference < 0))
            lifetime.unknown_until = row;
        if (!lifetime.first_other_token && row >= span.last && own >= 0 && reference >= 0 && own != reference)
            lifetime.first_other_token = row;
    }
    return lifetime;
}

std::string span_verdict(const SpanLifetime& lifetime) {
    if (!lifetime.is_read) return "not yet read";
    std::string verdict =
        lifetime.no_head_has_all && lifetime.n_heads_with_all == 0
            ? fmt::format("no head has held all of it since step {}", *lifetime.no_head_has_all)
        : lifetime.n_heads_with_all == lifetime.n_heads
            ? std::string("every head holds all of it")
            : fmt::format("{} of {} heads hold all of it", lifetime.n_heads_with_all, lifetime.n_heads);
    if (lifetime.first_other_token && lifetime.unknown_until)
        verdict += fmt::format("; word at {} unlike lane 0's, none recorded before {}",
                               *lifetime.first_other_token + 1, *lifetime.unknown_until + 2);
    else if (lifetime.first_other_token)
        verdict += fmt::format("; first word unlike lane 0's at {}", *lifetime.first_other_token + 1);
    return verdict;
}

}  // namespace keyhole
