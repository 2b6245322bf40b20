// The list of policies by what they look at: every preset stands in one group, the pictures that come with
// the program are what the engine keeps today, and the manual lists the same groups.
#include "app/study/keep_presets.h"
#include "engine/backend/backend.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/model/model.h"
#include "engine/policy/preset_table.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <sstream>

namespace keyhole::test_policies {
namespace {

namespace fs = std::filesystem;

TEST(Policies, EveryPresetStandsInOneGroup) {
    std::size_t n = 0;
    std::set<std::string_view> names;
    for (const PresetGroup& group : preset_groups()) {
        EXPECT_TRUE(names.insert(group.name).second) << group.name;
        EXPECT_TRUE(group.help.ends_with('.')) << group.name;
        const std::vector<const PresetRow*> rows = presets_that_look_at(group.looks_at);
        EXPECT_FALSE(rows.empty()) << group.name;
        n += rows.size();
    }
    EXPECT_EQ(n, presets().size());
    EXPECT_EQ(names,
              (std::set<std::string_view>{"nothing", "place", "attention", "keys", "values", "future"}));
}

TEST(Policies, TheManualListsTheGroups) {
    const std::string page =
        read_text_file(reference::source_folder() / "assets/manual/lanes-and-policies.md", 1 << 20);
    for (const PresetGroup& group : preset_groups()) {
        std::string line = "* **" + std::string(group.name) + "**:";
        for (const PresetRow* row : presets_that_look_at(group.looks_at))
            line += (line.ends_with(':') ? " `" : ", `") + std::string(row->name) + "`";
        EXPECT_NE(page.find(line + "\n"), std::string::npos) << line;
    }
}

/// Returns the presets that the first columns of a table name, which follows a heading of two columns.
std::set<std::string> presets_of_table(const std::string& page, const std::string& heading) {
    std::set<std::string> names;
    std::istringstream lines(page.substr(std::min(page.find(heading), page.size())));
    std::string line;
    std::getline(lines, line);
    std::getline(lines, line);
    while (std::getline(lines, line) && line.starts_with("| ")) {
        std::istringstream cell(line.substr(2, line.find(" | ") - 2));
        for (std::string name; std::getline(cell, name, '`') && std::getline(cell, name, '`');)
            EXPECT_TRUE(names.insert(name).second) << name;
    }
    return names;
}

TEST(Policies, TheManualListsTheReleasedDialects) {
    const std::string page =
        read_text_file(reference::source_folder() / "assets/manual/lanes-and-policies.md", 1 << 20);
    std::set<std::string> differ, fix;
    for (const PresetRow& row : presets()) {
        if (!row.released.empty()) differ.insert(std::string(row.name));
        if (!row.fixed.empty()) fix.insert(std::string(row.name));
    }
    EXPECT_EQ(presets_of_table(page, "| preset | what the released code does |"), differ);
    EXPECT_EQ(presets_of_table(page, "| preset | what `dialect=released` sets |"), fix);
}

TEST(Policies, ShippedPicturesAreWhatTheEngineKeeps) {
    const fs::path assets = reference::source_folder() / "assets";
    const std::shared_ptr<const Model> model = load_model(assets / "models/keyhole-base");
    const std::unique_ptr<Backend> backend = make_backend(model, {BackendChoice::cpu, 1, 0}, nullptr);
    const KeptPictures made =
        keep_by_presets(model, *backend, read_prompt_file(assets / "prompts/garden-gate.txt"), 64,
                        {"keyhole-base", "garden-gate.txt"});
    const KeptPictures shipped = shipped_kept_pictures();
    const char* anew = "make them anew: keyhole presets --budget 64 --save assets/policies/kept.json";
    EXPECT_EQ(made.tokens, shipped.tokens) << anew;
    EXPECT_EQ(made.watched, shipped.watched) << anew;
    EXPECT_EQ(std::pair(made.layer, made.head), std::pair(shipped.layer, shipped.head)) << anew;
    ASSERT_EQ(made.presets.size(), shipped.presets.size()) << anew;
    for (std::size_t i = 0; i < made.presets.size(); ++i) {
        // Another instruction set rounds otherwise, so that a token at the cut may be another one.
        const KeptPicture &a = made.presets[i], &b = shipped.presets[i];
        EXPECT_EQ(a.preset, b.preset) << anew;
        EXPECT_EQ(a.why_not, b.why_not) << anew;
        std::vector<int> both;
        std::ranges::set_intersection(a.positions, b.positions, std::back_inserter(both));
        EXPECT_GE(both.size() * 20, std::max(a.positions.size(), b.positions.size()) * 19)
            << a.preset << "; " << anew;
    }
    ASSERT_EQ(made.presets.size(), presets().size());
    // What the pictures are there to show.
    const auto n_watched = [&](std::string_view preset) {
        const std::vector<int>& kept = made.find(preset)->positions;
        return std::ranges::count_if(made.watched,
                                     [&](int p) { return std::ranges::binary_search(kept, p); });
    };
    const int n = static_cast<int>(made.tokens.size());
    std::vector<int> newest(64);
    std::iota(newest.begin(), newest.end(), n - 64);
    EXPECT_EQ(made.find("window")->positions, newest);
    EXPECT_EQ(made.find("full")->positions.size(), to_index(n));
    for (const char* preset : {"h2o", "tri"}) EXPECT_EQ(made.find(preset)->positions.size(), 64u) << preset;
    EXPECT_EQ(made.find("dilated")->positions.size(), 127u) << "later steps need what lies between";
    EXPECT_EQ(made.watched.size(), 4u);
    EXPECT_EQ(made.find("quest")->positions.size(), 50u) << "three pages, and its own page of the prompt";
    EXPECT_EQ(n_watched("quest"), 4);
    EXPECT_EQ(n_watched("oracle"), 4);
    EXPECT_EQ(n_watched("tova"), 4);
    EXPECT_EQ(n_watched("h2o"), 0);
}

KeptPictures small() {
    return {"m", "p", 2, 0, 1, {"a", "b", "c", "d"}, {1, 2}, {{"window", {2, 3}}, {"tri", {}, "no file"}}};
}

TEST(Policies, TheFileKeepsAllOfThePictures) {
    const std::string text = to_json(small()).dump();
    EXPECT_TRUE(parse_kept_pictures(text, "file") == small());
    const auto refuses = [&](const std::string& from, const std::string& to) {
        std::string changed = text;
        changed.replace(changed.find(from), from.size(), to);
        EXPECT_THROW((void)parse_kept_pictures(changed, "file"), Error) << changed;
    };
    refuses("[2,3]", "[3,2]");
    refuses("[2,3]", "[2,4]");
    refuses("[2,3]", "[2,-1]");
    refuses("\"budget\":2", "\"budget\":0");
}

TEST(Policies, AShareIsThatOfAPiece) {
    const KeptPictures pictures = small();
    EXPECT_EQ(kept_shares(pictures, pictures.presets[0], 4), (std::vector<float>{0, 0, 1, 1}));
    EXPECT_EQ(kept_shares(pictures, {"x", {0, 2, 3}}, 2), (std::vector<float>{0.5f, 1}));
}

}  // namespace
}  // namespace keyhole::test_policies
