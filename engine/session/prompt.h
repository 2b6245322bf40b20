/// What a prompt is to a model. Any thread.
#pragma once

#include "engine/model/model.h"

#include <string>
#include <vector>

namespace keyhole {

/// The tokens of a prompt, with those that the tokenizer puts around it. An empty prompt is the model's BOS
/// token. Throws Error(wrong_use) when there is no token at all.
std::vector<int> prompt_tokens(const Model& model, const std::string& prompt);

}  // namespace keyhole
