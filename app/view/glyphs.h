/// Finds the characters of the shown texts that no font of the system has, and replaces them: such a
/// character becomes \u{1F600}, a byte that is not valid UTF-8 becomes <0xE4>. Window thread; knows neither
/// GL nor ImGui.
#pragma once

#include "engine/trace/run_history.h"

#include <cstdint>
#include <deque>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class Glyphs {
  public:
    /// Returns whether every window loads the character: Latin, and the dashes, quotes and dots of notices.
    /// Others are loaded when a text needs them.
    static constexpr bool is_common(char32_t c) { return c <= 0x24F || (c >= 0x2010 && c <= 0x2027); }
    /// Dear ImGui 1.86, as distributions build it, has 16 bits for a character.
    static constexpr char32_t kMost = 0xFFFF;

    /// Collects the uncommon characters of the run's prompt, texts and most likely next tokens; more:
    /// further tokens, for example of an answer. Returns true if fonts must be rebuilt.
    bool learn(const RunHistory& history, std::span<const TopToken> more = {});
    const std::set<char32_t>& wanted() const { return wanted_; }
    /// Sets the wanted characters that no font has.
    void set_missing(std::set<char32_t> missing);

    /// Returns the text of a token with only characters that can be drawn.
    const std::string& token(const RunInfo& run, int id);
    /// Does the same for any other text. The next learn() also collects its uncommon characters.
    std::string text(std::string_view text);

  private:
    std::set<char32_t> wanted_, missing_;
    std::uint64_t run_id_ = 0, generation_ = 0;
    std::vector<std::size_t> n_seen_;  // tokens of each lane
    int row_seen_ = -1;
    bool fresh_ = false;               // text() found characters that were not yet looked up in fonts
    std::vector<bool> known_id_;       // token ids whose text was examined
    std::vector<std::int32_t> drawn_;  // [id] index into texts_; -1: drawn unchanged; -2: not made yet
    std::deque<std::string> texts_;    // a deque, since references to its elements are returned

    bool learn_token(const RunInfo& run, int id);
    bool learn_text(std::string_view text);
};

/// Returns `text` with the characters of `missing` and those beyond Glyphs::kMost as \u{1F600}, and invalid
/// UTF-8 bytes as <0xE4>.
std::string legible(std::string_view text, const std::set<char32_t>& missing);

/// Returns the code points of a text, without invalid UTF-8 bytes.
std::u32string characters_of(std::string_view text);

/// Escapes `text` for a text field, which would lose characters beyond Glyphs::kMost: they become \u{1F600}.
std::string for_field(std::string_view text);
/// Does the same for one typed character; empty if it is not a character.
std::string for_field(char32_t character);
/// Reverses for_field(). Escapes that name no character stay as they are.
std::string from_field(std::string_view text);

}  // namespace keyhole
