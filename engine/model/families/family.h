/// A family maps a Hugging Face config and its tensor names onto the canonical description. One file each; no class, two functions.
#pragma once

#include "engine/model/checkpoint.h"
#include "engine/model/model.h"

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace keyhole {

struct Family {
    std::string_view architecture;  ///< of config.json, "LlamaForCausalLM"
    /// Throws Error(unsupported) naming the option that this build cannot do, Error(bad_file) for a missing or senseless value.
    ModelConfig (*config)(const nlohmann::json& json, const std::string& file);
    ModelWeights (*weights)(const Checkpoint& checkpoint, const ModelConfig& config);
};

extern const Family kLlama;

}  // namespace keyhole
