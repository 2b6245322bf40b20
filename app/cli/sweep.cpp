#include "app/cli/sweep.h"

#include "app/cli/commands.h"
#include "app/cli/eval_report.h"
#include "app/cli/number_option.h"
#include "app/cli/output.h"
#include "app/cli/sweep_table.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/path_lock.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/side_by_side.h"

#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

/// Answers the questions that no earlier run answered, with as many lanes at a time as memory allows.
void answer(const LoadedModel& loaded, SideBySide& side_by_side, const QuestionSet& set,
            std::span<const GridCell> cells, int context, AnswerFile& answers) {
    const std::string asked = asked_on(set.identity, loaded.backend->name());
    const auto missing_of = [&](std::span<const LaneSpec> lanes, int question) {
        std::vector<LaneSpec> missing;
        for (const LaneSpec& lane : lanes)
            if (!answers.find(asked, format_lane_spec(lane), question)) missing.push_back(lane);
        return missing;
    };
    std::vector<LaneSpec> all;
    for (const GridCell& cell : cells) all.push_back(cell.spec);
    double n_missing = 0, done = 0;
    for (int i = 0; i < set.n_questions; ++i) n_missing += static_cast<double>(missing_of(all, i).size());
    Progress progress(fmt::format("sweep {}", set.name), n_missing);
    for (std::span<const LaneSpec> rest = all; !rest.empty();) {
        const double bytes = SideBySide::kBytes / side_by_side.n_at_a_time();
        const auto some = rest.first(lanes_that_fit(*loaded.model, rest, context, bytes));
        rest = rest.subspan(some.size());
        side_by_side.hold(some);
        std::vector<Asked> questions;
        for (int i = 0; i < set.n_questions; ++i)
            if (Asked one{i, missing_of(some, i)}; !one.lanes.empty()) questions.push_back(std::move(one));
        side_by_side.ask(set, questions, [&](const Asked& one, const std::vector<Outcome>& found) {
            for (std::size_t lane = 0; lane < one.lanes.size(); ++lane)
                answers.add(asked, format_lane_spec(one.lanes[lane]), one.question, found[lane]);
            answers.flush();
            done += static_cast<double>(one.lanes.size());
            progress.update(done);
        });
    }
}

std::vector<LaneScore> scores_of(const LoadedModel& loaded, const QuestionSet& set,
                                 std::span<const GridCell> cells, const AnswerFile& answers) {
    const std::string asked = asked_on(set.identity, loaded.backend->name());
    std::vector<std::vector<Outcome>> outcomes;
    for (const GridCell& cell : cells) {
        outcomes.emplace_back();
        for (int i = 0; i < set.n_questions; ++i)
            outcomes.back().push_back(answers.find(asked, format_lane_spec(cell.spec), i).value());
    }
    std::vector<LaneScore> scores;
    for (const std::vector<Outcome>& of_cell : outcomes)
        scores.push_back(score_lane(of_cell, outcomes.front()));
    return scores;
}

/// Returns the cell's spec with the varied values, even if they equal the preset's own.
std::string label_of(const GridCell& cell, std::span<const Vary> varies) {
    std::string label = format_lane_spec(cell.spec);
    for (std::size_t i = 0; i < cell.values.size(); ++i) {
        const std::string item = varies[i].key + "=";
        const bool is_said = cell.values[i].empty() || label.find(":" + item) != std::string::npos ||
                             label.find("," + item) != std::string::npos;
        if (is_said || item.find('@') != std::string::npos) continue;  // already there
        label += (label.find(':') == std::string::npos ? ":" : ",") + item + cell.values[i];
    }
    return label;
}

/// Adds level lines at shares of the first lane's accuracy.
void add_share_lines(CurvePlot& plot, std::span<const double> shares, double accuracy) {
    double low = std::numeric_limits<double>::infinity(), high = -low;
    for (const Curve& curve : plot.curves)
        for (double x : curve.x) {
            low = std::min(low, x);
            high = std::max(high, x);
        }
    for (const double share : shares) {
        Curve line{fmt::format("{:g} % of full", 100 * share), {low, high}, {}, true};
        line.y = {100 * share * accuracy, 100 * share * accuracy};
        plot.curves.push_back(std::move(line));
    }
}

}  // namespace

void run_sweep(const SweepOptions& options) {
    std::vector<Vary> varies;
    for (const std::string& text : options.varies) varies.push_back(parse_vary(text));
    const std::vector<GridCell> cells = make_grid(options.eval.lanes(), varies);
    const LoadedModel loaded = load_for_run(options.eval.run);
    const std::vector<QuestionSet> sets = options.eval.questions(loaded.model);
    const fs::path folder = options.out;
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
        fail(ErrorCode::io, "cannot make the folder {} for the sweep: {}", folder.string(), error.message());
    const std::optional<PathLock> lock = PathLock::try_take(folder);
    if (!lock)
        fail(ErrorCode::io,
             "cannot sweep into {}: another sweep writes there; wait for it or take another folder",
             folder.string());
    AnswerFile answers(folder / "answers.csv");
    SweepTable table(folder / "table.csv");
    std::vector<LaneSpec> lanes;
    std::vector<std::string> labels;
    for (const GridCell& cell : cells) {
        lanes.push_back(cell.spec);
        labels.push_back(label_of(cell, varies));
    }
    SideBySide side_by_side(loaded.model, *loaded.backend, options.eval.run.backend_options().n_threads);
    std::vector<std::vector<LaneScore>> all;
    if (!options.json) print_out("{}, {}\n", loaded.model->path().string(), loaded.backend_text);
    for (const QuestionSet& set : sets) {
        const std::string asked = asked_on(set.identity, loaded.backend->name());
        const std::string others = answers.others(asked);
        if (!others.empty()) print_note("{}\n", others);
        answer(loaded, side_by_side, set, cells, options.eval.context_of(*loaded.model), answers);
        const std::vector<LaneScore>& scores = all.emplace_back(scores_of(loaded, set, cells, answers));
        for (std::size_t i = 0; i < cells.size(); ++i) table.add(set, asked, cells[i], varies, scores[i]);
        if (!options.json) print_out("\n{}", score_table(set, labels, scores));
        table.write();
        CurvePlot plot = score_plot(set, cells, scores, varies,
                                    loaded.model->path().lexically_normal().filename().string());
        if (!options.title.empty()) plot.title = options.title;
        if (set.is_task) add_share_lines(plot, options.share_lines, scores.front().accuracy.value);
        write_plot_files(std::move(plot), options, folder / set.name);
    }
    if (options.json) print_out("{}\n", score_json(sets, lanes, all));
    print_note("written to {}\n", folder.string());
}

void add_plot_options(CLI::App& command, SweepOptions& options) {
    command.add_option("--width", options.width, "of the plots, in pixels; text scales with it")
        ->transform(number_in(PictureChoice::kLeastWidth, PictureChoice::kMostWidth));
    command.add_flag("--dark", options.dark, "plots on a dark ground");
}

void write_plot_files(CurvePlot plot, const SweepOptions& options, const fs::path& path) {
    plot.picture_width = options.width;
    plot.ground = options.dark ? Ground::dark : Ground::light;
    const Drawing drawing = curves_drawing(plot);
    write_drawing(drawing, path,
                  has_pdf() ? std::vector{PictureFormat::svg, PictureFormat::png, PictureFormat::pdf}
                            : std::vector{PictureFormat::svg, PictureFormat::png});
}

void add_sweep_command(CLI::App& app) {
    auto options = std::make_shared<SweepOptions>();
    CLI::App* command = app.add_subcommand(
        "sweep", "eval over a grid of lanes: table, CSV and plots; goes on where it was interrupted");
    options->eval.add(*command);
    command
        ->add_option(
            "--vary", options->varies,
            "key=values: budget=64..1024*2, alpha=0..1+0.1, budget=10%,20%, scope=head,layer; repeat for a "
            "grid; the first one is the plot's x")
        ->expected(1)
        ->take_all()
        ->required();
    command
        ->add_option("--out", options->out,
                     "folder: answers.csv, table.csv and a plot for each task; other sweeps into it add to "
                     "both")
        ->required();
    add_plot_options(*command, *options);
    command->add_flag("--json", options->json, "machine-readable");
    command->callback([options] { run_sweep(*options); });
}

}  // namespace keyhole
