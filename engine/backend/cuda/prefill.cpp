#include "engine/backend/cuda/prefill.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/cuda/products.h"
#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace keyhole::cuda {

namespace {

// Large tiles mean few launches. The buffers of a tile take a share of the free memory; where the host gets
// every tile, they stay small.
constexpr std::int64_t kSmallTile = std::int64_t{16} << 20, kLargeTile = std::int64_t{512} << 20;  // floats
constexpr std::int64_t kShareOfFree = 8;
constexpr int kLeastTileRows = 16;
constexpr std::int64_t kLeastHiddenRows = 512;  // prompt rows whose hidden layer is in memory at once

}  // namespace

Prefill::Prefill(const OnDevice& of, std::shared_ptr<Executor> executor, const float* rotations,
                 const ProductOptions& products, std::span<const int> tokens,
                 std::span<const LanePrefill> lanes, PrefillSink* sink)
    : model_(*of.model),
      weights_(of.weights),
      layout_(of.layout),
      tables_(of.tables),
      executor_(std::move(executor)),
      rotations_(rotations),
      type_(of.type),
      narrow_(products.weights_precision && type_ != NumberType::f32 && executor_->has_products(type_)),
      widened_tile_(products.widened_tile),
      tokens_(tokens),
      lanes_(lanes),
      sink_(sink),
      sink_requests_(sink != nullptr ? sink->requested() : RowRequest{}),
      n_(static_cast<int>(tokens.size())),
      plan_(model_.layout(), lanes),
      kept_(lanes.size(), std::vector<std::vector<std::int32_t>>(to_index(model_.layout().n_kv_heads()))) {
    const ModelConfig& c = model_.config();
    const std::size_t n = tokens.size();
    for (const LanePrefill& lane : lanes_) add_query_sinks(lane.cache->policy(), n_, query_sinks_);
    for (const LanePrefill& lane : lanes_) {
        add_win_rows(lane.cache->policy(), n_, win_rows_);
        wants_win_logits_ |= lane.cache->policy().ranks_as_rkv_code;
    }
    const std::int64_t free_floats =
        executor_->memory().free_bytes / kShareOfFree / std::int64_t{sizeof(float)};
    hidden_rows_ = static_cast<int>(std::min<std::int64_t>(
        n_, std::max(kLeastHiddenRows, free_floats / (2 * std::int64_t{weights_.d_ff}))));
    const std::size_t tokens_at_once = to_index(hidden_rows_);
    const auto floats = [&](Buffer<float>& buffer, std::size_t size) { buffer.grow(executor_, size); };
    for (auto* buffer : {&x_, &normed_, &projected_, &fed_}) floats(*buffer, n * to_index(c.d_model));
    for (auto* buffer : {&q_, &attended_}) floats(*buffer, n * to_index(c.n_heads * c.head_dim));
    for (auto* buffer : {&k_, &v_}) floats(*buffer, n * to_index(c.n_kv_heads * c.head_dim));
    for (auto* buffer : {&gate_, &up_}) floats(*buffer, tokens_at_once * to_index(weights_.d_ff));
    if (narrow_)
        narrowed_.grow(
            executor_,
            std::max(n * to_index(std::max({c.d_model, c.n_heads * c.head_dim, weights_.embedding.cols})),
                     tokens_at_once * to_index(weights_.d_ff)));
    else
        floats(widened_, widened_size());
    size_tiles(free_floats);
    rules_.grow(executor_, to_index(plan_.n_streams) * to_index(c.n_heads));
    size_kept();
    shared_scores_.resize(lanes_.size());
    borrowed_scores_.resize(lanes_.size());
    size_rows();
}

/// True where the kernels of prompt_attention.h compute the prompt. Tiles remain
///   - for float weights: products on tensor cores would round them (quantised ones are widened to floats),
///   - where a device has no products of the weights' type,
///   - where the host gets the rows themselves,
///   - for scores that are rounded after every row, or made by a formula: they have an order that only rows
///     have,
///   - for head sizes that no product takes.
bool Prefill::can_fuse() const {
    const bool rounds = std::any_of(plan_.streams.begin(), plan_.streams.end(), [](const auto& of_head) {
        return std::any_of(of_head.begin(), of_head.end(), [](const ScoreStream& stream) {
            return stream.dtype != ScoreType::fp32 || stream.score;
        });
    });
    const int head_dim = model_.config().head_dim;
    return narrow_ && !sink_gets_tiles_ && !rounds && head_dim % 16 == 0 && head_dim <= kMaxHeadDim;
}

/// Takes the memory of what one lane keeps of one layer.
void Prefill::size_kept() {
    const ModelConfig& c = model_.config();
    const std::size_t n_kv_heads = to_index(c.n_kv_heads);
    device_kept_.grow(executor_, n_kv_heads * to_index(n_));
    device_offset_.grow(executor_, n_kv_heads + 1);
    device_streams_.grow(executor_, to_index(c.n_heads) * kScores);
    device_faults_.grow(executor_, n_kv_heads);
}

/// Takes the memory of attention. free_floats: what tiles may take of the free memory.
void Prefill::size_tiles(std::int64_t free_floats) {
    const ModelConfig& c = model_.config();
    const std::size_t n = to_index(n_);
    bool tempers = false, draws = false;
    for (const auto& of_head : plan_.streams)
        for (const ScoreStream& stream : of_head) {
            tempers = tempers || stream.tempered;
            draws = draws || (stream.tempered && stream.noise != NoiseKind::none);
        }
    bool needs_noise = sink_requests_.noise;
    for (const LanePrefill& lane : lanes_) {
        needs_noise = needs_noise || lane.requested.noise;
        needs_last_row_ = needs_last_row_ || lane.requested.attention || lane.requested.logits;
    }
    const bool keeps_noise = draws && needs_noise;
    needs_last_row_ = needs_last_row_ || keeps_noise;
    sink_gets_tiles_ =
        sink_requests_.attention || sink_requests_.logits || sink_requests_.noise || sink_requests_.scores;
    fused_ = can_fuse();
    if (fused_) {
        for (auto* buffer : {&narrow_keys_, &narrow_values_})
            buffer->grow(executor_, n * to_index(c.n_kv_heads * c.head_dim));
        sums_.grow(executor_, to_index(1 + plan_.n_streams) * to_index(c.n_heads) * n);
        tile_rows_ = std::max(needs_last_row_ ? 1 : 0, static_cast<int>(win_rows_.size()));
    } else {
        const std::int64_t n_buffers = 2 + (tempers ? 1 : 0) + (keeps_noise ? 1 : 0);
        const std::int64_t tile_floats =
            sink_gets_tiles_ ? kSmallTile : std::clamp(free_floats / n_buffers, kSmallTile, kLargeTile);
        tile_rows_ = static_cast<int>(std::clamp<std::int64_t>(tile_floats / (std::int64_t{c.n_heads} * n_),
                                                               std::min(kLeastTileRows, n_),
                                                               sink_gets_tiles_ ? std::min(n_, 256) : n_));
    }
    const std::size_t tile = to_index(c.n_heads) * to_index(tile_rows_) * n;
    for (auto* buffer : {&logits_, &probabilities_}) buffer->grow(executor_, tile);
    if (fused_ ? keeps_noise : tempers) tempered_.grow(executor_, tile);
    if (keeps_noise) noise_.grow(executor_, tile);
    if (sink_requests_.scores) score_rows_.grow(executor_, to_index(plan_.n_streams) * tile);
    // Cleared because they are downloaded whole, but noise is written only for visible columns and scores
    // only where a head has the stream.
    for (auto* buffer : {&noise_, &score_rows_})
        if (buffer->size() > 0) executor_->clear(buffer->data(), buffer->size_bytes());
    tile_.resize(sink_gets_tiles_ ? tile : to_index(c.n_heads) * n);
}

/// Sizes the lanes' outputs for the last prompt row: every KV head attends to all n tokens in it.
void Prefill::size_rows() {
    const std::vector<int> n_attended(to_index(model_.layout().n_kv_heads()), n_);
    for (const LanePrefill& lane : lanes_) {
        const bool hides = model_hides(model_.config(), n_ - 1);
        size_row(model_.layout(), n_attended, lane.cache->policy(), lane.requested, hides, *lane.out);
        RowValues& values = lane.out->values;
        if (!hides) values.hidden.clear();  // no policy hides anything from prompt rows
        for (std::size_t i = 0; i < values.hidden.size(); ++i) {
            const KvHead& kv = model_.layout().kv_head(static_cast<int>(i / to_index(n_)));
            const AttentionRule rule = attention_rule(model_.config(), kv.owner_layer, 0);
            values.hidden[i] = rule.hides(n_ - 1, static_cast<int>(i % to_index(n_))) ? 1 : 0;
        }
        // No shadow: full attention would be this row itself.
        begin_shadow(model_.layout(), nullptr, n_ - 1, false, *lane.out);
        for (std::size_t i = 0; i < values.positions.size(); ++i)
            values.positions[i] = static_cast<std::int32_t>(i % to_index(n_));
    }
}

void Prefill::run(const std::function<bool(double)>& progress) {
    const ModelConfig& c = model_.config();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        KH_ASSERT(cache(lane).largest_count() == 0);
        if (cache(lane).shadow() != nullptr)
            cache(lane).shadow()->reserve(n_ + rows_of_room(lanes_[lane].cache->policy()));
        const bool is_whole = cache(lane).policy().fair.empty();
        cache(lane).begin_kept_rows(is_whole ? std::max(n_ - cache(lane).window(), 0) : 0);
        cache(lane).kept_queries().begin(first_kept_query());
    }
    embed();
    // A lane with scope shared chooses one set over all layers, so it needs all layers before anything can be
    // freed.
    const bool keep_all = std::any_of(lanes_.begin(), lanes_.end(), [&](const LanePrefill& lane) {
        return chooses_over_layers(lane.cache->policy(), n_);
    });
    std::vector<LayerStore> stores;
    int first_stored = 0;
    for (int layer = 0; layer < c.n_layers; ++layer) {
        if (progress && !progress(static_cast<double>(layer) / c.n_layers))
            fail(ErrorCode::cancelled, "processing the prompt of {} tokens was stopped", n_);
        LayerStore& store = stores.emplace_back(take_store());
        project(layer, store);
        attend(layer, store, stores[to_index(model_.layout().owner_of_layer(layer) - first_stored)]);
        feed_forward(layer);
        executor_->wait();
        const bool read_on = layer + 1 < c.n_layers && !owns(layer + 1);  // the next layer borrows
        if (keep_all || read_on) continue;
        give_to_lanes(first_stored, stores);
        // Taken from the end: the owner's memory goes to the next owner.
        std::move(stores.rbegin(), stores.rend(), std::back_inserter(spare_));
        stores.clear();
        first_stored = layer + 1;
    }
    if (keep_all) give_to_lanes(0, stores);
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        for (int g = 0; g < model_.layout().n_kv_heads(); ++g)
            cache(lane).note_filled(g, std::move(kept_[lane][to_index(g)]));
        cache(lane).adopt();
        if (cache(lane).policy().alloc == Alloc::uniform) continue;
        std::vector<int> n_stored;  // each head gets the room that its share needs
        for (int g = 0; g < model_.layout().n_kv_heads(); ++g) n_stored.push_back(cache(lane).count(g));
        cache(lane).reserve(wanted_capacity(model_.layout(), cache(lane).policy(), n_stored, n_));
    }
    write_last_logits();
}

/// Writes the embeddings of all tokens, plus those of their positions where positions are learned.
void Prefill::embed() {
    const ModelConfig& c = model_.config();
    const Buffer<std::int32_t> tokens =
        uploaded(executor_, std::vector<std::int32_t>(tokens_.begin(), tokens_.end()));
    const bool projects = weights_.project_in.rows > 0;
    const int d_embed = weights_.embedding.cols;
    Buffer<float> embedded(executor_, projects ? to_index(n_) * to_index(d_embed) : 0);
    launch_rows<Embed>(*executor_, weights_.embedding.view(), n_,
                       static_cast<const std::int32_t*>(tokens.data()),
                       projects ? embedded.data() : x_.data(), d_embed);
    if (projects) multiply(weights_.project_in.view(), embedded.data(), n_, x_.data());
    KH_ASSERT(c.positions != PositionKind::learned || n_ <= c.n_ctx, "n={} n_ctx={}", n_, c.n_ctx);
    if (c.positions == PositionKind::learned)
        launch_rows<AddPositions>(*executor_, weights_.position_embedding.view(), n_,
                                  static_cast<const std::int32_t*>(nullptr), x_.data(), c.d_model,
                                  c.position_offset);
}

int Prefill::widened_rows(const MatrixView& w) const {
    const std::int64_t whole = w.is_laid ? kLaidRows : 1;
    return static_cast<int>(std::clamp<std::int64_t>(widened_tile_ / w.cols / whole * whole, whole,
                                                     std::max<std::int64_t>(w.rows, whole)));
}

/// Returns the floats that products need for widened weights: of whole plain matrices, of tiles of others.
std::size_t Prefill::widened_size() const {
    std::size_t most = 0;
    const auto visit = [&](const MatrixView& w) {
        if (w.rows == 0 || (type_ == NumberType::f32 && w.is_plain)) return;
        const int rows = w.is_plain ? w.rows : widened_rows(w);
        most = std::max(most, to_index(std::int64_t{rows} * w.cols));
    };
    visit(weights_.project_in.view());
    for (const auto& layer : weights_.layers)
        for (const Matrix* w : {&layer.q, &layer.k, &layer.v, &layer.o, &layer.gate, &layer.up, &layer.down})
            visit(w->view());
    return most;
}

/// y [n_rows, w.rows] = x [n_rows, w.cols] W^T, where W is widened a tile of rows at a time
void Prefill::multiply_stored(const MatrixView& w, const float* x, std::int64_t n_rows, float* y) {
    const int tile = widened_rows(w);
    for (int first = 0; first < w.rows; first += tile) {
        const MatrixView part = w.part(first, std::min(tile, w.rows - first));
        const std::int64_t n_packs = std::int64_t{part.rows} * part.cols / 8;
        executor_->launch(WidenStored{part.elements<Stored>(), widened_.data(), n_packs},
                          {blocks_for(n_packs)}, kThreads);
        const MatrixView wide{widened_.data(), nullptr, part.rows, part.cols};
        MatrixProduct product = product_of(wide, x, n_rows, y + first, NumberType::f32);
        product.c_stride = w.rows;
        executor_->multiply(product);
    }
}

/// y [n_rows, w.rows] = x [n_rows, w.cols] W^T + bias
void Prefill::multiply(const MatrixView& w, const float* x, std::int64_t n_rows, float* y) {
    if (!w.is_plain) {
        multiply_stored(w, x, n_rows, y);
    } else if (type_ == NumberType::f32) {
        executor_->multiply(product_of(w, x, n_rows, y, NumberType::f32));
    } else if (narrow_) {
        narrow(*executor_, type_, x, narrowed_.data(), n_rows * w.cols);
        executor_->multiply(product_of(w, narrowed_.data(), n_rows, y, type_));
    } else {
        const std::int64_t n = std::int64_t{w.rows} * w.cols;
        with_number(type_, [&]<class T>() {
            executor_->launch(Widen<T>{static_cast<const T*>(w.data), widened_.data(), n}, {blocks_for(n)},
                              kThreads);
        });
        const MatrixView wide{widened_.data(), w.bias, w.rows, w.cols};
        executor_->multiply(product_of(wide, x, n_rows, y, NumberType::f32));
    }
    const std::int64_t n = n_rows * w.rows;
    if (w.bias != nullptr) executor_->launch(AddBias{y, w.bias, n, w.rows}, {blocks_for(n)}, kThreads);
}

/// x_ <- x_ + y + z; writes the norm of it to out.
void Prefill::add_norm(const float* y, const float* z, const DeviceModel::Norm& norm, float* out) {
    add_norm_from(0, n_, y, z, norm, out);
}

/// Does the same for rows [first, first + n) of x_, y and z.
void Prefill::add_norm_from(std::int64_t first, int n, const float* y, const float* z,
                            const DeviceModel::Norm& norm, float* out) {
    const ModelConfig& c = model_.config();
    const std::int64_t at_row = first * c.d_model;
    const auto from = [&](const float* rows) { return rows != nullptr ? rows + at_row : nullptr; };
    executor_->launch(
        AddNorm{x_.data() + at_row, from(y), from(z),
                NormRule{norm.gain.data(), norm.bias.data(), c.norm_eps, c.norm == NormKind::layer ? 1 : 0},
                out, c.d_model},
        {n}, kThreads);
}

/// Returns the memory of an earlier layer, where the lanes have taken what they keep of it: allocating and
/// freeing wait for the device.
Prefill::LayerStore Prefill::take_store() {
    if (spare_.empty()) return {};
    LayerStore store = std::move(spare_.back());
    spare_.pop_back();
    return store;
}

/// Computes q, k and v of all tokens, finishes their heads, and stores K and V head by head.
void Prefill::project(int layer, LayerStore& store) {
    const ModelConfig& c = model_.config();
    const auto& w = weights_.layers[to_index(layer)];
    if (!c.post_norm) {
        const Pending pending = layer > 0 ? this->pending() : Pending{};
        add_norm(pending.y, pending.z, w.attention_norm, normed_.data());
    }
    multiply(w.q.view(), input(), n_, q_.data());
    std::vector<float> raw_q, raw_k;
    if (!query_sinks_.empty() || sink_requests_.inputs)
        raw_q = before_rotation(q_, c.n_heads, tables_.layers[to_index(layer)].q_norm);
    if (!query_sinks_.empty()) observe_queries(layer, raw_q, store);
    const int n_own = owns(layer) ? c.n_kv_heads : 0;
    const std::size_t kv = to_index(n_own) * to_index(n_) * to_index(c.head_dim);
    if (n_own > 0) {
        multiply(w.k.view(), input(), n_, k_.data());
        multiply(w.v.view(), input(), n_, v_.data());
        store.keys.grow(executor_, kv);
        store.values.grow(executor_, kv);
        if (c.borrows_unrotated) store.raw_keys.grow(executor_, kv);
        if (sink_requests_.inputs) raw_k = before_rotation(k_, n_own, tables_.layers[to_index(layer)].k_norm);
    }
    store.scores.grow(executor_, to_index(plan_.n_streams) * to_index(c.n_heads) * to_index(n_));
    executor_->clear(store.scores.data(), store.scores.size_bytes());
    const std::size_t n_win_floats = to_index(c.n_heads) * win_rows_.size() * to_index(n_);
    store.win_rows.grow(executor_, n_win_floats);
    if (wants_win_logits_) store.win_logits.grow(executor_, n_win_floats);
    executor_->launch(
        RotatePrompt{q_.data(), k_.data(), v_.data(), store.keys.data(), store.values.data(), rotations_,
                     weights_.head_rule(c, layer), n_, c.n_heads, n_own, 0, store.raw_keys.data()},
        {n_, c.n_heads + n_own}, 64);
    if (sink_requests_.inputs) emit_inputs(layer, raw_q, raw_k, store);
}

/// Returns a layer's queries or keys, [n, n_heads, head_dim], on the host: clipped and normed.
std::vector<float> Prefill::before_rotation(const Buffer<float>& from, int n_heads,
                                            const std::vector<float>& norm) const {
    const std::size_t d = to_index(model_.config().head_dim), n = to_index(n_) * to_index(n_heads);
    std::vector<float> heads(n * d);
    executor_->download(heads.data(), from.data(), heads.size() * sizeof(float));
    executor_->wait();
    for (std::size_t i = 0; i < n; ++i) tables_.norm_and_rotate(heads.data() + i * d, norm, nullptr, nullptr);
    return heads;
}

/// Takes what lanes want to know of a layer's queries before their rotation, on the host.
void Prefill::observe_queries(int layer, const std::vector<float>& queries, LayerStore& store) const {
    const ModelConfig& c = model_.config();
    const std::size_t d = to_index(c.head_dim), of_row = to_index(c.n_heads) * d;
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane)
        for (int i = first_kept_query(); i < n_; ++i)
            if (float* kept = cache(lane).kept_queries().at(i, layer * c.n_heads))  // of all its heads
                std::copy_n(queries.data() + to_index(i) * of_row, of_row, kept);
    store.queries.clear();
    for (const int sinks : query_sinks_)
        for (std::size_t h = 0; h < to_index(c.n_heads); ++h) {
            std::vector<const float*> rows;
            for (int i = sinks; i < n_; ++i) rows.push_back(queries.data() + to_index(i) * of_row + h * d);
            store.queries.push_back(query_moments(rows, c.head_dim, rotary_of(c, layer)));
        }
}

void Prefill::feed_forward(int layer) {
    const ModelConfig& c = model_.config();
    const auto& w = weights_.layers[to_index(layer)];
    multiply(w.o.view(), attended_.data(), n_, projected_.data());
    if (c.post_norm)
        add_norm(projected_.data(), nullptr, w.attention_norm, x_.data());
    else if (!c.shared_norm)
        add_norm(c.parallel ? nullptr : projected_.data(), nullptr, w.mlp_norm, normed_.data());
    const bool gated = w.gate.rows > 0;
    float* hidden = gated ? gate_.data() : up_.data();
    for (std::int64_t first = 0; first < n_; first += hidden_rows_) {
        const std::int64_t rows = std::min<std::int64_t>(hidden_rows_, n_ - first), n = rows * weights_.d_ff;
        const float* in = input() + first * c.d_model;
        if (gated) multiply(w.gate.view(), in, rows, gate_.data());
        multiply(w.up.view(), in, rows, up_.data());
        executor_->launch(activation_of(c, hidden, gated ? up_.data() : nullptr, n), {blocks_for(n)},
                          kThreads);
        multiply(w.down.view(), hidden, rows, fed_.data() + first * c.d_model);
    }
    if (c.post_norm) add_norm(fed_.data(), nullptr, w.mlp_norm, x_.data());
}

void Prefill::write_last_logits() {
    const ModelConfig& c = model_.config();
    const Pending pending = this->pending();
    add_norm_from(n_ - 1, 1, pending.y, pending.z, weights_.final_norm, normed_.data());
    const auto multiply_one = [&](const MatrixView& w, const float* x, float* y) {
        launch_products(*executor_, {&w, 1}, x, {&y, 1}, 1, {}, nullptr);
    };
    const float* last = normed_.data();
    const Buffer<float> narrow(executor_, to_index(weights_.project_out.rows));
    if (weights_.project_out.rows > 0) {
        multiply_one(weights_.project_out.view(), last, narrow.data());
        last = narrow.data();
    }
    const Buffer<float> logits(executor_, to_index(c.n_vocab));
    multiply_one(weights_.output(), last, logits.data());
    std::vector<float> host(to_index(c.n_vocab));
    executor_->download(host.data(), logits.data(), logits.size_bytes());
    executor_->wait();
    for (const LanePrefill& lane : lanes_) lane.out->next_logits = host;
}

void CudaBackend::prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                          const std::function<bool(double)>& progress) {
    try {
        const OnDevice& of = static_cast<Cache&>(*lanes.front().cache).of();
        KH_ASSERT(std::all_of(lanes.begin(), lanes.end(), [&](const LanePrefill& lane) {
            return &static_cast<Cache&>(*lane.cache).of() == &of;
        }));
        const float* rotations = rotations_.rows(executor_, static_cast<int>(tokens.size()) - 1);
        Prefill(of, executor_, rotations, products_, tokens, lanes, sink).run(progress);
        for (const LanePrefill& lane : lanes) pack_row(*this, lane.requested, *lane.out);
    } catch (...) {
        for (const LanePrefill& lane : lanes) try {
                static_cast<Cache&>(*lane.cache).clear();
            } catch (const Error&) {  // the device failed; the first error is the one to report
            }
        throw;
    }
}

}  // namespace keyhole::cuda
