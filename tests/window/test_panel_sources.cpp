// Panels use scope objects for every push and begin. If the second call of a pair runs in another window, the
// program ends, and a test that opens no popup would not notice.
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <string>

namespace keyhole {
namespace {

TEST(PanelSources, PairsOfCallsAreScopes) {
    const std::regex by_hand(
        R"(ImGui::(Push|Pop)[A-Z]|ImGui::(Begin|End)(Combo|Popup|Menu|Child|Tooltip|Disabled))");
    int n_files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(reference::source_folder() / "app/panels")) {
        if (entry.path().filename() == "scopes.h") continue;
        ++n_files;
        std::ifstream file(entry.path());
        std::string line;
        for (int number = 1; std::getline(file, line); ++number)
            EXPECT_FALSE(std::regex_search(line, by_hand)) << entry.path().string() << ":" << number << ": "
                                                           << line << "\nUse a scope of app/panels/scopes.h.";
    }
    EXPECT_GT(n_files, 20);
}

}  // namespace
}  // namespace keyhole
