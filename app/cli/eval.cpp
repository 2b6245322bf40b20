#include "app/base/termination.h"
#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/json_head.h"
#include "app/cli/output.h"
#include "app/study/bounds.h"
#include "app/study/eval_report.h"
#include "app/study/measure_report.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/two_at_a_time.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace keyhole {

namespace {

/// Returns what a signal leaves: the tables that are printed.
std::string kept_text(int n_done, int n_all, std::size_t n_tables) {
    return fmt::format(
        "{} of {} questions were answered; {}; `keyhole sweep` keeps every answer, and goes on from there",
        n_done, n_all,
        n_tables == 0 ? "nothing is kept" : fmt::format("the {} tables printed are whole", n_tables));
}

void run_eval(const EvalOptions& options, bool as_json) {
    const std::vector<LaneSpec> lanes = options.lanes();
    const std::vector<std::string> labels = options.labels();
    note_replaced_options(lanes);
    const LoadedModel loaded = load_for_run(options.run);
    const std::vector<QuestionSet> sets = options.questions(loaded.model);
    // All lanes of a question run together; a second question beside it must fit as well.
    const int context = options.context_of(*loaded.model);
    int n_caches = 1;
    for (const QuestionSet& set : sets) n_caches = std::max(n_caches, set.n_caches);
    const bool two_fit =
        lanes_that_fit(*loaded.model, lanes, context, TwoAtATime::kBytes / 2 / n_caches) == lanes.size();
    TwoAtATime side_by_side(loaded.model, *loaded.backend,
                            two_fit ? options.run.backend_options().n_threads : 1);
    side_by_side.hold(lanes);
    std::vector<std::vector<LaneScore>> all;
    nlohmann::json floors_json = nlohmann::json::array();
    std::string written;  // the lanes' own answers
    if (!as_json) print_out("{}, {}\n", loaded.model->path().string(), loaded.backend_text);
    flush_output();
    int n_all = 0, n_done = 0;
    for (const QuestionSet& set : sets) n_all += set.n_questions;
    Progress progress("eval", n_all);
    KeptNote kept("no question was answered yet");
    for (const QuestionSet& set : sets) {
        std::vector<std::vector<Outcome>> outcomes(lanes.size());
        if (sets.size() > 1) progress.set_part(set.name);
        std::vector<Asked> questions;
        for (int i = 0; i < set.n_questions; ++i) questions.push_back({i, lanes});
        side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
            for (std::size_t lane = 0; lane < lanes.size(); ++lane) outcomes[lane].push_back(found[lane]);
            if (!set.measures.empty() && !options.data.answers.empty())
                written += answer_lines(set, one, found);
            progress.update(++n_done);
            kept.set(kept_text(n_done, n_all, as_json ? 0 : all.size()));
        });
        std::vector<LaneScore>& scores = all.emplace_back();
        for (const std::vector<Outcome>& of_lane : outcomes)
            scores.push_back(score_lane(set, of_lane, outcomes.front()));
        const std::vector<Floor> floors =
            compare_with_floor(set, lanes, options.typed_lanes().size(), outcomes);
        for (nlohmann::json& one : floor_json(set, lanes, floors)) floors_json.push_back(std::move(one));
        if (as_json) continue;
        print_out("\n{}{}", score_table(set, labels, scores),
                  floor_text(set, labels, floors) + reference_fails_text(set, labels, scores, options.ask));
        flush_output();
    }
    if (as_json) {
        nlohmann::json json = score_json(sets, lanes, all);
        json.update(json_head(*loaded.model, loaded.backend->name()));
        json.update(options.about_json(*loaded.model));
        if (options.n_bounds > 0) json["floors"] = floors_json;
        print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    }
    if (!options.data.answers.empty()) write_text_file(options.data.answers, written);
}

}  // namespace

void add_eval_command(const CliCommand& program) {
    struct Options {
        EvalOptions eval;
        bool json = false;
    };
    auto options = std::make_shared<Options>();
    const CliCommand command =
        program.add_command("eval",
                            "measure lanes side by side: perplexity of a text, right answers in "
                            "recall tasks or to your own questions");
    options->eval.add(command);
    command.add_option("--answers", options->eval.data.answers,
                       "data: file for what every lane answered, one JSON object a line");
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] { run_eval(options->eval, options->json); });
}

}  // namespace keyhole
