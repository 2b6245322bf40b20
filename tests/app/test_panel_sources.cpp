// Panels use scope objects for every push and begin. If the second call of a pair runs in another window, the
// program ends, and a test that opens no popup would not notice.
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace keyhole::test_panel_sources {
namespace {

/// Expects no line of the panels to match. Says what to write instead.
void expect_in_no_panel(const char* pattern, const char* instead, const char* but = "") {
    const std::regex refused(pattern);
    int n_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(reference::source_folder() / "app/panels")) {
        if (entry.path().stem() == but) continue;
        ++n_files;
        std::ifstream file(entry.path());
        std::string line;
        for (int number = 1; std::getline(file, line); ++number)
            EXPECT_FALSE(std::regex_search(line, refused))
                << entry.path().string() << ":" << number << ": " << line << "\n"
                << instead;
    }
    EXPECT_GT(n_files, 20);
}

TEST(PanelSources, PairsOfCallsAreScopes) {
    expect_in_no_panel(
        R"(ImGui::(Push|Pop)[A-Z]|ImGui::(Begin|End)(Combo|Popup|Menu|Child|Tooltip|Disabled))",
        "Use a scope of app/panels/scopes.h.", "scopes");
}

// An action can be undone, scripted, and named in a crash report.
TEST(PanelSources, ChangesOfLanesAreActions) {
    expect_in_no_panel(R"(lane_editor\.(set|add|remove|run|set_follow|undo|redo|rewind)\()",
                       "Run an action: run(context, \"lane 1 h2o:budget=64\").");
}

}  // namespace
}  // namespace keyhole::test_panel_sources
