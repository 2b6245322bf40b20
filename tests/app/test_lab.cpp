// The lab: hand-ins whose answers are those of direct runs of the engine pass, each wrong answer fails its
// own exercise, and copies show.
#include "app/lab/lab_table.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/device/make_backend.h"
#include "engine/model/model.h"
#include "tests/app/program_run.h"
#include "tests/reference/source_folder.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <set>

namespace keyhole::test_lab {
namespace {

using Json = nlohmann::json;

struct Bench {
    std::shared_ptr<const Model> model = load_model(testing::kModel);
    std::unique_ptr<Backend> backend = make_backend(model, {BackendChoice::cpu, 2, 0}, nullptr);
    std::shared_ptr<const TaskTexts> texts = [] {
        const auto tasks = reference::source_folder() / "assets" / "tasks";
        return std::make_shared<const TaskTexts>(tasks / "words.json",
                                                 read_text_file(tasks / "narrative.txt"),
                                                 read_text_file(tasks / "passages.txt"));
    }();
    LabBench lab{model, *backend, 2, texts, ""};
};
Bench& bench() {
    static Bench one;
    return one;
}

StudentNumbers numbers_of(const std::string& name) {
    return student_numbers(*bench().model, *bench().texts, seed_of_name(name));
}

/// Answers exercises 1 to 3 by a session of its own, and 4 by the questions of eval.
HandIn right_hand_in(const std::string& name) {
    Bench& b = bench();
    const StudentNumbers numbers = numbers_of(name);
    HandIn in;
    in.file = name + ".json";
    in.name = name;
    in.seed = seed_of_name(name);

    RunSpec spec;
    spec.prompt = numbers.prompt;
    spec.lanes = {parse_lane_spec("full"), parse_lane_spec(numbers.window_lane()),
                  parse_lane_spec(numbers.sink_lane())};
    spec.ignore_eos = true;
    spec.n_generate = numbers.n_steps;
    Session session(b.model, *b.backend, spec);
    auto last = session.prefill();
    std::set<int> kept;
    for (int p = 0; p < numbers.n_prompt + numbers.n_steps; ++p) kept.insert(p);
    const auto drop = [&] {
        for (const Eviction& one : last->lanes[2].evictions)
            if (one.kv_head == 0) kept.erase(one.position);
    };
    drop();
    for (int i = 0; i < numbers.n_steps; ++i) {
        last = session.step();
        drop();
    }
    const int n_heads = b.model->layout().n_kv_heads();
    in.stored = {last->lanes[0].use.stored_tokens / n_heads, last->lanes[1].use.stored_tokens / n_heads,
                 last->lanes[1].use.stored_bytes};
    in.kept = ranges_of({kept.begin(), kept.end()});
    const std::vector<int> tokens = b.model->tokenizer().encode(numbers.prompt);
    std::size_t first = 0;  // token that begins at the code, or just before it
    while (b.model->tokenizer().decode(std::span(tokens).first(first + 1)).size() <=
           numbers.prompt.find(numbers.code))
        ++first;
    in.smallest = numbers.n_prompt - static_cast<int>(first);

    TaskOptions options;
    options.n_questions = kHiddenQuestions;
    options.seed = hidden_seed(in.seed, "");
    options.context = kHiddenContext;
    const QuestionSet set = task_questions(b.model, b.texts, TaskKind::needle, options);
    std::vector<LaneSpec> lanes;
    for (const char* preset : {"window", "h2o", "tova"})
        lanes.push_back(parse_lane_spec(fmt::format("{}:budget={}", preset, numbers.budget)));
    std::vector<int> n_right(3);
    for (int i = 0; i < set.n_questions; ++i) {
        const std::vector<Outcome> found = ask(b.model, *b.backend, lanes, set.make(i));
        for (std::size_t lane = 0; lane < 3; ++lane) n_right[lane] += found[lane].right ? 1 : 0;
    }
    const auto percent = [&](std::size_t lane) { return 100.0 * n_right[lane] / kHiddenQuestions; };
    in.known = {percent(0), percent(1), percent(2)};
    in.byte_lane = "tova:budget=50%,kv_dtype=q8";
    in.own_lane = fmt::format("key:budget={},score=(p),scope=layer", numbers.budget);
    return in;
}

const HandIn& ada() {
    static const HandIn one = right_hand_in("Ada Lovelace");
    return one;
}

std::string passed(const HandInCheck& check) {
    std::string out;
    for (int i = 1; i <= kExercises; ++i)
        if (check.exercises[to_index(i - 1)].passes) out += fmt::format("{}", i);
    return out;
}

TEST(Lab, NumbersFollowTheNameAndDifferBetweenStudents) {
    EXPECT_EQ(seed_of_name("Ada Lovelace"), seed_of_name("ADA lovelace"));
    EXPECT_EQ(student_name("  Ada \t  Lovelace "), "Ada ? Lovelace");  // a tab is no blank
    EXPECT_EQ(student_name(" Ada   Lovelace "), "Ada Lovelace");
    EXPECT_THROW((void)student_name("   "), Error);
    EXPECT_THROW((void)student_name(std::string(81, 'a')), Error);
    EXPECT_NE(hidden_seed(1, ""), hidden_seed(1, "salt"));
    std::set<std::uint64_t> seeds;
    std::set<std::string> prompts;
    for (int i = 0; i < 40; ++i) {
        const StudentNumbers numbers = numbers_of(fmt::format("Student {}", i));
        seeds.insert(numbers.seed);
        prompts.insert(numbers.prompt);
        EXPECT_LT(numbers.window_budget, numbers.n_prompt);
        EXPECT_LT(numbers.sink_budget, numbers.n_prompt);
        EXPECT_NE(numbers.prompt.find(" " + numbers.code), std::string::npos) << numbers.prompt;
        for (int exercise = 1; exercise <= kExercises; ++exercise)
            EXPECT_GT(exercise_question(exercise, numbers).size(), 80u);
    }
    EXPECT_EQ(seeds.size(), 40u);
    EXPECT_EQ(prompts.size(), 40u);
}

TEST(Lab, RangesOfPositions) {
    using Positions = std::vector<int>;
    EXPECT_EQ(positions_of("0-2 9, 11-12"), (Positions{0, 1, 2, 9, 11, 12}));
    EXPECT_EQ(positions_of("9 9 8"), (Positions{8, 9}));
    for (const char* text : {"", " ", "3-1", "a", "-3", "1--2", "0-99999999", "0..3", "1-", "99999999999999"})
        EXPECT_FALSE(positions_of(text)) << text;
    EXPECT_EQ(ranges_of({0, 1, 2, 9, 11, 12}), "0-2 9 11-12");
}

TEST(Lab, AFileIsReadAsItWasWritten) {
    const StudentNumbers numbers = numbers_of("Ada Lovelace");
    Json json = Json::parse(empty_hand_in("Ada Lovelace", numbers));
    const HandIn empty = parse_hand_in(json.dump(), "ada.json");
    EXPECT_EQ(empty.name, "Ada Lovelace");
    EXPECT_TRUE(empty.has_own_seed());
    EXPECT_EQ(empty.stored, HandIn::Stored{});
    EXPECT_TRUE(empty.kept.empty() && !empty.smallest && empty.own_lane.empty());
    json["exercises"][0]["answer"] = {{"full", 193}, {"window", 50}, {"bytes", 307200}};
    json["exercises"][1]["answer"]["kept"] = " 0-3 9\n";
    json["exercises"][2]["answer"]["budget"] = 91;
    json["exercises"][3]["answer"] = {{"window", 12.5}, {"h2o", 0}};
    json["exercises"][5]["answer"]["lane"] = "h2o";
    const HandIn full = parse_hand_in(json.dump(), "ada.json");
    EXPECT_EQ(full.stored, (HandIn::Stored{193, 50, 307200}));
    EXPECT_EQ(full.kept, "0-3 9");
    EXPECT_EQ(full.smallest, 91);
    EXPECT_EQ(full.known, (HandIn::Known{12.5, 0, {}}));
    EXPECT_EQ(full.own_lane, "h2o");
}

TEST(Lab, BrokenFilesAreRefusedAtTheirPlace) {
    const std::string good = empty_hand_in("Ada", numbers_of("Ada"));
    const auto fault = [](const std::string& text) -> std::string {
        try {
            (void)parse_hand_in(text, "x.json");
        } catch (const Error& error) {
            EXPECT_EQ(error.code(), ErrorCode::bad_file);
            return error.what();
        }
        return "none";
    };
    const auto changed = [&](const std::function<void(Json&)>& change) {
        Json json = Json::parse(good);
        change(json);
        return fault(json.dump());
    };
    const auto says = [](const std::string& text, const std::string& part) {
        EXPECT_NE(text.find(part), std::string::npos) << text;
        EXPECT_EQ(text.find('\n'), std::string::npos) << text;
        EXPECT_NE(text.find("x.json"), std::string::npos) << text;
    };
    EXPECT_EQ(fault(good), "none");
    says(fault(good.substr(0, good.size() / 2)), "line");
    says(fault("[]"), "object");
    says(fault(std::string(200, '[')), "nests its values too deep");
    says(changed([](Json& json) { json.erase("seed"); }), "seed");
    says(changed([](Json& json) { json["seed"] = -1; }), "seed");
    says(changed([](Json& json) { json["name"] = ""; }), "name");
    says(changed([](Json& json) { json["exercises"].erase(5); }), "exercises");
    says(changed([](Json& json) { json["exercises"][2] = 3; }), "exercises[2]");
    says(changed([](Json& json) { json["exercises"][2].erase("answer"); }), "exercises[2]");
    says(changed([](Json& json) { json["exercises"][2]["answer"] = {1}; }), "exercises[2].answer");
    says(changed([](Json& json) { json["exercises"][2]["answer"]["budget"] = "91"; }), "answer.budget");
    says(changed([](Json& json) { json["exercises"][3]["answer"]["h20"] = 5; }), "'h20' is not asked for");
    says(changed([](Json& json) { json["exercises"][3]["answer"]["tova"] = 101; }), "answer.tova");
    says(changed([](Json& json) { json["exercises"][5]["answer"]["lane"] = std::string(5000, 'x'); }),
         "answer.lane");
}

TEST(Lab, HostileNamesAreSafe) {
    EXPECT_EQ(file_name_of("../../etc/passwd"), "etc-passwd");
    EXPECT_EQ(file_name_of("Ada  Lovelace; rm -rf $HOME"), "ada-lovelace-rm-rf-home");
    EXPECT_EQ(file_name_of("艾达"), "艾达");
    EXPECT_NE(file_name_of("李雷"), file_name_of("王伟"));
    EXPECT_EQ(file_name_of("\xff; \x1b[31m"), "31m") << "no text";
    EXPECT_EQ(file_name_of("../"), "hand-in");
    Json json = Json::parse(empty_hand_in("Ada", numbers_of("Ada")));
    json["name"] = "=HYPERLINK(\"x\"),\x1b[31m\xe2\x80\xae";
    LabRow row;
    row.file = "a.json";
    row.check.hand_in = parse_hand_in(json.dump(), "a.json");
    EXPECT_EQ(row.check.hand_in.name, "=HYPERLINK(\"x\"),?[31m?");
    const std::string csv = lab_csv(std::span(&row, 1));
    EXPECT_NE(csv.find("\na.json,\"'=HYPERLINK(\"\"x\"\"),?[31m?\","), std::string::npos) << csv;
    EXPECT_EQ(lab_table(std::span(&row, 1)).find('\x1b'), std::string::npos);
}

TEST(Lab, ARightHandInPassesEachExercise) {
    const HandInCheck check = bench().lab.check(ada());
    EXPECT_EQ(passed(check), "123456") << exercise_lines(check, true);
    EXPECT_TRUE(check.passes());
    EXPECT_EQ(ada().stored.full, numbers_of("Ada Lovelace").n_prompt + numbers_of("Ada Lovelace").n_steps);
    // What the engine measured is what the direct runs gave.
    EXPECT_EQ(check.exercises[0].measured, fmt::format("full {}, window {}, bytes {}", *ada().stored.full,
                                                       *ada().stored.window, *ada().stored.bytes));
    EXPECT_EQ(check.exercises[1].measured, "kept " + ada().kept);
    EXPECT_EQ(check.exercises[2].measured, fmt::format("budget {}", *ada().smallest));
    EXPECT_EQ(check.exercises[3].measured, fmt::format("window {}, h2o {}, tova {}", *ada().known.window,
                                                       *ada().known.h2o, *ada().known.tova));
}

TEST(Lab, EachWrongAnswerFailsItsOwnExercise) {
    const StudentNumbers numbers = numbers_of("Ada Lovelace");
    const auto passes = [](const std::function<void(HandIn&)>& change) {
        HandIn in = ada();
        change(in);
        const HandInCheck check = bench().lab.check(in);
        return passed(check) + "\n" + exercise_lines(check, false);
    };
    const auto expect = [](const std::string& found, const std::string& right, const std::string& says) {
        EXPECT_TRUE(found.starts_with(right + "\n")) << found;
        EXPECT_NE(found.find(says), std::string::npos) << found;
    };
    expect(passes([](HandIn& in) { *in.stored.bytes += 1; }), "23456",
           fmt::format("bytes is not {}\n", *ada().stored.bytes + 1));
    expect(passes([](HandIn& in) { in.kept = "0-9"; }), "13456", "kept is not 0-9\n");
    expect(passes([](HandIn& in) { *in.smallest += 1; }), "12456",
           fmt::format("budget is not {}\n", *ada().smallest + 1));
    expect(passes([](HandIn& in) { in.known.tova = *in.known.tova - 30; }), "12356", "tova is not ");
    expect(passes([](HandIn& in) { in.byte_lane = "tova:budget=90%"; }), "12346",
           " % of the bytes (at most ");
    expect(
        passes([&](HandIn& in) { in.own_lane = fmt::format("h2o:budget={},score=(s+p)", numbers.budget); }),
        "12345", "+0.00 nats an answer (p = 1.0000)");
    // What is given away: nothing but what was typed.
    const std::string wrong = passes([](HandIn& in) { in.smallest = 1; });
    EXPECT_EQ(wrong.find(fmt::format(" {}\n", *ada().smallest)), std::string::npos) << wrong;
}

/// A bench keeps what lanes answered, for the next hand-in of the same student alone.
TEST(Lab, NoStudentIsMeasuredByTheQuestionsOfAnother) {
    Bench& b = bench();
    const auto measured = [](LabBench& lab, const std::string& name) {
        HandIn in;
        in.name = name;
        in.seed = seed_of_name(name);
        return lab.check(in).exercises[3].measured;
    };
    int i = 0;  // whose lanes have the same budgets, and so the same names
    while (numbers_of(fmt::format("Student {}", i)).budget != numbers_of("Ada Lovelace").budget) ++i;
    const std::string other = fmt::format("Student {}", i);
    LabBench fresh(b.model, *b.backend, 2, b.texts, "");
    const std::string of_other = measured(fresh, other), of_ada = measured(b.lab, "Ada Lovelace");
    EXPECT_NE(of_ada, of_other) << "their questions differ";
    EXPECT_EQ(measured(b.lab, other), of_other);
    EXPECT_EQ(measured(b.lab, "Ada Lovelace"), of_ada);
}

TEST(Lab, LanesThatAreNoPolicyAreRefused) {
    const int budget = numbers_of("Ada Lovelace").budget;
    const auto texts = [](const std::string& byte_lane, const std::string& own_lane) {
        HandIn in;
        in.name = "Ada Lovelace";
        in.seed = seed_of_name(in.name);
        in.byte_lane = byte_lane;
        in.own_lane = own_lane;
        const HandInCheck check = bench().lab.check(in);
        EXPECT_EQ(passed(check), "") << exercise_lines(check, false);
        EXPECT_EQ(check.exercises[0].text, "not answered");
        return check.exercises[4].text + "\n" + check.exercises[5].text;
    };
    const auto says = [](const std::string& text, const std::string& five, const std::string& six) {
        EXPECT_NE(text.substr(0, text.find('\n')).find(five), std::string::npos) << text;
        EXPECT_NE(text.substr(text.find('\n')).find(six), std::string::npos) << text;
    };
    says(texts("oracle:budget=25%", fmt::format("key:budget={},choose=(future)", budget)), "looks ahead",
         "looks ahead");
    says(texts("tova:budget=25%,kv=mqa", fmt::format("tova:budget={}", budget)), "kv= makes another model",
         "no line of its own");
    says(texts("tova:budget=25%,shadow=on", "key:budget=90,score=(p),scope=layer"), "shadow=on",
         fmt::format("stores 90 tokens (at most {})", budget));
    says(texts("tova:buget=25%", "key:score=(p"), "buget", "key:score=(p");
}

TEST(Lab, CopiesShow) {
    std::vector<LabRow> rows(3);
    rows[0].file = "ada.json";
    rows[0].check.hand_in = ada();
    for (ExerciseCheck& one : rows[0].check.exercises) one.answered = one.passes = true;
    // Bob gave Ada's file his name; Eve began her own, and wrote Ada's answers into it.
    rows[1] = rows[2] = rows[0];
    rows[1].file = "bob.json";
    rows[1].check.hand_in.name = "Bob";
    rows[2].file = "eve.json";
    rows[2].check.hand_in.name = "Eve";
    rows[2].check.hand_in.seed = seed_of_name("Eve");
    rows[2].check.hand_in.own_lane = "key:budget=60,score=(max(0.9 * s, p)),scope=layer";
    for (std::size_t row : {1u, 2u})
        for (std::size_t i = 0; i < 4; ++i) rows[row].check.exercises[i].passes = false;
    mark_copies(rows);
    EXPECT_EQ(rows[0].copied, std::vector<std::string>{}) << "the owner's answers are right";
    ASSERT_GE(rows[1].copied.size(), 2u);
    EXPECT_EQ(rows[1].copied[0], "the seed is that of Ada Lovelace (ada.json)");
    EXPECT_EQ(rows[1].copied[1], "answers 1, 2, 3, 6 as Ada Lovelace (ada.json)");
    EXPECT_EQ(rows[2].copied[0], "answers 1, 2, 3 as Ada Lovelace (ada.json)");
    EXPECT_FALSE(rows[1].check.passes());
    const std::string table = lab_table(rows);
    EXPECT_NE(table.find("the seed is that of Ada Lovelace"), std::string::npos) << table;

    // The same long line, with other blanks and another budget, shows; a short one does not, nor does one
    // equal number.
    std::vector<LabRow> lines(2);
    lines[0].check.hand_in.name = "Fay";
    lines[1].check.hand_in.name = "Gus";
    for (LabRow& row : lines) row.check.hand_in.seed = seed_of_name(row.check.hand_in.name);
    lines[0].check.hand_in.own_lane = "key:budget=60,score=(max(0.97*s, p)+0.01*age)";
    lines[1].check.hand_in.own_lane = "key:budget=52,score=(max(0.97 * s,p) + 0.01*age)";
    lines[0].check.hand_in.smallest = lines[1].check.hand_in.smallest = 90;
    mark_copies(lines);
    ASSERT_EQ(lines[0].copied.size(), 1u);
    EXPECT_TRUE(lines[0].copied[0].starts_with("answers 6 as Gus")) << lines[0].copied[0];
    for (LabRow& row : lines) {
        row.copied.clear();
        row.check.hand_in.own_lane = "key:score=(p)";
    }
    mark_copies(lines);
    EXPECT_TRUE(lines[0].copied.empty());
    lines[1].check.hand_in.name = "FAY";
    mark_copies(lines);
    EXPECT_EQ(lines[0].copied, std::vector<std::string>{"same name as FAY ()"});
}

class LabCommand : public testing::ProgramRun {};

TEST_F(LabCommand, AStudentBeginsFillsInAndChecks) {
    ASSERT_EQ(run("check --new 'Ada Lovelace'"), 0) << output_;
    EXPECT_NE(output_.find("ada-lovelace.json: the exercises of Ada Lovelace, seed "), std::string::npos)
        << output_;
    EXPECT_EQ(read("ada-lovelace.txt"), numbers_of("Ada Lovelace").prompt);
    EXPECT_EQ(run("check --new 'ADA lovelace'"), 2) << "answers must not be lost";
    Json json = Json::parse(read("ada-lovelace.json"));
    std::filesystem::create_directories(folder_ / "class");
    const auto write = [&](const std::string& name, const Json& value) {
        write_text_file(folder_ / "class" / name, value.dump(1));
    };
    const HandIn& in = ada();
    json["exercises"][0]["answer"] = {
        {"full", *in.stored.full}, {"window", *in.stored.window}, {"bytes", *in.stored.bytes}};
    json["exercises"][1]["answer"]["kept"] = in.kept;
    json["exercises"][2]["answer"]["budget"] = *in.smallest;
    json["exercises"][3]["answer"] = {
        {"window", *in.known.window}, {"h2o", *in.known.h2o}, {"tova", *in.known.tova}};
    json["exercises"][4]["answer"]["lane"] = in.byte_lane;
    json["exercises"][5]["answer"]["lane"] = in.own_lane;
    write("ada.json", json);
    EXPECT_EQ(run("check class/ada.json"), 0) << output_;
    EXPECT_NE(output_.find("\n3 when the code is lost    yes  budget is "), std::string::npos) << output_;

    json["name"] = "Bob";
    write("bob.json", json);
    EXPECT_EQ(run("check class"), 1) << output_;
    EXPECT_NE(output_.find("\nAda Lovelace  yes  yes  yes  yes  yes  yes  6 of 6\n"), std::string::npos)
        << output_;
    EXPECT_NE(output_.find("the seed is that of Ada Lovelace (class/ada.json)"), std::string::npos)
        << output_;

    write_text_file(folder_ / "class" / "eve.json", "{\"name\": ");
    EXPECT_EQ(run("check class/eve.json"), 2) << output_;
    EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << output_;
    EXPECT_EQ(run("check class/eve.json class/ada.json --format csv 2> /dev/null"), 2) << output_;
    EXPECT_NE(output_.find(fmt::format("\nclass/ada.json,Ada Lovelace,{},1,1,1,1,1,1,1,6,,\n", in.seed)),
              std::string::npos)
        << output_;
}

TEST_F(LabCommand, SaysWhatIsMissing) {
    for (const auto& [arguments, says] : {std::pair("check", "--new NAME"),
                                          {"check nothing.json", "nothing.json"},
                                          {"check .", "no hand-in"},
                                          {"check --new ''", "name"},
                                          {"check a.json --new Ada", "leave out"},
                                          {"check a.json --out x", "--out"}}) {
        EXPECT_EQ(run(arguments), 2) << arguments << output_;
        EXPECT_NE(output_.find(says), std::string::npos) << arguments << "\n" << output_;
        EXPECT_EQ(std::count(output_.begin(), output_.end(), '\n'), 1) << arguments << "\n" << output_;
    }
}

/// The page and the PDF of the handout are those of its text.
TEST_F(LabCommand, TheHandoutIsTheOneOfItsText) {
    ASSERT_EQ(run("check --handout handout.html"), 0) << output_;
    const auto lab = reference::source_folder() / "assets" / "lab";
    EXPECT_EQ(read("handout.html"), read_text_file(lab / "handout.html"))
        << "write it anew: keyhole check --handout assets/lab/handout.html";
    const std::string pdf = read_text_file(lab / "handout.pdf");
    EXPECT_TRUE(pdf.starts_with("%PDF-"));
    EXPECT_TRUE(pdf.ends_with(fmt::format("% page {:016x}\n", fnv1a(read("handout.html")))))
        << "print it anew: python3 tests/page/print_handout.py";
}

}  // namespace
}  // namespace keyhole::test_lab
