/// The prompt pass: one forward pass for all lanes, with causal attention tile by tile. Scores are folded as
/// the rows are computed, so n x n scores of all heads are never in memory together. Then each lane keeps
/// what its policy keeps, and rounds it to the type in which it stores K and V; before that they are float,
/// since all lanes share the pass. Engine thread; parts run on the thread pool. CUDA twin:
/// backend/cuda/prefill.h.
#pragma once

#include "engine/backend/common/query_statistics.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cpu/cpu_backend.h"

#include <functional>
#include <map>
#include <span>
#include <vector>

namespace keyhole::cpu {

/// The floats in some pages; null where there are none.
inline float* data(const Pages& pages) {
    return static_cast<float*>(pages.data());
}

class Prefill {
  public:
    static constexpr int kTileRows = 64;

    /// integers: the model's laid weights; null: products are computed in floats.
    Prefill(const Model& model, const ModelTables& tables, const IntegerWeights* integers, ThreadPool& pool,
            std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink);

    /// Runs the pass. progress is called after every product and every tile.
    void run(const std::function<bool(double)>& progress);

  private:
    using Scratch = std::vector<float, PageAllocator<float>>;  // given back to the system after the prompt
    struct Worker {
        Scratch widened, logits, probabilities, tempered, with_sink, noise, pooled;
        std::vector<float> by_formula;
    };
    /// K, V and scores of one layer, all tokens; freed once the lanes have copied what they keep.
    struct LayerStore {
        Pages keys, values;  ///< [n_kv_heads, n, head_dim], keys rotated; empty in a layer that borrows
        Pages raw_keys;      ///< keys before rotation, where they are borrowed or wanted
        Pages scores;        ///< [n_streams, n_heads, n]
        Pages win_rows;      ///< [n_heads, win_rows_.size(), n] attention of the rows that `win` is of
        Pages win_logits;    ///< the same of their logits, where a lane ranks as R-KV's code
        std::vector<QueryMoments> queries;  ///< [query_sinks_, n_heads]
    };

    void size_last_row();
    void project(int layer, LayerStore& store);
    void emit_inputs(int layer, const LayerStore& store);
    /// Takes what lanes want to know of a layer's queries before their rotation, raw_queries_.
    void observe_queries(int layer, LayerStore& store);
    /// own: the store of this layer; owner: the store of the layer whose K and V it reads.
    void attend(int layer, const LayerStore& own, const LayerStore& owner);
    void attend_tile(int layer, const LayerStore& owner, int head, int first_row, int last_row, int worker);
    void write_last_row(int layer, int head, int rows, const float* p, const float* logits) const;
    void fold_tile(int layer, const LayerStore& store, int head, int first_row, int last_row, int worker);
    void emit_scores(int layer, int first_row, int last_row);
    void pool_shared(std::size_t lane, int layer, int first_row, int last_row);
    void pool_columns(std::size_t lane, int layer, int first_row, int last_row);
    void pool_borrowed(std::size_t lane, int layer, int first_row, int last_row);
    void feed_forward(int layer);
    void run_experts(int layer);
    void add_branch(const ModelTables::Norm& norm);
    void write_last_logits();
    /// Each lane chooses and copies what it keeps of layers [first_layer, first_layer + stores.size()).
    void give_to_lanes(int first_layer, std::span<const LayerStore> stores);
    /// Copies all K and V of KV heads [first, last) to the shadow.
    void give_to_shadow(ShadowStore& shadow, int first, int last, int first_layer,
                        std::span<const LayerStore> stores) const;
    std::vector<float> choose(const LanePrefill& lane, std::size_t lane_index, const Unit& unit,
                              const ResolvedPolicy& policy, int first_layer,
                              std::span<const LayerStore> stores, const std::vector<std::int32_t>& positions,
                              std::vector<float>& pooled, std::vector<std::int32_t>& guarded) const;
    /// What a unit ranks after the prompt.
    struct Ranked {
        std::vector<float> pooled, ties;
        std::vector<std::int32_t> guarded;
        int stored = 0;  ///< tokens that the unit keeps
    };
    Ranked rank_unit(const LanePrefill& lane, std::size_t lane_index, const Unit& unit, int first_layer,
                     std::span<const LayerStore> stores) const;
    void give_unit(const LanePrefill& lane, std::size_t lane_index, const Unit& unit, const Ranked& ranked,
                   int first_layer, std::span<const LayerStore> stores,
                   std::vector<Eviction>& evictions) const;
    void fit_caches() const;

    /// Counts `products` more multiplications of run() as done and reports progress. Throws Error(cancelled)
    /// when progress returns false.
    void worked(double products);
    double all_products() const;
    double tile_products(int first_row) const;

    void embed();
    /// Whether a product's input is that of the product before it, unchanged: it is narrowed once.
    enum class Input { other, same };
    /// y [n_rows, w.rows] = x [n_rows, w.cols] W^T + bias; bias may be null
    void multiply(const Weight& w, const float* bias, const float* x, std::int64_t n_rows, float* y,
                  Input input = Input::other);
    void multiply_in_floats(const Weight& w, const float* bias, const float* x, std::int64_t n_rows,
                            float* y);
    void narrow_rows(DType dtype, std::int64_t cols, const float* x, std::int64_t n_rows);
    void multiply_in_integers(const LaidMatrix& w, const float* bias, const float* x, std::int64_t n_rows,
                              float* y);
    /// Normalises all rows of x_ into `to`, which may be x_.
    void norm_rows(const ModelTables::Norm& norm, Pages& to);
    /// The input of the layer's products: x_ itself where norms come after the sums.
    const Pages& input() const { return model_.config().post_norm ? x_ : normed_; }
    float* score_row(const LayerStore& store, int stream, int head) const {
        return static_cast<float*>(store.scores.data()) +
               (static_cast<std::int64_t>(stream) * model_.config().n_heads + head) * n_;
    }
    /// The score by which a head selects after row i of the tile.
    const float* tile_score(std::size_t lane, int layer, int head, std::int64_t i) const {
        const std::int64_t stream_head =
            static_cast<std::int64_t>(plan_.own(lanes_[lane], lane, layer, head)) * model_.config().n_heads +
            head;
        return static_cast<const float*>(score_tile_.data()) + (stream_head * kTileRows + i) * n_;
    }
    /// Attention of a row of the prompt that is in win_rows_; logits: its logits.
    float* win_row_of(const LayerStore& store, int head, int row, bool logits = false) const {
        const auto n_rows = static_cast<std::int64_t>(win_rows_.size());
        const auto at = std::lower_bound(win_rows_.begin(), win_rows_.end(), row) - win_rows_.begin();
        return static_cast<float*>((logits ? store.win_logits : store.win_rows).data()) +
               (head * n_rows + at) * n_;
    }
    /// Computes the lengths of the layer's keys and values, and the reach of values, that its streams name.
    void measure(int layer, const LayerStore& owner);
    std::vector<float> reach_of_layer(int layer, const LayerStore& owner, KvType type);
    void fold_by_formula(const ScoreStream& stream, int layer, int head, int row, const float* p,
                         const float* logits, const float* ptau, float* score, Worker& scratch) const;
    const Model& model_;
    const ModelTables& tables_;
    const IntegerWeights* integers_;
    ThreadPool& pool_;
    std::span<const int> tokens_;
    std::span<const LanePrefill> lanes_;
    PrefillSink* sink_;
    RowRequest sink_requests_;
    int n_;                      // prompt tokens
    std::vector<int> win_rows_;  // whose attention lanes want, for `win`; ascending
    bool wants_win_logits_ = false;
    const std::function<bool(double)>* progress_ = nullptr;
    double done_ = 0, whole_ = 1;  // multiplications

    StreamPlan plan_;
    Pages x_, normed_, q_, k_, v_, attended_, projected_, hidden_;
    Pages raw_queries_;             // [n_heads, n, head_dim] before the rotation, where lanes want them
    std::vector<int> query_sinks_;  // how many first queries lanes leave out, each number once
    std::vector<std::int32_t> positions_;  // 0..n-1, for ALiBi
    Pages score_tile_;                     // [n_streams, n_heads, kTileRows, n] when the sink wants scores
    // [lane] [sets, n, n] pooled over the layers so far, where a set spans layers and the sink wants scores;
    // the sink gets it as each KV head's share.
    std::vector<Pages> shared_scores_;
    // [lane] [units, n, n] pooled in the same way over the layers that read an owner's KV heads. A unit is
    // one KV head, or all of them.
    std::vector<Pages> borrowed_scores_;
    /// As a type stores them, [n_kv_heads, n] of the layer; reach: empty where no stream names it.
    struct Lengths {
        std::vector<float> keys, values, reach;
    };
    std::map<KvType, Lengths> lengths_;
    std::vector<Worker> workers_;
    std::vector<NarrowBlock, PageAllocator<NarrowBlock>> narrow_;  // the input of a product in integers
    const float* narrowed_ = nullptr;                              // whose numbers it holds
    // The same ordered for matrices of a type, with the bytes of kRowsInIntegers rows.
    std::vector<std::byte, PageAllocator<std::byte>> ordered_rows_;
    DType ordered_ = DType::q8_0;
    std::int64_t ordered_bytes_ = 0;
};

}  // namespace keyhole::cpu
