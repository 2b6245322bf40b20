// OLMo 2 and 3: LLaMA's form with norms after both branches and none before, and one norm of all queries and
// one of all keys. In OLMo 3 three of four layers slide; their rotary positions are not scaled.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

LlamaForm olmo2_form(const ConfigFile& file) {
    const bool bias = file.flag_or("/attention_bias", false);
    return {.name = "olmo2",
            .qkv_bias = bias,
            .o_bias = bias,
            .qk_norm = QkNorm::all_heads,
            .eos = 50279,
            .n_vocab = 50304,
            .norm_eps = 1e-5,
            .attention_norm = nullptr,
            .mlp_norm = nullptr,
            .attention_out_norm = "post_attention_layernorm",
            .mlp_out_norm = "post_feedforward_layernorm"};
}

LlamaForm olmo3_form(const ConfigFile& file) {
    LlamaForm form = olmo2_form(file);
    form.name = "olmo3";
    form.theta = 5e5;
    form.rotary_by_layer = true;
    return form;
}

ModelConfig read_olmo2(const ConfigFile& file) {
    return read_llama_config(file, olmo2_form(file));
}

ModelConfig read_olmo3(const ConfigFile& file) {
    const LlamaForm form = olmo3_form(file);
    ModelConfig config = read_llama_config(file, form);
    read_rotary_by_layer(file, config, form.theta, "/rope_theta", form.theta);
    set_window_by_period(file, config, file.count_or("/sliding_window", 4096, kMostPositions), 4);
    return config;
}

ModelWeights map_olmo2(const ConfigFile& file, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, olmo2_form(file), checkpoint);
}

}  // namespace

const Family kOlmo2Family = {"olmo2", {"Olmo2ForCausalLM"}, "olmo2", read_olmo2, map_olmo2};
const Family kOlmo3Family = {"olmo3", {"Olmo3ForCausalLM"}, "olmo3", read_olmo3, map_olmo2};

}  // namespace keyhole
