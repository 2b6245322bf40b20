/// Reading of spec texts: pieces that know their place, numbers, and words with a hint to the nearest valid
/// one. Any thread; knows base only. Used by lane_spec.cpp; knows no key of the spec.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole::spec_text {

/// A piece of the text and the 0-based place of its first character.
struct Item {
    std::string_view text;
    std::size_t at = 0;
    /// Returns characters [begin, begin + count); an end beyond the text is cut to it.
    Item part(std::size_t begin, std::size_t count = std::string_view::npos) const {
        return {text.substr(begin, count), at + begin};
    }
};

/// Returns the item without the blanks at both ends.
Item trimmed(Item item);
/// Trims, removes one pair of parentheses around the whole, and trims again.
Item unwrapped(Item item);
/// Returns the pieces between blanks.
std::vector<Item> split_blanks(Item item);

/// Returns the text with a to z in place of A to Z.
std::string lower_case(std::string_view text);
/// Returns the Levenshtein distance in characters; two neighbours that changed places count as one.
int edit_distance(std::string_view a, std::string_view b);
/// Returns the word that was probably meant: the shortest that begins with the text, else the nearest by edit
/// distance, else the shortest that the text begins with; without case. nullopt: none is near, and a guess
/// would mislead.
std::optional<std::string_view> near_word(std::string_view text, std::span<const std::string_view> words);
/// Returns ", did you mean 'WORD'?" if a word is near; else nothing.
std::string near_hint(std::string_view text, std::span<const std::string_view> words);

/// The longest text that is read as a spec: a value for every head of a large model takes half of it.
inline constexpr std::size_t kLongestSpec = 1 << 20;

/// Reads pieces of one spec. Every fault throws Error(wrong_use) in one line with spec, fault and 1-based
/// character. For a long spec the line shows the part around the fault.
class Reader {
  public:
    /// reads_files: `heads=FILE` opens the file; texts of others, such as traces, hold tables instead.
    /// Throws Error(wrong_use) for more than kLongestSpec characters.
    explicit Reader(std::string_view spec, bool reads_files = true);

    bool reads_files() const { return reads_files_; }

    [[noreturn]] void fault(Item where, const std::string& what) const;

    /// Returns the pieces between commas outside parentheses, trimmed. Faults: an empty piece, unbalanced
    /// parentheses.
    std::vector<Item> split_commas(Item item) const;
    /// Returns the index of the word. The fault names `what`, the nearest word and all valid ones.
    std::size_t word(std::string_view what, Item item, std::span<const std::string_view> words) const;
    /// Returns a finite number; the fault says which `form` is expected.
    double number(Item item, std::string_view form) const;
    double real(Item item) const { return number(item, "a number"); }
    int integer(Item item) const;
    std::uint64_t unsigned_integer(Item item) const;

  private:
    std::string_view spec_;
    bool reads_files_ = true;
};

}  // namespace keyhole::spec_text
