#include "engine/model/pretokenize.h"

#include "engine/model/byte_alphabet.h"
#include "engine/model/normalize.h"

#include <algorithm>
#include <utility>

namespace keyhole {
namespace {

// GPT-2, encoder.py; \p{L} letters, \p{N} numbers.
constexpr const char* kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct Part {
    std::size_t begin = 0, end = 0;
    bool is_match = false;
};

/// Returns the matches and the stretches between them, which together are the whole text.
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

void PreTokenizer::add_byte_alphabet() {
    steps_.emplace_back().to_alphabet = true;
    in_alphabet_ = true;
}

void PreTokenizer::add_metaspace(std::string sign, PrependScheme prepend, bool cut) {
    Step& step = steps_.emplace_back();
    if (cut) step.pattern.push_back(Regex::literal(sign));
    step.sign = std::move(sign);
    step.prepend = prepend;
    step.behavior = SplitBehavior::merged_with_next;
}

std::string_view PreTokenizer::rewritten(const Step& step, std::string_view piece, bool is_first,
                                         std::deque<std::string>& arena) {
    if (step.to_alphabet) return arena.emplace_back(alphabet_of_bytes(piece));
    if (!step.sign.empty()) {
        std::string& text = arena.emplace_back(replaced(piece, " ", step.sign));
        const bool prepend =
            step.prepend == PrependScheme::always || (step.prepend == PrependScheme::first && is_first);
        if (prepend && !text.starts_with(step.sign)) text.insert(0, step.sign);
        return text;
    }
    if (step.add_prefix_space && piece.front() != ' ') return arena.emplace_back(" " + std::string(piece));
    return piece;
}

void PreTokenizer::split(std::string_view text, bool is_begin, std::deque<std::string>& arena,
                         std::vector<std::string_view>& pieces) const {
    std::vector<std::string_view> now, next;
    if (!text.empty()) now.push_back(text);
    for (const Step& step : steps_) {
        next.clear();
        bool next_is_begin = false;
        for (std::size_t i = 0; i < now.size(); ++i) {
            const bool is_first = i == 0 && is_begin;
            const std::string_view piece = rewritten(step, now[i], is_first, arena);
            if (step.pattern.empty()) {
                next.push_back(piece);
                next_is_begin = next_is_begin || is_first;
                continue;
            }
            const auto matches = step.pattern.front().find_all(piece);
            for (const Part& part : joined(parts_of(piece.size(), matches, step.invert), step.behavior)) {
                next.push_back(piece.substr(part.begin, part.end - part.begin));
                next_is_begin = next_is_begin || (is_first && part.begin == 0);
            }
        }
        is_begin = next_is_begin;
        std::swap(now, next);
    }
    if (in_alphabet_)
        for (std::string_view& piece : now)
            piece = arena.emplace_back(bytes_from_alphabet(piece).value_or(std::string(piece)));
    pieces.insert(pieces.end(), now.begin(), now.end());
}

}  // namespace keyhole
