#include "engine/backend/shared_backend.h"

#include <utility>

namespace keyhole {

void Turns::take() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = next_++;
    changed_.wait(lock, [&] { return now_ == mine; });
}

void Turns::give_back() {
    {
        const std::lock_guard lock(mutex_);
        ++now_;
    }
    changed_.notify_all();
}

int Turns::n_waiting() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(next_ - now_) - 1;
}

namespace {

class Turn {
  public:
    explicit Turn(Turns& turns) : turns_(turns) { turns_.take(); }
    ~Turn() { turns_.give_back(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

  private:
    Turns& turns_;
};

}  // namespace

struct SharedBackend::Owned {
    explicit Owned(std::shared_ptr<Backend> of) : backend(std::move(of)) {}
    Turns turns;
    std::shared_ptr<Backend> backend;
};

class SharedBackend::Cache final : public KvCache {
    /// Calls a member of the inner cache in a turn.
    template <class Member, class... Args>
    auto locked(Member member, Args... args) const {
        const Turn turn(owned_->turns);
        return ((*inner_).*member)(args...);
    }

  public:
    Cache(std::shared_ptr<Owned> owned, std::unique_ptr<KvCache> inner)
        : owned_(std::move(owned)), inner_(std::move(inner)) {}
    ~Cache() override {
        const Turn turn(owned_->turns);
        inner_.reset();
    }

    CacheUse use() const override { return locked(&KvCache::use); }
    // The policy changes only in apply_policy(), on the thread that uses this cache.
    const ResolvedPolicy& policy() const override { return inner_->policy(); }
    std::int64_t variant_bytes() const override { return locked(&KvCache::variant_bytes); }
    std::vector<std::int32_t> stored_positions(int g) const override {
        return locked(&KvCache::stored_positions, g);
    }
    RankedUnit rank(int g, const RankFormulas& by, int row) const override {
        return locked(&KvCache::rank, g, std::cref(by), row);
    }
    std::optional<KvFault> fault() const override { return locked(&KvCache::fault); }
    std::unique_ptr<KvCache> clone() const override {
        return std::make_unique<Cache>(owned_, locked(&KvCache::clone));
    }
    bool evict(int g, int position) override { return locked(&KvCache::evict, g, position); }
    bool set_pinned(int g, int position, bool pinned) override {
        return locked(&KvCache::set_pinned, g, position, pinned);
    }
    std::vector<std::int32_t> pinned_positions(int g) const override {
        return locked(&KvCache::pinned_positions, g);
    }

    static KvCache* inner(KvCache* cache) { return static_cast<Cache&>(*cache).inner_.get(); }

  private:
    std::shared_ptr<Owned> owned_;
    std::unique_ptr<KvCache> inner_;
};

SharedBackend::SharedBackend(std::shared_ptr<Backend> backend)
    : owned_(std::make_shared<Owned>(std::move(backend))) {}
SharedBackend::~SharedBackend() = default;

std::string SharedBackend::name() const {
    return owned_->backend->name();
}

bool SharedBackend::on_device() const {
    return owned_->backend->on_device();
}

KvType SharedBackend::kv_type(KvType wanted) const {
    return owned_->backend->kv_type(wanted);
}

std::unique_ptr<KvCache> SharedBackend::make_cache(const ResolvedPolicy& policy,
                                                   std::shared_ptr<const Model> variant) {
    const Turn turn(owned_->turns);
    return std::make_unique<Cache>(owned_, owned_->backend->make_cache(policy, std::move(variant)));
}

void SharedBackend::prefill(std::span<const int> tokens, std::span<const LanePrefill> lanes,
                            PrefillSink* sink, const std::function<bool(double)>& progress) {
    std::vector<LanePrefill> inner(lanes.begin(), lanes.end());
    for (LanePrefill& lane : inner) lane.cache = Cache::inner(lane.cache);
    const Turn turn(owned_->turns);
    owned_->backend->prefill(tokens, inner, sink, progress);
}

void SharedBackend::step(std::span<const LaneStep> lanes) {
    std::vector<LaneStep> inner(lanes.begin(), lanes.end());
    for (LaneStep& lane : inner) lane.cache = Cache::inner(lane.cache);
    const Turn turn(owned_->turns);
    owned_->backend->step(inner);
}

void SharedBackend::finish_rows() {
    const Turn turn(owned_->turns);
    owned_->backend->finish_rows();
}

std::vector<Eviction> SharedBackend::apply_policy(KvCache& cache, const ResolvedPolicy& policy,
                                                  int last_row) {
    const Turn turn(owned_->turns);
    return owned_->backend->apply_policy(*Cache::inner(&cache), policy, last_row);
}

/// No turn: the work is the caller's own, and may ask its caches.
void SharedBackend::parallel_for(std::int64_t n, const std::function<void(std::int64_t i)>& body) {
    for (std::int64_t i = 0; i < n; ++i) body(i);
}

bool SharedBackend::time_parts(StepTimes* times) {
    const Turn turn(owned_->turns);
    return owned_->backend->time_parts(times);
}

std::int64_t SharedBackend::weight_bytes() const {
    const Turn turn(owned_->turns);
    return owned_->backend->weight_bytes();
}

std::string SharedBackend::weights_text() const {
    const Turn turn(owned_->turns);
    return owned_->backend->weights_text();
}

std::string SharedBackend::precision_text() const {
    const Turn turn(owned_->turns);
    return owned_->backend->precision_text();
}

std::optional<LaunchCounts> SharedBackend::launch_counts() const {
    const Turn turn(owned_->turns);
    return owned_->backend->launch_counts();
}

}  // namespace keyhole
