#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/json_head.h"
#include "app/cli/made_by.h"
#include "app/cli/output.h"
#include "app/cli/sweep_progress.h"
#include "app/study/eval_report.h"
#include "app/study/lane_search.h"
#include "app/study/listed_files.h"
#include "app/study/search_report.h"
#include "app/study/shard_file.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/path_lock.h"
#include "engine/base/staged_folder.h"
#include "engine/eval/missing_answers.h"
#include "engine/run/run_spec.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <set>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

constexpr ListingResult kSearchResult{"search.json", "search", "tried"};

std::vector<std::string> files_of_search() {
    return {kSearchResult.name, "search.csv", "lane.txt"};
}

/// Returns those of an earlier search.
std::vector<std::string> files_of_earlier_search(const fs::path& folder) {
    return files_of_result(folder, kSearchResult, [](const nlohmann::json&) { return files_of_search(); });
}

struct SearchOptions {
    EvalOptions eval;
    std::vector<std::string> varies;
    int n_tries = 64;
    int held_out = 0;        ///< other questions; 0: as many as are asked
    std::string other_text;  ///< the text of those, with --text
    double bytes = 0;        ///< of K and V; 0: those of the lane as given
    std::string other_data;  ///< the file of those, with --data; empty: later questions of the same file
    std::string rank;        ///< nats, right or a measure; empty: nats, or f1 of answers in own words
    int top = 10;
    std::string out;
    bool json = false;
};

/// A search in progress.
class SearchRun {
  public:
    explicit SearchRun(const SearchOptions& options)
        : options_(options), shard_(parse_shard(options.eval.shard)) {
        if (options.eval.run.lanes.size() != 1)
            fail(ErrorCode::wrong_use,
                 "search takes one lane; give --lane SPEC, in which {{a}} may stand for a number");
        const bool has_data = !options.eval.data.files.empty();
        if ((!options.eval.task.empty() || has_data) == !options.other_text.empty())
            fail(ErrorCode::wrong_use,
                 "--text and --held-out-text go together, since the best lane is compared on another text; "
                 "tasks and data have other questions themselves");
        if (!has_data && !options.other_data.empty())
            fail(ErrorCode::wrong_use, "--held-out-data is the other file of --data FILE; give both");
        if (has_data && options.other_data.empty() && options.eval.n_samples == 0)
            fail(ErrorCode::wrong_use,
                 "search needs other questions to compare; say with --samples N how many of the file's first "
                 "ones it may use, or give another file with --held-out-data");
        std::vector<SearchRange> ranges;
        for (const std::string& text : options.varies) ranges.push_back(parse_search_range(text));
        space_.emplace(options.eval.run.lanes.front(), std::move(ranges));
    }
    void run();

  private:
    static constexpr int kBatch = 8;  ///< lanes near the best that are asked together
    bool fits(LaneSpec& lane) const;
    double bytes_of(const LaneSpec& lane) const;
    int n_context() const;  ///< tokens of a question; of data the longest prompt
    int n_wide() const { return std::max(1, options_.n_tries - options_.n_tries / 2); }
    EvalOptions other_questions(int n_asked) const;
    void check_held_out(const QuestionSet& set, const QuestionSet& held_out) const;
    void choose_rank(const QuestionSet& set);
    void begin_progress(const QuestionSet& set, std::span<const SearchTry> wide);
    std::vector<std::vector<Outcome>> answer(const QuestionSet& set, std::span<const LaneSpec> lanes);
    void try_lanes(const QuestionSet& set, std::vector<SearchTry> tries);
    void go_near(const QuestionSet& set);
    void compare(int n_asked);
    void write(PathLock lock);

    const SearchOptions& options_;
    Shard shard_;
    LoadedModel loaded_;
    std::optional<SearchSpace> space_;
    std::optional<LaneSearch> search_;
    double total_ = 0;       ///< bytes
    int n_data_tokens_ = 0;  ///< --data: of the longest prompt
    int n_prompt_ = 0;       ///< tokens of a question that are its prompt
    SearchReport report_;
    std::optional<AnswerFile> answers_;
    std::optional<SweepProgress> progress_;
    std::unique_ptr<TwoAtATime> side_by_side_;
    nlohmann::json json_;
};

int SearchRun::n_context() const {
    return n_data_tokens_ > 0 ? n_data_tokens_ : options_.eval.context_of(*loaded_.model);
}

double SearchRun::bytes_of(const LaneSpec& lane) const {
    return kv_bytes_of(*loaded_.model, *loaded_.backend, lane, n_prompt_, n_context()).after;
}

bool SearchRun::fits(LaneSpec& lane) const {
    return fit_bytes(lane, space_->varies_budget(), n_context(), total_,
                     [&](const LaneSpec& one) { return bytes_of(one); });
}

/// n_asked: questions of the search.
EvalOptions SearchRun::other_questions(int n_asked) const {
    EvalOptions other = options_.eval;
    other.seed = options_.eval.seed + 1;
    if (options_.held_out > 0) other.n_samples = options_.held_out;
    if (!options_.other_text.empty()) other.text = options_.other_text;
    if (!options_.other_data.empty())
        other.data.files = {options_.other_data};
    else if (!other.data.files.empty())
        other.data.n_before = n_asked;
    return other;
}

/// Refuses another file whose questions choose, too.
void SearchRun::check_held_out(const QuestionSet& set, const QuestionSet& held_out) const {
    const std::string& file = options_.other_text.empty() ? options_.other_data : options_.other_text;
    if (file.empty()) return;
    std::set<std::pair<std::vector<int>, std::vector<int>>> choose;
    for (int i = 0; i < set.n_questions; ++i) {
        Question question = set.make(i);
        choose.emplace(std::move(question.prompt), std::move(question.fed));
    }
    for (int i = 0; i < held_out.n_questions; ++i) {
        Question question = held_out.make(i);
        if (choose.contains({std::move(question.prompt), std::move(question.fed)}))
            fail(ErrorCode::wrong_use,
                 "what is held out must not choose: a question of {} is one that the search asks; give "
                 "another file",
                 shown_text(file));
    }
}

/// Answers in own words have no likelihood that lanes could be compared by.
void SearchRun::choose_rank(const QuestionSet& set) {
    std::string rank = options_.rank;
    if (rank.empty()) rank = !set.in_own_words ? "nats" : options_.eval.data.last_number ? "number" : "f1";
    if (rank == "nats" && set.in_own_words)
        fail(
            ErrorCode::wrong_use,
            "--rank nats: answers in the lanes' own words have no likelihood to compare; rank by right or by "
            "a measure, such as f1");
    report_.by_right = rank == "right";
    report_.measures = set.measures;
    report_.in_own_words = set.in_own_words;
    std::string known = set.in_own_words ? "right" : "nats, right";
    for (std::size_t m = 0; m < set.measures.size(); ++m) {
        if (set.measures[m].name == rank) report_.by_measure = m;
        known += ", " + set.measures[m].name;
    }
    if (!report_.by_right && !report_.by_measure && rank != "nats")
        fail(ErrorCode::wrong_use, "--rank {}: these questions are ranked by {}", shown_text(rank), known);
}

/// Counts all lanes that the search may ask; those near the best one are not known yet.
void SearchRun::begin_progress(const QuestionSet& set, std::span<const SearchTry> wide) {
    std::vector<LaneSpec> lanes;
    for (const SearchTry& one : wide) lanes.push_back(one.lane);
    const double context = options_.eval.context_of(*loaded_.model);
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    const std::int64_t n = count_questions(set, shard_);
    const std::int64_t n_later = shard_.is_part() ? 0 : n * (options_.n_tries - std::ssize(wide));
    SweepNeed need;
    need.n_answers = n * std::ssize(wide) + n_later;
    need.n_missing = n_later + count_missing(set, asked, same_lanes(lanes), *answers_, shard_);
    need.work = context * static_cast<double>(need.n_answers);
    need.missing_work = context * static_cast<double>(need.n_missing);
    progress_->begin_model(need, 0);
}

std::vector<std::vector<Outcome>> SearchRun::answer(const QuestionSet& set, std::span<const LaneSpec> lanes) {
    const int context = options_.eval.context_of(*loaded_.model);
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    answer_missing(
        *loaded_.model, *side_by_side_, set, asked, same_lanes(lanes), context, *answers_,
        [&](int n) { progress_->add(n, static_cast<double>(n) * context); }, shard_);
    if (shard_.is_part()) {
        const std::vector<ShardNeed> needs = {shard_need(asked, set.n_questions, lanes)};
        write_shard_file(options_.out, shard_, needs);
        return {};
    }
    return known_answers(set, asked, same_lanes(lanes), *answers_);
}

void SearchRun::try_lanes(const QuestionSet& set, std::vector<SearchTry> tries) {
    std::vector<LaneSpec> lanes;
    for (const SearchTry& one : tries) lanes.push_back(one.lane);
    const auto outcomes = answer(set, lanes);
    for (std::size_t i = 0; i < outcomes.size(); ++i)
        report_.tried.push_back(
            {std::move(tries[i]), bytes_of(lanes[i]), score_lane(set, outcomes[i], outcomes[i])});
}

/// Tries lanes around the best one, ever nearer.
void SearchRun::go_near(const QuestionSet& set) {
    const int n_before = static_cast<int>(report_.tried.size()), n_all = options_.n_tries - n_before;
    for (int n = 0; n < n_all;) {
        check_termination();
        const double reach = 0.3 * std::pow(0.1, static_cast<double>(n) / n_all);
        const std::vector<double> best = report_.tried[report_.ranked().front()].tried.at;
        std::vector<SearchTry> tries = search_->near(best, reach, std::min(kBatch, n_all - n));
        if (tries.empty()) break;  // no other lane is there
        n += static_cast<int>(tries.size());
        try_lanes(set, std::move(tries));
    }
}

/// Compares the best lane with the given one on other questions.
void SearchRun::compare(int n_asked) {
    const EvalOptions other = other_questions(n_asked);
    const QuestionSet set = other.one_set(loaded_.model, "search");
    const SearchTried &given = report_.tried.front(), &best = report_.tried[report_.ranked().front()];
    report_.lanes = {{"full", "as given", "best"},
                     {parse_lane_spec("full"), given.tried.lane, best.tried.lane},
                     {},
                     1,
                     {}};
    if (best.tried.lane == given.tried.lane) {
        report_.lanes.labels.pop_back();
        report_.lanes.specs.pop_back();
    }
    progress_->set_part("held out");
    const auto outcomes = answer(set, report_.lanes.specs);
    for (std::size_t i = 0; i < outcomes.size(); ++i) {
        report_.lanes.kv_bytes.push_back(bytes_of(report_.lanes.specs[i]));
        report_.held_out.push_back(score_lane(set, outcomes[i], outcomes[1]));
    }
    json_["held_out"] =
        score_json(std::span(&set, 1), std::span(&report_.lanes, 1), std::span(&report_.held_out, 1));
    if (options_.json) return;
    print_out("\nOther questions, which chose nothing ({}):\n{}",
              !other.data.files.empty() ? shown_text(other.data.files.front())
              : set.is_task             ? fmt::format("seed {}", other.seed)
                                        : shown_text(other.text),
              score_table(set, report_.lanes, report_.held_out));
    print_out("{}", held_out_text(report_));
}

void SearchRun::run() {
    loaded_ = load_for_run(options_.eval.run);
    const QuestionSet set = options_.eval.one_set(loaded_.model, "search");
    (void)set.make(0);
    choose_rank(set);
    // A held-out set that cannot be asked is refused before the work.
    const QuestionSet held_out = other_questions(set.n_questions).one_set(loaded_.model, "search");
    if (!options_.eval.data.files.empty())
        for (const QuestionSet* one : {&set, &held_out})
            for (int i = 0; i < one->n_questions; ++i) {
                const Question question = one->make(i);
                const std::size_t n = question.prompt.size() + question.asked.size();
                n_data_tokens_ = std::max(n_data_tokens_, static_cast<int>(n));
            }
    n_prompt_ = options_.eval.prompt_of(set, n_context());
    check_held_out(set, held_out);
    const LaneSpec given = space_->given().lane;
    (void)layouts_of(*loaded_.model, {given});
    total_ = options_.bytes > 0 ? options_.bytes : bytes_of(given);
    search_.emplace(*space_, options_.eval.seed, [this](LaneSpec& lane) { return fits(lane); });
    std::vector<SearchTry> wide = search_->wide(n_wide());
    if (wide.empty())
        fail(ErrorCode::wrong_use,
             "no lane of the search fits into {:.0f} bytes; the lane as given takes {:.0f}", total_,
             bytes_of(given));
    make_folder(options_.out, "the search");
    check_way_into(options_.out, "the search", files_of_search(), files_of_earlier_search(options_.out));
    PathLock lock = PathLock::take(options_.out);
    answers_.emplace(fs::path(options_.out) / "answers.csv");
    answers_->set_made_by(made_by(*loaded_.model));
    progress_.emplace("search", fs::path(options_.out) / "answers.csv");
    side_by_side_ = std::make_unique<TwoAtATime>(loaded_.model, *loaded_.backend,
                                                 options_.eval.run.backend_options().n_threads);
    if (!options_.json) print_out("{}, {}\n", loaded_.model->path().string(), loaded_.backend_text);
    flush_output();
    begin_progress(set, wide);
    report_.ranges = space_->ranges();
    report_.is_task = set.is_task;
    report_.total_bytes = total_;
    try_lanes(set, std::move(wide));
    if (shard_.is_part()) {
        print_note("{}", shard_note(options_.out, shard_));
        return;
    }
    go_near(set);
    report_.n_refused = search_->n_refused();
    json_ = search_json(report_);
    if (!options_.json)
        print_out("\n{}: {}\n{}", set.name, set.description,
                  search_text(report_, static_cast<std::size_t>(options_.top)));
    flush_output();
    compare(set.n_questions);
    write(std::move(lock));
}

void SearchRun::write(PathLock lock) {
    json_.update(json_head(*loaded_.model, loaded_.backend->name()));
    json_.update(options_.eval.about_json(*loaded_.model));
    json_["files"] = files_of_search();
    const std::string json = json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged(options_.out, "the search", std::move(lock));
    write_text_file(staged.path() / "search.csv", with_made_by(search_csv(report_), made_by(*loaded_.model)));
    write_text_file(staged.path() / kSearchResult.name, json);
    write_text_file(staged.path() / "lane.txt",
                    format_lane_spec(report_.tried[report_.ranked().front()].tried.lane) + "\n");
    staged.publish(files_of_earlier_search(staged.folder()), kSearchResult.name);
    if (options_.json) print_out("{}", json);
    flush_output();
    print_note("written to {}\n", options_.out);
}

}  // namespace

void add_search_command(const CliCommand& program) {
    auto options = std::make_shared<SearchOptions>();
    const CliCommand command = program.add_command(
        "search",
        "vary a lane's numbers for the best answers at a given total of bytes, on questions that "
        "are not those of the comparison");
    options->eval.add(command);
    options->eval.always_draws = true;
    options->eval.add_shard(command);
    command.option("--lane").set_help(
        "the lane whose numbers vary; {a} stands for a number, as in 'key:choose=(s/(age+{a}))'");
    command
        .add_option("--vary", options->varies,
                    "NAME=LOW..HIGH: a key (alpha=0..1, recent=8..64, budget@L0-3=16..128), or a name in "
                    "braces of the lane; repeat for several")
        .repeated();
    command.add_option("--tries", options->n_tries, "lanes that are tried; half of them near the best so far")
        .within(2, 10'000)
        .shows_default();
    command
        .add_option(
            "--bytes", options->bytes,
            "most bytes of K and V after the text; the budget becomes the largest that fits (default: "
            "as many as the lane takes as given)")
        .within(1.0, 1e15);
    command.add_option(
        "--rank", options->rank,
        "what is best: fewest `nats` of the answer, most `right` answers, of which equals are "
        "ranked by nats, or with --data a measure, such as f1 (default: nats; of answers in own "
        "words f1, or number with --last-number)");
    command
        .add_option("--held-out", options->held_out,
                    "other questions, of the next seed or later in the data, on which the best lane is "
                    "compared (default: as many as are asked)")
        .within(1, 1 << 24);
    command.add_option("--held-out-text", options->other_text, "--text: the other text").some_path();
    command.add_option("--held-out-data", options->other_data, "--data: another file of questions")
        .some_path();
    command.add_option("--top", options->top, "lanes in the printed table; search.csv has all")
        .within(1, 1 << 20)
        .shows_default();
    command
        .add_option("-o,--out", options->out,
                    "folder for answers.csv, search.csv, .json and lane.txt; the same command goes on there")
        .required();
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] {
        if (!options->eval.writes_job(options->out)) SearchRun(*options).run();
    });
}

}  // namespace keyhole
