// Where two points of policy space must mean the same thing: policies.md, "identities worth having".
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

namespace reference {
namespace {

constexpr int kPrompt = 45;
constexpr int kDecode = 30;

class PolicyIdentities : public testing::TestWithParam<std::uint64_t> {
  protected:
    PolicyIdentities()
        : tiny_({.n_kv_heads = GetParam() % 2 == 0 ? 4 : 2, .seed = GetParam()}),
          model_(keyhole::load_model(tiny_.folder())) {}

    LaneRows run(const std::vector<std::string>& specs, int n_prompt = kPrompt) const {
        const std::vector<int> tokens = random_tokens(n_prompt + kDecode, GetParam() + 50);
        const std::span<const int> all(tokens);
        return run_engine(model_, specs, all.first(static_cast<std::size_t>(n_prompt)),
                          all.subspan(static_cast<std::size_t>(n_prompt)));
    }
    // Same bits in next-token logits and evictions; scores may be named differently.
    static void expect_same_decoding(const LaneRows& rows, std::size_t a, std::size_t b) {
        for (std::size_t t = 0; t < rows[a].size(); ++t) {
            ASSERT_EQ(rows[a][t].evictions, rows[b][t].evictions) << "row " << t;
            ASSERT_EQ(rows[a][t].values.positions, rows[b][t].values.positions) << "row " << t;
            ASSERT_EQ(rows[a][t].next_logits, rows[b][t].next_logits) << "row " << t;
        }
    }
    static std::size_t n_evictions(const std::vector<keyhole::RowOutput>& lane) {
        std::size_t n = 0;
        for (const keyhole::RowOutput& row : lane) n += row.evictions.size();
        return n;
    }
    int n_kv_heads() const { return model_->layout().n_kv_heads(); }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
};

INSTANTIATE_TEST_SUITE_P(Seeds, PolicyIdentities, testing::Values(1, 2, 3, 4));

TEST_P(PolicyIdentities, ConstantNoiseIsNoNoise) {
    const LaneRows rows = run({"keyformer:budget=12,noise=constant", "keyformer:budget=12,noise=none"});
    expect_same_decoding(rows, 0, 1);
    EXPECT_GT(n_evictions(rows[0]), 0u);
}

TEST_P(PolicyIdentities, NoiseDoesMatter) {
    const LaneRows rows =
        run({"keyformer:budget=12", "keyformer:budget=12,noise=none", "keyformer:budget=12,seed=2"});
    EXPECT_NE(rows[0][0].evictions, rows[1][0].evictions);
    EXPECT_NE(rows[0][0].evictions, rows[2][0].evictions);
}

TEST_P(PolicyIdentities, KeyformerWithoutNoiseAtTauOneIsH2o) {
    expect_same_decoding(run({"keyformer:budget=12,noise=none,tau=1,recent=6", "h2o:budget=12"}), 0, 1);
}

TEST_P(PolicyIdentities, A2sfWithAlphaOneIsH2oWithoutWindow) {
    expect_same_decoding(run({"a2sf:budget=12,alpha=1", "h2o:budget=12,recent=0", "key:budget=12"}), 0, 1);
    expect_same_decoding(run({"a2sf:budget=12,alpha=1", "h2o:budget=12,recent=0", "key:budget=12"}), 0, 2);
}

TEST_P(PolicyIdentities, A2sfWithAlphaZeroIsTovaPerHead) {
    expect_same_decoding(run({"a2sf:budget=12,alpha=0", "tova:budget=12,scope=head"}), 0, 1);
}

TEST_P(PolicyIdentities, OnlyRecentIsWindow) {
    const std::vector<std::string> specs = {"window:budget=12", "h2o:budget=12,recent=100%",
                                            "keyformer:budget=12,recent=12", "tova:budget=12,recent=12",
                                            "sink:budget=12,sinks=0"};
    const LaneRows rows = run(specs);
    for (std::size_t n = 1; n < specs.size(); ++n) expect_same_decoding(rows, 0, n);
    for (int g = 0; g < n_kv_heads(); ++g) {
        std::set<int> newest;
        for (int p = kPrompt + kDecode - 12; p < kPrompt + kDecode; ++p) newest.insert(p);
        EXPECT_EQ(stored_positions(rows[0].back(), g), newest);
    }
}

TEST_P(PolicyIdentities, BudgetBeyondTheLengthIsFullToTheBit) {
    for (const std::string length : {"75", "76", "1000"}) {  // 45 + 30 positions in all
        std::vector<std::string> specs = {"full"};
        for (const char* preset : {"window", "sink", "key", "h2o", "tova", "keyformer", "a2sf"})
            specs.push_back(std::string(preset) + ":budget=" + length);
        specs.push_back("h2o:prefill=stepwise,budget=" + length);
        const LaneRows rows = run(specs);
        for (std::size_t n = 1; n < specs.size(); ++n) {
            EXPECT_EQ(n_evictions(rows[n]), 0u) << specs[n];
            for (std::size_t t = 0; t < rows[n].size(); ++t) {
                // Stepwise prompts go row by row: products in another order than the prompt's.
                const bool same_prefill = specs[n].find("stepwise") == std::string::npos;
                if (same_prefill) {
                    ASSERT_EQ(rows[0][t].next_logits, rows[n][t].next_logits) << specs[n] << " row " << t;
                }
            }
        }
    }
}

TEST_P(PolicyIdentities, OneTokenLessThanTheLengthEvicts) {
    const LaneRows rows = run({"h2o:budget=74"});
    EXPECT_EQ(n_evictions(rows[0]), static_cast<std::size_t>(n_kv_heads()));
}

TEST_P(PolicyIdentities, SumAndMeanRankAlikeAndMaxOfOneReaderToo) {
    const LaneRows rows =
        run({"h2o:budget=12,pool=mean", "h2o:budget=12,pool=sum", "h2o:budget=12,pool=max"});
    expect_same_decoding(rows, 0, 1);
    if (model_->config().n_kv_heads == model_->config().n_heads) expect_same_decoding(rows, 0, 2);
}

TEST_P(PolicyIdentities, SetsNestAndKeepTheirSize) {
    const std::vector<std::string> specs = {
        "window:budget=9",          "sink:budget=9", "key:budget=9",         "h2o:budget=9", "tova:budget=9",
        "keyformer:budget=9",       "a2sf:budget=9", "h2o:budget=9,every=4", "h2o:budget=1", "tova:budget=1",
        "h2o:budget=9,scope=shared"};
    const LaneRows rows = run(specs);
    for (std::size_t n = 0; n < specs.size(); ++n)
        for (int g = 0; g < n_kv_heads(); ++g)
            for (std::size_t t = 1; t < rows[n].size(); ++t) {
                const int row = kPrompt - 1 + static_cast<int>(t);
                std::set<int> expected = stored_positions(rows[n][t - 1], g);
                expected.insert(row);
                ASSERT_EQ(attended_positions(rows[n][t], g), expected) << specs[n] << " row " << row;
                if (specs[n].find("every") == std::string::npos) {
                    const std::size_t budget = specs[n].find("budget=1") != std::string::npos ? 1 : 9;
                    ASSERT_EQ(stored_positions(rows[n][t], g).size(), budget) << specs[n] << " row " << row;
                }
            }
}

TEST_P(PolicyIdentities, CadenceMakesASawtooth) {
    const LaneRows rows = run({"h2o:budget=9,every=4"});
    for (std::size_t t = 0; t < rows[0].size(); ++t)
        EXPECT_EQ(stored_positions(rows[0][t], 0).size(), 9u + t % 4) << "decode row " << t;
}

TEST_P(PolicyIdentities, ScopesShareTheirSets) {
    const LaneRows rows = run({"h2o:budget=9,scope=layer", "h2o:budget=9,scope=shared", "h2o:budget=9"});
    const int per_layer = model_->config().n_kv_heads;
    bool heads_differ = false;
    for (std::size_t t = 0; t < rows[0].size(); ++t)
        for (int g = 1; g < n_kv_heads(); ++g) {
            if (g % per_layer != 0) {
                EXPECT_EQ(stored_positions(rows[0][t], g), stored_positions(rows[0][t], g - 1));
            }
            EXPECT_EQ(stored_positions(rows[1][t], g), stored_positions(rows[1][t], 0));
            heads_differ |= stored_positions(rows[2][t], g) != stored_positions(rows[2][t], 0);
        }
    EXPECT_TRUE(heads_differ);
}

TEST_P(PolicyIdentities, StepwiseAndOneshotPrefillKeepOtherSets) {
    const LaneRows rows = run({"tova:budget=9", "tova:budget=9,prefill=stepwise"});
    EXPECT_NE(stored_positions(rows[0][0], 0), stored_positions(rows[1][0], 0));
    EXPECT_EQ(stored_positions(rows[1][0], 0).size(), 9u);
}

TEST_P(PolicyIdentities, ThresholdIsTheLowestCompetingScoreThatStayed) {
    const LaneRows rows = run({"h2o:budget=9", "window:budget=9", "full"});
    for (std::size_t t = 0; t < rows[0].size(); ++t)
        for (int g = 0; g < n_kv_heads(); ++g) {
            const auto at = static_cast<std::size_t>(g);
            const keyhole::RowOutput& out = rows[0][t];
            const std::set<int> stored = stored_positions(out, g);
            const int row = kPrompt - 1 + static_cast<int>(t);
            float lowest = INFINITY;
            for (auto i = static_cast<std::size_t>(out.values.offset[at]);
                 i < static_cast<std::size_t>(out.values.offset[at + 1]); ++i)
                if (stored.contains(out.values.positions[i]) && out.values.positions[i] <= row - 4)
                    lowest = std::min(lowest, out.values.scores[i]);
            EXPECT_EQ(out.values.threshold.at(at), lowest);
            EXPECT_TRUE(std::isnan(rows[1][t].values.threshold.at(at)));
            EXPECT_TRUE(std::isnan(rows[2][t].values.threshold.at(at)));
        }
}

// Scores kept in 16 bits are values of that type after every row (one reader a KV head, so that nothing is pooled).
TEST_P(PolicyIdentities, ScoresAreOfTheTypeTheyAccumulateIn) {
    const LaneRows rows =
        run({"h2o:budget=20", "h2o:budget=20,score_dtype=bf16", "h2o:budget=20,score_dtype=fp16"});
    const auto n_odd = [&](std::size_t lane, int dropped_bits) {
        int n = 0;
        for (const keyhole::RowOutput& row : rows[lane])
            for (float score : row.values.scores) {
                const bool is_normal = score > 1e-4f;  // fp16 has fewer bits below
                n += is_normal && (std::bit_cast<std::uint32_t>(score) & ((1u << dropped_bits) - 1)) != 0;
            }
        return n;
    };
    EXPECT_GT(n_odd(0, 13), 1000);
    if (model_->config().n_kv_heads != model_->config().n_heads) return;
    EXPECT_EQ(n_odd(1, 16), 0);
    EXPECT_EQ(n_odd(2, 13), 0);
    EXPECT_GT(n_odd(2, 16), 1000);
}

}  // namespace
}  // namespace reference
