/// Writes a model with merged K and V as a Hugging Face folder of its own. One thread; knows model only.
#pragma once

#include "engine/model/kv_sharing.h"

#include <filesystem>
#include <functional>
#include <string>

namespace keyhole {

/// What was written, for a report.
struct Converted {
    std::string kv;                 ///< "mqa"
    std::int64_t n_parameters = 0;  ///< of the new model
    int d_ff = 0;
    /// "AutoModelForCausalLM"; with "trust_remote_code=True" where layers share KV heads; empty: transformers has no such model.
    std::string transformers;
};

/// Reads `folder`, merges as shared_model() does, and writes config.json, model.safetensors (one file, the tensors' own types),
/// the tokenizer's files and, where layers share KV heads, code that teaches transformers so, into `out`, which must be empty or new. GQA and
/// MQA are plain folders of the same architecture with num_key_value_heads; for MLKV see assets/training/README.md. The config says
/// keyhole_merged. progress (may be empty) hears of the share that is written, 0..1. Throws Error: what the folder or the sharing is refused for; a family that stores K and V under other names than
/// LLaMA's (unsupported); the disk (io).
Converted convert_model(const std::filesystem::path& folder, const KvSharing& sharing,
                        const std::filesystem::path& out, const std::function<void(double)>& progress = {});

}  // namespace keyhole
