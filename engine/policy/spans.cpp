#include "engine/policy/spans.h"

#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace keyhole {
namespace {

constexpr std::string_view kSpanForm = "a span is NAME@A..B, or NAME@A.. without an end, such as rules@0..31";

constexpr std::size_t kMostNameBytes = 32;

bool is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

bool is_span_name(std::string_view text) {
    return !text.empty() && text.size() <= kMostNameBytes && is_letter(text[0]) && text != kNoSpans &&
           text != kFairSpans &&
           std::all_of(text.begin(), text.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

std::optional<NamedSpan> span_from(std::string_view word) {
    const std::size_t at_sign = word.find('@'), dots = word.find("..");
    if (at_sign == std::string_view::npos || dots == std::string_view::npos || dots < at_sign) return {};
    const std::string_view name = word.substr(0, at_sign), end = word.substr(dots + 2);
    const auto first = number_from_text<int>(word.substr(at_sign + 1, dots - at_sign - 1)),
               last = end.empty() ? NamedSpan::kOpen : number_from_text<int>(end);
    if (!is_span_name(name) || !first || !last || *first < 0 || *last < *first) return {};
    return NamedSpan{std::string(name), *first, *last};
}

/// Returns why a span cannot follow the others; empty: it can.
std::string fault_after(const NamedSpan& span, const Spans& others) {
    const auto& named = others.named;
    if (std::any_of(named.begin(), named.end(), [&](const NamedSpan& o) { return o.name == span.name; }))
        return fmt::format("span '{}' is named twice", span.name);
    if (named.size() == Spans::kMost) return fmt::format("there are at most {} spans", Spans::kMost);
    if (!others.fair) return {};
    const bool follows = named.empty()
                             ? span.first == 0
                             : named.back().last != NamedSpan::kOpen && span.first == named.back().last + 1;
    return follows ? "" : "spans that share the budget follow each other from 0 on, without gaps";
}

}  // namespace

Spans spans_of(std::string_view text, FormulaFault* fault) {
    Spans spans;
    if (fault != nullptr) *fault = {};
    if (text == kNoSpans) return spans;
    const auto wrong = [&](std::size_t at, std::string what) {
        if (fault != nullptr) *fault = {at, std::move(what)};
        return Spans{};
    };
    if (text.empty()) return wrong(0, std::string(kSpanForm));
    for (std::size_t at = 0; at < text.size();) {
        const std::size_t end = std::min(text.find(' ', at), text.size());
        const std::string_view word = text.substr(at, end - at);
        if (at == 0 && word == kFairSpans) {
            spans.fair = true;
        } else if (!word.empty()) {
            std::optional<NamedSpan> span = span_from(word);
            if (!span) return wrong(at, fmt::format("'{}' is no span: {}", printable_text(word), kSpanForm));
            if (std::string what = fault_after(*span, spans); !what.empty())
                return wrong(at, std::move(what));
            spans.named.push_back(std::move(*span));
        }
        at = end + 1;
    }
    return spans;
}

std::string span_name(std::string_view words, const std::vector<NamedSpan>& others) {
    constexpr std::size_t kLongest = kMostNameBytes - 4;  // with room for a number
    std::string name(words.substr(0, kLongest));
    std::replace_if(
        name.begin(), name.end(), [](char c) { return !is_letter(c) && !is_digit(c); }, '_');
    if (!is_span_name(name)) name = "part_" + name.substr(0, kLongest - 5);
    const auto is_taken = [&](const std::string& own) {
        return std::any_of(others.begin(), others.end(), [&](const NamedSpan& o) { return o.name == own; });
    };
    std::string own = name;
    for (int number = 2; is_taken(own); ++number) own = fmt::format("{}_{}", name, number);
    return own;
}

std::string fair_spans_text(const std::vector<NamedSpan>& spans) {
    std::string text(kFairSpans);
    for (const NamedSpan& span : spans)
        text += fmt::format(" {}@{}..{}", span.name, span.first,
                            span.last == NamedSpan::kOpen ? "" : fmt::to_string(span.last));
    return text;
}

}  // namespace keyhole
