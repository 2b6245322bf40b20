// Files of what views show: their widths, their extents, their captions; and the --export words that make the
// same files.
#include "app/actions/action_table.h"
#include "app/actions/export_words.h"
#include "app/view/focus_picture.h"
#include "app/view/view_export.h"
#include "engine/analysis/compare.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/export/captions.h"
#include "tests/app/live_run.h"
#include "tests/reference/synthetic_run.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>
#include <stb/stb_image.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

namespace keyhole::test_view_files {
namespace {

class ViewFiles : public ::testing::Test {
  protected:
    ViewFiles() : app({}, wakes.callback()) {
        folder = std::filesystem::temp_directory_path() /
                 ("keyhole-views-" + std::to_string(::getpid()) + "-" +
                  ::testing::UnitTest::GetInstance()->current_test_info()->name());
        std::filesystem::create_directories(folder);
        app.show_run(opened_run(testing::synthetic_run({.n_kv_heads = 2, .budgets = {0, 16, 24}}),
                                folder / "run.keyhole"));
        app.refresh();
        app.update_maps(1e6);
    }
    ~ViewFiles() override { std::filesystem::remove_all(folder); }
    void wait_for_files() {
        ASSERT_TRUE(wakes.wait_until([&] { return !app.jobs.export_job.running(); }));
        app.refresh();
    }
    std::string path(const std::string& name) const { return (folder / name).string(); }
    std::string bytes(const std::filesystem::path& file) const {
        std::ostringstream text;
        text << std::ifstream(folder / file, std::ios::binary).rdbuf();
        return text.str();
    }
    /// Returns the width and height of a picture.
    std::pair<int, int> size_of(const std::string& name) const {
        int width = 0, height = 0, channels = 0;
        EXPECT_TRUE(stbi_info(path(name).c_str(), &width, &height, &channels)) << name;
        return {width, height};
    }
    /// Returns the refusal's one sentence.
    std::string refusal(const std::string& command) {
        try {
            run_action(app, command);
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }
    /// Does what a copied `keyhole replay` command does for views. Returns the names of the files.
    std::vector<std::string> views_of(std::string command) const {
        const auto option = [&](const std::string& name) {
            const std::size_t at = command.find(" " + name + " ");
            if (at == std::string::npos) return std::string();
            const std::size_t begin = at + name.size() + 2;
            return command.substr(begin, std::min(command.find(' ', begin), command.size()) - begin);
        };
        const auto number = [&](const std::string& name, int otherwise) {
            return option(name).empty() ? otherwise : std::stoi(option(name));
        };
        ViewExport how{folder / "out", {}, {}, number("--focus", 0), number("--row", -1), option("--look")};
        if (!option("--layers").empty()) how.layers = {number("--layers", 0)};
        if (!option("--heads").empty()) how.heads = {number("--heads", 0)};
        std::string list = option("--export");
        const std::vector<ViewWord> words = take_view_words(list);
        EXPECT_EQ(list, "") << command;
        how.answers = answers_in_record(app.run.history);
        mark_answers(how.answers, option("--right"));
        how.watch = option("--watch");
        return write_views(app.run.history, words, how, app.run.stride, app.run.dense_from);
    }
    reference::Wakes wakes;
    AppState app;
    std::filesystem::path folder;
};

TEST_F(ViewFiles, PicturesAreAsWideAsAsked) {
    for (const int width : {400, 1000, 3000}) {
        run_action(app, "file.picture " + path("a b.png") + " " + std::to_string(width));
        const auto [w, h] = size_of("a b.png");
        EXPECT_EQ(w, width);
        EXPECT_GT(h, width * 3 / 4);  // a square matrix with text
        EXPECT_LT(h, width * 5 / 3);
    }
    run_action(app, "file.picture " + path("usual.png"));
    EXPECT_GT(size_of("usual.png").first, 720);
    for (const char* width : {"10", "99999"})
        EXPECT_NE(refusal("file.picture " + path("x.png") + " " + width).find("320 to 12000"),
                  std::string::npos);
    EXPECT_FALSE(std::filesystem::exists(folder / "x.png"));
}

TEST_F(ViewFiles, TextGrowsWithThePictureAndCellsFillIt) {
    app.view.mode = HeatMode::mask;
    const int n = app.view.row + 1;
    for (const int width : {600, 1900}) {
        const Image image = focus_picture(app.run.history, 1, app.view, color_scale(app.view, 1),
                                          PictureOptions{width, {}, 1, 1, 0})
                                .image();
        ASSERT_EQ(image.width(), width);
        // The diagonal is kept: its colour reaches from the plot's left edge to its right edge.
        int first = width, last = -1, top = image.height(), bottom = -1;
        const int below_legend = static_cast<int>(88 * std::max(width / 1100.0, 0.7));
        for (int y = below_legend; y < image.height(); ++y)
            for (int x = 0; x < width; ++x)
                if (image.at(x, y) == kKeptColor) {
                    first = std::min(first, x);
                    last = std::max(last, x);
                    top = std::min(top, y);
                    bottom = std::max(bottom, y);
                }
        EXPECT_NEAR(width - last, 24 * std::max(width / 1100.0, 0.7), 3 + width / n);
        EXPECT_NEAR(last - first, bottom - top, 3) << "cells are square";
        EXPECT_GT(last - first, width * 6 / 10);
    }
}

TEST_F(ViewFiles, ShownIsWhatTheZoomShows) {
    HeatView view;
    view.left = 10.5;
    view.top = 20;
    view.cell_width = view.cell_height = 10;
    EXPECT_EQ(shown_cells(view, {200, 150}, 69), (CellRect{20, 34, 10, 30}));
    EXPECT_EQ(shown_cells(view, {200, 150}, 25), (CellRect{20, 25, 10, 25}));
    EXPECT_EQ(shown_cells(view, {0, 0}, 69), (CellRect{0, 69, 0, 69}));
    view.top = 500;
    EXPECT_EQ(shown_cells(view, {200, 150}, 69), (CellRect{0, 69, 0, 69}));  // nothing is shown

    // The part has the same colours as those cells of the whole.
    app.view.mode = HeatMode::attention;
    const ColorScale scale = color_scale(app.view, 1);
    const CellRect part{40, 49, 30, 49};
    const Image image =
        focus_picture(app.run.history, 0, app.view, scale, PictureOptions{0, part, 1, 1, 0}).image();
    std::vector<float> row(50);
    ASSERT_TRUE(picture_values(app.run.history, 0, 45, 0, 0, HeatMode::attention, row));
    int seen = 0;
    for (int y = 0; y < image.height(); ++y)
        for (int x = 0; x < image.width(); ++x) seen += image.at(x, y) == color_of(scale, row[33]) ? 1 : 0;
    EXPECT_GE(seen, 12 * 12) << "a cell of 12 pixels a side";
    app.view.heat = {30, 40, 20, 20, false};
    app.maps.canvas = {400, 200};
    run_action(app, "file.picture " + path("shown.png") + " 900 shown");
    const auto [w, h] = size_of("shown.png");
    EXPECT_EQ(w, 900);
    EXPECT_LT(h, 750) << "twice as many columns as rows";
    EXPECT_GT(h, 400);
}

TEST_F(ViewFiles, OtherEndingsAreRefusedWithThoseThatArePossible) {
    run_action(app, "curves kl");
    const auto expect = [&](const std::string& command, const std::string& file, const std::string& words) {
        EXPECT_NE(refusal(command + " " + path(file)).find(words), std::string::npos) << command;
        EXPECT_FALSE(std::filesystem::exists(folder / file));
    };
    expect("file.curves", "x.jpg", ".svg or .png or .pdf or .csv");
    expect("file.overlap", "x.png", ".csv");
    for (const char* command : {"file.atlas", "file.picture", "file.answers"})
        expect(command, "x.jpg", ".png or .svg or .pdf");
    run_action(app, "file.curves " + path("kl.png"));
    EXPECT_GT(size_of("kl.png").first, 500);
    EXPECT_EQ(bytes("kl.png").substr(1, 3), "PNG");
}

TEST_F(ViewFiles, AnOpenedTraceGivesWhatItHolds) {
    run_action(app, "file.export " + path("data") + " run,mask,scores");
    wait_for_files();
    EXPECT_NE(app.jobs.export_job.result().find("half precision"), std::string::npos)
        << app.jobs.export_job.result();
    for (const char* file : {"run.json", "lane1/evicted_at.npy", "lane1/scores.npy"})
        EXPECT_TRUE(std::filesystem::exists(folder / "data" / file)) << file;
    run_action(app, "file.export " + path("data") + " logits");
    wait_for_files();
    EXPECT_TRUE(app.jobs.export_job.failed());
    EXPECT_NE(app.jobs.export_job.result().find("records hold no logits"), std::string::npos);
}

TEST_F(ViewFiles, TheCopiedCommandMakesTheSameFile) {
    app.view.lane = 1;
    run_action(app, "goto 2 3 61");
    app.view.colors = Colormap::cividis;
    app.view.marks_clips = true;
    for (const char* mode : {"mode.attention", "mode.mask", "mode.score"})
        for (const bool differs : {false, true}) {
            run_action(app, mode);
            run_action(app, differs ? "diff on" : "diff off");
            app.update_maps(1e6);
            run_action(app, "file.picture " + path("window.png"));
            run_action(app, "file.copy");
            const auto files = views_of(app.requests.clipboard_out);
            ASSERT_EQ(files.size(), 1u) << app.requests.clipboard_out;
            EXPECT_EQ(files[0].starts_with("difference"), differs) << files[0];
            EXPECT_TRUE(bytes("window.png") == bytes("out/" + files[0])) << app.requests.clipboard_out;
        }
    run_action(app, "diff off");
    app.view.arrangement = Arrangement::compare;
    for (const char* mode : {"mode.attention", "mode.mask", "mode.score"}) {
        run_action(app, mode);
        app.update_maps(1e6);
        run_action(app, "file.picture " + path("window.png"));
        run_action(app, "file.copy");
        const auto files = views_of(app.requests.clipboard_out);
        ASSERT_EQ(files.size(), 1u) << app.requests.clipboard_out;
        EXPECT_TRUE(files[0].starts_with("lanes")) << files[0];
        EXPECT_TRUE(bytes("window.png") == bytes("out/" + files[0])) << app.requests.clipboard_out;
        run_action(app, "file.picture " + path("head.png") + " head");
        EXPECT_FALSE(bytes("window.png") == bytes("head.png"));
    }
    run_action(app, "compare.all on");
    app.update_maps(1e6);
    run_action(app, "file.picture " + path("window.png"));
    app.view.arrangement = Arrangement::explore;
    run_action(app, "file.picture " + path("lanes.png") + " lanes");
    EXPECT_TRUE(bytes("window.png") == bytes("lanes.png")) << "all lanes";
    const auto same = [&](const std::string& what, const std::string& save, const std::string& ending) {
        run_action(app, save + " " + path("window" + ending));
        wait_for_files();
        run_action(app, "file.copy " + what);
        std::vector<std::string> files = views_of(app.requests.clipboard_out);
        std::erase_if(files, [&](const std::string& name) { return !name.ends_with(ending); });
        ASSERT_EQ(files.size(), 1u) << app.requests.clipboard_out;
        EXPECT_TRUE(bytes("window" + ending) == bytes("out/" + files[0])) << app.requests.clipboard_out;
        EXPECT_GT(bytes("window" + ending).size(), 50u);
    };
    same("answers", "file.answers", ".png");
    same("overlap", "file.overlap", ".csv");
    same("atlas", "file.atlas", ".png");
    run_action(app, "curves agreement");
    same("curves", "file.curves", ".svg");
    same("curves", "file.curves", ".csv");
    run_action(app, "watch 12 15");
    same("curves", "file.curves", ".svg");
    run_action(app, "file.picture " + path("window.png"));
    run_action(app, "file.copy");
    EXPECT_NE(app.requests.clipboard_out.find(" --watch 12..15"), std::string::npos);
    EXPECT_TRUE(bytes("window.png") == bytes("out/" + views_of(app.requests.clipboard_out).at(0)));
    run_action(app, "pick 60 12");
    run_action(app, "curves scores");
    same("curves", "file.curves", ".svg");
    run_action(app, "pick.clear");
    EXPECT_NE(refusal("file.copy curves").find("no tokens are picked"), std::string::npos);
}

TEST_F(ViewFiles, APictureOfTheStoryHasItsQuestionAnswersAndMaps) {
    app.view.arrangement = Arrangement::story;
    run_action(app, "watch 12 15");
    for (const char* mode : {"mode.mask", "mode.score", "mode.attention"}) {
        run_action(app, mode);
        app.update_maps(1e6);
        run_action(app, "file.picture " + path("window.svg"));
        run_action(app, "file.copy");
        const std::string& command = app.requests.clipboard_out;
        EXPECT_NE(command.find("--export story"), std::string::npos) << command;
    }
    const std::string svg = bytes("window.svg");
    for (const std::string& words :
         {escape_xml(last_sentence(app.run.history.run().prompt)), std::string("0 Full cache"),
          std::string("keeps"), std::string("Rows: the words that a lane chooses"), std::string("evicted")})
        EXPECT_NE(svg.find(words), std::string::npos) << words;
    std::size_t n = 0;  // the maps of the lanes
    for (std::size_t at = 0; (at = svg.find("<image", at)) != std::string::npos; ++at) ++n;
    EXPECT_GE(n, 2u);
    EXPECT_NE(refusal("file.picture " + path("x.png") + " story 99").find("320 to 12000"), std::string::npos);
}

TEST_F(ViewFiles, OfOneViewSayTheSameInEveryFormatAndAreDarkOnRequest) {
    const auto texts = [&](const std::string& file) {
        std::string all;
        const std::string svg = bytes(file);
        for (std::size_t at = 0; (at = svg.find("<text ", at)) != std::string::npos; ++at) {
            const std::size_t begin = svg.find('>', at) + 1;
            all += svg.substr(begin, svg.find('<', begin) - begin) + "\n";
        }
        return all;
    };
    run_action(app, "curves kl");
    for (const char* action : {"file.picture", "file.atlas", "file.curves", "file.answers"}) {
        const auto save = [&](const std::string& arguments) {
            run_action(app, std::string(action) + " " + path(arguments));
            wait_for_files();
        };
        save("a.svg 800");
        save("a b.svg 800 dark");
        EXPECT_EQ(texts("a.svg"), texts("a b.svg")) << action;
        EXPECT_GT(texts("a.svg").size(), 50u) << action;
        EXPECT_NE(bytes("a.svg").find("fill=\"#ffffff\""), std::string::npos) << action;
        EXPECT_EQ(bytes("a b.svg").find("fill=\"#ffffff\""), std::string::npos) << action;
        save("a.png 800 dark");
        EXPECT_EQ(size_of("a.png").first, 800) << action;
        if (has_pdf()) {
            save("a.pdf 800");
            EXPECT_TRUE(bytes("a.pdf").starts_with("%PDF")) << action;
        }
        EXPECT_NE(refusal(std::string(action) + " " + path("a.png") + " 99").find("320 to 12000"),
                  std::string::npos);
    }
    // The differences stand on a map of their background.
    app.view.lane = 1;
    run_action(app, "diff on");
    app.update_maps(1e6);
    run_action(app, "file.picture " + path("light.png"));
    run_action(app, "file.picture " + path("dark.png") + " dark");
    EXPECT_NE(bytes("light.png"), bytes("dark.png"));
    ViewExport how{folder / "out", {0}, {0}, 0, -1, "dark,cividis"};
    how.pictures.background = take_background(how.look);
    EXPECT_EQ(how.look, "cividis");
    EXPECT_EQ(how.pictures.background, Background::dark);
    how.pictures.formats = {PictureFormat::svg, PictureFormat::png};
    how.pictures.width = 640;
    std::string list = "view,difference:1-0,curve:kl,atlas,answers";
    how.answers = answers_in_record(app.run.history);
    mark_answers(how.answers, "");
    const auto files = write_views(app.run.history, take_view_words(list), how, 1, 0);
    EXPECT_EQ(std::count_if(files.begin(), files.end(), [](auto& name) { return name.ends_with(".svg"); }),
              5);
    EXPECT_EQ(std::count_if(files.begin(), files.end(), [](auto& name) { return name.ends_with(".png"); }),
              5);
    for (const std::string& file : files)
        if (file.ends_with(".png")) {
            EXPECT_EQ(size_of("out/" + file).first, 640) << file;
        }
    how.answers.clear();
    list = "answers";
    EXPECT_THROW(write_views(app.run.history, take_view_words(list), how, 1, 0), Error);
    how.pictures.width = 100;
    EXPECT_THROW(check_views({ViewWord{}}, how, view_limits(app.run.history)), Error);
}

/// Returns a word of a kind, with arguments if it takes any.
ViewWord word_of(const PictureKind& kind) {
    const std::map<PictureArguments, std::string> arguments = {
        {PictureArguments::none, ""},           {PictureArguments::two_lanes, ":1-2"},
        {PictureArguments::some_lanes, ":1+2"}, {PictureArguments::measure, ":kl"},
        {PictureArguments::positions, ":3+5"},  {PictureArguments::span, ":3..5"}};
    std::string list = std::string(kind.name) + arguments.at(kind.arguments);
    return take_view_words(list).at(0);
}

/// What a word writes without a window is what the window draws, and its words say which lane it shows.
TEST_F(ViewFiles, EveryPictureIsTheWindowsAndNumbersItsLane) {
    app.view.lane = 1;
    app.view.other = 2;
    app.view.layer = 0;
    app.view.head = 1;
    app.update_maps(1e6);
    app.view.watched = TokenSpan{12, 15};
    ViewExport how{folder / "out", {}, {}, 1, -1, ""};
    how.pictures.formats = {PictureFormat::svg};
    how.watch = "12..15";
    how.answers = answers_in_record(app.run.history);
    mark_answers(how.answers, "");
    const std::string name = shown_lane(app.run.history, 1).name;
    EXPECT_EQ(name.substr(0, 2), "1 ");
    for (const PictureKind& kind : picture_kinds()) {
        const ViewWord word = word_of(kind);
        EXPECT_EQ(word.kind, &kind);
        const bool has_head = kind.of_heads || kind.of_lanes;
        how.layers = has_head ? std::vector{0} : std::vector<int>{};
        how.heads = has_head ? std::vector{1} : std::vector<int>{};
        const auto files = write_views(app.run.history, {word}, how, app.run.stride, app.run.dense_from);
        const PictureSource source = picture_source(app, word);
        ASSERT_EQ(files.size(), (kind.draw != nullptr) + (kind.table != nullptr)) << kind.name;
        if (kind.table != nullptr) {
            EXPECT_EQ(bytes("out/" + files.back()), picture_table(word, source)) << kind.name;
        }
        if (kind.draw == nullptr) continue;
        const std::string svg = bytes("out/" + files.front());
        EXPECT_TRUE(svg == draw_picture(word, source).svg()) << kind.name;
        EXPECT_TRUE(svg.find("lane 1") != std::string::npos || svg.find(name) != std::string::npos)
            << kind.name << " does not say which lane it shows";
    }
}

/// A head has one title and subtitle, whether a view or an export's folder shows it.
TEST_F(ViewFiles, AHeadHasTheSameCaptionAsInAnExport) {
    const RunHistory& history = app.run.history;
    const auto words_of = [&](const std::string& list) {
        std::string one = list;
        ViewExport how{folder / "out", {1}, {0}, 1, -1, ""};
        how.pictures.formats = {PictureFormat::svg};
        return bytes("out/" + write_views(history, take_view_words(one), how, 1, 0).front());
    };
    const std::string subtitle = lane_subtitle(history, 1, 1, history.last_row());
    EXPECT_NE(subtitle.find(" · lane 1: "), std::string::npos) << subtitle;
    for (const auto& [list, mode] : {std::pair("view", HeatMode::attention),
                                     {"view-mask", HeatMode::mask},
                                     {"view-scores", HeatMode::score}}) {
        const std::string title = head_title(mode, history.layout(1), 1, 0);
        EXPECT_NE(words_of(list).find(title), std::string::npos) << title;
        EXPECT_NE(words_of(list).find(subtitle), std::string::npos) << subtitle;
    }
    EXPECT_EQ(head_title(HeatMode::attention, history.layout(1), 1, 0), "Attention of layer 1, head 0");
    EXPECT_EQ(head_title(HeatMode::mask, history.layout(1), 1, 0), "Kept tokens of layer 1, KV head 0");
}

TEST_F(ViewFiles, TheAtlasHasTheChosenHeadsAlone) {
    const auto atlas_of = [&](std::vector<int> layers, std::vector<int> heads) {
        std::string list = "atlas";
        ViewExport how{folder / "out", std::move(layers), std::move(heads), 0, -1, ""};
        how.pictures.formats = {PictureFormat::svg};
        return bytes("out/" + write_views(app.run.history, take_view_words(list), how, 1, 0).front());
    };
    const std::string all = atlas_of({}, {}), one = atlas_of({1}, {0});
    EXPECT_NE(all.find("all layers and heads"), std::string::npos);
    EXPECT_NE(one.find("the chosen layers and heads"), std::string::npos);
    EXPECT_LT(one.size(), all.size());
}

/// The columns of a table and the colour of a line are those of the lane, whichever lane is in focus. The
/// lane that others are compared with has a column and no line.
TEST_F(ViewFiles, ALaneLooksTheSameWhicheverIsInFocus) {
    const auto written = [&](int focus, const std::string& word) {
        std::string list = word;
        ViewExport how;
        how.folder = folder / std::to_string(focus);
        how.focus = focus;
        const auto files = write_views(app.run.history, take_view_words(list), how, 1, 0);
        std::string all;
        for (const std::string& file : files) all += bytes(how.folder / file);
        return all;
    };
    for (const char* word : {"curve:kl", "curve:entropy", "curve:jaccard", "watched:12..15"})
        EXPECT_TRUE(written(0, word) == written(2, word)) << word;
    EXPECT_FALSE(written(0, "tokens:3") == written(2, "tokens:3")) << "scores are those of the focused lane";
    const std::string kl = written(0, "curve:kl");
    EXPECT_NE(kl.find("row,\"0 "), std::string::npos) << kl;
    const auto names_of = [&](const std::string& svg) {
        return svg.find(">0 ") != std::string::npos ? "with lane 0" : "without lane 0";
    };
    EXPECT_STREQ(names_of(written(0, "curve:kl")), "without lane 0");
    EXPECT_STREQ(names_of(written(0, "curve:entropy")), "with lane 0");
    EXPECT_NE(written(0, "curve:jaccard").find(">Overlap of kept sets with lane 0<"), std::string::npos);
    EXPECT_EQ(written(0, "curve:jaccard").find(">1<"), std::string::npos) << "an axis is not labelled 1";
}

/// `--rows decode` begins with the first row of decoding, `--last-rows` ends with the shown one.
TEST_F(ViewFiles, RowsOfAPictureAreThoseAskedFor) {
    const int n_prompt = app.run.history.n_prompt(), last = app.run.last_row();
    const auto svg = [&](const std::string& word, bool all_rows, int last_rows, int row) {
        std::string list = word;
        ViewExport how;
        how.folder = folder / "rows";
        how.layers = how.heads = {0};
        how.all_rows = all_rows;
        how.last_rows = last_rows;
        how.row = row;
        how.pictures.formats = {PictureFormat::svg};
        return bytes("rows/" + write_views(app.run.history, take_view_words(list), how, 1, 0).front());
    };
    for (const char* word : {"view", "view-mask", "view-scores", "difference:0-1", "difference-mask:1-2"}) {
        EXPECT_EQ(svg(word, true, 0, -1).find("of rows 0 to"), std::string::npos) << word;
        EXPECT_NE(svg(word, false, 0, -1).find(fmt::format("Rows {} to {} of rows 0 to", n_prompt, last)),
                  std::string::npos)
            << word;
        EXPECT_NE(svg(word, true, 5, 61).find("Rows 57 to 61 of rows 0 to 61."), std::string::npos) << word;
        EXPECT_NE(svg(word, false, 500, -1).find(fmt::format("Rows {} to {}", n_prompt, last)),
                  std::string::npos)
            << word;
    }
    EXPECT_NE(svg("atlas", false, 0, -1).find(fmt::format("rows {} to {}", n_prompt, last)),
              std::string::npos);
    EXPECT_NE(svg("atlas", true, 0, -1).find(fmt::format("rows 0 to {}", last)), std::string::npos);
    const std::string mask = svg("difference-mask:0-1", true, 0, -1);
    for (const char* name : {">the first alone<", ">both<", ">the second alone<"})
        EXPECT_NE(mask.find(name), std::string::npos) << name;
}

/// What both lanes hold does not look as what is not there yet, on either background.
TEST_F(ViewFiles, ADifferenceOfMasksHasThreeColours) {
    app.view.mode = HeatMode::mask;
    for (const Background background : {Background::light, Background::dark}) {
        PictureOptions options;
        options.background = background;
        const ColorScale scale = difference_scale(app.view, 1, background);
        const Image image = difference_picture(app.run.history, 0, 1, app.view, scale, options).image();
        std::map<std::array<int, 3>, int> n_of;
        for (int y = 0; y < image.height(); ++y)
            for (int x = 0; x < image.width(); ++x)
                ++n_of[{image.at(x, y).r, image.at(x, y).g, image.at(x, y).b}];
        const Rgb8 future = cell_colors(background).future;
        const auto n = [&](Rgb8 color) { return n_of[{color.r, color.g, color.b}]; };
        EXPECT_GT(n(color_of(scale, 1)), 500);
        EXPECT_GT(n(future), 500);
        const Rgb8 both = background == Background::light ? Rgb8{150, 152, 160} : Rgb8{120, 124, 136};
        EXPECT_GT(n(both), 500);
        EXPECT_GT(std::abs(both.r - future.r), 60);
    }
}

/// Watched words are marked and named in heat maps of both kinds, and each picture says what its cells are.
TEST_F(ViewFiles, WatchedWordsAreMarkedAndCellsExplained) {
    const auto svg = [&](const std::string& word, const std::string& watch) {
        std::string list = word;
        ViewExport how;
        how.folder = folder / "watched";
        how.layers = how.heads = {0};
        how.watch = watch;
        how.pictures.formats = {PictureFormat::svg};
        return bytes("watched/" + write_views(app.run.history, take_view_words(list), how, 1, 0).front());
    };
    const std::string name = span_name(app.run.history, 0, {12, 15});
    for (const char* word : {"view", "view-mask", "view-scores", "difference:0-1", "difference-mask:0-1"}) {
        EXPECT_NE(svg(word, "12..15").find(">" + escape_xml(name) + "<"), std::string::npos) << word;
        EXPECT_EQ(svg(word, "").find("positions 12 to 15"), std::string::npos) << word;
        EXPECT_NE(svg(word, "").find(">query position<"), std::string::npos) << word;
    }
    EXPECT_NE(svg("view", "").find("Attention probability: each row is a query position."),
              std::string::npos);
    EXPECT_NE(svg("view-mask", "").find("A row attends to its own token"), std::string::npos);
    EXPECT_NE(svg("view-scores", "").find("Pooled score after each query position"), std::string::npos);
    EXPECT_NE(svg("curve:kl", "").find(">position of the newest token<"), std::string::npos);
}

/// The estimate counts the files that are written, and takes no fewer bytes.
TEST_F(ViewFiles, FilesAreCountedBefore) {
    int word_count = 0;
    for (const char* words :
         {"view,difference:0-1", "tokens:3+4,overlap:0-1", "curve:kl,watched:12..15,atlas", "view-mask"}) {
        std::string list = words;
        const std::vector<ViewWord> views = take_view_words(list);
        ViewExport how;
        how.folder = folder / "counted";
        how.layers = {1, 2};
        how.heads = {0};
        how.pictures.formats = {PictureFormat::png, PictureFormat::svg};
        how.pictures.print.bare = word_count++ % 2 == 0;
        const ViewsSize size = views_size(views, how, view_limits(app.run.history));
        std::int64_t n_bytes = 0;
        std::vector<double> done;
        const auto files =
            write_views(app.run.history, views, how, 1, 0, [&](double share) { done.push_back(share); });
        for (const std::string& file : files)
            n_bytes += static_cast<std::int64_t>(std::filesystem::file_size(folder / "counted" / file));
        EXPECT_EQ(size.n_files, std::ssize(files)) << words;
        EXPECT_GE(size.n_bytes, n_bytes) << words;
        EXPECT_EQ(done.size(), files.size()) << "a signal is seen after each file";
        EXPECT_EQ(done.back(), 1);
    }
    ViewLimits many = view_limits(app.run.history);
    many.n_layers = 12;
    std::string list = "tokens:3+4";
    const std::vector<ViewWord> tokens = take_view_words(list);
    ViewExport how;
    EXPECT_THROW(check_views_size(tokens, how, many), Error) << "96 files that nobody chose";
    EXPECT_NO_THROW(check_views_size({ViewWord{}}, how, many)) << "48 pictures";
    how.layers = {3};
    EXPECT_NO_THROW(check_views_size(tokens, how, many));
}

class LiveViews : public testing::LiveRun {};

TEST_F(LiveViews, AfterAChangeOfKvHeadsTheRowsWithoutARecordAreNamed) {
    app.view.lane = 1;
    EXPECT_EQ(recording_note(app.run.history, app.need_shown_lane(), 1, 0), "");
    run_action(app, "lane.set kv=gqa:2");
    settle();
    run_action(app, "step 2");
    settle();
    const int lane = app.need_shown_lane(), first = app.run.history.lanes()[to_index(lane)].first_row,
              begin = app.run.history.n_prompt() - 1;
    const std::string note = recording_note(app.run.history, lane, 1, 0);
    EXPECT_NE(note.find(fmt::format("steps {} to {} ran again without a record", begin, first - 1)),
              std::string::npos)
        << note;
    EXPECT_EQ(note.find("lane id"), std::string::npos);
    std::vector<float> row(to_index(first) + 1);
    for (int i = begin; i <= first; ++i)
        EXPECT_EQ(attention_values(app.run.history, lane, i, 0, 0, row), i == first) << i;
    EXPECT_EQ(recording_note(app.run.history, 0, 1, 0), "");
}

TEST_F(LiveViews, TheCommandOfALiveRunNamesItsViews) {
    app.view.lane = 1;
    app.view.mode = HeatMode::score;
    run_action(app, "diff on");
    run_action(app, "file.copy");
    for (const char* part :
         {"keyhole decode ", " --tokens 4 ", " --export difference-scores:1-0 ", " --layers 0 --heads 0"})
        EXPECT_NE(app.requests.clipboard_out.find(part), std::string::npos) << app.requests.clipboard_out;
    run_action(app, "diff off");
    run_action(app, "file.copy");
    for (const char* part : {" --export view-scores ", " --focus 1"})
        EXPECT_NE(app.requests.clipboard_out.find(part), std::string::npos) << app.requests.clipboard_out;
}

TEST(ViewWords, AreTakenOutOfAListAndWrittenAgain) {
    std::string list = "run,difference-mask:2-0,mask,watched:12..15,view,tokens:3+40,curve:kl,overlap:0-1";
    const std::vector<ViewWord> words = take_view_words(list);
    EXPECT_EQ(list, "run,mask");
    std::string again;
    for (const ViewWord& word : words) again += (again.empty() ? "" : ",") + format_view_word(word);
    EXPECT_EQ(again, "difference-mask:2-0,watched:12..15,view,tokens:3+40,curve:kl,overlap:0-1");
    EXPECT_EQ(take_view_words(again), words);
    for (const char* wrong : {"difference", "difference:1", "overlap:a-b", "view:1", "tokens:x", "curve"}) {
        std::string one = wrong;
        EXPECT_THROW(take_view_words(one), Error) << wrong;
    }
    ViewState view;
    EXPECT_EQ(format_look(view), "");
    view.colors = Colormap::cividis;
    view.attention_range = {false, false, true, 0.01f, 0.5f, 0.4f};
    ViewState read;
    parse_look(format_look(view), read);
    EXPECT_EQ(read.colors, view.colors);
    EXPECT_EQ(read.attention_range, view.attention_range);
    EXPECT_THROW(parse_look("brightly", read), Error);
    EXPECT_THROW(parse_look("gamma=0", read), Error);
    for (const char* range : {"0..inf", "0..1e-45", "nan..1", "1..1", "2..1", "-1..1", "0..1e39", "inf..inf"})
        EXPECT_THROW(parse_look(range, read), Error) << range;
}

TEST_F(ViewFiles, CaptionsNameTheReductionAndTheQuantity) {
    EXPECT_EQ(reduction_note(HeatMode::attention, false, 1), "");
    EXPECT_EQ(reduction_note(HeatMode::attention, false, 4), "each pixel the highest attention of 4×4 cells");
    EXPECT_EQ(reduction_note(HeatMode::mask, false, 4), "each pixel the kept share of 4×4 cells");
    EXPECT_EQ(reduction_note(HeatMode::score, false, 2), "each pixel the highest score of 2×2 cells");
    EXPECT_EQ(reduction_note(HeatMode::mask, true, 2), "each pixel the largest difference of 2×2 cells");
    EXPECT_EQ(atlas_note(HeatMode::mask, 4, 8, 4), "4 layers × 8 heads · kept share of 4×4 cells");
    EXPECT_EQ(atlas_note(HeatMode::score, 4, 8, 1), "attention, not scores");
    EXPECT_EQ(atlas_note(HeatMode::score, 4, 8, 16), "attention, not scores, maxima of 16×16");
    EXPECT_EQ(atlas_note(HeatMode::attention, 4, 8, 2), "4 layers × 8 heads · maxima of 2×2 cells");
    // Two KV heads per layer: number 5 over all layers is the second of layer 2.
    EXPECT_EQ(kv_head_text(app.run.history.layout(0), 5), "L2 KV head 1");
}

TEST_F(ViewFiles, BookmarksKeepZoomArrangementAndTheOtherLane) {
    app.view.lane = 1;
    app.view.other = 2;
    app.view.difference = true;
    app.view.arrangement = Arrangement::compare;
    app.view.heat = {12.5, 30, 9, 8, false};
    run_action(app, "bookmark");
    const ViewState before = app.view;
    run_action(app, "mode.mask");
    app.view.lane = app.view.other = 0;
    app.view.difference = false;
    app.view.arrangement = Arrangement::explore;
    app.view.heat = {};
    app.annotations = load_annotations(folder / "run.notes.json");
    run_action(app, "bookmark.go 1");
    EXPECT_EQ(app.view.lane, 1);
    EXPECT_EQ(app.view.other, 2);
    EXPECT_TRUE(app.view.difference);
    EXPECT_EQ(app.view.arrangement, Arrangement::compare);
    EXPECT_EQ(app.view.heat, before.heat);
    // A file of an older version has none of these.
    std::ofstream(folder / "old.notes.json")
        << R"({"notes": "", "bookmarks": [{"name": "a", "lane": 0, "layer": 1, "head": 2, "row": 45, "mode": "mask"}]})";
    const Annotations old = load_annotations(folder / "old.notes.json");
    ASSERT_EQ(old.bookmarks.size(), 1u);
    EXPECT_EQ(old.bookmarks[0].head, 2);
    EXPECT_FALSE(old.bookmarks[0].zoom);
}

}  // namespace
}  // namespace keyhole::test_view_files
