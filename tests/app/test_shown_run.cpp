// What the window shows of a lane is of one run, one lane and one step: names, settings, numbers and pictures
// come from the same records, also while a run starts, a lane joins or settings change. What is not known
// is a state of its own. The oracles are the engine's records, read by lane id.
#include "app/panels/panel.h"
#include "app/state/shown_answers.h"
#include "app/state/shown_run.h"
#include "app/view/focus_picture.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/figure/colormap.h"
#include "tests/app/live_run.h"
#include "tests/reference/synthetic_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <utility>

namespace keyhole::test_shown_run {
namespace {

using Records = RunState::Records;
using Source = LaneOnShow::Source;

class ShownRun : public testing::LiveRun {
  protected:
    ShownRun() {
        run("add tova:budget=9");
        run("add a2sf:budget=10");
        run("step 3");
    }
    void run(const std::string& action) {
        run_action(app, action);
        settle();
    }
    /// The prompt takes long enough to look at the window meanwhile.
    void begin_long_prompt() {
        const std::string words = app.run.setup.prompt;
        while (app.run.setup.prompt.size() < 2900) app.run.setup.prompt += " " + words;
        app.start();
        ASSERT_TRUE(wakes.wait_until([&] {
            app.refresh();
            return app.run.status.phase == EnginePhase::prefill;
        })) << app.run.status.message;
    }
    /// Every lane shows the records that belong to its settings, or none.
    void expect_own_numbers() const {
        for (int lane = 0; lane < app.run.lane_editor.n_lanes(); ++lane) {
            const LaneOnShow& shown = app.shown().at(lane);
            const std::string wanted = format_lane_spec(app.run.lane_editor.lanes()[to_index(lane)]);
            if (shown.record == nullptr) continue;
            EXPECT_EQ(shown.record->info->spec, wanted) << lane;
            EXPECT_EQ(app.record(lane), shown.record.get());
            EXPECT_NE(shown.title.find(wanted.substr(0, wanted.find(':'))), std::string::npos) << shown.title;
        }
    }
    std::vector<float> focus_values() {
        app.update_maps(1e6);
        return app.maps.lane.focus().pyramid().front().values;
    }
};

TEST_F(ShownRun, ARemovedLaneMovesNoNumbersWhileTheNextRunReadsItsPrompt) {
    run("remove 1");
    expect_own_numbers();
    const std::uint64_t before = app.shown().run;
    begin_long_prompt();
    EXPECT_EQ(app.shown().records, Records::reading);
    EXPECT_EQ(app.shown().run, before);
    ASSERT_NE(app.record(1), nullptr) << "its numbers of the run before";
    EXPECT_EQ(app.record(1)->info->spec, "tova:budget=9");
    expect_own_numbers();
    EXPECT_EQ(app.shown().at(1).mark, "run before");
    EXPECT_EQ(answers_caption(app, shown_answers(app)), "The prompt is being read.");
    run_action(app, "run.stop");
    settle();
    EXPECT_EQ(app.shown().records, Records::current) << "the run before is back";
    EXPECT_EQ(app.shown().run, before);
    expect_own_numbers();
    EXPECT_EQ(app.shown().at(1).mark, "");
    EXPECT_EQ(app.run.setup.prompt, app.run.history.run().prompt) << "with its prompt";
    run_action(app, "step");
    settle();
    EXPECT_EQ(app.shown().run, before);
    app.run.setup.prompt = "The cat sat on the mat.";
    app.start();
    settle();
    EXPECT_EQ(app.shown().records, Records::current);
    EXPECT_NE(app.shown().run, before);
    expect_own_numbers();
    for (int lane = 0; lane < 3; ++lane) EXPECT_EQ(app.shown().at(lane).source, Source::own) << lane;
}

/// Lanes that are added, removed and changed before the new run has a record.
TEST_F(ShownRun, LanesThatChangeDuringAPromptHaveTheirOwnNumbersToo) {
    begin_long_prompt();
    app.run.setup.prompt = "The cat sat on the mat.";
    run_action(app, "remove 2");
    run_action(app, "add sink:budget=11");
    app.refresh();
    EXPECT_EQ(app.shown().at(3).source, Source::none);
    EXPECT_EQ(app.shown().at(3).record, nullptr);
    expect_own_numbers();
    settle();
    run("step");
    expect_own_numbers();
    ASSERT_EQ(app.run.lane_editor.n_lanes(), 4);
    EXPECT_EQ(app.record(3)->info->spec, "sink:budget=11");
}

TEST_F(ShownRun, AForkShowsItsParentAndAnAddedLaneNothing) {
    run("lane.focus 1");
    const std::vector<float> parent = focus_values();
    const std::optional<int> of_parent = app.shown_lane();
    ASSERT_TRUE(of_parent);
    run("fork");
    ASSERT_EQ(app.view.lane, 4);
    EXPECT_EQ(app.shown_lane(), of_parent);
    EXPECT_EQ(app.shown().at(4).source, Source::parent);
    EXPECT_EQ(app.shown().at(4).mark, "lane 1 until its next step");
    EXPECT_EQ(app.record(4), nullptr) << "it has no number of its own";
    const auto same = [](float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); };
    const std::vector<float> drawn = focus_values();
    EXPECT_TRUE(std::equal(drawn.begin(), drawn.end(), parent.begin(), parent.end(), same));
    run_action(app, "fork 4");  // a copy of a copy, before the engine knows
    EXPECT_EQ(app.shown_lane(), of_parent);
    settle();
    EXPECT_EQ(app.shown_lane(), of_parent);

    run("add h2o:budget=8");
    run("lane.focus 6");
    EXPECT_EQ(app.shown_lane(), std::nullopt);
    EXPECT_EQ(app.shown().at(6).note, "joins with the next step");
    for (const float value : focus_values()) ASSERT_TRUE(std::isnan(value)) << "another lane's picture";
    EXPECT_TRUE(app.maps.complete);
    EXPECT_THROW(run_action(app, "file.picture nothing.png"), Error);
    run("step");
    for (const int lane : {4, 5, 6}) {
        EXPECT_EQ(app.shown().at(lane).source, Source::own) << lane;
        EXPECT_EQ(app.record(lane)->info->id, *app.shown().at(lane).id);
    }
    EXPECT_EQ(app.record(6)->info->spec, "h2o:budget=8");
}

TEST_F(ShownRun, AForkAtAnEarlierStepShowsItsParent) {
    run("lane.focus 1");
    run("time.back");
    const int n = app.run.lane_editor.n_lanes();
    run("fork.here");
    ASSERT_EQ(app.run.lane_editor.n_lanes(), n + 1);
    EXPECT_EQ(app.shown().at(n).source, Source::parent);
    EXPECT_EQ(app.shown_lane(), app.run.drawn_lane(1));
}

/// What the window corrects by itself, such as the focus on a lane that is gone, is no change to undo.
TEST_F(ShownRun, UndoSticksNowhere) {
    const auto change = [&](const std::string& text) {
        run(text);
        app.remember_changes();
    };
    const auto undo_all = [&] {
        std::vector<std::string> undone;
        while (undone.size() < 20) {
            const std::string what = app.undo();
            if (what.empty()) break;
            undone.push_back(what);
            settle();
            app.remember_changes();
        }
        return undone;
    };
    app.remember_changes();
    const int n = app.run.lane_editor.n_lanes();
    change(fmt::format("compare.with {}", n - 1));
    change(fmt::format("lane.focus {}", n - 1));
    change("remove");
    EXPECT_EQ(app.undo().rfind("removing ", 0), 0u);
    settle();
    app.remember_changes();
    EXPECT_EQ(app.run.lane_editor.n_lanes(), n) << "the lane is back";
    EXPECT_LT(undo_all().size(), 6u) << "two changes, and the two lanes that were added before";

    change("step 3");
    change("fork 1");
    const int last = app.run.last_row();
    change(fmt::format("pick {} {}", last, last));
    change(fmt::format("rewind {}", last - 2));
    EXPECT_LT(undo_all().size(), 5u);
}

/// Another sharing of KV heads makes another lane; until its next step the window shows the one before.
TEST_F(ShownRun, ALaneThatSharesItsHeadsInAnotherWayShowsWhatItWas) {
    const std::optional<int> before = app.run.drawn_lane(1);
    run("lane 1 h2o:budget=12,kv=mqa");
    EXPECT_EQ(app.run.drawn_lane(1), before);
    EXPECT_EQ(app.shown().at(1).source, Source::parent);
    EXPECT_EQ(app.shown().at(1).mark, "its state before until its next step");
    run("step");
    EXPECT_EQ(app.shown().at(1).source, Source::own);
    EXPECT_EQ(app.record(1)->info->kv, "mqa");
}

TEST_F(ShownRun, OldNumbersHaveTheNameOfTheOldSettings) {
    run("lane 1 sink:budget=14");
    const LaneOnShow& shown = app.shown().at(1);
    EXPECT_EQ(shown.title, "1 h2o");
    EXPECT_EQ(shown.mark, "old settings");
    EXPECT_EQ(format_lane_spec(shown.spec), shown.record->info->spec);
    const auto answers = shown_answers(app);
    EXPECT_EQ(answer_titles(app, answers)[1], "1 sink") << "an answer is of the new settings";
    run("step");
    EXPECT_EQ(app.shown().at(1).title, "1 sink");
    EXPECT_EQ(app.shown().at(1).mark, "");
    run("time.back");
    EXPECT_EQ(app.shown().at(1).title, "1 h2o") << "at that step it was";
}

/// The story of the demo: reasons are counted for the answer that is shown.
class AnswerReason : public testing::LiveRun {
  protected:
    AnswerReason() {
        run_action(app, "open " + (reference::source_folder() / "assets/prompts/garden-gate.txt").string());
        settle();
        run("lane 1 h2o:budget=64");
        run("run.restart");
        run("watch 4821");
    }
    void run(const std::string& action) {
        run_action(app, action);
        settle();
    }
    std::string caption() const { return answers_caption(app, shown_answers(app)); }
    /// Returns how many heads of a lane hold the watched words after a row, from the table of evictions.
    int held_by(int lane, int row) const {
        const int known = app.run.history_lane(lane).value();
        int n = 0;
        for (int g = 0; g < app.run.history.layout(known).n_kv_heads(); ++g) {
            bool all = true;
            for (int p = app.view.watched->first; p <= app.view.watched->last; ++p)
                all = all && app.run.history.stored(known, g, p, row);
            n += all ? 1 : 0;
        }
        return n;
    }
};

TEST_F(AnswerReason, IsCountedWhenTheAnswerWasMade) {
    const int row = app.run.first_row(), then = held_by(1, row);
    const std::string said = fmt::format("H2O is wrong: when it answered, {} of 48 heads still had “4821”",
                                         then == 0 ? "none" : std::to_string(then));
    EXPECT_TRUE(caption().starts_with(said)) << caption();
    run("lane 1 h2o:budget=6");  // throws the rest away at the next step
    run("step 3");
    run("lane 1 h2o:budget=64");
    ASSERT_NE(held_by(1, app.run.last_row()), then) << "the case shows nothing";
    EXPECT_TRUE(caption().starts_with(said)) << caption();
    run("say \" The name of the girl is\"");
    EXPECT_EQ(caption().find("4821"), std::string::npos) << caption() << ": words of the question before";
}

TEST_F(AnswerReason, IsOfTheSettingsThatGaveTheAnswer) {
    run("lane 1 a2sf:budget=64");
    const std::optional<HeldWhenAnswering> held = held_when_answering(app, shown_answers(app)[1]);
    ASSERT_TRUE(held);
    const int old = held_by(1, app.run.first_row());
    EXPECT_EQ(app.shown().at(1).title, "1 h2o");
    EXPECT_EQ(answer_titles(app, shown_answers(app))[1], "1 a2sf");
    run("run.restart");
    EXPECT_EQ(held->n_heads_with_all, held_by(1, app.run.first_row()));
    EXPECT_NE(held->n_heads_with_all, old) << "the case shows nothing";
}

/// The verdict beside a share is of the shown step too.
TEST(WatchedSpan, IsCountedAtTheShownStep) {
    RunHistory history;
    history.update(testing::synthetic_run({.budgets = {0, 16}}));
    const TokenSpan span{12, 15};
    for (const int row : {39, 45, 60, 69}) {
        int n = 0;
        for (int g = 0; g < history.run().layout.n_kv_heads(); ++g) {
            bool all = true;
            for (int p = span.first; p <= span.last; ++p) all = all && history.stored(1, g, p, row);
            n += all ? 1 : 0;
        }
        EXPECT_EQ(span_lifetime(history, 1, span, row).n_heads_with_all, n) << row;
    }
    EXPECT_EQ(span_verdict(span_lifetime(history, 1, {60, 61}, 50)), "not yet read");
    EXPECT_EQ(span_verdict(span_lifetime(history, 0, {60, 61}, 61)), "every head holds all of it");
}

class ModelChange : public testing::LiveRun {
  protected:
    void run(const std::string& action) {
        run_action(app, action);
        settle();
    }
    std::string watched_words() const {
        std::string words;
        for (int p = app.view.watched->first; p <= app.view.watched->last; ++p)
            words += app.run.history.run().token_bytes[to_index(token_at(p))];
        return words;
    }
};

TEST_F(ModelChange, AStoryAdaptsThereAndBack) {
    const std::filesystem::path prompts = reference::source_folder() / "assets" / "prompts";
    const std::string demo = read_prompt_file(prompts / "garden-gate.txt").text,
                      other = read_prompt_file(prompts / "garden-gate-code.txt").text;
    for (CatalogModel& model : app.catalog)
        if (model.name == "keyhole-mqa") model.prompt = "garden-gate-code.txt";
    run("open " + (prompts / "garden-gate.txt").string());
    run("model keyhole-mqa");
    EXPECT_EQ(app.run.history.run().prompt, other);
    run("model keyhole-base");
    EXPECT_EQ(app.run.history.run().prompt, demo);
    EXPECT_EQ(app.run.setup.guide, read_prompt_file(prompts / "garden-gate.txt").guide);
    // A model that cannot be loaded leaves the story of the model that stays.
    const reference::TempFolder broken("broken-model");
    const auto with_code =
        std::find_if(app.catalog.begin(), app.catalog.end(),
                     [](const CatalogModel& model) { return model.name == "keyhole-mqa"; });
    ASSERT_NE(with_code, app.catalog.end());
    std::filesystem::copy(reference::source_folder() / "assets/models/keyhole-mqa", broken.path());
    std::ofstream(broken.path() / "config.json") << "{}";
    const auto whole = std::exchange(with_code->file, (broken.path() / "model.safetensors").string());
    run("model keyhole-mqa");
    EXPECT_NE(app.refusal, "") << "the case shows nothing";
    EXPECT_EQ(app.run.setup.prompt, demo);
    with_code->file = whole;
    // A prompt of the user's stays, with a guide or without.
    const std::string own = "The code is 77. What is the code?";
    app.run.setup.prompt = own;
    app.run.setup.guide.answer = "77";
    run("model keyhole-mqa");
    EXPECT_EQ(app.run.setup.prompt, own);
}

TEST_F(ModelChange, WatchedWordsStayTheWords) {
    run("watch cat sat");
    ASSERT_TRUE(app.view.watched);
    const std::string words = watched_words();
    const TokenSpan before = *app.view.watched;
    const reference::TinyModel bytes({});  // a token a byte
    run("model " + bytes.folder().string());
    ASSERT_TRUE(app.view.watched);
    EXPECT_EQ(watched_words(), words);
    EXPECT_NE(*app.view.watched, before);
    run("model keyhole-base");
    EXPECT_EQ(app.view.watched, before);
}

class Announced : public testing::LiveRun {};

TEST_F(Announced, IsSaidToBeDoneOnceItIs) {
    const int last = app.run.last_row();
    run_action(app, fmt::format("rewind {}", last - 2));
    EXPECT_EQ(app.notice.text.rfind("going back", 0), 0u) << app.notice.text;
    run_action(app, "fork 1");
    EXPECT_EQ(app.notice.text, "copying to lane 2");
    settle();
    EXPECT_EQ(app.notice.text,
              fmt::format("lane 2 was copied at step {}; the copy continues beside it", last - 2));
    run_action(app, fmt::format("rewind {}", last - 2));
    settle();
    EXPECT_EQ(app.notice.text.rfind(fmt::format("went back to step {};", last - 2), 0), 0u)
        << app.notice.text;
    ASSERT_FALSE(app.run.status.other_branches.empty());
    run_action(app, fmt::format("branch {}", app.run.status.other_branches.front().id));
    EXPECT_EQ(app.notice.text.rfind("going to branch", 0), 0u) << app.notice.text;
    settle();
    EXPECT_EQ(app.notice.text.rfind("went to branch", 0), 0u) << app.notice.text;
    run_action(app, "add h2o:budget=8");
    settle();
    run_action(app, "lane.undo");
    EXPECT_EQ(app.notice.text.rfind("undoing: ", 0), 0u) << app.notice.text;
    settle();
    EXPECT_EQ(app.notice.text.rfind("undone: ", 0), 0u) << app.notice.text;
}

/// What is refused is not said to be done.
TEST_F(Announced, ARefusedRequestWasNotDone) {
    run_action(app, "evict 1 0 L99");
    settle();
    EXPECT_TRUE(app.notice.is_fault) << app.notice.text;
}

/// Rows of which a lane has no record: it joined later.
TEST_F(ShownRun, RowsWithoutARecordHaveASignOfTheirOwn) {
    run("step 6");
    run("add h2o:budget=8");
    run("step 4");
    run("lane.focus 4");
    app.view.mode = HeatMode::attention;
    const RunHistory& history = app.run.history;
    const int lane = app.need_shown_lane(), first = history.lanes()[to_index(lane)].first_row;
    const int g = app.focused_kv_head();
    ASSERT_GT(first, app.run.first_row() + 5);
    app.update_maps(1e6);
    const HeadMatrix& matrix = app.maps.lane.focus();
    EXPECT_TRUE(matrix.has_not_recorded());
    for (int row = app.run.first_row(); row < first; ++row)
        for (int p = 0; p <= row; ++p)
            EXPECT_EQ(matrix.pyramid().front().at(p, row), kNotRecorded) << row << " " << p;
    int n_gone = 0;
    for (int p = 0; p <= first; ++p) {
        EXPECT_NE(matrix.pyramid().front().at(p, first), kNotRecorded);
        n_gone += history.stored(lane, g, p, first - 1) ? 0 : 1;
    }
    ASSERT_GT(n_gone, 4) << "the case shows nothing";
    EXPECT_TRUE(std::isfinite(matrix.largest(true)));
    EXPECT_FALSE(matrix.has_not_finite());
    EXPECT_TRUE(app.maps.lane.atlas().front().has_not_recorded());
    // The exported picture: rows of one colour, which no evicted cell has.
    app.view.row = app.run.last_row();
    PictureOptions part;
    part.shown = CellRect{app.run.first_row(), first - 1, 0, app.run.first_row()};
    const Image picture = focus_picture(history, lane, app.view, color_scale(app.view, 1), part).image();
    const CellColors colors = cell_colors(Background::light);
    std::int64_t n_missing = 0, n_hatch = 0;
    for (int y = 0; y < picture.height(); ++y)
        for (int x = 0; x < picture.width(); ++x) {
            n_missing += picture.at(x, y) == colors.missing ? 1 : 0;
            n_hatch += picture.at(x, y) == colors.hatch ? 1 : 0;
        }
    EXPECT_GT(n_missing, 1000);
    EXPECT_EQ(n_hatch, 0);
}

/// Returns the number of significant digits of a decimal text.
int n_digits(std::string text) {
    text = text.substr(0, text.find('e'));
    std::erase_if(text, [](char c) { return c < '0' || c > '9'; });
    text.erase(0, std::min(text.find_first_not_of('0'), text.size()));
    return static_cast<int>(text.size());
}

/// A half has no more than four digits, and often fewer: the shortest text that gives the same half.
TEST(HalfText, HasTheDigitsThatAHalfHolds) {
    EXPECT_EQ(half_text(double(float_from_fp16(fp16_from_float(0.0089f)))), "0.0089");
    EXPECT_EQ(half_text(0.5), "0.5");
    for (std::uint16_t bits = 1; bits < 0x3C00; bits = static_cast<std::uint16_t>(bits + 7)) {
        const float value = float_from_fp16(bits);
        const std::string text = half_text(double(value));
        EXPECT_LE(n_digits(text), 4) << text;
        const double unit = bits < 0x400 ? std::ldexp(1.0, -24) : std::ldexp(1.0, std::ilogb(value) - 10);
        const double digit = std::pow(10.0, std::floor(std::log10(double(value))) - 3);  // the fourth
        EXPECT_LE(std::abs(std::stod(text) - double(value)), std::max(unit, digit) / 2)
            << text << " for " << value;
    }
}

}  // namespace
}  // namespace keyhole::test_shown_run
