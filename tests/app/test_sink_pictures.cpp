// Learned sinks and experts in pictures that are written, of a tiny gpt-oss; and the curve of sinks, which
// models without them do not offer.
#include "app/actions/action_table.h"
#include "app/state/app_state.h"
#include "engine/analysis/measure_curves.h"
#include "engine/base/error.h"
#include "tests/app/program_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

namespace keyhole::test_sink_pictures {
namespace {

class SinkPictures : public testing::ProgramRun {
  protected:
    int decode(const std::string& family, const std::string& what) {
        return run("decode --model '" + reference::source_folder().string() + "/tests/fixtures/families/" +
                   family + "' --prompt abcdefgh --ignore-eos --tokens 8 --lane full --lane h2o:budget=6 " +
                   "--out out --export " + what + " --format svg");
    }
    /// Returns the texts of a picture, one after the other.
    std::string words(const std::string& name) const {
        const std::string svg = read("out/" + name);
        std::string out;
        for (std::size_t at = 0; (at = svg.find('>', at)) != std::string::npos; ++at)
            out += svg.substr(at + 1, std::min(svg.find('<', at), svg.size()) - at - 1) + "|";
        return out;
    }
    static bool has(const std::string& text, const std::string& part) {
        return text.find(part) != std::string::npos;
    }
};

TEST_F(SinkPictures, HaveAColumnThatIsNoToken) {
    ASSERT_EQ(decode("gpt_oss", "view,view-mask,heatmap,curve:learned_sink,page"), 0) << output_;
    for (const char* name : {"view_lane0_L0_H0.svg", "lane1/heatmap_L0_H0.svg"}) {
        EXPECT_TRUE(has(words(name), "|sink|")) << name << words(name);
        EXPECT_TRUE(has(words(name), "The column sink is no token")) << name;
    }
    EXPECT_TRUE(has(words("view_lane0_L0_H0.svg"), "Experts of the layer at row 15: "))
        << words("view_lane0_L0_H0.svg");
    EXPECT_FALSE(has(words("view-mask_lane0_L0_H0.svg"), "|sink|")) << "it has no attention";
    EXPECT_TRUE(has(words("curve_learned_sink.svg"), "Learned sink"));
    EXPECT_TRUE(has(read("out/page.html"), "\"has_sinks\":true"));
}

TEST_F(SinkPictures, ModelsWithoutThemHaveNone) {
    ASSERT_EQ(decode("llama_3", "view,page"), 0) << output_;
    EXPECT_FALSE(has(words("view_lane0_L0_H0.svg"), "|sink|"));
    EXPECT_FALSE(has(words("view_lane0_L0_H0.svg"), "Experts"));
    EXPECT_TRUE(has(read("out/page.html"), "\"has_sinks\":false"));
    EXPECT_EQ(decode("llama_3", "curve:learned_sink"), 2) << output_;
    EXPECT_TRUE(has(output_, "'learned_sink' has no curve here: the model has no learned sinks")) << output_;

    AppState app({}, {});
    EXPECT_THROW(run_action(app, "curves learned_sink"), Error);
    for (std::size_t i = 0; i < 2 * curve_kinds().size(); ++i) {
        run_action(app, "curves");
        EXPECT_NE(app.view.measure_curve, curve_index("learned_sink"));
    }
}

}  // namespace
}  // namespace keyhole::test_sink_pictures
