/// The CPU backend: Highway kernels, oneDNN for the prompt's products, work in small chunks from one counter.
/// Engine thread only.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/cpu/cache.h"
#include "engine/backend/cpu/places.h"
#include "engine/backend/cpu/score.h"
#include "engine/backend/cpu/select.h"
#include "engine/base/threads.h"

#include <memory>
#include <vector>

namespace keyhole {

/// n_threads: 0 takes all cores that this process may use.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<const Model> model, int n_threads);

}  // namespace keyhole

namespace keyhole::cpu {

/// One product y = W x of a batch, see multiply_rows.
struct Linear {
    const Weight* w = nullptr;
    const float* x = nullptr;
    std::int64_t x_stride = 0;
    float* y = nullptr;
    std::int64_t y_stride = 0;
};

/// Norm gains as float, and the rotary frequencies: small enough to widen once.
struct ModelTables {
    explicit ModelTables(const Model& model);

    std::vector<std::vector<float>> attention_norm, mlp_norm;  ///< [layers][d_model]
    std::vector<float> final_norm;
    std::vector<double> inverse_frequency;  ///< [head_dim / 2]: theta^(-2 i / head_dim)

    /// Cosines and sines of a position's angles, [head_dim / 2] each.
    void angles(int position, float* cosine, float* sine) const;
};

class CpuBackend final : public Backend {
  public:
    CpuBackend(std::shared_ptr<const Model> model, int n_threads);

    std::string name() const override;
    std::unique_ptr<KvCache> make_cache() override;
    void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                 const std::function<bool(double)>& progress) override;
    void step(std::span<const LaneStep> lanes) override;
    std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) override;

  private:
    /// Runs several products of one batch, their rows in chunks of a fixed number of bytes.
    void multiply(std::span<const Linear> products, int n_batch);
    void attend(int layer, std::span<const LaneStep> lanes);
    void attend_kv_head(int layer, int g, int lane, const LaneStep& step, int worker);
    void write_values(const LaneStep& step, int g, int head, const RowScratch& row,
                      const ScoredRow& scored) const;
    void measure_shadow(const LaneStep& step, int g, const HeadRef& reader, const float* output,
                        const ScoredRow& scored, const RowScratch& row, ShadowScratch& scratch) const;
    void select(std::span<const LaneStep> lanes);
    void begin_values(const LaneStep& step) const;

    std::shared_ptr<const Model> model_;
    ModelTables tables_;
    TurnTable turns_;  // as far as a lane with other positions than the original ones needs it
    ThreadPool pool_;

    // Scratch of a step, [n_lanes, width] each, grown and kept.
    struct StepScratch {
        std::vector<float> x, normed, q, k, v, attended, projected, gate, up, logits, cosine, sine;
    } scratch_;
    /// Scratch of one worker.
    struct WorkerScratch {
        RowScratch row;
        std::vector<float> turned;  // keys
        std::vector<std::int32_t> steps;
        UnitScores unit;
        ShadowScratch shadow;
        std::vector<int> victims;
    };
    std::vector<WorkerScratch> workers_;
    std::vector<std::vector<Eviction>>
        gone_;  // [n_lanes, n_kv_heads] of heads that chose as soon as they were scored
};

}  // namespace keyhole::cpu
