/// Reads a tokenizer.json into the parts that Tokenizer works with. Used by one thread while loading.
#pragma once

#include "engine/model/added_tokens.h"
#include "engine/model/bpe.h"
#include "engine/model/normalize.h"
#include "engine/model/pretokenize.h"
#include "engine/model/unigram.h"

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <filesystem>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace keyhole {

/// A step of the decoder. Steps before `fuse` see one token each, steps after it the whole text.
struct DecodeStep {
    enum class Kind { byte_level, byte_fallback, replace, fuse, strip, metaspace } kind = Kind::fuse;
    std::string from, to;        ///< replace: both; strip: from is the character; metaspace: from is the sign
    int n_start = 0, n_end = 0;  ///< strip: the most to remove at either end
    bool drops_at_begin = false;  ///< metaspace: signs in the first token are removed
};

struct TokenizerParts {
    std::filesystem::path path;  ///< path of the file, for messages
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Bpe bpe;
    std::optional<Unigram> unigram;  ///< instead of bpe
    /// [n_vocab] as written in the file; empty for ids that the file leaves out
    std::vector<std::string> tokens;
    std::vector<AddedToken> added;
    bool has_post_processor = false;  ///< the file has one, even if it adds nothing
    std::vector<int> before, after;   ///< ids that it adds around a text
    std::vector<DecodeStep> decoder;
    std::string chat_template;  ///< in Jinja; empty: none
    /// Tokens that the files name, "bos_token" and its content, for the template.
    std::vector<std::pair<std::string, std::string>> named;
    std::vector<std::string> warnings;  ///< one line each

    // While loading only:
    std::unordered_map<std::string, int> ids;               ///< of all tokens, by content
    std::size_t n_model_tokens = 0;                         ///< entries of the model's vocabulary
    std::unordered_map<std::string, std::size_t> added_at;  ///< places in `added`, by content
    int last_added = -1;                                    ///< highest id of an added token
};

/// Adds a token as the tokenizers package does, whatever id the file gives it: a content that is a token
/// already keeps its id and gets the new flags; another gets the next id behind the vocabulary and the added
/// tokens. Returns the id.
int add_token(TokenizerParts& parts, AddedToken token);

/// Throws Error(bad_file) or Error(unsupported) with the file and the part that is wrong or not supported.
TokenizerParts read_tokenizer_file(const std::filesystem::path& path);

/// The files that the parts of a tokenizer object came from, for messages.
struct TokenizerPlaces {
    std::filesystem::path vocabulary;  ///< and all parts that are not named below
    std::filesystem::path merges, added;
};
/// Reads an object with the structure of a tokenizer.json. Throws as read_tokenizer_file().
TokenizerParts read_tokenizer_object(const nlohmann::json& object, const TokenizerPlaces& places);

/// Reads the tokenizer of a model's folder: tokenizer.json, or else vocab.json and merges.txt as GPT-2 and
/// OPT have them; joined with the tokens of its other files (special_tokens.h). tokenizer_config.json adds
/// BOS and EOS around a text beside vocab.json alone, as in transformers 5. Throws as read_tokenizer_file();
/// for a folder without a tokenizer the message says how to convert one.
TokenizerParts read_tokenizer_folder(const std::filesystem::path& folder);

}  // namespace keyhole
