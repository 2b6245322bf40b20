/// What a tokenizer.json says, read into the parts that Tokenizer works with. While loading; one thread.
#pragma once

#include "engine/model/added_tokens.h"
#include "engine/model/bpe.h"
#include "engine/model/normalize.h"
#include "engine/model/pretokenize.h"

#include <nlohmann/json_fwd.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

/// A step of the decoder. Up to `fuse` they see one token each, after it the whole text.
struct DecodeStep {
    enum class Kind { byte_level, byte_fallback, replace, fuse, strip, metaspace } kind = Kind::fuse;
    std::string from, to;         ///< replace; strip: from is the character; metaspace: from is the sign
    int n_start = 0, n_end = 0;   ///< strip: at most so many
    bool drops_at_begin = false;  ///< metaspace: in the first token signs give nothing
};

struct TokenizerParts {
    std::filesystem::path path;  ///< of the file, for messages
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Bpe bpe;
    std::vector<std::string>
        tokens;  ///< [n_vocab] as written in the file; ids that the file leaves out are empty
    std::vector<AddedToken> added;
    bool has_post_processor = false;  ///< the file says what comes around a text, if only nothing
    std::vector<int> before, after;   ///< ids that it puts there
    std::vector<DecodeStep> decoder;
};

/// Throws Error(bad_file) or Error(unsupported) naming the file and the part that is not understood.
TokenizerParts read_tokenizer_file(const std::filesystem::path& path);

/// The files that the parts of such an object were read from, for messages.
struct TokenizerPlaces {
    std::filesystem::path vocabulary;  ///< and all that is not named here
    std::filesystem::path merges, added;
};
/// An object as a tokenizer.json holds it. The same errors.
TokenizerParts read_tokenizer_object(const nlohmann::json& object, const TokenizerPlaces& places);

/// Of a model's folder: tokenizer.json, else vocab.json and merges.txt as GPT-2 and OPT have them. What
/// tokenizer.json does not say of BOS and EOS is taken from tokenizer_config.json. The same errors; a folder
/// without a tokenizer names what to convert with.
TokenizerParts read_tokenizer_folder(const std::filesystem::path& folder);

}  // namespace keyhole
