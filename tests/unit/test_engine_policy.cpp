// What the engine does with a resolved policy beyond the general rule: overrides, hidden columns, memory of
// the masking dialects.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace reference::test_engine_policy {
namespace {

constexpr int kPrompt = 40, kDecode = 12;

class EnginePolicy : public ::testing::Test {
  protected:
    EnginePolicy()
        : tiny_({}),
          model_(keyhole::load_model(tiny_.folder())),
          tokens_(random_tokens(kPrompt + kDecode, 9)) {}

    LaneRows run(const std::vector<std::string>& specs) const {
        const std::span<const int> all(tokens_);
        return run_engine(model_, specs, all.first(kPrompt), all.subspan(kPrompt));
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::vector<int> tokens_;
};

TEST_F(EnginePolicy, AnOverrideOfEverythingIsThePlainPolicy) {
    const std::vector<std::pair<std::string, std::string>> pairs = {
        {"h2o:budget=30,budget@L0-1=8", "h2o:budget=8"},
        {"key:budget=8,recent@L0-1=3", "key:budget=8,recent=3"},
        {"keyformer:budget=10,alpha@L0-1=0.5", "keyformer:budget=10,alpha=0.5"},
        {"keyformer:budget=10,tau@L0-1=3,gain@L0-1=0.5", "keyformer:budget=10,tau=3,gain=0.5"},
        {"keyformer:budget=10,alpha@L0-1=0.5,prefill=stepwise",
         "keyformer:budget=10,alpha=0.5,prefill=stepwise"},
        {"h2o:scope=shared,budget=30,budget@L0-1=8", "h2o:scope=shared,budget=8"},
        {"key:budget=8,score@L0-1=(max(s, p))", "key:budget=8,score=(max(s, p))"},
        {"key:budget=8,score=(s+logit),score@L0-1=(0.5*s+p*wvnorm)", "key:budget=8,score=(0.5*s+p*wvnorm)"},
        {"h2o:budget=8,score=(p),score@L0-1=attention", "h2o:budget=8"},
        {"key:budget=8,choose@L0-1=(-knorm)", "key:budget=8,choose=(-knorm)"},
        {"knorm:budget=8,choose@H0-3=(s/(age+1)),prefill=stepwise",
         "key:budget=8,choose=(s/(age+1)),prefill=stepwise"},
        {"key:budget=8,score@L0-1=(-vnorm)", "key:budget=8,choose=(-vnorm)"},
        {"snapkv:budget=9,window=4,recent=2,evict=always,choose=s,choose@L0-1=(smooth(win))",
         "snapkv:budget=9,window=4,recent=2,evict=always"},
        {"h2o:budget=8,protect@L0-1=2..4,scope=layer", "h2o:budget=8,protect=2..4,scope=layer"},
        {"adakv:budget=9,window=4,recent=2,evict=always,choose@G0-1=(u*s)",
         "adakv:budget=9,window=4,recent=2,evict=always,choose=(u*s)"},
        {"h2o:budget=9,spans=(fair a@0..5 b@6..),score@L0-1=(s+2*p),protect@L0-1=(in(a) and age<4)",
         "h2o:budget=9,spans=(fair a@0..5 b@6..),score=(s+2*p),protect=(in(a) and age<4)"},
        {"h2o:budget=8,scope=column,choose@G0,G1=(s*knorm)", "h2o:budget=8,scope=column,choose=(s*knorm)"},
    };
    for (const auto& [overridden, plain] : pairs) {
        const LaneRows rows = run({overridden, plain});
        for (std::size_t t = 0; t < rows[0].size(); ++t)
            ASSERT_EQ(difference(rows[0][t], rows[1][t]), "") << overridden << ", row " << t;
    }
}

TEST_F(EnginePolicy, AnOverrideOfOneLayerActsThereAlone) {
    // Layer 0 does not depend on the layers above: it evicts as a lane with its values everywhere.
    const LaneRows rows =
        run({"h2o:budget=20,alpha@L0=0.3,budget@L0=8", "h2o:budget=8,alpha=0.3", "h2o:budget=20"});
    const int n_first = model_->layout().first_of_layer(1);
    const auto of_layer = [&](const keyhole::RowOutput& out, bool first) {
        std::vector<keyhole::Eviction> found;
        for (const keyhole::Eviction& e : out.evictions)
            if ((e.kv_head < n_first) == first) found.push_back(e);
        return found;
    };
    EXPECT_EQ(of_layer(rows[0][0], true), of_layer(rows[1][0], true));
    EXPECT_EQ(of_layer(rows[0][0], false), of_layer(rows[2][0], false))
        << "of the prompt, which is not evicted in";
    for (const keyhole::RowOutput& out : rows[0])
        for (int g = 0; g < model_->layout().n_kv_heads(); ++g)
            EXPECT_EQ(stored_positions(out, g).size(), g < n_first ? 8u : 20u);
}

TEST_F(EnginePolicy, WhatTheReleasedMaskHidesIsMarked) {
    // k = 16, w = 8: from row 41 on the row sees its 8 newest but not the one that just left the window.
    const LaneRows rows = run({"h2o:budget=40%,dialect=released", "h2o:budget=16"});
    EXPECT_TRUE(rows[0][0].values.hidden.empty()) << "the prompt's last row saw all";
    EXPECT_TRUE(rows[1][5].values.hidden.empty());
    for (std::size_t t = 1; t < rows[0].size(); ++t) {
        const keyhole::RowValues& values = rows[0][t].values;
        const int row = kPrompt - 1 + static_cast<int>(t);
        ASSERT_EQ(values.hidden.size(), values.positions.size());
        for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
            int n_hidden = 0;
            for (auto i = keyhole::to_index(values.offset[keyhole::to_index(g)]);
                 i < keyhole::to_index(values.offset[keyhole::to_index(g) + 1]); ++i) {
                EXPECT_EQ(values.hidden[i] != 0, values.positions[i] == row - 8);
                n_hidden += values.hidden[i];
            }
            EXPECT_EQ(n_hidden, 1);
            // Each head attends to k tokens, and its probabilities cover exactly these.
            const keyhole::HeadRef reader = model_->layout().kv_head(g).readers[0];
            const auto at = keyhole::to_index(
                values
                    .head_offset[keyhole::to_index(reader.layer * model_->layout().n_heads() + reader.head)]);
            double total = 0;
            for (std::size_t i = 0; i < 17; ++i) {
                const bool hidden =
                    values.hidden[keyhole::to_index(values.offset[keyhole::to_index(g)]) + i] != 0;
                EXPECT_EQ(std::isnan(values.logits[at + i]), hidden);
                if (hidden) {
                    EXPECT_EQ(values.attention[at + i], 0.0f);
                }
                total += values.attention[at + i];
            }
            EXPECT_NEAR(total, 1, 1e-5);
        }
    }
}

TEST_F(EnginePolicy, BudgetsAndWindowsBeyondTheirRangeAreTheNearestWithin) {
    const LaneRows rows =
        run({"full", "h2o:budget=1000", "h2o:budget=1000,sinks=2000", "h2o:budget=52", "key:budget=0",
             "key:budget=1", "h2o:budget=8,recent=8", "h2o:budget=8,recent=99", "window:budget=8",
             "h2o:budget=8,sinks=99", "h2o:budget=8,sinks=8"});
    for (std::size_t t = 0; t < rows[0].size(); ++t) {
        for (std::size_t n : {1u, 2u, 3u}) {
            EXPECT_EQ(rows[n][t].next_logits, rows[0][t].next_logits) << "above or at the length, lane " << n;
            EXPECT_TRUE(rows[n][t].evictions.empty());
        }
        EXPECT_EQ(difference(rows[4][t], rows[5][t]), "") << "budget 0 is 1";
        EXPECT_EQ(rows[6][t].evictions, rows[8][t].evictions) << "recent = budget is a window";
        EXPECT_EQ(rows[7][t].evictions, rows[8][t].evictions) << "more is no more";
        EXPECT_EQ(difference(rows[9][t], rows[10][t]), "") << "sinks above the budget are the budget";
    }
    EXPECT_EQ(stored_positions(rows[9].back(), 0), (std::set<int>{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST_F(EnginePolicy, APromptOfOneTokenIsAPrompt) {
    const std::span<const int> all(tokens_);
    const std::vector<std::string> specs = {"h2o:budget=1",
                                            "h2o:budget=2",
                                            "keyformer:budget=2",
                                            "full",
                                            "tova:budget=50%",
                                            "h2o:dialect=released",
                                            "keyformer:dialect=released,budget=50%",
                                            "a2sf:dialect=released"};
    const LaneRows rows = run_engine(model_, specs, all.first(1), all.subspan(1, 10));
    for (std::size_t n = 0; n < specs.size(); ++n)
        for (const keyhole::RowOutput& out : rows[n])
            for (float logit : out.next_logits) ASSERT_TRUE(std::isfinite(logit)) << specs[n];
    EXPECT_EQ(stored_positions(rows[1].back(), 0).size(), 2u);
}

TEST_F(EnginePolicy, WhatOnlyMasksGivesNoMemoryBack) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    const std::span<const int> all(tokens_);
    std::int64_t allocated[3];
    const char* specs[3] = {"full", "h2o:budget=20%,dialect=released", "h2o:budget=20%"};
    for (int n = 0; n < 3; ++n) {
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec(specs[n]).policy, kPrompt, 4);
        const auto cache = backend->make_cache(policy);
        keyhole::RowOutput out;
        const keyhole::LanePrefill prefill{cache.get(), {}, &out};
        backend->prefill(all.first(kPrompt), {&prefill, 1}, nullptr, {});
        for (int row = kPrompt; row < 200; ++row) {
            const keyhole::LaneStep step{cache.get(), 'a' + row % 20, row, {}, &out};
            backend->step({&step, 1});
        }
        allocated[n] = cache->use().allocated_bytes;
        EXPECT_EQ(cache->use().stored_tokens, (n == 0 ? 200 : 8) * model_->layout().n_kv_heads());
    }
    EXPECT_EQ(allocated[1], allocated[0]) << "grows like a full cache";
    EXPECT_LT(allocated[2], allocated[0] / 10);
}

// Scores become NaN, which ranks lowest. The policy still selects, holds its budget, and repeats bit by bit.
TEST_F(EnginePolicy, ACheckpointWithNanDecodesAndEvictsAllTheSame) {
    TinyModel broken({});
    put_nan(broken.folder(), "model.layers.1.self_attn.k_proj.weight");
    const auto model = keyhole::load_model(broken.folder());
    const std::vector<std::string> specs = {"full",
                                            "window:budget=8",
                                            "sink:budget=8",
                                            "h2o:budget=8",
                                            "tova:budget=8",
                                            "keyformer:budget=8",
                                            "a2sf:budget=8",
                                            "h2o:budget=8,scope=shared,pool=max",
                                            "keyformer:budget=8,dialect=released",
                                            "tova:budget=8,shadow=on"};
    const std::span<const int> all(tokens_);
    const LaneRows rows = run_engine(model, specs, all.first(kPrompt), all.subspan(kPrompt));
    const LaneRows again = run_engine(model, specs, all.first(kPrompt), all.subspan(kPrompt));
    for (std::size_t lane = 0; lane < specs.size(); ++lane) {
        EXPECT_TRUE(std::isnan(rows[lane].back().next_logits.front())) << specs[lane];
        for (std::size_t t = 0; t < rows[lane].size(); ++t) {
            EXPECT_EQ(rows[lane][t].evictions, again[lane][t].evictions) << specs[lane];
            if (lane == 0) continue;
            const bool freezes = specs[lane].starts_with("keyformer") && specs[lane].ends_with("released");
            for (int g = 0; g < model->layout().n_kv_heads(); ++g) {
                const std::size_t n = stored_positions(rows[lane][t], g).size();
                EXPECT_LE(n, 8u) << specs[lane] << " row " << t;
                EXPECT_GE(n, freezes ? 1u : 8u) << specs[lane] << " row " << t;  // a frozen set shrinks
            }
        }
    }
}

}  // namespace
}  // namespace reference::test_engine_policy
