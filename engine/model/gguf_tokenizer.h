/// Reads the tokenizer in a GGUF file's metadata: byte BPE with a named pre-tokenizer, or SentencePiece BPE
/// with scores. Used by one thread while loading.
#pragma once

#include "engine/model/gguf_file.h"
#include "engine/model/tokenizer_file.h"

namespace keyhole {

/// Returns the parts that the official tokenizer.json of such a model has. Control, unknown and user-defined
/// tokens become added tokens; unused ones have no text. Throws Error(unsupported) with the name of a
/// tokenizer or pre-tokenizer that is not known, Error(bad_file) with the key that is wrong.
TokenizerParts read_gguf_tokenizer(const GgufFile& file);

}  // namespace keyhole
