/// The CPU backend: Highway kernels, oneDNN for the prompt's products, work in small chunks from one shared
/// counter. Engine thread only. Knows no session and no recorder.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/model_tables.h"
#include "engine/backend/common/rotation_table.h"
#include "engine/backend/cpu/cache.h"
#include "engine/backend/cpu/integer_weights.h"
#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/backend/cpu/weight_pages.h"
#include "engine/base/aligned.h"
#include "engine/base/backend_options.h"
#include "engine/base/threads.h"

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace keyhole {

/// n_threads 0 uses all cores that this process may use. With Precision::weights, products with quantised
/// matrices are computed in integers.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model, int n_threads,
                                          Precision precision = Precision::floats);

}  // namespace keyhole

namespace keyhole::cpu {

/// One product y = W x + bias of a batch, see multiply_rows. bias may be null.
struct Linear {
    const Weight* w = nullptr;
    const IntegerWeights* integers = nullptr;  ///< where w may be laid; null: products in floats
    const float* bias = nullptr;
    const float* x = nullptr;
    std::int64_t x_stride = 0;
    float* y = nullptr;
    std::int64_t y_stride = 0;
    int n_batch = 0;
};

class CpuBackend final : public Backend {
  public:
    CpuBackend(std::shared_ptr<const Model> model, int n_threads, Precision precision);

    std::string name() const override;
    std::unique_ptr<KvCache> make_cache(const ResolvedPolicy& policy,
                                        std::shared_ptr<const Model> variant) override;
    KvType kv_type(KvType wanted) const override;
    void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                 const std::function<bool(double)>& progress) override;
    void step(std::span<const LaneStep> lanes) override;
    std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) override;
    void parallel_for(std::int64_t n, const std::function<void(std::int64_t i)>& body) override;
    bool time_parts(StepTimes* times) override;
    std::int64_t weight_bytes() const override;
    std::string weights_text() const override;

  private:
    void run_step(std::span<const LaneStep> lanes);
    void share_out(double seconds);
    /// Consecutive lanes of a step whose caches belong to one model: the session's own model or a variant
    /// with other KV sharing.
    struct Group {
        std::shared_ptr<const Model> model;
        const ModelTables* tables = nullptr;
        const IntegerWeights* integers = nullptr;
        int first = 0, n = 0;
    };
    /// Returns the lanes with those of one model next to each other; fills groups_.
    std::span<const LaneStep> by_model(std::span<const LaneStep> lanes);
    const Group& group_of(int lane) const;
    const ModelTables& tables_of(const std::shared_ptr<const Model>& model);
    /// Returns the laid weights of a model; null where products are computed in floats.
    const IntegerWeights* integers_of(const std::shared_ptr<const Model>& model);

    /// Runs several products; their rows are split into chunks of a fixed number of bytes.
    void multiply(std::span<const Linear> products);
    /// Returns what a product in integers reads: its inputs, narrowed and ordered once for all products that
    /// share them.
    NarrowInputs narrowed(const Linear& product, const LaidMatrix& laid);
    /// Queues y = W x + bias of one weight of a layer for all lanes in products_: once for consecutive groups
    /// that share the weight, not at all where the weight is empty.
    void queue(int layer, Weight LayerWeights::*weight, std::vector<float> ModelTables::Layer::*bias,
               const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride);
    void run_queue();
    /// Writes x of every lane: the embedding of its token, plus that of its position where positions are
    /// learned.
    void embed(std::span<const LaneStep> lanes);
    /// x <- x + mlp(input)
    void feed_forward(int layer, const float* input);
    /// projected <- what the experts that the router chooses make of the input. It reads their weights alone.
    void run_experts(int layer, const float* input);
    /// Writes next_logits of every lane from x.
    void write_logits(std::span<const LaneStep> lanes);
    void attend(int layer, std::span<const LaneStep> lanes);
    /// Measures how far the new values of a layer reach in lanes that keep that with the tokens.
    void measure_reach(int layer, std::span<const LaneStep> lanes);
    class HeadStep;
    /// Appends the new token (owner layer only) to a KV head. Then, for every query head of the layer that
    /// reads it: logits, softmax, values, and the running accumulators.
    void attend_kv_head(int layer, int g, int lane, const LaneStep& step, int worker);
    void write_values(const LaneStep& step, int g, int head, const RowScratch& row, const ScoredRow& scored,
                      bool is_first) const;
    void measure_shadow(const LaneStep& step, int g, const HeadRef& reader, const float* output,
                        const ScoredRow& scored, const RowScratch& row, ShadowScratch& scratch) const;
    void select(std::span<const LaneStep> lanes);
    void begin_values(const LaneStep& step) const;

    std::shared_ptr<const Model> model_;
    ModelTables tables_;
    // Grown as lanes with other positions than the original ones need them; the second of local_rotary.
    RotationTable turns_, local_turns_;
    ThreadPool pool_;
    std::shared_ptr<const IntegerWeights> integers_;  // of the model; null: products in floats
    WeightPages weight_pages_;
    StepTimes* times_ = nullptr;

    // Scratch of a step, [n_lanes, width] each; grows and is never freed.
    struct StepScratch {
        AlignedFloats x, normed, q, k, v, raw_keys, attended, projected, gate, up, logits, cosine, sine,
            local_cosine, local_sine, embedded;
        AlignedFloats router, expert_gate, expert_up, expert_out;  // [n_lanes, experts of a token, width]
        std::vector<float> expert_weight;                          // [n_lanes, experts of a token]
        std::vector<int> chosen, experts;                          // of a lane; of all
        std::vector<float> weights;
    } scratch_;
    /// Scratch of one worker thread.
    struct WorkerScratch {
        RowScratch row;
        AlignedFloats turned, cosine, sine;  // keys; angles of the query's place
        std::vector<std::int32_t> steps;
        UnitScores unit;
        ShadowScratch shadow;
        std::vector<int> victims;
        // Of the query heads of a KV head, which are computed together.
        std::vector<std::vector<float>> logits, probabilities, shadow_queries;
        std::vector<const float*> queries, weights;
        std::vector<float*> logits_out, sums_out;
        /// Of a query head whose row reads some pages.
        struct PagesOfHead {
            std::vector<std::pair<int, int>> runs;  ///< of slots that it reads
            std::vector<std::uint8_t> unread;       ///< by slot: 1 where it does not
            std::vector<float> best, part;
            std::vector<int> chosen;
            /// Makes all the room that a row needs: nothing is allocated where threads help.
            void begin(int n_slots, int n_pages, int head_dim);
        };
        std::vector<PagesOfHead> pages;
        PageBounds bounds;
        /// Makes room for rows of n slots of so many query heads.
        void begin_heads(std::size_t n_heads, int n);
        /// Fetches what a later run reads into the processor's cache: runs lie apart in memory.
        static void fetch_ahead(const KvRows& rows, std::span<const std::pair<int, int>> of, std::size_t run);
        /// Chooses the pages that query i reads by its bounds, and computes the logits of their tokens alone.
        void read_pages(std::size_t i, const KeyPages& all, const CpuKvCache& cache, int g,
                        const ResolvedPolicy& policy, float scale, float cap);
        /// sums_out[i] <- the values of these tokens, weighted.
        void sum_pages(std::size_t i, const KvRows& values);
    };
    std::vector<WorkerScratch> workers_;
    std::vector<Group> groups_;     // of the current step
    std::vector<LaneStep> sorted_;  // lanes of the current step
    std::vector<Linear> products_;
    /// Of a product: its chunks, the rows in one, and where it is computed in integers.
    struct Range {
        std::int64_t n_chunks = 0, rows = 0;
        const LaidMatrix* laid = nullptr;
        NarrowInputs in;
    };
    std::vector<Range> ranges_;
    /// An input of the products that run now, narrowed, and ordered for matrices of a type.
    struct Narrowed {
        const float* x = nullptr;
        int n_batch = 0;
        std::int64_t cols = 0;
        DType dtype = DType::q8_0;
        NarrowBlocks blocks;
        OrderedBytes ordered;
        NarrowInputs in;  ///< in its own order, and of blocks, which may be another's
    };
    std::deque<Narrowed> narrowed_;
    std::size_t n_narrowed_ = 0;
    std::vector<std::pair<int, int>> work_;  // lane, KV head
    /// What measure_reach() knows of a lane.
    struct NewReach {
        const LaidMatrix* w = nullptr;  ///< null: nothing
        std::vector<float> values;      ///< of the layer, as they are stored
        AlignedFloats lengths;          ///< of reach_of_lengths()
    };
    std::vector<NewReach> new_reach_;   // [n_lanes]
    std::int64_t d_kv_ = 0, d_ff_ = 0;  // the widest of the groups: strides of k and v, gate and up
    std::size_t n_kv_heads_ = 0;        // the most of any group
    struct Variant {
        std::weak_ptr<const Model> model;
        std::unique_ptr<ModelTables> tables;
        std::shared_ptr<const IntegerWeights> integers;
    };
    std::vector<Variant> variants_;
    const Variant& variant_of(const std::shared_ptr<const Model>& model);
    std::vector<std::vector<Eviction>>
        gone_;  // [n_lanes, n_kv_heads] of heads that chose as soon as they were scored
};

}  // namespace keyhole::cpu
