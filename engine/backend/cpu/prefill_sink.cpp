// What the sink of a prompt gets: inputs of layers, and scores of tiles.
#include "engine/backend/cpu/prefill.h"

#include "engine/backend/common/shared.h"
#include "engine/base/index.h"

namespace keyhole::cpu {

/// Sends a layer's queries, keys and values to the sink.
void Prefill::emit_inputs(int layer, const LayerStore& store) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, n = n_;
    const Rotary* rotary = rotary_of(c, layer);
    const auto send = [&](InputKind kind, int head, const float* values, std::int64_t stride) {
        sink_->inputs({-1, kind, layer, head, n_, c.head_dim, values, stride, rotary});
    };
    for (int h = 0; h < c.n_heads; ++h) {
        send(InputKind::q, h, data(q_) + h * d, c.n_heads * d);
        send(InputKind::raw_q, h, data(raw_queries_) + h * n * d, d);
    }
    for (int g = 0; g < c.n_kv_heads && model_.layout().owns(layer); ++g) {
        send(InputKind::k, g, data(store.keys) + g * n * d, d);
        send(InputKind::raw_k, g, data(store.raw_keys) + g * n * d, d);
        send(InputKind::v, g, data(store.values) + g * n * d, d);
    }
}

/// Sends the pooled scores after each row of the tile to the sink. Scores pooled over all layers (scope
/// shared) go with the last layer.
void Prefill::emit_scores(int layer, int first_row, int last_row) {
    const KvLayout& layout = model_.layout();
    const std::int64_t rows = last_row - first_row, columns = last_row;
    const int first = layout.first_of_layer(layer), last = layout.first_of_layer(layer + 1);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        const ResolvedPolicy& policy = lanes_[lane].cache->policy();
        if (spans_layers(policy.scope)) {
            policy.scope == Scope::shared ? pool_shared(lane, layer, first_row, last_row)
                                          : pool_columns(lane, layer, first_row, last_row);
            continue;
        }
        if (!layout.owns(layer) || layout.last_reader(first) > layer) {
            pool_borrowed(lane, layer, first_row, last_row);
            continue;
        }
        pool_.parallel_for(last - first, [&](std::int64_t index, int worker) {
            Scratch& pooled = workers_[to_index(worker)].pooled;
            have_room(pooled, rows * columns);
            for (std::int64_t i = 0; i < rows; ++i) {
                int n_readers = 0;
                for (int h = 0; h < layout.n_heads(); ++h) {
                    if (policy.scope == Scope::head && layout.kv_head_from_head(layer, h) != first + index)
                        continue;
                    pool_more(policy.pool, n_readers++ == 0, tile_score(lane, layer, h, i), columns,
                              pooled.data() + i * columns);
                }
                finish_pool(policy.pool, n_readers, columns, pooled.data() + i * columns);
            }
            sink_->scores({static_cast<int>(lane), layer, static_cast<int>(index), first_row,
                           static_cast<int>(rows), static_cast<int>(columns), pooled.data()});
        });
    }
}

/// Adds a layer's tile to the scores of a lane that pools over all layers. After the last layer they are
/// complete and valid for every KV head.
void Prefill::pool_shared(std::size_t lane, int layer, int first_row, int last_row) {
    const KvLayout& layout = model_.layout();
    const Pool pool = lanes_[lane].cache->policy().pool;
    const int n_heads = layout.n_heads(), n_layers = layout.n_layers(), rows = last_row - first_row;
    const bool is_last = layer + 1 == n_layers;
    float* pooled = data(shared_scores_[lane]) + static_cast<std::int64_t>(first_row) * n_;
    pool_.parallel_for(rows, [&](std::int64_t i, int) {
        for (int h = 0; h < n_heads; ++h)
            pool_more(pool, layer == 0 && h == 0, tile_score(lane, layer, h, i), last_row, pooled + i * n_);
        if (is_last) finish_pool(pool, n_layers * n_heads, last_row, pooled + i * n_);
    });
    if (!is_last) return;
    pool_.parallel_for(layout.n_kv_heads(), [&](std::int64_t g, int) {
        const KvHead& kv = layout.kv_head(static_cast<int>(g));
        sink_->scores({static_cast<int>(lane), kv.owner_layer, kv.index, first_row, rows, n_, pooled});
    });
}

/// Does the same for a lane with a set for each KV head of all layers, whose layers all have their own.
void Prefill::pool_columns(std::size_t lane, int layer, int first_row, int last_row) {
    const KvLayout& layout = model_.layout();
    const Pool pool = lanes_[lane].cache->policy().pool;
    const int first = layout.first_of_layer(layer), n_sets = layout.first_of_layer(1),
              rows = last_row - first_row;
    const bool is_last = layer + 1 == layout.n_layers();
    const std::int64_t n = n_;
    pool_.parallel_for(std::int64_t{n_sets} * rows, [&](std::int64_t chunk, int worker) {
        const std::int64_t set = chunk / rows, i = chunk % rows;
        Scratch& own = workers_[to_index(worker)].pooled;
        have_room(own, last_row);
        int n_readers = 0;
        for (int h = 0; h < layout.n_heads(); ++h)
            if (layout.kv_head_from_head(layer, h) == first + set)
                pool_more(pool, n_readers++ == 0, tile_score(lane, layer, h, i), last_row, own.data());
        finish_pool(pool, n_readers, last_row, own.data());
        float* pooled = data(shared_scores_[lane]) + (set * n + first_row + i) * n;
        pool_more(Pool::mean, layer == 0, own.data(), last_row, pooled);
        if (is_last) finish_pool(Pool::mean, layout.n_layers(), last_row, pooled);
    });
    if (!is_last) return;
    pool_.parallel_for(layout.n_kv_heads(), [&](std::int64_t g, int) {
        const KvHead& kv = layout.kv_head(static_cast<int>(g));
        sink_->scores({static_cast<int>(lane), kv.owner_layer, kv.index, first_row, rows, n_,
                       data(shared_scores_[lane]) + (kv.index * n + first_row) * n});
    });
}

/// Does the same for the layers that read one owner's KV heads.
void Prefill::pool_borrowed(std::size_t lane, int layer, int first_row, int last_row) {
    const KvLayout& layout = model_.layout();
    const ResolvedPolicy& policy = lanes_[lane].cache->policy();
    const int n_heads = layout.n_heads(), rows = last_row - first_row, owner = layout.owner_of_layer(layer);
    const int first = layout.first_read(layer), n_kv_heads = layout.last_read(layer) - first;
    const bool is_last = layer == layout.last_reader(first);
    const int n_layers = layout.last_reader(first) - owner + 1;
    const std::int64_t n_units = policy.scope == Scope::head ? n_kv_heads : 1, n = n_;
    pool_.parallel_for(n_units * rows, [&](std::int64_t chunk, int) {
        const std::int64_t unit = chunk / rows, i = chunk % rows;
        float* pooled = data(borrowed_scores_[lane]) + (unit * n + first_row + i) * n;
        int n_readers = 0;
        for (int h = 0; h < n_heads; ++h) {
            if (policy.scope == Scope::head && layout.kv_head_from_head(layer, h) != first + unit) continue;
            pool_more(policy.pool, layer == owner && n_readers++ == 0, tile_score(lane, layer, h, i),
                      last_row, pooled);
        }
        if (is_last)
            finish_pool(policy.pool, n_layers * (n_heads / static_cast<int>(n_units)), last_row, pooled);
    });
    if (!is_last) return;
    pool_.parallel_for(n_kv_heads, [&](std::int64_t index, int) {
        const std::int64_t unit = policy.scope == Scope::head ? index : 0;
        sink_->scores({static_cast<int>(lane), owner, static_cast<int>(index), first_row, rows, n_,
                       data(borrowed_scores_[lane]) + (unit * n + first_row) * n});
    });
}

}  // namespace keyhole::cpu
