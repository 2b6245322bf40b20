#include "engine/model/normalize.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace keyhole {
namespace {

int option_of(Normalizer::Form form) {
    switch (form) {
        case Normalizer::Form::nfc:
            return UTF8PROC_COMPOSE;
        case Normalizer::Form::nfd:
            return UTF8PROC_DECOMPOSE;
        case Normalizer::Form::nfkc:
            return UTF8PROC_COMPOSE | UTF8PROC_COMPAT;
        case Normalizer::Form::nfkd:
            return UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT;
    }
    return UTF8PROC_COMPOSE;
}

/// Normalises valid UTF-8.
std::string in_form(Normalizer::Form form, std::string_view text) {
    utf8proc_uint8_t* out = nullptr;
    const utf8proc_ssize_t size = utf8proc_map(
        reinterpret_cast<const utf8proc_uint8_t*>(text.data()), static_cast<utf8proc_ssize_t>(text.size()),
        &out, static_cast<utf8proc_option_t>(UTF8PROC_STABLE | option_of(form)));
    if (size < 0) {
        fail(ErrorCode::no_memory, "cannot normalise a text of {} bytes: {}; shorten it", text.size(),
             utf8proc_errmsg(size));
    }
    std::string result(reinterpret_cast<const char*>(out), to_index(size));
    std::free(out);
    return result;
}

std::string normalized(Normalizer::Form form, std::string_view text) {
    if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; })) {
        return std::string(text);
    }
    std::string out;
    while (!text.empty()) {
        std::size_t valid = 0;
        while (const std::size_t length = utf8_length(text.substr(valid))) valid += length;
        if (valid > 0) out += in_form(form, text.substr(0, valid));
        text.remove_prefix(valid);
        if (text.empty()) break;
        out += text.front();  // no character starts here
        text.remove_prefix(1);
    }
    return out;
}

/// Passes every valid character to `change`, which appends its replacement; other bytes stay.
template <class Change>
std::string by_character(std::string_view text, Change change) {
    std::string out;
    out.reserve(text.size());
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        if (length == 0) {
            out += text.front();
        } else {
            change(text.substr(0, length), out);
        }
        text.remove_prefix(std::max<std::size_t>(length, 1));
    }
    return out;
}

void append_lower(std::string_view character, std::string& out) {
    const char32_t c = utf8_decode(character);
    if (c == 0x130) {  // the only letter with two characters as lower case
        out += "i\xcc\x87";
        return;
    }
    utf8proc_uint8_t bytes[4];
    const auto n = utf8proc_encode_char(utf8proc_tolower(static_cast<utf8proc_int32_t>(c)), bytes);
    out.append(reinterpret_cast<const char*>(bytes), to_index(n));
}

bool is_removed_by_nmt(char32_t c) {
    return (c >= 0x01 && c <= 0x08) || c == 0x0b || (c >= 0x0e && c <= 0x1f) || c == 0x7f || c == 0x8f ||
           c == 0x9f;
}
bool is_blank_of_nmt(char32_t c) {
    return c == 0x09 || c == 0x0a || c == 0x0c || c == 0x0d || c == 0x1680 || (c >= 0x200b && c <= 0x200f) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xfeff || c == 0xfffd;
}
void append_by_nmt(std::string_view character, std::string& out) {
    const char32_t c = utf8_decode(character);
    if (is_removed_by_nmt(c)) return;
    if (is_blank_of_nmt(c))
        out += ' ';
    else
        out += character;
}

/// SentencePiece also takes its own sign of a blank from the end, though not from the front.
std::string with_single_blanks(std::string_view text) {
    constexpr std::string_view kSign = "▁";
    std::string out;
    for (const char c : text)
        if (c != ' ' || (!out.empty() && out.back() != ' ')) out += c;
    for (;;) {
        if (out.ends_with(' '))
            out.pop_back();
        else if (out.ends_with(kSign))
            out.resize(out.size() - kSign.size());
        else
            return out;
    }
}

std::string with_matches_replaced(std::string_view text, const Regex& from, std::string_view to) {
    std::string out;
    std::size_t at = 0;
    for (const Regex::Match& match : from.find_all(text)) {
        out += text.substr(at, match.begin - at);
        out += to;
        at = match.end;
    }
    out += text.substr(at);
    return out;
}

}  // namespace

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
    if (from.empty()) return std::string(text);
    std::string out;
    for (;;) {
        const std::size_t at = text.find(from);
        out += text.substr(0, at);
        if (at == std::string_view::npos) return out;
        out += to;
        text.remove_prefix(at + from.size());
    }
}

void Normalizer::add_form(Form form) {
    steps_.push_back({.kind = Kind::form, .form = form});
}
void Normalizer::add_prepend(std::string text) {
    steps_.push_back({.kind = Kind::prepend, .to = std::move(text)});
}
void Normalizer::add_replace(std::string from, std::string to) {
    steps_.push_back({.kind = Kind::replace, .from = std::move(from), .to = std::move(to)});
}
void Normalizer::add_replace(Regex from, std::string to) {
    steps_.push_back({.kind = Kind::replace_regex, .to = std::move(to)});
    steps_.back().pattern.push_back(std::move(from));
}
void Normalizer::add_strip(bool left, bool right) {
    steps_.push_back({.kind = Kind::strip, .left = left, .right = right});
}
void Normalizer::add_nmt() {
    steps_.push_back({.kind = Kind::nmt});
}
void Normalizer::add_lowercase() {
    steps_.push_back({.kind = Kind::lowercase});
}
void Normalizer::add_charsmap(Charsmap map) {
    steps_.push_back({.kind = Kind::charsmap});
    steps_.back().map.push_back(std::move(map));
}
void Normalizer::add_single_blanks() {
    steps_.push_back({.kind = Kind::single_blanks});
}
void Normalizer::add_strip_accents() {
    steps_.push_back({.kind = Kind::strip_accents});
}

std::string Normalizer::done(const Step& step, std::string text) {
    switch (step.kind) {
        case Kind::form:
            return normalized(step.form, text);
        case Kind::prepend:
            return text.empty() ? text : step.to + text;
        case Kind::replace:
            return replaced(text, step.from, step.to);
        case Kind::replace_regex:
            return with_matches_replaced(text, step.pattern.front(), step.to);
        case Kind::strip:
            if (step.right) text.resize(text.size() - space_at_back(text));
            if (step.left) text.erase(0, space_at_front(text));
            return text;
        case Kind::lowercase:
            return by_character(text, append_lower);
        case Kind::nmt:
            return by_character(text, append_by_nmt);
        case Kind::charsmap:
            return step.map.front().apply(text);
        case Kind::single_blanks:
            return with_single_blanks(text);
        case Kind::strip_accents:
            return by_character(text, [](std::string_view character, std::string& out) {
                if (!is_mark(utf8_decode(character))) out += character;
            });
    }
    return text;
}

std::string Normalizer::apply(std::string_view text) const {
    std::string now(text);
    for (const Step& step : steps_) {
        now = done(step, std::move(now));
        if (now.size() > most_grown(text.size())) {
            fail(ErrorCode::unsupported, "its normalizer makes {} bytes of {}", now.size(), text.size());
        }
    }
    return now;
}

}  // namespace keyhole
