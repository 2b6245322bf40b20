// Fork, rewind, branches, and tokens evicted or pinned by the user, through the real window. The resulting
// run is read from its trace.
#include "tests/reference/source_folder.h"
#include "tests/window/window_run.h"

namespace keyhole::test_history_run {
namespace {

using HistoryRun = testing::WindowRun;

const std::string kGate = "--prompt-file '" + reference::source_folder().string() +
                          "/assets/prompts/garden-gate.txt' --lane full --lane full ";

double kl_after(const nlohmann::json& run, std::size_t lane, std::size_t row_from_prompt) {
    return run["lanes"].at(lane)["steps"].at(row_from_prompt)["kl"].get<double>();
}

TEST_F(HistoryRun, EvictingTheAnswerLosesIt) {
    // The code 4821 occurs once in the prompt. Its digits are evicted from lane 1 through the menu and by
    // command.
    const nlohmann::json run =
        run_of_script(kGate,
                      "wait idle\nfollow on\nlane.focus 1\nfind 4\nmouse 2 2\npoint token 80\nclick 1\n"
                      "point menu "
                      "evict.all\nclick\nwait idle\n"
                      "find 8\nevict.all\nfind 2\nevict all\nwait idle\nstep 3\nwait steps 3");
    EXPECT_EQ(run["commands"].size(), 4u) << run["commands"];
    EXPECT_NE(run["commands"].dump().find("evict 1 80\""), std::string::npos) << run["commands"];
    double largest = 0;
    for (std::size_t i = 0; i < 3; ++i) largest = std::max(largest, kl_after(run, 1, i));
    EXPECT_GT(largest, 1.0);
}

TEST_F(HistoryRun, RewindForksAndBranchesFromScript) {
    const nlohmann::json run =
        run_of_script(kGate + "--lane h2o:budget=64",
                      "wait idle\nstep 6\nwait steps 6\ntime.show 371\nlane.focus 2\npoint "
                      "fork.here\nclick\nwait idle\nlane.set budget=32\nstep 5\nwait "
                      "idle");
    const nlohmann::json& lanes = run["lanes"];
    ASSERT_EQ(lanes.size(), 4u);
    EXPECT_NE(lanes[3]["spec"].get<std::string>().find("budget=32"), std::string::npos);
    EXPECT_EQ(lanes[3]["tokens"].size(), lanes[2]["tokens"].size());
    EXPECT_NE(run.dump().find("fork 2"), std::string::npos);
    EXPECT_EQ(run["commands"].dump().find("rewind"), std::string::npos);  // not in the log
}

TEST_F(HistoryRun, ABranchIsTheWayBack) {
    const nlohmann::json run = run_of_script(
        kGate,
        "wait idle\nstep 2\nwait idle\nlane 1 h2o:budget=40\nstep 4\nwait idle\nrewind 370\nwait "
        "idle\nstep 1\nwait idle\npoint branches\nclick\npoint branch 1\nclick\nwait idle");
    EXPECT_NE(run["commands"].dump().find("h2o:budget=40"), std::string::npos) << run["commands"];
    EXPECT_EQ(run["lanes"][1]["steps"].size(), 6u);
}

TEST_F(HistoryRun, PinsHoldAndRefusalsAreSaid) {
    const nlohmann::json run = run_of_script(kGate + "--lane window:budget=16",
                                             "wait idle\npin 2 360\nwait idle\nstep 20\nwait steps 20\nwait "
                                             "idle\nlane.focus 2\npick 385 360\npoint unpin\nclick\nwait "
                                             "idle\nstep 2\nwait idle");
    EXPECT_EQ(run["commands"].size(), 2u) << run["commands"];
    EXPECT_EQ(run_script("wait idle\nevict 0 99999\nwait idle\nquit\n"), 2) << output_;
    EXPECT_NE(output_.find("99999"), std::string::npos) << output_;
    EXPECT_EQ(run_script("wait idle\nrewind 99999\nquit\n"), 2) << output_;
}

}  // namespace
}  // namespace keyhole::test_history_run
