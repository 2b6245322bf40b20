/// Writes a model with merged K and V as a separate Hugging Face folder. Used by one thread; knows model
/// only.
#pragma once

#include "engine/model/kv_sharing.h"

#include <filesystem>
#include <functional>
#include <string>

namespace keyhole {

/// Facts about the written model, for a report.
struct Converted {
    std::string kv;                 ///< "mqa"
    std::int64_t n_parameters = 0;  ///< parameters of the new model
    int d_ff = 0;
    /// The class of transformers that loads it: "AutoModelForCausalLM", with "trust_remote_code=True" when
    /// layers share KV heads; empty when transformers has no such model.
    std::string transformers;
};

/// Reads `folder`, merges as shared_model() does, and writes a folder to `out`, which must be empty or new.
/// It writes config.json, model.safetensors (one file, each tensor in its own type), the tokenizer's files
/// and, when layers share KV heads, code that lets transformers load it.
///
/// GQA and MQA give plain folders of the same architecture with num_key_value_heads; for MLKV see
/// assets/training/README.md. config.json gets the key keyhole_merged. progress (may be empty) receives the
/// written share, 0..1. Throws Error: the errors of load_model() and shared_model(); a family that stores K
/// and V under other names than LLaMA's (unsupported); write errors (io).
Converted convert_model(const std::filesystem::path& folder, const KvSharing& sharing,
                        const std::filesystem::path& out, const std::function<void(double)>& progress = {});

}  // namespace keyhole
