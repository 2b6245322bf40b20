// gpt-oss: experts with biases and a clamped activation, a learned sink for each query head, every other
// layer slides. Its folders hold the experts of a layer in one tensor: in BF16 as inputs by outputs, or in
// MXFP4 with blocks and scales apart; rows of gate and up alternate.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kGptOssForm = {.name = "gpt_oss",
                                   .qkv_bias = true,
                                   .o_bias = true,
                                   .n_kv_heads = 8,
                                   .head_dim = 64,
                                   .n_heads = 64,
                                   .n_vocab = 201088,
                                   .n_ctx = 131072,
                                   .theta = 150000.0,
                                   .norm_eps = 1e-5,
                                   .takes_mxfp4 = true,
                                   .own_experts = true};

ModelConfig read_gpt_oss(const ConfigFile& file) {
    refuse_flag(file, "/attention_bias", true, "attention with biases in this family");
    const std::string method = file.text_or("/quantization_config/quant_method", "mxfp4");
    if (method != "mxfp4") refuse(file, "quant_method " + method, "mxfp4");
    if (file.positive_or("/swiglu_limit", 7.0) != 7.0 || file.positive_or("/swiglu_alpha", 1.702) != 1.702)
        refuse(file, "another swiglu_limit or swiglu_alpha", "7 and 1.702");
    ModelConfig config = read_llama_config(file, kGptOssForm);
    config.activation = Activation::clamped_swiglu;
    read_experts(file, "/intermediate_size", config);
    config.experts_sum_to_one = true;
    config.has_sinks = true;
    set_window_by_period(file, config, file.count_or("/sliding_window", 128, kMostPositions), 2);
    return config;
}

/// Takes the experts of one layer, whose names begin with `at`.
void take_gpt_oss_experts(const ModelConfig& c, const std::string& at, Checkpoint& checkpoint,
                          LayerWeights& layer) {
    const std::int64_t d = c.d_model, width = c.d_expert;
    layer.router = checkpoint.weight(at + "mlp.router.weight", c.n_experts, d);
    layer.router_bias = checkpoint.weight(at + "mlp.router.bias", c.n_experts);
    const std::string experts = at + "mlp.experts.";
    const bool is_stacked = checkpoint.has_place(experts + "gate_proj.weight");  // GGUF
    for (int e = 0; e < c.n_experts; ++e) {
        ExpertWeights& expert = layer.experts.emplace_back();
        const auto bias = [&](const char* name, std::int64_t rows) {
            return checkpoint.one_of(experts + name, e, c.n_experts, rows, 0);
        };
        if (is_stacked) {
            const auto matrix = [&](const char* name, std::int64_t rows, std::int64_t cols) {
                return checkpoint.one_of(experts + name, e, c.n_experts, rows, cols);
            };
            expert = {matrix("gate_proj.weight", width, d), matrix("up_proj.weight", width, d),
                      bias("gate_proj.bias", width),        bias("up_proj.bias", width),
                      matrix("down_proj.weight", d, width), bias("down_proj.bias", d)};
            continue;
        }
        const auto part = [&](const char* name, std::int64_t cols, const RowBlocks& rows) {
            return checkpoint.expert_rows(experts + name, e, c.n_experts, cols, rows);
        };
        const RowBlocks gate{0, 1, 2, width}, up{1, 1, 2, width}, down{0, d, 0, 1};
        expert.gate = part("gate_up_proj", d, gate);
        expert.up = part("gate_up_proj", d, up);
        expert.down = part("down_proj", width, down);
        const Weight both = bias("gate_up_proj_bias", 2 * width);
        expert.gate_bias = checkpoint.copied_rows(experts + "gate_up_proj_bias", both, gate);
        expert.up_bias = checkpoint.copied_rows(experts + "gate_up_proj_bias", both, up);
        expert.down_bias = bias("down_proj_bias", d);
    }
}

ModelWeights map_gpt_oss(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    ModelWeights weights = map_llama_weights(config, kGptOssForm, checkpoint);
    const std::string model = prefix_of(checkpoint, {"model.", ""}, "norm.weight");
    for (int l = 0; l < config.n_layers; ++l) {
        const std::string at = fmt::format("{}layers.{}.", model, l);
        LayerWeights& layer = weights.layers[to_index(l)];
        layer.sinks = checkpoint.weight(at + "self_attn.sinks", config.n_heads);
        take_gpt_oss_experts(config, at, checkpoint, layer);
    }
    return weights;
}

}  // namespace

const Family kGptOssFamily = {"gpt_oss", {"GptOssForCausalLM"}, "gpt_oss", read_gpt_oss, map_gpt_oss};

}  // namespace keyhole
