#include "engine/session/prompt.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/utf8.h"

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

namespace {

/// Returns whether a special token stands in the text. Some take the white space beside them with them.
bool has_special_token(const Tokenizer& tokenizer, std::string_view text) {
    for (int id = 0; id < tokenizer.n_vocab(); ++id) {
        if (!tokenizer.is_special(id)) continue;
        const std::string content = tokenizer.token_bytes(id);
        if (!content.empty() && text.find(content) != std::string_view::npos) return true;
    }
    return false;
}

}  // namespace

void check_length(const Model& model, std::string_view text, std::string_view what) {
    const std::size_t most = to_index(model.config().n_ctx);
    // The tokens of a beginning are those of the text, but for a few at the cut.
    const std::size_t far_beyond = 2 * most + 64;
    for (std::size_t n = 16 * far_beyond; n < text.size(); n *= 4) {
        std::string_view begin = text.substr(0, n);
        constexpr std::size_t kLongRun = 1024;
        if (const std::size_t blank = space_at_back(begin);
            blank > kLongRun && has_special_token(model.tokenizer(), text.substr(n)))
            begin.remove_suffix(blank);
        const std::size_t n_tokens = model.tokenizer().encode(begin, false).size();
        if (n_tokens > far_beyond)
            fail(ErrorCode::wrong_use,
                 "{} has {} bytes, and its first {} alone have {} tokens; the model's context holds {}; "
                 "shorten "
                 "it",
                 what, text.size(), begin.size(), n_tokens, most);
    }
}

std::vector<int> prompt_tokens(const Model& model, const std::string& prompt, bool chat) {
    check_length(model, prompt, "the prompt");
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
