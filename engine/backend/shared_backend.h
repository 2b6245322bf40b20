/// Lets several threads use one backend: the engine's run, and an export or a question that replays it
/// beside. On a device a second backend would need the weights a second time. Calls take turns in the order
/// in which they come, so that neither side starves. Any thread. Knows no session.
#pragma once

#include "engine/backend/backend.h"

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

namespace keyhole {

/// Turns in the order of arrival; a mutex may favour one thread.
class Turns {
  public:
    void take();
    void give_back();
    /// Returns how many wait for their turn.
    int n_waiting() const;

  private:
    mutable std::mutex mutex_;
    std::condition_variable changed_;
    std::uint64_t next_ = 0, now_ = 0;
};

/// Owns a backend. Its caches hold on to it, and also take turns. Timing of parts, which belongs to a whole
/// backend, is passed on.
class SharedBackend final : public Backend {
  public:
    explicit SharedBackend(std::shared_ptr<Backend> backend);
    ~SharedBackend() override;

    std::string name() const override;
    bool on_device() const override;
    KvType kv_type(KvType wanted) const override;
    std::unique_ptr<KvCache> make_cache(const ResolvedPolicy& policy,
                                        std::shared_ptr<const Model> variant) override;
    void prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes, PrefillSink* sink,
                 const std::function<bool(double)>& progress) override;
    void step(std::span<const LaneStep> lanes) override;
    void finish_rows() override;
    std::vector<Eviction> apply_policy(KvCache& cache, const ResolvedPolicy& policy, int last_row) override;
    void parallel_for(std::int64_t n, const std::function<void(std::int64_t i)>& body) override;
    bool time_parts(StepTimes* times) override;
    std::int64_t weight_bytes() const override;
    std::string weights_text() const override;
    std::string precision_text() const override;
    std::optional<LaunchCounts> launch_counts() const override;

  private:
    struct Owned;
    class Cache;
    std::shared_ptr<Owned> owned_;
};

}  // namespace keyhole
