// A search for a lane's numbers: what it proposes, at which bytes, and what the command reports; job files.
#include "app/study/job_file.h"
#include "app/study/lane_search.h"
#include "app/study/search_report.h"
#include "engine/base/error.h"
#include "tests/app/program_run.h"
#include "tests/reference/session_run.h"
#include "tests/reference/source_folder.h"
#include "tests/reference/tiny_model.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>

namespace keyhole::test_search {
namespace {

TEST(LaneSearch, ReadsRanges) {
    EXPECT_EQ(parse_search_range("alpha=0..1"), (SearchRange{"alpha", 0, 1}));
    EXPECT_EQ(parse_search_range("recent=10%..50%"), (SearchRange{"recent", 10, 50, "%"}));
    EXPECT_EQ(parse_search_range("budget@L0-3=-1.5..16"), (SearchRange{"budget@L0-3", -1.5, 16}));
    for (const char* text :
         {"alpha", "alpha=1", "=0..1", "alpha=1..0", "alpha=1..1", "alpha=a..b", "a=0..nan"})
        EXPECT_THROW((void)parse_search_range(text), Error) << text;
}

TEST(LaneSearch, PutsNumbersIntoSpecsAndFormulas) {
    const SearchSpace space("key:budget=8,choose=(s/(age+{a}))",
                            {{"a", 1, 3}, {"recent", 0, 6}, {"alpha", 0, 1}});
    EXPECT_FALSE(space.ranges()[0].is_whole);
    EXPECT_TRUE(space.ranges()[1].is_whole);
    EXPECT_FALSE(space.ranges()[2].is_whole);
    const SearchTry one = space.at({0.25, 0.4, 0.123456});
    EXPECT_EQ(one.values, (std::vector<std::string>{"1.5", "2", "0.123"}));
    EXPECT_EQ(one.lane, parse_lane_spec("key:budget=8,choose=(s/(age+1.5)),recent=2,alpha=0.123"));
    const SearchTry given = space.given();
    EXPECT_EQ(given.values, (std::vector<std::string>{"2", "0", "1"}));
    EXPECT_EQ(given.at, (std::vector<double>{0.5, 0, 1}));
    EXPECT_EQ(given.lane, parse_lane_spec("key:budget=8,choose=(s/(age+2))"));
    EXPECT_THROW((SearchSpace{"key:choose=(s/(age+{a}))", {{"alpha", 0, 1}}}), Error) << "a has no range";
    EXPECT_THROW((SearchSpace{"h2o", {{"beta", 0, 1}}}), Error) << "no such key";
    EXPECT_THROW((SearchSpace{"h2o", {}}), Error);
    EXPECT_EQ(reference::error_of(
                  [] {
                      SearchSpace("full", {{"alpha", 0, 1}});
                  },
                  ErrorCode::wrong_use),
              "the lane 'full' evicts nothing, so no number of it can be searched; give one with a budget, "
              "such as h2o:budget=64");
    EXPECT_NE(reference::error_of(
                  [] {
                      SearchSpace("sink:budget=16", {{"alpha", 0, 1}});
                  },
                  ErrorCode::wrong_use)
                  .find("--vary alpha: none of its values changes the lane; leave it out. The newest tokens"),
              std::string::npos);
    (void)SearchSpace("h2o", {{"alpha", 0, 1}});  // --bytes gives it a budget
    EXPECT_THROW((SearchSpace{"h2o", {{"alpha", 0, 1}, {"alpha", 0, 1}}}), Error);
}

/// 10 bytes a token of the budget, and 100 beside them.
TEST(LaneSearch, FitsTheBudgetToTheBytes) {
    const auto bytes_of = [](const LaneSpec& lane) { return 100 + 10 * lane.policy.budget.value; };
    LaneSpec lane = parse_lane_spec("h2o:budget=5");
    EXPECT_TRUE(fit_bytes(lane, false, 1000, 279, bytes_of));
    EXPECT_EQ(lane, parse_lane_spec("h2o:budget=17"));
    EXPECT_TRUE(fit_bytes(lane, false, 12, 279, bytes_of));
    EXPECT_EQ(lane, parse_lane_spec("h2o:budget=12")) << "no more than the context";
    EXPECT_FALSE(fit_bytes(lane, false, 1000, 109, bytes_of));
    EXPECT_TRUE(fit_bytes(lane, true, 1000, 220, bytes_of));
    EXPECT_FALSE(fit_bytes(lane, true, 1000, 219, bytes_of));
}

TEST(LaneSearch, ProposesEachLaneOnce) {
    const SearchSpace space("h2o:budget=8", {{"alpha", 0, 1}, {"recent", 0, 4}});
    const auto fits = [](LaneSpec& lane) { return lane.policy.recent.value != 3; };
    LaneSearch search(space, 7, fits), again(space, 7, fits), other(space, 8, fits);
    const std::vector<SearchTry> wide = search.wide(20);
    ASSERT_EQ(wide.size(), 20u);
    EXPECT_EQ(wide.front().lane, parse_lane_spec("h2o:budget=8")) << "the lane as given is the first";
    std::set<std::string> specs;
    double least = 1, most = 0;
    for (const SearchTry& one : wide) {
        EXPECT_TRUE(specs.insert(format_lane_spec(one.lane)).second);
        EXPECT_NE(one.lane.policy.recent.value, 3);
        least = std::min(least, one.lane.policy.alpha);
        most = std::max(most, one.lane.policy.alpha);
    }
    EXPECT_LT(least, 0.1);
    EXPECT_GT(most, 0.9);
    EXPECT_GT(search.n_refused(), 0);
    const std::vector<SearchTry> same = again.wide(20), others = other.wide(20);
    EXPECT_EQ(same[7].lane, wide[7].lane) << "the same seed proposes the same lanes";
    EXPECT_NE(others[7].lane, wide[7].lane);
    for (const SearchTry& one : search.near(std::vector<double>{0.5, 0.5}, 0.05, 8)) {
        EXPECT_NEAR(one.at[0], 0.5, 0.16);
        EXPECT_TRUE(specs.insert(format_lane_spec(one.lane)).second);
    }
    // Five values of `recent` less the one that does not fit, and no more.
    LaneSearch few(SearchSpace("h2o:budget=8,recent=0", {{"recent", 0, 4}}), 1, fits);
    EXPECT_EQ(few.wide(50).size(), 4u);
    EXPECT_TRUE(few.near(std::vector<double>{0.5}, 0.3, 8).empty());
}

LaneScore score(double right, double nats) {
    LaneScore one;
    one.accuracy.value = right;
    one.nats.value = nats;
    one.n_questions = 20;
    return one;
}

TEST(SearchReport, RanksAndSaysWhatOtherQuestionsSay) {
    SearchReport report{{{"alpha", 0, 1}}, {}, false, {}, {}, false, true, 1000, 2};
    for (const auto& [alpha, s] :
         {std::pair(1.0, score(0.5, 2)), std::pair(0.3, score(0.25, 1)), std::pair(0.7, score(0.75, 3))})
        report.tried.push_back(
            {{parse_lane_spec(fmt::format("h2o:alpha={}", alpha)), {alpha}, {fmt::format("{}", alpha)}, true},
             500,
             s});
    report.tried.back().tried.is_wide = false;
    EXPECT_EQ(report.ranked(), (std::vector<std::size_t>{1, 0, 2}));
    const std::string text = search_text(report, 1);
    EXPECT_NE(text.find("3 lanes tried on 20 questions, 2 spread over the ranges and 1 near the best"),
              std::string::npos)
        << text;
    EXPECT_NE(text.find("as given"), std::string::npos) << "it is shown below the best ones: " << text;
    EXPECT_NE(text.find("The best: h2o:alpha=0.3"), std::string::npos) << text;
    report.by_right = true;
    EXPECT_EQ(report.ranked(), (std::vector<std::size_t>{2, 0, 1}));
    report.held_out = {score(1, 0), score(0.5, 2), score(0.5, 1.5)};
    report.by_right = false;
    report.held_out[2].nats_difference = {-0.5, {-0.8, -0.2}};
    EXPECT_TRUE(held_out_text(report).ends_with("on these: better than as given.\n"))
        << held_out_text(report);
    report.held_out[2].nats_difference = {-0.5, {-1.2, 0.2}};
    // z is 1.96 x 0.5 / 0.7 = 1.4: 20 questions x (2.8016 / 1.4)^2 = 80.1.
    EXPECT_NE(held_out_text(report).find("better than as given stays open; about 81 questions would decide"),
              std::string::npos)
        << held_out_text(report);
    report.held_out[2].nats_difference = {0.5, {0.2, 0.8}};
    EXPECT_TRUE(held_out_text(report).ends_with("on these: worse than as given.\n")) << held_out_text(report);
    report.held_out.pop_back();
    EXPECT_NE(held_out_text(report).find("No lane tried was better"), std::string::npos);
}

class SearchCommand : public testing::ProgramRun {
  protected:
    std::string command() const {
        return "search --model '" + tiny_.folder().string() + "' --text '" + path("text.txt") +
               "' --held-out-text '" + path("other.txt") +
               "' --context 64 --prefill 48 --samples 3 --lane h2o:budget=8,alpha=0.1 --vary alpha=0..1 "
               "--vary "
               "recent=0..7 --tries 12";
    }
    std::string out(const std::string& name) const { return " --out '" + path(name) + "'"; }
    void SetUp() override {
        ProgramRun::SetUp();
        std::ofstream(path("text.txt")) << reference::random_text(400, 3);
        std::ofstream(path("other.txt")) << reference::random_text(400, 4);
    }
    reference::TinyModel tiny_{reference::TinyShape{}};
};

TEST_F(SearchCommand, FindsALaneThatEvalConfirms) {
    ASSERT_EQ(run(command() + " --json" + out("a")), 0) << output_;
    const std::size_t begin = output_.find('{');
    const nlohmann::json found = nlohmann::json::parse(output_.substr(begin, output_.rfind('}') + 1 - begin));
    EXPECT_EQ(found.at("tried"), 12);
    ASSERT_EQ(found.at("lanes").size(), 12u);
    const double bytes = found.at("bytes").get<double>();
    double before = 0;
    for (const nlohmann::json& lane : found["lanes"]) {
        EXPECT_LE(lane.at("kv_bytes").get<double>(), bytes);
        EXPECT_GE(lane.at("nats").get<double>(), before);
        before = lane["nats"].get<double>();
    }
    EXPECT_EQ(found.at("best"), found["lanes"][0].at("spec"));
    EXPECT_EQ(found.at("held_out").at("lanes").size(), 3u) << "the lane as given is not the best";
    EXPECT_EQ(read("a/lane.txt"), found["best"].get<std::string>() + "\n");
    EXPECT_EQ(lines("a/search.csv").size(), 1u + 12);
    // 12 lanes on 3 windows, and three lanes on three others.
    EXPECT_EQ(lines("a/answers.csv").size(), 1u + 12 * 3 + 3 * 3);
    const std::string eval = "eval --model '" + tiny_.folder().string() + "' --text '" + path("text.txt") +
                             "' --context 64 --prefill 48 --samples 3 --lane '" +
                             found["best"].get<std::string>() + "' --json";
    ASSERT_EQ(run(eval), 0) << output_;
    const nlohmann::json lane = nlohmann::json::parse(output_).at("lanes").at(0);
    EXPECT_NEAR(std::log(lane.at("perplexity").get<double>()), found["lanes"][0]["nats"].get<double>(), 1e-4);
}

TEST_F(SearchCommand, GoesOnAndIsShared) {
    ASSERT_EQ(run(command() + out("a")), 0) << output_;
    const std::string answers = read("a/answers.csv"), csv = read("a/search.csv");
    std::ofstream(path("a/answers.csv"), std::ios::binary) << answers.substr(0, answers.size() / 2);
    ASSERT_EQ(run(command() + out("a")), 0) << output_;
    EXPECT_EQ(read("a/search.csv"), csv);
    // Shards try the lanes that are spread over the ranges; the joined folder goes on to the same result.
    for (const char* shard : {"1", "2"})
        ASSERT_EQ(run(command() + " --shard " + shard + "/2" + out(std::string("s") + shard)), 0) << output_;
    ASSERT_EQ(run("merge '" + path("s1") + "' '" + path("s2") + "'" + out("j")), 0) << output_;
    EXPECT_EQ(lines("j/answers.csv").size(), 1u + 6 * 3);
    ASSERT_EQ(run(command() + out("j")), 0) << output_;
    EXPECT_EQ(read("j/search.csv"), csv);
}

TEST_F(SearchCommand, RefusesWhatItCannotSearch) {
    const auto refuses = [&](const std::string& options, const std::string& words) {
        EXPECT_EQ(run("search --model '" + tiny_.folder().string() + "' --context 64 " + options + out("r")),
                  2)
            << options << "\n"
            << output_;
        EXPECT_NE(output_.find(words), std::string::npos) << options << "\n" << output_;
        EXPECT_FALSE(std::filesystem::exists(path("r/answers.csv"))) << options;
    };
    const std::string text = "--text '" + path("text.txt") + "' ",
                      both = text + "--held-out-text '" + path("other.txt") + "' ";
    refuses(both + "--vary alpha=0..1", "search takes one lane");
    refuses(both + "--lane h2o", "a search varies 1 to 8 numbers");
    refuses(text + "--lane h2o --vary alpha=0..1", "--held-out-text go together");
    refuses(both + "--lane h2o --vary beta=0..1", "beta");
    refuses(both + "--lane h2o --vary alpha=1..0", "--vary 'alpha=1..0': the lower end comes first");
    refuses(both + "--lane h2o --vary alpha=0..1+0.1",
            "'1+0.1' is no number; a range has two ends and no step");
    refuses(both + "--lane h2o --vary alpha=0..2", "--vary alpha=0..2: alpha is a number from 0 to 1");
    refuses(both + "--lane 'key:choose=(s+{a})' --vary b=1..2", "--vary b: the lane has no {b}");
    refuses(both + "--lane 'key:choose=(s+{a})' --vary alpha=0..1", "{a}");
    refuses(both + "--lane h2o:budget=8 --vary alpha=0..1 --bytes 10", "no lane of the search fits");
}

TEST(JobFile, RunsShardsAndJoinsThem) {
    JobPlan plan{JobKind::parallel,
                 "/opt/keyhole",
                 "/home/me",
                 "keyhole eval --job parallel --shards 2 --lane "
                 "'x=h2o:budget=8' --out OUT --json",
                 "my out",
                 2};
    const std::string text = job_text(plan);
    EXPECT_NE(text.find("cd /home/me\n"), std::string::npos) << text;
    EXPECT_NE(text.find("eval --lane '\\''x=h2o:budget=8'\\'' --out='\\''my out-SHARD'\\'' --json --shard "
                        "SHARD/2' ::: 1 2"),
              std::string::npos)
        << text;
    EXPECT_NE(
        text.find("\"$KEYHOLE\" merge 'my out-1' 'my out-2' --out 'my out' &&\n\"$KEYHOLE\" eval --lane "
                  "'x=h2o:budget=8' --out='my out' --json\n"),
        std::string::npos)
        << text;
    plan.kind = JobKind::slurm;
    plan.command = "keyhole sweep --job=slurm --shards=2 -o OUT";
    plan.out = "out";
    const std::string slurm = job_text(plan);
    EXPECT_NE(slurm.find("--array=1-2 --output=out/shard-%a.txt"), std::string::npos) << slurm;
    EXPECT_NE(slurm.find("--wrap='\"$KEYHOLE\" sweep --out=out-\"$SLURM_ARRAY_TASK_ID\" --shard "
                         "\"$SLURM_ARRAY_TASK_ID\"/2'"),
              std::string::npos)
        << slurm;
    EXPECT_EQ(slurm.find("--job=slurm"), slurm.rfind("--job=slurm"))
        << "in the first comment alone: " << slurm;
}

/// The scripts are run with the real programs, over ssh to this machine and on a cluster of this machine,
/// where those are installed.
class JobRun : public SearchCommand {
  protected:
    std::string eval() const {
        return "eval --model '" + tiny_.folder().string() + "' --text '" + path("text.txt") +
               "' --context 64 --prefill 48 --samples 5 --lane full --lane h2o:budget=8";
    }
    /// Returns the exit status of a script in tests/job; 77: what it needs is not installed, as it says.
    int script(const std::string& name) {
        const std::string command = "cd '" + path("") + "' && sh '" + reference::source_folder().string() +
                                    "/tests/job/" + name + "' job/job.sh > script.txt 2>&1";
        const int status = std::system(command.c_str());
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    void runs(const std::string& kind, const std::string& name, const std::string& results) {
        ASSERT_EQ(run(eval() + " --out whole"), 0) << output_;
        ASSERT_EQ(run(eval() + " --job " + kind + " --shards 2 --out job"), 0) << output_;
        EXPECT_NE(output_.find("sh job/job.sh"), std::string::npos) << output_;
        EXPECT_FALSE(std::filesystem::exists(path("job/answers.csv")));
        const int status = script(name);
        if (status == 77) GTEST_SKIP() << read("script.txt");
        ASSERT_EQ(status, 0) << read("script.txt") << read("job/shard-1.txt") << read("job/results.txt");
        EXPECT_EQ(lines("job-2/answers.csv").size(), 1u + 2 * 2);
        EXPECT_EQ(answers("job/answers.csv"), answers("whole/answers.csv"));
        EXPECT_NE(read(results).find("perplexity"), std::string::npos) << read(results);
    }
};

TEST_F(JobRun, OfParallelOverSsh) {
    runs("parallel", "parallel_over_ssh.sh", "script.txt");
}

TEST_F(JobRun, OfSlurm) {
    runs("slurm", "slurm_on_loopback.sh", "job/results.txt");
}

TEST_F(JobRun, IsRefusedWithoutAFolderAndWithAShard) {
    EXPECT_EQ(run(eval() + " --job slurm"), 2);
    EXPECT_NE(output_.find("give --out FOLDER"), std::string::npos) << output_;
    EXPECT_EQ(run(eval() + " --job slurm --shard 1/2 --out job"), 2);
    EXPECT_EQ(run("figure a2sf-1 --job slurm --out job"), 2);
    EXPECT_NE(output_.find("is no sweep"), std::string::npos) << output_;
}

}  // namespace
}  // namespace keyhole::test_search
