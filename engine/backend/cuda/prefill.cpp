#include "engine/backend/cuda/prefill.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/backend/common/row_scores.h"
#include "engine/backend/cuda/kernels/field.h"
#include "engine/backend/cuda/products.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/kv_default.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <type_traits>
#include <utility>

namespace keyhole::cuda {
namespace {

// Large tiles mean few launches. The buffers of a tile take a share of the free memory; where the host gets
// every tile, they stay small.
constexpr std::int64_t kSmallTile = std::int64_t{16} << 20, kLargeTile = std::int64_t{512} << 20;  // floats
constexpr std::int64_t kShareOfFree = 8;
constexpr int kLeastTileRows = 16;
constexpr std::int64_t kLeastHiddenRows = 512;  // prompt rows whose hidden layer is in memory at once

/// Returns whole warps, no more than a row of so many columns needs.
int threads_for_row(int n_columns) {
    return std::min(kThreads, (n_columns + 31) / 32 * 32);
}

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
    if (!query_sinks_.empty()) observe_queries(layer, store);
    const int n_own = owns(layer) ? c.n_kv_heads : 0;
    const std::size_t kv = to_index(n_own) * to_index(n_) * to_index(c.head_dim);
    if (n_own > 0) {
        multiply(w.k.view(), input(), n_, k_.data());
        multiply(w.v.view(), input(), n_, v_.data());
        store.keys.grow(executor_, kv);
        store.values.grow(executor_, kv);
        if (c.borrows_unrotated) store.raw_keys.grow(executor_, kv);
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
}

/// Takes what lanes want to know of a layer's queries before their rotation, on the host.
void Prefill::observe_queries(int layer, LayerStore& store) const {
    const ModelConfig& c = model_.config();
    const ModelTables::Layer& t = tables_.layers[to_index(layer)];
    const std::size_t d = to_index(c.head_dim), of_row = to_index(c.n_heads) * d;
    std::vector<float> queries(to_index(n_) * of_row);
    executor_->download(queries.data(), q_.data(), queries.size() * sizeof(float));
    executor_->wait();
    for (std::size_t i = 0; i < to_index(n_); ++i) {
        tables_.normalize_width(t.q_width_norm, queries.data() + i * of_row);
        for (std::size_t h = 0; h < to_index(c.n_heads); ++h)
            tables_.norm_and_rotate(queries.data() + i * of_row + h * d, t.q_norm, nullptr, nullptr);
    }
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

/// Returns the types, without numbers yet, of the layer's streams whose scores do what is asked.
std::map<KvType, const float*> Prefill::types_of_streams(int layer,
                                                         bool (*asked)(const FormulaRef& score)) const {
    const int n_heads = model_.config().n_heads;
    std::map<KvType, const float*> found;
    for (int h = 0; h < n_heads; ++h)
        for (const ScoreStream& stream : plan_.streams[to_index(layer * n_heads + h)])
            if (asked(stream.score)) found[kv_type_for(stream.kv_dtype, model_)] = nullptr;
    return found;
}

/// Uploads the lengths of the layer's keys and, behind them, values as the types store them whose lengths
/// its streams name. Returns where those of a type begin.
std::map<KvType, const float*> Prefill::upload_lengths(int layer, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    std::map<KvType, const float*> found = types_of_streams(layer, names_lengths);
    if (found.empty()) return found;
    const std::size_t n_rows = to_index(c.n_kv_heads) * to_index(n_);
    std::vector<float> rows(n_rows * to_index(c.head_dim)), lengths;
    for (const Buffer<float>* of : {&owner.keys, &owner.values}) {
        executor_->download(rows.data(), of->data(), rows.size() * sizeof(float));
        executor_->wait();
        lengths.resize(2 * found.size() * n_rows);
        std::size_t at = of == &owner.keys ? 0 : n_rows;
        for (const auto& [type, where] : found) {
            std::ranges::copy(lengths_as(type, rows.data(), std::ssize(rows) / c.head_dim, c.head_dim),
                              lengths.begin() + static_cast<std::ptrdiff_t>(at));
            at += 2 * n_rows;
        }
    }
    lengths_.grow(executor_, lengths.size());
    executor_->upload(lengths_.data(), lengths.data(), lengths.size() * sizeof(float));
    executor_->wait();
    const float* next = lengths_.data();
    for (auto& [type, where] : found) where = std::exchange(next, next + 2 * n_rows);
    return found;
}

/// Computes how far the layer's values reach, as the types store them whose reach its streams name. Returns
/// where the numbers of a type begin.
std::map<KvType, const float*> Prefill::compute_reach(int layer, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    std::map<KvType, const float*> found = types_of_streams(layer, names_reach);
    if (found.empty()) return found;
    const int first = model_.layout().first_read(layer);
    const std::int64_t n_rows = std::int64_t{c.n_kv_heads} * n_, of_head = std::int64_t{n_} * c.head_dim;
    std::vector<float> rows(to_index(n_rows * c.head_dim));
    executor_->download(rows.data(), owner.values.data(), rows.size() * sizeof(float));
    executor_->wait();
    const std::vector<float> due(to_index(n_rows), kReachDue);
    const Buffer<float> stored(executor_, rows.size());
    const Buffer<DeviceHead<float>> device_heads(executor_, to_index(first + c.n_kv_heads));
    const Buffer<LaneView<float>> lanes(executor_, 1);
    LaneView<float> lane{};
    lane.heads = device_heads.data();
    executor_->upload(lanes.data(), &lane, sizeof(lane));
    for (auto& [type, where] : found) {
        const std::vector<float> rounded = rounded_as(type, rows.data(), n_rows, c.head_dim);
        Buffer<float>& reach = reach_[type];
        reach.grow(executor_, due.size());
        std::vector<DeviceHead<float>> heads(device_heads.size());
        for (int g = 0; g < c.n_kv_heads; ++g)
            heads[to_index(first + g)] = {nullptr, stored.data() + g * of_head,        nullptr, nullptr, n_,
                                          n_,      reach.data() + std::int64_t{g} * n_};
        executor_->upload(device_heads.data(), heads.data(), device_heads.size_bytes());
        executor_->upload(reach.data(), due.data(), due.size() * sizeof(float));
        executor_->upload(stored.data(), rounded.data(), stored.size_bytes());
        executor_->launch(
            OutputReach<float>{lanes.data(), layout_.table(), weights_.outputs.data(), nullptr,
                               static_cast<std::int32_t>(heads.size()), n_, c.head_dim, c.n_heads, c.d_model,
                               first, 1},
            {c.n_kv_heads, 1, (n_ + OutputReach<float>::kTokens - 1) / OutputReach<float>::kTokens},
            kThreads);
        executor_->wait();  // until what was uploaded may go
        where = reach.data();
    }
    return found;
}

void Prefill::upload_rules(int layer, const LayerStore& owner) {
    const std::map<KvType, const float*> lengths = upload_lengths(layer, owner),
                                         reach = compute_reach(layer, owner);
    const std::size_t n_lengths = to_index(model_.config().n_kv_heads) * to_index(n_);
    const int n_heads = model_.config().n_heads;
    std::vector<StreamRule> rules(to_index(plan_.n_streams * n_heads));
    std::vector<FormulaTable> formulas;
    for (int h = 0; h < n_heads; ++h)
        for (const ScoreStream& stream : plan_.streams[to_index(layer * n_heads + h)])
            if (stream.score) formulas.push_back(*stream.score);
    formulas_.grow(executor_, formulas.size());
    if (!formulas.empty())
        executor_->upload(formulas_.data(), formulas.data(), formulas.size() * sizeof(FormulaTable));
    const FormulaTable* next = formulas_.data();
    for (int h = 0; h < n_heads; ++h) {
        const auto& of_head = plan_.streams[to_index(layer * n_heads + h)];
        for (std::size_t s = 0; s < of_head.size(); ++s) {
            const ScoreStream& stream = of_head[s];
            rules[s * to_index(n_heads) + to_index(h)] = {stream.seed,
                                                          stream.alpha,
                                                          stream.tau,
                                                          stream.gain,
                                                          1,
                                                          stream.tempered ? 1 : 0,
                                                          static_cast<std::int32_t>(stream.dtype),
                                                          static_cast<std::int32_t>(stream.noise),
                                                          static_cast<std::int32_t>(stream.draw),
                                                          stream.budget,
                                                          stream.window,
                                                          stream.mix,
                                                          stream.score ? next++ : nullptr};
            StreamRule& rule = rules[s * to_index(n_heads) + to_index(h)];
            if (names_reach(stream.score)) rule.reach = reach.at(kv_type_for(stream.kv_dtype, model_));
            if (!names_lengths(stream.score)) continue;
            rule.key_lengths = lengths.at(kv_type_for(stream.kv_dtype, model_));
            rule.value_lengths = rule.key_lengths + n_lengths;
        }
    }
    executor_->upload(rules_.data(), rules.data(), rules.size() * sizeof(StreamRule));
    executor_->wait();
}

void Prefill::attend(int layer, const LayerStore& own, const LayerStore& owner) {
    upload_rules(layer, owner);
    if (fused_)
        attend_fused(layer, own, owner);
    else
        attend_tiles(layer, own, owner);
}

/// Attends all rows and sums every score stream. What lanes want of the last row comes from a tile of it.
void Prefill::attend_fused(int layer, const LayerStore& own, const LayerStore& owner) {
    const ModelConfig& c = model_.config();
    const std::int64_t of_q = std::int64_t{n_} * c.n_heads * c.head_dim,
                       of_kv = std::int64_t{n_} * c.n_kv_heads * c.head_dim;
    narrow(*executor_, type_, q_.data(), narrowed_.data(), of_q);  // no product needs it meanwhile
    narrow(*executor_, type_, keys_of(layer, owner), narrow_keys_.data(), of_kv);
    narrow(*executor_, type_, owner.values.data(), narrow_values_.data(), of_kv);
    if (type_ == NumberType::f16)
        launch_fused<Fp16>(layer, own);
    else
        launch_fused<Bf16>(layer, own);
    for (const auto& [first, last] : win_rows_of(0, n_)) {
        weigh_tile(layer, owner, first, last);
        keep_rows(own, first, last);
    }
    if (!needs_last_row_) return;
    weigh_tile(layer, owner, n_ - 1, n_);
    for (int stream = 0; noise_.size() > 0 && stream < plan_.n_streams; ++stream)
        temper_tile(layer, stream, n_ - 1, n_);
}

/// T: the type of the narrowed queries, keys and values.
template <class T>
void Prefill::launch_fused(int layer, const LayerStore& own) {
    const ModelConfig& c = model_.config();
    const AttentionRule rule = attention_rule(c, layer, 0);
    PromptHeads<T> heads{};
    heads.q = reinterpret_cast<const T*>(narrowed_.data());
    heads.k = reinterpret_cast<const T*>(narrow_keys_.data());
    heads.v = reinterpret_cast<const T*>(narrow_values_.data());
    heads.slopes = weights_.slopes.data();
    heads.scale = rule.scale;
    heads.n = n_;
    heads.n_heads = c.n_heads;
    heads.head_dim = c.head_dim;
    heads.group = c.n_heads / c.n_kv_heads;
    heads.window = rule.window;
    heads.layer = layer;
    with_prompt_dim(c.head_dim, [&]<int kDim>() {
        using Sums = PromptSums<T, kDim>;
        using Attend = PromptAttend<T, kDim>;
        using Columns = PromptColumns<T, kDim>;
        const auto blocks = [&](int of_block) { return (n_ + of_block - 1) / of_block; };
        executor_->launch(Sums{heads, rules_.data(), sums_.data()},
                          {blocks(Sums::kRows), c.n_heads, 1 + plan_.n_streams}, kMaxThreads);
        executor_->launch(Attend{heads, sums_.data(), attended_.data()}, {blocks(Attend::kRows), c.n_heads},
                          kMaxThreads);
        executor_->launch(Columns{heads, rules_.data(), sums_.data(), own.scores.data()},
                          {blocks(Columns::kColumns), c.n_heads, plan_.n_streams}, kMaxThreads);
    });
}

void Prefill::attend_tiles(int layer, const LayerStore& own, const LayerStore& owner) {
    for (int first = 0; first < n_; first += tile_rows_) {
        const int last = std::min(n_, first + tile_rows_);
        weigh_tile(layer, owner, first, last);
        keep_rows(own, first, last);
        attend_tile(owner, first, last);
        for (int stream = 0; stream < plan_.n_streams; ++stream) {
            temper_tile(layer, stream, first, last);
            fold_tile(layer, own, stream, first, last);
        }
        if (sink_requests_.scores) emit_scores(layer, first, last);
    }
}

/// Computes logits and probabilities [heads, rows, last] of rows [first, last) of all heads, and sends them
/// to those who want them.
void Prefill::weigh_tile(int layer, const LayerStore& owner, int first, int last) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, rows = last - first, columns = last, group = c.n_heads / c.n_kv_heads;
    const AttentionRule rule = attention_rule(c, layer, 0);
    for (std::int64_t j = 0; j < group; ++j) {  // one query head of every KV head
        MatrixProduct p;
        p.m = rows;
        p.n_batch = c.n_kv_heads;
        p.a = q_.data() + first * c.n_heads * d + j * d;
        p.b = keys_of(layer, owner);
        p.c = logits_.data() + j * rows * columns;
        p.n = columns;
        p.k = d;
        p.a_stride = c.n_heads * d;
        p.b_stride = d;
        p.c_stride = columns;
        p.a_batch = group * d;
        p.b_batch = n_ * d;
        p.c_batch = group * rows * columns;
        p.b_transposed = 1;
        p.alpha = rule.scale;
        executor_->multiply(p);
    }
    executor_->launch(
        SoftmaxTile{logits_.data(), probabilities_.data(), nullptr, nullptr, weights_.slopes.data(), first,
                    static_cast<std::int32_t>(rows), last, layer, rule.window},
        {static_cast<int>(rows), c.n_heads}, threads_for_row(last));
    emit_attention(layer, first, last);
}

/// Writes the output of the tile's rows to attended_.
void Prefill::attend_tile(const LayerStore& owner, int first, int last) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim, rows = last - first, columns = last, group = c.n_heads / c.n_kv_heads;
    for (std::int64_t j = 0; j < group; ++j) {
        MatrixProduct p;
        p.m = rows;
        p.n_batch = c.n_kv_heads;
        p.a = probabilities_.data() + j * rows * columns;
        p.b = owner.values.data();
        p.c = attended_.data() + first * c.n_heads * d + j * d;
        p.n = d;
        p.k = columns;
        p.a_stride = columns;
        p.b_stride = d;
        p.c_stride = c.n_heads * d;
        p.a_batch = group * rows * columns;
        p.b_batch = n_ * d;
        p.c_batch = group * d;
        executor_->multiply(p);
    }
}

/// Computes the tempered probabilities and the noise of a stream where some head tempers.
void Prefill::temper_tile(int layer, int stream, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    bool tempers = false;
    for (int h = 0; h < n_heads; ++h) {
        const auto& of_head = plan_.streams[to_index(layer * n_heads + h)];
        tempers = tempers || (to_index(stream) < of_head.size() && of_head[to_index(stream)].tempered);
    }
    if (!tempers) return;
    const StreamRule* rules = rules_.data() + std::int64_t{stream} * n_heads;
    executor_->launch(SoftmaxTile{logits_.data(), tempered_.data(), noise_.data(), rules, nullptr, first,
                                  rows, last, layer, 0},
                      {rows, n_heads}, threads_for_row(last));
    emit_noise(layer, stream, first, last);
}

/// Returns those of the rows [first, last) that lanes want for `win`, as [from, to) without gaps.
std::vector<std::pair<int, int>> Prefill::win_rows_of(int first, int last) const {
    std::vector<std::pair<int, int>> parts;
    for (const int row : win_rows_) {
        if (row < first || row >= last) continue;
        if (parts.empty() || parts.back().second != row) parts.emplace_back(row, row);
        ++parts.back().second;
    }
    return parts;
}

/// Returns the place of a row in win_rows_.
int Prefill::place_of_win_row(int row) const {
    return static_cast<int>(std::lower_bound(win_rows_.begin(), win_rows_.end(), row) - win_rows_.begin());
}

/// Keeps those of the tile's rows that lanes want for `win`.
void Prefill::keep_rows(const LayerStore& store, int first, int last) {
    const auto keep = [&](const Buffer<float>& tile, const Buffer<float>& rows, int from, int to) {
        executor_->launch(
            KeepRows{tile.data(), rows.data(), first, last - first, last, n_,
                     static_cast<std::int32_t>(win_rows_.size()), from - first, place_of_win_row(from), 0},
            {to - from, model_.config().n_heads}, kThreads);
    };
    for (const auto& [from, to] : win_rows_of(first, last)) {
        keep(probabilities_, store.win_rows, from, to);
        if (wants_win_logits_) keep(logits_, store.win_logits, from, to);
    }
}

/// Folds the tile's rows, in order, into one score stream of every head that has it.
void Prefill::fold_tile(int layer, const LayerStore& store, int stream, int first, int last) {
    const int n_heads = model_.config().n_heads, rows = last - first;
    FoldTile fold{};
    fold.p = probabilities_.data();
    fold.tempered = tempered_.data();
    fold.streams = rules_.data() + std::int64_t{stream} * n_heads;
    fold.score = store.scores.data() + std::int64_t{stream} * n_heads * n_;
    if (sink_requests_.scores) fold.rows = score_rows_.data() + std::int64_t{stream} * n_heads * rows * last;
    fold.first_row = first;
    fold.n_rows = rows;
    fold.n_columns = last;
    fold.n = n_;
    executor_->launch(fold, {blocks_for(last), n_heads}, kThreads);
    if (formulas_.size() > 0)
        executor_->launch(
            FoldTileByFormula{fold, logits_.data(), layer, n_heads / model_.config().n_kv_heads},
            {blocks_for(last), n_heads}, kThreads);
}

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

/// Sends the pooled scores after each row of the tile to the sink. Scores pooled over all layers (scope
/// shared) go with the last layer.
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
        if (policy.scope == Scope::shared) {
            pool_shared(lane, layer, first, last, of_head);
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

/// Each lane chooses and copies what it keeps of layers [first_layer, first_layer + stores.size()).
void Prefill::give_to_lanes(int first_layer, std::span<const LayerStore> stores) {
    const KvLayout& layout = model_.layout();
    const int first = layout.first_of_layer(first_layer),
              last = layout.first_of_layer(first_layer + static_cast<int>(stores.size()));
    std::vector<LayerScores> scores;
    for (const LayerStore& store : stores) {
        LayerScores& of = scores.emplace_back();
        const auto download = [&](std::vector<float>& to, const Buffer<float>& from) {
            to.resize(from.size());
            if (!to.empty()) executor_->download(to.data(), from.data(), from.size_bytes());
        };
        download(of.scores, store.scores);
        download(of.win_rows, store.win_rows);
        download(of.win_logits, store.win_logits);
    }
    executor_->wait();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        const ResolvedPolicy& policy = lanes_[lane].cache->policy();
        if (cache(lane).has_no_room()) {
            std::vector<int> n_stored;
            for (int g = 0; g < layout.n_kv_heads(); ++g) {
                const ResolvedPolicy& own = unit_policy(layout, policy, g);
                const bool is_known = own.alloc == Alloc::uniform && !own.has_threshold();
                n_stored.push_back(own.exceeded(n_, n_ - 1) && is_known ? own.stored : n_);
            }
            cache(lane).reserve(wanted_capacity(layout, policy, n_stored, n_));
        }
        std::vector<Ranked> ranked;
        // One set over all layers matters only where something is evicted.
        const bool whole = policy.at(0, 0).exceeded(n_, n_ - 1);
        for (const Unit& unit :
             units_of(layout, policy.scope == Scope::shared && !whole ? Scope::head : policy.scope))
            if (unit.first < last && unit.last > first)
                ranked.push_back(rank(lane, unit, first_layer, stores, scores));
        if (policy.alloc != Alloc::uniform) {
            const std::vector<std::int32_t> positions = prompt_positions(n_);
            std::vector<SharedChoice> choices;
            for (Ranked& r : ranked)
                choices.push_back({lane, r.unit, positions, r.pooled, r.ties, r.guarded, &r.stored});
            share_prompt_budgets(
                layout, n_, [&](std::size_t) -> const ResolvedPolicy& { return policy; }, choices);
        }
        for (const Ranked& r : ranked) choose(lane, r);
        for (std::size_t i = 0; i < stores.size(); ++i) {
            keep(lane, first_layer + static_cast<int>(i), stores[i]);
            if (cache(lane).shadow() != nullptr && owns(first_layer + static_cast<int>(i)))
                give_to_shadow(lane, first_layer + static_cast<int>(i), stores[i]);
        }
    }
}

/// Evaluates the policy's formulas for a unit: `pooled` becomes what is ranked, `guarded` what cannot leave.
/// Returns what orders tokens of equal rank.
std::vector<float> Prefill::rank_by_formula(std::size_t lane, const Unit& unit, const ResolvedPolicy& policy,
                                            int first_layer, std::span<const LayerStore> stores,
                                            std::span<const LayerScores> scores,
                                            const std::vector<std::int32_t>& positions,
                                            std::vector<float>& pooled, std::vector<std::int32_t>& guarded) {
    const int d = model_.config().head_dim;
    const std::size_t of_head = to_index(n_) * to_index(d);
    const auto rounded = [&](const Buffer<float>& from, const KvHead& kv) {
        std::vector<float> rows(of_head);
        executor_->download(rows.data(), from.data() + to_index(kv.index) * of_head, of_head * sizeof(float));
        executor_->wait();
        with_number(cache(lane).kv_type(), [&]<class K>() {
            for (float& x : rows) {
                K stored;
                narrow(x, stored);
                x = widen(stored);
            }
        });
        return rows;
    };
    std::vector<ChoiceHead> heads;
    for (int g = unit.first; g < unit.last; ++g) {
        const KvHead& kv = model_.layout().kv_head(g);
        const LayerStore& store = stores[to_index(kv.owner_layer - first_layer)];
        ChoiceHead& head = heads.emplace_back(ChoiceHead{positions});
        if (reads_keys(policy)) head.keys = rounded(store.keys, kv);
        if (reads_values(policy)) head.values = rounded(store.values, kv);
        for (const HeadRef& reader : kv.readers) {
            if (!reads_head_scores(policy)) break;
            const auto own = score_row(scores[to_index(reader.layer - first_layer)].scores,
                                       plan_.own(lanes_[lane], lane, reader.layer, reader.head), reader.head);
            head.scores.emplace_back(own, own + n_);
        }
    }
    std::vector<float> win;
    const auto win_row = [&](const HeadRef& reader, int row, std::vector<float> LayerScores::*rows) {
        const std::size_t at = to_index(reader.head) * win_rows_.size() + to_index(place_of_win_row(row));
        return (scores[to_index(reader.layer - first_layer)].*rows).data() + at * to_index(n_);
    };
    if (policy.names(Quantity::win) && policy.ranks_as_rkv_code) {  // one KV head
        const auto& readers = model_.layout().kv_head(unit.first).readers;
        const int n_rows = std::min(policy.window, n_);
        win = win_of_logits(positions, policy.newest, n_ - 1, n_rows, static_cast<int>(readers.size()),
                            [&](int reader, int r, std::size_t i) {
                                return win_row(readers[to_index(reader)], n_ - n_rows + r,
                                               &LayerScores::win_logits)[i];
                            });
    } else if (policy.names(Quantity::win)) {
        win = pool_last_rows(model_.layout(), unit, policy, n_, [&](const HeadRef& reader, int row) {
            return win_row(reader, row, &LayerScores::win_rows);
        });
    }
    const auto queries = queries_of_unit(model_.layout(), unit, policy, query_sinks_, [&](int layer) {
        return std::span<const QueryMoments>(stores[to_index(layer - first_layer)].queries);
    });
    return choose_on_host(
        {model_.layout(), unit, policy, n_ - 1, d, cache(lane).future().get(), heads, positions, win,
         cache(lane).repeats().get(), cache(lane).of().model.get(), queries},
        pooled, guarded);
}

/// Ranks the tokens of a unit on the host.
Prefill::Ranked Prefill::rank(std::size_t lane, const Unit& unit, int first_layer,
                              std::span<const LayerStore> stores, std::span<const LayerScores> scores) {
    const KvLayout& layout = model_.layout();
    const ResolvedPolicy& policy = unit_policy(layout, lanes_[lane].cache->policy(), unit.first);
    Ranked ranked{unit};
    ranked.stored = policy.stored;
    std::vector<float>& pooled = ranked.pooled;
    pooled.resize(to_index(n_));
    const std::vector<std::int32_t> positions = prompt_positions(n_);
    int n_readers = 0;
    for_readers(layout, unit.first, unit.last, [&](int, const HeadRef& reader) {
        pool_more(policy.pool, n_readers++ == 0,
                  score_row(scores[to_index(reader.layer - first_layer)].scores,
                            plan_.own(lanes_[lane], lane, reader.layer, reader.head), reader.head),
                  n_, pooled.data());
    });
    finish_pool(policy.pool, n_readers, n_, pooled.data());
    if (ranks_prompt(policy, n_, !lanes_[lane].out->values.scores.empty()))
        ranked.ties = rank_by_formula(lane, unit, policy, first_layer, stores, scores, positions, pooled,
                                      ranked.guarded);
    else if (policy.choose)
        std::fill(pooled.begin(), pooled.end(), std::numeric_limits<float>::quiet_NaN());
    return ranked;
}

/// Chooses what a unit keeps; writes it to kept_ and to the lane's output.
void Prefill::choose(std::size_t lane, const Ranked& ranked) {
    const Unit& unit = ranked.unit;
    const std::vector<float>& pooled = ranked.pooled;
    std::vector<int> victims;
    const float threshold =
        prompt_victims(unit_policy(model_.layout(), lanes_[lane].cache->policy(), unit.first), n_,
                       ranked.stored, pooled, ranked.ties, ranked.guarded, victims);

    RowOutput& out = *lanes_[lane].out;
    for (int g = unit.first; g < unit.last; ++g) {
        std::size_t victim = 0;
        for (std::int32_t p = 0; p < n_; ++p) {
            if (victim < victims.size() && victims[victim] == p) {
                out.evictions.push_back({g, p, n_ - 1});
                ++victim;
            } else {
                kept_[lane][to_index(g)].push_back(p);
            }
        }
        if (out.values.scores.empty()) continue;
        std::copy_n(pooled.data(), n_, out.values.scores.data() + std::int64_t{g} * n_);
        out.values.threshold[to_index(g)] = threshold;
    }
}

void Prefill::keep(std::size_t lane, int layer, const LayerStore& store) {
    const ModelConfig& c = model_.config();
    const int first = model_.layout().first_read(layer);
    std::vector<std::int32_t> kept, offset = {0}, streams;
    int most = 0;
    for (int g = first; g < first + c.n_kv_heads; ++g) {
        const std::vector<std::int32_t>& of_head = kept_[lane][to_index(g)];
        KH_ASSERT(static_cast<int>(of_head.size()) <= cache(lane).capacity(g));
        kept.insert(kept.end(), of_head.begin(), of_head.end());
        offset.push_back(static_cast<std::int32_t>(kept.size()));
        most = std::max(most, static_cast<int>(of_head.size()));
    }
    for (int h = 0; h < c.n_heads; ++h)
        for (int a = 0; a < kScores; ++a) streams.push_back(plan_.of(lane, layer, h, a));
    const auto upload = [&](const Buffer<std::int32_t>& to, const std::vector<std::int32_t>& from) {
        KH_ASSERT(from.size() <= to.size());
        executor_->upload(to.data(), from.data(), from.size() * sizeof(from[0]));
    };
    upload(device_kept_, kept);
    upload(device_offset_, offset);
    upload(device_streams_, streams);
    executor_->clear(device_faults_.data(), device_faults_.size_bytes());
    std::vector<std::uint8_t> faults(to_index(c.n_kv_heads));
    with_number(cache(lane).kv_type(), [&]<class K>() {
        KeepPrompt<K> kernel{};
        // Those of an earlier layer may lie in the memory of a layer that borrows.
        kernel.keys = owns(layer) ? store.keys.data() : nullptr;
        kernel.values = owns(layer) ? store.values.data() : nullptr;
        kernel.score = store.scores.data();
        kernel.streams = device_streams_.data();
        kernel.heads = reinterpret_cast<const DeviceHead<K>*>(cache(lane).device_heads()) + first;
        kernel.scores = cache(lane).device_scores() + std::int64_t{layer} * c.n_heads;
        kernel.kept = device_kept_.data();
        kernel.offset = device_offset_.data();
        kernel.n = n_;
        kernel.head_dim = c.head_dim;
        kernel.n_heads = c.n_heads;
        kernel.group = c.n_heads / c.n_kv_heads;
        kernel.faults = device_faults_.data();
        kernel.win_rows = (cache(lane).policy().ranks_as_rkv_code ? store.win_logits : store.win_rows).data();
        kernel.n_win_rows = static_cast<std::int32_t>(win_rows_.size());
        kernel.spans = kept_spans(cache(lane).policy(), n_ - 1);
        for (int s = 0; s < KeptSpans::kMost; ++s)
            kernel.spans.at[s] = place_of_win_row(kernel.spans.last[s]);
        executor_->launch(kernel, {c.n_kv_heads, (most + kernel.kSlots - 1) / kernel.kSlots}, kThreads);
    });
    executor_->download(faults.data(), device_faults_.data(), faults.size());
    executor_->wait();
    if (std::find(faults.begin(), faults.end(), 1) != faults.end()) find_faults(lane, layer, store, faults);
}

/// Notes in the lane's cache which of the tokens that it keeps of a layer are not finite as they are stored.
/// faults: 1 for KV heads that have such a token.
void Prefill::find_faults(std::size_t lane, int layer, const LayerStore& store,
                          const std::vector<std::uint8_t>& faults) {
    const std::size_t d = to_index(model_.config().head_dim), of_head = to_index(n_) * d;
    const auto look = [&]<class K>(const std::vector<float>& from, int g, std::size_t index, bool is_key) {
        for (const std::int32_t p : kept_[lane][to_index(g)])
            for (std::size_t i = 0; i < d; ++i) {
                const float value = from[index * of_head + to_index(p) * d + i];
                K stored;
                narrow(value, stored);
                if (!is_finite(widen(stored))) cache(lane).note_fault(g, p, is_key, is_finite(value));
            }
    };
    std::vector<float> keys(store.keys.size()), values(store.values.size());
    executor_->download(keys.data(), store.keys.data(), store.keys.size_bytes());
    executor_->download(values.data(), store.values.data(), store.values.size_bytes());
    executor_->wait();
    for (std::size_t i = 0; i < faults.size(); ++i) {
        if (faults[i] == 0) continue;
        const int g = model_.layout().first_of_layer(layer) + static_cast<int>(i);
        with_number(cache(lane).kv_type(), [&]<class K>() {
            look.template operator()<K>(keys, g, i, true);
            look.template operator()<K>(values, g, i, false);
        });
    }
}

/// Copies all K and V of a layer to the shadow.
void Prefill::give_to_shadow(std::size_t lane, int layer, const LayerStore& store) {
    std::vector<float> keys(store.keys.size()), values(store.values.size());
    executor_->download(keys.data(), store.keys.data(), store.keys.size_bytes());
    executor_->download(values.data(), store.values.data(), store.values.size_bytes());
    executor_->wait();
    const std::int64_t of_head = std::int64_t{n_} * model_.config().head_dim;
    for (int i = 0; i < model_.config().n_kv_heads; ++i)
        cache(lane).shadow()->append(model_.layout().first_of_layer(layer) + i, keys.data() + i * of_head,
                                     values.data() + i * of_head, n_);
}

void CudaBackend::prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                          const std::function<bool(double)>& progress) {
    refuse_inputs(lanes);
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
