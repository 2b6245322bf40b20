/// A span of tokens, such as the words that a user watches.
/// A plain value, for any thread; knows nothing else.
#pragma once

#include <string>

namespace keyhole {

/// Neighbouring positions of the text, both ends included.
struct TokenSpan {
    int first = 0;
    int last = 0;
    int size() const { return last - first + 1; }
    bool holds(int position) const { return position >= first && position <= last; }
    /// "position 12", "positions 12 to 15".
    std::string text() const {
        const std::string from = std::to_string(first);
        return size() == 1 ? "position " + from : "positions " + from + " to " + std::to_string(last);
    }
    bool operator==(const TokenSpan&) const = default;
};

}  // namespace keyhole
