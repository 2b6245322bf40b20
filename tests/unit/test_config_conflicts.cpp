// Configurations in which two keys, or two files, state one fact: which of them counts, by transformers.
// The wanted values are printed by transformers itself (tests/fixtures/make_config_conflicts.py).
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/model/families/family.h"
#include "engine/model/tokenizer.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>

namespace keyhole::test_config_conflicts {
namespace {

using Json = nlohmann::ordered_json;  // ids depend on the order of keys

const Json& matrix() {
    static const Json json = [] {
        std::ifstream file(reference::source_folder() / "tests/fixtures/config_conflicts.json");
        return Json::parse(file);
    }();
    return json;
}

ModelConfig read(const ConfigFile& file) {
    return family_of(file).read_config(file);
}

/// Returns the configuration with the rotary parameters that transformers ended with, and no others.
Json with_one_place(Json config, const Json& want) {
    for (const char* key :
         {"rope_theta", "rope_scaling", "rotary_emb_base", "rotary_pct", "original_max_position_embeddings"})
        config.erase(key);
    config["rope_parameters"] = want["rope_parameters"];
    return config;
}

TEST(ConfigConflicts, TheKeyThatCountsIsThatOfTransformers) {
    ASSERT_GT(matrix()["configs"].size(), 300u);
    std::set<double> thetas;
    for (const Json& c : matrix()["configs"]) {
        SCOPED_TRACE(c["name"].get<std::string>() + " " + c["config"].dump());
        const Json& want = c["want"];
        const ModelConfig config = read(ConfigFile("config.json", c["config"].dump()));
        EXPECT_EQ(config.n_kv_heads, want["n_kv_heads"]);
        EXPECT_EQ(config.head_dim, want["head_dim"]);
        EXPECT_EQ(config.bos, want["bos"].is_null() ? Json(-1) : want["bos"]);
        EXPECT_EQ(Json(config.eos), want["eos"]);
        EXPECT_EQ(config.tied, want["tied"]);
        std::vector<int> window = config.window;
        window.resize(to_index(config.n_layers), 0);
        EXPECT_EQ(Json(window), want["windows"]);
        const double theta = want["rope_parameters"]["rope_theta"];
        thetas.insert(theta);
        EXPECT_FLOAT_EQ(config.rope_theta, static_cast<float>(theta));
        // What the parameters mean is tested elsewhere, where each stands alone.
        const ConfigFile alone("config.json", with_one_place(c["config"], want).dump());
        EXPECT_EQ(config.rotary.inverse_frequency, read(alone).rotary.inverse_frequency);
        EXPECT_EQ(config.rotary.magnitude, read(alone).rotary.magnitude);
        EXPECT_EQ(config.rotary.dims, read(alone).rotary.dims);
    }
    EXPECT_GE(thetas.size(), 6u);
}

// A base that the file states and that does not count is named, and nothing is said where all agree.
TEST(ConfigConflicts, WhatDoesNotCountIsNamed) {
    for (const Json& c : matrix()["configs"]) {
        const Json& config = c["config"];
        SCOPED_TRACE(c["name"].get<std::string>() + " " + config.dump());
        const ConfigFile file("config.json", config.dump());
        read(file);
        const std::string lines = Json(file.warnings()).dump();
        std::vector<Json> objects;
        bool loses = false;
        for (const char* key : {"rope_scaling", "rope_parameters"})
            if (config.contains(key) && config[key].is_object() && !config[key].empty())
                objects.push_back(config[key]);
        std::vector<Json> bases;
        for (const Json& object : objects)
            if (object.contains("rope_theta")) bases.push_back(object["rope_theta"]);
        if (config.contains("rope_theta")) bases.push_back(config["rope_theta"]);
        for (const Json& base : bases) loses |= base != c["want"]["rope_parameters"]["rope_theta"];
        EXPECT_TRUE(!loses || lines.find("rope_theta") != std::string::npos) << lines;
        const bool two_objects = objects.size() == 2 && objects[0] != objects[1];
        EXPECT_EQ(lines.find("rope_scaling and rope_parameters") != std::string::npos, two_objects) << lines;
        const bool two_types =
            !objects.empty() && objects[0].contains("type") && objects[0].contains("rope_type");
        const bool plain = !loses && !two_objects && !two_types && config["model_type"] != "gpt_neox" &&
                           !config.contains("layer_types") &&
                           !config.contains("original_max_position_embeddings");
        EXPECT_TRUE(!plain || file.warnings().empty()) << lines;
    }
}

TEST(ConfigConflicts, WhatIsNotSupportedIsRefusedByName) {
    Json base = matrix()["configs"][0]["config"];
    const auto refusal = [&](const Json& change) -> std::string {
        Json config = base;
        config.update(change);
        try {
            read(ConfigFile("config.json", config.dump()));
        } catch (const std::exception& error) {
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal({{"is_causal", true}}), "");
    EXPECT_NE(refusal({{"is_causal", false}}).find("is_causal"), std::string::npos);
    EXPECT_NE(refusal({{"text_config", {{"hidden_size", 8}}}}).find("text_config"), std::string::npos);
    EXPECT_NE(refusal({{"rope_parameters", {{"full_attention", {{"rope_type", "default"}}}}}})
                  .find("by type of layer"),
              std::string::npos);
    EXPECT_NE(refusal({{"rope_scaling", {{"rope_type", "ntk"}, {"factor", 2.0}}}}).find("ntk"),
              std::string::npos);
}

TEST(ConfigConflicts, TokensOfAllFilesAreJoined) {
    ASSERT_GE(matrix()["tokenizers"].size(), 20u);
    for (const Json& c : matrix()["tokenizers"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const reference::TempFolder folder("tokens");
        Json tokenizer = matrix()["letters"];
        tokenizer["added_tokens"] = c["added_tokens"];
        write_text_file(folder.path() / "tokenizer.json", tokenizer.dump());
        if (!c["config"].is_null())
            write_text_file(folder.path() / "tokenizer_config.json", c["config"].dump());
        for (const auto& [name, content] : c["files"].items())
            write_text_file(folder.path() / name, content.dump());
        const Tokenizer read = Tokenizer::from_folder(folder.path());
        const Json& want = c["want"];
        for (std::size_t i = 0; i < want["ids"].size(); ++i)
            EXPECT_EQ(Json(read.encode(matrix()["texts"][i].get<std::string>())), want["ids"][i])
                << matrix()["texts"][i];
        Json special = Json::array(), named = Json::object();
        for (int id = 0; id < read.n_vocab(); ++id)
            if (read.is_special(id)) special.push_back(id);
        EXPECT_EQ(special, want["special"]);
        for (const auto& [name, content] : read.named_tokens()) named[name] = content;
        EXPECT_EQ(named, want["named"]);
    }
}

TEST(ConfigConflicts, FilesThatDisagreeAboutTokensAreNamed) {
    const std::set<std::string> disagree = {
        "decoder with a gap",           "decoder names a letter",
        "another id in tokenizer.json", "one id twice",
        "a letter in tokenizer.json",   "map and config",
        "added_tokens.json with a gap", "added_tokens.json on a taken id"};
    for (const Json& c : matrix()["tokenizers"]) {
        SCOPED_TRACE(c["name"].get<std::string>());
        const reference::TempFolder folder("tokens");
        Json tokenizer = matrix()["letters"];
        tokenizer["added_tokens"] = c["added_tokens"];
        write_text_file(folder.path() / "tokenizer.json", tokenizer.dump());
        if (!c["config"].is_null())
            write_text_file(folder.path() / "tokenizer_config.json", c["config"].dump());
        for (const auto& [name, content] : c["files"].items())
            write_text_file(folder.path() / name, content.dump());
        EXPECT_EQ(!Tokenizer::from_folder(folder.path()).warnings().empty(), disagree.count(c["name"]) != 0);
    }
}

}  // namespace
}  // namespace keyhole::test_config_conflicts
