#include "app/base/command_text.h"
#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/json_head.h"
#include "app/cli/output.h"
#include "app/cli/sweep.h"
#include "app/cli/sweep_progress.h"
#include "app/study/attribution.h"
#include "app/study/eval_report.h"
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
#include <memory>
#include <optional>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

constexpr const char* kResult = "attribution.json";

struct AttributeOptions {
    EvalOptions eval;
    std::string by = "head";
    bool take = false;
    int top = 10;
    int budget = 0;  ///< tokens a head that are spent where they help most; 0: no budget is made
    int rest = 0;    ///< tokens of the heads that do not keep all; 0: half of the budget
    int held_out = 0;
    std::string out;
    PlotChoice plots;
    bool json = false;
};

/// The four lanes of --budget, equal in bytes but for the full cache.
struct BudgetLanes {
    std::vector<std::string> labels;
    std::vector<LaneSpec> lanes;
};

/// An attribution in progress.
class AttributeRun {
  public:
    explicit AttributeRun(const AttributeOptions& options) : options_(options) {
        const std::vector<LaneSpec> lanes = options.eval.typed_lanes();
        if (options.eval.run.lanes.size() != 1)
            fail(ErrorCode::wrong_use, "attribute takes one lane; give --lane SPEC, such as h2o:budget=64");
        if (options.eval.n_bounds > 0)
            fail(ErrorCode::wrong_use,
                 "--bounds is for eval and sweep; attribute compares with the full cache");
        if (options.budget == 0 && (options.rest > 0 || options.held_out > 0))
            fail(ErrorCode::wrong_use, "--rest and --held-out are for --budget; give it with them");
        lane_ = lanes.front();
        (void)start_lane(lane_, intervention());  // refuses a lane without a budget
        note_replaced_options(lanes);
    }
    void run();

  private:
    Intervention intervention() const { return options_.take ? Intervention::take : Intervention::give_back; }
    QuestionSet question_set(const EvalOptions& options) const;
    std::vector<LaneSpec> part_lanes() const;
    void answer(const QuestionSet& set, std::span<const LaneSpec> lanes, const char* part);
    void check_parts(const KvLayout& layout) const;
    int rest() const { return options_.rest > 0 ? options_.rest : std::max(1, options_.budget / 2); }
    int n_whole() const;
    BudgetLanes budget_lanes(const Attribution& found) const;
    std::string spend(const Attribution& found);
    void write(const Attribution& found, const std::string& spent, PathLock lock);

    const AttributeOptions& options_;
    LaneSpec lane_;
    LoadedModel loaded_;
    std::vector<CachePart> parts_;
    std::optional<AnswerFile> answers_;
    std::optional<SweepProgress> progress_;
    std::unique_ptr<TwoAtATime> side_by_side_;
    nlohmann::json json_;
};

QuestionSet AttributeRun::question_set(const EvalOptions& options) const {
    std::vector<QuestionSet> sets = options.questions(loaded_.model);
    if (sets.size() != 1)
        fail(ErrorCode::wrong_use, "attribute asks one set of questions; give one task, or one file of data");
    if (!sets.front().measures.empty() && !sets.front().is_task)
        fail(
            ErrorCode::wrong_use,
            "answers in the lanes' own words have no likelihood to compare; give --task NAME or --text FILE");
    return std::move(sets.front());
}

/// Returns the full cache, the lane, and the lane of each part.
std::vector<LaneSpec> AttributeRun::part_lanes() const {
    std::vector<LaneSpec> lanes = {parse_lane_spec("full"), lane_};
    for (const CachePart& part : parts_) lanes.push_back(lane_with_part(lane_, part, intervention()));
    return lanes;
}

void AttributeRun::answer(const QuestionSet& set, std::span<const LaneSpec> lanes, const char* part) {
    const int context = options_.eval.context_of(*loaded_.model);
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    const int n_missing = count_missing(set, asked, lanes, *answers_);
    const double n_all = static_cast<double>(lanes.size()) * set.n_questions;
    progress_->begin_model({static_cast<std::int64_t>(n_all), n_missing, n_all * context,
                            static_cast<double>(n_missing) * context},
                           0);
    progress_->set_part(part);
    answer_missing(*loaded_.model, *side_by_side_, set, asked, lanes, context, *answers_,
                   [&](int n) { progress_->add(n, static_cast<double>(n) * context); });
}

/// Refuses parts that cannot have a budget of their own, before anything is made.
void AttributeRun::check_parts(const KvLayout& layout) const {
    for (const CachePart& part : parts_) {
        const std::vector<std::string> faults =
            check_overrides(lane_with_part(lane_, part, intervention()).policy, head_grid(layout));
        if (!faults.empty())
            fail(ErrorCode::wrong_use, "{} cannot be attributed: {}{}", part_name(part), faults.front(),
                 lane_.policy.scope == Scope::layer && part.kv_head >= 0 ? ", or --by layer" : "");
    }
    if (options_.budget > 0) (void)n_whole();
}

int AttributeRun::n_whole() const {
    const int n = whole_parts(static_cast<int>(parts_.size()), options_.budget, rest(),
                              options_.eval.context_of(*loaded_.model));
    if (n < 1)
        fail(ErrorCode::wrong_use,
             "--budget {} with --rest {} leaves no {} all its tokens; raise --budget or lower --rest",
             options_.budget, rest(), options_.by);
    return n;
}

BudgetLanes AttributeRun::budget_lanes(const Attribution& found) const {
    const int n = n_whole();
    std::vector<CachePart> chosen;
    for (const std::size_t i : ranked(found))
        if (static_cast<int>(chosen.size()) < n) chosen.push_back(found.effects[i].part);
    const std::string words =
        fmt::format("{} {}{} whole, {} elsewhere", n, options_.by, n == 1 ? "" : "s", rest());
    return {{"full", fmt::format("{} in each", options_.budget), "measured: " + words, "other: " + words},
            {parse_lane_spec("full"), changed_lane_spec(lane_, fmt::format("budget={}", options_.budget)),
             lane_with_whole_parts(lane_, chosen, rest()),
             lane_with_whole_parts(lane_, other_parts(parts_, chosen, n), rest())}};
}

/// Spends the budget where the parts helped most, and compares it on questions that were not measured.
/// Returns the lane.
std::string AttributeRun::spend(const Attribution& found) {
    const BudgetLanes budget = budget_lanes(found);
    const std::string spec = format_lane_spec(budget.lanes[2]);
    json_["budget"] = {{"lane", spec}};
    if (!options_.json)
        print_out("\n{} tokens a head, spent where they help most:\n{}\n", options_.budget, spec);
    if (options_.held_out == 0) return spec;
    EvalOptions held_out = options_.eval;
    held_out.seed = options_.eval.seed + 1;
    held_out.n_samples = options_.held_out;
    const QuestionSet set = question_set(held_out);
    answer(set, budget.lanes, "held out");
    const auto outcomes =
        known_answers(set, asked_on(set.identity, loaded_.backend->name()), budget.lanes, *answers_);
    std::vector<LaneScore> scores;
    for (const std::vector<Outcome>& of_lane : outcomes)
        scores.push_back(score_lane(set, of_lane, outcomes.front()));
    ReportLanes lanes{budget.labels, budget.lanes};
    for (const LaneSpec& lane : budget.lanes) {
        const int context = options_.eval.context_of(*loaded_.model);
        lanes.kv_bytes.push_back(stored_kv_bytes(*loaded_.model, *loaded_.backend, lane, context, context));
    }
    json_["budget"]["held_out"] = score_json(std::span(&set, 1), std::span(&lanes, 1), std::span(&scores, 1));
    if (!options_.json)
        print_out("\nQuestions held out (seed {}):\n{}", held_out.seed, score_table(set, lanes, scores));
    return spec;
}

void AttributeRun::run() {
    const fs::path folder = options_.out;
    loaded_ = load_for_run(options_.eval.run);
    const KvLayout layout = layouts_of(*loaded_.model, {lane_}).front();
    parts_ = cache_parts(layout, options_.by == "layer" ? PartKind::layer : PartKind::head);
    check_parts(layout);
    const QuestionSet set = question_set(options_.eval);
    (void)set.make(0);
    const std::vector<LaneSpec> lanes = part_lanes();
    make_folder(folder, "the attribution");
    std::optional<PathLock> lock = PathLock::try_take(folder);
    if (!lock)
        fail(ErrorCode::io,
             "cannot write to {}: another command writes there; wait for it or take another folder",
             folder.string());
    answers_.emplace(folder / "answers.csv");
    progress_.emplace("attribute", folder / "answers.csv");
    side_by_side_ = std::make_unique<TwoAtATime>(loaded_.model, *loaded_.backend,
                                                 options_.eval.run.backend_options().n_threads);
    if (!options_.json) print_out("{}, {}\n", loaded_.model->path().string(), loaded_.backend_text);
    flush_output();
    answer(set, lanes, "");
    const Attribution found =
        attribute(lane_, intervention(), parts_,
                  known_answers(set, asked_on(set.identity, loaded_.backend->name()), lanes, *answers_));
    json_ = attribution_json(found);
    json_.update(json_head(*loaded_.model, loaded_.backend->name()));
    json_.update(options_.eval.about_json(*loaded_.model));
    json_["command"] = command_text();
    if (!options_.json)
        print_out("\n{}: {}\n{}", set.name, set.description,
                  attribution_text(found, set.is_task, static_cast<std::size_t>(options_.top)));
    const std::string spent = options_.budget > 0 ? spend(found) : "";
    write(found, spent, std::move(*lock));
}

void AttributeRun::write(const Attribution& found, const std::string& spent, PathLock lock) {
    const std::string json = json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged(options_.out, "the attribution", std::move(lock));
    std::error_code ignored;
    const bool is_ours = fs::exists(staged.folder() / kResult, ignored);
    write_text_file(staged.path() / "attribution.csv", attribution_csv(found));
    write_text_file(staged.path() / kResult, json);
    if (!spent.empty()) write_text_file(staged.path() / "lane.txt", spent + "\n");
    write_plot_files(attribution_map(found), options_.plots, staged.path() / "attribution");
    staged.publish(is_ours ? staged.files() : std::vector<std::string>{}, kResult);
    if (options_.json) print_out("{}", json);
    print_note("written to {}\n", options_.out);
}

}  // namespace

void add_attribute_command(const CliCommand& program) {
    auto options = std::make_shared<AttributeOptions>();
    const CliCommand command = program.add_command(
        "attribute",
        "rank what a lane's eviction costs, head by head, and spend a budget where it helps most");
    options->eval.add(command);
    command.add_option("--by", options->by, "the parts: KV heads, or all of a layer's")
        .one_of({"head", "layer"})
        .shows_default();
    command.add_flag("--take", options->take,
                     "the other way round: one part evicts, the rest keeps all tokens");
    command.add_option("--top", options->top, "parts in the printed table; attribution.csv has all")
        .within(1, 1 << 20)
        .shows_default();
    command
        .add_option("--budget", options->budget,
                    "also make a lane with so many tokens a head, spent where they help most")
        .within(1, 1 << 24);
    command
        .add_option("--rest", options->rest,
                    "tokens of the heads that do not keep all (default: half of --budget)")
        .within(1, 1 << 24);
    command
        .add_option("--held-out", options->held_out,
                    "compare that lane with equal budgets on so many other questions, of the next seed")
        .within(1, 1 << 24);
    command
        .add_option(
            "-o,--out", options->out,
            "folder for answers.csv, attribution.csv, .json and pictures; the same command goes on there")
        .required();
    add_plot_options(command, options->plots);
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] { AttributeRun(*options).run(); });
}

}  // namespace keyhole
