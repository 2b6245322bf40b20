// Every family of checkpoints as `transformers` saves them, against its logits and attention; older forms of
// their files; and models that are refused by name.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/model.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/transformers_run.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <functional>

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

TEST_P(Families, PromptsEqualTransformers) {
    reference::compare_with_transformers(kFamilies / GetParam(), 0);
    if (!only_whole_prompts(GetParam())) reference::compare_with_transformers(kFamilies / GetParam(), 14);
}

TEST_P(Families, StepsEqualTransformers) {
    if (only_whole_prompts(GetParam())) GTEST_SKIP() << "MLKV's released steps are no rows of its prompts";
    reference::compare_with_transformers(kFamilies / GetParam(), 1);
}

INSTANTIATE_TEST_SUITE_P(All, Families, ::testing::ValuesIn(fixtures()),
                         [](const ::testing::TestParamInfo<std::string>& test) { return test.param; });

TEST(FamilyFixtures, AreThere) {
    EXPECT_GE(fixtures().size(), 22u);
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
        {"opt", "/activation_function", "gelu"},
        {"opt", "/enable_bias", false},
        {"opt", "/do_layer_norm_before", false},
        {"opt_350m", "/activation_function", "gelu"},
    };
    for (const Constant& constant : constants) {
        const ChangedFolder folder(
            constant.fixture, [&](Json& json) { json[Json::json_pointer(constant.at)] = constant.value; });
        EXPECT_GT(reference::error_to_transformers(folder.path(), 20).share, 5.0)
            << constant.fixture << " " << constant.at << " " << constant.value;
    }
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
    for (const char* name : {"gptj", "opt", "mistral", "qwen3"})
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
    for (const char* type : {"dynamic", "longrope"})
        refuses("llama_yarn", {type, "linear, llama3 and yarn"},
                [type](Json& json) { json["rope_parameters"]["rope_type"] = type; });
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

TEST(FamilyConfigs, WhatContradictsItselfIsRefused) {
    constexpr ErrorCode kBad = ErrorCode::bad_file;
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

}  // namespace
}  // namespace keyhole::test_families
