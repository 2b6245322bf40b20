#include "engine/base/error.h"
#include "engine/session/command.h"
#include "engine/session/command_queue.h"
#include "engine/session/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

namespace keyhole {
namespace {

TEST(Command, TextFormRoundTrips) {
    for (const char* text : {"lane 1 h2o:budget=32",
                             "add tova:budget=25%",
                             "remove 2",
                             "follow on",
                             "follow off",
                             "sampling temperature=0.7,top_k=40,top_p=0.9",
                             "lane 0 keyformer:budget=64,tau=1..1.5,seed=7",
                             "fork 1",
                             "fork 0 tova:budget=9",
                             "rewind 27",
                             "branch 2",
                             "evict 1 17",
                             "evict 1 17 L3",
                             "evict 0 0 L0.H11",
                             "pin 2 5 L1.H0",
                             "pin 2 5",
                             "unpin 2 5 L1",
                             "force 7",
                             "force 7,0,512",
                             "say \" and\\n\\\"so\\\" \\\\ on\\t\""}) {
        const Command command = parse_command(text);
        EXPECT_EQ(format_command(command), text);
        EXPECT_EQ(parse_command(format_command(command)), command);
    }
}

TEST(Command, PlacesOfATokenAreReadPartByPart) {
    EXPECT_EQ(parse_command(" evict  1 17\tL3.H2 "), Command(EvictToken{{1, 17, 3, 2}}));
    EXPECT_EQ(parse_command("pin 1 17 L3"), Command(PinToken{{1, 17, 3, -1}}));
    EXPECT_EQ(parse_command("unpin 1 17"), Command(UnpinToken{{1, 17, -1, -1}}));
    EXPECT_EQ(parse_command("fork 2"), Command(ForkLane{2, std::nullopt}));
    EXPECT_EQ(parse_command("fork 2 full"), Command(ForkLane{2, parse_lane_spec("full")}));
}

TEST(Command, TextToSayMayStandBare) {
    EXPECT_EQ(parse_command("say and then"), Command(SayText{"and then"}));
    EXPECT_EQ(parse_command("say \" and then\""), Command(SayText{" and then"}));
    EXPECT_EQ(parse_command("force 3,1"), Command(ForceTokens{{3, 1}}));
    EXPECT_EQ(parse_command("force! 3,1"), Command(ForceTokens{{3, 1}, true}));
    EXPECT_EQ(parse_command("say! \" so\""), Command(SayText{" so", true}));
    for (const char* text : {"force! 3,1", "say! \" so\""})
        EXPECT_EQ(format_command(parse_command(text)), text);
    for (const char* text : {"force", "force x", "force 1,", "force -1", "force 1 2", "say", "say \"",
                             "say \"\"", "say \"a\" b", "say \"a\\q\""})
        EXPECT_THROW(parse_command(text), Error) << text;
}

TEST(Command, BadTextIsRefusedWithTheForms) {
    for (const char* text : {"",
                             "lane",
                             "lane x full",
                             "lane -1 full",
                             "lane 1 h3o",
                             "lane 1",
                             "lane 1 h2o:budget=",
                             "add",
                             "remove",
                             "remove two",
                             "follow",
                             "follow maybe",
                             "sampling",
                             "sampling temperature=hot",
                             "sampling top_p=2",
                             "sampling heat=1",
                             "jump 3",
                             "remove 1 2",
                             "fork",
                             "fork x",
                             "fork 1 h3o",
                             "rewind",
                             "rewind -1",
                             "rewind 1 2",
                             "branch",
                             "branch a",
                             "evict",
                             "evict 1",
                             "evict 1 x",
                             "evict 1 2 H3",
                             "evict 1 2 L",
                             "evict 1 2 L1.",
                             "evict 1 2 L1.3",
                             "evict 1 2 L1.H",
                             "evict 1 2 L1 H2",
                             "pin 1 -2",
                             "unpin 1 2 L-1"}) {
        try {
            parse_command(text);
            FAIL() << text << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::wrong_use) << text;
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
        }
    }
}

TEST(Sampler, GreedyTakesTheFirstOfTheBest) {
    const std::vector<float> logits = {1, 3, 3, 2};
    EXPECT_EQ(choose_token(logits, {}, 0.99f), 1);
}

TEST(Sampler, DrawsFollowTheCutDistribution) {
    const std::vector<float> logits = {std::log(0.1f), std::log(0.4f), std::log(0.2f), std::log(0.3f)};
    auto frequencies = [&](const Sampling& sampling) {
        std::map<int, double> counts;
        for (int row = 0; row < 20000; ++row)
            counts[choose_token(logits, sampling, sampling_uniform(5, row))] += 1.0 / 20000;
        return counts;
    };
    auto all = frequencies({1.0, 0, 1.0});
    EXPECT_NEAR(all[0], 0.1, 0.02);
    EXPECT_NEAR(all[1], 0.4, 0.02);
    EXPECT_NEAR(all[3], 0.3, 0.02);
    auto two = frequencies({1.0, 2, 1.0});
    EXPECT_NEAR(two[1], 0.4 / 0.7, 0.02);
    EXPECT_NEAR(two[3], 0.3 / 0.7, 0.02);
    EXPECT_EQ(two.size(), 2u);
    auto nucleus = frequencies({1.0, 0, 0.65});  // 0.4 + 0.3 is the smallest set that holds 0.65
    EXPECT_EQ(nucleus.size(), 2u);
    auto hot = frequencies({100.0, 0, 1.0});
    EXPECT_NEAR(hot[0], 0.25, 0.03);
}

TEST(CommandQueue, KeepsOrderAcrossThreads) {
    CommandQueue queue;
    EXPECT_FALSE(queue.pop().has_value());
    std::jthread pusher([&] {
        for (int i = 1; i <= 1000; ++i) queue.push(StepRows{i});
        queue.push(Quit{});
    });
    int expected = 1;
    for (bool quit = false; !quit;) {
        queue.wait();
        while (auto request = queue.pop()) {
            if (std::holds_alternative<Quit>(*request)) {
                quit = true;
                break;
            }
            ASSERT_EQ(std::get<StepRows>(*request).n_rows, expected++);
        }
    }
    EXPECT_EQ(expected, 1001);
    queue.push(Play{});
    EXPECT_FALSE(queue.supersedes_run());
    queue.push(StartRun{});
    EXPECT_TRUE(queue.supersedes_run());
}

}  // namespace
}  // namespace keyhole
