#include "engine/base/index.h"
#include "engine/export/exporter.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/export/run_json.h"
#include "engine/policy/calibration.h"

#include "tests/unit/test_trace.h"

#include <gtest/gtest.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

namespace keyhole::test_export {
namespace {

using testing_trace::Maker;
namespace fs = std::filesystem;

class Export : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::path(::testing::TempDir()) /
                  fmt::format("keyhole_export_{}_{}",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
        fs::remove_all(folder_);
        options_.folder = folder_;
    }
    void TearDown() override { fs::remove_all(folder_); }

    /// Drives the sink as a session does: n_rows decode rows of lanes 0 (full) and 1 (budget 4).
    void run(int n_rows, int planned_rows, bool join = false) {
        maker_.add_lane(0, 0);
        maker_.add_lane(1, 4);
        ExportSink sink(options_, {maker_.run()->layout,
                                   testing_trace::kPrompt,
                                   2,
                                   testing_trace::kPrompt + planned_rows - 1,
                                   {},
                                   kHeadDim});
        for (int i = 0; i <= n_rows; ++i) {
            if (join && i == 3) maker_.add_lane(7, 4);
            made_.push_back(maker_.next());
            if (i == 0 && sink.prefill() && options_.attention) send_prompt(*sink.prefill());
            if (i == 0 && sink.prefill() && options_.streams_inputs()) send_inputs(*sink.prefill());
            steps_.push_back(made_.back().step);
            for (std::size_t lane = 0; lane < made_.back().values.size(); ++lane) {
                RowOutput out;
                out.values = made_.back().values[lane];
                add_inputs(steps_.back()->row, out.inputs);
                sink.row(*steps_.back(), static_cast<int>(lane), out);
            }
        }
        history_.update(steps_);
        sink.finish(history_);
    }

    /// Sends the prompt's tiles: attention for all lanes in two tiles, scores lane by lane.
    static void send_prompt(PrefillSink& sink) {
        const int n = testing_trace::kPrompt;
        for (int layer = 0; layer < testing_trace::kLayers; ++layer)
            for (int head = 0; head < testing_trace::kHeads; ++head)
                for (int first : {0, 4}) {
                    const int rows = first == 0 ? 4 : n - 4, columns = first + rows;
                    std::vector<float> values(to_index(rows * columns),
                                              99);  // invalid values right of the diagonal
                    for (int i = 0; i < rows; ++i)
                        for (int p = 0; p <= first + i; ++p)
                            values[to_index(i * columns + p)] = prompt_value(layer, head, first + i, p);
                    sink.attention({-1, layer, head, first, rows, columns, values.data()});
                    if (head < testing_trace::kKvHeads)
                        for (int lane = 0; lane < 2; ++lane) {
                            for (float& v : values) v += static_cast<float>(lane);
                            sink.scores({lane, layer, head, first, rows, columns, values.data()});
                        }
                }
    }
    static constexpr int kHeadDim = 4;
    static float input_value(int kind, int head, int row, int c) {
        return static_cast<float>(kind * 1000 + head * 100 + row * 10 + c);
    }
    /// What a row's token has; the prompt's rows have it by tiles.
    static void add_inputs(int row, RowInputs& to) {
        int kind = 0;
        for (std::vector<float>* of : {&to.q, &to.raw_q, &to.k, &to.raw_k, &to.v}) {
            const int n_heads =
                testing_trace::kLayers * (kind < 2 ? testing_trace::kHeads : testing_trace::kKvHeads);
            for (int head = 0; head < n_heads; ++head)
                for (int c = 0; c < kHeadDim; ++c) of->push_back(input_value(kind, head, row, c));
            ++kind;
        }
    }
    static void send_inputs(PrefillSink& sink) {
        static constexpr std::array kKinds = {InputKind::q, InputKind::raw_q, InputKind::k, InputKind::raw_k,
                                              InputKind::v};
        constexpr int kStride = kHeadDim + 3;
        for (int kind = 0; kind < 5; ++kind) {
            const int n_heads = kind < 2 ? testing_trace::kHeads : testing_trace::kKvHeads;
            for (int head = 0; head < testing_trace::kLayers * n_heads; ++head) {
                std::vector<float> values(to_index(testing_trace::kPrompt * kStride), -1.0f);
                for (int row = 0; row < testing_trace::kPrompt; ++row)
                    for (int c = 0; c < kHeadDim; ++c)
                        values[to_index(row * kStride + c)] = input_value(kind, head, row, c);
                sink.inputs({-1, kKinds[to_index(kind)], head / n_heads, head % n_heads,
                             testing_trace::kPrompt, kHeadDim, values.data(), kStride});
            }
        }
    }
    static float prompt_value(int layer, int head, int row, int p) {
        return static_cast<float>(layer * 1000 + head * 100 + row * 10 + p);
    }

    fs::path lane_file(int lane, const std::string& name) const {
        return folder_ / fmt::format("lane{}", lane) / name;
    }
    std::vector<std::string> lines(const fs::path& path) const {
        std::vector<std::string> out;
        std::istringstream in(read_text_file(path));
        for (std::string line; std::getline(in, line);) out.push_back(line);
        return out;
    }

    fs::path folder_;
    ExportOptions options_;
    Maker maker_;
    StepList steps_;
    std::vector<Maker::Row> made_;
    RunHistory history_;
};

TEST_F(Export, ArraysHoldEveryRowExactlyWithZeroOrNanElsewhere) {
    options_.attention = options_.logits = options_.noise = options_.scores = true;
    run(9, 9);
    const int n_positions = 15;
    const KvLayout& layout = maker_.run()->layout;
    for (int lane = 0; lane < 2; ++lane) {
        const NpyArray attention = read_npy(lane_file(lane, "attention.npy")),
                       logits = read_npy(lane_file(lane, "logits.npy"));
        const NpyArray noise = read_npy(lane_file(lane, "noise.npy")),
                       scores = read_npy(lane_file(lane, "scores.npy"));
        ASSERT_EQ(attention.shape, (NpyShape{9, 3, 4, n_positions}));
        ASSERT_EQ(logits.shape, attention.shape);
        ASSERT_EQ(noise.shape, attention.shape);
        ASSERT_EQ(scores.shape, (NpyShape{9, 6, n_positions}));
        for (int y = 0; y < 9; ++y) {
            const int row = 6 + y;
            const auto& sets = made_[to_index(y + 1)].attended[to_index(lane)];
            for (int l = 0; l < 3; ++l)
                for (int h = 0; h < 4; ++h)
                    for (int p = 0; p < n_positions; ++p) {
                        const auto& set = sets[to_index(layout.kv_head_from_head(l, h))];
                        const bool seen = std::count(set.begin(), set.end(), p) > 0;
                        const auto i = ((static_cast<std::int64_t>(y) * 3 + l) * 4 + h) * n_positions + p;
                        const float value = testing_trace::attention_value(lane, row, l, h, p);
                        ASSERT_EQ(attention.value(i), seen ? value : 0);
                        ASSERT_EQ(std::isnan(logits.value(i)), !seen);
                        ASSERT_EQ(std::isnan(noise.value(i)), !seen);
                        if (seen) {
                            ASSERT_EQ(logits.value(i), -value);
                            ASSERT_EQ(noise.value(i), 2 * value);
                        }
                    }
            for (int g = 0; g < 6; ++g)
                for (int p = 0; p < n_positions; ++p) {
                    const auto& set = sets[to_index(g)];
                    const float value =
                        scores.value((static_cast<std::int64_t>(y) * 6 + g) * n_positions + p);
                    if (std::count(set.begin(), set.end(), p) > 0)
                        ASSERT_EQ(value, testing_trace::score_value(lane, row, g, p));
                    else
                        ASSERT_TRUE(std::isnan(value));
                }
        }
    }
    EXPECT_TRUE(fs::exists(lane_file(1, "scores_L0_G0.svg")));
    const auto json = nlohmann::json::parse(read_text_file(folder_ / "run.json"));
    EXPECT_FALSE(json.contains("lanes")) << "it was not asked for: the list of files alone";
    std::vector<std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(folder_))
        if (!entry.is_directory()) files.push_back(entry.path().lexically_relative(folder_).string());
    std::sort(files.begin(), files.end());
    EXPECT_EQ(json["files"].get<std::vector<std::string>>(), files);
}

TEST_F(Export, RunThatEndsEarlyIsCutToItsRows) {
    options_.attention = options_.mask = true;
    run(4, 30);
    const NpyArray attention = read_npy(lane_file(0, "attention.npy"));
    ASSERT_EQ(attention.shape, (NpyShape{4, 3, 4, 10}));
    EXPECT_EQ(attention.value(((2 * 3 + 1) * 4 + 2) * 10 + 5), testing_trace::attention_value(0, 8, 1, 2, 5));
    EXPECT_EQ(read_npy(lane_file(0, "evicted_at.npy")).shape, (NpyShape{6, 10}));
}

TEST_F(Export, EvictedAtIsTheTableOfTheHistory) {
    options_.mask = true;
    run(9, 9);
    const NpyArray table = read_npy(lane_file(1, "evicted_at.npy"));
    ASSERT_EQ(table.type, NpyType::i32);
    ASSERT_EQ(table.shape, (NpyShape{6, 15}));
    const auto values = table.as<std::int32_t>();
    for (int g = 0; g < 6; ++g)
        for (int p = 0; p < 15; ++p) {
            // From the sets: the last row that attended to it, or -1 if it is still stored at the end.
            std::int32_t last = -1;
            for (const auto& made : made_) {
                const auto& set = made.attended[1][to_index(g)];
                if (std::count(set.begin(), set.end(), p)) last = made.step->row;
            }
            const auto& evictions = made_.back().step->lanes[1].evictions;
            const bool at_end = std::any_of(evictions.begin(), evictions.end(), [&](const Eviction& e) {
                return e.kv_head == g && e.position == p;
            });
            EXPECT_EQ(values[to_index(g * 15 + p)], last == 14 && !at_end ? -1 : last);
        }
    for (const char* name : {"mask_L0_G0.png", "mask_L2_G1.png"})
        EXPECT_TRUE(fs::exists(lane_file(0, name))) << name;
}

TEST_F(Export, PromptRowsComeThroughTilesForAllLanes) {
    options_.attention = options_.scores = options_.all_rows = true;
    run(2, 2);
    for (int lane = 0; lane < 2; ++lane) {
        const NpyArray attention = read_npy(lane_file(lane, "attention.npy")),
                       scores = read_npy(lane_file(lane, "scores.npy"));
        ASSERT_EQ(attention.shape, (NpyShape{8, 3, 4, 8}));
        // A session sends the last prompt row again, through row().
        for (int row = 0; row < 5; ++row)
            for (int p = 0; p < 8; ++p) {
                EXPECT_EQ(attention.value(((row * 3 + 2) * 4 + 3) * 8 + p),
                          p <= row ? prompt_value(2, 3, row, p) : 0);
                const float score = scores.value((row * 6 + 5) * 8 + p);  // layer 2, KV head 1
                if (p <= row)
                    EXPECT_EQ(score, prompt_value(2, 1, row, p) + static_cast<float>(lane));
                else
                    EXPECT_TRUE(std::isnan(score));
            }
        EXPECT_EQ(attention.value(((7 * 3 + 2) * 4 + 3) * 8 + 7),
                  testing_trace::attention_value(lane, 7, 2, 3, 7));
    }
}

TEST_F(Export, QueriesKeysAndValuesOfChosenHeads) {
    options_.q = options_.k = options_.v = options_.all_rows = options_.queries = true;
    options_.layers = {2, 1};
    options_.heads = {3};
    run(4, 30);
    const NpyArray q = read_npy(lane_file(1, "q.npy")), q0 = read_npy(lane_file(1, "q0.npy")),
                   k = read_npy(lane_file(0, "k.npy")), k0 = read_npy(lane_file(1, "k0.npy")),
                   v = read_npy(lane_file(1, "v.npy"));
    ASSERT_EQ(q.shape, (NpyShape{10, 2, 1, kHeadDim})) << "cut to the rows that came, and no channel less";
    ASSERT_EQ(q0.shape, q.shape);
    ASSERT_EQ(k.shape, (NpyShape{10, 2, kHeadDim}));  // KV heads 3 and 5
    for (int row = 0; row < 10; ++row)
        for (int c = 0; c < kHeadDim; ++c) {
            EXPECT_EQ(q.value((row * 2 + 1) * kHeadDim + c), input_value(0, 2 * 4 + 3, row, c)) << row;
            EXPECT_EQ(q0.value((row * 2 + 0) * kHeadDim + c), input_value(1, 1 * 4 + 3, row, c)) << row;
            EXPECT_EQ(k.value((row * 2 + 0) * kHeadDim + c), input_value(2, 3, row, c)) << row;
            EXPECT_EQ(k0.value((row * 2 + 1) * kHeadDim + c), input_value(3, 5, row, c)) << row;
            EXPECT_EQ(v.value((row * 2 + 1) * kHeadDim + c), input_value(4, 5, row, c)) << row;
        }
    // Rows 4 and 5 of the prompt: the first four are left out.
    const auto queries = read_calibration(lane_file(1, "queries.safetensors"));
    EXPECT_EQ(queries->n_layers, 3);
    EXPECT_EQ(queries->n_heads, 4);
    EXPECT_EQ(queries->head_dim, kHeadDim);
    const float first = input_value(1, 5, 4, 2), last = input_value(1, 5, testing_trace::kPrompt - 1, 2);
    EXPECT_NEAR(queries->heads[5].mean[2], (first + last) / 2, 1e-3);
}

TEST_F(Export, ChosenLayersHeadsRowsAndHalfPrecision) {
    options_.attention = options_.scores = options_.f16 = options_.heatmap = true;
    options_.layers = {2, 1};
    options_.heads = {3};
    options_.last_rows = 4;
    run(9, 9);
    const NpyArray attention = read_npy(lane_file(1, "attention.npy")),
                   scores = read_npy(lane_file(1, "scores.npy"));
    ASSERT_EQ(attention.type, NpyType::f16);
    ASSERT_EQ(attention.shape, (NpyShape{4, 2, 1, 15}));
    ASSERT_EQ(scores.shape, (NpyShape{4, 2, 15}));  // KV heads 3 and 5
    EXPECT_EQ(attention.value((3 * 2 + 0) * 15 + 14),
              testing_trace::attention_value(1, 14, 1, 3, 14));  // layers ascend
    EXPECT_NEAR(scores.value((3 * 2 + 1) * 15 + 14), testing_trace::score_value(1, 14, 5, 14), 0.01);
    EXPECT_TRUE(fs::exists(lane_file(0, "heatmap_L2_H3.png")));
    EXPECT_FALSE(fs::exists(lane_file(0, "heatmap_L0_H3.png")));
    EXPECT_TRUE(fs::exists(lane_file(0, "atlas.png")));
}

TEST_F(Export, LaneThatJoinsInMidRunHasHolesWhereItWasNotThere) {
    options_.attention = options_.scores = options_.run = options_.csv = options_.mask = options_.next = true;
    run(6, 6, true);
    const NpyArray attention = read_npy(lane_file(2, "attention.npy")),
                   scores = read_npy(lane_file(2, "scores.npy"));
    ASSERT_EQ(attention.shape, (NpyShape{6, 3, 4, 12}));
    for (int y = 0; y < 6; ++y) {
        const bool there = y >= 2;  // the lane's first row is 8
        EXPECT_EQ(attention.value(((y * 3 + 0) * 4 + 0) * 12 + 6 + y),
                  there ? testing_trace::attention_value(7, 6 + y, 0, 0, 6 + y) : 0);
        EXPECT_EQ(std::isnan(scores.value((y * 6 + 0) * 12 + 6 + y)), !there);
    }
    const auto json = nlohmann::json::parse(read_text_file(folder_ / "run.json"));
    ASSERT_EQ(json["lanes"].size(), 3u);
    EXPECT_TRUE(json["lanes"][2]["steps"][1].is_null());
    EXPECT_EQ(json["lanes"][2]["steps"][2]["row"], 8);
}

/// Folders have the numbers of run.json, whichever rows are kept.
TEST_F(Export, ALaneThatEndsBeforeTheKeptRowsKeepsItsFolder) {
    options_.scores = true;
    options_.last_rows = 2;
    maker_.add_lane(0, 0);
    maker_.add_lane(1, 4);
    ExportSink sink(
        options_,
        {maker_.run()->layout, testing_trace::kPrompt, 2, testing_trace::kPrompt + 7, {}, kHeadDim});
    for (int i = 0; i <= 8; ++i) {
        if (i == 2) maker_.add_lane(7, 4);
        if (i == 4) maker_.remove_lane(1);
        made_.push_back(maker_.next());
        steps_.push_back(made_.back().step);
        for (std::size_t lane = 0; lane < made_.back().values.size(); ++lane) {
            RowOutput out;
            out.values = made_.back().values[lane];
            sink.row(*steps_.back(), static_cast<int>(lane), out);
        }
    }
    history_.update(steps_);
    sink.finish(history_);
    const int row = steps_.back()->row;
    const NpyArray gone = read_npy(lane_file(1, "scores.npy")), there = read_npy(lane_file(2, "scores.npy"));
    for (std::int64_t i = 0; i < gone.shape[0] * gone.shape[1] * gone.shape[2]; ++i)
        EXPECT_TRUE(std::isnan(gone.value(i))) << i;
    EXPECT_EQ(there.value((1 * there.shape[1] + 0) * there.shape[2] + row),
              testing_trace::score_value(7, row, 0, row));
}

TEST_F(Export, RunJsonSaysWhatTheRunWas) {
    options_.run = true;
    maker_.add_lane(0, 0);
    maker_.add_lane(1, 4);
    for (int i = 0; i < 8; ++i) {
        auto step = std::make_shared<StepTrace>(*maker_.next().step);
        if (i == 2) step->commands = {"lane 1 h2o:budget=3"};
        steps_.push_back(step);
    }
    history_.update(steps_);
    export_history(history_, options_);
    const auto json = nlohmann::json::parse(read_text_file(folder_ / "run.json"));
    EXPECT_EQ(json["version"], 1);
    EXPECT_EQ(json["model"]["path"], "assets/models/made-up");
    EXPECT_EQ(json["model"]["hash"], "0123abcd");
    EXPECT_EQ(json["prompt"], "the cat sat \"down\"\n");
    EXPECT_EQ(json["prompt_tokens"], (std::vector<int>{1, 2, 3, 4, 5, 6}));
    EXPECT_EQ(json["first_row"], 6);
    EXPECT_EQ(json["seed"], 7);
    EXPECT_EQ(json["backend"], "cpu, 2 threads");
    EXPECT_EQ(json["commands"], nlohmann::json::parse(R"([{"row": 6, "text": "lane 1 h2o:budget=3"}])"));
    ASSERT_EQ(json["kv_heads"].size(), 6u);
    EXPECT_EQ(
        json["kv_heads"][3],
        nlohmann::json::parse(
            R"({"owner_layer": 1, "index": 1, "readers": [{"layer": 1, "head": 2}, {"layer": 1, "head": 3}]})"));
    ASSERT_EQ(json["lanes"].size(), 2u);
    const auto& lane = json["lanes"][1];
    EXPECT_EQ(lane["spec"], "h2o:budget=4");
    EXPECT_EQ(lane["requested"], "h2o:budget=4");
    ASSERT_EQ(lane["tokens"].size(), 7u);
    EXPECT_EQ(lane["tokens"][0], 17);
    EXPECT_EQ(lane["text"], " w17 w18 w19 w20 w21 w22 w23");
    ASSERT_EQ(lane["steps"].size(), 7u);
    const auto& step = lane["steps"][0];
    const nlohmann::json expected{{"row", 6},
                                  {"token", 17},
                                  {"text", "w17"},
                                  {"predicted", 18},
                                  {"log_prob", -1.5},
                                  {"entropy", 1.25},
                                  {"kl", 0.125},
                                  {"agrees", true},
                                  {"tau", 1.5},
                                  {"stored_tokens", 24},
                                  {"attended_tokens", 30},
                                  {"stored_bytes", 24 * 64},
                                  {"allocated_bytes", 24 * 64 + 4096},
                                  {"ms", 1.5}};
    for (const auto& [key, value] : expected.items()) EXPECT_EQ(step[key], value) << key;
    EXPECT_TRUE(lane["steps"][6]["kl"].is_null());
    EXPECT_TRUE(json["lanes"][0]["steps"][0]["kl"].is_null());
}

TEST_F(Export, BrokenCharactersDoNotBreakRunJson) {
    const std::vector<int> tokens{3, 4};  // a lone byte 0xe4
    EXPECT_EQ(text_of_tokens(*maker_.run(), tokens), "\xe4 w4");
    maker_ = Maker([] {
        auto run = std::make_shared<RunInfo>(*testing_trace::make_run());
        run->prompt = "caf\xe9";
        return run;
    }());
    maker_.add_lane(0, 0);
    history_.update({maker_.next().step});
    const auto json = nlohmann::json::parse(make_run_json(history_, 6));
    EXPECT_EQ(json["prompt"], "caf\xef\xbf\xbd");
}

TEST_F(Export, TablesHaveOneLineForEveryAttendedCell) {
    options_.csv = options_.json = options_.scores = true;
    run(3, 3);
    std::size_t cells = 0;
    for (int y = 1; y <= 3; ++y)
        for (const auto& set : made_[to_index(y)].attended[1])
            cells += 2 * set.size();  // two readers per KV head
    const auto csv = lines(lane_file(1, "rows.csv"));
    ASSERT_EQ(csv.size(), cells + 1);
    EXPECT_EQ(csv[0], "row,layer,head,kv_head,position,token,text,attention,score");
    const auto& set = made_[1].attended[1][0];
    EXPECT_EQ(csv[1], fmt::format("6,0,0,0,{},{},w{},{},{}", set[0], set[0] + 1, set[0] + 1,
                                  testing_trace::attention_value(1, 6, 0, 0, set[0]),
                                  testing_trace::score_value(1, 6, 0, set[0])));
    const auto json = nlohmann::json::parse(read_text_file(lane_file(1, "rows.json")));
    ASSERT_EQ(json.size(), cells);
    EXPECT_EQ(json[0]["position"], set[0]);
    EXPECT_EQ(json[0]["text"], fmt::format("w{}", set[0] + 1));
    EXPECT_EQ(json[0]["attention"].get<float>(), testing_trace::attention_value(1, 6, 0, 0, set[0]));
    EXPECT_EQ(lines(lane_file(1, "rows.json")).size(), cells + 2);
    // The export kept rows in a temporary file that was not requested.
    EXPECT_FALSE(fs::exists(lane_file(1, "attention.npy")));
}

TEST_F(Export, NextHasTheBestTokensOfEveryRow) {
    options_.next = true;
    run(2, 2);
    const std::string bytes = read_text_file(lane_file(0, "next.npy"));
    EXPECT_NE(bytes.find("[('id', '<i4'), ('log_prob', '<f4')]"), std::string::npos);
    EXPECT_NE(bytes.find("(2, 2)"), std::string::npos);
    struct Cell {
        std::int32_t id;
        float log_prob;
    } cells[4];
    ASSERT_EQ(bytes.size() % 64, sizeof cells);
    std::memcpy(cells, bytes.data() + bytes.size() - sizeof cells, sizeof cells);
    EXPECT_EQ(cells[0].id, made_[1].step->lanes[0].predicted);
    EXPECT_EQ(cells[0].log_prob, -0.5f);
    EXPECT_EQ(cells[3].id, 5);
}

TEST_F(Export, HistoryAloneGivesTheSameArraysAndPictures) {
    options_.attention = options_.scores = options_.mask = options_.heatmap = true;
    run(5, 5);
    ExportOptions other = options_;
    other.folder = folder_ / "again";
    export_history(history_, other);
    for (const char* name : {"attention.npy", "scores.npy", "evicted_at.npy", "mask_L1_G1.png",
                             "heatmap_L2_H0.png", "atlas.png", "scores_L0_G1.svg"})
        EXPECT_EQ(read_text_file(lane_file(1, name)), read_text_file(other.folder / "lane1" / name)) << name;
    other.logits = true;
    EXPECT_THROW(export_history(history_, other), Error);
}

/// The table of a mask without its pictures.
TEST_F(Export, WritesTheTableOfAMaskAlone) {
    parse_export_list("mask-table", options_);
    run(9, 9);
    for (int lane = 0; lane < 2; ++lane) {
        EXPECT_TRUE(fs::exists(lane_file(lane, "evicted_at.npy")));
        EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / fmt::format("lane{}", lane)), {}), 1);
    }
}

TEST(ExportOptions, ListIsReadAndUnknownWordsNameTheNearest) {
    ExportOptions options;
    parse_export_list("mask, heatmap,run", options);
    EXPECT_TRUE(options.mask && options.heatmap && options.run);
    EXPECT_FALSE(options.attention || options.csv || options.scores);
    parse_export_list("all", options);
    EXPECT_TRUE(options.attention && options.csv && options.json && options.next && options.noise &&
                options.logits && options.scores);
    EXPECT_FALSE(options.frames || options.gif || options.gif_mask);  // one picture per row: only by name
    ExportOptions of_records;
    parse_export_list("all", of_records, true);
    EXPECT_TRUE(of_records.attention && of_records.csv && of_records.next && of_records.scores);
    EXPECT_FALSE(of_records.noise || of_records.logits || of_records.shadow);  // records do not hold these
    parse_export_list("frames,gif-scores", options);
    EXPECT_TRUE(options.frames && options.gif_scores);
    EXPECT_FALSE(options.gif || options.gif_attention);
    for (auto [wrong, near] : {std::pair{"heatmaps", "heatmap"},
                               {"atention", "attention"},
                               {"score", "scores"},
                               {"jsn", "json"}}) {
        try {
            parse_export_list(std::string("run,") + wrong, options);
            FAIL() << wrong;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::wrong_use);
            EXPECT_NE(std::string(error.what()).find(fmt::format("did you mean '{}'", near)),
                      std::string::npos)
                << error.what();
        }
    }
}

TEST(ExportOptions, SizeIsEstimatedAndRefused) {
    // Pythia-160M at 2k, all rows, one array.
    ExportOptions options;
    options.folder = ::testing::TempDir();
    options.attention = options.all_rows = true;
    const ExportShape shape{KvLayout::grouped(12, 12, 12), 1024, 1, 2047};
    EXPECT_EQ(estimate_bytes(options, shape), std::int64_t{2048} * 2048 * 144 * 4);
    try {
        check_export_size(options, shape);
        FAIL();
    } catch (const Error& error) {
        for (const char* word : {"2.4 GB", "--yes", "--layers", "--heads", "--last-rows", "--dtype f16"})
            EXPECT_NE(std::string(error.what()).find(word), std::string::npos) << word;
    }
    options.f16 = true;
    EXPECT_NO_THROW(check_export_size(options, shape));
    options.f16 = false;
    options.layers = {3};
    EXPECT_NO_THROW(check_export_size(options, shape));
    options.layers.clear();
    options.yes = true;
    ExportShape huge = shape;
    huge.last_row = 4'000'000;
    EXPECT_THROW(check_export_size(options, huge), Error);  // no disk is this large
}

TEST(ExportOptions, LayersAndHeadsThatDoNotExistAreRefused) {
    ExportOptions options;
    const ExportShape shape{KvLayout::grouped(3, 4, 2), 6, 1, 10};
    options.heads = {4};
    EXPECT_THROW(export_range(options, shape), Error);
    options.heads = {1, 0, 1};
    const ExportRange range = export_range(options, shape);
    EXPECT_EQ(range.heads, (std::vector<int>{0, 1}));
    EXPECT_EQ(range.kv_heads, (std::vector<int>{0, 2, 4}));
    EXPECT_EQ(range.n_rows(), 5);
}

TEST(ExportOptions, UnwritableFolderIsOneError) {
    ExportOptions options;
    options.run = true;
    options.folder = "/proc/keyhole-out";
    try {
        ExportSink sink(options, {KvLayout::grouped(1, 1, 1), 2, 1, 4});
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
        EXPECT_NE(std::string(error.what()).find("/proc/keyhole-out"), std::string::npos);
    }
}

TEST(ExportOptions, BytesAreSaidInRoundUnits) {
    EXPECT_EQ(format_bytes(12), "12 B");
    EXPECT_EQ(format_bytes(2'415'919'104), "2.4 GB");
    EXPECT_EQ(format_bytes(999'999), "1.0 MB");
    EXPECT_EQ(format_bytes(81'000'000), "81 MB");
}

}  // namespace
}  // namespace keyhole::test_export
