// Mixtures of experts in LLaMA's form: Mixtral (Mistral's attention), OLMoE (one norm of all queries and one
// of all keys, bounds on q, k and v), and Qwen 3 MoE (a norm of each head; some layers may have no experts).
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

#include <algorithm>

namespace keyhole {
namespace {

constexpr LlamaForm kMixtralForm = {.name = "mixtral",
                                    .n_kv_heads = 8,
                                    .bos = 1,
                                    .eos = 2,
                                    .n_heads = 32,
                                    .n_vocab = 32000,
                                    .n_ctx = 131072,
                                    .theta = 1e6,
                                    .norm_eps = 1e-5,
                                    .experts = {.router = "block_sparse_moe.gate",
                                                .experts = "block_sparse_moe.experts",
                                                .gate = "w1",
                                                .up = "w3",
                                                .down = "w2"}};

ModelConfig read_mixtral(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, kMixtralForm);
    read_experts(file, "/intermediate_size", config);
    config.experts_sum_to_one = true;
    if (file.has("/sliding_window"))
        set_window(file, config, file.count("/sliding_window", kMostPositions), 0);
    return config;
}

ModelWeights map_mixtral(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kMixtralForm, checkpoint);
}

constexpr ExpertNames kExpertNames = {.router = "mlp.gate", .experts = "mlp.experts"};

LlamaForm olmoe_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "olmoe",
            .qkv_bias = bias,
            .o_bias = bias,
            .qk_norm = QkNorm::all_heads,
            .eos = 50279,
            .n_vocab = 50304,
            .n_ctx = 4096,
            .norm_eps = 1e-5,
            .experts = kExpertNames};
}

ModelConfig read_olmoe(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, olmoe_form(file));
    read_experts(file, "/intermediate_size", config);
    config.experts_sum_to_one = file.flag_or("/norm_topk_prob", false);
    if (file.has("/clip_qkv")) config.clip_qkv = static_cast<float>(file.positive_or("/clip_qkv", 1.0));
    return config;
}

ModelWeights map_olmoe(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, olmoe_form(file), checkpoint);
}

LlamaForm qwen3_moe_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "qwen3_moe",
            .qkv_bias = bias,
            .o_bias = bias,
            .qk_norm = QkNorm::head,
            .n_kv_heads = 4,
            .n_heads = 32,
            .n_vocab = 151936,
            .n_ctx = 32768,
            .experts = kExpertNames};
}

ModelConfig read_qwen3_moe(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, qwen3_moe_form(file));
    read_experts(file, "/moe_intermediate_size", config);
    config.experts_sum_to_one = file.flag_or("/norm_topk_prob", false);
    if (file.flag_or("/use_sliding_window", false) && file.has("/sliding_window"))
        set_window(file, config, file.count("/sliding_window", kMostPositions), 0);
    return config;
}

/// Throws Error(bad_file) unless the layers with experts are those of decoder_sparse_step and
/// mlp_only_layers.
void check_sparse_layers(const ConfigFile& file, const ModelWeights& weights) {
    const int step = file.count_or("/decoder_sparse_step", 1, kMostLayers);
    const std::vector<int> dense = file.integers("/mlp_only_layers");
    for (std::size_t l = 0; l < weights.layers.size(); ++l) {
        const bool is_listed = std::find(dense.begin(), dense.end(), static_cast<int>(l)) != dense.end();
        const bool wanted = !is_listed && (l + 1) % to_index(step) == 0;
        if (wanted == !weights.layers[l].experts.empty()) continue;
        fail(ErrorCode::bad_file,
             "cannot use {}: layer {} has {} experts in the weights, and decoder_sparse_step and "
             "mlp_only_layers say otherwise; the two files do not belong together",
             file.path().string(), l, weights.layers[l].experts.size());
    }
}

ModelWeights map_qwen3_moe(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    ModelWeights weights = map_llama_weights(config, qwen3_moe_form(file), checkpoint);
    check_sparse_layers(file, weights);
    return weights;
}

}  // namespace

const Family kMixtralFamily = {"mixtral", {"MixtralForCausalLM"}, "mixtral", read_mixtral, map_mixtral};
const Family kOlmoeFamily = {"olmoe", {"OlmoeForCausalLM"}, "olmoe", read_olmoe, map_olmoe};
const Family kQwen3MoeFamily = {
    "qwen3_moe", {"Qwen3MoeForCausalLM"}, "qwen3_moe", read_qwen3_moe, map_qwen3_moe};

}  // namespace keyhole
