#include "engine/session/step_record.h"

#include "engine/base/index.h"
#include "engine/policy/attention.h"
#include "engine/policy/next_token_measures.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole {

namespace {

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

/// Returns tau at a row as the mean over the model's query heads, which overrides may give values of their
/// own.
float mean_tau(const ResolvedPolicy& policy, int n_layers, int row) {
    if (policy.variants.empty()) return policy.tau_at(row);
    const float first = policy.at(0, 0).tau_at(row);
    double sum = 0;
    bool differ = false;
    for (int layer = 0; layer < n_layers; ++layer)
        for (int head = 0; head < policy.n_heads; ++head) {
            const float tau = policy.at(layer, head).tau_at(row);
            differ = differ || tau != first;
            sum += double(tau);
        }
    return differ ? static_cast<float>(sum / (n_layers * policy.n_heads)) : first;
}

std::int64_t count_attended(const RowValues& values) {
    const std::int64_t held = values.offset.empty() ? 0 : values.offset.back();
    return held -
           std::count_if(values.hidden.begin(), values.hidden.end(), [](std::uint8_t h) { return h != 0; });
}

/// Records a lane's part of the row that it has just processed.
void record_row(LaneRecord& r, Lane& lane) {
    r.hidden = hidden_set(lane.out.values);
    r.attended_tokens = count_attended(lane.out.values);
    r.evictions.insert(r.evictions.end(), lane.out.evictions.begin(), lane.out.evictions.end());
    r.rows = lane.out.block;
    r.measures = mean_measures(lane.model->layout(), lane.out, lane.model->config().has_sinks);
    r.experts = lane.out.experts;
    if (!lane.out.shadow.retained_mass.empty()) r.shadow = std::make_shared<const ShadowRow>(lane.out.shadow);
    lane.out_is_new = false;
}

LaneRecord record_lane(Lane& lane, const Lane& reference, int row, int n_top) {
    LaneRecord r;
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
    const float tau = mean_tau(lane.policy(), lane.model->layout().n_layers(), row);
    if (lane.log_probs.empty()) {
        r.entropy = std::numeric_limits<float>::quiet_NaN();
        r.tau = tau;
        r.evictions.insert(r.evictions.end(), lane.out.evictions.begin(), lane.out.evictions.end());
        lane.out.evictions.clear();
        lane.out_is_new = false;
        return r;
    }
    r.entropy = static_cast<float>(entropy(lane.log_probs));
    r.tau = tau;
    if (!lane.diverged && lane.failure.empty() && reference.failure.empty()) {
        r.kl = static_cast<float>(kl_divergence(reference.log_probs, lane.log_probs));
        r.agrees = &lane == &reference || best(reference.out.next_logits) == best(lane.out.next_logits);
    }
    for (int id : top_k(lane.log_probs, n_top)) r.top.push_back({id, lane.log_probs[to_index(id)]});
    if (lane.active() || lane.out_is_new) record_row(r, lane);
    return r;
}

}  // namespace

StepTrace bare_step(std::shared_ptr<const RunInfo> run, std::span<const Lane> lanes, int row) {
    StepTrace step;
    step.run = std::move(run);
    step.row = row;
    for (const Lane& lane : lanes) step.lanes.emplace_back().info = lane.info;
    return step;
}

std::shared_ptr<StepTrace> make_record(const RunContext& context, SessionState& state) {
    auto step = std::make_shared<StepTrace>();
    step->run = context.run;
    step->row = state.row;
    step->commands = std::exchange(state.commands_since, {});
    context.backend.finish_rows();
    // Measures of a vocabulary take long. A lane writes only what is its own, and reads the first one's
    // logits.
    step->lanes.resize(state.lanes.size());
    context.backend.parallel_for(static_cast<std::int64_t>(state.lanes.size()), [&](std::int64_t i) {
        step->lanes[to_index(i)] =
            record_lane(state.lanes[to_index(i)], state.lanes.front(), state.row, context.start.n_top);
    });
    return step;
}

void send_rows(const RunContext& context, const SessionState& state, const StepTrace& step) {
    if (context.sink == nullptr) return;
    for (std::size_t i = 0; i < state.lanes.size(); ++i)
        if (step.lanes[i].rows != nullptr || step.lanes[i].attended_tokens > 0)
            context.sink->row(step, static_cast<int>(i), state.lanes[i].out);
}

}  // namespace keyhole
