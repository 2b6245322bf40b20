// Steering a live run from the window: the run's log contains what a script does by command and by click.
// Needs a display.
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/gif_pictures.h"
#include "tests/reference/source_folder.h"
#include "tests/window/window_run.h"

#include <gtest/gtest.h>
#include <stb/stb_image.h>

#include <algorithm>

namespace keyhole::test_steering {
namespace {

using Program = testing::WindowRun;

constexpr const char* kTwoLanes = "--lane full --lane h2o:budget=48";

std::vector<std::string> commands_of(const nlohmann::json& run) {
    std::vector<std::string> texts;
    for (const nlohmann::json& command : run["commands"]) texts.push_back(command["text"].get<std::string>());
    return texts;
}

TEST_F(Program, CandidatesAndTurnsAreInTheLog) {
    const nlohmann::json run = run_of_script(kTwoLanes,
                                             "wait idle\nstep 4\nwait steps 4\nwait idle\ncandidate 3\nwait "
                                             "idle\nsay \" And then he said\"\nwait idle\nstep 2");
    const std::vector<std::string> commands = commands_of(run);
    ASSERT_EQ(commands.size(), 2u) << run["commands"];
    EXPECT_TRUE(commands[0].starts_with("force! ")) << commands[0];
    EXPECT_EQ(commands[1], "say \" And then he said\"");
    const int forced = std::stoi(commands[0].substr(6));
    const nlohmann::json& steps = run["lanes"][1]["steps"];
    const std::size_t at = 4;  // the fifth decoded row
    EXPECT_EQ(steps[at]["token"].get<int>(), forced);
    EXPECT_EQ(run["lanes"][0]["steps"][at]["token"].get<int>(), forced);
    // the third candidate differs from the first choice
    EXPECT_NE(steps[at - 1]["predicted"].get<int>(), forced);
}

TEST_F(Program, EditingAGeneratedTokenKeepsTheOldWayAsABranch) {
    const nlohmann::json info = run_of_script(kTwoLanes, "wait idle\nstep 6\nwait steps 6\nwait idle");
    const int n_prompt = static_cast<int>(info["prompt_tokens"].size());
    const nlohmann::json run =
        run_of_script(kTwoLanes, "wait idle\nstep 6\nwait steps 6\nwait idle\ntoken.edit " +
                                     std::to_string(n_prompt + 2) + " \" the fox\"\nwait idle");
    EXPECT_EQ(commands_of(run), (std::vector<std::string>{"say! \" the fox\""}));
    ASSERT_EQ(run["branches"].size(), 1u);
    EXPECT_EQ(run["branches"][0]["from_row"].get<int>(), n_prompt + 1);
    const nlohmann::json &now = run["lanes"][0]["steps"], &before = info["lanes"][0]["steps"];
    for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(now[i]["token"], before[i]["token"]);
    EXPECT_NE(now[2]["token"], before[2]["token"]);
}

/// The page asks the prompt of the run, lists what it found, and a click gives the costliest part back by its
/// KL, which a prompt has because its answer is read as a target.
TEST_F(Program, WhatEvictionCostsIsGivenBackByAClick) {
    const nlohmann::json run = run_of_script(
        kTwoLanes,
        "wait idle\nlane.focus 1\nattribution\nattribution.run by=layer questions=prompt rank=kl\nwait "
        "idle\nattribution.files uniform 24 8 " +
            path("budgets") + "\npoint attribution 1\nclick\nwait idle\ndialog.close\nstep\nwait steps 1");
    const std::vector<std::string> commands = commands_of(run);
    ASSERT_EQ(commands.size(), 1u) << run["commands"];
    EXPECT_NE(commands[0].find("h2o:budget=48,budget@L"), std::string::npos) << commands[0];
    EXPECT_NE(commands[0].find("=all"), std::string::npos) << commands[0];
    EXPECT_NE(read("budgets/heads.json").find("keyhole attribute --model"), std::string::npos);
    // What the list ranks is in the file that the page reads.
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(path("data/keyhole/attributions")))
        if (entry.path().filename() == "attribution.json") found.push_back(entry.path());
    ASSERT_EQ(found.size(), 1u);
    const nlohmann::json all = nlohmann::json::parse(read_text_file(found[0]));
    std::string best;
    double most = -1;
    for (const nlohmann::json& part : all.at("parts"))
        if (const double kl = part.at("kl").at("value"); kl > most) {
            most = kl;
            best = part.at("part");
        }
    EXPECT_GT(most, 0);
    EXPECT_NE(commands[0].find("budget@" + best + "=all"), std::string::npos) << best << commands[0];
}

TEST_F(Program, CandidatesAreClicked) {
    const nlohmann::json run = run_of_script(
        kTwoLanes,
        "wait idle\nstep 3\nwait steps 3\nwait idle\nlane.focus 1\npoint candidate 1 2\nclick\nwait idle");
    const std::vector<std::string> commands = commands_of(run);
    ASSERT_EQ(commands.size(), 1u);
    EXPECT_TRUE(commands[0].starts_with("force! ")) << commands[0];
}

TEST_F(Program, EveryArrangementAndPageIsDrawn) {
    const std::string script =
        "wait idle\nstep 20\nwait steps 20\nwait idle\nlane.focus 1\nview.compare\nwait idle\nscreenshot " +
        path("compare.png") + "\ncompare.all on\nmode.mask\nwait idle\nscreenshot " + path("all.png") +
        "\nview.teach\nwait idle\nscreenshot " + path("teach.png") +
        "\nview.explore\ndiff on\nwait idle\nscreenshot " + path("diff.png") +
        "\ndiff off\nblink on\nwait idle\nscreenshot " + path("blink.png") +
        "\nblink off\nwatch 10 14\nwait idle\nscreenshot " + path("watch.png") +
        "\npick 100 12\nwhy\nwhy.back\nwait idle\nscreenshot " + path("why.png") +
        "\nwhy\ndoctor\nwait idle\nscreenshot " + path("doctor.png") + "\nquit\n";
    ASSERT_EQ(run_script(script), 0) << output_;
    for (const char* name : {"compare", "all", "teach", "diff", "blink", "watch", "why", "doctor"})
        EXPECT_GT(std::filesystem::file_size(path(std::string(name) + ".png")), 20000u) << name;
}

/// Characters beyond Dear ImGui's range: the field shows \\u{1F600} and returns its original text and the
/// inserted text, including source code with such escapes.
TEST_F(Program, EmojiSurviveTheFieldOfThePrompt) {
    std::ofstream(path("emoji.txt")) << "The cat \U0001f600 sat on the mat";
    const nlohmann::json run =
        run_of_script("--lane full --prompt-file '" + path("emoji.txt") + "'",
                      "wait idle\npoint prompt\nclick\nwait seconds 0.3\npoint prompt.text\nclick\nwait "
                      "seconds 0.3\ntext \U0001f431 and \\u{1F42D}\nwait seconds 0.3\nscreenshot " +
                          path("field.png") +
                          "\npoint prompt.restart\nclick\nwait seconds 0.5\nwait idle\nstep 2\nwait steps 2");
    const std::string prompt = run["prompt"];
    EXPECT_EQ(prompt.size(), std::string("The cat \U0001f600 sat on the mat\U0001f431 and \\u{1F42D}").size())
        << prompt;
    for (const char* part : {"The cat ", "\U0001f600", " sat on", "\U0001f431 and \\u{1F42D}"})
        EXPECT_NE(prompt.find(part), std::string::npos) << prompt;
}

TEST_F(Program, SettingsOutliveTheWindow) {
    ASSERT_EQ(run_script("wait idle\nview.compare\nui.scale 120\ncolors cividis\nquit\n",
                         "--settings '" + path("window.json") + "'"),
              0)
        << output_;
    nlohmann::json kept;
    std::ifstream(path("window.json")) >> kept;
    EXPECT_EQ(kept["arrangement"], "compare");
    EXPECT_EQ(kept["colors"], "cividis");
    EXPECT_NEAR(kept["interface_scale"].get<double>(), 1.2, 1e-6);
}

/// Drops files as the desktop does: through the GLFW callback.
TEST_F(Program, DroppedFilesAreOpened) {
    std::ofstream(path("a prompt.txt")) << "It was a dark and stormy night\n";
    const std::string prompt_dropped = "wait idle\nstep 2\nwait steps 2\nwait idle\nfile.save " +
                                       path("first.keyhole") + "\ndrop " + path("a prompt.txt") +
                                       "\nwait idle\nstep 1\nwait steps 1\nwait idle\nfile.save " +
                                       path("second.keyhole");
    ASSERT_EQ(run_script(prompt_dropped + "\ndrop " + path("first.keyhole") + "\nwait idle\nfile.save " +
                         path("third.keyhole") + "\ndrop " + reference::source_folder().string() +
                         "/assets/models/keyhole-gqa2|" + path("a prompt.txt") +
                         "\nwait idle\nstep 1\nwait steps 1\nwait idle\nfile.save " + path("fourth.keyhole") +
                         "\nquit\n"),
              0)
        << output_;
    const auto prompt_and_model = [&](const std::string& name) {
        EXPECT_EQ(run("replay '" + path(name + ".keyhole") + "' --export run --out '" + path(name) + "'"), 0)
            << output_;
        nlohmann::json json;
        std::ifstream(path(name + "/run.json")) >> json;
        return std::pair(json["prompt"].get<std::string>(),
                         json["model"].dump().find("gqa2") != std::string::npos);
    };
    const auto first = prompt_and_model("first"), third = prompt_and_model("third");
    EXPECT_NE(first.first.find("There was once a miller"), std::string::npos);
    EXPECT_EQ(third, first);
    EXPECT_EQ(prompt_and_model("second"), std::pair(std::string("It was a dark and stormy night"), false));
    EXPECT_EQ(prompt_and_model("fourth"), std::pair(std::string("It was a dark and stormy night"), true));
    EXPECT_NE(run_script("wait idle\ndrop\nquit\n"), 0);
}

TEST_F(Program, FramesMakeAFilmOfTheMask) {
    ASSERT_EQ(
        run_script("wait idle\nstep 3\nwait steps 3\nwait idle\nfile.frames " + path("film") +
                   "\nwait idle\nfile.gif " + path("gif") +
                   "\nwait idle\nmode.mask\ngoto 2 1\nfile.gif-view " + path("view") + "\nwait idle\nquit\n"),
        0)
        << output_;
    std::vector<std::filesystem::path> pictures;
    for (const auto& entry : std::filesystem::directory_iterator(path("film/lane1/frames"))) {
        EXPECT_TRUE(entry.path().filename().string().starts_with("row_"));
        EXPECT_GT(entry.file_size(), 2000u);
        pictures.push_back(entry.path());
    }
    ASSERT_EQ(pictures.size(), 3u);
    std::sort(pictures.begin(), pictures.end());
    // The animation contains the pictures pixel by pixel, and the command line makes the same pictures.
    const std::vector<testing::GifFrame> animation = testing::read_gif(path("gif/lane1/mask.gif"));
    ASSERT_EQ(animation.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
        int width = 0, height = 0, channels = 0;
        stbi_uc* pixels = stbi_load(pictures[i].c_str(), &width, &height, &channels, 3);
        ASSERT_NE(pixels, nullptr);
        ASSERT_EQ(animation[i].image.rgb().size(), to_index(width * height * 3));
        EXPECT_TRUE(std::equal(animation[i].image.rgb().begin(), animation[i].image.rgb().end(), pixels))
            << i;
        stbi_image_free(pixels);
    }
    ASSERT_EQ(run("decode --model '" + testing::kModel + "' --prompt-file '" + testing::kPrompt + "'" +
                  testing::kLanes + " --tokens 3 --out '" + path("line") + "' --export gif"),
              0)
        << output_;
    const std::vector<testing::GifFrame> of_line = testing::read_gif(path("line/lane1/mask.gif"));
    ASSERT_EQ(of_line.size(), animation.size());  // only the commands in their comments differ
    for (std::size_t i = 0; i < of_line.size(); ++i) {
        EXPECT_EQ(of_line[i].image.rgb(), animation[i].image.rgb()) << i;
        EXPECT_EQ(of_line[i].delay_ms, animation[i].delay_ms) << i;
    }
    EXPECT_EQ(testing::read_gif(path("view/lane1/mask_L2_G1.gif")).size(), 3u);
    EXPECT_FALSE(std::filesystem::exists(path("view/lane1/mask_L2_G0.gif")));
}

}  // namespace
}  // namespace keyhole::test_steering
