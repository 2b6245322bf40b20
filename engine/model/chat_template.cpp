#include "engine/model/chat_template.h"

#include "engine/base/index.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

/// The parts of a turn. A conversation is
///
///     [system] user TEXT user_end assistant ANSWER answer_end user TEXT user_end assistant ...
struct Form {
    ChatFormat format;
    std::string_view name;
    std::string_view marker;  ///< a template that contains it has this form; the first form that fits counts
    std::string_view system, system_end, user, user_end, assistant;
    std::string_view end_token;   ///< the model writes it after an answer
    std::string_view answer_end;  ///< what follows end_token before the next turn
};

constexpr std::array kForms = {
    Form{ChatFormat::chatml, "chatml", "<|im_start|>", "<|im_start|>system\n", "<|im_end|>\n",
         "<|im_start|>user\n", "<|im_end|>\n", "<|im_start|>assistant\n", "<|im_end|>", "\n"},
    Form{ChatFormat::llama3, "llama3", "<|start_header_id|>",
         "<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>",
         "<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>",
         "<|start_header_id|>assistant<|end_header_id|>\n\n", "<|eot_id|>", ""},
    Form{ChatFormat::phi3, "phi3", "<|end|>", "<|system|>\n", "<|end|>\n", "<|user|>\n", "<|end|>\n",
         "<|assistant|>\n", "<|end|>", "\n"},
    Form{ChatFormat::zephyr, "zephyr", "<|user|>", "<|system|>\n", "</s>\n", "<|user|>\n", "</s>\n",
         "<|assistant|>\n", "</s>", "\n"},
    Form{ChatFormat::llama2, "llama2", "[INST]", "", "", "[INST] ", " [/INST]", "", "</s>", ""},
    Form{ChatFormat::alpaca, "alpaca", "### Instruction", "", "", "### Instruction:\n", "\n\n",
         "### Response:\n", "", "\n\n"},
};

const Form* form_of(ChatFormat format) {
    const auto* const found =
        std::find_if(kForms.begin(), kForms.end(), [&](const Form& form) { return form.format == format; });
    return found == kForms.end() ? nullptr : found;
}

/// Returns the text with Jinja's escapes of string literals resolved.
std::string unescaped(std::string_view text) {
    std::string out;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] != '\\' || i + 1 == text.size()) {
            out += text[i];
            continue;
        }
        const char next = text[++i];
        out += next == 'n' ? '\n' : next == 't' ? '\t' : next;
    }
    return out;
}

/// Returns the system message that the template holds as a literal of its own: what stands between the
/// system marker and its end, if no expression interrupts it.
std::string literal_system(const Form& form, const std::string& text) {
    if (form.system.empty()) return "";
    for (std::size_t at = 0; (at = text.find(form.system, at)) != std::string::npos;) {
        at += form.system.size();
        const std::size_t end = text.find(form.system_end, at);
        if (end == std::string::npos) break;
        const std::string_view between = std::string_view(text).substr(at, end - at);
        if (!between.empty() && between.find_first_of("'\"{}+") == std::string_view::npos)
            return std::string(between);
    }
    return "";
}

}  // namespace

std::string_view chat_format_name(ChatFormat format) {
    const Form* form = form_of(format);
    return form == nullptr ? "none" : form->name;
}

ChatFormat chat_format_from_name(std::string_view name) {
    for (const Form& form : kForms)
        if (form.name == name) return form.format;
    return ChatFormat::none;
}

ChatTemplate recognise_chat_template(std::string_view jinja) {
    for (const Form& form : kForms)
        if (jinja.find(form.marker) != std::string_view::npos)
            return {form.format, literal_system(form, unescaped(jinja))};
    return {};
}

std::string first_turn(const ChatTemplate& chat, std::string_view text) {
    const Form* form = form_of(chat.format);
    if (form == nullptr) return std::string(text);
    std::string turn;
    if (!chat.system.empty()) turn.append(form->system).append(chat.system).append(form->system_end);
    return turn.append(form->user).append(text).append(form->user_end).append(form->assistant);
}

std::string next_turn(const ChatTemplate& chat, std::string_view text, bool answer_ended) {
    const Form* form = form_of(chat.format);
    if (form == nullptr) return std::string(text);
    std::string turn(answer_ended ? "" : form->end_token);
    turn.append(form->answer_end).append(form->user).append(text);
    return turn.append(form->user_end).append(form->assistant);
}

bool ends_answer(ChatFormat format, std::string_view token) {
    const Form* form = form_of(format);
    return form != nullptr && !form->end_token.empty() && token == form->end_token;
}

std::vector<bool> template_tokens(ChatFormat format, std::span<const std::string> tokens) {
    std::vector<bool> in_template(tokens.size(), false);
    const Form* form = form_of(format);
    if (form == nullptr) return in_template;
    std::string text;
    std::vector<std::size_t> begin;  // of each token in the text
    for (const std::string& token : tokens) {
        begin.push_back(text.size());
        text += token;
    }
    const auto mark = [&](std::size_t from, std::size_t to) {
        auto i = to_index(std::upper_bound(begin.begin(), begin.end(), from) - begin.begin() - 1);
        for (; i < tokens.size() && begin[i] < to; ++i) in_template[i] = true;
    };
    const auto mark_all = [&](const std::string& part) {
        for (std::size_t at = 0; !part.empty() && (at = text.find(part, at)) != std::string::npos;
             at += part.size())
            mark(at, at + part.size());
    };
    for (std::size_t at = 0;
         !form->system.empty() && (at = text.find(form->system, at)) != std::string::npos;) {
        const std::size_t end = text.find(form->system_end, at + form->system.size());
        const std::size_t past = end == std::string::npos ? text.size() : end + form->system_end.size();
        mark(at, past);
        at = past;
    }
    mark_all(std::string(form->user));
    mark_all(std::string(form->user_end) + std::string(form->assistant));
    mark_all(std::string(form->end_token) + std::string(form->answer_end) + std::string(form->user));
    mark_all(std::string(form->end_token));
    return in_template;
}

}  // namespace keyhole
