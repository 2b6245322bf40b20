#include "engine/session/lane_runner.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/next_token_measures.h"
#include "engine/run/sampler.h"
#include "engine/session/forced_text.h"
#include "engine/session/lane_fault.h"
#include "engine/session/prompt_tiles.h"
#include "engine/session/step_record.h"
#include "engine/session/token_rules.h"

#include <algorithm>
#include <limits>
#include <optional>

namespace keyhole {

namespace {

/// Keeps the evictions of a command for the next record and for messages.
void note_gone(Lane& lane, std::vector<Eviction> gone) {
    if (gone.empty()) return;
    lane.pending.insert(lane.pending.end(), gone.begin(), gone.end());
    lane.left.push_back(std::make_shared<const std::vector<Eviction>>(std::move(gone)));
}

/// Keeps the evictions of the row just processed.
void note_row(Lane& lane) {
    if (!lane.out.evictions.empty())
        lane.left.push_back(std::make_shared<const std::vector<Eviction>>(lane.out.evictions));
}

/// Returns the token that a lane consumes next.
int next_token(const Lane& lane) {
    return lane.reading.forced.empty() ? lane.predicted : lane.reading.forced.front();
}

void note_read(SessionState& state, std::span<Lane* const> fed) {
    for (Lane* lane : fed) lane->reading.note_read();
    if (!state.follow) return;
    for (Lane* lane : fed) lane->reading.forced = state.lanes.front().reading.forced;
}

std::shared_ptr<const PinList> pins_of(const KvCache& cache, int n_kv_heads) {
    PinList pins;
    for (int g = 0; g < n_kv_heads; ++g)
        for (std::int32_t position : cache.pinned_positions(g)) pins.push_back({g, position});
    return pins.empty() ? nullptr : std::make_shared<const PinList>(std::move(pins));
}

}  // namespace

SessionState LaneRunner::first_state() const {
    const RunSpec& start = context_.start;
    SessionState state;
    state.follow = start.follow;
    state.sampling = start.sampling;
    for (const LaneSpec& spec : start.lanes) {
        LaneInfo identity;
        identity.id = state.next_lane_id++;
        state.lanes.push_back(new_lane(identity, spec));
        state.lanes.back().reading.forced = start.forced;
    }
    return state;
}

std::shared_ptr<const LaneInfo> LaneRunner::lane_info(const LaneInfo& identity, const LaneSpec& spec,
                                                      const Model& shared) const {
    const int n_prompt = context_.n_prompt(), n_generate = context_.start.n_generate;
    auto info = std::make_shared<LaneInfo>();
    info->id = identity.id;
    info->forked_from = identity.forked_from;
    info->forked_at = identity.forked_at;
    info->replayed = identity.replayed;
    info->spec = format_lane_spec(spec);
    info->effective = format_effective_spec(spec, n_prompt, n_generate);
    info->policy = resolve(spec.policy, n_prompt, n_generate, head_grid(shared.layout()));
    if (&shared != context_.model.get())
        info->layout =
            identity.layout != nullptr ? identity.layout : std::make_shared<const KvLayout>(shared.layout());
    info->kv = kv_name(shared.config());
    info->merged = shared.config().merged;
    info->kv_dtype = context_.backend.kv_type(spec.policy.kv_dtype);
    info->token_bytes = kv_bytes_per_token(shared.config(), info->kv_dtype);
    return info;
}

Lane LaneRunner::new_lane(const LaneInfo& identity, const LaneSpec& spec) const {
    const auto& own = context_.model;
    Lane lane;
    lane.id = identity.id;
    lane.spec = lane.initial_spec = spec;
    lane.model = shared_model(own, spec.sharing);
    lane.info = lane_info(identity, spec, *lane.model);
    lane.cache = context_.backend.make_cache(lane.policy(), lane.model != own ? lane.model : nullptr);
    return lane;
}

std::vector<int> LaneRunner::text_of(const Lane& lane) const {
    std::vector<int> text = context_.run->prompt_tokens;
    text.insert(text.end(), lane.tokens.begin(), lane.tokens.end());
    return text;
}

void LaneRunner::look_ahead(Lane& lane, const LaneSpec& spec, const ResolvedPolicy& policy, int token,
                            const ProgressPart& progress) const {
    const bool repeats = needs_repeats(policy) && lane.cache->repeats() == nullptr;
    const double share = repeats && needs_future(policy) ? 0.5 : 1;
    if (repeats) lane.cache->set_repeats(context_.ahead->repeats(context_, spec, progress.part(0, share)));
    if (!needs_future(policy)) return;
    std::vector<int> given = lane.tokens;
    if (token >= 0) given.push_back(token);
    const FutureTable* known = lane.cache->future().get();
    const int first = context_.n_prompt();
    bool holds = known != nullptr;
    for (std::size_t i = 0; holds && i < given.size(); ++i)
        holds = known->holds_for(first + static_cast<int>(i), given[i]);
    if (holds) return;
    std::vector<int> rest = lane.reading.forced;
    if (token >= 0 && !rest.empty()) rest.erase(rest.begin());  // the token itself
    given.insert(given.end(), rest.begin(), rest.end());
    lane.cache->set_future(context_.ahead->table(context_, spec, given, progress.part(1 - share, share)));
}

void LaneRunner::read_logits(Lane& lane, const Sampling& sampling, int at_row) const {
    lane.log_probs.resize(lane.out.next_logits.size());
    log_softmax(lane.out.next_logits, lane.log_probs);
    const float uniform = sampling_uniform(context_.start.seed, at_row);
    if (!has_rules(sampling)) {
        lane.predicted = choose_token(lane.out.next_logits, sampling, uniform);
        return;
    }
    // The record keeps the model's own distribution; only the choice is made from this one.
    std::vector<float> ruled = lane.out.next_logits;
    apply_rules(sampling, text_of(lane), context_.n_prompt(), context_.run->config.eos, ruled);
    lane.predicted = choose_token(ruled, sampling, uniform);
}

void LaneRunner::read_row(Lane& lane, const Sampling& sampling, int row) const {
    read_logits(lane, sampling, row);
    find_fault(lane, row);
}

struct LaneRunner::Group {
    const Model* of;
    std::vector<LanePrefill> prefills;
    std::vector<int> lanes;
};

std::shared_ptr<const PromptRows> LaneRunner::prefill(std::span<Lane> lanes, const Sampling& sampling,
                                                      const ProgressPart& progress, bool to_sink) const {
    std::vector<Group> oneshot;
    std::vector<std::size_t> stepwise;
    context_.ahead->set_sampling(sampling);
    const auto looks_ahead = [](const Lane& lane) {
        return needs_repeats(lane.policy()) || needs_future(lane.policy());
    };
    // Looking ahead for a lane counts as much as the prompt of all.
    const double pass = 1 / (1.0 + static_cast<double>(std::ranges::count_if(lanes, looks_ahead)));
    double done = 0;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        Lane& lane = lanes[i];
        if (looks_ahead(lane)) {
            look_ahead(lane, lane.spec, lane.policy(), -1, progress.part(done, pass));
            done += pass;
        }
        lane.token = context_.run->prompt_tokens.back();
        lane.token_log_prob = std::numeric_limits<float>::quiet_NaN();
        if (lane.policy().prefill == PrefillMode::stepwise) {
            stepwise.push_back(i);
            continue;
        }
        auto group = std::find_if(oneshot.begin(), oneshot.end(),
                                  [&](const Group& g) { return g.of == lane.model.get(); });
        if (group == oneshot.end()) group = oneshot.insert(group, {lane.model.get(), {}, {}});
        group->prefills.push_back({lane.cache.get(), requested_, &lane.out});
        group->lanes.push_back(static_cast<int>(i));
    }
    std::shared_ptr<const PromptRows> rows;
    const ProgressPart of_prompt = progress.part(1 - pass, pass);
    const double share = 1 / (static_cast<double>(oneshot.size()) + (stepwise.empty() ? 0 : 1));
    for (std::size_t n = 0; n < oneshot.size(); ++n) {
        const bool are_all = stepwise.empty() && oneshot.size() == 1;
        const auto of_group = prefill_group(
            lanes, oneshot[n], of_prompt.part(static_cast<double>(n) * share, share), to_sink, are_all);
        if (of_group != nullptr) rows = of_group;
    }
    if (!stepwise.empty()) prefill_stepwise(lanes, stepwise, of_prompt.part(1 - share, share), to_sink);
    context_.weight_files.check();  // results computed from a file that has changed do not count
    for (const Group& group : oneshot)
        for (int i : group.lanes) note_row(lanes[to_index(i)]);
    context_.backend.parallel_for(static_cast<std::int64_t>(lanes.size()), [&](std::int64_t i) {
        read_row(lanes[to_index(i)], sampling, context_.n_prompt() - 1);
    });
    return rows;
}

/// Returns the rows for records if the group is of the session's own model. are_all: no other lanes.
std::shared_ptr<const PromptRows> LaneRunner::prefill_group(std::span<Lane> lanes, const Group& group,
                                                            const ProgressPart& progress, bool to_sink,
                                                            bool are_all) const {
    const RunInfo& run = *context_.run;
    PrefillSink* outer = to_sink && context_.sink != nullptr ? context_.sink->prefill() : nullptr;
    std::optional<LaneTiles> tiles;
    if (outer != nullptr) tiles.emplace(*outer, group.lanes, are_all);
    PrefillSink* const sink = tiles ? &*tiles : nullptr;
    // Records hold the prompt of the session's own model once; that of another model comes with its lane,
    // whenever the lane is added.
    const bool is_own = group.of == context_.model.get();
    if (!context_.start.requested.attention || (is_own && !to_sink)) {
        context_.backend.prefill(run.prompt_tokens, group.prefills, sink, progress.callback());
        return nullptr;
    }
    PromptRecorder recorder(run, sink);
    context_.backend.prefill(run.prompt_tokens, group.prefills, &recorder, progress.callback());
    const std::shared_ptr<const PromptRows> rows = recorder.take();
    if (is_own) return rows;
    for (const int lane : group.lanes) lanes[to_index(lane)].prompt_rows = rows;
    return nullptr;
}

void LaneRunner::prefill_stepwise(std::span<Lane> lanes, const std::vector<std::size_t>& which,
                                  const ProgressPart& progress, bool to_sink) const {
    const std::vector<int>& tokens = context_.run->prompt_tokens;
    std::vector<Lane*> fed;
    for (std::size_t i : which) fed.push_back(&lanes[i]);
    for (int i = 0; i < context_.n_prompt(); ++i) {
        if (!progress.report(static_cast<double>(i) / context_.n_prompt()))
            fail(ErrorCode::cancelled, "processing the prompt of {} tokens was stopped", context_.n_prompt());
        for (Lane* lane : fed) lane->token = tokens[to_index(i)];
        feed(fed, i);
        if (i == context_.n_prompt() - 1) break;  // the record that ends the prompt holds this row
        for (std::size_t n : which) {
            Lane& lane = lanes[n];
            lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
            if (to_sink && context_.sink != nullptr && context_.sink->prefill() != nullptr)
                context_.sink->row(bare_step(context_.run, lanes, i), static_cast<int>(n), lane.out);
        }
    }
}

void LaneRunner::feed(std::span<Lane* const> lanes, int at_row) const {
    std::vector<LaneStep> steps;
    for (Lane* lane : lanes)
        if (at_row >= context_.n_prompt()) look_ahead(*lane, lane->spec, lane->policy(), lane->token, {});
    for (Lane* lane : lanes)
        steps.push_back({lane->cache.get(), lane->token, at_row, requested_, &lane->out});
    context_.backend.step(steps);
    context_.weight_files.check();
    for (Lane* lane : lanes) note_row(*lane);
}

void LaneRunner::feed_row(SessionState& state) const {
    const int next = state.row + 1;
    context_.ahead->set_sampling(state.sampling);
    std::vector<Lane*> fed;
    for (Lane& lane : state.lanes) {
        if (!lane.active()) continue;
        fed.push_back(&lane);
        lane.token = next_token(state.follow ? state.lanes.front() : lane);
        lane.token_log_prob = lane.log_probs[to_index(lane.token)];
        const Lane& reference = state.lanes.front();
        lane.diverged = lane.diverged || lane.token != reference.token || !reference.active();
    }
    feed(fed, next);
    note_read(state, fed);
    state.history.push_back(state.lanes.front().token);
    state.row = next;
    const std::vector<int>& eos = context_.model->config().eos;
    context_.backend.parallel_for(static_cast<std::int64_t>(fed.size()), [&](std::int64_t i) {
        Lane& lane = *fed[to_index(i)];
        lane.tokens.push_back(lane.token);
        read_row(lane, state.sampling, next);
    });
    for (Lane* lane : fed) {
        lane->out_is_new = true;
        lane->ended = lane->failure.empty() && !context_.start.ignore_eos && lane->reading.forced.empty() &&
                      std::find(eos.begin(), eos.end(), lane->token) != eos.end();
    }
    say_what_waits(context_, state);
}

void LaneRunner::apply(Lane& lane, const Command& command, int at_row, const ProgressPart& progress) const {
    const KvLayout& layout = lane.model->layout();
    if (const auto* set = std::get_if<SetLane>(&command)) {
        auto info = lane_info(*lane.info, set->spec, *lane.model);
        look_ahead(lane, set->spec, info->policy, -1, progress);
        note_gone(lane, context_.backend.apply_policy(*lane.cache, info->policy, at_row));
        lane.spec = set->spec;
        lane.info = std::move(info);
        find_fault(lane, at_row);  // another kv_dtype may not hold what is stored
    } else if (const auto* evict = std::get_if<EvictToken>(&command)) {
        std::vector<Eviction> gone;
        for (int g : kv_heads_at(layout, evict->at))
            if (lane.cache->evict(g, evict->at.position)) gone.push_back({g, evict->at.position, at_row});
        note_gone(lane, std::move(gone));
    } else if (const auto* pin = std::get_if<PinToken>(&command)) {
        for (int g : kv_heads_at(layout, pin->at)) lane.cache->set_pinned(g, pin->at.position, true);
    } else if (const auto* unpin = std::get_if<UnpinToken>(&command)) {
        for (int g : kv_heads_at(layout, unpin->at)) lane.cache->set_pinned(g, unpin->at.position, false);
    } else if (const auto* force = std::get_if<ForceTokens>(&command)) {
        lane.reading.queue(*force);
    }
    if (!std::holds_alternative<SetLane>(command)) lane.pins = pins_of(*lane.cache, layout.n_kv_heads());
    lane.log.push_back({at_row, command});
}

std::vector<int> kv_heads_at(const KvLayout& layout, const TokenPlace& at) {
    std::vector<int> heads;
    for (int layer = 0; layer < layout.n_layers(); ++layer)
        for (int head = 0; head < layout.n_heads(); ++head)
            if ((at.layer < 0 || at.layer == layer) && (at.head < 0 || at.head == head))
                heads.push_back(layout.kv_head_from_head(layer, head));
    std::sort(heads.begin(), heads.end());
    heads.erase(std::unique(heads.begin(), heads.end()), heads.end());
    return heads;
}

}  // namespace keyhole
