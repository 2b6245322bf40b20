#include "app/gl/wrapped_text.h"

#include <algorithm>

namespace keyhole {

namespace {

bool inside_character(char byte) {
    return (static_cast<unsigned char>(byte) & 0xC0) == 0x80;
}

/// Return the bytes of the character that begins, or ends, at an offset; 0 at the end of the text.
std::size_t character_after(std::string_view text, std::size_t at) {
    std::size_t n = at < text.size() ? 1 : 0;
    while (n > 0 && at + n < text.size() && inside_character(text[at + n])) ++n;
    return n;
}

std::size_t character_before(std::string_view text, std::size_t at) {
    std::size_t n = at > 0 ? 1 : 0;
    while (n > 0 && n < at && inside_character(text[at - n])) ++n;
    return n;
}

}  // namespace

void WrappedText::wrap(std::string_view text, const Measure& measure) {
    shown_.clear();
    soft_.clear();
    float used = 0;
    const auto break_line = [&] {
        soft_.push_back(shown_.size());
        shown_ += '\n';
        used = 0;
    };
    for (std::size_t at = 0; at < text.size();) {
        if (text[at] == '\n') {
            shown_ += text[at++];
            used = 0;
            continue;
        }
        // A word and the blanks after it. The blanks may extend beyond the edge.
        std::size_t end = std::min(text.find_first_of(" \n", at), text.size());
        const std::string_view word = text.substr(at, end - at);
        while (end < text.size() && text[end] == ' ') ++end;
        if (used > 0 && used + measure(word) > width_) break_line();
        if (measure(word) <= width_) {
            shown_ += text.substr(at, end - at);
            used += measure(text.substr(at, end - at));
            at = end;
            continue;
        }
        for (std::size_t n; at < end && (n = character_after(text, at)) > 0; at += n) {
            const float wide = measure(text.substr(at, n));
            if (used > 0 && used + wide > width_) break_line();
            shown_ += text.substr(at, n);
            used += wide;
        }
    }
}

void WrappedText::set(std::string_view text, float width, const Measure& measure) {
    width_ = width;
    wrap(text, measure);
}

std::string WrappedText::text() const {
    std::string out;
    std::size_t from = 0;
    for (const std::size_t at : soft_) {
        out += shown_.substr(from, at - from);
        from = at + 1;
    }
    return out + shown_.substr(from);
}

std::size_t WrappedText::edited(std::string_view now, std::size_t cursor_before, std::size_t cursor,
                                const Measure& measure) {
    // Finds the edit: the part between the common beginning and the common end.
    const std::size_t most = std::min(shown_.size(), now.size());
    std::size_t front = 0, back = 0;
    while (front < most && shown_[front] == now[front]) ++front;
    while (back < most - front && shown_[shown_.size() - 1 - back] == now[now.size() - 1 - back]) ++back;
    const std::size_t removed_end = shown_.size() - back;
    const bool joins_lines = now.size() + 1 == shown_.size() && removed_end == front + 1 &&
                             std::binary_search(soft_.begin(), soft_.end(), front);
    std::vector<std::size_t> soft;
    for (const std::size_t at : soft_) {
        if (at < front) soft.push_back(at);
        if (at >= removed_end) soft.push_back(at + now.size() - shown_.size());
    }
    std::string text;
    std::size_t place = 0;  // the cursor's offset in the text
    for (std::size_t i = 0, next = 0; i <= now.size(); ++i) {
        if (i == cursor) place = text.size();
        if (next < soft.size() && soft[next] == i)
            ++next;
        else if (i < now.size())
            text += now[i];
    }
    if (joins_lines && cursor_before > cursor) {
        const std::size_t n = character_before(text, place);
        text.erase(place -= n, n);
    } else if (joins_lines) {
        text.erase(place, character_after(text, place));
    }
    wrap(text, measure);
    // A cursor at a soft line end goes to the beginning of the next line.
    for (const std::size_t at : soft_) {
        if (at > place) break;
        ++place;
    }
    return place;
}

}  // namespace keyhole
