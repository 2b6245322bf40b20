#include "engine/analysis/token_class.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <utf8proc.h>

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

enum class Kind { letter, digit, space, joiner, other };

Kind kind_of(char32_t c) {
    if (c == U'\'' || c == U'\u2019' || c == U'-') return Kind::joiner;
    if (c == U'\n' || c == U'\r' || c == U'\t') return Kind::space;
    switch (utf8proc_category(static_cast<utf8proc_int32_t>(c))) {
        case UTF8PROC_CATEGORY_LU:
        case UTF8PROC_CATEGORY_LL:
        case UTF8PROC_CATEGORY_LT:
        case UTF8PROC_CATEGORY_LM:
        case UTF8PROC_CATEGORY_LO:
        case UTF8PROC_CATEGORY_MN:
        case UTF8PROC_CATEGORY_MC:
        case UTF8PROC_CATEGORY_ME:
            return Kind::letter;
        case UTF8PROC_CATEGORY_ND:
        case UTF8PROC_CATEGORY_NL:
        case UTF8PROC_CATEGORY_NO:
            return Kind::digit;
        case UTF8PROC_CATEGORY_ZS:
        case UTF8PROC_CATEGORY_ZL:
        case UTF8PROC_CATEGORY_ZP:
            return Kind::space;
        default:
            return Kind::other;
    }
}

}  // namespace

std::string_view token_class_name(TokenClass token_class) {
    constexpr std::array<std::string_view, kTokenClasses> kNames = {"special", "space",      "punctuation",
                                                                    "number",  "word_start", "word_piece"};
    return kNames[to_index(token_class)];
}

TokenClass token_class(std::string_view bytes, bool& in_word) {
    bool letters = false, digits = false, others = false, starts = false;
    while (!bytes.empty()) {
        const std::size_t length = utf8_length(bytes);
        const Kind kind = length == 0 ? Kind::letter : kind_of(utf8_decode(bytes.substr(0, length)));
        bytes.remove_prefix(std::max<std::size_t>(length, 1));
        if (kind == Kind::letter && !letters) starts = !in_word;
        letters = letters || kind == Kind::letter;
        digits = digits || kind == Kind::digit;
        others = others || kind == Kind::joiner || kind == Kind::other;
        if (kind != Kind::joiner) in_word = kind == Kind::letter || kind == Kind::digit;
    }
    if (letters) return starts ? TokenClass::word_start : TokenClass::word_piece;
    if (digits) return TokenClass::number;
    return others ? TokenClass::punctuation : TokenClass::space;
}

std::vector<TokenClass> token_classes(const RunInfo& run, std::span<const int> tokens) {
    std::vector<TokenClass> classes;
    bool in_word = false;
    for (int token : tokens) {
        const std::vector<int>& eos = run.config.eos;
        const auto i = to_index(token);
        if (token < 0 || i >= run.token_bytes.size() || run.token_bytes[i].empty() ||
            token == run.config.bos || std::find(eos.begin(), eos.end(), token) != eos.end()) {
            classes.push_back(TokenClass::special);
            in_word = false;
        } else {
            classes.push_back(token_class(run.token_bytes[i], in_word));
        }
    }
    return classes;
}

}  // namespace keyhole
