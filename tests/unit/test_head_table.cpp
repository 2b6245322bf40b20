// Files of budgets by head: three forms, and hostile ones.
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/head_file.h"

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
    write_head_file(folder_ / "other", table, "by hand");
    EXPECT_EQ(read_head_file(folder_ / "other"), table);
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

}  // namespace
}  // namespace keyhole::test_head_table
