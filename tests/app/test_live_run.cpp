// Commands on a live run of the demo model, without a window. The engine thread's results arrive in records
// and status.
#include "app/actions/action_table.h"
#include "app/actions/steer.h"
#include "app/state/shown_answers.h"
#include "app/view/focus_picture.h"
#include "app/view/pictures.h"
#include "engine/analysis/doctor.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/npy.h"
#include "tests/app/live_run.h"
#include "tests/reference/temp_folder.h"
#include "tests/reference/tiny_model.h"
#include "tests/reference/wakes.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <string>

namespace keyhole::test_live_run {
namespace {

using testing::LiveRun;

/// A lane keeps its records when another one is removed, before the next step too.
TEST_F(LiveRun, RemovingALaneMovesNoRecords) {
    const auto run = [&](const char* action) {
        run_action(app, action);
        settle();
    };
    run("add tova:budget=9");
    run("step 3");
    const std::optional<int> tova = app.run.history_lane(2);
    ASSERT_TRUE(tova);
    run("remove 1");
    ASSERT_EQ(app.run.lane_editor.n_lanes(), 2);
    EXPECT_EQ(app.run.history_lane(1), tova);
    ASSERT_NE(app.record(1), nullptr);
    EXPECT_EQ(app.record(1)->info->spec, "tova:budget=9");
    EXPECT_EQ(app.run.history_lane(2), std::nullopt);
    run("add h2o:budget=9");
    EXPECT_EQ(app.run.history_lane(2), std::nullopt) << "it has no step yet";
    run("step");
    EXPECT_EQ(app.record(2)->info->spec, "h2o:budget=9");
    EXPECT_EQ(app.record(1)->info->spec, "tova:budget=9");
}

/// Returns the looks of the listed lanes.
std::vector<int> looks_of(const AppState& app) {
    std::vector<int> looks;
    for (const LaneOnShow& lane : app.shown().lanes) looks.push_back(lane.look);
    return looks;
}

TEST_F(LiveRun, ALaneKeepsItsLook) {
    using Looks = std::vector<int>;
    EXPECT_EQ(looks_of(app), (Looks{0, 1}));
    run_action(app, "add tova:budget=16");
    EXPECT_EQ(looks_of(app), (Looks{0, 1, 2})) << "before its first step";
    settle();
    run_action(app, "step 1");
    settle();
    run_action(app, "remove 1");
    settle();
    EXPECT_EQ(looks_of(app), (Looks{0, 2}));
    run_action(app, "step 1");
    settle();
    EXPECT_EQ(looks_of(app), (Looks{0, 2}));
    const std::vector<ShownLane> exported = shown_lanes(app.run.history);
    ASSERT_EQ(exported.size(), 2u);
    EXPECT_EQ(exported[1].look, 2) << "as in the window";
    run_action(app, "lane 1 tova:budget=16,kv=gqa:4");
    settle();
    EXPECT_EQ(looks_of(app), (Looks{0, 2})) << "with other shared heads it is another lane of the record";
    run_action(app, "step 1");
    settle();
    run_action(app, "add window:budget=8");
    settle();
    run_action(app, "step 1");
    settle();
    EXPECT_EQ(looks_of(app), (Looks{0, 2, 3}));
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(looks_of(app), (Looks{0, 2, 3})) << "also in the run that follows";
    EXPECT_EQ(app.run.status.run.looks, (Looks{0, 2, 3}));
}

TEST_F(LiveRun, ForcedTokensAndCandidatesAreConsumed) {
    const int before = app.run.last_row();
    run_action(app, "force 7,9");
    run_action(app, "step 2");
    settle();
    EXPECT_EQ(token_at(before + 1), 7);
    EXPECT_EQ(token_at(before + 2), 9);
    EXPECT_EQ(last_command(), "force 7,9");

    app.view.lane = 1;
    const int third = app.record(1)->top[2].id, row = app.run.last_row();
    run_action(app, "candidate 3");
    settle();
    EXPECT_EQ(app.run.last_row(), row + 1);
    EXPECT_EQ(token_at(row + 1), third);
    EXPECT_THROW(run_action(app, "candidate 99"), Error);

    // At an earlier row the run first rewinds there.
    run_action(app, "row " + std::to_string(before));
    const int second = app.record(1)->top[1].id;
    run_action(app, "candidate 2");
    settle();
    EXPECT_EQ(app.run.last_row(), before + 1);
    EXPECT_EQ(token_at(before + 1), second);
    EXPECT_EQ(app.run.status.other_branches.size(), 1u);
}

TEST_F(LiveRun, TurnsKeepTheCaches) {
    const int row = app.run.last_row();
    const auto stored = [&](int r) { return app.run.history.lane_record(r, 0)->use.stored_tokens; };
    const std::int64_t before = stored(row);
    run_action(app, "say \" Thank you.\"");
    settle();
    const int said = app.run.last_row() - row;
    EXPECT_GT(said, 0);
    EXPECT_EQ(stored(app.run.last_row()), before + said * app.run.history.run().layout.n_kv_heads());
    std::string text;
    for (int p = row + 1; p <= app.run.last_row(); ++p)
        text += app.run.history.run().token_bytes[to_index(token_at(p))];
    EXPECT_EQ(text, " Thank you.");

    run_action(app, "token.edit " + std::to_string(row) + " \" No\"");
    settle();
    EXPECT_EQ(app.run.history.run().token_bytes[to_index(token_at(row))].substr(0, 1), " ");
    EXPECT_EQ(last_command(), "say! \" No\"");
    EXPECT_THROW(run_action(app, "token.edit 2 nothing"), Error);  // of the prompt
}

// Pending tokens of a turn are not read before the words that replace a part of it.
TEST_F(LiveRun, EditsInsideATurn) {
    const int row = app.run.last_row();
    run_action(app, "say \" one two three four five six\"");
    settle();
    run_action(app, "token.edit " + std::to_string(row + 2) + " \" No\"");
    settle();
    EXPECT_EQ(app.run.history.run().token_bytes[to_index(token_at(row + 2))].substr(0, 1), " ");
    const auto token = token_at(row + 2);
    run_action(app, "say \" one two three four five six\"");
    settle();
    run_action(app, "token.edit " + std::to_string(row + 4) + " \" No\"");
    settle();
    EXPECT_EQ(token_at(row + 4), token);
    const int third = app.run.history.lane_record(row + 3, 0)->top[2].id;
    run_action(app, "row " + std::to_string(row + 3));
    run_action(app, "candidate 3");
    settle();
    EXPECT_EQ(token_at(row + 4), third);
}

TEST(Steer, WhatIsTypedIsMeantAsItStands) {
    const auto read = [](std::string_view typed) {
        return std::get<SayText>(parse_command("say " + quoted_as_typed(typed))).text;
    };
    EXPECT_EQ(read("\"Who are you?\" she asked."), "\"Who are you?\" she asked.");
    EXPECT_EQ(read(" the "), " the ");
    EXPECT_EQ(read("one\\ntwo\\tthree"), "one\ntwo\tthree");
    EXPECT_EQ(read("C:\\dir\\"), "C:\\dir\\");
}

TEST_F(LiveRun, AnswersWhatATokenBackWouldSay) {
    app.view.lane = 1;
    int gone = -1;
    for (int p = 0; p < app.run.history.n_prompt() && gone < 0; ++p)
        if (app.run.history.evicted_at(1, 0, p) >= 0) gone = p;
    ASSERT_GE(gone, 0);
    run_action(app, "pick " + std::to_string(app.run.last_row()) + " " + std::to_string(gone));
    run_action(app, "why.kept");
    settle();
    ASSERT_NE(app.run.status.counterfactual, nullptr) << app.notice.text;
    EXPECT_EQ(app.run.status.counterfactual->position, gone);
    EXPECT_EQ(app.run.status.counterfactual->row, app.run.last_row());
    EXPECT_FALSE(app.run.status.counterfactual->kv_heads.empty());
    EXPECT_TRUE(std::isfinite(app.run.status.counterfactual->kl));
    EXPECT_TRUE(app.run.status.run.commands.empty());  // a question is not logged
    EXPECT_EQ(app.dialog, Dialog::why);                // the page that shows the answer
    // A token that is held everywhere cannot be put back: the status line says so.
    run_action(app, "pick " + std::to_string(app.run.last_row()) + " " + std::to_string(app.run.last_row()));
    run_action(app, "why.kept");
    settle();
    EXPECT_NE(app.notice.text.find("held everywhere"), std::string::npos) << app.notice.text;
}

TEST_F(LiveRun, EveryFindingOfTheDoctorHoldsOnTheDemoModel) {
    run_action(app, "shadow on");
    run_action(app, "step 3");
    settle();
    for (const int lane : {0, 1})
        for (const auto& step : app.run.history.steps())
            for (const Finding& finding : examine(app.run.history, lane, step->row))
                EXPECT_NE(finding.state, Finding::State::broken)
                    << "lane " << lane << ", row " << step->row << ": " << finding.name << ": "
                    << finding.detail;
}

// Whatever a preset ranks by, what leaves ranks lowest.
TEST_F(LiveRun, TheDoctorKnowsByWhatEachPresetRanks) {
    for (const char* spec :
         {"random:budget=12", "knorm:budget=12", "snapkv:budget=12,window=4,recent=4,evict=always",
          "rkv:budget=12,window=4,recent=4,buffer=2", "keydiff:budget=12,every=1",
          "adakv:budget=12,window=4,recent=4,evict=always", "key:budget=12,choose=(s/(age+1))",
          "caote:budget=12", "lagkv:budget=12,every=1,window=3,sinks=1",
          "h2o:budget=12,spans=(fair a@0..5 b@6..)"}) {
        run_action(app, fmt::format("lane 1 {}", spec));
        settle();
        run_action(app, "step 2");
        settle();
        const int row = app.run.last_row(), lane = *app.run.history_lane(1);
        for (const Finding& finding : examine(app.run.history, lane, row)) {
            EXPECT_NE(finding.state, Finding::State::broken) << spec << ": " << finding.detail;
            const bool ranks_now =
                finding.name == "the lowest ranks leave" && !std::string_view(spec).starts_with("rkv");
            EXPECT_TRUE(!ranks_now || finding.state == Finding::State::good)
                << spec << ": " << finding.detail;
        }
    }
}

TEST_F(LiveRun, TheCopiedCommandNamesTheRun) {
    run_action(app, "evict 1 " + std::to_string(app.run.last_row()));
    settle();
    run_action(app, "file.copy run");
    for (const char* part : {"keyhole decode --model ", " --lane full --lane h2o:budget=12 ", " --tokens 4 ",
                             " --script <(printf "})
        EXPECT_NE(app.requests.clipboard_out.find(part), std::string::npos) << app.requests.clipboard_out;
    EXPECT_NE(app.requests.clipboard_out.find("evict 1 " + std::to_string(app.run.last_row())),
              std::string::npos);
}

/// Characters that the fonts cannot draw are shown escaped and copied unchanged.
TEST_F(LiveRun, TextThatCannotBeDrawnIsCopiedAsItIs) {
    run_action(app, "prompt The cat \U0001f600 sat on \u4e2d.");
    settle();
    (void)app.glyphs.learn(app.run.history);
    run_action(app, "step");  // a command decodes at least one token
    settle();
    run_action(app, "file.copy run");
    EXPECT_NE(app.requests.clipboard_out.find(" --prompt 'The cat \U0001f600 sat on \u4e2d.' "),
              std::string::npos)
        << app.requests.clipboard_out;
    EXPECT_EQ(app.glyphs.text(app.run.history.run().prompt), "The cat \\u{1F600} sat on \u4e2d.");
    std::string bytes, shown;
    for (const int id : app.run.history.run().prompt_tokens) {
        bytes += app.run.history.run().token_bytes[to_index(id)];
        shown += app.glyphs.token(app.run.history.run(), id);
    }
    EXPECT_NE(bytes.find("\U0001f600"), std::string::npos);
    EXPECT_NE(shown.find("<0xF0><0x9F><0x98><0x80>"), std::string::npos) << shown << ": its bytes are tokens";
}

TEST_F(LiveRun, APromptIsCancelledOnRequestAndBegunAgain) {
    const std::string words = app.run.setup.prompt;
    const int n_decoded = app.run.n_decoded();
    while (app.run.setup.prompt.size() < 3000) app.run.setup.prompt += " " + words;
    app.start();
    run_action(app, "run.stop");  // sent before the engine begins: the prompt must find the request
    settle();
    EXPECT_EQ(app.run.status.phase, EnginePhase::idle);
    EXPECT_NE(app.run.status.message.find("was stopped"), std::string::npos) << app.run.status.message;
    EXPECT_EQ(app.run.setup.prompt, words) << "the run before is back";
    EXPECT_EQ(app.run.history.run().prompt, words);
    run_action(app, "step 3");
    settle();
    EXPECT_EQ(app.run.n_decoded(), n_decoded + 3);
    app.start();
    settle();
    EXPECT_EQ(app.run.n_decoded(), 0);
}

/// Returns the mean over the heads that lost the token, from the rows that an export writes.
TEST_F(LiveRun, AShadowsAttentionIsThatOfTheExport) {
    run_action(app, "lane.focus 1");
    run_action(app, "lane.set shadow=on");
    settle();
    run_action(app, "step 4");
    settle();
    int gone = -1;
    for (int p = 4; p < app.run.history.n_prompt() && gone < 0; ++p)
        if (app.run.history.evicted_at(1, 0, p) >= 0) gone = p;
    ASSERT_GE(gone, 0);
    app.view.pick_cell({app.run.last_row(), gone}, false);
    run_action(app, "why.shadow");
    settle();
    const auto known = app.jobs.shadow_job.result();
    ASSERT_NE(known, nullptr) << app.notice.text;
    ASSERT_EQ(known->by_row.size(), to_index(app.run.last_row()) + 1);

    const reference::TempFolder folder("shadow");
    run_action(app, "file.export " + folder.path().string() + " shadow");
    settle();
    const NpyArray rows = read_npy(folder.path() / "lane1" / "shadow.npy");
    const std::int64_t n_layers = rows.shape[1], n_heads = rows.shape[2], n = rows.shape[3];
    int n_known = 0;
    for (std::int64_t y = 0; y < rows.shape[0]; ++y) {
        const int row = app.run.history.n_prompt() + static_cast<int>(y);
        double sum = 0;
        int count = 0;
        for (std::int64_t l = 0; l < n_layers; ++l)
            for (std::int64_t h = 0; h < n_heads; ++h) {
                const int g =
                    app.run.history.layout(1).kv_head_from_head(static_cast<int>(l), static_cast<int>(h));
                const std::int32_t went = app.run.history.evicted_at(1, g, gone);
                if (went < 0 || went >= row) continue;
                sum += double(rows.value(((y * n_layers + l) * n_heads + h) * n + gone));
                ++count;
            }
        const float own = known->by_row[to_index(row)];
        if (std::isnan(own)) continue;  // before the shadow started
        ++n_known;
        ASSERT_GT(count, 0) << row;
        EXPECT_NEAR(own, sum / count, 1e-6) << row;
        EXPECT_GT(own, 0) << row;
    }
    EXPECT_GE(n_known, 3);
}

TEST(LiveRunWithNan, IsWarnedAboutAndSeen) {
    const reference::TinyModel broken({});
    reference::put_nan(broken.folder(), "model.layers.1.self_attn.k_proj.weight");
    reference::Wakes changes;
    AppState app({}, changes.callback());
    app.run.setup.model_folder = broken.folder();
    app.run.setup.prompt = "it was a dark and stormy night";
    app.run.setup.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=8")};
    app.start();
    const auto settle = [&] {
        ASSERT_TRUE(changes.wait_until([&] {
            app.refresh();
            app.update_maps(1e6);
            return app.idle();
        }));
    };
    settle();
    EXPECT_NE(app.run.status.message.find("model.layers.1.self_attn.k_proj.weight"), std::string::npos)
        << app.run.status.message;
    run_action(app, "step 3");
    settle();
    for (const int lane : {0, 1})
        EXPECT_TRUE(std::isnan(app.record(lane)->entropy)) << lane;  // its card reports it
    // Layer 0 has valid values; the row of layer 1 contains NaN.
    for (const int layer : {0, 1}) {
        run_action(app, "goto " + std::to_string(layer) + " 0");
        app.update_maps(1e6);
        EXPECT_EQ(app.maps.lane.focus().has_not_finite(), layer == 1);
        EXPECT_TRUE(std::isfinite(app.maps.lane.focus().largest(true)) || layer == 1);
        for (const bool marked : {true, false}) {
            run_action(app, marked ? "range.nan on" : "range.nan off");
            const Image picture =
                focus_picture(app.run.history, 0, app.view, color_scale(app.view, 1)).image();
            int n = 0;
            for (int y = 0; y < picture.height(); ++y)
                for (int x = 0; x < picture.width(); ++x) n += picture.at(x, y) == kNanColor;
            EXPECT_EQ(n > 500, marked && layer == 1) << n;
        }
    }
    EXPECT_FALSE(healthy(examine(app.run.history, 0, app.run.last_row())));  // the doctor reports a fault
}

/// A folder that is there and holds no model.
const std::string kNoModel = (reference::source_folder() / "tests").string();

// A model that cannot be loaded leaves what is shown: the run, which goes on, or the trace.
TEST_F(LiveRun, ARefusedStartLeavesTheRun) {
    const auto model = app.run.setup.model_folder;
    const int last_row = app.run.last_row();
    run_action(app, "model " + kNoModel);
    EXPECT_THROW(run_action(app, "export.start"), Error) << "while the start is under way";
    settle();
    EXPECT_NE(app.notice.text.find(kNoModel), std::string::npos);
    EXPECT_TRUE(app.notice.is_fault);
    EXPECT_EQ(app.run.setup.model_folder, model);
    EXPECT_NO_THROW(app.run.need_recorded_run());
    run_action(app, "step");
    settle();
    EXPECT_EQ(app.run.last_row(), last_row + 1);
}

TEST_F(LiveRun, AModelThatIsNotFoundStartsNothing) {
    for (const char* name : {"/nowhere/x", "no-such-model", "org/none"})
        EXPECT_THROW(run_action(app, std::string("model ") + name), Error) << name;
    EXPECT_TRUE(app.run.has_taken_requests());
    EXPECT_NO_THROW(app.run.need_recorded_run());
}

TEST_F(LiveRun, ModelsOfRunsAreRecentModels) {
    const std::filesystem::path models = reference::source_folder() / "assets" / "models";
    EXPECT_EQ(app.recent.models, std::vector<std::string>{(models / "keyhole-base").string()});
    run_action(app, "model keyhole-mqa");
    settle();
    run_action(app, "model " + kNoModel);
    settle();
    EXPECT_EQ(app.recent.models, (std::vector<std::string>{(models / "keyhole-mqa").string(),
                                                           (models / "keyhole-base").string()}));
    EXPECT_TRUE(app.recent.paths.empty());
}

TEST_F(LiveRun, ARefusedStartLeavesTheTrace) {
    app.show_run(opened_run(app.run.history.steps(), "run.keyhole"));
    run_action(app, "model " + kNoModel);
    settle();
    EXPECT_FALSE(app.run.live());
    EXPECT_EQ(app.run.opened_file, "run.keyhole");
    EXPECT_NE(app.notice.text.find(kNoModel), std::string::npos);
    app.view.pick_cell({app.run.last_row(), 3}, false);
    EXPECT_THROW(run_action(app, "why.shadow"), Error);
}

// A refused prompt leaves the run on show as it was: with its prompt, its right answer and its marks.
TEST_F(LiveRun, ARefusedPromptLeavesPromptAndAnswerOfTheRun) {
    const std::string words = app.run.setup.prompt;
    run_action(app, "prompt.answer 4821");
    settle();
    const PromptGuide guide = app.run.setup.guide;
    std::string long_text = "cat";
    while (long_text.size() < 20000) long_text += " cat";
    run_action(app, "prompt " + long_text);
    run_action(app, "prompt.answer Paris");
    settle();
    EXPECT_NE(app.notice.text.find("shorten the prompt"), std::string::npos) << app.notice.text;
    EXPECT_EQ(app.run.history.run().prompt, words);
    EXPECT_EQ(app.run.setup.prompt, words);
    EXPECT_EQ(app.run.setup.guide, guide) << app.run.setup.guide.answer;
    EXPECT_EQ(right_answer(app), "4821");
    run_action(app, "run.restart");
    settle();
    EXPECT_EQ(app.notice.text.find("shorten the prompt"), std::string::npos) << app.notice.text;
    // A new right answer that needs no new run is the run's too.
    run_action(app, "prompt.answer 3333");
    settle();
    run_action(app, "prompt " + long_text);
    settle();
    EXPECT_EQ(right_answer(app), "3333");
}

// A lane that is changed while the first prompt is read keeps the change, also if the prompt is not read.
TEST(LiveRunThatNeverBegan, KeepsTheLanesForTheNextStart) {
    reference::Wakes wakes;
    AppState app({}, wakes.callback());
    const auto settle = [&] {
        ASSERT_TRUE(wakes.wait_until([&] {
            app.refresh();
            return app.run.idle();
        })) << app.run.status.message;
    };
    const auto expect_kept = [&](const std::string& why) {
        EXPECT_FALSE(app.run.has_steps());
        EXPECT_NE(app.run.status.message.find(why), std::string::npos) << app.run.status.message;
        EXPECT_EQ(app.notice.text.find("needs a running session"), std::string::npos) << app.notice.text;
        EXPECT_EQ(format_lane_spec(app.run.lane_editor.lanes().at(1)), "tova:budget=16");
    };
    app.run.setup.lanes = {parse_lane_spec("full"), parse_lane_spec("h2o:budget=12")};
    app.run.setup.model_folder = kNoModel;
    app.run.setup.prompt = "The cat sat";
    app.start();
    app.run.lane_editor.set(1, parse_lane_spec("tova:budget=16"));
    settle();
    expect_kept(kNoModel);

    app.run.setup.model_folder = reference::source_folder().string() + "/assets/models/keyhole-base";
    while (app.run.setup.prompt.size() < 2400) app.run.setup.prompt += " on the mat";
    app.start();
    run_action(app, "add window:budget=8");
    run_action(app, "run.stop");
    settle();
    expect_kept("was stopped");
    ASSERT_EQ(app.run.lane_editor.n_lanes(), 3);

    app.run.setup.prompt = "The cat sat on the mat";
    app.start();
    settle();
    ASSERT_TRUE(app.run.has_steps());
    const std::vector<LaneRecord>& lanes = app.run.history.steps().back()->lanes;
    ASSERT_EQ(lanes.size(), 3u);
    EXPECT_EQ(lanes[1].info->spec, "tova:budget=16");
    EXPECT_EQ(lanes[2].info->spec, "window:budget=8");
}

// A start stops the prompt of the start before it. If it is then refused itself, the run before both is back,
// and jobs may replay it.
TEST_F(LiveRun, ARefusedStartAfterAQuickOneLeavesTheRun) {
    const std::uint64_t before = app.run.history.run().id;
    app.run.setup.prompt = std::string(900, 'x');
    run_action(app, "run.restart");
    run_action(app, "model " + kNoModel);
    settle();
    EXPECT_EQ(app.run.status.phase, EnginePhase::idle);
    EXPECT_EQ(app.run.history.run().id, before);
    EXPECT_NO_THROW(app.run.need_recorded_run());
    run_action(app, "step");
    settle();
    EXPECT_EQ(app.run.history.run().id, before);
    run_action(app, "prompt Another text");
    settle();
    EXPECT_EQ(app.run.history.run().prompt, "Another text") << "with the model before";
    EXPECT_NO_THROW(app.run.need_recorded_run());
}

}  // namespace
}  // namespace keyhole::test_live_run
