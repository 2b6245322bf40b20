// A model's positions in a whole run. Learned positions end with their table and cannot be moved. A sliding
// window is recorded as stored but not visible, and policies rank by what rows see. What a learned sink took
// and which experts ran are recorded.
#include "engine/analysis/doctor.h"
#include "engine/analysis/run_rows.h"
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_shape.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <vector>

namespace reference::test_family_sessions {
namespace {

const std::filesystem::path kFamilies = reference::source_folder() / "tests/fixtures/families";

TEST(FamilySessions, LearnedPositionsEndWithTheirTable) {
    const auto model = keyhole::load_model(kFamilies / "opt");  // 25 positions
    keyhole::RunSpec spec = run_spec("onceuponatime", {"full"}, 0);
    spec.ignore_eos = true;
    const SessionRun open_end = run_session(model, spec);
    EXPECT_EQ(open_end.steps.back()->row, 24);
    EXPECT_NE(open_end.finish_reason.find("learned"), std::string::npos) << open_end.finish_reason;
    spec.n_generate = 12;
    EXPECT_EQ(run_session(model, spec).steps.back()->row, 24);
    spec.n_generate = 13;
    EXPECT_THROW(run_session(model, spec), keyhole::Error);
}

TEST(FamilySessions, LearnedPositionsCannotBeMoved) {
    const auto model = keyhole::load_model(kFamilies / "gpt2");
    for (const char* positions : {"cache", "compressed"}) {
        try {
            run_session(model, run_spec("once", {std::string("sink:budget=5,positions=") + positions}, 2));
            ADD_FAILURE() << positions;
        } catch (const keyhole::Error& error) {
            EXPECT_NE(std::string(error.what()).find("learned"), std::string::npos) << error.what();
        }
    }
    EXPECT_NO_THROW(run_session(keyhole::load_model(kFamilies / "mpt"),
                                run_spec("once", {"sink:budget=5,positions=cache"}, 2)));
}

TEST(FamilySessions, AWindowIsRecordedAsStoredButUnseen) {
    const auto model = keyhole::load_model(kFamilies / "qwen2");  // windows of none, 5 and 5
    keyhole::RunSpec spec = run_spec("onceuponatime", {"full:shadow=on"}, 6);
    spec.ignore_eos = true;
    const SessionRun run = run_session(model, spec);
    keyhole::RunHistory history;
    history.update(run.steps);
    // What is hidden is not lost: the model without eviction does not see it either.
    EXPECT_NEAR(run.steps.back()->lanes[0].measures.retained_mass, 1, 1e-5);
    for (const auto& step : run.steps)
        for (int g = 0; g < 6; ++g)
            for (int p = 0; p <= step->row; ++p) {
                const bool hidden = g >= 2 && p <= step->row - 5;
                EXPECT_EQ(history.hidden(0, g, p, step->row), hidden) << g << " " << p << " " << step->row;
                EXPECT_TRUE(history.stored(0, g, p, step->row));
                EXPECT_EQ(history.attended(0, g, p, step->row), !hidden);
            }
    // Prompt rows before the last have no record. The model's window limits them all the same.
    ASSERT_GT(run.steps.front()->row, 6);
    for (int row = 0; row < run.steps.front()->row; ++row)
        for (int g = 0; g < 6; ++g)
            for (int p = 0; p <= row; ++p)
                EXPECT_EQ(history.hidden(0, g, p, row), g >= 2 && p <= row - 5)
                    << g << " " << p << " " << row;
    const int row = run.steps.back()->row;
    EXPECT_EQ(run.steps.back()->lanes[0].attended_tokens, 2 * (row + 1) + 4 * 5);

    // The doctor knows the windows: it counts what a step reads of the layers that slide.
    const auto of_doctor = [](const keyhole::StepList& steps) {
        keyhole::RunHistory of;
        of.update(steps);
        const auto findings = keyhole::examine(of, 0, steps.back()->row);
        const auto found = std::find_if(findings.begin(), findings.end(), [](const keyhole::Finding& one) {
            return one.name == "sliding layers read their window";
        });
        return found == findings.end() ? keyhole::Finding() : *found;
    };
    EXPECT_EQ(of_doctor(run.steps).state, keyhole::Finding::State::good);
    EXPECT_EQ(of_doctor(run.steps).detail, "4 KV heads slide, and read at most 5 tokens");
    keyhole::StepList seen = run.steps;
    auto last = std::make_shared<keyhole::StepTrace>(*seen.back());
    last->lanes[0].hidden = nullptr;
    seen.back() = last;
    EXPECT_EQ(of_doctor(seen).state, keyhole::Finding::State::broken);
    EXPECT_EQ(of_doctor(seen).detail,
              fmt::format("L1 KV head 0 reads {} tokens, and its layer's window is 5", row + 1));
    const SessionRun full = run_session(keyhole::load_model(kFamilies / "qwen2_full"), spec);
    EXPECT_TRUE(of_doctor(full.steps).name.empty()) << "a model without windows has no such finding";

    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("keyhole-window-{}.keyhole", getpid());
    keyhole::write_trace(run.steps, file);
    EXPECT_EQ(keyhole::read_trace(file).front()->run->config.window, model->config().window);
    std::filesystem::remove(file);
}

/// The field's policies with a window of few rows, once after the prompt and while decoding.
std::vector<Case> field_cases(int budget, int n_decode) {
    std::vector<Case> cases;
    const auto add = [&](const std::string& preset, const std::string& keys, auto change) {
        Case c = preset_case(preset, budget, n_decode);
        c.spec += keys + ",kv_dtype=f32";  // the reference rounds no keys
        change(c.policy);
        cases.push_back(c);
    };
    const auto by_rows = [](Policy& p) {
        p.window = 4;
        p.recent = 2;
    };
    const auto while_decoding = [&](Policy& p) {
        by_rows(p);
        p.phase = Phase::always;
        p.buffer = 0;
    };
    const std::string rows = ",window=4,recent=2", always = rows + ",evict=always";
    add("snapkv", rows, by_rows);
    add("snapkv", always, while_decoding);
    add("snapkv", always + ",scope=layer,pool=max", [&](Policy& p) {
        while_decoding(p);
        p.unit = Unit::layer;
        p.pool = PoolOver::max;
    });
    add("pyramidkv", rows + ",pyramid=3", [&](Policy& p) {
        by_rows(p);
        p.beta = 3;
    });
    add("adakv", rows, by_rows);
    add("adakv", always, while_decoding);
    add("adakv", always + ",alloc=global", [&](Policy& p) {
        while_decoding(p);
        p.shares = Shares::model;
    });
    add("rkv", rows + ",buffer=0", while_decoding);
    add("rkv", rows + ",buffer=0,dialect=released,kernel=max:3", [&](Policy& p) {
        while_decoding(p);
        p.as_rkv_code = true;
        p.mix = 0.07;
        p.kernel = 3;
    });
    add("knorm", "", [](Policy&) {});
    add("keydiff", ",prefill=oneshot,every=1", [](Policy& p) {
        p.stepwise = false;
        p.every = 1;
    });
    add("expected", ",alloc=uniform,ahead=20", [](Policy& p) {
        p.shares = Shares::none;
        p.ahead = 20;
    });
    add("expected", ",alloc=uniform,ahead=20,evict=always", [](Policy& p) {
        p.shares = Shares::none;
        p.ahead = 20;
        p.phase = Phase::always;
    });
    return cases;
}

/// Expects so many selections at least to be those of the reference.
void expect_field_policies_agree(const std::shared_ptr<const keyhole::Model>& model, int n_least,
                                 keyhole::Backend* backend) {
    constexpr std::size_t kPrompt = 22, kDecode = 12;
    const Weights weights = weights_of(*model);
    std::vector<int> tokens = different_tokens(256, 15);
    std::erase_if(tokens, [&](int token) { return token >= model->config().n_vocab; });
    const std::span<const int> all = std::span(tokens).first(kPrompt + kDecode);
    std::vector<Case> cases;
    for (const int budget : {4, 9})
        for (const Case& c : field_cases(budget, kDecode)) cases.push_back(c);
    expect_agreement(
        compare_with_reference(model, weights, cases, all.first(kPrompt), all.subspan(kPrompt), backend),
        n_least);
}

// Rows do not see what their layer's window hides, so that a token ranks by the rows that see it alone. Keys
// rank as everywhere.
TEST(FamilySessions, FieldPoliciesAgreeWithTheReferenceWhereLayersSlide) {
    for (const char* name : {"qwen2", "mistral", "gemma2", "gemma3", "gpt_oss"}) {
        SCOPED_TRACE(name);
        const auto model = keyhole::load_model(kFamilies / name);
        const auto& windows = model->config().window;
        ASSERT_TRUE(std::ranges::any_of(windows, [](int window) { return window > 0; }));
        expect_field_policies_agree(model, 150, nullptr);
    }
}

TEST(FamilySessions, FieldPoliciesAgreeOnBothBackendsWhereLayersSlide) {
    keyhole::ModelShape shape = tiny_shape(256);
    shape.config.n_layers = 3;
    shape.config.window = {0, 7, 5};
    const auto model = keyhole::make_seeded_model(shape, keyhole::DType::f32);
    const auto cuda = cuda_backend(model);
    for (keyhole::Backend* backend : {static_cast<keyhole::Backend*>(nullptr), cuda.get()}) {
        SCOPED_TRACE(backend == nullptr ? "cpu" : "cuda");
        expect_field_policies_agree(model, 150, backend);
    }
}

TEST(FamilySessions, ALearnedSinkTakesWhatTheTokensLeave) {
    const auto model = keyhole::load_model(kFamilies / "gpt_oss");
    keyhole::RunSpec spec = run_spec("onceuponatime", {"full", "h2o:budget=6", "tova:budget=6"}, 8);
    spec.ignore_eos = true;
    spec.requested = {.attention = true, .form = keyhole::RowForm::packed};
    const SessionRun run = run_session(model, spec);
    const keyhole::RunHistory history = history_of(run);
    const auto& config = model->config();
    for (const auto& step : run.steps)
        for (int lane = 0; lane < 3; ++lane) {
            double sum = 0;
            float most = 0;
            for (int l = 0; l < config.n_layers; ++l)
                for (int h = 0; h < config.n_heads; ++h) {
                    const float share = keyhole::learned_sink_share(history, lane, step->row, l, h);
                    EXPECT_GE(share, 0.0f);
                    EXPECT_LT(share, 1.0f);
                    sum += static_cast<double>(share);
                    most = std::max(most, share);
                }
            EXPECT_GT(most, 0.02f);
            const float mean = step->lanes[keyhole::to_index(lane)].measures.learned_sink;
            EXPECT_NEAR(mean, sum / (config.n_layers * config.n_heads), 2e-3) << "records are in fp16";
        }
    // Prompt rows have no record of their own.
    EXPECT_GT(keyhole::learned_sink_share(history, 0, 3, 0, 1), 0.0f);
    for (int lane = 0; lane < 3; ++lane)
        EXPECT_TRUE(keyhole::healthy(keyhole::examine(history, lane, run.steps.back()->row)));
    const auto plain = keyhole::load_model(kFamilies / "mixtral");
    const SessionRun other = run_session(plain, run_spec("once", {"full"}, 2));
    EXPECT_TRUE(std::isnan(keyhole::learned_sink_share(history_of(other), 0, 4, 0, 0)));
    EXPECT_TRUE(std::isnan(other.steps.back()->lanes[0].measures.learned_sink));
}

// The prompt routes all its tokens at once, a step one: both say the same of a token.
TEST(FamilySessions, TheExpertsThatRanAreRecorded) {
    for (const char* name : {"mixtral", "qwen3_moe_plain", "gpt_oss"}) {
        SCOPED_TRACE(name);
        const auto model = keyhole::load_model(kFamilies / name);
        const auto& config = model->config();
        keyhole::RunSpec spec = run_spec("thequickbrownfox", {"full", "full:prefill=stepwise"}, 6);
        spec.ignore_eos = spec.follow = true;
        const SessionRun run = run_session(model, spec);
        std::set<std::vector<std::uint16_t>> different;
        for (const auto& step : run.steps) {
            const std::vector<std::uint16_t>& experts = step->lanes[0].experts;
            different.insert(experts);
            ASSERT_EQ(experts.size(), keyhole::to_index(config.n_layers * config.n_experts_used));
            EXPECT_EQ(experts, step->lanes[1].experts);
            for (int l = 0; l < config.n_layers; ++l) {
                const bool has = !model->weights().layers[keyhole::to_index(l)].experts.empty();
                std::set<int> chosen;
                for (int i = 0; i < config.n_experts_used; ++i) {
                    const int expert = experts[keyhole::to_index(l * config.n_experts_used + i)];
                    chosen.insert(expert);
                    EXPECT_EQ(expert < config.n_experts, has);
                }
                if (has) {
                    EXPECT_EQ(chosen.size(), keyhole::to_index(config.n_experts_used));
                }
            }
        }
        EXPECT_GT(different.size(), 2u);
        const TempFolder folder("experts");
        keyhole::write_trace(run.steps, folder.path() / "t.keyhole");
        const auto read = keyhole::read_trace(folder.path() / "t.keyhole");
        for (std::size_t i = 0; i < read.size(); ++i) {
            EXPECT_EQ(read[i]->lanes[0].experts, run.steps[i]->lanes[0].experts);
            const float sink = run.steps[i]->lanes[0].measures.learned_sink;
            if (!std::isnan(sink)) {
                EXPECT_EQ(read[i]->lanes[0].measures.learned_sink, sink);
            }
        }
    }
    const auto dense = keyhole::load_model(kFamilies / "llama_3");
    EXPECT_TRUE(run_session(dense, run_spec("once", {"full"}, 1)).steps.back()->lanes[0].experts.empty());
}

}  // namespace
}  // namespace reference::test_family_sessions
