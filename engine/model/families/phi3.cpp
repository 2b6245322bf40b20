// Phi-3, 3.5, 4 and 4-mini: LLaMA's form with q, k and v in one matrix and gate and up in another, rotary
// positions by longrope over a part of each head, and a sliding window in the oldest.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kPhi3Form = {.name = "phi3",
                                 .bos = 1,
                                 .eos = 32000,
                                 .n_vocab = 32064,
                                 .n_ctx = 4096,
                                 .rotary_part = 1.0,
                                 .norm_eps = 1e-5,
                                 .fused_qkv = true,
                                 .fused_gate_up = true};

ModelConfig read_phi3(const ConfigFile& file) {
    refuse_flag(file, "/attention_bias", false, "attention without biases in this family");
    ModelConfig config = read_llama_config(file, kPhi3Form);
    if (file.has("/sliding_window"))
        set_window(file, config, file.count("/sliding_window", kMostPositions), 0);
    return config;
}

ModelWeights map_phi3(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kPhi3Form, checkpoint);
}

}  // namespace

const Family kPhi3Family = {"phi3", {"Phi3ForCausalLM"}, "phi3", read_phi3, map_phi3};

}  // namespace keyhole
