/// Describes the model in a GGUF file as the families read a Hugging Face folder: a config.json, and the
/// names of its tensors there. Used by one thread while loading. Knows the architectures of GGUF files that a
/// family covers.
#pragma once

#include "engine/model/checkpoint.h"
#include "engine/model/gguf_file.h"
#include "engine/model/model.h"

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct GgufModel {
    std::string config;                       ///< the text of a config.json
    std::map<std::string, GgufPlace> places;  ///< by the tensor's name in a folder
};

/// The architectures of GGUF files that this build reads.
std::vector<std::string_view> gguf_architectures();

/// Throws Error(unsupported) with the name of what Keyhole lacks: an architecture, a key of the architecture,
/// a file that is one part of several; Error(bad_file) as the readers of GgufFile.
GgufModel describe_gguf(const GgufFile& file);

/// Divides the rotary frequencies by the factors that the file may hold (rope_freqs.weight): the scaling of
/// LLaMA 3. Throws Error(bad_file) when their number is another.
void scale_by_gguf_factors(const GgufFile& file, ModelConfig& config);

}  // namespace keyhole
