/// The prompt pass on a device: products by the executor (cuBLAS), attention and scores; then each lane keeps
/// what its policy keeps. The host chooses what stays, layer by layer, once per prompt. With 16-bit weights
/// products run on tensor cores, their inputs rounded to the type of the weights
/// (ProductOptions::weights_precision), and attention is fused (kernels/prompt_attention.h). Otherwise
/// activations are float, weights are widened (quantised ones in tiles of rows), and attention runs tile by
/// tile with the scores folded row by row (kernels/prompt.h). Engine thread only. CPU twin: cpu/prefill.h.
#pragma once

#include "engine/backend/common/query_statistics.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cuda/step.h"

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <vector>

namespace keyhole::cuda {

class Prefill {
  public:
    /// rotations: the rows of all prompt positions.
    Prefill(const OnDevice& of, std::shared_ptr<Executor> executor, const float* rotations,
            const ProductOptions& products, std::span<const int> tokens, std::span<const LanePrefill> lanes,
            PrefillSink* sink);

    void run(const std::function<bool(double)>& progress);

  private:
    using Cache = CudaKvCache;
    /// K, V and scores of one layer, all tokens.
    struct LayerStore {
        Buffer<float> keys,
            values;                ///< [n_kv_heads, n, head_dim], keys rotated; empty in a layer that borrows
        Buffer<float> raw_keys;    ///< keys before rotation, where ModelConfig::borrows_unrotated
        Buffer<float> scores;      ///< [n_streams, n_heads, n]
        Buffer<float> win_rows;    ///< [n_heads, win_rows_.size(), n] attention of the rows that `win` is of
        Buffer<float> win_logits;  ///< the same of their logits, where a lane ranks by them
        std::vector<QueryMoments> queries;  ///< [query_sinks_, n_heads], on the host
    };
    /// What the host has of a layer to choose by.
    struct LayerScores {
        std::vector<float> scores, win_rows, win_logits;
    };
    Cache& cache(std::size_t lane) const { return static_cast<Cache&>(*lanes_[lane].cache); }

    void size_rows();
    void embed();
    void multiply(const MatrixView& w, const float* x, std::int64_t n_rows, float* y);
    int widened_rows(const MatrixView& w) const;
    std::size_t widened_size() const;
    void multiply_stored(const MatrixView& w, const float* x, std::int64_t n_rows, float* y);
    void add_norm(const float* y, const float* z, const DeviceModel::Norm& norm, float* out);
    void add_norm_from(std::int64_t first, int n, const float* y, const float* z,
                       const DeviceModel::Norm& norm, float* out);
    /// Outputs of a layer that the next norm adds to x_ before it reads it.
    struct Pending {
        const float *y = nullptr, *z = nullptr;
    };
    Pending pending() const {
        if (model_.config().post_norm) return {};
        if (adds_late(model_.config())) return {projected_.data(), fed_.data()};
        return {fed_.data(), nullptr};
    }
    const float* input() const { return model_.config().post_norm ? x_.data() : normed_.data(); }
    LayerStore take_store();
    void project(int layer, LayerStore& store);
    std::vector<float> before_rotation(const Buffer<float>& from, int n_heads,
                                       const std::vector<float>& norm) const;
    void observe_queries(int layer, const std::vector<float>& queries, LayerStore& store) const;
    void emit_inputs(int layer, const std::vector<float>& raw_q, const std::vector<float>& raw_k,
                     const LayerStore& store);
    int first_kept_query() const { return std::max(n_ - ResolvedPolicy::kKeptQueries, 0); }
    bool can_fuse() const;
    void size_tiles(std::int64_t free_floats);
    /// own: the store of this layer; owner: the store of the layer whose K and V it reads.
    void attend(int layer, const LayerStore& own, const LayerStore& owner);
    void upload_rules(int layer, const LayerStore& owner);
    std::map<KvType, const float*> types_of_streams(int layer, bool (*asked)(const FormulaRef& score)) const;
    std::map<KvType, const float*> upload_lengths(int layer, const LayerStore& owner);
    std::map<KvType, const float*> compute_reach(int layer, const LayerStore& owner);
    void attend_fused(int layer, const LayerStore& own, const LayerStore& owner);
    template <class T>
    void launch_fused(int layer, const LayerStore& own);
    void attend_tiles(int layer, const LayerStore& own, const LayerStore& owner);
    void weigh_tile(int layer, const LayerStore& owner, int first, int last);
    void attend_tile(const LayerStore& owner, int first, int last);
    void temper_tile(int layer, int stream, int first, int last);
    void fold_tile(int layer, const LayerStore& store, int stream, int first, int last);
    /// The keys that a layer reads.
    const float* keys_of(int layer, const LayerStore& owner) const {
        return (model_.config().borrows_unrotated && !owns(layer) ? owner.raw_keys : owner.keys).data();
    }
    int download_tile(const Buffer<float>& from, int rows, int last, bool whole);
    void emit_attention(int layer, int first, int last);
    void emit_noise(int layer, int stream, int first, int last);
    void emit_scores(int layer, int first, int last);
    void pool_shared(std::size_t lane, int layer, int first, int last,
                     const std::function<const float*(int head)>& of_head);
    void pool_columns(std::size_t lane, int layer, int first, int last,
                      const std::function<const float*(int head)>& of_head);
    void pool_borrowed(std::size_t lane, int layer, int first, int last,
                       const std::function<const float*(int head)>& of_head);
    void feed_forward(int layer);
    void write_last_logits();
    void give_to_lanes(int first_layer, std::span<const LayerStore> stores);
    void size_kept();
    std::vector<std::pair<int, int>> win_rows_of(int first, int last) const;
    int place_of_win_row(int row) const;
    void keep_rows(const LayerStore& store, int first, int last);
    std::vector<float> rank_by_formula(std::size_t lane, const Unit& unit, const ResolvedPolicy& policy,
                                       int first_layer, std::span<const LayerStore> stores,
                                       std::span<const LayerScores> scores,
                                       const std::vector<std::int32_t>& positions, std::vector<float>& pooled,
                                       std::vector<std::int32_t>& guarded);
    /// What a unit ranks after the prompt.
    struct Ranked {
        Unit unit;
        std::vector<float> pooled{}, ties{};
        std::vector<std::int32_t> guarded{};
        int stored = 0;  ///< tokens that the unit keeps
    };
    Ranked rank(std::size_t lane, const Unit& unit, int first_layer, std::span<const LayerStore> stores,
                std::span<const LayerScores> scores);
    void choose(std::size_t lane, const Ranked& ranked);
    void keep(std::size_t lane, int layer, const LayerStore& store);
    void find_faults(std::size_t lane, int layer, const LayerStore& store,
                     const std::vector<std::uint8_t>& faults);
    void give_to_shadow(std::size_t lane, int layer, const LayerStore& store);
    bool owns(int layer) const { return model_.layout().owns(layer); }
    /// Returns the scores of one query head within a layer's downloaded scores.
    const float* score_row(const std::vector<float>& scores, int stream, int head) const {
        return scores.data() + (static_cast<std::int64_t>(stream) * model_.config().n_heads + head) * n_;
    }

    const Model& model_;
    const DeviceModel& weights_;
    const DeviceLayout& layout_;
    const ModelTables& tables_;
    std::shared_ptr<Executor> executor_;
    const float* rotations_;
    NumberType type_;  // of plain matrices
    bool narrow_;
    std::int64_t widened_tile_;
    std::span<const int> tokens_;
    std::span<const LanePrefill> lanes_;
    PrefillSink* sink_;
    RowRequest sink_requests_;
    int n_;                          // prompt tokens
    int tile_rows_;                  // rows of attention in memory at once
    int hidden_rows_;                // rows of the hidden layer in memory at once
    std::vector<int> win_rows_;      // whose attention lanes want, for `win`; ascending
    bool wants_win_logits_ = false;  // and of their logits
    std::vector<int> query_sinks_;   // how many first queries lanes leave out, each number once
    bool sink_gets_tiles_ = false;
    StreamPlan plan_;
    bool fused_ = false;           // attention of all rows; then tiles hold the last row alone
    bool needs_last_row_ = false;  // some lane wants values of it
    std::vector<std::vector<std::vector<std::int32_t>>> kept_;  // [lane][KV head] positions that stay

    Buffer<float> x_, normed_, q_, k_, v_, attended_, projected_, fed_, gate_, up_, widened_;
    Buffer<std::uint16_t> narrowed_;  // f16 or bf16, as the next two
    Buffer<std::uint16_t> narrow_keys_,
        narrow_values_;    // [n_kv_heads, n, head_dim] of the layer, for fused attention
    Buffer<RowSum> sums_;  // [1 + n_streams, n_heads, n]
    Buffer<float> logits_, probabilities_, tempered_, noise_;  // [n_heads, tile rows, columns]
    Buffer<float> score_rows_;               // [n_streams, n_heads, tile rows, columns] for a sink
    Buffer<StreamRule> rules_;               // [n_streams, n_heads] of the layer
    Buffer<FormulaTable> formulas_;          // of the layer's streams
    Buffer<float> lengths_;                  // [types, 2, n_kv_heads, n] of the layer's keys and values
    std::map<KvType, Buffer<float>> reach_;  // [n_kv_heads, n] of the layer
    std::vector<LayerStore> spare_;          // of layers that the lanes have
    Buffer<std::int32_t> device_kept_, device_offset_, device_streams_;  // of one lane and layer
    Buffer<std::uint8_t> device_faults_;                                 // [n_kv_heads]
    std::vector<float> tile_;  // a tile on the host, or its last rows
    // [lane] [sets, n, n] pooled over the layers so far. Scope shared has one set, scope column one for each
    // KV head of a layer.
    std::vector<std::vector<float>> shared_scores_;
    // [lane] [units, n, n] pooled in the same way over the layers that read an owner's KV heads. A unit is
    // one KV head, or all of them.
    std::vector<std::vector<float>> borrowed_scores_;
};

}  // namespace keyhole::cuda
