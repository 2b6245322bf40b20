#include "app/papers/figure.h"
#include "app/base/assets.h"
#include "app/base/command_text.h"
#include "app/base/figure_record.h"
#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/made_by.h"
#include "app/cli/output.h"
#include "app/cli/sweep.h"
#include "app/papers/run_parts.h"
#include "app/study/bounds.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_field.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/base/model_name.h"
#include "engine/base/npy.h"
#include "engine/eval/answer_file.h"
#include "engine/eval/shard.h"
#include "engine/run/prompt.h"
#include "engine/session/session.h"
#include "engine/trace/lane_failure.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

struct FigureOptions {
    std::string name, from;
    bool list = false, json = false;
    int lane = 0;
    int n_tokens = 48;
    std::vector<std::string> prompt_files;
    SweepOptions sweep;
};

std::string list_of_figures() {
    std::string names;
    for (const Figure& figure : figures()) names += fmt::format(" {}", figure.name);
    return names;
}

void print_list_as_json() {
    nlohmann::json list = nlohmann::json::array();
    for (const Figure& figure : figures())
        list.push_back({{"name", figure.name},
                        {"title", figure.title},
                        {"finding", figure.finding},
                        {"paper_values", figure.paper_values},
                        {"seen_on", figure.seen_on},
                        {"command", command_of(figure)},
                        {"minutes", figure.minutes}});
    print_out("{}\n", list.dump(2));
}

void print_list() {
    for (const Figure& figure : figures()) {
        const std::string_view paper = figure.name.substr(0, figure.name.find('-'));
        print_out("{}\n  shows    {}\n  paper    {}: {}\n", figure.name, figure.title, paper, figure.finding);
        if (!figure.paper_values.empty()) print_out("  printed  {}\n", figure.paper_values);
        print_out("  seen on  {}\n  command  {}   (about {:g} min)\n", figure.seen_on, command_of(figure),
                  figure.minutes);
    }
}

/// Returns what the paper finds, and its numbers.
std::vector<std::string> paper_sentences(const Figure& figure) {
    std::vector<std::string> notes = {fmt::format("Paper: {}", figure.finding)};
    if (!figure.paper_values.empty()) notes.push_back(fmt::format("Its numbers: {}.", figure.paper_values));
    return notes;
}

/// Returns whether other questions or another measure take the place of the paper's; empty for a user's own
/// questions, and where the paper shows the same.
std::string_view stand_in(const Figure& figure, const SweepResult& result) {
    if (!result.measures.empty()) return "";
    if (result.is_task) return "A stand-in: accuracy in a recall task, in place of the paper's data set.";
    return figure.of_paper_text ? "" : "A stand-in: perplexity, in place of the paper's measure.";
}

/// Returns lines as sentences of a record: each with a capital letter, on its own.
std::vector<std::string> sentences_of_lines(std::string_view lines) {
    std::vector<std::string> sentences;
    while (!lines.empty()) {
        const std::size_t end = std::min(lines.find('\n'), lines.size());
        std::string line(lines.substr(std::min(lines.find_first_not_of(' '), end), end));
        line = line.substr(0, line.find('\n'));
        if (!line.empty()) sentences.push_back(line + (line.ends_with(':') ? "" : "."));
        lines.remove_prefix(std::min(end + 1, lines.size()));
    }
    return sentences;
}

/// Returns the sentences below a picture: the paper's finding and numbers, whether the finding is seen, and
/// what the picture confounds.
std::vector<std::string> sentences_of(const Figure& figure, const PaperVerdict& verdict,
                                      std::string_view instead = "") {
    std::vector<std::string> notes = paper_sentences(figure);
    if (const std::string text = verdict_text(verdict); !text.empty()) notes.push_back(text);
    if (!instead.empty()) notes.emplace_back(instead);
    if (!figure.confounds.empty()) notes.emplace_back(figure.confounds);
    return notes;
}

/// Returns the points of a plot as CSV.
std::string table_of(const CurvePlot& plot) {
    std::string table = plot.panels.empty() ? "curve,x,y\n" : "panel,curve,x,y\n";
    const auto add = [&](const std::string& panel, const std::vector<Curve>& curves) {
        for (const Curve& curve : curves)
            for (std::size_t i = 0; i < curve.x.size(); ++i) {
                if (!plot.x_words.empty())
                    table += fmt::format("{}{},{},{:.6g}\n", panel, csv_field(curve.name),
                                         csv_field(plot.x_words[to_index(static_cast<int>(curve.x[i]))]),
                                         curve.y[i]);
                else
                    table += fmt::format("{}{},{:.6g},{:.6g}\n", panel, csv_field(curve.name), curve.x[i],
                                         curve.y[i]);
            }
    };
    if (plot.panels.empty()) add("", plot.curves);
    for (const CurvePanel& panel : plot.panels) add(csv_field(panel.title) + ",", panel.curves);
    return table;
}

std::string table_of(const ValueMap& map) {
    std::string table = "panel,row,column,value\n";
    for (const ValuePanel& panel : map.panels)
        for (std::size_t row = 0; row < map.rows.size(); ++row)
            for (std::size_t column = 0; column < map.columns.size(); ++column)
                if (const float value = panel.values[row * map.columns.size() + column]; std::isfinite(value))
                    table += fmt::format("{},{},{},{:.6g}\n", csv_field(panel.title),
                                         csv_field(map.rows[row]), csv_field(map.columns[column]), value);
    return table;
}

std::vector<std::string> models_of(const SweepOptions& sweep) {
    if (!sweep.models.empty() || sweep.eval.run.model.empty()) return sweep.models;
    return {sweep.eval.run.model};
}

/// Prints what a figure's folder holds of it: the finding, beside the program's version.
void print_record(const fs::path& folder) {
    nlohmann::json json = json_of_text(read_text_file(folder / std::string(kFigureRecordName)));
    json["version"] = program_version();
    json["folder"] = folder.string();
    print_out("{}\n", json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
}

/// Moves a figure into its folder, in place of an earlier one of its name.
void publish_figure(StagedFolder& staged, const FigureRecord& record, const std::vector<std::string>& marks) {
    std::vector<std::string> files = staged.files();
    write_text_file(
        staged.path() / kFigureRecordName,
        figure_record_text(record, files, staged.folder(), program_name(), command_text(), marks));
    staged.publish(files_of_figure(staged.folder(), record.figure), std::string(kFigureRecordName));
}

/// The folder of a figure that is made in one go. A signal leaves it as it was.
struct FigureFolder {
    FigureFolder(const Figure& figure, const FigureOptions& options) : staged(options.sweep.out, "a figure") {
        (void)files_of_figure(staged.folder(), std::string(figure.name));
        set_termination_note(printable_text(options.sweep.out) + " is as it was before");
    }
    ~FigureFolder() { set_termination_note(""); }
    FigureFolder(const FigureFolder&) = delete;
    FigureFolder& operator=(const FigureFolder&) = delete;

    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged;
};

/// Writes the picture, a table of its points as NAME.csv, and what it says. mark: the model's, see made_by.h.
void write_picture(const Figure& figure, RunPicture picture, const FigureOptions& options,
                   const std::string& mark, StagedFolder& staged, std::string_view floors = {}) {
    const fs::path folder = staged.path();
    std::vector<std::string> notes = sentences_of(figure, picture.verdict);
    for (std::string& line : sentences_of_lines(floors)) notes.push_back(std::move(line));
    const auto write = [&](auto& plot, std::string& title, std::string& caption) {
        title = figure.title;
        for (const std::string& note : notes) caption += (caption.empty() ? "" : " ") + note;
        PlotChoice plots = options.sweep.plots;
        plots.made_by = made_by(std::span(&mark, 1));
        write_text_file(folder / fmt::format("{}.csv", figure.name),
                        with_made_by(table_of(plot), plots.made_by));
        write_plot_files(plot, plots, folder / std::string(figure.name));
    };
    if (auto* plot = std::get_if<CurvePlot>(&picture.plot)) write(*plot, plot->title, plot->caption);
    if (auto* map = std::get_if<ValueMap>(&picture.plot)) write(*map, map->texts.title, map->texts.caption);
    check_termination();
    publish_figure(staged,
                   {std::string(figure.name),
                    models_of(options.sweep),
                    {{"", verdict_word(picture.verdict.state), picture.verdict.why, notes,
                      std::string(figure.name), picture.verdict.evidence}}},
                   {mark});
    if (options.json)
        print_record(options.sweep.out);
    else
        for (const std::string& note : notes) print_out("{}\n", note);
    print_note("written to {}\n", printable_text(options.sweep.out));
}

/// Returns the model's name and hash as a run's record has them.
std::string run_mark(const std::string& path, const std::string& hash) {
    return fmt::format("{}, {}", model_name(path), hash);
}

/// Returns those of an exported run; what it does not say is empty.
std::string exported_mark(const fs::path& run) {
    const std::string name = (run / "run.json").string();
    const nlohmann::json json = parse_json(read_text_file(name), name);
    const nlohmann::json model = json.value("model", nlohmann::json::object());
    return run_mark(model.value("path", std::string()), model.value("hash", std::string()));
}

/// Throws Error(wrong_use) if the run has no lane of that number.
void check_lane_of_run(int lane, std::size_t n_lanes) {
    if (to_index(lane) < n_lanes) return;
    fail(ErrorCode::wrong_use, "--of-lane: lane {} does not exist: the run has {}", lane,
         n_lanes == 1 ? "lane 0" : fmt::format("lanes 0 to {}", n_lanes - 1));
}

/// Takes from run.json which layers and heads a part of a run holds.
void read_part(const JsonField& json, const NpyArray& array, figure_parts::AttentionRows& rows) {
    constexpr int kMost = 1 << 20;
    const auto numbers = [&](const char* key, std::int64_t n) {
        std::vector<int> out;
        const std::optional<JsonField> list = json.find(key);
        for (std::size_t i = 0; list && i < list->size(kMost); ++i)
            out.push_back(list->at(i).integer(0, kMost));
        if (list && static_cast<std::int64_t>(out.size()) != n)
            list->wanted(fmt::format("one for each of the {} that attention.npy holds", n));
        return out;
    };
    rows.layers = numbers("layers", array.shape[1]);
    const std::vector<int> heads = numbers("heads", array.shape[2]);
    if (!rows.layers.empty())
        rows.subtitle +=
            fmt::format(", layers {}, heads {}", fmt::join(rows.layers, ", "), fmt::join(heads, ", "));
}

/// Returns the number of the model's layers as the KV heads of run.json name them.
int layers_of_model(const JsonField& json) {
    constexpr int kMost = 1 << 20;
    int n = 0;
    const std::optional<JsonField> heads = json.find("kv_heads");
    for (std::size_t g = 0; heads && g < heads->size(kMost); ++g) {
        const JsonField readers = heads->at(g)["readers"];
        for (std::size_t i = 0; i < readers.size(kMost); ++i)
            n = std::max(n, readers.at(i)["layer"].integer(0, kMost) + 1);
    }
    return n;
}

/// The attention rows of a lane, as `decode --export run,attention` writes them.
figure_parts::AttentionRows rows_of_export(const fs::path& run, int lane) {
    const std::string name = (run / "run.json").string();
    const nlohmann::json json = parse_json(read_text_file(name), name);
    if (json.is_object() && json.contains("lanes")) check_lane_of_run(lane, json["lanes"].size());
    auto array = std::make_shared<NpyArray>(read_npy(run / fmt::format("lane{}", lane) / "attention.npy"));
    if (!json.is_object() || !json.contains("first_row") || array->shape.size() != 4)
        fail(ErrorCode::bad_file, "{} holds no run with attention; make it by decode --export run,attention",
             run.string());
    const int first_row = JsonField(json, name)["first_row"].integer(0, 1 << 24);
    figure_parts::AttentionRows rows;
    rows.n_layers = static_cast<int>(array->shape[1]);
    rows.rows_of_layer = array->shape[0] * array->shape[2];
    rows.subtitle = fmt::format("{}, lane {}", run.string(), lane);
    read_part(JsonField(json, name), *array, rows);
    if (const int n = layers_of_model(JsonField(json, name)); rows.layers.empty() && rows.n_layers < n)
        fail(ErrorCode::bad_file,
             "{} holds {} of {} layers and does not say which; export the run again with this version",
             run.string(), rows.n_layers, n);
    rows.for_each = [array, first_row](const std::function<void(int, std::span<const float>)>& each) {
        std::vector<float> row;
        std::int64_t index = 0;
        for (std::int64_t r = 0; r < array->shape[0]; ++r)
            for (int layer = 0; layer < static_cast<int>(array->shape[1]); ++layer)
                for (std::int64_t head = 0; head < array->shape[2]; ++head, index += array->shape[3]) {
                    const std::int64_t visible = std::min(first_row + r + 1, array->shape[3]);
                    row.clear();
                    for (std::int64_t p = 0; p < visible; ++p) row.push_back(array->value(index + p));
                    each(layer, row);
                }
    };
    return rows;
}

/// Returns the prompts of a figure of runs: the picture's own first. A finding that is decided by prompts has
/// more of them, paragraphs of the narrative from places spread evenly, as long as the first.
std::vector<std::string> prompts_of(const Figure& figure, const FigureOptions& options) {
    constexpr std::size_t kPrompts = 8;
    std::vector<std::string> prompts;
    for (const std::string& file : options.prompt_files) prompts.push_back(read_input_text(file));
    if (prompts.size() > 1 && figure.gains == nullptr)
        fail(ErrorCode::wrong_use, "figure {} shows one prompt; give one --prompt-file", figure.name);
    if (!prompts.empty()) return prompts;
    prompts.push_back(read_text_input(find_assets() / "prompts" / "garden-gate.txt"));
    if (figure.gains == nullptr) return prompts;
    const std::string text = read_text_input(find_assets() / "tasks" / "narrative.txt");
    for (std::size_t i = 1; i < kPrompts; ++i) {
        const std::string_view paragraph = "\n\n";
        const std::size_t begin = text.find(paragraph, text.size() * i / kPrompts) + paragraph.size();
        const std::size_t end = text.rfind(' ', begin + prompts.front().size());
        prompts.push_back(text.substr(begin, end - begin));
    }
    return prompts;
}

/// Decodes the prompt with the figure's lanes; all lanes read the first one's tokens.
RunHistory decode_for(const Figure& figure, const FigureOptions& options, const std::string& prompt) {
    RunOptions run = options.sweep.eval.run;
    if (!options.sweep.models.empty()) run.model = options.sweep.models.front();
    if (run.lanes.empty()) run.lanes = figure.lanes;
    const LoadedModel loaded = load_for_run(run);
    RunSpec spec;
    spec.prompt = prompt;
    for (const std::string& lane : run.lanes) spec.lanes.push_back(parse_lane_spec(lane));
    spec.follow = true;
    spec.ignore_eos = true;
    spec.n_generate = options.n_tokens;
    spec.requested.attention = true;
    const int n_prompt = static_cast<int>(prompt_tokens(*loaded.model, spec.prompt, false).size());
    const int last_row = n_prompt + spec.n_generate - 1;
    StepList steps;
    Progress progress(fmt::format("figure {}", figure.name), spec.n_generate);
    replay(loaded.model, *loaded.backend, spec, last_row, nullptr,
           [&](std::shared_ptr<const StepTrace> step) {
               check_termination();
               progress.update(step->row + 1 - n_prompt);
               steps.push_back(std::move(step));
           });
    throw_if_failed(*steps.back());
    RunHistory history;
    history.update(steps);
    return history;
}

/// Adds one prompt to what decides a finding.
void add_gains(FigureRecord::Evidence& evidence, const RunGains& gains) {
    evidence.comparisons.resize(gains.size());
    for (std::size_t i = 0; i < gains.size(); ++i) {
        evidence.comparisons[i].name = gains[i].first;
        evidence.comparisons[i].gains.push_back(gains[i].second);
    }
}

void draw_from_run(const Figure& figure, const FigureOptions& options) {
    if (figure.draw != nullptr && options.sweep.eval.owner.option("--of-lane").is_given())
        fail(ErrorCode::wrong_use, "figure {} shows all lanes of its run; leave out --of-lane", figure.name);
    const auto of_rows = [&](const figure_parts::AttentionRows& rows) {
        if (figure.name == "keyformer-3a") return figure_parts::sparsity_by_layer(rows);
        if (figure.name == "keyformer-3b") return figure_parts::attention_mass(rows);
        return figure_parts::sparsity_by_threshold(rows);
    };
    if (!options.from.empty()) {
        if (figure.draw != nullptr)
            fail(ErrorCode::wrong_use, "figure {} decodes a run of its own; give --prompt-file, not --from",
                 figure.name);
        FigureFolder folder(figure, options);
        RunPicture picture = of_rows(rows_of_export(options.from, options.lane));
        write_picture(figure, std::move(picture), options, exported_mark(options.from), folder.staged);
        return;
    }
    const std::vector<std::string>& lanes = options.sweep.eval.run.lanes;
    check_lane_of_run(options.lane, std::max<std::size_t>((lanes.empty() ? figure.lanes : lanes).size(), 1));
    FigureFolder folder(figure, options);
    const std::vector<std::string> prompts = prompts_of(figure, options);
    std::optional<RunPicture> picture;
    std::string mark;
    FigureRecord::Evidence evidence{std::string(figure.subject), "prompts", {}};
    for (const std::string& prompt : prompts) {
        const RunHistory run = decode_for(figure, options, prompt);
        mark = run_mark(run.run().model_path, run.run().model_hash);
        if (!picture)
            picture = figure.draw != nullptr ? figure.draw(run)
                                             : of_rows(figure_parts::rows_of_run(run, options.lane));
        if (figure.gains != nullptr) add_gains(evidence, figure.gains(run));
    }
    if (figure.gains != nullptr) {
        const std::string shown = std::move(picture->verdict.why);
        picture->verdict = decide(std::move(evidence));
        picture->verdict.why = fmt::format("{} The picture's prompt: {}", picture->verdict.why, shown);
    }
    write_picture(figure, std::move(*picture), options, mark, folder.staged);
}

/// Draws the perplexity of the tokens of all windows from the first scored one up to a position.
void draw_running_perplexity(const Figure& figure, const FigureOptions& options) {
    constexpr std::size_t kMostPoints = 400;
    const EvalOptions& eval = options.sweep.eval;
    const std::vector<LaneSpec> lanes = eval.lanes();
    const LoadedModel loaded = load_for_run(eval.run);
    const QuestionSet set = eval.questions(loaded.model).front();
    FigureFolder folder(figure, options);
    const auto held = hold_models(loaded.model, *loaded.backend, lanes);
    const std::size_t n_prompt = set.make(0).prompt.size(), n_fed = set.make(0).fed.size();
    std::vector<std::vector<double>> nats(lanes.size(), std::vector<double>(n_fed, 0));
    std::vector<std::vector<Outcome>> outcomes(lanes.size());
    std::vector<double> gains(to_index(set.n_questions), 0);  // of the first lane, nats a token
    {
        const auto all = static_cast<double>(n_fed * lanes.size()) * set.n_questions;
        Progress progress(fmt::format("figure {}", figure.name), all);
        double done = 0;
        for (int i = 0; i < set.n_questions; ++i) {
            const auto of_window = ask(loaded.model, *loaded.backend, lanes, set.make(i),
                                       [&](std::size_t lane, std::size_t token, double of_token) {
                                           nats[lane][token] += of_token / set.n_questions;
                                           if (lane < 2)
                                               gains[to_index(i)] += (lane == 0 ? -1 : 1) * of_token /
                                                                     static_cast<double>(n_fed);
                                           check_termination();
                                           progress.update(++done);
                                       });
            for (std::size_t lane = 0; lane < lanes.size(); ++lane) outcomes[lane].push_back(of_window[lane]);
        }
    }
    CurvePlot plot;
    plot.subtitle = model_name(loaded.model->path());
    plot.caption = set.description + ". Each point is the mean over all earlier scored tokens.";
    plot.x_label = "position";
    plot.y_label = "perplexity";
    if (!options.json)
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
        if (!options.json) print_out("{:<44} {:>10.3f}\n", labels[lane], curve.y.back());
    }
    PaperVerdict verdict;
    const int n_ctx = loaded.model->config().n_ctx, n_read = static_cast<int>(n_prompt + n_fed);
    if (n_read <= n_ctx) {
        verdict = {PaperVerdict::State::unseen,
                   fmt::format("{} tokens are not beyond the trained context of {}.", n_read, n_ctx)};
    } else if (eval.typed_lanes().size() > 1) {
        verdict = decide({labels[0], "windows", {{labels[0] + " against " + labels[1], gains}}});
        verdict.why = fmt::format("{:.2f} against {:.2f} after {} tokens; {}", plot.curves[0].y.back(),
                                  plot.curves[1].y.back(), n_read, verdict.why);
    }
    const std::string floors =
        protection_text(labels, lanes, eval.typed_lanes().size()) +
        floor_text(set, labels, compare_with_floor(set, lanes, eval.typed_lanes().size(), outcomes));
    write_picture(figure, {std::move(plot), verdict}, options, model_mark(*loaded.model), folder.staged,
                  floors);
}

/// Returns the quantity that a figure shows: of a user's own questions the paper's measure. Other pictures
/// beside it show other quantities.
SweepQuantity quantity_of(const Figure& figure, const SweepResult& result) {
    const std::vector<SweepQuantity> all = sweep_quantities(result);
    const auto measure = measure_of(figure.claim, result);
    const std::string suffix = measure ? "-" + result.measures[*measure].name : "";
    for (const SweepQuantity& quantity : all)
        if ((!measure || quantity.suffix == suffix) && (!figure.of_models || !quantity.is_paired))
            return quantity;
    return all.front();
}

/// Returns the name of the picture that a sweep draws of the figure: of several tasks, the one of all.
std::string picture_of(const Figure& figure, const SweepOptions& sweep,
                       const std::vector<SweepResult>& results) {
    if (results.size() > 1) return std::string(figure.name);
    const SweepQuantity quantity = quantity_of(figure, results.front());
    return picture_name(sweep, results.front(), 1) + quantity.suffix + (figure.of_models ? "-memory" : "");
}

/// Writes one picture of all tasks as NAME, beside those of each.
void write_tasks(const Figure& figure, const PlotChoice& choice, const std::vector<SweepResult>& results,
                 const fs::path& folder) {
    CurvePlot plot =
        tasks_plot(results, [&](const SweepResult& result) { return quantity_of(figure, result); });
    for (const PaperColumn& column : figure.paper_columns)
        for (const auto& [lane, value] : column.values) add_column(plot, column.name, lane, value);
    plot.title = figure.title;
    std::vector<std::string> notes = paper_sentences(figure);
    for (std::size_t i = 0; i < results.size(); ++i)
        if (const std::string text = verdict_text(judge(figure.claim, results[i])); !text.empty())
            notes.push_back(fmt::format("{}: {}", results[i].name, text));
    if (const std::string_view instead = stand_in(figure, results.front()); !instead.empty())
        notes.emplace_back(instead);
    for (const std::string& note : notes) plot.caption += " " + note;
    write_text_file(folder / fmt::format("{}.csv", figure.name),
                    with_made_by(table_of(plot), choice.made_by));
    write_plot_files(std::move(plot), choice, folder / std::string(figure.name));
}

void run_sweep_of(const Figure& figure, FigureOptions& options) {
    SweepOptions& sweep = options.sweep;
    if (sweep.varies.empty()) sweep.varies = figure.varies;
    if (figure.of_models && sweep.models.size() < 2)
        fail(ErrorCode::wrong_use, "figure {} compares models; try: {}", figure.name, command_of(figure));
    if (sweep.eval.task.empty() && sweep.eval.text.empty() && sweep.eval.data.files.empty()) {
        if (figure.of_text)
            fail(ErrorCode::wrong_use,
                 "figure {} shows perplexity; give --text FILE, --task NAME, or --data FILE", figure.name);
        sweep.eval.task = figure.task;
    }
    sweep.plots.title = figure.title;
    sweep.share_lines = figure.share_lines;
    sweep.has_shorter_context = figure.has_shorter_context;
    FigureRecord record{std::string(figure.name), models_of(sweep), {}};
    sweep.notes = [&](const SweepResult& result) {
        const PaperVerdict verdict = judge(figure.claim, result);
        std::vector<std::string> sentences = sentences_of(figure, verdict, stand_in(figure, result));
        for (std::string& line : sentences_of_lines(result.floors)) sentences.push_back(std::move(line));
        record.findings.push_back(
            {result.name, verdict_word(verdict.state), verdict.why, sentences, "", verdict.evidence});
        return sentences;
    };
    sweep.picture_name = figure.name;
    sweep.publish = [&](StagedFolder& staged, const std::vector<SweepResult>& results,
                        const std::vector<std::string>& marks) {
        PlotChoice choice = sweep.plots;
        choice.made_by = made_by(marks);
        if (results.size() > 1) write_tasks(figure, choice, results, staged.path());
        for (FigureRecord::Finding& finding : record.findings)
            finding.picture = picture_of(figure, sweep, results);
        publish_figure(staged, record, marks);
    };
    sweep.quiet = options.json;
    (void)run_sweep(sweep);
    if (options.json && !parse_shard(sweep.eval.shard).is_part()) print_record(sweep.out);
}

/// Refuses options of questions for a figure of a run, which would ignore them.
void refuse_options_of_questions(const Figure& figure, const CliCommand& command) {
    const CliOption one =
        command.given({"--samples", "--context", "--prefill", "--distance", "--ask", "--ask-when", "--chat",
                       "--seed", "--passages", "--few-shot", "--shots", "--answer-tokens", "--until", "--cut",
                       "--stems", "--last-number", "--beams"});
    if (one)
        fail(ErrorCode::wrong_use, "figure {} shows a run, which has no questions; leave out {}", figure.name,
             one.name());
}

void run_figure(FigureOptions options) {
    if (options.list) {
        if (!options.name.empty())
            fail(ErrorCode::wrong_use, "--list names all figures; leave out '{}', or --list",
                 shown_text(options.name));
        options.json ? print_list_as_json() : print_list();
        return;
    }
    if (options.name.empty())
        fail(ErrorCode::wrong_use, "which figure? `keyhole figure --list` says what there is");
    const auto figure = std::find_if(figures().begin(), figures().end(),
                                     [&](const Figure& known) { return known.name == options.name; });
    if (figure == figures().end())
        fail(ErrorCode::wrong_use, "there is no figure '{}'; figures are{}", shown_text(options.name),
             list_of_figures());
    if (figure->from == Figure::From::elsewhere)
        fail(ErrorCode::wrong_use, "figure {} is made by another command: {}", figure->name,
             command_of(*figure));
    if (options.sweep.out.empty())
        fail(ErrorCode::wrong_use, "figure {}: give --out DIR for its files", figure->name);
    if (!(options.sweep.eval.shard.empty() && options.sweep.eval.job.empty()) &&
        figure->from != Figure::From::sweep)
        fail(ErrorCode::wrong_use,
             "figure {} is no sweep, which alone has answers to share; leave out --shard and --job",
             figure->name);
    if (options.sweep.eval.writes_job(options.sweep.out)) return;
    if (figure->from == Figure::From::run) {
        const EvalOptions& eval = options.sweep.eval;
        if (eval.bounds.is_given() && eval.n_bounds > 0)
            fail(ErrorCode::wrong_use,
                 "figure {} shows a run; --bounds is for figures that are measured on questions or a text",
                 figure->name);
        refuse_options_of_questions(*figure, eval.owner);
        if (!eval.task.empty() || !eval.text.empty() || !eval.data.files.empty() ||
            !options.sweep.varies.empty())
            fail(ErrorCode::wrong_use,
                 "figure {} shows a run; it takes --prompt-file, not --task, --text, --data or --vary",
                 figure->name);
        draw_from_run(*figure, options);
        return;
    }
    SweepOptions& sweep = options.sweep;
    if (const CliOption one = sweep.eval.owner.given({"--of-lane", "--tokens"}))
        fail(ErrorCode::wrong_use, "figure {} is measured on questions or a text; leave out {}", figure->name,
             one.name());
    if (!options.from.empty() || !options.prompt_files.empty())
        fail(
            ErrorCode::wrong_use,
            "figure {} is measured on questions or a text; give --text FILE, --task NAME or --data FILE, not "
            "--from or --prompt-file",
            figure->name);
    if (sweep.eval.run.lanes.empty()) sweep.eval.run.lanes = figure->lanes;
    if (figure->from == Figure::From::text) {
        if (!sweep.varies.empty() || !sweep.eval.task.empty() || !sweep.eval.data.files.empty())
            fail(ErrorCode::wrong_use,
                 "figure {} follows a text; it takes --text, not --vary, --task or --data", figure->name);
        if (sweep.eval.text.empty())
            fail(ErrorCode::wrong_use, "figure {} shows perplexity; give --text FILE", figure->name);
        if (!sweep.models.empty()) sweep.eval.run.model = sweep.models.front();
        draw_running_perplexity(*figure, options);
        return;
    }
    run_sweep_of(*figure, options);
}

}  // namespace

std::string command_of(const Figure& figure) {
    if (figure.from == Figure::From::elsewhere) return std::string(figure.options);
    return fmt::format("keyhole figure {}{}{} --out OUT", figure.name, figure.options.empty() ? "" : " ",
                       figure.options);
}

void add_figure_command(const CliCommand& program) {
    auto options = std::make_shared<FigureOptions>();
    const CliCommand command = program.add_command(
        "figure", "make a figure or table of the papers, and say whether its finding holds here");
    command.add_option("NAME", options->name, "figure, such as tova-3; --list names all");
    command.add_flag("--list", options->list,
                     "print what each figure shows, the paper's finding, the command and its minutes");
    command.add_flag("--json", options->json, "print the result, or the list, as JSON");
    command.add_option("--from", options->from,
                       "folder of a run with run.json and attention.npy (keyformer-3a, 3b, 11)");
    command.add_option("--of-lane", options->lane, "lane of that run").from(0);
    options->sweep.eval.add(command);
    options->sweep.eval.add_bounds(command);
    options->sweep.eval.add_shard(command);
    add_models_option(command, options->sweep);
    command
        .add_option("-f,--prompt-file", options->prompt_files,
                    "figures of a run: the text to start from (default: the garden gate); where prompts "
                    "decide, repeat it (default: eight prompts)")
        .repeated();
    command.add_option("-n,--tokens", options->n_tokens, "figures of a run: tokens to generate")
        .within(2, 4096)
        .shows_default();
    command.add_option("--vary", options->sweep.varies, "other values than the figure's own").repeated();
    command.add_option("-o,--out", options->sweep.out, "folder for table, SVG, PNG and PDF");
    add_plot_options(command, options->sweep.plots);
    command.does([options] { run_figure(*options); });
}

}  // namespace keyhole
