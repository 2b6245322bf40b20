#include "engine/session/session.h"

#include "engine/base/error.h"
#include "engine/run/branch_tree.h"
#include "engine/session/answer_choice.h"
#include "engine/session/checkpoints.h"
#include "engine/session/command_applier.h"
#include "engine/session/compute_counterfactual.h"
#include "engine/session/own_answers.h"
#include "engine/session/run_answers.h"
#include "engine/session/step_record.h"

#include <algorithm>
#include <chrono>
#include <deque>

namespace keyhole {

namespace {

using Clock = std::chrono::steady_clock;

float ms_since(Clock::time_point start) {
    return std::chrono::duration<float, std::milli>(Clock::now() - start).count();
}

/// Runs work() and rephrases its cancellation. what: begins the sentence.
template <class Work>
auto or_nothing_changed(const std::string& what, Work work) {
    try {
        return work();
    } catch (const Error& error) {
        if (error.code() != ErrorCode::cancelled) throw;
        fail(ErrorCode::cancelled, "{} was stopped half-way; nothing has changed", what);
    }
}

std::vector<LoggedCommand> before_row(std::vector<LoggedCommand> commands, int row) {
    std::erase_if(commands, [&](const LoggedCommand& logged) { return logged.row >= row; });
    return commands;
}

/// Throws if the lanes are more than records hold.
RunSpec with_few_lanes(RunSpec spec) {
    if (std::ssize(spec.lanes) > kMostLanes)
        fail(ErrorCode::wrong_use, "a run can have {} lanes, not {}; split them over several runs",
             kMostLanes, spec.lanes.size());
    return spec;
}

/// Returns what the rows must hold: blocks for records, and floats where a sink reads them.
RowRequest recorded(RowRequest requested, const RowSink* sink) {
    requested.form = sink != nullptr ? RowForm::both : RowForm::packed;
    return requested;
}

}  // namespace

/// The current state, and what it takes to return to an earlier one.
struct Session::Impl {
    const RunContext context;
    const LaneRunner runner;
    SessionState state;
    Checkpoints checkpoints;
    BranchTree tree;
    std::shared_ptr<const std::vector<Branch>> others;  // in the form for records; null: none
    std::vector<LoggedCommand> log;                     // commands of the shown branch
    std::deque<LoggedCommand> scheduled;                // commands of the branch being caught up with
    int caught_up_at = -1;
    OwnAnswers own_answers;

    Impl(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink,
         std::size_t checkpoint_bytes)
        : context(std::move(model), backend, with_few_lanes(std::move(spec)), sink),
          runner(context, recorded(context.start.requested, sink)),
          state(runner.first_state()),
          checkpoints(checkpoint_bytes, context.model.get()),
          tree(context.n_prompt() - 1),
          own_answers(context) {}

    bool catching_up() const { return state.row < caught_up_at || !scheduled.empty(); }
    /// Returns whether commands of the branch being caught up with wait at the current row, which happens
    /// only after a cancellation.
    bool command_waits() const { return !scheduled.empty() && scheduled.front().row == state.row; }
    bool apply_scheduled(const ProgressPart& progress);
    std::shared_ptr<const StepTrace> record(float ms, std::shared_ptr<const PromptRows> prompt_rows);
    /// Returns the state at the end of the prompt, if it is kept; null: it is not.
    const SessionState* after_prompt() const { return checkpoints.latest(context.n_prompt() - 1); }
    SessionState state_after(int row, const std::vector<LoggedCommand>& commands,
                             const ProgressPart& progress);
    void rewind(const Rewind& command, const ProgressPart& progress);
    void go_to_branch(const GoToBranch& command, const ProgressPart& progress);
    void branches_changed();
};

/// Applies the branch's commands at the current row, each with an equal share of the progress. Returns false
/// if one was cancelled; it waits, with those after it.
bool Session::Impl::apply_scheduled(const ProgressPart& progress) {
    const auto n = std::count_if(scheduled.begin(), scheduled.end(),
                                 [&](const LoggedCommand& logged) { return logged.row == state.row; });
    const double share = 1.0 / static_cast<double>(std::max<std::ptrdiff_t>(n, 1));
    for (int i = 0; command_waits(); ++i, scheduled.pop_front()) {
        const Command& command = scheduled.front().command;
        try {
            CommandApplier(runner, state, progress.part(i * share, share)).apply(command);
        } catch (const Error& error) {
            if (error.code() == ErrorCode::cancelled) return false;
            throw;
        }
        state.commands_since.push_back(format_command(command));
    }
    return true;
}

std::shared_ptr<const StepTrace> Session::Impl::record(float ms,
                                                       std::shared_ptr<const PromptRows> prompt_rows) {
    const std::shared_ptr<StepTrace> step = make_record(context, state);
    step->branch = tree.branch_of(state.row);
    step->other_branches = others;
    step->prompt_rows = std::move(prompt_rows);
    step->step_ms = ms;
    send_rows(context, state, *step);
    return step;
}

/// Returns the state right after a row, replayed from the nearest checkpoint or the prompt. commands: those
/// of the rows before it.
SessionState Session::Impl::state_after(int row, const std::vector<LoggedCommand>& commands,
                                        const ProgressPart& progress) {
    const LaneRunner quiet = runner.without_values();
    checkpoints.drop_after(row);
    const SessionState* const kept = checkpoints.latest(row);
    const int first = kept != nullptr ? kept->row : -1;
    const double share = 1.0 / std::max(row - first, 1);
    SessionState past = kept != nullptr ? kept->copy() : quiet.first_state();
    if (kept == nullptr) {
        quiet.prefill(past.lanes, past.sampling, progress.part(0, context.n_prompt() * share), false);
        past.row = context.n_prompt() - 1;
        past.discard_outputs();
    }
    auto next = commands.begin();
    while (next != commands.end() && next->row < past.row) ++next;
    while (past.row < row) {
        const ProgressPart part = progress.part((past.row - first) * share, share);
        part.report_or_cancel(0);
        for (; next != commands.end() && next->row == past.row; ++next)
            CommandApplier(quiet, past, part).apply(next->command);
        quiet.feed_row(past);
        past.discard_outputs();
        checkpoints.offer(past);
    }
    return past;
}

void Session::Impl::rewind(const Rewind& command, const ProgressPart& progress) {
    const int first_row = context.n_prompt() - 1;
    if (command.row < first_row || command.row > state.row)
        fail(ErrorCode::wrong_use,
             "cannot rewind to step {}; there are steps {} (the end of the prompt) to {}", command.row,
             first_row, state.row);
    if (command.row == state.row && !catching_up() && (log.empty() || log.back().row < state.row))
        return;  // nothing came after it
    state = state_after(command.row, before_row(log, command.row), progress);
    scheduled.clear();
    caught_up_at = -1;
    tree.rewind(command.row);
    branches_changed();
}

void Session::Impl::go_to_branch(const GoToBranch& command, const ProgressPart& progress) {
    const BranchTree::Way way = tree.way_to(command.id);
    const auto n_first =
        std::count_if(way.commands.begin(), way.commands.end(),
                      [&](const LoggedCommand& logged) { return logged.row == way.from_row; });
    const double share = 1.0 / static_cast<double>(1 + n_first);
    state = state_after(way.from_row, before_row(log, way.from_row), progress.part(0, share));
    tree.go_to(command.id);
    scheduled.assign(way.commands.begin(), way.commands.end());
    caught_up_at = way.last_row;
    branches_changed();
    apply_scheduled(progress.part(share, 1 - share));  // the switch stands: if cancelled, the commands wait
}

/// Updates what depends on the branches. The session's state is that of the last row that the old and the new
/// branch share.
void Session::Impl::branches_changed() {
    log = tree.line();
    const std::vector<Branch> list = tree.others();
    others = list.empty() ? nullptr : std::make_shared<const std::vector<Branch>>(list);
    if (context.sink != nullptr) context.sink->rewind(state.row);
}

Session::Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink,
                 std::size_t checkpoint_bytes)
    : impl_(std::make_unique<Impl>(std::move(model), backend, std::move(spec), sink, checkpoint_bytes)) {}

Session::~Session() = default;

std::shared_ptr<const StepTrace> Session::prefill(const ProgressReport& report) {
    Impl& s = *impl_;
    KH_ASSERT(s.state.row < 0);
    const auto begin = Clock::now();
    auto prompt_rows = s.runner.prefill(s.state.lanes, s.state.sampling, ProgressPart(report), true);
    s.state.row = s.context.n_prompt() - 1;
    for (Lane& lane : s.state.lanes) lane.out_is_new = true;
    auto step = s.record(ms_since(begin), std::move(prompt_rows));
    // These are as wide as the prompt; later rows may be narrower.
    for (Lane& lane : s.state.lanes) lane.out.drop_values();
    s.checkpoints.offer(s.state);
    return step;
}

void Session::apply(const Command& given, const ProgressReport& report) {
    Impl& s = *impl_;
    const Command command = s.context.with_system_part(given);  // as the log and the records have it
    const int row = s.state.row;
    KH_ASSERT(row >= 0);
    const std::string text = format_command(command);
    if (s.catching_up() && !std::holds_alternative<Rewind>(command))
        fail(
            ErrorCode::wrong_use,
            "'{}' has to wait: the session is on its way to step {} of branch {}; go on, or rewind to a step "
            "that it has reached",
            text, s.caught_up_at, s.tree.shown());
    const ProgressPart progress(report);
    s.own_answers.try_settings(-1, std::nullopt);
    or_nothing_changed("'" + text + "'", [&] {
        if (const auto* rewind = std::get_if<Rewind>(&command)) return s.rewind(*rewind, progress);
        if (const auto* branch = std::get_if<GoToBranch>(&command)) return s.go_to_branch(*branch, progress);
        CommandApplier(s.runner, s.state, progress).apply(command);
        s.log.push_back({row, command});
        s.tree.log({row, command});
        s.state.commands_since.push_back(text);
    });
}

bool Session::catching_up() const {
    return impl_->catching_up();
}

std::shared_ptr<const StepTrace> Session::step(const ProgressReport& report) {
    Impl& s = *impl_;
    const ProgressPart progress(report);
    if (!s.apply_scheduled(progress) || finished()) return nullptr;
    const auto begin = Clock::now();
    s.runner.feed_row(s.state);
    auto step = s.record(ms_since(begin), nullptr);
    s.tree.row_done(s.state.row);
    s.checkpoints.offer(s.state);
    if (s.context.start.answer_end && s.state.row == s.state.turn_end()) s.own_answers.begin_turn(s.state);
    s.apply_scheduled(progress);
    return step;
}

Counterfactual Session::counterfactual(int index, int position, const ProgressReport& report, int row,
                                       int n_tokens) {
    const Impl& s = *impl_;
    KH_ASSERT(s.state.row >= 0);
    const CounterfactualRequest asked{index, position, n_tokens, row};
    return or_nothing_changed(
        fmt::format("computing the counterfactual of {} in lane {}", asked.text(), index),
        [&] { return compute_counterfactual(s.runner, s.state, asked, ProgressPart(report)); });
}

namespace {

constexpr std::size_t kMostInPairs = 4096;  // tokens whose keys are compared with each other at once

bool names(const RankFormulas& by, Quantity q) {
    return (by.choose && by.choose->names(q)) || (by.protect && by.protect->names(q));
}

/// Returns a quantity that formulas of selections name and a lane's cache does not know.
std::optional<Quantity> missing_quantity(const RankFormulas& by, const KvCache& cache) {
    const ResolvedPolicy& policy = cache.policy();
    if (names(by, Quantity::win) && by.win.empty() && policy.kept_rows() == 0) return Quantity::win;
    for (const Quantity q : {Quantity::expected, Quantity::tri})
        if (names(by, q) && policy.kept_queries() == 0 && !policy.calibration) return q;
    if (names(by, Quantity::future) && !cache.future()) return Quantity::future;
    if (names(by, Quantity::repeat) && !cache.repeats()) return Quantity::repeat;
    return std::nullopt;
}

}  // namespace

Ranks Session::ranks(const RanksRequest& asked) const {
    const SessionState& state = impl_->state;
    const Lane& lane = state.lane_at(asked.lane);
    if (asked.kv_head < 0 || asked.kv_head >= lane.model->layout().n_kv_heads())
        fail(ErrorCode::wrong_use, "lane {} has no KV head {}", asked.lane, asked.kv_head);
    Ranks out{asked, state.row, lane.info};
    if (!lane.active()) {
        out.why_not = "The lane has ended.";
        return out;
    }
    out.missing = missing_quantity(asked.by, *lane.cache);
    const std::size_t n = lane.cache->stored_positions(asked.kv_head).size();
    if (n > kMostInPairs && names(asked.by, Quantity::redundancy))
        out.why_not = fmt::format(
            "It compares the keys of {} tokens in pairs, which takes long: once in force, it is ranked.", n);
    if (!out.missing && out.why_not.empty()) out.of = lane.cache->rank(asked.kv_head, asked.by, state.row);
    return out;
}

bool Session::finished() const {
    return !finish_reason().empty();
}

std::string Session::finish_reason() const {
    const RunContext& context = impl_->context;
    const SessionState& state = impl_->state;
    if (state.row < 0 || impl_->command_waits()) return {};
    const int n_fed = state.row + 1 - context.n_prompt();
    if (context.start.n_generate > 0 && n_fed >= context.start.n_generate)
        return fmt::format("{} tokens are generated", n_fed);
    const ModelConfig& config = context.run->config;
    if (config.positions == PositionKind::learned && state.row + 1 >= config.n_ctx)
        return fmt::format("the model has learned no position beyond {}", state.row);
    const Lane& reference = state.lanes.front();
    if (state.follow && !reference.failure.empty())
        return "lane 0, which the others follow, failed: " + reference.failure;
    if (state.follow && !reference.active()) return "the reference lane ended its text";
    const auto all = [&](auto is) { return std::all_of(state.lanes.begin(), state.lanes.end(), is); };
    if (all([](const Lane& lane) { return !lane.failure.empty(); }))
        return fmt::format("{} failed: {}", state.lanes.size() == 1 ? "the lane" : "all lanes",
                           reference.failure);
    if (all([](const Lane& lane) { return !lane.active(); })) return "all lanes ended their text";
    return {};
}

bool Session::extend_answers(const ProgressReport& report) {
    Impl& s = *impl_;
    KH_ASSERT(s.state.row >= 0 && s.context.start.answer_end);
    return s.own_answers.extend(s.state, s.after_prompt(), ProgressPart(report));
}

void Session::try_settings(int index, std::optional<LaneSpec> spec) {
    Impl& s = *impl_;
    if (spec) spec = s.context.with_system_part(std::move(*spec));
    if (spec) s.context.check(*spec);
    s.own_answers.try_settings(s.state.lane_at(index).id, std::move(spec));
}

int Session::answers_turn() const {
    return impl_->own_answers.turn();
}

int Session::n_turns_begun() const {
    return impl_->own_answers.n_turns_begun();
}

bool Session::answers_need_prompt() const {
    return impl_->own_answers.needs_prompt(impl_->state, impl_->after_prompt());
}

std::vector<LaneAnswer> Session::answers() const {
    return impl_->own_answers.list(impl_->state);
}

bool Session::answered() const {
    constexpr std::size_t kMostTokens = 512;  // decoding the text anew for every token takes quadratic time
    const RunContext& context = impl_->context;
    const SessionState& state = impl_->state;
    if (!context.start.answer_end || context.start.answer_end->stop.empty()) return false;
    if (state.row < state.turn_end()) return false;  // the turn is still read
    const auto complete = [&](const Lane& lane) {
        const std::size_t n_given = n_given_tokens(context, lane);
        const auto own = std::span(lane.tokens).subspan(n_given);
        return !lane.active() ||
               (own.size() <= kMostTokens &&
                answer_from(context.model->tokenizer(), own, *context.start.answer_end).complete);
    };
    return state.follow ? complete(state.lanes.front())
                        : std::all_of(state.lanes.begin(), state.lanes.end(), complete);
}

std::vector<int> Session::lane_ids() const {
    std::vector<int> ids;
    for (const Lane& lane : impl_->state.lanes) ids.push_back(lane.id);
    return ids;
}

int Session::next_row() const {
    return impl_->state.row + 1;
}
std::int64_t Session::cache_bytes() const {
    std::int64_t sum = impl_->own_answers.bytes();
    for (const Lane& lane : impl_->state.lanes) {
        const CacheUse use = lane.cache->use();
        sum += use.allocated_bytes + use.shadow_bytes;
    }
    return sum;
}
std::int64_t Session::checkpoint_bytes() const {
    return static_cast<std::int64_t>(impl_->checkpoints.bytes(impl_->state));
}
const RunInfo& Session::run() const {
    return *impl_->context.run;
}
const std::vector<LoggedCommand>& Session::log() const {
    return impl_->log;
}
int Session::branch() const {
    return impl_->tree.shown();
}
std::vector<Branch> Session::other_branches() const {
    return impl_->tree.others();
}

RunSpec Session::run_spec() const {
    RunSpec spec = impl_->context.start;
    spec.commands = impl_->log;
    // While catching up with a branch, the log also holds the commands still to come.
    spec.commands.resize(spec.commands.size() - impl_->scheduled.size());
    return spec;
}

namespace {

/// Runs a session whose prompt is processed, as replay() says.
void run_to(Session& session, const RunSpec& spec, int last_row,
            const std::function<void(std::shared_ptr<const StepTrace>)>& each) {
    const auto apply = [&](const LoggedCommand& logged) {
        try {
            session.apply(logged.command);
        } catch (const Error& error) {
            fail(error.code(), "'{}' after step {}: {}", format_command(logged.command), logged.row,
                 error.what());
        }
    };
    for (auto next = spec.commands.begin();;) {
        for (; !session.catching_up() && next != spec.commands.end() && next->row < session.next_row();
             ++next) {
            if (next->row + 1 < session.next_row())
                fail(ErrorCode::wrong_use,
                     "'{}' is stamped with step {}, which is past: the run is at step {}",
                     format_command(next->command), next->row, session.next_row() - 1);
            apply(*next);
        }
        const auto step = session.next_row() > last_row ? nullptr : session.step();
        if (step != nullptr) {
            each(step);
            continue;
        }
        // Skip commands of rows that never come, up to the next rewind or branch.
        next = std::find_if(next, spec.commands.end(),
                            [](const LoggedCommand& logged) { return turns_back(logged.command); });
        if (next == spec.commands.end()) return;
        apply(*next++);
    }
}

/// Returns the commands without those at the end that no record follows.
std::vector<LoggedCommand> before_last_record(std::vector<LoggedCommand> commands, int last_row) {
    while (!commands.empty() && commands.back().row >= last_row && !turns_back(commands.back().command))
        commands.pop_back();
    return commands;
}

}  // namespace

void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each,
            const ProgressReport& prompt) {
    Session session(std::move(model), backend, spec, sink);
    each(session.prefill(prompt));
    run_to(session, spec, last_row, each);
}

std::vector<LaneAnswer> answers_of_run(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec,
                                       int last_row, const AnswerEnd& end, const ProgressReport& progress) {
    if (!spec.commands.empty()) spec.commands = before_last_record(std::move(spec.commands), last_row);
    spec.answer_end = end;
    spec.requested = {};
    spec.n_top = 1;
    constexpr std::size_t kForThePrompt = std::size_t{1} << 30;  // answers then need not process it again
    Session session(std::move(model), backend, spec, nullptr, kForThePrompt);
    const double n_steps = end.max_tokens + (spec.commands.empty() ? 1 : last_row);
    double done = 0;
    const auto report = [&] {
        if (progress && !progress(std::min(++done / n_steps, 1.0)))
            fail(ErrorCode::cancelled, "the lanes' own answers were cancelled");
    };
    session.prefill([&](double part) { return !progress || progress(part / n_steps); });
    report();
    if (!spec.commands.empty())
        run_to(session, spec, last_row, [&](const std::shared_ptr<const StepTrace>&) { report(); });
    while (session.extend_answers()) report();
    return session.answers();
}

}  // namespace keyhole
