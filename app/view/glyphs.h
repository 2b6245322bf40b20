/// Which characters of the texts on show no font of the system has, and texts without them: a character that cannot be drawn stands as
/// \u{1F600}, a byte that is none as <0xE4>. Window thread; knows neither GL nor ImGui.
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
    /// Last character that is in the fonts of any window; those after it are loaded when a text has them.
    static constexpr char32_t kCommon = 0x24F;
    /// Dear ImGui 1.86, as distributions build it, has 16 bits for a character.
    static constexpr char32_t kMost = 0xFFFF;

    /// Notes what the run's prompt, texts and most likely next tokens have beyond the common characters; more: tokens beside those, such
    /// as of an answer. True: fonts are due.
    bool learn(const RunHistory& history, std::span<const TopToken> more = {});
    const std::set<char32_t>& wanted() const { return wanted_; }
    /// Those of the wanted ones that no font has.
    void set_missing(std::set<char32_t> missing);

    /// Text of a token that can be drawn.
    const std::string& token(const RunInfo& run, int id);
    /// Any other text so; what it has beyond the common characters is learned with the next learn().
    std::string text(std::string_view text);

  private:
    std::set<char32_t> wanted_, missing_;
    std::uint64_t run_id_ = 0, generation_ = 0;
    std::vector<std::size_t> n_seen_;  // tokens of each lane
    int row_seen_ = -1;
    bool fresh_ = false;               // text() has met characters that no font was asked for
    std::vector<bool> known_id_;       // texts that were looked at
    std::vector<std::int32_t> drawn_;  // [id] -1: as it is; else index into texts_; -2: not made yet
    std::deque<std::string> texts_;    // a deque: given out by reference

    bool learn_token(const RunInfo& run, int id);
    bool learn_text(std::string_view text);
};

/// `text` with the characters of `missing` and those beyond Glyphs::kMost as \u{1F600}, and bytes that are no UTF-8 as <0xE4>.
std::string legible(std::string_view text, const std::set<char32_t>& missing);

/// Code points of a text, without the bytes that are no UTF-8.
std::u32string characters_of(std::string_view text);

/// `text` for a field or the clipboard's way into one, which would lose characters beyond Glyphs::kMost: these as \u{1F600}.
std::string for_field(std::string_view text);
/// The same of one character that was typed; empty for what is none.
std::string for_field(char32_t character);
/// And back: what a field holds, as it is meant. What names no character stays.
std::string from_field(std::string_view text);

}  // namespace keyhole
