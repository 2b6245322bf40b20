// Six tokens by hand for every policy and dialect: four prompt tokens, two decoded tokens, budget 3 unless a
// case says otherwise. A row is given as whole numbers w_j with logits ln w_j, so its probabilities are w_j /
// (sum of w over what the row sees). The simulations and the engine must both give the sets and scores
// written here.
#include "engine/base/index.h"
#include "tests/reference/engine_scores.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

namespace reference::test_policy_by_hand {
namespace {

using Rows = std::vector<std::vector<double>>;  // [row][position <= row]

// Probabilities by row where all is seen:
//   row 1: 1/8 7/8          row 2: 1/8 1/8 6/8          row 3: 1/16 2/16 12/16 1/16
// so that the sums after row 3 are
//   token 0: 1 + 1/8 + 1/8 + 1/16 = 1.3125    token 1: 7/8 + 1/8 + 2/16 = 1.125
//   token 2: 6/8 + 12/16 = 1.5                token 3: 1/16 = 0.0625
const Rows kA = {{1}, {1, 7}, {1, 1, 6}, {1, 2, 12, 1}, {1, 6, 8, 5, 2}, {1, 1, 4, 2, 3, 1}};
// As kA, but row 4 gives token 0 twice the weight and token 3 one less.
const Rows kBlink = {{1}, {1, 7}, {1, 1, 6}, {1, 2, 12, 1}, {2, 6, 8, 4, 2}, {1, 1, 4, 2, 3, 1}};
//   row 1: 1/2 1/2          row 2: 1/4 2/4 1/4          row 3: 5/16 2/16 1/16 8/16
// sums after row 3:
//   token 0: 1 + 1/2 + 1/4 + 5/16 = 2.0625    token 1: 1/2 + 1/2 + 2/16 = 1.125
//   token 2: 1/4 + 1/16 = 0.3125              token 3: 0.5
const Rows kB = {{1}, {1, 1}, {1, 2, 1}, {5, 2, 1, 8}, {9, 3, 1, 4, 2}, {1, 4, 2, 3, 5, 2}};

struct Expected {
    int row = 0;
    PositionSet visible, kept;
    std::map<int, double> scores = {};  // after the row, before its eviction
};

struct HandCase {
    std::string name;
    std::string spec;
    std::function<Simulated(const Observed&, const Readers&)> simulate;
    std::vector<Rows> heads;  // query heads of the one layer
    Unit unit = Unit::head;
    int n_kv_heads = 1;
    int n_prompt = 4;
    std::vector<std::vector<Expected>> expected;  // [KV head]
    NoiseOf noise = no_noise();                   // subtracted from the logits: logit + noise = ln w
};

void PrintTo(const HandCase& c, std::ostream* out) {
    *out << c.spec;
}

constexpr Cadence kEveryRow{};

constexpr PoolOver kMean = PoolOver::mean;
// policies 2.3: one sink and the two newest. The released code rotates keys and keeps the same ones.
const std::vector<std::vector<Expected>> kSinkRows = {
    {{3, {0, 1, 2, 3}, {0, 2, 3}}, {4, {0, 2, 3, 4}, {0, 3, 4}}, {5, {0, 3, 4, 5}, {0, 4, 5}}}};
// policies 2.6, layer-wise: sum over the heads, one set. Sums after row 3: 3.375 2.25 1.8125 0.5625.
const std::vector<Expected> kLayerRows = {
    {3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 3.375}, {1, 2.25}, {2, 1.8125}, {3, 0.5625}}},
    // A: 1 . 8 5 2, B: 9 . 1 4 2, both over 16: 0: + 10/16, 2: + 9/16, 3: + 9/16, 4: 4/16.
    // Head A alone would keep 2.
    {4, {0, 2, 3, 4}, {0, 3, 4}, {{0, 4.0}, {2, 2.375}, {3, 1.125}, {4, 0.25}}},
    // A: 1 2 3 1 over 7, B: 1 3 5 2 over 11
    {5, {0, 3, 4, 5}, {0, 4, 5}, {{0, 4 + 1 / 7.0 + 1 / 11.0}, {3, 1.125 + 2 / 7.0 + 3 / 11.0}}}};
// policies 2.7: the last row only, mean over the query heads of the layer; the newest competes.
const std::vector<Expected> kTovaRows = {
    // A: 1 2 12 1, B: 5 2 1 8: mean over 32: 6 4 13 9; 1 is evicted
    {3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 6 / 32.0}, {1, 4 / 32.0}, {2, 13 / 32.0}, {3, 9 / 32.0}}},
    // A: 1 8 5 2, B: 9 1 4 2 over 0 2 3 4: 10 9 9 4; the newest is evicted at once
    {4, {0, 2, 3, 4}, {0, 2, 3}, {{0, 10 / 32.0}, {2, 9 / 32.0}, {3, 9 / 32.0}, {4, 4 / 32.0}}},
    // A: 1 4 2 1, B: 1 2 3 2 over 0 2 3 5: over 16: 2 6 5 3; 0 is evicted
    {5, {0, 2, 3, 5}, {2, 3, 5}, {{0, 2 / 16.0}, {2, 6 / 16.0}, {3, 5 / 16.0}, {5, 3 / 16.0}}}};
// policies 2.7, +i: the first token is protected inside k. At row 5, of 2 (6), 3 (5) and 5 (3), the
// newest is evicted.
const std::vector<Expected> kFirstRows = {
    {3, {0, 1, 2, 3}, {0, 2, 3}}, {4, {0, 2, 3, 4}, {0, 2, 3}}, {5, {0, 2, 3, 5}, {0, 2, 3}}};
const std::vector<Expected> kOneshotRows = {
    {4,
     {0, 1, 2, 3, 4},
     {0, 1, 3},
     {{0, 0.5 / 22 + 4.5 / 19}, {2, 4.0 / 22 + 0.5 / 19}, {4, 1.0 / 22 + 1.0 / 19}}},
    {5, {0, 1, 3, 5}, {1, 3, 5}, {{0, 0.15}, {1, 0.3}, {3, 0.35}, {5, 0.2}}}};
// policies 2.8, Algorithm 1. One Gumbel draw per token. The six draws for seed 1, layer 0, head 0 are
// written out (computed from the Philox paper, independently of both programs) and subtracted from the
// logits, so that exp(x + zeta) is the whole number w. tau is 1 for the prompt, then 1 + t * (2 - 1) / 1
// = 2, held: probabilities go with the square root of w. k = 3, w = 2.
const Rows kKeyed = {{1}, {1, 7}, {1, 1, 6}, {1, 2, 12, 1}, {49, 4, 25, 1, 9}, {1, 1, 64, 1, 36, 1}};
const std::vector<double> kTokenDraws = {-1.375921234, 0.298147435, 1.586449266,
                                         -0.424621363, 1.303860828, 4.474941901};
const NoiseOf kOnce = [](int, int, int, int p) { return kTokenDraws[keyhole::to_index(p)]; };
const auto kTwoAfterThePrompt = [](int t) { return t == 0 ? 1.0 : 2.0; };
// policies 2.8 and facts 2 and 3, attention.py: new noise in every row. The token that leaves the window
// is evicted, though token 2 has the highest score of all. The keys stay those of the prompt. k = 3
// counts the row's own token: 1 key, w = 2. tau is not held: t = 1: 2, t = 2: 3.
// Row 4: square roots 7 1 3 over 11, for 0 3 4. Row 5: cube roots: 64 27 1 -> 4 3 1 over 8, for 0 4 5.
const Rows kRowKeyed = {{1}, {1, 7}, {1, 1, 6}, {1, 2, 12, 1}, {49, 4, 25, 1, 9}, {64, 1, 64, 1, 27, 1}};
const Rows kRowDraws = {{2.152075758},
                        {0.403355799, 3.477109144},
                        {2.242582889, 3.202254501, 0.969764571},
                        {2.40749794, 0.514506782, 1.659330291, 0.363982832},
                        {1.371500872, -1.512017073, 0.765718825, -0.492838736, 1.803221347},
                        {-0.37333691, 0.113940937, 3.206436018, -0.873392164, -0.061766094, -0.990620083}};
const NoiseOf kEachRow = [](int, int, int row, int p) {
    return kRowDraws[keyhole::to_index(row)][keyhole::to_index(p)];
};
const auto kRunsOn = [](int t) { return 1.0 + t; };
// policies section 1: key = 0 is a pure window of k that counts the row itself; w = 0 never evicts.
const KeyformerScore kPlain{constant_tau(1), no_noise(), 1, 1};
// policies 2.9: A <- alpha A + p, alpha = 1/2. After row 3:
// 0: 1/16 + 1/16 + 1/32 + 1/8,  1: 2/16 + 1/16 + 7/32,  2: 12/16 + 6/16,  3: 1/16.
const std::map<int, double> kForgotten = {{0, 0.28125}, {1, 0.40625}, {2, 1.125}, {3, 0.0625}};

/// Each policy on six tokens, worked out by hand.
const std::vector<HandCase> kHandCases = {
    // policies 2.1: evicts nothing.
    {.name = "Full",
     .spec = "full",
     .simulate = [](const Observed& t, const Readers&) { return full(t); },
     .heads = {kA},
     .expected = {{{4, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}}, {5, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}}}},
    // policies 2.2: stored k, attended k + 1.
    {.name = "Window",
     .spec = "window:budget=3",
     .simulate = [](const Observed& t, const Readers&) { return window(t, 3, kEveryRow); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {1, 2, 3}},
                   {4, {1, 2, 3, 4}, {2, 3, 4}},
                   {5, {2, 3, 4, 5}, {3, 4, 5}}}}},
    // policies 2.2 and section 1, H2O's local baseline: k counts the row's own token. The 4 columns after the
    // prompt exceed 3.
    {.name = "WindowReleased",
     .spec = "window:budget=3,dialect=released",
     .simulate = [](const Observed& t, const Readers&) { return released_window(t, 3); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {2, 3}}, {4, {2, 3, 4}, {3, 4}}, {5, {3, 4, 5}, {4, 5}}}}},
    // The same with a prompt of 3: 3 columns do not exceed 3, so row 3 still sees k + 1 tokens and two are
    // evicted after it.
    {.name = "WindowReleasedPromptOfTheBudget",
     .spec = "window:budget=3,dialect=released",
     .simulate = [](const Observed& t, const Readers&) { return released_window(t, 3); },
     .heads = {kA},
     .n_prompt = 3,
     .expected = {{{2, {0, 1, 2}, {0, 1, 2}}, {3, {0, 1, 2, 3}, {2, 3}}, {4, {2, 3, 4}, {3, 4}}}}},
    {.name = "Sink",
     .spec = "sink:budget=3,sinks=1",
     .simulate = [](const Observed& t, const Readers&) { return sink_and_window(t, 3, 1, kEveryRow); },
     .heads = {kA},
     .expected = kSinkRows},
    {.name = "SinkReleased",
     .spec = "sink:budget=3,sinks=1,dialect=released",
     .simulate = [](const Observed& t, const Readers&) { return released_sink(t, 1, 2); },
     .heads = {kA},
     .expected = kSinkRows},
    // policies 2.4: w = 2 tokens one apart, i and i - 2. The span of 2 * 2 - 1 = 3 newest stays stored.
    {.name = "Dilated",
     .spec = "dilated:budget=2",
     .simulate = [](const Observed& t, const Readers&) { return dilated(t, 2, 1, kEveryRow); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {1, 2, 3}}, {4, {2, 4}, {2, 3, 4}}, {5, {3, 5}, {3, 4, 5}}}}},
    // policies 2.5: no window, so the newest token starts with one small score and is evicted at once. The
    // set stays that of the prompt.
    {.name = "KeyOnly",
     .spec = "key:budget=3",
     .simulate = [](const Observed& t, const Readers& r) { return key_only(t, r, 3, kMean, kEveryRow); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {0, 1, 2}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
                   // row 4 sees w = 1 6 8 . 2, sum 17
                   {4,
                    {0, 1, 2, 4},
                    {0, 1, 2},
                    {{0, 1.3125 + 1 / 17.0}, {1, 1.125 + 6 / 17.0}, {2, 1.5 + 8 / 17.0}, {4, 2 / 17.0}}},
                   {5, {0, 1, 2, 5}, {0, 1, 2}}}}},
    // policies 2.6, real_drop: w = 2 newest, the best of the others.
    {.name = "H2o",
     .spec = "h2o:budget=3,recent=2",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, kMean, kEveryRow);
         },
     .heads = {kA},
     .expected = {{// token 0 (1.3125) stays, 1 (1.125) goes
                   {3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
                   // w = 1 . 8 5 2, sum 16: 2 (1.5 + 8/16) stays, 0 (1.3125 + 1/16) goes
                   {4, {0, 2, 3, 4}, {2, 3, 4}, {{0, 1.375}, {2, 2.0}, {3, 0.375}, {4, 0.125}}},
                   // w = 4 2 3 1 over 2 3 4 5, sum 10: 2 (2 + 0.4) stays, 3 (0.375 + 0.2) goes
                   {5, {2, 3, 4, 5}, {2, 4, 5}, {{2, 2.4}, {3, 0.575}, {4, 0.425}, {5, 0.1}}}}}},
    // policies 2.6, utils_hh and fact 5: heavy 1, recent 2. Column s - 2 is hidden from the next row, keeps
    // its score, and competes later.
    {.name = "H2oReleased",
     .spec = "h2o:budget=3,recent=2,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_h2o(t, r, 1, 2, kMean); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
                   // 2 is hidden: w = 1 . . 5 2, sum 8; 2 keeps 1.5 and beats 0 (1.3125 + 1/8)
                   {4, {0, 3, 4}, {2, 3, 4}, {{0, 1.4375}, {2, 1.5}, {3, 0.6875}, {4, 0.25}}},
                   // 2 is visible again, 3 is hidden: w = 4 . 3 1, sum 8
                   {5, {2, 4, 5}, {2, 4, 5}, {{2, 2.0}, {3, 0.6875}, {4, 0.625}, {5, 0.125}}}}}},
    // The same rule where token 2 loses its place while hidden: row 4 sees w = 2 . . 4 2, sum 8, and token 0
    // reaches 1.3125 + 2/8 = 1.5625 > 1.5.
    {.name = "H2oReleasedLosesByTheBlink",
     .spec = "h2o:budget=3,recent=2,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_h2o(t, r, 1, 2, kMean); },
     .heads = {kBlink},
     .expected = {{{3, {0, 1, 2, 3}, {0, 2, 3}},
                   {4, {0, 3, 4}, {0, 3, 4}, {{0, 1.5625}, {2, 1.5}, {3, 0.5625}, {4, 0.25}}},
                   // 3 is hidden: w = 1 . . . 3 1 over 0 4 5, sum 5
                   {5, {0, 4, 5}, {0, 4, 5}, {{0, 1.7625}, {3, 0.5625}, {4, 0.85}, {5, 0.2}}}}}},
    // The paper's rule keeps token 2: w = 2 . 8 4 2, sum 16: 0: 1.4375, 2: 2.0.
    {.name = "H2oPaperWhereTheBlinkWouldCost",
     .spec = "h2o:budget=3,recent=2",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, kMean, kEveryRow);
         },
     .heads = {kBlink},
     .expected = {{{4, {0, 2, 3, 4}, {2, 3, 4}, {{0, 1.4375}, {2, 2.0}, {3, 0.3125}, {4, 0.125}}}}}},
    // policies section 1, w = 0: "evicts; next row cannot see even itself". Its score is then 0, so it is
    // evicted at once.
    {.name = "H2oReleasedWithoutWindow",
     .spec = "h2o:budget=3,recent=0,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_h2o(t, r, 3, 0, kMean); },
     .heads = {kA},
     .expected =
         {{{3, {0, 1, 2, 3}, {0, 1, 2}},
           // w = 1 6 8, sum 15
           {4, {0, 1, 2}, {0, 1, 2}, {{0, 1.3125 + 1 / 15.0}, {1, 1.525}, {2, 1.5 + 8 / 15.0}, {4, 0}}},
           {5, {0, 1, 2}, {0, 1, 2}}}}},
    {.name = "H2oLayerWise",
     .spec = "h2o:budget=3,recent=2,scope=layer,pool=sum",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, PoolOver::sum, kEveryRow);
         },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .expected = {kLayerRows, kLayerRows}},
    // policies 2.12: two query heads of one KV head share one set too.
    {.name = "H2oGrouped",
     .spec = "h2o:budget=3,recent=2,pool=sum",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, PoolOver::sum, kEveryRow);
         },
     .heads = {kA, kB},
     .expected = {kLayerRows}},
    // Per head the sets differ: B keeps 0 at row 4 (2.0625 + 9/16 = 2.625 against 0.3125 + 1/16).
    {.name = "H2oHeadWise",
     .spec = "h2o:budget=3,recent=2",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, kMean, kEveryRow);
         },
     .heads = {kA, kB},
     .n_kv_heads = 2,
     .expected = {{{4, {0, 2, 3, 4}, {2, 3, 4}}, {5, {2, 3, 4, 5}, {2, 4, 5}}},
                  {{4, {0, 2, 3, 4}, {0, 3, 4}, {{0, 2.625}, {2, 0.375}, {3, 0.75}, {4, 0.125}}},
                   {5, {0, 3, 4, 5}, {0, 4, 5}}}}},
    // Maximum over the two heads: 2 has max(1.5 + 8/16, 0.375) = 2, 0 has max(1.375, 2.625) = 2.625.
    {.name = "H2oGroupedMax",
     .spec = "h2o:budget=3,recent=2,pool=max",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, PoolOver::max, kEveryRow);
         },
     .heads = {kA, kB},
     .expected = {{{3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 2.0625}, {1, 1.125}, {2, 1.5}, {3, 0.5}}},
                   {4, {0, 2, 3, 4}, {0, 3, 4}, {{0, 2.625}, {2, 2.0}, {3, 0.75}, {4, 0.125}}}}}},
    // policies 5.11: every second row. Row 4 evicts nothing, row 5 sees five tokens.
    {.name = "H2oEverySecondRow",
     .spec = "h2o:budget=3,recent=2,every=2",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return h2o(t, r, 3, {0, 2}, kMean, {false, 2});
         },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {0, 2, 3}},
                   {4, {0, 2, 3, 4}, {0, 2, 3, 4}},
                   // w = 1 4 2 3 1 over 0 2 3 4 5, sum 11: 2 (2 + 4/11) stays
                   {5, {0, 2, 3, 4, 5}, {2, 4, 5}, {{0, 1.375 + 1 / 11.0}, {2, 2 + 4 / 11.0}}}}}},
    {.name = "Tova",
     .spec = "tova:budget=3",
     .simulate = [](const Observed& t, const Readers& r) { return tova(t, r, 3, {}, kMean, kEveryRow); },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .expected = {kTovaRows, kTovaRows}},
    {.name = "TovaReleased",
     .spec = "tova:budget=3,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_tova(t, r, 3); },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .expected = {kTovaRows, kTovaRows}},
    {.name = "TovaFirstTokenProtected",
     .spec = "tova:budget=3,sinks=1",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return tova(t, r, 3, {1, 0}, kMean, kEveryRow);
         },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .expected = {kFirstRows, kFirstRows}},
    // policies 2.7, head-wise, and the tie rule of section 1. In A tokens 0 and 3 have 1/16 each at row 3,
    // and 1 and 5 have 1/8 each at row 5. Of equal scores the older token is evicted.
    {.name = "TovaHeadWise",
     .spec = "tova:budget=3,scope=head",
     .simulate = [](const Observed& t, const Readers& r) { return tova(t, r, 3, {}, kMean, kEveryRow); },
     .heads = {kA, kB},
     .n_kv_heads = 2,
     .expected = {{{3, {0, 1, 2, 3}, {1, 2, 3}},
                   {4, {1, 2, 3, 4}, {1, 2, 3}},     // 6 8 5 2
                   {5, {1, 2, 3, 5}, {2, 3, 5}}},    // 1 4 2 1
                  {{3, {0, 1, 2, 3}, {0, 1, 3}},     // 5 2 1 8
                   {4, {0, 1, 3, 4}, {0, 1, 3}},     // 9 3 4 2
                   {5, {0, 1, 3, 5}, {1, 3, 5}}}}},  // 1 4 3 2
    // policies 2.7, a prompt of 5. Stepwise (appendix E): rows 3 and 4 evict as above. One-shot: two tokens
    // are evicted after row 4, which saw all: A 1 6 8 5 2 over 22, B 9 3 1 4 2 over 19: means 0.260 0.215
    // 0.208 0.219 0.098. Then row 5: A 1 1 2 1 over 5, B 1 4 3 2 over 10.
    {.name = "TovaStepwise",
     .spec = "tova:budget=3,prefill=stepwise",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return tova(t, r, 3, {}, kMean, {true, 1});
         },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .n_prompt = 5,
     .expected = {kTovaRows, kTovaRows}},
    {.name = "TovaOneShot",
     .spec = "tova:budget=3,dialect=released,prefill=stepwise",
     .simulate = [](const Observed& t, const Readers& r) { return released_tova(t, r, 3); },
     .heads = {kA, kB},
     .unit = Unit::layer,
     .n_kv_heads = 2,
     .n_prompt = 5,
     .expected = {kOneshotRows, kOneshotRows}},
    {.name = "Keyformer",
     .spec = "keyformer:budget=3,recent=2,tau=1..2,horizon=1",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return keyformer(t, r, 3, {0, 2}, {kTwoAfterThePrompt, kOnce, 1, 1}, kMean, kEveryRow);
         },
     .heads = {kKeyed},
     .expected =
         {{{3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
           // roots 7 . 5 1 3, sum 16: 0: 1.3125 + 7/16 = 1.75, 2: 1.5 + 5/16 = 1.8125. At tau 1 token 0
           // would win.
           {4, {0, 2, 3, 4}, {2, 3, 4}, {{0, 1.75}, {2, 1.8125}, {3, 0.125}, {4, 0.1875}}},
           // roots 8 1 6 1 over 2 3 4 5, sum 16
           {5, {2, 3, 4, 5}, {2, 4, 5}, {{2, 2.3125}, {3, 0.1875}, {4, 0.5625}, {5, 0.0625}}}}},
     .noise = kOnce},
    // Damping 1/4 on decode rows only: 0: 1.3125 + 7/64, 2: 1.5 + 5/64.
    {.name = "KeyformerDamped",
     .spec = "keyformer:budget=3,recent=2,tau=1..2,horizon=1,damping=0.25",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return keyformer(t, r, 3, {0, 2}, {kTwoAfterThePrompt, kOnce, 1, 0.25}, kMean, kEveryRow);
         },
     .heads = {kKeyed},
     .expected =
         {{{3, {0, 1, 2, 3}, {0, 2, 3}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
           {4, {0, 2, 3, 4}, {2, 3, 4}, {{0, 1.421875}, {2, 1.578125}, {3, 0.078125}, {4, 0.046875}}}}},
     .noise = kOnce},
    // tau near 0: every row gives 1 to its highest token: 0, 1, 2, 2; then 2, 2. Of 0 and 1 (1 each) the
    // older is evicted.
    {.name = "KeyformerTauNearZero",
     .spec = "keyformer:budget=3,recent=2,noise=none,tau=0.000001",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return keyformer(t, r, 3, {0, 2}, {constant_tau(1e-6), no_noise(), 1, 1}, kMean, kEveryRow);
         },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {1, 2, 3}, {{0, 1}, {1, 1}, {2, 2}, {3, 0}}},
                   {4, {1, 2, 3, 4}, {2, 3, 4}, {{1, 1}, {2, 3}, {3, 0}, {4, 0}}},
                   {5, {2, 3, 4, 5}, {2, 4, 5}, {{2, 4}, {3, 0}, {4, 0}, {5, 0}}}}}},
    {.name = "KeyformerReleased",
     .spec = "keyformer:budget=3,recent=2,tau=1..2,horizon=1,dialect=released",
     .simulate =
         [](const Observed& t, const Readers& r) {
             return released_keyformer(t, r, 3, 2, {kRunsOn, kEachRow, 1, 1}, kMean);
         },
     .heads = {kRowKeyed},
     .expected = {{{3, {0, 1, 2, 3}, {0, 3}, {{0, 1.3125}, {1, 1.125}, {2, 1.5}, {3, 0.0625}}},
                   {4, {0, 3, 4}, {0, 4}, {{0, 1.3125 + 7 / 11.0}, {3, 0.0625 + 1 / 11.0}, {4, 3 / 11.0}}},
                   {5, {0, 4, 5}, {0, 5}, {{0, 1.8125 + 7 / 11.0}, {4, 3 / 11.0 + 0.375}, {5, 0.125}}}}},
     .noise = kEachRow},
    {.name = "KeyformerReleasedAllWindow",
     .spec = "keyformer:budget=3,recent=3,noise=none,tau=1,dialect=released",
     .simulate = [](const Observed& t,
                    const Readers& r) { return released_keyformer(t, r, 3, 3, kPlain, kMean); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {2, 3}}, {4, {2, 3, 4}, {3, 4}}, {5, {3, 4, 5}, {4, 5}}}}},
    {.name = "KeyformerReleasedWithoutWindow",
     .spec = "keyformer:budget=3,recent=0,noise=none,tau=1,dialect=released",
     .simulate = [](const Observed& t,
                    const Readers& r) { return released_keyformer(t, r, 3, 0, kPlain, kMean); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {0, 1, 2, 3}},
                   {4, {0, 1, 2, 3, 4}, {0, 1, 2, 3, 4}},
                   {5, {0, 1, 2, 3, 4, 5}, {0, 1, 2, 3, 4, 5}}}}},
    // "eviction starts when length exceeds k": a prompt of 3 with k = 3 evicts nothing. After row 3 one of
    // two candidates and the gap are evicted.
    {.name = "KeyformerReleasedPromptOfTheBudget",
     .spec = "keyformer:budget=3,recent=2,noise=none,tau=1,dialect=released",
     .simulate = [](const Observed& t,
                    const Readers& r) { return released_keyformer(t, r, 3, 2, kPlain, kMean); },
     .heads = {kA},
     .n_prompt = 3,
     .expected = {{{2, {0, 1, 2}, {0, 1, 2}},
                   {3, {0, 1, 2, 3}, {0, 3}},
                   {4, {0, 3, 4}, {0, 4}, {{0, 1.3125 + 1 / 8.0}, {3, 0.0625 + 5 / 8.0}, {4, 2 / 8.0}}}}}},
    {.name = "A2sf",
     .spec = "a2sf:budget=3,alpha=0.5",
     .simulate = [](const Observed& t, const Readers& r) { return a2sf(t, r, 3, {}, 0.5, kMean, kEveryRow); },
     .heads = {kA},
     .expected =
         {{{3, {0, 1, 2, 3}, {0, 1, 2}, kForgotten},
           // w = 1 6 8 . 2, sum 17
           {4,
            {0, 1, 2, 4},
            {0, 1, 2},
            {{0, 0.140625 + 1 / 17.0}, {1, 0.203125 + 6 / 17.0}, {2, 0.5625 + 8 / 17.0}, {4, 2 / 17.0}}},
           {5, {0, 1, 2, 5}, {0, 1, 2}}}}},
    // policies 2.9, code of 2024: the newest is always kept. Recent 0: best 2 and the newest.
    {.name = "A2sfReleased",
     .spec = "a2sf:budget=3,alpha=0.5,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_a2sf(t, r, 3, 0, 0.5, kMean); },
     .heads = {kA},
     .expected =
         {{{3, {0, 1, 2, 3}, {1, 2, 3}, kForgotten},
           // w = 6 8 5 2 over 1 2 3 4, sum 21: 0.489 0.943 0.269 and the newest
           {4,
            {1, 2, 3, 4},
            {1, 2, 4},
            {{1, 0.203125 + 6 / 21.0}, {2, 0.5625 + 8 / 21.0}, {3, 0.03125 + 5 / 21.0}, {4, 2 / 21.0}}},
           // w = 1 4 3 1 over 1 2 4 5, sum 9: 0.356 0.916 0.381 and the newest
           {5, {1, 2, 4, 5}, {2, 4, 5}}}}},
    // Recent 1 behaves like 0 and loses a slot: best 1 and the newest.
    {.name = "A2sfReleasedRecentOne",
     .spec = "a2sf:budget=3,recent=1,alpha=0.5,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_a2sf(t, r, 3, 1, 0.5, kMean); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {2, 3}, kForgotten},
                   {4, {2, 3, 4}, {2, 4}},     // w = 8 5 2
                   {5, {2, 4, 5}, {2, 5}}}}},  // w = 4 3 1
    // A text no longer than k = select + recent is kept whole all the same (section 1).
    {.name = "A2sfReleasedRecentOnePromptOfTheBudget",
     .spec = "a2sf:budget=3,recent=1,alpha=0.5,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_a2sf(t, r, 3, 1, 0.5, kMean); },
     .heads = {kA},
     .n_prompt = 3,
     .expected = {{{2, {0, 1, 2}, {0, 1, 2}}, {3, {0, 1, 2, 3}, {2, 3}, kForgotten}}}},
    // Recent 2: heavy + recent stored, k + 1 attended: 1 stays against 0, then 2 against 1.
    {.name = "A2sfReleasedRecentTwo",
     .spec = "a2sf:budget=3,recent=2,alpha=0.5,dialect=released",
     .simulate = [](const Observed& t, const Readers& r) { return released_a2sf(t, r, 3, 2, 0.5, kMean); },
     .heads = {kA},
     .expected = {{{3, {0, 1, 2, 3}, {1, 2, 3}, kForgotten},
                   {4, {1, 2, 3, 4}, {2, 3, 4}},
                   {5, {2, 3, 4, 5}, {2, 4, 5}}}}},
};

Observed text_of(const HandCase& c) {
    Observed text{1, static_cast<int>(c.heads.size()), c.n_kv_heads, c.n_prompt, 6, {}};
    text.logits.assign(6 * c.heads.size() * 6, std::nan(""));
    for (int row = 0; row < 6; ++row)
        for (int h = 0; h < text.n_heads; ++h)
            for (int p = 0; p <= row; ++p)
                text.logit(row, 0, h, p) =
                    std::log(c.heads[keyhole::to_index(h)][keyhole::to_index(row)][keyhole::to_index(p)]) -
                    c.noise(0, h, row, p);
    return text;
}

void expect_rows(const Simulated& got, const std::vector<Expected>& expected, double tolerance) {
    for (const Expected& e : expected) {
        const SimulatedRow& row = got.at(keyhole::to_index(e.row));
        EXPECT_EQ(row.visible, e.visible) << "row " << e.row;
        EXPECT_EQ(row.kept, e.kept) << "row " << e.row;
        for (const auto& [p, score] : e.scores)
            EXPECT_NEAR(row.scores.at(keyhole::to_index(p)), score, tolerance)
                << "row " << e.row << " token " << p;
    }
}

class PolicyByHand : public ::testing::TestWithParam<HandCase> {};

TEST_P(PolicyByHand, SimulationAgrees) {
    const HandCase& c = GetParam();
    const Observed text = text_of(c);
    for (const Readers& unit : selected_together(text, c.unit)) {
        const Simulated rows = c.simulate(text, unit);
        for (const auto& [layer, g] : unit.kv_heads) {
            SCOPED_TRACE("KV head " + std::to_string(g));
            expect_rows(rows, c.expected[keyhole::to_index(g)], 1e-12);
        }
    }
}

TEST_P(PolicyByHand, CpuAgrees) {
    const HandCase& c = GetParam();
    const std::vector<Simulated> rows = run_engine_scores(text_of(c), c.spec, 2);
    ASSERT_EQ(rows.size(), c.expected.size());
    for (std::size_t g = 0; g < rows.size(); ++g) {
        SCOPED_TRACE("KV head " + std::to_string(g));
        expect_rows(rows[g], c.expected[g], 1e-6);
    }
}

INSTANTIATE_TEST_SUITE_P(SixTokens, PolicyByHand, ::testing::ValuesIn(kHandCases),
                         [](const ::testing::TestParamInfo<HandCase>& c) { return c.param.name; });

}  // namespace
}  // namespace reference::test_policy_by_hand
