// The whole program in a window, driven by scripts, with its pixels compared with another process's exports.
// Needs a display.
#include "engine/base/index.h"
#include "engine/figure/colormap.h"
#include "tests/window/window_run.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

namespace keyhole::test_program {
namespace {

using Program = testing::WindowRun;
using testing::kLanes;
using testing::kModel;
using testing::kPrompt;

struct Array {
    std::vector<std::int64_t> shape;
    std::vector<float> values;
};

/// An f32 .npy file. Its reader shares no code with the writer.
Array read_array(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    char magic[10] = {};
    file.read(magic, 10);
    EXPECT_EQ(std::memcmp(magic, "\x93NUMPY\x01\x00", 8), 0) << path;
    const int length = static_cast<unsigned char>(magic[8]) + 256 * static_cast<unsigned char>(magic[9]);
    std::string header(to_index(length), ' ');
    file.read(header.data(), length);
    EXPECT_NE(header.find("'<f4'"), std::string::npos) << header;
    Array array;
    std::int64_t size = 1;
    const std::size_t open = header.find('('), end = header.find(')');
    std::istringstream shape(
        std::regex_replace(header.substr(open + 1, end - open - 1), std::regex(","), " "));
    for (std::int64_t n = 0; shape >> n;) {
        array.shape.push_back(n);
        size *= n;
    }
    array.values.resize(to_index(size));
    file.read(reinterpret_cast<char*>(array.values.data()),
              static_cast<std::streamsize>(array.values.size() * sizeof(float)));
    EXPECT_TRUE(file.good()) << path;
    return array;
}

TEST_F(Program, OpensDecodesChangesPolicyAndQuits) {
    const int status = run_script(
        "wait idle\nstep 12\nwait steps 12\nlane 1 h2o:budget=32\nadd tova:budget=40\nstep 8\nwait steps "
        "20\nwait idle\n"
        "screenshot " +
        path("shot.png") + "\nmode.mask\nmode.score\ngoto 2 1\nquit\n");
    EXPECT_EQ(status, 0) << output_;
    EXPECT_GT(std::filesystem::file_size(path("shot.png")), 20000u);
}

// An oracle ranks by a text that is known: it refuses lanes that write their own.
TEST_F(Program, FollowFeedsAllLanesLaneZero) {
    std::ofstream(path("script.txt")) << "wait idle\nstep 4\nwait steps 4\nquit\n";
    const std::string line = "gui --model '" + kModel + "' --prompt 'Once upon a time there was a girl.'" +
                             " --lane full --lane oracle:budget=4 --script '" + path("script.txt") + "'";
    EXPECT_EQ(run(line + " --follow"), 0) << output_;
    EXPECT_NE(run(line), 0) << output_;
}

TEST_F(Program, BenchTimesPrompts) {
    ASSERT_EQ(
        run("bench --shape pythia-160m --layers 1 --prompt --context 40 --rounds 2 --backend cpu --json "
            "--lane full --lane h2o:budget=8"),
        0)
        << output_;
    const auto lanes = nlohmann::json::parse(output_).at("lanes");
    ASSERT_EQ(lanes.size(), 2u);
    for (const auto& lane : lanes) {
        const double ms = lane.at("ms_per_prompt").get<double>();
        EXPECT_GT(ms, 0);
        EXPECT_NEAR(lane.at("tokens_per_s").get<double>(), 40e3 / ms, 1e-6 * 40e3 / ms);
        EXPECT_NEAR(lane.at("time_over_first").get<double>(), ms / lanes[0].at("ms_per_prompt").get<double>(),
                    1e-9);
    }
    EXPECT_EQ(lanes[1].at("spec"), "h2o:budget=8");
    EXPECT_EQ(run("bench --prompt --parts"), 2);
    EXPECT_NE(output_.find("--prompt goes with none of"), std::string::npos) << output_;
}

TEST_F(Program, ScriptFaultsNameTheLine) {
    EXPECT_EQ(run_script("wait idle\nlane 1 h2o:bugdet=3\nquit\n"), 2) << output_;
    EXPECT_NE(output_.find("line 2"), std::string::npos) << output_;
    EXPECT_NE(output_.find("budget"), std::string::npos) << output_;
}

TEST_F(Program, WhatAScriptTriesMayFail) {
    const std::string to_a_folder = "screenshot " + path("");
    EXPECT_EQ(run_script("wait idle\ntry " + to_a_folder +
                         "\ntry lane 9 h2o\nwait seconds 0.1\nstep 1\nwait steps 1\nquit\n"),
              0)
        << output_;
    EXPECT_NE(run_script("wait idle\n" + to_a_folder + "\nwait seconds 0.1\nquit\n"), 0) << output_;
}

TEST_F(Program, WithoutADisplayItSaysWhatToRun) {
    const int status = run("gui --model '" + kModel + "'", "env -u DISPLAY -u WAYLAND_DISPLAY");
    EXPECT_EQ(status, 1);
    EXPECT_NE(output_.find("no display"), std::string::npos) << output_;
    EXPECT_NE(output_.find("keyhole decode"), std::string::npos) << output_;
}

TEST_F(Program, AMissingModelIsSaidInTheWindowAndEndsAScript) {
    std::ofstream(path("script.txt")) << "wait idle\nquit\n";
    // The test's folder holds no model.
    EXPECT_EQ(run("gui --model '" + path("") + "' --prompt Hello --script '" + path("script.txt") + "'"), 2)
        << output_;
    EXPECT_NE(output_.find(path("")), std::string::npos) << output_;
    EXPECT_EQ(run("gui --model /nowhere/model --prompt Hello --script '" + path("script.txt") + "'"), 2)
        << "before a window opens: " << output_;
    EXPECT_NE(output_.find("/nowhere/model"), std::string::npos) << output_;
}

TEST_F(Program, PixelsAreWhatAnotherProcessExports) {
    needs_pixels_ = true;
    ASSERT_EQ(run("decode --model '" + kModel + "' --prompt-file '" + kPrompt + "'" + kLanes +
                  " --tokens 20 --rows all --export attention --yes --out '" + path("out") + "'"),
              0)
        << output_;
    const Array attention = read_array(path("out/lane1/attention.npy"));
    ASSERT_EQ(attention.shape.size(), 4u);
    const std::int64_t n = attention.shape[3];

    std::string script =
        "wait idle\nstep 20\nwait steps 20\nwait idle\nlane.focus 1\ngoto 3 2\nwait idle\ndump-cells " +
        path("fit.json");
    script += "\nview.zoom 0.6 150 100\nwait idle\ndump-cells " + path("far.json");
    script += "\nview.zoom 14 " + std::to_string(n - 12) + " " + std::to_string(n - 30) +
              "\nwait idle\ndump-cells " + path("near.json") + "\nquit\n";
    ASSERT_EQ(run_script(script), 0) << output_;

    for (const char* name : {"fit.json", "far.json", "near.json"}) {
        nlohmann::json dump;
        std::ifstream(path(name)) >> dump;
        const nlohmann::json& s = dump["scale"];
        ColorScale scale;
        scale.logarithmic = s["logarithmic"];
        scale.low = s["low"];
        scale.high = s["high"];
        scale.gamma = s["gamma"];
        const std::int64_t layer = dump["layer"], head = dump["head"];
        ASSERT_EQ(dump["cells"].size(), 20u) << name;
        for (const nlohmann::json& cell : dump["cells"]) {
            float largest = 0;  // of the block that the pixel covers
            const std::int64_t row = cell["row"], position = cell["position"], rows = cell["rows"],
                               positions = cell["positions"];
            for (std::int64_t i = row; i < row + rows; ++i)
                for (std::int64_t p = position; p < position + positions; ++p)
                    largest = std::max(
                        largest,
                        attention.values[to_index(
                            ((i * attention.shape[1] + layer) * attention.shape[2] + head) * n + p)]);
            EXPECT_NEAR(largest, cell["value"].get<float>(), 1e-3f * largest + 1e-7f) << name << cell;
            // The record is fp16, and the shader has its own log2: the colour may be a neighbouring entry.
            const ScaleTerms terms = scale_terms(scale);
            const int low = std::max(0, color_index(terms, largest * 0.999f) - 1),
                      high = std::min(255, color_index(terms, largest * 1.001f) + 1);
            bool good = false;
            for (int k = low; k <= high; ++k) {
                const Rgb8 c = colormap_table(scale.map)[to_index(k)];
                good = good || (std::abs(c.r - cell["rgb"][0].get<int>()) <= 1 &&
                                std::abs(c.g - cell["rgb"][1].get<int>()) <= 1 &&
                                std::abs(c.b - cell["rgb"][2].get<int>()) <= 1);
            }
            EXPECT_TRUE(good) << name << " " << cell << " expected value " << largest;
        }
    }
}

}  // namespace
}  // namespace keyhole::test_program
