// Models in GGUF files: every architecture against what transformers computed for the same weights,
// tokenizers against the official packages, and files that are refused by name.
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/model/checkpoint.h"
#include "engine/model/convert.h"
#include "engine/model/described_model.h"
#include "engine/model/gguf_file.h"
#include "engine/model/kv_sharing.h"
#include "engine/model/model.h"
#include "engine/model/quantised_blocks.h"
#include "engine/policy/lane_spec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/reference/gguf_bytes.h"
#include "tests/reference/small_memory.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/transformers_run.h"

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <span>

namespace keyhole::test_gguf_model {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using reference::GgufBytes;

const fs::path kFixtures = reference::source_folder() / "tests/fixtures/gguf";
const fs::path kFamilies = reference::source_folder() / "tests/fixtures/families";

class GgufFamilies : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, GgufFamilies,
                         ::testing::Values("llama_3", "llama_yarn", "llama_linear", "mistral", "qwen2_full",
                                           "qwen3", "gpt2", "gpt_neox", "mpt", "gemma2", "gemma3", "phi3",
                                           "phi3_short", "phi4_mini", "smollm3", "olmo2", "olmo3", "granite",
                                           "mixtral", "olmoe", "qwen3_moe", "gpt_oss", "cohere", "cohere2",
                                           "stablelm", "stablelm_parallel", "glm", "glm4", "exaone",
                                           "exaone4", "exaone4_full", "phi2", "bloom", "falcon", "falcon_new",
                                           "falcon_one_norm"),
                         [](const auto& test) { return std::string(test.param); });

TEST_P(GgufFamilies, LogitsEqualTransformers) {
    const std::string name = GetParam();
    const fs::path file = kFixtures / (name + ".gguf");
    reference::compare_with_transformers(file, 0, kFamilies / name);
    // Where frequencies change with the text's length, steps differ from the prompt: Families.*
    if (!load_model(file)->config().rotary.changes_with_length())
        reference::compare_with_transformers(file, 1, kFamilies / name);
}

void expect_same_weight(const Weight& got, const Weight& expected, const std::string& what) {
    ASSERT_EQ(got.data == nullptr, expected.data == nullptr) << what;
    if (got.data == nullptr) return;
    ASSERT_EQ(got.rows, expected.rows) << what;
    ASSERT_EQ(got.cols, expected.cols) << what;
    const auto n = got.rows * got.cols;
    std::vector<float> a(to_index(n)), b(to_index(n));
    widen_stored(got.dtype, got.data, n, a.data());
    widen_stored(expected.dtype, expected.data, n, b.data());
    EXPECT_EQ(a, b) << what;
}

void expect_same_as_folder(const std::string& name) {
    const auto got = load_model(kFixtures / (name + ".gguf")), expected = load_model(kFamilies / name);
    const ModelConfig &a = got->config(), &b = expected->config();
    EXPECT_EQ(a.family, name == "exaone" ? "llama" : b.family);  // the same computation
    EXPECT_EQ(a.n_ctx, b.n_ctx);
    EXPECT_EQ(a.window, b.window);
    EXPECT_EQ(a.tied, b.tied);
    EXPECT_EQ(a.bos, b.bos);
    EXPECT_EQ(a.eos, b.eos);
    EXPECT_EQ(a.norm_eps, b.norm_eps);
    EXPECT_NE(got->hash(), expected->hash());
    EXPECT_EQ(got->n_parameters(), expected->n_parameters());
    for (std::size_t l = 0; l < got->weights().layers.size(); ++l) {
        const LayerWeights &x = got->weights().layers[l], &y = expected->weights().layers[l];
        expect_same_weight(x.q, y.q, "q");
        expect_same_weight(x.k, y.k, "k");
        expect_same_weight(x.v, y.v, "v");
        expect_same_weight(x.q_bias, y.q_bias, "q bias");
        expect_same_weight(x.k_bias, y.k_bias, "k bias");
        expect_same_weight(x.down, y.down, "down");
    }
}

TEST_P(GgufFamilies, WeightsAndSettingsAreThoseOfTheFolder) {
    expect_same_as_folder(GetParam());
}

// A seed that no reader takes would lead the fuzzer nowhere.
TEST(GgufSeeds, AreWholeModels) {
    int n = 0;
    for (const auto& entry : fs::directory_iterator(reference::source_folder() / "tests/fuzz/seeds/gguf")) {
        SCOPED_TRACE(entry.path().string());
        const auto model = load_model(entry.path());
        EXPECT_EQ(model->config().n_layers, 1);
        EXPECT_FALSE(model->tokenizer().encode("abc A").empty());
        ++n;
    }
    EXPECT_GE(n, 7);
}

/// Returns what the reader says to a seed of several files, or "accepted".
std::string said_to_seed(const char* seed, const char* opened) {
    const FuzzFolder folder("seed");
    const std::string bytes = read_text_file(reference::source_folder() / "tests/fuzz/seeds" / seed);
    folder.fill(members_of(bytes));
    try {
        load_model(folder.path() / opened);
    } catch (const Error& error) {
        return error.what();
    }
    return "accepted";
}

TEST(GgufSeeds, OfSeveralFilesAreModelsOrMixtures) {
    EXPECT_EQ(said_to_seed("parts/two", "m-00001-of-00002.gguf"), "accepted");
    EXPECT_NE(said_to_seed("parts/mixed", "m-00001-of-00002.gguf").find("a part of another model"),
              std::string::npos);
    EXPECT_EQ(said_to_seed("folder/small", ""), "accepted");
    EXPECT_EQ(said_to_seed("folder/sinks", ""), "accepted");
    // Rows of 40 weights in blocks of 32: what is beyond a whole block was read from elsewhere.
    const std::string said = said_to_seed("folder/case_block_width", "");
    EXPECT_NE(said.find("gate_up_proj_blocks in "), std::string::npos) << said;
    EXPECT_NE(said.find("config.json asks for rows of 40 weights, and MXFP4 comes in blocks of 32"),
              std::string::npos)
        << said;
}

// --- a model in parts -----------------------------------------------------------------------------------

const fs::path kFirst = kFixtures / "olmo2-00001-of-00003.gguf";

fs::path part_of(const fs::path& folder, int number) {
    return folder / fmt::format("olmo2-{:05d}-of-00003.gguf", number);
}

TEST(GgufParts, AreOneModel) {
    reference::compare_with_transformers(kFirst, 9, kFamilies / "olmo2");
    const auto parts = load_model(kFirst), whole = load_model(kFixtures / "olmo2.gguf");
    EXPECT_EQ(parts->n_parameters(), whole->n_parameters());
    EXPECT_NE(parts->hash(), whole->hash());
}

TEST(GgufParts, WhatIsMissingOrWrongIsNamed) {
    const reference::TempFolder folder("gguf-parts");
    for (int part = 1; part <= 3; ++part) fs::copy(part_of(kFixtures, part), folder.path());
    const auto said = [&](int number) -> std::string {
        try {
            load_model(part_of(folder.path(), number));
        } catch (const Error& error) {
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
            return error.what();
        }
        return "accepted";
    };
    EXPECT_NE(said(2).find("part 2 of 3 of a model; name the first, " + part_of(folder.path(), 1).string()),
              std::string::npos)
        << said(2);
    EXPECT_EQ(said(1), "accepted");
    const std::string hash = load_model(part_of(folder.path(), 1))->hash();
    fs::copy(part_of(kFixtures, 3), part_of(folder.path(), 2), fs::copy_options::overwrite_existing);
    EXPECT_NE(said(1).find("another part than 2 of 3"), std::string::npos) << said(1);
    fs::remove(part_of(folder.path(), 2));
    EXPECT_NE(said(1).find("cannot find " + part_of(folder.path(), 2).string() + ", part 2 of 3"),
              std::string::npos)
        << said(1);
    std::string changed = read_text_file(part_of(kFixtures, 2));
    changed.back() = static_cast<char>(changed.back() ^ 1);  // a weight of the second part counts in the name
    write_text_file(part_of(folder.path(), 2), changed);
    EXPECT_NE(load_model(part_of(folder.path(), 1))->hash(), hash);
}

/// Returns one part of a model in two: it has these tensors, all of one row.
std::string bytes_of_part(int number, std::initializer_list<const char*> tensors,
                          const std::function<void(reference::GgufBytes&)>& add) {
    using reference::GgufBytes;
    GgufBytes file;
    add(file);
    file.key("split.no", GgufBytes::u16, GgufBytes::raw(static_cast<std::uint16_t>(number - 1)));
    file.key("split.count", GgufBytes::u16, GgufBytes::raw(std::uint16_t{2}));
    for (const char* tensor : tensors) file.tensor(tensor, {8}, 0, std::string(32, '\0'));
    return file.bytes();
}

// Parts of two models with one name: what both say differs, or a tensor of another shape lies in the second.
TEST(GgufParts, OfTwoModelsAreNotMixed) {
    using reference::GgufBytes;
    const reference::TempFolder folder("gguf-mixed");
    const auto said_with = [&](const char* architecture, int n_tensors) -> std::string {
        write_text_file(folder.path() / "m-00001-of-00002.gguf",
                        bytes_of_part(1, {"a", "b"}, [](GgufBytes& file) {
                            file.add("general.architecture", "llama");
                            file.key("split.tensors.count", GgufBytes::i32, GgufBytes::raw(3));
                        }));
        write_text_file(folder.path() / "m-00002-of-00002.gguf",
                        bytes_of_part(2, {"c"}, [&](GgufBytes& file) {
                            file.add("general.architecture", architecture);
                            file.key("split.tensors.count", GgufBytes::i32, GgufBytes::raw(n_tensors));
                        }));
        try {
            GgufFile file(folder.path() / "m-00001-of-00002.gguf");
            file.open_parts();
            EXPECT_EQ(file.names().size(), 3u);
        } catch (const Error& error) {
            return error.what();
        }
        return "accepted";
    };
    const std::string first = (folder.path() / "m-00001-of-00002.gguf").string(),
                      second = (folder.path() / "m-00002-of-00002.gguf").string();
    EXPECT_EQ(said_with("llama", 3), "accepted");
    EXPECT_EQ(said_with("qwen2", 3),
              "cannot use " + second + ": it is a part of another model than " + first +
                  ", its general.architecture is the text qwen2 and not the text llama; copy or download the "
                  "parts of one model");
    EXPECT_EQ(said_with("llama", 4),
              "cannot use " + second + ": it is a part of another model than " + first +
                  ", its split.tensors.count is 4 and not 3; copy or download the parts of one model");
}

// A tensor of another shape is named with the part that it lies in.
TEST(GgufParts, AWrongShapeNamesItsPart) {
    const reference::TempFolder folder("gguf-shape");
    for (int part = 1; part <= 3; ++part) fs::copy(part_of(kFixtures, part), folder.path());
    std::string bytes = read_text_file(part_of(folder.path(), 2));
    GgufFile file(part_of(kFixtures, 1));
    file.open_parts();
    // The extents of a matrix of the second part change places: as many numbers, another shape.
    const std::string name = "blk.1.ffn_down.weight",
                      shape = reference::GgufBytes::raw(std::uint64_t{40}) +
                              reference::GgufBytes::raw(std::uint64_t{32}),
                      swapped = reference::GgufBytes::raw(std::uint64_t{32}) +
                                reference::GgufBytes::raw(std::uint64_t{40});
    ASSERT_TRUE(file.parts()[0].contains(name));
    const std::size_t at = bytes.find(shape, bytes.find(name));
    ASSERT_NE(at, std::string::npos);
    bytes.replace(at, shape.size(), swapped);
    write_text_file(part_of(folder.path(), 2), bytes);
    try {
        load_model(part_of(folder.path(), 1));
        ADD_FAILURE() << "accepted";
    } catch (const Error& error) {
        EXPECT_EQ(std::string(error.what()),
                  "cannot use tensor " + name + " in " + part_of(folder.path(), 2).string() +
                      ": its shape is [40, 32], the metadata ask for [32, 40]; convert the model again");
    }
}

// The folder's activation is not LLaMA's, and the format cannot say so: its logits are others.
TEST(GgufBiases, AreThoseOfTheFolder) {
    expect_same_as_folder("llama_biases");
}

// --- small models ---------------------------------------------------------------------------------------

constexpr std::uint32_t kF32 = 0, kQ4_1 = 3, kQ8_0 = 8;  // as files number the types

/// Returns the bytes of n elements.
std::string data_of(std::uint32_t type, std::size_t n) {
    std::string bytes;
    if (type == kF32) {
        for (std::size_t i = 0; i < n; ++i)
            bytes += GgufBytes::raw(0.01f * static_cast<float>(i * 37 % 101) - 0.4f);
        return bytes;
    }
    for (std::size_t i = 0; i < n / 32; ++i) {
        bytes += GgufBytes::raw(std::uint16_t{0x2000});                     // a factor of 2^-7
        if (type == kQ4_1) bytes += GgufBytes::raw(std::uint16_t{0xab00});  // an offset of -7/128
        for (std::size_t j = 0; j < (type == kQ4_1 ? 16u : 32u); ++j)
            bytes += static_cast<char>(type == kQ4_1 ? i * 53 + j * 29 : i * 5 + j * 3);
    }
    return bytes;
}

struct Tensor {
    std::string name;
    std::vector<std::uint64_t> extents;
    std::uint32_t type;
};

/// A quantised LLaMA of two layers, as parts that a test may change.
struct SmallLlama {
    std::vector<std::pair<std::string, std::function<void(GgufBytes&, const std::string&)>>> keys;
    std::vector<Tensor> tensors;

    template <class T>
    void set(const std::string& name, T value) {
        std::erase_if(keys, [&](const auto& one) { return one.first == name; });
        keys.emplace_back(name, [value](GgufBytes& file, const std::string& key) { file.add(key, value); });
    }
    void erase(const std::string& name) {
        std::erase_if(keys, [&](const auto& one) { return one.first == name; });
    }
    Tensor& tensor(const std::string& name) {
        return *std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& t) { return t.name == name; });
    }

    SmallLlama() {
        set("general.architecture", std::string("llama"));
        set("llama.context_length", std::uint32_t{128});
        set("llama.embedding_length", std::uint32_t{64});
        set("llama.block_count", std::uint32_t{2});
        set("llama.feed_forward_length", std::uint32_t{96});
        set("llama.attention.head_count", std::uint32_t{4});
        set("llama.attention.head_count_kv", std::uint32_t{2});
        set("llama.attention.layer_norm_rms_epsilon", 1e-5f);
        set("llama.rope.dimension_count", std::uint32_t{16});
        std::vector<std::string> tokens = {"<s>", "</s>"};
        std::vector<std::int32_t> types = {3, 3};
        for (char c = 'a'; c <= 'z'; ++c) {
            tokens.emplace_back(1, c);
            types.push_back(1);
        }
        set("tokenizer.ggml.model", std::string("gpt2"));
        set("tokenizer.ggml.pre", std::string("gpt-2"));
        set("tokenizer.ggml.tokens", tokens);
        set("tokenizer.ggml.token_type", types);
        set("tokenizer.ggml.bos_token_id", std::uint32_t{0});
        set("tokenizer.ggml.eos_token_id", std::uint32_t{1});
        set("tokenizer.ggml.add_bos_token", true);
        tensors = {{"token_embd.weight", {64, 40}, kQ8_0}, {"output_norm.weight", {64}, kF32}};
        for (int l = 0; l < 2; ++l) {
            const auto add = [&](const char* name, std::vector<std::uint64_t> extents) {
                tensors.push_back(
                    {"blk." + std::to_string(l) + "." + name, extents, extents.size() == 1 ? kF32 : kQ4_1});
            };
            add("attn_norm.weight", {64});
            add("attn_q.weight", {64, 64});
            add("attn_k.weight", {64, 32});
            add("attn_v.weight", {64, 32});
            add("attn_output.weight", {64, 64});
            add("ffn_norm.weight", {64});
            add("ffn_gate.weight", {64, 96});
            add("ffn_up.weight", {64, 96});
            add("ffn_down.weight", {96, 64});
        }
    }

    std::string bytes() const {
        GgufBytes file;
        for (const auto& [name, add] : keys) add(file, name);
        for (const Tensor& tensor : tensors) {
            std::size_t n = 1;
            for (const std::uint64_t extent : tensor.extents) n *= extent;
            file.tensor(tensor.name, tensor.extents, tensor.type, data_of(tensor.type, n));
        }
        return file.bytes();
    }
};

class GgufModelFile : public ::testing::Test {
  protected:
    std::shared_ptr<const Model> loaded(const SmallLlama& small) const {
        write_text_file(path_, small.bytes());
        return load_model(path_);
    }
    void expect_refused(const SmallLlama& small, const std::string& part) const {
        write_text_file(path_, small.bytes());
        const std::string said = reference::in_small_memory(std::size_t{256} << 20, [&] {
            load_model(path_);
            return std::string("accepted");
        });
        EXPECT_TRUE(said.starts_with("Error: ")) << said << "\nexpected: " << part;
        EXPECT_NE(said.find(part), std::string::npos) << said << "\nexpected: " << part;
        EXPECT_NE(said.find(path_.string()), std::string::npos) << said;
        EXPECT_EQ(said, printable_text(said));
    }
    reference::TempFolder folder_{"gguf-model"};
    fs::path path_ = folder_.path() / "small.gguf";
};

TEST_F(GgufModelFile, StaysQuantisedAndDecodesWithTheBitsOfItsValues) {
    SmallLlama small;
    small.tensor("blk.1.attn_v.weight").type = kQ8_0;  // reads the input of q and k, which have another type
    const auto model = loaded(small);
    EXPECT_EQ(model->weights().embedding.dtype, DType::q8_0);
    EXPECT_EQ(model->weights().layers[1].down.dtype, DType::q4_1);
    EXPECT_TRUE(model->config().tied);
    EXPECT_EQ(model->config().bos, 0);
    EXPECT_EQ(model->config().eos, std::vector<int>{1});
    EXPECT_EQ(model->tokenizer().encode("abc"), (std::vector<int>{0, 2, 3, 4}));
    EXPECT_EQ(model->tokenizer().token_bytes(3), "b");
    EXPECT_TRUE(model->tokenizer().is_special(0));
    // A row of q by hand: head 1, dimension 3 is the file's row 16 + 2 * 3; dimension 8 + 3 the one after it.
    const GgufFile file(path_);
    const StoredTensor stored = file.tensor("blk.0.attn_q.weight");
    const std::size_t row_bytes = stored_bytes(DType::q4_1, 64);
    const auto* q = static_cast<const std::byte*>(model->weights().layers[0].q.data);
    EXPECT_EQ(std::memcmp(q + 19 * row_bytes, stored.data + 22 * row_bytes, row_bytes), 0);
    EXPECT_EQ(std::memcmp(q + 27 * row_bytes, stored.data + 23 * row_bytes, row_bytes), 0);

    // The same model with all matrices as float gives the same bits in floats: prompt and steps.
    ModelWeights wide = model->weights();
    std::vector<std::vector<float>> storage;
    const auto widen = [&](Weight& w) {
        if (!is_quantised(w.dtype)) return;
        storage.emplace_back(to_index(w.rows * w.cols));
        widen_stored(w.dtype, w.data, w.rows * w.cols, storage.back().data());
        w = {DType::f32, storage.back().data(), w.rows, w.cols};
    };
    widen(wide.embedding);
    wide.output = wide.embedding;
    for (LayerWeights& l : wide.layers)
        for (Weight* w : {&l.q, &l.k, &l.v, &l.o, &l.gate, &l.up, &l.down}) widen(*w);
    const auto floats = std::make_shared<const Model>(
        fs::path("wide"), model->config(), wide, model->shared_tokenizer(), std::string("wide"), nullptr);
    // A prompt of four tokens, and three steps, which equal lanes take together. Returns the logits of the
    // last lane.
    const auto run = [](const std::shared_ptr<const Model>& of, int n_threads,
                        Precision precision = Precision::floats, int n_lanes = 1) {
        constexpr std::array kTokens = {2, 5, 9, 4, 4, 20, 11};
        constexpr int kPrompt = 4;
        const auto backend = make_backend(of, {BackendChoice::cpu, n_threads, 0, precision}, nullptr);
        EXPECT_EQ(backend->name().ends_with(", integers"), precision != Precision::floats);
        const RowRequest requested{true, false, false, false};
        std::vector<std::unique_ptr<KvCache>> caches;
        std::vector<RowOutput> outs(to_index(n_lanes));
        std::vector<LanePrefill> prompts;
        for (RowOutput& out : outs) {
            caches.push_back(
                backend->make_cache(resolve(parse_lane_spec("full:kv_dtype=f32").policy, kPrompt, 3)));
            prompts.push_back({caches.back().get(), requested, &out});
        }
        backend->prefill(std::span(kTokens).first(kPrompt), prompts, nullptr, {});
        const RowOutput& out = outs.back();
        std::vector<std::vector<float>> logits;
        logits.emplace_back(out.next_logits.begin(), out.next_logits.end());
        for (int row = kPrompt; row < static_cast<int>(kTokens.size()); ++row) {
            std::vector<LaneStep> steps;
            for (std::size_t i = 0; i < caches.size(); ++i)
                steps.push_back({caches[i].get(), kTokens[to_index(row)], row, requested, &outs[i]});
            backend->step(steps);
            logits.emplace_back(out.next_logits.begin(), out.next_logits.end());
        }
        return logits;
    };
    const auto expected = run(floats, 1);
    EXPECT_EQ(run(model, 1), expected);
    EXPECT_EQ(run(model, 2), expected);

    const auto integers = run(model, 1, Precision::automatic);
    EXPECT_EQ(run(model, 2, Precision::weights), integers);
    for (const int n_lanes : {3, 5, 9})
        EXPECT_EQ(run(model, 2, Precision::weights, n_lanes), integers) << n_lanes;
    EXPECT_NE(integers, expected);
    for (std::size_t row = 0; row < expected.size(); ++row) {
        float largest = 0, worst = 0;
        for (std::size_t i = 0; i < expected[row].size(); ++i) {
            largest = std::max(largest, std::abs(expected[row][i]));
            worst = std::max(worst, std::abs(expected[row][i] - integers[row][i]));
        }
        EXPECT_LT(worst, 1e-5f * largest) << row;
    }
}

TEST_F(GgufModelFile, ADescribedModelTakesNoMemoryForCopies) {
    write_text_file(path_, SmallLlama().bytes());
    const DescribedModel described = describe_model(path_);
    // q and k of two layers, whose heads the file has in another order; 20 bytes for 32 numbers.
    EXPECT_EQ(described.copied_bytes(), 2 * (64 * 64 + 32 * 64) / 32 * 20);
    const auto whole = load_model(path_);
    EXPECT_EQ(described.model->hash(), whole->hash());
    EXPECT_EQ(described.model->n_parameters(), whole->n_parameters());
    described.checkpoint->make_copies();
    for (const auto which : {&LayerWeights::q, &LayerWeights::k}) {
        const Weight &a = described.model->weights().layers[1].*which, &b = whole->weights().layers[1].*which;
        EXPECT_EQ(std::memcmp(a.data, b.data, to_index(stored_bytes(a))), 0);
    }
}

TEST_F(GgufModelFile, IsNamedByAllItsBytes) {
    SmallLlama small;
    const std::string hash = loaded(small)->hash();
    EXPECT_EQ(loaded(small)->hash(), hash);
    small.set("llama.rope.freq_base", 20000.0f);
    EXPECT_NE(loaded(small)->hash(), hash);
    const SmallLlama plain;
    std::string bytes = plain.bytes();
    bytes.back() = static_cast<char>(bytes.back() ^ 1);
    write_text_file(path_, bytes);
    EXPECT_NE(load_model(path_)->hash(), hash);
}

TEST_F(GgufModelFile, IsKnownByItsBeginningToo) {
    const fs::path other = folder_.path() / "model.bin";
    write_text_file(other, SmallLlama().bytes());
    EXPECT_EQ(load_model(other)->config().n_layers, 2);
}

TEST_F(GgufModelFile, UnknownThingsAreRefusedByName) {
    const auto with = [](const std::string& key, auto value) {
        SmallLlama small;
        small.set(key, value);
        return small;
    };
    expect_refused(with("general.architecture", std::string("gptj")), "general.architecture is gptj");
    expect_refused(with("general.architecture", std::string("mamba")), "general.architecture is mamba");
    expect_refused(with("split.count", std::uint32_t{3}), "it is part 1 of 3 of a model");
    expect_refused(with("llama.expert_count", std::uint32_t{8}), "llama.expert_used_count");
    EXPECT_NO_THROW(loaded(with("llama.expert_count", std::uint32_t{0})));
    expect_refused(with("llama.attention.scale", 0.5f), "llama.attention.scale");
    expect_refused(with("llama.rope.dimension_count", std::uint32_t{8}), "llama.rope.dimension_count 8");
    expect_refused(with("llama.rope.scaling.type", std::string("longrope")), "longrope");
    expect_refused(with("llama.attention.value_length", std::uint32_t{32}), "llama.attention.value_length");
    expect_refused(with("tokenizer.ggml.model", std::string("rwkv")), "its tokenizer rwkv");
    expect_refused(with("tokenizer.ggml.pre", std::string("viking")), "its pre-tokenizer viking");
    SmallLlama small;
    small.erase("tokenizer.ggml.pre");
    expect_refused(small, "tokenizer.ggml.pre is absent");
    small = SmallLlama();
    small.tensors.push_back({"blk.1.attn_q_norm.weight", {16}, kF32});
    expect_refused(small, "its tensor blk.1.attn_q_norm.weight");
    small = SmallLlama();
    small.tensor("blk.0.ffn_up.weight").type = 16;
    expect_refused(small, "its type is IQ2_XXS");
}

TEST_F(GgufModelFile, WhatIsNoModelIsNamed) {
    SmallLlama small;
    small.set("general.type", std::string("adapter"));
    expect_refused(small, "it is an adapter (LoRA)");
    small.set("general.type", std::string("imatrix"));
    expect_refused(small, "its general.type is imatrix");
    small.set("general.type", std::string("model"));
    EXPECT_NO_THROW(loaded(small));
    small.tensors.clear();
    expect_refused(small, "no tensors");
}

TEST_F(GgufModelFile, IdsThatAreNoTokensDoNotHurt) {
    const std::size_t n_warnings = loaded(SmallLlama())->warnings().size();
    SmallLlama none;
    none.set("tokenizer.ggml.padding_token_id", std::uint32_t{0xffffffff});
    none.set("tokenizer.ggml.eot_token_id", std::uint32_t{0xffffffff});
    EXPECT_EQ(loaded(none)->warnings().size(), n_warnings) << "these stand for none";
    EXPECT_EQ(loaded(none)->config().eos, std::vector<int>{1});
    none.set("tokenizer.ggml.eos_token_id", std::uint32_t{0xffffffff});
    EXPECT_TRUE(loaded(none)->config().eos.empty());
    SmallLlama beyond;
    beyond.set("tokenizer.ggml.eos_token_id", std::uint32_t{4000});
    beyond.set("tokenizer.ggml.unknown_token_id", std::uint32_t{5000});
    const auto model = loaded(beyond);
    EXPECT_TRUE(model->config().eos.empty());
    EXPECT_GE(model->warnings().size(), n_warnings + 2);
    SmallLlama bos;
    for (const std::uint32_t id : {0xffffffffu, 40u}) {
        bos.set("tokenizer.ggml.bos_token_id", id);
        EXPECT_EQ(loaded(bos)->tokenizer().encode("a"), loaded(bos)->tokenizer().encode("a", false));
        EXPECT_GE(loaded(bos)->warnings().size(), n_warnings + 1) << "add_bos_token is true";
        EXPECT_EQ(loaded(bos)->config().bos, -1);
    }
}

TEST_F(GgufModelFile, PreTokenizersHaveOtherNames) {
    const auto ids = [&](const char* pre) {
        SmallLlama small;
        small.set("tokenizer.ggml.pre", std::string(pre));
        return loaded(small)->tokenizer().encode("It's 12345 Words\n\n  (of 6)", false);
    };
    for (const char* name : {"falcon3", "falcon-h1", "pixtral", "lfm2"})
        EXPECT_EQ(ids(name), ids("llama-bpe"));
    for (const char* name : {"megrez", "hunyuan"}) EXPECT_EQ(ids(name), ids("qwen2"));
    for (const char* name : {"exaone4", "jais", "mellum", "gigachat"}) EXPECT_EQ(ids(name), ids("gpt-2"));
    for (const char* name : {"exaone", "minerva-7b"}) EXPECT_EQ(ids(name), ids("smollm"));
    EXPECT_EQ(ids("llama4"), ids("gpt-4o"));
}

TEST_F(GgufModelFile, WrongSettingsAreRefused) {
    const auto with = [](const std::string& key, auto value) {
        SmallLlama small;
        small.set(key, value);
        return small;
    };
    for (const char* key :
         {"general.architecture", "llama.context_length", "llama.embedding_length", "llama.block_count",
          "llama.feed_forward_length", "llama.attention.head_count", "tokenizer.ggml.model"}) {
        SmallLlama small;
        small.erase(key);
        expect_refused(small, std::string(key) + " is absent");
    }
    expect_refused(with("llama.block_count", std::uint32_t{1'000'000}), "llama.block_count is 1e+06");
    expect_refused(with("llama.block_count", std::uint32_t{3}), "cannot find tensor blk.2.attn_norm.weight");
    expect_refused(with("llama.block_count", std::uint32_t{1}), "its tensor blk.1.attn_k.weight");
    expect_refused(with("llama.attention.head_count", std::uint32_t{5}), "no multiple of");
    expect_refused(with("llama.attention.head_count", std::uint32_t{1000}), "no multiple of");
    expect_refused(with("llama.attention.head_count_kv", std::uint32_t{3}), "no multiple");
    expect_refused(with("llama.feed_forward_length", std::uint32_t{64}), "its shape is [96, 64]");
    expect_refused(with("llama.rope.freq_base", -1.0f), "llama.rope.freq_base is -1");
    expect_refused(with("llama.attention.key_length", std::uint32_t{15}),
                   "rotary positions over the whole head (15)");
    expect_refused(with("tokenizer.ggml.tokens", std::vector<std::string>{}), "tokenizer.ggml.tokens has 0");
    expect_refused(with("tokenizer.ggml.tokens", std::vector<std::string>(41, "x")), "members");
    expect_refused(with("tokenizer.ggml.token_type", std::vector<std::int32_t>(28, 9)), "holds 9");
    expect_refused(with("tokenizer.ggml.merges", std::vector<std::string>{"ab"}), "has no blank");
    expect_refused(with("tokenizer.ggml.merges", std::vector<std::string>{"a b"}), "vocabulary lacks");
    SmallLlama spm = with("tokenizer.ggml.model", std::string("llama"));
    expect_refused(spm, "tokenizer.ggml.scores has 0");
    spm.set("tokenizer.ggml.scores", std::vector<float>(28, NAN));
    expect_refused(spm, "is NaN");
    SmallLlama small;
    small.tensor("output_norm.weight").type = kQ4_1;
    expect_refused(small, "a vector of type q4_1");
    small = SmallLlama();
    small.tensors.push_back({"rope_freqs.weight", {7}, kF32});
    expect_refused(small, "rope_freqs.weight wants 8 numbers");
    small = SmallLlama();
    small.tensor("token_embd.weight").extents = {64, 20};
    expect_refused(small, "its tokenizer has ids up to 27");
}

TEST_F(GgufModelFile, QwensBiasesAreRead) {
    SmallLlama small;
    for (auto& [name, add] : small.keys)
        if (name.starts_with("llama.")) name = "qwen2." + name.substr(6);
    small.set("general.architecture", std::string("qwen2"));
    for (int l = 0; l < 2; ++l)
        for (const auto& [name, n] : {std::pair{"q", 64}, {"k", 32}, {"v", 32}})
            small.tensors.push_back(
                {fmt::format("blk.{}.attn_{}.bias", l, name), {static_cast<std::uint64_t>(n)}, kF32});
    const auto model = loaded(small);
    EXPECT_EQ(model->config().family, "qwen2");
    EXPECT_EQ(model->weights().layers[1].k_bias.rows, 32);
    EXPECT_EQ(model->weights().layers[1].o_bias.data, nullptr);
    // Rows of q lie as in the file: this architecture has no pairs.
    const GgufFile file(path_);
    const StoredTensor q = file.tensor("blk.0.attn_q.weight");
    EXPECT_EQ(std::memcmp(model->weights().layers[0].q.data, q.data, stored_bytes(DType::q4_1, 64 * 64)), 0);
}

TEST_F(GgufModelFile, MergedKvHeadsAreFloat) {
    const auto model = loaded(SmallLlama());
    KvSharing sharing;
    sharing.kind = KvSharing::Kind::mqa;
    const auto merged = shared_model(model, sharing);
    const Weight &k = merged->weights().layers[0].k, &of = model->weights().layers[0].k;
    ASSERT_EQ(k.dtype, DType::f32);
    ASSERT_EQ(k.rows, 16);
    std::vector<float> heads(32 * 64);
    widen_stored(of.dtype, of.data, 32 * 64, heads.data());
    for (std::size_t i = 0; i < 16 * 64; ++i)
        ASSERT_NEAR(static_cast<const float*>(k.data)[i], (heads[i] + heads[16 * 64 + i]) / 2, 1e-7) << i;
}

TEST_F(GgufModelFile, NeuronsThatCompensateAreFloat) {
    const auto model = loaded(SmallLlama());
    KvSharing sharing;
    sharing.kind = KvSharing::Kind::mqa;
    sharing.compensate = true;
    const auto merged = shared_model(model, sharing);
    // One KV head a layer less: 2 * 64 * 16 parameters, 32 neurons of 64, in three matrices.
    constexpr int kMore = 10, kBefore = 96;
    ASSERT_EQ(merged->config().d_ff, kBefore + kMore);
    const auto values = [](const Weight& w) {
        std::vector<float> wide(to_index(w.rows * w.cols));
        widen_stored(w.dtype, w.data, w.rows * w.cols, wide.data());
        return wide;
    };
    const LayerWeights &a = model->weights().layers[1], &b = merged->weights().layers[1];
    EXPECT_EQ(b.up.dtype, DType::f32);
    EXPECT_EQ(b.down.dtype, DType::f32);
    EXPECT_EQ(b.o.data, a.o.data);
    const std::vector<float> up = values(a.up), more_up = values(b.up), down = values(a.down),
                             more_down = values(b.down);
    for (std::size_t r = 0; r < kBefore + kMore; ++r)
        for (std::size_t c = 0; c < 64; ++c) {
            ASSERT_EQ(more_up[r * 64 + c], up[r % kBefore * 64 + c]) << r << " " << c;
            ASSERT_EQ(more_down[c * (kBefore + kMore) + r], down[c * kBefore + r % kBefore]) << r << " " << c;
        }
}

TEST_F(GgufModelFile, CannotBeConverted) {
    loaded(SmallLlama());
    try {
        convert_model(path_, {}, folder_.path() / "out");
        ADD_FAILURE();
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("it is a GGUF file"), std::string::npos) << error.what();
    }
}

// --- tokenizers -----------------------------------------------------------------------------------------

/// Returns the tokenizer of metadata alone.
Tokenizer tokenizer_of(const GgufBytes& bytes) {
    const reference::TempFolder folder("gguf-tokenizer");
    write_text_file(folder.path() / "t.gguf", bytes.bytes());
    return Tokenizer::from_gguf(GgufFile(folder.path() / "t.gguf"));
}

GgufBytes vocabulary_of(const Json& json, const std::string& model) {
    GgufBytes file;
    file.add("general.architecture", "llama");
    file.add("tokenizer.ggml.model", model);
    file.add("tokenizer.ggml.tokens", json["tokens"].get<std::vector<std::string>>());
    file.add("tokenizer.ggml.token_type", json["types"].get<std::vector<std::int32_t>>());
    return file;
}

TEST(GgufTokenizer, EveryPreTokenizerGivesTheIdsOfThePackage) {
    const Json json = Json::parse(read_text_file(kFixtures / "bytes.json"));
    int n = 0;
    for (const auto& [name, expected] : json["ids"].items()) {
        SCOPED_TRACE(name);
        GgufBytes file = vocabulary_of(json, "gpt2");
        file.add("tokenizer.ggml.pre", name);
        file.add("tokenizer.ggml.merges", json["merges"].get<std::vector<std::string>>());
        const Tokenizer tokenizer = tokenizer_of(file);
        for (std::size_t i = 0; i < expected.size(); ++i, ++n) {
            const auto text = json["texts"][i].get<std::string>();
            const std::vector<int> ids = tokenizer.encode(text, false);
            EXPECT_EQ(ids, expected[i].get<std::vector<int>>()) << text;
            if (name == "gpt-2") {
                EXPECT_EQ(tokenizer.decode(ids, true), text);
            }
        }
    }
    EXPECT_GE(n, 13 * 13);
}

TEST(GgufTokenizer, SentencePieceGivesTheIdsOfThePackage) {
    const Json json = Json::parse(read_text_file(kFixtures / "sentencepiece.json"));
    GgufBytes file = vocabulary_of(json, "llama");
    file.add("tokenizer.ggml.scores", json["scores"].get<std::vector<float>>());
    file.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    const Tokenizer tokenizer = tokenizer_of(file);
    for (std::size_t i = 0; i < json["texts"].size(); ++i) {
        const auto text = json["texts"][i].get<std::string>();
        const std::vector<int> ids = tokenizer.encode(text, false);
        EXPECT_EQ(ids, json["ids"][i].get<std::vector<int>>()) << text;
        EXPECT_EQ(tokenizer.decode(ids), json["decoded"][i].get<std::string>());
    }
    EXPECT_EQ(tokenizer.encode("tag", false).size(), 1u);
}

TEST(GgufTokenizer, UnigramGivesTheIdsOfThePackage) {
    const Json json = Json::parse(read_text_file(kFixtures / "unigram.json"));
    for (const auto& [name, one] : json.items()) {
        SCOPED_TRACE(name);
        GgufBytes file = vocabulary_of(one, "t5");
        file.add("tokenizer.ggml.scores", one["scores"].get<std::vector<float>>());
        file.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
        file.add("tokenizer.ggml.add_space_prefix", one["prefix"].get<bool>());
        file.add("tokenizer.ggml.remove_extra_whitespaces", one["single"].get<bool>());
        if (const auto map = one["charsmap"].get<std::vector<std::int32_t>>(); !map.empty())
            file.add("tokenizer.ggml.precompiled_charsmap", map);
        const Tokenizer tokenizer = tokenizer_of(file);
        for (std::size_t i = 0; i < one["texts"].size(); ++i) {
            const auto text = one["texts"][i].get<std::string>();
            const std::vector<int> ids = tokenizer.encode(text, false);
            EXPECT_EQ(ids, one["ids"][i].get<std::vector<int>>()) << text;
            if (std::find(ids.begin(), ids.end(), 0) == ids.end()) {  // sentencepiece shows unk as a sign
                EXPECT_EQ(tokenizer.decode(ids), one["decoded"][i].get<std::string>()) << text;
            }
        }
    }
}

TEST(GgufTokenizer, UnigramEndsItsTextsAndWordPieceIsRefused) {
    const Json json = Json::parse(read_text_file(kFixtures / "unigram.json")).at("bytes");
    GgufBytes file = vocabulary_of(json, "t5");
    file.add("tokenizer.ggml.scores", json["scores"].get<std::vector<float>>());
    file.add("tokenizer.ggml.unknown_token_id", std::uint32_t{0});
    file.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
    EXPECT_EQ(tokenizer_of(file).encode(""), std::vector<int>{2});
    const auto refusal = [](const GgufBytes& bytes) {
        try {
            tokenizer_of(bytes);
        } catch (const Error& error) {
            return std::string(error.what());
        }
        return std::string("accepted");
    };
    EXPECT_NE(refusal(vocabulary_of(json, "bert")).find("WordPiece"), std::string::npos);
    EXPECT_NE(refusal(vocabulary_of(json, "t5")).find("tokenizer.ggml.scores has 0"), std::string::npos);
    file = vocabulary_of(json, "t5");
    file.add("tokenizer.ggml.scores", json["scores"].get<std::vector<float>>());
    EXPECT_NE(refusal(file).find("unknown_token_id is absent"), std::string::npos);
}

TEST(GgufTokenizer, FlagsSayWhatStandsAroundATextAndWhatIsKept) {
    const Json json = Json::parse(read_text_file(kFixtures / "sentencepiece.json"));
    const auto ends = [&](const std::function<void(GgufBytes&)>& change) {
        GgufBytes file = vocabulary_of(json, "llama");
        file.add("tokenizer.ggml.scores", json["scores"].get<std::vector<float>>());
        file.add("tokenizer.ggml.bos_token_id", std::uint32_t{1});
        file.add("tokenizer.ggml.eos_token_id", std::uint32_t{2});
        change(file);
        return tokenizer_of(file).encode("");
    };
    EXPECT_EQ(ends([](GgufBytes&) {}), std::vector<int>{1});  // SentencePiece's models begin with BOS
    EXPECT_EQ(ends([](GgufBytes& file) { file.add("tokenizer.ggml.add_bos_token", false); }),
              std::vector<int>{});
    EXPECT_EQ(ends([](GgufBytes& file) { file.add("tokenizer.ggml.add_eos_token", true); }),
              (std::vector<int>{1, 2}));
    const Tokenizer keys = [] {
        const Json bytes = Json::parse(read_text_file(kFixtures / "bytes.json"));
        GgufBytes file = vocabulary_of(bytes, "gpt2");
        file.add("tokenizer.ggml.pre", "llama-bpe");
        file.add("tokenizer.ggml.bos_token_id", std::uint32_t{0});
        file.add("tokenizer.chat_template", "{{ messages }}");
        return tokenizer_of(file);
    }();
    EXPECT_EQ(keys.encode(""), std::vector<int>{0});  // LLaMA 3 too
    EXPECT_EQ(keys.chat_template(), "{{ messages }}");
}

}  // namespace
}  // namespace keyhole::test_gguf_model
