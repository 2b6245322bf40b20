#include "engine/model/pretokenize.h"

#include "engine/base/error.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace keyhole {
namespace {

// GPT-2, encoder.py; \p{L} letters, \p{N} numbers.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// PCRE2's \s has U+180E too, which is no white space since Unicode 6.3: written out instead.
std::string with_unicode_space(const std::string& pattern) {
    const std::string space = R"(\t-\r\x{85}\p{Z})";
    std::string out;
    bool in_class = false;
    for (std::size_t i = 0; i < pattern.size(); ++i) {
        const char c = pattern[i];
        if (c == '\\' && i + 1 < pattern.size()) {
            const char escaped = pattern[++i];
            if (escaped == 's') {
                out += in_class ? space : "[" + space + "]";
            } else if (escaped == 'S' && !in_class) {
                out += "[^" + space + "]";
            } else {
                out += {'\\', escaped};
            }
            continue;
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

struct Part {
    std::size_t begin = 0, end = 0;
    bool is_match = false;
};

/// Matches and what lies between them; together the whole text.
std::vector<Part> parts_of(std::size_t size, const std::vector<Regex::Match>& matches, bool invert) {
    std::vector<Part> parts;
    std::size_t at = 0;
    for (const Regex::Match& match : matches) {
        if (match.begin > at) parts.push_back({at, match.begin, invert});
        parts.push_back({match.begin, match.end, !invert});
        at = match.end;
    }
    if (at < size) parts.push_back({at, size, invert});
    return parts;
}

std::vector<Part> joined(std::vector<Part> parts, SplitBehavior behavior) {
    std::vector<Part> out;
    if (behavior == SplitBehavior::merged_with_next) std::reverse(parts.begin(), parts.end());
    bool previous_matched = false;
    for (const Part& part : parts) {
        bool join = false;
        if (behavior == SplitBehavior::contiguous) join = part.is_match == previous_matched;
        if (behavior == SplitBehavior::merged_with_previous || behavior == SplitBehavior::merged_with_next) {
            join = part.is_match && !previous_matched;
        }
        previous_matched = part.is_match;
        if (behavior == SplitBehavior::removed && part.is_match) continue;
        if (join && !out.empty()) {
            out.back().begin = std::min(out.back().begin, part.begin);
            out.back().end = std::max(out.back().end, part.end);
        } else {
            out.push_back(part);
        }
    }
    if (behavior == SplitBehavior::merged_with_next) std::reverse(out.begin(), out.end());
    return out;
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
    const std::string written = with_unicode_space(pattern);
    int error = 0;
    PCRE2_SIZE at = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(written.data()), written.size(),
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, nullptr);
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

void PreTokenizer::add_split(Regex pattern, SplitBehavior behavior, bool invert) {
    Step& step = steps_.emplace_back();
    step.pattern.push_back(std::move(pattern));
    step.behavior = behavior;
    step.invert = invert;
}

void PreTokenizer::add_digits(bool individual) {
    add_split(Regex(R"(\p{N})"), individual ? SplitBehavior::isolated : SplitBehavior::contiguous, false);
}

void PreTokenizer::add_byte_level(bool add_prefix_space, bool use_regex) {
    Step& step = steps_.emplace_back();
    step.add_prefix_space = add_prefix_space;
    if (use_regex) step.pattern.emplace_back(kGpt2Pattern);
}

void PreTokenizer::split(std::string_view text, std::deque<std::string>& arena,
                         std::vector<std::string_view>& pieces) const {
    std::vector<std::string_view> now, next;
    if (!text.empty()) now.push_back(text);
    for (const Step& step : steps_) {
        next.clear();
        for (std::string_view piece : now) {
            if (step.add_prefix_space && piece.front() != ' ')
                piece = arena.emplace_back(" " + std::string(piece));
            if (step.pattern.empty()) {
                next.push_back(piece);
                continue;
            }
            const auto matches = step.pattern.front().find_all(piece);
            for (const Part& part : joined(parts_of(piece.size(), matches, step.invert), step.behavior)) {
                next.push_back(piece.substr(part.begin, part.end - part.begin));
            }
        }
        std::swap(now, next);
    }
    pieces.insert(pieces.end(), now.begin(), now.end());
}

}  // namespace keyhole
