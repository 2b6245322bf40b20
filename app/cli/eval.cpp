#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/json_head.h"
#include "app/cli/made_by.h"
#include "app/cli/output.h"
#include "app/cli/sweep.h"
#include "app/cli/sweep_progress.h"
#include "app/study/bounds.h"
#include "app/study/eval_report.h"
#include "app/study/head_report.h"
#include "app/study/listed_files.h"
#include "app/study/measure_report.h"
#include "app/study/shard_file.h"
#include "app/study/span_report.h"
#include "app/study/suite_page.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/path_lock.h"
#include "engine/eval/missing_answers.h"
#include "engine/eval/two_at_a_time.h"
#include "engine/run/prompt.h"
#include "engine/run/run_spec.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <memory>
#include <optional>

namespace keyhole {

namespace {

struct EvalCommand {
    EvalOptions eval;
    bool json = false;
    std::string out;     ///< folder for the answers; empty: they are not kept
    bool suite = false;  ///< all tasks, and a page
    std::string by;      ///< head, span: also what single heads do, or what is lost of each span
    int top = 10;        ///< of the heads printed
};

constexpr const char* kSuiteTitle = "What lanes answer";

/// Returns the name of a picture without its ending.
std::string map_name(const QuestionSet& set, const std::string& measure) {
    return fmt::format("by_head_{}_{}", set.name, measure);
}

/// Returns the files of a group that an eval from before there was a list has written. first: the group's
/// own file, which says by its beginning what wrote it.
std::vector<std::string> files_before_lists(const std::filesystem::path& folder, const std::string& group,
                                            const std::string& first) {
    const std::string begin = group == "suite"     ? suite_page_begin(kSuiteTitle)
                              : group == "by_head" ? "questions,lane,spec,layer,query_head,part"
                                                   : "questions,lane,spec,span,tokens";
    std::vector<std::string> files = {first};
    std::error_code error;
    if (!std::filesystem::is_regular_file(folder / first, error) ||
        !read_text_file(folder / first).starts_with(begin))
        return {};
    if (group != "by_head") return files;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
        const std::string name = entry.path().filename().string(), ending = entry.path().extension().string();
        if (name.starts_with("by_head_") && (ending == ".svg" || ending == ".png" || ending == ".pdf"))
            files.push_back(name);
    }
    return files;
}

/// An eval in progress.
class EvalRun {
  public:
    explicit EvalRun(const EvalCommand& command)
        : command_(command),
          options_(command.eval),
          shard_(parse_shard(command.eval.shard)),
          lanes_{options_.labels(), options_.lanes(), {}, 0, options_.sort},
          n_typed_(options_.typed_lanes().size()) {
        lanes_.against = options_.against_index(lanes_.labels, lanes_.specs);
        note_lanes(lanes_.specs);
        options_.note_bounds();
        options_.check_budgets(lanes_.specs);
        if (options_.owner.given({"--top"}) && command.by != "head")
            fail(ErrorCode::wrong_use, "--top is for --by head; give both");
        if (command.suite && command.out.empty())
            fail(ErrorCode::wrong_use, "--suite writes a page of all tasks; give --out FOLDER with it");
        if (shard_.is_part() && command.out.empty())
            fail(ErrorCode::wrong_use,
                 "--shard keeps answers for `keyhole merge`; give --out FOLDER with it");
        const DataArguments& data = options_.data;
        check_is_no_input("--answers", data.answers, data.files);
        check_is_no_input("--answers", data.answers,
                          std::vector{data.few_shot, options_.text, options_.passages});
        if (!command.out.empty() && !options_.data.answers.empty())
            fail(ErrorCode::wrong_use,
                 "--answers writes what lanes say, which --out does not keep; leave out one of them");
    }
    void run();

  private:
    using Outcomes = std::vector<std::vector<Outcome>>;  // [lane][question]
    FileGroups results(std::span<const QuestionSet> sets) const;
    std::vector<std::string> old_files(const FileGroups& groups) const;
    void keep_answers(std::span<const QuestionSet> sets);
    TwoAtATime& side_by_side(const std::vector<QuestionSet>& sets);
    Outcomes answer(const QuestionSet& set);
    Outcomes answer_and_keep(const QuestionSet& set);
    Outcomes answer_anew(const QuestionSet& set);
    void say_kept();
    void report(const QuestionSet& set, const Outcomes& outcomes);
    void note_bytes(const QuestionSet& set, ReportLanes& lanes) const;
    void print_json(std::span<const QuestionSet> sets) const;
    std::vector<QuestionSet> questions();
    std::string make_suite(std::span<const QuestionSet> sets);
    void write_results(const FileGroups& groups, const std::string& page);
    void measure_heads_of(const QuestionSet& set);
    KnownEffects effects_of(const QuestionSet& set) const;
    void add_part_csv(const std::string& csv);
    void measure_spans_of(const QuestionSet& set, const Outcomes& outcomes);

    const EvalCommand& command_;
    const EvalOptions& options_;
    Shard shard_;
    ReportLanes lanes_;    ///< the typed ones, then the floor and the ceiling
    std::size_t n_typed_;  ///< of lanes_
    LoadedModel loaded_;
    std::unique_ptr<TwoAtATime> side_by_side_;
    std::vector<ReportLanes> reported_;                 ///< the lanes of each set, with their bytes
    std::vector<std::vector<LaneScore>> scores_;        ///< of each set
    std::vector<SuiteTask> tasks_;                      ///< --suite: in the order asked
    Outcomes before_;                                   ///< --ask-when both: of the set before
    nlohmann::json by_part_ = nlohmann::json::array();  ///< --by: of heads or spans
    std::string by_part_csv_;
    std::vector<std::pair<std::string, ValueMap>> maps_;  ///< --by head with --out, and their names
    nlohmann::json floors_ = nlohmann::json::array();
    JoinedAnswers joined_;  ///< --suite: of all tasks
    std::string written_;   ///< the lanes' own answers
    std::vector<ShardNeed> needs_;
    // With --out: the answers that are kept there.
    std::optional<PathLock> lock_;
    std::optional<AnswerFile> answers_;
    std::optional<SweepProgress> kept_progress_;
    // Without.
    int n_all_ = 0, n_done_ = 0;
    std::optional<Progress> progress_;
    std::optional<KeptNote> kept_;
};

/// Returns the files beside answers.csv that the command may write, by what they show.
FileGroups EvalRun::results(std::span<const QuestionSet> sets) const {
    FileGroups groups;
    if (shard_.is_part()) return groups;
    if (command_.suite) groups["suite"] = {"suite.html"};
    if (command_.by.empty()) return groups;
    std::vector<std::string>& files = groups["by_" + command_.by];
    files = {"by_" + command_.by + ".csv"};
    if (command_.by != "head") return groups;
    for (const QuestionSet& set : sets)
        for (const std::string& measure : head_map_names())
            for (std::string& file : plot_files(map_name(set, measure))) files.push_back(std::move(file));
    return groups;
}

/// Returns the files of an earlier eval that show the same.
std::vector<std::string> EvalRun::old_files(const FileGroups& groups) const {
    std::vector<std::string> old = listed_files(command_.out, kEvalFiles, groups);
    for (const auto& [group, files] : groups) {
        if (std::ranges::find(old, files.front()) != old.end()) continue;
        const std::vector<std::string> unlisted = files_before_lists(command_.out, group, files.front());
        old.insert(old.end(), unlisted.begin(), unlisted.end());
    }
    return old;
}

void EvalRun::keep_answers(std::span<const QuestionSet> sets) {
    const std::filesystem::path folder = command_.out;
    make_folder(folder, "the answers");
    if (const FileGroups groups = results(sets); !groups.empty()) {
        std::vector<std::string> fresh = {kEvalFiles.name};
        for (const auto& [group, files] : groups) fresh.insert(fresh.end(), files.begin(), files.end());
        check_way_into(folder, "the eval", fresh, old_files(groups));
    }
    lock_ = PathLock::take(folder);
    answers_.emplace(folder / "answers.csv");
    answers_->set_made_by(made_by(*loaded_.model));
    kept_progress_.emplace("eval", folder / "answers.csv");
}

TwoAtATime& EvalRun::side_by_side(const std::vector<QuestionSet>& sets) {
    // All lanes of a question run together; a second question beside it must fit as well.
    int n_caches = 1;
    for (const QuestionSet& set : sets) n_caches = std::max(n_caches, set.n_caches);
    const bool two_fit = lanes_that_fit(*loaded_.model, lanes_.specs, options_.context_of(*loaded_.model),
                                        TwoAtATime::kBytes / 2 / n_caches) == lanes_.specs.size();
    side_by_side_ = std::make_unique<TwoAtATime>(
        loaded_.model, *loaded_.backend, two_fit || answers_ ? options_.run.backend_options().n_threads : 1);
    return *side_by_side_;
}

/// Leaves a line on what a signal ends.
void EvalRun::say_kept() {
    kept_->set(fmt::format(
        "{} of {} questions were answered; {}; --out FOLDER keeps every answer, and goes on from there",
        n_done_, n_all_,
        command_.json || scores_.empty() ? "nothing is kept"
                                         : fmt::format("the {} tables printed are whole", scores_.size())));
}

EvalRun::Outcomes EvalRun::answer(const QuestionSet& set) {
    return answers_ ? answer_and_keep(set) : answer_anew(set);
}

EvalRun::Outcomes EvalRun::answer_and_keep(const QuestionSet& set) {
    const int context = options_.context_of(*loaded_.model);
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    kept_progress_->set_part(set.name);
    answer_missing(
        *loaded_.model, *side_by_side_, set, asked, same_lanes(lanes_.specs), context, *answers_,
        [&](int n) { kept_progress_->add(n, static_cast<double>(n) * context); }, shard_);
    needs_.push_back(shard_need(asked, set.n_questions, lanes_.specs));
    return shard_.is_part() ? Outcomes{} : known_answers(set, asked, same_lanes(lanes_.specs), *answers_);
}

EvalRun::Outcomes EvalRun::answer_anew(const QuestionSet& set) {
    Outcomes outcomes(lanes_.specs.size());
    std::vector<Asked> questions;
    for (int i = 0; i < set.n_questions; ++i) questions.push_back({i, lanes_.specs});
    side_by_side_->ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
        for (std::size_t lane = 0; lane < outcomes.size(); ++lane) outcomes[lane].push_back(found[lane]);
        if (!set.measures.empty() && !options_.data.answers.empty())
            written_ += answer_lines(set, one, found);
        progress_->update(++n_done_);
        say_kept();
    });
    return outcomes;
}

/// Notes what each lane stores after a question's text, and at most on the way. Says which lanes of a budget
/// have evicted nothing.
void EvalRun::note_bytes(const QuestionSet& set, ReportLanes& lanes) const {
    const Model& model = *loaded_.model;
    const std::vector<int> lengths = options_.text_lengths(set, options_.context_of(model));
    for (const LaneSpec& lane : lanes.specs)
        lanes.note(options_.kv_bytes_of(model, *loaded_.backend, set, lengths, lane));
    constexpr int kLong = 1 << 16;  // tokens
    for (std::size_t i = 0; i < n_typed_; ++i)
        if (may_evict(model, lanes.specs[i], kLong / 2, kLong) &&
            !options_.may_evict(model, set, lengths, lanes.specs[i]))
            print_note(
                "keyhole: {}: lane {} evicts nothing: its budget holds these texts, or it evicts after a "
                "prompt alone\n",
                set.name, printable_text(lanes.labels[i]));
}

void EvalRun::report(const QuestionSet& set, const Outcomes& outcomes) {
    std::vector<LaneScore>& scores = scores_.emplace_back();
    for (const std::vector<Outcome>& of_lane : outcomes)
        scores.push_back(score_lane(set, of_lane, outcomes[lanes_.against]));
    ReportLanes& lanes = reported_.emplace_back(lanes_);
    note_bytes(set, lanes);
    const std::vector<Floor> floors = compare_with_floor(set, lanes.specs, n_typed_, outcomes);
    for (nlohmann::json& one : floor_json(set, lanes.specs, floors)) floors_.push_back(std::move(one));
    if (command_.suite) joined_.add(set, outcomes);
    if (!command_.json && !command_.suite) {
        print_out("\n{}{}", score_table(set, lanes, scores),
                  least_memory_text(set, lanes, scores) +
                      protection_text(lanes.labels, lanes.specs, n_typed_) +
                      floor_text(set, lanes.labels, floors) +
                      reference_fails_text(set, lanes, scores,
                                           options_.data.files.empty() ? options_.ask : "data"));
        if (options_.ask_when == "both")
            if (const std::string table = ask_when_table(set, lanes, before_, outcomes); !table.empty())
                print_out("\n{}", table);
        flush_output();
    }
    before_ = outcomes;
}

void EvalRun::print_json(std::span<const QuestionSet> sets) const {
    nlohmann::json json = score_json(sets, reported_, scores_);
    json.update(json_head(*loaded_.model, loaded_.backend->name()));
    json.update(options_.about_json(*loaded_.model));
    json["against"] = lanes_.labels[lanes_.against];
    if (options_.n_bounds > 0) json["floors"] = floors_;
    if (!command_.by.empty()) json[command_.by + "s"] = by_part_;
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Returns the questions that fit into the context. Only a suite leaves some out.
std::vector<QuestionSet> EvalRun::questions() {
    std::vector<QuestionSet> sets = options_.questions(loaded_.model), fitting;
    for (QuestionSet& set : sets) {
        try {
            (void)set.make(0);
        } catch (const Error& error) {
            if (!command_.suite || error.code() != ErrorCode::wrong_use) throw;
            tasks_.push_back({set.name, {}, error.what()});
            continue;
        }
        tasks_.push_back({set.name, {}, {}});
        fitting.push_back(std::move(set));
    }
    if (fitting.empty())
        fail(ErrorCode::wrong_use, "no task of the suite fits: {}",
             tasks_.empty() ? "" : tasks_.front().skipped);
    return fitting;
}

/// Prints the table of a suite, and returns its page.
std::string EvalRun::make_suite(std::span<const QuestionSet> sets) {
    for (std::size_t i = 0; i < sets.size(); ++i)
        for (SuiteTask& task : tasks_)
            if (task.name == sets[i].name) task.scores = scores_[i];
    const ReportLanes& lanes = reported_.front();
    const std::vector<std::string> about = {
        fmt::format("{} ({}), {} questions of each task, context {} tokens.", loaded_.model->path().string(),
                    loaded_.model->hash(), sets.front().n_questions, options_.context_of(*loaded_.model)),
        made_by(*loaded_.model)};
    const std::vector<Floor> floors = joined_.floors(lanes.specs, n_typed_);
    for (nlohmann::json& one : joined_.json(lanes.specs, floors)) floors_.push_back(std::move(one));
    const std::string below = protection_text(lanes.labels, lanes.specs, n_typed_) +
                              joined_.text("all tasks", lanes.labels, floors);
    if (!command_.json) print_out("\n{}{}", suite_text(lanes, tasks_), below);
    return suite_page(lanes, tasks_, kSuiteTitle, about, below);
}

/// Writes the files beside answers.csv, in place of those of an earlier eval.
void EvalRun::write_results(const FileGroups& groups, const std::string& page) {
    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged(command_.out, "the eval", std::move(lock_));
    PlotChoice choice;
    choice.made_by = made_by(*loaded_.model);
    if (!by_part_csv_.empty())
        write_text_file(staged.path() / ("by_" + command_.by + ".csv"),
                        with_made_by(by_part_csv_, choice.made_by));
    for (auto& [name, map] : maps_) write_plot_files(std::move(map), choice, staged.path() / name);
    if (command_.suite) write_text_file(staged.path() / "suite.html", page);
    FileGroups written;
    for (const std::string& file : staged.files())
        for (const auto& [group, files] : groups)
            if (std::ranges::find(files, file) != files.end()) written[group].push_back(file);
    publish_listed(staged, kEvalFiles, written, old_files(groups), choice.made_by);
    if (command_.suite) print_note("written to {}/suite.html\n", command_.out);
}

/// Returns what an attribution in --out found of these questions. Says why one that is there does not count.
KnownEffects EvalRun::effects_of(const QuestionSet& set) const {
    if (command_.out.empty()) return {};
    KnownEffects known =
        known_effects(command_.out, asked_on(set.identity, loaded_.backend->name()), set.n_questions);
    if (!known.why_not.empty())
        print_note(
            "keyhole: {}: no nats are taken from {}/attribution.json: {}; `keyhole attribute` on the same "
            "questions writes them\n",
            set.name, command_.out, known.why_not);
    return known;
}

/// Asks the questions once more with all values of all rows, and says what each head did.
void EvalRun::measure_heads_of(const QuestionSet& set) {
    const std::vector<LaneSpec> typed = options_.typed_lanes();
    std::vector<LaneHeads> heads(n_typed_);
    {
        Progress progress("eval by head", set.n_questions);
        progress.set_part(set.name);
        for (int i = 0; i < set.n_questions; ++i) {
            check_termination();
            add_heads(loaded_.model, *loaded_.backend, typed, set.make(i), heads);
            progress.update(i + 1);
        }
    }
    const std::vector<KvLayout> layouts = layouts_of(*loaded_.model, typed);
    const KnownEffects known = effects_of(set);
    std::vector<HeadReport> reports;
    for (std::size_t i = 0; i < heads.size(); ++i) {
        make_means(heads[i]);
        reports.push_back({lanes_.labels[i], lanes_.specs[i], layouts[i], heads[i], {}});
        if (known.lane == answer_lane(lanes_.specs[i])) reports.back().effects = known.nats;
    }
    if (!command_.out.empty())
        for (HeadMap& one : head_maps(set.name, reports))
            maps_.emplace_back(map_name(set, one.name), std::move(one.map));
    for (nlohmann::json& one : head_json(set.name, reports)) by_part_.push_back(std::move(one));
    add_part_csv(head_csv(set.name, reports));
    if (!command_.json) print_out("{}", head_text(reports, static_cast<std::size_t>(command_.top)));
    flush_output();
}

/// Adds the lines of a set; the header stands once.
void EvalRun::add_part_csv(const std::string& csv) {
    by_part_csv_ += by_part_csv_.empty() ? csv : csv.substr(csv.find('\n') + 1);
}

/// Reads the questions once more, and says what each lane held of their spans.
void EvalRun::measure_spans_of(const QuestionSet& set, const Outcomes& outcomes) {
    ReportLanes typed = lanes_;
    typed.labels.resize(n_typed_);
    typed.specs.resize(n_typed_);
    std::vector<LaneSpans> spans(n_typed_);
    std::vector<std::string> asked;
    {
        Progress progress("eval by span", set.n_questions);
        progress.set_part(set.name);
        for (int i = 0; i < set.n_questions; ++i) {
            check_termination();
            const Question question = set.make(i);
            asked.push_back(question.asks_for);
            add_spans(loaded_.model, *loaded_.backend, typed.specs, question, spans);
            progress.update(i + 1);
        }
    }
    for (LaneSpans& lane : spans) make_means(lane);
    const std::vector<SpanReport> reports = span_reports(typed, spans, asked, outcomes, !set.in_own_words);
    for (nlohmann::json& one : span_json(set.name, reports)) by_part_.push_back(std::move(one));
    add_part_csv(span_csv(set.name, reports));
    if (!command_.json) print_out("{}", span_text(reports));
    flush_output();
}

void EvalRun::run() {
    loaded_ = load_for_run(options_.run);
    if (const std::string why = options_.run.chat ? chat_notice(*loaded_.model) : ""; !why.empty())
        print_note("keyhole: {}\n", why);
    const std::vector<QuestionSet> sets = questions();
    if (!options_.data.answers.empty() && sets.front().measures.empty())
        fail(ErrorCode::wrong_use,
             "--answers writes what lanes say or choose, and a target is only read; leave it out");
    if (!options_.data.answers.empty()) check_can_write(options_.data.answers);
    if (command_.by == "head")
        for (const QuestionSet& set : sets) check_heads_of(set);
    if (!command_.out.empty()) keep_answers(sets);
    if (!command_.json)
        print_out("{}, {}\n{}", loaded_.model->path().string(), loaded_.backend_text, options_.names_text());
    flush_output();
    TwoAtATime& both = side_by_side(sets);
    if (answers_) {
        SweepNeed need;
        const double context = options_.context_of(*loaded_.model);
        for (const QuestionSet& set : sets) {
            const std::string asked = asked_on(set.identity, loaded_.backend->name());
            need.n_answers += std::ssize(lanes_.specs) * count_questions(set, shard_);
            need.n_missing += count_missing(set, asked, same_lanes(lanes_.specs), *answers_, shard_);
        }
        need.work = context * static_cast<double>(need.n_answers);
        need.missing_work = context * static_cast<double>(need.n_missing);
        kept_progress_->begin_model(need, 0);
    } else {
        both.hold(lanes_.specs);
        for (const QuestionSet& set : sets) n_all_ += set.n_questions;
        progress_.emplace("eval", n_all_);
        kept_.emplace("no question was answered yet");
    }
    for (const QuestionSet& set : sets) {
        if (progress_ && sets.size() > 1) progress_->set_part(set.name);
        const Outcomes outcomes = answer(set);
        if (!shard_.is_part()) report(set, outcomes);
        if (command_.by == "head" && !shard_.is_part()) measure_heads_of(set);
        if (command_.by == "span" && !shard_.is_part()) measure_spans_of(set, outcomes);
    }
    if (shard_.is_part()) {
        write_shard_file(command_.out, shard_, needs_);
        print_note("{}", shard_note(command_.out, shard_));
        return;
    }
    const std::string page = command_.suite ? make_suite(sets) : "";
    if (const FileGroups groups = results(sets); !groups.empty() && !command_.out.empty())
        write_results(groups, page);
    if (command_.json) print_json(sets);
    if (!options_.data.answers.empty()) write_text_file(options_.data.answers, written_);
}

}  // namespace

void add_eval_command(const CliCommand& program) {
    auto options = std::make_shared<EvalCommand>();
    const CliCommand command =
        program.add_command("eval",
                            "measure lanes side by side: perplexity of a text, right answers in "
                            "recall tasks or to your own questions");
    options->eval.add(command);
    options->eval.add_bounds(command);
    options->eval.add_table(command);
    options->eval.add_shard(command);
    command
        .add_option("-o,--out", options->out,
                    "folder for answers.csv, which keeps every answer: the same command goes on there")
        .some_path();
    command.add_option("--answers", options->eval.data.answers,
                       "data: file for what every lane answered, one JSON object a line");
    command.add_flag("--suite", options->suite,
                     "all tasks of recall and ruler, and instructions, that fit into --context: a table and "
                     "a page of them (suite.html in --out), with the least memory that keeps 90 % of the "
                     "reference");
    command
        .add_option(
            "--by", options->by,
            "`head`: also what each query head holds of the answer, attends to and loses; in --out as "
            "by_head.csv, with the nats of an attribution that stands there, and as maps of layers by heads. "
            "`span`: what each lane lost of "
            "the system message, the context, the instruction and the spans that your data name; by_span.csv")
        .one_of({"head", "span"});
    command.add_option("--top", options->top, "--by head: heads in the printed table")
        .within(1, 1 << 20)
        .shows_default();
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] {
        if (options->suite && options->eval.task.empty()) {
            options->eval.task = "recall,ruler,instructions";
            if (options->eval.n_samples == 0) options->eval.n_samples = 20;
        }
        if (!options->eval.writes_job(options->out)) EvalRun(*options).run();
    });
}

}  // namespace keyhole
