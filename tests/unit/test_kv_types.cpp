// Lanes whose keys and values are stored as f16, bf16 or q8: how far they are from float, and that nothing
// but the rounding differs.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/kv_default.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/sanitizer.h"
#include "tests/reference/session_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace reference {
namespace {

using keyhole::KvType;
using keyhole::RowOutput;

constexpr int kPrompt = 60, kDecode = 40;

/// The root mean square of the difference of next-token logits over their standard deviation, the largest of
/// any row; and the share of kept tokens that are the same. Measured on these models, the worst of all cases:
/// f16 0.0036 and 1, bf16 0.020 and 0.94, q8 0.078 and 0.88.
struct Margin {
    const char* type;
    double logits, kept;
};
constexpr Margin kMargins[] = {{"f16", 0.006, 0.99}, {"bf16", 0.03, 0.9}, {"q8", 0.1, 0.8}};

std::string with(const std::string& spec, const std::string& type) {
    return spec + (spec.find(':') == std::string::npos ? ":" : ",") + "kv_dtype=" + type;
}

/// Returns the RMS of the difference over the standard deviation of b.
double relative_difference(const std::vector<float>& a, const std::vector<float>& b) {
    const auto n = static_cast<double>(a.size());
    const double mean = std::accumulate(b.begin(), b.end(), 0.0) / n;
    double squares = 0, spread = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        squares += std::pow(double{a[i]} - b[i], 2);
        spread += std::pow(b[i] - mean, 2);
    }
    return std::sqrt(squares / spread);
}

double worst_difference(const std::vector<RowOutput>& a, const std::vector<RowOutput>& b) {
    double worst = 0;
    for (std::size_t t = 0; t < a.size(); ++t)
        worst = std::max(worst, relative_difference(a[t].next_logits, b[t].next_logits));
    return worst;
}

/// head_dim 40: the last block of q8 has 8 numbers.
class KvTypes : public ::testing::TestWithParam<int> {
  protected:
    KvTypes()
        : tiny_({.n_layers = 3, .n_heads = 4, .n_kv_heads = 2, .head_dim = GetParam(), .seed = 31}),
          model_(keyhole::load_model(tiny_.folder())),
          tokens_(random_tokens(kPrompt + kDecode, 32)) {}

    LaneRows run(const std::vector<std::string>& specs, int n_threads = 2) const {
        const std::span<const int> all(tokens_);
        return run_engine(model_, specs, all.first(kPrompt), all.subspan(kPrompt), n_threads);
    }
    SessionRun session(const std::vector<std::string>& lanes,
                       const std::vector<std::pair<int, std::string>>& commands = {},
                       int n_generate = 20) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 5), lanes, n_generate);
        spec.ignore_eos = spec.follow = true;
        return run_session(model_, spec, commands);
    }
    /// Returns the share of a's kept tokens that b keeps too, over all rows and KV heads.
    double same_share(const std::vector<RowOutput>& a, const std::vector<RowOutput>& b) const {
        std::size_t n = 0, same = 0;
        for (std::size_t t = 0; t < a.size(); ++t)
            for (int g = 0; g < model_->layout().n_kv_heads(); ++g) {
                const std::set<int> x = stored_positions(a[t], g), y = stored_positions(b[t], g);
                n += x.size();
                same += keyhole::to_index(
                    std::count_if(x.begin(), x.end(), [&](int p) { return y.contains(p); }));
            }
        return static_cast<double>(same) / static_cast<double>(n);
    }
    std::int64_t row_bytes(KvType type) const {
        return keyhole::kv_row_bytes(type, model_->config().head_dim);
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::vector<int> tokens_;
};

INSTANTIATE_TEST_SUITE_P(HeadDims, KvTypes, testing::Values(8, 32, 40));

TEST_P(KvTypes, LogitsAndKeptTokensStayNearFloat) {
    for (const Margin& margin : kMargins)
        for (const char* spec :
             {"full", "h2o:budget=16", "tova:budget=16", "keyformer:budget=16", "a2sf:budget=16",
              "sink:budget=16,positions=cache", "tova:budget=16,positions=compressed,prefill=stepwise"}) {
            const LaneRows rows = run({with(spec, "f32"), with(spec, margin.type)});
            const double kept = same_share(rows[0], rows[1]);
            EXPECT_GE(kept, margin.kept) << with(spec, margin.type);
            // Where another token was kept, the rows after it attend to other tokens.
            if (kept == 1) {
                EXPECT_LT(worst_difference(rows[1], rows[0]), margin.logits) << with(spec, margin.type);
            }
            EXPECT_GT(worst_difference(rows[1], rows[0]), 1e-6) << with(spec, margin.type);
            EXPECT_EQ(rows[0][0].next_logits == rows[1][0].next_logits,
                      std::string(spec).find("stepwise") == std::string::npos)
                << "a prompt at once is computed in float: " << with(spec, margin.type);
        }
}

TEST_P(KvTypes, FewerBitsAreFurtherAway) {
    const LaneRows rows = run({"full:kv_dtype=f32", "full:kv_dtype=f16", "full:kv_dtype=bf16"});
    EXPECT_LT(4 * worst_difference(rows[1], rows[0]), worst_difference(rows[2], rows[0]));
}

TEST_P(KvTypes, APromptAtOnceAndStepByStepDifferByTheRoundingOnly) {
    for (const Margin& margin : kMargins) {
        const LaneRows rows = run({with("full", margin.type), with("full:prefill=stepwise", margin.type)});
        EXPECT_LT(worst_difference(rows[1], rows[0]), margin.logits) << margin.type;
    }
}

TEST_P(KvTypes, BitsAreTheSameForAnyThreadsAndNeighbours) {
    const std::vector<std::string> specs = {"full:kv_dtype=f32",
                                            "h2o:budget=12,kv_dtype=q8",
                                            "tova:budget=9,kv_dtype=f16",
                                            "keyformer:budget=14,kv_dtype=bf16",
                                            "full:kv_dtype=q8,positions=cache",
                                            "sink:budget=11,positions=cache,kv_dtype=q8",
                                            "h2o:budget=12,kv_dtype=f16,prefill=stepwise"};
    const LaneRows together = run(specs, 1), threads = run(specs, 3);
    for (std::size_t n = 0; n < specs.size(); ++n) {
        const LaneRows alone = run({specs[n]}, 2);
        for (std::size_t t = 0; t < alone[0].size(); ++t) {
            ASSERT_EQ(difference(together[n][t], alone[0][t]), "") << specs[n] << " row " << t;
            ASSERT_EQ(difference(together[n][t], threads[n][t]), "") << specs[n] << " row " << t;
        }
    }
}

// Threads without a KV head of their own help with another's, from 512 slots on.
TEST_P(KvTypes, BitsOfALongTextAreTheSameForAnyThreads) {
    const std::vector<int> tokens = random_tokens(1130, 33);
    const std::span<const int> all(tokens);
    const std::vector<const char*> types = under_thread_sanitizer()  // the threads are the same for each
                                               ? std::vector{"f16"}
                                               : std::vector{"f32", "f16", "q8"};
    for (const char* type : types) {
        const std::vector<std::string> spec = {with("full", type)};
        const LaneRows alone = run_engine(model_, spec, all.first(1120), all.subspan(1120), 1),
                       helped = run_engine(model_, spec, all.first(1120), all.subspan(1120), 5);
        for (std::size_t t = 0; t < alone[0].size(); ++t)
            ASSERT_EQ(difference(alone[0][t], helped[0][t]), "") << type << " row " << t;
    }
}

// f32 where the weights are f32, else f16, whichever 16 bits they have.
TEST_P(KvTypes, TheDefaultFollowsTheWeights) {
    for (const auto& [weights, own] :
         {std::pair{StoredAs::f32, "f32"}, {StoredAs::f16, "f16"}, {StoredAs::bf16, "f16"}}) {
        const TinyModel folder({.head_dim = GetParam(), .dtype = weights, .seed = 31});
        const auto model = keyhole::load_model(folder.folder());
        const std::span<const int> all(tokens_);
        const LaneRows rows = run_engine(
            model, std::vector<std::string>{"h2o:budget=12", with("h2o:budget=12", own), "h2o:kv_dtype=q8"},
            all.first(kPrompt), all.subspan(kPrompt));
        for (std::size_t t = 0; t < rows[0].size(); ++t)
            ASSERT_EQ(rows[0][t].next_logits, rows[1][t].next_logits) << own << " row " << t;
        EXPECT_NE(rows[0].back().next_logits, rows[2].back().next_logits);
        EXPECT_EQ(keyhole::kv_type_name(keyhole::kv_type_for(KvType::automatic, *model)), own);
        EXPECT_EQ(keyhole::kv_type_for(KvType::q8, *model), KvType::q8);
    }
}

// The prompt's K and V are float until they are stored, so a switch right after it is the type from the
// start.
TEST_P(KvTypes, ASwitchAfterThePromptIsTheTypeFromTheStart) {
    for (const char* type : {"f16", "bf16", "q8"}) {
        const std::string spec = with("h2o:budget=12", type);
        const SessionRun r =
            session({"full:kv_dtype=f32", "h2o:budget=12,kv_dtype=f32", spec}, {{0, "lane 1 " + spec}});
        for (std::size_t t = 1; t < r.steps.size(); ++t) {
            const int row = r.steps[t]->row;
            ASSERT_EQ(r.sink.rows.at({row, 1}), r.sink.rows.at({row, 2})) << type << " row " << row;
        }
        EXPECT_EQ(r.lane(1, 1).info->kv_dtype, r.lane(1, 2).info->kv_dtype);
    }
}

TEST_P(KvTypes, AWiderTypeBringsNoBitsBack) {
    const SessionRun r = session({"full:kv_dtype=f32", "full:kv_dtype=f32", "full:kv_dtype=f32"},
                                 {{4, "lane 1 full:kv_dtype=q8"},
                                  {4, "lane 1 full:kv_dtype=f32"},
                                  {6, "lane 2 full:kv_dtype=f32,shadow=off"}});
    const auto logits = [&](std::size_t t, int lane) {
        return r.sink.rows.at({r.steps[t]->row, lane}).next_logits;
    };
    for (std::size_t t = 1; t <= 4; ++t) ASSERT_EQ(logits(t, 1), logits(t, 0)) << t;
    for (std::size_t t = 5; t < r.steps.size(); ++t) {
        ASSERT_NE(logits(t, 1), logits(t, 0)) << t;
        ASSERT_EQ(logits(t, 2), logits(t, 0)) << t;
    }
}

TEST_P(KvTypes, MemoryIsCountedInTheType) {
    const SessionRun r =
        session({"full", "h2o:budget=12,kv_dtype=f32"}, {{2, "lane 1 h2o:budget=12,kv_dtype=bf16"},
                                                         {4, "lane 1 h2o:budget=12,kv_dtype=q8"},
                                                         {6, "lane 1 h2o:budget=12,kv_dtype=f32"}});
    const std::int64_t n_kv = model_->layout().n_kv_heads();
    const KvType types[] = {KvType::f32, KvType::bf16, KvType::q8, KvType::f32};
    std::int64_t most = 0;
    for (std::size_t i = 0; i < 4; ++i) {
        const keyhole::LaneRecord& record = r.lane(2 + 2 * i, 1);
        EXPECT_EQ(record.use.stored_bytes, n_kv * 12 * 2 * row_bytes(types[i])) << i;
        EXPECT_EQ(record.info->token_bytes, n_kv * 2 * row_bytes(types[i])) << i;
        EXPECT_EQ(record.info->kv_dtype, types[i]) << i;
        EXPECT_GE(record.use.allocated_bytes, record.use.stored_bytes);
        most = std::max(most, record.use.allocated_bytes);
    }
    EXPECT_LT(r.lane(6, 1).use.allocated_bytes, most - n_kv * 12 * row_bytes(KvType::bf16));
}

TEST_P(KvTypes, AForkAndARewindGoOnWithTheSameBits) {
    for (const char* type : {"f16", "bf16", "q8"}) {
        const std::string spec = with("h2o:budget=12", type);
        const SessionRun plain = session({"full", spec});
        const SessionRun forked = session({"full", spec}, {{4, "fork 1"}});
        for (std::size_t t = 5; t < forked.steps.size(); ++t) {
            const int row = forked.steps[t]->row;
            ASSERT_EQ(forked.sink.rows.at({row, 1}), forked.sink.rows.at({row, 2})) << type;
            ASSERT_EQ(forked.sink.rows.at({row, 1}), plain.sink.rows.at({row, 1})) << type;
        }
        keyhole::RunSpec run_of = run_spec(random_text(kPrompt - 1, 5), {"full", spec}, 20);
        run_of.ignore_eos = run_of.follow = true;
        for (const std::size_t checkpoint_bytes : {std::size_t{0}, std::size_t{1} << 26}) {
            LastRows rows;
            std::string notice;
            const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
            keyhole::Session live(model_, *backend, run_of, &rows, checkpoint_bytes);
            live.prefill();
            for (int i = 0; i < 10; ++i) live.step();
            live.apply(keyhole::parse_command(fmt::format("rewind {}", kPrompt + 3)));
            while (live.step() != nullptr) {
            }
            for (const auto& [key, kept] : plain.sink.rows)
                ASSERT_EQ(rows.rows.at(key), kept) << type << " row " << key.first;
        }
    }
}

// The shadow stays float, so it measures the rounding too.
TEST_P(KvTypes, TheShadowOfALaneIsFloat) {
    const LaneRows rows = run({"full:kv_dtype=f32,shadow=on", "full:kv_dtype=q8,shadow=on"});
    const std::size_t heads = rows[0].back().shadow.output_similarity.size();
    ASSERT_EQ(heads, 12u);
    double exact = 0, rounded = 0;
    for (std::size_t h = 0; h < heads; ++h) {
        exact = std::max(exact, 1 - double{rows[0].back().shadow.output_similarity[h]});
        rounded = std::max(rounded, 1 - double{rows[1].back().shadow.output_similarity[h]});
        EXPECT_NEAR(rows[1].back().shadow.retained_mass[h], 1, 1e-5);
    }
    EXPECT_LT(exact, 1e-6);
    EXPECT_GT(rounded, 1e-6);
    EXPECT_LT(rounded, 0.01);
}

TEST_P(KvTypes, MergedKvHeadsAreStoredInTheTypeToo) {
    const SessionRun r = session(
        {"full:kv=mqa,kv_dtype=f32", "full:kv=mqa,kv_dtype=q8", "full:kv=(mlkv:m=1,g=1),kv_dtype=f16"});
    const std::size_t last = r.steps.size() - 1;
    EXPECT_EQ(r.lane(last, 1).info->token_bytes, 3 * 2 * row_bytes(KvType::q8));
    EXPECT_EQ(r.lane(last, 2).info->token_bytes, 2 * row_bytes(KvType::f16));
    for (std::size_t t = 0; t < r.steps.size(); ++t) {
        const int row = r.steps[t]->row;
        EXPECT_LT(
            relative_difference(r.sink.rows.at({row, 1}).next_logits, r.sink.rows.at({row, 0}).next_logits),
            0.03);
        EXPECT_EQ(r.lane(t, 2).use.stored_bytes,
                  (kPrompt + static_cast<int>(t)) * 2 * row_bytes(KvType::f16));
    }
}

TEST_P(KvTypes, ARecordedRunOpensAndReplays) {
    const SessionRun r = session({"full", "h2o:budget=12,kv_dtype=q8"},
                                 {{3, "lane 1 h2o:budget=12,kv_dtype=f16"}, {5, "add tova:kv_dtype=bf16"}});
    const TempFolder folder("kv_types");
    keyhole::write_trace(r.steps, folder.path() / "run.keyhole");
    const keyhole::StepList read = keyhole::read_trace(folder.path() / "run.keyhole");
    ASSERT_EQ(read.size(), r.steps.size());
    for (std::size_t t = 0; t < read.size(); ++t)
        for (std::size_t n = 0; n < read[t]->lanes.size(); ++n) {
            EXPECT_EQ(read[t]->lanes[n].info->kv_dtype, r.lane(t, n).info->kv_dtype);
            EXPECT_EQ(read[t]->lanes[n].info->spec, r.lane(t, n).info->spec);
            EXPECT_EQ(read[t]->lanes[n].info->policy, r.lane(t, n).info->policy);
            EXPECT_EQ(read[t]->lanes[n].info->token_bytes, r.lane(t, n).info->token_bytes);
        }
    EXPECT_EQ(read.back()->lanes[2].info->kv_dtype, KvType::bf16);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    KeepRows again;
    keyhole::replay(model_, *backend, r.as_run, r.steps.back()->row, &again,
                    [](const std::shared_ptr<const keyhole::StepTrace>&) {});
    for (const auto& [key, kept] : r.sink.rows) ASSERT_EQ(again.rows.at(key), kept) << key.first;
}

}  // namespace
}  // namespace reference
