// EXAONE 4: LLaMA's form with norms after both branches and none before, a norm of each head's query and
// key, and, in the larger model, sliding layers, which alone rotate.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kExaone4Form = {.name = "exaone4",
                                    .qk_norm = QkNorm::head,
                                    .n_kv_heads = 32,
                                    .bos = 0,
                                    .eos = 2,
                                    .n_heads = 32,
                                    .n_vocab = 102400,
                                    .norm_eps = 1e-5,
                                    .attention_norm = nullptr,
                                    .mlp_norm = nullptr,
                                    .attention_out_norm = "post_attention_layernorm",
                                    .mlp_out_norm = "post_feedforward_layernorm"};

ModelConfig read_exaone4(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, kExaone4Form);
    if (file.is_null("/sliding_window")) return config;
    // The pattern may be a text such as LLLG: layer_types then says the same.
    const int period =
        file.has("/layer_types") ? 1 : file.count_or("/sliding_window_pattern", 4, kMostLayers);
    set_window_by_period(file, config, file.count_or("/sliding_window", 4096, kMostPositions), period);
    for (const int window : config.window) config.unrotated.push_back(window == 0);
    return config;
}

ModelWeights map_exaone4(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kExaone4Form, checkpoint);
}

}  // namespace

const Family kExaone4Family = {"exaone4", {"Exaone4ForCausalLM"}, "exaone4", read_exaone4, map_exaone4};

}  // namespace keyhole
