// The manual: how pages are read and drawn, and that they say what the program has.

#include "app/actions/action_table.h"
#include "app/cli/command.h"
#include "app/cli/commands.h"
#include "app/lessons/lesson_list.h"
#include "app/manual/html.h"
#include "app/manual/page.h"
#include "app/manual/terminal.h"
#include "app/papers/figure.h"
#include "app/study/lane_search.h"
#include "app/view/view_export.h"
#include "app/window/gui_command.h"
#include "engine/analysis/measure_table.h"
#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/bench/papers.h"
#include "engine/eval/sweep_grid.h"
#include "engine/eval/tasks.h"
#include "engine/export/options.h"
#include "engine/model/families/family.h"
#include "engine/model/seeded_model.h"
#include "engine/policy/lane_names.h"
#include "engine/policy/lane_spec.h"
#include "engine/policy/preset_table.h"
#include "engine/run/command.h"
#include "tests/reference/source_folder.h"

#include <gtest/gtest.h>

#include <sys/wait.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace keyhole::test_manual {
namespace {

namespace fs = std::filesystem;
using Kind = ManualBlock::Kind;
using Words = std::set<std::string>;

fs::path manual_folder() {
    return reference::source_folder() / "assets" / "manual";
}

const std::vector<ManualPage>& pages() {
    static const std::vector<ManualPage> all = [] {
        std::vector<ManualPage> read;
        for (const std::string& name : manual_page_names(manual_folder()))
            read.push_back(read_manual_page(manual_folder(), name));
        return read;
    }();
    return all;
}

const ManualPage* page_named(std::string_view name) {
    for (const ManualPage& page : pages())
        if (page.name == name) return &page;
    return nullptr;
}

/// Collects all texts of a block, the cells of a table too.
std::vector<const ManualText*> texts_of(const ManualBlock& block) {
    std::vector<const ManualText*> texts = {&block.text};
    for (const auto& row : block.rows)
        for (const ManualText& cell : row) texts.push_back(&cell);
    return texts;
}

void for_each_span(const std::function<void(const ManualPage&, const ManualSpan&)>& visit) {
    for (const ManualPage& page : pages())
        for (const ManualBlock& block : page.blocks)
            for (const ManualText* text : texts_of(block))
                for (const ManualSpan& span : *text) visit(page, span);
}

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines.push_back(line);
    return lines;
}

// --- reading and drawing -----------------------------------------------------------------------------------

constexpr std::string_view kSample = R"md(# A page

Some `code` and **bold** *words*. See [models](models.md), [section 2](policies.md#2-policies) or
[the source](https://example.org/x).

| preset | keeps |
| --- | --- |
| `full` | everything |
| `h2o` | the newest tokens, and those with the most attention |

    keyhole info   # kept as it is

1. one
2. two

## 2.11 Sharing

- a bullet that is long enough to be wrapped
)md";

TEST(Manual, DrawsAPageAsPlainText) {
    EXPECT_EQ(terminal_text(parse_manual_page("a", kSample), {44, false}),
              R"txt(A page

  Some `code` and bold "words". See keyhole
  help models, section 2 (see keyhole help
  policies) or the source
  (https://example.org/x).

  preset  keeps
  ------  ----------------------------------
  `full`  everything
  `h2o`   the newest tokens, and those with
          the most attention

      keyhole info   # kept as it is

  1. one
  2. two

2.11 Sharing

   - a bullet that is long enough to be
     wrapped
)txt");
}

TEST(Manual, EscapesChangeNoWidth) {
    const ManualPage page = parse_manual_page("a", kSample);
    const std::string text = terminal_text(page, {44, true});
    EXPECT_NE(text.find("\033[1mfull\033[22m"), std::string::npos);
    for (const std::string& line : lines_of(std::regex_replace(text, std::regex("\033\\[[0-9]+m"), "")))
        EXPECT_LE(line.size(), 44u) << line;
}

TEST(Manual, FindsSections) {
    const ManualPage page =
        parse_manual_page("a", "# T\n\n## 2. Two\n\na\n\n### 2.1 One\n\nb\n\n## 3. Three\n");
    EXPECT_EQ(section_of(page, "2").blocks.size(), 4u);
    EXPECT_EQ(section_of(page, "2.1").blocks.size(), 2u);
    EXPECT_TRUE(section_of(page, "4").blocks.empty());
    EXPECT_EQ(heading_fragment(page.blocks[3]), "21-one");
}

TEST(Manual, RefusesWhatItDoesNotDraw) {
    for (const char* text : {"<div>\nx\n</div>\n", "> a quote\n", "a\n\n---\n\nb\n", "a &lt; b\n"}) {
        try {
            (void)parse_manual_page("x", text);
            ADD_FAILURE() << "not refused: " << text;
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::unsupported);
            EXPECT_NE(std::string(error.what()).find("manual page x has"), std::string::npos) << error.what();
        }
    }
    EXPECT_EQ(plain_text(parse_manual_page("x", "rewind <row>\n").blocks[0].text), "rewind <row>");
}

/// A browser shows the picture, all else its words; every picture of the manual is there.
TEST(Manual, PicturesAreFilesBesideThePages) {
    const ManualPage page = parse_manual_page("x", "![Heads that **matter**](pictures/a.svg)\n");
    EXPECT_EQ(plain_text(page.blocks.at(0).text), "Heads that matter");
    EXPECT_EQ(page.blocks[0].text[0].picture, "pictures/a.svg");
    EXPECT_NE(manual_html(parse_manual_page("x", "![A \"b\"](pictures/a.svg)\n"))
                  .find("<img src=\"pictures/a.svg\" alt=\"A &quot;b&quot;\" "),
              std::string::npos);
    std::set<std::string> shown;
    for (const ManualPage& one : pages())
        for (const ManualBlock& block : one.blocks)
            for (const ManualSpan& span : block.text)
                if (!span.picture.empty()) shown.insert(span.picture);
    std::set<std::string> there;
    for (const auto& entry : fs::directory_iterator(manual_folder() / "pictures"))
        there.insert("pictures/" + entry.path().filename().string());
    EXPECT_EQ(shown, there);
    EXPECT_EQ(there.size(), 3u) << "one for each of three studies";
}

TEST(Manual, NamesThePagesNearToAnUnknownOne) {
    try {
        (void)read_manual_page(manual_folder(), "modles");
        FAIL();
    } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::wrong_use);
        EXPECT_NE(std::string(error.what()).find("'modles'; the nearest are models,"), std::string::npos)
            << error.what();
    }
    EXPECT_THROW((void)read_manual_page(manual_folder(), "../policies"), Error);
    EXPECT_THROW((void)manual_page_names("/no/such/folder"), Error);
}

struct Ran {
    int status = -1;
    std::string text;  // of both streams
};

Ran run_help(const std::string& arguments) {
    std::FILE* from =
        ::popen(("'" + reference::built("keyhole") + "' help " + arguments + " 2>&1").c_str(), "r");
    Ran ran;
    for (int c = 0; (c = std::fgetc(from)) != EOF;) ran.text += static_cast<char>(c);
    const int status = ::pclose(from);
    if (WIFEXITED(status)) ran.status = WEXITSTATUS(status);
    return ran;
}

TEST(Manual, TheProgramPrintsPagesSectionsAndHelpOfCommands) {
    EXPECT_TRUE(run_help("").text.starts_with("The Keyhole manual\n"));
    EXPECT_EQ(run_help("policies").text, terminal_text(*page_named("policies"), {}));
    EXPECT_TRUE(run_help("policies 2.11").text.starts_with("2.11 MHA, MQA, GQA, MLKV\n"));
    EXPECT_NE(run_help("decode").text.find("keyhole decode [OPTIONS]"), std::string::npos);
    for (const char* wrong : {"modles", "policies none"}) {
        const Ran ran = run_help(wrong);
        EXPECT_EQ(ran.status, 2) << wrong;
        EXPECT_EQ(std::count(ran.text.begin(), ran.text.end(), '\n'), 1) << ran.text;
    }
}

// --- the pages as they are ---------------------------------------------------------------------------------

TEST(Manual, IndexListsEveryPageOnce) {
    Words listed, there;
    for (const ManualBlock& block : page_named("index")->blocks) {
        if (block.kind != Kind::table) continue;
        for (const auto& row : block.rows)
            for (const ManualSpan& span : row.front())
                if (!span.link.empty()) {
                    EXPECT_TRUE(listed.insert(span.link).second) << span.link;
                }
    }
    for (const ManualPage& page : pages())
        if (page.name != "index") there.insert(page.name + ".md");
    EXPECT_EQ(listed, there);
}

TEST(Manual, EveryLinkLeadsSomewhere) {
    int n_links = 0;
    for_each_span([&](const ManualPage& page, const ManualSpan& span) {
        if (span.link.empty() || span.link.starts_with("https://")) return;
        ++n_links;
        const std::size_t hash = span.link.find('#');
        const std::string file = span.link.substr(0, hash);
        const ManualPage* target = file.empty()             ? &page
                                   : !file.ends_with(".md") ? nullptr
                                                            : page_named(file.substr(0, file.size() - 3));
        ASSERT_NE(target, nullptr) << page.name << ".md: no page " << span.link;
        if (hash == std::string::npos) return;
        const std::string fragment = span.link.substr(hash + 1);
        EXPECT_TRUE(std::any_of(target->blocks.begin(), target->blocks.end(),
                                [&](const ManualBlock& block) {
                                    return block.kind == Kind::heading && heading_fragment(block) == fragment;
                                }))
            << page.name << ".md: no heading " << span.link;
    });
    EXPECT_GT(n_links, 20);
}

TEST(Manual, PlacesAreReadFromTextAndLinks) {
    for (const char* text : {"window", "window#panes"})
        EXPECT_EQ(format_manual_place(parse_manual_place(text)), text);
    EXPECT_EQ(place_of_link("policies.md#0-ten-facts"), (ManualPlace{"policies", "0-ten-facts"}));
    EXPECT_EQ(place_of_link("models.md"), (ManualPlace{"models", ""}));
    EXPECT_EQ(place_of_link("#panes"), (ManualPlace{"", "panes"}));
    EXPECT_EQ(place_of_link("https://example.org/a.md"), std::nullopt);
}

TEST(Manual, APlaceMustExist) {
    EXPECT_EQ(read_manual_place(manual_folder(), {"window", "panes"}).name, "window");
    EXPECT_THROW((void)read_manual_place(manual_folder(), {"window", "nothing"}), Error);
    EXPECT_THROW((void)read_manual_place(manual_folder(), {"nothing", ""}), Error);
}

TEST(Manual, EveryPageHasATitle) {
    for (const ManualPage& page : pages()) {
        ASSERT_FALSE(page.blocks.empty()) << page.name;
        EXPECT_EQ(page.blocks.front().kind, Kind::heading) << page.name;
        EXPECT_EQ(page.blocks.front().level, 1) << page.name;
    }
}

// --- against the program's tables --------------------------------------------------------------------------

/// Words in code of the first column of all tables, by the heading of that column. A word ends at a blank or
/// a colon.
std::map<std::string, Words> words_of_tables() {
    std::map<std::string, Words> words;
    for (const ManualPage& page : pages())
        for (const ManualBlock& block : page.blocks) {
            if (block.kind != Kind::table) continue;
            Words& into = words[plain_text(block.rows.front().front())];
            for (const auto& row : block.rows)
                for (const ManualSpan& span : row.front())
                    if (span.code) into.insert(span.text.substr(0, span.text.find_first_of(" :")));
        }
    return words;
}

/// Words of a list; a word ends at a colon.
Words split_words(std::string_view list, char separator) {
    Words words;
    std::istringstream stream{std::string(list)};
    for (std::string word; std::getline(stream, word, separator);) {
        word.erase(0, word.find_first_not_of(' '));
        if (!word.empty()) words.insert(word.substr(0, word.find(':')));
    }
    return words;
}

template <class Range>
Words as_words(const Range& range) {
    return Words(range.begin(), range.end());
}

std::vector<ListedLesson> shipped_lessons() {
    std::vector<ListedLesson> all = list_all_lessons();
    std::erase_if(all, [](const ListedLesson& one) { return one.own; });
    return all;
}

/// The words that each kind of table must list, no more and no less.
std::map<std::string, Words> words_of_program() {
    std::map<std::string, Words> words;
    for (const PresetRow& preset : presets()) words["preset"].emplace(preset.name);
    words["key"] = as_words(lane_spec_keys());
    for (const ExportWord& word : export_words()) words["export"].emplace(word.name);
    words["export"].insert("all");
    words["view"] = split_words(view_word_list(), ',');
    for (const UserAction& action : action_table()) words["action"].emplace(action.id);
    for (const Measure& measure : measures()) words["measure"].emplace(measure.name);
    for (int i = 0; i < kAllTaskKinds; ++i) words["task"].emplace(task_name(static_cast<TaskKind>(i)));
    words["task"].insert({"recall", "all", "ruler"});
    words["paper table"] = as_words(paper_names());
    words["shape"] = as_words(shape_names());
    for (const Family* family : families())
        words["architecture"].insert(family->architectures.begin(), family->architectures.end());
    const CommandLine program("keyhole", "");
    add_gui_command(program);
    add_commands(program);
    for (const CliCommand& command : program.commands()) words["command"].insert(command.name());
    for (const Figure& figure : figures()) words["figure"].emplace(figure.name);
    for (const ListedLesson& one : shipped_lessons()) words["lesson"].insert(one.name);
    return words;
}

std::string only_in(const Words& a, const Words& b) {
    std::string text;
    for (const std::string& word : a)
        if (!b.contains(word)) text += " " + word;
    return text;
}

/// Every flag of the papers' released scripts stands in the manual, with ours or with why there is none.
TEST(Manual, MapsEveryFlagOfThePapersScripts) {
    constexpr std::string_view kFlags =
        // Keyformer f327831: summarize.py, dialogue.py, lm_eval_harness
        "model_name dataset_path save_path model_path score_path attentions_path device task bs "
        "decoder_start_token_id n_obs dtype no_repeat_ngram_size include_special_tokens "
        "clean_up_tokenization_spaces preprocess_workers postprocess_workers no_truncation save_attentions "
        "save_prompt_attentions return_tensors padding max_tokenizer_length max_gen_length max_new_tokens "
        "min_gen_length causal_lm early_stopping output_summaries_only output_sequence_scores "
        "model_parallelize keyformer kv_cache recent tau_init tau_end beam eos_token_id temperature top_k "
        "top_p repetition_penalty do_sample num_return_sequences seed padding_side use_slow_tokenizer "
        "input-path output-path model-name model-path model-type cache-dir token_discard sparse_threshold "
        "prompt_sparse_threshold sparse_itr result-file output-file task-name num-fewshot debug "
        // A2SF a4360f1 to 00a617f: evaluation, generation, plots
        "shots dataset datasets select_budget recent_budget random_budget streaming_budget "
        "forgetting_factor random_method gpu gpus use_compression method budget total_budget num_prompt "
        "layers article_idx config_file window gpus_per_model aj_weight_fn aj_offset rl_checkpoint "
        // MLKV c2ad065
        "num_key_value_layers num_key_value_heads use_key_value_mlp weights_path output_path batch_sizes "
        "sequence_length measure_loss";
    const std::string page =
        read_text_file(reference::source_folder() / "assets/manual/lanes-and-policies.md");
    const std::string table = page.substr(page.find("## Options of the papers' scripts"));
    for (const std::string& flag : split_words(kFlags, ' '))
        EXPECT_TRUE(std::regex_search(table, std::regex("--" + flag + "[ ,|)]"))) << flag;
}

TEST(Manual, TablesListWhatTheProgramHas) {
    const std::map<std::string, Words> of_pages = words_of_tables();
    for (const auto& [kind, expected] : words_of_program()) {
        EXPECT_GE(expected.size(), 5u) << kind;
        const auto found = of_pages.find(kind);
        ASSERT_NE(found, of_pages.end()) << "no table of the manual has a first column '" << kind << "'";
        EXPECT_EQ(only_in(expected, found->second), "") << kind << ": the manual lacks these";
        EXPECT_EQ(only_in(found->second, expected), "") << kind << ": the program lacks these";
    }
}

TEST(Manual, LessonsStandWithTheirNumbersQuestionsAndModels) {
    std::map<std::string, std::vector<std::string>> rows;
    for (const ManualBlock& block : page_named("lessons")->blocks) {
        if (block.kind != Kind::table || plain_text(block.rows[0][0]) != "lesson") continue;
        for (std::size_t r = 1; r < block.rows.size(); ++r) {
            std::vector<std::string>& cells = rows[plain_text(block.rows[r][0])];
            for (const ManualText& cell : block.rows[r]) cells.push_back(plain_text(cell));
        }
    }
    for (const ListedLesson& one : shipped_lessons()) {
        ASSERT_EQ(rows[one.name].size(), 4u) << one.name;
        EXPECT_EQ(rows[one.name][1], std::to_string(one.lesson.number)) << one.name;
        EXPECT_EQ(rows[one.name][2], one.lesson.question) << one.name;
        const bool is_demo = one.lesson.run.model == "keyhole-base";
        EXPECT_EQ(rows[one.name][3], is_demo ? "demo" : one.lesson.run.model) << one.name;
    }
}

TEST(Manual, ActionsStandWithTheirKeys) {
    int n_keys = 0;
    for (const ManualPage& page : pages())
        for (const ManualBlock& block : page.blocks) {
            if (block.kind != Kind::table || plain_text(block.rows[0][0]) != "action") continue;
            for (std::size_t r = 1; r < block.rows.size(); ++r) {
                const UserAction* action = find_action(plain_text(block.rows[r][0]));
                ASSERT_NE(action, nullptr) << plain_text(block.rows[r][0]);
                EXPECT_EQ(plain_text(block.rows[r][1]), shortcut_text(action->shortcut)) << action->id;
                n_keys += action->shortcut.code != 0;
            }
        }
    EXPECT_GT(n_keys, 60);
}

/// Splits a shell line into words, without quotes and comment.
std::vector<std::string> shell_words(const std::string& line) {
    std::vector<std::string> words;
    std::string word;
    bool open = false;
    char quote = 0;
    for (const char c : line) {
        if (quote == 0 && (c == ' ' || c == '#')) {
            if (open) words.push_back(std::exchange(word, ""));
            open = false;
            if (c == '#') return words;
        } else if (c == quote) {
            quote = 0;
        } else if (quote == 0 && (c == '"' || c == '\'')) {
            quote = c;
            open = true;
        } else {
            word += c;
            open = true;
        }
    }
    if (open) words.push_back(word);
    return words;
}

/// Collects the lines of code blocks, with their pages. Joins a line that ends in a backslash with the next.
std::vector<std::pair<std::string, std::string>> code_lines() {
    std::vector<std::pair<std::string, std::string>> lines;
    for (const ManualPage& page : pages())
        for (const ManualBlock& block : page.blocks) {
            std::string joined;
            for (std::string line : lines_of(block.code)) {
                line.erase(0, joined.empty() ? 0 : line.find_first_not_of(' '));
                joined += line;
                if (joined.ends_with('\\')) {
                    joined.pop_back();
                } else {
                    lines.emplace_back(page.name, std::exchange(joined, ""));
                }
            }
        }
    return lines;
}

/// Checks the value of an option that has words of its own.
void expect_valid(const std::string& command, const std::string& option, const std::string& value) {
    if (command == "lesson" && option == "--export") {
        EXPECT_TRUE(value == "site" || value == "page") << value;
    } else if (option == "--lane") {
        // The numbers of a search stand in braces; the page saves `early`, and was sent `theirs`.
        const std::regex number(R"(\{[a-z]+\})"), saved(R"(^(early|\./theirs\.policy\.json)(?=:|$))");
        EXPECT_NO_THROW(
            (void)parse_named_lane(std::regex_replace(std::regex_replace(value, number, "1"), saved, "h2o")))
            << value;
    } else if (option == "--save-policy") {
        EXPECT_NO_THROW((void)parse_lane_spec(value.substr(value.find('=') + 1))) << value;
    } else if (option == "--vary" && command == "search") {
        EXPECT_NO_THROW((void)parse_search_range(value)) << value;
    } else if (option == "--vary") {
        EXPECT_NO_THROW((void)parse_vary(value)) << value;
    } else if (option == "--task") {
        EXPECT_NO_THROW((void)parse_tasks(value)) << value;
    } else if (option == "--export") {
        std::string files = value;
        ExportOptions options;
        EXPECT_NO_THROW((void)take_view_words(files)) << value;
        EXPECT_NO_THROW(parse_export_list(files, options)) << value;
    }
}

TEST(Manual, CommandLinesAreThoseOfTheProgram) {
    const CommandLine program("keyhole", "");
    add_gui_command(program);
    add_commands(program);
    const Words commands = words_of_program()["command"];
    int n_lines = 0;
    for (const auto& [page, line] : code_lines()) {
        SCOPED_TRACE(page + ".md: " + line);
        std::vector<std::string> words = shell_words(line);
        if (words.empty() || (words[0] != "keyhole" && words[0] != "./run")) continue;
        ++n_lines;
        words.erase(words.begin());
        if (words.empty() || words[0].starts_with('-')) words.insert(words.begin(), "gui");
        ASSERT_TRUE(commands.contains(words[0])) << words[0];
        const CliCommand command = program.command(words[0]);
        for (std::size_t i = 1; i < words.size(); ++i) {
            if (!words[i].starts_with("--")) continue;
            EXPECT_TRUE(command.option(words[i])) << words[i];
            if (i + 1 < words.size()) expect_valid(words[0], words[i], words[i + 1]);
        }
    }
    EXPECT_GT(n_lines, 25);
}

TEST(Manual, LaneSpecsInTheTextAreValid) {
    const Words presets = words_of_program()["preset"];
    int n_specs = 0;
    for_each_span([&](const ManualPage& page, const ManualSpan& span) {
        const std::size_t colon = span.text.find(':');
        if (!span.code || colon == std::string::npos || !presets.contains(span.text.substr(0, colon))) return;
        ++n_specs;
        EXPECT_NO_THROW((void)parse_lane_spec(span.text)) << page.name << ".md: " << span.text;
    });
    EXPECT_GE(n_specs, 10);
}

TEST(Manual, LinesOfRunScriptsAreValidAndShowEveryCommand) {
    std::set<std::size_t> shown;
    const std::regex stamped(R"(\+[0-9]+ ([a-z].*))");
    for_each_span([&](const ManualPage& page, const ManualSpan& span) {
        std::smatch match;
        if (!span.code || !std::regex_match(span.text, match, stamped)) return;
        // `rewind +12` counts generated tokens, which only a script can do.
        const std::string command = std::regex_replace(match[1].str(), std::regex(R"(rewind \+)"), "rewind ");
        ASSERT_NO_THROW((void)parse_command(command)) << page.name << ".md: " << span.text;
        shown.insert(parse_command(command).index());
    });
    EXPECT_EQ(shown.size(), std::variant_size_v<Command>) << "a command of run scripts is not shown";
}

TEST(Manual, ReadmeIsShortAndNamesEveryCommand) {
    const std::string text = read_text_file(reference::source_folder() / "README.md");
    const std::vector<std::string> lines = lines_of(text);
    EXPECT_LE(lines.size(), 120u);
    const std::regex link(R"(\]\(([^)#]+))");
    int n_links = 0;
    for (std::sregex_iterator at(text.begin(), text.end(), link), end; at != end; ++at, ++n_links)
        EXPECT_TRUE(fs::exists(reference::source_folder() / (*at)[1].str())) << (*at)[1];
    EXPECT_GE(n_links, 3);
    const Words commands = words_of_program()["command"];
    for (const std::string& command : commands)
        EXPECT_NE(text.find(command == "gui" ? "`keyhole [gui]`" : "`keyhole " + command), std::string::npos)
            << command;
}

// --- the specification that sources cite -------------------------------------------------------------------

/// Collects the numbers of headings, and of the items of numbered lists: item 5 of section 0 is "0.5".
Words sections_of(const ManualPage& page) {
    Words sections;
    std::string section;
    for (const ManualBlock& block : page.blocks) {
        if (block.kind == Kind::heading) section = section_number(block);
        if (block.kind == Kind::heading && !section.empty()) sections.insert(section);
        if (block.kind == Kind::item && block.number > 0 && !section.empty())
            sections.insert(section + "." + std::to_string(block.number));
    }
    return sections;
}

/// Finds the sections that a text cites, as in "policies, section 2.11", "policies 2.2 and section 1" and
/// "policies 2.8 and facts 2 and 3".
std::vector<std::string> cited_sections(std::string text) {
    // A citation may go on in the next line of a comment.
    text = std::regex_replace(text, std::regex(R"(\n\s*(//[/!]?|#|\*)?\s*)"), " ");
    static const std::regex next(
        R"(^(?:,? (?:and )?)(section |sections |fact |facts )?([0-9]+(?:\.[0-9]+)?)(?![0-9A-Za-z_%]))");
    std::vector<std::string> sections;
    constexpr std::string_view kName = "policies";
    for (std::size_t at = text.find(kName); at != std::string::npos; at = text.find(kName, at + 1)) {
        std::string rest = text.substr(at + kName.size(), 80);
        bool fact = false;
        std::smatch match;
        while (std::regex_search(rest, match, next)) {
            if (match[1].matched) fact = match[1].str().starts_with("fact");
            sections.push_back((fact ? "0." : "") + match[2].str());
            rest = match.suffix();
        }
    }
    return sections;
}

TEST(Manual, FindsCitations) {
    using Sections = std::vector<std::string>;
    EXPECT_EQ(cited_sections("(policies, section 2.11, of"), (Sections{"2.11"}));
    EXPECT_EQ(cited_sections("// policies 2.2 and section 1, H2O"), (Sections{"2.2", "1"}));
    EXPECT_EQ(cited_sections("// policies,\n    // section 2.8 and facts 2 and 3, x"),
              (Sections{"2.8", "0.2", "0.3"}));
    EXPECT_EQ(cited_sections("six policies and policies of 2"), Sections{});
}

TEST(Manual, SectionsThatSourcesCiteExist) {
    const Words sections = sections_of(*page_named("policies"));
    const Words kinds = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".glsl", ".frag", ".vert", ".md"};
    int n_cited = 0;
    for (const char* folder : {"engine", "app", "tests", "shaders", "assets"})
        for (const auto& entry : fs::recursive_directory_iterator(reference::source_folder() / folder)) {
            if (!entry.is_regular_file() || !kinds.contains(entry.path().extension().string())) continue;
            for (const std::string& section : cited_sections(read_text_file(entry.path()))) {
                ++n_cited;
                EXPECT_TRUE(sections.contains(section))
                    << entry.path().string() << " cites section " << section << " of policies";
            }
        }
    EXPECT_GT(n_cited, 40);
}

}  // namespace
}  // namespace keyhole::test_manual
