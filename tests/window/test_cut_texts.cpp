// No pane shortens or cuts a text where the window has at least 1280 x 720 pixels: each frame is read back
// from what ImGui draws. Runs the window in this process; needs a display.
#include "app/window/screen_text.h"
#include "app/window/window.h"
#include "engine/policy/option_table.h"
#include "engine/policy/preset_table.h"
#include "tests/reference/source_folder.h"
#include "tests/window/window_run.h"

#include <fmt/format.h>

#include <set>

namespace keyhole::test_cut_texts {
namespace {

/// Runs actions one after the other, and reads the first frame in which the window rests after each.
class Reader : public WindowDriver {
  public:
    explicit Reader(std::vector<std::string> actions) : actions_(std::move(actions)) {}
    std::set<std::string> found;  ///< "pane: text", with the action
    int n_texts = 0;

    bool turn(AppState& app) override {
        if (!app.idle() || !app.maps.complete) return false;
        if (n_frames_ < due_) return true;  // one more frame
        if (n_done_ > 0 && !read_) {
            wanted_ = true;  // the next frame is read
            due_ = n_frames_ + 1;
            read_ = true;
            return true;
        }
        if (n_done_ == actions_.size()) {
            run_action(app, "quit");
            return true;
        }
        run_action(app, actions_[n_done_++]);
        read_ = false;
        due_ = n_frames_ + 4;  // panes find their sizes
        return true;
    }

    void drawn(AppState&, const PanelShared& shared) override {
        ++n_frames_;
        if (!std::exchange(wanted_, false)) return;
        for (const ScreenText& text : screen_texts(*ImGui::GetDrawData())) {
            const std::string pane = pane_of(text, shared);
            if (pane.empty()) continue;  // menus, dialogs and the status line, which may hold a path
            ++n_texts;
            if (text.is_short() && !is_meant(pane, text.text))
                found.insert(fmt::format("{}: '{}' after {}", pane, text.text, actions_[n_done_ - 1]));
        }
    }

  private:
    std::vector<std::string> actions_;
    std::size_t n_done_ = 0;
    int n_frames_ = 0, due_ = 4;
    bool wanted_ = false, read_ = false;

    /// Dots of a button that opens a dialog, and of an answer that goes on.
    static bool is_meant(const std::string& pane, const std::string& text) {
        const bool answers = pane == "answers" || pane == "story";
        const bool goes_on = text == "…" || (text.ends_with(" …") && !text.starts_with("floor"));
        return text == "by head…" || text == "save…" || (answers && goes_on);
    }
};

class CutTexts : public testing::WindowRun {
  protected:
    /// Returns whether a text is a choice of an option, or its beginning.
    static bool is_choice(const std::string& text) {
        bool is = false;
        for (const LaneOption& option : lane_options())
            if (const auto* of = std::get_if<WordsOf<PolicyParams>>(&option.member))
                for (const OptionWord& word : of->words)
                    is = is || (word.label.empty() ? word.text : word.label).starts_with(text);
        return is;
    }
    /// counts: which cut texts are faults; null: all.
    static void expect_none(int width, int height, std::vector<std::string> actions,
                            bool (*counts)(const std::string&) = nullptr) {
        Reader reader(std::move(actions));
        WindowOptions options;
        options.setup.model_folder = testing::kModel;
        PromptFile story = read_prompt_file(reference::source_folder() / "assets/prompts/garden-gate.txt");
        options.setup.prompt = std::move(story.text);
        options.setup.guide = std::move(story.guide);
        for (const char* lane : {"full", "h2o:budget=64", "tova:budget=64"})
            options.setup.lanes.push_back(parse_lane_spec(lane));
        options.driver = &reader;
        options.width = width;
        options.height = height;
        run_window(std::move(options));
        EXPECT_GT(reader.n_texts, 100);
        for (const std::string& text : reader.found) {
            const std::size_t quote = text.find('\'');
            const std::string words = text.substr(quote + 1, text.rfind("' after") - quote - 1);
            if (counts == nullptr || counts(words)) ADD_FAILURE() << width << "x" << height << " " << text;
        }
    }
};

/// The lane's card, for every preset, with and without all its options.
TEST_F(CutTexts, NoneOnTheCardOfAPreset) {
    std::vector<std::string> actions = {"view.explore", "lane.focus 1"};
    for (const char* advanced : {"off", "on"}) {
        actions.push_back(fmt::format("lane.advanced {}", advanced));
        for (const PresetRow& row : presets())
            actions.push_back(row.preset == Preset::full ? "lane 1 full"
                                                         : fmt::format("lane 1 {}:budget=64", row.name));
    }
    expect_none(1280, 720, actions);
    // Below the edge of the lower window stand all choices. Fields with long formulas are cut there.
    expect_none(1280, 1180, actions, is_choice);
}

TEST_F(CutTexts, NoneInAnyArrangement) {
    const std::vector<std::string> actions = {
        "view.explore", "answers.bounds on", "step 4",       "curves kl",   "curves watched", "mode.mask",
        "mode.score",   "atlas.color kept",  "view.compare", "compare.all", "mode.attention"};
    expect_none(1280, 720, actions);
    expect_none(1600, 1000, actions);
}

TEST_F(CutTexts, NoneInTheStoryAndInTeach) {
    const std::vector<std::string> actions = {"view.story", "strips budget", "strips alpha",
                                              "step 6",     "lane.focus 2",  "view.teach"};
    expect_none(1280, 720, actions);
    expect_none(1600, 1000, actions);
}

/// The first words of "What you see" stand in a strip of a first start alone, and can be closed.
TEST_F(CutTexts, AFirstStartHasWords) {
    const std::string settings = "--settings '" + path("window.json") + "'";
    EXPECT_EQ(run_script("wait idle\npoint first words close\nclick\nwait seconds 0.3\nquit\n", settings), 0)
        << output_;
    EXPECT_TRUE(std::filesystem::exists(path("window.json")));
    EXPECT_EQ(run_script("wait idle\npoint first words close\nquit\n", settings), 2)
        << "the second start has none: " << output_;
}

}  // namespace
}  // namespace keyhole::test_cut_texts
