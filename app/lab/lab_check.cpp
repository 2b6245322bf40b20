#include "app/lab/lab_check.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/eval/sign_flips.h"
#include "engine/session/session.h"
#include "engine/trace/lane_failure.h"
#include "engine/trace/recorder.h"
#include "engine/trace/run_history.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

namespace keyhole {

namespace {

/// Runs lanes on a prompt, all on the tokens of the first.
RunHistory run_on_prompt(const std::shared_ptr<const Model>& model, Backend& backend,
                         const StudentNumbers& numbers, const std::vector<std::string>& lanes, int n_steps) {
    RunSpec spec;
    spec.prompt = numbers.prompt;
    for (const std::string& lane : lanes) spec.lanes.push_back(parse_lane_spec(lane));
    spec.follow = true;
    spec.ignore_eos = true;
    spec.n_generate = n_steps;
    spec.n_top = 0;
    Session session(model, backend, spec);
    StepList steps = {session.prefill()};
    for (int i = 0; i < n_steps; ++i) steps.push_back(session.step());
    for (const auto& step : steps) throw_if_failed(*step);
    RunHistory history;
    history.update(steps);
    return history;
}

/// Returns the tokens that each KV head of a lane stores after a row.
std::int64_t tokens_a_head(const RunHistory& history, std::size_t lane, int row) {
    const CacheUse& use = history.at_row(row).lanes[lane].use;
    return use.stored_tokens / history.layout(static_cast<int>(lane)).n_kv_heads();
}

std::vector<int> stored_positions(const RunHistory& history, int lane, int kv_head) {
    std::vector<int> positions;
    const int row = history.last_row();
    for (int p = 0; p <= row; ++p)
        if (history.stored(lane, kv_head, p, row)) positions.push_back(p);
    return positions;
}

/// Compares the parts of an answer with what was measured, and says which are wrong.
class Parts {
  public:
    template <class Value, class Near>
    void compare(const char* name, const std::optional<Value>& answer, Value measured, Near near) {
        n_answered_ += answer ? 1 : 0;
        measured_.push_back(fmt::format("{} {}", name, measured));
        if (!answer)
            open_.emplace_back(name);
        else if (near(*answer, measured))
            right_.push_back(fmt::format("{} {}", name, *answer));
        else
            wrong_.push_back(fmt::format("{} is not {}", name, *answer));
    }
    ExerciseCheck check() const {
        ExerciseCheck out;
        out.answered = n_answered_ > 0;
        out.passes = open_.empty() && wrong_.empty();
        out.measured = fmt::format("{}", fmt::join(measured_, ", "));
        if (!out.answered) return out;
        std::vector<std::string> texts = wrong_;
        for (const std::string& name : open_) texts.push_back(name + " is not answered");
        if (texts.empty()) texts = right_;
        out.text = fmt::format("{}", fmt::join(texts, ", "));
        return out;
    }

  private:
    int n_answered_ = 0;
    std::vector<std::string> right_, wrong_, open_, measured_;
};

/// Returns why a lane cannot be handed in; empty: it can.
std::string fault_of_lane(const LaneSpec& lane) {
    if (names_anywhere(lane.policy, Quantity::future))
        return "the lane looks ahead: `future` is not known when a token leaves";
    if (!(lane.sharing == KvSharing{})) return "kv= makes another model of it; leave it out";
    if (lane.policy.shadow) return "shadow=on keeps all tokens beside the lane; leave it out";
    return "";
}

bool has_own_line(const PolicyParams& policy) {
    const PolicyParams preset = preset_params(policy.preset);
    return policy.score != preset.score || policy.choose != preset.choose ||
           std::any_of(policy.overrides.begin(), policy.overrides.end(), [](const Override& o) {
               return o.is_formula() && o.field != Override::Field::protect;
           });
}

int count_right(const std::vector<Outcome>& outcomes) {
    return static_cast<int>(
        std::count_if(outcomes.begin(), outcomes.end(), [](const Outcome& one) { return one.right; }));
}

/// Checks a lane that a student wrote. measure: called if it can be handed in. What is refused there, such as
/// a value that does not fit the model, fails this exercise alone.
ExerciseCheck check_lane(const std::string& lane,
                         const std::function<void(const LaneSpec&, ExerciseCheck&)>& measure) {
    ExerciseCheck out;
    if (lane.empty()) return out;
    out.answered = true;
    try {
        const LaneSpec spec = parse_lane_spec(lane);
        out.text = fault_of_lane(spec);
        if (out.text.empty()) measure(spec, out);
    } catch (const Error& error) {
        if (error.code() != ErrorCode::wrong_use && error.code() != ErrorCode::unsupported) throw;
        out.passes = false;
        out.text = error.what();
    }
    out.text = printable_text(out.text);
    return out;
}

}  // namespace

int HandInCheck::n_passed() const {
    return static_cast<int>(std::count_if(exercises.begin(), exercises.end(),
                                          [](const ExerciseCheck& one) { return one.passes; }));
}

LabBench::LabBench(std::shared_ptr<const Model> model, Backend& backend, int n_threads,
                   std::shared_ptr<const TaskTexts> texts, std::string salt)
    : model_(std::move(model)),
      backend_(backend),
      texts_(std::move(texts)),
      salt_(std::move(salt)),
      side_by_side_(model_, backend, n_threads) {}

HandInCheck LabBench::check(const HandIn& hand_in) {
    HandInCheck out;
    out.hand_in = hand_in;
    const StudentNumbers numbers = student_numbers(*model_, *texts_, seed_of_name(hand_in.name));
    check_stored(numbers, out);
    check_hidden(numbers, out);
    for (ExerciseCheck& one : out.exercises)
        if (!one.answered) one.text = "not answered";
    return out;
}

/// Exercises 1 to 3.
void LabBench::check_stored(const StudentNumbers& numbers, HandInCheck& out) {
    const HandIn& in = out.hand_in;
    const RunHistory history = run_on_prompt(
        model_, backend_, numbers, {"full", numbers.window_lane(), numbers.sink_lane()}, numbers.n_steps);
    const int row = history.last_row();
    const auto equal = [](std::int64_t a, std::int64_t b) { return a == b; };
    Parts stored;
    stored.compare("full", in.stored.full, tokens_a_head(history, 0, row), equal);
    stored.compare("window", in.stored.window, tokens_a_head(history, 1, row), equal);
    stored.compare("bytes", in.stored.bytes, history.at_row(row).lanes[1].use.stored_bytes, equal);
    out.exercises[0] = stored.check();

    ExerciseCheck& kept = out.exercises[1];
    const std::vector<int> positions = stored_positions(history, 2, 0);
    kept.measured = "kept " + ranges_of(positions);
    kept.answered = !in.kept.empty();
    if (const auto answer = positions_of(in.kept); !answer) {
        kept.text = "kept is no list of ranges, such as 0-3 90-110";
    } else {
        kept.passes = true;
        for (int g = 0; g < history.layout(2).n_kv_heads(); ++g)
            kept.passes = kept.passes && *answer == stored_positions(history, 2, g);
        kept.text = fmt::format("kept is {}{}", kept.passes ? "" : "not ", ranges_of(*answer));
    }

    const auto span = find_span(history, 0, numbers.code);
    if (!span) fail(ErrorCode::unsupported, "the code of {}'s prompt is not found in its tokens", in.name);
    check_smallest(numbers, numbers.n_prompt - span->first, out);
}

/// Exercise 3. n_kept_from: tokens from the code's first one to the prompt's end.
void LabBench::check_smallest(const StudentNumbers& numbers, int n_kept_from, HandInCheck& out) {
    const auto keeps_code = [&](const RunHistory& history, int lane) {
        const auto span = find_span(history, lane, numbers.code);
        return span &&
               heads_with_all(history, lane, *span, history.last_row()) == history.layout(lane).n_kv_heads();
    };
    const auto is_smallest = [&](int budget) {
        if (budget < 1 || budget > numbers.n_prompt) return false;
        std::vector<std::string> lanes = {fmt::format("window:budget={}", budget)};
        if (budget > 1) lanes.push_back(fmt::format("window:budget={}", budget - 1));
        const RunHistory history = run_on_prompt(model_, backend_, numbers, lanes, 0);
        return keeps_code(history, 0) && (budget == 1 || !keeps_code(history, 1));
    };
    ExerciseCheck& check = out.exercises[2];
    const std::optional<int>& answer = out.hand_in.smallest;
    check.answered = answer.has_value();
    const bool is_it = is_smallest(n_kept_from);
    check.measured = is_it ? fmt::format("budget {}", n_kept_from) : "no budget is it";
    if (!answer) return;
    check.passes = *answer == n_kept_from ? is_it : is_smallest(*answer);
    check.text = fmt::format("budget is {}{}", check.passes ? "" : "not ", *answer);
}

std::vector<std::vector<Outcome>> LabBench::ask_hidden(const std::vector<std::string>& lanes,
                                                       std::uint64_t seed) {
    TaskOptions options;
    options.n_questions = kHiddenQuestions;
    options.seed = hidden_seed(seed, salt_);
    options.context = kHiddenContext;
    const QuestionSet set = task_questions(model_, texts_, TaskKind::needle, options);
    // A student who hands in again has the same questions, and most lanes of before.
    if (seed != asked_seed_) asked_.clear();
    asked_seed_ = seed;
    std::vector<std::string> open;
    std::vector<LaneSpec> specs;
    for (const std::string& lane : lanes)
        if (!asked_.contains(lane)) {
            specs.push_back(parse_lane_spec(lane));
            open.push_back(lane);
        }
    std::vector<Asked> questions;
    for (int i = 0; i < set.n_questions && !specs.empty(); ++i) questions.push_back({i, specs});
    std::vector<std::vector<Outcome>> outcomes(specs.size());
    side_by_side_.ask(set, questions, [&](const Asked&, const std::vector<Outcome>& found) {
        for (std::size_t lane = 0; lane < specs.size(); ++lane) outcomes[lane].push_back(found[lane]);
    });
    for (std::size_t i = 0; i < open.size(); ++i) asked_[open[i]] = std::move(outcomes[i]);
    std::vector<std::vector<Outcome>> out;
    for (const std::string& lane : lanes) out.push_back(asked_.at(lane));
    return out;
}

/// Exercises 4 to 6.
void LabBench::check_hidden(const StudentNumbers& numbers, HandInCheck& out) {
    std::vector<std::string> lanes;
    for (const char* preset : {"window", "h2o", "tova"})
        lanes.push_back(fmt::format("{}:budget={}", preset, numbers.budget));
    const std::vector<std::vector<Outcome>> outcomes = ask_hidden(lanes, numbers.seed);
    const auto percent = [&](std::size_t lane) {
        return 100.0 * count_right(outcomes[lane]) / kHiddenQuestions;
    };
    const auto near = [](double a, double b) { return std::abs(a - b) <= kNearPercent; };
    const HandIn::Known& answer = out.hand_in.known;
    Parts known;
    known.compare("window", answer.window, percent(0), near);
    known.compare("h2o", answer.h2o, percent(1), near);
    known.compare("tova", answer.tova, percent(2), near);
    out.exercises[3] = known.check();
    out.exercises[4] = check_byte_lane(numbers, out.hand_in.byte_lane);
    out.exercises[5] = check_own_lane(numbers, out.hand_in.own_lane, outcomes[1]);
}

ExerciseCheck LabBench::check_byte_lane(const StudentNumbers& numbers, const std::string& lane) {
    return check_lane(lane, [&](const LaneSpec&, ExerciseCheck& out) {
        const RunHistory history = run_on_prompt(model_, backend_, numbers, {"full", lane}, numbers.n_steps);
        double share = 0;
        for (const auto& step : history.steps())
            share = std::max(share, static_cast<double>(step->lanes[1].use.stored_bytes) /
                                        static_cast<double>(step->lanes[0].use.stored_bytes));
        const int n_right = count_right(ask_hidden({lane}, numbers.seed)[0]);
        out.passes = 100 * share <= numbers.most_percent && n_right >= kLeastRight;
        out.text = out.measured =
            fmt::format("stores {:.1f} % of the bytes (at most {} %), {} of {} right (at least {})",
                        100 * share, numbers.most_percent, n_right, kHiddenQuestions, kLeastRight);
    });
}

ExerciseCheck LabBench::check_own_lane(const StudentNumbers& numbers, const std::string& lane,
                                       const std::vector<Outcome>& h2o) {
    return check_lane(lane, [&](const LaneSpec& spec, ExerciseCheck& out) {
        if (!has_own_line(spec.policy)) {
            out.text = "the lane has no line of its own; write score=(...) or choose=(...)";
            return;
        }
        const RunHistory history = run_on_prompt(model_, backend_, numbers, {lane}, numbers.n_steps);
        std::int64_t most = 0;
        for (const auto& step : history.steps()) most = std::max(most, tokens_a_head(history, 0, step->row));
        const std::vector<Outcome> mine = ask_hidden({lane}, numbers.seed)[0];
        Gains gains;
        double saved = 0;
        for (std::size_t i = 0; i < mine.size(); ++i) {
            gains.push_back(h2o[i].nats - mine[i].nats);
            saved += gains.back() / static_cast<double>(mine.size());
        }
        const double p = sign_flips(std::span(&gains, 1)).comparisons.front().p;
        out.passes = most <= numbers.budget && saved > 0 && p <= kSureP;
        out.text = out.measured = fmt::format(
            "stores {} tokens (at most {}), {} of {} right, H2O {}; {:+.2f} nats an answer (p = {:.4f})",
            most, numbers.budget, count_right(mine), kHiddenQuestions, count_right(h2o), saved, p);
    });
}

}  // namespace keyhole
