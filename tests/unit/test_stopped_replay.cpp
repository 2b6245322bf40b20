// Replays inside a session report their progress and can be stopped before any row. A stopped replay leaves
// the session unchanged.
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace reference::test_stopped_replay {
namespace {

using keyhole::ErrorCode;
using keyhole::parse_command;

constexpr int kPrompt = 14, kRows = 9;

class StoppedReplay : public ::testing::Test {
  protected:
    StoppedReplay()
        : tiny_({.n_layers = 2, .n_heads = 4, .n_kv_heads = 4, .head_dim = 8, .seed = 31}),
          model_(keyhole::load_model(tiny_.folder())) {
        std::string notice;
        backend_ = keyhole::make_backend(model_, {keyhole::BackendChoice::cpu, 1, 0}, &notice);
    }
    struct Live {
        KeepRows sink;
        std::unique_ptr<keyhole::Session> session;
    };
    /// Three lanes after nine rows: one changed its policy on the way, one is stepwise, one was forked.
    std::unique_ptr<Live> live(std::size_t checkpoint_bytes) const {
        keyhole::RunSpec spec = run_spec(random_text(kPrompt - 1, 3),
                                         {"full", "h2o:budget=8", "window:budget=6,prefill=stepwise"}, 20);
        spec.ignore_eos = true;
        spec.requested.attention = spec.requested.scores = true;
        auto out = std::make_unique<Live>();
        out->session = std::make_unique<keyhole::Session>(model_, *backend_, spec, nullptr, checkpoint_bytes);
        out->session->prefill();
        for (int i = 0; i < kRows; ++i) {
            if (i == 2) out->session->apply(parse_command("lane 1 tova:budget=7"));
            if (i == 4) out->session->apply(parse_command("fork 1 h2o:budget=5"));
            if (i == 5) out->session->apply(parse_command("pin 1 3"));
            out->session->step();
        }
        return out;
    }
    using Progress = std::function<bool(double)>;
    using Ask = std::function<void(keyhole::Session&, const Progress&)>;
    static Ask command(const char* text) {
        return
            [text](keyhole::Session& s, const Progress& progress) { s.apply(parse_command(text), progress); };
    }

    TinyModel tiny_;
    std::shared_ptr<const keyhole::Model> model_;
    std::unique_ptr<keyhole::Backend> backend_;
};

void expect_equal_rows(keyhole::Session& a, keyhole::Session& b, const std::string& what) {
    ASSERT_EQ(a.next_row(), b.next_row()) << what;
    EXPECT_EQ(a.log().size(), b.log().size()) << what;
    EXPECT_EQ(a.branch(), b.branch()) << what;
    EXPECT_EQ(a.other_branches().size(), b.other_branches().size()) << what;
    for (int i = 0; i < 4; ++i) {
        const auto x = a.step(), y = b.step();
        ASSERT_TRUE(x != nullptr && y != nullptr) << what;
        EXPECT_EQ(x->commands, y->commands) << what;
        ASSERT_EQ(x->lanes.size(), y->lanes.size()) << what;
        for (std::size_t lane = 0; lane < x->lanes.size(); ++lane) {
            const keyhole::LaneRecord &p = x->lanes[lane], &q = y->lanes[lane];
            EXPECT_EQ(p.info->id, q.info->id) << what;
            EXPECT_EQ(p.info->spec, q.info->spec) << what;
            EXPECT_EQ(p.token, q.token) << what;
            EXPECT_EQ(p.entropy, q.entropy) << what << ", lane " << lane;
            EXPECT_EQ(p.evictions, q.evictions) << what << ", lane " << lane;
            EXPECT_EQ(p.use.allocated_bytes, q.use.allocated_bytes) << what;
            ASSERT_EQ(p.rows != nullptr, q.rows != nullptr) << what;
            EXPECT_EQ(p.rows->attention, q.rows->attention) << what << ", lane " << lane;
            EXPECT_EQ(p.rows->scores, q.rows->scores) << what << ", lane " << lane;
        }
    }
}

TEST_F(StoppedReplay, StoppedBeforeAnyRowLeavesAllAsItWas) {
    const std::pair<const char*, Ask> asks[] = {
        {"other KV heads", command("lane 1 h2o:budget=8,kv=gqa:2")},
        {"other KV heads, stepwise", command("lane 2 window:budget=6,prefill=stepwise,kv=mqa")},
        {"a shadow from the start", command("lane 1 tova:budget=7,shadow=on")},
        {"a copy with other KV heads", command("fork 3 h2o:budget=5,kv=mqa")},
        {"a lane that joins", command("add tova:budget=5")},
        {"going back", command("rewind 18")},
        {"a token back",
         [](keyhole::Session& s, const Progress& progress) { s.counterfactual(3, 2, progress); }},
    };
    for (const auto& [what, ask] : asks) {
        std::vector<double> reported;
        {
            const auto through = live(0);
            ask(*through->session, [&](double done) {
                reported.push_back(done);
                return true;
            });
        }
        EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end())) << what;
        EXPECT_GE(reported.front(), 0) << what;
        EXPECT_LE(reported.back(), 1) << what;
        EXPECT_GT(reported.back(), 0.75) << what;
        // At least one progress call before every decode row.
        EXPECT_GE(std::count_if(reported.begin(), reported.end(),
                                [](double done) { return done > double(kPrompt - 1) / (kPrompt + kRows); }),
                  what == std::string("going back") ? 18 - kPrompt : kRows)
            << what;
        for (const std::size_t checkpoint_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
            const auto asked = live(checkpoint_bytes), never = live(0);
            for (std::size_t stop_at = 0; stop_at < reported.size(); stop_at += stop_at < 4 ? 1 : 3) {
                std::size_t n = 0;
                bool reached = false;
                const Progress stop = [&](double) {
                    reached = n == stop_at;
                    return n++ != stop_at;
                };
                if (checkpoint_bytes > 0 && what == std::string("going back") && stop_at >= 2) break;
                const std::string why = error_of([&] { ask(*asked->session, stop); }, ErrorCode::cancelled);
                EXPECT_TRUE(reached) << what;
                EXPECT_NE(why.find("stopped half-way; nothing has changed"), std::string::npos) << why;
            }
            expect_equal_rows(*asked->session, *never->session, what);
        }
    }
}

/// Repeated after a stop, the command does the same as without the stop.
TEST_F(StoppedReplay, AStoppedCommandCanBeGivenAgain) {
    for (const char* text : {"lane 1 h2o:budget=8,kv=gqa:2", "lane 1 tova:budget=7,shadow=on", "rewind 17"}) {
        const auto twice = live(std::size_t{1} << 20), once = live(std::size_t{1} << 20);
        error_of([&] { twice->session->apply(parse_command(text), [](double) { return false; }); },
                 ErrorCode::cancelled);
        twice->session->apply(parse_command(text));
        once->session->apply(parse_command(text));
        expect_equal_rows(*twice->session, *once->session, text);
    }
}

/// Branch commands that replay a lane can be stopped like any other. They wait, with the rest of the way to
/// the branch's end, before the next row.
TEST_F(StoppedReplay, AStoppedCommandOfABranchWaitsForTheNextStep) {
    const auto there = [&](std::size_t checkpoint_bytes) {
        auto l = live(checkpoint_bytes);
        keyhole::Session& s = *l->session;
        s.apply(parse_command("lane 1 tova:budget=7,kv=mqa"));
        s.apply(parse_command("pin 1 20"));
        for (int i = 0; i < 3; ++i) s.step();
        s.apply(parse_command("add h2o:budget=4"));  // at the branch's last row
        s.apply(parse_command("remove 2"));
        s.apply(parse_command(fmt::format("rewind {}", kPrompt + kRows - 1)));
        s.step();
        return l;
    };
    const int from = kPrompt + kRows - 1, end = from + 3;
    const auto straight = there(0);
    straight->session->apply(parse_command("branch 1"));
    EXPECT_EQ(straight->session->next_row() - 1, from);
    while (straight->session->catching_up()) ASSERT_NE(straight->session->step(), nullptr);
    EXPECT_EQ(straight->session->next_row() - 1, end);
    EXPECT_EQ(straight->session->run_spec().commands.size(), 3u + 4u);
    const auto never = [](double) { return false; };
    for (const std::size_t checkpoint_bytes : {std::size_t{0}, std::size_t{1} << 20}) {
        const auto l = there(checkpoint_bytes);
        keyhole::Session& s = *l->session;
        // Once the branch is reached, the commands at its start can wait, but there is no way back.
        std::vector<double> reported;
        s.apply(parse_command("branch 1"), [&](double done) {
            reported.push_back(done);
            return done < 0.5;  // two commands follow the shared rows
        });
        EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
        EXPECT_GE(reported.back(), 0.5);
        EXPECT_LT(reported.back(), 0.7);
        EXPECT_TRUE(s.catching_up());
        EXPECT_FALSE(s.finished());
        EXPECT_EQ(s.branch(), straight->session->branch());
        EXPECT_EQ(s.run_spec().commands.size(), 3u);
        EXPECT_EQ(s.step(never), nullptr);
        EXPECT_EQ(s.next_row() - 1, from);
        error_of([&] { s.apply(parse_command("unpin 1 3")); }, ErrorCode::wrong_use);
        std::vector<std::shared_ptr<const keyhole::StepTrace>> steps;
        while (s.next_row() <= end)
            steps.push_back(s.step(steps.empty() ? std::function<bool(double)>() : never));
        // The last row's commands wait behind its record.
        EXPECT_EQ(steps.front()->commands.size(), 2u);
        EXPECT_TRUE(s.catching_up());
        EXPECT_EQ(s.run_spec().commands.size(), 3u + 2u);
        EXPECT_EQ(steps.back()->row, end);
        double most = 0;
        const auto next = s.step([&](double done) {
            most = std::max(most, done);
            return true;
        });
        ASSERT_NE(next, nullptr);
        EXPECT_GT(most, 0.4);
        EXPECT_EQ(next->row, end + 1);
        EXPECT_EQ(next->commands.size(), 2u);
        EXPECT_FALSE(s.catching_up());
        const auto same = there(0);
        same->session->apply(parse_command("branch 1"));
        while (same->session->catching_up()) same->session->step();
        const auto expected = same->session->step();
        EXPECT_EQ(next->commands, expected->commands);
        EXPECT_EQ(next->lanes.back().entropy, expected->lanes.back().entropy);
        expect_equal_rows(s, *same->session, "after the branch");
    }
}

/// A rewind abandons the way to the branch's end and the commands that wait on it.
TEST_F(StoppedReplay, ARewindLeavesACommandThatWaits) {
    const auto l = live(0);
    keyhole::Session& s = *l->session;
    s.apply(parse_command("add h2o:budget=4"));
    s.step();
    s.apply(parse_command(fmt::format("rewind {}", kPrompt + kRows - 2)));
    s.apply(parse_command("branch 1"));
    while (s.next_row() < kPrompt + kRows) s.step([](double) { return false; });
    ASSERT_TRUE(s.catching_up());
    s.apply(parse_command(fmt::format("rewind {}", kPrompt + kRows - 1)));
    EXPECT_FALSE(s.catching_up());
    const auto plain = live(0);
    const auto a = s.step(), b = plain->session->step();
    EXPECT_EQ(a->lanes.size(), 4u);
    EXPECT_TRUE(a->commands.empty());
    EXPECT_EQ(a->lanes[1].entropy, b->lanes[1].entropy);
}

/// A long prompt can be stopped within a matrix product or an attention tile, not only between layers.
TEST_F(StoppedReplay, ThePromptReportsEveryProductAndTile) {
    keyhole::RunSpec spec = run_spec(random_text(299, 3), {"full", "h2o:budget=8"}, 5);
    std::vector<double> reported;
    keyhole::Session(model_, *backend_, spec).prefill([&](double done) {
        reported.push_back(done);
        return true;
    });
    const std::size_t n_layers = 2, n_products = 7, n_tiles = 5;
    EXPECT_EQ(reported.size(), 1 + n_layers * (n_products + n_tiles));
    EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
    EXPECT_EQ(reported.front(), 0);
    EXPECT_NEAR(reported.back(), 1, 1e-9);
    for (std::size_t i = 1; i < reported.size(); ++i) EXPECT_LT(reported[i] - reported[i - 1], 0.2) << i;
    for (std::size_t stop_at = 0; stop_at < reported.size(); ++stop_at) {
        std::size_t n = 0;
        keyhole::Session session(model_, *backend_, spec);
        const std::string why =
            error_of([&] { session.prefill([&](double) { return n++ != stop_at; }); }, ErrorCode::cancelled);
        EXPECT_EQ(n, stop_at + 1);
        EXPECT_NE(why.find("300 tokens was stopped"), std::string::npos) << why;
    }
}

/// A change of KV heads during the replay is part of its progress: its own progress counts as a share of the
/// whole.
TEST_F(StoppedReplay, AChangeOfKvHeadsOnTheWayBackIsPartOfTheWay) {
    const auto l = live(0);
    l->session->apply(parse_command("lane 1 tova:budget=7,kv=mqa"));
    l->session->step();
    l->session->step();
    std::vector<double> reported;
    l->session->apply(parse_command(fmt::format("rewind {}", kPrompt + kRows)), [&](double done) {
        reported.push_back(done);
        return true;
    });
    EXPECT_TRUE(std::is_sorted(reported.begin(), reported.end()));
    EXPECT_LE(reported.back(), 1);
    EXPECT_GE(reported.size(), keyhole::to_index(2 * kRows));
}

}  // namespace
}  // namespace reference::test_stopped_replay
