// Budgets by head: the table in a spec, files of three forms and hostile ones, and that a lane with a table
// does as one with overrides, on both backends.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/policy/head_file.h"
#include "engine/policy/lane_names.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/backend_pair.h"
#include "tests/reference/engine_run.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>

namespace keyhole::test_head_table {
namespace {

namespace fs = std::filesystem;

class HeadFiles : public ::testing::Test {
  protected:
    fs::path folder_ = fs::path(::testing::TempDir()) /
                       fmt::format("heads-{}", ::testing::UnitTest::GetInstance()->random_seed() +
                                                   reinterpret_cast<std::uintptr_t>(this));
    void SetUp() override { fs::create_directories(folder_); }
    void TearDown() override { fs::remove_all(folder_); }

    fs::path file(std::string_view text, const char* name = "heads") {
        write_text_file(folder_ / name, text);
        return folder_ / name;
    }
    std::string table_of(std::string_view text, const HeadFileForm& form = {}) {
        return head_table_text(read_head_file(file(text), form));
    }
    std::string fault_of(std::string_view text) {
        try {
            (void)read_head_file(file(text));
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            const std::string what = error.what();
            EXPECT_NE(what.find((folder_ / "heads").string()), std::string::npos) << what;
            EXPECT_EQ(what.find('\n'), std::string::npos) << what;
            return what;
        }
        return "";
    }
};

TEST_F(HeadFiles, KeyholesOwnComesBack) {
    const std::string text = R"({"head_budgets": 1, "about": "a test", "layers": [[64, "all", 7],
        ["12.5%", "1.5x", "7"]]})";
    EXPECT_EQ(table_of(text), "64 all 7 / 12.5% 1.5x 7");
    const HeadTable table = read_head_file(file(text));
    const std::string written = head_file_text(table, "made\nby \"hand\"");
    EXPECT_EQ(read_head_file(file(written)), table) << written;
}

// Field, section 13: the table .9 .1; .4 .6.
TEST_F(HeadFiles, DuoAttentionsNumbersSayWhichHeadsKeepAll) {
    const std::string text = "0.9\t0.1\n0.4\t0.6\n";
    EXPECT_EQ(table_of(text), "all 1x / 1x all");
    EXPECT_EQ(table_of(text, {.sparsity = 0.25}), "all 1x / 2*all");
    EXPECT_EQ(table_of(text, {.sparsity = 0.75}), "all 1x / 2*1x");
    EXPECT_EQ(table_of(text, {.threshold = 0.4}), "all 1x / 2*all");
    EXPECT_EQ(table_of("1.0 1e-3\r\n\n 1.000001 -0.01\n", {.sparsity = 0.5}), "all 1x / all 1x");
    EXPECT_EQ(table_of("0 0\n0 0\n", {.sparsity = 0.75}), "2*1x / 1x all") << "lower heads stream first";
    file(text, "full_attention_heads.tsv");
    EXPECT_EQ(head_table_text(read_head_file(folder_)), "all 1x / 1x all") << "a folder of DuoAttention";
}

TEST_F(HeadFiles, HeadKvsScoresShareThePool) {
    const std::string text = R"({"0-0": [1, 3], "1-0": [4], "0-1": [0], "1-1": [2, 2]})";
    EXPECT_EQ(table_of(text, {.beta = 1}), "1x 0x / 2x 1x");
    EXPECT_EQ(table_of(text, {.beta = 2}), "1x 0.5x / 1.5x 1x");
    const HeadTable thirds = read_head_file(file(R"({"0-0": [1], "0-1": [1], "0-2": [1]})"), {.beta = 1.2});
    EXPECT_EQ(head_table_text(thirds), "3*1x");
    const HeadTable odd = read_head_file(file(R"({"0-0": [3], "0-1": [1], "0-2": [3]})"), {.beta = 1});
    EXPECT_DOUBLE_EQ(std::accumulate(odd.cells.begin(), odd.cells.end(), 0.0,
                                     [](double sum, const HeadBudget& cell) { return sum + cell.value; }),
                     3.0);
}

TEST_F(HeadFiles, HostileOnesAreRefusedInALine) {
    const auto says = [&](std::string_view text, std::string_view part) {
        const std::string fault = fault_of(text);
        EXPECT_NE(fault.find(part), std::string::npos) << text.substr(0, 80) << ": " << fault;
    };
    says("", "it is empty");
    says("0.5 0.5\n0.5\n", "line 2 has 1 numbers and the lines before have 2");
    says("64 64\n", "line 1: '64' is no number from 0 to 1");
    says("0.5 nan\n", "'nan'");
    says("0.5 0.5x\n", "'0.5x'");
    says(std::string("PK\x03\x04 rest"), "pickled");
    says("{\"a\": 1}", "'a' is no 'layer-head'");
    says("{}", "no sum");
    says(R"({"0-0": [1], "9999-0": [1]})", "it has scores of 2 heads, and 10000 layers of 1 heads are 10000");
    says(R"({"0-0": [1], "0--1": [1]})", "'0--1'");
    says(R"({"0-0": []})", "one number or more");
    says(R"({"0-0": ["1"]})", "0-0");
    says(R"({"0-0": [-1]})", "0-0");
    says(R"({"0-0": [0], "0-1": [0]})", "no sum");
    says(R"({"head_budgets": 2, "layers": [[1]]})", "head_budgets");
    says(R"({"head_budgets": 1})", "layers");
    says(R"({"head_budgets": 1, "layers": []})", "layers");
    says(R"({"head_budgets": 1, "layers": [[]]})", "layers[0]");
    says(R"({"head_budgets": 1, "layers": [[1, 2], [1]]})", "it has 1 budgets and layer 0 has 2");
    says(R"({"head_budgets": 1, "layers": [[1, 2.5]]})", "layers[0][1]");
    says(R"({"head_budgets": 1, "layers": [[-1]]})", "layers[0][0]");
    says(R"({"head_budgets": 1, "layers": [[1e300]]})", "layers[0][0]");
    says(R"({"head_budgets": 1, "layers": [["many"]]})", "layers[0][0]");
    says(R"({"head_budgets": 1, "layers": [[null]]})", "layers[0][0]");
    std::string wide = "0.5";
    for (std::size_t i = 0; i < kMostHeadCells; ++i) wide += " 0.5";
    says(wide, "more than 65536");
    says(std::string(1000, '{'), "cannot read");
    EXPECT_THROW((void)read_head_file(folder_ / "missing"), Error);
    EXPECT_THROW((void)read_head_file(folder_), Error) << "a folder without the file of DuoAttention";
}

TEST_F(HeadFiles, ASpecTakesTheNumbersOver) {
    const std::string path = file("0.9 0.1\n0.4 0.6\n", "two words.tsv").string();
    const auto printed = [&](const std::string& heads) {
        return format_lane_spec(parse_lane_spec("duo:heads=" + heads));
    };
    EXPECT_EQ(printed(path), "duo:heads=(all 1x / 1x all)");
    EXPECT_EQ(printed("(" + path + " sparsity=25%)"), "duo:heads=(all 1x / 2*all)");
    EXPECT_EQ(printed("(" + path + " threshold=0.4)"), "duo:heads=(all 1x / 2*all)");
    fs::remove(path);
    const LaneSpec lane = parse_lane_spec("duo:heads=(all 1x / 1x all)");
    EXPECT_EQ(lane, parse_stored_lane_spec(format_lane_spec(lane))) << "without the file";
    EXPECT_THROW((void)parse_lane_spec("duo:heads=" + path), Error);
    try {
        (void)parse_stored_lane_spec("duo:heads=" + path);
        FAIL() << "a stored spec opens no file";
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_NE(std::string(error.what()).find("no file is read"), std::string::npos) << error.what();
    }
    EXPECT_EQ(printed("none"), "duo");
}

std::string spec_fault(const std::string& spec) {
    try {
        (void)parse_lane_spec(spec);
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

TEST(HeadTable, IsRefusedWhereItMeansNothing) {
    const auto says = [](const std::string& spec, std::string_view part) {
        EXPECT_NE(spec_fault(spec).find(part), std::string::npos) << spec << ": " << spec_fault(spec);
    };
    says("h2o:heads=(64 / 64 64)", "as many heads");
    says("h2o:heads=(64 /)", "as many heads");
    says("h2o:heads=(64 some)", "'some' is no budget of a head");
    says("h2o:heads=(64 -1)", "'-1' is no budget");
    says("h2o:heads=(1 65536*1)", "at most 65536");
    says("h2o:scope=layer,heads=(1 2)", "scope=head");
    says("tova:heads=(1 2)", "scope=head");
    says("full:heads=(1 2)", "full keeps every token");
    says("h2o:dialect=released,heads=(1 2)", "dialect=paper");
    says("pyramidkv:heads=(1 2)", "leave one of them out");
    says("adakv:heads=(1 2)", "leave one of them out");
}

TEST(HeadTable, FitsTheModelOrSaysWhatDoesNot) {
    const HeadGrid grid{2, 4, {0, 0, 1, 1, 2, 2, 3, 3}};
    const auto fault = [&](const std::string& heads) {
        const auto faults = check_overrides(parse_lane_spec("h2o:heads=" + heads).policy, grid);
        return faults.empty() ? "" : faults.front();
    };
    EXPECT_EQ(fault("(1 2 / 3 4)"), "");
    EXPECT_EQ(fault("(1 1 2 2 / 3 3 4 4)"), "") << "by query head";
    EXPECT_EQ(fault("(1x 2x 3x 4x / 4*1x)"), "") << "times of the budget have a mean";
    EXPECT_NE(fault("(1 2 2 2 / 3 3 4 4)").find("query heads 0 and 1 of layer 0"), std::string::npos);
    EXPECT_NE(fault("(1 2)").find("1 layer with 2 heads each, and the model has 2 layers with 2 KV heads"),
              std::string::npos);
    EXPECT_NE(fault("(1 2 3 / 1 2 3)"), "");
}

// Times of the budget count beside what is protected, and their sum is exact.
TEST(HeadTable, BudgetsAreWholeNumbersWithTheLanesSum) {
    const HeadGrid grid{2, 4, {0, 0, 1, 1, 2, 2, 3, 3}};
    const auto budgets = [&](const std::string& spec, int n_prompt = 100) {
        const ResolvedPolicy policy = resolve(parse_lane_spec(spec).policy, n_prompt, 8, grid);
        std::vector<int> stored;
        for (int layer = 0; layer < 2; ++layer)
            for (const int head : {0, 2}) stored.push_back(policy.at(layer, head).stored);
        return stored;
    };
    constexpr int kAll = ResolvedPolicy::kUnlimited;
    EXPECT_EQ(budgets("h2o:budget=10,recent=2,heads=(0.5x 1.5x / 2*1x)"), (std::vector{6, 14, 10, 10}));
    EXPECT_EQ(budgets("h2o:budget=9,recent=2,heads=(0.5x 1.5x / 2*1x)"), (std::vector{6, 12, 9, 9}));
    EXPECT_EQ(budgets("h2o:budget=10,recent=2,heads=(0.25x 0.75x 1.5x 1.5x / 4*1x)"),
              (std::vector{6, 14, 10, 10}));
    EXPECT_EQ(budgets("h2o:budget=10,recent=2,heads=(6 25% / all 1x)"), (std::vector{6, 25, kAll, 10}));
    EXPECT_EQ(budgets("duo:budget=8,sinks=2,heads=(all 1x / 1x all)"), (std::vector{kAll, 8, 8, kAll}));
    EXPECT_EQ(budgets("h2o:budget=10,heads=(1 2 / 3 4),budget@L1=7"), (std::vector{1, 2, 7, 7}));
    EXPECT_EQ(budgets("h2o:budget=all,heads=(1x 5 / 5 5)"), (std::vector{kAll, 5, 5, 5}));
}

TEST(HeadTable, ALaneWithATableDoesAsOneWithOverrides) {
    const reference::TinyModel tiny{reference::TinyShape{}};
    const auto model = load_model(tiny.folder());
    std::vector<int> tokens(32);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int>(i * 7 % 250);
    const std::vector<std::pair<std::string, std::string>> pairs = {
        {"h2o:budget=8,heads=(6 9 / all 12)",
         "h2o:budget=8,budget@L0.H0-1=6,budget@L0.H2-3=9,budget@L1.H0-1=all,budget@L1.H2-3=12"},
        {"snapkv:budget=10,window=4,recent=2,heads=(0.5x 1.5x / 2*1x)",
         "snapkv:budget=10,window=4,recent=2,budget@L0.H0-1=6,budget@L0.H2-3=14"},
        {"duo:budget=4,sinks=1,heads=(all 1x / 1x all)",
         "sink:budget=4,sinks=1,budget@L0.H0-1=all,budget@L1.H2-3=all"},
    };
    std::vector<std::string> specs;
    for (const auto& [table, overrides] : pairs) {
        specs.push_back(table);
        specs.push_back(overrides);
    }
    const auto cuda = reference::cuda_backend(model);
    const std::span<const int> all(tokens);
    for (const auto& rows : {reference::run_engine(model, specs, all.first(20), all.subspan(20)),
                             reference::run_backend(*cuda, model, specs, all.first(20), all.subspan(20))})
        for (std::size_t i = 0; i < pairs.size(); ++i) {
            std::size_t n_evictions = 0;
            for (std::size_t t = 0; t < rows[2 * i].size(); ++t) {
                n_evictions += rows[2 * i][t].evictions.size();
                ASSERT_EQ(rows[2 * i][t].evictions, rows[2 * i + 1][t].evictions) << pairs[i].first << t;
                ASSERT_EQ(rows[2 * i][t].next_logits, rows[2 * i + 1][t].next_logits) << pairs[i].first << t;
            }
            EXPECT_GT(n_evictions, 20u) << pairs[i].first;
        }
}

// Field, section 13: a streaming head with 1 + 3 keeps 0 5 6 7 of 8.
TEST(HeadTable, AStreamingHeadKeepsTheFirstAndTheNewest) {
    const reference::TinyModel tiny{reference::TinyShape{}};
    const auto model = load_model(tiny.folder());
    const std::vector<int> tokens = {9, 8, 7, 6, 5, 4, 3, 2};
    const std::vector<std::string> lane = {"duo:budget=4,sinks=1,heads=(all 1x / 2*all)"};
    const auto rows = reference::run_engine(model, lane, tokens, {});
    std::vector<std::pair<int, int>> left;
    for (const auto& row : rows[0])
        for (const Eviction& one : row.evictions) left.emplace_back(one.kv_head, one.position);
    EXPECT_EQ(left, (std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {1, 3}, {1, 4}}));
}

TEST(HeadTable, HasAShortName) {
    const std::vector<LaneSpec> lanes = {parse_lane_spec("duo:heads=(all 1x / 1x all)"),
                                         parse_lane_spec("duo:heads=(1x all / all 1x)")};
    const std::vector<std::string> names = lane_names(lanes);
    EXPECT_TRUE(names[0].starts_with("duo heads=2 x 2 heads, ")) << names[0];
    EXPECT_NE(names[0], names[1]);
}

}  // namespace
}  // namespace keyhole::test_head_table
