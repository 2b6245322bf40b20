// The policy card through the real window: a script points at its widgets, and the resulting run is read from
// its trace.
#include "tests/window/window_run.h"

namespace keyhole::test_policy_card {
namespace {

using PolicyCardRun = testing::WindowRun;

std::string spec_of(const nlohmann::json& run, std::size_t lane) {
    return run["lanes"].at(lane)["spec"].get<std::string>();
}

TEST_F(PolicyCardRun, TheDialectSwitchChangesTheLane) {
    const nlohmann::json run = run_of_script(
        "--lane full --lane h2o:budget=64 --lane keyformer:budget=64",
        "wait idle\nlane.advanced on\nlane.focus 2\npoint dialect released\nclick\nlane.focus 1\npoint "
        "dialect released\nclick\nstep 2\nwait steps 2");
    EXPECT_NE(spec_of(run, 1).find("dialect=released"), std::string::npos) << spec_of(run, 1);
    EXPECT_NE(spec_of(run, 2).find("dialect=released"), std::string::npos) << spec_of(run, 2);
    EXPECT_EQ(spec_of(run, 0), "full");
}

TEST_F(PolicyCardRun, WhereNobodyReleasedCodeTheSwitchDoesNothing) {
    const nlohmann::json run = run_of_script(
        "--lane full --lane key:budget=64",
        "wait idle\nlane.advanced on\nlane.focus 1\npoint dialect released\nclick\nstep 1\nwait steps 1");
    EXPECT_EQ(spec_of(run, 1).find("released"), std::string::npos) << spec_of(run, 1);
}

TEST_F(PolicyCardRun, PresetsAndOptionsAreChosenByMouseAndByCommand) {
    const nlohmann::json run =
        run_of_script("--lane full --lane h2o:budget=64",
                      "wait idle\nlane.advanced on\nlane.focus 1\npoint preset\nclick\n"
                      "point preset dilated\nclick\nlane.set "
                      "dilation=2\nstep 1\nwait steps 1\n"
                      "point preset\nclick\npoint preset keyformer\nclick\n"
                      "point tau curve 0.77 0.2\npress\npoint tau curve 0.77 0.1\nrelease\n"
                      "lane.set damping=0.5,score_dtype=bf16,kv_dtype=q8,positions=cache\n"
                      "step 1\nwait steps 2");
    const std::string spec = spec_of(run, 1);
    EXPECT_EQ(spec.rfind("keyformer:budget=64", 0), 0u) << spec;
    for (const char* part : {"damping=0.5", "score_dtype=bf16", "kv_dtype=q8", "positions=cache"})
        EXPECT_NE(spec.find(part), std::string::npos) << spec;
    EXPECT_NE(spec.find("tau=1..2."), std::string::npos) << spec;  // the drag raised the end
    EXPECT_NE(run["commands"].dump().find("dilated:budget=64,dilation=2"), std::string::npos)
        << run["commands"];
}

TEST_F(PolicyCardRun, TheMatrixPaintsOverridesAndUndoTakesThemBack) {
    const std::string paint =
        "wait idle\nlane.advanced on\nlane.focus 1\nlane.overrides\npoint override field alpha\nclick\n"
        "point override brush 0.5 0.5\npress\npoint override brush "
        "0.95 0.5\nrelease\n"
        "point override L4 H3\npress\npoint override L4 H6\nrelease\npoint override L0\nclick\npoint "
        "override L4 "
        "H4\nclick 1\n";
    const std::string spec =
        spec_of(run_of_script("--lane full --lane a2sf:budget=64", paint + "step 1\nwait steps 1"), 1);
    for (const char* part : {"alpha@L0,", "L4.H3", "L4.H5-6"})
        EXPECT_NE(spec.find(part), std::string::npos) << spec;
    EXPECT_EQ(spec.find("H4"), std::string::npos) << spec;
    const std::string undone = spec_of(run_of_script("--lane full --lane a2sf:budget=64",
                                                     paint + "lane.undo\nlane.undo\nstep 1\nwait steps 1"),
                                       1);
    EXPECT_NE(undone.find("alpha@L4.H3-6="), std::string::npos) << undone;
    EXPECT_EQ(undone.find("@L0"), std::string::npos) << undone;
}

TEST_F(PolicyCardRun, TheMatrixPaintsFormulas) {
    const std::string spec = spec_of(
        run_of_script("--lane full --lane h2o:budget=64,alpha@L5=0.5",
                      "wait idle\nlane.advanced on\nlane.focus 1\nlane.overrides\npoint override field "
                      "choose\nclick\npoint override brush 0.5 0.5\nclick\ntext *0-knor\n"
                      "point override fault\ntext m\n"
                      "point override L2\nclick\npoint override L3 H1\nclick\nstep 1\nwait steps 1"),
        1);
    for (const char* part : {"alpha@L5=0.5", "choose@L2,L2-3.H1=(s*0-knorm)"})
        EXPECT_NE(spec.find(part), std::string::npos) << spec;
}

TEST_F(PolicyCardRun, APolicyIsSavedTakenFromTheListAndOpenedFromAFile) {
    std::ofstream(path("theirs.policy.json")) << R"({"name": "theirs", "spec": "window:budget=24"})";
    const nlohmann::json run = run_of_script(
        "--lane full --lane h2o:budget=48,sinks=4 --lane tova:budget=64",
        "wait idle\nlane.focus 1\npoint lane name\nclick\ntext mine\n"
        "point save policy\nclick\nlane.focus 2\npoint preset\nclick\npoint preset mine\nclick\n"
        "wait idle\ndrop " +
            path("theirs.policy.json") + "\nwait idle\npolicies\npoint remove mine\nclick\ndialog.close\n" +
            "step 1\nwait steps 1");
    EXPECT_EQ(spec_of(run, 1), "mine=h2o:budget=48,recent=24,sinks=4");
    EXPECT_EQ(spec_of(run, 2), "mine=h2o:budget=48,recent=24,sinks=4");
    EXPECT_EQ(spec_of(run, 3), "theirs=window:budget=24,recent=24");
    EXPECT_TRUE(std::filesystem::is_empty(path("data/keyhole/policies")));
}

TEST_F(PolicyCardRun, AFaultyOptionIsNamed) {
    EXPECT_EQ(run_script("wait idle\nlane.advanced on\nlane.focus 1\nlane.set bugdet=3\nquit\n"), 2);
    EXPECT_NE(output_.find("budget"), std::string::npos) << output_;
    EXPECT_EQ(run_script("wait idle\npoint no such widget\nquit\n"), 2);
    EXPECT_NE(output_.find("no such widget"), std::string::npos) << output_;
}

TEST_F(PolicyCardRun, TheCommandLineExplainsTheSameOptions) {
    ASSERT_EQ(run("info --options"), 0) << output_;
    for (const char* words :
         {"keyformer", "dialect=released", "score_dtype", "StreamingLLM", "alpha@L0-3.H2=0.5"})
        EXPECT_NE(output_.find(words), std::string::npos) << words;
}

}  // namespace
}  // namespace keyhole::test_policy_card
