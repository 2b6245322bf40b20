#include "engine/model/regex.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <new>
#include <optional>
#include <utility>

namespace keyhole {
namespace {

// Classes that PCRE2 defines differently, written out. Its \s also has U+180E, which is no white space
// since Unicode 6.3; its \w has all numbers and no marks; its \h means blanks, Oniguruma's hexadecimal
// digits.
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
    int depth = 0;  // of classes in classes: their members are members of the outer one
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        const bool in_class = depth > 0;
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
        if (!in_class && c == '(' && i + 1 < pattern.size() && pattern[i + 1] == '*') {
            // (* changes PCRE2's own settings; Oniguruma has no such syntax.
            fail(ErrorCode::unsupported, "cannot use the regular expression {}: (* at character {}",
                 shown_text(pattern), i);
        }
        if (in_class && c == '&' && i + 1 < pattern.size() && pattern[i + 1] == '&') {
            fail(ErrorCode::unsupported,
                 "cannot use the regular expression {}: && in brackets, at character {}", shown_text(pattern),
                 i);
        }
        const char after = i + 1 < pattern.size() ? pattern[i + 1] : '\0';
        if (in_class && c == '[' && after == '^')
            fail(ErrorCode::unsupported,
                 "cannot use the regular expression {}: [^ in brackets, at character {}", shown_text(pattern),
                 i);
        const bool is_named = in_class && c == '[' && after == ':';  // [:alpha:]
        if (is_named && pattern.find(":]", i) != std::string::npos) {
            const std::size_t end = pattern.find(":]", i) + 2;
            out += pattern.substr(i, end - i);
            i = end - 1;
            continue;
        }
        const bool is_inner = (c == '[' && depth > 0) || (c == ']' && depth > 1);
        if (c == '[') ++depth;
        if (c == ']') depth = std::max(depth - 1, 0);
        if (!is_inner) out += c;
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
    Code(pcre2_code* compiled, const std::string& of) : code(compiled), pattern(shown_text(of)) {}
    ~Code() { pcre2_code_free(code); }
    Code(const Code&) = delete;
    Code& operator=(const Code&) = delete;
    pcre2_code* code;
    std::string pattern;  // for messages
};

Regex::Regex(const std::string& pattern) {
    constexpr std::size_t kLongest = 1 << 14;
    if (pattern.size() > kLongest) {
        fail(ErrorCode::unsupported, "cannot use a regular expression of {} characters; at most {} are",
             pattern.size(), kLongest);
    }
    const std::string written = for_pcre2(pattern);
    int error = 0;
    PCRE2_SIZE at = 0;
    // In Oniguruma's default dialect ^ and $ match at lines.
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF | PCRE2_MULTILINE |
                                         PCRE2_NEVER_BACKSLASH_C | PCRE2_USE_OFFSET_LIMIT,
                                     &error, &at, nullptr);
    if (code == nullptr) {
        fail(ErrorCode::unsupported, "cannot use the regular expression {}: {} at character {}",
             shown_text(pattern), reason(error), at);
    }
    code_ = std::make_unique<Code>(code, pattern);
    // Without a JIT, matching is slower but gives the same result.
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
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

namespace {

/// Searches one text. PCRE2 limits the steps of a match from one place only, and there are as many places
/// as bytes: a pattern just below the limit at each place would run for minutes. A match therefore has few
/// steps at first, with one call for kWindow places. Where they do not suffice, each place gets its own
/// call and more steps, taken from a store that grows with the text.
class Search {
  public:
    Search(const pcre2_code* code, std::string_view text)
        : code_(code),
          text_(text),
          data_(pcre2_match_data_create_from_pattern(code, nullptr)),
          context_(pcre2_match_context_create(nullptr)),
          steps_left_(kSteps + kStepsOfByte * text.size()) {
        if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
    }

    /// Returns the first match that begins at `at` or later, or nullopt. Throws PCRE2's error code.
    std::optional<Regex::Match> next(std::size_t at) {
        while (at < text_.size()) {
            const std::size_t n = to_character(at, at < narrow_until_ ? 1 : kWindow);
            int result = run(at, n, kFewSteps);
            if (result == PCRE2_ERROR_MATCHLIMIT && at >= narrow_until_) {
                narrow_until_ = at + n;
                continue;
            }
            for (std::uint32_t steps = 4 * kFewSteps; result == PCRE2_ERROR_MATCHLIMIT; steps *= 4) {
                if (steps > steps_left_) throw result;
                steps_left_ -= steps;
                result = run(at, n, steps);
            }
            if (result == PCRE2_ERROR_NOMATCH) {
                at += n;
                continue;
            }
            if (result < 0) throw result;
            const PCRE2_SIZE* const range = pcre2_get_ovector_pointer(data_.get());
            return Regex::Match{range[0], range[1]};
        }
        return std::nullopt;
    }

  private:
    static constexpr std::size_t kWindow = 256;
    static constexpr std::uint32_t kFewSteps = 256;
    static constexpr std::size_t kSteps = std::size_t{4} << 20, kStepsOfByte = 64;

    /// Returns n, or up to three more, so that a character begins after them.
    std::size_t to_character(std::size_t at, std::size_t n) const {
        for (int i = 0; i < 3 && at + n < text_.size(); ++i) {
            if ((static_cast<unsigned char>(text_[at + n]) & 0xc0) != 0x80) break;
            ++n;
        }
        return n;
    }

    /// Tries matches that begin at the next n places.
    int run(std::size_t at, std::size_t n, std::uint32_t steps) {
        pcre2_set_match_limit(context_.get(), steps);
        pcre2_set_offset_limit(context_.get(), at + n - 1);
        return pcre2_match(code_, reinterpret_cast<PCRE2_SPTR>(text_.data()), text_.size(), at, 0,
                           data_.get(), context_.get());
    }

    struct Free {
        void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
        void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
    };

    const pcre2_code* code_;
    std::string_view text_;
    std::unique_ptr<pcre2_match_data, Free> data_;
    std::unique_ptr<pcre2_match_context, Free> context_;
    std::size_t steps_left_;
    std::size_t narrow_until_ = 0;  // places before it are tried one by one
};

}  // namespace

std::vector<Regex::Match> Regex::find_all(std::string_view text) const {
    Search search(code_->code, text);
    std::vector<Match> matches;
    std::size_t at = 0;
    try {
        while (const std::optional<Match> match = search.next(at)) {
            if (match->end > match->begin && match->begin >= at) matches.push_back(*match);
            at = std::max(match->end, at + (match->end > match->begin ? 0 : 1));
        }
    } catch (const int error) {
        fail(ErrorCode::unsupported,
             "its regular expression {} takes too many steps in a text of {} bytes ({})", code_->pattern,
             text.size(), reason(error));
    }
    return matches;
}

}  // namespace keyhole
