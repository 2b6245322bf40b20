#include "engine/session/session.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/metrics/distribution.h"
#include "engine/session/lane.h"
#include "engine/session/prompt_tiles.h"
#include "engine/session/sampler.h"

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

}  // namespace

struct Session::Impl {
    std::shared_ptr<const Model> model;
    Backend& backend;
    RunSpec start;  // as it began
    RowSink* sink;
    std::shared_ptr<RunInfo> run;
    std::vector<Lane> lanes;
    int next_lane_id = 0;
    bool follow = false;
    Sampling sampling;
    int row = -1;  // last row processed
    std::vector<LoggedCommand> log;
    std::vector<std::string> commands_since;  // since the last record

    Impl(std::shared_ptr<const Model> m, Backend& b, RunSpec s, RowSink* k)
        : model(std::move(m)),
          backend(b),
          start(std::move(s)),
          sink(k),
          follow(start.follow),
          sampling(start.sampling) {}

    int n_prompt() const { return run->n_prompt(); }

    std::shared_ptr<const LaneInfo> lane_info(int id, const LaneSpec& spec) const {
        auto info = std::make_shared<LaneInfo>();
        info->id = id;
        info->spec = format_lane_spec(spec);
        info->effective = format_effective_spec(spec, n_prompt(), start.n_generate);
        info->policy = resolve(spec.policy, n_prompt(), start.n_generate, head_grid(run->layout));
        return info;
    }

    Lane new_lane(const LaneSpec& spec) {
        Lane lane;
        lane.id = next_lane_id++;
        lane.spec = spec;
        lane.info = lane_info(lane.id, spec);
        lane.cache = backend.make_cache();
        backend.apply_policy(*lane.cache, lane.policy(), -1);
        return lane;
    }

    /// The next-token distribution of the row just processed and the lane's own choice.
    void read_logits(Lane& lane, int at_row) const {
        lane.log_probs.resize(lane.out.next_logits.size());
        log_softmax(lane.out.next_logits, lane.log_probs);
        lane.predicted = choose_token(lane.out.next_logits, sampling, sampling_uniform(start.seed, at_row));
    }

    /// Prompt of the lanes from first_lane on: one-shot ones together, stepwise ones row by row.
    std::shared_ptr<const PromptRows> prefill(std::size_t first_lane,
                                              const std::function<bool(double)>& progress, bool to_sink) {
        std::vector<LanePrefill> oneshot;
        std::vector<int> oneshot_lanes;
        std::vector<std::size_t> stepwise;
        for (std::size_t i = first_lane; i < lanes.size(); ++i) {
            Lane& lane = lanes[i];
            lane.token = run->prompt_tokens.back();
            lane.token_log_prob = std::numeric_limits<float>::quiet_NaN();
            if (lane.policy().prefill == PrefillMode::stepwise) {
                stepwise.push_back(i);
                continue;
            }
            oneshot.push_back({lane.cache.get(), &lane.info->policy, start.wants, &lane.out});
            oneshot_lanes.push_back(static_cast<int>(i));
        }
        std::shared_ptr<const PromptRows> rows;
        if (!oneshot.empty()) {
            PrefillSink* outer = to_sink && sink != nullptr ? sink->prefill() : nullptr;
            std::optional<LaneTiles> tiles;
            if (outer != nullptr) tiles.emplace(*outer, oneshot_lanes, stepwise.empty());
            if (to_sink && start.wants.attention) {
                PromptRecorder recorder(*run, tiles ? &*tiles : nullptr);
                backend.prefill(run->prompt_tokens, oneshot, &recorder, progress);
                rows = recorder.take();
            } else {
                backend.prefill(run->prompt_tokens, oneshot, tiles ? &*tiles : nullptr, progress);
            }
        }
        for (int i = 0; i < n_prompt() && !stepwise.empty(); ++i) {
            if (progress && !progress(static_cast<double>(i) / n_prompt()))
                fail(ErrorCode::cancelled, "processing the prompt of {} tokens was stopped", n_prompt());
            feed(stepwise, i, [&](const Lane&) { return run->prompt_tokens[static_cast<std::size_t>(i)]; });
            const bool last = i == n_prompt() - 1;
            for (std::size_t n : stepwise) {
                Lane& lane = lanes[n];
                if (!last)
                    lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(),
                                        lane.out.evictions.end());
                if (!last && to_sink && sink != nullptr && sink->prefill() != nullptr)
                    sink->row(bare_step(i), static_cast<int>(n), lane.out);
            }
        }
        for (std::size_t i = first_lane; i < lanes.size(); ++i) read_logits(lanes[i], n_prompt() - 1);
        return rows;
    }

    /// A record that only says which row and lanes it is about: for prompt rows, which the history does not
    /// hold one by one.
    StepTrace bare_step(int at_row) const {
        StepTrace step;
        step.run = run;
        step.row = at_row;
        for (const Lane& lane : lanes) step.lanes.emplace_back().info = lane.info;
        return step;
    }

    template <class TokenOf>
    void feed(const std::vector<std::size_t>& which, int at_row, TokenOf token_of) {
        std::vector<LaneStep> steps;
        for (std::size_t i : which) {
            Lane& lane = lanes[i];
            steps.push_back(
                {lane.cache.get(), &lane.info->policy, token_of(lane), at_row, start.wants, &lane.out});
        }
        backend.step(steps);
    }

    std::shared_ptr<const RowBlock> row_block(const RowValues& values) const {
        if (values.attention.empty() && values.scores.empty()) return nullptr;
        auto block = std::make_shared<RowBlock>();
        block->offset = values.offset;
        block->head_offset = values.head_offset;
        block->attention.resize(values.attention.size());
        fp16_from_floats(values.attention, block->attention);
        block->scores = values.scores;
        block->threshold = values.threshold;
        return block;
    }

    std::shared_ptr<const StepTrace> record(float ms, std::shared_ptr<const PromptRows> prompt_rows) {
        auto step = std::make_shared<StepTrace>();
        step->run = run;
        step->row = row;
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
            if (lane.log_probs.empty()) continue;
            r.entropy = static_cast<float>(entropy(lane.log_probs));
            r.tau = lane.policy().tau_at(row);
            if (!lane.diverged && lane.failure.empty()) {
                r.kl = static_cast<float>(kl_divergence(reference.log_probs, lane.log_probs));
                r.agrees = choose_token(reference.out.next_logits, {}, 0) ==
                           choose_token(lane.out.next_logits, {}, 0);
            }
            for (int id : top_k(lane.log_probs, start.n_top))
                r.top.push_back({id, lane.log_probs[static_cast<std::size_t>(id)]});
            if (!lane.active() && !lane.out_is_new) continue;
            r.attended_tokens = lane.out.values.offset.empty() ? 0 : lane.out.values.offset.back();
            r.evictions.insert(r.evictions.end(), lane.out.evictions.begin(), lane.out.evictions.end());
            r.rows = row_block(lane.out.values);
            lane.out_is_new = false;
        }
        if (sink != nullptr)
            for (std::size_t i = 0; i < lanes.size(); ++i)
                if (step->lanes[i].rows != nullptr || step->lanes[i].attended_tokens > 0)
                    sink->row(*step, static_cast<int>(i), lanes[i].out);
        return step;
    }

    /// What the text forms refuse as they are read; the window fills structs.
    void check(const LaneSpec& spec) const {
        std::vector<std::string> faults = validate(spec.policy);
        if (faults.empty()) faults = check_overrides(spec.policy, head_grid(run->layout));
        if (!faults.empty())
            fail(ErrorCode::wrong_use, "lane '{}': {}; change that value", format_lane_spec(spec),
                 faults.front());
    }

    void set_lane(const SetLane& command) {
        check(command.spec);
        Lane& lane = lane_at(command.index);
        auto info = lane_info(lane.id, command.spec);
        const std::vector<Eviction> gone = backend.apply_policy(*lane.cache, info->policy, row);
        lane.pending.insert(lane.pending.end(), gone.begin(), gone.end());
        lane.spec = command.spec;
        lane.info = std::move(info);
    }

    /// The new lane runs the prompt, then the reference lane's tokens up to the present row.
    void add_lane(const AddLane& command) {
        check(command.spec);
        lanes.push_back(new_lane(command.spec));
        try {
            prefill(lanes.size() - 1, {}, false);
            Lane& lane = lanes.back();
            lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
            for (int i = n_prompt(); i <= row; ++i) {
                const int token = history[static_cast<std::size_t>(i - n_prompt())];
                lane.token = token;
                lane.token_log_prob = lane.log_probs[static_cast<std::size_t>(token)];
                feed({lanes.size() - 1}, i, [&](const Lane&) { return token; });
                lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
                read_logits(lane, i);
            }
        } catch (...) {
            lanes.pop_back();
            throw;
        }
    }

    Lane& lane_at(int index) {
        if (index < 0 || static_cast<std::size_t>(index) >= lanes.size())
            fail(ErrorCode::wrong_use, "lane {} does not exist; there are lanes 0 to {}", index,
                 lanes.size() - 1);
        return lanes[static_cast<std::size_t>(index)];
    }

    std::vector<int> history;  // tokens that the reference lane consumed in decode rows
};

Session::Session(std::shared_ptr<const Model> model, Backend& backend, RunSpec spec, RowSink* sink)
    : impl_(std::make_unique<Impl>(std::move(model), backend, std::move(spec), sink)) {
    Impl& s = *impl_;
    const ModelConfig& config = s.model->config();
    if (s.start.lanes.empty())
        fail(ErrorCode::wrong_use, "a session needs at least one lane; add one such as 'full'");
    if (s.start.prompt.empty())
        fail(ErrorCode::wrong_use, "the prompt is empty; give some text to start from");
    auto run = std::make_shared<RunInfo>();
    run->id = next_run_id();
    run->model_path = s.model->path().string();
    run->model_hash = s.model->hash();
    run->config = config;
    run->layout = s.model->layout();
    run->backend = backend.name();
    run->prompt = s.start.prompt;
    run->prompt_tokens = s.model->tokenizer().encode(s.start.prompt);
    run->seed = s.start.seed;
    run->n_generate = s.start.n_generate;
    if (run->prompt_tokens.empty())
        fail(ErrorCode::wrong_use, "the prompt has no tokens; give some text to start from");
    if (run->n_prompt() > config.n_ctx)
        fail(ErrorCode::wrong_use,
             "the prompt has {} tokens, the model's context holds {}; shorten the prompt", run->n_prompt(),
             config.n_ctx);
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
    for (const LaneSpec& lane : s.start.lanes) s.lanes.push_back(s.new_lane(lane));
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
    for (Lane& lane : s.lanes) lane.out.values = {};  // as wide as the prompt; later rows may be narrow
    return step;
}

void Session::apply(const Command& command) {
    Impl& s = *impl_;
    KH_ASSERT(s.row >= 0);
    if (const auto* set = std::get_if<SetLane>(&command)) {
        s.set_lane(*set);
    } else if (const auto* add = std::get_if<AddLane>(&command)) {
        s.add_lane(*add);
    } else if (const auto* remove = std::get_if<RemoveLane>(&command)) {
        s.lane_at(remove->index);
        if (remove->index == 0)
            fail(ErrorCode::wrong_use, "lane 0 is the reference of the others and stays; remove another one");
        s.lanes.erase(s.lanes.begin() + remove->index);
    } else if (const auto* follow = std::get_if<SetFollow>(&command)) {
        s.follow = follow->on;
    } else if (const auto* sampling = std::get_if<SetSampling>(&command)) {
        s.sampling = sampling->sampling;
        for (Lane& lane : s.lanes) s.read_logits(lane, s.row);
    } else {
        fail(ErrorCode::wrong_use, "'{}' cannot be done yet", format_command(command));
    }
    s.log.push_back({s.row, command});
    s.commands_since.push_back(format_command(command));
}

std::shared_ptr<const StepTrace> Session::step() {
    Impl& s = *impl_;
    if (finished()) return nullptr;
    const auto begin = Clock::now();
    const int row = s.row + 1;
    const int reference_token = s.lanes.front().predicted;
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < s.lanes.size(); ++i) {
        Lane& lane = s.lanes[i];
        if (!lane.active()) continue;
        which.push_back(i);
        lane.token = s.follow ? reference_token : lane.predicted;
        lane.token_log_prob = lane.log_probs[static_cast<std::size_t>(lane.token)];
        lane.diverged = lane.diverged || lane.token != s.lanes.front().token || !s.lanes.front().active();
    }
    s.feed(which, row, [](const Lane& lane) { return lane.token; });
    s.history.push_back(s.lanes.front().token);
    s.row = row;
    const std::vector<int>& eos = s.model->config().eos;
    for (std::size_t i : which) {
        Lane& lane = s.lanes[i];
        s.read_logits(lane, row);
        lane.out_is_new = true;
        lane.ended = !s.start.ignore_eos && std::find(eos.begin(), eos.end(), lane.token) != eos.end();
    }
    return s.record(ms_since(begin), nullptr);
}

bool Session::finished() const {
    return !finish_reason().empty();
}

std::string Session::finish_reason() const {
    const Impl& s = *impl_;
    if (s.row < 0) return {};
    const int n_fed = s.row + 1 - s.n_prompt();
    if (s.start.n_generate > 0 && n_fed >= s.start.n_generate)
        return fmt::format("{} tokens are generated", n_fed);
    if (s.follow && !s.lanes.front().active()) return "the reference lane ended its text";
    if (std::none_of(s.lanes.begin(), s.lanes.end(), [](const Lane& lane) { return lane.active(); }))
        return "all lanes ended their text";
    return {};
}

int Session::next_row() const {
    return impl_->row + 1;
}
const RunInfo& Session::run() const {
    return *impl_->run;
}
const std::vector<LoggedCommand>& Session::log() const {
    return impl_->log;
}

RunSpec Session::run_spec() const {
    RunSpec spec = impl_->start;
    spec.commands = impl_->log;
    return spec;
}

void replay(std::shared_ptr<const Model> model, Backend& backend, const RunSpec& spec, int last_row,
            RowSink* sink, const std::function<void(std::shared_ptr<const StepTrace>)>& each) {
    Session session(std::move(model), backend, spec, sink);
    each(session.prefill());
    std::size_t next = 0;
    for (;;) {
        for (; next < spec.commands.size() && spec.commands[next].row < session.next_row(); ++next)
            session.apply(spec.commands[next].command);
        if (session.next_row() > last_row) return;
        const auto step = session.step();
        if (step == nullptr) return;
        each(step);
    }
}

}  // namespace keyhole
