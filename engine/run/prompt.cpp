#include "engine/run/prompt.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/utf8.h"

#include <algorithm>
#include <utility>

namespace keyhole {

namespace {

/// Returns a turn's tokens. The template writes the text from its first token on; of what the tokenizer adds
/// around every text, only what stands before it and the template leaves out is put there.
std::vector<int> turn_tokens(const Tokenizer& tokenizer, const std::string& text) {
    const std::vector<int>& before = tokenizer.ids_before();
    std::vector<int> tokens = tokenizer.encode(text, false);
    if (tokens.size() < before.size() || !std::equal(before.begin(), before.end(), tokens.begin()))
        tokens.insert(tokens.begin(), before.begin(), before.end());
    return tokens;
}

}  // namespace

ChatTemplate chat_template_of(const Model& model) {
    const Tokenizer& tokenizer = model.tokenizer();
    jinja::Dict variables;
    for (const auto& [name, text] : tokenizer.named_tokens()) variables.emplace_back(name, text);
    return read_chat_template(tokenizer.chat_template(), std::move(variables), tokenizer.added_texts());
}

namespace {

/// Says in what a chat differs from a template that is known; empty if it does not.
std::string template_notice(const Model& model, const ChatTemplate& chat) {
    const std::string path = model.path().string();
    if (chat.rewrites_history)
        return fmt::format(
            "the chat template of {} writes earlier answers in another way; here they stay as "
            "they were written",
            path);
    const std::vector<int>& before = model.tokenizer().ids_before();
    const std::vector<int> opening = model.tokenizer().encode(chat.parts.opening, false);
    if (opening.size() < before.size() || !std::equal(before.begin(), before.end(), opening.begin()))
        return fmt::format("the tokenizer of {} puts {} before every text; its chat template does not", path,
                           model.tokenizer().decode(before, true));
    return "";
}

/// Names the tokenizer's end token if it ends nothing: neither an answer nor a text.
std::string end_notice(const Model& model, const ChatTemplate& chat) {
    const Tokenizer& tokenizer = model.tokenizer();
    const auto is_end = [&](const std::string& token) {
        return ends_answer(chat, token) ||
               std::any_of(model.config().eos.begin(), model.config().eos.end(),
                           [&](int id) { return tokenizer.token_bytes(id) == token; });
    };
    for (const auto& [name, token] : tokenizer.named_tokens())
        if (name == "eos_token" && !is_end(token))
            return fmt::format(
                "the tokenizer of {} names {} as eos_token, which is no end token of the model: it does not "
                "end an answer",
                model.path().string(), shown_text(token));
    return "";
}

}  // namespace

std::string chat_notice(const Model& model) {
    const ChatTemplate chat = chat_template_of(model);
    const std::string path = model.path().string();
    if (!chat.why_unknown.empty())
        return fmt::format("{} has a chat template of an unknown form ({}), so a chat turn is plain text",
                           path, chat.why_unknown);
    if (!chat.is_known()) return fmt::format("{} has no chat template, so a chat turn is plain text", path);
    const std::string one = template_notice(model, chat), other = end_notice(model, chat);
    return one + (one.empty() || other.empty() ? "" : "; ") + other;
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
                 "shorten it",
                 what, text.size(), begin.size(), n_tokens, most);
    }
}

void check_fits(const ModelConfig& config, std::span<const int> tokens) {
    if (std::ssize(tokens) > config.n_ctx)
        fail(ErrorCode::wrong_use,
             "the prompt has {} tokens, the model's context holds {}; shorten the prompt", tokens.size(),
             config.n_ctx);
}

std::vector<int> prompt_tokens(const Model& model, const RunSpec& run) {
    return run.prompt_tokens.empty() ? prompt_tokens(model, run.prompt, run.chat) : run.prompt_tokens;
}

std::vector<int> prompt_tokens_behind(const std::string& system, const Model& model,
                                      const std::string& prompt) {
    check_length(model, prompt, "the prompt");
    check_length(model, system, "the system message");
    return turn_tokens(model.tokenizer(), first_turn(chat_template_of(model), system, prompt));
}

std::vector<int> prompt_tokens(const Model& model, const std::string& prompt, bool chat) {
    check_length(model, prompt, "the prompt");
    const Tokenizer& tokenizer = model.tokenizer();
    const ChatTemplate form = chat ? chat_template_of(model) : ChatTemplate();
    std::vector<int> tokens =
        form.is_known() ? turn_tokens(tokenizer, first_turn(form, prompt)) : tokenizer.encode(prompt);
    if (prompt.empty() && tokens.empty() && model.config().bos >= 0) tokens.push_back(model.config().bos);
    if (tokens.empty())
        fail(ErrorCode::wrong_use,
             "the prompt is empty, and {} has no BOS token to start from; give some text",
             model.path().string());
    return tokens;
}

}  // namespace keyhole
