// Which tokens competed at a selection, from records, and choice.npy, which holds what was ranked of them.
#include "engine/analysis/competing.h"
#include "engine/analysis/token_state.h"
#include "engine/base/npy.h"
#include "engine/export/exporter.h"
#include "tests/reference/session_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>

namespace reference::test_competing {
namespace {

using namespace keyhole;

class CompetingTokens : public ::testing::Test {
  protected:
    CompetingTokens() : tiny_({}) {
        RunSpec spec;
        for (int i = 0; i < 20; ++i) spec.prompt_tokens.push_back(i * 11 % 250);
        for (const char* lane : {"full", "h2o:budget=9,recent=2,sinks=1,protect=3..4",
                                 "key:budget=8,protect=(knorm<0 or age<3)"})
            spec.lanes.push_back(parse_lane_spec(lane));
        spec.n_generate = 6;
        spec.ignore_eos = spec.follow = true;
        spec.requested.attention = spec.requested.scores = true;
        spec.requested.form = RowForm::both;
        run_ = run_session(load_model(tiny_.folder()), spec, [](Session& session, int row) {
            if (row == 22) session.apply(parse_command("pin 1 21 L0.H0"));
        });
        history_ = history_of(run_);
    }

    TinyModel tiny_;
    SessionRun run_;
    RunHistory history_;
};

TEST_F(CompetingTokens, StandAsTheLaneProtects) {
    for (int row = 20; row <= 24; ++row)
        for (int g = 0; g < 4; ++g) {
            const std::vector<std::int32_t> held = history_.held_positions(1, g, row);
            const std::vector<Standing> standing = standings(history_, 1, g, row);
            ASSERT_EQ(standing.size(), held.size());
            for (std::size_t i = 0; i < held.size(); ++i) {
                const bool is_pinned = held[i] == 21 && g == 0 && history_.pinned(1, g, 21, row);
                const Standing expected = is_pinned                      ? Standing::pinned
                                          : held[i] == 0                 ? Standing::first
                                          : i + 2 >= held.size()         ? Standing::newest
                                          : held[i] == 3 || held[i] == 4 ? Standing::protected_
                                                                         : Standing::competes;
                EXPECT_EQ(standing[i], expected) << "row " << row << ", head " << g << ", token " << held[i];
            }
        }
    EXPECT_EQ(competition(history_, 1, 0, 0, 3, 22)->why_not, "always kept: protected");
    // Lengths of keys are not recorded: such a protect is not known afterwards.
    for (const Standing one : standings(history_, 2, 0, 22)) EXPECT_EQ(one, Standing::competes);
    EXPECT_TRUE(standings(history_, 1, 0, 99).empty());
}

TEST_F(CompetingTokens, ChoiceHoldsWhatWasRankedOfThem) {
    ExportOptions options;
    options.folder = std::filesystem::temp_directory_path() / fmt::format("keyhole-choice-{}", getpid());
    options.choice = options.scores = true;
    export_history(history_, options);
    const auto read = [&](const char* name) { return read_npy(options.folder / "lane1" / name); };
    const NpyArray scores = read("scores.npy"), choice = read("choice.npy");
    ASSERT_EQ(choice.shape, scores.shape);
    const auto n_positions = static_cast<int>(choice.shape[2]);
    int n_competing = 0;
    for (int y = 0; y < choice.shape[0]; ++y)
        for (int g = 0; g < 4; ++g) {
            const std::vector<std::int32_t> held = history_.held_positions(1, g, 20 + y);
            const std::vector<Standing> standing = standings(history_, 1, g, 20 + y);
            for (int p = 0; p < n_positions; ++p) {
                const auto at = (std::int64_t{y} * 4 + g) * n_positions + p;
                const auto found = std::find(held.begin(), held.end(), p);
                const bool competes =
                    found != held.end() &&
                    standing[static_cast<std::size_t>(found - held.begin())] == Standing::competes;
                ASSERT_EQ(std::isnan(choice.value(at)), !competes) << y << ' ' << g << ' ' << p;
                if (!competes) continue;
                ASSERT_EQ(choice.value(at), scores.value(at));
                ++n_competing;
            }
        }
    EXPECT_GT(n_competing, 50);
    std::filesystem::remove_all(options.folder);
}

}  // namespace
}  // namespace reference::test_competing
