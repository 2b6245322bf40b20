#include "engine/policy/spec_text.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

namespace keyhole::spec_text {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

/// Returns the spec for a message: all of a short one, else the part around a place in it.
std::string shown_spec(std::string_view spec, std::size_t at) {
    constexpr std::size_t kShort = 400, kAround = 60;
    if (spec.size() <= kShort) return printable_text(spec);
    const std::size_t begin = at - std::min(at, kAround), end = std::min(at + kAround, spec.size());
    return fmt::format("{}{}{}", begin > 0 ? "..." : "", printable_text(spec.substr(begin, end - begin)),
                       end < spec.size() ? "..." : "");
}

}  // namespace

std::string lower_case(std::string_view text) {
    std::string out(text);
    for (char& c : out)
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    return out;
}

Item trimmed(Item item) {
    const std::size_t first = item.text.find_first_not_of(kBlanks);
    if (first == std::string_view::npos) return item.part(item.text.size());
    return item.part(first, item.text.find_last_not_of(kBlanks) - first + 1);
}

Item unwrapped(Item item) {
    item = trimmed(item);
    if (!item.text.starts_with('(') || !item.text.ends_with(')')) return item;
    int depth = 0;  // (a)(b) is not wrapped as a whole
    for (std::size_t i = 0; i + 1 < item.text.size(); ++i) {
        depth += item.text[i] == '(' ? 1 : item.text[i] == ')' ? -1 : 0;
        if (depth == 0) return item;
    }
    return trimmed(item.part(1, item.text.size() - 2));
}

std::vector<Item> split_blanks(Item item) {
    std::vector<Item> items;
    std::size_t at = 0;
    while ((at = item.text.find_first_not_of(kBlanks, at)) != std::string_view::npos) {
        const std::size_t end = std::min(item.text.find_first_of(kBlanks, at), item.text.size());
        items.push_back(item.part(at, end - at));
        at = end;
    }
    return items;
}

int edit_distance(std::string_view a, std::string_view b) {
    std::vector<int> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
    std::iota(row.begin(), row.end(), 0);
    for (std::size_t i = 0; i < a.size(); ++i) {
        next[0] = static_cast<int>(i) + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            next[j + 1] = std::min({row[j] + (a[i] == b[j] ? 0 : 1), row[j + 1] + 1, next[j] + 1});
            if (i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j])
                next[j + 1] = std::min(next[j + 1], before[j - 1] + 1);
        }
        before.swap(row);
        row.swap(next);
    }
    return row.back();
}

std::optional<std::string_view> near_word(std::string_view text, std::span<const std::string_view> words) {
    constexpr std::size_t kLongest = 64, kLeast = 2, kLeastWord = 3;
    const std::string typed = lower_case(text.substr(0, kLongest));
    if (typed.size() < kLeast) return std::nullopt;
    std::optional<std::string_view> begun, nearest, part;
    int least = 0;
    const auto take_shorter = [](std::optional<std::string_view>& best, std::string_view word) {
        if (!best || word.size() < best->size()) best = word;
    };
    for (const std::string_view word : words) {
        const std::string known = lower_case(word);
        if (known.starts_with(typed)) take_shorter(begun, word);
        if (known.size() >= kLeastWord && typed.starts_with(known)) take_shorter(part, word);
        const int distance = edit_distance(typed, known);
        // "alfa" is near to "alpha", "snapkv" is not near to "sink".
        const int most = std::max(1, static_cast<int>(2 * std::max(typed.size(), known.size()) / 5));
        if (distance > most || (nearest && distance >= least)) continue;
        nearest = word;
        least = distance;
    }
    return begun ? begun : nearest ? nearest : part;
}

std::string near_hint(std::string_view text, std::span<const std::string_view> words) {
    const auto near = near_word(text, words);
    return near ? fmt::format(", did you mean '{}'?", *near) : "";
}

Reader::Reader(std::string_view spec, bool reads_files) : spec_(spec), reads_files_(reads_files) {
    if (spec.size() > kLongestSpec)
        fail(ErrorCode::wrong_use, "lane spec '{}' has {} characters; it may have {}", shown_text(spec),
             spec.size(), kLongestSpec);
}

void Reader::fault(Item where, const std::string& what) const {
    fail(ErrorCode::wrong_use, "lane spec '{}', character {}: {}", shown_spec(spec_, where.at), where.at + 1,
         what);
}

std::vector<Item> Reader::split_commas(Item item) const {
    std::vector<Item> items;
    std::vector<std::size_t> open;
    std::size_t begin = 0;
    const auto close_item = [&](std::size_t end) {
        items.push_back(trimmed(item.part(begin, end - begin)));
        if (items.back().text.empty()) fault(item.part(begin), "key=value is expected");
        begin = end + 1;
    };
    for (std::size_t i = 0; i < item.text.size(); ++i) {
        const char c = item.text[i];
        if (c == '(') open.push_back(i);
        if (c == ')') {
            if (open.empty()) fault(item.part(i), "')' without '('");
            open.pop_back();
        }
        if (c == ',' && open.empty()) close_item(i);
    }
    if (!open.empty()) fault(item.part(open.back()), "'(' without ')'");
    close_item(item.text.size());
    return items;
}

std::size_t Reader::word(std::string_view what, Item item, std::span<const std::string_view> words) const {
    const auto found = std::find(words.begin(), words.end(), item.text);
    if (found != words.end()) return to_index(found - words.begin());
    fault(item, fmt::format("unknown {} '{}'{} ({})", what, shown_text(item.text),
                            near_hint(item.text, words), fmt::join(words, " ")));
}

double Reader::number(Item item, std::string_view form) const {
    if (const auto value = number_from_text<double>(item.text)) return *value;
    fault(item, fmt::format("'{}' is not {}", shown_text(item.text), form));
}

int Reader::integer(Item item) const {
    if (const auto value = number_from_text<int>(item.text)) return *value;
    fault(item, no_number<int>(item.text));
}

std::uint64_t Reader::unsigned_integer(Item item) const {
    if (const auto value = number_from_text<std::uint64_t>(item.text)) return *value;
    fault(item, no_number<std::uint64_t>(item.text));
}

}  // namespace keyhole::spec_text
