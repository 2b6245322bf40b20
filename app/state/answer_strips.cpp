#include "app/state/answer_strips.h"

#include "app/state/app_state.h"
#include "app/state/shown_answers.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/eval/bound_lanes.h"
#include "engine/eval/evaluate.h"
#include "engine/eval/statistics.h"
#include "engine/policy/option_help.h"
#include "engine/policy/option_table.h"
#include "engine/session/look_ahead.h"
#include "engine/session/run_answers.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <thread>
#include <utility>

namespace keyhole {

namespace {

using Mark = AnswerLine::Mark;

/// Copies that process the prompt together: their answers come after a second or so with the demo model.
constexpr std::size_t kInABatch = 16;
constexpr int kMostFloors = 3;
constexpr double kBatchBytes = 192e6;  // of K and V after the prompt

std::vector<std::string> budgets(int n_prompt, int n_answer) {
    constexpr int kLeast = 16;
    const std::vector<double> parts =
        n_prompt <= 640 ? std::vector{1.0, 1.25, 1.5, 1.75} : std::vector{1.0, 1.5};
    std::vector<std::string> values;
    for (int base = kLeast; base < n_prompt; base *= 2)
        for (const double part : parts)
            if (const double n = std::round(base * part); n < n_prompt)
                values.push_back(std::to_string(static_cast<int>(n)));
    values.push_back(std::to_string(n_prompt + n_answer));
    return values;
}

std::vector<std::string> words_of_list(std::string_view list) {
    std::vector<std::string> words;
    while (!list.empty()) {
        const std::size_t end = std::min(list.find(' '), list.size());
        words.emplace_back(list.substr(0, end));
        list.remove_prefix(std::min(end + 1, list.size()));
    }
    return words;
}

/// Returns the lane with another value; nullopt: it cannot have it.
std::optional<LaneSpec> with_value(const LaneSpec& lane, std::string_view key, const std::string& value) {
    try {
        LaneSpec changed = changed_lane_spec(lane, fmt::format("{}={}", key, value));
        changed.policy.shadow = false;  // it changes no answer
        if (validate(changed.policy).empty()) return changed;
    } catch (const Error&) {
    }
    return std::nullopt;
}

/// Returns the lane's value of an option as its spec has it.
std::string own_value(const LaneSpec& lane, std::string_view key) {
    for (const LaneSetting& setting : lane_settings(lane))
        if (setting.key == key) return setting.value;
    return "";
}

/// Returns where a value stands among others: a percentage of the budget or the prompt as tokens.
double place_of(std::string_view value, std::string_view key, const LaneSpec& lane, int n_prompt) {
    if (value == "rest" || value == "all") return 1e9;
    double number = 0;
    std::size_t n = 0;
    try {
        number = std::stod(std::string(value), &n);
    } catch (const std::exception&) {
        return -1;  // a word or a schedule
    }
    const bool percent = value.ends_with('%');
    if (n + (percent ? 1 : 0) != value.size()) return -1;
    if (key == "recent" && !percent) {  // among shares of the budget
        const double budget = resolve(lane.policy, n_prompt, 0).budget;
        return budget > 0 ? 100 * number / budget : number;
    }
    return percent && key == "budget" ? number * n_prompt / 100 : number;
}

/// Returns the sampling after the run's commands.
Sampling sampling_now(const RunSpec& run) {
    Sampling sampling = run.sampling;
    for (const LoggedCommand& logged : run.commands)
        if (const auto* set = std::get_if<SetSampling>(&logged.command)) sampling = set->sampling;
    return sampling;
}

/// The story has no pane of answers.
bool wants_bounds(const AppState& app) {
    return app.view.bounds && app.view.arrangement != Arrangement::story;
}

/// Returns whether the lane ranks by the text ahead, and so has no answer of its own.
bool knows_ahead(const std::string& spec) {
    return needs_future(parse_lane_spec(spec).policy);
}

/// Returns whether the cell's lane gave an answer. One that cannot run with this value is neither right nor
/// wrong.
bool is_answered(const StripCell& cell) {
    return cell.answer != nullptr && cell.answer->failure.empty();
}

/// Returns the full lane's answer for each oracle that would choose its words, and else a note in its place:
/// an oracle knows the text ahead that it is given, and none of its own. run.lanes: the full one first.
std::vector<LaneAnswer> ceilings_of(const std::shared_ptr<const Model>& model, Backend& backend, RunSpec run,
                                    const std::vector<int>& prompt,
                                    const BackgroundJob<int>::Progress& progress) {
    const std::vector<LaneSpec> oracles(run.lanes.begin() + 1, run.lanes.end());
    run.lanes.resize(1);
    const ProgressPart all(progress);
    const ProgressReport of_full = all.part(0, 0.3).callback(), of_oracles = all.part(0.3, 0.7).callback();
    const LaneAnswer full = answers_of_run(model, backend, run, -1, *run.answer_end, of_full).front();
    Question question;
    question.prompt = prompt;
    question.fed = full.tokens;
    std::vector<LaneAnswer> answers(oracles.size(), full);
    if (full.tokens.empty()) return answers;
    const std::vector<Outcome> outcomes = ask(model, backend, oracles, question, {}, of_oracles);
    for (std::size_t i = 0; i < oracles.size(); ++i) {
        answers[i].spec = format_lane_spec(oracles[i]);
        if (outcomes[i].right) continue;
        answers[i].tokens.clear();
        answers[i].text = " other words than the full lane's";
    }
    return answers;
}

bool is_option_of_words(std::string_view key) {
    return !option_words(lane_option(key)).empty();
}

}  // namespace

std::vector<std::string> strip_values(const LaneSpec& lane, std::string_view key, int n_prompt,
                                      int n_answer) {
    const auto option = std::ranges::find(kStripOptions, key, &StripOption::key);
    if (option == kStripOptions.end() || !no_effect_reason(lane.policy, key).empty()) return {};
    std::vector<std::string> values =
        key == "budget" ? budgets(n_prompt, n_answer) : words_of_list(option->values);
    const std::string own = own_value(lane, key);
    if (key == "budget" && own == "all") values.back() = own;
    if (!is_option_of_words(key) && std::ranges::find(values, own) == values.end()) {
        const auto place = [&](const std::string& value) { return place_of(value, key, lane, n_prompt); };
        const auto after =
            std::ranges::find_if(values, [&](const std::string& value) { return place(value) > place(own); });
        values.insert(after, own);
    }
    std::erase_if(values, [&](const std::string& value) { return !with_value(lane, key, value); });
    return values;
}

std::string strip_words(std::string_view key, std::span<const StripCell> all, bool right_known) {
    if (all.empty()) return "";
    const auto known = std::ranges::count_if(all, [](const StripCell& c) { return c.answer != nullptr; });
    const auto range_of = [&](std::span<const StripCell> cells) {
        return is_option_of_words(key)
                   ? std::string(key)
                   : fmt::format("{} {} to {}", key, cells.front().value, cells.back().value);
    };
    if (known < std::ssize(all)) return fmt::format("{}: {} of {} tried", range_of(all), known, all.size());
    std::vector<StripCell> cells;
    std::ranges::copy_if(all, std::back_inserter(cells), is_answered);
    if (cells.empty()) return fmt::format("{}: this lane gives no answer", range_of(all));
    const std::string range = range_of(cells);
    const auto is_right = [](const StripCell& cell) { return cell.mark == Mark::right; };
    const auto n_right = std::ranges::count_if(cells, is_right);
    const std::string what = right_known ? "right" : "the same answer as lane 0";
    if (n_right == 0) return fmt::format("{}: never {}", range, what);
    if (n_right == std::ssize(cells)) return fmt::format("{}: always {}", range, what);
    std::size_t from = cells.size();  // the right ones at the end
    while (from > 0 && is_right(cells[from - 1])) --from;
    const auto n_end = std::ssize(cells) - static_cast<std::ptrdiff_t>(from);
    if (is_option_of_words(key) || n_end == 0 || n_right > n_end)
        return fmt::format("{}: {} with {} of {}", range, what, n_right, cells.size());
    if (key == "budget" && n_end == 1)
        return fmt::format("{}: {} only where nothing is evicted", range, what);
    return fmt::format("{}: {} from {}", range, what, cells[from].value);
}

namespace {

int n_known(const AnswerBound& bound) {
    return static_cast<int>(std::ranges::count_if(bound.cells, is_answered));
}

int n_right(const AnswerBound& bound) {
    return static_cast<int>(
        std::ranges::count_if(bound.cells, [](const StripCell& c) { return c.mark == Mark::right; }));
}

}  // namespace

std::string AnswerBound::words(bool right_known) const {
    const int n = n_known(*this);
    if (n == 0) return "";
    return fmt::format("{} of {} {}", n_right(*this), n, right_known ? "right" : "as lane 0");
}

std::string AnswerBound::interval_words() const {
    const int n = n_known(*this);
    if (n == 0) return "";
    const Interval share = wilson_interval(n_right(*this), n);
    return fmt::format(
        "{} little: the share lies between {:.0f} and {:.0f} % (95 %). keyhole eval asks more questions.",
        n == 1 ? std::string("One seed tells") : fmt::format("{} seeds tell", n), 100 * share.low,
        100 * share.high);
}

std::vector<AnswerBound> answer_bounds(std::span<const LaneSpec> lanes) {
    std::vector<AnswerBound> bounds;
    std::vector<std::string> floors;
    for (LaneSpec lane : lanes) {
        lane.policy.shadow = false;
        if (!has_floor(lane) || std::ssize(floors) >= kMostFloors) continue;
        const std::string floor = floor_of(lane);
        if (std::ranges::find(floors, floor) != floors.end()) continue;
        floors.push_back(floor);
        for (const LaneSpec& bound : bound_lanes({&lane, 1}, kBoundSeeds, true)) {
            const bool is_ceiling = bound.policy.preset == Preset::oracle;
            if (bounds.empty() || bounds.back().is_ceiling || is_ceiling)
                bounds.push_back({floor, own_value(bound, "budget"), is_ceiling, {}});
            StripCell& cell = bounds.back().cells.emplace_back();
            cell.spec = format_lane_spec(bound);
            if (is_ceiling) bounds.back().name = cell.spec;
        }
    }
    return bounds;
}

bool AnswerStrips::Asked::is(const std::string& other_model, const RunSpec& other) const {
    return model == other_model && run.prompt == other.prompt && run.prompt_tokens == other.prompt_tokens &&
           run.chat == other.chat && run.seed == other.seed && run.sampling == sampling_now(other) &&
           run.n_generate == other.n_generate && run.forced == other.forced &&
           run.answer_end == other.answer_end;
}

const AnswerStrip& AnswerStrips::of(int lane) const {
    static const AnswerStrip kNone;
    return lane >= 0 && to_index(lane) < strips_.size() ? strips_[to_index(lane)] : kNone;
}

/// Takes the answers of a batch that has ended. Of one that failed each lane is tried alone: one that cannot
/// run stops the others.
bool AnswerStrips::take_batch() {
    if (job_.running() || tried_.empty()) return false;
    const std::vector<std::string> tried = std::exchange(tried_, {});
    const std::shared_ptr<Batch> batch = job_.take();
    if (batch == nullptr) {
        const std::string fault = job_.fault();
        if (fault.empty() || is_cancelled_) return false;
        if (tried.size() > 1) {
            alone_.insert(tried.begin(), tried.end());
            return false;
        }
        LaneAnswer failed;
        failed.complete = true;
        failed.failure = fault;
        known_[tried.front()] = std::make_shared<const LaneAnswer>(std::move(failed));
        ++changes_;
        return true;
    }
    backend_ = batch->backend;
    if (batch->asked != n_asked_) return false;
    for (std::size_t i = 0; i < batch->specs.size() && i < batch->answers.size(); ++i) {
        batch->answers[i].stored.reset();  // large, and not asked for
        known_[batch->specs[i]] = std::make_shared<const LaneAnswer>(std::move(batch->answers[i]));
    }
    ++changes_;
    return true;
}

/// Forgets answers to another prompt. Returns whether the run on show can have strips.
bool AnswerStrips::follow(const AppState& app) {
    const RunState& run = app.run;
    const bool shown = app.view.arrangement != Arrangement::compare && !app.lesson.shown;
    const bool wants = !app.view.strip_key.empty() || wants_bounds(app);
    if (!wants || !shown || !run.live() || !run.recorded() || !run.has_steps() || run.model() == nullptr)
        return false;
    const RunSpec& spec = run.status.run;
    const bool touched = std::ranges::any_of(spec.commands, [](const LoggedCommand& logged) {
        return std::holds_alternative<EvictToken>(logged.command) ||
               std::holds_alternative<PinToken>(logged.command) ||
               std::holds_alternative<UnpinToken>(logged.command);
    });
    if (touched || !spec.answer_end) return false;
    if (const std::string model = run.model()->path().string(); !asked_ || !asked_->is(model, spec)) {
        asked_ = Asked{model, spec};
        asked_->run.sampling = sampling_now(spec);
        asked_->run.commands.clear();
        asked_->run.lanes.clear();
        known_.clear();
        alone_.clear();
        backend_.reset();
        ++n_asked_;
        ++changes_;
    }
    return true;
}

/// Fills in what is known of a cell.
void AnswerStrips::answer_cell(StripCell& cell) const {
    const auto found = known_.find(cell.spec);
    if (found == known_.end()) return;
    cell.answer = found->second;
    const bool is_right = made_of_.right.empty() ? cell.answer->tokens == made_of_.reference
                                                 : answer_holds(cell.answer->text, made_of_.right);
    if (cell.answer->failure.empty()) cell.mark = is_right ? Mark::right : Mark::wrong;
}

/// Floors and ceilings come before the strips: they are few.
void AnswerStrips::make_bounds(const AppState& app) {
    bounds_.clear();
    if (!made_of_.bounds) return;
    bounds_ = answer_bounds(app.run.lane_editor.lanes());
    for (AnswerBound& bound : bounds_)
        for (StripCell& cell : bound.cells) {
            answer_cell(cell);
            if (cell.answer == nullptr) wanted_.push_back(cell.spec);
        }
}

void AnswerStrips::make_strips(const AppState& app) {
    const std::vector<LaneSpec>& lanes = app.run.lane_editor.lanes();
    strips_.assign(lanes.size(), {});
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        AnswerStrip& strip = strips_[i];
        const std::string own = own_value(lanes[i], made_of_.key);
        for (std::string& value :
             strip_values(lanes[i], made_of_.key, made_of_.n_prompt, asked_->run.answer_end->max_tokens)) {
            StripCell cell;
            cell.spec = format_lane_spec(*with_value(lanes[i], made_of_.key, value));
            if (value == own) strip.now = static_cast<int>(strip.cells.size());
            cell.value = std::move(value);
            answer_cell(cell);
            strip.cells.push_back(std::move(cell));
        }
        strip.words = strip_words(made_of_.key, strip.cells, !made_of_.right.empty());
    }
    // Every fourth cell of all lanes first, so that each strip soon shows its outline.
    wanted_.clear();
    make_bounds(app);
    for (const std::size_t stride : {4, 2, 1})
        for (std::size_t n = 0; n < strips_.size(); ++n) {
            const std::size_t lane = (to_index(app.view.lane) + n) % strips_.size();
            const std::vector<StripCell>& cells = strips_[lane].cells;
            for (std::size_t i = 0; i < cells.size(); i += stride)
                if (cells[i].answer == nullptr && std::ranges::find(wanted_, cells[i].spec) == wanted_.end())
                    wanted_.push_back(cells[i].spec);
        }
}

/// Returns the run of what is wanted first: lanes that write their own words, or those that know the text
/// ahead behind a full lane.
RunSpec AnswerStrips::next_batch() const {
    RunSpec run = asked_->run;
    run.follow = knows_ahead(wanted_.front());  // see ceilings_of()
    if (run.follow) run.lanes.push_back(parse_lane_spec("full"));
    const std::size_t most = alone_.contains(wanted_.front()) ? run.lanes.size() + 1 : std::size_t{kInABatch};
    for (const std::string& spec : wanted_) {
        if (run.lanes.size() >= most) break;
        const bool fits = &spec == &wanted_.front() || !alone_.contains(spec);
        if (fits && knows_ahead(spec) == run.follow) run.lanes.push_back(parse_lane_spec(spec));
    }
    return run;
}

void AnswerStrips::begin_batch(const AppState& app) {
    const std::shared_ptr<const Model> model = app.run.model();
    RunSpec run = next_batch();
    const int context = made_of_.n_prompt + run.answer_end->max_tokens;
    const std::size_t n_first = run.follow ? 1 : 0;  // the lane that oracles follow
    run.lanes.resize(
        std::max(lanes_that_fit(*model, run.lanes, context, kBatchBytes), std::size_t{n_first + 1}));
    tried_.clear();
    for (std::size_t i = n_first; i < run.lanes.size(); ++i) tried_.push_back(format_lane_spec(run.lanes[i]));
    is_cancelled_ = false;
    const std::vector<int>& text = app.run.history.lanes().front().tokens;
    std::vector<int> prompt(text.begin(), text.begin() + made_of_.n_prompt);
    JobBackend of_job = app.run.job_backend();
    // The window draws and takes clicks meanwhile.
    const int most = of_job.options.n_threads > 0 ? of_job.options.n_threads
                                                  : static_cast<int>(std::thread::hardware_concurrency());
    of_job.options.n_threads = std::max(most / 2, 1);
    job_.begin(
        [model, run = std::move(run), of_job = std::move(of_job), specs = tried_, asked = n_asked_,
         backend = backend_, prompt = std::move(prompt)](const BackgroundJob<Batch>::Progress& progress) {
            Batch batch{asked, specs, {}, backend != nullptr ? backend : of_job.get(model)};
            batch.answers = run.follow
                                ? ceilings_of(model, *batch.backend, run, prompt, progress)
                                : answers_of_run(model, *batch.backend, run, -1, *run.answer_end, progress);
            return batch;
        },
        app.wake);
}

bool AnswerStrips::update(const AppState& app) {
    bool changed = take_batch();
    const bool requested = follow(app);
    if (!requested) {
        changed = changed || !strips_.empty() || !bounds_.empty();
        strips_.clear();
        bounds_.clear();
        wanted_.clear();
        made_of_ = {};
    } else {
        const std::vector<ShownAnswer> answers = shown_answers(app);
        MadeOf now{app.view.strip_key,
                   wants_bounds(app),
                   app.run.lane_editor.version(),
                   changes_,
                   app.run.history.n_prompt(),
                   right_answer(app),
                   {}};
        if (!answers.empty() && answered_turn(answers) < 0) now.reference = answers.front().answer.tokens;
        if (!(now == made_of_)) {
            made_of_ = std::move(now);
            make_strips(app);
            changed = true;
        }
    }
    if (wanted_.empty()) backend_.reset();
    const bool rests =
        app.run.status.phase == EnginePhase::idle || app.run.status.phase == EnginePhase::finished;
    may_compute_ = requested && rests && app.run.has_taken_requests() && !app.run.status.answering &&
                   !app.run.is_replaying() && !app.jobs.any();
    if (job_.running() && !may_compute_) {
        is_cancelled_ = true;
        job_.cancel();
    } else if (may_compute_ && !job_.running() && tried_.empty() && !wanted_.empty()) {
        begin_batch(app);
    }
    return changed;
}

}  // namespace keyhole
