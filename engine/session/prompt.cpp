#include "engine/session/prompt.h"

#include "engine/base/error.h"

namespace keyhole {

std::vector<int> prompt_tokens(const Model& model, const std::string& prompt) {
    std::vector<int> tokens = model.tokenizer().encode(prompt);
    if (prompt.empty() && tokens.empty() && model.config().bos >= 0) tokens.push_back(model.config().bos);
    if (tokens.empty())
        fail(ErrorCode::wrong_use,
             "the prompt is empty, and {} has no BOS token to start from; give some text",
             model.path().string());
    return tokens;
}

}  // namespace keyhole
