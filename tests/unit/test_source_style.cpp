// Lines of sources, scripts and pages fit 110 columns. clang-format keeps code short, but it does not touch
// comments.
#include "engine/base/utf8.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>

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
