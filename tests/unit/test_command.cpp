#include "engine/base/error.h"
#include "engine/live/command_queue.h"
#include "engine/run/command.h"
#include "engine/run/command_script.h"
#include "engine/run/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <thread>

namespace keyhole::test_command {
namespace {

TEST(Command, TextFormRoundTrips) {
    for (const char* text :
         {"lane 1 h2o:budget=32",
          "add tova:budget=25%",
          "remove 2",
          "restore 1 h2o:budget=32",
          "follow on",
          "follow off",
          "sampling temperature=0.7,top_k=40,top_p=0.9",
          "sampling temperature=0,top_k=0,top_p=1,repetition_penalty=1.2,no_repeat_ngram=3,"
          "min_tokens=5",
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
    EXPECT_EQ(parse_command("say_after \" so\""), Command(SayText{" so", false, true}));
    for (const char* text : {"force! 3,1", "say! \" so\"", "say_after \" so\""})
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
                             "restore",
                             "restore 1",
                             "restore h2o",
                             "follow",
                             "follow maybe",
                             "sampling",
                             "sampling temperature=hot",
                             "sampling top_p=2",
                             "sampling top_p=0",
                             "sampling top_p=nan",
                             "sampling temperature=nan",
                             "sampling temperature=inf",
                             "sampling temperature=1e9",
                             "sampling temperature=0x1",
                             "sampling top_k=-1",
                             "sampling top_k=1.5",
                             "rewind +3",
                             "rewind 2147483648",
                             "lane +1 full",
                             "remove 0x1",
                             "sampling heat=1",
                             "sampling repetition_penalty=0",
                             "sampling no_repeat_ngram=-1",
                             "sampling min_tokens=x",
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

/// A hostile file may hold anything: the message stays one short line.
TEST(Command, FaultsStayOneShortLine) {
    const std::string many(100'000, 'x');
    for (const std::string& text :
         {many, "lane 1 " + many, "evict 1 2 " + many, "say \"a\" " + many, std::string("jump\x1b[31m\n3"),
          std::string("say \"\\\x01\""), std::string("remove \0", 8), "sampling " + many, "force " + many}) {
        try {
            parse_command(text);
            FAIL() << text.substr(0, 20) << " was taken";
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_LT(message.size(), 1000u) << message;
            for (const char c : message) EXPECT_GE(static_cast<unsigned char>(c), 0x20) << message;
        }
    }
}

std::vector<LoggedCommand> timed(std::string_view text) {
    return parse_timed_script("s.txt", script_lines(text), 10, 29);  // rows 9 to 29
}

TEST(TimedScript, LinesHaveTheirRows) {
    EXPECT_EQ(
        timed("# so\n\n  +0 remove 1 \r\n15\tfollow on\n20 rewind +2\n11 evict 0 1\n29 branch 1\n9 force 3"),
        (std::vector<LoggedCommand>{{9, RemoveLane{1}},
                                    {15, SetFollow{true}},
                                    {20, Rewind{11}},
                                    {11, EvictToken{{0, 1}}},
                                    {29, GoToBranch{1}},
                                    {9, ForceTokens{{3}}}}));
    EXPECT_TRUE(timed("").empty());
}

TEST(TimedScript, FaultsNameTheLine) {
    struct Case {
        std::string text;
        const char* says;
    };
    for (const Case& c :
         {Case{"+1 follow on\n+2147483647 follow off", "s.txt:2: step 2147483656 never comes"},
          {"+21 follow on", "s.txt:1: step 30 never comes: after 20 tokens the run ends with step 29"},
          {"30 follow on", "step 30 never comes"},
          {"8 follow on", "step 8 is before the end of the prompt (step 9)"},
          {"-2147483648 follow on", "before the end of the prompt"},
          {"\n+99999999999 follow on", "s.txt:2: '+99999999999' is neither"},
          {"+-1 follow on", "'+-1' is neither"},
          {"+1.5 follow on", "'+1.5' is neither"},
          {"0x10 follow on", "'0x10' is neither"},
          {"follow on", "'follow' is neither"},
          {"+1", "is not known"},
          {"+5 follow on\n+4 follow off", "s.txt:2: step 13 comes after step 14"},
          {"+5 rewind +21", "step 30 never comes"},
          {"+5 rewind +x", "'+x' is neither"},
          {"+5 lane 1 h2o:bugdet=3", "did you mean 'budget'"}}) {
        try {
            timed(c.text);
            ADD_FAILURE() << c.text << " was taken";
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::wrong_use);
            EXPECT_NE(std::string(error.what()).find(c.says), std::string::npos) << error.what();
            EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
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
        while (auto queued = queue.pop()) {
            if (std::holds_alternative<Quit>(queued->request)) {
                quit = true;
                break;
            }
            ASSERT_EQ(std::get<StepRows>(queued->request).n_rows, expected++);
        }
    }
    EXPECT_EQ(expected, 1001);
    queue.push(Play{});
    EXPECT_FALSE(queue.stops_work());
    queue.push(StartRun{});
    EXPECT_TRUE(queue.stops_work());
}

}  // namespace
}  // namespace keyhole::test_command
