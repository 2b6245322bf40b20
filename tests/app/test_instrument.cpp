// The instrument parts of the window: ranges, undo, bookmarks, notes, settings, recent files, and views
// copied as a command.
#include "app/actions/action_table.h"
#include "app/actions/command_line.h"
#include "app/state/annotations.h"
#include "app/state/settings.h"
#include "app/view/range_histogram.h"
#include "engine/base/error.h"
#include "engine/export/animation.h"
#include "tests/reference/synthetic_run.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <nlohmann/json.hpp>

#include <unistd.h>
#include <chrono>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <tuple>

namespace keyhole::test_instrument {
namespace {

class Instrument : public ::testing::Test {
  protected:
    Instrument() : app({}, wakes.callback()) {
        folder = std::filesystem::temp_directory_path() /
                 ("keyhole-instrument-" + std::to_string(::getpid()) + "-" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder);
        app.show_run(opened_run(testing::synthetic_run({.budgets = {0, 16, 24}}), folder / "run.keyhole"));
        app.refresh();
        app.update_maps(1e6);
        app.remember_changes();
    }
    ~Instrument() override { std::filesystem::remove_all(folder); }
    /// Waits for files that are written or read in the background.
    void wait_for_files() {
        ASSERT_TRUE(
            wakes.wait_until([&] { return !app.jobs.export_job.running() && !app.jobs.open_job.running(); }));
        app.refresh();
    }
    reference::Wakes wakes;
    AppState app;
    std::filesystem::path folder;
};

TEST_F(Instrument, ViewChangesAreUndoneAndRedone) {
    run_action(app, "goto 2 3");
    app.remember_changes();
    run_action(app, "mode.mask");
    app.remember_changes();
    run_action(app, "time.show 50");
    app.remember_changes();  // a change of row is no undo step
    run_action(app, "undo");
    EXPECT_EQ(app.view.mode, HeatMode::attention);
    EXPECT_EQ(app.view.row, 50);
    run_action(app, "undo");
    EXPECT_EQ(app.view.layer, 0);
    run_action(app, "undo");
    EXPECT_EQ(app.notice.text, "nothing to undo");
    run_action(app, "redo");
    run_action(app, "redo");
    EXPECT_EQ(app.view.layer, 2);
    EXPECT_EQ(app.view.head, 3);
    EXPECT_EQ(app.view.mode, HeatMode::mask);
    run_action(app, "undo");
    run_action(app, "mode.score");
    app.remember_changes();
    run_action(app, "redo");  // the new change dropped the redo steps
    EXPECT_EQ(app.view.mode, HeatMode::score);
}

/// Another run may have fewer layers and heads than the views that undo restores.
TEST_F(Instrument, UndoFitsAViewToTheRunOnShow) {
    run_action(app, "goto 3 2");
    app.remember_changes();
    run_action(app, "goto 2 3");
    app.remember_changes();
    app.show_run(
        opened_run(testing::synthetic_run(
                       {.n_layers = 2, .n_heads = 2, .n_kv_heads = 2, .budgets = {0, 16}, .run_id = 2}),
                   folder / "small.keyhole"));
    app.refresh();
    app.remember_changes();
    run_action(app, "undo");  // both views have the last layer and head now
    EXPECT_EQ(app.view.layer, 0);
    EXPECT_EQ(app.next_undo(), "");
    run_action(app, "redo");
    EXPECT_EQ(app.view.layer, 1);
    EXPECT_EQ(app.view.head, 1);
    app.update_maps(1e6);
}

/// A changed setting of a trace's lane is for a new run: what the trace shows has its own settings.
TEST_F(Instrument, ATraceMarksWhatItsLanesWereNot) {
    const LaneOnShow before = app.shown().at(1);
    EXPECT_FALSE(before.old_settings);
    run_action(app, "lane.focus 1");
    run_action(app, "lane.set budget=9");
    const LaneOnShow& after = app.shown().at(1);
    EXPECT_TRUE(after.old_settings);
    EXPECT_EQ(after.mark, kOldSettings);
    EXPECT_EQ(after.name, before.name);
}

TEST_F(Instrument, GoesToAHeadAsTheProgramWritesIt) {
    for (const char* text : {"goto L3.H2", "goto L3 H2", "goto 3 2"}) {
        run_action(app, "goto 0 0");
        run_action(app, text);
        EXPECT_EQ(app.view.layer, 3) << text;
        EXPECT_EQ(app.view.head, 2) << text;
    }
    EXPECT_THROW(run_action(app, "goto here"), Error);
}

TEST(InstrumentStart, TheLaneToBeginWithWaitsForItsTrace) {
    AppState app({}, {});
    app.view.lane = 1;
    app.refresh();
    EXPECT_EQ(app.view.lane, 1);
    app.show_run(opened_run(testing::synthetic_run({.budgets = {0, 16}}), ""));
    app.refresh();
    EXPECT_EQ(app.view.lane, 1);
    app.show_run(opened_run(testing::synthetic_run({.budgets = {0}}), ""));
    app.refresh();
    EXPECT_EQ(app.view.lane, 0);
}

TEST_F(Instrument, SettingsAndViewAreUndoneInTheirOrder) {
    app.view.lane = 1;
    app.remember_changes();
    const LaneSpec before = app.run.lane_editor.lanes()[1];
    LaneSpec other = before;
    other.policy.budget.value = 8;
    app.run.lane_editor.set(1, other);
    app.remember_changes();
    run_action(app, "goto 1 1");
    app.remember_changes();
    run_action(app, "undo");
    EXPECT_EQ(app.view.layer, 0);
    EXPECT_EQ(app.run.lane_editor.lanes()[1], other);
    run_action(app, "undo");
    EXPECT_EQ(app.run.lane_editor.lanes()[1], before);
    run_action(app, "redo");
    EXPECT_EQ(app.run.lane_editor.lanes()[1], other);
}

TEST_F(Instrument, BookmarksComeBackAndAreKeptBesideTheTrace) {
    run_action(app, "goto 2 1 55");
    run_action(app, "mode.score");
    run_action(app, "pick 55 12");
    run_action(app, "bookmark where it tips");
    run_action(app, "note H2O forgets the gate");
    run_action(app, "note at row 55");
    run_action(app, "goto 0 0 40");
    run_action(app, "mode.mask");
    run_action(app, "pick.clear");
    run_action(app, "bookmark.go 1");
    EXPECT_EQ(app.view.layer, 2);
    EXPECT_EQ(app.view.head, 1);
    EXPECT_EQ(app.view.row, 55);
    EXPECT_EQ(app.view.mode, HeatMode::score);
    EXPECT_EQ(app.view.pick, (Pick{55, 12}));
    EXPECT_THROW(run_action(app, "bookmark.go 2"), Error);

    const Annotations kept = load_annotations(folder / "run.notes.json");
    EXPECT_EQ(kept.bookmarks, app.annotations.bookmarks);
    EXPECT_EQ(kept.notes, app.annotations.notes);
    EXPECT_EQ(kept.notes, "H2O forgets the gate\nat row 55");
    run_action(app, "bookmark.drop 1");
    EXPECT_TRUE(load_annotations(folder / "run.notes.json").bookmarks.empty());
    app.annotations = {};
    run_action(app, "notes.keep");
    EXPECT_FALSE(std::filesystem::exists(folder / "run.notes.json"));
    std::ofstream(folder / "run.notes.json") << "{\"notes\": 3}";
    EXPECT_THROW(load_annotations(folder / "run.notes.json"), Error);
    // A file that is not one of Keyhole's stays.
    app.annotations.notes = "whole";
    EXPECT_THROW(run_action(app, "notes.keep"), Error);
    EXPECT_EQ(read_text_file(folder / "run.notes.json"), "{\"notes\": 3}");
    std::filesystem::remove(folder / "run.notes.json");
    // The new file replaces the old one: a reader that has the old file open sees it whole.
    run_action(app, "notes.keep");
    std::filesystem::create_hard_link(folder / "run.notes.json", folder / "old.notes.json");
    app.annotations.notes = "new";
    run_action(app, "notes.keep");
    EXPECT_EQ(load_annotations(folder / "run.notes.json").notes, "new");
    EXPECT_EQ(load_annotations(folder / "old.notes.json").notes, "whole");
}

// Each bookmark value is limited to what a run can have, so that the view may use it. The message names file
// and field.
TEST(AnnotationsFile, HostileNotesAreRefusedByField) {
    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / ("keyhole-notes-" + std::to_string(::getpid()) + ".json");
    const auto refusal = [&](const std::string& key, const std::string& value) -> std::string {
        nlohmann::json one = {{"name", "b"}, {"lane", 0}, {"layer", 0},
                              {"head", 0},   {"row", 12}, {"mode", "attention"}};
        if (!key.empty()) one[key] = nlohmann::json::parse(value);
        std::ofstream(file) << nlohmann::json{{"version", 1}, {"notes", "x"}, {"bookmarks", {one}}};
        try {
            (void)load_annotations(file);
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            return error.what();
        }
        return "";
    };
    EXPECT_EQ(refusal("", ""), "");
    EXPECT_EQ(refusal("zoom", "[3.5, -2, 1, 160]"), "");
    for (const auto& [key, value, place] :
         {std::tuple("zoom", "[1e308, -1e308, 1e308, 0]", "bookmarks[0].zoom[0] is 1e+308"),
          {"zoom", "[0, 0, 1e308, 1]", "bookmarks[0].zoom[2]"},
          {"zoom", "[0, 0, 1]", "bookmarks[0].zoom"},
          {"pick", "[12, -1]", "bookmarks[0].pick[1] is -1"},
          {"pick", "[-5, 0]", "bookmarks[0].pick[0] is -5"},
          {"pick", "[12, 13]", "bookmarks[0].pick[1] is 13, wanted a whole number from 0 to 12"},
          {"lane", "-1", "bookmarks[0].lane"},
          {"row", "1e9", "bookmarks[0].row"},
          {"head", "4294967296", "bookmarks[0].head"},
          {"name", "7", "bookmarks[0].name is 7, wanted a text"},
          {"difference", "1", "bookmarks[0].difference"}}) {
        const std::string message = refusal(key, value);
        EXPECT_NE(message.find(place), std::string::npos) << message;
        EXPECT_NE(message.find(file.string()), std::string::npos) << message;
    }
    std::ofstream(file) << "{\"notes\": \"x\"}";
    EXPECT_THROW((void)load_annotations(file), Error);
    std::filesystem::remove(file);
    ASSERT_EQ(::mkfifo(file.c_str(), 0600), 0);  // an open of a pipe would block
    EXPECT_THROW((void)load_annotations(file), Error);
    std::filesystem::remove(file);
}

TEST_F(Instrument, SavedTraceTakesItsNotesAlong) {
    run_action(app, "note kept");
    run_action(app, "file.save " + (folder / "copy.keyhole").string());
    if (app.jobs.export_job.running()) {  // in the background, one file at a time
        EXPECT_THROW(run_action(app, "file.save " + (folder / "other.keyhole").string()), Error);
    }
    wait_for_files();
    EXPECT_EQ(app.notice.text, "saved " + (folder / "copy.keyhole").string());
    EXPECT_EQ(load_annotations(folder / "copy.notes.json").notes, "kept");
    EXPECT_EQ(app.recent.paths.front(), (folder / "copy.keyhole").string());
    run_action(app, "file.save " + (folder / "copy.keyhole/in-a-file.keyhole").string());
    wait_for_files();
    EXPECT_TRUE(app.notice.is_fault) << app.notice.text;
    EXPECT_EQ(app.recent.paths.front(), (folder / "copy.keyhole").string());
    app.annotations = {};
    run_action(app, "recent 1");
    wait_for_files();
    EXPECT_EQ(app.annotations.notes, "kept");
    EXPECT_THROW(run_action(app, "recent 9"), Error);
    EXPECT_THROW(run_action(app, "open " + (folder / "nothing.odt").string()), Error);
}

TEST_F(Instrument, RangesFitTheCellsAndColoursChange) {
    run_action(app, "range.fit");
    const RangeChoice& range = app.view.attention_range;
    EXPECT_FALSE(range.automatic);
    int inside = 0, n = 0;
    for (const float v : app.maps.lane.focus().pyramid().front().values)
        if (v > 0) ++n, inside += v >= range.low && v <= range.high ? 1 : 0;
    EXPECT_NEAR(double(inside) / n, 0.99, 0.01);
    run_action(app, "colors");
    EXPECT_EQ(app.view.colors, Colormap::cividis);
    EXPECT_EQ(color_scale(app.view, 1).map, Colormap::cividis);
    run_action(app, "colors gray");
    EXPECT_EQ(app.view.colors, Colormap::gray);
    EXPECT_THROW(run_action(app, "colors rdbu"), Error);
    run_action(app, "range.clips on");
    EXPECT_TRUE(app.view.marks_clips);
    EXPECT_TRUE(color_scale(app.view, 1).marks_clips);
    run_action(app, "range.nan");
    EXPECT_FALSE(app.view.marks_nan);
    EXPECT_FALSE(difference_scale(app.view, 1, Background::dark).marks_nan);
}

TEST(RangeHistogram, CountsEveryValueOnce) {
    Plane plane(4, 2, NAN);
    plane.values = {0.001f, 0.01f, 0.1f, 1, NAN, -1, 2, 1e-5f};
    const ColorScale scale{.logarithmic = true, .low = 1e-4f, .high = 1};
    const RangeHistogram counts = histogram_of(plane, scale, 4);
    EXPECT_EQ(counts.n(), 6);  // neither NaN nor the mark of hidden cells
    EXPECT_EQ(counts.above, 1);
    EXPECT_EQ(counts.below, 1);
    EXPECT_EQ(counts.bins, (std::vector<int>{0, 1, 1, 2}));
    const ColorScale signs{.map = Colormap::rdbu, .diverging = true, .low = 0, .high = 1};
    const RangeHistogram both = histogram_of(plane, signs, 4);
    EXPECT_EQ(both.n(), 7);
    EXPECT_EQ(both.bins.front(), 1);  // -1
    EXPECT_EQ(fitted_range(Plane(2, 2, NAN), false, 0.01), std::nullopt);
    const auto fitted = fitted_range(plane, true, 0.0);
    EXPECT_EQ(fitted, (std::pair(1e-5f, 2.0f)));
}

TEST(Settings, AreKeptBetweenStarts) {
    const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                       ("keyhole-settings-" + std::to_string(::getpid())) / "window.json";
    ViewState view, read;
    view.interface_scale = 1.5f;
    view.arrangement = Arrangement::compare;
    view.colors = Colormap::cividis;
    view.attention_range.logarithmic = false;
    view.left_width = 333;
    RecentFiles recent, back;
    for (int i = 0; i < 12; ++i) recent.add("/tmp/" + std::to_string(i));
    recent.add("/tmp/7");
    EXPECT_EQ(recent.paths.size(), RecentFiles::kMost);
    EXPECT_EQ(recent.paths.front(), "/tmp/7");
    EXPECT_EQ(recent.paths[1], "/tmp/11");
    for (int i = 0; i < 10; ++i) recent.add_model("/models/" + std::to_string(i));
    EXPECT_EQ(recent.models.size(), RecentFiles::kMost);
    EXPECT_EQ(recent.models.front(), "/models/9");
    EXPECT_EQ(recent.paths.front(), "/tmp/7");
    for (const char* name : {"cache", "sinks", "cache"}) recent.add_lesson(name);
    EXPECT_EQ(recent.lessons, (std::vector<std::string>{"cache", "sinks"}));
    ASSERT_TRUE(save_settings(file, view, recent));
    load_settings(file, read, back);
    EXPECT_EQ(read.interface_scale, 1.5f);
    EXPECT_EQ(read.arrangement, Arrangement::compare);
    EXPECT_EQ(read.colors, Colormap::cividis);
    EXPECT_FALSE(read.attention_range.logarithmic);
    EXPECT_EQ(read.left_width, 333);
    EXPECT_EQ(back, recent);
    // Unknown or invalid settings change nothing, and the message names the place.
    for (const auto& [text, place] :
         {std::pair(R"({"interface_scale": "large")", "no JSON at line 1"),
          {R"({"left_width": 5, "interface_scale": "large"})", "interface_scale is \"large\""},
          {R"({"left_width": 1e308})", "left_width is 1e+308"},
          {R"({"left_width": -1})", "left_width is -1"},
          {R"({"recent": ["a", 3]})", "recent[1] is 3"},
          {R"({"recent_models": [3]})", "recent_models[0] is 3"},
          {R"({"finished_lessons": [3]})", "finished_lessons[0] is 3"},
          {R"({"hatch": 1})", "hatch is 1"},
          {R"([])", "an object"}}) {
        std::ofstream(file) << text;
        ViewState other;
        RecentFiles none;
        try {
            load_settings(file, other, none);
            ADD_FAILURE() << text;
        } catch (const Error& error) {
            const std::string message = error.what();
            EXPECT_NE(message.find(file.string()), std::string::npos) << message;
            EXPECT_NE(message.find(place), std::string::npos) << message;
        }
        EXPECT_EQ(other.interface_scale, 1);
        EXPECT_EQ(other.left_width, 0);
        EXPECT_TRUE(none.paths.empty());
    }
    EXPECT_FALSE(save_settings("/proc/nowhere/window.json", view, recent));
    std::filesystem::remove_all(file.parent_path());
}

/// A window that is killed has saved what was changed some seconds before.
TEST(Settings, AreSavedWhileTheWindowIsOpen) {
    const std::filesystem::path file = std::filesystem::temp_directory_path() /
                                       ("keyhole-kept-" + std::to_string(::getpid())) / "window.json";
    using namespace std::chrono_literals;
    const SettingsFile::Time start{};
    SettingsFile settings(file);
    ViewState view, read;
    RecentFiles recent, back;
    settings.update(view, recent, start);
    settings.update(view, recent, start + 10s);
    EXPECT_FALSE(std::filesystem::exists(file)) << "nothing changed";
    view.interface_scale = 1.5f;
    recent.add_lesson("cache");
    settings.update(view, recent, start + 11s);
    EXPECT_TRUE(settings.waits());
    EXPECT_FALSE(std::filesystem::exists(file));
    settings.update(view, recent, start + 15s);
    EXPECT_FALSE(settings.waits());
    load_settings(file, read, back);
    EXPECT_EQ(read.interface_scale, 1.5f);
    EXPECT_EQ(back, recent);
    std::filesystem::remove_all(file.parent_path());
}

TEST(CommandLine, SaysWhatWasDone) {
    EXPECT_EQ(shell_word("h2o:budget=64,alpha=0.5"), "h2o:budget=64,alpha=0.5");
    EXPECT_EQ(shell_word("it's (so)"), "'it'\\''s (so)'");
    EXPECT_EQ(shell_word(""), "''");
    RunSpec run;
    run.prompt = "What is\nit?";
    run.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=9")};
    run.follow = true;
    run.commands = {{12, parse_command("evict 1 3 L0")}, {14, parse_command("say \"it's\"")}};
    EXPECT_EQ(decode_command("/m", run, 20, "mask", "out", "--layers 3"),
              "keyhole decode --model /m --prompt 'What is\nit?' --lane full --lane h2o:budget=9 --tokens 20 "
              "--seed 1 "
              "--follow --export mask --out out --layers 3 --script <(printf '%s\\n' '12 evict 1 3 L0' "
              "'14 say \"it'\\''s\"')");
    // Another precision may keep other tokens.
    BackendOptions backend;
    EXPECT_EQ(decode_command("/m", run, 20, "mask", "out", "", backend).find("--precision"),
              std::string::npos);
    backend.precision = Precision::weights;
    EXPECT_NE(decode_command("/m", run, 20, "mask", "out", "", backend).find(" --precision weights "),
              std::string::npos);
    backend.precision = Precision::floats;
    EXPECT_NE(decode_command("/m", run, 20, "mask", "out", "", backend).find(" --precision float "),
              std::string::npos);
}

TEST_F(Instrument, CopiesTheCommandOfTheView) {
    run_action(app, "goto 2 1");
    run_action(app, "file.copy");
    EXPECT_EQ(app.requests.clipboard_out,
              "keyhole replay " + (folder / "run.keyhole").string() +
                  " --export view --out keyhole-out --layers 2 --heads 1 --rows all");
    run_action(app, "file.copy frames");
    EXPECT_NE(app.requests.clipboard_out.find("--export frames"), std::string::npos);
    run_action(app, "mode.mask");
    run_action(app, "file.copy gif-view");
    EXPECT_NE(app.requests.clipboard_out.find("--export gif-mask --out keyhole-out --layers 2 --heads 1"),
              std::string::npos)
        << app.requests.clipboard_out;
    EXPECT_THROW(run_action(app, "file.copy everything"), Error);
    run_action(app, "file.gif-view " + (folder / "out").string());  // from the trace
    wait_for_files();
    EXPECT_TRUE(std::filesystem::exists(folder / "out/lane0/mask_L2_G1.gif"));
    EXPECT_EQ(app.jobs.export_job.request.list, ExportRequest().list);  // the dialog's choice is unchanged
}

TEST_F(Instrument, PicturesOfDifferencesAreFiles) {
    app.view.lane = 1;
    run_action(app, "diff on");
    run_action(app, "mode.mask");
    app.update_maps(1e6);
    run_action(app, "file.picture " + (folder / "difference.png").string());
    EXPECT_GT(std::filesystem::file_size(folder / "difference.png"), 3000u);
}

TEST_F(Instrument, EveryViewIsAFile) {
    const auto text_of = [&](const std::string& name) {
        std::ostringstream text;
        text << std::ifstream(folder / name).rdbuf();
        return text.str();
    };
    app.view.lane = 1;
    app.view.pick_cell({60, 12}, false);
    for (const char* what : {"scores", "kl", "agreement", "watched"}) {
        if (what == std::string("watched"))
            run_action(app, "watch 12 15");
        else
            run_action(app, std::string("curves ") + what);
        const std::string file = (folder / (std::string(what))).string();
        run_action(app, "file.curves " + file + ".svg");
        run_action(app, "file.curves " + file + ".csv");
        EXPECT_NE(text_of(std::string(what) + ".svg").find("</svg>"), std::string::npos) << what;
        const std::string table = text_of(std::string(what) + ".csv");
        EXPECT_EQ(std::count(table.begin(), table.end(), '\n'),
                  static_cast<std::ptrdiff_t>(app.run.history.steps().size() + 1))
            << what;
    }
    // The numbers are the run's: KL of lane 1 in the last row is in the column behind that of lane 0.
    const std::string table = text_of("kl.csv");
    const std::string last = table.substr(table.rfind('\n', table.size() - 2) + 1);
    EXPECT_TRUE(last.starts_with(fmt::format("{},0,{:.9g},", app.run.last_row(),
                                             double(*app.run.history.steps().back()->lanes[1].kl))))
        << last;

    run_action(app, "file.atlas " + (folder / "atlas.png").string());
    wait_for_files();
    EXPECT_GT(std::filesystem::file_size(folder / "atlas.png"), 5000u);
    run_action(app, "file.overlap " + (folder / "overlap.csv").string());
    const std::string overlap = text_of("overlap.csv");
    EXPECT_EQ(std::count(overlap.begin(), overlap.end(), '\n'), 17);
    EXPECT_NE(overlap.find("\n0,0,16,0,"), std::string::npos)
        << overlap;  // lane 0 holds everything that lane 1 holds
    run_action(app, "watch.clear");
    run_action(app, "curves scores");
    run_action(app, "pick.clear");
    EXPECT_THROW(run_action(app, "file.curves nothing.svg"), Error);
}

TEST_F(Instrument, FramesOfTheMaskAreOfOneSizeAndShowTheRow) {
    const std::vector<int> heads = {0, 5, 15};
    const Image before = mask_frame(app.run.history, 1, heads, 45, 69, {}),
                after = mask_frame(app.run.history, 1, heads, 69, 69, {});
    EXPECT_EQ(before.width(), after.width());
    EXPECT_EQ(before.height(), after.height());
    const auto count = [&](const Image& image, Rgb8 color) {
        int n = 0;
        for (int y = 0; y < image.height(); ++y)
            for (int x = 0; x < image.width(); ++x) n += image.at(x, y) == color ? 1 : 0;
        return n;
    };
    // Both rows keep 16 tokens per head. The later row shows more hatched cells, since more tokens exist.
    EXPECT_EQ(count(before, kKeptColor), count(after, kKeptColor));
    EXPECT_GT(count(after, kHatchColor), count(before, kHatchColor));
    EXPECT_GT(count(before, kLastSeenColor), 0);
}

}  // namespace
}  // namespace keyhole::test_instrument
