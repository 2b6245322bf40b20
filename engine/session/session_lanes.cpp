#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/next_token_measures.h"
#include "engine/session/prompt_tiles.h"
#include "engine/session/sampler.h"
#include "engine/session/session_impl.h"

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

std::shared_ptr<const PinList> pins_of(const KvCache& cache, int n_kv_heads) {
    PinList pins;
    for (int g = 0; g < n_kv_heads; ++g)
        for (std::int32_t position : cache.pinned_positions(g)) pins.push_back({g, position});
    return pins.empty() ? nullptr : std::make_shared<const PinList>(std::move(pins));
}

}  // namespace

/// Returns the state at the start, before the prompt.
SessionState Session::Impl::first_state() {
    SessionState state;
    state.follow = start.follow;
    state.sampling = start.sampling;
    state.forced = start.forced;
    for (const LaneSpec& spec : start.lanes) {
        LaneInfo identity;
        identity.id = state.next_lane_id++;
        state.lanes.push_back(new_lane(identity, spec));
    }
    return state;
}

/// Returns the description of a lane. identity: its id and parentage. shared: the lane's model.
std::shared_ptr<const LaneInfo> Session::Impl::lane_info(const LaneInfo& identity, const LaneSpec& spec,
                                                         const Model& shared) const {
    auto info = std::make_shared<LaneInfo>();
    info->id = identity.id;
    info->forked_from = identity.forked_from;
    info->forked_at = identity.forked_at;
    info->replayed = identity.replayed;
    info->spec = format_lane_spec(spec);
    info->effective = format_effective_spec(spec, n_prompt(), start.n_generate);
    info->policy = resolve(spec.policy, n_prompt(), start.n_generate, head_grid(shared.layout()));
    if (&shared != model.get())
        info->layout =
            identity.layout != nullptr ? identity.layout : std::make_shared<const KvLayout>(shared.layout());
    info->kv = kv_name(shared.config());
    info->merged = shared.config().merged;
    info->token_bytes = kv_bytes_per_token(shared.config(), static_cast<int>(sizeof(float)));
    return info;
}

Lane Session::Impl::new_lane(const LaneInfo& identity, const LaneSpec& spec) const {
    Lane lane;
    lane.id = identity.id;
    lane.spec = lane.initial_spec = spec;
    lane.model = shared_model(model, spec.sharing);
    lane.info = lane_info(identity, spec, *lane.model);
    lane.cache = backend.make_cache(lane.policy(), lane.model != model ? lane.model : nullptr);
    return lane;
}

/// Computes the next-token distribution of the row just processed and the lane's own choice.
void Session::Impl::read_logits(Lane& lane, int at_row) const {
    lane.log_probs.resize(lane.out.next_logits.size());
    log_softmax(lane.out.next_logits, lane.log_probs);
    lane.predicted = choose_token(lane.out.next_logits, sampling, sampling_uniform(start.seed, at_row));
}

/// Processes the prompt of the lanes from first_lane on: one-shot lanes together for each model, stepwise
/// lanes row by row. Returns the rows of the session's own model; those of other models are with their lanes.
std::shared_ptr<const PromptRows> Session::Impl::prefill(std::size_t first_lane,
                                                         const std::function<bool(double)>& part_done,
                                                         bool to_sink) {
    struct Together {
        const Model* of;
        std::vector<LanePrefill> prefills;
        std::vector<int> lanes;
    };
    std::vector<Together> oneshot;
    std::vector<std::size_t> stepwise;
    for (std::size_t i = first_lane; i < lanes.size(); ++i) {
        Lane& lane = lanes[i];
        lane.token = run->prompt_tokens.back();
        lane.token_log_prob = std::numeric_limits<float>::quiet_NaN();
        if (lane.policy().prefill == PrefillMode::stepwise) {
            stepwise.push_back(i);
            continue;
        }
        auto group = std::find_if(oneshot.begin(), oneshot.end(),
                                  [&](const Together& g) { return g.of == lane.model.get(); });
        if (group == oneshot.end()) group = oneshot.insert(group, {lane.model.get(), {}, {}});
        group->prefills.push_back({lane.cache.get(), wants(), &lane.out});
        group->lanes.push_back(static_cast<int>(i));
    }
    std::shared_ptr<const PromptRows> rows;
    const double n_parts = static_cast<double>(oneshot.size()) + (stepwise.empty() ? 0 : 1);
    for (std::size_t n = 0; n < oneshot.size(); ++n) {
        const Together& group = oneshot[n];
        const auto share = [&](double done) { return part_done((static_cast<double>(n) + done) / n_parts); };
        const std::function<bool(double)> part = part_done ? share : std::function<bool(double)>();
        PrefillSink* outer = to_sink && sink != nullptr ? sink->prefill() : nullptr;
        std::optional<LaneTiles> tiles;
        if (outer != nullptr) tiles.emplace(*outer, group.lanes, stepwise.empty() && oneshot.size() == 1);
        // Records hold the prompt of the session's own model once; that of another model comes with its lane,
        // whenever the lane is added.
        const bool is_own = group.of == model.get();
        if (start.wants.attention && (to_sink || !is_own)) {
            PromptRecorder recorder(*run, tiles ? &*tiles : nullptr);
            backend.prefill(run->prompt_tokens, group.prefills, &recorder, part);
            const std::shared_ptr<const PromptRows> of_group = recorder.take();
            if (is_own) rows = of_group;
            for (const int lane : group.lanes)
                if (!is_own) lanes[to_index(lane)].prompt_rows = of_group;
        } else {
            backend.prefill(run->prompt_tokens, group.prefills, tiles ? &*tiles : nullptr, part);
        }
    }
    for (int i = 0; i < n_prompt() && !stepwise.empty(); ++i) {
        if (part_done && !part_done((n_parts - 1 + static_cast<double>(i) / n_prompt()) / n_parts))
            fail(ErrorCode::cancelled, "processing the prompt of {} tokens was stopped", n_prompt());
        feed(stepwise, i, [&](const Lane&) { return run->prompt_tokens[to_index(i)]; });
        const bool last = i == n_prompt() - 1;
        for (std::size_t n : stepwise) {
            Lane& lane = lanes[n];
            if (!last)
                lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
            if (!last && to_sink && sink != nullptr && sink->prefill() != nullptr)
                sink->row(bare_step(i), static_cast<int>(n), lane.out);
        }
    }
    weight_files.check();  // results computed from a file that has changed do not count
    for (const Together& group : oneshot)
        for (int i : group.lanes) note_row(lanes[to_index(i)]);
    for (std::size_t i = first_lane; i < lanes.size(); ++i) read_logits(lanes[i], n_prompt() - 1);
    return rows;
}

void Session::Impl::feed(const std::vector<std::size_t>& which, int at_row,
                         const std::function<int(const Lane&)>& token_of) {
    std::vector<LaneStep> steps;
    for (std::size_t i : which) {
        Lane& lane = lanes[i];
        steps.push_back({lane.cache.get(), token_of(lane), at_row, wants(), &lane.out});
    }
    backend.step(steps);
    weight_files.check();
    for (std::size_t i : which) note_row(lanes[i]);
}

/// Feeds the next row of every active lane.
void Session::Impl::feed_row() {
    const int next = row + 1, reference_token = lanes.front().predicted;
    const bool given = !forced.empty();
    std::vector<std::size_t> which;
    for (std::size_t i = 0; i < lanes.size(); ++i) {
        Lane& lane = lanes[i];
        if (!lane.active()) continue;
        which.push_back(i);
        lane.token = given ? forced.front() : follow ? reference_token : lane.predicted;
        lane.token_log_prob = lane.log_probs[to_index(lane.token)];
        lane.diverged = lane.diverged || lane.token != lanes.front().token || !lanes.front().active();
    }
    feed(which, next, [](const Lane& lane) { return lane.token; });
    if (given) forced.erase(forced.begin());
    history.push_back(lanes.front().token);
    row = next;
    // Now, while the threads that help are still awake.
    for (std::size_t i : which) lanes[i].rows = row_block(lanes[i].out.values);
    const std::vector<int>& eos = model->config().eos;
    for (std::size_t i : which) {
        Lane& lane = lanes[i];
        lane.tokens.push_back(lane.token);
        read_logits(lane, row);
        lane.out_is_new = true;
        lane.ended =
            !start.ignore_eos && forced.empty() && std::find(eos.begin(), eos.end(), lane.token) != eos.end();
    }
}

/// Resets what record() would reset in the lanes, without making a record.
void Session::Impl::discard_outputs() {
    commands_since.clear();
    for (Lane& lane : lanes) {
        lane.pending.clear();
        lane.out_is_new = false;
        lane.rows = nullptr;
        lane.recorded = true;
        lane.out.values = {};
    }
}

/// Processes the prompt of the lanes from first_lane on, as the first part of a replay. share: its part of
/// the progress.
void Session::Impl::prefill_again(std::size_t first_lane, double share) {
    prefill(
        first_lane, [&](double done) { return report_progress(share * done); }, false);
}

/// Replays the last lane, which is new: the prompt, then `tokens`, with its logged commands at their rows.
/// change: applied to the commands' specs.
void Session::Impl::replay(const std::vector<int>& tokens, const std::vector<LoggedCommand>& commands,
                           const std::function<void(LaneSpec&)>& change) {
    const std::size_t last = lanes.size() - 1;
    std::size_t n_applied = 0;
    const auto apply_until = [&](int at_row) {
        for (; n_applied < commands.size() && commands[n_applied].row <= at_row; ++n_applied) {
            Command command = commands[n_applied].command;
            if (auto* set = std::get_if<SetLane>(&command); set != nullptr && change) change(set->spec);
            apply_to_lane(lanes[last], command, commands[n_applied].row);
        }
    };
    const double n_rows = static_cast<double>(run->prompt_tokens.size() + tokens.size());
    prefill_again(last, n_prompt() / n_rows);
    Lane& lane = lanes[last];
    lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const int at_row = n_prompt() + static_cast<int>(i);
        report_or_cancel(at_row / n_rows);
        apply_until(at_row - 1);
        lane.token = tokens[i];
        lane.token_log_prob = lane.log_probs[to_index(tokens[i])];
        feed({last}, at_row, [](const Lane& fed) { return fed.token; });
        lane.tokens.push_back(lane.token);
        lane.pending.insert(lane.pending.end(), lane.out.evictions.begin(), lane.out.evictions.end());
        read_logits(lane, at_row);
    }
    apply_until(row);
}

/// Applies a command that concerns one lane only. The command is known to be valid.
void Session::Impl::apply_to_lane(Lane& lane, const Command& command, int at_row) const {
    const KvLayout& layout = lane.model->layout();
    if (const auto* set = std::get_if<SetLane>(&command)) {
        auto info = lane_info(*lane.info, set->spec, *lane.model);
        note_gone(lane, backend.apply_policy(*lane.cache, info->policy, at_row));
        lane.spec = set->spec;
        lane.info = std::move(info);
    } else if (const auto* evict = std::get_if<EvictToken>(&command)) {
        std::vector<Eviction> gone;
        for (int g : kv_heads_at(layout, evict->at))
            if (lane.cache->evict(g, evict->at.position)) gone.push_back({g, evict->at.position, at_row});
        note_gone(lane, std::move(gone));
    } else if (const auto* pin = std::get_if<PinToken>(&command)) {
        for (int g : kv_heads_at(layout, pin->at)) lane.cache->set_pinned(g, pin->at.position, true);
    } else if (const auto* unpin = std::get_if<UnpinToken>(&command)) {
        for (int g : kv_heads_at(layout, unpin->at)) lane.cache->set_pinned(g, unpin->at.position, false);
    }
    if (!std::holds_alternative<SetLane>(command)) lane.pins = pins_of(*lane.cache, layout.n_kv_heads());
    lane.log.push_back({at_row, command});
}

/// Returns the KV heads of a token's place, ascending, each once.
std::vector<int> Session::Impl::kv_heads_at(const KvLayout& layout, const TokenPlace& at) {
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
