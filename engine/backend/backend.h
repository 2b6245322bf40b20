/// The interface of a compute backend, CPU or CUDA; make_backend chooses one at run time. Engine thread only.
/// Knows model and policy, not sessions, recorder or window.
///
/// A step runs the linear layers for all lanes at once, one column per lane, so that weights are read once.
/// Then each lane attends (to its stored tokens and the new one), scores and evicts. The results of a lane do
/// not depend on which other lanes run.
#pragma once

#include "engine/base/device_use.h"
#include "engine/base/kv_type.h"
#include "engine/model/model.h"
#include "engine/policy/future.h"
#include "engine/policy/params.h"
#include "engine/policy/prefill_sink.h"
#include "engine/policy/ranked_unit.h"
#include "engine/policy/row.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

/// A key or value that a cache holds as infinity or NaN.
struct KvFault {
    int kv_head = 0, position = 0;
    bool is_key = false;
    KvType type = KvType::f32;  ///< in which it is stored
    bool by_rounding = false;   ///< it was finite, and beyond what the type holds
    bool operator==(const KvFault&) const = default;
};

/// K and V of one lane. Each KV head has a list of slots with position[slot] and score[slot].
class KvCache {
  public:
    virtual ~KvCache() = default;
    virtual CacheUse use() const = 0;
    /// Returns the policy that decides what the cache keeps. Backend::apply_policy() changes it.
    virtual const ResolvedPolicy& policy() const = 0;
    /// Returns the bytes, besides main memory, that the backend allocated for weights of the cache's variant
    /// that its own model does not have. All caches of a variant share them; the last cache frees them.
    virtual std::int64_t variant_bytes() const { return 0; }
    /// Returns the positions that a KV head stores, ascending.
    virtual std::vector<std::int32_t> stored_positions(int kv_head) const = 0;
    /// Returns what a selection after `row`, the last one, would rank by other formulas of the tokens that
    /// the unit of a KV head stores. Changes nothing. Values that the cache does not know are NaN, or 0.
    virtual RankedUnit rank(int kv_head, const RankFormulas& by, int row) const = 0;
    /// Returns the first fault of the first KV head that stored one, even if the token has left since;
    /// nullopt as long as all is finite.
    virtual std::optional<KvFault> fault() const = 0;
    /// Returns an exact copy, with scores and pins. Used by fork.
    virtual std::unique_ptr<KvCache> clone() const = 0;

    /// Evicts one token on request, even a pinned one, and removes its pin. Returns false when the token is
    /// not stored.
    virtual bool evict(int kv_head, int position) = 0;
    /// Pins or unpins a token. A policy never evicts a pinned token; it counts in the budget. Where pins
    /// leave too few other tokens, recent tokens are evicted first (the oldest first), then sinks (the newest
    /// first). Pins alone may hold a unit above its budget. In a unit of several KV heads, a position pinned
    /// in one head is pinned in all. Returns false when the token is not stored.
    virtual bool set_pinned(int kv_head, int position, bool pinned) = 0;
    /// Returns the positions pinned in a KV head, ascending.
    virtual std::vector<std::int32_t> pinned_positions(int kv_head) const = 0;

    /// Sets the attention that comes, for policies that name `future`; null: none is known, and all is 0.
    void set_future(std::shared_ptr<const FutureTable> future) { future_ = std::move(future); }
    const std::shared_ptr<const FutureTable>& future() const { return future_; }
    /// Sets what a second pass over the prompt found, for policies that name `repeat`; null: all is 0.
    void set_repeats(std::shared_ptr<const RepeatTable> repeats) { repeats_ = std::move(repeats); }
    const std::shared_ptr<const RepeatTable>& repeats() const { return repeats_; }

    /// Returns the bytes of these tables, which lanes of equal settings share.
    std::int64_t known_bytes() const {
        return static_cast<std::int64_t>((future_ ? future_->bytes() : 0) +
                                         (repeats_ ? repeats_->bytes() : 0));
    }

  private:
    std::shared_ptr<const FutureTable> future_;
    std::shared_ptr<const RepeatTable> repeats_;
};

struct LanePrefill {
    KvCache* cache = nullptr;
    RowRequest requested;  ///< for the last prompt row, which is written to `out`
    RowOutput* out = nullptr;
};

struct LaneStep {
    KvCache* cache = nullptr;
    int token = 0;
    int row = 0;  ///< position of the token
    RowRequest requested;
    RowOutput* out = nullptr;
};

/// Seconds spent in each part of a step, summed over steps while Backend::time_parts is on.
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
    /// True where weights and caches are in a device's memory: a second backend needs them a second time.
    virtual bool on_device() const { return false; }
    /// Returns the type in which a lane's K and V are stored; wanted: PolicyParams::kv_dtype. Throws
    /// Error(unsupported) where the backend cannot store it.
    virtual KvType kv_type(KvType wanted) const = 0;
    /// Returns an empty cache for a variant of the backend's model (made by shared_model()), or for the model
    /// itself when null. The cache keeps its variant loaded. Throws Error(unsupported) where the backend
    /// cannot run variants.
    virtual std::unique_ptr<KvCache> make_cache(const ResolvedPolicy& policy,
                                                std::shared_ptr<const Model> variant = nullptr) = 0;

    /// Runs the prompt once for all lanes, folds the scores tile by tile, evicts, and frees the rest. The
    /// caches must be empty and belong to one model. One-shot policies only: a lane whose policy evicts
    /// stepwise gets its prompt through step(). progress receives 0..1 and may be empty; when it returns
    /// false, prefill throws Error(cancelled) and leaves the caches empty.
    virtual void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                         const std::function<bool(double)>& progress) = 0;

    /// Feeds one token to every lane. Blocks of rows (RowOutput::block) may still be filled afterwards.
    virtual void step(std::span<const LaneStep> lanes) = 0;
    /// Waits until the blocks of earlier rows are complete. Throws Error(device) where the device failed.
    virtual void finish_rows() {}

    /// Applies a policy that changed between rows: creates the accumulators that it needs, evicts down to its
    /// budget and resizes the cache. Evictions carry last_row, the last row processed.
    virtual std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy,
                                               int last_row) = 0;

    /// Runs body(i) for every i in [0, n) and waits. Uses the threads that run steps, if there are any. Meant
    /// for extra work on a row.
    virtual void parallel_for(std::int64_t n, const std::function<void(std::int64_t i)>& body) {
        for (std::int64_t i = 0; i < n; ++i) body(i);
    }

    /// Adds the time of later steps to *times; null stops timing. Timed steps are slower. Returns false where
    /// the backend cannot measure.
    virtual bool time_parts(StepTimes* times) {
        (void)times;
        return false;
    }

    /// Returns the bytes that the weights of the backend's model take where it reads them, in main memory or
    /// on the device: laid matrices in place of the file's pages.
    virtual std::int64_t weight_bytes() const = 0;
    /// Says how the weights are kept in memory, in a sentence; empty where there is nothing to say.
    virtual std::string weights_text() const { return {}; }

    /// Says in a sentence in what it differs from the CPU, and how to have the CPU's; empty: in nothing.
    virtual std::string precision_text() const { return {}; }
    /// Returns what it has launched so far; nullopt where it launches nothing.
    virtual std::optional<LaunchCounts> launch_counts() const { return std::nullopt; }
};

}  // namespace keyhole
