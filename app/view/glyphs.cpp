#include "app/view/glyphs.h"

#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace keyhole {

namespace {

/// Calls each(character, code point) for the characters of a text; the code point is 0 for an invalid byte.
template <class Each>
void for_characters(std::string_view text, Each each) {
    while (!text.empty()) {
        const std::size_t n = utf8_length(text);
        each(text.substr(0, std::max<std::size_t>(n, 1)),
             n == 0 ? char32_t{0} : utf8_decode(text.substr(0, n)));
        text.remove_prefix(std::max<std::size_t>(n, 1));
    }
}

std::string escape_of(char32_t c) {
    return fmt::format("\\u{{{:X}}}", static_cast<std::uint32_t>(c));
}

/// Returns the UTF-8 bytes of a code point; empty if it is not a character.
std::string utf8_encode(std::uint32_t c) {
    std::string out;
    if (c == 0 || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return out;
    const auto put = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
    const auto tail = [&](int shift) { put(0x80 | (c >> shift & 0x3F)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xC0 | c >> 6);
        tail(0);
    } else if (c < 0x10000) {
        put(0xE0 | c >> 12);
        tail(6);
        tail(0);
    } else {
        put(0xF0 | c >> 18);
        tail(12);
        tail(6);
        tail(0);
    }
    return out;
}

}  // namespace

std::string legible(std::string_view text, const std::set<char32_t>& missing) {
    std::string out;
    for_characters(text, [&](std::string_view character, char32_t c) {
        if (c != 0 && c <= Glyphs::kMost && !missing.contains(c)) {
            out += character;
        } else if (c != 0) {
            out += escape_of(c);
        } else {
            out += fmt::format("<0x{:02X}>", static_cast<unsigned char>(character.front()));
        }
    });
    return out;
}

std::u32string characters_of(std::string_view text) {
    std::u32string out;
    for_characters(text, [&](std::string_view, char32_t c) {
        if (c != 0) out += c;
    });
    return out;
}

constexpr std::string_view kEscape = "\\u{";

std::string for_field(std::string_view text) {
    // Escapes that the text already contains, for example in code, must come back unchanged.
    std::string plain(text);
    for (std::size_t at = 0; (at = plain.find(kEscape, at)) != std::string::npos; at += 6)
        plain.replace(at, 1, "\\u{5C}");
    std::string out;
    for_characters(plain, [&](std::string_view character, char32_t c) {
        out += c > Glyphs::kMost ? escape_of(c) : std::string(character);
    });
    return out;
}

std::string for_field(char32_t character) {
    return character > Glyphs::kMost ? escape_of(character) : utf8_encode(character);
}

std::string from_field(std::string_view text) {
    std::string out;
    for (std::size_t at; (at = text.find(kEscape)) != std::string_view::npos;) {
        const std::string_view rest = text.substr(at + kEscape.size());
        std::uint32_t c = 0;
        const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), c, 16);
        const bool whole = error == std::errc() && end != rest.data() + rest.size() && *end == '}';
        const std::string character = whole ? utf8_encode(c) : "";
        const std::size_t n =
            character.empty() ? kEscape.size() : kEscape.size() + to_index(end - rest.data()) + 1;
        out += text.substr(0, at);
        out += character.empty() ? std::string(kEscape) : character;
        text.remove_prefix(at + n);
    }
    return out += text;
}

bool Glyphs::learn_token(const RunInfo& run, int id) {
    const auto i = to_index(id);
    if (i >= known_id_.size() || known_id_[i]) return false;
    known_id_[i] = true;
    return learn_text(run.token_display[i]);
}

bool Glyphs::learn_text(std::string_view text) {
    const std::size_t before = wanted_.size();
    for_characters(text, [&](std::string_view, char32_t c) {
        if (!is_common(c) && c <= kMost) wanted_.insert(c);
    });
    return wanted_.size() != before;
}

bool Glyphs::learn(const RunHistory& history, std::span<const TopToken> more) {
    bool fresh = std::exchange(fresh_, false);
    if (history.empty()) return fresh;
    const RunInfo& run = history.run();
    if (run_id_ != run.id) {
        fresh = learn_text(run.prompt) || fresh;  // as one text: its tokens may be single bytes
        run_id_ = run.id;
        known_id_.assign(run.token_display.size(), false);
        drawn_.assign(run.token_display.size(), -2);
        texts_.clear();
    }
    if (generation_ != history.generation()) {
        generation_ = history.generation();
        n_seen_.clear();
        row_seen_ = -1;
    }
    n_seen_.resize(history.lanes().size(), 0);
    for (std::size_t lane = 0; lane < n_seen_.size(); ++lane)
        for (const std::vector<int>& tokens = history.lanes()[lane].tokens; n_seen_[lane] < tokens.size();)
            fresh = learn_token(run, tokens[n_seen_[lane]++]) || fresh;
    for (const TopToken& top : more) fresh = learn_token(run, top.id) || fresh;
    if (row_seen_ == history.last_row()) return fresh;
    const int seen = std::exchange(row_seen_, history.last_row());
    for (auto step = history.steps().rbegin(); step != history.steps().rend() && (*step)->row > seen; ++step)
        for (const LaneRecord& record : (*step)->lanes)
            for (const TopToken& top : record.top) fresh = learn_token(run, top.id) || fresh;
    return fresh;
}

void Glyphs::set_missing(std::set<char32_t> missing) {
    if (missing == missing_) return;
    missing_ = std::move(missing);
    drawn_.assign(drawn_.size(), -2);
    texts_.clear();
}

const std::string& Glyphs::token(const RunInfo& run, int id) {
    const auto i = to_index(id);
    const std::string& text = run.token_display[i];
    if (run.id != run_id_ || i >= drawn_.size()) return text;
    if (drawn_[i] == -2) {
        std::string drawn = legible(text, missing_);
        drawn_[i] = -1;
        if (drawn != text) {
            drawn_[i] = static_cast<std::int32_t>(texts_.size());
            texts_.push_back(std::move(drawn));
        }
    }
    return drawn_[i] < 0 ? text : texts_[to_index(drawn_[i])];
}

std::string Glyphs::text(std::string_view text) {
    fresh_ = learn_text(text) || fresh_;
    return legible(text, missing_);
}

}  // namespace keyhole
