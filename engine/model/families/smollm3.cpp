// SmolLM3: LLaMA's form in which every fourth layer does not rotate queries and keys.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm smollm3_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "smollm3",
            .qkv_bias = bias,
            .o_bias = bias,
            .mlp_bias = file.flag_or("/mlp_bias", false),
            .n_kv_heads = 4,
            .bos = 128000,
            .eos = 128001,
            .n_heads = 16,
            .n_vocab = 128256,
            .n_ctx = 32768,
            .theta = 2e6,
            .tied = true};
}

/// Reads no_rope_layers, where 1 stands for a layer that rotates, or no_rope_layer_interval.
void read_unrotated(const ConfigFile& file, ModelConfig& config) {
    const std::vector<int> listed = file.integers("/no_rope_layers");
    if (!listed.empty() && listed.size() != to_index(config.n_layers))
        fail(ErrorCode::bad_file, "cannot use {}: no_rope_layers names {} layers of {}; check the file",
             file.path().string(), listed.size(), config.n_layers);
    const int period = file.count_or("/no_rope_layer_interval", 4, kMostLayers);
    for (int l = 0; l < config.n_layers; ++l)
        config.unrotated.push_back(listed.empty() ? (l + 1) % period == 0 : listed[to_index(l)] == 0);
}

ModelConfig read_smollm3(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, smollm3_form(file));
    read_unrotated(file, config);
    if (file.flag_or("/use_sliding_window", false) && file.has("/sliding_window"))
        set_window_where_unrotated(file, config, file.count("/sliding_window", kMostPositions));
    return config;
}

ModelWeights map_smollm3(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, smollm3_form(file), checkpoint);
}

}  // namespace

const Family kSmolLm3Family = {"smollm3", {"SmolLM3ForCausalLM"}, "smollm3", read_smollm3, map_smollm3};

}  // namespace keyhole
