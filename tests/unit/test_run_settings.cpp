// What the log says of a run's lanes, follow and sampling, compared with the session that ran it.
#include "engine/backend/backend.h"
#include "engine/base/index.h"
#include "engine/device/make_backend.h"
#include "engine/model/model.h"
#include "engine/run/run_settings.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <random>

namespace keyhole::test_run_settings {
namespace {

std::vector<LaneSpec> lanes_at(const RunSpec& run, int row = kWholeLog) {
    return settings_at(run, row).lane_specs();
}

TEST(RunSettings, AForkTakesTheSettingsOfItsLane) {
    RunSpec run;
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64")};
    run.commands = {{10, parse_command("fork 1")}, {11, parse_command("fork 0 key:budget=8")}};
    EXPECT_EQ(lanes_at(run), (std::vector<LaneSpec>{run.lanes[0], run.lanes[1], run.lanes[1],
                                                    parse_lane_spec("key:budget=8")}));
}

TEST(RunSettings, CommandsSinceARowMakeTheLanesOfNow) {
    RunSpec run;
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=64"), parse_lane_spec("tova:budget=9")};
    run.follow = true;
    run.commands = {{10, parse_command("lane 1 h2o:budget=16")},
                    {12, parse_command("add key:budget=8")},
                    {14, parse_command("remove 2")},
                    {14, parse_command("fork 1 sink:budget=7")},
                    {15, parse_command("follow off")},
                    {16, parse_command("sampling temperature=0.5")},
                    {17, parse_command("lane 2 key:budget=5")}};
    const std::vector<LaneSpec> now = lanes_at(run);
    for (int row = 9; row <= 18; ++row) {
        // Applied where the rewind ends, the commands give the current lanes.
        RunSpec kept = run;
        std::erase_if(kept.commands, [&](const LoggedCommand& c) { return c.row >= row; });
        EXPECT_EQ(lanes_at(kept), lanes_at(run, row));
        const std::vector<Command> since = settings_since(run, row, now, false);
        EXPECT_EQ(since.empty(), row == 18) << row;
        for (const Command& command : since) kept.commands.push_back({row, command});
        EXPECT_EQ(lanes_at(kept), now) << row;
        EXPECT_FALSE(settings_at(kept).follow);
        EXPECT_TRUE(settings_since(kept, row + 1, now, false).empty()) << row;
    }
    // An unchanged lane is kept, not made again: it keeps its cache.
    const std::vector<Command> since = settings_since(run, 13, now, false);
    ASSERT_EQ(since.size(), 5u);
    EXPECT_EQ(format_command(since[0]), "remove 2");
    EXPECT_EQ(format_command(since[1]), "lane 2 key:budget=5");
    EXPECT_EQ(format_command(since[2]), "add sink:budget=7");
    EXPECT_EQ(format_command(since[3]), "follow off");
    EXPECT_EQ(format_command(since[4]), format_command(parse_command("sampling temperature=0.5")));
    EXPECT_TRUE(settings_since(run, 18, now, false).empty());
    // A pending change counts, though the log does not have it.
    std::vector<LaneSpec> wanted = now;
    wanted.push_back(parse_lane_spec("window:budget=4"));
    EXPECT_EQ(format_command(settings_since(run, 18, wanted, false).at(0)), "add window:budget=4");
}

// Random commands: each record's lanes are those that the log gives for its row.
TEST(RunSettings, AgreeWithTheSession) {
    const reference::TinyModel tiny({.n_ctx = 256, .seed = 8});
    const std::shared_ptr<const Model> model = load_model(tiny.folder());
    const std::unique_ptr<Backend> backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    const std::vector<std::string> specs = {"h2o:budget=6", "tova:budget=5", "window:budget=7",
                                            "sink:budget=6,sinks=2"};
    std::mt19937 random(5);
    const auto any = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const auto spec = [&] { return specs[to_index(any(4))]; };
    for (int round = 0; round < 10; ++round) {
        RunSpec run = reference::run_spec(reference::random_text(9, 2), {"full", "h2o:budget=6"}, 24);
        run.ignore_eos = true;
        const int first_row = 9;  // the token of the text's begin, and one a character
        int n_lanes = 2;
        for (int row = first_row; row < first_row + 20; row += any(3)) {
            std::string text;
            switch (any(5)) {
                case 0:
                    text = fmt::format("lane {} {}", any(n_lanes), spec());
                    break;
                case 1:
                    text = fmt::format("add {}", spec()), ++n_lanes;
                    break;
                case 2:
                    text = fmt::format("fork {} {}", any(n_lanes), any(2) == 0 ? spec() : ""), ++n_lanes;
                    break;
                case 3:
                    text = any(2) == 0 ? "follow on" : "follow off";
                    break;
                default:
                    if (n_lanes < 2) continue;
                    text = fmt::format("remove {}", 1 + any(n_lanes - 1)), --n_lanes;
            }
            run.commands.push_back({row, parse_command(text)});
        }
        const auto compare = [&](const std::shared_ptr<const StepTrace>& step) {
            const std::vector<LaneSpec> lanes = lanes_at(run, step->row);
            ASSERT_EQ(step->lanes.size(), lanes.size()) << "round " << round << ", row " << step->row;
            for (std::size_t i = 0; i < lanes.size(); ++i)
                EXPECT_EQ(step->lanes[i].info->spec, format_lane_spec(lanes[i]))
                    << "round " << round << ", row " << step->row << ", lane " << i;
        };
        replay(model, *backend, run, first_row + 20, nullptr, compare);
    }
}

}  // namespace
}  // namespace keyhole::test_run_settings
