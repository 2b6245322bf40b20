// Keys, values and logits that are not finite: the lane fails and says where, and nothing is computed from
// them.
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/eval/evaluate.h"
#include "engine/eval/prompted_lanes.h"
#include "tests/reference/reference_model.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <cmath>

namespace reference::test_lane_faults {
namespace {

using namespace keyhole;

constexpr double kMostF16 = 65504;
constexpr int kPrompt = 10, kLargeAt = kPrompt + 3, kForced = 8;
const std::string kValues = "model.layers.0.self_attn.v_proj.weight";

/// A model whose first value of layer 0 is beyond f16 for some tokens. It depends on the token alone, and is
/// computed here from the weights.
class LaneFaults : public ::testing::TestWithParam<const char*> {
  protected:
    LaneFaults() : tiny_({.dtype = StoredAs::bf16, .seed = 4}) {}

    void load(const std::string& tensor = kValues, double factor = 16384, int first_row = 0) {
        scale_rows(tiny_.folder(), tensor, factor, first_row, 1);
        model_ = load_model(tiny_.folder());
        backend_ = std::string(GetParam()) == "cpu"
                       ? make_backend(model_, {BackendChoice::cpu, 1, 0}, nullptr)
                       : make_cuda_backend(model_, cuda::make_host_executor());
        weights_ = load_weights(tiny_.folder());
        for (int token = 0; token < 256; ++token) {
            const double value = std::abs(first_value(token));
            if (value > 1.05 * kMostF16) large_.push_back(token);
            if (value < 0.9 * kMostF16) safe_.push_back(token);
        }
    }
    double first_value(int token) const {
        const int d = weights_.embedding.cols;
        const double* x = &weights_.embedding.values[to_index(token * d)];
        double squares = 0, sum = 0;
        for (int i = 0; i < d; ++i) squares += x[i] * x[i];
        const LayerWeights& layer = weights_.layers[0];
        for (int i = 0; i < d; ++i)
            sum += layer.v.values[to_index(i)] * x[i] * layer.attention_norm[to_index(i)];
        return sum / std::sqrt(squares / d + weights_.norm_eps);
    }
    /// Returns a run whose tokens are all given: one that f16 cannot hold is at kLargeAt, or at large_at.
    RunSpec spec(const std::vector<std::string>& lanes, int large_at = kLargeAt) const {
        RunSpec run = run_spec("", lanes, kForced);
        run.ignore_eos = true;
        for (int i = 0; i < kPrompt + kForced; ++i)
            (i < kPrompt ? run.prompt_tokens : run.forced)
                .push_back(i == large_at ? large_.front() : safe_[to_index(7 * i) % safe_.size()]);
        return run;
    }
    Session session(const RunSpec& run, std::size_t checkpoint_bytes = 0) const {
        return Session(model_, *backend_, run, nullptr, checkpoint_bytes);
    }
    static std::vector<std::shared_ptr<const StepTrace>> steps_of(Session& session) {
        std::vector<std::shared_ptr<const StepTrace>> steps;
        if (session.next_row() == 0) steps.push_back(session.prefill());
        while (auto step = session.step()) steps.push_back(std::move(step));
        return steps;
    }

    TinyModel tiny_;
    std::shared_ptr<const Model> model_;
    std::unique_ptr<Backend> backend_;
    Weights weights_;
    std::vector<int> large_, safe_;
};

INSTANTIATE_TEST_SUITE_P(Backends, LaneFaults, ::testing::Values("cpu", "cuda"),
                         [](const auto& of) { return std::string(of.param); });

TEST_P(LaneFaults, ALaneFailsAtTheTokenThatItsTypeCannotHoldAndOthersGoOn) {
    load();
    Session s = session(spec({"full", "full:kv_dtype=bf16", "h2o:budget=6", "full:kv_dtype=f32"}));
    const auto steps = steps_of(s);
    ASSERT_EQ(std::ssize(steps), 1 + kForced);
    // With f32 the row is what double arithmetic gives.
    Sequence twin(weights_);
    PositionSets all = empty_sets(weights_);
    for (const auto& step : steps) {
        const int row = step->row;
        for (const int lane : {0, 2}) {
            const LaneRecord& record = step->lanes[to_index(lane)];
            EXPECT_EQ(record.failure.empty(), row < kLargeAt) << lane << " " << row;
            EXPECT_EQ(std::isnan(record.entropy), row >= kLargeAt) << lane << " " << row;
            if (row < kLargeAt) continue;
            EXPECT_EQ(record.failure,
                      fmt::format("V of token {} in layer 0 is beyond 65504, the largest number "
                                  "that f16 holds; take kv_dtype=bf16",
                                  kLargeAt));
            EXPECT_TRUE(record.top.empty());
            EXPECT_FALSE(record.kl || record.agrees);
        }
        for (const int lane : {1, 3}) {
            const LaneRecord& record = step->lanes[to_index(lane)];
            EXPECT_EQ(record.failure, "");
            EXPECT_TRUE(std::isfinite(record.entropy));
            EXPECT_EQ(record.kl.has_value(), row < kLargeAt) << "lane 0 has no numbers from then on";
        }
    }
    const RunSpec run = spec({"full"});
    std::vector<int> tokens = run.prompt_tokens;
    tokens.insert(tokens.end(), run.forced.begin(), run.forced.end());
    Row last;
    for (const int token : tokens) {
        last = twin.feed(token, all);
        for (auto& layer : all)
            for (auto& head : layer) head.insert(last.row);
    }
    const Vector p = softmax(last.next_logits);
    double entropy = 0;
    for (const double x : p) entropy -= x > 0 ? x * std::log(x) : 0;
    EXPECT_NEAR(steps.back()->lanes[3].entropy, entropy, 2e-3);
}

// The prompt is computed in float for all lanes. What counts is what a lane stores of it.
TEST_P(LaneFaults, OfThePromptOnlyWhatIsStoredCounts) {
    load();
    Session s = session(spec({"full", "window:budget=4", "full:kv_dtype=bf16"}, 2));
    const auto first = s.prefill();
    EXPECT_NE(first->lanes[0].failure.find("V of token 2 in layer 0"), std::string::npos);
    EXPECT_TRUE(std::isfinite(first->lanes[0].entropy)) << "the prompt's own row is right";
    const auto last = steps_of(s).back();
    EXPECT_EQ(last->row, kPrompt + kForced - 1);
    EXPECT_EQ(last->lanes[1].failure, "") << "the window has evicted the token";
    EXPECT_EQ(last->lanes[2].failure, "");
    Session alone = session(spec({"full"}, 2));
    EXPECT_EQ(steps_of(alone).size(), 1u);
    EXPECT_NE(alone.finish_reason().find("the lane failed: V of token 2"), std::string::npos)
        << alone.finish_reason();
    RunSpec stepwise = spec({"full:prefill=stepwise"}, 2);
    EXPECT_NE(session(stepwise).prefill()->lanes[0].failure.find("V of token 2"), std::string::npos);
}

// A key may be infinite in one number alone, and the row is then wrong without any NaN.
TEST_P(LaneFaults, KeysAreLookedAtToo) {
    load("model.layers.1.self_attn.k_proj.weight", 65536, 9);  // KV head 1
    Session s = session(spec({"full", "full:kv_dtype=bf16", "full:kv_dtype=f32"}, -1));
    const auto steps = steps_of(s);
    EXPECT_NE(steps.front()->lanes[0].failure.find("in layer 1 is beyond 65504"), std::string::npos)
        << steps.front()->lanes[0].failure;
    EXPECT_EQ(steps.front()->lanes[0].failure.front(), 'K');
    EXPECT_EQ(steps.back()->lanes[1].failure, "");
    EXPECT_EQ(steps.back()->lanes[2].failure, "");
}

TEST_P(LaneFaults, AnotherTypeTakesAFailedLaneThroughItsText) {
    load();
    for (const bool follow : {false, true}) {
        RunSpec run = spec({"full", "h2o:budget=6"});
        run.follow = follow;
        RunSpec in_bf16 = spec({"full:kv_dtype=bf16", "h2o:budget=6,kv_dtype=bf16"});
        in_bf16.follow = follow;
        Session bent = session(run), straight = session(in_bf16);
        bent.prefill();
        const auto wanted = steps_of(straight);
        while (const auto step = bent.step())
            if (step->row == kLargeAt) break;
        EXPECT_EQ(bent.step(), nullptr) << "all lanes failed";
        EXPECT_NE(
            error_of([&] { bent.apply(parse_command("fork 0")); }, ErrorCode::wrong_use).find("V of token"),
            std::string::npos);
        bent.apply(parse_command("lane 0 full:kv_dtype=bf16"));
        bent.apply(parse_command("lane 1 h2o:budget=6,kv_dtype=bf16"));
        const auto steps = steps_of(bent);
        ASSERT_EQ(std::ssize(steps), kForced - 1 - (kLargeAt - kPrompt));
        for (const std::size_t lane : {0u, 1u}) {
            const LaneRecord &a = steps.back()->lanes[lane], &b = wanted.back()->lanes[lane];
            EXPECT_EQ(a.failure, "");
            EXPECT_EQ(a.entropy, b.entropy) << lane;
            EXPECT_EQ(a.use.stored_tokens, b.use.stored_tokens) << lane;
        }
    }
}

TEST_P(LaneFaults, ARewindToBeforeTheTokenAndAChangeByCommand) {
    load();
    Session s = session(spec({"full:kv_dtype=f32", "full"}), std::size_t{64} << 20);
    const auto steps = steps_of(s);
    EXPECT_NE(steps.back()->lanes[1].failure, "");
    s.apply(Rewind{kLargeAt - 1});
    s.apply(parse_command("lane 1 full:kv_dtype=f32"));
    EXPECT_EQ(steps_of(s).back()->lanes[1].failure, "");
    // The other way: what f32 holds is lost when it is converted.
    s.apply(Rewind{kLargeAt + 1});
    s.apply(parse_command("lane 1 full:kv_dtype=f16"));
    EXPECT_NE(steps_of(s).back()->lanes[1].failure.find(fmt::format("V of token {} in layer 0", kLargeAt)),
              std::string::npos);
}

TEST_P(LaneFaults, ResultsThatNeedAllLanesAreRefused) {
    load();
    const std::vector<LaneSpec> lanes = {parse_lane_spec("full")};
    for (const int large_at : {2, kLargeAt}) {
        const RunSpec run = spec({"full"}, large_at);
        Question question;
        question.prompt = run.prompt_tokens;
        question.fed = run.forced;
        const auto refused = [&](const std::function<void()>& body) {
            const std::string said = error_of(body, ErrorCode::unsupported);
            EXPECT_NE(said.find("full"), std::string::npos) << said;
            EXPECT_NE(said.find(fmt::format("V of token {} in layer 0", large_at)), std::string::npos)
                << said;
            EXPECT_NE(said.find("kv_dtype=bf16"), std::string::npos) << said;
        };
        refused([&] { (void)ask(model_, *backend_, lanes, question); });
        refused([&] { (void)PromptedLanes(model_, *backend_, run).nats_of(run.forced); });
    }
    // A text of its own that comes to such a token.
    RunSpec own = spec({"full"}, -1);
    own.answer_end = AnswerEnd{{}, kForced};
    own.forced = spec({"full"}).forced;
    Session s = session(own);
    s.prefill();
    while (s.extend_answers()) {
    }
    EXPECT_NE(s.answers().front().failure.find("kv_dtype=bf16"), std::string::npos);
}

using CpuLaneFaults = LaneFaults;
INSTANTIATE_TEST_SUITE_P(Cpu, CpuLaneFaults, ::testing::Values("cpu"));

// A scale of q8 is an f16: 127 of them are 8.3 million.
TEST_P(CpuLaneFaults, ScalesOfQ8AreLookedAt) {
    load(kValues, 16384.0 * 128);
    RunSpec run = spec({"full:kv_dtype=q8", "full:kv_dtype=bf16"}, -1);
    run.prompt_tokens[2] = large_.front();
    for (const int token : large_)
        if (std::abs(first_value(token)) > std::abs(first_value(run.prompt_tokens[2])))
            run.prompt_tokens[2] = token;
    ASSERT_GT(std::abs(first_value(run.prompt_tokens[2])), 127 * 65520.0);
    Session s = session(run);
    const auto first = s.prefill();
    EXPECT_NE(first->lanes[0].failure.find("that q8 holds; take kv_dtype=bf16"), std::string::npos)
        << first->lanes[0].failure;
    EXPECT_EQ(first->lanes[1].failure, "");
}

TEST(LaneFaultsOfWeights, DamageIsNamedByLayerOrAsLogits) {
    for (const bool in_layer : {true, false}) {
        const TinyModel tiny({.seed = 5});
        put_nan(tiny.folder(), in_layer ? "model.layers.1.self_attn.k_proj.weight" : "model.norm.weight");
        const SessionRun run = run_session(load_model(tiny.folder()), run_spec("abc", {"full"}, 5));
        ASSERT_EQ(run.steps.size(), 1u);
        EXPECT_EQ(run.lane(0, 0).failure,
                  in_layer
                      ? "K of token 0 in layer 1 is not finite as the model computes it; its weights may "
                        "be damaged"
                      : "the model's logits after token 3 are not finite; its weights may be damaged");
    }
}

}  // namespace
}  // namespace reference::test_lane_faults
