#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/json_head.h"
#include "app/cli/made_by.h"
#include "app/cli/output.h"
#include "app/cli/sweep.h"
#include "app/cli/sweep_progress.h"
#include "app/study/attribution.h"
#include "app/study/budget_forms.h"
#include "app/study/eval_report.h"
#include "app/study/head_budgets.h"
#include "app/study/head_files.h"
#include "app/study/listed_files.h"
#include "app/study/shard_file.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
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

constexpr ListingResult kResult{"attribution.json", "attribute", "parts"};

/// Returns the files of an earlier attribution.
std::vector<std::string> files_of_attribution(const fs::path& folder) {
    return files_of_result(folder, kResult, [](const nlohmann::json& json) {
        std::vector<std::string> names = {"attribution.csv", "attribution.html", "attribution.svg",
                                          "attribution.png", "attribution.pdf"};
        if (!json.contains("budget")) return names;
        names.emplace_back("lane.txt");
        for (std::string& name : head_file_names()) names.push_back(std::move(name));
        return names;
    });
}

struct AttributeOptions {
    EvalOptions eval;
    std::string by = "head";
    bool take = false;
    std::string rank = "nats";
    int chunk = 8;
    std::string split = "whole";
    int candidates = 0;  ///< --split greedy: parts that are measured in each step; 0: all
    int top = 10;
    int budget = 0;  ///< tokens a head that are spent where they help most; 0: no budget is made
    int rest = 0;    ///< tokens of the heads that do not keep all; 0: half of the budget
    int held_out = 0;
    std::string out;
    PlotChoice plots;
    bool json = false;
};

/// The lanes of --budget, equal in bytes but for the full cache. Differences are to `uniform`.
struct BudgetLanes {
    std::vector<std::string> labels;
    std::vector<LaneSpec> lanes;
    static constexpr std::size_t kUniform = 1;
    std::size_t spent = 0;  ///< the lane of --split
    void add(const std::string& label, const LaneSpec& lane) {
        labels.push_back(label);
        lanes.push_back(lane);
    }
};

/// An attribution in progress.
class AttributeRun {
  public:
    explicit AttributeRun(const AttributeOptions& options) : options_(options) {
        const std::vector<LaneSpec> lanes = options.eval.typed_lanes();
        if (options.eval.run.lanes.size() != 1)
            fail(ErrorCode::wrong_use, "attribute takes one lane; give --lane SPEC, such as h2o:budget=64");
        const CliCommand& command = options.eval.owner;
        if (const CliOption one = command.given({"--rest", "--held-out", "--split"});
            one && options.budget == 0)
            fail(ErrorCode::wrong_use, "{} is for --budget; give it as well", one.name());
        if (command.given({"--chunk"}) && options.by != "token")
            fail(ErrorCode::wrong_use, "--chunk is for --by token; give both");
        if (options.candidates > 0 && options.split != "greedy")
            fail(ErrorCode::wrong_use, "--candidates is for --split greedy; give both");
        if (options.split == "greedy" && rank() == RankBy::kl)
            fail(ErrorCode::wrong_use,
                 "--split greedy measures answers anew in each step, by --rank nats or right; leave out "
                 "one of --split greedy and --rank kl");
        lane_ = lanes.front();
        if (kind() == PartKind::query_head) lane_ = lane_by_query_head(lane_);
        if (kind() == PartKind::query_head && options.budget > 0)
            fail(ErrorCode::wrong_use,
                 "--budget is for KV heads and layers: all query heads of a KV head read the same tokens; "
                 "leave it out with --by query-head");
        (void)start_lane(lane_, intervention());  // refuses a lane without a budget
        if (of_tokens()) {
            (void)lane_with_tokens(lane_, {0, 0});
            if (options.take || options.budget > 0)
                fail(ErrorCode::wrong_use,
                     "--take and --budget are for heads and layers; leave them out with --by {}", options.by);
        }
        shard_ = parse_shard(options.eval.shard);
        if (shard_.is_part() && options.by == "group")
            fail(ErrorCode::wrong_use, "--by group has other lanes in each question; leave out --shard");
        if (shard_.is_part() && options.held_out > 0)
            fail(ErrorCode::wrong_use,
                 "--held-out needs the ranking of all shards; leave it out, and give it after `keyhole "
                 "merge`");
        if (shard_.is_part() && options.split == "greedy" && options.budget > 0)
            fail(ErrorCode::wrong_use,
                 "--split greedy needs the answers of all shards in each step; leave it out, and give it "
                 "after `keyhole merge`");
        note_lanes(lanes);
        options.eval.check_budgets(lanes);
    }
    void run();

  private:
    Intervention intervention() const { return options_.take ? Intervention::take : Intervention::give_back; }
    PartKind kind() const;
    bool of_tokens() const { return options_.by == "group" || options_.by == "token"; }
    RankBy rank() const { return rank_from_word(options_.rank); }
    QuestionSet question_set(const EvalOptions& options) const;
    void make_parts(const QuestionSet& set);
    LanesOf part_lanes(const QuestionSet& set) const;
    void answer(const QuestionSet& set, const LanesOf& lanes, const char* part, bool with_kl);
    void check_parts(const KvLayout& layout) const;
    int rest() const { return options_.rest > 0 ? options_.rest : std::max(1, options_.budget / 2); }
    int n_whole() const;
    BudgetTotal total() const;
    std::vector<CachePart> best_parts(const Attribution& found, int n) const;
    void choose_greedily(const QuestionSet& set, const Attribution& found);
    BudgetLanes budget_lanes(const Attribution& found) const;
    void compare_held_out(const BudgetLanes& budget);
    std::string spend(const Attribution& found);
    std::vector<std::string> new_files() const;
    void write(const Attribution& found, const std::string& spent, PathLock lock);
    void write_budgets(const Attribution& found, const std::filesystem::path& folder) const;

    const AttributeOptions& options_;
    LaneSpec lane_;
    Shard shard_;
    KvLayout layout_;
    LoadedModel loaded_;
    std::vector<CachePart> parts_;
    std::vector<ChosenPart> chosen_;  ///< --split greedy
    std::optional<AnswerFile> answers_;
    std::optional<SweepProgress> progress_;
    std::unique_ptr<TwoAtATime> side_by_side_;
    nlohmann::json json_;
};

QuestionSet AttributeRun::question_set(const EvalOptions& options) const {
    QuestionSet set = options.one_set(loaded_.model, "attribute");
    if (set.in_own_words)
        fail(ErrorCode::wrong_use,
             "answers in the lanes' own words have no likelihood to compare; give --task NAME, --text FILE, "
             "or --data FILE with choices");
    return set;
}

PartKind AttributeRun::kind() const {
    return part_kind_from_word(options_.by).value_or(PartKind::head);
}

void AttributeRun::make_parts(const QuestionSet& set) {
    if (!of_tokens()) {
        parts_ = cache_parts(kind() == PartKind::query_head ? loaded_.model->layout() : layout_, kind());
        check_parts(layout_);
        return;
    }
    const Question first = set.make(0);
    if (kind() == PartKind::group) {
        parts_ = group_parts(static_cast<bool>(first.place));
        return;
    }
    if (set.n_questions != 1)
        fail(
            ErrorCode::wrong_use,
            "--by token shows one text, and there are {} questions; give --samples 1, and another --seed for "
            "another text",
            set.n_questions);
    parts_ = token_parts(loaded_.model->tokenizer(), first.prompt, options_.chunk);
}

/// Returns the full cache, the lane, and the lane of each part.
LanesOf AttributeRun::part_lanes(const QuestionSet& set) const {
    std::vector<LaneSpec> lanes = {parse_lane_spec("full"), lane_};
    if (kind() == PartKind::query_head) lanes.front() = lane_by_query_head(lanes.front());  // one prompt pass
    if (kind() == PartKind::group)
        return [this, lanes, make = set.make](int i) {
            const Question question = make(i);
            std::vector<LaneSpec> own = lanes;
            for (const CachePart& part : parts_)
                own.push_back(
                    lane_with_tokens(lane_, group_tokens(part, static_cast<int>(question.prompt.size()),
                                                         {question.place.first, question.place.last})));
            return own;
        };
    for (const CachePart& part : parts_)
        lanes.push_back(part.tokens ? lane_with_tokens(lane_, *part.tokens)
                                    : lane_with_part(lane_, part, intervention()));
    return same_lanes(lanes);
}

void AttributeRun::answer(const QuestionSet& set, const LanesOf& lanes, const char* part, bool with_kl) {
    const int context = options_.eval.context_of(*loaded_.model);
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    const int n_missing = count_missing(set, asked, lanes, *answers_, shard_, with_kl);
    const double n_all = static_cast<double>(lanes(0).size()) * count_questions(set, shard_);
    progress_->begin_model({static_cast<std::int64_t>(n_all), n_missing, n_all * context,
                            static_cast<double>(n_missing) * context},
                           0);
    progress_->set_part(part);
    answer_missing(
        *loaded_.model, *side_by_side_, set, asked, lanes, context, *answers_,
        [&](int n) { progress_->add(n, static_cast<double>(n) * context); }, shard_, with_kl);
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

BudgetTotal AttributeRun::total() const {
    return {options_.budget, rest(), options_.eval.context_of(*loaded_.model)};
}

/// Returns the n parts with the largest effects.
std::vector<CachePart> AttributeRun::best_parts(const Attribution& found, int n) const {
    std::vector<CachePart> best;
    for (const std::size_t i : ranked(found, rank()))
        if (static_cast<int>(best.size()) < n) best.push_back(found.effects[i].part);
    return best;
}

/// Chooses the parts of the budget one by one, on the same questions.
void AttributeRun::choose_greedily(const QuestionSet& set, const Attribution& found) {
    const int n = std::max(options_.candidates, n_whole());
    const std::vector<CachePart> candidates = options_.candidates > 0 ? best_parts(found, n) : parts_;
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    int step = 0;
    chosen_ =
        choose_one_by_one(lane_, candidates, n_whole(), rest(), rank(), [&](std::span<const LaneSpec> lanes) {
            const std::string part = fmt::format("{} of {}", ++step, n_whole());
            answer(set, same_lanes(lanes), part.c_str(), false);
            return known_answers(set, asked, same_lanes(lanes), *answers_);
        });
    for (const ChosenPart& one : chosen_)
        json_["greedy"].push_back({{"part", part_name(one.part)}, {"nats", one.nats}, {"right", one.right}});
    if (!options_.json) print_out("\n{}", chosen_text(chosen_));
}

BudgetLanes AttributeRun::budget_lanes(const Attribution& found) const {
    const int n = n_whole();
    const std::vector<CachePart> chosen = best_parts(found, n);
    const std::string words =
        fmt::format("{} {}{} whole, {} elsewhere", n, options_.by, n == 1 ? "" : "s", rest());
    BudgetLanes budget;
    budget.add("full", parse_lane_spec("full"));
    const auto add = [&](const std::string& label, BudgetForm form) {
        budget.add(label, lane_with_budget(lane_, form, found, total(), rank()));
    };
    add(fmt::format("{} in each", options_.budget), BudgetForm::uniform);
    // Some presets and scopes have no budgets of their own for layers or heads.
    for (const auto& [label, form] :
         {std::pair("pyramid", BudgetForm::pyramid), std::pair("adaptive", BudgetForm::adaptive)})
        try {
            add(label, form);
        } catch (const Error&) {
            continue;
        }
    add(fmt::format("retrieval: the same whole, {} streaming elsewhere", rest()), BudgetForm::streaming);
    add("measured: " + words, BudgetForm::whole);
    budget.spent = budget.lanes.size() - 1;
    add(fmt::format("measured: {} and a share by gain", rest()), BudgetForm::gain);
    if (options_.split == "gain") budget.spent = budget.lanes.size() - 1;
    if (!chosen_.empty()) {
        std::vector<CachePart> one_by_one;
        for (const ChosenPart& one : chosen_) one_by_one.push_back(one.part);
        budget.add("one by one: " + words, lane_with_whole_parts(lane_, one_by_one, rest()));
        budget.spent = budget.lanes.size() - 1;
    }
    budget.add("other: " + words, lane_with_whole_parts(lane_, other_parts(parts_, chosen, n), rest()));
    return budget;
}

/// Spends the budget where the parts helped most, and compares it on questions that were not measured.
/// Returns the lane.
std::string AttributeRun::spend(const Attribution& found) {
    const BudgetLanes budget = budget_lanes(found);
    const std::string spec = format_lane_spec(budget.lanes[budget.spent]);
    json_["budget"] = {{"lane", spec}};
    if (!options_.json)
        print_out("\n{} tokens a head, spent where they help most:\n{}\n", options_.budget, spec);
    if (options_.held_out > 0) compare_held_out(budget);
    return spec;
}

void AttributeRun::compare_held_out(const BudgetLanes& budget) {
    EvalOptions held_out = options_.eval;
    held_out.seed = options_.eval.seed + 1;
    held_out.n_samples = options_.held_out;
    const QuestionSet set = question_set(held_out);
    const LanesOf of_all = same_lanes(budget.lanes);
    answer(set, of_all, "held out", false);
    const auto outcomes =
        known_answers(set, asked_on(set.identity, loaded_.backend->name()), of_all, *answers_);
    std::vector<LaneScore> scores;
    for (const std::vector<Outcome>& of_lane : outcomes)
        scores.push_back(score_lane(set, of_lane, outcomes[BudgetLanes::kUniform]));
    ReportLanes lanes{budget.labels, budget.lanes, {}, BudgetLanes::kUniform, {}};
    const int context = options_.eval.context_of(*loaded_.model);
    const int n_prompt = options_.eval.prompt_of(set, context);
    for (const LaneSpec& lane : budget.lanes)
        lanes.kv_bytes.push_back(
            kv_bytes_of(*loaded_.model, *loaded_.backend, lane, n_prompt, context).after);
    json_["budget"]["held_out"] = score_json(std::span(&set, 1), std::span(&lanes, 1), std::span(&scores, 1));
    if (!options_.json)
        print_out("\nQuestions held out (seed {}):\n{}", held_out.seed, score_table(set, lanes, scores));
}

void AttributeRun::run() {
    const fs::path folder = options_.out;
    loaded_ = load_for_run(options_.eval.run);
    layout_ = layouts_of(*loaded_.model, {lane_}).front();
    const QuestionSet set = question_set(options_.eval);
    make_parts(set);
    const LanesOf lanes = part_lanes(set);
    (void)lanes(0);
    make_folder(folder, "the attribution");
    if (!shard_.is_part())
        check_way_into(folder, "the attribution", new_files(), files_of_attribution(folder));
    PathLock lock = PathLock::take(folder);
    answers_.emplace(folder / "answers.csv");
    answers_->set_made_by(made_by(*loaded_.model));
    progress_.emplace("attribute", folder / "answers.csv");
    side_by_side_ = std::make_unique<TwoAtATime>(loaded_.model, *loaded_.backend,
                                                 options_.eval.run.backend_options().n_threads);
    if (!options_.json) print_out("{}, {}\n", loaded_.model->path().string(), loaded_.backend_text);
    flush_output();
    answer(set, lanes, "", set.measures.empty());  // choices are fed to copies, and have no KL
    const std::string asked = asked_on(set.identity, loaded_.backend->name());
    if (shard_.is_part()) {
        const std::vector<ShardNeed> needs = {shard_need(asked, set.n_questions, lanes(0))};
        write_shard_file(folder, shard_, needs);
        print_note("{}", shard_note(folder, shard_));
        return;
    }
    const Attribution found =
        attribute(lane_, kind(), intervention(), parts_, known_answers(set, asked, lanes, *answers_));
    json_ = attribution_json(found);
    json_.update(json_head(*loaded_.model, loaded_.backend->name()));
    json_.update(options_.eval.about_json(*loaded_.model));
    json_["asked"] = asked;
    json_["asked_lane"] = answer_lane(lane_);
    if (!options_.json)
        print_out("\n{}: {}\n{}", set.name, set.description,
                  attribution_text(found, set.is_task, static_cast<std::size_t>(options_.top), rank()));
    if (options_.budget > 0 && options_.split == "greedy") choose_greedily(set, found);
    const std::string spent = options_.budget > 0 ? spend(found) : "";
    write(found, spent, std::move(lock));
}

/// Returns the files that the attribution may write.
std::vector<std::string> AttributeRun::new_files() const {
    std::vector<std::string> names = {"attribution.csv", kResult.name};
    if (kind() == PartKind::token) names.emplace_back("attribution.html");
    if (!of_tokens())
        for (std::string& name : plot_files("attribution")) names.push_back(std::move(name));
    if (options_.budget == 0) return names;
    names.emplace_back("lane.txt");
    for (std::string& name : head_file_names()) names.push_back(std::move(name));
    return names;
}

void AttributeRun::write(const Attribution& found, const std::string& spent, PathLock lock) {
    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged(options_.out, "the attribution", std::move(lock));
    const std::string maker = made_by(*loaded_.model);
    write_text_file(staged.path() / "attribution.csv", with_made_by(attribution_csv(found), maker));
    if (!spent.empty()) write_text_file(staged.path() / "lane.txt", spent + "\n");
    if (kind() == PartKind::token)
        write_text_file(staged.path() / "attribution.html",
                        attribution_page(found, "What giving tokens back gains", maker));
    PlotChoice plots = options_.plots;
    plots.made_by = maker;
    if (!of_tokens()) write_plot_files(attribution_map(found), plots, staged.path() / "attribution");
    if (options_.budget > 0) write_budgets(found, staged.path());
    json_["files"] = staged.files();
    const std::string json = json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    write_text_file(staged.path() / kResult.name, json);
    staged.publish(files_of_attribution(staged.folder()), kResult.name);
    if (options_.json) print_out("{}", json);
    flush_output();
    print_note("written to {}\n", options_.out);
}

/// Writes the budgets as files: Keyhole's own, and what DuoAttention and HeadKV read.
void AttributeRun::write_budgets(const Attribution& found, const fs::path& folder) const {
    const int context = options_.eval.context_of(*loaded_.model);
    std::vector<int> tokens = *budget_tokens(options_.split == "whole" ? BudgetForm::whole : BudgetForm::gain,
                                             found, total(), rank());
    if (!chosen_.empty())
        for (std::size_t i = 0; i < parts_.size(); ++i)
            tokens[i] =
                std::ranges::find(chosen_, parts_[i], &ChosenPart::part) == chosen_.end() ? rest() : context;
    (void)write_head_files(
        folder, {layout_, found, std::move(tokens), total(), lane_.policy.sinks, made_by(*loaded_.model)});
}

}  // namespace

void add_attribute_command(const CliCommand& program) {
    auto options = std::make_shared<AttributeOptions>();
    const CliCommand command = program.add_command(
        "attribute",
        "rank what a lane's eviction costs, head by head, and spend a budget where it helps most");
    options->eval.add(command);
    options->eval.add_shard(command);
    command
        .add_option(
            "--by", options->by,
            "the parts: KV heads, each `query-head` for itself, or all of a `layer`; or tokens, kept in all "
            "heads beside the budget: a `group` (sinks, recent, answer), or each `token` of one text")
        .one_of({"head", "query-head", "layer", "group", "token"})
        .shows_default();
    command.add_option("--chunk", options->chunk, "--by token: tokens that are given back together")
        .within(1, 1 << 16)
        .shows_default();
    command
        .add_option("--rank", options->rank,
                    "what parts are ranked by, in the table and for --budget: nats of the answer, right "
                    "answers, or KL to the full cache over the answer")
        .one_of({"nats", "right", "kl"})
        .shows_default();
    command
        .add_option(
            "--split", options->split,
            "--budget: the first heads keep all tokens (`whole`); each its --rest and a share by what "
            "it gains (`gain`); or heads are chosen one by one, and after each all others are "
            "measured anew (`greedy`, which takes longer); --held-out compares them")
        .one_of({"whole", "gain", "greedy"})
        .shows_default();
    command
        .add_option(
            "--candidates", options->candidates,
            "--split greedy: measure so many in each step, those with the largest gain (default: all)")
        .within(1, 1 << 20);
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
    command.does([options] {
        if (!options->eval.writes_job(options->out)) AttributeRun(*options).run();
    });
}

}  // namespace keyhole
