/// Small readers of texts on the screen and of a run's record, for ScreenCheck. They count for themselves and
/// do not ask the code that draws. Window thread.
#pragma once

#include "app/window/screen_text.h"
#include "engine/analysis/token_span.h"
#include "engine/base/index.h"
#include "engine/trace/run_history.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <regex>
#include <sstream>
#include <string>

namespace keyhole::testing {

inline bool inside(const ScreenText& text, ImVec2 min, ImVec2 max) {
    const float x = (text.min.x + text.max.x) / 2, y = (text.min.y + text.max.y) / 2;
    return x >= min.x && x <= max.x && y >= min.y && y <= max.y;
}

inline std::optional<std::smatch> match(const std::string& text, const char* pattern) {
    static std::map<std::string, std::regex> known;  // making one takes long
    const auto [at, is_new] = known.try_emplace(pattern);
    if (is_new) at->second = pattern;
    std::smatch found;
    if (!std::regex_search(text, found, at->second)) return std::nullopt;
    return found;
}

/// Returns a text without the signs that stand for a space and a line end.
inline std::string without_signs(std::string text) {
    for (const std::string_view sign : {"␣", "↵"})
        for (std::size_t at; (at = text.find(sign)) != std::string::npos;) text.erase(at, sign.size());
    return text;
}

/// Returns a number on the screen; NaN for what is none.
inline double number(const std::string& text) {
    std::istringstream in(text);
    double value = NAN;
    return in >> value ? value : NAN;
}

/// Returns the share of the span's tokens up to a row that the KV heads of a lane still store, as a mean over
/// them, and how many store all.
struct Held {
    double share = 0;
    int n_whole = 0, n_heads = 0;
};
inline Held held(const RunHistory& run, int lane, TokenSpan span, int row) {
    Held found;
    found.n_heads = run.layout(lane).n_kv_heads();
    const int last = std::min(span.last, row), n = last - span.first + 1;
    for (int g = 0; g < found.n_heads; ++g) {
        int n_stored = 0;
        for (int p = span.first; p <= last; ++p) n_stored += run.stored(lane, g, p, row) ? 1 : 0;
        found.share += double(n_stored) / n / found.n_heads;
        found.n_whole += n_stored == span.size() ? 1 : 0;
    }
    return found;
}

/// Returns the lane whose record a lane had at a row: itself, or the one that it was copied from.
inline int holder(const RunHistory& run, int lane, int row) {
    while (run.lanes()[to_index(lane)].forked_from >= 0 && row <= run.lanes()[to_index(lane)].forked_at)
        lane = run.lanes()[to_index(lane)].forked_from;
    return lane;
}

}  // namespace keyhole::testing
