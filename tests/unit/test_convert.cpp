#include "engine/model/convert.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace reference::test_convert {
namespace {

namespace fs = std::filesystem;
using keyhole::KvSharing;
using Kind = KvSharing::Kind;

class Convert : public ::testing::Test {
  protected:
    ~Convert() override {
        std::error_code ignored;
        fs::remove_all(out_, ignored);
    }
    static nlohmann::json config_of(const fs::path& folder) {
        return nlohmann::json::parse(keyhole::read_text_file(folder / "config.json"));
    }
    fs::path out_ = fs::temp_directory_path() / ("keyhole-convert-" + std::to_string(getpid()));
};

TEST_F(Convert, TheFolderIsTheLane) {
    for (const StoredAs stored : {StoredAs::f32, StoredAs::bf16}) {
        TinyShape shape;
        shape.n_layers = 4;
        shape.n_kv_heads = 4;
        shape.dtype = stored;
        shape.tied = stored == StoredAs::bf16;
        const TinyModel tiny(shape);
        const auto base = keyhole::load_model(tiny.folder());
        const std::vector<int> tokens = random_tokens(26, 3);
        const std::span<const int> all(tokens);
        struct Case {
            const char* spec;
            KvSharing sharing;
        };
        for (const Case& c : {Case{"h2o:budget=6,kv=gqa:2", {Kind::gqa, 0, 2}},
                              Case{"h2o:budget=6,kv=mqa,compensate=on", {Kind::mqa, 0, 0, {}, true}},
                              Case{"h2o:budget=6,kv=(mlkv:m=2,g=1)", {Kind::mlkv, 2, 1}},
                              Case{"h2o:budget=6,kv=(mlkv:m=1,g=2),merge=released",
                                   {Kind::mlkv, 1, 2, keyhole::KvMerge::released}}}) {
            fs::remove_all(out_);
            std::vector<double> written;
            const keyhole::Converted report = keyhole::convert_model(
                tiny.folder(), c.sharing, out_, [&](double share) { written.push_back(share); });
            EXPECT_TRUE(std::is_sorted(written.begin(), written.end()));
            EXPECT_GT(written.front(), 0);
            EXPECT_LT(written.front(), 0.5);
            EXPECT_EQ(written.back(), 1);
            const auto loaded = keyhole::load_model(out_);
            EXPECT_EQ(keyhole::kv_name(loaded->config()), report.kv);
            EXPECT_EQ(loaded->n_parameters(), report.n_parameters);
            EXPECT_TRUE(loaded->config().merged);
            const std::vector<std::string> live = {c.spec}, plain = {"h2o:budget=6"};
            const LaneRows a = run_engine(base, live, all.first(18), all.subspan(18)),
                           b = run_engine(loaded, plain, all.first(18), all.subspan(18));
            for (std::size_t row = 0; row < a[0].size(); ++row)
                EXPECT_EQ(difference(a[0][row], b[0][row]), "") << c.spec << ", row " << row;
        }
    }
}

/// Returns whether each KV head of `split` has the rows of the one that it is a copy of, to the bit.
bool are_copies(const keyhole::Weight& split, const keyhole::Weight& base, int n_copies, int head_dim) {
    const std::size_t head_bytes = keyhole::stored_bytes(base.dtype, head_dim * base.cols);
    if (split.dtype != base.dtype || split.rows != n_copies * base.rows || split.cols != base.cols)
        return false;
    for (std::int64_t head = 0; head < split.rows / head_dim; ++head)
        if (std::memcmp(
                static_cast<const std::byte*>(split.data) + keyhole::to_index(head) * head_bytes,
                static_cast<const std::byte*>(base.data) + keyhole::to_index(head / n_copies) * head_bytes,
                head_bytes) != 0)
            return false;
    return true;
}

// KV heads that are split into copies are no damage: the folder has the original's numbers to the bit. With
// AVX2 oneDNN adds in an order that depends on the number of rows, so that prompts differ by roundings.
TEST_F(Convert, ASplitModelHasTheLogitsOfTheOriginal) {
    const fs::path families = source_folder() / "tests/fixtures/families";
    const std::vector<int> tokens = {3, 17, 9, 9, 30, 12, 1, 25, 8, 14, 2, 33, 21, 5};
    const std::span<const int> all(tokens);
    for (const char* name : {"llama_biases", "qwen3", "gemma3", "gpt_oss", "mixtral", "exaone4"}) {
        SCOPED_TRACE(name);
        const auto base = keyhole::load_model(families / name);
        ASSERT_LT(base->config().n_kv_heads, base->config().n_heads);
        fs::remove_all(out_);
        const keyhole::Converted report = keyhole::convert_model(families / name, {Kind::mha}, out_);
        EXPECT_EQ(report.kv, "mha");
        const auto split = keyhole::load_model(out_);
        EXPECT_EQ(split->config().n_kv_heads, base->config().n_heads);
        EXPECT_FALSE(split->config().merged);
        EXPECT_EQ(config_of(out_)["num_key_value_heads"], base->config().n_heads);
        EXPECT_GT(split->n_parameters(), base->n_parameters());
        const int n_copies = base->config().n_heads / base->config().n_kv_heads;
        for (std::size_t l = 0; l < base->weights().layers.size(); ++l)
            for (const auto weight : {&keyhole::LayerWeights::k, &keyhole::LayerWeights::v})
                EXPECT_TRUE(are_copies(split->weights().layers[l].*weight, base->weights().layers[l].*weight,
                                       n_copies, base->config().head_dim))
                    << "layer " << l;
        const std::vector<std::string> full = {"full"};
        const LaneRows a = run_engine(base, full, all.first(6), all.subspan(6)),
                       b = run_engine(split, full, all.first(6), all.subspan(6));
        ASSERT_EQ(a[0].size(), b[0].size());
        for (std::size_t row = 0; row < a[0].size(); ++row) {
            const std::vector<float>&original = a[0][row].next_logits, &copied = b[0][row].next_logits;
            ASSERT_EQ(original.size(), copied.size());
            for (std::size_t i = 0; i < original.size(); ++i)
                ASSERT_NEAR(original[i], copied[i], 2e-4) << row << ", token " << i;
        }
    }
}

TEST_F(Convert, ConfigsAreThoseThatTransformersReads) {
    TinyShape shape;
    shape.n_layers = 4;
    shape.n_kv_heads = 4;
    const TinyModel tiny(shape);
    keyhole::convert_model(tiny.folder(), {Kind::gqa, 0, 2}, out_);
    nlohmann::json config = config_of(out_);
    EXPECT_EQ(config["architectures"], nlohmann::json({"LlamaForCausalLM"}));
    EXPECT_EQ(config["num_key_value_heads"], 2);
    EXPECT_EQ(config["keyhole_merged"], true);
    EXPECT_EQ(config["rope_theta"], 10000.0);
    EXPECT_FALSE(config.contains("auto_map"));
    EXPECT_TRUE(fs::exists(out_ / "tokenizer.json"));
    EXPECT_FALSE(fs::exists(out_ / "modeling_llama_mlkv.py"));

    fs::remove_all(out_);
    keyhole::Converted report = keyhole::convert_model(tiny.folder(), {Kind::mlkv, 2, 1}, out_);
    config = config_of(out_);
    EXPECT_EQ(config["architectures"], nlohmann::json({"LlamaMlkvForCausalLM"}));
    EXPECT_EQ(config["model_type"], "llama_mlkv");
    EXPECT_EQ(config["num_key_value_layers"], 2);
    EXPECT_EQ(config["auto_map"]["AutoModelForCausalLM"], "modeling_llama_mlkv.LlamaMlkvForCausalLM");
    EXPECT_TRUE(fs::exists(out_ / "modeling_llama_mlkv.py"));
    EXPECT_NE(report.transformers, "");

    // Keys borrowed before rotation: transformers' config has no field for this.
    fs::remove_all(out_);
    report = keyhole::convert_model(tiny.folder(), {Kind::mlkv, 2, 1, keyhole::KvMerge::released}, out_);
    EXPECT_EQ(report.transformers, "");
    EXPECT_EQ(config_of(out_)["keyhole_borrows_unrotated"], true);
    EXPECT_FALSE(fs::exists(out_ / "modeling_llama_mlkv.py"));
}

TEST_F(Convert, WhatWouldBeWrittenOverOrCannotBeIsRefused) {
    const TinyModel tiny(TinyShape{});
    fs::create_directories(out_);
    std::ofstream(out_ / "mine.txt") << "mine";
    EXPECT_THROW(keyhole::convert_model(tiny.folder(), {Kind::mqa}, out_), keyhole::Error);
    EXPECT_FALSE(fs::exists(out_ / "config.json"));
    fs::remove_all(out_);
    EXPECT_THROW(keyhole::convert_model(tiny.folder(), {Kind::gqa, 0, 3}, out_), keyhole::Error);
    EXPECT_FALSE(fs::exists(out_));
}

}  // namespace
}  // namespace reference::test_convert
