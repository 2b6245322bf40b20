// What a command keeps and names where a part of it fails, and what it says of what was asked in vain.
#include "engine/base/npy.h"
#include "tests/app/program_run.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>

namespace keyhole::testing::test_kept_results {
namespace {

namespace fs = std::filesystem;

class KeptResults : public ProgramRun {
  protected:
    std::string model() const { return " --model '" + tiny_.folder().string() + "'"; }
    std::string decode(const std::string& tokens = "3") const {
        return "decode" + model() + " --prompt 'abc def ghi' --ignore-eos --tokens " + tokens + " ";
    }
    std::string out(const std::string& name) const { return " --out '" + path(name) + "'"; }
    void write(const std::string& name, const std::string& text) const { std::ofstream(path(name)) << text; }
    nlohmann::json json(const std::string& name) const { return nlohmann::json::parse(read(name)); }
    bool says(const std::string& what) const { return output_.find(what) != std::string::npos; }
    void expect_refused(const std::string& arguments, const std::string& what,
                        const std::string& before = "") {
        EXPECT_EQ(run(arguments, before), 2) << arguments << "\n" << output_;
        EXPECT_TRUE(says(what)) << arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(KeptResults, APictureThatDoesNotFitIsLeftOutAlone) {
    const std::string exports =
        " --export run,attention,view,mask --layers 0 --heads 0 --width 320 --height 120 --font-size 72";
    const auto expect_rest = [&](const std::string& folder) {
        EXPECT_TRUE(fs::exists(path(folder + "/run.json"))) << output_;
        EXPECT_TRUE(fs::exists(path(folder + "/lane0/attention.npy")));
        EXPECT_FALSE(fs::exists(path(folder + "/view_lane0_L0_H0.png")));
        EXPECT_TRUE(says("--export view: a picture of ")) << output_;
        EXPECT_TRUE(says("lane 0: mask: a picture of ")) << output_;
        EXPECT_TRUE(says("everything else is written")) << output_;
    };
    EXPECT_EQ(run(decode() + "--json --save '" + path("q.keyhole") + "'" + out("q") + exports), 1);
    expect_rest("q");
    EXPECT_TRUE(says("\"model_hash\"")) << "the JSON: " << output_;
    ASSERT_TRUE(fs::exists(path("q.keyhole")));
    EXPECT_EQ(run("replay '" + path("q.keyhole") + "'" + out("again") + exports), 1);
    expect_rest("again");
}

TEST_F(KeptResults, AnExportThatFailsLeavesTheTraceAndTheJson) {
    fs::create_directories(path("q"));
    const std::string save = " --json --save '" + path("q.keyhole") + "'";
    ASSERT_EQ(run(decode() + save + out("q") + " --export run"), 0) << output_;
    // A folder lies where a file of the export is to go, and only publishing finds it.
    fs::create_directories(path("q/curve_kl.svg/mine"));
    EXPECT_EQ(
        run(decode() + "--lane full --lane h2o:budget=4 --follow" + save + out("q") + " --export curve:kl"),
        1)
        << output_;
    EXPECT_TRUE(says("\"model_hash\"")) << output_;
    EXPECT_TRUE(says("trace saved as ")) << output_;
    EXPECT_FALSE(fs::exists(path("q.keyhole.spool")));
}

TEST_F(KeptResults, PromptsAreAllCountedBeforeTheFirstIsDecoded) {
    write("short.txt", "abc");
    write("long.txt", std::string(600, 'a'));
    expect_refused("decode" + model() + " -f '" + path("short.txt") + "' -f '" + path("long.txt") +
                       "' --tokens 3 --json --export run" + out("two"),
                   "long.txt: the prompt has 601 tokens, the model's context holds 512");
}

TEST_F(KeptResults, WhatIsEmptyIsNamed) {
    write("empty.txt", "\n");
    write("empty", "");
    for (const std::string option : {"-m ''", "--model ''", "-f ''"})
        expect_refused("decode abc " + option, "the name is empty");
    expect_refused("info ''", "the name is empty");
    expect_refused("decode" + model() + " -f '" + path("empty.txt") + "'", "empty.txt is empty");
    expect_refused("decode" + model() + " - < '" + path("empty") + "'", "standard input is empty");
    expect_refused("decode" + model() + " - <&-", "standard input is empty");
    EXPECT_EQ(run("decode" + model() + " --prompt '' --tokens 1"), 0) << output_;
}

TEST_F(KeptResults, WrittenCommandsNameTheModelOfTheEnvironment) {
    const std::string chosen = "export KEYHOLE_MODEL='" + tiny_.folder().string() + "';",
                      option = "--model " + tiny_.folder().string();
    write("text.txt", reference::random_text(300, 3));
    const std::string sweep = "sweep --text '" + path("text.txt") +
                              "' --lane h2o --vary budget=4,8 --context 32 --samples 2 --job parallel" +
                              out("job");
    ASSERT_EQ(run(sweep, chosen), 0) << output_;
    EXPECT_NE(read("job/job.sh").find(option), std::string::npos) << read("job/job.sh");
    ASSERT_EQ(run("decode abc --tokens 1 --export run" + out("run"), chosen), 0) << output_;
    EXPECT_NE(json("run/run.json")["command"].get<std::string>().find(option), std::string::npos);
    ASSERT_EQ(run("decode abc --tokens 1 --export run" + model() + out("run"), "export KEYHOLE_MODEL=other;"),
              0)
        << output_;
    const std::string command = json("run/run.json")["command"];
    EXPECT_EQ(command.find("other"), std::string::npos) << command;
}

TEST_F(KeptResults, APartOfARunSaysWhichLayersAndHeadsItHolds) {
    const std::string part = " --layers 1 --heads 3,0";
    ASSERT_EQ(run(decode() + "--export run,attention,scores" + part + out("part")), 0) << output_;
    const nlohmann::json about = json("part/run.json");
    EXPECT_EQ(about["layers"], nlohmann::json({1}));
    EXPECT_EQ(about["heads"], nlohmann::json({0, 3})) << "ascending, as in the arrays";
    const NpyArray scores = read_npy(path("part/lane0/scores.npy"));
    ASSERT_EQ(about["exported_kv_heads"].size(), static_cast<std::size_t>(scores.shape[1]));
    EXPECT_EQ(about["exported_kv_heads"][1]["owner_layer"], 1);
    EXPECT_EQ(about["exported_kv_heads"][1]["index"], 1);
    ASSERT_EQ(run("figure keyformer-3b --from '" + path("part") + "'" + out("figure")), 0) << output_;
    const std::string picture = read("figure/keyformer-3b.svg");
    EXPECT_NE(picture.find("layer 1"), std::string::npos);
    EXPECT_EQ(picture.find("layer 0"), std::string::npos);
    nlohmann::json older = about;  // as older versions wrote it
    older.erase("layers");
    older.erase("heads");
    write("part/run.json", older.dump());
    EXPECT_EQ(run("figure keyformer-3b --from '" + path("part") + "'" + out("figure")), 1);
    EXPECT_TRUE(says("holds 1 of 2 layers and does not say which")) << output_;
    ASSERT_EQ(run(decode() + "--export run,attention" + out("whole")), 0) << output_;
    EXPECT_FALSE(json("whole/run.json").contains("layers"));
}

TEST_F(KeptResults, HalfPrecisionIsOfArraysAlone) {
    const std::string exports = "--export attention,scores,csv";
    ASSERT_EQ(run(decode() + exports + out("f32")), 0) << output_;
    ASSERT_EQ(run(decode() + exports + " --dtype f16" + out("f16")), 0) << output_;
    EXPECT_EQ(answers("f16/lane0/rows.csv"), answers("f32/lane0/rows.csv"));
    for (const char* name : {"attention.npy", "scores.npy"}) {
        const NpyArray half = read_npy(path(std::string("f16/lane0/") + name)),
                       whole = read_npy(path(std::string("f32/lane0/") + name));
        EXPECT_EQ(half.type, NpyType::f16) << name;
        EXPECT_EQ(half.shape, whole.shape) << name;
        EXPECT_NEAR(half.value(5), whole.value(5), 1e-3) << name;
    }
}

TEST_F(KeptResults, ATraceNeedsNoFileThatItsLanesWereMadeWith) {
    ASSERT_EQ(run(decode() + "--export queries" + out("made")), 0) << output_;
    fs::rename(path("made/lane0/queries.safetensors"), path("cal.st"));
    ASSERT_EQ(run(decode() + "--lane expected:budget=6,calibration=cal.st --save c.keyhole"), 0) << output_;
    fs::rename(path("cal.st"), path("moved.st"));
    EXPECT_EQ(run("replay c.keyhole --export view,atlas,page,run --layers 0 --heads 0" + out("x")), 0)
        << output_;
    EXPECT_EQ(run("replay c.keyhole --json"), 0) << output_;
}

TEST_F(KeptResults, OptionsWithoutEffectAreNamed) {
    ASSERT_EQ(run(decode() + "--lane full:tau=2 --lane h2o:budget=0 --lane h2o:budget=4"), 0) << output_;
    EXPECT_TRUE(says("keyhole: lane 0: tau=2 has no effect: full keeps every token")) << output_;
    EXPECT_TRUE(says("keyhole: lane 1: budget=0 counts as 1")) << output_;
    EXPECT_FALSE(says("keyhole: lane 2:")) << output_;
}

TEST_F(KeptResults, AFolderWithMoreLayersThanItsConfigIsRefused) {
    fs::copy(tiny_.folder(), path("cut"), fs::copy_options::recursive);
    nlohmann::json config = json("cut/config.json");
    config["num_hidden_layers"] = config["num_key_value_layers"] = 1;
    write("cut/config.json", config.dump());
    EXPECT_EQ(run("decode abc --model cut"), 1);
    EXPECT_TRUE(says("its tensor model.layers.1.")) << output_;
    EXPECT_TRUE(says("has no place in the model of its config.json")) << output_;
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
}

TEST_F(KeptResults, PathsReachNoTerminalAsCommands) {
    ASSERT_EQ(run(decode() + "--save 'a\x1b[31m\nb.keyhole' --export run --out 'c\x1b[31m'"), 0) << output_;
    EXPECT_TRUE(says("trace saved as a?[31m?b.keyhole")) << output_;
    EXPECT_EQ(output_.find('\x1b'), std::string::npos) << output_;
}

TEST_F(KeptResults, ManyLanesMakeNoTableOfAllOfThem) {
    std::string lanes;
    for (int i = 0; i < 20; ++i) lanes += " --lane full";
    ASSERT_EQ(run(decode("1") + lanes), 0) << output_;
    EXPECT_TRUE(says("the table shows 16 of 20 lanes; --json has the measures of all")) << output_;
}

TEST_F(KeptResults, AFileSystemOfTheKernelIsNoFullDisk) {
    ASSERT_EQ(run(decode() + "--save t.keyhole"), 0) << output_;
    EXPECT_EQ(run("replay t.keyhole --export run --out /proc/keyhole-test"), 1);
    EXPECT_FALSE(says("0 B free")) << output_;
    EXPECT_TRUE(says("cannot create the folder /proc/keyhole-test")) << output_;
}

TEST_F(KeptResults, AGuidesStopsAreAListOfTexts) {
    write("ask.txt", "abc");
    write("ask.prompt.json", R"({"stop": [1]})");
    EXPECT_EQ(run("decode" + model() + " -f ask.txt"), 1);
    EXPECT_TRUE(says("'stop' must be a list of texts")) << output_;
}

TEST_F(KeptResults, InfoSaysVersionAndNumberTypes) {
    ASSERT_EQ(run("info --json" + model()), 0) << output_;
    const nlohmann::json info = nlohmann::json::parse(output_);
    EXPECT_FALSE(info["version"].get<std::string>().empty());
    EXPECT_EQ(info["model"], info["path"]);
    const nlohmann::json& bytes = info["kv_bytes_per_token"][0];
    EXPECT_EQ(bytes["f32"].get<int>(), 2 * bytes["f16"].get<int>());
    ASSERT_EQ(run("info --options --json"), 0) << output_;
    EXPECT_FALSE(nlohmann::json::parse(output_)["version"].get<std::string>().empty());
}

}  // namespace
}  // namespace keyhole::testing::test_kept_results
