// What the sink of a prompt gets: inputs of layers; attention, noise and scores of tiles.
#include "engine/backend/cuda/prefill.h"

#include "engine/backend/common/shared.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole::cuda {

/// Copies a tile to tile_, [heads, rows, last]: all rows, or the last row of every head alone. Returns how
/// many rows came.
int Prefill::download_tile(const Buffer<float>& from, int rows, int last, bool whole) {
    const std::size_t n_heads = to_index(model_.config().n_heads), tile = to_index(rows) * to_index(last);
    if (whole)
        executor_->download(tile_.data(), from.data(), n_heads * tile * sizeof(float));
    else
        executor_->download_rows(tile_.data(), to_index(last) * sizeof(float),
                                 from.data() + to_index(rows - 1) * to_index(last), tile * sizeof(float),
                                 to_index(last) * sizeof(float), n_heads);
    executor_->wait();
    return whole ? rows : 1;
}

/// Sends a layer's queries, keys and values to the sink. raw_q, raw_k: [n, heads, head_dim].
void Prefill::emit_inputs(int layer, const std::vector<float>& raw_q, const std::vector<float>& raw_k,
                          const LayerStore& store) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, n = n_, n_kv = owns(layer) ? c.n_kv_heads : 0;
    const auto on_host = [&](const Buffer<float>& from, std::int64_t n_heads) {
        std::vector<float> values(to_index(n_heads * n * d));
        executor_->download(values.data(), from.data(), values.size() * sizeof(float));
        return values;
    };
    const std::vector<float> q = on_host(q_, c.n_heads), keys = on_host(store.keys, n_kv),
                             values = on_host(store.values, n_kv);
    executor_->wait();
    const auto send = [&](InputKind kind, std::int64_t head, const float* from, std::int64_t stride) {
        sink_->inputs(
            {-1, kind, layer, static_cast<int>(head), n_, c.head_dim, from, stride, rotary_of(c, layer)});
    };
    for (std::int64_t h = 0; h < c.n_heads; ++h) {
        send(InputKind::q, h, q.data() + h * d, c.n_heads * d);
        send(InputKind::raw_q, h, raw_q.data() + h * d, c.n_heads * d);
    }
    for (std::int64_t g = 0; g < n_kv; ++g) {
        send(InputKind::k, g, keys.data() + g * n * d, d);
        send(InputKind::raw_k, g, raw_k.data() + g * d, n_kv * d);
        send(InputKind::v, g, values.data() + g * n * d, d);
    }
}

void Prefill::emit_attention(int layer, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    const auto emit = [&](const Buffer<float>& from, bool to_sink,
                          void (PrefillSink::*send)(const PrefillTile&), bool RowRequest::*wanted,
                          std::vector<float> RowValues::*row) {
        const bool to_lanes = last == n_ && std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) {
                                  return lane.requested.*wanted;
                              });
        if (!to_sink && !to_lanes) return;
        const int n_got = download_tile(from, rows, last, to_sink);
        const int window = attention_rule(model_.config(), layer, 0).window;
        for (int h = 0; h < n_heads; ++h) {
            float* values = tile_.data() + std::int64_t{h} * n_got * last;
            if (window > 0 && wanted == &RowRequest::logits)  // positions outside the window
                for (int i = 0; i < n_got; ++i)
                    std::fill_n(values + std::int64_t{i} * last,
                                std::max(0, first + rows - n_got + i - window + 1),
                                std::numeric_limits<float>::quiet_NaN());
            if (to_sink) (sink_->*send)({-1, layer, h, first, rows, last, values});
            if (!to_lanes) continue;
            for (const LanePrefill& lane : lanes_)
                if (lane.requested.*wanted)
                    std::copy_n(values + std::int64_t{n_got - 1} * last, n_,
                                (lane.out->values.*row).data() + (std::int64_t{layer} * n_heads + h) * n_);
        }
    };
    emit(probabilities_, sink_requests_.attention, &PrefillSink::attention, &RowRequest::attention,
         &RowValues::attention);
    emit(logits_, sink_requests_.logits, &PrefillSink::logits, &RowRequest::logits, &RowValues::logits);
}

/// Sends the noise of a stream to the lanes whose heads select by it.
void Prefill::emit_noise(int layer, int stream, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    if (noise_.size() == 0 || (!sink_requests_.noise && last < n_)) return;
    const int n_got = download_tile(noise_, rows, last, sink_requests_.noise);
    for (int h = 0; h < n_heads; ++h) {
        const auto& of_head = plan_.streams[to_index(layer * n_heads + h)];
        if (to_index(stream) >= of_head.size() || !of_head[to_index(stream)].tempered ||
            of_head[to_index(stream)].noise == NoiseKind::none)
            continue;
        const float* values = tile_.data() + std::int64_t{h} * n_got * last;
        for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
            if (plan_.own(lanes_[lane], lane, layer, h) != stream) continue;
            if (sink_requests_.noise)
                sink_->noise({static_cast<int>(lane), layer, h, first, rows, last, values});
            std::vector<float>& out = lanes_[lane].out->values.noise;
            if (last == n_ && !out.empty())
                std::copy_n(values + std::int64_t{n_got - 1} * last, n_,
                            out.data() + (std::int64_t{layer} * n_heads + h) * n_);
        }
    }
}

/// Sends the pooled scores after each row of the tile to the sink. Scores pooled over layers (scopes shared
/// and column) go with the last layer.
void Prefill::emit_scores(int layer, int first, int last) {
    const KvLayout& layout = model_.layout();
    const int n_heads = layout.n_heads(), rows = last - first;
    const std::int64_t tile = std::int64_t{rows} * last;
    std::vector<float> scores(to_index(plan_.n_streams * n_heads * tile)), pooled(to_index(tile));
    executor_->download(scores.data(), score_rows_.data(), scores.size() * sizeof(float));
    executor_->wait();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        const ResolvedPolicy& policy = lanes_[lane].cache->policy();
        const auto of_head = [&](int h) {
            return scores.data() +
                   (std::int64_t{plan_.own(lanes_[lane], lane, layer, h)} * n_heads + h) * tile;
        };
        if (spans_layers(policy.scope)) {
            policy.scope == Scope::shared ? pool_shared(lane, layer, first, last, of_head)
                                          : pool_columns(lane, layer, first, last, of_head);
            continue;
        }
        if (!layout.owns(layer) || layout.last_reader(layout.first_of_layer(layer)) > layer) {
            pool_borrowed(lane, layer, first, last, of_head);
            continue;
        }
        for (int g = layout.first_of_layer(layer); g < layout.first_of_layer(layer + 1); ++g) {
            int n_readers = 0;
            for (int h = 0; h < n_heads; ++h) {
                if (policy.scope == Scope::head && layout.kv_head_from_head(layer, h) != g) continue;
                pool_more(policy.pool, n_readers++ == 0, of_head(h), tile, pooled.data());
            }
            finish_pool(policy.pool, n_readers, tile, pooled.data());
            sink_->scores({static_cast<int>(lane), layer, g - layout.first_of_layer(layer), first, rows, last,
                           pooled.data()});
        }
    }
}

/// Adds a layer's tile to the scores of a lane that pools over all layers. After the last layer they are
/// complete and valid for every KV head.
void Prefill::pool_shared(std::size_t lane, int layer, int first, int last,
                          const std::function<const float*(int head)>& of_head) {
    const KvLayout& layout = model_.layout();
    const Pool pool = lanes_[lane].cache->policy().pool;
    const int n_heads = layout.n_heads(), n_layers = layout.n_layers(), rows = last - first;
    std::vector<float>& all = shared_scores_[lane];
    if (all.empty()) all.resize(to_index(n_) * to_index(n_));
    float* pooled = all.data() + std::int64_t{first} * n_;
    for (std::int64_t i = 0; i < rows; ++i) {
        for (int h = 0; h < n_heads; ++h)
            pool_more(pool, layer == 0 && h == 0, of_head(h) + i * last, last, pooled + i * n_);
        if (layer + 1 == n_layers) finish_pool(pool, n_layers * n_heads, last, pooled + i * n_);
    }
    if (layer + 1 < n_layers) return;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const KvHead& kv = layout.kv_head(g);
        sink_->scores({static_cast<int>(lane), kv.owner_layer, kv.index, first, rows, n_, pooled});
    }
}

/// Does the same for a lane with a set for each KV head of all layers, whose layers all have their own.
void Prefill::pool_columns(std::size_t lane, int layer, int first, int last,
                           const std::function<const float*(int head)>& of_head) {
    const KvLayout& layout = model_.layout();
    const Pool pool = lanes_[lane].cache->policy().pool;
    const int n_sets = layout.first_of_layer(1), rows = last - first;
    const bool is_last = layer + 1 == layout.n_layers();
    const std::int64_t n = n_;
    std::vector<float>& all = shared_scores_[lane];
    if (all.empty()) all.resize(to_index(n_sets * n * n));
    std::vector<float> own(to_index(last));
    for (int set = 0; set < n_sets; ++set)
        for (std::int64_t i = 0; i < rows; ++i) {
            int n_readers = 0;
            for (int h = 0; h < layout.n_heads(); ++h)
                if (layout.kv_head_from_head(layer, h) == layout.first_of_layer(layer) + set)
                    pool_more(pool, n_readers++ == 0, of_head(h) + i * last, last, own.data());
            finish_pool(pool, n_readers, last, own.data());
            float* pooled = all.data() + (set * n + first + i) * n;
            pool_more(Pool::mean, layer == 0, own.data(), last, pooled);
            if (is_last) finish_pool(Pool::mean, layout.n_layers(), last, pooled);
        }
    if (!is_last) return;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const KvHead& kv = layout.kv_head(g);
        sink_->scores({static_cast<int>(lane), kv.owner_layer, kv.index, first, rows, n_,
                       all.data() + (kv.index * n + first) * n});
    }
}

/// Does the same for the layers that read one owner's KV heads.
void Prefill::pool_borrowed(std::size_t lane, int layer, int first, int last,
                            const std::function<const float*(int head)>& of_head) {
    const KvLayout& layout = model_.layout();
    const ResolvedPolicy& policy = lanes_[lane].cache->policy();
    const int n_heads = layout.n_heads(), rows = last - first, owner = layout.owner_of_layer(layer);
    const int first_kv = layout.first_read(layer), n_kv_heads = layout.last_read(layer) - first_kv;
    const int last_layer = layout.last_reader(first_kv);
    const bool by_head = policy.scope == Scope::head;
    const int n_units = by_head ? n_kv_heads : 1;
    const std::int64_t n = n_;
    std::vector<float>& all = borrowed_scores_[lane];
    if (all.empty()) all.resize(to_index(n_units * n * n));
    for (int unit = 0; unit < n_units; ++unit)
        for (std::int64_t i = 0; i < rows; ++i) {
            float* pooled = all.data() + (unit * n + first + i) * n;
            int n_readers = 0;
            for (int h = 0; h < n_heads; ++h) {
                if (by_head && layout.kv_head_from_head(layer, h) != first_kv + unit) continue;
                pool_more(policy.pool, layer == owner && n_readers++ == 0, of_head(h) + i * last, last,
                          pooled);
            }
            if (layer == last_layer)
                finish_pool(policy.pool, (last_layer - owner + 1) * (n_heads / n_units), last, pooled);
        }
    if (layer < last_layer) return;
    for (int index = 0; index < n_kv_heads; ++index)
        sink_->scores({static_cast<int>(lane), owner, index, first, rows, n_,
                       all.data() + ((by_head ? index : 0) * n + first) * n});
}

}  // namespace keyhole::cuda
