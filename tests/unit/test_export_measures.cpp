// Measures in exported files: recomputed from attention.npy, shadow.npy, ideal.npy and evicted_at.npy by
// their equations alone, directly and after a trace.
#include "engine/analysis/measure_table.h"
#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/export/exporter.h"
#include "engine/export/run_json.h"
#include "engine/policy/lane_spec.h"
#include "engine/session/session.h"
#include "engine/trace/recorder.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <map>
#include <sstream>

namespace keyhole::test_export_measures {
namespace {

namespace fs = std::filesystem;

constexpr int kTokens = 14;

/// A run of five lanes with everything exported, made once for all tests. The recorder drops rows and
/// shadows, as it does in long runs.
class EngineExportMeasures : public ::testing::Test {
  protected:
    static void SetUpTestSuite() {
        folder_ = fs::path(::testing::TempDir()) / fmt::format("keyhole_export_measures_{}", getpid());
        fs::remove_all(folder_);
        const reference::TinyModel tiny{reference::TinyShape{}};
        const auto model = load_model(tiny.folder());
        std::string notice;
        const auto backend = make_backend(model, {BackendChoice::cpu, 1, 0}, &notice);
        RunSpec spec;
        spec.prompt = reference::random_text(20, 3);
        for (const char* lane :
             {"full:shadow=on", "h2o:budget=6,shadow=on", "h2o:budget=6",
              "h2o:budget=6,recent=3,dialect=released,shadow=on", "tova:budget=5,prefill=stepwise,shadow=on"})
            spec.lanes.push_back(parse_lane_spec(lane));
        spec.follow = spec.ignore_eos = true;
        spec.n_generate = kTokens;
        ExportOptions options;
        options.folder = folder_;
        parse_export_list("attention,shadow,csv,run,mask", options);
        options.all_rows = true;
        spec.requested = options.requested();
        const int n_prompt = static_cast<int>(model->tokenizer().encode(spec.prompt).size());
        ExportSink sink(options, {model->layout(), n_prompt, static_cast<int>(spec.lanes.size()),
                                  n_prompt + kTokens - 1});
        StepList steps;
        Recorder recorder(1);
        replay(model, *backend, spec, n_prompt + kTokens - 1, &sink,
               [&](std::shared_ptr<const StepTrace> step) {
                   recorder.push(step);
                   steps.push_back(std::move(step));
               });
        history_ = std::make_unique<RunHistory>();
        history_->update(steps);
        RunHistory thinned;
        thinned.update(recorder.snapshot().steps);
        const LaneRecord *whole = history_->lane_record(n_prompt + 1, 1),
                         *thin = thinned.lane_record(n_prompt + 1, 1);
        ASSERT_TRUE(whole->shadow != nullptr && thin->shadow == nullptr && thin->rows == nullptr);
        sink.finish(thinned);
        write_trace(steps, folder_ / "run.keyhole");
    }
    static void TearDownTestSuite() {
        history_.reset();
        fs::remove_all(folder_);
    }

    static fs::path lane_file(int lane, const char* name) {
        return folder_ / fmt::format("lane{}", lane) / name;
    }
    static nlohmann::json run_json() { return nlohmann::json::parse(read_text_file(folder_ / "run.json")); }

    /// Returns metrics.csv by (row, layer, head): the columns from retained_mass on.
    static std::map<std::array<int, 3>, std::vector<std::string>> metrics_csv(int lane) {
        std::map<std::array<int, 3>, std::vector<std::string>> out;
        std::istringstream in(read_text_file(lane_file(lane, "metrics.csv")));
        std::string line;
        std::getline(in, line);
        EXPECT_EQ(line,
                  "row,layer,head,kv_head,retained_mass,lost_mass,cosine_ideal,cosine_full,output_similarity,"
                  "sink_share,stored,recent_share");
        while (std::getline(in, line)) {
            std::vector<std::string> cells;
            std::istringstream words(line + ",");
            for (std::string cell; std::getline(words, cell, ',');) cells.push_back(cell);
            EXPECT_EQ(cells.size(), 12u) << line;
            out[{std::stoi(cells[0]), std::stoi(cells[1]), std::stoi(cells[2])}] = {cells.begin() + 4,
                                                                                    cells.end()};
        }
        return out;
    }

    static inline fs::path folder_;
    static inline std::unique_ptr<RunHistory> history_;
};

TEST_F(EngineExportMeasures, FollowFromTheArraysByTheirEquations) {
    const nlohmann::json run = run_json();
    const KvLayout& layout = history_->run().layout;
    const int n_prompt = history_->n_prompt(), n_positions = history_->n_positions();
    for (const int lane : {0, 1, 3, 4}) {
        const NpyArray attention = read_npy(lane_file(lane, "attention.npy")),
                       shadow = read_npy(lane_file(lane, "shadow.npy")),
                       ideal = read_npy(lane_file(lane, "ideal.npy"));
        ASSERT_EQ(shadow.type, NpyType::f32);
        ASSERT_EQ(ideal.type, NpyType::u8);
        ASSERT_EQ(shadow.shape, attention.shape);
        ASSERT_EQ(ideal.shape, attention.shape);
        const auto table = metrics_csv(lane);
        ASSERT_EQ(table.size(), to_index(kTokens * layout.n_layers() * layout.n_heads()));
        double sum_retained = 0, sum_ideal = 0;
        std::int64_t index = 0;
        for (int row = 0; row < n_positions; ++row)
            for (int l = 0; l < layout.n_layers(); ++l)
                for (int h = 0; h < layout.n_heads(); ++h, index += n_positions) {
                    SCOPED_TRACE(fmt::format("lane {} row {} layer {} head {}", lane, row, l, h));
                    double total = 0, retained = 0, af = 0, ar = 0, aa = 0, ff = 0, rr = 0, sinks = 0;
                    int n_ideal = 0;
                    for (int p = 0; p < n_positions; ++p) {
                        const double a = attention.value(index + p), f = shadow.value(index + p);
                        const double in = ideal.value(index + p), r = in * f;
                        n_ideal += in != 0;
                        total += f;
                        if (a > 0) retained += f;
                        af += a * f, ar += a * r, aa += a * a, ff += f * f, rr += r * r;
                        if (p < 4) sinks += a;
                    }
                    const int k = lane == 0 ? n_positions : lane == 4 ? 5 : 6;
                    EXPECT_EQ(n_ideal, std::min(k, row) + 1);
                    EXPECT_NEAR(total, 1, 1e-5);
                    if (row < n_prompt) continue;
                    const std::vector<std::string>& cells = table.at({row, l, h});
                    EXPECT_NEAR(std::stod(cells[0]), retained, 1e-5);
                    EXPECT_NEAR(std::stod(cells[1]), total - retained, 1e-5);
                    EXPECT_NEAR(std::stod(cells[2]), ar / std::sqrt(aa * rr), 1e-5);
                    EXPECT_NEAR(std::stod(cells[3]), af / std::sqrt(aa * ff), 1e-5);
                    EXPECT_NEAR(std::stod(cells[5]), sinks, 1e-5);
                    EXPECT_EQ(cells[6], fmt::format("{}", lane == 0 ? row + 1 : k));
                    EXPECT_EQ(cells[7].empty(), lane == 0) << "no budget, nothing recent";
                    sum_retained += retained;
                    sum_ideal += ar / std::sqrt(aa * rr);
                }
        const double n = kTokens * layout.n_layers() * layout.n_heads();
        const nlohmann::json& metrics = run["lanes"][to_index(lane)]["metrics"];
        EXPECT_NEAR(metrics["retained_mass"].get<double>(), sum_retained / n, 1e-5);
        EXPECT_NEAR(metrics["lost_mass"].get<double>(), 1 - sum_retained / n, 1e-5);
        EXPECT_NEAR(metrics["cosine_ideal"].get<double>(), sum_ideal / n, 1e-5);
        EXPECT_EQ(metrics["by_head"]["retained_mass"].size(), to_index(layout.n_layers()));
    }
}

TEST_F(EngineExportMeasures, LanesWithoutAShadowHaveNone) {
    EXPECT_FALSE(fs::exists(lane_file(2, "shadow.npy")));
    EXPECT_FALSE(fs::exists(lane_file(2, "ideal.npy")));
    for (const auto& [at, cells] : metrics_csv(2)) {
        EXPECT_EQ(cells[0] + cells[1] + cells[2] + cells[3] + cells[4], "");
        EXPECT_NE(cells[5], "") << "the lane's own attention is there";
    }
    const nlohmann::json run = run_json(), &lane = run["lanes"][2];
    EXPECT_FALSE(lane["metrics"].contains("retained_mass"));
    EXPECT_FALSE(lane["steps"][0].contains("retained_mass"));
    EXPECT_TRUE(lane["metrics"].contains("recent_share"));
}

TEST_F(EngineExportMeasures, RunJsonDefinesWhatItSays) {
    const nlohmann::json run = run_json();
    for (const Measure& m : measures()) EXPECT_EQ(run["metrics"][std::string(m.name)], m.equation);
    const nlohmann::json &full = run["lanes"][0]["metrics"], &h2o = run["lanes"][1]["metrics"];
    EXPECT_NEAR(full["retained_mass"].get<double>(), 1.0, 1e-6);
    EXPECT_NEAR(full["lost_mass"].get<double>(), 0.0, 1e-6);
    EXPECT_NEAR(full["cosine_ideal"].get<double>(), 1.0, 1e-6);
    EXPECT_LT(h2o["retained_mass"].get<double>(), 1.0);
    EXPECT_EQ(h2o["jaccard"][1]["lane"], 2);
    EXPECT_EQ(h2o["jaccard"][1]["mean"], 1.0) << "the same policy, followed";
    EXPECT_LT(h2o["jaccard"][0]["mean"].get<double>(), 0.5);
    EXPECT_EQ(h2o["lifetime_by_position"].size(), 25u);
    EXPECT_TRUE(h2o["lifetime_by_class"].contains("word_piece"));
    EXPECT_TRUE(h2o["lifetime_by_word_class"].contains("content"));
    int n_tokens = 0, n_of_words = 0;
    for (const auto& [name, of_class] : h2o["lifetime_by_class"].items())
        n_tokens += of_class["tokens"].get<int>();
    for (const auto& [name, of_class] : h2o["lifetime_by_word_class"].items())
        n_of_words += of_class["tokens"].get<int>();
    EXPECT_EQ(n_of_words, n_tokens);
    EXPECT_GT(run["lanes"][1]["steps"][0]["shadow_bytes"].get<int>(), 0);
    EXPECT_NEAR(run["lanes"][1]["steps"][2]["retained_mass"].get<double>() +
                    run["lanes"][1]["steps"][2]["lost_mass"].get<double>(),
                1.0, 1e-6);
}

TEST_F(EngineExportMeasures, ATraceGivesTheSameNumbers) {
    RunHistory again;
    again.update(read_trace(folder_ / "run.keyhole"));
    const nlohmann::json before = nlohmann::json::parse(make_run_json(*history_, 0)),
                         after = nlohmann::json::parse(make_run_json(again, 0)), exported = run_json();
    EXPECT_EQ(exported["lanes"][1]["metrics"]["shadow_rows"], kTokens);
    for (std::size_t i = 0; i < before["lanes"].size(); ++i) {
        EXPECT_EQ(before["lanes"][i]["metrics"], exported["lanes"][i]["metrics"]);
        EXPECT_EQ(before["lanes"][i]["metrics"], after["lanes"][i]["metrics"]);
        EXPECT_EQ(before["lanes"][i]["steps"], after["lanes"][i]["steps"]);
    }
}

}  // namespace
}  // namespace keyhole::test_export_measures
