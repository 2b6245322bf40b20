#include "engine/model/regex.h"

#include "engine/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace keyhole {
namespace {

// What PCRE2 understands differently, written out: its \s has U+180E too, which is no white space since Unicode 6.3; its \w
// has all numbers and no marks; its \h is blanks, Oniguruma's hexadecimal digits.
constexpr std::string_view kSpace = R"(\t-\r\x{85}\p{Z})";
constexpr std::string_view kWord = R"(\p{L}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view kHex = "0-9a-fA-F";

std::string_view members_of(char escaped) {
    switch (std::tolower(static_cast<unsigned char>(escaped))) {
        case 's':
            return kSpace;
        case 'w':
            return kWord;
        case 'h':
            return kHex;
        default:
            return {};
    }
}

std::string for_pcre2(const std::string& pattern) {
    std::string out;
    bool in_class = false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char escaped = pattern[++i];
            const std::string_view members = members_of(escaped);
            const bool negated = std::isupper(static_cast<unsigned char>(escaped)) != 0;
            if (escaped == 'u' && i + 4 < pattern.size()) {  // a code point of four digits
                out += "\\x{" + pattern.substr(i + 1, 4) + "}";
                i += 4;
            } else if (members.empty() || (in_class && negated)) {
                out += {'\\', escaped};
            } else if (in_class) {
                out += members;
            } else {
                out += (negated ? "[^" : "[") + std::string(members) + "]";
            }
            continue;
        }
        if (in_class && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
            fail(ErrorCode::unsupported,
                 "cannot use the regular expression {}: && in brackets, at character {}", pattern, i);
        }
        if (c == '[') in_class = true;
        if (c == ']') in_class = false;
        out += c;
    }
    return out;
}

std::string reason(int code) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(code, text, sizeof text);
    return reinterpret_cast<const char*>(text);
}

}  // namespace

struct Regex::Code {
    explicit Code(pcre2_code* compiled) : code(compiled) {}
    ~Code() { pcre2_code_free(code); }
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    pcre2_code* code;
};

Regex::Regex(const std::string& pattern) {
    constexpr std::size_t kLongest = 1 << 16;
    if (pattern.size() > kLongest) {
        fail(ErrorCode::unsupported, "cannot use a regular expression of {} characters; at most {} are",
             pattern.size(), kLongest);
    }
    const std::string written = for_pcre2(pattern);
    int error = 0;
    PCRE2_SIZE at = 0;
    // In Oniguruma's default dialect ^ and $ are of lines.
    pcre2_code* code = pcre2_compile(
        reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
        PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
        &at, nullptr);
    if (code == nullptr) {
        fail(ErrorCode::unsupported, "cannot use the regular expression {}: {} at character {}", pattern,
             reason(error), at);
    }
    code_ = std::make_unique<Code>(code);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // where there is no JIT, matching is slower and the same
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

Regex Regex::literal(std::string_view text) {
    std::string pattern;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x80 && std::isalnum(byte) == 0 && byte > 0x20) pattern += '\\';
        if (byte == 0) {
            pattern += "\\x00";
        } else {
            pattern += c;
        }
    }
    return Regex(pattern);
}

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
    struct FreeData {
        void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
    };
    const std::unique_ptr<pcre2_match_data, FreeData> data(
        pcre2_match_data_create_from_pattern(code_->code, nullptr));
    const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data.get());
    std::vector<Match> matches;
    std::size_t at = 0;
    while (at < text.size()) {
        const int result = pcre2_match(code_->code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                       at, 0, data.get(), nullptr);
        if (result == PCRE2_ERROR_NOMATCH) break;
        if (result < 0) {
            fail(ErrorCode::unsupported,
                 "cannot cut a text of {} bytes into words: {}; shorten its longest run", text.size(),
                 reason(result));
        }
        if (range[1] > range[0] && range[0] >= at) matches.push_back({range[0], range[1]});
        at = std::max(range[1], at + (range[1] > range[0] ? 0 : 1));
    }
    return matches;
}

}  // namespace keyhole
