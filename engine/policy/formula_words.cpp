#include "engine/policy/formula_words.h"

#include "engine/policy/formula_names.h"
#include "engine/policy/spans.h"
#include "engine/policy/spec_text.h"

#include <algorithm>

namespace keyhole {

namespace {

bool is_of_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/// Returns whether a word that begins here is the name in `in(NAME)`.
bool names_a_span(std::string_view before) {
    const auto trim = [&] {
        while (before.ends_with(' ')) before.remove_suffix(1);
    };
    trim();
    if (!before.ends_with('(')) return false;
    before.remove_suffix(1);
    trim();
    if (!before.ends_with(kInSpan)) return false;
    before.remove_suffix(kInSpan.size());
    return before.empty() || !is_of_word(before.back());
}

std::vector<FormulaWord> all_words(FormulaUse use) {
    std::vector<FormulaWord> words;
    for (const QuantityName& quantity : kQuantityNames)
        if (is_known_to(quantity, use))
            words.push_back({std::string(quantity.name), {}, help_of(quantity, use)});
    for (const FunctionName& function : kFunctionNames)
        if (is_known_to(function, use))
            words.push_back({std::string(function.name) + "(", function.form, function.help});
    for (const ConditionWord& word : kConditionWords)
        words.push_back({std::string(word.name) + (word.name == kInSpan ? "(" : ""), word.form, word.help});
    return words;
}

std::vector<FormulaWord> words_of_spans(std::string_view spans) {
    std::vector<FormulaWord> words;
    for (const NamedSpan& span : spans_of(spans, nullptr).named)
        words.push_back({span.name, {}, "a named span"});
    return words;
}

}  // namespace

FormulaWords words_at(std::string_view text, std::size_t cursor, FormulaUse use, std::string_view spans) {
    cursor = std::min(cursor, text.size());
    FormulaWords out{cursor, cursor};
    while (out.begin > 0 && is_of_word(text[out.begin - 1])) --out.begin;
    while (out.end < text.size() && is_of_word(text[out.end])) ++out.end;
    const std::string begun = spec_text::lower_case(text.substr(out.begin, cursor - out.begin));
    if (begun.empty() || (begun[0] >= '0' && begun[0] <= '9')) return out;
    const bool is_span = names_a_span(text.substr(0, out.begin));
    for (FormulaWord& word : is_span ? words_of_spans(spans) : all_words(use)) {
        if (!spec_text::lower_case(word.text).starts_with(begun)) continue;
        const bool is_same = word.text == text.substr(out.begin, out.end - out.begin);
        out.words.insert(is_same ? out.words.begin() : out.words.end(), std::move(word));
    }
    // A parenthesis that stands there already is not written twice.
    if (out.end < text.size() && text[out.end] == '(')
        for (FormulaWord& word : out.words)
            if (word.text.ends_with('(')) word.text.pop_back();
    return out;
}

std::size_t end_of_fault(std::string_view text, std::size_t at) {
    std::size_t end = std::min(at, text.size());
    while (end < text.size() && is_of_word(text[end])) ++end;
    return std::max(end, at + 1);
}

}  // namespace keyhole
