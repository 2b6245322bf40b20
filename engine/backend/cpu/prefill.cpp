#include "engine/backend/cpu/prefill.h"

#include "engine/backend/common/choice.h"
#include "engine/backend/common/kernels.h"
#include "engine/backend/cpu/gemm.h"
#include "engine/backend/memory_need.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/reserved_pages.h"

#include <malloc.h>

#include <algorithm>

namespace keyhole::cpu {

namespace {

constexpr std::int64_t kRowsPerProduct = 256;     // prompt rows in one chunk of a product
constexpr std::int64_t kOutputsPerProduct = 128;  // outputs in one chunk
constexpr int kRowsInIntegers = 64;               // the same of a product in integers
constexpr std::int64_t kFeedForwardRows = 512;    // prompt rows whose hidden layer is in memory at once

/// Outputs in a chunk of a product in integers: many, since a chunk reads its inputs again, but enough chunks
/// for all threads, of nearly the same size.
std::int64_t outputs_at_once(std::int64_t n_outputs, std::int64_t row_blocks, int n_threads) {
    constexpr std::int64_t kLeast = 128, kMost = 512, kChunksOfThread = 4;
    const std::int64_t most =
        std::clamp(n_outputs * row_blocks / (kChunksOfThread * n_threads), kLeast, kMost);
    const std::int64_t blocks = (n_outputs + most - 1) / most,
                       groups = (n_outputs + kLaidRows - 1) / kLaidRows;
    return (groups + blocks - 1) / blocks * kLaidRows;
}

Pages floats(std::int64_t n) {
    return pages_for(to_index(n) * sizeof(float), "the prompt's rows");
}

/// Returns how many sums of scores, [n, n] each, a lane has of the layers so far: of all layers, or of those
/// that read an owner's KV heads.
std::int64_t n_sums_over_layers(const ResolvedPolicy& policy, const Model& model) {
    const ModelConfig& c = model.config();
    if (spans_layers(policy.scope)) return policy.scope == Scope::column ? c.n_kv_heads : 1;
    if (model.layout().n_kv_heads() == c.n_layers * c.n_kv_heads) return 0;
    return policy.scope == Scope::head ? c.n_kv_heads : 1;
}

}  // namespace

Prefill::Prefill(const Model& model, const ModelTables& tables, const IntegerWeights* integers,
                 ThreadPool& pool, std::span<const int> tokens, std::span<const LanePrefill> lanes,
                 PrefillSink* sink)
    : model_(model),
      tables_(tables),
      integers_(integers),
      pool_(pool),
      tokens_(tokens),
      lanes_(lanes),
      sink_(sink),
      sink_requests_(sink != nullptr ? sink->requested() : RowRequest{}),
      n_(static_cast<int>(tokens.size())),
      plan_(model.layout(), lanes),
      workers_(to_index(pool.n_threads())) {
    const ModelConfig& c = model_.config();
    const std::int64_t n = n_;
    x_ = floats(n * c.d_model);
    normed_ = floats(n * c.d_model);
    q_ = floats(n * c.n_heads * c.head_dim);
    k_ = floats(n * c.n_kv_heads * c.head_dim);
    v_ = floats(n * c.n_kv_heads * c.head_dim);
    attended_ = floats(n * c.n_heads * c.head_dim);
    projected_ = floats(n * c.d_model);
    positions_.resize(to_index(c.positions == PositionKind::alibi ? n_ : 0));
    for (std::size_t i = 0; i < positions_.size(); ++i) positions_[i] = static_cast<std::int32_t>(i);
    hidden_ = floats(2 * std::min(n, kFeedForwardRows) * std::max(c.d_ff, c.d_expert));
    if (sink_requests_.scores)
        score_tile_ = floats(static_cast<std::int64_t>(plan_.n_streams) * c.n_heads * kTileRows * n);
    for (const LanePrefill& lane : lanes_) {
        const ResolvedPolicy& policy = lane.cache->policy();
        Pages sums = floats(sink_requests_.scores ? n_sums_over_layers(policy, model_) * n * n : 0);
        shared_scores_.emplace_back();
        borrowed_scores_.emplace_back();
        (spans_layers(policy.scope) ? shared_scores_ : borrowed_scores_).back() = std::move(sums);
    }
    for (const LanePrefill& lane : lanes_)
        if (const ResolvedPolicy& policy = lane.cache->policy(); policy.any_names(Quantity::win)) {
            add_win_rows(policy, n_, win_rows_);
            wants_win_logits_ |= policy.ranks_as_rkv_code;
        }
    for (const LanePrefill& lane : lanes_) add_query_sinks(lane.cache->policy(), n_, query_sinks_);
    if (!query_sinks_.empty() || sink_requests_.inputs) raw_queries_ = floats(n * c.n_heads * c.head_dim);
    size_last_row();
}

void Prefill::run(const std::function<bool(double)>& progress) {
    const ModelConfig& c = model_.config();
    progress_ = progress ? &progress : nullptr;
    done_ = 0;
    whole_ = all_products();
    worked(0);
    embed();
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
        auto& cache = static_cast<CpuKvCache&>(*lanes_[lane].cache);
        KH_ASSERT(cache.largest_count() == 0);
        if (cache.shadow() != nullptr) cache.shadow()->reserve(n_ + rows_of_room(cache.policy()));
        const bool is_whole = cache.policy().fair.empty();
        cache.begin_kept_rows(is_whole ? std::max(n_ - cache.window(), 0) : 0);
        cache.kept_queries().begin(std::max(n_ - ResolvedPolicy::kKeptQueries, 0));
    }
    // A lane with scope shared chooses one set over all layers, so it needs all layers before anything can be
    // freed.
    const bool keep_all = std::any_of(lanes_.begin(), lanes_.end(), [&](const LanePrefill& lane) {
        return chooses_over_layers(lane.cache->policy(), n_);
    });
    const KvLayout& layout = model_.layout();
    std::vector<LayerStore> stores;
    int first_stored = 0;
    for (int l = 0; l < c.n_layers; ++l) {
        project(l, stores.emplace_back());
        if (!query_sinks_.empty()) observe_queries(l, stores.back());
        if (sink_requests_.inputs) emit_inputs(l, stores.back());
        attend(l, stores.back(), stores[to_index(layout.owner_of_layer(l) - first_stored)]);
        feed_forward(l);
        const bool read_on = l + 1 < c.n_layers && !layout.owns(l + 1);  // the next layer borrows
        if (keep_all || read_on) continue;
        give_to_lanes(first_stored, stores);
        stores.clear();
        first_stored = l + 1;
    }
    if (keep_all) give_to_lanes(0, stores);
    fit_caches();
    write_last_logits();
}

void Prefill::worked(double products) {
    done_ += products;
    if (progress_ != nullptr && !(*progress_)(std::min(done_ / whole_, 1.0)))
        fail(ErrorCode::cancelled, "processing the prompt of {} tokens was stopped", n_);
}

/// Returns the total that the worked() calls of run() add up to.
double Prefill::all_products() const {
    const ModelConfig& c = model_.config();
    const ModelWeights& w = model_.weights();
    const auto size = [](const Weight& weight) {
        return weight.data == nullptr ? 0.0
                                      : static_cast<double>(weight.rows) * static_cast<double>(weight.cols);
    };
    double of_a_token = size(w.project_in);
    for (int l = 0; l < c.n_layers; ++l) {
        const LayerWeights& layer = w.layers[to_index(l)];
        for (const Weight* weight : {&layer.q, &layer.o, &layer.gate, &layer.up, &layer.down, &layer.router})
            of_a_token += size(*weight);
        if (!layer.experts.empty()) {
            const ExpertWeights& one = layer.experts.front();
            of_a_token += c.n_experts_used * (size(one.gate) + size(one.up) + size(one.down));
        }
        if (model_.layout().owns(l)) of_a_token += size(layer.k) + size(layer.v);
    }
    double tiles = 0;
    for (int first = 0; first < n_; first += kTileRows) tiles += tile_products(first);
    return n_ * of_a_token + c.n_layers * tiles;
}

/// Returns the multiplications for logits and values of the tile that starts at this row, for all heads of a
/// layer.
double Prefill::tile_products(int first_row) const {
    const ModelConfig& c = model_.config();
    const int last_row = std::min(n_, first_row + kTileRows);
    return 2.0 * c.n_heads * c.head_dim * (last_row - first_row) * last_row;
}

/// Writes the embeddings of all tokens, plus those of their positions where positions are learned.
void Prefill::embed() {
    const ModelConfig& c = model_.config();
    const ModelWeights& w = model_.weights();
    const std::int64_t d = c.d_model, d_embed = w.embedding.cols;
    const bool projects = w.project_in.data != nullptr;
    const Pages narrow = projects ? floats(n_ * d_embed) : Pages();
    float* embedded = projects ? data(narrow) : data(x_);
    const auto for_rows = [&](auto visit) {
        pool_.parallel_for((n_ + kTileRows - 1) / kTileRows, [&](std::int64_t chunk, int worker) {
            for (std::int64_t i = chunk * kTileRows; i < std::min<std::int64_t>(n_, (chunk + 1) * kTileRows);
                 ++i)
                visit(i, worker);
        });
    };
    for_rows([&](std::int64_t i, int) {
        const int token = tokens_[to_index(i)];
        widen_rows(w.embedding, token, token + 1, embedded + i * d_embed);
    });
    if (projects) multiply(w.project_in, nullptr, embedded, n_, data(x_));
    if (c.embedding_scale != 1 || !tables_.embedding_norm.gain.empty())
        for_rows([&](std::int64_t i, int) {
            float* row = data(x_) + i * d;
            if (c.embedding_scale != 1)
                for (std::int64_t j = 0; j < d; ++j) row[j] *= c.embedding_scale;
            tables_.normalize(tables_.embedding_norm, {row, to_index(d)}, row);
        });
    if (c.positions != PositionKind::learned) return;
    KH_ASSERT(n_ <= c.n_ctx, "n={} n_ctx={}", n_, c.n_ctx);
    for_rows([&](std::int64_t i, int worker) {
        Scratch& row = workers_[to_index(worker)].widened;
        have_room(row, d);
        const std::int64_t position = i + c.position_offset;
        widen_rows(w.position_embedding, position, position + 1, row.data());
        add_to(data(x_) + i * d, row.data(), d);
    });
}

/// Sizes the lanes' outputs for the last prompt row: every KV head attends to all n tokens in it.
void Prefill::size_last_row() {
    const KvLayout& layout = model_.layout();
    const std::vector<int> n_attended(to_index(layout.n_kv_heads()), n_);
    for (const LanePrefill& lane : lanes_) {
        const bool hides = model_hides(model_.config(), n_ - 1);
        size_row(layout, n_attended, lane.cache->policy(), lane.requested, hides, *lane.out);
        RowValues& values = lane.out->values;
        if (!hides) values.hidden.clear();  // no policy hides anything from prompt rows
        for (std::size_t i = 0; i < values.hidden.size(); ++i) {
            const int g = static_cast<int>(i / to_index(n_));
            const AttentionRule rule = attention_rule(model_.config(), layout.kv_head(g).owner_layer, 0);
            values.hidden[i] = rule.hides(n_ - 1, static_cast<int>(i % to_index(n_))) ? 1 : 0;
        }
        for (std::size_t i = 0; i < values.positions.size(); ++i)
            values.positions[i] = static_cast<std::int32_t>(i % to_index(n_));
        // No shadow: full attention would be this row itself.
        begin_shadow(layout, nullptr, n_ - 1, false, *lane.out);
    }
}

void Prefill::multiply(const Weight& w, const float* bias, const float* x, std::int64_t n_rows, float* y,
                       Input input) {
    if (input == Input::other) narrowed_ = nullptr;
    const bool integers = integers_ != nullptr && integers_->suits_prompts();
    if (const LaidMatrix* laid = integers ? integers_->find(w) : nullptr; laid != nullptr)
        multiply_in_integers(*laid, bias, x, n_rows, y);
    else
        multiply_in_floats(w, bias, x, n_rows, y);
    worked(static_cast<double>(n_rows) * static_cast<double>(w.rows) * static_cast<double>(w.cols));
}

/// Narrows the rows of x and orders them for matrices of this type, unless they are.
void Prefill::narrow_rows(DType dtype, std::int64_t cols, const float* x, std::int64_t n_rows) {
    const std::int64_t blocks = cols / kCellColumns;
    const IntegerPath path = integers_->path();
    if (narrowed_ == x && ordered_ == dtype) return;
    const std::int64_t row_blocks = (n_rows + kRowsInIntegers - 1) / kRowsInIntegers;
    const auto narrow = [&](std::int64_t row, std::int64_t m) {
        narrow_input(path, x + row * cols, m * cols, narrow_.data() + row * blocks);
    };
    bool narrows = narrowed_ != x;
    if (narrows) have_room(narrow_, n_rows * blocks);
    // In the order's chunks while they are in the cache, unless that leaves threads without work.
    if (constexpr std::int64_t kNarrowRows = 16; narrows && row_blocks < 2 * pool_.n_threads()) {
        pool_.parallel_for((n_rows + kNarrowRows - 1) / kNarrowRows, [&](std::int64_t chunk, int) {
            narrow(chunk * kNarrowRows, std::min(kNarrowRows, n_rows - chunk * kNarrowRows));
        });
        narrows = false;
    }
    narrowed_ = x;
    ordered_ = dtype;
    ordered_bytes_ = ordered_bytes(path, dtype, cols, kRowsInIntegers);
    have_room(ordered_rows_, row_blocks * ordered_bytes_);
    pool_.parallel_for(row_blocks, [&](std::int64_t chunk, int) {
        const std::int64_t row = chunk * kRowsInIntegers,
                           m = std::min<std::int64_t>(kRowsInIntegers, n_rows - row);
        if (narrows) narrow(row, m);
        order_inputs(path, dtype, narrow_.data() + row * blocks, cols, static_cast<int>(m),
                     ordered_rows_.data() + chunk * ordered_bytes_);
    });
}

/// Every output has the bits of a step's.
void Prefill::multiply_in_integers(const LaidMatrix& w, const float* bias, const float* x,
                                   std::int64_t n_rows, float* y) {
    const std::int64_t blocks = w.cols / kCellColumns;
    narrow_rows(w.dtype, w.cols, x, n_rows);
    const std::int64_t row_blocks = (n_rows + kRowsInIntegers - 1) / kRowsInIntegers;
    const std::int64_t outputs = outputs_at_once(w.rows, row_blocks, pool_.n_threads());
    const std::int64_t output_blocks = (w.rows + outputs - 1) / outputs;
    pool_.parallel_for(row_blocks * output_blocks, [&](std::int64_t chunk, int) {
        const std::int64_t output = chunk / row_blocks * outputs, row = chunk % row_blocks * kRowsInIntegers;
        const std::int64_t end = std::min(w.rows, output + outputs),
                           m = std::min<std::int64_t>(kRowsInIntegers, n_rows - row);
        const NarrowInputs in = {narrow_.data() + row * blocks,
                                 ordered_rows_.data() + row / kRowsInIntegers * ordered_bytes_};
        multiply_laid(integers_->path(), w, output / kLaidRows, (end + kLaidRows - 1) / kLaidRows, in,
                      static_cast<int>(m), y + row * w.rows, w.rows);
        if (bias == nullptr) return;
        for (std::int64_t i = row; i < row + m; ++i)
            add_to(y + i * w.rows + output, bias + output, end - output);
    });
}

void Prefill::multiply_in_floats(const Weight& w, const float* bias, const float* x, std::int64_t n_rows,
                                 float* y) {
    const std::int64_t row_blocks = (n_rows + kRowsPerProduct - 1) / kRowsPerProduct;
    const std::int64_t output_blocks = (w.rows + kOutputsPerProduct - 1) / kOutputsPerProduct;
    pool_.parallel_for(row_blocks * output_blocks, [&](std::int64_t chunk, int worker) {
        const std::int64_t output = chunk / row_blocks * kOutputsPerProduct,
                           row = chunk % row_blocks * kRowsPerProduct;
        const std::int64_t n_outputs = std::min(kOutputsPerProduct, w.rows - output),
                           m = std::min(kRowsPerProduct, n_rows - row);
        Scratch& block = workers_[to_index(worker)].widened;
        have_room(block, n_outputs * w.cols);
        widen_rows(w, output, output + n_outputs, block.data());
        multiply_transposed(m, n_outputs, w.cols, 1.0f, x + row * w.cols, w.cols, block.data(), w.cols,
                            y + row * w.rows + output, w.rows);
        if (bias == nullptr) return;
        for (std::int64_t i = row; i < row + m; ++i)
            add_to(y + i * w.rows + output, bias + output, n_outputs);
    });
}

void Prefill::norm_rows(const ModelTables::Norm& norm, Pages& to) {
    const std::int64_t d = model_.config().d_model;
    pool_.parallel_for((n_ + kTileRows - 1) / kTileRows, [&](std::int64_t chunk, int) {
        for (std::int64_t i = chunk * kTileRows; i < std::min<std::int64_t>(n_, (chunk + 1) * kTileRows); ++i)
            tables_.normalize(norm, {data(x_) + i * d, to_index(d)}, data(to) + i * d);
    });
}

/// Computes q, k and v of all tokens, rotates q and k, and stores K and V head by head.
void Prefill::project(int layer, LayerStore& store) {
    const ModelConfig& c = model_.config();
    const LayerWeights& w = model_.weights().layers[to_index(layer)];
    const ModelTables::Layer& t = tables_.layers[to_index(layer)];
    if (!c.post_norm) norm_rows(t.attention_norm, normed_);
    const bool owns = model_.layout().owns(layer);
    const int n_kv_heads = owns ? c.n_kv_heads : 0;
    multiply(w.q, or_null(t.q_bias), data(input()), n_, data(q_));
    if (owns) multiply(w.k, or_null(t.k_bias), data(input()), n_, data(k_), Input::same);
    if (owns) multiply(w.v, or_null(t.v_bias), data(input()), n_, data(v_), Input::same);
    const std::int64_t d = c.head_dim, n = n_;
    if (owns) store.keys = floats(n_kv_heads * n * d);
    if (owns) store.values = floats(n_kv_heads * n * d);
    const bool raw = owns && (c.borrows_unrotated || sink_requests_.inputs);
    const Rotary* rotary = rotary_of(c, layer);
    if (raw) store.raw_keys = floats(n_kv_heads * n * d);
    store.scores = floats(static_cast<std::int64_t>(plan_.n_streams) * c.n_heads * n);
    const auto n_win_rows = static_cast<std::int64_t>(win_rows_.size());
    if (n_win_rows > 0) store.win_rows = floats(c.n_heads * n_win_rows * n);
    if (wants_win_logits_) store.win_logits = floats(c.n_heads * n_win_rows * n);
    pool_.parallel_for((n + kTileRows - 1) / kTileRows, [&](std::int64_t chunk, int) {
        std::vector<float> cosines(to_index(c.rotary.dims / 2)), sines(cosines);
        const float* cosine = rotary != nullptr ? cosines.data() : nullptr;
        for (std::int64_t i = chunk * kTileRows; i < std::min(n, (chunk + 1) * kTileRows); ++i) {
            if (rotary != nullptr)
                tables_.angles(*rotary, static_cast<int>(i), n_, cosines.data(), sines.data());
            tables_.normalize_width(t.q_width_norm, data(q_) + i * c.n_heads * d);
            if (owns) tables_.normalize_width(t.k_width_norm, data(k_) + i * n_kv_heads * d);
            for (std::int64_t h = 0; h < c.n_heads; ++h) {
                float* query = data(q_) + (i * c.n_heads + h) * d;
                if (raw_queries_.size_bytes() > 0) {
                    float* raw_query = data(raw_queries_) + (h * n + i) * d;
                    std::copy_n(query, d, raw_query);
                    tables_.norm_and_rotate(raw_query, t.q_norm, nullptr, nullptr);
                }
                tables_.norm_and_rotate(query, t.q_norm, cosine, sines.data());
            }
            for (std::int64_t g = 0; g < n_kv_heads; ++g) {
                float* key = data(k_) + (i * n_kv_heads + g) * d;
                float* value = data(v_) + (i * n_kv_heads + g) * d;
                if (raw) {
                    float* raw_key = data(store.raw_keys) + (g * n + i) * d;
                    std::copy_n(key, d, raw_key);
                    tables_.norm_and_rotate(raw_key, t.k_norm, nullptr, nullptr);
                }
                tables_.norm_and_rotate(key, t.k_norm, cosine, sines.data());
                if (c.clip_qkv > 0) clip(value, c.clip_qkv, d);
                std::copy_n(key, d, data(store.keys) + (g * n + i) * d);
                std::copy_n(value, d, data(store.values) + (g * n + i) * d);
            }
        }
    });
}

void Prefill::observe_queries(int layer, LayerStore& store) {
    const ModelConfig& c = model_.config();
    const std::int64_t d = c.head_dim;
    const auto query = [&](std::int64_t head, std::int64_t row) {
        return data(raw_queries_) + (head * n_ + row) * d;
    };
    const auto n_heads = to_index(c.n_heads);
    store.queries.resize(query_sinks_.size() * n_heads);
    pool_.parallel_for(static_cast<std::int64_t>(store.queries.size()), [&](std::int64_t i, int) {
        std::vector<const float*> rows;
        for (int row = query_sinks_[to_index(i) / n_heads]; row < n_; ++row)
            rows.push_back(query(i % c.n_heads, row));
        store.queries[to_index(i)] = query_moments(rows, c.head_dim, rotary_of(c, layer));
    });
    for (const LanePrefill& lane : lanes_)
        for (int h = 0; h < c.n_heads; ++h)
            for (int row = std::max(n_ - ResolvedPolicy::kKeptQueries, 0); row < n_; ++row)
                if (float* kept =
                        static_cast<CpuKvCache&>(*lane.cache).kept_queries().at(row, layer * c.n_heads + h))
                    std::copy_n(query(h, row), d, kept);
}

void Prefill::feed_forward(int layer) {
    const ModelConfig& c = model_.config();
    const LayerWeights& w = model_.weights().layers[to_index(layer)];
    const ModelTables::Layer& t = tables_.layers[to_index(layer)];
    const std::int64_t d = c.d_model;
    multiply(w.o, or_null(t.o_bias), data(attended_), n_, data(projected_));
    // The sum is added before the second norm; with parallel branches that norm still reads the block's
    // input.
    if (!c.parallel) add_branch(t.attention_out_norm);
    if (c.post_norm) norm_rows(t.attention_norm, x_);
    if (!c.post_norm && !c.shared_norm) norm_rows(t.mlp_norm, normed_);
    if (c.parallel) add_branch(t.attention_out_norm);
    if (!w.experts.empty()) {
        run_experts(layer);
        add_branch(t.mlp_out_norm);
        return;
    }
    const bool gated = w.gate.data != nullptr;
    for (std::int64_t first = 0; first < n_; first += kFeedForwardRows) {
        const std::int64_t rows = std::min<std::int64_t>(kFeedForwardRows, n_ - first);
        const float* in = data(input()) + first * d;
        float* hidden = data(hidden_);
        float* up = gated ? hidden + rows * c.d_ff : hidden;
        if (gated) multiply(w.gate, or_null(t.gate_bias), in, rows, hidden);
        multiply(w.up, or_null(t.up_bias), in, rows, up, gated ? Input::same : Input::other);
        pool_.parallel_for(rows, [&](std::int64_t i, int) {
            activate(c.activation, hidden + i * c.d_ff, gated ? up + i * c.d_ff : nullptr, c.d_ff);
        });
        multiply(w.down, or_null(t.down_bias), hidden, rows, data(projected_) + first * d);
    }
    add_branch(t.mlp_out_norm);
    if (c.post_norm) norm_rows(t.mlp_norm, x_);
}

/// projected_ <- what each token's experts make of it. One expert after the other, each for all its tokens.
void Prefill::run_experts(int layer) {
    const ModelConfig& c = model_.config();
    const LayerWeights& w = model_.weights().layers[to_index(layer)];
    const ModelTables::Layer& t = tables_.layers[to_index(layer)];
    const std::int64_t d = c.d_model, n_experts = c.n_experts, n = n_;
    const Pages logits = floats(n * n_experts);
    multiply(w.router, or_null(t.router_bias), data(input()), n_, data(logits));
    struct Routed {
        std::int64_t row;
        float weight;
    };
    std::vector<std::vector<Routed>> rows_of(to_index(n_experts));
    std::vector<int> chosen;
    std::vector<float> weights;
    for (std::int64_t i = 0; i < n; ++i) {
        choose_experts(c, data(logits) + i * n_experts, chosen, weights);
        if (i == n - 1)
            for (const LanePrefill& lane : lanes_) {
                if (lane.out->experts.empty()) begin_experts(c, *lane.out);
                keep_experts(chosen, layer, *lane.out);
            }
        for (std::size_t k = 0; k < chosen.size(); ++k)
            rows_of[to_index(chosen[k])].push_back({i, weights[k]});
    }
    std::fill_n(data(projected_), n * d, 0.0f);
    const std::int64_t most = std::min<std::int64_t>(kFeedForwardRows, n);
    const Pages in = floats(most * d), out = floats(most * d);
    for (std::size_t e = 0; e < rows_of.size(); ++e)
        for (std::size_t first = 0; first < rows_of[e].size(); first += to_index(kFeedForwardRows)) {
            const std::span<const Routed> rows =
                std::span(rows_of[e])
                    .subspan(first, std::min(to_index(kFeedForwardRows), rows_of[e].size() - first));
            const auto m = static_cast<std::int64_t>(rows.size());
            for (std::int64_t i = 0; i < m; ++i)
                std::copy_n(data(input()) + rows[to_index(i)].row * d, d, data(in) + i * d);
            float *hidden = data(hidden_), *up = hidden + m * c.d_expert;
            multiply(w.experts[e].gate, or_null(t.experts[e].gate_bias), data(in), m, hidden);
            multiply(w.experts[e].up, or_null(t.experts[e].up_bias), data(in), m, up, Input::same);
            pool_.parallel_for(m, [&](std::int64_t i, int) {
                activate(c.activation, hidden + i * c.d_expert, up + i * c.d_expert, c.d_expert);
            });
            multiply(w.experts[e].down, or_null(t.experts[e].down_bias), hidden, m, data(out));
            for (std::int64_t i = 0; i < m; ++i)
                add_scaled(data(out) + i * d, rows[to_index(i)].weight, d,
                           data(projected_) + rows[to_index(i)].row * d);
        }
}

/// x_ <- x_ + projected_, as ModelTables::add_branch().
void Prefill::add_branch(const ModelTables::Norm& norm) {
    tables_.add_branch(norm, data(projected_), n_, data(x_));
}

void Prefill::write_last_logits() {
    const ModelConfig& c = model_.config();
    const ModelWeights& w = model_.weights();
    std::vector<float> last(to_index(c.d_model)), logits(to_index(c.n_vocab));
    tables_.normalize(tables_.final_norm,
                      {data(x_) + static_cast<std::int64_t>(n_ - 1) * c.d_model, last.size()}, last.data());
    const auto multiply_one = [&](const Weight& matrix, const std::vector<float>& in,
                                  std::vector<float>& out) {
        if (const LaidMatrix* laid = integers_ != nullptr ? integers_->find(matrix) : nullptr)
            return multiply_in_integers(*laid, nullptr, in.data(), 1, out.data());
        constexpr std::int64_t kRows = 256;
        pool_.parallel_for((matrix.rows + kRows - 1) / kRows, [&](std::int64_t chunk, int) {
            multiply_rows(matrix, chunk * kRows, std::min(matrix.rows, (chunk + 1) * kRows), in.data(),
                          matrix.cols, 1, out.data(), matrix.rows);
        });
    };
    if (w.project_out.data != nullptr) {
        std::vector<float> narrow(to_index(w.project_out.rows));
        multiply_one(w.project_out, last, narrow);
        last = std::move(narrow);
    }
    multiply_one(w.output, last, logits);
    if (!tables_.output_bias.empty()) add_to(logits.data(), tables_.output_bias.data(), c.n_vocab);
    finish_logits(c, logits.data());
    for (const LanePrefill& lane : lanes_) lane.out->next_logits = logits;
}

namespace {

/// Returns oneDNN's freed buffers to the system; malloc would keep them.
void give_heap_back() {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}

/// Throws Error(no_memory) before a prompt takes what the machine does not have.
void check_room_of_prompt(const Model& model, std::int64_t n, std::span<const LanePrefill> lanes,
                          const PrefillSink* sink, int n_threads) {
    constexpr std::int64_t kFloat = sizeof(float);
    const ModelConfig& c = model.config();
    const auto n_lanes = static_cast<int>(lanes.size());
    const MemoryNeed need = memory_need(model, n, n_lanes, n_threads);
    const RowRequest requested = sink != nullptr ? sink->requested() : RowRequest{};
    std::int64_t n_bytes = need.scratch;
    bool wants_queries = requested.inputs, keeps_layers = false;
    for (const LanePrefill& lane : lanes) {
        const ResolvedPolicy& policy = lane.cache->policy();
        if (policy.budget == ResolvedPolicy::kUnlimited) n_bytes += need.cache / n_lanes;
        wants_queries = wants_queries || policy.kept_queries() > 0;
        keeps_layers = keeps_layers || chooses_over_layers(policy, static_cast<int>(n));
        if (requested.scores)
            n_bytes += (Prefill::kTileRows * c.n_heads + n_sums_over_layers(policy, model) * n) * n * kFloat;
    }
    if (wants_queries) n_bytes += n * c.n_heads * c.head_dim * kFloat;
    if (keeps_layers) n_bytes += n * 2 * model.layout().n_kv_heads() * c.head_dim * kFloat;
    check_room(n_bytes,
               fmt::format("a prompt of {} tokens in {} lane{}", n, n_lanes, n_lanes == 1 ? "" : "s"),
               "shorten the prompt, or take fewer lanes or threads");
}

}  // namespace

void CpuBackend::prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                         const std::function<bool(double)>& progress) {
    try {
        const std::shared_ptr<const Model>& model = static_cast<CpuKvCache&>(*lanes.front().cache).model();
        KH_ASSERT(std::all_of(lanes.begin(), lanes.end(), [&](const LanePrefill& lane) {
            return static_cast<CpuKvCache&>(*lane.cache).model() == model;
        }));
        check_room_of_prompt(*model, static_cast<std::int64_t>(tokens.size()), lanes, sink,
                             pool_.n_threads());
        Prefill(*model, tables_of(model), integers_of(model), pool_, tokens, lanes, sink).run(progress);
        give_heap_back();
        for (const LanePrefill& lane : lanes) pack_row(*this, lane.requested, *lane.out);
    } catch (...) {
        for (const LanePrefill& lane : lanes) static_cast<CpuKvCache&>(*lane.cache).clear();
        throw;
    }
}

}  // namespace keyhole::cpu
