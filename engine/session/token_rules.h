/// Rules that forbid next tokens or lower their scores before one is chosen. They equal the logits processors
/// of transformers of the same names. Pure functions, for any thread; knows commands' Sampling, but no
/// session.
#pragma once

#include "engine/run/command.h"

#include <span>

namespace keyhole {

/// Returns whether apply_rules() may change a score.
bool has_rules(const Sampling& sampling);

/// Applies, in this order:
///
///     repetition_penalty R   score <- score * R where score < 0, else score / R, for every token of the text
///     no_repeat_ngram N      -inf for a token that would end a sequence of N tokens that the text has
///     min_tokens M           -inf for the ends of text while fewer than M tokens follow the prompt
///
/// text   prompt and what follows it; its first n_prompt tokens are the prompt
/// eos    the model's ends of text
/// score  [n_vocab] in/out: logits, or log probabilities in a beam search
void apply_rules(const Sampling& sampling, std::span<const int> text, int n_prompt, std::span<const int> eos,
                 std::span<float> score);

}  // namespace keyhole
