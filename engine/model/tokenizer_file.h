/// What a tokenizer.json says, read into the parts that Tokenizer works with. While loading; one thread.
#pragma once

#include "engine/model/added_tokens.h"
#include "engine/model/bpe.h"
#include "engine/model/normalize.h"
#include "engine/model/pretokenize.h"

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

/// A step of the decoder. Up to `fuse` they see one token each, after it the whole text.
struct DecodeStep {
    enum class Kind { byte_level, byte_fallback, replace, fuse, strip } kind = Kind::fuse;
    std::string from, to;        ///< replace; strip: from is the character
    int n_start = 0, n_end = 0;  ///< strip: at most so many
};

struct TokenizerParts {
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    Bpe bpe;
    std::vector<std::string>
        tokens;  ///< [n_vocab] as written in the file; ids that the file leaves out are empty
    std::vector<AddedToken> added;
    std::vector<int> before, after;  ///< ids that the post-processor puts around a text
    std::vector<DecodeStep> decoder;
};

/// Throws Error(bad_file) or Error(unsupported) naming the file and the part that is not understood.
TokenizerParts read_tokenizer_file(const std::filesystem::path& path);

}  // namespace keyhole
