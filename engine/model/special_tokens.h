/// Joins what the files of a model's folder say about special and added tokens, beside tokenizer.json. Used
/// by one thread while loading. Source: PreTrainedTokenizerBase._from_pretrained and TokenizersBackend of
/// transformers 5.
#pragma once

#include "engine/model/tokenizer_file.h"

#include <filesystem>

namespace keyhole {

/// Adds the tokens of tokenizer_config.json and its companions to those of tokenizer.json, in this order:
/// added_tokens_decoder (without it added_tokens.json, and special_tokens_map.json over the named tokens);
/// bos_token, eos_token, unk_token, sep_token, pad_token, cls_token, mask_token; other names that end in
/// _token; the lists of additional ones. A token that the vocabulary lacks gets the next id, as add_token()
/// says. Fills parts.named. Warns where two files disagree. Throws Error(bad_file) with file and key.
void join_special_tokens(const std::filesystem::path& folder, TokenizerParts& parts);

}  // namespace keyhole
