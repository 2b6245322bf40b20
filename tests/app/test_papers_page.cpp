// The page of the papers' figures says what the program of today says: every verdict is decided anew from the
// numbers kept beside it, and stands on the page in these words.
#include "app/base/figure_record.h"
#include "app/papers/figure.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace keyhole::test_papers_page {
namespace {

namespace fs = std::filesystem;

const fs::path kPapers = reference::source_folder() / "tests/bench/results/papers";

nlohmann::json json_of(const fs::path& file) {
    return nlohmann::json::parse(read_text_file(file, 1 << 24));
}

/// Returns a text with one blank between words, so that it does not matter where lines end.
std::string words_of(const std::string& text) {
    std::istringstream in(text);
    std::string words;
    for (std::string word; in >> word;) words += (words.empty() ? "" : " ") + word;
    return words;
}

/// Returns the sections of the page by figure.
std::map<std::string, std::string> sections() {
    std::istringstream in(read_text_file(kPapers / "README.md", 1 << 24));
    std::map<std::string, std::string> found;
    std::string name;
    for (std::string line; std::getline(in, line);) {
        if (line.starts_with("## ")) name = line.substr(3, line.find(':') - 3);
        if (!name.empty()) found[name] += line + "\n";
    }
    for (auto& [figure, text] : found) text = words_of(text);
    return found;
}

std::vector<fs::path> results() {
    std::vector<fs::path> folders;
    for (const auto& entry : fs::directory_iterator(kPapers / "data")) folders.push_back(entry.path());
    std::ranges::sort(folders);
    return folders;
}

/// Returns the verdicts of a figure's record as the rule of today decides them.
std::vector<PaperVerdict> decided_anew(const FigureRecord& record) {
    std::vector<PaperVerdict> verdicts;
    for (const FigureRecord::Finding& finding : record.findings) {
        if (finding.evidence.comparisons.empty()) {
            // What nothing was compared for, nothing decides.
            EXPECT_TRUE(finding.verdict == "measured" || finding.verdict == "unseen" ||
                        finding.verdict == "none")
                << record.figure << " " << finding.verdict;
            continue;
        }
        verdicts.push_back(decide(finding.evidence));
        EXPECT_EQ(verdict_word(verdicts.back().state), finding.verdict) << record.figure << finding.task;
        EXPECT_NE(finding.why.find(verdicts.back().why), std::string::npos)
            << record.figure << ": " << finding.why << "\nnow: " << verdicts.back().why;
    }
    return verdicts;
}

std::vector<SpeedLine> lines_of(const nlohmann::json& group) {
    std::vector<SpeedLine> lines;
    for (const nlohmann::json& line : group.at("lines"))
        lines.push_back({line.at("label"), line.at("printed"), line.at("tokens_per_s"), line.at("by_bytes"),
                         line.at("lanes_in_12_gb"), line.at("attention_ms"), line.at("ms_per_step")});
    return lines;
}

/// The kept table has rounded numbers, the program had them whole: words are equal, numbers to their last
/// digit.
bool same_but_for_rounding(const std::string& said, const std::string& now) {
    std::istringstream a(said), b(now);
    std::string left, right;
    while (a >> left) {
        if (!(b >> right)) return false;
        if (left == right) continue;
        const auto first = left.find_first_of("0123456789"), last = left.find_last_of("0123456789");
        if (first == std::string::npos || right.find_first_of("0123456789") != first) return false;
        const std::size_t dot = left.find('.', first);
        const double digits = dot > last ? 0 : static_cast<double>(last - dot);
        if (std::abs(std::stod(left.substr(first)) - std::stod(right.substr(first))) >
            1.1 * std::pow(10, -digits))
            return false;
    }
    return !(b >> right);
}

/// Returns what a result says, as the page has to.
std::vector<std::string> said_by(const fs::path& folder) {
    std::vector<std::string> said;
    if (fs::exists(folder / "bench.json")) {
        const nlohmann::json table = json_of(folder / "bench.json");
        for (const nlohmann::json& group : table.at("groups")) {
            const PaperVerdict verdict = judge_speed(table.at("table").get<std::string>(), lines_of(group));
            const std::string why = group.at("why");
            EXPECT_EQ(verdict_word(verdict.state), group.at("verdict")) << folder;
            EXPECT_TRUE(same_but_for_rounding(why, verdict.why)) << why << "\nnow: " << verdict.why;
            if (verdict.state != PaperVerdict::State::none)
                said.push_back(verdict_text({verdict.state, why}));
        }
        return said;
    }
    const FigureRecord record = read_figure_record(folder);
    decided_anew(record);
    for (const FigureRecord::Finding& finding : record.findings)
        if (finding.verdict != "none")
            said.push_back(std::string(verdict_label(finding.verdict)) + ": " + finding.why);
    return said;
}

/// Writes what the rule of today says into a result, where the old sentence stands.
void decide_anew(const fs::path& file) {
    std::string text = read_text_file(file, 1 << 24);
    const FigureRecord record = read_figure_record(file.parent_path());
    for (const FigureRecord::Finding& finding : record.findings) {
        if (finding.evidence.comparisons.empty()) continue;
        // The sentence begins with the subject's counts and ends before that of the picture's prompt.
        const std::string anew = decide(finding.evidence).why, begin = anew.substr(0, anew.find(". All") + 1);
        const std::size_t at = finding.why.find(begin.substr(0, begin.find(" comparison")));
        if (at == std::string::npos) continue;
        const std::size_t end = std::min(finding.why.find(" The picture's prompt:"), finding.why.size());
        const std::string old = finding.why.substr(at, end - at);
        for (std::size_t i = text.find(old); i != std::string::npos && old != anew;
             i = text.find(old, i + anew.size()))
            text.replace(i, old.size(), anew);
    }
    write_text_file(file, text);
}

/// After a change of the rule: run it with KEYHOLE_PAPERS=write, and then tests/bench/papers.py --page.
TEST(PapersPage, EveryVerdictIsThatOfTheRuleOfToday) {
    if (const char* mode = std::getenv("KEYHOLE_PAPERS"); mode != nullptr && std::string(mode) == "write")
        for (const fs::path& folder : results())
            if (fs::exists(folder / "figure.json")) decide_anew(folder / "figure.json");
    std::map<std::string, std::string> page = sections();
    ASSERT_GT(page.size(), 40u);
    std::size_t n_decided = 0;
    for (const fs::path& folder : results()) {
        const nlohmann::json about = json_of(folder / "about.json");
        const std::string figure = about.at("figure");
        ASSERT_TRUE(page.contains(figure)) << figure;
        for (const std::string& said : said_by(folder)) {
            EXPECT_NE(page[figure].find(words_of(said)), std::string::npos) << folder << "\n" << said;
            ++n_decided;
        }
        EXPECT_NE(page[figure].find("**" + about.at("model").get<std::string>() + "**: "), std::string::npos)
            << folder;
    }
    EXPECT_GT(n_decided, 60u);
}

/// A sentence on the page that no result has would stay when the rule changes.
TEST(PapersPage, EverySentenceIsThatOfAResult) {
    std::map<std::string, std::string> page = sections();
    for (const fs::path& folder : results()) {
        std::string& section = page[json_of(folder / "about.json").at("figure").get<std::string>()];
        for (const std::string& said : said_by(folder))
            if (const std::size_t at = section.find(words_of(said)); at != std::string::npos)
                section.erase(at, words_of(said).size());
    }
    for (const auto& [figure, rest] : page)
        for (const char* word : {"holds", "fails", "mixed", "open", "few", "unseen", "measured"})
            EXPECT_EQ(rest.find(std::string(verdict_label(word)) + ": "), std::string::npos)
                << figure << ": " << rest.substr(0, 900);
}

/// The window's page, the list and the page of results have the same figures.
TEST(PapersPage, EveryFigureHasASection) {
    const std::map<std::string, std::string> page = sections();
    for (const Figure& figure : figures()) {
        ASSERT_TRUE(page.contains(std::string(figure.name))) << figure.name;
        EXPECT_NE(page.at(std::string(figure.name)).find(words_of(std::string(figure.finding))),
                  std::string::npos)
            << figure.name;
    }
    EXPECT_EQ(page.size(), figures().size());
}

}  // namespace
}  // namespace keyhole::test_papers_page
