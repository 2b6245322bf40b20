#include "engine/base/utf8.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>

namespace keyhole {
namespace {

utf8proc_category_t category_of(char32_t c) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(c));
}

}  // namespace

std::size_t utf8_length(std::string_view text) {
    if (text.empty()) return 0;
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return 1;
    if (lead < 0xc2 || lead > 0xf4) return 0;
    const std::size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (text.size() < length) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xc0) != 0x80) return 0;
    }
    // Overlong forms, surrogates, beyond U+10FFFF.
    if (lead == 0xe0 && byte(1) < 0xa0) return 0;
    if (lead == 0xed && byte(1) > 0x9f) return 0;
    if (lead == 0xf0 && byte(1) < 0x90) return 0;
    if (lead == 0xf4 && byte(1) > 0x8f) return 0;
    return length;
}

char32_t utf8_decode(std::string_view character) {
    const auto bits = [&](std::size_t i, unsigned mask) {
        return static_cast<char32_t>(static_cast<unsigned char>(character[i]) & mask);
    };
    switch (character.size()) {
        case 1:
            return bits(0, 0x7f);
        case 2:
            return bits(0, 0x1f) << 6 | bits(1, 0x3f);
        case 3:
            return bits(0, 0x0f) << 12 | bits(1, 0x3f) << 6 | bits(2, 0x3f);
        default:
            return bits(0, 0x07) << 18 | bits(1, 0x3f) << 12 | bits(2, 0x3f) << 6 | bits(3, 0x3f);
    }
}

std::size_t find_invalid_utf8(std::string_view text) {
    for (std::size_t i = 0; i < text.size();) {
        const std::size_t length = utf8_length(text.substr(i));
        if (length == 0) return i;
        i += length;
    }
    return std::string_view::npos;
}

static std::string_view encoding_of_mark(std::string_view bytes) {
    using namespace std::string_view_literals;
    if (bytes.starts_with("\xff\xfe\0\0"sv)) return "UTF-32LE";
    if (bytes.starts_with("\0\0\xfe\xff"sv)) return "UTF-32BE";
    if (bytes.starts_with("\xff\xfe"sv)) return "UTF-16LE";
    if (bytes.starts_with("\xfe\xff"sv)) return "UTF-16BE";
    return {};
}

std::string_view wide_encoding(std::string_view bytes) {
    if (const std::string_view encoding = encoding_of_mark(bytes); !encoding.empty()) return encoding;
    // Without a mark: Latin letters, digits and blanks have one byte that is NUL. A text of bytes that a
    // person wants has hardly any.
    constexpr std::size_t kLeast = 4, kLooked = std::size_t{64} << 10;
    if (bytes.size() < kLeast) return {};
    std::size_t n_nul[4] = {}, n = std::min(bytes.size(), kLooked) / 4 * 4;
    for (std::size_t i = 0; i < n; ++i) n_nul[i % 4] += bytes[i] == '\0' ? 1 : 0;
    const std::size_t quarter = n / 4, even = n_nul[0] + n_nul[2], odd = n_nul[1] + n_nul[3];
    const auto is_most = [](std::size_t nul, std::size_t of) { return 2 * nul > of; };
    if (is_most(n_nul[1], quarter) && is_most(n_nul[2], quarter) && is_most(n_nul[3], quarter) &&
        !is_most(n_nul[0], quarter))
        return "UTF-32LE";
    if (is_most(n_nul[0], quarter) && is_most(n_nul[1], quarter) && is_most(n_nul[2], quarter) &&
        !is_most(n_nul[3], quarter))
        return "UTF-32BE";
    if (is_most(odd, n / 2) && 8 * even < odd) return "UTF-16LE";
    if (is_most(even, n / 2) && 8 * odd < even) return "UTF-16BE";
    return {};
}

std::string wide_encoding_fault(std::string_view bytes) {
    const std::string_view encoding = wide_encoding(bytes);
    if (encoding.empty()) return {};
    // The mark says the order of the bytes, and iconv takes it away only if its name does not.
    const std::string_view name = encoding_of_mark(bytes).empty() ? encoding : encoding.substr(0, 6);
    return fmt::format("it is {} text, and UTF-8 is read; convert it: iconv -f {} -t UTF-8 FILE > NEW",
                       encoding, name);
}

bool is_space(char32_t c) {
    if ((c >= 0x09 && c <= 0x0d) || c == 0x85) return true;
    const utf8proc_category_t category = category_of(c);
    return category == UTF8PROC_CATEGORY_ZS || category == UTF8PROC_CATEGORY_ZL ||
           category == UTF8PROC_CATEGORY_ZP;
}

bool is_mark(char32_t c) {
    const utf8proc_category_t category = category_of(c);
    return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
           category == UTF8PROC_CATEGORY_ME;
}

bool is_word(char32_t c) {
    switch (category_of(c)) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_PC:
            return true;
        default:
            return is_mark(c);
    }
}

std::string_view first_character(std::string_view text) {
    return text.substr(0, utf8_length(text));
}

std::string_view last_character(std::string_view text) {
    for (std::size_t length = 1; length <= 4 && length <= text.size(); ++length) {
        const std::string_view end = text.substr(text.size() - length);
        if (utf8_length(end) == length) return end;
    }
    return {};
}

std::size_t space_at_front(std::string_view text) {
    std::size_t n = 0;
    for (;;) {
        const std::string_view first = first_character(text.substr(n));
        if (first.empty() || !is_space(utf8_decode(first))) return n;
        n += first.size();
    }
}

std::size_t space_at_back(std::string_view text) {
    std::size_t n = 0;
    for (;;) {
        const std::string_view last = last_character(text.substr(0, text.size() - n));
        if (last.empty() || !is_space(utf8_decode(last))) return n;
        n += last.size();
    }
}

}  // namespace keyhole
