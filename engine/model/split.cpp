#include "engine/model/split.h"

#include "engine/base/error.h"

#include <nlohmann/json.hpp>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <utf8proc.h>

#include <cctype>
#include <cstdlib>
#include <utility>

namespace keyhole {

namespace {

using Json = nlohmann::json;

/// GPT-2's pattern (the ByteLevel rule): contractions, words, numbers, other signs, each with a blank before it; runs of blanks.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
    for (std::size_t at = text.find(from); !from.empty() && at != std::string::npos;
         at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

std::string type_of(const Json& json) {
    return json.is_object() ? json.value("type", std::string("?")) : json.dump();
}

/// A literal as a pattern.
std::string quoted(const std::string& literal) {
    std::string pattern;
    for (char c : literal) {
        if (static_cast<unsigned char>(c) < 0x80 && std::isalnum(static_cast<unsigned char>(c)) == 0)
            pattern += '\\';
        pattern += c;
    }
    return pattern;
}

}  // namespace

Normalizer::Normalizer(const Json& json, const std::string& file) {
    if (!json.is_null()) add(json, file);
}

void Normalizer::add(const Json& json, const std::string& file) {
    const std::string type = type_of(json);
    if (type == "Sequence") {
        for (const Json& part : json.at("normalizers")) add(part, file);
    } else if (type == "NFC") {
        rules_.push_back({Kind::nfc, {}, {}});
    } else if (type == "Prepend") {
        rules_.push_back({Kind::prepend, {}, json.at("prepend").get<std::string>()});
    } else if (type == "Replace" && json.at("pattern").contains("String")) {
        rules_.push_back({Kind::replace, json.at("pattern").at("String").get<std::string>(),
                          json.at("content").get<std::string>()});
    } else {
        fail(ErrorCode::unsupported,
             "{}: normalizer {} is not supported; NFC, Prepend, Replace of a string and Sequence are", file,
             type);
    }
}

std::string Normalizer::apply(std::string_view text) const {
    std::string out(text);
    for (const Rule& rule : rules_) {
        switch (rule.kind) {
            case Kind::prepend:
                if (!out.empty()) out = rule.to + out;
                break;
            case Kind::replace:
                out = replace_all(std::move(out), rule.from, rule.to);
                break;
            case Kind::nfc: {
                utf8proc_uint8_t* composed = nullptr;
                const utf8proc_ssize_t n =
                    utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(out.data()),
                                 static_cast<utf8proc_ssize_t>(out.size()), &composed,
                                 static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
                if (n >= 0)
                    out.assign(reinterpret_cast<const char*>(composed),
                               static_cast<std::size_t>(n));  // else: no UTF-8, left as it is
                std::free(composed);
                break;
            }
        }
    }
    return out;
}

struct PreTokenizer::Rule {
    enum class Behaviour { isolated, removed, merged_with_previous, merged_with_next };
    pcre2_code* pattern = nullptr;  // null: no split, only the blank in front
    Behaviour behaviour = Behaviour::isolated;
    bool invert = false;
    bool blank_in_front = false;

    Rule() = default;
    Rule(const Rule&) = delete;
    Rule& operator=(const Rule&) = delete;
    ~Rule() { pcre2_code_free(pattern); }

    void compile(const std::string& source, const std::string& file) {
        int error = 0;
        std::size_t at = 0;
        pattern = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                PCRE2_UTF | PCRE2_UCP | PCRE2_MATCH_INVALID_UTF, &error, &at, nullptr);
        if (pattern == nullptr)
            fail(ErrorCode::unsupported, "{}: the pre-tokenizer's pattern is not understood at character {}",
                 file, at);
        pcre2_jit_compile(pattern, PCRE2_JIT_COMPLETE);  // faster where it can
    }

    /// Appends the pieces of `text`, matches and what lies between.
    void split(std::string_view text, std::vector<std::string>& out) const {
        struct Span {
            std::size_t begin, end;
            bool match;
        };
        std::vector<Span> spans;
        std::size_t at = 0;
        pcre2_match_data* data = pcre2_match_data_create_from_pattern(pattern, nullptr);
        for (std::size_t from = 0; from <= text.size();) {
            const int found = pcre2_match(pattern, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                          from, 0, data, nullptr);
            if (found < 0) break;
            const std::size_t* range = pcre2_get_ovector_pointer(data);
            if (range[1] == range[0]) {
                from = range[1] + 1;
                continue;
            }
            if (range[0] > at) spans.push_back({at, range[0], invert});
            spans.push_back({range[0], range[1], !invert});
            from = at = range[1];
        }
        pcre2_match_data_free(data);
        if (at < text.size()) spans.push_back({at, text.size(), invert});

        std::string before;  // a match that waits for the piece after it
        for (const Span& span : spans) {
            std::string piece =
                std::exchange(before, {}) + std::string(text.substr(span.begin, span.end - span.begin));
            if (!span.match || behaviour == Behaviour::isolated) {
                out.push_back(std::move(piece));
            } else if (behaviour == Behaviour::merged_with_next) {
                before = std::move(piece);
            } else if (behaviour == Behaviour::merged_with_previous) {
                if (out.empty()) out.emplace_back();
                out.back() += piece;
            }
        }
        if (!before.empty()) out.push_back(std::move(before));
    }
};

PreTokenizer::PreTokenizer(const Json& json, const std::string& file) {
    if (!json.is_null()) add(json, file);
}
PreTokenizer::~PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer& PreTokenizer::operator=(PreTokenizer&&) noexcept = default;

void PreTokenizer::add(const Json& json, const std::string& file) {
    const std::string type = type_of(json);
    if (type == "Sequence") {
        for (const Json& part : json.at("pretokenizers")) add(part, file);
        return;
    }
    auto rule = std::make_unique<Rule>();
    if (type == "ByteLevel") {
        byte_level_ = true;
        rule->blank_in_front = json.value("add_prefix_space", true);
        if (json.value("use_regex", true)) rule->compile(std::string(kGpt2Pattern), file);
    } else if (type == "Digits") {
        rule->compile(json.value("individual_digits", false) ? "\\p{N}" : "\\p{N}+", file);
    } else if (type == "Split") {
        const Json& pattern = json.at("pattern");
        rule->compile(pattern.contains("Regex") ? pattern.at("Regex").get<std::string>()
                                                : quoted(pattern.at("String").get<std::string>()),
                      file);
        rule->invert = json.value("invert", false);
        const std::string behaviour = json.value("behavior", std::string("Isolated"));
        if (behaviour == "Isolated")
            rule->behaviour = Rule::Behaviour::isolated;
        else if (behaviour == "Removed")
            rule->behaviour = Rule::Behaviour::removed;
        else if (behaviour == "MergedWithPrevious")
            rule->behaviour = Rule::Behaviour::merged_with_previous;
        else if (behaviour == "MergedWithNext")
            rule->behaviour = Rule::Behaviour::merged_with_next;
        else
            fail(ErrorCode::unsupported, "{}: pre-tokenizer Split with behavior {} is not supported", file,
                 behaviour);
    } else {
        fail(ErrorCode::unsupported,
             "{}: pre-tokenizer {} is not supported; ByteLevel, Digits, Split and Sequence are", file, type);
    }
    rules_.push_back(std::move(rule));
}

std::vector<std::string> PreTokenizer::split(std::string_view text) const {
    std::vector<std::string> pieces;
    if (!text.empty()) pieces.emplace_back(text);
    for (const auto& rule : rules_) {
        std::vector<std::string> next;
        for (std::string& piece : pieces) {
            if (rule->blank_in_front && !piece.starts_with(' ')) piece.insert(0, 1, ' ');
            if (rule->pattern == nullptr) {
                next.push_back(std::move(piece));
                continue;
            }
            std::vector<std::string> parts;
            rule->split(piece, parts);
            next.insert(next.end(), std::make_move_iterator(parts.begin()),
                        std::make_move_iterator(parts.end()));
        }
        pieces = std::move(next);
    }
    return pieces;
}

}  // namespace keyhole
