/// CudaBackend and its parts: one decoding step on a device. Engine thread only. Knows the executor, no CUDA.
/// step.cpp plans a step, step_input.cpp makes room and uploads what it reads, step_launches.cpp launches its
/// kernels, step_output.cpp writes down what it gave. CPU twin: cpu/cpu_backend.h.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/model_tables.h"
#include "engine/backend/common/rotation_table.h"
#include "engine/backend/cuda/cache.h"
#include "engine/backend/cuda/cuda_backend.h"
#include "engine/backend/cuda/device_model.h"
#include "engine/backend/cuda/device_queries.h"
#include "engine/backend/cuda/pinned_pool.h"

#include <algorithm>
#include <memory>
#include <span>
#include <type_traits>
#include <vector>

namespace keyhole::cuda {

/// The rotation table, cosines and sines of whole positions, [positions, rotary.dims], in device memory;
/// grows with the text. Null where nothing rotates.
class DeviceRotations {
  public:
    DeviceRotations(const Model& model);
    /// Returns the table, with at least the rows 0..last.
    const float* rows(const std::shared_ptr<Executor>& executor, int last);

  private:
    RotationTable host_;
    std::size_t dims_;
    int n_rows_ = 0;
    Buffer<float> device_;
};

/// Returns how many layers of a step one launch folds, where a layer's rows take `layer_bytes` until then and
/// all that wait may take `most_bytes`: as even shares as can be, at least one layer.
inline int layers_per_fold(int n_layers, std::int64_t layer_bytes, std::int64_t most_bytes) {
    const std::int64_t n_folds = (n_layers * layer_bytes + most_bytes - 1) / most_bytes;
    return static_cast<int>((n_layers + n_folds - 1) / n_folds);
}

inline constexpr int kThreads = 256;  ///< of a block, where a kernel needs no other number

/// Returns how many blocks of kThreads have a thread for each of n things.
inline int blocks_for(std::int64_t n) {
    return static_cast<int>((n + kThreads - 1) / kThreads);
}

/// Writes rows of the embedding, or adds those of learned positions: Kernel<V> has a table and `rest`.
template <template <class> class Kernel, class... Rest>
void launch_rows(Executor& executor, const MatrixView& table, int n, Rest... rest) {
    with_elements({&table, 1}, [&]<class V>() {
        executor.launch(Kernel<V>{table.elements<V>(), rest...}, {n}, kThreads);
    });
}

/// Rounds n numbers to f16 or bf16.
inline void narrow(Executor& executor, NumberType type, const float* from, std::uint16_t* to,
                   std::int64_t n) {
    const Grid grid{blocks_for(n)};
    if (type == NumberType::f16)
        executor.launch(Narrow<Fp16>{from, reinterpret_cast<Fp16*>(to), n}, grid, kThreads);
    else
        executor.launch(Narrow<Bf16>{from, reinterpret_cast<Bf16*>(to), n}, grid, kThreads);
}

/// Makes the product y [n_rows, w.rows] = x [n_rows, w.cols] W^T; x has the given type.
inline MatrixProduct product_of(const MatrixView& w, const void* x, std::int64_t n_rows, float* y,
                                NumberType type) {
    MatrixProduct product;
    product.a = x;
    product.b = w.data;
    product.c = y;
    product.m = n_rows;
    product.n = w.rows;
    product.k = w.cols;
    product.a_stride = product.b_stride = w.cols;
    product.c_stride = w.rows;
    product.b_transposed = 1;
    product.type = type;
    return product;
}

class CudaBackend final : public Backend {
  public:
    CudaBackend(std::shared_ptr<const Model> model, std::shared_ptr<Executor> executor,
                const ProductOptions& products);

    std::string name() const override;
    bool on_device() const override { return true; }
    std::unique_ptr<KvCache> make_cache(const ResolvedPolicy& policy,
                                        std::shared_ptr<const Model> variant) override;
    KvType kv_type(KvType wanted) const override;
    void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                 const std::function<bool(double)>& progress) override;
    void step(std::span<const LaneStep> lanes) override;
    void finish_rows() override { executor_->wait_for_copies(); }
    std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) override;
    bool time_parts(StepTimes* times) override;
    std::int64_t weight_bytes() const override { return own_->uploaded_bytes; }
    std::string precision_text() const override;
    std::optional<LaunchCounts> launch_counts() const override { return executor_->counts(); }

  private:
    using Cache = CudaKvCache;
    /// Lanes of a step whose caches belong to one model and store K and V in one type.
    struct Group {
        const OnDevice* of = nullptr;
        int first = 0, n = 0;
        NumberType kv = NumberType::f32;
        std::int64_t kv_at = 0;  ///< where their rows of k and v begin: [n, KV heads of a layer * head_dim]
        std::int64_t hidden_at = 0;               ///< the same for gate and up: [n, d_ff]
        std::vector<std::uint8_t> reads_pages{};  ///< [n_layers] 1: a lane reads pages there; empty: nowhere
    };
    /// What a product reads: rows of the stream, with the norm that it applies, or normed rows.
    struct Input {
        const float* x = nullptr;
        NormRule norm{};
    };
    /// Everything that the host computes before a step.
    struct Plan {
        std::vector<LaneStep> lanes;  ///< sorted so that the lanes of one model are consecutive
        std::vector<Group> groups;
        std::int64_t kv_size = 0, hidden_size = 0;  ///< for all lanes
        int n_kv_heads = 0;                         ///< the most of any model
        RowRequest requested;                       ///< wanted by any lane
        RowRequest floats;                          ///< the same as floats on the host
        /// [lanes] of the coming row, sized and not filled; null where none is wanted.
        std::vector<std::shared_ptr<RowBlock>> blocks;
        bool any_block = false;
        bool any_unordered = false;  ///< a block's slots are not in text order
        int row_stride = 0;          ///< slots that row buffers have room for: the largest capacity
        int max_splits = 0;
        bool tempers = false;  ///< any rule of a lane
        int fold_layers = 1;   ///< layers whose scores one launch folds
        int max_units = 0;
        int most_victims = 1;  ///< the most of any KV head
        std::vector<std::uint8_t>
            on_host;  ///< [lanes] the host selects: too many tokens leave at once, or has_no_kernel()
        std::vector<int> n_rows;     ///< [lanes] largest count, with the new token
        bool keeps_parts = false;    ///< a lane has a shadow, or its inputs are wanted
        bool keeps_queries = false;  ///< a lane does, before their rotation
        int n_lists = 0;             ///< the most that a formula of a lane needs; 0: no lane has one
        bool any_keydiff = false;    ///< a formula names it; so the next
        bool any_redundancy = false;
        bool any_code_win = false;  ///< `win` as R-KV's code has it
        bool any_caote = false, any_lag = false, any_wvnorm = false, any_expected = false, any_tri = false;
        std::vector<std::shared_ptr<const DeviceQueries>> queries;  ///< [lanes] or null
        bool any_smoothing = false;                ///< a formula orders what another one ranks alike
        bool any_block_leaves = false;             ///< of a lane blocks of the text leave whole
        bool any_row_reach = false;                ///< such a formula names how far values reach
        bool any_score = false;                    ///< a lane folds scores by a formula
        bool any_shares = false;                   ///< a lane's KV heads share budgets after rows
        std::vector<std::vector<PageRule>> pages;  ///< [lanes] by KV head; empty: the lane's row reads all
        int page_stride = 0;                       ///< pages that flags have room for
    };
    /// The group's lanes as kernels see them; K is its type of K and V.
    template <class K>
    const LaneView<K>* views_of(const Group& group) const {
        return reinterpret_cast<const LaneView<K>*>(views_ + group.first);
    }
    static Cache& cache_of(const LaneStep& step) { return static_cast<Cache&>(*step.cache); }

    Plan plan(std::span<const LaneStep> lanes);
    std::shared_ptr<RowBlock> new_block(const LaneStep& lane) const;
    PackedLane packed_lane(const Plan& plan, std::size_t lane) const;
    void pack_rows(const Plan& plan, const Group& group);
    template <class K>
    void choose_scores(const Plan& plan, const Group& group);
    int most_that_leave(const Cache& cache) const;
    void write_block(const Plan& plan, int lane);
    static void plan_pages(const LaneStep& lane, Plan& plan);
    void group_lanes(std::span<const LaneStep> lanes, Plan& plan) const;
    const Group& group_of(const Plan& plan, int lane) const;
    /// Returns the device data of a cache's model; uploads what a variant does not share.
    std::shared_ptr<const OnDevice> on_device(const std::shared_ptr<const Model>& model);
    /// Clears what it grows: buffers that count from 0, and those that are downloaded as rectangles, which
    /// not every lane or head fills.
    template <class V>
    void grow_clear(Buffer<V>& buffer, std::size_t size) {
        if (size <= buffer.size()) return;
        buffer.grow(executor_, size);
        executor_->clear(buffer.data(), buffer.size_bytes());
    }
    void size_buffers(const Plan& plan);
    void size_waiting_rows(Plan& plan);
    void upload_input(const Plan& plan);
    void launch_all(const Plan& plan);
    void embed(int n);
    void launch_layer(const Plan& plan, int layer);
    void project(const Plan& plan, int layer, const Input& input);
    void attend(const Plan& plan, int layer);
    template <class K>
    void attend_group(const Plan& plan, const Group& group, int layer);
    template <class K>
    void choose_pages(const Plan& plan, const Group& group, int layer, AttendSplit<K>& attend);
    template <class K>
    void fold_group(const Plan& plan, const Group& group, int layer);
    template <class K>
    void launch_reach(const Plan& plan, const Group& group, int first_layer, int last_layer);
    /// A group's rows of a layer; those of the layers after it follow, up to a fold.
    struct WaitingRows {
        RowBuffer logits, tempered;
        HeadBuffer<SplitSum> totals;
    };
    WaitingRows waiting_rows(const Plan& plan, const Group& group, int layer) const;
    /// Returns the group's rows in a buffer that keeps all layers of a lane, one after the other.
    RowBuffer kept_rows(const Plan& plan, const Group& group, int layer, const Buffer<float>& in) const;
    void copy_floats(const Buffer<float>& from, float* to, std::size_t size);
    void keep_part(const Plan& plan, int layer, const Buffer<float>& from, std::size_t part,
                   std::size_t size);
    void add_norm(const float* y, const float* z, const DeviceModel::Norm& norm, float* out, int n);
    void add_pending_norm(bool any, const DeviceModel::Norm& norm, int n);
    /// y[b] = W x[b] + bias for up to three matrices with the same input; where cuBLAS multiplies, without
    /// any use.
    void multiply(std::span<const MatrixView> w, const float* x, std::span<float* const> y, int n_batch,
                  const ProductUse& use = {});
    /// Returns the norm of x; for more lanes than kMostNormed, a launch computes it.
    Input normed_input(const DeviceModel::Norm& norm, int n);
    NormRule rule_of(const DeviceModel::Norm& norm) const;
    /// True where products add to the stream and apply activations themselves.
    bool fuses(int n) const { return !takes_cublas(n) && !model_->config().post_norm; }
    void launch_fused_layer(const Plan& plan, int layer);
    void fill_hidden(const Plan& plan, int layer, const Input& input, bool fused);
    void add_hidden(const Plan& plan, int layer, float* to, bool fused);
    float* hidden_of(int layer) const;
    template <class Visit>
    static void for_runs(const Plan& plan, int layer, Visit visit);
    void multiply_by_cublas(std::span<const MatrixView> w, const float* x, std::span<float* const> y,
                            int n_batch);
    /// True where cuBLAS multiplies; it has no products with quantised matrices, nor of floats with others.
    bool takes_cublas(int n_batch) const {
        return products_of_type_ && all_plain_ && n_batch >= products_.cublas_from &&
               (type_ == NumberType::f32 || products_.weights_precision);
    }
    /// True where prompts are rounded to the type of the weights.
    bool rounds() const {
        return products_.weights_precision && type_ != NumberType::f32 && products_of_type_;
    }
    void download_output(const Plan& plan);
    void add_times();
    void write_rows(const Plan& plan, int lane);
    /// The pages that a query head reads in the row.
    struct PagesRead {
        const std::uint8_t* read = nullptr;  ///< by page; null: the head reads all
        int length = 0;                      ///< tokens of the text in a page

        bool leave_out(int position) const { return read != nullptr && read[position / length] == 0; }
    };
    PagesRead pages_read(const Plan& plan, int lane, int g, int head) const;
    bool mark_hidden(const Plan& plan, int lane, int g, std::uint8_t* hidden) const;
    void write_shadow(const Plan& plan, int lane);
    void write_inputs(const Plan& plan, int lane);
    /// The key and the value of a row's token in one KV head.
    struct RowKv {
        std::vector<float> key, raw_key, value;  ///< raw_key: before rotation
    };
    RowKv row_kv(const Plan& plan, int lane, int g) const;
    /// Returns the row's query of a head as it is multiplied, before norm and rotation.
    const float* row_query(const Plan& plan, int lane, int layer, int h) const;
    void keep_queries(const Plan& plan, int lane);
    void write_evictions(const Plan& plan, int lane);
    void note_faults(const Plan& plan);
    void select_on_host(const LaneStep& step, RowBlock* block, bool whole_lane);
    /// Returns what a lane ranks by after rows, where its formulas name `expected` or `tri`; else null.
    std::shared_ptr<const DeviceQueries> queries_of(const Cache& cache);
    std::vector<Eviction> evictions_under(const ResolvedPolicy& policy, Cache& store, int last_row);

    ProductOptions products_;
    std::int64_t most_waiting_bytes_ = kMostWaitingBytes;  // less where the device had no room
    std::shared_ptr<const Model> model_;
    std::shared_ptr<Executor> executor_;
    NumberType type_;        // of plain matrices
    bool products_of_type_;  // the device multiplies matrices of the weights' type
    bool all_plain_;         // all matrices have one type
    WeightStore store_;
    std::shared_ptr<const OnDevice> own_;  // of model_
    std::vector<std::weak_ptr<const OnDevice>> variants_;
    std::vector<std::shared_ptr<const DeviceQueries>> queries_;
    const DeviceModel&
        weights_;  // of model_; variants differ in k, v and, where they compensate, gate, up and down
    DeviceRotations rotations_;
    StepTimes* times_ = nullptr;
    std::shared_ptr<PinnedPool> pool_;  // of blocks, which outlive the backend

    struct Scratch {
        Buffer<float> x, embedded, normed, q, k, v, raw_keys, attended, projected, fed, gate, up, logits;
        Buffer<std::uint16_t> narrowed;   // [lanes, widest input] f16 or bf16 for cuBLAS
        Buffer<NarrowTile> narrow_tiles;  // of the inputs of one launch of products in integers
        Buffer<float> row_logits, row_tempered, row_attention, row_noise, pooled, threshold, partial_values;
        Buffer<SplitSum> sums, totals;
        Buffer<std::uint32_t> n_done;  // zeros between launches
        Buffer<std::uint8_t> leaves, competes, guarded;
        Buffer<float> formula_lists, ties, key_lengths, key_directions, likeness, errors, lags, reach,
            expected, tri, code_win;
        Buffer<double> lag_deviations, lag_values, query_logits, largest_logits, win_sums;
        Buffer<std::int32_t> similar;
        Buffer<ShareToken> share_found, share_sorted;
        Buffer<std::int32_t> n_free, share_best, share_kept, share_missing, share_leave;
        Buffer<double> share_part, share_rest;
        Buffer<Leaving> leaving;
        Buffer<BlockRank> leaving_blocks;
        Buffer<float> page_bounds;
        Buffer<std::uint8_t> pages_read;  // [lanes, n_layers * n_heads, pages]
        Buffer<std::int32_t> victims, n_victims;
        Buffer<std::uint8_t> faults;  // [lanes, KV heads, kFaultKinds] zeros between steps
        Buffer<std::byte> input;
        Buffer<float> parts;    // [n_layers] RowParts of all lanes
        Buffer<float> queries;  // [n_layers, lanes, n_heads * head_dim] as they are multiplied
        Buffer<Fp16> packed_attention;
        Buffer<float> packed_scores, first_attention;
        Buffer<std::int32_t> order;
    } scratch_;
    /// Pinned host copies of the same.
    struct Host {
        HostBuffer<std::byte> input;
        HostBuffer<float> logits, row_logits, row_attention, row_noise, pooled, threshold;
        HostBuffer<std::int32_t> victims, n_victims;
        HostBuffer<std::uint8_t> faults, pages_read;
        HostBuffer<float> parts, first_attention, queries;
    } host_;
    /// Offsets, in floats, of what the host gets of a layer for a shadow or for RowOutput::inputs, for all
    /// lanes: q before rotation, k, v and the output of attention.
    struct RowParts {
        std::size_t q, k, v, attended, end;
    };
    RowParts row_parts(const Plan& plan) const;
    ShadowScratch shadow_scratch_;
    /// Returns the floats of a layer's queries of all lanes.
    std::size_t queries_of_layer(const Plan& plan) const;
    const float* rotation_rows_ = nullptr;
    const AnyLane* views_ = nullptr;  // device, inside input
    const PackedLane* packed_ = nullptr;
    const std::int32_t* tokens_ = nullptr;
    const std::int32_t* rows_ = nullptr;
};

}  // namespace keyhole::cuda
