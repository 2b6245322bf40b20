// Lines of sources, scripts and pages fit 110 columns. clang-format keeps code short, but it does not touch
// comments.
#include "engine/base/mapped_file.h"
#include "engine/base/utf8.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole::test_source_style {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostColumns = 110;

std::size_t columns(std::string_view line) {
    std::size_t n = 0;
    for (; !line.empty(); ++n) line.remove_prefix(std::max<std::size_t>(utf8_length(line), 1));
    return n;
}

/// A text that a test compares byte by byte cannot be broken, nor can a row of a table.
bool may_be_long(std::string_view line, bool is_page) {
    return is_page ? line.starts_with("|") : line.find("R\"(") != std::string_view::npos;
}

void expect_short_lines(const fs::path& path, bool is_page) {
    std::ifstream file(path);
    std::string line;
    for (int number = 1; std::getline(file, line); ++number)
        EXPECT_TRUE(columns(line) <= kMostColumns || may_be_long(line, is_page))
            << path.string() << ":" << number << " has " << columns(line) << " columns";
}

TEST(SourceStyle, LinesAreWithin110Columns) {
    const std::set<std::string> sources = {".h",    ".cpp", ".cu", ".glsl", ".vert",
                                           ".frag", ".py",  ".sh", ".cmake"};
    int n_files = 0;
    for (const char* folder : {"app", "engine", "shaders", "tests", "assets", ".cmake"})
        for (const auto& entry : fs::recursive_directory_iterator(reference::source_folder() / folder)) {
            const fs::path& path = entry.path();
            const bool is_page = path.extension() == ".md" && path.stem() != "ATTRIBUTION";
            if (!is_page && !sources.contains(path.extension().string())) continue;
            ++n_files;
            expect_short_lines(path, is_page);
        }
    EXPECT_GT(n_files, 400);
    for (const char* file :
         {"README.md", "CMakeLists.txt", "run", "test", ".ci/run", ".ci/setup.sh", ".ci/suites"})
        expect_short_lines(reference::source_folder() / file, false);  // README's tables are narrow too
}

// fmt 9 of Debian 12 has fmt::join in format.h; fmt 11 has it in ranges.h alone.
TEST(SourceStyle, WhatJoinsIncludesItsHeader) {
    int n_files = 0;
    for (const char* folder : {"app", "engine", "tests"})
        for (const auto& entry : fs::recursive_directory_iterator(reference::source_folder() / folder)) {
            const fs::path& path = entry.path();
            if (path.extension() != ".h" && path.extension() != ".cpp") continue;
            std::ifstream file(path);
            bool joins = false, includes = false;
            for (std::string line; std::getline(file, line);) {
                includes = includes || line == "#include <fmt/ranges.h>";
                joins = joins || line.find(
                                     "fmt::"
                                     "join(") != std::string::npos;
            }
            n_files += joins ? 1 : 0;
            EXPECT_TRUE(includes || !joins) << path.string() << " lacks #include <fmt/ranges.h>";
        }
    EXPECT_GT(n_files, 10);
}

// --- README's table of folders, and what kh_folder lets each include ---------------------------------------

using RowSets = std::map<int, std::set<int>>;

struct LayoutRow {
    std::vector<std::string> folders;
    std::vector<std::string> words;  ///< of the column "may include", without a folder's top where it is near
};

/// Returns the rows of README's layout that have folders of the program.
std::vector<LayoutRow> layout_rows() {
    std::vector<LayoutRow> rows;
    const std::string text = read_text_file(reference::source_folder() / "README.md");
    const std::regex line(R"(\n\| (`(?:app|engine)/[^|]*) \|([^|]*)\|([^|]*)\|)");
    const std::regex folder(R"(`([a-z/]+)/`)"), word(R"([a-z/]+)");
    for (std::sregex_iterator at(text.begin(), text.end(), line), end; at != end; ++at) {
        const std::string names = (*at)[1], may = (*at)[3];
        LayoutRow row;
        for (std::sregex_iterator f(names.begin(), names.end(), folder); f != end; ++f) {
            const std::string name = (*f)[1];
            const bool is_whole = name.find('/') != std::string::npos;
            row.folders.push_back(is_whole ? name
                                           : (fs::path(row.folders.at(0)).parent_path() / name).string());
        }
        for (std::sregex_iterator w(may.begin(), may.end(), word); w != end; ++w)
            row.words.push_back(w->str());
        rows.push_back(row);
    }
    return rows;
}

/// Returns the row that holds a folder or a folder above it; -1 if none does.
int row_of(const std::vector<LayoutRow>& rows, const std::string& folder) {
    for (std::size_t i = 0; i < rows.size(); ++i)
        for (const std::string& name : rows[i].folders)
            if (folder == name || folder.starts_with(name + "/")) return static_cast<int>(i);
    return -1;
}

/// Returns the rows that a row may include by its words: a folder beside it, else one of the engine.
std::set<int> rows_of_words(const std::vector<LayoutRow>& rows, int row) {
    std::set<int> may;
    for (const std::string& word : rows[row].words) {
        if (word == "nothing") continue;
        int found = row_of(rows, word);
        const std::string top = fs::path(rows[row].folders[0]).parent_path();
        for (const std::string& beside : {top, std::string("engine")})
            if (found < 0) found = row_of(rows, beside + "/" + word);
        for (int i = 0; word == "engine" && i < static_cast<int>(rows.size()); ++i)
            if (rows[i].folders[0].starts_with("engine/")) may.insert(found = i);
        EXPECT_GE(found, 0) << rows[row].folders[0] << " names " << word;
        may.insert(found);
    }
    return may;
}

/// Returns what may be included by row, as the calls of kh_folder say it.
RowSets rows_of_targets(const std::vector<LayoutRow>& rows) {
    const fs::path root = reference::source_folder();
    const std::string text =
        read_text_file(root / "CMakeLists.txt") + read_text_file(root / ".cmake/cuda.cmake");
    const std::regex call(R"(\n *kh_folder\(([a-z/]+)([^)]*)\))"), word(R"([^\s]+)");
    RowSets uses;
    for (std::sregex_iterator at(text.begin(), text.end(), call), end; at != end; ++at) {
        const std::string folder = (*at)[1], arguments = (*at)[2];
        const int row = row_of(rows, folder);
        EXPECT_GE(row, 0) << folder << " is not in README's layout";
        bool is_use = false;
        for (std::sregex_iterator w(arguments.begin(), arguments.end(), word); w != end; ++w) {
            if (std::isupper(static_cast<unsigned char>(w->str()[0])))
                is_use = w->str().ends_with("USES") || w->str() == "SOURCES_USE";
            else if (is_use && row_of(rows, w->str()) != row)
                uses[row].insert(row_of(rows, w->str()));
        }
        uses[row];
    }
    return uses;
}

/// Adds to each row what it may include through others. Includes run downward, so the last row comes first.
RowSets through_others(RowSets rows) {
    for (auto row = rows.rbegin(); row != rows.rend(); ++row)
        for (const int next : std::set<int>(row->second))
            row->second.insert(rows[next].begin(), rows[next].end());
    return rows;
}

void expect_within(const std::vector<LayoutRow>& rows, const RowSets& edges, RowSets allowed,
                   const char* where) {
    for (const auto& [row, targets] : edges)
        for (const int target : targets) {
            EXPECT_GT(target, row) << rows[row].folders[0] << " includes upward";
            EXPECT_TRUE(allowed[row].contains(target))
                << rows[row].folders[0] << " -> " << rows[target].folders[0] << " is not in " << where;
        }
}

TEST(SourceStyle, ReadmesLayoutIsThatOfTheBuild) {
    const std::vector<LayoutRow> rows = layout_rows();
    ASSERT_GT(rows.size(), 20u);
    RowSets said;
    for (int i = 0; i < static_cast<int>(rows.size()); ++i) said[i] = rows_of_words(rows, i);
    const RowSets built = rows_of_targets(rows);
    EXPECT_EQ(built.size(), rows.size());
    expect_within(rows, built, through_others(said), "README's layout");
    expect_within(rows, said, through_others(built), "the calls of kh_folder");
}

// Others see plain values: nlohmann's header takes 2.5 s to compile.
TEST(SourceStyle, JsonTypesStandInSixHeadersOfTheEngine) {
    std::set<std::string> found;
    const fs::path engine = reference::source_folder() / "engine";
    for (const auto& entry : fs::recursive_directory_iterator(engine)) {
        if (entry.path().extension() != ".h") continue;
        std::ifstream file(entry.path());
        for (std::string line; std::getline(file, line);)
            if (line.starts_with("#include <nlohmann")) found.insert(fs::relative(entry.path(), engine));
    }
    EXPECT_EQ(found, (std::set<std::string>{"base/json_field.h", "base/json_file.h", "device/prover.h",
                                            "model/gguf_describer.h", "model/tokenizer_file.h",
                                            "model/tokenizer_json.h"}));
}

}  // namespace
}  // namespace keyhole::test_source_style
