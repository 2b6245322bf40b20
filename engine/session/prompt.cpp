#include "engine/session/prompt.h"

#include "engine/base/error.h"

namespace keyhole {

ChatTemplate chat_template_of(const Model& model) {
    return recognise_chat_template(model.tokenizer().chat_template());
}

std::string why_no_chat(const Model& model) {
    if (chat_template_of(model).format != ChatFormat::none) return "";
    return fmt::format("{} has {}, so a chat turn is plain text", model.path().string(),
                       model.tokenizer().chat_template().empty() ? "no chat template"
                                                                 : "a chat template of an unknown form");
}

std::vector<int> prompt_tokens(const Model& model, const std::string& prompt, bool chat) {
    std::vector<int> tokens =
        model.tokenizer().encode(chat ? first_turn(chat_template_of(model), prompt) : prompt);
    if (prompt.empty() && tokens.empty() && model.config().bos >= 0) tokens.push_back(model.config().bos);
    if (tokens.empty())
        fail(ErrorCode::wrong_use,
             "the prompt is empty, and {} has no BOS token to start from; give some text",
             model.path().string());
    return tokens;
}

}  // namespace keyhole
