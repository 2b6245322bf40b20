#include "engine/analysis/doctor.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_lifetime.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "tests/reference/synthetic_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <sstream>
#include <string>

namespace keyhole::test_doctor {
namespace {

constexpr int kRow = 60;

RunHistory history_of(const StepList& steps) {
    RunHistory history;
    history.update(steps);
    return history;
}

Finding::State state_of(const std::vector<Finding>& findings, std::string_view name) {
    const auto found =
        std::find_if(findings.begin(), findings.end(), [&](const Finding& f) { return f.name == name; });
    EXPECT_NE(found, findings.end()) << name;
    return found == findings.end() ? Finding::State::unknown : found->state;
}

/// Returns the run with a changed record of lane 1 at a row.
StepList with(StepList steps, int row, const std::function<void(LaneRecord&)>& change) {
    for (auto& step : steps) {
        if (step->row != row) continue;
        auto changed = std::make_shared<StepTrace>(*step);
        change(changed->lanes[1]);
        step = changed;
    }
    return steps;
}

TEST(Doctor, FindsTheFaultsThatAreThere) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    const auto findings_of = [&](const StepList& run) { return examine(history_of(run), 1, kRow); };
    const auto sound = findings_of(steps);
    for (const char* name : {"each head holds its budget", "the recent window moves on",
                             "steps and positions ascend, none twice", "the cache stores what the mask says",
                             "the lowest ranks leave"})
        EXPECT_EQ(state_of(sound, name), Finding::State::good) << name;
    EXPECT_EQ(state_of(sound, "lost mass is a share"), Finding::State::unknown);
    // The synthetic attention is not a distribution; the doctor detects it.
    EXPECT_EQ(state_of(sound, "attention sums to 1"), Finding::State::broken);

    EXPECT_EQ(state_of(findings_of(with(steps, kRow, [](LaneRecord& r) { r.evictions.clear(); })),
                       "each head holds its budget"),
              Finding::State::broken);
    EXPECT_EQ(state_of(findings_of(with(steps, kRow,
                                        [](LaneRecord& r) {
                                            r.evictions.push_back({0, kRow, kRow});
                                        })),
                       "the recent window moves on"),
              Finding::State::broken);
    EXPECT_EQ(state_of(findings_of(with(steps, kRow,
                                        [&](LaneRecord& r) {
                                            r.evictions.push_back(steps.front()->lanes[1].evictions.front());
                                        })),
                       "steps and positions ascend, none twice"),
              Finding::State::broken);
    EXPECT_EQ(state_of(findings_of(with(steps, kRow, [](LaneRecord& r) { ++r.use.stored_tokens; })),
                       "the cache stores what the mask says"),
              Finding::State::broken);
    EXPECT_EQ(state_of(findings_of(with(steps, kRow, [](LaneRecord& r) { r.measures.retained_mass = 1.2f; })),
                       "lost mass is a share"),
              Finding::State::broken);
    EXPECT_FALSE(healthy(sound));
}

// A head that evicts the best of those that compete is found.
TEST(Doctor, SeesWhenABetterTokenLeaves) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    const RunHistory history = history_of(steps);
    std::vector<float> scores(kRow + 1);
    ASSERT_TRUE(score_values(history, 1, kRow, 0, scores));
    std::vector<std::int32_t> competing = history.held_positions(1, 0, kRow);
    competing.resize(competing.size() - 8);  // the newest half of the budget
    const std::int32_t best = *std::max_element(competing.begin(), competing.end(), [&](int a, int b) {
        return scores[to_index(a)] < scores[to_index(b)];
    });
    const auto examined = [&](const std::function<void(LaneRecord&)>& change) {
        return examine(history_of(with(steps, kRow, change)), 1, kRow);
    };
    const auto better_left = examined([&](LaneRecord& r) {
        for (Eviction& e : r.evictions)
            if (e.kv_head == 0 && e.row == kRow) e.position = best;
    });
    EXPECT_EQ(state_of(better_left, "the lowest ranks leave"), Finding::State::broken);
    EXPECT_EQ(state_of(better_left, "the cache stores what the mask says"), Finding::State::good);
    const auto pinned = examined([&](LaneRecord& r) {
        r.pins = std::make_shared<const PinList>(PinList{{0, competing.front()}});
    });
    EXPECT_EQ(state_of(pinned, "the lowest ranks leave"), Finding::State::unknown);
}

// A record whose row is of other tokens than the mask says has one line for it, and its ranks are not read.
TEST(Doctor, SeesARowOfOtherTokens) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    const auto findings = examine(
        history_of(with(steps, kRow - 1,
                        [](LaneRecord& r) {
                            std::erase_if(r.evictions, [](const Eviction& e) { return e.kv_head == 1; });
                        })),
        1, kRow);
    EXPECT_EQ(state_of(findings, "the lowest ranks leave"), Finding::State::unknown);
    const auto counts = std::find_if(findings.begin(), findings.end(), [](const Finding& f) {
        return f.name == "the cache stores what the mask says";
    });
    ASSERT_NE(counts, findings.end());
    EXPECT_EQ(counts->state, Finding::State::broken);
    const StepList longer = with(steps, kRow, [](LaneRecord& r) {
        auto block = std::make_shared<RowBlock>(*r.rows);
        for (std::size_t g = 1; g < block->offset.size(); ++g) block->offset[g] += 2;
        r.rows = block;
    });
    for (const Finding& finding : examine(history_of(longer), 1, kRow))
        if (finding.name == "the cache stores what the mask says") {
            EXPECT_EQ(finding.state, Finding::State::broken);
            EXPECT_EQ(finding.detail,
                      "the recorded row has 19 values of L0 KV head 0, and the mask 17 tokens");
        }
}

// Once a lane has ended its text it reads no more tokens; those of other lanes are not in its cache.
TEST(Doctor, ALaneThatHasEndedStaysSound) {
    StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    const int last = steps.back()->row;
    ASSERT_GT(last, kRow);
    steps = with(steps, kRow, [](LaneRecord& r) { r.ended = true; });
    for (int row = kRow + 1; row <= last; ++row)
        steps = with(steps, row, [](LaneRecord& r) {
            r.ended = true;
            r.evictions.clear();
            r.attended_tokens = 0;
            r.rows = nullptr;
        });
    const std::vector<Finding> findings = examine(history_of(steps), 1, last);
    for (const char* name : {"each head holds its budget", "the cache stores what the mask says"})
        EXPECT_EQ(state_of(findings, name), Finding::State::good) << name;
}

// Rows of a model with learned sinks add up to less than 1; more than 1 stays a fault.
TEST(Doctor, ALearnedSinkTakesPartOfARow) {
    const auto state = [](float total, bool has_sinks) {
        StepList steps = testing::synthetic_run({.budgets = {0, 16}});
        for (auto& step : steps) {
            auto changed = std::make_shared<StepTrace>(*step);
            auto run = std::make_shared<RunInfo>(*changed->run);
            run->config.has_sinks = has_sinks;
            changed->run = run;
            for (LaneRecord& lane : changed->lanes) {
                if (lane.rows == nullptr) continue;
                auto rows = std::make_shared<RowBlock>(*lane.rows);
                for (std::size_t h = 0; h + 1 < rows->head_offset.size(); ++h) {
                    const std::int64_t first = rows->head_offset[h], last = rows->head_offset[h + 1];
                    for (std::int64_t i = first; i < last; ++i)
                        rows->attention[to_index(i)] =
                            fp16_from_float(total / static_cast<float>(last - first));
                }
                lane.rows = rows;
            }
            step = changed;
        }
        return state_of(examine(history_of(steps), 1, kRow), "attention sums to 1");
    };
    EXPECT_EQ(state(1.0f, false), Finding::State::good);
    EXPECT_EQ(state(0.5f, false), Finding::State::broken);
    EXPECT_EQ(state(0.5f, true), Finding::State::good);
    EXPECT_EQ(state(1.5f, true), Finding::State::broken);
}

TEST(Doctor, ALaneThatLostNothingMustBeTheReference) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 500}});
    constexpr std::string_view kName = "before it evicts, it equals Full";
    // The synthetic lanes differ in KL though nothing was evicted.
    EXPECT_EQ(state_of(examine(history_of(steps), 1, kRow), kName), Finding::State::broken);
    const StepList same = with(steps, kRow, [](LaneRecord& r) { r.kl = 0.0f; });
    EXPECT_EQ(state_of(examine(history_of(same), 1, kRow), kName), Finding::State::good);
    EXPECT_EQ(state_of(examine(history_of(same), 0, kRow), kName), Finding::State::unknown);
}

TEST(Doctor, WhatACommandTakesBetweenRowsIsNoFault) {
    const StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    const RunHistory before = history_of(steps);
    int position = -1;  // one that no policy evicts
    for (const int p : before.held_positions(1, 2, kRow))
        if (before.evicted_at(1, 2, p) < 0) position = p;
    const StepList taken = with(steps, kRow + 1, [&](LaneRecord& r) {
        r.evictions.push_back({2, position, kRow});
    });
    constexpr std::string_view kName = "the cache stores what the mask says";
    EXPECT_EQ(state_of(examine(history_of(taken), 1, kRow), kName), Finding::State::good);
    EXPECT_EQ(state_of(examine(history_of(taken), 1, kRow + 1), kName),
              Finding::State::broken);  // that row does not count the eviction
}

TEST(Doctor, WatchesAllLanesAndExaminesWhatChanged) {
    const StepList all = testing::synthetic_run({.budgets = {0, 16}});
    const StepList steps = with(all, kRow, [](LaneRecord& r) { ++r.use.stored_tokens; });
    const StepList some(steps.begin(), steps.end() - 3);
    RunHistory history;
    history.update(some);
    const std::vector<int> lanes = {0, 1};
    DoctorWatch watch;
    const auto update = [&](int row) { watch.update(history, lanes, row, 1e6, false); };
    update(kRow - 1);
    EXPECT_EQ(watch.n_examined(), 2);
    for (int i = 0; i < 5; ++i) update(kRow - 1);
    EXPECT_EQ(watch.n_examined(), 2);  // nothing changed
    history.update(steps);
    update(kRow - 1);
    EXPECT_EQ(watch.n_examined(), 2);  // rows after the next one do not matter
    update(kRow);
    EXPECT_EQ(watch.n_examined(), 4);
    for (const int lane : lanes) {
        const std::vector<Finding> fresh = examine(history, lane, kRow), &kept = watch.of(lane).findings;
        ASSERT_EQ(kept.size(), fresh.size());
        for (std::size_t i = 0; i < fresh.size(); ++i) {
            EXPECT_EQ(kept[i].state, fresh[i].state) << fresh[i].name;
            EXPECT_EQ(kept[i].detail, fresh[i].detail);
        }
    }
    const DoctorWatch::Verdict verdict = watch.verdict();
    EXPECT_EQ(verdict.n_hold + verdict.n_unknown + verdict.n_broken, 8);
    EXPECT_GE(verdict.n_broken, 2);
    EXPECT_EQ(verdict.lane, 0);  // the synthetic attention sums to 1 in neither lane
    EXPECT_EQ(verdict.fault.name, "attention sums to 1");
    EXPECT_NE(verdict.each.find("the cache stores what the mask says: BROKEN"), std::string::npos)
        << verdict.each;
    // One lane per call when no time is left. All lanes again for another run.
    DoctorWatch slow;
    slow.update(history, lanes, kRow, 0, false);
    EXPECT_FALSE(slow.complete());
    EXPECT_EQ(slow.n_examined(), 1);
    slow.update(history, lanes, kRow, 0, false);
    EXPECT_TRUE(slow.complete());
    EXPECT_EQ(slow.n_examined(), 2);
    // While rows arrive, the watch rests after work: changes wait until no rows arrive.
    DoctorWatch resting;
    for (int i = 0; i < 200; ++i) resting.update(history, lanes, kRow - i % 2, 1e6, true);
    EXPECT_LT(resting.n_examined(), 200);
    resting.update(history, lanes, kRow - 2, 1e6, false);
    EXPECT_TRUE(resting.complete());
    EXPECT_EQ(resting.of(1).row, kRow - 2);
    RunHistory other = history_of(all);
    slow.update(other, lanes, kRow, 1e6, false);
    EXPECT_EQ(slow.n_examined(), 4);
}

// Some invariants are those of some lanes alone, so the lists of two lanes differ.
TEST(Doctor, TheVerdictJoinsInvariantsByName) {
    StepList steps = testing::synthetic_run({.budgets = {0, 16}});
    auto run = std::make_shared<RunInfo>(*steps.front()->run);
    run->config.window.assign(to_index(run->layout.n_layers()), 1 << 20);
    for (auto& step : steps) {
        auto copy = std::make_shared<StepTrace>(*step);
        copy->run = run;
        auto info = std::make_shared<LaneInfo>(*copy->lanes[1].info);
        info->policy.fair = {{"all", 0, 1 << 20}};
        copy->lanes[1].info = info;
        step = copy;
    }
    const RunHistory history = history_of(steps);
    const auto has = [&](int lane, std::string_view name) {
        return std::ranges::any_of(examine(history, lane, kRow),
                                   [&](const Finding& f) { return f.name == name; });
    };
    ASSERT_TRUE(has(0, "sliding layers read their window") && has(1, "sliding layers read their window"));
    ASSERT_TRUE(!has(0, "each span keeps its share") && has(1, "each span keeps its share"));
    DoctorWatch watch;
    watch.update(history, std::vector<int>{0, 1}, kRow, 1e6, false);
    const DoctorWatch::Verdict verdict = watch.verdict();
    EXPECT_EQ(verdict.n_hold + verdict.n_unknown + verdict.n_broken, 10) << verdict.each;
    std::set<std::string> lines;
    std::istringstream each(verdict.each);
    for (std::string line; std::getline(each, line);)
        EXPECT_TRUE(lines.insert(line.substr(0, line.rfind(':'))).second) << line;
    EXPECT_TRUE(lines.contains("sliding layers read their window"));
}

TEST(TokenLifetime, CountsEachStepOnce) {
    TokenLifetime lifetime;
    lifetime.heads.resize(4);
    EXPECT_EQ(evictions_text(lifetime), "No KV head has evicted it.");
    lifetime.heads[1].evicted_at = 369;
    EXPECT_EQ(evictions_text(lifetime), "One KV head evicted it, after step 369.");
    lifetime.heads[2].evicted_at = 369;
    EXPECT_EQ(evictions_text(lifetime), "2 KV heads evicted it, all after step 369.");
    lifetime.heads[0].evicted_at = 371;
    EXPECT_EQ(evictions_text(lifetime),
              "3 KV heads evicted it: the first after step 369, the last so far after step 371.");
}

TEST(TokenLifetime, SaysWhereAndWhenItWent) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16}}));
    int told = 0;
    for (const int position : {0, 5, 13, 39, 55}) {
        const TokenLifetime lifetime = token_lifetime(history, 1, position);
        int n = 0, first = -1, last = -1;
        for (int g = 0; g < history.run().layout.n_kv_heads(); ++g) {
            const int at = history.evicted_at(1, g, position);
            EXPECT_EQ(lifetime.heads[to_index(g)].evicted_at, at);
            n += history.stored(1, g, position, kRow) ? 1 : 0;
            if (at >= 0) first = first < 0 ? at : std::min(first, at), last = std::max(last, at);
        }
        EXPECT_EQ(lifetime.n_holding(kRow), n) << position;
        EXPECT_EQ(lifetime.first_gone(), first);
        EXPECT_EQ(lifetime.last_gone(), last);
        EXPECT_TRUE(lifetime.full_known);
        for (std::size_t i = 0; i < history.steps().size(); ++i) {
            const int row = history.steps()[i]->row;
            // The full lane's attention, averaged over the heads that had lost the token before the row.
            double sum = 0;
            int lost = 0;
            for (int l = 0; l < 4; ++l)
                for (int h = 0; h < 4; ++h) {
                    const int at =
                        history.evicted_at(1, history.run().layout.kv_head_from_head(l, h), position);
                    if (at < 0 || at >= row || position > row) continue;
                    sum += double(testing::synthetic_attention(row, l, h, position));
                    ++lost;
                }
            if (lost == 0)
                EXPECT_TRUE(std::isnan(lifetime.full_attention[i])) << row;
            else
                EXPECT_NEAR(lifetime.full_attention[i], sum / lost, 1e-3 * sum / lost + 1e-6) << row;
            told += lost > 0 ? 1 : 0;
        }
    }
    EXPECT_GT(told, 20);
}

TEST(TokenLifetime, SentencesNameRuleAndRank) {
    const RunHistory history = history_of(testing::synthetic_run({.budgets = {0, 16}}));
    const StepList& steps = history.steps();
    const Eviction& gone = steps.back()->lanes[1].evictions.front();
    const HeadRef head = history.run().layout.kv_head(gone.kv_head).readers.front();
    const std::string story = eviction_story(history, 1, head.layer, head.head, gone.position);
    EXPECT_NE(story.find(fmt::format("after step {}", gone.row)), std::string::npos) << story;
    EXPECT_NE(story.find("by the policy h2o"), std::string::npos) << story;
    EXPECT_NE(story.find("that competed"), std::string::npos) << story;
    EXPECT_EQ(eviction_story(history, 0, 0, 0, 5), "");
}

}  // namespace
}  // namespace keyhole::test_doctor
