#include "engine/backend/common/shared.h"

#include "engine/backend/common/row_scores.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <cmath>
#include <limits>

namespace keyhole {

std::vector<int> wanted_capacity(const KvLayout& layout, const ResolvedPolicy& policy,
                                 std::span<const int> n_stored, int n_columns) {
    std::vector<int> capacity;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const ResolvedPolicy& own = unit_policy(layout, policy, g);
        const int n = n_stored[to_index(g)];
        const int open_end = (own.keeps_memory ? n_columns : n) + rows_of_room(own);
        capacity.push_back(own.grows() ? open_end : std::max(n, std::min(own.most_stored(), open_end)));
    }
    return capacity;
}

AttentionRule attention_rule(const ModelConfig& config, int layer, int head) {
    AttentionRule rule;
    rule.scale = config.attention_scale > 0 ? config.attention_scale
                                            : 1.0f / std::sqrt(static_cast<float>(config.head_dim));
    if (config.positions == PositionKind::alibi) rule.slope = config.alibi_slopes[to_index(head)];
    if (!config.window.empty()) rule.window = config.window[to_index(layer)];
    rule.cap = config.attention_cap;
    return rule;
}

const Rotary* rotary_of(const ModelConfig& config, int layer) {
    if (config.rotary.dims == 0) return nullptr;
    if (!config.unrotated.empty() && config.unrotated[to_index(layer)]) return nullptr;
    const bool slides = !config.window.empty() && config.window[to_index(layer)] > 0;
    return slides && config.local_rotary.dims > 0 ? &config.local_rotary : &config.rotary;
}

bool model_hides(const ModelConfig& config, int row) {
    return std::any_of(config.window.begin(), config.window.end(),
                       [row](int window) { return window > 0 && row >= window; });
}

void row_offsets(const KvLayout& layout, std::span<const int> n_attended, std::vector<std::int32_t>& offset,
                 std::vector<std::int64_t>& head_offset) {
    offset.assign(1, 0);
    for (const int n : n_attended) offset.push_back(offset.back() + n);
    head_offset.assign(1, 0);
    for (int l = 0; l < layout.n_layers(); ++l)
        for (int h = 0; h < layout.n_heads(); ++h)
            head_offset.push_back(head_offset.back() + n_attended[to_index(layout.kv_head_from_head(l, h))]);
}

void size_row(const KvLayout& layout, std::span<const int> n_attended, const ResolvedPolicy& policy,
              const RowRequest& requested, bool hides, RowOutput& out) {
    RowValues& values = out.values;
    row_offsets(layout, n_attended, values.offset, values.head_offset);
    const auto n_heads = to_index(values.head_offset.back());
    const auto n_units = to_index(values.offset.back());
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    values.positions.resize(
        requested.attention || requested.logits || requested.noise || requested.scores ? n_units : 0);
    values.attention.resize(requested.attention ? n_heads : 0);
    values.logits.resize(requested.logits ? n_heads : 0);
    values.noise.assign(requested.noise ? n_heads : 0, kNone);
    values.scores.resize(requested.scores ? n_units : 0);
    hides = hides || policy.any([](const ResolvedPolicy& p) { return p.hides_any(); });
    values.hidden.assign(hides ? n_units : 0, 0);
    values.threshold.assign(requested.scores ? to_index(layout.n_kv_heads()) : 0, kNone);
    out.evictions.clear();
    out.block = nullptr;
    out.sink_attention.clear();
}

void size_inputs(const KvLayout& layout, int head_dim, const RowRequest& requested, RowOutput& out) {
    const std::size_t d = requested.inputs ? to_index(head_dim) : 0,
                      n_heads = to_index(layout.n_layers() * layout.n_heads()),
                      n_kv_heads = to_index(layout.n_kv_heads());
    for (auto* of : {&out.inputs.q, &out.inputs.raw_q}) of->resize(n_heads * d);
    for (auto* of : {&out.inputs.k, &out.inputs.raw_k, &out.inputs.v}) of->resize(n_kv_heads * d);
}

void pack_row(Backend& backend, const RowRequest& requested, RowOutput& out) {
    const RowValues& values = out.values;
    if (requested.form == RowForm::floats || (values.attention.empty() && values.scores.empty())) return;
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
    out.block = std::move(block);
}

void pool_more(Pool pool, bool first, const float* score, std::int64_t n, float* pooled) {
    for (std::int64_t i = 0; i < n; ++i) {
        if (first)
            pooled[i] = score[i];
        else
            pooled[i] = pool == Pool::max ? std::max(pooled[i], score[i]) : pooled[i] + score[i];
    }
}

void finish_pool(Pool pool, int n_readers, std::int64_t n, float* pooled) {
    if (pool != Pool::mean || n_readers < 2) return;
    for (std::int64_t i = 0; i < n; ++i) pooled[i] /= static_cast<float>(n_readers);
}

namespace {

/// Adds the streams that a lane's policy needs for one query head; `own` is the policy of the head.
std::array<int, kAccumulators> plan_head(const ResolvedPolicy& policy, const ResolvedPolicy& own,
                                         std::vector<ScoreStream>& streams) {
    std::array<int, kAccumulators> of_head{};
    const auto running = running_accumulators(policy);
    for (int a = 0; a < kAccumulators; ++a) {
        of_head[to_index(a)] = -1;
        if (!running[to_index(a)]) continue;
        ScoreStream stream;
        stream.alpha = is_forgetting(a) ? own.alpha : 1.0f;
        stream.dtype = own.score_dtype;
        const bool by_formula = a == kByFormula;
        // Other heads of the lane have a formula; this one's scores stay what it would begin with.
        if (by_formula && !own.score) {
            of_head[to_index(a)] = of_head[kSum];
            continue;
        }
        if (by_formula) {
            stream.score = own.score;
            stream.alpha = own.alpha;
            stream.budget = own.budget;
            stream.window = own.window;
            stream.mix = own.mix;
            stream.tau = own.tau_at(0);
            stream.gain = own.gain;
            if (names_lengths(own.score) || names_reach(own.score)) stream.kv_dtype = policy.kv_dtype;
        }
        if ((is_tempered(a) || (by_formula && own.score->names(Quantity::ptau))) && own.tempers()) {
            stream.tempered = true;
            stream.tau = own.tau_at(0);
            stream.gain = own.gain;
            stream.noise = own.noise;
            stream.draw = own.draw;
            stream.seed = own.seed;
        }
        const auto found = std::find(streams.begin(), streams.end(), stream);
        of_head[to_index(a)] = static_cast<int>(found - streams.begin());
        if (found == streams.end()) streams.push_back(stream);
    }
    return of_head;
}

}  // namespace

StreamPlan::StreamPlan(const KvLayout& layout, std::span<const LanePrefill> lanes)
    : n_heads(layout.n_heads()) {
    streams.resize(to_index(layout.n_layers() * n_heads));
    for (const LanePrefill& lane : lanes) {
        auto& of_this = of_lane.emplace_back();
        for (int layer = 0; layer < layout.n_layers(); ++layer)
            for (int head = 0; head < n_heads; ++head)
                of_this.push_back(plan_head(lane.cache->policy(), lane.cache->policy().at(layer, head),
                                            streams[to_index(layer * n_heads + head)]));
    }
    for (const std::vector<ScoreStream>& of_head : streams)
        n_streams = std::max(n_streams, static_cast<int>(of_head.size()));
}

}  // namespace keyhole
