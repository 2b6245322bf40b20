// Attribution: which parts of a cache eviction costs most, and the budget that follows; by hand, and by eval.
#include "app/study/attribution.h"
#include "engine/base/error.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>

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
    // Layers 0 and 2 own the KV heads of 1 and 3: a part is its owner's.
    const auto shared = cache_parts(KvLayout::shared(4, 4, 2, 1), PartKind::head);
    ASSERT_EQ(shared.size(), 2u);
    EXPECT_EQ(shared[1], (CachePart{2, 0, 0, 4}));
}

TEST(Attribution, LanesDifferInOnePart) {
    const LaneSpec lane = parse_lane_spec("h2o:budget=64");
    const CachePart part{5, 2, 6, 3};
    EXPECT_EQ(lane_with_part(lane, part, Intervention::give_back),
              parse_lane_spec("h2o:budget=64,budget@L5.H6-8=all"));
    EXPECT_EQ(start_lane(lane, Intervention::give_back), lane);
    EXPECT_EQ(lane_with_part(lane, part, Intervention::take),
              parse_lane_spec("h2o:budget=all,budget@L5.H6-8=64"));
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
        attribute(parse_lane_spec("h2o:budget=8"), Intervention::give_back, parts, outcomes);
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

    // Taking the same parts: the lanes with less are compared with the full cache.
    const Attribution taken = attribute(parse_lane_spec("h2o:budget=8"), Intervention::take, parts, outcomes);
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
        attribute(parse_lane_spec("h2o:budget=8"), Intervention::give_back, parts, outcomes);
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
    Attribution found = attribute(parse_lane_spec("h2o:budget=8"), Intervention::give_back, parts, outcomes);
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
              parse_lane_spec("h2o:budget=32,budget@L5.H0-5=all,budget@L7.H6-8=all"));
    const auto all = cache_parts(KvLayout::grouped(4, 2, 2), PartKind::head);
    const std::vector<CachePart> first = {all[0], all[1]};
    const auto others = other_parts(all, first, 3);
    EXPECT_EQ(others, (std::vector<CachePart>{all[3], all[5], all[7]}));
    EXPECT_EQ(other_parts(all, first, 99).size(), 6u);
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
    ASSERT_EQ(run(command("eval") + " --json --lane h2o:budget=8 --lane h2o:budget=8,budget@L1.H2-3=all"), 0)
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

TEST_F(AttributeCommand, GoesOnWhereItWasInterrupted) {
    const std::string attribute =
        command("attribute") + " --lane h2o:budget=8 --by layer --budget 40 --rest 8 --held-out 2 --out '" +
        path("a") + "'";
    ASSERT_EQ(run(attribute), 0) << output_;
    EXPECT_NE(output_.find("L0 "), std::string::npos) << output_;
    EXPECT_NE(output_.find("measured: 1 layer whole, 8 elsewhere"), std::string::npos) << output_;
    EXPECT_TRUE(read("a/lane.txt").starts_with("h2o:budget=8,budget@L")) << read("a/lane.txt");
    const std::string answers = read("a/answers.csv"), csv = read("a/attribution.csv");
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4 * 4 + 4 * 2);
    EXPECT_NE(read("a/attribution.svg").find(">L1<"), std::string::npos);
    std::ofstream(path("a/answers.csv"), std::ios::binary) << answers.substr(0, answers.size() / 2);
    ASSERT_EQ(run(attribute), 0) << output_;
    EXPECT_EQ(read("a/attribution.csv"), csv);
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 4 * 4 + 4 * 2);
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
    refuses(" --lane h2o --bounds 2", "--bounds is for eval and sweep");
    refuses(" --lane h2o --rest 2", "--rest and --held-out are for --budget");
    refuses(" --lane h2o:budget=8,scope=layer", "take scope=head, or --by layer");
    refuses(" --lane h2o:budget=8 --budget 12 --rest 6", "leaves no head all its tokens");
}

}  // namespace
}  // namespace keyhole::test_attribution
