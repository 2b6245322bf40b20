// Sessions whose lanes share KV heads otherwise than the model: live changes, records, trace file and export.
#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"
#include "engine/base/npy.h"
#include "engine/device/make_backend.h"
#include "engine/export/exporter.h"
#include "engine/export/run_json.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <cmath>
#include <filesystem>

namespace reference::test_sharing_session {
namespace {

namespace fs = std::filesystem;
using keyhole::ErrorCode;
using keyhole::parse_command;

constexpr int kPrompt = 20, kLayers = 4, kHeads = 4;

class SharingSession : public ::testing::Test {
  protected:
    SharingSession()
        : tiny_({.n_layers = kLayers, .n_heads = kHeads, .n_kv_heads = 4, .head_dim = 8, .seed = 23}),
          model_(keyhole::load_model(tiny_.folder())) {}
    ~SharingSession() override {
        std::error_code ignored;
        fs::remove_all(folder_, ignored);
    }

    keyhole::RunSpec spec_of(const std::vector<std::string>& lanes, bool follow) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 5), lanes, 12);
        spec.ignore_eos = true;
        spec.follow = follow;
        spec.requested.attention = spec.requested.scores = true;
        return spec;
    }
    SessionRun run(const std::vector<std::string>& lanes,
                   const std::vector<std::pair<int, std::string>>& commands = {}, bool follow = true) const {
        return run_session(model_, spec_of(lanes, follow), commands);
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    fs::path folder_ = fs::temp_directory_path() / ("keyhole-sharing-" + std::to_string(getpid()));
};

TEST_F(SharingSession, RecordsSayWhatALaneSharesAndCosts) {
    const SessionRun shared = run({"full", "h2o:budget=8,kv=(mlkv:m=2,g=1)", "full:kv=mha"});
    const keyhole::LaneRecord &own = shared.lane(3, 0), &mlkv = shared.lane(3, 1), &mha = shared.lane(3, 2);
    EXPECT_EQ(own.info->layout, nullptr);
    EXPECT_EQ(own.info->kv, "mha");
    EXPECT_FALSE(own.info->merged);
    EXPECT_EQ(mha.info->layout, nullptr);  // the model's own sharing is the model itself
    EXPECT_FALSE(mha.info->merged);
    ASSERT_NE(mlkv.info->layout, nullptr);
    EXPECT_EQ(mlkv.info->layout->n_kv_heads(), 2);
    EXPECT_EQ(mlkv.info->kv, "mlkv:m=2,g=1");
    EXPECT_TRUE(mlkv.info->merged);
    EXPECT_EQ(mlkv.info->token_bytes, 2 * 2 * 8 * 4);
    EXPECT_EQ(mlkv.use.stored_tokens, 2 * 8);
    EXPECT_EQ(mlkv.use.stored_bytes, 8 * mlkv.info->token_bytes);
    EXPECT_EQ(mlkv.attended_tokens, 2 * 9);
    // Its prompt attention differs, so the record keeps it separately.
    ASSERT_NE(shared.steps[0]->prompt_rows, nullptr);
    ASSERT_NE(shared.lane(0, 1).prompt_rows, nullptr);
    EXPECT_EQ(shared.lane(0, 0).prompt_rows, nullptr);
    EXPECT_NE(shared.lane(0, 1).prompt_rows->attention, shared.steps[0]->prompt_rows->attention);
}

TEST_F(SharingSession, AChangeInMidRunGivesTheLaneThatBeganSo) {
    const std::string before = "lane 1 h2o:budget=6", after = "lane 1 h2o:budget=6,kv=(mlkv:m=2,g=1)";
    const SessionRun live = run({"full", "h2o:budget=9"}, {{2, before}, {5, after}});
    const SessionRun began = run({"full", "h2o:budget=9,kv=(mlkv:m=2,g=1)"}, {{2, after}});
    const int id = live.lane(6, 1).info->id;
    EXPECT_NE(id, 1);
    EXPECT_EQ(live.lane(6, 1).info->forked_from, 1);
    for (std::size_t t = 6; t < live.steps.size(); ++t) {
        const int row = live.steps[t]->row;
        EXPECT_EQ(live.sink.rows.at({row, id}), began.sink.rows.at({row, 1})) << "row " << row;
    }
    // The record includes the lane's own prompt attention.
    ASSERT_NE(live.lane(6, 1).prompt_rows, nullptr);
    EXPECT_EQ(live.lane(6, 1).prompt_rows->attention, began.lane(0, 1).prompt_rows->attention);
    EXPECT_EQ(live.lane(7, 1).prompt_rows, nullptr);
    // Its stored positions are in a table of its own KV heads, with past evictions.
    const keyhole::RunHistory history = history_of(live), straight = history_of(began);
    ASSERT_EQ(history.lanes().size(), 3u);
    EXPECT_EQ(history.layout(2).n_kv_heads(), 2);
    EXPECT_EQ(history.layout(1).n_kv_heads(), 16);
    EXPECT_EQ(history.lanes()[2].tokens, straight.lanes()[1].tokens);
    for (int g = 0; g < 2; ++g)
        for (int p = 0; p <= history.last_row(); ++p)
            EXPECT_EQ(history.evicted_at(2, g, p), straight.evicted_at(1, g, p)) << g << " " << p;
}

// The layouts are equal, the models are not: the new lane does not inherit the old one's evictions.
TEST_F(SharingSession, AChangeOfEqualShapeInheritsNoEvictions) {
    const SessionRun live =
        run({"full", "h2o:budget=6,kv=mqa"}, {{5, "lane 1 h2o:budget=6,kv=mqa,compensate=on"}});
    const SessionRun began = run({"full", "h2o:budget=6,kv=mqa,compensate=on"});
    const keyhole::RunHistory history = history_of(live), straight = history_of(began);
    ASSERT_EQ(history.lanes().size(), 3u);
    EXPECT_TRUE(history.lanes()[2].replayed);
    int n_differ = 0;
    for (int g = 0; g < history.layout(2).n_kv_heads(); ++g)
        for (int p = 0; p <= history.last_row(); ++p) {
            EXPECT_EQ(history.evicted_at(2, g, p), straight.evicted_at(1, g, p)) << g << " " << p;
            n_differ += history.evicted_at(2, g, p) != history.evicted_at(1, g, p);
        }
    EXPECT_GT(n_differ, 0) << "or this proves nothing";
    std::vector<float> row(keyhole::to_index(history.last_row() + 1));
    EXPECT_TRUE(history.attention_row(2, history.last_row(), 0, 0, row));
}

/// A lane changes its KV heads and is forked before its next record: the fork has the same KV heads and
/// evictions.
TEST_F(SharingSession, ACopyOfALaneJustSharedAnewIsThatLane) {
    const SessionRun forked =
        run({"full", "h2o:budget=8"}, {{4, "lane 1 h2o:budget=8,kv=(mlkv:m=2,g=1)"}, {4, "fork 1"}});
    const keyhole::RunHistory history = history_of(forked);
    ASSERT_EQ(history.steps().back()->lanes.size(), 3u);
    const int anew = *history.lane_from_id(forked.lane(6, 1).info->id),
              copy = *history.lane_from_id(forked.lane(6, 2).info->id);
    ASSERT_NE(anew, copy);
    ASSERT_EQ(history.layout(copy).n_kv_heads(), 2);
    std::size_t n_evicted = 0;
    for (int g = 0; g < 2; ++g)
        for (int p = 0; p < history.n_positions(); ++p) {
            EXPECT_EQ(history.evicted_at(copy, g, p), history.evicted_at(anew, g, p)) << g << " " << p;
            n_evicted += history.evicted_at(copy, g, p) >= 0 ? 1 : 0;
        }
    EXPECT_GT(n_evicted, 0u);
    std::vector<float> a(keyhole::to_index(history.n_positions())), b = a;
    ASSERT_TRUE(history.attention_row(copy, history.last_row(), 3, 1, a));
    ASSERT_TRUE(history.attention_row(anew, history.last_row(), 3, 1, b));
    EXPECT_EQ(a, b);
    fs::create_directories(folder_);
    keyhole::write_trace(forked.steps, folder_ / "copy.keyhole");
    EXPECT_EQ(keyhole::read_trace(folder_ / "copy.keyhole").size(), forked.steps.size());
}

/// A lane is added and changes its KV heads before its first record: it is a new lane, and so are its forks.
/// Files can express this.
TEST_F(SharingSession, ALaneSharedAnewBeforeItsFirstRecordIsANewLane) {
    const SessionRun live = run({"full"}, {{4, "add h2o:budget=8"},
                                           {4, "lane 1 h2o:budget=8,kv=mqa"},
                                           {4, "fork 1"},
                                           {4, "fork 2 h2o:budget=8,kv=gqa:2"}});
    const SessionRun began = run({"full"}, {{4, "add h2o:budget=8,kv=mqa"}});
    fs::create_directories(folder_);
    keyhole::write_trace(live.steps, folder_ / "run.keyhole");
    keyhole::TraceWriter writer(folder_ / "spooled.keyhole");
    for (const auto& step : live.steps) writer.append(*step);
    writer.finish();
    const keyhole::RunHistory straight = history_of(began);
    for (const keyhole::StepList& steps : {live.steps, keyhole::read_trace(folder_ / "run.keyhole"),
                                           keyhole::read_trace(folder_ / "spooled.keyhole")}) {
        keyhole::RunHistory history;
        history.update(steps);
        ASSERT_EQ(history.lanes().size(), 4u);
        for (int lane = 1; lane < 4; ++lane) {
            EXPECT_EQ(history.lanes()[keyhole::to_index(lane)].forked_from, -1) << lane;
            EXPECT_FALSE(history.lanes()[keyhole::to_index(lane)].replayed) << lane;
        }
        for (const int lane : {1, 2})
            for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g)
                for (int p = 0; p < history.n_positions(); ++p)
                    ASSERT_EQ(history.evicted_at(lane, g, p), straight.evicted_at(1, g, p)) << g << " " << p;
        EXPECT_EQ(history.layout(3).n_kv_heads(), 2 * kLayers);
    }
}

TEST_F(SharingSession, AFreeLaneKeepsItsOwnPastTokens) {
    const SessionRun live = run({"full", "window:budget=5"}, {{6, "lane 1 window:budget=5,kv=mqa"}}, false);
    const SessionRun unchanged = run({"full", "window:budget=5"}, {}, false);
    const keyhole::RunHistory history = history_of(live), was = history_of(unchanged);
    const std::vector<int>&now = history.lanes()[2].tokens, &then = was.lanes()[1].tokens;
    // The lane chose the seventh decode token before the change.
    ASSERT_GE(then.size(), keyhole::to_index(kPrompt + 7));
    EXPECT_EQ(std::vector<int>(now.begin(), now.begin() + kPrompt + 6),
              std::vector<int>(then.begin(), then.begin() + kPrompt + 6));
    EXPECT_NE(was.lanes()[0].tokens, then) << "or this proves nothing";
}

TEST_F(SharingSession, ReplayAndRewindReproduceAChange) {
    const SessionRun live = run({"full", "h2o:budget=9"}, {{3, "lane 1 h2o:budget=6,kv=mqa"},
                                                           {5, "evict 1 24"},
                                                           {6, "fork 0 tova:budget=7,kv=gqa:2"},
                                                           {8, "lane 1 h2o:budget=6"}});
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    KeepRows again;
    keyhole::replay(model_, *backend, live.as_run, 1000, &again, [](const auto&) {});
    EXPECT_EQ(again.rows, live.sink.rows);

    const SessionRun plain = run({"full", "h2o:budget=9"});
    std::map<std::pair<int, int>, KeepRows::Kept> tail;
    keyhole::RunSpec spec = spec_of({"full", "h2o:budget=9"}, true);
    keyhole::Session session(model_, *backend, spec);
    session.prefill();
    for (int i = 0; i < 4; ++i) session.step();
    session.apply(parse_command("lane 1 h2o:budget=9,kv=mqa"));
    for (int i = 0; i < 3; ++i) session.step();
    session.apply(parse_command(fmt::format("rewind {}", kPrompt - 1 + 4)));
    for (int i = 5; i <= 12; ++i) {
        const auto step = session.step();
        ASSERT_NE(step, nullptr);
        EXPECT_EQ(step->lanes[1].predicted, plain.lane(keyhole::to_index(i), 1).predicted);
        EXPECT_EQ(step->lanes[1].info->layout, nullptr);
        EXPECT_EQ(step->lanes[1].kl, plain.lane(keyhole::to_index(i), 1).kl);
    }
    EXPECT_EQ(session.other_branches().size(), 1u);
}

TEST_F(SharingSession, WhatTheModelCannotBeIsRefusedAndNothingChanges) {
    EXPECT_NE(error_of(
                  [&] {
                      run({"full", "h2o:kv=gqa:3"});
                  },
                  ErrorCode::wrong_use)
                  .find("divisor"),
              std::string::npos);
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    keyhole::Session session(model_, *backend, spec_of({"full", "h2o:budget=9"}, true));
    session.prefill();
    session.step();
    error_of([&] { session.apply(parse_command("lane 1 h2o:budget=9,kv=gqa:8")); }, ErrorCode::wrong_use);
    // An override of a borrowing layer is refused; the message names the owner.
    const std::string said =
        error_of([&] { session.apply(parse_command("lane 1 h2o:budget=9,kv=(mlkv:m=2,g=1),alpha@L1=0.5")); },
                 ErrorCode::wrong_use);
    EXPECT_NE(said.find("borrows the KV heads of layer 0"), std::string::npos) << said;
    EXPECT_EQ(session.step()->lanes[1].info->spec, "h2o:budget=9");
    session.apply(parse_command("lane 1 h2o:budget=9,kv=(mlkv:m=2,g=1),budget@L2=4"));
    const auto step = session.step();
    // Layer 3 borrows the heads of layer 2, and with them its budget.
    EXPECT_EQ(step->lanes[1].info->policy.at(3, 1).budget, 4);
    EXPECT_EQ(step->lanes[1].info->policy.at(1, 1).budget, 9);
    EXPECT_EQ(step->lanes[1].use.stored_tokens, 9 + 4);
    // The lane's history may name a layer that borrows under the new sharing, even when the new spec does
    // not.
    session.apply(parse_command("add h2o:budget=9,alpha@L1=0.5"));
    session.apply(parse_command("lane 2 h2o:budget=9"));
    session.step();
    const std::string past = error_of(
        [&] { session.apply(parse_command("lane 2 h2o:budget=9,kv=(mlkv:m=2,g=1)")); }, ErrorCode::wrong_use);
    for (const char* part : {"ran as 'h2o:budget=9,alpha@L1=0.5'", "borrows the KV heads of layer 0",
                             "'add h2o:budget=9,kv=(mlkv:m=2,g=1)' gives a lane without that past"})
        EXPECT_NE(past.find(part), std::string::npos) << past;
    session.apply(parse_command("add h2o:budget=9,kv=(mlkv:m=2,g=1)"));
    EXPECT_EQ(session.step()->lanes[3].info->kv, "mlkv:m=2,g=1");
}

TEST_F(SharingSession, TraceFilesKeepTheLayoutOfALane) {
    const SessionRun live =
        run({"full", "h2o:budget=8,kv=(mlkv:m=2,g=2)"}, {{4, "lane 0 full:kv=mqa"}, {5, "pin 1 3"}});
    fs::create_directories(folder_);
    const auto expect_same = [&](const keyhole::StepList& read) {
        ASSERT_EQ(read.size(), live.steps.size());
        keyhole::RunHistory a = history_of(live), b;
        b.update(read);
        ASSERT_EQ(a.lanes().size(), b.lanes().size());
        ASSERT_NE(live.lane(5, 0).prompt_rows, nullptr);
        ASSERT_NE(read[5]->lanes[0].prompt_rows, nullptr);
        EXPECT_EQ(read[5]->lanes[0].prompt_rows->attention, live.lane(5, 0).prompt_rows->attention);
        std::vector<float> x(keyhole::to_index(a.n_positions())), y(x.size());
        for (int lane = 0; lane < static_cast<int>(a.lanes().size()); ++lane) {
            EXPECT_TRUE(a.layout(lane) == b.layout(lane)) << lane;
            for (int g = 0; g < a.layout(lane).n_kv_heads(); ++g) {
                EXPECT_EQ(a.pinned(lane, g, 3, a.last_row()), b.pinned(lane, g, 3, a.last_row()));
                for (int p = 0; p < a.n_positions(); ++p)
                    EXPECT_EQ(a.evicted_at(lane, g, p), b.evicted_at(lane, g, p));
            }
            for (int row = kPrompt - 1; row <= a.last_row(); ++row)
                for (int h = 0; h < kHeads; ++h)
                    if (a.attention_row(lane, row, 3, h, x)) {
                        ASSERT_TRUE(b.attention_row(lane, row, 3, h, y));
                        EXPECT_EQ(x, y);
                    }
        }
        EXPECT_EQ(read[2]->lanes[1].info->kv, "mlkv:m=2,g=2");
        EXPECT_TRUE(read[2]->lanes[1].info->merged);
        EXPECT_EQ(read[2]->lanes[1].info->token_bytes, live.lane(2, 1).info->token_bytes);
        ASSERT_NE(read[0]->lanes[1].prompt_rows, nullptr);
        EXPECT_EQ(read[0]->lanes[1].prompt_rows->attention, live.lane(0, 1).prompt_rows->attention);
        EXPECT_EQ(read[0]->lanes[0].prompt_rows, nullptr);
    };
    keyhole::write_trace(live.steps, folder_ / "run.keyhole");
    expect_same(keyhole::read_trace(folder_ / "run.keyhole"));
    keyhole::TraceWriter writer(folder_ / "spooled.keyhole");
    for (const auto& step : live.steps) writer.append(*step);
    writer.finish();
    expect_same(keyhole::read_trace(folder_ / "spooled.keyhole"));
}

TEST_F(SharingSession, ExportsGoByTheKvHeadsOfEachLane) {
    const std::vector<std::string> lanes = {"full", "h2o:budget=8,kv=(mlkv:m=2,g=1)"};
    for (const bool all_rows : {false, true}) {
        keyhole::ExportOptions options;
        options.folder = folder_ / (all_rows ? "all" : "decode");
        options.all_rows = all_rows;
        keyhole::parse_export_list("run,mask,scores,attention,csv", options);
        keyhole::RunSpec spec = spec_of(lanes, true);
        spec.requested = options.requested();
        keyhole::ExportSink sink(
            options, {model_->layout(), kPrompt, 2, kPrompt + 11, keyhole::layouts_of(*model_, spec.lanes)});
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        keyhole::StepList steps;
        keyhole::replay(model_, *backend, spec, 1000, &sink,
                        [&](const auto& step) { steps.push_back(step); });
        keyhole::RunHistory history;
        history.update(steps);
        sink.finish(history);

        const std::int64_t n_rows = all_rows ? kPrompt + 12 : 12, n = kPrompt + 12;
        const auto read = [&](int lane, const char* name) {
            return keyhole::read_npy(options.folder / ("lane" + std::to_string(lane)) / name);
        };
        EXPECT_EQ(read(0, "scores.npy").shape, (keyhole::NpyShape{n_rows, 16, n}));
        const keyhole::NpyArray scores = read(1, "scores.npy"), attention = read(1, "attention.npy");
        ASSERT_EQ(scores.shape, (keyhole::NpyShape{n_rows, 2, n}));
        EXPECT_EQ(read(1, "evicted_at.npy").shape, (keyhole::NpyShape{2, n}));
        EXPECT_TRUE(fs::exists(options.folder / "lane1" / "mask_L2_G0.png"));
        EXPECT_FALSE(fs::exists(options.folder / "lane1" / "mask_L1_G0.png"));
        // The score of a KV head is the mean over the query heads of all layers that read it. With alpha 1 it
        // sums all attention so far.
        const std::int64_t last_prompt = all_rows ? kPrompt - 1 : -1;
        for (int g = 0; all_rows && g < 2; ++g)
            for (std::int64_t p = 0; p < kPrompt; ++p) {
                double sum = 0;
                for (std::int64_t row = 0; row <= last_prompt; ++row)
                    for (std::int64_t l = 2 * g; l < 2 * g + 2; ++l)
                        for (std::int64_t h = 0; h < kHeads; ++h)
                            sum += static_cast<double>(
                                attention.value(((row * kLayers + l) * kHeads + h) * n + p));
                EXPECT_NEAR(static_cast<double>(scores.value((last_prompt * 2 + g) * n + p)),
                            sum / (2 * kHeads), 1e-4);
            }
        const auto json = nlohmann::json::parse(keyhole::make_run_json(history, all_rows ? 0 : kPrompt));
        EXPECT_EQ(json["kv_heads"].size(), 16u);
        const auto& lane = json["lanes"][1];
        ASSERT_EQ(lane["kv_heads"].size(), 2u);
        EXPECT_EQ(lane["kv_heads"][1]["owner_layer"], 2);
        EXPECT_EQ(lane["kv_heads"][1]["readers"].size(), 2u * kHeads);
        EXPECT_EQ(lane["kv_heads"][1]["readers"][7]["layer"], 3);
        EXPECT_EQ(lane["kv"]["sharing"], "mlkv:m=2,g=1");
        EXPECT_EQ(lane["kv"]["uptrained"], false);
        EXPECT_EQ(lane["kv"]["bytes_per_token"], 2 * 2 * 8 * 4);
        EXPECT_FALSE(json["lanes"][0].contains("kv_heads"));
        EXPECT_EQ(json["lanes"][0]["kv"]["uptrained"], true);
    }
}

TEST_F(SharingSession, KeptSetsOfLanesAreComparedByQueryHead) {
    // Both keep the newest 6 everywhere, so the sets are equal under any sharing.
    const keyhole::RunHistory same =
        history_of(run({"window:budget=6", "window:budget=6,kv=(mlkv:m=2,g=1)"}));
    const auto metrics = keyhole::run_metrics(same);
    for (const double layer : metrics[1].jaccard[0]) EXPECT_DOUBLE_EQ(layer, 1.0);
    for (const double layer : metrics[1].recent_by_layer) EXPECT_DOUBLE_EQ(layer, 1.0);
    // 6 of 9 tokens in common: 6 / 9 in every layer, borrowing layers too.
    const keyhole::RunHistory part =
        history_of(run({"window:budget=9", "window:budget=6,kv=(mlkv:m=2,g=1)"}));
    const auto parts = keyhole::run_metrics(part);
    for (const double layer : parts[1].jaccard[0]) EXPECT_NEAR(layer, 6.0 / 9.0, 1e-9);
}

}  // namespace
}  // namespace reference::test_sharing_session
