/// Where a prompt states its answer and where its parts are, and how much of that a lane still holds. Pure
/// functions, for any thread; knows tokens and evictions only.
#pragma once

#include "engine/model/tokenizer.h"
#include "engine/policy/row.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Tokens of a prompt, both ends included; -1: none.
struct AnswerPlace {
    int first = -1, last = -1;
    explicit operator bool() const { return first >= 0; }
    bool operator==(const AnswerPlace&) const = default;
};

/// Returns the tokens of the answer within the words that state it, or of all these words where they do not
/// have the answer. None if the prompt does not have the words.
AnswerPlace find_answer(const Tokenizer& tokenizer, std::span<const int> prompt, std::string_view stated,
                        std::string_view answer);

/// A part of a prompt with a name: "system", "context", or one that the user gives.
struct TextSpan {
    std::string name;
    AnswerPlace place;
};
/// A part of a prompt as text.
struct TextPiece {
    std::string name, text;
    bool stands_alone = false;  ///< searched from the beginning; else behind the piece before it
};
/// Returns the tokens of each piece that the prompt has word for word. White space around a piece is none of
/// it; empty pieces are left out.
std::vector<TextSpan> find_spans(const Tokenizer& tokenizer, std::span<const int> prompt,
                                 std::span<const TextPiece> pieces);

/// Returns the share of the place's tokens that a lane holds, over its KV heads. evictions: all that it did.
double held_share(const AnswerPlace& place, std::span<const Eviction> evictions, int n_kv_heads);

}  // namespace keyhole
