#include "engine/session/session.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"
#include "engine/policy/next_token_measures.h"
#include "engine/session/prompt.h"
#include "engine/session/session_impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

namespace keyhole {

namespace {

using Clock = std::chrono::steady_clock;

float ms_since(Clock::time_point start) {
    return std::chrono::duration<float, std::milli>(Clock::now() - start).count();
}

std::uint64_t next_run_id() {
    static std::atomic<std::uint64_t> last{0};
    return ++last;
}

std::shared_ptr<const HiddenSet> hidden_set(const RowValues& values) {
    if (values.hidden.empty()) return nullptr;
    auto set = std::make_shared<HiddenSet>();
    set->offset.push_back(0);
    for (std::size_t g = 0; g + 1 < values.offset.size(); ++g) {
        const auto begin = to_index(values.offset[g]);
        const auto n = to_index(values.offset[g + 1]) - begin;
        const std::size_t first_byte = set->bits.size();
        set->bits.resize(first_byte + (n + 7) / 8, 0);
        for (std::size_t i = 0; i < n; ++i)
            if (values.hidden[begin + i] != 0)
                set->bits[first_byte + i / 8] |= static_cast<std::uint8_t>(1u << (i % 8));
        set->offset.push_back(static_cast<std::int32_t>(set->bits.size()));
    }
    return set;
}

std::int64_t count_attended(const RowValues& values) {
    const std::int64_t held = values.offset.empty() ? 0 : values.offset.back();
    return held -
           std::count_if(values.hidden.begin(), values.hidden.end(), [](std::uint8_t h) { return h != 0; });
}

}  // namespace

/// Returns a record with only the row and the lanes: for prompt rows, which the history does not hold one by
/// one.
StepTrace Session::Impl::bare_step(int at_row) const {
    StepTrace step;
    step.run = run;
    step.row = at_row;
    for (const Lane& lane : lanes) step.lanes.emplace_back().info = lane.info;
    return step;
}

std::shared_ptr<const RowBlock> Session::Impl::row_block(const RowValues& values) const {
    if (values.attention.empty() && values.scores.empty()) return nullptr;
    auto block = std::make_shared<RowBlock>();
    block->offset = values.offset;
    block->head_offset = values.head_offset;
    block->threshold = values.threshold;
    block->attention.resize(values.attention.size());
    block->scores.resize(values.scores.size());
    // Use all threads: getting a long row's pages from the system takes many times as long as filling them.
    constexpr std::size_t kPart = 32 << 10;
    const auto n_parts = [](std::size_t n) { return (n + kPart - 1) / kPart; };
    const std::size_t n_attention = n_parts(values.attention.size());
    const auto work = static_cast<std::int64_t>(n_attention + n_parts(values.scores.size()));
    const auto fill = [&](std::int64_t i) {
        const auto part = to_index(i);
        if (part < n_attention) {
            const std::size_t first = part * kPart, n = std::min(kPart, values.attention.size() - first);
            fp16_from_floats(std::span(values.attention).subspan(first, n),
                             std::span(block->attention).subspan(first, n));
        } else {
            const std::size_t first = (part - n_attention) * kPart;
            std::copy_n(values.scores.data() + first, std::min(kPart, values.scores.size() - first),
                        block->scores.data() + first);
        }
    };
    if (work > 2)
        backend.parallel_for(work, fill);
    else  // a short row is filled before another thread wakes up
        for (std::int64_t i = 0; i < work; ++i) fill(i);
    return block;
}

std::shared_ptr<const StepTrace> Session::Impl::record(float ms,
                                                       std::shared_ptr<const PromptRows> prompt_rows) {
    auto step = std::make_shared<StepTrace>();
    step->run = run;
    step->row = row;
    step->branch = tree.branch_of(row);
    step->other_branches = others;
    step->prompt_rows = std::move(prompt_rows);
    step->commands = std::exchange(commands_since, {});
    step->step_ms = ms;
    const Lane& reference = lanes.front();
    for (Lane& lane : lanes) {
        LaneRecord& r = step->lanes.emplace_back();
        r.info = lane.info;
        r.token = lane.token;
        r.log_prob = lane.token_log_prob;
        r.predicted = lane.predicted;
        r.ended = lane.ended;
        r.failure = lane.failure;
        r.use = lane.cache->use();
        r.evictions = std::exchange(lane.pending, {});
        r.pins = lane.pins;
        r.prompt_rows = std::exchange(lane.prompt_rows, nullptr);
        lane.recorded = true;
        if (lane.log_probs.empty()) continue;
        r.entropy = static_cast<float>(entropy(lane.log_probs));
        r.tau = lane.policy().tau_at(row);
        if (!lane.diverged && lane.failure.empty()) {
            r.kl = static_cast<float>(kl_divergence(reference.log_probs, lane.log_probs));
            r.agrees = &lane == &reference || best(reference.out.next_logits) == best(lane.out.next_logits);
        }
        for (int id : top_k(lane.log_probs, start.n_top)) r.top.push_back({id, lane.log_probs[to_index(id)]});
        if (!lane.active() && !lane.out_is_new) continue;
        r.hidden = hidden_set(lane.out.values);
        r.attended_tokens = count_attended(lane.out.values);
        r.evictions.insert(r.evictions.end(), lane.out.evictions.begin(), lane.out.evictions.end());
        r.rows = lane.rows != nullptr ? std::exchange(lane.rows, nullptr) : row_block(lane.out.values);
        r.measures = mean_measures(lane.model->layout(), lane.out);
        if (!lane.out.shadow.retained_mass.empty())
            r.shadow = std::make_shared<const ShadowRow>(lane.out.shadow);
        lane.out_is_new = false;
    }
    if (sink != nullptr)
        for (std::size_t i = 0; i < lanes.size(); ++i)
            if (step->lanes[i].rows != nullptr || step->lanes[i].attended_tokens > 0)
                sink->row(*step, static_cast<int>(i), lanes[i].out);
    return step;
}

Session::Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink,
                 std::size_t checkpoint_bytes)
    : impl_(std::make_unique<Impl>(std::move(model), backend, std::move(spec), sink, checkpoint_bytes)) {
    Impl& s = *impl_;
    const ModelConfig& config = s.model->config();
    if (s.start.lanes.empty())
        fail(ErrorCode::wrong_use, "a session needs at least one lane; add one such as 'full'");
    auto run = std::make_shared<RunInfo>();
    run->id = next_run_id();
    run->model_path = s.model->path().string();
    run->model_hash = s.model->hash();
    run->config = config;
    run->layout = s.model->layout();
    run->backend = backend.name();
    run->prompt = s.start.prompt;
    run->prompt_tokens =
        s.start.prompt_tokens.empty() ? prompt_tokens(*s.model, s.start.prompt) : s.start.prompt_tokens;
    run->seed = s.start.seed;
    run->n_generate = s.start.n_generate;
    for (const LaneSpec& lane : s.start.lanes) run->start.lanes.push_back(format_lane_spec(lane));
    run->start.sampling = format_command(SetSampling{s.start.sampling});
    run->start.follow = s.start.follow;
    run->start.ignore_eos = s.start.ignore_eos;
    run->start.tokens_given = !s.start.prompt_tokens.empty();
    run->start.forced = s.start.forced;
    if (run->n_prompt() > config.n_ctx)
        fail(ErrorCode::wrong_use,
             "the prompt has {} tokens, the model's context holds {}; shorten the prompt", run->n_prompt(),
             config.n_ctx);
    if (config.positions == PositionKind::learned && run->n_prompt() + run->n_generate > config.n_ctx)
        fail(ErrorCode::wrong_use,
             "{} tokens after a prompt of {} go beyond the {} positions that the model has learned; generate "
             "fewer or shorten the prompt",
             run->n_generate, run->n_prompt(), config.n_ctx);
    for (int token : s.start.forced)
        if (token < 0 || token >= config.n_vocab)
            fail(ErrorCode::wrong_use, "there is no token {} to force; the model has 0 to {}", token,
                 config.n_vocab - 1);
    for (int token : run->prompt_tokens)
        if (token < 0 || token >= config.n_vocab)
            fail(ErrorCode::bad_file,
                 "the tokenizer of {} gives token {}, the model has {}; tokenizer and model do not belong "
                 "together",
                 run->model_path, token, config.n_vocab);
    for (int id = 0; id < config.n_vocab; ++id) {
        const bool known = id < s.model->tokenizer().n_vocab();
        run->token_display.push_back(known ? s.model->tokenizer().display(id) : fmt::format("<{}>", id));
        run->token_bytes.push_back(known ? s.model->tokenizer().token_bytes(id) : std::string());
    }
    s.run = std::move(run);
    for (const LaneSpec& lane : s.start.lanes) s.check(lane);
    static_cast<SessionState&>(s) = s.first_state();
    s.tree = BranchTree(s.n_prompt() - 1);
}

Session::~Session() = default;

std::shared_ptr<const StepTrace> Session::prefill(const std::function<bool(double)>& progress) {
    Impl& s = *impl_;
    KH_ASSERT(s.row < 0);
    const auto begin = Clock::now();
    auto prompt_rows = s.prefill(0, progress, true);
    s.row = s.n_prompt() - 1;
    for (Lane& lane : s.lanes) lane.out_is_new = true;
    auto step = s.record(ms_since(begin), std::move(prompt_rows));
    for (Lane& lane : s.lanes) lane.out.values = {};  // as wide as the prompt; later rows may be narrower
    s.checkpoints.offer(s);
    return step;
}

void Session::apply(const Command& command, const std::function<bool(double)>& progress) {
    Impl& s = *impl_;
    KH_ASSERT(s.row >= 0);
    const std::string text = format_command(command);
    if (catching_up() && !std::holds_alternative<Rewind>(command))
        fail(
            ErrorCode::wrong_use,
            "'{}' has to wait: the session is on its way to step {} of branch {}; go on, or rewind to a step "
            "that it has reached",
            text, s.caught_up_at, s.tree.shown());
    s.with_progress(progress, "'" + text + "'", [&] {
        if (const auto* rewind = std::get_if<Rewind>(&command)) return s.rewind(*rewind);
        if (const auto* branch = std::get_if<GoToBranch>(&command)) return s.go_to_branch(*branch);
        s.perform(command);
        s.log.push_back({s.row, command});
        s.tree.log({s.row, command});
        s.commands_since.push_back(text);
    });
}

bool Session::catching_up() const {
    return impl_->row < impl_->caught_up_at || !impl_->scheduled.empty();
}

std::shared_ptr<const StepTrace> Session::step(const std::function<bool(double)>& progress) {
    Impl& s = *impl_;
    if (!s.apply_scheduled(progress) || finished()) return nullptr;
    const auto begin = Clock::now();
    s.feed_row();
    auto step = s.record(ms_since(begin), nullptr);
    s.tree.row_done(s.row);
    s.checkpoints.offer(s);
    s.apply_scheduled(progress);
    return step;
}

bool Session::finished() const {
    return !finish_reason().empty();
}

std::string Session::finish_reason() const {
    const Impl& s = *impl_;
    if (s.row < 0 || s.command_waits()) return {};
    const int n_fed = s.row + 1 - s.n_prompt();
    if (s.start.n_generate > 0 && n_fed >= s.start.n_generate)
        return fmt::format("{} tokens are generated", n_fed);
    if (s.run->config.positions == PositionKind::learned && s.row + 1 >= s.run->config.n_ctx)
        return fmt::format("the model has learned no position beyond {}", s.row);
    if (s.follow && !s.lanes.front().active()) return "the reference lane ended its text";
    if (std::none_of(s.lanes.begin(), s.lanes.end(), [](const Lane& lane) { return lane.active(); }))
        return "all lanes ended their text";
    return {};
}

int Session::next_row() const {
    return impl_->row + 1;
}
std::int64_t Session::cache_bytes() const {
    std::int64_t sum = 0;
    for (const Lane& lane : impl_->lanes) {
        const CacheUse use = lane.cache->use();
        sum += use.allocated_bytes + use.shadow_bytes;
    }
    return sum;
}
std::int64_t Session::checkpoint_bytes() const {
    return static_cast<std::int64_t>(impl_->checkpoints.bytes(*impl_));
}
const RunInfo& Session::run() const {
    return *impl_->run;
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
    RunSpec spec = impl_->start;
    spec.commands = impl_->log;
    // While catching up with a branch, the log also holds the commands still to come.
    spec.commands.resize(spec.commands.size() - impl_->scheduled.size());
    return spec;
}

void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each) {
    Session session(std::move(model), backend, spec, sink);
    each(session.prefill());
    const auto turns_back = [](const LoggedCommand& logged) {
        return std::holds_alternative<Rewind>(logged.command) ||
               std::holds_alternative<GoToBranch>(logged.command);
    };
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
        next = std::find_if(next, spec.commands.end(), turns_back);
        if (next == spec.commands.end()) return;
        apply(*next++);
    }
}

std::vector<KvLayout> layouts_of(const Model& model, const std::vector<LaneSpec>& lanes) {
    std::vector<KvLayout> layouts;
    for (const LaneSpec& lane : lanes) layouts.push_back(layout_of(model.config(), lane.sharing));
    return layouts;
}

RunSpec run_spec_of(const RunInfo& run, std::span<const RunCommand> commands) {
    RunSpec spec;
    spec.prompt = run.prompt;
    if (run.start.tokens_given) spec.prompt_tokens = run.prompt_tokens;
    spec.forced = run.start.forced;
    for (const std::string& lane : run.start.lanes) spec.lanes.push_back(parse_lane_spec(lane));
    if (!run.start.sampling.empty())
        spec.sampling = std::get<SetSampling>(parse_command(run.start.sampling)).sampling;
    spec.seed = run.seed;
    spec.follow = run.start.follow;
    spec.ignore_eos = run.start.ignore_eos;
    spec.n_generate = run.n_generate;
    for (const RunCommand& command : commands)
        spec.commands.push_back({command.row, parse_command(command.text)});
    return spec;
}

}  // namespace keyhole
