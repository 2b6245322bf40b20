/// Names a model by all that its answers depend on. Any thread; reads files.
#pragma once

#include "engine/model/model.h"

#include <string>

namespace keyhole {

/// Returns Model::hash() and, of a folder, " tokenizer=" with a digest of the files that its tokenizer and
/// its chat template are read from. The hash of a GGUF file covers both. Throws Error(io).
std::string model_identity(const Model& model);

}  // namespace keyhole
