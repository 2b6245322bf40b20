#include "app/cli/sweep.h"

#include "app/base/termination.h"
#include "app/base/version.h"
#include "app/cli/commands.h"
#include "app/cli/export_options.h"
#include "app/cli/json_head.h"
#include "app/cli/made_by.h"
#include "app/cli/model_option.h"
#include "app/cli/output.h"
#include "app/cli/sweep_parts.h"
#include "app/cli/sweep_progress.h"
#include "app/study/bounds.h"
#include "app/study/eval_report.h"
#include "app/study/listed_files.h"
#include "app/study/measure_report.h"
#include "app/study/shard_file.h"
#include "app/study/suite_page.h"
#include "app/study/sweep_table.h"
#include "app/study/vary_effect.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/make_folder.h"
#include "engine/base/model_name.h"
#include "engine/base/number.h"
#include "engine/base/path_lock.h"
#include "engine/eval/missing_answers.h"
#include "engine/run/run_spec.h"
#include "engine/session/run_context.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace keyhole {

namespace {

namespace fs = std::filesystem;

/// Scores the tokens of a question in pieces of n_piece tokens, each after the first token of the text alone.
Outcome in_pieces(const LoadedModel& loaded, const Question& question, std::size_t n_piece) {
    const std::vector<LaneSpec> full = {parse_lane_spec("full")};
    Outcome sum{0, static_cast<int>(question.fed.size()), question.n_bytes, false};
    for (std::size_t at = 0; at < question.fed.size(); at += n_piece) {
        Question piece;
        piece.prompt = {question.prompt.front()};
        const std::size_t end = std::min(at + n_piece, question.fed.size());
        piece.fed.assign(question.fed.begin() + static_cast<std::ptrdiff_t>(at),
                         question.fed.begin() + static_cast<std::ptrdiff_t>(end));
        sum.nats += ask(loaded.model, *loaded.backend, full, piece).front().nats;
    }
    return sum;
}

/// Returns the tokens of a piece that a budget of `value` stands for.
double piece_tokens(const std::string& value, int n_prompt) {
    return value_number(value) * (value.ends_with('%') ? n_prompt / 100.0 : 1);
}

/// Returns the name in answers.csv of the baseline in pieces of so many tokens.
std::string shorter_context_key(double amount) {
    return fmt::format("shorter context {:.0f}", amount);
}

/// A sweep in progress.
class Sweep {
  public:
    explicit Sweep(const SweepOptions& options) : options_(options), shard_(parse_shard(options.eval.shard)) {
        check_map(options);
        for (const std::string& text : options.varies) varies_.push_back(parse_vary(text));
        options.eval.note_bounds();
        cells_ = make_grid(options.eval.lanes(), varies_, options.eval.names());
        const std::vector<std::string> typed = options.eval.labels();
        for (const GridCell& cell : cells_) {
            lanes_.push_back(cell.spec);
            typed_.push_back(typed[to_index(cell.lane_index)]);
            labels_.push_back(lane_label(typed_.back(), cell.values, varies_));
            const bool is_own = to_index(cell.lane_index) < options.eval.typed_lanes().size();
            (is_own ? own_ : bounds_).push_back(lanes_.size() - 1);
        }
        // A figure varies what its paper varies.
        if (!options.publish)
            for (const std::string& note :
                 check_vary_effects(cells_, varies_, typed, options.eval.typed_lanes().size()))
                print_note("keyhole: {}\n", note);
        note_lanes(lanes_);
        options.eval.check_budgets(lanes_);
        against_ = options.eval.against_index(labels_, lanes_);
    }
    std::vector<SweepResult> run();

  private:
    bool prints_tables() const { return !options_.json && !options_.quiet; }
    void measure(const LoadedModel& loaded, TwoAtATime& side_by_side, const SweepPart& part,
                 const std::string& model, SweepResult& result);
    SweepNeed need_of(const LoadedModel& loaded, std::span<const SweepPart> parts) const;
    template <class T>
    std::vector<T> bounds_last(const std::vector<T>& of_cells) const;
    std::string floors_of(const QuestionSet& set, const std::vector<std::vector<Outcome>>& outcomes,
                          const std::string& model);
    void keep_floors(nlohmann::json floors, const std::string& model);
    void join_cells(const JoinedAnswers& joined, const std::string& model);
    std::string name_of(const Model& model);
    using ShorterContexts = std::vector<std::pair<std::string, double>>;
    ShorterContexts shorter_contexts(const SweepPart& part) const;
    void answer_shorter_context(const LoadedModel& loaded, const SweepPart& part, const std::string& asked);
    void add_shorter_context(const SweepPart& part, const std::string& model, const std::string& asked,
                             SweepResult& result);
    void keep_json(const SweepPart& part, const std::string& model, const ReportLanes& lanes,
                   const std::vector<LaneScore>& scores);
    void draw(StagedFolder& staged) const;
    void write_memory_plot(const SweepResult& result, const SweepQuantity& quantity,
                           const std::vector<std::string>& notes, const PlotChoice& choice,
                           const fs::path& path) const;

    const SweepOptions& options_;
    std::vector<Vary> varies_;
    std::vector<GridCell> cells_;
    std::vector<LaneSpec> lanes_;
    std::vector<std::string> typed_, labels_;  ///< by cell
    std::vector<std::size_t> own_, bounds_;    ///< cells of the typed lanes, and of floor and ceiling
    std::size_t against_ = 0;                  ///< cell that differences refer to
    Shard shard_;
    std::vector<ShardNeed> needs_;  ///< of a shard
    bool goes_on_ = false;          ///< the folder holds an earlier sweep
    std::optional<AnswerFile> answers_;
    std::optional<SweepTable> table_;
    std::optional<MeasureTable> measures_;
    std::optional<SweepProgress> progress_;
    std::vector<SweepResult> results_;
    std::vector<std::string> names_;            ///< of the models so far
    std::vector<std::string> marks_;            ///< of the same, see made_by.h
    std::vector<std::vector<Outcome>> before_;  ///< --ask-when both: of the set asked before the eviction
    nlohmann::json json_ = {{"lanes", nlohmann::json::array()}};
    JoinedAnswers joined_;   ///< --map: of the model's cells so far
    std::string below_map_;  ///< lines
};

std::vector<SweepResult> Sweep::run() {
    const fs::path folder = options_.out;
    // A bad model or question is refused before the folder is made.
    std::vector<std::string> models = options_.models;
    if (models.empty()) models.push_back(options_.eval.run.model);
    std::set<std::string> given;
    for (const std::string& model : models) {
        RunOptions run = options_.eval.run;
        run.model = model;
        const std::string path = model_path(run).lexically_normal().string();
        if (!given.insert(path).second)
            fail(ErrorCode::wrong_use, "--model {} is given twice; name each model once", path);
    }
    if (models.size() > 1)
        for (const std::string& path : given) {
            const std::shared_ptr<const Model> model = load_model(path);
            (void)sweep_parts(options_, model);
            check_lanes(*model, lanes_);
        }
    progress_.emplace("sweep", folder / "answers.csv");
    std::optional<PathLock> lock;
    for (std::size_t m = 0; m < models.size(); ++m) {
        RunOptions run = options_.eval.run;
        run.model = models[m];
        const LoadedModel loaded = load_for_run(run);
        const std::vector<SweepPart> parts = sweep_parts(options_, loaded.model);
        if (!lock) {
            make_folder(folder, "the sweep");
            lock = PathLock::take(folder);
            if (!options_.publish) (void)listed_files(folder, kSweepFiles, {});
            std::error_code error;
            goes_on_ = fs::exists(folder / "table.csv", error);
            answers_.emplace(folder / "answers.csv");
            table_.emplace(folder / "table.csv");
            measures_.emplace(folder / "measures.csv");
        }
        if (prints_tables())
            print_out("{}{}, {}\n{}", results_.empty() ? "" : "\n", loaded.model->path().string(),
                      loaded.backend_text, results_.empty() ? options_.eval.names_text() : "");
        flush_output();
        progress_->begin_model(need_of(loaded, parts), models.size() - m - 1);
        const std::string name = name_of(*loaded.model);
        marks_.push_back(model_mark(*loaded.model));
        answers_->set_made_by(made_by(*loaded.model));
        if (m == 0) json_.update(options_.eval.about_json(*loaded.model));
        json_["version"] = program_version();
        json_["models"].push_back(json_head(*loaded.model, loaded.backend->name()));
        TwoAtATime side_by_side(loaded.model, *loaded.backend, run.backend_options().n_threads);
        for (std::size_t i = 0; i < parts.size(); ++i) {
            if (results_.size() <= i)
                results_.push_back({parts[i].set.name,
                                    parts[i].set.description,
                                    parts[i].set.is_task,
                                    parts[i].set.measures,
                                    varies_,
                                    {},
                                    parts[i].length,
                                    parts[i].depth,
                                    against_});
            if (options_.map && (results_[i].length != parts[i].length))
                fail(ErrorCode::wrong_use,
                     "the models have different contexts; give --lengths for a map of both");
            std::string of_cell;
            if (options_.map) of_cell = fmt::format(" of {} at {} %", parts[i].length, parts[i].depth);
            progress_->set_part(parts[i].set.name + of_cell);
            measure(loaded, side_by_side, parts[i], name, results_[i]);
            flush_output();
        }
        if (options_.map && !shard_.is_part()) join_cells(std::exchange(joined_, {}), name);
    }
    if (shard_.is_part()) {
        write_shard_file(folder, shard_, needs_);
        print_note("{}", shard_note(folder, shard_));
        return {};
    }
    if (options_.json)
        print_out("{}\n", json_.dump(2, ' ', false, nlohmann::json::error_handler_t::replace));
    else if (options_.map && prints_tables())
        print_out("{}{}", depth_table(results_), below_map_);
    flush_output();
    const TerminationGuard guard;  // before the folder that it guards
    StagedFolder staged(folder, "plots", std::move(lock));
    draw(staged);
    print_note("written to {}\n", folder.string());
    return std::move(results_);
}

SweepNeed Sweep::need_of(const LoadedModel& loaded, std::span<const SweepPart> parts) const {
    SweepNeed need;
    for (const SweepPart& part : parts) {
        const std::string asked = asked_on(part.set.identity, loaded.backend->name());
        std::vector<std::string> lanes;
        for (const GridCell& cell : cells_) lanes.push_back(answer_lane(cell.spec));
        if (options_.has_shorter_context && !part.set.is_task)
            for (const auto& [value, amount] : shorter_contexts(part))
                lanes.push_back(shorter_context_key(amount));
        for (const std::string& lane : std::set<std::string>(lanes.begin(), lanes.end()))
            for (int i = 0; i < part.set.n_questions; ++i) {
                if (!shard_.has(i)) continue;
                const int missing = answers_->find(asked, lane, i) ? 0 : 1;
                ++need.n_answers;
                need.n_missing += missing;
                need.work += part.context;
                need.missing_work += missing * part.context;
            }
    }
    return need;
}

/// Returns the model's name in pictures: that of its folder, or its path if another model has this name.
std::string Sweep::name_of(const Model& model) {
    const std::string path = model.path().lexically_normal().string();
    std::string name = model_name(model.path());
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) name = path;
    return names_.emplace_back(name);
}

/// Returns what each cell of the grid has, those of the typed lanes first, then those of floor and ceiling.
template <class T>
std::vector<T> Sweep::bounds_last(const std::vector<T>& of_cells) const {
    std::vector<T> in_order;
    for (const std::vector<std::size_t>* cells : {&own_, &bounds_})
        for (const std::size_t cell : *cells) in_order.push_back(of_cells[cell]);
    return in_order;
}

/// Returns lines on the floor of every budget, and on lanes that protect different tokens.
std::string Sweep::floors_of(const QuestionSet& set, const std::vector<std::vector<Outcome>>& outcomes,
                             const std::string& model) {
    const std::vector<std::string> labels = bounds_last(labels_);
    const std::vector<LaneSpec> lanes = bounds_last(lanes_);
    const std::vector<Floor> floors = compare_with_floor(set, lanes, own_.size(), bounds_last(outcomes));
    keep_floors(floor_json(set, lanes, floors), model);
    return protection_text(labels, lanes, own_.size()) + floor_text(set, labels, floors);
}

void Sweep::keep_floors(nlohmann::json floors, const std::string& model) {
    for (nlohmann::json& one : floors) {
        one["model"] = model;
        json_["floors"].push_back(std::move(one));
    }
}

/// Notes what the cells of a model's map say together of its lanes.
void Sweep::join_cells(const JoinedAnswers& joined, const std::string& model) {
    const std::vector<std::string> labels = bounds_last(labels_);
    const std::vector<LaneSpec> lanes = bounds_last(lanes_);
    const std::vector<Floor> floors = joined.floors(lanes, own_.size());
    keep_floors(joined.json(lanes, floors), model);
    below_map_ += "\n" + joined.text(fmt::format("{}: all cells", model), labels, floors);
    if (names_.size() == 1) below_map_ += protection_text(labels, lanes, own_.size());
}

void Sweep::measure(const LoadedModel& loaded, TwoAtATime& side_by_side, const SweepPart& part,
                    const std::string& model, SweepResult& result) {
    const std::string asked = asked_on(part.set.identity, loaded.backend->name());
    const std::string others = answers_->others(asked);
    if (!others.empty() && options_.models.size() < 2) print_note("{}\n", others);
    answer_missing(
        *loaded.model, side_by_side, part.set, asked, same_lanes(lanes_), part.context, *answers_,
        [&](int n) { progress_->add(n, static_cast<double>(n) * part.context); }, shard_);
    const bool has_shorter = options_.has_shorter_context && !part.set.is_task;
    if (has_shorter) answer_shorter_context(loaded, part, asked);
    if (shard_.is_part()) {
        needs_.push_back(shard_need(asked, part.set.n_questions, lanes_));
        for (const auto& [value, amount] : has_shorter ? shorter_contexts(part) : ShorterContexts{})
            needs_.back().lanes.push_back(shorter_context_key(amount));
        return;
    }
    const auto outcomes = known_answers(part.set, asked, same_lanes(lanes_), *answers_);
    std::vector<LaneScore> scores;
    for (const std::vector<Outcome>& of_cell : outcomes)
        scores.push_back(score_lane(part.set, of_cell, outcomes[against_]));
    const std::vector<int> lengths = options_.eval.text_lengths(part.set, part.context);
    const double n_tokens =
        std::accumulate(lengths.begin(), lengths.end(), 0.0) / static_cast<double>(lengths.size());
    ReportLanes lanes{labels_, lanes_, {}, against_, options_.eval.sort};
    for (std::size_t i = 0; i < cells_.size(); ++i) {
        lanes.note(
            options_.eval.kv_bytes_of(*loaded.model, *loaded.backend, part.set, lengths, cells_[i].spec));
        const double bytes = lanes.kv_bytes.back() / n_tokens;
        table_->add(part.set, asked, cells_[i], varies_, scores[i],
                    {model, bytes, part.length, part.depth, i == against_, made_by(*loaded.model)});
        const bool is_bound = std::ranges::find(bounds_, i) != bounds_.end();
        result.points.push_back(
            {model, typed_[i], cells_[i].values, bytes, scores[i], outcomes[i], is_bound});
    }
    std::string floors;
    if (options_.map)
        joined_.add(part.set, bounds_last(outcomes));
    else
        floors = floors_of(part.set, outcomes, model);
    result.floors += floors;
    table_->write();
    if (!part.set.measures.empty()) {
        measures_->add(part.set, asked, cells_, scores, against_, made_by(*loaded.model));
        measures_->write();
    }
    if (has_shorter) add_shorter_context(part, model, asked, result);
    if (options_.json)
        keep_json(part, model, lanes, scores);
    else if (!options_.map && prints_tables())
        print_out("\n{}{}{}{}", score_table(part.set, lanes, scores),
                  least_memory_text(part.set, lanes, scores), floors,
                  reference_fails_text(part.set, lanes, scores, options_.eval.ask));
    if (options_.json || options_.map || !prints_tables() || options_.eval.ask_when != "both") return;
    if (const std::string table = ask_when_table(part.set, lanes, before_, outcomes); !table.empty())
        print_out("\n{}", table);
    before_ = outcomes;
}

/// Returns the values of the first grid key that make pieces, and their tokens.
Sweep::ShorterContexts Sweep::shorter_contexts(const SweepPart& part) const {
    ShorterContexts found;
    const int n_prompt = options_.eval.prompt_of(part.set, part.context);
    for (const std::string& value : varies_.front().values)
        if (const double amount = piece_tokens(value, n_prompt); amount >= 1)
            found.emplace_back(value, amount);
    return found;
}

/// Answers the shard's questions in pieces.
void Sweep::answer_shorter_context(const LoadedModel& loaded, const SweepPart& part,
                                   const std::string& asked) {
    for (const auto& [value, amount] : shorter_contexts(part))
        for (int i = 0; i < part.set.n_questions; ++i) {
            const std::string key = shorter_context_key(amount);
            if (!shard_.has(i) || answers_->find(asked, key, i)) continue;
            check_termination();
            answers_->add(asked, key, i,
                          in_pieces(loaded, part.set.make(i), static_cast<std::size_t>(amount)));
            answers_->flush();
            progress_->add(1, part.context);
        }
}

void Sweep::add_shorter_context(const SweepPart& part, const std::string& model, const std::string& asked,
                                SweepResult& result) {
    const std::vector<Outcome> first = result.points.front().outcomes;
    if (prints_tables()) print_out("\n{:<44} {:>10}\n", "shorter context, nothing evicted", "x first");
    for (const auto& [value, amount] : shorter_contexts(part)) {
        std::vector<Outcome> outcomes;
        for (int i = 0; i < part.set.n_questions; ++i)
            outcomes.push_back(answers_->find(asked, shorter_context_key(amount), i).value());
        const LaneScore score = score_lane(outcomes, first);
        if (prints_tables()) print_out("{:<44} {:>10.4f}\n", value, std::exp(score.nats_difference.value));
        std::vector<std::string> values(varies_.size());
        values.front() = value;
        result.points.push_back({model, "shorter context", values, 0, score, outcomes});
    }
}

void Sweep::keep_json(const SweepPart& part, const std::string& model, const ReportLanes& lanes,
                      const std::vector<LaneScore>& scores) {
    nlohmann::json scored =
        score_json(std::span(&part.set, 1), std::span(&lanes, 1), std::span(&scores, 1)).at("lanes");
    for (nlohmann::json& lane : scored) {
        lane["model"] = model;
        if (part.length > 0) {
            lane["length"] = part.length;
            lane["depth"] = part.depth;
        }
        json_["lanes"].push_back(std::move(lane));
    }
}

void Sweep::draw(StagedFolder& staged) const {
    const fs::path& folder = staged.path();
    PlotChoice choice = options_.plots;
    choice.made_by = made_by(marks_);
    FileGroups plots;  // by questions
    std::set<std::string> listed;
    const auto list = [&](const std::string& questions) {
        for (const std::string& file : staged.files())
            if (listed.insert(file).second) plots[questions].push_back(file);
    };
    if (options_.map) {
        const std::string name = results_.front().name + "-depth";
        write_plot_files(depth_map(results_), choice, folder / name);
        list(name);
    }
    for (const SweepResult& result : options_.map ? std::vector<SweepResult>{} : results_) {
        const std::vector<std::string> notes =
            options_.notes ? options_.notes(result) : std::vector<std::string>{};
        if (prints_tables())
            for (const std::string& note : notes)
                print_out("{}{}\n", &note == notes.data() ? "\n" : "", note);
        for (const SweepQuantity& quantity : sweep_quantities(result)) {
            check_termination();
            const fs::path path =
                folder / (picture_name(options_, result, results_.size()) + quantity.suffix);
            const auto shares =
                result.is_task ? std::span<const double>(options_.share_lines) : std::span<const double>();
            CurvePlot plot = sweep_plot(result, quantity, shares);
            for (const std::string& note : notes) plot.caption += " " + note;
            write_plot_files(std::move(plot), choice, path);
            if (varies_.size() >= 2)
                write_plot_files(sweep_map(result, quantity), choice, path.string() + "-map");
            const bool has_memory =
                options_.models.size() >= 2 || (!options_.publish && has_several_bytes(result));
            if (has_memory && !quantity.is_paired)
                write_memory_plot(result, quantity, notes, choice, path.string() + "-memory");
        }
        list(result.name);
    }
    if (options_.publish) {
        options_.publish(staged, results_, marks_);
        return;
    }
    std::vector<std::string> old = listed_files(staged.folder(), kSweepFiles, plots);
    // Of an earlier sweep that kept no list, plots of the same names are its own.
    if (old.empty() && goes_on_) old = staged.files();
    publish_listed(staged, kSweepFiles, plots, old, choice.made_by);
}

void Sweep::write_memory_plot(const SweepResult& result, const SweepQuantity& quantity,
                              const std::vector<std::string>& notes, const PlotChoice& choice,
                              const fs::path& path) const {
    CurvePlot plot = memory_plot(result, quantity);
    for (const std::string& note : notes) plot.caption += " " + note;
    write_plot_files(std::move(plot), choice, path);
}

template <class Plot>
void write_drawing_files(const Plot& plot, Drawing (*draw)(const Plot&), const std::string& made_by,
                         const fs::path& path) {
    PictureChoice how;
    how.formats = {PictureFormat::svg, PictureFormat::png};
    if (has_pdf()) how.formats.push_back(PictureFormat::pdf);
    how.print = plot.print;
    how.made_by = made_by;
    write_drawing(draw(plot), path, how, {});
}

}  // namespace

std::vector<SweepResult> run_sweep(const SweepOptions& options) {
    return Sweep(options).run();
}

std::string picture_name(const SweepOptions& options, const SweepResult& result, std::size_t n_results) {
    if (options.picture_name.empty()) return result.name;
    return n_results > 1 ? options.picture_name + "-" + result.name : options.picture_name;
}

void add_models_option(const CliCommand& command, SweepOptions& options) {
    CliOption one = command.option("--model");
    const std::string help = one.help();
    command.remove(one);
    command.add_option("-m,--model", options.models, help + "; repeat for several models side by side")
        .repeated()
        .some_path();
}

void add_plot_options(const CliCommand& command, PlotChoice& plots) {
    command.add_option("--width", plots.width, "width of the plots in pixels; text scales with it")
        .within(PictureChoice::kLeastWidth, PictureChoice::kMostWidth);
    command.add_flag("--dark", plots.dark, "plots on a dark background");
    add_print_options(command, plots.print);
}

std::vector<std::string> plot_files(const std::string& name) {
    std::vector<std::string> files = {name + ".svg", name + ".png"};
    if (has_pdf()) files.push_back(name + ".pdf");
    return files;
}

void write_plot_files(CurvePlot plot, const PlotChoice& choice, const fs::path& path) {
    if (!choice.title.empty()) plot.title = choice.title;
    plot.picture_width = choice.width;
    plot.print = choice.print;
    plot.background = choice.dark ? Background::dark : Background::light;
    write_drawing_files(plot, &curves_drawing, choice.made_by, path);
}

void write_plot_files(ValueMap map, const PlotChoice& choice, const fs::path& path) {
    if (!choice.title.empty()) map.texts.title = choice.title;
    map.width = choice.width;
    map.print = choice.print;
    map.background = choice.dark ? Background::dark : Background::light;
    write_drawing_files(map, &value_map_drawing, choice.made_by, path);
}

void add_sweep_command(const CliCommand& program) {
    auto options = std::make_shared<SweepOptions>();
    const CliCommand command = program.add_command(
        "sweep",
        "eval a grid of lanes: table, CSV and plots; the same command goes on where it was interrupted");
    options->eval.add(command);
    options->eval.add_bounds(command);
    options->eval.add_table(command);
    options->eval.add_shard(command);
    add_models_option(command, *options);
    command
        .add_option(
            "--vary", options->varies,
            "key=values: budget=64..1024*2, alpha=0..1+0.1, budget=10%,20%, scope=head,layer; repeat for a "
            "grid; the first one is the plot's x")
        .repeated();
    command.add_flag("--map", options->map,
                     "a task by depth (the place of what is asked for) and length of the text");
    command.add_option(
        "--lengths", options->lengths,
        "lengths of the map in tokens: 256..4096*2 (default: five doublings up to the context)");
    command.add_option("--depths", options->depths,
                       "depths of the map, per cent of the text before the place (default: 0..100+25)");
    command
        .add_option("-o,--out", options->out,
                    "folder for answers.csv, table.csv and plots; other sweeps into it add to both tables")
        .required();
    add_plot_options(command, options->plots);
    command.add_flag("--json", options->json, "print the result as JSON");
    command.does([options] {
        if (!options->eval.writes_job(options->out)) run_sweep(*options);
    });
}

}  // namespace keyhole
