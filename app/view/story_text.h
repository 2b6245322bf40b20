/// The story of a run in words: what each lane answers, and what it had thrown away by then. Pure functions
/// on plain values; any thread. Lanes of a history are indices into history.lanes().
#pragma once

#include "app/view/lane_answers.h"
#include "engine/analysis/opening_head.h"
#include "engine/analysis/token_span.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

/// A lane's part of the story.
struct StoryLane {
    int lane = 0;       ///< as the lanes are listed
    std::string name;   ///< as papers write it: "H2O", "A2SF alpha=0.2"
    std::string keeps;  ///< "64 of 370 tokens, 17 %"; before it answers its budget: "64 tokens"
    ShownAnswer shown;
    /// A word a row of the map: the token that the lane itself chose at that step; "": none yet.
    std::vector<std::string> rows;
    std::vector<bool> holds;  ///< [KV head] held all watched words when it began to answer; empty: not known
    int n_holding = 0;        ///< of them
    bool is_merged = false;   ///< it has fewer KV heads than the model
    bool is_fed = false;      ///< it reads lane 0's words, so its map is of these
    /// Why the map is not of the settings that gave the answer, or lacks rows; empty: it is, and has all.
    std::string mark;
};

/// Returns what a lane answers in one line: "4821", with "…" where it goes on; else why there is nothing.
std::string answer_words(const LaneAnswer& answer);

/// The sides of the grid of a lane's heads: layers down, unless they are many and a layer has few heads.
struct SquareGrid {
    int across = 1, down = 1;
    bool layers_down = true;
    /// Returns where a KV head stands: across, down.
    std::pair<int, int> place(int kv_head) const {
        return layers_down ? std::pair(kv_head % across, kv_head / across)
                           : std::pair(kv_head / down, kv_head % down);
    }
};
/// The choice depends on the model alone, so that lanes that share heads in another way stand alike. n: KV
/// heads of the lane.
SquareGrid square_grid(const KvLayout& of_model, int n);

struct Story {
    std::string question;   ///< the last sentence of what was asked
    TokenSpan text{0, -1};  ///< the watched words and kAround tokens on both sides; empty: nothing is watched
    static constexpr int kAround = 14;
    int first_row = 0;  ///< the step that chose the first token of the answer
    int n_rows = 1;     ///< steps of the answer, of the lane with the longest
    static constexpr int kMostRows = 24;
    std::vector<StoryLane> lanes;
    std::string words;       ///< the watched words; empty: none
    std::string sentence;    ///< what happened, in one line
    bool complete = false;   ///< all lanes have answered
    bool warns = false;      ///< some lane is wrong
    int explained = -1;      ///< the lane that the sentence is about: *Why?* and *Give it back*; -1: none
    std::string given_back;  ///< what that lane answers with its words back; empty: not asked
};

/// Returns the place of a lane's name in papers: "H2O" for "h2o budget=64".
std::string paper_name(const std::string& lane_name);

/// Returns the last sentence of a text, such as the question of a prompt.
std::string last_sentence(const std::string& text);

/// Returns a text without the blanks around it.
std::string_view without_blanks(std::string_view text);

/// Returns "64 of 370 tokens, 17 %", or "all 370 tokens". mean: stored tokens a KV head.
std::string kept_of_text(double mean, int n_tokens);
/// Returns the same of what a lane stored after a row, by its record; empty: it has none. lane: into
/// history.lanes().
std::string kept_in_record(const RunHistory& history, int lane, int row);

/// Returns the sum of a[p] over the rows and over p in `words` for each layer * n_heads + head, with a = the
/// lane's attention in a row.
std::vector<double> attention_on(const RunHistory& history, int lane, TokenSpan words, int first_row,
                                 int last_row);

/// Returns the head in which a lane attends most to the watched words while it answers: the one with the
/// largest attention_on(). nullopt: no row is recorded, or no head attends to them.
std::optional<HeadPlace> telling_head(const RunHistory& history, int lane, TokenSpan watched, int first_row,
                                      int last_row);

/// Returns the words that explain the answer to a question of which nothing is known:
///   1. the words of the full lane's answer from the first token on that another lane chose differently, if
///      they stand in the text before the question;
///   2. else the words around the position with the largest sum over these rows of max over heads of a[p].
/// Sinks (the first 4 tokens), the question, punctuation and blanks are no such positions. A span ends where
/// a[p] falls below 0.4 of the largest one, and is completed to whole words, at most 8 tokens.
/// asked: the text before the answers; first_row: the row that chose their first token; full: the lane to
/// which the others are compared.
std::optional<TokenSpan> telling_words(const RunHistory& history, const std::vector<ShownAnswer>& answers,
                                       const std::string& asked, int first_row, int full);

/// Returns the lane that is worth a sentence: the focused one if it is wrong, else the wrong one of which the
/// fewest heads held the words; -1: none. known: the right answer is known.
int explained_lane(const std::vector<StoryLane>& lanes, int focused, bool known);

/// Returns the sentence on a lane that holds all tokens where the model ended its text without a word; empty:
/// it did not.
std::string silent_model_sentence(const std::string& name, const LaneAnswer& answer);

/// Returns what happened in one line, of a story that is complete and has `explained`.
std::string story_sentence(const Story& story, bool known);

/// Returns what the explained lane answers with the words back. still: as it did without them.
std::string given_back_sentence(const Story& story, std::string_view answer, bool still);

}  // namespace keyhole
