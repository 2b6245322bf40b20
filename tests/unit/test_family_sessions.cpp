// A model's positions in a whole run. Learned positions end with their table and cannot be moved. A sliding
// window is recorded as stored but not visible.
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/trace/run_history.h"
#include "engine/trace/trace_file.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

namespace reference::test_family_sessions {
namespace {

const std::filesystem::path kFamilies = reference::source_folder() / "tests/fixtures/families";

TEST(FamilySessions, LearnedPositionsEndWithTheirTable) {
    const auto model = keyhole::load_model(kFamilies / "opt");  // 25 positions
    keyhole::RunSpec spec = run_spec("onceuponatime", {"full"}, 0);
    spec.ignore_eos = true;
    const SessionRun open_end = run_session(model, spec);
    EXPECT_EQ(open_end.steps.back()->row, 24);
    EXPECT_NE(open_end.finish_reason.find("learned"), std::string::npos) << open_end.finish_reason;
    spec.n_generate = 12;
    EXPECT_EQ(run_session(model, spec).steps.back()->row, 24);
    spec.n_generate = 13;
    EXPECT_THROW(run_session(model, spec), keyhole::Error);
}

TEST(FamilySessions, LearnedPositionsCannotBeMoved) {
    const auto model = keyhole::load_model(kFamilies / "gpt2");
    for (const char* positions : {"cache", "compressed"}) {
        try {
            run_session(model, run_spec("once", {std::string("sink:budget=5,positions=") + positions}, 2));
            ADD_FAILURE() << positions;
        } catch (const keyhole::Error& error) {
            EXPECT_NE(std::string(error.what()).find("learned"), std::string::npos) << error.what();
        }
    }
    EXPECT_NO_THROW(run_session(keyhole::load_model(kFamilies / "mpt"),
                                run_spec("once", {"sink:budget=5,positions=cache"}, 2)));
}

TEST(FamilySessions, AWindowIsRecordedAsStoredButUnseen) {
    const auto model = keyhole::load_model(kFamilies / "qwen2");  // windows of none, 5 and 5
    keyhole::RunSpec spec = run_spec("onceuponatime", {"full"}, 6);
    spec.ignore_eos = true;
    const SessionRun run = run_session(model, spec);
    keyhole::RunHistory history;
    history.update(run.steps);
    for (const auto& step : run.steps)
        for (int g = 0; g < 6; ++g)
            for (int p = 0; p <= step->row; ++p) {
                const bool hidden = g >= 2 && p <= step->row - 5;
                EXPECT_EQ(history.hidden(0, g, p, step->row), hidden) << g << " " << p << " " << step->row;
                EXPECT_TRUE(history.stored(0, g, p, step->row));
                EXPECT_EQ(history.attended(0, g, p, step->row), !hidden);
            }
    // Prompt rows before the last have no record. The model's window limits them all the same.
    ASSERT_GT(run.steps.front()->row, 6);
    for (int row = 0; row < run.steps.front()->row; ++row)
        for (int g = 0; g < 6; ++g)
            for (int p = 0; p <= row; ++p)
                EXPECT_EQ(history.hidden(0, g, p, row), g >= 2 && p <= row - 5)
                    << g << " " << p << " " << row;
    const int row = run.steps.back()->row;
    EXPECT_EQ(run.steps.back()->lanes[0].attended_tokens, 2 * (row + 1) + 4 * 5);

    const std::filesystem::path file =
        std::filesystem::temp_directory_path() / fmt::format("keyhole-window-{}.keyhole", getpid());
    keyhole::write_trace(run.steps, file);
    EXPECT_EQ(keyhole::read_trace(file).front()->run->config.window, model->config().window);
    std::filesystem::remove(file);
}

}  // namespace
}  // namespace reference::test_family_sessions
