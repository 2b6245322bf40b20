// Rewinding: rows after a rewind equal, bit for bit, those of a run that never went further.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/trace/run_history.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

namespace reference::test_rewind {
namespace {

using keyhole::LoggedCommand;
using keyhole::parse_command;

constexpr int kPrompt = 24, kLast = kPrompt + 30 - 1;

/// Rows of the shown branch by (row, lane id). NaNs compare by bits.
class ShownRows : public keyhole::RowSink {
  public:
    void row(const keyhole::StepTrace& step, int lane, const keyhole::RowOutput& out) override {
        const keyhole::LaneRecord& record = step.lanes.at(keyhole::to_index(lane));
        rows[{step.row, record.info->id}] = {out, record.token, record.predicted};
    }
    void rewind(int row) override {
        std::erase_if(rows, [&](const auto& kept) { return kept.first.first > row; });
    }
    struct Kept {
        keyhole::RowOutput out;
        int token = 0, predicted = 0;
    };
    std::map<std::pair<int, int>, Kept> rows;
};

std::string bits(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

struct WholeRun {
    ShownRows sink;
    keyhole::StepList records;  ///< as a recorder keeps them
    keyhole::RunSpec as_run;
    std::vector<keyhole::Branch> others;
};

class SessionRewind : public ::testing::Test {
  protected:
    SessionRewind()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .seed = 11}),
          model_(keyhole::load_model(tiny_.folder())) {}

    keyhole::RunSpec spec(const std::vector<std::string>& script = {}, bool follow = false) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3), lanes_, 30);
        spec.ignore_eos = true;
        spec.follow = follow;
        spec.requested.attention = spec.requested.scores = spec.requested.logits = true;
        for (const std::string& line : script) {
            const std::size_t blank = line.find(' ');
            spec.commands.push_back(
                {kPrompt - 1 + std::stoi(line.substr(0, blank)), parse_command(line.substr(blank + 1))});
        }
        return spec;
    }

    /// Runs the spec as replay() does, with checkpoints.
    WholeRun run(const keyhole::RunSpec& spec, std::size_t checkpoint_bytes) const {
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        WholeRun run;
        keyhole::Session session(model_, *backend, spec, &run.sink, checkpoint_bytes);
        keyhole::Recorder recorder;
        recorder.push(session.prefill());
        std::size_t next = 0;
        while (true) {
            for (; !session.catching_up() && next < spec.commands.size() &&
                   spec.commands[next].row < session.next_row();
                 ++next)
                session.apply(spec.commands[next].command);
            const auto step = session.step();
            if (step == nullptr) break;
            recorder.push(step);
        }
        EXPECT_EQ(next, spec.commands.size());
        run.records = recorder.snapshot().steps;
        run.as_run = session.run_spec();
        run.others = session.other_branches();
        return run;
    }

    static void expect_same(const WholeRun& a, const WholeRun& b) {
        ASSERT_EQ(a.sink.rows.size(), b.sink.rows.size());
        for (const auto& [key, one] : a.sink.rows) {
            const auto found = b.sink.rows.find(key);
            ASSERT_NE(found, b.sink.rows.end()) << "row " << key.first << ", lane " << key.second;
            const auto& other = found->second;
            const std::string where = fmt::format("row {}, lane {}", key.first, key.second);
            ASSERT_EQ(one.token, other.token) << where;
            ASSERT_EQ(one.predicted, other.predicted) << where;
            ASSERT_EQ(bits(one.out.next_logits), bits(other.out.next_logits)) << where;
            ASSERT_EQ(bits(one.out.values.attention), bits(other.out.values.attention)) << where;
            ASSERT_EQ(bits(one.out.values.logits), bits(other.out.values.logits)) << where;
            ASSERT_EQ(bits(one.out.values.scores), bits(other.out.values.scores)) << where;
            ASSERT_EQ(one.out.values.positions, other.out.values.positions) << where;
            ASSERT_EQ(one.out.evictions, other.out.evictions) << where;
        }
        ASSERT_EQ(a.records.size(), b.records.size());
        for (std::size_t t = 0; t < a.records.size(); ++t) {
            const keyhole::StepTrace &x = *a.records[t], &y = *b.records[t];
            ASSERT_EQ(x.row, y.row);
            ASSERT_EQ(x.commands, y.commands) << "row " << x.row;
            ASSERT_EQ(x.lanes.size(), y.lanes.size()) << "row " << x.row;
            for (std::size_t n = 0; n < x.lanes.size(); ++n) {
                const keyhole::LaneRecord &p = x.lanes[n], &q = y.lanes[n];
                ASSERT_EQ(p.info->id, q.info->id) << "row " << x.row;
                ASSERT_EQ(p.info->forked_from, q.info->forked_from);
                ASSERT_EQ(p.info->forked_at, q.info->forked_at);
                ASSERT_EQ(p.info->spec, q.info->spec);
                ASSERT_EQ(p.evictions, q.evictions) << "row " << x.row << ", lane " << n;
                ASSERT_EQ(p.kl, q.kl);
                ASSERT_EQ(p.agrees, q.agrees);
                ASSERT_EQ(p.use.stored_tokens, q.use.stored_tokens);
                ASSERT_EQ(p.use.allocated_bytes, q.use.allocated_bytes) << "row " << x.row << ", lane " << n;
                ASSERT_EQ(p.pins == nullptr, q.pins == nullptr);
                if (p.pins) {
                    ASSERT_EQ(*p.pins, *q.pins);
                }
            }
        }
    }

    /// Compares a straight run of `before` and `after` with a run that takes `detour` in between and rewinds
    /// to row +back_to.
    void expect_detour_leaves_no_trace(const std::vector<std::string>& before,
                                       const std::vector<std::string>& detour, int back_to,
                                       const std::vector<std::string>& after, bool follow = false) {
        std::vector<std::string> straight = before;
        straight.insert(straight.end(), after.begin(), after.end());
        std::vector<std::string> bent = before;
        bent.insert(bent.end(), detour.begin(), detour.end());
        bent.push_back(fmt::format("{} rewind {}", std::stoi(detour.back()), kPrompt - 1 + back_to));
        bent.insert(bent.end(), after.begin(), after.end());
        const WholeRun expected = run(spec(straight, follow), 0);
        for (std::size_t bytes : {std::size_t{0}, std::size_t{300000}, std::size_t{64} << 20}) {
            SCOPED_TRACE(fmt::format("checkpoints of {} bytes", bytes));
            const WholeRun was_bent = run(spec(bent, follow), bytes);
            expect_same(expected, was_bent);
            EXPECT_EQ(was_bent.as_run.commands, expected.as_run.commands);
            ASSERT_GE(was_bent.others.size(), 1u);
        }
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::vector<std::string> lanes_ = {"full", "h2o:budget=10", "keyformer:budget=12,seed=3"};
};

TEST_F(SessionRewind, UnchangedContinuationEqualsTheStraightRun) {
    expect_detour_leaves_no_trace({}, {"20 follow on"}, 5, {});
    expect_detour_leaves_no_trace({}, {"20 follow on"}, 0, {});   // back to the end of the prompt
    expect_detour_leaves_no_trace({}, {"20 follow on"}, 20, {});  // takes the command back
}

TEST_F(SessionRewind, EarlierCommandsAreReplayed) {
    // Positions that the lanes still hold: recent ones.
    const std::vector<std::string> before = {"2 lane 1 h2o:budget=8",
                                             "3 fork 2",
                                             "4 pin 1 27",
                                             "5 evict 3 28 L1",
                                             "5 evict 3 28 L0.H2",
                                             "6 add tova:budget=9",
                                             "8 remove 2",
                                             "9 fork 1 window:budget=6",
                                             "10 sampling temperature=0.9,top_k=0,top_p=1",
                                             "11 unpin 1 27 L0"};
    const std::vector<std::string> detour = {"14 lane 1 full",
                                             "14 remove 2",
                                             "15 fork 0",
                                             "16 evict 0 3",
                                             "17 sampling temperature=0,top_k=0,top_p=1",
                                             "18 follow on",
                                             "22 pin 0 5"};
    const std::vector<std::string> after = {"13 fork 0 h2o:budget=5", "15 evict 0 4",
                                            "20 lane 0 window:budget=20"};
    expect_detour_leaves_no_trace(before, detour, 12, after);
    expect_detour_leaves_no_trace(before, detour, 12, after, true);
    expect_detour_leaves_no_trace(before, detour, 14, {});
}

TEST_F(SessionRewind, IntoTheMiddleOfWhatHappenedAtARow) {
    // Rewinds to the state right after row +6, before the commands stamped with it.
    expect_detour_leaves_no_trace({"3 lane 1 h2o:budget=8"}, {"6 evict 0 3", "6 fork 1", "9 remove 1"}, 6,
                                  {"6 evict 0 4"});
}

// What these keep beside scores goes back too: rows of attention, shared budgets, partitions and blocks.
TEST_F(SessionRewind, FieldPoliciesGoOnAsIfTheyHadNeverGoneFurther) {
    lanes_ = {"full",
              "snapkv:budget=10,window=5,recent=3,evict=always",
              "rkv:budget=10,window=4,recent=2,buffer=3",
              "rkv:budget=9,window=4,recent=2,buffer=2,dialect=released",
              "adakv:budget=10,window=5,recent=2,evict=always",
              "adakv:budget=9,window=4,recent=2,evict=always,alloc=global,every=3",
              "chunk:budget=12,unit=3,window=5,recent=2,evict=always",
              "lagkv:budget=12,window=3,sinks=1,every=2",
              "caote:budget=9,recent=2",
              "critical:budget=10,window=5,recent=2,evict=always",
              "pyramidkv:budget=9,window=4,recent=2,pyramid=3,evict=always",
              "expected:budget=10,evict=always,ahead=9",
              "snapkv:budget=10,window=5,recent=3"};
    for (const int back_to : {0, 7, 16}) expect_detour_leaves_no_trace({}, {"20 follow on"}, back_to, {});
    expect_detour_leaves_no_trace({"3 lane 1 rkv:budget=9,window=5,recent=2,buffer=2", "5 fork 4"},
                                  {"8 lane 2 snapkv:budget=8,window=6,recent=2,evict=always",
                                   "9 lane 4 lagkv:budget=8,window=2,sinks=1,every=1", "10 evict 0 3",
                                   "12 remove 6", "14 lane 7 caote:budget=7"},
                                  6, {"9 lane 8 adakv:budget=8,window=3,recent=2,evict=always", "13 fork 2"});
    // A state is kept after row +16, when these have rows of attention for a part of their windows.
    expect_detour_leaves_no_trace({"13 lane 8 rkv:budget=9,window=7,recent=2,buffer=1",
                                   "14 lane 0 snapkv:budget=9,window=6,recent=2,evict=always",
                                   "15 lane 7 chunk:budget=11,unit=2,window=8,recent=2,evict=always"},
                                  {"22 follow on"}, 16, {});
}

TEST_F(SessionRewind, GoingBackToABranchGivesItsRowsAgain) {
    const std::vector<std::string> kept = {"3 lane 1 h2o:budget=8", "8 evict 0 4", "10 fork 1"};
    const WholeRun straight = run(spec(kept), 0);
    std::vector<std::string> detour = kept;
    // The tail after +6 becomes branch 1, with the commands stamped 8 and 10.
    detour.insert(detour.end(), {"15 follow on", "16 rewind 29", "9 lane 2 full", "12 branch 1"});
    keyhole::RunSpec bent = spec(detour);
    const WholeRun back = run(bent, 0);
    // Branch 1 ends at +16 and has `follow on` at +15.
    std::vector<std::string> expected = kept;
    expected.push_back("15 follow on");
    expect_same(run(spec(expected), 0), back);
    ASSERT_EQ(back.others.size(), 1u);
    EXPECT_EQ(back.others[0].id, 2);
    EXPECT_EQ(back.others[0].from_row, 29);
    EXPECT_EQ(back.others[0].last_row, kPrompt - 1 + 12);
    EXPECT_EQ(back.others[0].commands, (std::vector<keyhole::RunCommand>{{32, "lane 2 full"}}));
}

/// A rewind can abandon the way to a branch's end at a row already reached. The remainder is a branch as
/// before.
TEST_F(SessionRewind, TheWayToABranchCanBeLeft) {
    const std::vector<std::string> kept = {"3 lane 1 h2o:budget=8", "8 evict 0 4", "10 fork 1"};
    for (const int leave_at : {6, 8, 9}) {
        std::string notice;
        const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
        WholeRun left;
        keyhole::Session session(model_, *backend, spec(), &left.sink, leave_at == 8 ? 0 : 64 << 20);
        keyhole::Recorder recorder;
        recorder.push(session.prefill());
        const auto step_to = [&](int row) {
            while (session.next_row() <= kPrompt - 1 + row) recorder.push(session.step());
        };
        for (const keyhole::LoggedCommand& logged : spec(kept).commands) {
            step_to(logged.row - (kPrompt - 1));
            session.apply(logged.command);
        }
        step_to(15);
        session.apply(keyhole::Rewind{kPrompt - 1 + 6});
        step_to(8);
        session.apply(keyhole::GoToBranch{1});
        step_to(9);
        ASSERT_TRUE(session.catching_up());
        EXPECT_NE(
            error_of([&] { session.apply(parse_command("lane 2 full")); }, keyhole::ErrorCode::wrong_use)
                .find("rewind to a step"),
            std::string::npos);
        // A rewind that is stopped leaves the session on its way.
        error_of([&] { session.apply(keyhole::Rewind{kPrompt - 1 + 8}, [](double) { return false; }); },
                 keyhole::ErrorCode::cancelled);
        ASSERT_TRUE(session.catching_up());
        session.apply(keyhole::Rewind{kPrompt - 1 + leave_at});
        EXPECT_FALSE(session.catching_up());
        recorder.rewind(kPrompt - 1 + leave_at);
        EXPECT_EQ(session.next_row(), kPrompt + leave_at);
        // The rest of the way, with its pending commands, is a branch beside the shown one again.
        const std::vector<keyhole::Branch> others = session.other_branches();
        const auto rest = std::find_if(others.begin(), others.end(), [](const keyhole::Branch& b) {
            return b.last_row == kPrompt - 1 + 15;
        });
        ASSERT_NE(rest, others.end());
        while (const auto step = session.step()) recorder.push(step);
        left.records = recorder.snapshot().steps;
        std::vector<std::string> expected = {kept[0]};
        if (leave_at == 9) expected.push_back(kept[1]);
        expect_same(run(spec(expected), 0), left);
        session.apply(keyhole::GoToBranch{rest->id});
        while (session.catching_up()) session.step();
        EXPECT_EQ(session.next_row(), kPrompt + 15);
        EXPECT_EQ(session.run_spec().commands, spec(kept).commands);
    }
}

TEST_F(SessionRewind, AFinishedRunGoesOn) {
    const keyhole::RunSpec start = spec();
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    keyhole::Session session(model_, *backend, start);
    session.prefill();
    while (session.step() != nullptr) {
    }
    EXPECT_TRUE(session.finished());
    session.apply(keyhole::Rewind{kLast - 3});
    EXPECT_FALSE(session.finished());
    EXPECT_EQ(session.next_row(), kLast - 2);
    int n = 0;
    while (session.step() != nullptr) ++n;
    EXPECT_EQ(n, 3);
}

TEST_F(SessionRewind, BadRowsAreRefusedInOneLine) {
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    keyhole::Session session(model_, *backend, spec());
    session.prefill();
    session.step();
    EXPECT_NE(error_of([&] { session.apply(keyhole::Rewind{kPrompt + 1}); }, keyhole::ErrorCode::wrong_use)
                  .find("23"),
              std::string::npos);
    error_of([&] { session.apply(keyhole::Rewind{kPrompt - 2}); }, keyhole::ErrorCode::wrong_use);
    error_of([&] { session.apply(keyhole::GoToBranch{1}); }, keyhole::ErrorCode::wrong_use);
    session.apply(keyhole::Rewind{kPrompt});  // already there: nothing to do
    EXPECT_TRUE(session.other_branches().empty());
    session.apply(keyhole::Rewind{kPrompt - 1});
    EXPECT_EQ(session.next_row(), kPrompt);
    EXPECT_EQ(session.other_branches().size(), 1u);
}

TEST_F(SessionRewind, ReplayFollowsAScriptThatTurnsBack) {
    const keyhole::RunSpec bent = spec(
        {"3 lane 1 h2o:budget=8", "9 fork 1", "12 rewind 28", "8 evict 0 4", "40 add full", "41 rewind 40"});
    std::string notice;
    const auto backend = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 2, 0}, &notice);
    WholeRun turned;
    keyhole::Recorder recorder;
    keyhole::replay(model_, *backend, bent, kLast, &turned.sink,
                    [&](std::shared_ptr<const keyhole::StepTrace> step) { recorder.push(step); });
    turned.records = recorder.snapshot().steps;
    // `add full` is stamped with a row that is never reached; the rewind applies where the run ends.
    expect_same(run(spec({"3 lane 1 h2o:budget=8", "8 evict 0 4"}), 0), turned);
    ASSERT_TRUE(turned.records.back()->other_branches);
    EXPECT_EQ(turned.records.back()->other_branches->size(), 2u);
    // A stamp in the past is refused with these words.
    keyhole::RunSpec late = spec({"9 rewind 28"});
    late.commands.push_back({kPrompt, parse_command("fork 1")});
    EXPECT_NE(error_of([&] { keyhole::replay(model_, *backend, late, kLast, nullptr, [](const auto&) {}); },
                       keyhole::ErrorCode::wrong_use)
                  .find("past"),
              std::string::npos);
}

TEST_F(SessionRewind, ARunInfoIsEnoughToRunItAgain) {
    const WholeRun first = run(spec({"3 lane 1 h2o:budget=8", "9 fork 1"}, true), 0);
    std::vector<keyhole::RunCommand> commands;
    for (const LoggedCommand& logged : first.as_run.commands)
        commands.push_back({logged.row, format_command(logged.command)});
    keyhole::RunSpec again = keyhole::run_spec_of(*first.records.front()->run, commands);
    again.requested = first.as_run.requested;
    expect_same(first, run(again, 0));
}

}  // namespace
}  // namespace reference::test_rewind
