/// The turns of instruction models: a user's text in the form that the model was trained on. Checkpoints
/// carry a template, a program in Jinja; this runs it. A template that cannot be run, or that does not write
/// what was said as it was said, is unknown, with the reason. Const; any thread; knows no tokenizer and no
/// file.
#pragma once

#include "engine/model/chat_parts.h"
#include "engine/model/jinja.h"

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ChatTemplate {
    /// "chatml", "llama3", ...: a form of this name, by the signs that the template writes; "template":
    /// another one; "none": unknown, so that turns are plain text.
    std::string form = "none";
    std::string why_unknown;  ///< empty for a known template, and where there is none
    /// A turn that has become history is written in another way than it began: an answer that begins in the
    /// template ("<think>") usually is. Keyhole leaves in the text what was said.
    bool rewrites_history = false;
    ChatParts parts;
    std::string stop_token;  ///< that the model writes behind an answer, where it is not parts.end_token

    bool is_known() const { return program != nullptr; }
    std::shared_ptr<const jinja::Template> program;
    jinja::Dict variables;
};

/// jinja: the chat_template of tokenizer_config.json, or tokenizer.chat_template of a GGUF file.
/// variables: bos_token, eos_token and others that the tokenizer names.
/// marks: texts of the tokens that may end an answer: all added tokens.
ChatTemplate read_chat_template(std::string_view jinja, jinja::Dict variables,
                                std::span<const std::string> marks);

/// Returns the text of a conversation's first turn, up to where the answer begins. With an unknown template
/// the text itself. Throws Error(unsupported) if the template refuses this text.
std::string first_turn(const ChatTemplate& chat, std::string_view text);
/// The same behind a system message. Throws Error(unsupported) if the template has no place for one.
std::string first_turn(const ChatTemplate& chat, std::string_view system, std::string_view text);
/// Returns a later turn. answer_ended: the model has written its end token, so that only the rest of the
/// answer's end comes first. Throws as first_turn().
std::string next_turn(const ChatTemplate& chat, std::string_view text, bool answer_ended);

/// Returns whether this is the token that the model writes after an answer. token: its bytes.
bool ends_answer(const ChatTemplate& chat, std::string_view token);

}  // namespace keyhole
