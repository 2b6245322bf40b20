// Named spans in formulas, and spans that share the budget: the worked example of the field's section 18,
// what the doctor says of them, and how questions name them.
#include "engine/analysis/doctor.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/eval/evaluate.h"
#include "engine/policy/allocation.h"
#include "engine/policy/selection.h"
#include "engine/policy/win_rows.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/different_tokens.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace reference::test_spans {
namespace {

using keyhole::to_index;

constexpr int kPrompt = 24, kDecode = 16;

// In eval the parts of a question are the spans.
TEST(FieldSpans, QuestionsHaveSpansOfTheirOwn) {
    keyhole::Question question;
    question.prompt.resize(20);
    const std::vector<keyhole::LaneSpec> lanes = {
        keyhole::parse_lane_spec("h2o:budget=8,spans=fair"),
        keyhole::parse_lane_spec("h2o:budget=8,spans=(fair a@0..4 b@5..)")};
    EXPECT_EQ(keyhole::lanes_for(question, lanes), lanes) << "it has no parts";
    question.spans = {{"context", {3, 9}}, {"gone", {}}, {"rule 1", {12, 14}}, {"asked", {20, 24}}};
    const auto own = keyhole::lanes_for(question, lanes);
    EXPECT_EQ(own[0].policy.spans.text, "fair context@0..11 rule_1@12..");
    EXPECT_EQ(own[1], lanes[1]);
    EXPECT_EQ(keyhole::parse_lane_spec(keyhole::format_lane_spec(own[0])), own[0]);
    // A part that begins with another, and words that are no name.
    question.spans = {{"system", {0, 9}}, {"rules", {0, 3}}, {"1st", {4, 5}}, {"", {8, 9}}};
    EXPECT_EQ(keyhole::lanes_for(question, lanes)[0].policy.spans.text,
              "fair system@0..3 part_1st@4..7 part_@8..");
    question.spans.clear();
    for (int p = 0; p < 20; p += 2) question.spans.push_back({"part", {p, p + 1}});
    const auto many = keyhole::lanes_for(question, lanes);
    EXPECT_EQ(many[0].policy.spans.text.substr(0, 30), "fair part@0..1 part_2@2..3 par");
    EXPECT_TRUE(many[0].policy.spans.text.ends_with(" part_8@14.."));
    EXPECT_EQ(keyhole::validate(many[0].policy), std::vector<std::string>{});
}

// The doctor counts what each span kept, and finds a token that left the wrong one.
TEST(FieldSpans, TheDoctorCountsShares) {
    using keyhole::Finding;
    const TinyModel tiny(TinyShape{});
    const auto model = keyhole::load_model(tiny.folder());
    keyhole::RunSpec spec;
    spec.prompt_tokens = different_tokens(kPrompt, 63);
    for (const char* lane : {"full", "h2o:budget=12,recent=3,spans=(fair a@0..6 b@7..),protect=1..2",
                             "snapkv:budget=12,window=7,recent=4,evict=always,spans=(fair a@0..6 b@7..)"})
        spec.lanes.push_back(keyhole::parse_lane_spec(lane));
    spec.n_generate = kDecode;
    spec.ignore_eos = true;
    const SessionRun run = run_session(model, spec);
    const auto state_at = [&](const keyhole::RunHistory& history, int row, int lane = 1) {
        for (const Finding& finding : keyhole::examine(history, lane, row))
            if (finding.name == "each span keeps its share") return finding.state;
        return Finding::State::unknown;
    };
    keyhole::RunHistory history = history_of(run);
    for (const int lane : {1, 2}) {
        int n_good = 0;
        for (int row = kPrompt - 1; row <= history.last_row(); ++row) {
            EXPECT_NE(state_at(history, row, lane), Finding::State::broken) << lane << ' ' << row;
            n_good += state_at(history, row, lane) == Finding::State::good ? 1 : 0;
        }
        EXPECT_GT(n_good, kDecode / 2) << lane;
    }
    keyhole::StepList steps(run.steps.begin(), run.steps.end());
    auto changed = std::make_shared<keyhole::StepTrace>(*steps.front());
    for (keyhole::Eviction& e : changed->lanes[1].evictions)
        if (e.kv_head == 0 && e.position >= 7) {  // one more of the first span, one less of the second
            e.position = 0;
            break;
        }
    steps.front() = changed;
    keyhole::RunHistory other;
    other.update(steps);
    EXPECT_EQ(state_at(other, kPrompt - 1), Finding::State::broken);
}

// The parts of a window, by hand: what does not divide goes to the first spans, and each has a row.
TEST(FieldSpans, EachHasItsPartOfAWindow) {
    const auto rows = [](const std::string& spec, int row) {
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 8, 4);
        std::vector<std::pair<int, int>> found;
        for (const keyhole::WinRows& own : keyhole::win_rows(policy, row))
            found.emplace_back(own.first, own.last);
        return found;
    };
    using Rows = std::vector<std::pair<int, int>>;
    const std::string snapkv = "snapkv:budget=4,window=5,recent=2", two = ",spans=(fair a@0..3 b@4..7)";
    EXPECT_EQ(rows(snapkv, 7), (Rows{{3, 7}}));
    EXPECT_EQ(rows(snapkv + two, 7), (Rows{{1, 3}, {6, 7}}));
    EXPECT_EQ(rows(snapkv + two, 9), (Rows{{1, 3}, {8, 9}})) << "what follows belongs to the last span";
    EXPECT_EQ(rows(snapkv + two, 2), (Rows{{0, 2}, {4, 2}})) << "no row of the second span yet";
    EXPECT_EQ(rows("snapkv:budget=4,window=1,recent=1,spans=(fair a@0..1 b@2..2 c@3..)", 7),
              (Rows{{1, 1}, {2, 2}, {7, 7}}));
    EXPECT_EQ(rows("snapkv:budget=4,window=8,recent=1,spans=(fair a@0..1 b@2..4 c@5..)", 7),
              (Rows{{0, 1}, {2, 4}, {6, 7}}));
    const auto kept = [](const std::string& spec) {
        return keyhole::resolve(keyhole::parse_lane_spec(spec).policy, 8, 4).kept_rows();
    };
    EXPECT_EQ(kept(snapkv + two), 0) << "the prompt has them";
    EXPECT_EQ(kept(snapkv + two + ",evict=always"), 3);
    EXPECT_EQ(kept(snapkv + ",evict=always"), 5);
}

// The field's example of section 18: lengths of keys are 5 2 1 10 4 3 7 6.
TEST(FieldSpans, FairOnesShareTheBudgetByLength) {
    const auto kept = [](const std::string& spec, int n = 8) {
        const std::vector<std::int32_t> positions = {0, 1, 2, 3, 4, 5, 6, 7};
        const std::vector<float> ranks = {-5, -2, -1, -10, -4, -3, -7, -6};
        std::vector<int> victims;
        const auto policy = keyhole::resolve(keyhole::parse_lane_spec(spec).policy, n, 4);
        (void)keyhole::select_victims(positions, ranks, {}, policy, 7, victims);
        std::set<int> left(positions.begin(), positions.end());
        for (const int v : victims) left.erase(v);
        return left;
    };
    EXPECT_EQ(kept("knorm:budget=4,spans=(fair a@0..4 b@5..7)"), (std::set{1, 2, 4, 5}));
    EXPECT_EQ(kept("knorm:budget=4,spans=(fair a@0..4 b@5..)"), (std::set{1, 2, 4, 5}));
    EXPECT_EQ(kept("knorm:budget=4"), (std::set{1, 2, 4, 5})) << "here alike, by chance";
    EXPECT_EQ(kept("knorm:budget=4,spans=(fair a@0..3 b@4..)"), (std::set{1, 2, 4, 5}));
    EXPECT_EQ(kept("knorm:budget=4,spans=(fair a@0..1 b@2..3 c@4..5 d@6..)"), (std::set{1, 2, 5, 7}));
    EXPECT_EQ(kept("knorm:budget=3,spans=(fair a@0..5 b@6..)"), (std::set{1, 2, 7}));
    EXPECT_EQ(kept("knorm:budget=3,spans=(fair a@0..7)"), kept("knorm:budget=3")) << "one span";
    EXPECT_EQ(kept("sink:budget=6,sinks=1,spans=(fair a@0..3 b@4..)"), (std::set{0, 2, 3, 4, 6, 7}));
    EXPECT_EQ(kept("knorm:budget=4,recent=2,spans=(fair a@0..3 b@4..)"), (std::set{2, 3, 5, 7}));
    EXPECT_EQ(kept("knorm:budget=4,spans=(fair a@0..5 b@6..6)", 7), (std::set{1, 2, 5, 7}))
        << "a token that came later joins the last span";
}

// Shares that bounds of a span change: what one cannot take, the others do.
TEST(FieldSpans, SharesStayWithinTheirBounds) {
    using Numbers = std::vector<int>;
    const auto share = [](int budget, const Numbers& lengths, const Numbers& least, const Numbers& most) {
        return keyhole::share_by_length(budget, lengths, least, most);
    };
    EXPECT_EQ(share(4, {5, 3}, {0, 0}, {5, 3}), (Numbers{3, 1}));
    EXPECT_EQ(share(4, {5, 3}, {0, 2}, {5, 3}), (Numbers{2, 2}));
    EXPECT_EQ(share(8, {10, 10}, {0, 0}, {2, 10}), (Numbers{2, 6}));
    EXPECT_EQ(share(10, {4, 4, 2}, {6, 0, 0}, {9, 9, 9}), (Numbers{6, 3, 1}));
    EXPECT_EQ(share(3, {4, 4}, {2, 2}, {4, 4}), (Numbers{2, 2})) << "the least of each, whatever the budget";
    EXPECT_EQ(share(9, {4, 4}, {0, 0}, {3, 3}), (Numbers{3, 3}));
    EXPECT_EQ(share(5, {8, 0}, {0, 0}, {8, 0}), (Numbers{5, 0}));
}

// in(NAME) is the range by its name, and equal sets follow.
TEST(FieldSpans, FormulasNameThem) {
    const TinyModel tiny(TinyShape{});
    const auto model = keyhole::load_model(tiny.folder());
    const std::vector<int> tokens = different_tokens(kPrompt + kDecode, 62);
    const std::string named = ",spans=(rules@3..6 rest@7..),";
    const std::vector<std::pair<std::string, std::string>> pairs = {
        {"h2o:budget=9" + named + "protect=(in(rules))", "h2o:budget=9,protect=3..6"},
        {"h2o:budget=9,protect=(in(rules)),spans=(rules@3..6)", "h2o:budget=9,protect=3..6"},
        {"knorm:budget=9" + named + "choose=(in(rest) ? -knorm : 1)",
         "knorm:budget=9,choose=(position >= 7 ? -knorm : 1)"},
        {"key:budget=9" + named + "score=(in(rules) ? s+2*p : s+p)",
         "key:budget=9,score=(position >= 3 and position <= 6 ? s+2*p : s+p)"},
        {"h2o:budget=9,spans=(fair all@0..)", "key:budget=9,score=(s+p),recent=50%"},
    };
    std::vector<std::string> specs;
    for (const auto& [one, other] : pairs) {
        specs.push_back(one);
        specs.push_back(other);
    }
    const std::span<const int> all(tokens);
    const auto prompt = all.first(kPrompt), decode = all.subspan(kPrompt);
    const auto cuda = cuda_backend(model);
    for (const LaneRows& rows :
         {run_engine(model, specs, prompt, decode), run_backend(*cuda, model, specs, prompt, decode)})
        for (std::size_t i = 0; i < specs.size(); i += 2) {
            std::size_t n_gone = 0;
            for (std::size_t t = 0; t < rows[i].size(); ++t) {
                ASSERT_EQ(rows[i][t].evictions, rows[i + 1][t].evictions) << specs[i] << ' ' << t;
                n_gone += rows[i][t].evictions.size();
            }
            EXPECT_GT(n_gone, 0u) << specs[i];
        }
}

TEST(FieldSpans, FaultsNameThePlaceAndTheNearestName) {
    const auto fault = [](const std::string& spec) -> std::string {
        try {
            (void)keyhole::parse_lane_spec(spec);
        } catch (const keyhole::Error& error) {
            return error.what();
        }
        return "";
    };
    const auto expect = [&](const std::string& spec, const std::string& words) {
        EXPECT_NE(fault(spec).find(words), std::string::npos) << spec << ": " << fault(spec);
        EXPECT_EQ(fault(spec).find('\n'), std::string::npos);
    };
    const std::string named = "key:budget=9,spans=(rules@0..3 text@4..),";
    expect(named + "protect=(age < 3 or in(ruls))",
           "protect, character 15: unknown span 'ruls', did you "
           "mean 'rules'? (rules text)");
    expect("key:choose=(in(txt) ? 1 : 0),spans=(rules@0..3 text@4..)",
           "choose, character 4: unknown span 'txt', did "
           "you mean 'text'?");
    expect("key:budget=9,protect=(in(rules))", "protect, character 4: no span is named: spans=(rules@0..31)");
    expect(named + "protect=(in())", "character 4: unknown span ''");
    expect(named + "protect=(in(rules)", "protect");
    expect(named + "choose=(in(rules))", "choose needs a number");
    expect("key:budget=9,spans=(rules@0..3 4..9)", "character 32: '4..9' is no span");
    expect("key:budget=9,spans=(rules@3..0)", "'rules@3..0' is no span");
    expect("key:budget=9,spans=(9a@3..4)", "is no span");
    expect("key:budget=9,spans=(a@0..3 a@4..9)", "span 'a' is named twice");
    expect("key:budget=9,spans=(fair a@1..3)", "follow each other from 0 on");
    expect("key:budget=9,spans=(fair a@0..3 b@5..)", "follow each other from 0 on");
    expect("key:budget=9,spans=(fair a@0.. b@5..)", "follow each other from 0 on");
    expect("key:budget=9,spans=(a@0 b@1..2 c@3)", "is no span");
    expect("key:spans=(a@0..0 b@1..1 c@2..2 d@3..3 e@4..4 f@5..5 g@6..6 h@7..7 i@8..8)", "at most 8 spans");
    expect("knorm:budget=9,alloc=adaptive,spans=(fair a@0..3 b@4..)", "leave one of them out");
    expect("key:budget=9,read=16,spans=(fair a@0..3 b@4..)", "read and fair spans");
    expect("h2o:budget=9,dialect=released,spans=(fair a@0..3 b@4..)", "dialect=paper");
    expect("key:budget=9,damping=0.9,spans=(fair a@0..3 b@4..)", "damping");
    EXPECT_EQ(fault(named + "protect=(in(rules)),choose=(in(text) ? s : s+1)"), "");
}

}  // namespace
}  // namespace reference::test_spans
