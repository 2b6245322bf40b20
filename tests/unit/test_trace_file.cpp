#include "engine/base/index.h"
#include "engine/trace/trace_file.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/trace/run_history.h"
#include "engine/trace/spool.h"
#include "engine/trace/spool_folder.h"
#include "engine/trace/trace_json.h"

#include "tests/reference/sanitizer.h"
#include "tests/unit/test_trace.h"
#include "tests/unit/trace_members.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zip.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <random>

namespace keyhole::test_trace_file {
namespace {

using testing_trace::change_member;
using testing_trace::limit_data;
using testing_trace::Maker;
using testing_trace::member_of;
namespace fs = std::filesystem;

bool same(float a, float b) {
    return a == b || (std::isnan(a) && std::isnan(b));
}

template <class Values>
bool same_all(const Values& a, const Values& b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i)
        if (!same(static_cast<float>(a[i]), static_cast<float>(b[i]))) return false;
    return true;
}

/// Returns the first difference of the records; empty when they are equal.
std::string difference(const StepList& a, const StepList& b) {
    if (a.size() != b.size()) return fmt::format("{} and {} steps", a.size(), b.size());
    for (std::size_t s = 0; s < a.size(); ++s) {
        const StepTrace &x = *a[s], &y = *b[s];
        const RunInfo &r = *x.run, &q = *y.run;
        if (r.prompt != q.prompt || r.prompt_tokens != q.prompt_tokens || r.model_path != q.model_path ||
            r.model_hash != q.model_hash || r.backend != q.backend || r.seed != q.seed ||
            r.n_generate != q.n_generate || r.token_display != q.token_display ||
            r.token_bytes != q.token_bytes || r.config.n_vocab != q.config.n_vocab ||
            r.config.eos != q.config.eos || r.config.family != q.config.family ||
            r.config.norm_eps != q.config.norm_eps || r.start.answer_end != q.start.answer_end ||
            r.start.right_answer != q.start.right_answer || r.start.watch != q.start.watch ||
            r.start.looks != q.start.looks || r.layout.n_kv_heads() != q.layout.n_kv_heads())
            return "run";
        if (x.row != y.row || x.commands != y.commands || !same(x.step_ms, y.step_ms))
            return fmt::format("step {}", s);
        if (!x.prompt_rows != !y.prompt_rows) return "prompt rows";
        if (x.prompt_rows && (x.prompt_rows->size != y.prompt_rows->size ||
                              x.prompt_rows->reduction != y.prompt_rows->reduction ||
                              x.prompt_rows->attention != y.prompt_rows->attention))
            return "prompt rows";
        if (x.lanes.size() != y.lanes.size()) return fmt::format("lanes of step {}", s);
        for (std::size_t n = 0; n < x.lanes.size(); ++n) {
            const LaneRecord &l = x.lanes[n], &m = y.lanes[n];
            const auto where = fmt::format("step {}, lane {}: ", s, n);
            if (l.info->id != m.info->id || l.info->spec != m.info->spec ||
                l.info->effective != m.info->effective || !(l.info->policy == m.info->policy))
                return where + "info";
            if (l.token != m.token || !same(l.log_prob, m.log_prob) || l.predicted != m.predicted ||
                !same(l.entropy, m.entropy) || l.kl.has_value() != m.kl.has_value() ||
                !same(l.kl.value_or(0), m.kl.value_or(0)) || l.agrees != m.agrees || !same(l.tau, m.tau) ||
                l.use.stored_tokens != m.use.stored_tokens || l.use.stored_bytes != m.use.stored_bytes ||
                l.use.allocated_bytes != m.use.allocated_bytes || l.attended_tokens != m.attended_tokens ||
                l.ended != m.ended || l.failure != m.failure || l.top.size() != m.top.size())
                return where + "scalars";
            for (std::size_t k = 0; k < l.top.size(); ++k)
                if (l.top[k].id != m.top[k].id || !same(l.top[k].log_prob, m.top[k].log_prob))
                    return where + "top";
            if (l.evictions != m.evictions) return where + "evictions";
            if (!same(l.measures.retained_mass, m.measures.retained_mass) ||
                !same(l.measures.cosine_ideal, m.measures.cosine_ideal) ||
                !same(l.measures.sink_share, m.measures.sink_share) ||
                l.use.shadow_bytes != m.use.shadow_bytes)
                return where + "measures";
            if (!l.shadow != !m.shadow) return where + "shadow";
            if (l.shadow && (l.shadow->retained_mass != m.shadow->retained_mass ||
                             l.shadow->cosine_ideal != m.shadow->cosine_ideal ||
                             l.shadow->cosine_full != m.shadow->cosine_full ||
                             l.shadow->output_similarity != m.shadow->output_similarity))
                return where + "shadow row";
            if (!l.rows != !m.rows) return where + "rows";
            if (l.rows &&
                (l.rows->offset != m.rows->offset || l.rows->head_offset != m.rows->head_offset ||
                 l.rows->attention != m.rows->attention || !same_all(l.rows->scores, m.rows->scores) ||
                 !same_all(l.rows->threshold, m.rows->threshold)))
                return where + "row block";
        }
    }
    return {};
}

class TraceFile : public ::testing::Test {
  protected:
    void SetUp() override {
        folder_ = fs::path(::testing::TempDir()) /
                  fmt::format("keyhole_trace_{}_{}",
                              ::testing::UnitTest::GetInstance()->current_test_info()->name(), getpid());
        fs::remove_all(folder_);
        fs::create_directories(folder_);
        path_ = folder_ / "run.keyhole";
    }
    void TearDown() override { fs::remove_all(folder_); }

    static void add_shadow(LaneRecord& record, float first) {
        record.measures.retained_mass = record.measures.sink_share = first;
        record.use.shadow_bytes = 4096;
        auto shadow = std::make_shared<ShadowRow>();
        for (auto* values : {&shadow->retained_mass, &shadow->cosine_ideal, &shadow->cosine_full,
                             &shadow->output_similarity})
            for (int h = 0; h < testing_trace::kLayers * testing_trace::kHeads; ++h)
                values->push_back(first += 0.1f);
        record.shadow = std::move(shadow);
    }

    /// Returns a run with everything that records can hold: lanes that join, leave, end and fail, thinned
    /// rows, missing scores, odd numbers.
    static StepList everything(int n_rows = 8) {
        auto run = std::make_shared<RunInfo>(*testing_trace::make_run());
        run->prompt = "caf\xe9 \xe2\x82\xac";
        run->start.answer_end = {{"\xe9", "."}, 7};
        run->start.right_answer = "caf\xe9";
        run->start.watch = "\xe2\x82";
        run->start.looks = {0, 5};
        Maker maker(run);
        maker.add_lane(0, 0);
        maker.add_lane(3, 4);
        StepList steps;
        for (int i = 0; i < n_rows; ++i) {
            if (i == 3) maker.add_lane(9, 4);
            auto step = std::make_shared<StepTrace>(*maker.next().step);
            if (i == 0) {
                auto prompt = std::make_shared<PromptRows>();
                prompt->reduction = 2;
                prompt->size = 3;
                for (int k = 0; k < 12 * 9; ++k)
                    prompt->attention.push_back(fp16_from_float(static_cast<float>(k) / 128));
                step->prompt_rows = prompt;
            }
            if (i == 2) step->commands = {"lane 1 h2o:budget=3", "follow off"};
            if (i == 4) step->lanes[1].rows = nullptr;
            if (i == 5) {
                auto block = std::make_shared<RowBlock>(*step->lanes[0].rows);
                block->scores.clear();
                step->lanes[0].rows = block;
            }
            if (i == 1 || i == 4) add_shadow(step->lanes[1], 0.01f * static_cast<float>(i));
            if (i == 6) {
                step->lanes[1].ended = true;
                step->lanes[2].failure = "out of \"memory\"";
                step->lanes[0].kl = std::numeric_limits<float>::infinity();
                step->lanes[0].top.clear();
                auto info = std::make_shared<LaneInfo>(*step->lanes[0].info);
                info->spec = "keyformer:budget=5,tau=(0:1 20:1.4),alpha@L0-1.H2-3=0.5";
                info->policy = resolve(parse_lane_spec(info->spec).policy, testing_trace::kPrompt, 10,
                                       head_grid(step->run->layout));
                step->lanes[0].info = info;
            }
            steps.push_back(step);
        }
        return steps;
    }

    std::string error_of(const fs::path& path) const {
        try {
            read_trace(path);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
            return error.what();
        }
        return {};
    }

    fs::path folder_, path_;
};

TEST_F(TraceFile, RecordsComeBackAsTheyWere) {
    const StepList steps = everything();
    write_trace(steps, path_);
    const StepList back = read_trace(path_);
    EXPECT_EQ(difference(steps, back), "");
    EXPECT_NE(back.front()->run->id, steps.front()->run->id);
    EXPECT_NE(read_trace(path_).front()->run->id, back.front()->run->id);
    EXPECT_FALSE(fs::exists(path_.string() + ".scratch"));
}

// Only a lane with a parent can be marked `replayed`. Files that mark a lane without a parent still open.
TEST_F(TraceFile, ALaneWithoutAParentIsNotReplayed) {
    const auto info_of = [](const std::string& json) {
        ReadBudget budget("a trace", json.size());
        return TraceParser("a trace", budget).parse(json, nullptr).steps.back()->lanes.back().info;
    };
    StepTrace step = *everything(1).front();
    auto info = std::make_shared<LaneInfo>(*step.lanes.back().info);
    info->replayed = true;
    step.lanes.back().info = info;
    std::string json = format_trace_json({std::make_shared<const StepTrace>(step)}, true);
    EXPECT_EQ(json.find("relived"), std::string::npos);
    EXPECT_FALSE(info_of(json)->replayed);
    const std::string id = fmt::format("\"id\":{},\"spec\"", info->id);
    ASSERT_NE(json.rfind(id), std::string::npos);
    json.insert(json.rfind(id), "\"forked\":{\"relived\":true},");
    EXPECT_FALSE(info_of(json)->replayed);
    EXPECT_EQ(info_of(json)->forked_from, -1);
}

TEST_F(TraceFile, ReplaysLikeTheRun) {
    const StepList steps = everything();
    write_trace(steps, path_);
    RunHistory live, replayed;
    live.update(steps);
    replayed.update(read_trace(path_));
    std::vector<float> a(to_index(live.n_positions())), b = a;
    for (int lane = 0; lane < 3; ++lane)
        for (int row = 5; row <= live.last_row(); ++row)
            for (int g = 0; g < 6; ++g) {
                EXPECT_EQ(live.attended_positions(lane, g, row), replayed.attended_positions(lane, g, row));
                EXPECT_EQ(live.attention_row(lane, row, g / 2, g % 4, a),
                          replayed.attention_row(lane, row, g / 2, g % 4, b));
                EXPECT_EQ(a, b);
            }
}

TEST_F(TraceFile, WriterSpoolsAndZips) {
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
        EXPECT_TRUE(fs::exists(path_.string() + ".spool"));
        EXPECT_FALSE(fs::exists(path_));
        writer.finish();
    }
    EXPECT_FALSE(fs::exists(path_.string() + ".spool"));
    EXPECT_EQ(difference(steps, read_trace(path_)), "");
}

// Moves rows of some 60 MB from the spool into the file, in a process that may use 24 MB more.
TEST_F(TraceFile, FinishingTakesNoMemoryForTheRows) {
    if (reference::under_a_sanitizer()) GTEST_SKIP() << "sanitizers hold memory of their own";
    constexpr int kRows = 1500;
    TraceWriter writer(path_);
    Maker maker;
    maker.add_lane(0, 0);
    std::size_t n_bytes = 0;
    for (int i = 0; i < kRows; ++i) {
        const auto step = maker.next().step;
        n_bytes += step->lanes[0].rows->bytes();
        writer.append(*step);
    }
    ASSERT_GT(n_bytes, std::size_t{48} << 20);
    const auto finish = [&] {
        limit_data(std::size_t{24} << 20);
        writer.finish();
        std::_Exit(0);
    };
    EXPECT_EXIT(finish(), ::testing::ExitedWithCode(0), "");
    const StepList back = read_trace(path_);
    ASSERT_EQ(back.size(), to_index(kRows));
    Maker again;
    again.add_lane(0, 0);
    StepList steps;
    for (int i = 0; i < 3; ++i) steps.push_back(again.next().step);
    EXPECT_EQ(difference(steps, StepList(back.begin(), back.begin() + 3)), "");
}

TEST_F(TraceFile, SpoolOfACrashIsRecoveredUpToItsLastWholeRecord) {
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
    }  // no finish()
    const fs::path spool = path_.string() + ".spool", frames = spool / "frames.bin";
    fs::resize_file(frames, fs::file_size(frames) - 7);
    EXPECT_EQ(recover_spool(spool), path_);
    EXPECT_EQ(difference(StepList(steps.begin(), steps.end() - 1), read_trace(path_)), "");
    EXPECT_FALSE(fs::exists(spool));
}

TEST_F(TraceFile, ANewTraceLosesNoSpoolThatLiesInItsWay) {
    const StepList steps = everything();
    const auto crash = [&] {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
    };
    const auto beside = [&](const char* name) {
        return path_.parent_path() / (path_.stem().string() + name);
    };
    crash();
    crash();  // rescues the first spool
    EXPECT_EQ(difference(steps, read_trace(beside("-recovered.keyhole"))), "");
    // Frames of a version that this reader does not know.
    const fs::path frames = path_.string() + ".spool/frames.bin";
    std::string bytes = read_text_file(frames);
    bytes[7] = '9';
    write_text_file(frames, bytes);
    crash();
    EXPECT_EQ(read_text_file(beside("-recovered-2.keyhole.spool") / "frames.bin"), bytes);
    EXPECT_EQ(difference(steps, read_trace(beside("-recovered.keyhole"))), "") << "not written over";
    // Frames that are whole but form no valid trace.
    StepTrace last = *steps.back();
    auto block = std::make_shared<RowBlock>(*last.lanes[0].rows);
    block->offset.back() -= 1;
    block->scores.pop_back();
    last.lanes[0].rows = block;
    bytes.clear();
    for (std::size_t i = 0; i + 1 < steps.size(); ++i) bytes += make_frame(*steps[i], i == 0);
    bytes += make_frame(last, false);
    write_text_file(frames, bytes);
    crash();
    EXPECT_EQ(read_text_file(beside("-recovered-3.keyhole.spool") / "frames.bin"), bytes);
    EXPECT_FALSE(fs::exists(beside("-recovered-3.keyhole")));
    EXPECT_EQ(difference(steps, read_trace(recover_spool(path_.string() + ".spool"))), "");
}

// Tables are as wide as the number of KV heads. A long run with many more query heads is within bounds.
TEST_F(TraceFile, TheLongestRowGoesByKvHeads) {
    constexpr int kMany = 1 << 16, kRow = 5000;
    auto run = std::make_shared<RunInfo>(*testing_trace::make_run());
    run->config.n_layers = run->config.n_kv_heads = 1;
    run->config.n_heads = kMany;
    run->layout = KvLayout::grouped(1, kMany, 1);
    run->prompt_tokens.assign(kRow + 1, 1);
    StepTrace step;
    step.run = run;
    step.row = kRow;
    LaneRecord& lane = step.lanes.emplace_back();
    lane.info = testing_trace::make_lane(0, 0);
    TraceWriter writer(path_);
    writer.append(step);
    writer.finish();
    EXPECT_EQ(read_trace(path_).back()->row, kRow);
}

TEST_F(TraceFile, DamagedSpoolGivesWhatComesBeforeTheDamage) {
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
    }
    const fs::path spool = path_.string() + ".spool", frames = spool / "frames.bin";
    std::string bytes = read_text_file(frames);
    bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 4);
    write_text_file(frames, bytes);
    recover_spool(spool);
    EXPECT_EQ(difference(StepList(steps.begin(), steps.end() - 1), read_trace(path_)), "");
    fs::create_directories(spool);
    write_text_file(frames, "rubbish");
    EXPECT_THROW(recover_spool(spool), Error);
}

// A hash shows that a frame is whole, not that it is valid. Recovery of any content gives a trace or one
// error.
TEST_F(TraceFile, NoFrameBringsMoreThanAnError) {
    const fs::path spool = path_.string() + ".spool", frames = spool / "frames.bin";
    std::vector<std::string> payloads;
    for (const StepList steps = everything(5); const auto& step : steps)
        payloads.push_back(make_frame(*step, payloads.empty()).substr(24));
    std::mt19937 random(5);
    int n_errors = 0, n_traces = 0;
    for (int i = 0; i < 400; ++i) {
        std::vector<std::string> changed = payloads;
        std::string& payload = changed[random() % changed.size()];
        std::uint64_t n_text = 0;
        std::memcpy(&n_text, payload.data(), sizeof n_text);
        // Three of four changes are in the arrays, which JSON checks do not cover; numbers become large,
        // negative or otherwise different.
        const std::size_t first = i % 4 == 0 ? 8 : 8 + n_text,
                          at = first + random() % (payload.size() - first);
        payload[at] = static_cast<char>(payload[at] ^ (1 << random() % 8));
        std::string bytes;
        for (const std::string& p : changed) bytes += frame_of(p);
        fs::create_directories(spool);
        write_text_file(frames, bytes);
        try {
            const fs::path trace = recover_spool(spool);
            RunHistory history;
            history.update(read_trace(trace));
            fs::remove(trace);
            ++n_traces;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file) << error.what();
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
            ++n_errors;
        }
        fs::remove_all(spool);
    }
    EXPECT_GT(n_errors, 20);
    EXPECT_GT(n_traces, 20);
}

/// Invalid frame contents, one at a time.
TEST_F(TraceFile, FramesThatDoNotFitTheirRunAreNamed) {
    const fs::path spool = path_.string() + ".spool", frames = spool / "frames.bin";
    const auto fault = [&](const std::function<void(StepTrace&)>& change) -> std::string {
        const StepList steps = everything(3);
        StepTrace last = *steps.back();
        change(last);
        fs::create_directories(spool);
        write_text_file(frames,
                        make_frame(*steps[0], true) + make_frame(*steps[1], false) + make_frame(last, false));
        try {
            fs::remove(recover_spool(spool));
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            return error.what();
        }
        return "";
    };
    const auto rows = [](StepTrace& step, const auto& change) {
        auto block = std::make_shared<RowBlock>(*step.lanes[0].rows);
        change(*block);
        step.lanes[0].rows = std::move(block);
    };
    const auto info = [](StepTrace& step, const auto& change) {
        auto other = std::make_shared<LaneInfo>(*step.lanes[1].info);
        change(*other);
        step.lanes[1].info = std::move(other);
    };
    EXPECT_EQ(fault([](StepTrace&) {}), "");
    const auto says = [](const std::string& text, const char* part) {
        return text.find(part) != std::string::npos;
    };
    EXPECT_TRUE(says(fault([](StepTrace& s) {
                         s.lanes[1].evictions.push_back({6, 0, s.row});
                     }),
                     "an eviction"));
    EXPECT_TRUE(says(fault([](StepTrace& s) {
                         s.lanes[1].evictions.push_back({0, s.row + 1, s.row});
                     }),
                     "an eviction"));
    EXPECT_TRUE(says(fault([](StepTrace& s) {
                         s.lanes[0].pins = std::make_shared<const PinList>(PinList{{-1, 2}});
                     }),
                     "a pin"));
    EXPECT_TRUE(says(fault([](StepTrace& s) {
                         s.lanes[0].hidden = std::make_shared<const HiddenSet>(
                             HiddenSet{{0, 1, 2, 3, 4, 5, 9}, {1, 2, 3, 4, 5, 6}});
                     }),
                     "the hidden positions"));
    EXPECT_TRUE(says(fault([](StepTrace& s) { s.lanes[0].shadow = std::make_shared<const ShadowRow>(); }),
                     "the shadow"));
    EXPECT_TRUE(
        says(fault([&](StepTrace& s) { rows(s, [](RowBlock& b) { b.attention.pop_back(); }); }), "the rows"));
    EXPECT_TRUE(
        says(fault([&](StepTrace& s) { rows(s, [](RowBlock& b) { b.offset[1] = 99; }); }), "the rows"));
    EXPECT_TRUE(says(fault([&](StepTrace& s) {
                         rows(s, [](RowBlock& b) {
                             b.offset.back() -= 1;
                             b.scores.pop_back();
                         });
                     }),
                     "its records are damaged"));
    EXPECT_TRUE(says(fault([](StepTrace& s) { s.row = 1 << 19; }), "the place"));
    EXPECT_TRUE(says(fault([&](StepTrace& s) { info(s, [](LaneInfo& l) { l.id = 0; }); }),
                     "has other KV heads than before"));
}

TEST_F(TraceFile, NewRunUnderTheNameOfACrashedOneSavesThatFirst) {
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
    }
    TraceWriter writer(path_);
    EXPECT_EQ(difference(steps, read_trace(folder_ / "run-recovered.keyhole")), "");
    writer.append(*steps.front());
    writer.finish();
    EXPECT_EQ(read_trace(path_).size(), 1u);
}

TEST_F(TraceFile, MembersAreTheDocumentedArrays) {
    const StepList steps = everything();
    write_trace(steps, path_);
    int error = 0;
    zip_t* zip = zip_open(path_.c_str(), ZIP_RDONLY, &error);
    ASSERT_NE(zip, nullptr);
    const auto member = [&](const char* name) {
        zip_stat_t stat;
        EXPECT_EQ(zip_stat(zip, name, 0, &stat), 0) << name;
        std::vector<std::byte> bytes(stat.size);
        zip_file_t* file = zip_fopen(zip, name, 0);
        EXPECT_EQ(zip_fread(file, bytes.data(), bytes.size()), static_cast<zip_int64_t>(bytes.size()));
        zip_fclose(file);
        return decode_npy(bytes, name);
    };
    const int n_positions = steps.back()->row + 1;
    EXPECT_EQ(member("lane1/evicted_at.npy").shape, (NpyShape{6, n_positions}));
    EXPECT_EQ(member("lane2/rows.npy").as<std::int32_t>(), (std::vector<std::int32_t>{8, 9, 10, 11, 12}));
    EXPECT_EQ(member("prompt_attention.npy").shape, (NpyShape{12, 3, 3}));
    // Values of held positions only, in the order of rows, layers and heads, as trace_file.h says.
    for (const char* lane : {"lane0", "lane1"}) {
        const int index = lane[4] - '0';
        const std::string prefix = std::string(lane) + "/";
        const NpyArray attention = member((prefix + "attention.npy").c_str()),
                       scores = member((prefix + "scores.npy").c_str()),
                       evicted_at = member((prefix + "evicted_at.npy").c_str());
        const auto held = [&](int g, int p, int row) {
            const float evicted = evicted_at.value(g * n_positions + p);
            return p <= row && (evicted < 0 || evicted >= static_cast<float>(row));
        };
        std::int64_t at = 0, score_at = 0;
        for (const auto& step : steps) {
            const LaneRecord& record = step->lanes[to_index(index)];
            if (!record.rows) continue;
            const int id = record.info->id;
            for (int unit = 0; unit < 12; ++unit)
                for (int p = 0; p <= step->row; ++p) {
                    if (!held(unit / 4 * 2 + unit % 4 / 2, p, step->row)) continue;
                    ASSERT_EQ(attention.value(at++),
                              testing_trace::attention_value(id, step->row, unit / 4, unit % 4, p));
                }
            for (int g = 0; g < 6 && !record.rows->scores.empty(); ++g)
                for (int p = 0; p <= step->row; ++p) {
                    if (!held(g, p, step->row)) continue;
                    ASSERT_EQ(scores.value(score_at++), testing_trace::score_value(id, step->row, g, p));
                }
        }
        EXPECT_EQ(attention.shape, NpyShape{at});
        EXPECT_EQ(scores.shape, NpyShape{score_at});
    }
    zip_discard(zip);
}

TEST_F(TraceFile, EveryTruncationIsOneErrorThatNamesTheFile) {
    write_trace(everything(3), path_);
    const std::string good = read_text_file(path_);
    const fs::path cut = folder_ / "cut.keyhole";
    for (std::size_t size = 0; size < good.size(); size += std::max<std::size_t>(1, good.size() / 150)) {
        write_text_file(cut, good.substr(0, size));
        EXPECT_NE(error_of(cut).find(cut.string()), std::string::npos) << size;
    }
    EXPECT_NE(error_of(folder_ / "absent.keyhole").find("absent.keyhole"), std::string::npos);
}

TEST_F(TraceFile, ReadingReportsProgressAndCanBeStopped) {
    const StepList steps = everything();
    write_trace(steps, path_);
    std::vector<double> told;
    const auto listen = [&](double done) {
        told.push_back(done);
        return true;
    };
    EXPECT_EQ(difference(steps, read_trace(path_, listen)), "");
    std::size_t n_rows = 0;
    for (const auto& step : steps)
        for (const LaneRecord& lane : step->lanes) n_rows += lane.rows != nullptr;
    EXPECT_EQ(told.size(), n_rows);
    EXPECT_TRUE(std::is_sorted(told.begin(), told.end()));
    EXPECT_EQ(told.back(), 1);
    int n_told = 0;
    try {
        read_trace(path_, [&](double) { return ++n_told < 3; });
        FAIL() << "it went on";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::cancelled);
        EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos);
    }
    EXPECT_EQ(n_told, 3);
}

// A flipped bit either changes nothing that is read (dates, attributes) or gives one error. It never gives
// other records.
TEST_F(TraceFile, EveryFlippedBitIsNoticedOrHarmless) {
    const StepList steps = everything(3);
    write_trace(steps, path_);
    const std::string good = read_text_file(path_);
    const fs::path flipped = folder_ / "flipped.keyhole";
    std::mt19937 random(1);
    int n_noticed = 0;
    constexpr int kTries = 300;
    for (int i = 0; i < kTries; ++i) {
        std::string bytes = good;
        const std::size_t at = random() % bytes.size();
        bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8));
        write_text_file(flipped, bytes);
        try {
            const StepList back = read_trace(flipped);
            EXPECT_EQ(difference(steps, back), "") << at;
        } catch (const Error& error) {
            ++n_noticed;
            EXPECT_NE(std::string(error.what()).find(flipped.string()), std::string::npos);
        }
    }
    EXPECT_GT(n_noticed, kTries / 2);
}

TEST_F(TraceFile, WrongMembersAreNamed) {
    const StepList steps = everything(4);
    for (const char* name : {"run.json", "lane0/evictions.npy", "lane1/rows.npy", "lane1/attention.npy",
                             "lane0/scores.npy", "lane2/thresholds.npy", "prompt_reduction.npy"}) {
        write_trace(steps, path_);
        change_member(path_, name, nullptr);
        EXPECT_NE(error_of(path_).find(name), std::string::npos) << name;
        write_trace(steps, path_);
        const std::string rubbish = "rubbish";
        change_member(path_, name, &rubbish);
        EXPECT_NE(error_of(path_).find(name), std::string::npos) << name;
    }
    const auto npy = [](NpyType type, const NpyShape& shape, const std::vector<std::int32_t>& data) {
        const auto bytes = encode_npy(type, shape, data.data());
        return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    };
    for (const auto& [name, bytes] :
         {std::pair{"lane1/evictions.npy", npy(NpyType::i32, {1, 4}, {6, 99, 0, 6})},
          {"lane1/evictions.npy", npy(NpyType::i32, {1, 4}, {6, 0, -3, 6})},
          {"lane1/evictions.npy", npy(NpyType::i32, {1, 4}, {600, 0, 0, 6})},
          {"lane0/rows.npy", npy(NpyType::i32, {4}, {5, 6, 7, 99})},
          {"lane0/rows.npy", npy(NpyType::i32, {4}, {5, 6, 7, 7})},
          {"lane0/rows.npy", npy(NpyType::i32, {1}, {5})},
          {"lane0/scores.npy", npy(NpyType::i32, {2}, {1, 2})},
          {"prompt_reduction.npy", npy(NpyType::i32, {1}, {0})}}) {
        write_trace(steps, path_);
        change_member(path_, name, &bytes);
        EXPECT_NE(error_of(path_).find(name), std::string::npos) << name;
    }
    // Large arrays are read line by line: the test gives too few and too many bytes for a valid shape.
    for (const char* name : {"lane0/scores.npy", "lane1/attention.npy"}) {
        write_trace(steps, path_);
        const std::string whole = member_of(path_, name);
        for (const std::string& bytes : {whole.substr(0, whole.size() - 4), whole + "more",
                                         whole.substr(0, 100), whole.substr(0, 7), std::string()}) {
            write_trace(steps, path_);
            change_member(path_, name, &bytes);
            EXPECT_NE(error_of(path_).find(name), std::string::npos) << name << ", " << bytes.size();
        }
    }
}

TEST_F(TraceFile, OtherVersionsAreRefusedByNumber) {
    write_trace(everything(2), path_);
    std::string text = member_of(path_, "run.json");
    text.replace(text.find("\"version\":3"), 11, "\"version\":4");
    change_member(path_, "run.json", &text);
    EXPECT_NE(error_of(path_).find("version 4"), std::string::npos);
}

// Version 1 had no start, branches, measures, pins or hidden positions.
TEST_F(TraceFile, VersionOneOpensWithWhatItHas) {
    write_trace(everything(), path_);
    const StepList now = read_trace(path_);
    nlohmann::json json = nlohmann::json::parse(member_of(path_, "run.json"));
    json["version"] = 1;
    for (const char* key : {"start", "branch", "other_branches"}) json.erase(key);
    const std::string text = json.dump();
    change_member(path_, "run.json", &text);
    const StepList old = read_trace(path_);
    ASSERT_EQ(old.size(), now.size());
    for (std::size_t i = 0; i < old.size(); ++i) {
        EXPECT_EQ(old[i]->row, now[i]->row);
        ASSERT_EQ(old[i]->lanes.size(), now[i]->lanes.size());
        for (std::size_t lane = 0; lane < old[i]->lanes.size(); ++lane) {
            EXPECT_EQ(old[i]->lanes[lane].token, now[i]->lanes[lane].token);
            EXPECT_EQ(old[i]->lanes[lane].evictions, now[i]->lanes[lane].evictions);
        }
    }
    EXPECT_TRUE(old.front()->run->start.lanes.empty());
}

// Versions 1 and 2 stored a value for every position.
TEST_F(TraceFile, RowsOfEveryPositionOpenToo) {
    const StepList steps = everything();
    write_trace(steps, path_);
    RunHistory history;
    history.update(steps);
    const int n_positions = history.n_positions();
    std::vector<float> line(to_index(n_positions));
    for (int lane = 0; lane < 3; ++lane) {
        std::vector<std::uint16_t> attention;
        std::vector<float> scores;
        std::int64_t n_rows = 0;
        for (const auto& step : steps) {
            const LaneRecord* record = history.lane_record(step->row, lane);
            if (!record || !record->rows) continue;
            ++n_rows;
            for (int unit = 0; unit < 12; ++unit) {
                history.attention_row(lane, step->row, unit / 4, unit % 4, line);
                for (const float value : line) attention.push_back(fp16_from_float(value));
            }
            for (int g = 0; g < 6; ++g) {
                std::fill(line.begin(), line.end(), std::numeric_limits<float>::quiet_NaN());
                history.score_row(lane, step->row, g, line);
                scores.insert(scores.end(), line.begin(), line.end());
            }
        }
        for (const auto& [name, bytes] :
             {std::pair("attention", encode_npy(NpyType::f16, {n_rows, 3, 4, n_positions}, attention.data())),
              {"scores", encode_npy(NpyType::f32, {n_rows, 6, n_positions}, scores.data())}}) {
            const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
            change_member(path_, fmt::format("lane{}/{}.npy", lane, name).c_str(), &text);
        }
    }
    EXPECT_EQ(difference(steps, read_trace(path_)), "");
}

/// Returns the message of a TraceWriter with this path; "" when it opens.
std::string refusal(const fs::path& path, ErrorCode code) {
    try {
        TraceWriter writer(path);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), code) << error.what();
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
        return error.what();
    }
    return {};
}

TEST_F(TraceFile, NothingButAFileIsReplaced) {
    const fs::path folder = folder_ / "folder", pipe = folder_ / "pipe";
    fs::create_directory(folder);
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
    EXPECT_NE(refusal(folder, ErrorCode::wrong_use).find("it is a folder"), std::string::npos);
    EXPECT_NE(refusal(pipe, ErrorCode::wrong_use).find("a device or a pipe"), std::string::npos);
    EXPECT_NE(refusal(folder_ / "absent" / "run.keyhole", ErrorCode::io).find("make it first"),
              std::string::npos);
    EXPECT_THROW(write_trace(everything(2), pipe), Error);
    EXPECT_TRUE(fs::is_fifo(pipe));
    EXPECT_FALSE(fs::exists(folder_ / "absent"));
    EXPECT_TRUE(fs::is_empty(folder));
    // A text of another kind stays, and a trace of any name is replaced.
    write_text_file(folder_ / "notes.txt", "mine");
    EXPECT_NE(refusal(folder_ / "notes.txt", ErrorCode::wrong_use).find("is no trace"), std::string::npos);
    EXPECT_EQ(read_text_file(folder_ / "notes.txt"), "mine");
    for (int i = 0; i < 2; ++i) write_trace(everything(2), folder_ / "run.zip");
    EXPECT_EQ(read_trace(folder_ / "run.zip").size(), 2u);
    // A link stays; its target becomes the trace.
    write_text_file(path_, "old");
    fs::create_symlink("run.keyhole", folder_ / "link.keyhole");
    write_trace(everything(2), folder_ / "link.keyhole");
    EXPECT_TRUE(fs::is_symlink(folder_ / "link.keyhole"));
    EXPECT_EQ(read_trace(path_).size(), 2u);
}

TEST_F(TraceFile, FoldersOfOthersStayAsTheyAre) {
    const fs::path spool = path_.string() + ".spool", scratch = path_.string() + ".scratch";
    for (const fs::path& folder : {spool, scratch}) {
        fs::create_directory(folder);
        write_text_file(folder / "thesis.txt", "mine");
    }
    EXPECT_NE(refusal(path_, ErrorCode::io).find("thesis.txt"), std::string::npos);
    EXPECT_EQ(read_text_file(spool / "thesis.txt"), "mine");
    fs::remove_all(spool);
    write_text_file(spool, "a file of that name");
    EXPECT_NE(refusal(path_, ErrorCode::io).find("in the way"), std::string::npos);
    fs::remove(spool);
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
        write_text_file(spool / "thesis.txt", "mine");  // while the run continues
        writer.finish();
    }
    EXPECT_EQ(difference(steps, read_trace(path_)), "");
    EXPECT_EQ(read_text_file(spool / "thesis.txt"), "mine");
    EXPECT_FALSE(fs::exists(spool / "frames.bin"));
    EXPECT_EQ(read_text_file(scratch / "thesis.txt"), "mine");
}

/// Returns the names and contents of all below a folder.
std::map<std::string, std::string> contents(const fs::path& folder) {
    std::map<std::string, std::string> found;
    for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder))
        found[entry.path().lexically_relative(folder).string()] =
            entry.is_regular_file() ? read_text_file(entry.path()) : "";
    return found;
}

TEST_F(TraceFile, ReadingAFolderThatIsNoSpoolChangesNothing) {
    const fs::path spool = path_.string() + ".spool";
    const std::vector<std::pair<std::string, std::string>> files[] = {
        {},
        {{"thesis.txt", "mine"}},
        {{"frames.bin", ""}},
        {{"frames.bin", ""}, {"trace.partner", "mine"}},
        {{"trace.part-notes.txt", "mine"}},
        {{"trace.part", "mine"}, {"trace.part.abcdef", "mine"}},
        {{"frames.bin", "no frames at all, but something"}, {"frames.new", "mine"}}};
    for (const auto& here : files) {
        fs::create_directories(spool / "folder");
        if (here.empty()) fs::remove(spool / "folder");
        for (const auto& [name, text] : here) write_text_file(spool / name, text);
        const auto before = contents(folder_);
        EXPECT_THROW(recover_spool(spool), Error);
        EXPECT_EQ(contents(folder_), before);
        EXPECT_TRUE(fs::is_directory(spool));
        fs::remove_all(spool);
    }
}

TEST_F(TraceFile, RecoveryTakesItsOwnFilesAlone) {
    const fs::path spool = path_.string() + ".spool";
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
    }
    for (const char* mine : {"trace.part-notes.txt", "trace.partner", "trace.part.toolong",
                             "trace.part.ab-def", "frames.bin.old", "thesis.txt"})
        write_text_file(spool / mine, mine);
    for (const char* own : {"frames.new", "trace.part.x7YzQ0"})
        write_text_file(spool / own, "left by a kill");
    const auto before = contents(spool);
    // A recovery that is stopped takes nothing away.
    EXPECT_THROW(recover_spool(spool, [](double) { return false; }), Error);
    EXPECT_EQ(contents(spool), before);
    EXPECT_EQ(difference(steps, read_trace(recover_spool(spool))), "");
    const auto after = contents(spool);
    EXPECT_EQ(after.size(), 6u);
    for (const auto& [name, text] : after) EXPECT_EQ(name, text);
}

TEST_F(TraceFile, AWriterLeavesAFolderThatWasThere) {
    const fs::path spool = path_.string() + ".spool";
    fs::create_directory(spool);
    const StepList steps = everything();
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
        writer.finish();
    }
    EXPECT_TRUE(fs::is_empty(spool));
    write_text_file(spool / "trace.partner", "mine");
    EXPECT_NE(refusal(path_, ErrorCode::io).find("trace.partner"), std::string::npos);
    EXPECT_EQ(read_text_file(spool / "trace.partner"), "mine");
}

TEST_F(TraceFile, OneWriterANameAndNoSpoolOfItsIsRecovered) {
    const StepList steps = everything();
    TraceWriter writer(path_);
    writer.append(*steps.front());
    EXPECT_NE(refusal(path_, ErrorCode::io).find("another Keyhole"), std::string::npos);
    EXPECT_THROW(recover_spool(writer.spool()), Error);
    for (std::size_t i = 1; i < steps.size(); ++i) writer.append(*steps[i]);
    writer.finish();
    EXPECT_EQ(difference(steps, read_trace(path_)), "");
    EXPECT_EQ(refusal(path_, ErrorCode::io), "") << "the lock went with the writer";
}

TEST_F(TraceFile, WritingReportsProgressAndLeavesTheSpoolWhenStopped) {
    const StepList steps = everything();
    write_text_file(path_, "old");
    double last = 0;
    {
        TraceWriter writer(path_);
        for (const auto& step : steps) writer.append(*step);
        try {
            writer.finish([](double) { return false; });
            FAIL() << "it went on";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::cancelled);
            EXPECT_NE(std::string(error.what()).find(writer.spool().string()), std::string::npos);
        }
    }
    EXPECT_EQ(read_text_file(path_), "old");
    EXPECT_EQ(recover_spool(path_.string() + ".spool",
                            [&](double done) {
                                EXPECT_GE(done, last);
                                last = done;
                                return true;
                            }),
              folder_ / "run-recovered.keyhole");
    EXPECT_EQ(last, 1);
    EXPECT_EQ(difference(steps, read_trace(folder_ / "run-recovered.keyhole")), "");
}

TEST_F(TraceFile, AThinnedSpoolKeepsAllRecordsAndTheNewestRows) {
    const StepList steps = everything();
    SpoolFolder spool(folder_ / "run.spool");
    spool.begin();
    std::size_t n_bytes = 0;
    for (std::size_t i = 0; i < 6; ++i) n_bytes += spool.append(*steps[i]);
    const std::size_t last = spool.append(*steps[6]), left = spool.thin(last + 10);
    EXPECT_LT(left, n_bytes + last);
    spool.append(*steps[7]);
    spool.end();
    const Frames frames(spool.frames());
    ASSERT_EQ(frames.light().size(), steps.size());
    EXPECT_EQ(difference({steps[6], steps[7]}, {frames.whole(6), frames.whole(7)}), "");
    for (std::size_t i = 0; i < 6; ++i) {
        StepTrace bare = *steps[i];
        for (LaneRecord& lane : bare.lanes) {
            lane.rows.reset();
            lane.shadow.reset();
        }
        EXPECT_EQ(difference({std::make_shared<const StepTrace>(bare)}, {frames.whole(i)}), "") << i;
    }
}

TEST_F(TraceFile, ASpoolIsThinnedAgainAndAgain) {
    const StepList steps = everything();
    const auto bare = [](const StepTrace& step) {
        StepTrace out = step;
        for (LaneRecord& lane : out.lanes) {
            lane.rows.reset();
            lane.shadow.reset();
        }
        return std::make_shared<const StepTrace>(out);
    };
    SpoolFolder spool(folder_ / "run.spool");
    spool.begin();
    for (std::size_t i = 0; i < 6; ++i) spool.append(*steps[i]);
    std::size_t last = 0;
    for (std::size_t i = 6; i < 8; ++i) {
        last = spool.append(*steps[i]);
        const std::size_t left = spool.thin(last);
        EXPECT_EQ(left, std::filesystem::file_size(spool.frames()));
        const Frames frames(spool.frames());
        ASSERT_EQ(frames.light().size(), i + 1);
        for (std::size_t k = 0; k < i; ++k)
            EXPECT_EQ(difference({bare(*steps[k])}, {frames.whole(k)}), "") << k;
        EXPECT_EQ(difference({steps[i]}, {frames.whole(i)}), "");
    }
    // After a rewind the rows that were cut are gone, and the others stay as they are.
    spool.append(*steps[5]);
    spool.thin(std::size_t{1} << 30);
    spool.end();
    const Frames frames(spool.frames());
    ASSERT_EQ(frames.light().size(), 6u);
    for (std::size_t k = 0; k < 5; ++k) EXPECT_EQ(difference({bare(*steps[k])}, {frames.whole(k)}), "") << k;
    EXPECT_EQ(difference({steps[5]}, {frames.whole(5)}), "");
}

TEST_F(TraceFile, ASpoolThatCannotBeThinnedGoesOnAsItWas) {
    const StepList steps = everything();
    SpoolFolder spool(folder_ / "run.spool");
    spool.begin();
    for (std::size_t i = 0; i < 6; ++i) spool.append(*steps[i]);
    std::filesystem::create_directory(spool.path() / "frames.new");
    EXPECT_THROW(spool.thin(0), Error);
    spool.append(*steps[6]);
    std::filesystem::remove(spool.path() / "frames.new");
    const std::size_t left = spool.thin(std::size_t{1} << 30);
    EXPECT_EQ(left, std::filesystem::file_size(spool.frames()));
    spool.append(*steps[7]);
    spool.end();
    const Frames frames(spool.frames());
    ASSERT_EQ(frames.light().size(), steps.size());
    for (std::size_t i = 0; i < steps.size(); ++i)
        EXPECT_EQ(difference({steps[i]}, {frames.whole(i)}), "") << i;
}

TEST_F(TraceFile, ASpoolWhoseFirstRecordWasRewoundStaysReadable) {
    const StepList steps = everything();
    SpoolFolder spool(folder_ / "run.spool");
    spool.begin();
    for (std::size_t i = 0; i < 3; ++i) spool.append(*steps[i]);
    spool.append(*steps[0]);
    spool.append(*steps[1]);
    spool.thin(std::size_t{1} << 30);
    spool.end();
    const Frames frames(spool.frames());
    ASSERT_EQ(frames.light().size(), 2u);
    EXPECT_EQ(difference({steps[0], steps[1]}, {frames.whole(0), frames.whole(1)}), "");
}

TEST_F(TraceFile, ADamagedSpoolIsNotMadeSound) {
    const StepList steps = everything();
    SpoolFolder spool(folder_ / "run.spool");
    spool.begin();
    for (std::size_t i = 0; i < 2; ++i) spool.append(*steps[i]);
    // A value that thinning does not read.
    std::string bytes = read_text_file(spool.frames());
    for (const LaneRecord& lane : steps[1]->lanes)
        if (lane.rows && lane.rows->scores.size() > 4)
            bytes[bytes.rfind(std::string(reinterpret_cast<const char*>(lane.rows->scores.data()), 16))] ^= 1;
    std::ofstream(spool.frames(), std::ios::binary) << bytes;
    try {
        spool.thin(0);
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file);
    }
}

TEST_F(TraceFile, UnwritablePlaceIsAnIoError) {
    try {
        TraceWriter writer("/proc/nowhere/run.keyhole");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::io);
    }
}

}  // namespace
}  // namespace keyhole::test_trace_file
