/// K, V, positions and scores of one lane in device memory. Engine thread only.
///
/// Slots of a KV head are dense, [0, count). The host keeps a list of which position each slot holds, and repeats on it what kernels
/// did: appended tokens and removed ones. KV heads of a unit that hold the same tokens hold them in the same slots, so that one
/// selection on the device serves them all; every rebuild (a command changed sizes, accumulators or single heads) puts slots in the
/// order of the text, which restores that wherever the sets are equal. Heads whose sets differ (after a change of scope, or a token
/// evicted by hand in one of them) are selected on the host until they agree again.
///
/// Where the device has no room (Error(no_memory)) a cache stays as it was; after Error(device) it is lost.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/accumulators.h"
#include "engine/backend/common/selection.h"
#include "engine/backend/common/shadow.h"
#include "engine/backend/cuda/device_model.h"

#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace keyhole::cuda {

/// Victims of one unit's selection on the host, as positions, ascending.
struct HostSelection {
    std::vector<std::int32_t> positions;  ///< all that the unit's heads hold, ascending
    std::vector<float> pooled;            ///< of these
    std::vector<int> victims;             ///< indices
    float threshold = 0;
};

template <class T>
class CudaKvCache final : public KvCache {
  public:
    /// For a model, which it keeps loaded.
    CudaKvCache(std::shared_ptr<Executor> executor, std::shared_ptr<const OnDevice<T>> of);

    CacheUse use() const override;
    std::int64_t variant_bytes() const override { return of_->uploaded_bytes; }
    std::vector<std::int32_t> stored_positions(int g) const override;
    std::unique_ptr<KvCache> clone() const override;
    bool evict(int g, int position) override;
    bool set_pinned(int g, int position, bool pinned) override;
    std::vector<std::int32_t> pinned_positions(int g) const override { return pinned_[at(g)]; }

    /// Makes the accumulators that the policy needs (a new one starts from its nearest running relative) and the noise of stored
    /// tokens.
    void set_policy(const ResolvedPolicy& policy);
    const ResolvedPolicy& policy() const { return policy_; }
    const KvLayout& layout() const { return *layout_; }
    /// Whose K and V they are.
    const OnDevice<T>& of() const { return *of_; }

    /// New memory with room for so many slots in every KV head, at least for what each stores; the old goes back to the driver.
    void reserve(std::span<const int> capacity);
    void clear();

    int capacity(int g) const { return store_.capacity[at(g)]; }
    int largest_capacity() const;
    bool has_no_room() const { return store_.data.size() == 0; }
    int count(int g) const { return static_cast<int>(positions_[at(g)].size()); }
    int largest_count() const;
    const std::vector<std::int32_t>& positions(int g) const { return positions_[at(g)]; }  ///< by slot
    const std::vector<std::int32_t>& order(int g) const {
        return order_[at(g)];
    }  ///< slots by ascending position
    bool has_noise() const { return store_.has_noise; }

    /// All K and V of the text, on the host, where the policy asked for a shadow from its start; else null.
    ShadowStore* shadow() { return shadow_ ? &*shadow_ : nullptr; }
    const ShadowStore* shadow() const { return shadow_ ? &*shadow_ : nullptr; }

    const std::vector<Unit>& units() const { return units_; }
    bool is_on_host(std::size_t unit) const { return on_host_[unit] != 0; }
    bool any_on_host() const;

    /// What kernels see; rules in device memory.
    LaneView<T> view(const RowRule* rules, int row) const;
    /// Where keys stand in the coming row (policy().positions), by slot: how far back each is turned; returns the place of the row's
    /// token. steps [count(g) + 1]. CPU twin: cpu/places.h.
    int steps_back(int g, int row, std::span<std::int32_t> steps) const;
    const DeviceHead<T>* device_heads() const;
    const HeadScores* device_scores() const;

    /// Repeats BeginRow on the host's list.
    void note_appended(int row);
    /// Repeats CompactHead: slots ascending. Appends the positions that left, ascending.
    void note_removed(int g, std::span<const std::int32_t> slots, std::vector<std::int32_t>& positions);
    /// Tokens that kernels put into empty KV heads, by slot, ascending, before adopt().
    void note_filled(int g, std::vector<std::int32_t> positions);
    /// Tells the device the counts and pins that the host holds, and draws noise.
    void adopt();

    /// Pools a unit's scores and chooses its victims on the host, waiting for them: for units whose heads differ, and changes of policy.
    /// Removes nothing. may_evict: else only the scores are wanted.
    HostSelection select_on_host(const Unit& unit, int row, bool may_evict);
    /// Removes tokens by position, a list for each KV head, ascending; capacity as it was.
    void remove(const std::vector<std::vector<std::int32_t>>& positions);

  private:
    struct Store {
        Buffer<std::byte> data;
        std::vector<int> capacity;              // [n_kv_heads]
        std::vector<std::int64_t> first_slot;   // [n_kv_heads] slots of the KV heads before
        std::vector<std::int64_t> first_score;  // [n_layers * n_heads] the same for what query heads have
        std::array<bool, kAccumulators> running{true, false, false, false};
        bool has_noise = false;
        std::size_t keys_at = 0, values_at = 0, positions_at = 0, pinned_at = 0, noise_at = 0;
        std::array<std::size_t, kAccumulators> score_at{};
    };
    /// Device tables of a store: heads, scores, units, unit_of_head, one after the other.
    struct Tables {
        Buffer<std::byte> data;
    };

    static std::size_t at(int i) { return static_cast<std::size_t>(i); }
    int n_kv_heads() const { return layout_->n_kv_heads(); }
    int n_query_heads() const { return layout_->n_layers() * layout_->n_heads(); }
    Store make_store(std::vector<int> capacity, const std::array<bool, kAccumulators>& running,
                     bool has_noise) const;
    DeviceHead<T> device_head(const Store& store, int g) const;
    HeadScores head_scores(const Store& store, int head) const;
    /// Uploads the tables of store_; units follow the policy's scope.
    void write_tables();
    void write_pins();
    /// rule: of the policy, on the device.
    void draw_noise(const Buffer<RowRule>& rule);
    void find_units();
    std::vector<std::vector<std::int32_t>> all_slots() const;
    /// Slots of every KV head by number, on the device.
    struct SlotLists {
        Buffer<std::int32_t> slots, offset;
        int most = 0;  ///< of one KV head
    };
    SlotLists upload_slots(const std::vector<std::vector<std::int32_t>>& slots) const;
    /// Into the first slots of this store, in their order, from a store with other tables.
    void copy_slots(const SlotLists& lists, const Buffer<std::byte>& from,
                    const std::array<bool, kAccumulators>& running);
    /// Moves the kept slots of every KV head, in their order, into a new store.
    void rebuild(const std::vector<std::vector<std::int32_t>>& kept, Store store);
    int order_index(int g, int position) const;

    std::shared_ptr<Executor> executor_;
    std::shared_ptr<const OnDevice<T>> of_;
    const KvLayout* layout_;
    int head_dim_;
    ResolvedPolicy policy_;
    std::vector<std::vector<std::int32_t>> positions_;  // by slot
    std::vector<std::vector<std::int32_t>> order_;
    std::vector<std::vector<std::int32_t>> pinned_;  // positions
    std::vector<Unit> units_;
    std::vector<std::uint8_t> on_host_;  // [units]
    Store store_;
    Buffer<std::byte> tables_;
    std::optional<ShadowStore> shadow_;
};

/// ReaderTable's order on the host: query heads that read KV heads [first, last).
template <class Visit>
void for_readers(const KvLayout& layout, int first, int last, Visit visit) {
    for (int g = first; g < last; ++g)
        for (const HeadRef& reader : layout.kv_head(g).readers) visit(g, reader);
}

}  // namespace keyhole::cuda
