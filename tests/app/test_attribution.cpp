// Attribution: which parts of a cache eviction costs most, and the budget that follows; by hand, and by eval.
#include "app/study/attribution.h"
#include "app/study/attribution_file.h"
#include "app/study/budget_forms.h"
#include "app/study/head_budgets.h"
#include "engine/base/error.h"
#include "engine/policy/head_file.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <numeric>

namespace keyhole::test_attribution {
namespace {

Outcome outcome(double nats, bool right) {
    return {nats, 4, 4, right};
}

TEST(Attribution, PartsAreTheKvHeadsWithTheirReaders) {
    const auto grouped = cache_parts(KvLayout::grouped(2, 6, 2), PartKind::head);
    ASSERT_EQ(grouped.size(), 4u);
    EXPECT_EQ(grouped[3], (CachePart{1, 1, 3, 3}));
    EXPECT_EQ(part_name(grouped[3]), "L1.G1");
    const auto layers = cache_parts(KvLayout::grouped(2, 6, 2), PartKind::layer);
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[1], (CachePart{1, -1, 0, 6}));
    EXPECT_EQ(part_name(layers[1]), "L1");
    // A query head names the KV head that it reads, and needs a lane whose query heads each have their own.
    const auto query = cache_parts(KvLayout::grouped(2, 6, 2), PartKind::query_head);
    ASSERT_EQ(query.size(), 12u);
    EXPECT_EQ(query[10].kv_head, 1);
    EXPECT_EQ(part_name(query[10]), "L1.H4");
    EXPECT_EQ(
        lane_with_part(lane_by_query_head(parse_lane_spec("h2o:budget=8")), query[10], Intervention::take),
        parse_lane_spec("h2o:budget=all,kv=mha,budget@L1.H4=8"));
    EXPECT_THROW((void)lane_by_query_head(parse_lane_spec("h2o:kv=mqa")), Error);
    // Layers 0 and 2 own the KV heads of 1 and 3: a part is its owner's.
    const auto shared = cache_parts(KvLayout::shared(4, 4, 2, 1), PartKind::head);
    ASSERT_EQ(shared.size(), 2u);
    EXPECT_EQ(shared[1], (CachePart{2, 0, 0, 4}));
}

TEST(Attribution, LanesDifferInOnePart) {
    const LaneSpec lane = parse_lane_spec("h2o:budget=64");
    const CachePart part{5, 2, 6, 3};
    EXPECT_EQ(lane_with_part(lane, part, Intervention::give_back),
              parse_lane_spec("h2o:budget=64,budget@L5.G2=all"));
    EXPECT_EQ(start_lane(lane, Intervention::give_back), lane);
    EXPECT_EQ(lane_with_part(lane, part, Intervention::take),
              parse_lane_spec("h2o:budget=all,budget@L5.G2=64"));
    EXPECT_EQ(start_lane(lane, Intervention::take), parse_lane_spec("h2o:budget=all"));
    EXPECT_THROW((void)start_lane(parse_lane_spec("full"), Intervention::give_back), Error);
}

/// Three questions, two parts. Giving part 0 back saves 3, 1 and 2 nats and makes one answer right; part 1
/// costs 0.5 each.
TEST(Attribution, EffectsArePairedDifferences) {
    const std::vector<CachePart> parts = cache_parts(KvLayout::grouped(2, 1, 1), PartKind::head);
    const std::vector<std::vector<Outcome>> outcomes = {
        {outcome(1, true), outcome(1, true), outcome(1, true)},
        {outcome(5, false), outcome(4, false), outcome(6, true)},
        {outcome(2, true), outcome(3, false), outcome(4, true)},
        {outcome(5.5, false), outcome(4.5, false), outcome(6.5, false)}};
    const Attribution found =
        attribute(parse_lane_spec("h2o:budget=8"), PartKind::head, Intervention::give_back, parts, outcomes);
    EXPECT_EQ(found.n_questions, 3);
    EXPECT_NEAR(found.lost.value, 4, 1e-12);  // (4 + 3 + 5) / 3
    EXPECT_NEAR(found.lane_right.value, 1.0 / 3, 1e-12);
    EXPECT_NEAR(found.effects[0].nats.value, 2, 1e-12);
    EXPECT_NEAR(found.effects[0].nats.interval.high, 2 + 4.303 / std::sqrt(3.0), 2e-3);  // Student, 2 df
    EXPECT_NEAR(found.effects[0].right.value, 1.0 / 3, 1e-12);
    EXPECT_NEAR(found.effects[1].nats.value, -0.5, 1e-12);
    EXPECT_NEAR(found.effects[1].right.value, -1.0 / 3, 1e-12);
    EXPECT_FALSE(found.effects[0].is_sure);  // three questions decide nothing
    EXPECT_EQ(ranked(found), (std::vector<std::size_t>{0, 1}));
    EXPECT_TRUE(std::isnan(found.effects[0].kl.value));
    Attribution by_kl = found;
    by_kl.effects[0].kl.value = 0.5;
    by_kl.effects[1].kl.value = 0.75;
    EXPECT_EQ(ranked(by_kl, RankBy::kl), (std::vector<std::size_t>{1, 0}));

    // Taking the same parts: the lanes with less are compared with the full cache.
    const Attribution taken =
        attribute(parse_lane_spec("h2o:budget=8"), PartKind::head, Intervention::take, parts, outcomes);
    EXPECT_NEAR(taken.effects[0].nats.value, 2, 1e-12);  // (1 + 2 + 3) / 3
    EXPECT_NEAR(taken.effects[1].nats.value, 4.5, 1e-12);
    EXPECT_NEAR(taken.effects[1].right.value, 1, 1e-12);
    EXPECT_EQ(ranked(taken), (std::vector<std::size_t>{1, 0}));
}

/// One question has no interval, and the table no brackets for it.
TEST(Attribution, OneQuestionHasNoInterval) {
    const std::vector<CachePart> parts = cache_parts(KvLayout::grouped(2, 1, 1), PartKind::head);
    const std::vector<std::vector<Outcome>> outcomes = {
        {outcome(1, true)}, {outcome(5, false)}, {outcome(2, true)}, {outcome(5, false)}};
    const Attribution found =
        attribute(parse_lane_spec("h2o:budget=8"), PartKind::head, Intervention::give_back, parts, outcomes);
    const std::string text = attribution_text(found, true, 10);
    EXPECT_NE(text.find("eviction costs 4.000 nats an answer; right 0.0 %"), std::string::npos) << text;
    EXPECT_EQ(text.find("()"), std::string::npos) << text;
}

TEST(Attribution, APartThatAlwaysHelpsIsSure) {
    const std::vector<CachePart> parts = cache_parts(KvLayout::grouped(2, 1, 1), PartKind::head);
    std::vector<std::vector<Outcome>> outcomes(4);
    for (int q = 0; q < 12; ++q) {
        outcomes[0].push_back(outcome(1, true));
        outcomes[1].push_back(outcome(4, false));
        outcomes[2].push_back(outcome(2 + 0.1 * q, false));
        outcomes[3].push_back(outcome(4 + (q % 2 == 0 ? 0.3 : -0.3), false));
    }
    Attribution found =
        attribute(parse_lane_spec("h2o:budget=8"), PartKind::head, Intervention::give_back, parts, outcomes);
    EXPECT_TRUE(found.effects[0].is_sure);
    EXPECT_FALSE(found.effects[1].is_sure);
    const ValueMap map = attribution_map(found);
    EXPECT_EQ(map.columns, (std::vector<std::string>{"L0", "L1"}));  // more layers than heads
    EXPECT_EQ(map.rows, (std::vector<std::string>{"G0"}));
    EXPECT_NEAR(map.panels[0].values[1], found.effects[1].nats.value, 1e-6);
    EXPECT_EQ(map.scale.high, map.panels[0].values[0]);
    found.effects[1].part = {0, 2, 2, 1};  // one layer and three heads
    const ValueMap tall = attribution_map(found);
    EXPECT_EQ(tall.columns, (std::vector<std::string>{"G0", "G1", "G2"}));
    EXPECT_TRUE(std::isnan(tall.panels[0].values[1]));
    EXPECT_NEAR(tall.panels[0].values[2], found.effects[1].nats.value, 1e-6);
    EXPECT_NE(attribution_text(found, true, 1).find("Surely above 0, corrected for all 2: 1."),
              std::string::npos);
}

TEST(Attribution, ABudgetIsSpentInEqualTokens) {
    // 90 heads: 8 with 300 tokens and 82 with 32 are 5,024 tokens; 57 in each are 5,130; 9 would be 5,292.
    EXPECT_EQ(whole_parts(90, 57, 32, 300), 8);
    EXPECT_EQ(whole_parts(10, 2, 1, 11), 1);  // exactly one
    EXPECT_THROW((void)whole_parts(90, 32, 32, 300), Error);
    EXPECT_THROW((void)whole_parts(90, 300, 32, 300), Error);
    const std::vector<CachePart> chosen = {{7, 2, 6, 3}, {5, 1, 3, 3}, {5, 0, 0, 3}};
    EXPECT_EQ(lane_with_whole_parts(parse_lane_spec("h2o:budget=64"), chosen, 32),
              parse_lane_spec("h2o:budget=32,budget@L5.G0-1,L7.G2=all"));
    const auto all = cache_parts(KvLayout::grouped(4, 2, 2), PartKind::head);
    const std::vector<CachePart> first = {all[0], all[1]};
    const auto others = other_parts(all, first, 3);
    EXPECT_EQ(others, (std::vector<CachePart>{all[3], all[5], all[7]}));
    EXPECT_EQ(other_parts(all, first, 99).size(), 6u);
}

/// Four heads, 10 tokens each, 4 in any case: 24 tokens are shared as 6 : 3 : 0 : 0 = 16 and 8. With a
/// context of 15 the first takes 11, and 13 go to the second, which takes 11; the last two go to the others.
TEST(HeadBudgets, FollowTheGains) {
    const std::vector<double> gains = {6, -1, 3, 0};
    EXPECT_EQ(budgets_by_gain(gains, 10, 4, 100), (std::vector<int>{20, 4, 12, 4}));
    EXPECT_EQ(budgets_by_gain(gains, 10, 4, 15), (std::vector<int>{15, 5, 15, 5}));
    EXPECT_EQ(budgets_by_gain(std::vector<double>{-1, 0, 0, -3}, 10, 4, 100), std::vector<int>(4, 10));
    // 3 x 3 = 9 tokens as 1 : 1 : 2, that is 2.25, 2.25, 4.5: one is left, for the largest remainder.
    EXPECT_EQ(budgets_by_gain(std::vector<double>{1, 1, 2}, 5, 2, 100), (std::vector<int>{4, 4, 7}));
}

TEST(HeadBudgets, AreOverridesOfALane) {
    const std::vector<CachePart> parts = cache_parts(KvLayout::grouped(2, 4, 2), PartKind::head);
    EXPECT_EQ(format_lane_spec(lane_with_tokens_by_part(parse_lane_spec("h2o:budget=10"), parts,
                                                        std::vector<int>{4, 20, 4, 9}, 20)),
              "h2o:budget=10,budget@L0.G0,L1.G0=4,budget@L1.G1=9,budget@L0.G1=all");
}

TEST(HeadBudgets, AreWrittenAsThePublishedFilesHaveThem) {
    const KvLayout layout = KvLayout::grouped(2, 4, 2);
    const std::vector<CachePart> parts = cache_parts(layout, PartKind::head);
    Attribution found;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        found.effects.push_back({parts[i], {std::vector<double>{2, -1, 0.5, 1}[i], {}}, {}});
        found.gains.push_back({std::vector<double>{3, -2, 0, 1}[i], std::vector<double>{1, 0, 1, 1}[i]});
    }
    EXPECT_EQ(duo_text(layout, found), "1.0000e+00\t0.0000e+00\n2.5000e-01\t5.0000e-01\n");
    EXPECT_EQ(nlohmann::json::parse(duo_config_text(4, 28)),
              (nlohmann::json{{"sink_size", 4}, {"recent_size", 28}}));
    const nlohmann::json scores = nlohmann::json::parse(headkv_text(found));
    EXPECT_EQ(scores.size(), 8u) << "query heads";
    EXPECT_EQ(scores.at("0-1"), (nlohmann::json{3.0, 1.0}));
    EXPECT_EQ(scores.at("0-2"), (nlohmann::json{0.0, 0.0}));
    EXPECT_EQ(scores.at("1-3"), scores.at("1-2"));
    const HeadTable table = head_table(layout, parts, std::vector<int>{9, 3, 20, 25}, 20);
    EXPECT_EQ(head_budget_text(table.at(0, 1)), "3");
    EXPECT_EQ(head_budget_text(table.at(1, 0)), "all");
    EXPECT_EQ(head_budget_text(table.at(1, 1)), "all");
    EXPECT_TRUE(head_table(KvLayout::shared(4, 4, 2, 1), parts, std::vector<int>(4, 3), 20).empty());
}

/// Two heads hold the same tokens, worth 3 nats once; a third holds others, worth 1. Ranked alone, the two
/// come first; measured anew, the third is second.
TEST(HeadBudgets, AreChosenOneByOneWithMeasuringAnew) {
    const std::vector<CachePart> parts = {{0, 0, 0, 1}, {0, 1, 1, 1}, {1, 0, 0, 1}};
    int n_asked = 0;
    const AskLanes ask = [&](std::span<const LaneSpec> lanes) {
        ++n_asked;
        std::vector<std::vector<Outcome>> outcomes;
        for (const LaneSpec& lane : lanes) {
            const std::string spec = format_lane_spec(lane);
            const bool twin = spec.find("L0") != std::string::npos,
                       other = spec.find("L1") != std::string::npos;
            const double nats = 5 - (twin ? 3 : 0) - (other ? 1 : 0);
            outcomes.push_back({{nats, 1, 1, nats < 2}});
        }
        return outcomes;
    };
    const std::vector<ChosenPart> chosen =
        choose_one_by_one(parse_lane_spec("h2o:budget=16"), parts, 2, 8, RankBy::nats, ask);
    ASSERT_EQ(chosen.size(), 2u);
    EXPECT_EQ(part_name(chosen[0].part), "L0.G0") << "the first of equal ones";
    EXPECT_DOUBLE_EQ(chosen[0].nats, 3);
    EXPECT_EQ(part_name(chosen[1].part), "L1.G0") << "L0.G1 adds nothing to L0.G0";
    EXPECT_DOUBLE_EQ(chosen[1].nats, 1);
    EXPECT_DOUBLE_EQ(chosen[1].right, 1);
    EXPECT_EQ(n_asked, 2) << "once a step";
    EXPECT_NE(chosen_text(chosen).find("   2 L1.G0        +1.000    100.0\n"), std::string::npos)
        << chosen_text(chosen);
}

TEST(Attribution, TokensAreGivenBackBesideTheBudget) {
    EXPECT_EQ(lane_with_tokens(parse_lane_spec("h2o:budget=64"), {8, 15}),
              parse_lane_spec("h2o:budget=72,recent=32,protect=8..15"));
    EXPECT_THROW((void)lane_with_tokens(parse_lane_spec("h2o:budget=25%"), {0, 1}), Error);
    EXPECT_THROW((void)lane_with_tokens(parse_lane_spec("h2o:budget=8,protect=0..3"), {0, 1}), Error);
    const Tokenizer bytes = Tokenizer::of_bytes(256);
    const std::vector<int> prompt = bytes.encode("abcdefg", false);
    const std::vector<CachePart> parts = token_parts(bytes, prompt, 3);
    ASSERT_EQ(parts.size(), 3u);
    EXPECT_EQ(parts[2].words, "g");
    EXPECT_EQ(part_name(parts[1]), "3..5");
    const std::vector<CachePart> groups = group_parts(true);
    ASSERT_EQ(groups.size(), 3u);
    EXPECT_EQ(group_tokens(groups[0], 100, {40, 43}), (TokenRange{0, 3}));
    EXPECT_EQ(group_tokens(groups[1], 100, {40, 43}), (TokenRange{68, 99}));
    EXPECT_EQ(group_tokens(groups[2], 100, {40, 43}), (TokenRange{40, 43}));
    EXPECT_EQ(group_parts(false).size(), 2u);
}

/// The page of the window reads what the command wrote.
TEST(Attribution, IsReadBackFromItsFile) {
    const std::vector<CachePart> parts = cache_parts(KvLayout::grouped(2, 2, 1), PartKind::head);
    const std::vector<std::vector<Outcome>> outcomes = {{outcome(1, true), outcome(1, true)},
                                                        {outcome(5, false), outcome(4, false)},
                                                        {outcome(4.5, false), outcome(4, false)},
                                                        {outcome(2, true), outcome(3, false)}};
    const Attribution found =
        attribute(parse_lane_spec("h2o:budget=8"), PartKind::head, Intervention::take, parts, outcomes);
    nlohmann::json json = attribution_json(found);
    json["context"] = 96;
    const StoredAttribution read = read_attribution(json.dump(), "x.json");
    EXPECT_EQ(read.context, 96);
    EXPECT_EQ(read.found.kind, PartKind::head);
    EXPECT_EQ(read.found.intervention, Intervention::take);
    EXPECT_EQ(read.found.lane, found.lane);
    EXPECT_EQ(read.found.n_questions, 2);
    EXPECT_NEAR(read.found.lost.value, 3.5, 1e-12);
    ASSERT_EQ(read.found.effects.size(), 2u);
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(read.found.effects[i].part, parts[i]) << "in the order of parts, not of ranks";
        EXPECT_NEAR(read.found.effects[i].nats.value, found.effects[i].nats.value, 1e-12);
        EXPECT_NEAR(read.found.effects[i].nats.interval.low, found.effects[i].nats.interval.low, 1e-9);
        EXPECT_NEAR(read.found.effects[i].right.value, found.effects[i].right.value, 1e-12);
        EXPECT_TRUE(std::isnan(read.found.effects[i].kl.value));
    }
    EXPECT_EQ(ranked(read.found), ranked(found));
    EXPECT_EQ(read.found.gains, found.gains) << "in the order of parts too";
    nlohmann::json older = json;
    for (nlohmann::json& part : older["parts"]) part.erase("gains");
    EXPECT_TRUE(read_attribution(older.dump(), "x.json").found.gains.empty());
    json["by"] = "heads";
    EXPECT_THROW((void)read_attribution(json.dump(), "x.json"), Error);
    EXPECT_THROW((void)read_attribution("{}", "x.json"), Error);
}

/// Four heads at 24 tokens in the mean, 64 of context, 8 elsewhere: one keeps all.
TEST(BudgetForms, SpendOneTotal) {
    Attribution found;
    found.lane = parse_lane_spec("h2o:budget=24");
    for (const CachePart& part : cache_parts(KvLayout::grouped(2, 4, 2), PartKind::head)) {
        PartEffect& effect = found.effects.emplace_back();
        effect.part = part;
        effect.nats.value = part == CachePart{1, 0, 0, 2} ? 3 : 0.5;
    }
    const BudgetTotal total{24, 8, 64};
    const LaneSpec lane = parse_lane_spec("mine=h2o:budget=32,budget@L0=4,alpha@L1=0.5");
    const auto spec = [&](BudgetForm form) {
        return format_lane_spec(lane_with_budget(lane, form, found, total, RankBy::nats));
    };
    EXPECT_EQ(spec(BudgetForm::uniform), "mine=h2o:budget=24,alpha@L1=0.5");
    EXPECT_EQ(spec(BudgetForm::pyramid), "mine=h2o:budget=24,pyramid=2,alpha@L1=0.5");
    EXPECT_EQ(spec(BudgetForm::adaptive), "mine=h2o:budget=24,alloc=adaptive,alpha@L1=0.5");
    EXPECT_EQ(spec(BudgetForm::streaming), "mine=sink:budget=8,budget@L1.G0=all");
    EXPECT_EQ(spec(BudgetForm::whole), "mine=h2o:budget=8,alpha@L1=0.5,budget@L1.G0=all");
    EXPECT_EQ(budget_tokens(BudgetForm::whole, found, total, RankBy::nats), (std::vector<int>{8, 8, 64, 8}));
    const auto tokens = budget_tokens(BudgetForm::gain, found, total, RankBy::nats);
    ASSERT_TRUE(tokens);
    EXPECT_EQ(std::accumulate(tokens->begin(), tokens->end(), 0), 4 * 24);
    EXPECT_GT((*tokens)[2], (*tokens)[0]);
    EXPECT_FALSE(budget_tokens(BudgetForm::pyramid, found, total, RankBy::nats));
    EXPECT_THROW((void)lane_with_budget(lane, BudgetForm::whole, found, {12, 8, 64}, RankBy::nats), Error);
    for (const BudgetFormRow& row : budget_forms()) EXPECT_EQ(budget_form_from_name(row.name), row.form);
}

class AttributeCommand : public testing::ProgramRun {
  protected:
    std::string command(const std::string& name) const {
        return name + " --model '" + tiny_.folder().string() + "' --text '" + path("text.txt") +
               "' --context 64 --prefill 48 --samples 4";
    }
    void SetUp() override {
        ProgramRun::SetUp();
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
    }
    nlohmann::json json() const {
        const std::size_t begin = output_.find('{'), end = output_.rfind('}');  // notes stand around it
        return nlohmann::json::parse(output_.substr(begin, end + 1 - begin));
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

/// The effect of a head is the difference of two lanes that eval measures.
TEST_F(AttributeCommand, EqualsEvalOfTheSameLanes) {
    const std::string attribute =
        command("attribute") + " --lane h2o:budget=8 --json --out '" + path("a") + "'";
    ASSERT_EQ(run(attribute), 0) << output_;
    const nlohmann::json found = json();
    ASSERT_EQ(found.at("parts").size(), 4u);
    ASSERT_EQ(run(command("eval") + " --json --lane h2o:budget=8 --lane h2o:budget=8,budget@L1.G1=all"), 0)
        << output_;
    const nlohmann::json lanes = json().at("lanes");
    const double saved = 16 * -lanes[1].at("nats_difference").get<double>();  // tokens of an answer
    ASSERT_NE(saved, 0);
    for (const nlohmann::json& part : found["parts"])
        if (part.at("part") == "L1.G1") {
            EXPECT_NEAR(part.at("nats").at("value").get<double>(), saved, 1e-4 * std::abs(saved));
            EXPECT_NEAR(part["nats"].at("interval").at(0).get<double>(),
                        16 * -lanes[1].at("nats_difference_interval").at(1).get<double>(), 1e-3);
        }
    EXPECT_EQ(lines("a/attribution.csv").size(), 1u + 4);
}

/// A query head reads a copy of its KV head, which evicts for itself.
TEST_F(AttributeCommand, RanksQueryHeadsByKl) {
    ASSERT_EQ(run(command("attribute") +
                  " --by query-head --take --lane h2o:budget=8 --rank kl --json --out '" + path("a") + "'"),
              0)
        << output_;
    const nlohmann::json found = json();
    ASSERT_EQ(found.at("parts").size(), 8u);
    ASSERT_EQ(run(command("eval") + " --json --lane full --lane h2o:budget=all,kv=mha,budget@L1.H3=8"), 0)
        << output_;
    const double cost = 16 * json().at("lanes")[1].at("nats_difference").get<double>();
    ASSERT_NE(cost, 0);
    double kl = 0, kv_head = -1;
    for (const nlohmann::json& part : found["parts"]) {
        EXPECT_GT(part.at("kl").at("value").get<double>(), 0) << part;
        if (part.at("part") != "L1.H3") continue;
        EXPECT_NEAR(part.at("nats").at("value").get<double>(), cost, 1e-4 * std::abs(cost));
        kv_head = part.at("kv_head").get<double>();
        kl = part["kl"]["value"].get<double>();
    }
    EXPECT_EQ(kv_head, 1);
    EXPECT_GT(kl, 0);
    EXPECT_NE(read("a/attribution.svg").find(">query head<"), std::string::npos);
    EXPECT_TRUE(read("a/attribution.csv").starts_with("part,layer,kv_head,first_query_head,"));
    // Answers without KL, such as those of eval, are asked again.
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4 * (2 + 8));
    ASSERT_EQ(run(command("eval") + " --lane full --lane h2o:budget=8 --out '" + path("b") + "'"), 0)
        << output_;
    ASSERT_EQ(
        run(command("attribute") + " --by layer --lane h2o:budget=8 --rank kl --out '" + path("b") + "'"), 0)
        << output_;
    EXPECT_NE(output_.find(" KL "), std::string::npos) << output_;
    EXPECT_EQ(output_.find("nan"), std::string::npos) << output_;
}

TEST_F(AttributeCommand, GoesOnWhereItWasInterrupted) {
    const std::string attribute =
        command("attribute") + " --lane h2o:budget=8 --by layer --budget 40 --rest 8 --held-out 2 --out '" +
        path("a") + "'";
    ASSERT_EQ(run(attribute), 0) << output_;
    EXPECT_NE(output_.find("L0 "), std::string::npos) << output_;
    EXPECT_NE(output_.find("measured: 1 layer whole, 8 elsewhere"), std::string::npos) << output_;
    EXPECT_TRUE(read("a/lane.txt").starts_with("h2o:budget=8,budget@L")) << read("a/lane.txt");
    const std::string answers = read("a/answers.csv"), csv = read("a/attribution.csv");
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4 * 4 + 8 * 2);
    EXPECT_NE(read("a/attribution.svg").find(">L1<"), std::string::npos);
    std::ofstream(path("a/answers.csv"), std::ios::binary) << answers.substr(0, answers.size() / 2);
    ASSERT_EQ(run(attribute), 0) << output_;
    EXPECT_EQ(read("a/attribution.csv"), csv);
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4 * 4 + 8 * 2);
}

/// The budget is compared in every form at equal bytes, and written as files that a lane reads.
TEST_F(AttributeCommand, WritesBudgetsThatLanesRead) {
    ASSERT_EQ(
        run(command("attribute") + " --lane h2o:budget=8 --budget 24 --rest 8 --held-out 2 --split gain" +
            " --json --out '" + path("a") + "'"),
        0)
        << output_;
    const nlohmann::json found = json();
    const nlohmann::json lanes = found.at("budget").at("held_out").at("lanes");
    ASSERT_EQ(lanes.size(), 8u);
    EXPECT_EQ(lanes[4].at("lane"), "retrieval: the same whole, 8 streaming elsewhere");
    EXPECT_TRUE(lanes[4].at("spec").get<std::string>().starts_with("sink:budget=8,budget@L")) << lanes[4];
    EXPECT_EQ(lanes[1].at("lane"), "24 in each");
    EXPECT_TRUE(lanes[1].at("nats_difference_interval").is_null()) << "differences are to the uniform lane";
    const double bytes = lanes[1].at("kv_bytes").get<double>();
    for (std::size_t i = 1; i < lanes.size(); ++i)
        EXPECT_LE(lanes[i].at("kv_bytes").get<double>(), bytes) << i;
    const std::string spec = found["budget"].at("lane");
    EXPECT_TRUE(spec.starts_with("h2o:budget=24,budget@L")) << spec;
    // The file has the same budgets: a table of two layers and two KV heads.
    const HeadTable table = read_head_file(path("a/heads.json"));
    double sum = 0;
    for (const HeadBudget& cell : table.cells) sum += cell.unit == HeadBudget::Unit::all ? 64 : cell.value;
    EXPECT_EQ(table.cells.size(), 4u);
    EXPECT_EQ(sum, 4 * 24) << spec;
    EXPECT_FALSE(read_head_file(path("a/full_attention_heads.tsv")).empty());
    EXPECT_FALSE(read_head_file(path("a/headkv.json")).empty());
}

/// Each step's lanes are those that eval measures, and the chosen heads are the lane that is written.
TEST_F(AttributeCommand, ChoosesHeadsOneByOne) {
    const std::string attribute = command("attribute") +
                                  " --lane h2o:budget=8 --budget 40 --rest 8 --split greedy --held-out 2 "
                                  "--json --out '" +
                                  path("a") + "'";
    ASSERT_EQ(run(attribute), 0) << output_;
    const nlohmann::json found = json();
    ASSERT_EQ(found.at("greedy").size(), 2u) << "4 (40 - 8) / (64 - 8) = 2";
    const std::string first = found["greedy"][0].at("part"), second = found["greedy"][1].at("part");
    EXPECT_EQ(found["budget"]["held_out"]["lanes"].size(), 9u);
    EXPECT_EQ(found["budget"]["lane"].get<std::string>() + "\n", read("a/lane.txt"));
    ASSERT_EQ(run(command("eval") + " --json --lane h2o:budget=8,budget@" + first + "=all --lane '" +
                  found["budget"]["lane"].get<std::string>() + "'"),
              0)
        << output_;
    const double saved = 16 * -json().at("lanes")[1].at("nats_difference").get<double>();
    EXPECT_NEAR(found["greedy"][1].at("nats").get<double>(), saved, 1e-4 * std::abs(saved) + 1e-6);
    EXPECT_NE(first, second);
    const HeadTable table = read_head_file(path("a/heads.json"));
    EXPECT_EQ(std::ranges::count(table.cells, HeadBudget::Unit::all, &HeadBudget::unit), 2);
    const std::string answers = read("a/answers.csv");
    ASSERT_EQ(run(attribute), 0) << output_;
    EXPECT_EQ(read("a/answers.csv"), answers) << "the same command measures nothing again";
    EXPECT_EQ(run(attribute + " --shard 1/2"), 2);
    EXPECT_EQ(run(command("attribute") + " --lane h2o:budget=8 --candidates 2 --out '" + path("b") + "'"), 2);
    EXPECT_NE(output_.find("--candidates is for --split greedy"), std::string::npos) << output_;
}

TEST_F(AttributeCommand, GivesTokensBack) {
    const std::string one =
        "attribute --model '" + tiny_.folder().string() + "' --text '" + path("text.txt") +
        "' --context 64 --prefill 48 --samples 1 --lane h2o:budget=8 --out '" + path("t") + "'";
    ASSERT_EQ(run(one + " --by token --chunk 16"), 0) << output_;
    EXPECT_EQ(lines("t/attribution.csv").size(), 1u + 3);
    EXPECT_NE(read("t/attribution.html").find("title=\"tokens 32..47: "), std::string::npos);
    ASSERT_EQ(run(one + " --by group"), 0) << output_;
    EXPECT_NE(output_.find("sinks"), std::string::npos) << output_;
    EXPECT_EQ(run(command("attribute") + " --by token --lane h2o:budget=8 --out '" + path("u") + "'"), 2);
    EXPECT_NE(output_.find("give --samples 1"), std::string::npos) << output_;
}

/// The window asks a run's prompt so: one line with the text whose likelihood says what was lost, and its KL.
TEST_F(AttributeCommand, RanksByTheKlOfATarget) {
    std::ofstream(path("one.jsonl")) << nlohmann::json{{"prompt", reference::random_text(60, 5)},
                                                       {"target", "abc"}};
    const std::string one = "attribute --model '" + tiny_.folder().string() + "' --data '" +
                            path("one.jsonl") + "' --lane h2o:budget=8 --rank kl --json --out '" + path("d") +
                            "'";
    for (const char* by : {"head", "token", "group"}) {
        ASSERT_EQ(run(one + " --by " + by), 0) << output_;
        double last = 1e9;
        for (const nlohmann::json& part : json().at("parts")) {
            EXPECT_TRUE(part.at("kl").at("value").is_number()) << by << part;
            EXPECT_EQ(part.at("gains").size(), 1u);
            const double nats = part.at("nats").at("value");
            EXPECT_LE(nats, last) << "the file is sorted by nats";
            last = nats;
        }
    }
}

TEST_F(AttributeCommand, RefusesWhatItCannotCompare) {
    const std::string out = " --out '" + path("a") + "'";
    const auto refuses = [&](const std::string& options, const std::string& words) {
        EXPECT_EQ(run(command("attribute") + out + options), 2) << options << "\n" << output_;
        EXPECT_NE(output_.find(words), std::string::npos) << options << "\n" << output_;
        EXPECT_FALSE(std::filesystem::exists(path("a/answers.csv"))) << options;
    };
    refuses("", "attribute takes one lane");
    refuses(" --lane full", "evicts nothing");
    refuses(" --lane h2o --lane tova", "attribute takes one lane");
    refuses(" --lane h2o --bounds 2", "--bounds");
    refuses(" --lane h2o --rest 2", "--rest is for --budget; give it as well");
    refuses(" --lane h2o --split greedy", "--split is for --budget; give it as well");
    refuses(" --lane h2o:budget=8 --budget 40 --split greedy --rank kl", "leave out one of --split greedy");
    refuses(" --lane h2o --chunk 4", "--chunk is for --by token; give both");
    refuses(" --lane h2o --shards 3", "--shards requires --job");
    refuses(" --lane h2o:budget=8,scope=layer", "take scope=head, or --by layer");
    refuses(" --lane h2o:budget=8 --budget 12 --rest 6", "leaves no head all its tokens");
    refuses(" --lane h2o:budget=8 --by query-head --budget 20", "all query heads of a KV head");
    refuses(" --lane h2o:budget=8 --by group --take", "--take and --budget are for heads and layers");
    refuses(" --lane h2o:budget=8 --by group --shard 1/2", "leave out --shard");
    refuses(" --lane h2o:budget=25% --by group", "needs a budget in tokens");
}

}  // namespace
}  // namespace keyhole::test_attribution
