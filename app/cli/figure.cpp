#include "app/cli/commands.h"
#include "app/cli/number_option.h"
#include "app/cli/output.h"
#include "app/cli/sweep.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/eval/answer_file.h"
#include "engine/figure/curves.h"
#include "engine/analysis/row_shape.h"

#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <filesystem>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

enum class FigureFrom { sweep, attention, text };

struct Figure {
    std::string_view name, title;
    FigureFrom from = FigureFrom::sweep;
    std::vector<std::string> lanes = {};
    std::string vary = {};
    std::vector<double> share_lines = {};
    bool of_text = false;  ///< of perplexity unless a task is given
};

/// Lists the papers' figures, made with the given model; quality is measured on the given tasks or text.
const std::vector<Figure>& figures() {
    static const std::vector<Figure> known = {
        {"keyformer-3a", "Share of attention next to zero, by layer", FigureFrom::attention},
        {"keyformer-3b", "Attention mass held by the largest entries", FigureFrom::attention},
        {"keyformer-5",
         "Quality against the damping factor, cache 50 %, recent 20 %",
         FigureFrom::sweep,
         {"full", "h2o:budget=50%,recent=20%"},
         "damping=0.8..1+0.025"},
        {"keyformer-7",
         "Quality against the size of the cache",
         FigureFrom::sweep,
         {"full", "window", "h2o", "keyformer"},
         "budget=20%..90%+10%",
         {0.99}},
        {"keyformer-11", "Share of attention next to zero, by threshold", FigureFrom::attention},
        {"keyformer-12",
         "Quality against the share of recent tokens, cache 70 %",
         FigureFrom::sweep,
         {"full", "keyformer:budget=70%"},
         "recent=10%..90%+10%"},
        {"keyformer-16",
         "Quality against tau: fixed, and swept from 1 to 2",
         FigureFrom::sweep,
         {"full", "keyformer:budget=60%"},
         "tau=1,1.5,2,3,5,1..2"},
        {"a2sf-3",
         "Accuracy against the size of the cache",
         FigureFrom::sweep,
         {"full", "window", "h2o", "a2sf"},
         "budget=10%..80%+10%"},
        {"a2sf-5",
         "Accuracy against the forgetting factor, cache 30 %",
         FigureFrom::sweep,
         {"full", "a2sf:budget=30%"},
         "alpha=0..0.9+0.1"},
        {"tova-3",
         "Perplexity against the size of the cache",
         FigureFrom::sweep,
         {"full", "window", "sink", "h2o", "tova"},
         "budget=16..512*2",
         {},
         true},
        {"tova-7",
         "Perplexity of all tokens up to a position",
         FigureFrom::text,
         {"tova:budget=512,positions=compressed", "sink:budget=512,positions=cache"},
         {},
         {},
         true},
    };
    return known;
}

std::string list_of_figures() {
    std::string names;
    for (const Figure& figure : figures()) names += fmt::format(" {}", figure.name);
    return names;
}

/// The attention rows of a lane, as `decode --export run,attention` writes them.
struct AttentionRows {
    NpyArray array;  // [rows, layers, heads, positions]
    int first_row = 0;

    explicit AttentionRows(const fs::path& run, int lane)
        : array(read_npy(run / fmt::format("lane{}", lane) / "attention.npy")) {
        const auto json = nlohmann::json::parse(read_text_file(run / "run.json"), nullptr, false);
        if (json.is_discarded() || !json.contains("first_row") || array.shape.size() != 4)
            fail(ErrorCode::bad_file,
                 "{} holds no run with attention; make it by decode --export run,attention", run.string());
        first_row = json["first_row"].get<int>();
    }
    int n_layers() const { return static_cast<int>(array.shape[1]); }
    /// Calls each(layer, probabilities up to the row's own position) for every row and head.
    template <class Each>
    void for_each(Each each) const {
        std::vector<float> row;
        std::int64_t index = 0;
        for (std::int64_t r = 0; r < array.shape[0]; ++r)
            for (int layer = 0; layer < n_layers(); ++layer)
                for (std::int64_t head = 0; head < array.shape[2]; ++head, index += array.shape[3]) {
                    const std::int64_t visible = std::min(first_row + r + 1, array.shape[3]);
                    row.clear();
                    for (std::int64_t p = 0; p < visible; ++p) row.push_back(array.value(index + p));
                    each(layer, std::span<const float>(row));
                }
    }
    std::int64_t rows_of_layer() const { return array.shape[0] * array.shape[2]; }
};

constexpr std::array<double, 6> kThresholds = {0, 0.01, 0.02, 0.03, 0.04, 0.05};

CurvePlot sparsity_plot(const AttentionRows& rows, bool by_layer) {
    std::vector<std::array<double, kThresholds.size()>> share(to_index(rows.n_layers()),
                                                              std::array<double, kThresholds.size()>{});
    rows.for_each([&](int layer, std::span<const float> row) {
        for (std::size_t t = 0; t < kThresholds.size(); ++t)
            share[to_index(layer)][t] +=
                100 * sparse_share(row, kThresholds[t]) / static_cast<double>(rows.rows_of_layer());
    });
    CurvePlot plot;
    plot.y_label = "entries next to zero, %";
    plot.caption =
        "Share of the positions up to a row with a probability of at most so many per cent of the row's "
        "largest (0: exactly zero in the stored type), mean over rows and heads.";
    if (by_layer) {
        plot.x_label = "layer";
        for (std::size_t t = 0; t < kThresholds.size(); ++t) {
            Curve& curve = plot.curves.emplace_back();
            curve.name = fmt::format("{:g} %", 100 * kThresholds[t]);
            for (std::size_t layer = 0; layer < share.size(); ++layer) {
                curve.x.push_back(static_cast<double>(layer));
                curve.y.push_back(share[layer][t]);
            }
        }
        return plot;
    }
    plot.x_label = "threshold, % of the largest";
    Curve& curve = plot.curves.emplace_back();
    curve.name = "all layers";
    for (std::size_t t = 0; t < kThresholds.size(); ++t) {
        double sum = 0;
        for (const auto& of_layer : share) sum += of_layer[t];
        curve.x.push_back(100 * kThresholds[t]);
        curve.y.push_back(sum / rows.n_layers());
    }
    return plot;
}

CurvePlot mass_plot(const AttentionRows& rows) {
    std::vector<std::vector<double>> mass(to_index(rows.n_layers()), std::vector<double>(101, 0));
    rows.for_each([&](int layer, std::span<const float> row) { add_mass_curve(row, mass[to_index(layer)]); });
    CurvePlot plot;
    plot.x_label = "largest entries, % of the context";
    plot.y_label = "attention mass, %";
    plot.caption = "Each row sorted down and summed up; mean over rows and heads of a layer.";
    for (std::size_t layer = 0; layer < mass.size(); ++layer) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = fmt::format("layer {}", layer);
        for (std::size_t i = 0; i < mass[layer].size(); ++i) {
            curve.x.push_back(static_cast<double>(i));
            curve.y.push_back(100 * mass[layer][i] / static_cast<double>(rows.rows_of_layer()));
        }
    }
    return plot;
}

struct FigureOptions {
    std::string name, from;
    int lane = 0;
    SweepOptions sweep;
};

/// Writes the plot, and a table of its points as NAME.csv.
void write_plot(const CurvePlot& plot, const std::string& name, const SweepOptions& options) {
    const fs::path folder = options.out;
    std::error_code error;
    fs::create_directories(folder, error);
    if (error)
        fail(ErrorCode::io, "cannot make the folder {} for the figure: {}", folder.string(), error.message());
    std::string table = "curve,x,y\n";
    for (const Curve& curve : plot.curves)
        for (std::size_t i = 0; i < curve.x.size(); ++i)
            table += fmt::format("{},{:.6g},{:.6g}\n", csv_field(curve.name), curve.x[i], curve.y[i]);
    write_text_file(folder / (name + ".csv"), table);
    write_plot_files(plot, options, folder / name);
    print_note("written to {}\n", folder.string());
}

void draw_from_attention(const Figure& figure, const FigureOptions& options) {
    if (options.from.empty())
        fail(ErrorCode::wrong_use,
             "figure {} is drawn from a run; give --from DIR, made by decode --export run,attention",
             figure.name);
    const AttentionRows rows(options.from, options.lane);
    CurvePlot plot =
        figure.name == "keyformer-3b" ? mass_plot(rows) : sparsity_plot(rows, figure.name == "keyformer-3a");
    plot.title = figure.title;
    plot.subtitle = fmt::format("{}, lane {}", options.from, options.lane);
    write_plot(plot, std::string(figure.name), options.sweep);
}

/// Draws the perplexity of the tokens of all windows from the first scored one up to a position.
void draw_running_perplexity(const Figure& figure, const FigureOptions& options) {
    constexpr std::size_t kMostPoints = 400;
    const EvalOptions& eval = options.sweep.eval;
    const std::vector<LaneSpec> lanes = eval.lanes();
    const LoadedModel loaded = load_for_run(eval.run);
    const QuestionSet set = eval.questions(loaded.model).front();
    const auto held = hold_models(loaded.model, *loaded.backend, lanes);
    const std::size_t n_prompt = set.make(0).prompt.size(), n_fed = set.make(0).fed.size();
    std::vector<std::vector<double>> nats(lanes.size(), std::vector<double>(n_fed, 0));
    {
        const auto all = static_cast<double>(n_fed * lanes.size()) * set.n_questions;
        Progress progress(fmt::format("figure {}", figure.name), all);
        double done = 0;
        for (int i = 0; i < set.n_questions; ++i)
            ask(loaded.model, *loaded.backend, lanes, set.make(i),
                [&](std::size_t lane, std::size_t token, double of_token) {
                    nats[lane][token] += of_token / set.n_questions;
                    progress.update(++done);
                });
    }
    CurvePlot plot;
    plot.title = figure.title;
    plot.subtitle = loaded.model->path().lexically_normal().filename().string();
    plot.caption = set.description + ". Each point is the mean over all earlier scored tokens.";
    plot.x_label = "position";
    plot.y_label = "perplexity";
    print_out("{}, {}\n\n{}: {}\n{:<44} {:>10}\n", loaded.model->path().string(), loaded.backend_text,
              set.name, set.description, "lane", "perplexity");
    const std::vector<std::string> labels = eval.labels();
    const std::size_t step = (n_fed + kMostPoints - 1) / kMostPoints;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = labels[lane];
        double sum = 0;
        for (std::size_t t = 0; t < n_fed; ++t) {
            sum += nats[lane][t];
            if ((t + 1) % step != 0 && t + 1 != n_fed) continue;
            curve.x.push_back(static_cast<double>(n_prompt + t));
            curve.y.push_back(std::exp(sum / static_cast<double>(t + 1)));
        }
        print_out("{:<44} {:>10.3f}\n", labels[lane], curve.y.back());
    }
    write_plot(plot, std::string(figure.name), options.sweep);
}

void run_figure(FigureOptions options) {
    const auto figure = std::find_if(figures().begin(), figures().end(),
                                     [&](const Figure& known) { return known.name == options.name; });
    if (figure == figures().end())
        fail(ErrorCode::wrong_use, "there is no figure '{}'; figures are{}", options.name, list_of_figures());
    if (figure->from == FigureFrom::attention) {
        draw_from_attention(*figure, options);
        return;
    }
    SweepOptions& sweep = options.sweep;
    if (!options.from.empty())
        fail(ErrorCode::wrong_use,
             "figure {} is a sweep of its own; give --text FILE or --task NAME, not --from", figure->name);
    if (sweep.eval.run.lanes.empty()) sweep.eval.run.lanes = figure->lanes;
    if (figure->from == FigureFrom::text) {
        if (!sweep.varies.empty() || !sweep.eval.task.empty())
            fail(ErrorCode::wrong_use, "figure {} follows a text; it takes --text, not --vary or --task",
                 figure->name);
        if (sweep.eval.text.empty())
            fail(ErrorCode::wrong_use, "figure {} shows perplexity; give --text FILE", figure->name);
        draw_running_perplexity(*figure, options);
        return;
    }
    if (sweep.varies.empty()) sweep.varies = {figure->vary};
    if (sweep.eval.task.empty() && sweep.eval.text.empty()) {
        if (figure->of_text)
            fail(ErrorCode::wrong_use, "figure {} shows perplexity; give --text FILE, or --task NAME",
                 figure->name);
        sweep.eval.task = "needle";
    }
    sweep.title = figure->title;
    sweep.share_lines = figure->share_lines;
    run_sweep(sweep);
}

}  // namespace

void add_figure_command(CLI::App& app) {
    auto options = std::make_shared<FigureOptions>();
    CLI::App* command =
        app.add_subcommand("figure", "a figure of the papers, from a run or from a sweep of its own");
    command->add_option("name", options->name, "one of" + list_of_figures())->required();
    command->add_option("--from", options->from,
                        "folder of a run with run.json and attention.npy (keyformer-3a, 3b, 11)");
    command->add_option("--of-lane", options->lane, "lane of that run")->transform(number_from(0));
    options->sweep.eval.add(*command);
    command->add_option("--vary", options->sweep.varies, "other values than the figure's own")
        ->expected(1)
        ->take_all();
    command->add_option("--out", options->sweep.out, "folder for table, SVG, PNG and PDF")->required();
    add_plot_options(*command, options->sweep);
    command->callback([options] { run_figure(*options); });
}

}  // namespace keyhole
