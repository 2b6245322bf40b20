#include "engine/model/chat_template.h"

#include "engine/base/error.h"

#include <algorithm>
#include <array>
#include <optional>

namespace keyhole {

namespace {

// What is said in the trial conversation: texts that no template contains or changes.
constexpr std::array<std::string_view, 5> kSaid = {"Qk1zAsks", "Qk2zAnswers", "Qk3zAsks", "Qk4zAnswers",
                                                   "Qk5zAsks"};

struct NamedForm {
    std::string_view sign, name;
};
constexpr std::array kForms = {
    NamedForm{"<|channel|>", "gpt-oss"},       NamedForm{"<|START_OF_TURN_TOKEN|>", "command-r"},
    NamedForm{"[|user|]", "exaone"},           NamedForm{"[gMASK]", "glm4"},
    NamedForm{"<|im_start|>", "chatml"},       NamedForm{"<|start_header_id|>", "llama3"},
    NamedForm{"<|start_of_role|>", "granite"}, NamedForm{"<start_of_turn>", "gemma"},
    NamedForm{"<｜User｜>", "deepseek"},       NamedForm{"<|end|>", "phi3"},
    NamedForm{"<|user|>", "zephyr"},           NamedForm{"[INST]", "llama2"},
    NamedForm{"### Instruction", "alpaca"},    NamedForm{"USER: ", "vicuna"}};

/// Renders a conversation that begins with a user's text and ends with one, up to where the answer begins.
/// system: a message before it; empty: none.
std::string rendered(const ChatTemplate& chat, std::span<const std::string_view> said,
                     std::string_view system = {}) {
    jinja::List messages;
    if (!system.empty())
        messages.emplace_back(jinja::Dict{{"role", "system"}, {"content", std::string(system)}});
    for (std::size_t i = 0; i < said.size(); ++i)
        messages.emplace_back(
            jinja::Dict{{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(said[i])}});
    jinja::Dict variables = chat.variables;
    variables.emplace_back("messages", std::move(messages));
    variables.emplace_back("add_generation_prompt", true);
    // transformers gives these two in every call.
    variables.emplace_back("tools", jinja::None{});
    variables.emplace_back("documents", jinja::None{});
    return chat.program->render(variables);
}

/// Returns what stands before, between and after the said texts: one more than they are; nullopt if a text
/// is missing, changed, repeated or in another order.
std::optional<std::vector<std::string>> cut(const std::string& text, std::span<const std::string_view> said) {
    std::vector<std::string> parts;
    std::size_t at = 0;
    for (const std::string_view one : said) {
        const std::size_t found = text.find(one);
        if (found == std::string::npos || found < at || text.find(one, found + 1) != std::string::npos)
            return std::nullopt;
        parts.push_back(text.substr(at, found - at));
        at = found + one.size();
    }
    parts.push_back(text.substr(at));
    return parts;
}

/// Returns the token with which an answer ends: the first of the marks in the part, if only white space
/// precedes it.
std::string end_token_in(const std::string& answer_end, std::span<const std::string> marks) {
    std::size_t first = std::min(answer_end.find_first_not_of(" \t\r\n"), answer_end.size());
    std::string found;
    for (const std::string& mark : marks) {
        if (mark.empty()) continue;
        const std::size_t at = answer_end.find(mark);
        if (at > first || (at == first && mark.size() <= found.size())) continue;
        first = at;
        found = mark;
    }
    return found;
}

/// Writes a trial conversation and reads the parts from it. Returns why the template is unknown; empty if it
/// is known.
std::string try_out(ChatTemplate& chat, std::span<const std::string> marks) {
    const std::span<const std::string_view> said(kSaid);
    const std::string one = rendered(chat, said.first(1)), all = rendered(chat, said);
    const auto first = cut(one, said.first(1)), three = cut(rendered(chat, said.first(3)), said.first(3)),
               five = cut(all, said);
    if (!first || !three || !five) return "it does not write each message once, in order and unchanged";
    chat.parts = {(*first)[0], (*first)[1], (*three)[2], end_token_in((*three)[2], marks)};
    const ChatParts& parts = chat.parts;
    if ((*three)[0] != parts.opening || (*five)[0] != parts.opening)
        return "it writes the first turn in another way when others follow";
    if ((*three)[3] != parts.user_end || (*five)[5] != parts.user_end || (*five)[2] != parts.answer_end ||
        (*five)[4] != parts.answer_end)
        return "it writes later turns in another way than earlier ones";
    if (parts.user_end.empty() && parts.answer_end.empty()) return "it does not tell turns apart";
    // A blank before an answer is the model's to write where the template stops before it.
    const auto continues = [&](const std::string& between) {
        return between.starts_with(parts.user_end) &&
               between.find_first_not_of(' ', parts.user_end.size()) == std::string::npos;
    };
    chat.rewrites_history = !continues((*five)[1]) || !continues((*five)[3]);
    const auto named = std::find_if(kForms.begin(), kForms.end(), [&](const NamedForm& form) {
        return all.find(form.sign) != std::string::npos;
    });
    chat.form = named == kForms.end() ? "template" : named->name;
    // gpt-oss ends each of its messages with the token of the template, and an answer with one of its own.
    constexpr std::string_view kReturn = "<|return|>";
    if (chat.form == "gpt-oss" && std::find(marks.begin(), marks.end(), kReturn) != marks.end())
        chat.stop_token = kReturn;
    return {};
}

std::string turn_of(const ChatTemplate& chat, std::span<const std::string_view> said) {
    try {
        return rendered(chat, said);
    } catch (const Error& error) {
        fail(error.code(),
             "cannot write a turn by the model's chat template: {}; say something else or leave "
             "out --chat",
             error.what());
    }
}

}  // namespace

ChatTemplate read_chat_template(std::string_view jinja, jinja::Dict variables,
                                std::span<const std::string> marks) {
    ChatTemplate chat;
    if (jinja.empty()) return chat;
    chat.variables = std::move(variables);
    try {
        chat.program = std::make_shared<const jinja::Template>(jinja);
        chat.why_unknown = try_out(chat, marks);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::unsupported) throw;
        chat.why_unknown = error.what();
    }
    if (chat.why_unknown.empty()) return chat;
    ChatTemplate unknown;
    unknown.why_unknown = chat.why_unknown;
    return unknown;
}

std::string first_turn(const ChatTemplate& chat, std::string_view text) {
    if (!chat.is_known()) return std::string(text);
    const std::array said = {text};
    return turn_of(chat, said);
}

std::string first_turn(const ChatTemplate& chat, std::string_view system, std::string_view text) {
    const auto refused = [](std::string_view why) {
        fail(ErrorCode::unsupported, "--system: {}; leave it out, or put its text into the prompt", why);
    };
    if (!chat.is_known()) refused("the model has no chat template that is known");
    const std::array said = {text};
    std::string turn;
    try {
        turn = rendered(chat, said, system);
    } catch (const Error& error) {
        refused(fmt::format("the model's chat template refuses a system message: {}", error.what()));
    }
    const std::size_t at = turn.find(system);
    if (at == std::string::npos || turn.find(text, at + system.size()) == std::string::npos)
        refused("the model's chat template does not write a system message as it is");
    return turn;
}

std::string next_turn(const ChatTemplate& chat, std::string_view text, bool answer_ended) {
    if (!chat.is_known()) return std::string(text);
    const std::array said = {kSaid[0], kSaid[1], text};
    const std::string talk = turn_of(chat, said);
    std::size_t at = talk.find(kSaid[1]) + kSaid[1].size();
    const std::string& end = chat.parts.end_token;
    if (answer_ended && !end.empty()) at = talk.find(end, at) + end.size();
    return talk.substr(at);
}

bool ends_answer(const ChatTemplate& chat, std::string_view token) {
    const std::string& end = chat.stop_token.empty() ? chat.parts.end_token : chat.stop_token;
    return !end.empty() && token == end;
}

}  // namespace keyhole
