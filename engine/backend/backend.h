/// What a lane's maths runs on: CPU or CUDA, chosen by make_backend at run time. Engine thread only. Knows model and policy.
///
/// A step does, for every lane at once: linear layers with one column a lane (weights are read once), then for each lane
/// attend (stored + the new token), score, evict. Results of a lane do not depend on which others run.
#pragma once

#include "engine/model/model.h"
#include "engine/policy/params.h"
#include "engine/policy/prefill_sink.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// K and V of one lane, a list of slots for each KV head with position[slot] and score[slot].
class KvCache {
  public:
    virtual ~KvCache() = default;
    virtual CacheUse use() const = 0;
    /// Bytes that the backend took for weights which the cache's variant does not have from the backend's model, besides those in main
    /// memory: all caches of a variant share them, and the last one gives them back.
    virtual std::int64_t variant_bytes() const { return 0; }
    /// Positions stored by a KV head, ascending.
    virtual std::vector<std::int32_t> stored_positions(int kv_head) const = 0;
    /// An exact copy, of scores and pins too: for fork.
    virtual std::unique_ptr<KvCache> clone() const = 0;

    /// Evicts a token by hand, pinned or not; its pin goes with it. False when it is not stored.
    virtual bool evict(int kv_head, int position) = 0;
    /// A pinned token is never evicted by a policy; it counts in the budget. Where pins crowd out the rest, recent tokens yield
    /// first (the oldest first), then sinks (the newest first); pins alone may hold a unit above its budget. In a unit of several
    /// KV heads a position pinned in any is pinned in all. False when it is not stored.
    virtual bool set_pinned(int kv_head, int position, bool pinned) = 0;
    /// Positions pinned in a KV head, ascending.
    virtual std::vector<std::int32_t> pinned_positions(int kv_head) const = 0;
};

struct LanePrefill {
    KvCache* cache = nullptr;
    const ResolvedPolicy* policy = nullptr;
    RowWants wants;  ///< of the last prompt row, which goes to `out`
    RowOutput* out = nullptr;
};

struct LaneStep {
    KvCache* cache = nullptr;
    const ResolvedPolicy* policy = nullptr;
    int token = 0;
    int row = 0;  ///< position of the token
    RowWants wants;
    RowOutput* out = nullptr;
};

/// Seconds of steps by what they went to, added up while Backend::time_parts is on.
struct StepTimes {
    double linear = 0;     ///< products with weights
    double attention = 0;  ///< rotation, logits, softmax, values
    double scoring = 0;    ///< accumulators folded
    double eviction = 0;   ///< victims chosen and removed, slots given
    double rest = 0;       ///< embedding, norms, activations, copies
    std::int64_t n_steps = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual std::string name() const = 0;  ///< "cpu, 2 threads, AVX3_ZEN4"
    /// An empty cache for a variant of the backend's model (shared_model() of it); null: for the model itself. The cache keeps its
    /// variant loaded. Throws Error(unsupported) where the backend cannot run variants.
    virtual std::unique_ptr<KvCache> make_cache(std::shared_ptr<const Model> variant = nullptr) = 0;

    /// Runs the prompt once for all lanes (their caches must be empty and of one model), folds the scores tile by tile, evicts, and frees the rest.
    /// One-shot only: a lane whose policy evicts stepwise is fed by step(). progress (0..1) may be empty; returning false cancels
    /// with Error(cancelled), caches left empty.
    virtual void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                         const std::function<bool(double)>& progress) = 0;

    /// Feeds one token to every lane.
    virtual void step(std::span<const LaneStep> lanes) = 0;

    /// The policy of a lane changed between rows: makes the accumulators that it needs, evicts down to its budget (stamped with
    /// last_row, the last row processed) and resizes the cache.
    virtual std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy,
                                               int last_row) = 0;

    /// Runs body(i) for every i in [0, n) and waits, on the threads that steps run on, if there are any: for what has to be done with
    /// a row besides.
    virtual void parallel_for(std::int64_t n, const std::function<void(std::int64_t i)>& body) {
        for (std::int64_t i = 0; i < n; ++i) body(i);
    }

    /// Adds the time of coming steps to *times, null: no longer. Steps are slower meanwhile. False where the backend cannot tell.
    virtual bool time_parts(StepTimes* times) {
        (void)times;
        return false;
    }
};

enum class BackendChoice { automatic, cpu, cuda };

struct BackendOptions {
    BackendChoice choice = BackendChoice::automatic;
    int n_threads = 0;  ///< 0: all cores this process may use
    int device = 0;     ///< CUDA device by index
    /// CUDA, for benches: lanes from which cuBLAS takes a step's products, 0: as usual; prompts in the type of the weights.
    int cublas_from = 0;
    bool narrow_prompt = false;
};

/// automatic takes CUDA where the module, a driver and a device are there and falls back to the CPU, saying why in *notice.
/// An explicit cuda that cannot be had throws Error(device).
std::unique_ptr<Backend> make_backend(std::shared_ptr<const Model> model, const BackendOptions& options,
                                      std::string* notice);

}  // namespace keyhole
