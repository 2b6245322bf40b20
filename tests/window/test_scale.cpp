// The window's cost with many heads and when nothing happens: frames, bytes, processor time. Runs the program
// itself; needs a display.
#include "tests/reference/tiny_model.h"
#include "tests/window/window_run.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace keyhole::test_scale {
namespace {

class Scale : public testing::WindowRun {
  protected:
    nlohmann::json measured(const std::string& name) const {
        nlohmann::json json;
        std::ifstream(path(name)) >> json;
        return json;
    }
};

TEST_F(Scale, AnIdleWindowDrawsNothing) {
    ASSERT_EQ(run_script("wait idle\nstep 3\nwait idle\nmeasure.begin\nwait seconds 3\nmeasure.end " +
                         path("idle.json") + "\nquit\n"),
              0)
        << output_;
    const nlohmann::json idle = measured("idle.json");
    EXPECT_GE(idle["seconds"], 3);
    // Six follow the two commands. Windows of other tests uncover this one now and then, three frames each
    // time. A window that kept drawing would draw sixty or more.
    EXPECT_LE(idle["frames"], 30);
    EXPECT_LT(idle["process_cpu_share"], 0.1);
}

TEST_F(Scale, AThousandHeadsStayWithinTheirBytes) {
    reference::TinyShape shape;
    shape.n_layers = shape.n_heads = shape.n_kv_heads = 32;
    shape.head_dim = 4;
    shape.d_ff = 64;
    shape.dtype = reference::StoredAs::f16;
    shape.n_vocab = 301;
    shape.eos = 300;  // no text ends by chance
    const reference::TinyModel model(shape);
    std::ofstream(path("prompt.txt")) << reference::random_text(200, 3);
    std::string script = "wait idle\nstep 12\nwait steps 12\nwait idle\nmeasure.begin\nstep 12\n";
    for (int i = 0; i < 10; ++i) script += "mouse " + std::to_string(700 + 9 * i) + " 300\n";
    script += "mode.mask\nwait steps 24\nwait idle\nmeasure.end " + path("many.json") + "\nscreenshot " +
              path("shot.png") + "\nquit\n";
    std::ofstream(path("script.txt")) << script;
    ASSERT_EQ(run("gui --model '" + model.folder().string() + "' --prompt-file '" + path("prompt.txt") +
                  "' --lane full --lane h2o:budget=64 --size 1280x800 --script '" + path("script.txt") + "'"),
              0)
        << output_;
    const nlohmann::json many = measured("many.json");
    EXPECT_GE(many["frames"], 20);
    EXPECT_GE(many["rows"], 24);
    // The atlas takes at most 22.4 MB and its masks as much again; the focus of 256 positions, evictions and
    // pictures take little.
    EXPECT_GT(many["texture_bytes"], 1000000);
    EXPECT_LT(many["texture_bytes"], 60000000);
    EXPECT_GT(many["record_bytes"], 1000000);
    EXPECT_LE(many["record_bytes"].get<double>(), many["record_budget_bytes"].get<double>());
    EXPECT_LT(many["longest_cpu_ms"], 1000) << "the window's thread was held up";
    EXPECT_GT(std::filesystem::file_size(path("shot.png")), 20000u);
}

/// At any interface scale the focused head keeps two fifths of the window's width: other panes share the rest
/// in turn.
TEST_F(Scale, TheFocusedHeadKeepsItsRoomAtEveryInterfaceScale) {
    for (const auto& [width, height] : {std::pair(1280, 720), {1600, 1000}, {1920, 1080}}) {
        std::string script = "wait idle\n";
        for (const int scale : {100, 150, 200, 300}) {
            script += fmt::format("ui.scale {}\nwait idle\ndump-cells {}\n", scale,
                                  path(fmt::format("{}.json", scale)));
            if (scale == 200 && width < 1900)  // every pane of the column is reachable
                for (const char* pane : {"atlas", "curves", "details", "lanes"})
                    script += fmt::format("point side {}\nclick\nwait seconds 0.1\n", pane);
        }
        std::ofstream(path("script.txt")) << script << "quit\n";
        ASSERT_EQ(run(fmt::format("gui --model '{}' --prompt-file '{}' {} --size {}x{} --script '{}'",
                                  testing::kModel, testing::kPrompt, testing::kLanes, width, height,
                                  path("script.txt"))),
                  0)
            << output_;
        for (const int scale : {100, 150, 200, 300}) {
            if (height * 100 / scale < 444) continue;  // text and answers have its place
            const auto canvas = measured(fmt::format("{}.json", scale))["canvas"];
            // Without axis, colour bar and time axis.
            EXPECT_GE(canvas[2].get<double>() / width, scale == 300 ? 0.2 : 0.25)
                << width << "x" << height << " at " << scale << " %";
            EXPECT_GE(canvas[3].get<double>() / height, scale == 100 ? 0.25 : 0.15)
                << width << "x" << height << " at " << scale << " %";
        }
    }
}

}  // namespace
}  // namespace keyhole::test_scale
