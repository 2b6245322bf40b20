// Grids of lanes and the file of a sweep's answers.
#include "tests/reference/session_run.h"

#include "engine/base/mapped_file.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/shard.h"
#include "engine/eval/sweep_grid.h"

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace keyhole::test_vary {
namespace {

using Values = std::vector<std::string>;

TEST(Vary, ReadsRangesAndLists) {
    EXPECT_EQ(parse_vary("budget=64..1024*2"), (Vary{"budget", {"64", "128", "256", "512", "1024"}, true}));
    EXPECT_EQ(parse_vary("alpha=0..1+0.1").values,
              (Values{"0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.7", "0.8", "0.9", "1"}));
    EXPECT_EQ(parse_vary("budget=10%..90%+40%").values, (Values{"10%", "50%", "90%"}));
    EXPECT_EQ(parse_vary("budget=10..30%+10").values, (Values{"10%", "20%", "30%"}));
    EXPECT_EQ(parse_vary("budget=32,100..200+50,7"),
              (Vary{"budget", {"32", "100", "150", "200", "7"}, false}));
    EXPECT_EQ(parse_vary("scope=head,layer").values, (Values{"head", "layer"}));
    EXPECT_EQ(parse_vary("tau=1,1..2,1..2@cosine").values, (Values{"1", "1..2", "1..2@cosine"}));
    EXPECT_EQ(parse_vary("budget=64..100*2").values, (Values{"64"}));
    EXPECT_EQ(parse_vary("alpha@L0-1=0.5").key, "alpha@L0-1");
    EXPECT_EQ(value_number("12.5%"), 12.5);
    EXPECT_TRUE(std::isnan(value_number("head")));
}

TEST(Vary, RefusesInOneLine) {
    for (const char* text :
         {"budget", "budget=", "budgt=64", "budget=64..128", "budget=64..32*2", "budget=0..32*2",
          "budget=1..9*1", "budget=1..9+0", "budget=a..9+1", "alpha=0..1+0.0001", "budget=1..inf*2",
          "budget=nan..9+1", "budget=1..9+nan", "budget=0x1..9+1", "bud\nget=1"})
        EXPECT_EQ(reference::error_of([&] { parse_vary(text); }, ErrorCode::wrong_use).find('\n'),
                  std::string::npos);
    std::string many = "budget=1";
    for (int i = 2; i < 3000; ++i) many += fmt::format(",{}", i);
    reference::error_of([&] { parse_vary(many); }, ErrorCode::wrong_use);
}

TEST(Vary, GridsHaveAnEndAndEachKeyOnce) {
    const std::vector<LaneSpec> lanes = {parse_lane_spec("h2o")};
    const Vary budgets = parse_vary("budget=1..1000+1"), sinks = parse_vary("sinks=1..1000+1");
    EXPECT_NE(reference::error_of(
                  [&] {
                      make_grid(lanes, {budgets, sinks});
                  },
                  ErrorCode::wrong_use)
                  .find("at most 10000"),
              std::string::npos);
    EXPECT_NE(reference::error_of(
                  [&] {
                      make_grid(lanes, {budgets, budgets});
                  },
                  ErrorCode::wrong_use)
                  .find("--vary budget is given twice"),
              std::string::npos);
    EXPECT_EQ(make_grid(lanes, {budgets}).size(), 1000u);
}

TEST(Vary, ListsOfOtherThingsAreReadTheSameWay) {
    EXPECT_EQ(parse_values("--depths", "0..100+25"), (Values{"0", "25", "50", "75", "100"}));
    EXPECT_EQ(parse_values("--lengths", "128,512..2048*2"), (Values{"128", "512", "1024", "2048"}));
    EXPECT_NE(reference::error_of([] { parse_values("--depths", "9..1+1"); }, ErrorCode::wrong_use)
                  .find("--depths: the range '9..1+1' runs backwards"),
              std::string::npos);
}

TEST(Vary, GridTakesEveryCombinationOnce) {
    const auto spec = [](const char* text) { return parse_lane_spec(text); };
    const std::vector<GridCell> cells = make_grid({spec("full"), spec("h2o"), spec("a2sf")},
                                                  {parse_vary("budget=8,16"), parse_vary("alpha=0.5,1")});
    ASSERT_EQ(cells.size(), 9u);
    EXPECT_EQ(cells[0].lane, "full");
    EXPECT_TRUE(cells[0].values.empty());
    EXPECT_EQ(cells[1].spec, spec("h2o:budget=8,alpha=0.5"));
    EXPECT_EQ(cells[2].spec, spec("h2o:budget=8"));
    EXPECT_EQ(cells[4].values, (Values{"16", "1"}));
    EXPECT_EQ(cells[5].lane, "a2sf");
    EXPECT_EQ(cells[4].lane_index, 1);
    EXPECT_EQ(cells[5].lane_index, 2);
    EXPECT_EQ(make_grid({spec("h2o"), spec("h2o")}, {parse_vary("budget=8,8,16")}).size(), 2u);
    reference::error_of([&] { make_grid({spec("h2o")}, {parse_vary("scope=heads")}); }, ErrorCode::wrong_use);
}

TEST(Vary, FullVariesInHowItSharesKvHeads) {
    EXPECT_EQ(parse_vary("kv=mha,(mlkv:m=4,g=1),mqa").values, (Values{"mha", "(mlkv:m=4,g=1)", "mqa"}));
    EXPECT_EQ(parse_vary("kv=(mlkv:m=3,g=1)").values, Values{"(mlkv:m=3,g=1)"});
    const std::vector<GridCell> layers =
        make_grid({parse_lane_spec("full")}, {parse_vary("kv=(mlkv:m=3,g=1),(mlkv:m=3,g=2)")});
    ASSERT_EQ(layers.size(), 2u);
    EXPECT_EQ(layers[0].spec.sharing.n_kv_layers, 3);
    EXPECT_EQ(layers[0].spec.sharing.n_kv_heads, 1);
    EXPECT_EQ(layers[1].spec.sharing.n_kv_heads, 2);
    const std::vector<GridCell> cells = make_grid({parse_lane_spec("full"), parse_lane_spec("h2o")},
                                                  {parse_vary("kv=mha,mqa"), parse_vary("budget=8,16")});
    ASSERT_EQ(cells.size(), 6u);
    EXPECT_EQ(cells[1].spec, parse_lane_spec("full:kv=mqa"));
    EXPECT_EQ(cells[1].values, (Values{"mqa", ""}));
    EXPECT_EQ(cells[5].spec, parse_lane_spec("h2o:budget=16,kv=mqa"));
}

class Answers : public ::testing::Test {
  protected:
    void TearDown() override { std::filesystem::remove(path_); }
    const std::filesystem::path path_ =
        std::filesystem::temp_directory_path() / ("keyhole_answers_" + std::to_string(getpid()));
};

TEST_F(Answers, AreReadBackAndGoOnAfterACutLine) {
    Outcome outcome{1.0 / 3, 5, 7, true};
    outcome.distance = 120;
    outcome.depth = 0.25;
    outcome.held = 0.5;
    {
        AnswerFile file(path_);
        file.add("needle seed=1", "h2o:budget=8,alpha=0.5", 3, outcome);
        file.add("needle seed=1", "full", 4, {2, 1, 1, false});
        file.flush();
    }
    std::ofstream(path_, std::ios::app) << "needle seed=1,full,5,1,0.";
    {
        AnswerFile file(path_);
        const auto found = file.find("needle seed=1", "h2o:budget=8,alpha=0.5", 3);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->nats, outcome.nats);  // to the bit
        EXPECT_TRUE(found->right);
        EXPECT_EQ(found->n_tokens, 5);
        EXPECT_EQ(found->n_bytes, 7);
        EXPECT_EQ(found->distance, 120);
        EXPECT_EQ(found->depth, 0.25);
        EXPECT_EQ(found->held, 0.5);
        EXPECT_TRUE(std::isnan(file.find("needle seed=1", "full", 4)->held));
        EXPECT_FALSE(file.find("needle seed=1", "full", 4)->right);
        EXPECT_FALSE(file.find("needle seed=1", "full", 5));
        EXPECT_FALSE(file.find("needle seed=2", "full", 4));
        file.add("needle seed=1", "full", 5, outcome);
        file.flush();
    }
    EXPECT_TRUE(AnswerFile(path_).find("needle seed=1", "full", 5));
    const std::string text = read_text_file(path_);
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 4);
}

/// A file that is not a sweep's answers keeps its bytes.
TEST_F(Answers, RefuseAnotherFile) {
    const std::string header = "questions,lane,question,right,nats,tokens,bytes\n",  // still read
        with_measures = "questions,lane,question,right,nats,tokens,bytes,measures\n",
                      with_place =
                          "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held\n",
                      with_kl =
                          "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl\n",
                      now = with_kl.substr(0, with_kl.size() - 1) + ",made_by\n",
                      own = header + "q,full,0,1,0.5,2,3\n";
    struct Case {
        std::string text;
        const char* says;
    };
    for (const Case& c : {Case{"something else\n1,2\n", ":1 "},
                          {"a list without a line end", ":1 "},
                          {"x", ":1 "},
                          {header + "q,full,0,1,nan,2,3\n", ":2 is no answer of a sweep: nats: 'nan'"},
                          {own + "q,full,1,1,inf,2,3\n", ":3 is no answer of a sweep: nats: 'inf'"},
                          {header + "q,full,0,1,-5,2,3\n", "nats: '-5'"},
                          {header + "q,full,0,1,0x1p3,2,3\n", "nats: '0x1p3'"},
                          {header + "q,full,0,1,1.5abc,2,3\n", "nats: '1.5abc'"},
                          {header + "q,full,0,1,1e999,2,3\n", "nats: '1e999'"},
                          {header + "q,full,0,1,0.5,0,3\n", "tokens: '0'"},
                          {header + "q,full,0,1,0.5,-4,3\n", "tokens: '-4'"},
                          {header + "q,full,0,1,0.5,2147483647,3\n", "tokens: '2147483647'"},
                          {header + "q,full,0,1,0.5,2,-1\n", "bytes: '-1'"},
                          {header + "q,full,0,2,0.5,2,3\n", "right: '2'"},
                          {header + "q,full,0,yes,0.5,2,3\n", "right: 'yes'"},
                          {header + "q,full,-1,1,0.5,2,3\n", "question: '-1'"},
                          {header + "q,full, 0,1,0.5,2,3\n", "question: ' 0'"},
                          {header + "q,full,0,1,0.5,2\n", "has 6 fields"},
                          {header + "\n", "has 1 fields"},
                          {header + "q,full,0,1,0.5,2,3,4\n", "has 8 fields"},
                          {with_measures + "q,full,0,1,0.5,2,3\n", "has 7 fields"},
                          {with_measures + "q,full,0,1,0.5,2,3,0.5;x\n", "measure: 'x'"},
                          {with_measures + "q,full,0,1,0.5,2,3,1.5\n", "measure: '1.5'"},
                          {with_place + "q,full,0,1,0.5,2,3,,,,1.5\n", "held: '1.5'"},
                          {with_place + "q,full,0,1,0.5,2,3,,-1,,\n", "distance: '-1'"},
                          {with_kl + "q,full,0,1,0.5,2,3,,,,,-1\n", "kl: '-1'"},
                          {with_kl + "q,full,0,1,0.5,2,3,,,,\n", "has 11 fields, not 12"},
                          {now + "q,full,0,1,0.5,2,3,,,,,1\n", "has 12 fields, not 13"},
                          {with_place + "q,full,0,1,0.5,2,3,\n", "has 8 fields, not 11"}}) {
        std::ofstream(path_, std::ios::binary) << c.text;
        const std::string message = reference::error_of([&] { AnswerFile file(path_); }, ErrorCode::bad_file);
        EXPECT_NE(message.find(c.says), std::string::npos) << message;
        EXPECT_NE(message.find(path_.string()), std::string::npos) << message;
        EXPECT_EQ(read_text_file(path_), c.text);
    }
    for (const std::string cut : {"", "quest", "questions,lane,question,right,nats,tokens,bytes"}) {
        std::ofstream(path_, std::ios::binary) << cut;
        { AnswerFile file(path_); }
        EXPECT_EQ(read_text_file(path_), now) << cut;
    }
}

/// Files of earlier versions are read, and written anew with the fields that they lack.
TEST_F(Answers, OfEarlierVersionsGoOn) {
    std::ofstream(path_, std::ios::binary) << "questions,lane,question,right,nats,tokens,bytes,measures\n"
                                              "q,\"h2o:budget=8,alpha=0.5\",0,1,0.5,2,3,0.5;1\n";
    {
        AnswerFile file(path_);
        const auto found = file.find("q", "h2o:budget=8,alpha=0.5", 0);
        ASSERT_TRUE(found);
        EXPECT_EQ(found->measures, (std::vector<double>{0.5, 1}));
        EXPECT_EQ(found->distance, 0);
        EXPECT_TRUE(std::isnan(found->depth));
    }
    EXPECT_EQ(read_text_file(path_),
              "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n"
              "q,\"h2o:budget=8,alpha=0.5\",0,1,0.5,2,3,0.5;1,,,,,\n");
    std::ofstream(path_, std::ios::binary) << "questions,lane,question,right,nats,tokens,bytes\n"
                                              "q,h2o:budget=8,0,1,0.5,2,3\n";
    EXPECT_TRUE(AnswerFile(path_).find("q", "h2o:budget=8,kv_dtype=f32", 0));
    EXPECT_EQ(read_text_file(path_),
              "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl,made_by\n"
              "q,\"h2o:budget=8,kv_dtype=f32\",0,1,0.5,2,3,,,,,,\n");
}

/// The first answer of each maker names it. A maker with line ends stays in its line.
TEST_F(Answers, SayWhatMadeThem) {
    std::ofstream(path_, std::ios::binary)
        << "questions,lane,question,right,nats,tokens,bytes,measures,distance,depth,held,kl\n"
           "q,full,0,1,0.5,2,3,,,,,0.25\n";
    {
        AnswerFile file(path_);
        EXPECT_EQ(file.find("q", "full", 0)->kl, 0.25);
        file.set_made_by("Keyhole 1, \"x\"\ny");
        for (int i = 1; i < 3; ++i) file.add("q", "full", i, {2, 1, 1, false});
        file.flush();
    }
    {
        AnswerFile file(path_);
        EXPECT_TRUE(file.find("q", "full", 2));
        file.set_made_by("Keyhole 2");
        file.add("q", "full", 3, {2, 1, 1, false});
        file.flush();
    }
    std::vector<std::string> makers;
    for (const std::vector<std::string>& fields : csv_lines(read_text_file(path_)))
        makers.push_back(fields.at(12));
    EXPECT_EQ(makers, (std::vector<std::string>{"made_by", "", "Keyhole 1, \"x\" y", "", "Keyhole 2"}));
    EXPECT_TRUE(AnswerFile(path_).find("q", "full", 1));
}

/// A lane's name in the file says what its file of calibration holds, not its path alone.
TEST_F(Answers, OfAnotherCalibrationAreNotReused) {
    const LaneSpec plain = parse_lane_spec("expected:budget=8");
    EXPECT_EQ(answer_lane(plain), "expected:budget=8");
    const auto with = [&](std::uint64_t digest) {
        auto read = std::make_shared<Calibration>();
        read->digest = digest;
        LaneSpec lane = plain;
        lane.policy.calibration = {"queries.safetensors", std::move(read)};
        return lane;
    };
    EXPECT_EQ(format_lane_spec(with(1)), format_lane_spec(with(2)));
    AnswerFile file(path_);
    file.add("q", answer_lane(with(1)), 0, {1, 1, 1, true});
    EXPECT_TRUE(file.find("q", answer_lane(with(1)), 0));
    EXPECT_FALSE(file.find("q", answer_lane(with(2)), 0));
}

/// Shares keep all their digits.
TEST_F(Answers, ComeBackAsTheyWere) {
    Outcome outcome{1.0 / 3, 1, 1, true};
    outcome.depth = 2.0 / 3;
    outcome.held = 1.0 / 230.4;
    {
        AnswerFile file(path_);
        file.add("q", "full", 0, outcome);
        file.flush();
    }
    const Outcome again = AnswerFile(path_).find("q", "full", 0).value();
    EXPECT_EQ(again.depth, outcome.depth);
    EXPECT_EQ(again.held, outcome.held);
}

TEST_F(Answers, RefusePipesAndWhatIsNotFinite) {
    ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
    EXPECT_NE(reference::error_of([&] { AnswerFile file(path_); }, ErrorCode::bad_file).find("pipe"),
              std::string::npos);
    std::filesystem::remove(path_);
    AnswerFile file(path_);
    const auto add = [&](double nats) { file.add("q", "full", 0, {nats, 1, 1, false}); };
    reference::error_of([&] { add(std::nan("")); }, ErrorCode::bad_file);
    reference::error_of([&] { add(HUGE_VAL); }, ErrorCode::bad_file);
    file.flush();
    EXPECT_FALSE(AnswerFile(path_).find("q", "full", 0));
}

TEST(ShardOfQuestions, TakesEveryNth) {
    const Shard second = parse_shard("2/3");
    for (int i = 0; i < 9; ++i) EXPECT_EQ(second.has(i), i % 3 == 1) << i;
    EXPECT_FALSE(parse_shard("").is_part());
    EXPECT_EQ(shard_text(second), "2/3");
    for (const char* wrong : {"0/3", "4/3", "2", "a/b", "2/", "/3", "1/10001", "-1/3"})
        EXPECT_NE(reference::error_of([&] { (void)parse_shard(wrong); }, ErrorCode::wrong_use)
                      .find("is no share of the questions; write 1/4"),
                  std::string::npos)
            << wrong;
}

TEST(Csv, FieldsComeBack) {
    const Values fields{"plain", "with,comma", "with \"quotes\"", ""};
    std::string line;
    for (const std::string& field : fields) line += (line.empty() ? "" : ",") + csv_field(field);
    EXPECT_EQ(split_csv(line), fields);
    EXPECT_EQ(csv_lines("a,b\n1,\"two\nlines\"\n\n3"),
              (std::vector<Values>{{"a", "b"}, {"1", "two\nlines"}, {""}, {"3"}}));
}

/// A sweep continued with another model or backend asks every question again and says so. Its own earlier
/// answers are reused.
TEST_F(Answers, OfOtherModelsAndBackendsAreKeptApart) {
    const std::string set = "needle seed=1 model=0123456789abcdef", other = "needle seed=1 model=fedcba98",
                      far = "needle seed=2 model=0123456789abcdef";
    EXPECT_EQ(asked_on(set, "cpu, 2 threads, AVX2"), set);  // as in files of earlier versions
    const std::string cuda = asked_on(set, "cuda, NVIDIA H200");
    EXPECT_NE(cuda, set);
    EXPECT_EQ(cuda, asked_on(set, "cuda, another device"));
    {
        AnswerFile file(path_);
        for (int i = 0; i < 3; ++i) file.add(set, "full", i, {1, 1, 1, true});
        file.add(far, "full", 0, {1, 1, 1, true});
        EXPECT_EQ(file.others(set), "");
        EXPECT_FALSE(file.find(cuda, "full", 0));
        file.add(cuda, "full", 0, {2, 1, 1, false});
        file.add(other, "full", 0, {2, 1, 1, false});
        file.add(other, "h2o:budget=8", 0, {2, 1, 1, false});
        file.flush();
    }
    const AnswerFile again(path_);
    const std::string on_cuda = again.others(cuda), on_cpu = again.others(set);
    EXPECT_NE(on_cuda.find("3 answers of this model on cpu"), std::string::npos) << on_cuda;
    EXPECT_NE(on_cuda.find("2 answers of another model (fedcba98) on cpu"), std::string::npos) << on_cuda;
    EXPECT_NE(on_cuda.find("answers on cuda"), std::string::npos) << on_cuda;
    EXPECT_EQ(on_cuda.find('\n'), std::string::npos);
    EXPECT_NE(on_cpu.find("1 answers of this model on cuda"), std::string::npos) << on_cpu;
    EXPECT_NE(again.others(set + " tokenizer=01").find("3 answers of this model with another tokenizer"),
              std::string::npos)
        << again.others(set + " tokenizer=01");
    EXPECT_EQ(again.find(cuda, "full", 0)->nats, 2);
    EXPECT_EQ(again.find(set, "full", 0)->nats, 1);
}

}  // namespace
}  // namespace keyhole::test_vary
