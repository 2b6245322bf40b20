/// The answer that a lane gives by itself after the prompt. Plain values, for any thread; knows no session.
#pragma once

#include "engine/model/tokenizer.h"
#include "engine/trace/record.h"

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// What the KV heads of a lane stored after a row.
struct StoredSet {
    int row = 0;
    int n_heads = 0;         ///< KV heads
    std::vector<bool> bits;  ///< [n_heads, row + 1]
    /// Returns whether a KV head stored all positions of [first, last].
    bool holds(int kv_head, int first, int last) const;
    /// Returns whether all KV heads stored all positions.
    bool holds_all() const;
};

struct LaneAnswer {
    int lane_id = 0;
    std::string spec;  ///< the settings that give the answer; empty: not known
    /// What the lane stored when it began to answer; null: not known. It explains the answer, whatever the
    /// run's own lane stores by then.
    std::shared_ptr<const StoredSet> stored;
    /// Returns whether the lane had evicted something by then; true also where that is not known.
    bool had_evicted() const { return stored == nullptr || !stored->holds_all(); }
    std::vector<int> tokens;  ///< those that hold `text`
    std::string text;         ///< up to the end of the answer
    bool complete = false;    ///< false: more tokens are to come
    bool cut = false;         ///< it ended at AnswerEnd::max_tokens, or the next turn came first
    std::string failure;      ///< why the lane cannot answer; empty if it can
    int n_by_hand = 0;        ///< tokens that the user evicted from the lane
    int turn = -1;            ///< row of the last token of the user's turn that it follows; -1: the prompt
    bool operator==(const LaneAnswer&) const = default;
};

/// Returns the answer that begins with these tokens, which follow the prompt: its text and whether a stop
/// text ends it. The end of text of the model is not known here.
LaneAnswer answer_from(const Tokenizer& tokenizer, std::span<const int> tokens, const AnswerEnd& end);
/// The same with any function that returns the text of tokens.
LaneAnswer answer_from(const std::function<std::string(std::span<const int>)>& decode,
                       std::span<const int> tokens, const AnswerEnd& end);

/// Returns whether an answer contains the expected text as whole words: "4821" is in "is 4821.", but neither
/// in "48211" nor in "4 8 2 1". Case counts.
bool answer_holds(const std::string& answer, const std::string& expected);

}  // namespace keyhole
