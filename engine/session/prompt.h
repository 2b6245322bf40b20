/// Converts a prompt to the tokens that a model reads. A pure function, for any thread.
/// Knows models, but no session.
#pragma once

#include "engine/model/model.h"

#include <string>
#include <vector>

namespace keyhole {

/// Returns the tokens of a prompt, with those that the tokenizer adds around it. An empty prompt becomes the
/// model's BOS token. Throws Error(wrong_use) if there is no token at all.
std::vector<int> prompt_tokens(const Model& model, const std::string& prompt);

}  // namespace keyhole
