/// The turns of instruction models: a user's text in the form that the model was trained on. Templates of
/// checkpoints are programs in Jinja; this recognises the common ones by their markers and writes the same
/// text. Pure; any thread; knows no tokenizer and no file.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

enum class ChatFormat {
    none,    ///< no template, or an unknown one: turns are plain text
    chatml,  ///< <|im_start|>user\n...<|im_end|>\n<|im_start|>assistant\n      Qwen, SmolLM
    llama3,  ///< <|start_header_id|>user<|end_header_id|>\n\n...<|eot_id|>     LLaMA 3
    llama2,  ///< [INST] ... [/INST]                                            LLaMA 2, Mistral
    zephyr,  ///< <|user|>\n...</s>\n<|assistant|>\n                            Zephyr, TinyLlama
    phi3,    ///< <|user|>\n...<|end|>\n<|assistant|>\n                         Phi 3
    alpaca,  ///< ### Instruction:\n...\n\n### Response:\n                      Alpaca, DeepSeek Coder
};
std::string_view chat_format_name(ChatFormat format);
/// Returns none for an unknown name.
ChatFormat chat_format_from_name(std::string_view name);

struct ChatTemplate {
    ChatFormat format = ChatFormat::none;
    std::string system;  ///< the system message that the template itself writes first; empty: none
};

/// jinja: the chat_template of tokenizer_config.json, or tokenizer.chat_template of a GGUF file.
ChatTemplate recognise_chat_template(std::string_view jinja);

/// Returns the text of a conversation's first turn, up to where the answer begins. It lacks BOS, which the
/// tokenizer adds. With ChatFormat::none the text itself.
std::string first_turn(const ChatTemplate& chat, std::string_view text);
/// Returns a later turn. answer_ended: the model has written its end-of-turn token, so that only the rest of
/// the answer's end comes first.
std::string next_turn(const ChatTemplate& chat, std::string_view text, bool answer_ended);

/// Returns whether this is the token that the model writes after an answer. token: its bytes.
bool ends_answer(ChatFormat format, std::string_view token);

/// Returns which tokens belong to the template and not to what was said: [n_tokens], by the tokens' bytes,
/// special tokens included. A system message counts as the template's.
std::vector<bool> template_tokens(ChatFormat format, std::span<const std::string> tokens);

}  // namespace keyhole
