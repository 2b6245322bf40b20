// Loading. Checkpoints of the official packages are compared with transformers' own logits and attention, a
// real checkpoint too where KEYHOLE_REAL_MODEL names one. Faulty folders are refused.
#include "engine/base/index.h"
#include "engine/model/model.h"

#include "engine/base/error.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/transformers_run.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <span>

namespace keyhole::test_model {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const fs::path kFixtures = reference::source_folder() / "tests/fixtures";

/// A copy of a fixture for the tests to break; removed with the object.
class ModelFolder {
  public:
    explicit ModelFolder(const std::string& fixture)
        : path_(fs::temp_directory_path() / ("keyhole-model-" + std::to_string(getpid()))) {
        fs::remove_all(path_);
        fs::copy(kFixtures / fixture, path_);
    }
    ~ModelFolder() { fs::remove_all(path_); }
    ModelFolder(const ModelFolder&) = delete;
    ModelFolder& operator=(const ModelFolder&) = delete;

    const fs::path& path() const { return path_; }
    void change_json(const char* file, const std::function<void(Json&)>& change) const {
        Json json = Json::parse(read_text_file(path_ / file));
        change(json);
        write_text_file(path_ / file, json.dump());
    }

  private:
    fs::path path_;
};

/// Returns the one line with which load_model refuses the folder.
std::string refusal(const fs::path& folder, ErrorCode code) {
    try {
        load_model(folder);
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), code) << message;
        EXPECT_NE(message.find(folder.string()), std::string::npos) << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        return message;
    }
    ADD_FAILURE() << "accepted";
    return {};
}

void expect_says(const std::string& message, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
}

std::string refusal_of_config(ErrorCode code, const std::function<void(Json&)>& change) {
    const ModelFolder folder("llama_mha");
    folder.change_json("config.json", change);
    const std::string message = refusal(folder.path(), code);
    expect_says(message, {"config.json"});
    return message;
}

void compare_with_transformers(const std::string& fixture, int n_prompt) {
    reference::compare_with_transformers(kFixtures / fixture, n_prompt);
}

TEST(Model, GroupedF16ShardsEqualTransformers) {
    compare_with_transformers("llama_gqa", 1);
    compare_with_transformers("llama_gqa", 23);
    compare_with_transformers("llama_gqa", 40);
}

TEST(Model, TiedBf16EqualsTransformers) {
    compare_with_transformers("llama_mha", 1);
    compare_with_transformers("llama_mha", 39);
}

TEST(Model, ConfigIsRead) {
    const auto gqa = load_model(kFixtures / "llama_gqa");
    const ModelConfig& config = gqa->config();
    EXPECT_EQ(config.family, "llama");
    EXPECT_EQ(config.n_layers, 3);
    EXPECT_EQ(config.n_heads, 6);
    EXPECT_EQ(config.n_kv_heads, 2);
    EXPECT_EQ(config.head_dim, 8);
    EXPECT_EQ(config.d_model, 48);
    EXPECT_EQ(config.d_ff, 80);
    EXPECT_EQ(config.n_vocab, 320);
    EXPECT_EQ(config.n_ctx, 256);
    EXPECT_FLOAT_EQ(config.norm_eps, 2e-4f);
    EXPECT_FLOAT_EQ(config.rope_theta, 5000.0f);
    EXPECT_FALSE(config.tied);
    EXPECT_EQ(config.bos, 0);
    EXPECT_EQ(config.eos, (std::vector<int>{0, 5}));
    EXPECT_EQ(gqa->weights().layers[1].q.dtype, DType::f16);
    EXPECT_EQ(gqa->weights().layers[1].attention_norm.dtype, DType::f32);
    EXPECT_EQ(gqa->layout().n_kv_heads(), 6);
    // By hand: embedding and output, three layers (q, o; k, v; three of the MLP; two norms), the last norm.
    EXPECT_EQ(gqa->n_parameters(),
              2 * 320 * 48 + 3 * (2 * 48 * 48 + 2 * 16 * 48 + 3 * 80 * 48 + 2 * 48) + 48);
    EXPECT_EQ(kv_bytes_per_token(config, KvType::f32), 2 * 3 * 2 * 8 * 4);

    const auto mha = load_model(kFixtures / "llama_mha");
    EXPECT_EQ(mha->config().head_dim, 12);  // not hidden_size / heads
    EXPECT_TRUE(mha->config().tied);
    EXPECT_EQ(mha->weights().output.data, mha->weights().embedding.data);
    EXPECT_EQ(mha->n_parameters(), 320 * 32 + 2 * (4 * 48 * 32 + 3 * 48 * 32 + 2 * 32) + 32);
}

TEST(Model, OldAndNewFormsOfTheConfigAreTheSame) {
    const ModelFolder folder("llama_gqa");
    folder.change_json("config.json", [](Json& json) {
        json.erase("rope_parameters");
        json.erase("architectures");
        json["rope_theta"] = 5000;
        json["rope_scaling"] = nullptr;
        json["eos_token_id"] = nullptr;
        json["bos_token_id"] = nullptr;
    });
    const ModelConfig config = load_model(folder.path())->config();
    EXPECT_FLOAT_EQ(config.rope_theta, 5000.0f);
    EXPECT_EQ(config.bos, -1);
    EXPECT_TRUE(config.eos.empty());
}

/// Renames a tensor in the header. Pads with spaces, so that the header keeps its length.
void rename_tensor(const fs::path& file, const std::string& from, const std::string& to) {
    std::string bytes = read_text_file(file);
    const std::size_t at = bytes.find('"' + from + '"');
    ASSERT_NE(at, std::string::npos);
    ASSERT_LE(to.size(), from.size());
    bytes.replace(at, from.size() + 2, '"' + to + '"' + std::string(from.size() - to.size(), ' '));
    write_text_file(file, bytes);
}

TEST(Model, TiedWeightsMayHaveTheNameOfEither) {
    const ModelFolder folder("llama_mha");
    rename_tensor(folder.path() / "model.safetensors", "model.embed_tokens.weight", "lm_head.weight");
    const auto model = load_model(folder.path()), original = load_model(kFixtures / "llama_mha");
    EXPECT_EQ(std::memcmp(model->weights().embedding.data, original->weights().embedding.data, 320 * 32 * 2),
              0);
    // The same file read as an untied model lacks its embedding.
    folder.change_json("config.json", [](Json& json) { json["tie_word_embeddings"] = false; });
    expect_says(refusal(folder.path(), ErrorCode::bad_file), {"model.embed_tokens.weight"});
}

TEST(Model, WeightsOffTheirAlignmentAreAligned) {
    const ModelFolder folder("llama_mha");
    const fs::path file = folder.path() / "model.safetensors";
    std::string bytes = read_text_file(file);
    bytes[0] = static_cast<char>(bytes[0] + 1);  // the header's length, below 255 in this fixture's low byte
    bytes.insert(
        8 + to_index(static_cast<unsigned char>(bytes[1]) << 8 | static_cast<unsigned char>(bytes[0])) - 1, 1,
        ' ');
    write_text_file(file, bytes);
    const auto model = load_model(folder.path()), original = load_model(kFixtures / "llama_mha");
    const Weight &q = model->weights().layers[1].q, &same = original->weights().layers[1].q;
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(q.data) % 2, 0u);
    EXPECT_EQ(std::memcmp(q.data, same.data, to_index(q.rows * q.cols) * 2), 0);
}

TEST(Model, HashNamesConfigAndWeights) {
    const std::string hash = load_model(kFixtures / "llama_mha")->hash();
    EXPECT_EQ(hash.size(), 16u);
    EXPECT_NE(hash, load_model(kFixtures / "llama_gqa")->hash());
    const ModelFolder folder("llama_mha");
    EXPECT_EQ(load_model(folder.path())->hash(), hash);
    const fs::path file = folder.path() / "model.safetensors";
    const std::string bytes = read_text_file(file);
    // Two flipped sign bits in different words must not cancel: a sign is the highest bit of its word.
    std::string flipped = bytes;
    for (const std::size_t at : {bytes.size() - 1, bytes.size() - 9})
        flipped[at] = static_cast<char>(flipped[at] ^ 0x80);
    write_text_file(file, flipped);
    EXPECT_NE(load_model(folder.path())->hash(), hash);
    write_text_file(file, bytes);
    EXPECT_EQ(load_model(folder.path())->hash(), hash);
    folder.change_json("config.json", [](Json& json) { json["rms_norm_eps"] = 2e-5; });
    EXPECT_NE(load_model(folder.path())->hash(), hash);
}

TEST(Model, RealCheckpoint) {
    const char* folder = std::getenv("KEYHOLE_REAL_MODEL");
    if (folder == nullptr) GTEST_SKIP() << "KEYHOLE_REAL_MODEL names no folder";
    const auto model = load_model(folder);
    EXPECT_GT(model->n_parameters(), 0);
    const std::string text =
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the park.";
    EXPECT_EQ(model->tokenizer().decode(model->tokenizer().encode(text)), text);
    if (model->config().n_vocab != 512 || model->config().n_layers != 5) return;
    // stories260K: the ids of this text, as given in its README.
    const std::vector<int> expected = {1,   403, 407, 261, 378, 432, 383, 286, 261, 376, 298,
                                       315, 421, 395, 317, 426, 338, 401, 396, 267, 337, 410,
                                       408, 419, 292, 411, 322, 265, 282, 295, 433, 426};
    EXPECT_EQ(model->tokenizer().encode(text), expected);
}

TEST(Model, MissingPartsAreNamed) {
    using enum ErrorCode;
    expect_says(refusal("/nowhere/model", bad_file), {"/nowhere/model"});
    expect_says(refusal(kFixtures / "types.safetensors", bad_file), {"not a folder"});
    for (const char* file : {"config.json", "tokenizer.json"}) {
        const ModelFolder folder("llama_mha");
        fs::remove(folder.path() / file);
        expect_says(refusal(folder.path(), bad_file), {file});
        write_text_file(folder.path() / file, "{ garbage");
        expect_says(refusal(folder.path(), bad_file), {file, "JSON"});
    }
    const ModelFolder folder("llama_mha");
    fs::remove(folder.path() / "model.safetensors");
    expect_says(refusal(folder.path(), bad_file), {"model.safetensors", "model.safetensors.index.json"});
    write_text_file(folder.path() / "pytorch_model.bin", "x");
    expect_says(refusal(folder.path(), bad_file), {"pytorch_model.bin", "convert"});
}

TEST(Model, ShardsThatAreMissingOrElsewhereAreNamed) {
    using enum ErrorCode;
    {
        const ModelFolder folder("llama_gqa");
        fs::remove(folder.path() / "model-00002-of-00002.safetensors");
        expect_says(refusal(folder.path(), bad_file), {"model-00002-of-00002.safetensors"});
    }
    const char* index = "model.safetensors.index.json";
    for (const char* file : {"../model.safetensors", "/etc/passwd", "", ".."}) {
        const ModelFolder folder("llama_gqa");
        folder.change_json(index, [&](Json& json) { json["weight_map"]["lm_head.weight"] = file; });
        expect_says(refusal(folder.path(), bad_file), {"lm_head.weight", index});
    }
    const ModelFolder folder("llama_gqa");
    write_text_file(folder.path() / index, "{}");
    expect_says(refusal(folder.path(), bad_file), {"weight_map"});
}

TEST(Model, TensorsThatAreMissingOrOfAnotherShapeAreNamed) {
    using enum ErrorCode;
    expect_says(refusal_of_config(bad_file, [](Json& json) { json["num_hidden_layers"] = 3; }),
                {"model.layers.2.input_layernorm.weight"});
    expect_says(refusal_of_config(bad_file, [](Json& json) { json["intermediate_size"] = 50; }),
                {"mlp.gate_proj.weight", "[48, 32]", "[50, 32]"});
    expect_says(refusal_of_config(bad_file, [](Json& json) { json["num_key_value_heads"] = 2; }),
                {"k_proj.weight", "[48, 32]", "[24, 32]"});
    expect_says(refusal_of_config(bad_file, [](Json& json) { json["vocab_size"] = 100; }),
                {"model.embed_tokens.weight", "[320, 32]", "[100, 32]"});
    expect_says(refusal_of_config(bad_file, [](Json& json) { json["tie_word_embeddings"] = false; }),
                {"lm_head.weight", "set tie_word_embeddings to true"});
}

TEST(Model, WeightsOfAnotherTypeAreRefused) {
    const ModelFolder folder("llama_mha");
    std::string bytes = read_text_file(folder.path() / "model.safetensors");
    for (std::size_t at = 0; (at = bytes.find("\"BF16\"", at)) != std::string::npos; ++at)
        bytes.replace(at, 6, "\"I16\" ");
    write_text_file(folder.path() / "model.safetensors", bytes);
    expect_says(refusal(folder.path(), ErrorCode::unsupported), {"I16", "BF16"});
}

TEST(Model, ATokenizerOfAnotherModelIsRefused) {
    const ModelFolder folder("llama_mha");
    fs::copy_file(kFixtures / "tokenizers/byte_level.json", folder.path() / "tokenizer.json",
                  fs::copy_options::overwrite_existing);
    expect_says(refusal(folder.path(), ErrorCode::bad_file),
                {"tokenizer.json", "320", "do not belong together"});
}

TEST(Model, ConfigsThatMakeNoSenseAreRefused) {
    using enum ErrorCode;
    const auto refuses = [](const char* key, const Json& value) {
        expect_says(refusal_of_config(bad_file, [&](Json& json) { json[key] = value; }), {key});
    };
    for (const char* key :
         {"hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size"}) {
        for (const Json& value :
             {Json(nullptr), Json(0), Json(-3), Json("many"), Json(2.5), Json(1e30), Json::array()}) {
            refuses(key, value);
        }
    }
    refuses("head_dim", 7);
    refuses("num_attention_heads", 5);
    refuses("rms_norm_eps", -1);
    refuses("rope_theta", "x");
    refuses("tie_word_embeddings", "yes");
    refuses("eos_token_id", Json::array({"x"}));
    refuses("eos_token_id", -2);
}

/// Returns all warnings of a folder's model, one a line.
std::string warnings_of(const fs::path& folder) {
    std::string lines;
    const auto model = load_model(folder);
    for (const std::string& line : model->warnings()) {
        EXPECT_EQ(line.find('\n'), std::string::npos);
        lines += line + "\n";
    }
    return lines;
}

TEST(Model, IdsBeyondTheVocabularyOpenWithAWarning) {
    const ModelFolder folder("llama_mha");
    EXPECT_EQ(warnings_of(folder.path()), "");
    folder.change_json("config.json", [](Json& json) {
        json["eos_token_id"] = {3, 320};
        json["bos_token_id"] = 4000;
    });
    expect_says(warnings_of(folder.path()), {"eos_token_id 320 is beyond", "bos_token_id 4000 is beyond"});
    const auto model = load_model(folder.path());
    EXPECT_EQ(model->config().eos, std::vector<int>{3});
    EXPECT_EQ(model->config().bos, -1);
}

// Only a text that uses the token is refused.
TEST(Model, ATokenBeyondTheVocabularyOpensWithAWarning) {
    const ModelFolder folder("llama_mha");
    folder.change_json("tokenizer.json", [](Json& json) {
        const int n = static_cast<int>(json["model"]["vocab"].size());
        for (int i = n; i < 330; ++i)
            json["added_tokens"].push_back(
                {{"content", "<" + std::to_string(i) + ">"}, {"id", 0}, {"special", true}});
    });
    const Tokenizer all = Tokenizer::from_folder(folder.path());
    const std::string last = all.token_bytes(319), beyond = all.token_bytes(320);
    EXPECT_EQ(beyond, "<320>");
    expect_says(warnings_of(folder.path()), {"cannot be read"});
    const auto model = load_model(folder.path());
    EXPECT_EQ(model->tokenizer().n_vocab(), 320);
    EXPECT_EQ(model->tokenizer().encode("a" + last + "b"), all.encode("a" + last + "b"));
    try {
        model->tokenizer().encode("a" + beyond + "b");
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        expect_says(error.what(), {beyond, "id 320", "319"});
    }
}

TEST(Model, EndTokensOfBothFilesCount) {
    const ModelFolder folder("llama_mha");
    folder.change_json("config.json", [](Json& json) { json["eos_token_id"] = 7; });
    const auto with = [&](const std::string& text) {
        write_text_file(folder.path() / "generation_config.json", text);
        return load_model(folder.path());
    };
    EXPECT_EQ(with(R"({"eos_token_id": [9, 7], "bos_token_id": 5})")->config().eos, (std::vector<int>{7, 9}));
    EXPECT_EQ(load_model(folder.path())->config().bos, 5);
    EXPECT_EQ(with(R"({"eos_token_id": 11})")->config().eos, (std::vector<int>{7, 11}));
    expect_says(warnings_of(folder.path()), {"id 7", "with 11"});
    EXPECT_EQ(with(R"({"eos_token_id": [7, 900]})")->config().eos, std::vector<int>{7});
    expect_says(warnings_of(folder.path()), {"900"});
    EXPECT_EQ(with("{}")->config().eos, std::vector<int>{7});
    EXPECT_EQ(warnings_of(folder.path()), "");
    EXPECT_EQ(with(R"({"eos_token_id": "x"})")->config().eos, std::vector<int>{7});
    expect_says(warnings_of(folder.path()), {"generation_config.json", "eos_token_id"});
    EXPECT_EQ(with("{ garbage")->config().eos, std::vector<int>{7});
    expect_says(warnings_of(folder.path()), {"generation_config.json"});
}

// A tensor counts where it lies: the index may name another shard, or none, or leave a whole shard out.
TEST(Model, AStaleIndexOpensWithAWarning) {
    const auto original = load_model(kFixtures / "llama_gqa");
    const auto opens = [&](const std::function<void(Json&)>& change) {
        const ModelFolder folder("llama_gqa");
        folder.change_json("model.safetensors.index.json", [&](Json& json) { change(json["weight_map"]); });
        expect_says(warnings_of(folder.path()), {"model.safetensors.index.json", "found in another file"});
        const auto model = load_model(folder.path());
        std::vector<std::byte> bytes, wanted;
        const auto collect = [](std::vector<std::byte>& to) {
            return [&to](const Weight& weight) {
                const auto* data = static_cast<const std::byte*>(weight.data);
                to.insert(to.end(), data, data + stored_bytes(weight));
            };
        };
        visit_weights(model->weights(), collect(bytes));
        visit_weights(original->weights(), collect(wanted));
        EXPECT_EQ(bytes, wanted);
    };
    const std::string one = "model-00001-of-00002.safetensors", two = "model-00002-of-00002.safetensors";
    opens([&](Json& map) {
        for (Json& file : map) file = file == one ? two : one;
    });
    opens([&](Json& map) { map.erase("lm_head.weight"); });
    opens([&](Json& map) {
        for (Json& file : map) file = one;
    });
}

TEST(Model, AnotherOutputThanTheEmbeddingIsUsedEvenIfTied) {
    const ModelFolder folder("llama_gqa");
    const auto untied = load_model(folder.path());
    ASSERT_NE(untied->weights().output.data, untied->weights().embedding.data);
    folder.change_json("config.json", [](Json& json) { json["tie_word_embeddings"] = true; });
    const auto model = load_model(folder.path());
    expect_says(warnings_of(folder.path()), {"tie_word_embeddings", "lm_head.weight"});
    EXPECT_FALSE(model->config().tied);
    const Weight &output = model->weights().output, &same = untied->weights().output;
    EXPECT_EQ(std::memcmp(output.data, same.data, to_index(stored_bytes(output))), 0);
}

TEST(Model, WhatIsNotSupportedIsRefusedByName) {
    const auto refuses = [](std::initializer_list<std::string> parts,
                            const std::function<void(Json&)>& change) {
        expect_says(refusal_of_config(ErrorCode::unsupported, change), parts);
    };
    refuses({"GemmaForCausalLM", "LlamaForCausalLM"},
            [](Json& json) { json["architectures"] = {"GemmaForCausalLM"}; });
    refuses({"mamba"}, [](Json& json) {
        json.erase("architectures");
        json["model_type"] = "mamba";
    });
    refuses({"architecture"}, [](Json& json) {
        json.erase("architectures");
        json.erase("model_type");
    });
    refuses({"rope_scaling", "ntk"}, [](Json& json) {
        json.erase("rope_parameters");
        json["rope_scaling"] = {{"type", "ntk"}, {"factor", 2}};
    });
    refuses({"rope_parameters", "proportional"},
            [](Json& json) { json["rope_parameters"]["rope_type"] = "proportional"; });
    refuses({"partial_rotary_factor"}, [](Json& json) { json["partial_rotary_factor"] = 0.5; });
    refuses({"hidden_act", "quick_gelu"}, [](Json& json) { json["hidden_act"] = "quick_gelu"; });
    refuses({"quantization_config"}, [](Json& json) { json["quantization_config"] = {{"bits", 4}}; });
}

}  // namespace
}  // namespace keyhole::test_model
