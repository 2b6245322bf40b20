// The language of score, choose and protect: what it reads, what it refuses and where, what each word
// computes, and the worked examples of the policies that are formulas.
#include "engine/backend/common/choice.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/reference_policy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <tuple>

namespace keyhole::test_formula {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNotANumber = std::numeric_limits<float>::quiet_NaN();

/// The worked case: one head, tokens 0 to 7, two channels.
struct Case {
    std::vector<float> scores = {8, 1, 1, 4, 1, 1, 4, 0};
    std::vector<float> keys = {5,     0,    0,     2,     0.6f,  0.8f,  8,     6,
                               -2.4f, 3.2f, 0.84f, 2.88f, 6.72f, 1.96f, -4.8f, 3.6f};
    std::vector<float> values = {1, 0, 0, 2, 3, 4, 0, 1, 2, 0, 0, 3, 4, 3, 1, 0};
    FutureTable future{};
    int row = 7;
    RepeatTable repeats{};
};

/// A unit of one head with a policy of this spec, as a selection sees it.
struct Selection {
    std::vector<float> ranked;
    std::vector<std::int32_t> guarded;
    std::set<int> kept;
    float threshold = 0;
};

Selection select(const std::string& spec, Case of = {}, int n_prompt = 8) {
    const KvLayout layout = KvLayout::grouped(1, 1, 1);
    const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, n_prompt, 4);
    std::vector<std::int32_t> positions;
    for (int p = 0; p < static_cast<int>(of.scores.size()); ++p) positions.push_back(p);
    ChoiceHead head{positions, of.keys, of.values};
    Selection out;
    out.ranked = of.scores;
    choose_on_host(
        {layout, {0, 1}, policy, of.row, 2, &of.future, std::span(&head, 1), positions, {}, &of.repeats},
        out.ranked, out.guarded);
    std::vector<int> victims;
    out.threshold = select_victims(positions, out.ranked, out.guarded, policy, of.row, victims);
    for (const std::int32_t p : positions)
        if (std::find(victims.begin(), victims.end(), p) == victims.end()) out.kept.insert(p);
    return out;
}

TEST(FormulaSelection, RefusesToProtectMoreOfAPromptThanTheBudget) {
    const auto n_kept = [](const std::string& spec, int n_protected) {
        const std::vector<float> scores = Case().scores;
        std::vector<std::int32_t> guarded;
        for (int p = 0; p < n_protected; ++p) guarded.push_back(p);
        std::vector<int> victims;
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, 8, 4);
        prompt_victims(policy, 8, policy.stored, scores, {}, guarded, victims);
        return 8 - std::ssize(victims);
    };
    EXPECT_EQ(n_kept("key:budget=4,protect=(position<4)", 4), 4);
    EXPECT_EQ(n_kept("key:budget=8,protect=(position<8)", 8), 8) << "nothing has to leave";
    EXPECT_EQ(n_kept("key:budget=4,protect=(position<6),evict=decode", 6), 8) << "nothing leaves yet";
    try {
        n_kept("key:budget=4,protect=(position<6)", 6);
        FAIL() << "six tokens of a budget of four";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_STREQ(
            error.what(),
            "`protect` holds for 6 of the prompt's 8 tokens, 2 more than the budget; raise the budget or "
            "protect fewer");
    }
}

/// Returns what a formula gives the eight tokens, of which sinks and recent may keep some from competing.
std::vector<float> values_of(const std::string& formula, const std::string& keys = "") {
    return select("key:budget=8,choose=(" + formula + ")" + keys).ranked;
}

float constant_of(const std::string& formula) {
    return values_of(formula).front();
}

TEST(Formula, BindsAsInMathematics) {
    EXPECT_EQ(constant_of("1+2*3"), 7);
    EXPECT_EQ(constant_of("(1+2)*3"), 9);
    EXPECT_EQ(constant_of("10-4-3"), 3);
    EXPECT_EQ(constant_of("8/4/2"), 1);
    EXPECT_EQ(constant_of("-2^2"), -4);
    EXPECT_EQ(constant_of("2^3^2"), 512);
    EXPECT_EQ(constant_of("2^-1"), 0.5f);
    EXPECT_EQ(constant_of("2*-3"), -6);
    EXPECT_EQ(constant_of("1<2 and 3<2 or 1==1 ? 5 : 6"), 5);
    EXPECT_EQ(constant_of("not 1<2 ? 5 : 6"), 6);
    EXPECT_EQ(constant_of("1>2 ? 3 : 2>=2 ? 4 : 5"), 4);
    EXPECT_EQ(constant_of("1<=0 ? 1 : 1!=1 ? 2 : 3"), 3);
    EXPECT_EQ(constant_of("50%"), 0.5f);
    EXPECT_EQ(constant_of("1e-3"), 0.001f);
    EXPECT_EQ(constant_of("abs(-3)+min(4,5)+max(4,5)+clamp(9,0,2)+sqrt(16)"), 3 + 4 + 5 + 2 + 4);
}

TEST(Formula, ConstantsFoldToOneOperation) {
    FormulaFault fault;
    const FormulaRef formula =
        parse_formula("2*3+4^2-min(1,2) < 100 ? exp(0)+1 : 3", FormulaUse::choose, &fault);
    ASSERT_TRUE(formula) << fault.what;
    EXPECT_EQ(formula->n_ops, 1);
    EXPECT_EQ(formula->ops[0].value, 2);
}

TEST(Formula, NamesWhatATokenHas) {
    const auto expect = [](const std::string& formula, const std::vector<float>& wanted) {
        EXPECT_EQ(values_of(formula), wanted) << formula;
    };
    expect("s", {8, 1, 1, 4, 1, 1, 4, 0});
    expect("position", {0, 1, 2, 3, 4, 5, 6, 7});
    expect("slot", {0, 1, 2, 3, 4, 5, 6, 7});
    expect("age", {7, 6, 5, 4, 3, 2, 1, 0});
    expect("vnorm", {1, 2, 5, 1, 2, 3, 5, 1});
    for (const auto& [name, value] : std::vector<std::pair<std::string, float>>{
             {"row", 7}, {"n", 8}, {"count", 8}, {"budget", 8}, {"t", 0}, {"layer", 0}, {"kvhead", 0}})
        EXPECT_EQ(constant_of(name), value) << name;
    EXPECT_EQ(select("key:budget=4,choose=(t+10*(prompt?1:0))", {}, 6).ranked,
              (std::vector<float>{12, 12, 12, 12, 12, 12, 2, 2}));
    const auto lengths = values_of("knorm");
    for (std::size_t p = 0; p < 8; ++p)
        EXPECT_NEAR(lengths[p], (std::vector<float>{5, 2, 1, 10, 4, 3, 7, 6})[p], 1e-5) << p;
    const ResolvedPolicy policy = resolve(parse_lane_spec("a2sf:alpha=0.25,tau=1.5,gain=3").policy, 8, 4);
    EXPECT_EQ(select("a2sf:budget=8,alpha=0.25,tau=1.5,gain=3,choose=(alpha+10*tau+100*gain)").ranked.front(),
              315.25f);
    EXPECT_EQ(policy.alpha, 0.25f);
}

TEST(Formula, FunctionsOverTokensSeeTheCompetingOnes) {
    const auto near = [](const std::vector<float>& got, const std::vector<float>& wanted) {
        ASSERT_EQ(got.size(), wanted.size());
        for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 1e-5) << i;
    };
    EXPECT_EQ(constant_of("sum(s)"), 20);
    EXPECT_EQ(constant_of("mean(s)"), 2.5f);
    EXPECT_EQ(constant_of("largest(s)"), 8);
    EXPECT_NEAR(constant_of("std(s)"), std::sqrt(50.0 / 8), 1e-6);
    near(values_of("norm(s)"), {2.2f, -.6f, -.6f, .6f, -.6f, -.6f, .6f, -1});
    // Ascending, 0 is worst; of equal ones the older is worse.
    EXPECT_EQ(values_of("rank(s)"), (std::vector<float>{7, 1, 2, 5, 3, 4, 6, 0}));
    near(values_of("sum(softmax(s))"), std::vector<float>(8, 1));
    near(values_of("softmax(0*s)"), std::vector<float>(8, 0.125f));
    // The first and the last two are protected: 1 to 5 compete.
    EXPECT_EQ(values_of("sum(s)", ",sinks=1,recent=2").front(), 8);
    EXPECT_EQ(values_of("largest(s)", ",sinks=1,recent=2").front(), 4);
    EXPECT_EQ(values_of("rank(s)", ",sinks=1,recent=2")[3], 4);
    // Half of a budget of 8: the four best by s keep infinity; others have -position.
    EXPECT_EQ(values_of("first(50%, s, -position)"),
              (std::vector<float>{kInfinity, -1, -2, kInfinity, -4, kInfinity, kInfinity, -7}));
    // Three tokens that never leave have three of the four.
    EXPECT_EQ(values_of("first(50%, s, -position)", ",sinks=1,recent=2"),
              (std::vector<float>{0, -1, -2, kInfinity, -4, -5, -6, -7}));
}

// The kernel of SnapKV's worked case: scores of six candidates; two recent tokens do not compete.
TEST(Formula, SmoothingHasZerosBeyondTheBorder) {
    Case of;
    of.scores = {.40f, .05f, .05f, .15f, .05f, .10f, 9, 9};
    const auto got = select("key:budget=4,recent=2,choose=(smooth(s,avg,3))", of);
    const std::vector<float> average = {.15f, .166667f, .083333f, .083333f, .10f, .05f};
    for (std::size_t p = 0; p < 6; ++p) EXPECT_NEAR(got.ranked[p], average[p], 1e-6) << p;
    EXPECT_EQ(got.kept, (std::set<int>{0, 1, 6, 7}));
    EXPECT_EQ(select("key:budget=3,recent=2,choose=(smooth(s,avg,3))", of).kept, (std::set<int>{1, 6, 7}));
    EXPECT_EQ(select("key:budget=4,recent=2", of).kept, (std::set<int>{0, 3, 6, 7}));
    const auto largest = select("key:budget=4,recent=2,choose=(smooth(s,max,3))", of);
    for (std::size_t p = 0; p < 6; ++p)
        EXPECT_EQ(largest.ranked[p], (std::vector<float>{.40f, .40f, .15f, .15f, .15f, .10f})[p]) << p;
    // A protected token between two is no neighbour.
    EXPECT_NEAR(select("key:budget=8,protect=1..1,choose=(smooth(s,avg,3))", of).ranked[2],
                (.40 + .05 + .15) / 3, 1e-6);
}

TEST(Formula, NotANumberRanksLowestAndInfinityCompetes) {
    Case of;
    of.scores = {kNotANumber, 0, 3, 2, kInfinity, -kInfinity, 1, 5};
    EXPECT_EQ(select("key:budget=3,choose=(s)", of).kept, (std::set<int>{2, 4, 7}));
    EXPECT_EQ(select("key:budget=7,choose=(s+0)", of).kept.count(0), 0u) << "as low as -inf, and older";
    EXPECT_EQ(select("key:budget=3,choose=(0/0)", of).kept, (std::set<int>{5, 6, 7})) << "ties: the newest";
    EXPECT_EQ(select("key:budget=3,choose=(1)", of).kept, (std::set<int>{5, 6, 7}));
}

TEST(Formula, ExponentsAndLogarithmsAreExactToTheirLastBits) {
    std::mt19937 random(5);
    std::uniform_real_distribution<float> exponent(-80, 80), size(-30, 30);
    double worst_exp = 0, worst_log = 0;
    for (int i = 0; i < 20000; ++i) {
        const float x = exponent(random), y = std::exp2(size(random));
        worst_exp = std::max(worst_exp, std::abs(formula_exp(x) / std::exp(double(x)) - 1));
        const double log = std::log(double(y));
        worst_log = std::max(worst_log, std::abs(formula_log(y) - log) / std::max(1.0, std::abs(log)));
    }
    EXPECT_LT(worst_exp, 3e-7);
    EXPECT_LT(worst_log, 3e-7);
    EXPECT_EQ(formula_exp(0), 1);
    EXPECT_EQ(formula_log(1), 0);
    EXPECT_EQ(formula_exp(-1000), 0);
    EXPECT_EQ(formula_exp(1000), kInfinity);
    EXPECT_EQ(formula_log(0), -kInfinity);
    EXPECT_TRUE(std::isnan(formula_log(-1)));
    EXPECT_NEAR(formula_log(1e-42f), std::log(1e-42f), 1e-2);
    EXPECT_EQ(formula_power(-2, 3), -8);
    EXPECT_NEAR(formula_power(2, 0.5f), std::sqrt(2.0), 1e-6);
    EXPECT_TRUE(std::isnan(formula_power(-2, 0.5f)));
}

TEST(Formula, FaultsNameTheirPlaceAndTheNearestWord) {
    const auto fault_of = [](const std::string& text, FormulaUse use = FormulaUse::choose) {
        FormulaFault fault;
        EXPECT_FALSE(parse_formula(text, use, &fault)) << text;
        return fmt::format("{}: {}", fault.at + 1, fault.what);
    };
    const auto begins = [](const std::string& text, const std::string& with) {
        EXPECT_EQ(text.substr(0, with.size()), with);
    };
    begins(fault_of("s/(agee+1)"), "4: unknown name 'agee', did you mean 'age'? (s row");
    begins(fault_of("smoth(s,avg,5)"), "1: unknown function 'smoth', did you mean 'smooth'?");
    begins(fault_of("1+p"), "3: 'p' is a row's value");
    begins(fault_of("head"), "1: 'head' is a query head's");
    begins(fault_of("s<1"), "1: choose needs a number");
    begins(fault_of("s", FormulaUse::protect), "1: protect needs a truth value");
    begins(fault_of("1+(s<2)"), "3: a number is needed here");
    begins(fault_of("s ? 1 : 2"), "1: a truth value is needed here");
    begins(fault_of("s and 1<2"), "1: a truth value is needed here");
    begins(fault_of("s<1 ? 1 : 2<3"), "6: both sides");
    begins(fault_of("(s"), "3: ')' is expected");
    begins(fault_of("s)"), "2: ')' is not expected here");
    begins(fault_of("s+"), "3: the formula ends here");
    begins(fault_of(""), "1: the formula ends here");
    begins(fault_of("s=1"), "2: '=' is no comparison");
    begins(fault_of("1.2.3"), "1: '1.2.3' is no number");
    begins(fault_of("min(s)"), "6: ',' is expected");
    begins(fault_of("abs(s,1)"), "6: ')' is expected");
    begins(fault_of("abs"), "1: abs is a function");
    begins(fault_of("smooth(s, sum)"), "11: smooth takes");
    begins(fault_of("win", FormulaUse::score), "1: 'win' is known only at a selection");
    begins(fault_of("s+rank(p)", FormulaUse::score), "3: rank looks over all tokens");
    begins(fault_of("p<1", FormulaUse::score), "1: score needs a number");
    begins(fault_of("s+pp", FormulaUse::score), "3: unknown name 'pp', did you mean 'p'?");
    begins(fault_of("smooth(s,avg,4)"), "15: the width");
    begins(fault_of("smooth(s,avg,s)"), "14: smooth takes");
    begins(fault_of("first(s,s,s)"), "7: the first value");
    begins(fault_of("first(150%,s,s)"), "1: the share");
    begins(fault_of(std::string(257, '1')), "257: a formula has at most 256 characters");
    std::string many = "s";
    for (int i = 0; i < 40; ++i) many += "+age";
    begins(fault_of(many), "130: a formula has at most 64 operations");
    begins(fault_of(std::string(100, '(') + "s" + std::string(100, ')')), "33: the parentheses");
    begins(fault_of(std::string(100, '-') + "s"), "64: too many signs");
}

TEST(Formula, ASpecNamesThePlaceInItself) {
    const auto fault_of = [](const std::string& spec) -> std::string {
        try {
            (void)parse_lane_spec(spec);
        } catch (const Error& error) {
            return error.what();
        }
        return {};
    };
    EXPECT_NE(fault_of("key:budget=64,choose=(s/(agee+1))").find("character 26: unknown name 'agee'"),
              std::string::npos);
    EXPECT_NE(fault_of("key:protect=5..2").find("positions ascend"), std::string::npos);
    EXPECT_NE(fault_of("key:protect=(sytem)").find("unknown name 'sytem'"), std::string::npos);
    EXPECT_NE(fault_of("h2o:unit=4,dialect=released").find("needs dialect=paper"), std::string::npos);
    EXPECT_NE(fault_of("adakv:unit=4").find("leave one of them out"), std::string::npos);
    EXPECT_NE(fault_of("h2o:threshold=0.1,dialect=released").find("needs dialect=paper"), std::string::npos);
    EXPECT_NE(fault_of("adakv:threshold=0.1").find("leave one of them out"), std::string::npos);
    EXPECT_NE(fault_of("h2o:unit=4,threshold=0.1").find("leave one of them out"), std::string::npos);
    EXPECT_NE(fault_of("kvzip:prefill=stepwise").find("takes prefill=oneshot"), std::string::npos);
    EXPECT_NE(fault_of("h2o:choose=(u),dialect=released").find("needs dialect=paper"), std::string::npos);
    EXPECT_NE(fault_of("h2o:score=(s+p),dialect=released").find("needs dialect=paper"), std::string::npos);
    EXPECT_NE(fault_of("key:score=(position),choose=(u)").find("leave one of them out"), std::string::npos);
    EXPECT_NE(fault_of("key:budget=prompt+x").find("prompt+N is N tokens"), std::string::npos);
    EXPECT_NE(fault_of("key:budget=prompt+1.5").find("a whole number"), std::string::npos);
    EXPECT_NE(fault_of("key:recent=prompt+4"), "");
    EXPECT_NE(fault_of("snapkv:window=0").find("window must be from 1 to 512"), std::string::npos);
    EXPECT_NE(fault_of("snapkv:kernel=avg:4"), "");
    EXPECT_NE(fault_of("h2o:buffer=4,dialect=released").find("needs dialect=paper"), std::string::npos);
    EXPECT_NE(fault_of("oracle:prefill=stepwise").find("takes prefill=oneshot"), std::string::npos);
    for (const char* spec :
         {"key:choose=(s/(age+1))", "key:choose=(u),protect=prompt,buffer=64,evict=decode",
          "key:choose=(smooth(s, avg, 5)),protect=0..3", "h2o:protect=(age<8 or position<4)",
          "key:budget=prompt+64,score=(max(s, p))", "snapkv:recent=16,window=16,kernel=max:7,evict=always",
          "rkv:budget=1024,mix=0.5,buffer=64", "chunk:protect=system,unit=10", "h2o:protect=system,unit=16"})
        EXPECT_EQ(format_lane_spec(parse_lane_spec(spec)), spec);
    EXPECT_EQ(format_lane_spec(parse_lane_spec("key:choose=((s)),protect=(none)")), "key");
}

// --- worked examples of the policies ---------------------------------------------------------------------

TEST(FieldExamples, KnormKeepsTheShortestKeys) {
    EXPECT_EQ(select("knorm:budget=4").kept, (std::set<int>{1, 2, 4, 5}));
}

TEST(FieldExamples, KeydiffKeepsTheKeysThatDiffer) {
    const Selection got = select("keydiff:budget=4");
    const std::vector<float> cosines = {.406f, .914f, .975f, .873f, .487f, .991f, .646f, .223f};
    for (std::size_t p = 0; p < 8; ++p) EXPECT_NEAR(-got.ranked[p], cosines[p], 6e-4) << p;
    EXPECT_EQ(got.kept, (std::set<int>{0, 4, 6, 7}));
    Case longer;
    for (std::size_t i = 0; i < 8; ++i)
        for (std::size_t c = 0; c < 2; ++c) longer.keys[2 * i + c] *= static_cast<float>(i + 1);
    EXPECT_EQ(select("keydiff:budget=4", longer).kept, got.kept) << "lengths do not matter";
    Case turned;
    for (std::size_t i = 0; i < 8; ++i) {  // another position turns a key
        const double a = 0.4 * static_cast<double>(i), x = turned.keys[2 * i], y = turned.keys[2 * i + 1];
        turned.keys[2 * i] = static_cast<float>(x * std::cos(a) - y * std::sin(a));
        turned.keys[2 * i + 1] = static_cast<float>(x * std::sin(a) + y * std::cos(a));
    }
    EXPECT_NE(select("keydiff:budget=4", turned).kept, got.kept) << "rotation does";
}

TEST(FieldExamples, AKeyOfLengthZeroHasNoDirection) {
    Case of;
    of.keys = std::vector<float>(16, 0);
    const Selection got = select("keydiff:budget=4", of);
    EXPECT_EQ(got.ranked, std::vector<float>(8, 0));
    EXPECT_EQ(got.kept, (std::set<int>{4, 5, 6, 7}));
}

TEST(FieldExamples, OracleKeepsWhatComesNext) {
    Case of;  // after row 5, rows 6 and 7 come: (8 1 1 4 1 1)/20 and (8 1 1 2 1 3)/20
    of.scores.resize(6);
    of.keys.resize(12);
    of.values.resize(12);
    of.row = 5;
    of.future = {5, 1, 8, 1, {}, {.8f, .1f, .1f, .3f, .1f, .2f, 0, 0}};
    EXPECT_EQ(select("oracle:budget=3", of, 6).kept, (std::set<int>{0, 3, 5}));
    of.future.first_row = 3;  // its last row is past: no future is left, the younger stay
    EXPECT_EQ(select("oracle:budget=3", of, 6).kept, (std::set<int>{3, 4, 5}));
}

// CriticalKV on row 7: half of the budget by the row, the rest by the row and how far values reach. Their
// lengths stand for the reach, which needs a model.
TEST(FieldExamples, CriticalkvKeepsHalfByTheScoreAndHalfByWhatValuesDo) {
    Case of;
    of.scores = {.40f, .05f, .05f, .10f, .05f, .15f, .10f, .10f};
    const std::vector<float> reach = {1, 6, 15, 3, 2, 9, 13, 1};
    for (std::size_t i = 0; i < 8; ++i) {
        of.values[2 * i] = reach[i];
        of.values[2 * i + 1] = 0;
    }
    const Selection got = select("key:budget=4,choose=(first(50%, s, (s+1e-4)*vnorm))", of);
    EXPECT_NEAR(got.ranked[6], 1.3013, 1e-4);
    EXPECT_NEAR(got.ranked[2], .7515, 1e-4);
    EXPECT_EQ(got.kept, (std::set<int>{0, 2, 5, 6}));
    // Two that are protected are the half; alone, the row would keep 0 and 5 beside them.
    const char* protects = "key:budget=4,recent=2,choose=(first(50%, s, (s+1e-4)*vnorm))";
    EXPECT_EQ(select(protects, of).kept, (std::set<int>{2, 5, 6, 7}));
    EXPECT_EQ(select("key:budget=4,recent=2", of).kept, (std::set<int>{0, 5, 6, 7}));
}

TEST(FieldExamples, KvzipKeepsWhatIsReadAgain) {
    Case of;
    of.scores.resize(6);
    of.keys.resize(12);
    of.values.resize(12);
    of.row = 5;
    of.repeats = {1, 6, {.4f, .3f, .1f, .1f, .1f, .2f}};
    EXPECT_EQ(select("kvzip:budget=3,sinks=0,alloc=uniform", of, 6).kept, (std::set<int>{0, 1, 5}));
}

// The example's numbers stand for u; a formula of positions gives the same ones.
TEST(FieldExamples, RandomKeepsThePromptAndTheBestDraws) {
    Case of;
    of.scores = {.62f, .07f, .91f, .33f, .48f, .80f, .15f, .29f};
    EXPECT_EQ(select("key:budget=4,protect=0..1", of).kept, (std::set<int>{0, 1, 2, 5}));
    EXPECT_EQ(select("key:budget=4,protect=prompt", of, 2).kept, (std::set<int>{0, 1, 2, 5}));
}

TEST(FieldExamples, TheDrawIsAnotherInEachRowAndKvHead) {
    Case first, second;
    second.row = 8;
    const auto u = select("random:budget=4", first).ranked;
    EXPECT_EQ(select("random:budget=4", first).ranked, u);
    EXPECT_NE(select("random:budget=4", second).ranked, u);
    EXPECT_NE(select("random:budget=4,seed=2", first).ranked, u);
    EXPECT_NE(uniform_at(1, 0, 0, 7, 3), uniform_at(1, 0, 1, 7, 3));
    EXPECT_NE(uniform_at(1, 0, 0, 7, 3), uniform_at(1, 1, 0, 7, 3));
    for (int p = 0; p < 8; ++p) EXPECT_NEAR(u[to_index(p)], reference::uniform_at(1, 0, 0, 7, p), 1e-7) << p;
}

// budget 4, buffer 2: sizes 4 5 4 5; every 3: 4 5 6 4 5 6.
TEST(FieldExamples, ABufferAndABlockMakeASawtooth) {
    const auto sizes = [](const std::string& spec) {
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, 4, 8);
        std::vector<int> found = {4};
        for (int row = 4, n = 4; found.size() < 7; ++row) {
            ++n;
            if (policy.evicts_after(row) && policy.exceeded(n, row)) n = policy.stored;
            found.push_back(n);
            EXPECT_LT(n, policy.most_stored());
        }
        return found;
    };
    EXPECT_EQ(sizes("key:budget=4,buffer=2"), (std::vector<int>{4, 5, 4, 5, 4, 5, 4}));
    EXPECT_EQ(sizes("key:budget=4,every=3"), (std::vector<int>{4, 5, 6, 4, 5, 6, 4}));
    EXPECT_EQ(sizes("key:budget=4,buffer=0"), (std::vector<int>(7, 4)));
    EXPECT_EQ(sizes("key:budget=4,every=3,buffer=2"), (std::vector<int>{4, 5, 6, 4, 5, 6, 4}));
    EXPECT_EQ(sizes("key:budget=4,every=3,buffer=4"), (std::vector<int>{4, 5, 6, 7, 8, 9, 4}));
    const auto may = [](const std::string& spec, int row) {
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, 8, 8);
        return policy.evicts_after(row) && policy.exceeded(6, row);
    };
    EXPECT_TRUE(may("key:budget=4,evict=prompt", 7));
    EXPECT_FALSE(may("key:budget=4,evict=prompt", 8));
    EXPECT_FALSE(may("key:budget=4,evict=decode", 7));
    EXPECT_TRUE(may("key:budget=4,evict=decode", 8));
}

TEST(Formula, ABudgetMayStandBesideThePrompt) {
    const auto budget = [](const std::string& spec, int n_prompt) {
        return resolve(parse_lane_spec(spec).policy, n_prompt, 4).budget;
    };
    EXPECT_EQ(budget("h2o:budget=prompt+64", 100), 164);
    EXPECT_EQ(budget("h2o:budget=prompt+0", 7), 7);
    EXPECT_EQ(resolve(parse_lane_spec("h2o:budget=prompt+20").policy, 100, 4).recent, 60);
    EXPECT_EQ(format_effective_spec(parse_lane_spec("random:budget=prompt+8,protect=prompt"), 12, 4),
              "random:budget=20,protect=prompt");
}

// Each name of a row, by itself: token 1 of three that a row of head 3 sees.
TEST(Formula, AScoreNamesWhatARowHas) {
    const ResolvedPolicy policy =
        resolve(parse_lane_spec("key:budget=5,alpha=0.25,tau=1.5,gain=3,mix=0.75,window=9").policy, 2, 4);
    const std::vector<float> p = {.5f, .2f, .3f}, logits = {1, 2, 3}, ptau = {.4f, .3f, .3f};
    const std::vector<std::int32_t> positions = {4, 1, 3}, order = {1, 2, 0};
    const auto score_of = [&](const std::string& text) {
        FormulaFault fault;
        const FormulaRef formula = score_formula(text, &fault);
        EXPECT_TRUE(formula) << text << ": " << fault.what;
        std::vector<float> score = {7, 8, 9}, scratch;
        fold_by_formula(*formula,
                        {place_facts(policy, 5, 3, 1, 3, 2), p.data(), logits.data(), ptau.data(),
                         positions.data(), order},
                        ScoreType::fp32, score, scratch);
        // One token alone, as a device computes it, has the same bits.
        const PlaceFacts facts = place_facts(policy, 5, 3, 1, 3, 2);
        EXPECT_EQ(score_after_row(*formula, facts, {8, p[1], logits[1], ptau[1], 1, 0}), score[1]) << text;
        return score[1];
    };
    for (const auto& [text, value] : std::vector<std::pair<std::string, float>>{{"s", 8},
                                                                                {"p", .2f},
                                                                                {"logit", 2},
                                                                                {"ptau", .3f},
                                                                                {"sinkmass", 0},
                                                                                {"row", 5},
                                                                                {"t", 4},
                                                                                {"age", 4},
                                                                                {"position", 1},
                                                                                {"slot", 0},
                                                                                {"n", 2},
                                                                                {"count", 3},
                                                                                {"budget", 5},
                                                                                {"layer", 1},
                                                                                {"head", 3},
                                                                                {"kvhead", 2},
                                                                                {"prompt ? 1 : 0", 1},
                                                                                {"alpha", .25f},
                                                                                {"gain", 3},
                                                                                {"mix", .75f},
                                                                                {"window", 9},
                                                                                {"max(s, p)", 8},
                                                                                {"s+p", 8 + .2f}})
        EXPECT_EQ(score_of(text), value) << text;
    EXPECT_EQ(score_of("tau"), policy.tau_at(5));
}

TEST(Formula, AScoreWithoutARowIsAChoice) {
    const ResolvedPolicy policy = resolve(parse_lane_spec("key:score=(-position)").policy, 8, 4);
    EXPECT_FALSE(policy.score);
    ASSERT_TRUE(policy.choose);
    EXPECT_EQ(policy.choose.formula->text, "-position");
    EXPECT_TRUE(resolve(parse_lane_spec("key:score=(s+p)").policy, 8, 4).score);
}

/// Runs rows of attention p, one list a row, through the CPU's cache, with the keys of the worked case, and
/// returns what the last row keeps and ranks.
Selection run_rows(const std::string& spec, const std::vector<std::vector<double>>& rows) {
    const KvLayout layout = KvLayout::grouped(1, 1, 1);
    cpu::CpuKvCache cache(layout, 2);
    cache.set_policy(resolve(parse_lane_spec(spec).policy, 1, 4));
    cache.reserve(16);
    cpu::RowScratch scratch;
    Selection out;
    const Case of;
    for (int row = 0; row < static_cast<int>(rows.size()); ++row) {
        const int slot = cache.append(0, row);
        cache.write(0, slot, of.keys.data() + std::ptrdiff_t{2} * row,
                    of.values.data() + std::ptrdiff_t{2} * row);
        scratch.grow(row + 1);
        for (int p = 0; p <= row; ++p)
            scratch.logits[to_index(p)] = static_cast<float>(std::log(rows[to_index(row)][to_index(p)]));
        cpu::score_row(cache, {0, 0}, row, scratch);
        if (row + 1 < static_cast<int>(rows.size())) continue;
        RowValues values;
        values.offset = {0, row + 1};
        values.scores.resize(to_index(row + 1));
        values.threshold.resize(1);
        cpu::UnitScores unit;
        std::vector<int> victims;
        std::vector<Eviction> evictions;
        cpu::evict_unit(cache, {0, 1}, row, cpu::Due::by_row, unit, victims, &values, evictions);
        out.ranked = values.scores;
    }
    const std::vector<std::int32_t> stored = cache.stored_positions(0);
    out.kept.insert(stored.begin(), stored.end());
    return out;
}

/// Rows 0 to 5 see all alike; then come the two of the worked case.
std::vector<std::vector<double>> worked_rows() {
    std::vector<std::vector<double>> rows;
    for (std::size_t row = 0; row < 6; ++row) rows.emplace_back(row + 1, 1.0 / static_cast<double>(row + 1));
    rows.push_back({.40, .05, .05, .20, .05, .05, .20});
    rows.push_back({.40, .05, .05, .10, .05, .15, .10, .10});
    return rows;
}

// Lengths of keys are 5 2 1 10 4 3 7 6, of values 1 2 5 1 2 3 5 1.
TEST(Formula, AScoreNamesLengthsOfTheStoredKeyAndValue) {
    const std::vector<double> knorm = {5, 2, 1, 10, 4, 3, 7, 6}, vnorm = {1, 2, 5, 1, 2, 3, 5, 1};
    const std::vector<std::vector<double>> rows = worked_rows();
    const Selection now = run_rows("key:budget=8,score=(p*vnorm-knorm/100)", rows),
                    sums = run_rows("key:budget=8,score=(s+p*vnorm)", rows),
                    halves = run_rows("key:budget=8,score=(p*knorm),kv_dtype=bf16", rows);
    const Case of;
    for (std::size_t p = 0; p < 8; ++p) {
        EXPECT_NEAR(now.ranked[p], rows[7][p] * vnorm[p] - knorm[p] / 100, 1e-5) << p;
        double sum = 0, square = 0;
        for (std::size_t row = p; row < 8; ++row) sum += rows[row][p] * vnorm[p];
        EXPECT_NEAR(sums.ranked[p], sum, 1e-5) << p;
        for (std::size_t c = 0; c < 2; ++c) {  // a key as it is stored: eight bits of each channel
            const double x = std::abs(double{of.keys[2 * p + c]});
            const double unit = x == 0 ? 1 : std::exp2(std::floor(std::log2(x)) - 7);
            square += std::pow(std::nearbyint(x / unit) * unit, 2);
        }
        EXPECT_NEAR(halves.ranked[p], rows[7][p] * std::sqrt(square), 1e-5) << p;
    }
    EXPECT_FALSE(resolve(parse_lane_spec("key:score=(-knorm)").policy, 8, 4).score) << "it is a choice";
}

// The buffer makes row 7 the first that evicts.
TEST(FieldExamples, SnapkvKeepsWhatTheLastRowsSaw) {
    const std::string keys = ",window=2,recent=2,evict=always,";
    const Selection four = run_rows("snapkv:budget=4,buffer=4" + keys + "kernel=avg:3", worked_rows());
    const std::vector<float> average = {.15f, .166667f, .083333f, .083333f, .10f, .05f};
    for (std::size_t p = 0; p < 6; ++p) EXPECT_NEAR(four.ranked[p], average[p], 1e-6) << p;
    EXPECT_EQ(four.kept, (std::set<int>{0, 1, 6, 7}));
    EXPECT_EQ(run_rows("snapkv:budget=3,buffer=5" + keys + "kernel=avg:3", worked_rows()).kept,
              (std::set<int>{1, 6, 7}))
        << "the border costs token 0 its place";
    EXPECT_EQ(run_rows("snapkv:budget=4,buffer=4" + keys + "kernel=none", worked_rows()).kept,
              (std::set<int>{0, 3, 6, 7}));
    EXPECT_EQ(run_rows("snapkv:budget=3,buffer=5" + keys + "kernel=max:3", worked_rows()).kept,
              (std::set<int>{0, 6, 7}))
        << "of equal maxima the larger unsmoothed value stays";
    EXPECT_EQ(
        run_rows("tova:budget=4,buffer=4,scope=head", worked_rows()).kept,
        run_rows("snapkv:budget=4,buffer=4,window=1,recent=0,evict=always,kernel=none", worked_rows()).kept)
        << "a window of one row is TOVA by head";
}

// The blocks 0-1, 2-3 and 4-5 have the means .225, .10 and .075; 6 and 7 are protected.
TEST(FieldExamples, ChunksLeaveWhole) {
    const auto kept = [](int budget) {
        return run_rows(fmt::format("snapkv:budget={},buffer={},unit=2,window=2,recent=2,kernel=none,"
                                    "evict=always",
                                    budget, 8 - budget),
                        worked_rows())
            .kept;
    };
    EXPECT_EQ(kept(4), (std::set<int>{0, 1, 6, 7}));
    EXPECT_EQ(kept(5), (std::set<int>{0, 1, 6, 7})) << "a block is not cut";
    EXPECT_EQ(kept(6), (std::set<int>{0, 1, 2, 3, 6, 7}));
    EXPECT_EQ(run_rows("key:budget=3,buffer=5,unit=3,choose=(position<3?1:2)", worked_rows()).kept,
              (std::set<int>{6, 7}))
        << "of equal blocks the younger stays, and the last one may be short";
}

TEST(FieldExamples, CaoteKeepsWhatTheOutputNeeds) {
    const Selection got = run_rows("caote:budget=4,buffer=4", worked_rows());
    const std::vector<float> c = {.7732f, .0753f, .1788f, .1289f, .0753f, .3844f, .3775f, .1289f};
    for (std::size_t p = 0; p < 8; ++p) EXPECT_NEAR(got.ranked[p], c[p], 6e-5) << p;
    EXPECT_EQ(got.kept, (std::set<int>{0, 2, 5, 6}));
}

TEST(FieldExamples, LagkvRanksAgainstTheNextPartition) {
    const std::string keys = "sinks=2,window=2,every=1,buffer=";
    const Selection six = run_rows("lagkv:budget=6," + keys + "2", worked_rows());
    EXPECT_EQ(six.ranked, (std::vector<float>{1, 1, .5f, 0, 0, .5f, 1, 1}));
    EXPECT_EQ(six.kept, (std::set<int>{0, 1, 2, 5, 6, 7}));
    EXPECT_EQ(run_rows("lagkv:budget=5," + keys + "3", worked_rows()).kept, (std::set<int>{0, 1, 5, 6, 7}))
        << "of 2 and 5 the younger stays";
    EXPECT_EQ(run_rows("lagkv:budget=5,sinks=2,window=4,every=1,buffer=3", worked_rows()).kept,
              (std::set<int>{0, 1, 5, 6, 7}))
        << "no partition has a next one: a window with sinks";
}

TEST(FieldExamples, RkvDropsTokensWhoseKeysResembleOthers) {
    std::vector<std::vector<double>> rows = worked_rows();
    const Case of;
    for (const auto& [row, x, y] : {std::tuple{6, 0.0, 1.0}, std::tuple{7, 1.0, 0.0}}) {
        double sum = 0;
        std::vector<double>& p = rows[to_index(row)];
        for (std::size_t i = 0; i < p.size(); ++i)
            sum += p[i] =
                std::exp((x * double{of.keys[2 * i]} + y * double{of.keys[2 * i + 1]}) / std::sqrt(2.0));
        for (double& share : p) share /= sum;
    }
    const std::string keys = "rkv:budget=4,buffer=4,window=2,recent=2,kernel=max:3,mix=";
    const Selection got = run_rows(keys + "0.1", rows);
    const std::vector<float> z = {-.0942f, -.1355f, -.0778f, -.0680f, -.0244f, -.1330f};
    for (std::size_t p = 0; p < 6; ++p) EXPECT_NEAR(got.ranked[p], z[p], 6e-5) << p;
    EXPECT_EQ(got.kept, (std::set<int>{3, 4, 6, 7}));
    const Selection likeness = run_rows(keys + "0", rows);
    const std::vector<float> r = {.1095f, .1554f, .1621f, .1512f, .1027f, .1533f, .0863f, .0795f};
    for (std::size_t p = 0; p < 8; ++p) EXPECT_NEAR(-likeness.ranked[p], r[p], 6e-5) << p;
    EXPECT_EQ(likeness.kept, (std::set<int>{0, 4, 6, 7}));
    // The released code: softmax of the window's logits over the tokens before it alone, mix 0.07.
    const Selection code =
        run_rows("rkv:budget=4,buffer=4,window=2,recent=2,kernel=max:3,dialect=released", rows);
    const std::vector<float> by_code = {-.0978f, -.1405f, -.0940f, -.0838f, -.0388f, -.1389f};
    for (std::size_t p = 0; p < 6; ++p) EXPECT_NEAR(code.ranked[p], by_code[p], 6e-5) << p;
    EXPECT_EQ(code.kept, (std::set<int>{3, 4, 6, 7}));
    EXPECT_EQ(run_rows(keys + "1", rows).kept,
              run_rows("snapkv:budget=4,buffer=4,window=2,recent=2,kernel=max:3,evict=always", rows).kept);
}

}  // namespace
}  // namespace keyhole::test_formula
