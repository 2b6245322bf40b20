// The lane spec: its meaning, its refusals and their places, and round trips between text and parameters.
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/spec_change.h"
#include "engine/policy/spec_text.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace keyhole::test_lane_spec {
namespace {

constexpr Preset kAll[] = {Preset::full, Preset::window, Preset::sink,      Preset::dilated, Preset::key,
                           Preset::h2o,  Preset::tova,   Preset::keyformer, Preset::a2sf};

PolicyParams parsed(std::string_view text) {
    return parse_lane_spec(text).policy;
}

/// Returns the fault's message; empty when there is none.
std::string fault_of(std::string_view text) {
    try {
        parse_lane_spec(text);
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        return error.what();
    }
    return {};
}

// --- meaning -----------------------------------------------------------------------------------------------

TEST(LaneSpec, PresetAloneIsThePreset) {
    for (Preset preset : kAll) {
        EXPECT_EQ(parsed(preset_name(preset)), preset_params(preset));
        EXPECT_EQ(format_lane_spec({preset_params(preset)}), preset_name(preset));
        EXPECT_FALSE(preset_help(preset).empty());
    }
}

TEST(LaneSpec, EveryKeySetsItsField) {
    const PolicyParams p = parsed(
        "h2o:budget=64,recent=25%,sinks=2,alpha=0.5,tau=1.5,horizon=9,noise=gaussian,draw=row,gain=2.5,scope="
        "shared,"
        "pool=max,prefill=stepwise,every=8,damping=0.25,score_dtype=bf16,kv_dtype=q8,seed="
        "18446744073709551615");
    EXPECT_EQ(p.budget, (Amount{Amount::Unit::tokens, 64}));
    EXPECT_EQ(p.recent, (Amount{Amount::Unit::percent, 25}));
    EXPECT_EQ(p.sinks, 2);
    EXPECT_EQ(p.alpha, 0.5);
    EXPECT_EQ(p.tau, (TauSchedule{TauSchedule::Shape::constant, 1.5, 1.5, {}}));
    EXPECT_EQ(p.horizon, 9);
    EXPECT_EQ(p.noise, NoiseKind::gaussian);
    EXPECT_EQ(p.draw, NoiseDraw::row);
    EXPECT_EQ(p.gain, 2.5);
    EXPECT_EQ(p.scope, Scope::shared);
    EXPECT_EQ(p.pool, Pool::max);
    EXPECT_EQ(p.prefill, PrefillMode::stepwise);
    EXPECT_EQ(p.every, 8);
    EXPECT_EQ(p.damping, 0.25);
    EXPECT_EQ(p.score_dtype, ScoreType::bf16);
    EXPECT_EQ(p.kv_dtype, KvType::q8);
    EXPECT_EQ(p.seed, 18446744073709551615u);
    EXPECT_EQ(p.preset, Preset::h2o);
}

TEST(LaneSpec, TauHasFourForms) {
    using Shape = TauSchedule::Shape;
    EXPECT_EQ(parsed("keyformer:tau=1").tau, (TauSchedule{Shape::constant, 1, 1, {}}));
    EXPECT_EQ(parsed("keyformer:tau=0.5..2").tau, (TauSchedule{Shape::linear, 0.5, 2, {}}));
    EXPECT_EQ(parsed("keyformer:tau=1..2@linear").tau, (TauSchedule{Shape::linear, 1, 2, {}}));
    EXPECT_EQ(parsed("keyformer:tau=2..1@cosine").tau, (TauSchedule{Shape::cosine, 2, 1, {}}));
    EXPECT_EQ(parsed("keyformer:tau=(0:1 20:1.4 100:2)").tau,
              (TauSchedule{Shape::points, 1, 2, {{0, 1}, {20, 1.4}, {100, 2}}}));
    EXPECT_EQ(parsed("keyformer:tau=(3:1.5)").tau, (TauSchedule{Shape::points, 1.5, 1.5, {{3, 1.5}}}));
}

TEST(LaneSpec, AmountsHaveTheirWords) {
    EXPECT_EQ(parsed("h2o:budget=all").budget.unit, Amount::Unit::all);
    EXPECT_EQ(parsed("h2o:recent=rest").recent.unit, Amount::Unit::rest);
    EXPECT_EQ(parsed("h2o:budget=12.5%").budget, (Amount{Amount::Unit::percent, 12.5}));
    EXPECT_NE(fault_of("h2o:budget=rest"), "");
    EXPECT_NE(fault_of("h2o:recent=all"), "");
}

TEST(LaneSpec, BlanksAndParenthesesDoNotMatter) {
    EXPECT_EQ(parsed(" h2o : budget = 64 , alpha=(0.5) "), parsed("h2o:budget=64,alpha=0.5"));
    EXPECT_EQ(parsed("keyformer:tau=( 0:1   9:2 )"), parsed("keyformer:tau=(0:1 9:2)"));
}

TEST(LaneSpec, NewerKeysSetTheirFields) {
    const PolicyParams p = parsed("tova:dialect=released,positions=compressed,shadow=on");
    EXPECT_EQ(p.dialect, Dialect::released);
    EXPECT_EQ(p.positions, Positions::compressed);
    EXPECT_TRUE(p.shadow);
    EXPECT_EQ(parsed("dilated").dilation, 1);
    EXPECT_EQ(parsed("dilated:dilation=3").dilation, 3);
}

TEST(LaneSpec, OverridesNameLayersAndHeads) {
    const PolicyParams p =
        parsed("h2o:alpha@L0-3.H2=0.5,budget@L5=25%,recent@H0-1=rest,gain@L1.H1=2,tau@L2=(0:1 9:2)");
    using Field = Override::Field;
    ASSERT_EQ(p.overrides.size(), 5u);
    EXPECT_EQ(p.overrides[0], (Override{Field::alpha, 0, 3, 2, 2, {}, 0.5, {}}));
    EXPECT_EQ(p.overrides[1],
              (Override{Field::budget, 5, 5, 0, Override::kAll, {Amount::Unit::percent, 25}, 0, {}}));
    EXPECT_EQ(p.overrides[2],
              (Override{Field::recent, 0, Override::kAll, 0, 1, {Amount::Unit::rest, 0}, 0, {}}));
    EXPECT_EQ(p.overrides[3], (Override{Field::gain, 1, 1, 1, 1, {}, 2, {}}));
    EXPECT_EQ(p.overrides[4].tau.points.size(), 2u);
    EXPECT_TRUE(p.overrides[0].covers(3, 2, 0));
    EXPECT_FALSE(p.overrides[0].covers(4, 2, 0));
    EXPECT_FALSE(p.overrides[0].covers(3, 1, 0));
    EXPECT_TRUE(p.overrides[1].covers(5, 77, 0));
}

/// One override may name several ranges, of query heads and of KV heads; equal values are written together.
TEST(LaneSpec, AnOverrideNamesSeveralRangesAndKvHeads) {
    const LaneSpec lane = parse_lane_spec("sink:budget=32,budget@L5.G2,L7.G0-1,H3=all,alpha@L1=0.5");
    const std::vector<Override>& found = lane.policy.overrides;
    ASSERT_EQ(found.size(), 4u);
    const Amount all{Amount::Unit::all, 0};
    EXPECT_EQ(found[0], (Override{Override::Field::budget, 5, 5, 2, 2, all, 0, {}, true}));
    EXPECT_EQ(found[1], (Override{Override::Field::budget, 7, 7, 0, 1, all, 0, {}, true}));
    EXPECT_EQ(found[2], (Override{Override::Field::budget, 0, Override::kAll, 3, 3, all, 0, {}, false}));
    EXPECT_TRUE(found[0].covers(5, 6, 2));
    EXPECT_FALSE(found[0].covers(5, 2, 0));
    EXPECT_EQ(format_lane_spec(lane), "sink:budget=32,budget@L5.G2,L7.G0-1,H3=all,alpha@L1=0.5");
    EXPECT_EQ(format_lane_spec(parse_lane_spec("h2o:budget@L1=4,budget@L3=4,budget@L2=5")),
              "h2o:budget@L1,L3=4,budget@L2=5");
    EXPECT_EQ(format_lane_spec(changed_lane_spec(lane, "budget@L7.G0-1=9")),
              "sink:budget=32,budget@L5.G2,H3=all,alpha@L1=0.5,budget@L7.G0-1=9");
}

TEST(LaneSpec, EveryDialectIsSaidInASentence) {
    for (Preset preset : kAll) EXPECT_TRUE(dialect_help(preset).ends_with('.')) << preset_name(preset);
    EXPECT_EQ(dialect_name(Dialect::released), "released");
}

TEST(LaneSpec, DefaultsMayBeGiven) {
    EXPECT_EQ(
        parsed("h2o:positions=original,dialect=paper,shadow=off,dilation=0,merge=uniform,compensate=off"),
        preset_params(Preset::h2o));
}

// --- refusals ----------------------------------------------------------------------------------------------

struct Refused {
    const char* spec;
    int character;     ///< 1-based place of the fault
    const char* says;  ///< part of the message
};

TEST(LaneSpec, SharingGoesRound) {
    using Kind = KvSharing::Kind;
    struct Case {
        std::string items;
        KvSharing sharing;
    };
    for (const Case& c : {Case{"kv=gqa:4", {Kind::gqa, 0, 4}}, Case{"kv=mqa", {Kind::mqa}},
                          Case{"kv=mha", {Kind::mha}}, Case{"kv=(mlkv:m=4,g=2)", {Kind::mlkv, 4, 2}},
                          Case{"kv=(mlkv:m=1,g=1),merge=released,compensate=on",
                               {Kind::mlkv, 1, 1, KvMerge::released, true}}}) {
        const LaneSpec spec = parse_lane_spec("h2o:budget=64," + c.items);
        EXPECT_EQ(spec.sharing, c.sharing) << c.items;
        EXPECT_EQ(format_lane_spec(spec), "h2o:budget=64," + c.items);
        EXPECT_EQ(spec.policy, parse_lane_spec("h2o:budget=64").policy);
    }
    EXPECT_EQ(parse_lane_spec("h2o:kv=( mlkv:g=2, m=4 )").sharing, (KvSharing{Kind::mlkv, 4, 2}));
    EXPECT_EQ(parse_lane_spec("full").sharing, KvSharing{});
    EXPECT_EQ(changed_lane_spec(parse_lane_spec("h2o:kv=mqa"), "kv=own").sharing, KvSharing{});
    EXPECT_EQ(parse_kv_sharing("mlkv:m=4,g=1"), (KvSharing{Kind::mlkv, 4, 1}));
    EXPECT_EQ(parse_kv_sharing("(mlkv:m=4,g=1)"), (KvSharing{Kind::mlkv, 4, 1}));
    EXPECT_EQ(format_kv_sharing({Kind::mlkv, 4, 1}), "mlkv:m=4,g=1");
}

TEST(LaneSpec, RefusesWithPlaceAndNearestWord) {
    const Refused cases[] = {
        {"", 1, "preset"},
        {"   ", 4, "preset"},
        {"h20", 1, "did you mean 'h2o'?"},
        {"keyfromer:budget=3", 1, "did you mean 'keyformer'?"},
        {"a2fs", 1, "did you mean 'a2sf'?"},
        {"H2O", 1, "did you mean 'h2o'?"},
        {"windwo", 1, "did you mean 'window'?"},
        {"scissorhands", 1, "Scissorhands is not built in (full "},
        {"StreamingLLM:budget=3", 1, "StreamingLLM is 'sink'"},
        {"banana", 1, "unknown preset 'banana' (full "},
        {"h2o:", 5, "key=value"},
        {"h2o:budget=64,", 15, "key=value"},
        {"h2o:,budget=64", 5, "key=value"},
        {"h2o:budget", 5, "key=value"},
        {"h2o:budgt=64", 5, "did you mean 'budget'?"},
        {"h2o:budget=64,recnt=3", 15, "did you mean 'recent'?"},
        {"h2o:=64", 5, "key"},
        {"h2o:budget=", 12, "no value"},
        {"h2o:budget=()", 13, "no value"},
        {"h2o:budget=64x", 12, "'64x' is not"},
        {"h2o:budget=-3", 12, "negative"},
        {"h2o:budget=6.5", 12, "whole"},
        {"h2o:budget=%", 12, "50%"},
        {"h2o:budget=nan", 12, "is not"},
        {"h2o:budget=1e999", 12, "is not"},
        {"h2o:budget=1000000001", 12, "whole number up to 1000000000"},
        {"h2o:recent=2147483647", 12, "whole number up to 1000000000"},
        {"h2o:sinks=2147483647", 11, "sinks must be from 0 to 1000000000"},
        {"full:horizon=2147483647", 14, "horizon must be from 0 to 1000000000"},
        {"h2o:horizon=-1", 13, "horizon must be from 0 to 1000000000"},
        {"h2o:every=2147483647", 11, "every must be from 1 to 1000000000"},
        {"dilated:dilation=2147483647", 18, "at most 1000000000"},
        {"h2o:gain=1e300", 10, "gain must be a number from -1000000 to 1000000"},
        {"h2o:gain@L1=-1e300", 13, "gain must be a number from -1000000 to 1000000"},
        {"h2o:damping=1e300", 13, "damping must be a number from 0 to 1000000"},
        {"keyformer:tau=1e300", 15, "at most 1e+30"},
        {"keyformer:tau=(0:1 9:1e31)", 16, "at most 1e+30"},
        {"h2o:kv=gqa:2147483647", 12, "at most 1000000"},
        {"h2o:alpha@L0-2147483647=0.5", 12, "stay below 1000000"},
        {"h2o:alpha@H2147483647=0.5", 12, "stay below 1000000"},
        {"h2o:seed=+1", 10, "whole number"},
        {"h2o:sinks=0x10", 11, "whole number"},
        {"h2o:budget=64,budget=32", 15, "twice"},
        {"h2o:alpha=1.5", 11, "alpha must be a number from 0 to 1"},
        {"h2o:sinks=two", 11, "whole number"},
        {"h2o:sinks=99999999999", 11, "whole number"},
        {"h2o:seed=-1", 10, "whole number"},
        {"h2o:every=0", 11, "every must be from 1 to 1000000000"},
        {"h2o:noise=gumble", 11, "did you mean 'gumbel'?"},
        {"h2o:scope=heads", 11, "did you mean 'head'?"},
        {"h2o:score_dtype=f16", 17, "did you mean 'fp16'?"},
        {"h2o:kv_dtype=fp16", 14, "did you mean 'f16'?"},
        {"h2o:kv_dtype=q4", 14, "did you mean 'q8'?"},
        {"keyformer:tau=0", 15, "tau must be above 0"},
        {"keyformer:tau=1..", 18, "1..2@cosine"},
        {"keyformer:tau=1..2@cosin", 20, "did you mean 'cosine'?"},
        {"keyformer:tau=1@cosine", 15, "two ends"},
        {"keyformer:tau=(0:1 20)", 20, "points"},
        {"keyformer:tau=(0:1 x:2)", 20, "points"},
        {"keyformer:tau=(5:1 5:2)", 16, "ascend"},
        {"keyformer:tau=(0:1", 15, "'(' without ')'"},
        {"keyformer:tau=0:1)", 18, "')' without '('"},
        {"full:budget=64", 13, "full keeps every token"},
        {"h2o:dilation=1", 14, "dilation is 1 or more in preset dilated"},
        {"dilated:dilation=0", 18, "dilation is 1 or more in preset dilated"},
        {"h2o:positions=cash", 15, "positions"},
        {"key:dialect=released", 13, "has no dialect of its released code"},
        {"h2o:shadow=yes", 12, "(on off)"},
        {"h2o:kv=gqa", 8, "gqa:4"},
        {"h2o:kv=gqa:x", 12, "not a whole number"},
        {"h2o:kv=gqa:0", 12, "1 or more"},
        {"h2o:kv=mqa:2", 11, "takes no number"},
        {"h2o:kv=(mlkv:m=4)", 14, "(mlkv:m=4,g=1)"},
        {"h2o:kv=(mlkv:m=4,g=0)", 20, "1 or more"},
        {"h2o:kv=(mlkv:m=4,m=1)", 18, "given twice"},
        {"h2o:kv=(mlkv:m=4,h=1)", 18, "(m g)"},
        {"h2o:kv=gqq:4", 8, "did you mean 'gqa'?"},
        {"h2o:merge=mean", 11, "(uniform released)"},
        {"h2o:compensate=1", 16, "(on off)"},
        {"h2o:model=assets/models/other", 5, "name it by --model"},
        {"h2o:alpha@L0-3.H2=1.5", 19, "alpha must be a number from 0 to 1"},
        {"h2o:alpha@=0.5", 11, "@L0-3.H2"},
        {"h2o:alpha@K3=0.5", 11, "@L0-3.H2"},
        {"h2o:alpha@L1,=0.5", 14, "@L0-3.H2"},
        {"h2o:budget@L5.G2,L7.X1=all", 18, "KV heads as @L5.G2"},
        {"h2o:budget@L5.G2,L7", 5, "key=value is expected"},
        {"h2o:budget@L1.G0,L1.G0=4", 5, "'budget@L1.G0' is given twice"},
        {"h2o:alpha@L3-1=0.5", 12, "ascend"},
        {"h2o:scope@L3=layer", 10,
         "only budget, recent, alpha, tau, gain, score, choose, protect, read may differ"},
        {"h2o:alpha@L1=0.5,alpha@L1=0.2", 18, "'alpha@L1' is given twice"},
        {"full:budget@L1=8", 16, "full keeps every token"},
        {"h2o:alfa@L0=0.5", 5, "did you mean 'alpha'?"},
    };
    for (const Refused& refused : cases) {
        const std::string message = fault_of(refused.spec);
        EXPECT_NE(message.find(fmt::format("lane spec '{}', character {}:", refused.spec, refused.character)),
                  std::string::npos)
            << refused.spec << " -> " << message;
        EXPECT_NE(message.find(refused.says), std::string::npos) << refused.spec << " -> " << message;
        EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
}

/// A hostile spec may hold anything: the message stays one short line.
TEST(LaneSpec, FaultsStayOneShortLine) {
    const std::string many(100'000, 'x');
    const std::string_view zero("h2o:alpha=\0", 11);
    for (const std::string& spec :
         {std::string("h2o\n:x"), std::string("h2o:alpha=\x1b[31m"), std::string(zero), "h2o:" + many + "=1",
          "h2o:alpha=" + many, many, "h2o:model=" + many, "h2o:alpha@" + many + "=1",
          "h2o:kv=(mlkv:" + many + "=1)", std::string("h2o:alpha@L0=0.5,alpha@L0") + "=\xff\xfe",
          std::string(2'000'000, '('), "h2o:tau=" + std::string(900'000, '(')}) {
        const std::string message = fault_of(spec);
        EXPECT_FALSE(message.empty());
        EXPECT_LT(message.size(), 1000u) << message;
        for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << message;
    }
}

/// As many overrides as a large model has heads are read quickly and survive a round trip.
TEST(LaneSpec, TakesManyOverrides) {
    std::string spec = "h2o";
    for (int l = 0; l < 80; ++l)
        for (int h = 0; h < 64; ++h)
            spec += fmt::format("{}budget@L{}.H{}={}", l + h == 0 ? ":" : ",", l, h, 1 + l + h);
    const LaneSpec parsed = parse_lane_spec(spec);
    EXPECT_EQ(parsed.policy.overrides.size(), 80u * 64u);
    EXPECT_EQ(format_lane_spec(parsed), spec);
    HeadGrid heads{80, 64, {}};
    for (int i = 0; i < 80 * 64; ++i) heads.kv_head.push_back(i);
    EXPECT_TRUE(check_overrides(parsed.policy, heads).empty());
    EXPECT_EQ(resolve(parsed.policy, 100, 10, heads).at(79, 63).budget, 143);
}

TEST(SpecText, EditDistanceCountsChanges) {
    EXPECT_EQ(spec_text::edit_distance("", ""), 0);
    EXPECT_EQ(spec_text::edit_distance("abc", ""), 3);
    EXPECT_EQ(spec_text::edit_distance("", "abc"), 3);
    EXPECT_EQ(spec_text::edit_distance("kitten", "sitting"), 3);
    EXPECT_EQ(spec_text::edit_distance("sunday", "saturday"), 3);
    EXPECT_EQ(spec_text::edit_distance("budget", "budget"), 0);
    EXPECT_EQ(spec_text::edit_distance("bugdet", "budget"), 1);
    EXPECT_EQ(spec_text::edit_distance("ab", "ba"), 1);
}

TEST(SpecText, ANearWordIsOneThatWasProbablyMeant) {
    const std::vector<std::string_view> words = {"full", "sink", "h2o", "smollm2-135m", "smollm2-135m-q8",
                                                 "key"};
    for (const auto& [typed, meant] : {std::pair{"smollm2", "smollm2-135m"},
                                       {"SmolLM2", "smollm2-135m"},
                                       {"sinks", "sink"},
                                       {"sikn", "sink"},
                                       {"h20", "h2o"},
                                       {"keys", "key"}})
        EXPECT_EQ(spec_text::near_word(typed, words), meant) << typed;
    for (const char* typed : {"snapkv", "", "f", "x", "tova", "gpt2", "nosuch"})
        EXPECT_EQ(spec_text::near_word(typed, words), std::nullopt) << typed;
    EXPECT_EQ(spec_text::near_hint("ful", words), ", did you mean 'full'?");
    EXPECT_EQ(spec_text::near_hint("tova", words), "");
}

// --- round trip --------------------------------------------------------------------------------------------

/// Overrides of one set differ in their last layer, `salt`: the spec refuses two overrides for the same
/// heads.
Override random_override(std::mt19937_64& random, const PolicyParams& of, int salt) {
    const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
    Override o;
    o.field = static_cast<Override::Field>(of.preset == Preset::full ? 1 + below(4) : below(5));
    o.first_layer = below(2);
    o.last_layer = o.first_layer + salt;
    if (below(2) == 0) {
        o.first_head = below(3);
        o.last_head = o.first_head + below(3);
        o.by_kv_head = below(2) == 0;
    }
    if (o.field == Override::Field::budget || o.field == Override::Field::recent)
        o.amount = {Amount::Unit::tokens, static_cast<double>(below(50))};
    if (o.field == Override::Field::alpha || o.field == Override::Field::gain)
        o.value = std::uniform_real_distribution<double>(0, 1)(random);
    if (o.field == Override::Field::tau) o.tau = {TauSchedule::Shape::linear, 0.5, 1.75, {}};
    if (below(3) != 0 || of.dialect == Dialect::released) return o;
    constexpr std::array<std::array<const char*, 3>, 3> kFormulas = {
        {{"attention", "max(s, p)", "0.2*s+p"},
         {"s", "first(50%, smooth(s, avg, 5), -knorm)", "slot==2 ? 1 : u"},
         {"none", "2..5", "position<4 or age<8"}}};
    const int which = below(3);
    o = {static_cast<Override::Field>(static_cast<int>(Override::Field::score) + which),
         o.first_layer,
         o.last_layer,
         o.first_head,
         o.last_head,
         {},
         0,
         {},
         o.by_kv_head,
         {kFormulas.at(to_index(which)).at(to_index(below(3)))}};
    return o;
}

/// Returns a random valid spec, with values that have no short decimal form among them.
PolicyParams random_params(std::mt19937_64& random) {
    const auto below = [&](std::uint64_t n) { return static_cast<int>(random() % n); };
    const auto real = [&](double end) { return std::uniform_real_distribution<double>(0, end)(random); };
    const auto chance = [&] { return below(3) == 0; };
    PolicyParams p = preset_params(kAll[below(std::size(kAll))]);
    if (chance() && p.preset != Preset::full) {
        p.budget = chance() ? Amount{Amount::Unit::percent, real(120)}
                            : Amount{Amount::Unit::tokens, static_cast<double>(below(3000))};
    }
    if (chance()) p.recent = {Amount::Unit::percent, real(100)};
    if (chance()) p.recent = {Amount::Unit::rest, 0};
    if (chance()) p.sinks = below(9);
    if (chance()) p.alpha = real(1);
    if (chance()) p.tau = {TauSchedule::Shape::linear, 1e-9 + real(3), 1e-9 + real(3), {}};
    if (chance()) p.tau = {TauSchedule::Shape::cosine, 1e-9 + real(3), 1e-9 + real(3), {}};
    if (chance()) p.tau = {TauSchedule::Shape::constant, 0.7, 0.7, {}};
    if (chance()) {
        const double first = 0.1 + real(2), last = 0.1 + real(2);
        p.tau = {
            TauSchedule::Shape::points, first, last, {{real(5), first}, {6 + real(5), 1e20}, {20, last}}};
    }
    if (chance()) p.horizon = below(500);
    p.noise = static_cast<NoiseKind>(below(4));
    p.draw = static_cast<NoiseDraw>(below(2));
    if (chance()) p.gain = real(4) - 2;
    p.scope = static_cast<Scope>(below(3));
    p.pool = static_cast<Pool>(below(3));
    p.prefill = static_cast<PrefillMode>(below(2));
    if (chance()) p.every = 1 + below(16);
    if (chance()) p.damping = real(1);
    p.score_dtype = static_cast<ScoreType>(below(3));
    p.kv_dtype = static_cast<KvType>(below(5));
    if (chance()) p.seed = random();
    p.positions = static_cast<Positions>(below(3));
    p.shadow = chance();
    if (p.preset == Preset::dilated) p.dilation = 1 + below(4);
    const bool has_code = p.preset != Preset::full && p.preset != Preset::dilated && p.preset != Preset::key;
    if (has_code && chance()) p.dialect = Dialect::released;
    for (int i = below(3); i > 0; --i) p.overrides.push_back(random_override(random, p, i));
    return p;
}

TEST(LaneSpec, TextAndParametersGoRound) {
    std::mt19937_64 random(20261121);
    for (int i = 0; i < 3000; ++i) {
        PolicyParams params = random_params(random);
        if (params.tau.shape == TauSchedule::Shape::cosine && !params.tau.points.empty())
            params.tau.points.clear();
        ASSERT_TRUE(validate(params).empty());
        const std::string text = format_lane_spec({params});
        ASSERT_EQ(parse_lane_spec(text).policy, params) << text;
        ASSERT_EQ(format_lane_spec(parse_lane_spec(text)), text);
    }
}

TEST(LaneSpec, FormulasDifferByHeadLikeNumbers) {
    const LaneSpec lane = parse_lane_spec(
        "key:score@L5.H3=max(s, p),choose@L2.G0-1,L4=(first(50%, s, -knorm)),protect@L4=2..9,choose@H1=s");
    EXPECT_EQ(format_lane_spec(lane),
              "key:score@L5.H3=(max(s, p)),choose@L2.G0-1,L4=(first(50%, s, -knorm)),protect@L4=2..9,"
              "choose@H1=s");
    ASSERT_EQ(lane.policy.overrides.size(), 5u);
    EXPECT_EQ(
        lane.policy.overrides[2],
        (Override{
            Override::Field::choose, 4, 4, 0, Override::kAll, {}, 0, {}, false, {"first(50%, s, -knorm)"}}));
    EXPECT_EQ(
        format_lane_spec(changed_lane_spec(lane, "choose@L4=(u),choose=(knorm)")),
        "key:choose=(knorm),score@L5.H3=(max(s, p)),choose@L2.G0-1=(first(50%, s, -knorm)),protect@L4=2..9,"
        "choose@H1=s,choose@L4=(u)");
    EXPECT_EQ(format_lane_spec(parse_lane_spec(changed_spec_text(lane, "choose@L4=(u)"))),
              format_lane_spec(changed_lane_spec(lane, "choose@L4=(u)")));
    EXPECT_EQ(format_lane_spec(parse_lane_spec("key:choose@L0=(in(a)?1:s),spans=(a@0..3)")),
              "key:spans=(a@0..3),choose@L0=(in(a)?1:s)");
    // A fault is named at its place in the lane.
    EXPECT_NE(fault_of("key:choose@L0=(s+knrm)").find("character 18: unknown name 'knrm'"), std::string::npos)
        << fault_of("key:choose@L0=(s+knrm)");
}

// The preset shares budgets, which takes scope=head: its keys hold together only once all are read.
TEST(LaneSpec, LaterKeysMendEarlierOnes) {
    for (const char* text : {"expected:scope=layer,alloc=uniform", "adakv:scope=layer,alloc=uniform"})
        EXPECT_EQ(format_lane_spec(parse_lane_spec(text)), text);
    EXPECT_NE(fault_of("expected:scope=layer,sinks=2").find("character 16: alloc shares"), std::string::npos)
        << fault_of("expected:scope=layer,sinks=2");
}

TEST(LaneSpec, FormatLeavesDefaultsOut) {
    EXPECT_EQ(format_lane_spec(parse_lane_spec("h2o:recent=50%,alpha=1,budget=64")), "h2o:budget=64");
    EXPECT_EQ(format_lane_spec(parse_lane_spec("keyformer:tau=1..2@linear,budget=50%")), "keyformer");
    EXPECT_EQ(format_lane_spec(parse_lane_spec("keyformer:tau=(0:1 20:1.4 100:2)")),
              "keyformer:tau=(0:1 20:1.4 100:2)");
}

// --- effective parameters ----------------------------------------------------------------------------------

TEST(LaneSpec, EffectiveNamesTokensInForce) {
    const auto effective = [](std::string_view text, int n, int generate) {
        return format_effective_spec(parse_lane_spec(text), n, generate);
    };
    EXPECT_EQ(effective("full", 300, 10), "full");
    EXPECT_EQ(effective("h2o:budget=29%", 100, 10), "h2o:budget=29,recent=14");
    EXPECT_EQ(effective("sink:budget=3", 100, 10), "sink:budget=3,recent=0,sinks=3");
    EXPECT_EQ(effective("window", 301, 10), "window:budget=150,recent=150");
    EXPECT_EQ(effective("tova:budget=0", 100, 10), "tova:budget=1");
    EXPECT_EQ(effective("h2o:budget=8,recent=99,sinks=2", 100, 10), "h2o:budget=8,recent=6,sinks=2");
    EXPECT_EQ(effective("keyformer:budget=64", 100, 200), "keyformer:budget=64,recent=19,horizon=200");
    EXPECT_EQ(effective("keyformer:budget=64,tau_delta=0.01", 100, 200),
              "keyformer:budget=64,recent=19,tau_delta=0.01");
    EXPECT_EQ(effective("keyformer:budget=64,tau=1.5", 100, 200), "keyformer:budget=64,recent=19,tau=1.5");
}

TEST(LaneSpec, EffectiveSpecResolvesToTheSamePolicy) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 1000; ++i) {
        const LaneSpec spec{random_params(random)};
        const int n = static_cast<int>(random() % 700) + 1;
        const std::string text = format_effective_spec(spec, n, 50);
        ResolvedPolicy asked = resolve(spec.policy, n, 50);
        ResolvedPolicy effective = resolve(parse_lane_spec(text).policy, n, 50);
        // Without a budget nothing is protected; with constant tau nothing reads the horizon.
        if (!asked.evicts()) asked.recent = effective.recent;
        asked.horizon = effective.horizon;
        ASSERT_EQ(effective, asked) << text;
    }
}

}  // namespace
}  // namespace keyhole::test_lane_spec
