// NaN and infinity in weights: detected, named, reported as a warning; and models in forms that Keyhole
// cannot read.
#include "engine/model/weight_check.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/model/model.h"
#include "engine/model/other_formats.h"
#include "tests/reference/source_folder.h"

#include "tests/reference/temp_folder.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>

namespace keyhole::test_weight_check {
namespace {

namespace fs = std::filesystem;

const fs::path kFixtures = reference::source_folder() / "tests/fixtures";

std::optional<NonFinite> look(DType dtype, const auto& values, bool all = true) {
    return find_non_finite(dtype, values.data(), values.size(), all);
}

TEST(WeightCheck, CountsInEveryType) {
    const float inf = std::numeric_limits<float>::infinity(), nan = std::nanf("");
    std::vector<float> wide(10'000, 1.5f);
    wide[0] = std::numeric_limits<float>::max();
    wide[1] = std::numeric_limits<float>::denorm_min();
    EXPECT_FALSE(look(DType::f32, wide));
    wide[4095] = -inf;
    EXPECT_EQ(look(DType::f32, wide)->n, 1u);
    EXPECT_FALSE(look(DType::f32, wide)->has_nan);
    wide[9999] = -nan;
    EXPECT_EQ(look(DType::f32, wide)->n, 2u);
    EXPECT_EQ(look(DType::f32, wide)->n_looked, 10'000u);
    EXPECT_TRUE(look(DType::f32, wide)->has_nan);

    std::vector<std::uint16_t> half(100, 0x7bff);  // the largest half value
    EXPECT_FALSE(look(DType::f16, half));
    half[99] = 0xfc00;
    EXPECT_EQ(look(DType::f16, half)->n, 1u);
    EXPECT_FALSE(look(DType::f16, half)->has_nan);
    EXPECT_FALSE(look(DType::bf16, half));  // a normal number in this type
    half[98] = 0x7f81;
    EXPECT_EQ(look(DType::bf16, half)->n, 1u);
    EXPECT_TRUE(look(DType::bf16, half)->has_nan);
    EXPECT_FALSE(look(DType::f32, std::vector<float>()));
}

TEST(WeightCheck, SamplesReachBothEndsAndSay) {
    const std::size_t n = 1'000'000;
    for (const std::size_t at : {std::size_t{0}, n - 1}) {
        std::vector<float> values(n, 0.0f);
        values[at] = std::nanf("");
        const auto found = look(DType::f32, values, false);
        ASSERT_TRUE(found) << at;
        EXPECT_EQ(found->n_looked, 8u * 8192);
    }
    EXPECT_FALSE(look(DType::f32, std::vector<float>(n, 0.0f), false));
}

TEST(WeightCheck, LoadingWarnsAndNamesTheTensor) {
    const reference::TempFolder folder("weights");
    fs::copy(kFixtures / "llama_mha", folder.path(),
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    EXPECT_TRUE(load_model(folder.path())->warnings().empty());
    const fs::path file = folder.path() / "model.safetensors";
    std::string bytes = read_text_file(file);
    std::size_t header = 0;
    std::memcpy(&header, bytes.data(), 8);
    const auto json = nlohmann::json::parse(bytes.substr(8, header));
    const auto put = [&](const char* name, std::uint16_t bits) {
        const auto at = json.at(name).at("data_offsets").at(0).get<std::size_t>();
        std::memcpy(bytes.data() + 8 + header + at + 6, &bits, 2);
    };
    put("model.layers.1.self_attn.v_proj.weight", 0x7fc0);
    put("model.embed_tokens.weight", 0xff80);
    write_text_file(file, bytes);
    const auto warnings = load_model(folder.path())->warnings();
    ASSERT_EQ(warnings.size(), 2u);
    EXPECT_EQ(warnings[0], "tensor model.embed_tokens.weight holds infinity in 1 of 10240 weights");
    EXPECT_EQ(warnings[1], "tensor model.layers.1.self_attn.v_proj.weight holds NaN in 1 of 1536 weights");
    for (const char* name :
         {"model.layers.0.self_attn.q_proj.weight", "model.layers.0.self_attn.k_proj.weight",
          "model.layers.0.self_attn.v_proj.weight", "model.norm.weight"})
        put(name, 0x7fc0);
    write_text_file(file, bytes);
    const auto many = load_model(folder.path())->warnings();
    ASSERT_EQ(many.size(), 5u);
    EXPECT_EQ(many[4], "2 more tensors hold NaN or infinity");
}

std::string refusal(const fs::path& path) {
    try {
        load_model(path);
    } catch (const Error& error) {
        const std::string message = error.what();
        EXPECT_EQ(error.code(), ErrorCode::bad_file);
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
        return message;
    }
    return "accepted";
}

void expect_says(const std::string& message, std::initializer_list<std::string> parts) {
    for (const std::string& part : parts)
        EXPECT_NE(message.find(part), std::string::npos) << message << "\n" << part;
}

TEST(OtherFormats, AreNamedWithWhatConvertsThem) {
    const reference::TempFolder folder("weights");
    const auto alone = [&](const char* name) {
        write_text_file(folder.path() / name, "x");
        const std::string of_file = refusal(folder.path() / name), of_folder = refusal(folder.path());
        expect_says(of_file, {"it is not a folder", name});
        expect_says(of_folder, {"it has no config.json", name});
        fs::remove(folder.path() / name);
        EXPECT_EQ(of_file.substr(of_file.find("; ")), of_folder.substr(of_folder.find("; ")));
        return of_folder;
    };
    expect_says(alone("pytorch_model.bin"), {"PyTorch", "save_pretrained"});
    expect_says(alone("pytorch_model-00001-of-00002.bin"), {"PyTorch", "save_pretrained"});
    expect_says(alone("model.pt"), {"PyTorch"});
    expect_says(alone("consolidated.00.pth"), {"LLaMA's original form", "convert_llama_weights_to_hf"});
    expect_says(alone("tf_model.h5"), {"TensorFlow", "from_tf=True"});
    expect_says(alone("flax_model.msgpack"), {"Flax", "from_flax=True"});
    expect_says(alone("model.onnx"), {"ONNX"});

    write_text_file(folder.path() / "model.safetensors", "x");
    expect_says(refusal(folder.path() / "model.safetensors"), {"name the folder"});
    expect_says(refusal(folder.path()), {"no config.json; name a complete Hugging Face model folder"});
    // A folder that lacks only its weights.
    fs::copy(kFixtures / "llama_mha", folder.path(),
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    fs::remove(folder.path() / "model.safetensors");
    write_text_file(folder.path() / "training_args.bin", "x");
    expect_says(refusal(folder.path()),
                {"neither model.safetensors nor", "name a Hugging Face model folder"});
    // GGUF files are read, but not as part of a folder.
    write_text_file(folder.path() / "weights.gguf", "x");
    expect_says(refusal(folder.path()), {"neither model.safetensors nor", "weights.gguf is a GGUF file",
                                         "name the file, not its folder"});
    expect_says(refusal(folder.path() / "weights.gguf"), {"weights.gguf", "too few for a GGUF file"});
}

TEST(OtherFormats, GitLfsPointersAreNamed) {
    const std::string pointer =
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + std::string(64, '0') + "\nsize 12345\n";
    for (const char* name : {"model.safetensors", "config.json", "tokenizer.json"}) {
        const reference::TempFolder folder("weights");
        fs::copy(kFixtures / "llama_mha", folder.path(),
                 fs::copy_options::overwrite_existing | fs::copy_options::recursive);
        write_text_file(folder.path() / name, pointer);
        expect_says(refusal(folder.path()), {name, "Git LFS pointer", "git lfs pull"});
    }
    const reference::TempFolder folder("weights");
    write_text_file(folder.path() / "model.gguf", pointer);
    expect_says(refusal(folder.path() / "model.gguf"), {"model.gguf", "Git LFS pointer"});
    write_text_file(folder.path() / "text.txt", "version https://git-lfs.github.com/spec/v1 is a line");
    EXPECT_NO_THROW(read_text_file(folder.path() / "text.txt"));
}

TEST(OtherFormats, AdaptersAreNamedWithTheirBase) {
    const reference::TempFolder folder("weights");
    const auto said = [&] {
        try {
            load_model(folder.path());
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    write_text_file(folder.path() / "adapter_model.safetensors", "x");
    write_text_file(folder.path() / "adapter_config.json", R"({"base_model_name_or_path": "org/base-1b"})");
    expect_says(said(), {"adapter", "org/base-1b", "merge_and_unload"});
    write_text_file(folder.path() / "adapter_config.json", "[");
    expect_says(said(), {"adapter", "its base model"});
    // A merged model may lie beside its adapter.
    fs::copy(kFixtures / "llama_mha", folder.path(),
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    EXPECT_EQ(said(), "accepted");
}

TEST(OtherFormats, ConfigOfAnotherFamilyShowsATensorThatIsThere) {
    const reference::TempFolder folder("weights");
    fs::copy(kFixtures / "llama_mha", folder.path(),
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    std::string bytes = read_text_file(folder.path() / "model.safetensors");
    for (std::size_t at = 0; (at = bytes.find("\"model.", at)) != std::string::npos; ++at)
        bytes.replace(at, 7, "\"other.");
    write_text_file(folder.path() / "model.safetensors", bytes);
    expect_says(refusal(folder.path()),
                {"model.embed_tokens.weight", "the first is other.embed_tokens.weight",
                 "do not belong to its config.json"});
}

TEST(OtherFormats, RowsThatRoundTheEmbeddingUpAreNoFault) {
    const reference::TempFolder folder("weights");
    fs::copy(kFixtures / "llama_mha", folder.path(),
             fs::copy_options::overwrite_existing | fs::copy_options::recursive);
    auto json = nlohmann::json::parse(read_text_file(folder.path() / "tokenizer.json"));
    json["model"]["vocab"].erase(std::prev(json["model"]["vocab"].end()));
    json["model"]["merges"] = nlohmann::json::array();
    write_text_file(folder.path() / "tokenizer.json", json.dump());
    EXPECT_TRUE(load_model(folder.path())->warnings().empty());
}

}  // namespace
}  // namespace keyhole::test_weight_check
