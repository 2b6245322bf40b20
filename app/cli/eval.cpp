#include "app/cli/commands.h"
#include "app/cli/eval_options.h"
#include "app/cli/eval_report.h"
#include "app/cli/output.h"
#include "engine/eval/side_by_side.h"

#include <fmt/format.h>

namespace keyhole {

namespace {

void run_eval(const EvalOptions& options, bool as_json) {
    const std::vector<LaneSpec> lanes = options.lanes();
    const std::vector<std::string> labels = options.labels();
    const LoadedModel loaded = load_for_run(options.run);
    const std::vector<QuestionSet> sets = options.questions(loaded.model);
    // All lanes of a question run together; a second question beside it must fit as well.
    const int context = options.context_of(*loaded.model);
    const bool two_fit =
        lanes_that_fit(*loaded.model, lanes, context, SideBySide::kBytes / 2) == lanes.size();
    SideBySide side_by_side(loaded.model, *loaded.backend,
                            two_fit ? options.run.backend_options().n_threads : 1);
    side_by_side.hold(lanes);
    std::vector<std::vector<LaneScore>> all;
    if (!as_json) print_out("{}, {}\n", loaded.model->path().string(), loaded.backend_text);
    for (const QuestionSet& set : sets) {
        std::vector<std::vector<Outcome>> outcomes(lanes.size());
        {
            Progress progress(fmt::format("eval {}", set.name), set.n_questions);
            std::vector<Asked> questions;
            for (int i = 0; i < set.n_questions; ++i) questions.push_back({i, lanes});
            side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
                for (std::size_t lane = 0; lane < lanes.size(); ++lane) outcomes[lane].push_back(found[lane]);
                progress.update(one.question + 1);
            });
        }
        std::vector<LaneScore>& scores = all.emplace_back();
        for (const std::vector<Outcome>& of_lane : outcomes)
            scores.push_back(score_lane(of_lane, outcomes.front()));
        if (!as_json) print_out("\n{}", score_table(set, labels, scores));
    }
    if (as_json) print_out("{}\n", score_json(sets, lanes, all));
}

}  // namespace

void add_eval_command(CLI::App& app) {
    struct Options {
        EvalOptions eval;
        bool json = false;
    };
    auto options = std::make_shared<Options>();
    CLI::App* command = app.add_subcommand(
        "eval", "perplexity over a text, or accuracy in recall tasks, of lanes side by side; with intervals");
    options->eval.add(*command);
    command->add_flag("--json", options->json, "machine-readable");
    command->callback([options] { run_eval(options->eval, options->json); });
}

}  // namespace keyhole
