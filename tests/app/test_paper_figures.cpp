// The figures of the papers in the window: what a command line becomes, what a program makes, and records
// that cannot be read.
#include "app/state/paper_cards.h"
#include "app/state/paper_figures.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "tests/reference/temp_folder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

namespace keyhole::test_paper_figures {
namespace {

namespace fs = std::filesystem;

std::string what_of(const std::function<void()>& act) {
    try {
        act();
    } catch (const Error& error) {
        return error.what();
    }
    return "";
}

class PaperFiguresTest : public ::testing::Test {
  protected:
    void SetUp() override {
        figures.cards = {{.name = "x-1", .command = "keyhole figure x-1 --out OUT"},
                         {.name = "x-2", .command = "keyhole figure x-2 --model a --model b --out OUT"},
                         {.name = "x-3", .command = "keyhole bench --paper x", .makeable = false}};
        figures.folder = folder.path() / "papers";
        figures.program = folder.path() / "program";
    }
    /// Makes a program of a shell script. Its fourth argument is the folder that it is to write.
    void program(const std::string& script) {
        write_text_file(figures.program, "#!/bin/sh\n" + script + "\n");
        fs::permissions(figures.program, fs::perms::owner_all);
    }
    void wait() {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (figures.refresh() && figures.running() && std::chrono::steady_clock::now() < end)
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
        figures.refresh();
    }
    reference::TempFolder folder{"paper-figures"};
    PaperFigures figures;
};

const std::string kRecord =
    R"({"figure": "x-1", "models": [], "findings": [{"task": "", "verdict": "fails",)"
    R"( "why": "1 of 2.", "sentences": ["Does not hold here: 1 of 2."], "picture": "x-1"}]})";

TEST_F(PaperFiguresTest, EveryCardOfTheProgramIsACommand) {
    const std::vector<PaperCard> cards = paper_cards();
    EXPECT_GT(cards.size(), 40u);
    std::set<std::string> papers;
    for (const PaperCard& card : cards) {
        papers.insert(card.paper());
        EXPECT_TRUE(card.command.starts_with("keyhole ")) << card.command;
        EXPECT_EQ(card.makeable, card.command.starts_with("keyhole figure " + card.name)) << card.command;
        if (!card.makeable) continue;
        const std::vector<std::string> words = words_of(card, "", "/out folder");
        EXPECT_EQ(words[0], "figure");
        EXPECT_EQ(words.back(), "/out folder");
        for (const std::string& word : words)
            EXPECT_TRUE(word.find("assets/") == std::string::npos || fs::exists(word)) << word;
    }
    EXPECT_EQ(papers, (std::set<std::string>{"a2sf", "keyformer", "mlkv", "tova"}));
}

TEST_F(PaperFiguresTest, AModelIsAWordOfItsOwn) {
    EXPECT_EQ(words_of(figures.cards[0], "/a model", "/o"),
              (std::vector<std::string>{"figure", "x-1", "--out", "/o", "--model", "/a model"}));
}

TEST_F(PaperFiguresTest, WhatTheProgramMakesIsFound) {
    program("mkdir -p \"$4\"; printf '%s' '" + kRecord + "' > \"$4/figure.json\"");
    figures.make("x-1", "/models/tiny.gguf", {});
    EXPECT_EQ(figures.wanted_model(), "tiny");
    EXPECT_NE(what_of([&] { figures.make("x-1", "", {}); }).find("x-1 is being made"), std::string::npos);
    wait();
    EXPECT_EQ(figures.fault(), "");
    ASSERT_EQ(figures.made(0).size(), 1u);
    const MadeFigure& made = figures.made(0)[0];
    EXPECT_EQ(made.model, "tiny");
    EXPECT_EQ(made.folder, figures.folder / "x-1" / "tiny");
    ASSERT_EQ(made.record.findings.size(), 1u);
    EXPECT_EQ(made.record.findings[0].verdict, "fails");
    EXPECT_EQ(made.record.findings[0].picture, "x-1");
    EXPECT_TRUE(figures.made(1).empty());
}

TEST_F(PaperFiguresTest, ACardThatNamesModelsTakesNoOther) {
    program("exit 0");
    figures.make("x-2", "/models/tiny", {});
    EXPECT_EQ(figures.wanted_model(), "several-models");
    wait();
    EXPECT_EQ(figures.fault(), "");
}

TEST_F(PaperFiguresTest, AFailureIsTheLastLineOfTheProgram) {
    program("echo first >&2; echo 'keyhole: cannot read the model' >&2; exit 1");
    figures.make("x-1", "m", {});
    wait();
    EXPECT_EQ(figures.fault(), "x-1 was not made: cannot read the model");
    program("exit 7");
    figures.make("x-1", "m", {});
    wait();
    EXPECT_EQ(figures.fault(), "x-1 was not made: its process ended with status 7");
    EXPECT_TRUE(figures.made(0).empty());
}

TEST_F(PaperFiguresTest, CancelEndsTheProgram) {
    program("exec sleep 600");
    figures.make("x-1", "m", {});
    figures.cancel();
    wait();
    EXPECT_FALSE(figures.running());
    EXPECT_NE(figures.fault().find("cancelled"), std::string::npos) << figures.fault();
}

TEST_F(PaperFiguresTest, RefusesWhatItCannotMake) {
    EXPECT_NE(what_of([&] { figures.make("y-9", "", {}); }).find("no figure 'y-9'"), std::string::npos);
    EXPECT_NE(what_of([&] { figures.make("x-3", "", {}); }).find("keyhole bench --paper x"),
              std::string::npos);
    figures.folder.clear();
    EXPECT_NE(what_of([&] { figures.make("x-1", "", {}); }).find("XDG_DATA_HOME"), std::string::npos);
}

TEST_F(PaperFiguresTest, ARecordComesBackAsItWas) {
    const FigureRecord record{
        "tova-3", {"a", "b"}, {{"needle", "open", "Too few.", {"One.", "Two."}, "needle-map"}}};
    write_text_file(folder.path() / kFigureRecordName,
                    figure_record_text(record, {}, folder.path(), "program", "command", {}));
    const FigureRecord read = read_figure_record(folder.path());
    EXPECT_EQ(read.figure, record.figure);
    EXPECT_EQ(read.models, record.models);
    ASSERT_EQ(read.findings.size(), 1u);
    EXPECT_EQ(read.findings[0].task, "needle");
    EXPECT_EQ(read.findings[0].verdict, "open");
    EXPECT_EQ(read.findings[0].why, "Too few.");
    EXPECT_EQ(read.findings[0].sentences, record.findings[0].sentences);
    EXPECT_EQ(read.findings[0].picture, "needle-map");
}

TEST_F(PaperFiguresTest, RecordsThatCannotBeReadNameTheFieldAndCountAsNotMade) {
    const fs::path made = figures.folder / "x-1" / "m";
    fs::create_directories(made);
    const auto with = [](const std::string& from, const std::string& to) {
        std::string text = kRecord;
        return text.replace(text.find(from), from.size(), to);
    };
    for (const auto& [text, part] :
         {std::pair<std::string, std::string>{"{", "figure.json"},
          {"[]", "figure"},
          {with("fails", "perhaps"), "findings[0].verdict"},
          {with("\"picture\": \"x-1\"", "\"picture\": \"../../x\""), "findings[0].picture"},
          {with("[\"Does not hold here: 1 of 2.\"]", "7"), "findings[0].sentences"},
          {R"({"figure": "x", "models": [], "findings": []})", "findings"}}) {
        write_text_file(made / "figure.json", text);
        EXPECT_NE(what_of([&] { read_figure_record(made); }).find(part), std::string::npos) << text;
        figures.list_made();
        EXPECT_TRUE(figures.made(0).empty()) << text;
    }
    write_text_file(made / "figure.json", kRecord);
    figures.list_made();
    EXPECT_EQ(figures.made(0).size(), 1u);
}

}  // namespace
}  // namespace keyhole::test_paper_figures
