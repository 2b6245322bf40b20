/// Converts a prompt to the tokens that a model reads. A pure function, for any thread.
/// Knows models, but no session.
#pragma once

#include "engine/model/chat_template.h"
#include "engine/model/model.h"
#include "engine/run/run_spec.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Returns the tokens of a prompt, with those that the tokenizer adds around it. An empty prompt becomes the
/// model's BOS token. chat: the prompt is a user's turn, written as the model's chat template says. Throws
/// Error(wrong_use) if there is no token at all.
std::vector<int> prompt_tokens(const Model& model, const std::string& prompt, bool chat);
/// Returns the tokens of a run's prompt: those that it gives, else those of its text.
std::vector<int> prompt_tokens(const Model& model, const RunSpec& run);
/// Returns the tokens of a user's turn behind a system message. Throws also Error(unsupported) if the model's
/// chat template has no place for one.
std::vector<int> prompt_tokens_behind(const std::string& system, const Model& model,
                                      const std::string& prompt);

/// Throws Error(wrong_use) if a text has far more tokens than a model's context holds, by encoding its
/// beginning alone: call it before a text is encoded that must fit. what: the text, for the message.
void check_length(const Model& model, std::string_view text, std::string_view what);

/// Throws Error(wrong_use) if the model's context does not hold the tokens of a prompt.
void check_fits(const ModelConfig& config, std::span<const int> tokens);

/// Returns the model's chat template: unknown, with the reason, if it cannot be followed.
ChatTemplate chat_template_of(const Model& model);
/// Returns in what a chat with this model differs from its template, one line: that it is plain text, and
/// why. Empty if it does not.
std::string chat_notice(const Model& model);

}  // namespace keyhole
