/// A model family: how its config.json and tensor names map onto ModelConfig and ModelWeights. One file
/// each; the registry is in families.cpp. Used by one thread while loading.
#pragma once

#include "engine/model/checkpoint.h"
#include "engine/model/config_file.h"
#include "engine/model/model.h"

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct Family {
    std::string_view name;
    std::vector<std::string_view> architectures;  ///< in config.json's "architectures"
    std::string_view model_type;  ///< its "model_type", used when config.json names no architecture
    /// Throws Error(bad_file) for values out of range, Error(unsupported) with the feature that Keyhole
    /// lacks.
    ModelConfig (*read_config)(const ConfigFile& file);
    /// Throws as Checkpoint::weight().
    ModelWeights (*map_weights)(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint);
    /// The language model may be one part of a model that also reads pictures: `file` is then its
    /// ConfigFile::text_part().
    bool reads_text_part = false;
};

extern const Family kLlamaFamily, kMistralFamily, kQwen2Family, kQwen3Family, kGptNeoXFamily, kGptJFamily,
    kMptFamily, kGpt2Family, kOptFamily, kGemma2Family, kGemma3Family, kPhi3Family, kSmolLm3Family,
    kOlmo2Family, kOlmo3Family, kGraniteFamily, kMixtralFamily, kOlmoeFamily, kQwen3MoeFamily, kGptOssFamily,
    kCohereFamily, kCohere2Family, kStableLmFamily, kGlmFamily, kGlm4Family, kExaone4Family, kPhi2Family,
    kBloomFamily, kFalconFamily, kExaoneFamily;

/// All families of this build.
std::span<const Family* const> families();

/// Returns why models of an architecture cannot be read here, as a clause ("it has ..."), where that is
/// known, else empty. name: as in "architectures" or as in GGUF files.
std::string_view known_obstacle(std::string_view name);

/// Throws Error(unsupported) with the architecture and the supported ones, or the known obstacle.
const Family& family_of(const ConfigFile& file);

}  // namespace keyhole
