// Every family of checkpoints as `transformers` saves them, against its logits and attention; older forms of
// their files; and models that are refused by name.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/families/family.h"
#include "engine/model/gguf_model.h"
#include "engine/model/model.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/transformers_run.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <sstream>

namespace keyhole::test_families {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kFamilies = reference::source_folder() / "tests/fixtures/families";

std::vector<std::string> fixtures() {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(kFamilies)) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
}

class Families : public ::testing::TestWithParam<std::string> {};

/// MLKV's released code computes decode steps and prompts differently: cached keys are rotated, the prompt's
/// are not.
bool only_whole_prompts(const std::string& fixture) {
    return load_model(kFamilies / fixture)->config().borrows_unrotated;
}
bool rotates_by_call(const std::string& fixture) {
    return load_model(kFamilies / fixture)->config().rotary.changes_with_length();
}

TEST_P(Families, PromptsEqualTransformers) {
    reference::compare_with_transformers(kFamilies / GetParam(), 0);
    if (!only_whole_prompts(GetParam()) && !rotates_by_call(GetParam()))
        reference::compare_with_transformers(kFamilies / GetParam(), 14);
}

/// A model whose rotary frequencies change with the text's length rotates a prompt as one, and each step by
/// its own length: transformers' steps have a file of their own.
fs::path steps_of(const std::string& fixture) {
    const fs::path steps = kFamilies / fixture / "expected_steps.safetensors";
    return fs::exists(steps) ? steps : kFamilies / fixture / "expected.safetensors";
}

TEST_P(Families, StepsEqualTransformers) {
    if (only_whole_prompts(GetParam())) GTEST_SKIP() << "MLKV's released steps are no rows of its prompts";
    reference::compare_with_transformers(kFamilies / GetParam(), 1, steps_of(GetParam()));
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(fixtures()),
                         [](const ::testing::TestParamInfo<std::string>& test) { return test.param; });

TEST(FamilyFixtures, AreThere) {
    EXPECT_GE(fixtures().size(), 69u);
}

/// Returns a copy of a fixture with another config.json.
class ChangedFolder {
  public:
    ChangedFolder(const std::string& fixture, const std::function<void(Json&)>& change)
        : path_(fs::temp_directory_path() / ("keyhole-family-" + std::to_string(getpid()))) {
        fs::remove_all(path_);
        fs::copy(kFamilies / fixture, path_);
        Json json = Json::parse(read_text_file(path_ / "config.json"));
        change(json);
        write_text_file(path_ / "config.json", json.dump());
    }
    ~ChangedFolder() { fs::remove_all(path_); }
    ChangedFolder(const ChangedFolder&) = delete;
    ChangedFolder& operator=(const ChangedFolder&) = delete;
    const fs::path& path() const { return path_; }

  private:
    fs::path path_;
};

void same_with(const std::string& fixture, const std::function<void(Json&)>& change) {
    const ChangedFolder folder(fixture, change);
    reference::compare_with_transformers(folder.path(), 9);
}

// The language model of a folder that also reads pictures, its configuration as one part of another.
TEST(FamilyConfigs, TheLanguageModelOfSeveralIsRead) {
    same_with("gemma3", [](Json& json) {
        Json text = json;
        text.erase("architectures");
        for (const char* key : {"bos_token_id", "eos_token_id"}) text.erase(key);
        json = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                {"model_type", "gemma3"},
                {"bos_token_id", json["bos_token_id"]},
                {"eos_token_id", json["eos_token_id"]},
                {"hidden_size", 7},
                {"text_config", text}};
    });
    const ChangedFolder folder("gemma3", [](Json& json) {
        json["text_config"] = {{"sliding_window", 5}};
        json["architectures"] = {"Gemma3ForConditionalGeneration"};
    });
    const auto model = load_model(folder.path());
    EXPECT_EQ(model->config().window, (std::vector<int>{5, 5, 0}));
    EXPECT_NE(std::find_if(model->warnings().begin(), model->warnings().end(),
                           [](const std::string& line) { return line.find("no pictures") != line.npos; }),
              model->warnings().end());
}

// Checks the comparison itself: it fails by a wide margin when any constant is slightly off.
TEST(FamilyConfigs, AWrongConstantShows) {
    struct Constant {
        const char* fixture;
        const char* at;
        Json value;
    };
    const Constant constants[] = {
        {"gpt_neox", "/layer_norm_eps", 2.9e-2},
        {"gpt_neox", "/rope_parameters/rope_theta", 310},
        {"gpt_neox", "/rope_parameters/partial_rotary_factor", 0.5},
        {"gpt_neox", "/use_parallel_residual", false},
        {"gpt_neox", "/hidden_act", "gelu_new"},
        {"gpt_neox_serial", "/rope_parameters/factor", 3.1},
        {"gpt_neox_serial", "/use_parallel_residual", true},
        {"gpt_neox_serial", "/hidden_act", "gelu"},
        {"mlkv_gqa", "/rotary_emb_base", 310},
        {"mlkv_gqa", "/layer_norm_eps", 2.9e-2},
        {"gptj", "/layer_norm_epsilon", 2.9e-2},
        {"gptj", "/rotary_dim", 6},
        {"gptj", "/activation_function", "gelu"},
        {"mpt", "/layer_norm_epsilon", 2.9e-2},
        {"mpt_odd_heads", "/attn_config/alibi_bias_max", 5.1},
        {"mpt_odd_heads", "/attn_config/softmax_scale", 0.61},
        {"mpt_odd_heads", "/attn_config/clip_qkv", 1.45},
        {"gpt2", "/layer_norm_epsilon", 2.9e-2},
        {"gpt2", "/activation_function", "gelu"},
        {"cerebras", "/activation_function", "gelu_new"},
        {"cerebras", "/scale_attn_weights", true},
        {"llama_linear", "/rms_norm_eps", 1.9e-2},
        {"llama_linear", "/rope_parameters/factor", 2.6},
        {"llama_linear", "/hidden_act", "gelu"},
        {"llama_3", "/rope_parameters/factor", 9},
        {"llama_3", "/rope_parameters/low_freq_factor", 1.4},
        {"llama_3", "/rope_parameters/high_freq_factor", 6},
        {"llama_3", "/rope_parameters/original_max_position_embeddings", 24},
        {"llama_yarn", "/rope_parameters/factor", 4.2},
        {"llama_yarn", "/rope_parameters/beta_fast", 0.5},
        {"llama_yarn", "/rope_parameters/beta_slow", 0.04},
        {"llama_yarn", "/rope_parameters/attention_factor", 1.13},
        {"llama_yarn", "/rope_parameters/original_max_position_embeddings", 30},
        {"mistral", "/sliding_window", 8},
        {"mistral", "/sliding_window", 6},
        {"mistral", "/rope_parameters/rope_theta", 9000},
        {"qwen2", "/sliding_window", 4},
        {"qwen2", "/use_sliding_window", false},
        {"qwen3", "/rope_parameters/rope_theta", 310},
        {"qwen3", "/rms_norm_eps", 1.9e-2},
        {"llama_dynamic", "/rope_parameters/factor", 3.2},
        {"llama_dynamic", "/max_position_embeddings", 17},
        {"gemma2", "/attn_logit_softcapping", 2.6},
        {"gemma2", "/final_logit_softcapping", 1.55},
        {"gemma2", "/query_pre_attn_scalar", 13},
        {"gemma2", "/sliding_window", 8},
        {"gemma2_uncapped", "/attn_logit_softcapping", 5.0},
        {"gemma2_uncapped", "/final_logit_softcapping", 5.0},
        {"gemma2_uncapped", "/hidden_activation", "silu"},
        {"gemma3", "/rope_parameters/full_attention/factor", 4.3},
        {"gemma3", "/rope_parameters/sliding_attention/rope_theta", 60},
        {"gemma3", "/query_pre_attn_scalar", 13},
        {"gemma3", "/sliding_window", 6},
        {"phi3", "/sliding_window", 10},
        {"phi3_short", "/rope_parameters/short_factor", {1.0, 1.2, 1.6, 2.0}},
        {"phi3_short", "/max_position_embeddings", 70},
        {"phi4_mini", "/rope_parameters/long_factor", {1.0, 2.7, 4.0}},
        {"phi4_mini", "/max_position_embeddings", 70},
        {"smollm3", "/no_rope_layers", {1, 1, 1, 1}},
        {"smollm3", "/no_rope_layers", {1, 0, 1, 0}},
        {"smollm3_window", "/sliding_window", 5},
        {"olmo2", "/rope_parameters/rope_theta", 330},
        {"olmo3", "/rope_parameters/full_attention/factor", 4.3},
        {"olmo3", "/rope_parameters/sliding_attention/rope_theta", 330},
        {"olmo3", "/sliding_window", 5},
        {"granite", "/embedding_multiplier", 3.7},
        {"granite", "/logits_scaling", 6.2},
        {"granite", "/residual_multiplier", 0.42},
        {"granite", "/attention_multiplier", 0.31},
        {"mixtral", "/num_experts_per_tok", 3},
        {"mixtral", "/sliding_window", 9},
        {"olmoe", "/num_experts_per_tok", 2},
        {"olmoe", "/norm_topk_prob", true},
        {"olmoe", "/clip_qkv", 0.95},
        {"olmoe_renormalised", "/norm_topk_prob", false},
        {"qwen3_moe", "/num_experts_per_tok", 3},
        {"qwen3_moe", "/norm_topk_prob", false},
        {"qwen3_moe_plain", "/sliding_window", 8},
        {"gpt_oss", "/num_experts_per_tok", 3},
        {"gpt_oss", "/sliding_window", 5},
        {"gpt_oss", "/rope_parameters/truncate", true},
        {"opt", "/activation_function", "gelu"},
        {"opt", "/do_layer_norm_before", false},
        {"opt_350m", "/activation_function", "gelu"},
        {"mistral_yarn", "/rope_parameters/attention_factor", 1.15},
        {"qwen3_window", "/rope_parameters/mscale", 1.3},
        {"qwen3_window", "/rope_parameters/mscale_all_dim", 0.9},
        {"qwen3_window", "/sliding_window", 4},
        {"gemma3_options", "/rope_parameters/sliding_attention/factor", 2.2},
        {"olmo2_options", "/rope_parameters/attention_factor", 1.35},
        {"granite_options", "/rope_parameters/factor", 8.0},
        {"mixtral_window", "/sliding_window", 7},
        {"cohere2_options", "/logit_scale", 0.51},
        {"falcon_options", "/activation", "gelu"},
    };
    for (const Constant& constant : constants) {
        const ChangedFolder folder(
            constant.fixture, [&](Json& json) { json[Json::json_pointer(constant.at)] = constant.value; });
        // A text rotated by its length is one prompt.
        const int n_prompt = rotates_by_call(constant.fixture) ? 0 : 20;
        EXPECT_GT(reference::error_to_transformers(folder.path(), n_prompt).share, 5.0)
            << constant.fixture << " " << constant.at << " " << constant.value;
    }
}

TEST(FamilyConfigs, ATensorThatTheConfigLeavesOutIsRefused) {
    const ChangedFolder folder("opt", [](Json& json) { json["enable_bias"] = false; });
    const std::string error =
        reference::error_of([&] { (void)load_model(folder.path()); }, keyhole::ErrorCode::unsupported);
    EXPECT_NE(error.find("layers.0.fc1.bias has no place in the model of its config.json"), std::string::npos)
        << error;
}

// config.json as earlier versions of transformers wrote it.
TEST(FamilyConfigs, OlderFormsSayTheSame) {
    same_with("gpt_neox", [](Json& json) {
        json.erase("rope_parameters");
        json["rotary_pct"] = 0.25;
        json["rotary_emb_base"] = 300;
    });
    same_with("gpt_neox_serial", [](Json& json) {
        json.erase("rope_parameters");
        json["rotary_pct"] = 0.5;
        json["rotary_emb_base"] = 300;
        json["rope_scaling"] = {{"type", "linear"}, {"factor", 3.0}};
    });
    for (const char* name : {"llama_linear", "llama_3", "llama_yarn"})
        same_with(name, [](Json& json) {
            json["rope_scaling"] = json["rope_parameters"];
            json["rope_theta"] = json["rope_parameters"]["rope_theta"];
            json.erase("rope_parameters");
            json["rope_scaling"].erase("rope_theta");
        });
    same_with("qwen2", [](Json& json) { json.erase("layer_types"); });
    same_with("mpt", [](Json& json) {
        json["architectures"] = {"MPTForCausalLM"};
        json["attn_config"] = {{"alibi", true}, {"attn_impl", "torch"}};
    });
    same_with("cerebras", [](Json& json) { json["architectures"] = {"GPT2Model"}; });
    same_with("gemma3", [](Json& json) {
        json["rope_theta"] = 300;
        json["rope_local_base_freq"] = 50;
        json["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
        json["sliding_window_pattern"] = 3;
        json.erase("_sliding_window_pattern");
        json.erase("rope_parameters");
        json.erase("layer_types");
    });
    same_with("gemma2", [](Json& json) { json.erase("layer_types"); });
    same_with("gpt_oss", [](Json& json) { json.erase("layer_types"); });
    for (const char* name : {"smollm3", "smollm3_interval"})
        same_with(name, [](Json& json) { json.erase("no_rope_layers"); });
    for (const char* name : {"exaone4", "qwen3_window"})
        same_with(name, [](Json& json) { json.erase("layer_types"); });
    same_with("cohere2_options", [](Json& json) {
        json.erase("layer_types");
        json["sliding_window_pattern"] = 2;
    });
    same_with("phi3_short", [](Json& json) {
        json["rope_scaling"] = json["rope_parameters"];
        json["rope_theta"] = 300;
        json["rope_scaling"].erase("rope_theta");
        json["rope_scaling"].erase("original_max_position_embeddings");
        json["rope_scaling"]["type"] = "su";
        json["rope_scaling"].erase("rope_type");
        json.erase("rope_parameters");
        json["torch_dtype"] = json["dtype"];
        json.erase("dtype");
    });
    for (const char* name : {"gptj", "opt", "mistral", "qwen3", "gemma2", "gemma3", "phi3", "smollm3",
                             "olmo2", "olmo3", "granite", "mixtral", "olmoe", "qwen3_moe", "gpt_oss"})
        same_with(name, [](Json& json) { json.erase("architectures"); });
}

TEST(FamilyConfigs, AreRead) {
    const auto neox = load_model(kFamilies / "gpt_neox");
    EXPECT_EQ(neox->config().family, "gpt_neox");
    EXPECT_EQ(neox->config().rotary.dims, 4);
    EXPECT_TRUE(neox->config().parallel);
    EXPECT_EQ(neox->weights().layers[0].q.dtype, DType::f16);
    // By hand: embedding and output; layers of 4 d^2 and 2 d d_ff with biases and two norms; the last norm.
    EXPECT_EQ(neox->n_parameters(),
              2 * 64 * 32 + 2 * (4 * 32 * 32 + 4 * 32 + 2 * 32 * 40 + 40 + 32 + 4 * 32) + 2 * 32);
    const auto mlkv = load_model(kFamilies / "mlkv");  // layers 0 and 2 own two KV heads each
    EXPECT_EQ(mlkv->layout().n_kv_heads(), 4);
    EXPECT_EQ(mlkv->layout().kv_head_from_head(3, 3), 3);
    EXPECT_EQ(mlkv->layout().kv_head_from_head(1, 0), 0);
    EXPECT_EQ(mlkv->weights().layers[1].k.data, nullptr);
    EXPECT_EQ(mlkv->weights().layers[1].q_bias.rows, 32);
    const auto mistral = load_model(kFamilies / "mistral");
    EXPECT_EQ(mistral->config().window, (std::vector<int>{7, 7}));
    EXPECT_EQ(load_model(kFamilies / "qwen2")->config().window, (std::vector<int>{0, 5, 5}));
    const auto opt = load_model(kFamilies / "opt_350m");
    EXPECT_TRUE(opt->config().post_norm);
    EXPECT_EQ(opt->weights().final_norm.data, nullptr);
    EXPECT_EQ(opt->weights().embedding.cols, 20);
    EXPECT_EQ(opt->config().position_offset, 2);
    EXPECT_EQ(opt->weights().output.data, opt->weights().embedding.data);
    EXPECT_EQ(load_model(kFamilies / "smollm3")->config().unrotated,
              (std::vector<bool>{false, false, false, true}));
    EXPECT_EQ(load_model(kFamilies / "gemma3")->config().window, (std::vector<int>{7, 7, 0}));
    EXPECT_EQ(load_model(kFamilies / "gpt_oss")->config().window, (std::vector<int>{6, 0, 6}));
    EXPECT_NEAR(load_model(kFamilies / "gemma2")->config().embedding_scale, std::sqrt(32.0), 1e-6);
    const auto moe = load_model(kFamilies / "qwen3_moe_plain");  // every second layer has experts
    EXPECT_TRUE(moe->weights().layers[0].experts.empty());
    EXPECT_EQ(moe->weights().layers[1].experts.size(), 4u);
    EXPECT_EQ(moe->weights().layers[1].experts[3].down.cols, 16);
    EXPECT_NEAR(load_model(kFamilies / "llama_yarn")->config().rotary.magnitude, 0.1 * std::log(4.0) + 1,
                1e-6);
}

// ALiBi, section 3, for eight heads. For six heads, as MPT's own code gives it: the even ones of eight, then
// the odd ones.
TEST(FamilyConfigs, SlopesOfAnyNumberOfHeads) {
    const auto six = load_model(kFamilies / "mpt_odd_heads")->config().alibi_slopes;
    const double expected[] = {2, 4, 6, 8, 1, 3};
    ASSERT_EQ(six.size(), 6u);
    for (std::size_t h = 0; h < 6; ++h)
        EXPECT_FLOAT_EQ(six[h], static_cast<float>(std::exp2(-5.0 / 8 * expected[h])));
    EXPECT_EQ(load_model(kFamilies / "mpt")->config().alibi_slopes,
              (std::vector<float>{0.25f, 0.0625f, 0.015625f, 0.00390625f}));
}

void refuses(const std::string& fixture, std::initializer_list<std::string> parts,
             const std::function<void(Json&)>& change, ErrorCode code = ErrorCode::unsupported) {
    const ChangedFolder folder(fixture, change);
    try {
        load_model(folder.path());
        ADD_FAILURE() << fixture << " was accepted";
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        for (const std::string& part : parts)
            EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
    }
}

TEST(FamilyConfigs, WhatIsMissingIsRefusedByName) {
    refuses("llama_yarn", {"ntk", "linear, llama3, yarn, longrope and dynamic"},
            [](Json& json) { json["rope_parameters"]["rope_type"] = "ntk"; });
    refuses("gemma3", {"use_bidirectional_attention"},
            [](Json& json) { json["use_bidirectional_attention"] = true; });
    refuses("gemma3", {"final_logit_softcapping"}, [](Json& json) { json["final_logit_softcapping"] = 30; });
    refuses("gemma2", {"attention_bias"}, [](Json& json) { json["attention_bias"] = true; });
    refuses("phi3", {"attention_bias"}, [](Json& json) { json["attention_bias"] = true; });
    refuses("gpt_oss", {"swiglu_limit"}, [](Json& json) { json["swiglu_limit"] = 6.0; });
    refuses("gpt_oss", {"quant_method awq"}, [](Json& json) {
        json["quantization_config"] = {{"quant_method", "awq"}};
    });
    refuses("olmo3", {"chunked_attention"}, [](Json& json) { json["layer_types"][1] = "chunked_attention"; });
    refuses("llama_linear", {"by type of layer"}, [](Json& json) {
        json["rope_parameters"] = {{"full_attention", {{"rope_type", "default"}}}};
    });
    refuses("llama_biases", {"quick_gelu"}, [](Json& json) { json["hidden_act"] = "quick_gelu"; });
    refuses("mpt", {"qk_ln"}, [](Json& json) { json["attn_config"]["qk_ln"] = true; });
    refuses("mpt", {"alibi"}, [](Json& json) { json["attn_config"]["alibi"] = false; });
    // Of its configuration, not of the weights.
    refuses(
        "mpt", {"up_proj.weight", "config.json asks for [64, 32]"},
        [](Json& json) { json["expansion_ratio"] = 2; }, ErrorCode::bad_file);
    refuses("mpt", {"multiquery"},
            [](Json& json) { json["attn_config"]["attn_type"] = "multiquery_attention"; });
    refuses("mpt", {"logit_scale"}, [](Json& json) { json["logit_scale"] = "inv_sqrt_d_model"; });
    refuses("mpt", {"rmsnorm"}, [](Json& json) { json["norm_type"] = "rmsnorm"; });
    refuses("gpt2", {"cross_attention"}, [](Json& json) { json["add_cross_attention"] = true; });
    refuses("gpt2", {"inverse_layer_idx"},
            [](Json& json) { json["scale_attn_by_inverse_layer_idx"] = true; });
    refuses("opt", {"elementwise"}, [](Json& json) { json["layer_norm_elementwise_affine"] = false; });
    refuses("qwen2", {"chunked_attention"}, [](Json& json) { json["layer_types"][1] = "chunked_attention"; });
    refuses("mlkv", {"use_key_value_mlp"}, [](Json& json) { json["use_key_value_mlp"] = true; });
    refuses("gpt2", {"GemmaForCausalLM", "LlamaForCausalLM", "GPTNeoXForCausalLM", "OPTForCausalLM"},
            [](Json& json) { json["architectures"] = {"GemmaForCausalLM"}; });
}

TEST(FamilyConfigs, KnownObstaclesAreNamed) {
    const auto refused = [](const char* architecture, const char* why) {
        refuses("gpt2", {architecture, why}, [&](Json& json) { json["architectures"] = {architecture}; });
    };
    refused("DeepseekV3ForCausalLM", "latent (MLA)");
    refused("FalconH1ForCausalLM", "recurrent layers");
    refused("Gemma3nForConditionalGeneration", "share KV heads");
}

TEST(FamilyConfigs, WhatContradictsItselfIsRefused) {
    constexpr ErrorCode kBad = ErrorCode::bad_file;
    refuses(
        "llama_yarn", {"long_factor", "has 0 numbers, wanted 8"},
        [](Json& json) { json["rope_parameters"]["rope_type"] = "longrope"; }, kBad);
    refuses(
        "phi4_mini", {"long_factor", "has 2 numbers, wanted 3"},
        [](Json& json) {
            json["rope_parameters"]["long_factor"] = {1, 2};
        },
        kBad);
    refuses(
        "mixtral", {"num_experts_per_tok 6 is above num_local_experts 5"},
        [](Json& json) { json["num_experts_per_tok"] = 6; }, kBad);
    refuses(
        "mixtral", {"gate.weight", "[5, 32]", "[4, 32]"}, [](Json& json) { json["num_local_experts"] = 4; },
        kBad);
    refuses(
        "qwen3_moe", {"layer 1", "6 experts", "mlp_only_layers"},
        [](Json& json) { json["mlp_only_layers"] = {1}; }, kBad);
    refuses(
        "smollm3", {"no_rope_layers", "2 layers of 4"},
        [](Json& json) {
            json["no_rope_layers"] = {1, 0};
        },
        kBad);
    refuses(
        "gpt_oss", {"experts.gate_up_proj", "[4, 32, 64]"},
        [](Json& json) { json["intermediate_size"] = 31; }, kBad);
    refuses(
        "olmo2", {"k_proj.weight", "[16, 32]", "[8, 32]"},
        [](Json& json) { json["num_key_value_heads"] = 1; }, kBad);
    refuses(
        "gptj", {"rotary"}, [](Json& json) { json["rotary_dim"] = 12; }, kBad);
    refuses(
        "gptj", {"rotary"}, [](Json& json) { json["rotary_dim"] = 3; }, kBad);
    refuses(
        "gpt_neox", {"rotary"}, [](Json& json) { json["rope_parameters"]["partial_rotary_factor"] = 2; },
        kBad);
    refuses(
        "gpt_neox", {"dense_h_to_4h.weight", "[40, 32]", "[50, 32]"},
        [](Json& json) { json["intermediate_size"] = 50; }, kBad);
    refuses(
        "gpt_neox", {"shares KV heads"}, [](Json& json) { json["num_key_value_heads"] = 1; }, kBad);
    refuses(
        "gpt_neox", {"shares KV heads"}, [](Json& json) { json["num_key_value_layers"] = 1; }, kBad);
    refuses(
        "gpt_neox", {"hidden_size", "multiple"}, [](Json& json) { json["num_attention_heads"] = 5; }, kBad);
    refuses(
        "gpt2", {"wpe.weight", "[28, 32]", "[29, 32]"}, [](Json& json) { json["n_positions"] = 29; }, kBad);
    refuses(
        "gpt2", {"h.2.ln_1.weight"}, [](Json& json) { json["n_layer"] = 3; }, kBad);
    refuses(
        "qwen2", {"layer_types"}, [](Json& json) { json["layer_types"].push_back("full_attention"); }, kBad);
    refuses(
        "mistral", {"sliding_window"}, [](Json& json) { json["sliding_window"] = 0; }, kBad);
    refuses(
        "opt_350m", {"embed_tokens"}, [](Json& json) { json["word_embed_proj_dim"] = 32; }, kBad);
}

/// Returns the cells of the rows of a table in the manual's page of models, from the row that begins so.
std::vector<std::vector<std::string>> rows_of_table(const std::string& page, const std::string& header) {
    std::vector<std::vector<std::string>> rows;
    std::istringstream lines(page.substr(page.find(header)));
    for (std::string line; std::getline(lines, line) && line.starts_with("|");) {
        std::vector<std::string>& cells = rows.emplace_back();
        for (std::size_t at = 1; at < line.size();) {
            const std::size_t end = line.find('|', at);
            std::string cell = line.substr(at, end - at);
            std::erase_if(cell, [](char c) { return c == '`'; });
            cell.erase(0, cell.find_first_not_of(' '));
            cell.erase(cell.find_last_not_of(' ') + 1);
            cells.push_back(std::move(cell));
            at = end + 1;
        }
    }
    if (rows.size() >= 2) rows.erase(rows.begin(), rows.begin() + 2);
    return rows;
}

bool is_architecture_of_a_family(const std::string& name) {
    return std::any_of(families().begin(), families().end(), [&](const Family* family) {
        return std::find(family->architectures.begin(), family->architectures.end(), name) !=
               family->architectures.end();
    });
}

TEST(FamilyTables, ThirtyModelsOpenOrAreRefusedWithTheReason) {
    const std::string page = read_text_file(reference::source_folder() / "assets/manual/models.md");
    const auto rows = rows_of_table(page, "| model | architecture | GGUF | here |");
    ASSERT_EQ(rows.size(), 30u);
    const std::vector<std::string_view> of_gguf = gguf_architectures();
    int n_open = 0;
    for (const auto& row : rows) {
        SCOPED_TRACE(row[0]);
        ASSERT_EQ(row.size(), 4u);
        const bool opens = row[3] == "opens";
        n_open += opens ? 1 : 0;
        EXPECT_EQ(is_architecture_of_a_family(row[1]), opens);
        const bool is_in_gguf = std::find(of_gguf.begin(), of_gguf.end(), row[2]) != of_gguf.end();
        EXPECT_EQ(is_in_gguf, opens && row[2] != "none");
        if (opens) continue;
        ASSERT_TRUE(row[3].starts_with("refused: ")) << row[3];
        const std::string piece = row[3].substr(9, row[3].find(' ', 9) - 9);
        for (const std::string& name : {row[1], row[2]})
            EXPECT_NE(known_obstacle(name).find(piece), std::string_view::npos) << name;
    }
    EXPECT_EQ(n_open, 27);
}

TEST(FamilyTables, TheManualNamesEveryArchitecture) {
    const std::string page = read_text_file(reference::source_folder() / "assets/manual/models.md");
    for (const Family* family : families())
        for (const std::string_view name : family->architectures)
            EXPECT_NE(page.find(fmt::format("`{}`", name)), std::string::npos) << name;
    const std::size_t begin = page.find("| architectures | `llama`");
    ASSERT_NE(begin, std::string::npos);
    const std::string row = page.substr(begin, page.find('\n', begin) - begin);
    for (const std::string_view name : gguf_architectures())
        EXPECT_NE(row.find(fmt::format("`{}`", name)), std::string::npos) << name;
}

}  // namespace
}  // namespace keyhole::test_families
