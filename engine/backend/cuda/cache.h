/// K, V, positions and scores of one lane in device memory. Engine thread only. Knows the executor, no CUDA.
/// K and V have the policy's type.
///
/// Slots of a KV head are dense, [0, count). The host keeps a list of the position in each slot and applies
/// to it what kernels did: appended tokens and removed ones. KV heads of a unit that hold the same tokens
/// hold them in the same slots, so one selection on the device serves them all. Every rebuild (after a
/// command changed sizes or accumulators) puts slots in text order; tokens evicted by a command are removed
/// in place, with a rebuild only where heads of a unit then hold the same tokens in other slots. Heads whose
/// sets differ (after a change of scope, or after a token was evicted on request in one of them) are selected
/// on the host until the sets agree again.
///
/// When the device has no memory (Error(no_memory)) a cache stays unchanged; after Error(device) its contents
/// are lost.
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/accumulators.h"
#include "engine/backend/common/choice.h"
#include "engine/backend/common/kept_queries.h"
#include "engine/backend/common/shadow.h"
#include "engine/backend/cuda/device_model.h"
#include "engine/base/index.h"
#include "engine/policy/selection.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace keyhole::cuda {

/// Result of one unit's selection on the host.
struct HostSelection {
    std::vector<std::int32_t> positions;  ///< all positions that the unit's heads hold, ascending
    std::vector<float> pooled;            ///< score of each position
    std::vector<float> ties;              ///< what orders equal scores; empty: their age alone
    std::vector<std::int32_t> pinned;     ///< positions that cannot leave, ascending
    std::vector<int> victims;             ///< indices into positions, ascending
    float threshold = 0;
};

class CudaKvCache final : public KvCache {
  public:
    /// Makes a cache for a model and keeps the model loaded.
    CudaKvCache(std::shared_ptr<Executor> executor, std::shared_ptr<const OnDevice> of);

    CacheUse use() const override;
    std::int64_t variant_bytes() const override { return of_->uploaded_bytes; }
    std::vector<std::int32_t> stored_positions(int g) const override;
    RankedUnit rank(int kv_head, const RankFormulas& by, int row) const override;
    std::optional<KvFault> fault() const override;
    std::unique_ptr<KvCache> clone() const override;
    bool evict(int g, int position) override;
    bool set_pinned(int g, int position, bool pinned) override;
    std::vector<std::int32_t> pinned_positions(int g) const override { return pinned_[to_index(g)]; }

    /// One ascending list per KV head.
    using PositionLists = std::vector<std::vector<std::int32_t>>;

    /// Starts the accumulators that the policy needs (each is copied from its nearest running accumulator),
    /// draws the noise of stored tokens, removes tokens, and converts K and V to the policy's type. removed:
    /// empty, or their positions. last_row: the last one so far.
    void set_policy(const ResolvedPolicy& policy, const PositionLists& removed = {}, int last_row = -1);
    const ResolvedPolicy& policy() const override { return policy_; }
    const KvLayout& layout() const { return *layout_; }
    /// The model whose K and V these are.
    const OnDevice& of() const { return *of_; }

    /// Moves to new memory with room for capacity[g] slots in every KV head, at least for what each stores,
    /// and frees the old memory, layer by layer. Tokens stay in their slots. Where memory ends halfway
    /// (Error(no_memory)), the first layers have the new size.
    void reserve(std::span<const int> capacity);
    void clear();

    int capacity(int g) const { return store_.capacity[to_index(g)]; }
    int largest_capacity() const;
    bool has_no_room() const { return store_.size_bytes() == 0; }
    int count(int g) const { return static_cast<int>(positions_[to_index(g)].size()); }
    int largest_count() const;
    const std::vector<std::int32_t>& positions(int g) const { return positions_[to_index(g)]; }  ///< by slot
    const std::vector<std::int32_t>& order(int g) const {
        return order_[to_index(g)];
    }  ///< slots by ascending position
    /// True when slot i holds the i-th position, so that rows need no reordering.
    bool in_text_order(int g) const { return in_text_order_[to_index(g)] != 0; }
    bool all_in_text_order() const {
        return std::find(in_text_order_.begin(), in_text_order_.end(), 0) == in_text_order_.end();
    }
    bool has_noise() const { return store_.has_noise; }
    /// Newest rows whose attention it keeps.
    int window() const { return store_.window; }
    /// Sets from which row on they are kept, once a prompt's rows have been written.
    void begin_kept_rows(int row) { kept_.begin(policy_, row); }
    KeptQueries& kept_queries() { return queries_; }
    const KeptQueries& kept_queries() const { return queries_; }
    NumberType kv_type() const { return store_.type; }

    /// All K and V of the text, on the host, where the policy had a shadow from the start; else null.
    ShadowStore* shadow() { return shadow_ ? &*shadow_ : nullptr; }
    const ShadowStore* shadow() const { return shadow_ ? &*shadow_ : nullptr; }

    const std::vector<Unit>& units() const { return units_; }
    bool is_on_host(std::size_t unit) const { return on_host_[unit] != 0; }
    bool any_on_host() const;

    /// Returns how the KV heads read pages in a row; empty: the row reads all.
    std::vector<PageRule> page_rules(int row) const;
    /// Makes room for the pages of the coming row. rules: page_rules() of it.
    void reserve_pages(std::span<const PageRule> rules, int row);
    int page_stride() const { return page_stride_; }
    /// Notes that kernels have computed the pages of a row, but for its own token.
    void note_pages(int row) { stale_from_ = row; }
    /// Returns the arguments that kernels read, without those of pages. `rules` lies in device memory.
    AnyLane view(const RowRule* rules, int row) const;
    /// The same of pages; rules: page_rules(), in device memory.
    LanePages pages(const PageRule* rules) const;
    /// Writes, by slot, how many positions each key is turned back in the coming row (policy().positions);
    /// returns the place of the row's token. steps [count(g) + 1]. CPU twin: cpu/position_remap.h.
    int steps_back(int g, int row, std::span<std::int32_t> steps) const;
    /// Returns the place of the youngest token that is stored.
    int place_of_last(int g) const;
    /// Write for formulas, in text order with the coming row's token: the slots of a KV head, and `future`
    /// and `repeat` of its tokens. [count(g) + 1]
    void order_of_row(int g, std::span<std::int32_t> slots) const;
    void future_of_row(int g, int row, std::span<float> sums) const;
    void repeat_of_row(int g, int row, std::span<float> most) const;
    const AnyHead* device_heads() const;
    const HeadScores* device_scores() const;

    /// Applies BeginRow to the host's list.
    void note_appended(int row);
    /// Applies CompactHead to the host's list. slots are ascending. Appends the removed positions, ascending.
    void note_removed(int g, std::span<const std::int32_t> slots, std::vector<std::int32_t>& positions);
    /// Notes a key or value that is not finite as stored. by_rounding: it was finite before.
    void note_fault(int g, int position, bool is_key, bool by_rounding);
    /// Records the tokens that kernels put into an empty KV head, by slot, ascending. Call before adopt().
    void note_filled(int g, std::vector<std::int32_t> positions);
    /// Uploads the counts and pins that the host holds, and draws noise.
    void adopt();

    /// Pools a unit's scores, waits for them and chooses its victims on the host: for units whose heads
    /// differ and for changes of policy. Removes nothing. With may_evict false only the scores are computed.
    /// policy: the cache's or the one to be set.
    HostSelection select_on_host(const Unit& unit, const ResolvedPolicy& policy, int row, bool may_evict);
    /// As select_on_host(), for all KV heads of a policy whose heads share budgets at rows. is_due: the row
    /// may evict.
    std::vector<HostSelection> select_sharing(const ResolvedPolicy& policy, int row, bool is_due);
    /// Removes tokens by position, in place; capacity stays the same.
    void remove(const PositionLists& removed);

  private:
    /// Returns the position of a KV head's token in text order; the row's own comes last.
    int position_in_order(int g, int i, int row) const;
    /// The memory of one layer that owns KV heads. A cache grows and shrinks layer by layer, so that two
    /// copies of one layer are the most that it holds at once.
    struct Part {
        Buffer<std::byte> data;
        std::size_t keys_at = 0, values_at = 0, positions_at = 0, pinned_at = 0, noise_at = 0, kept_at = 0,
                    reach_at = 0;
        std::int64_t n_scores = 0;  // slots of its query heads
        std::array<std::size_t, kAccumulators> score_at{};
    };
    struct Store {
        std::vector<Part> parts;                // [n_layers], empty where a layer borrows
        std::vector<int> capacity;              // [n_kv_heads]
        std::vector<std::int64_t> first_slot;   // [n_kv_heads] slots of the part's KV heads before this one
        std::vector<std::int64_t> first_score;  // [n_layers * n_heads] the same for the scores of query heads
        std::array<bool, kAccumulators> running{true};
        bool has_noise = false;
        bool has_reach = false;  // how far values reach
        int window = 0;          // newest rows of attention that it keeps
        NumberType type = NumberType::f32;
        std::size_t size_bytes() const {
            std::size_t sum = 0;
            for (const Part& part : parts) sum += part.data.size_bytes();
            return sum;
        }
    };
    /// Device tables of a store, one after the other: heads, scores, units, unit_of_head.
    struct Tables {
        Buffer<std::byte> data;
    };

    ChoiceHead choice_head(int g, const ResolvedPolicy& of_lane) const;
    std::size_t accumulator_for(const ResolvedPolicy& policy, const HeadRef& reader) const;
    PositionLists slots_without(const PositionLists& removed) const;
    void remove_in_place(const PositionLists& removed);
    bool any_unit_out_of_step() const;
    bool any_pins() const;
    bool unpin(const PositionLists& removed);
    int n_kv_heads() const { return layout_->n_kv_heads(); }
    int n_query_heads() const { return layout_->n_layers() * layout_->n_heads(); }
    Store make_store(std::vector<int> capacity, const std::array<bool, kAccumulators>& running,
                     bool has_noise, bool has_reach, int window, NumberType type) const;
    /// The same for the store's own accumulators, noise, reach, rows and type.
    Store store_of(std::vector<int> capacity) const {
        return make_store(std::move(capacity), store_.running, store_.has_noise, store_.has_reach,
                          store_.window, store_.type);
    }
    /// Computes what a unit's selection ranks, and what cannot leave.
    HostSelection rank_on_host(const Unit& unit, const ResolvedPolicy& policy, int row, bool may_evict);
    /// Downloads and pools the scores of a unit's tokens; finds the pinned ones.
    HostSelection pool_on_host(const Unit& unit, const ResolvedPolicy& policy) const;
    /// Evaluates the formulas of selections on pooled scores. win: in place of what kept rows give.
    void evaluate_on_host(const Unit& unit, const ResolvedPolicy& policy, int row, HostSelection& out,
                          std::vector<float> win = {}) const;
    template <class ValuesOf>
    std::vector<float> pool_unit(const Unit& unit, const ResolvedPolicy& policy,
                                 std::span<const std::int32_t> all, ValuesOf values_of) const;
    std::vector<float> win_on_host(const Unit& unit, const ResolvedPolicy& policy, int row,
                                   std::span<const std::int32_t> all) const;
    std::vector<float> win_of_code(int g, const ResolvedPolicy& policy, int row, const WinRows& rows) const;
    /// Returns the rows of attention that a policy, which may be the next one, can use; empty: none.
    std::vector<WinRows> kept_rows(const ResolvedPolicy& policy, int row) const;
    bool knows_rows(const ResolvedPolicy& policy, int row) const;
    /// Copies all that is stored to a store that differs in the type of K and V alone, through the host.
    void convert_to(Store store);
    /// Notes what the conversion of KV head g to another type made infinite. old, now: its slots in memory.
    template <class From, class To>
    void find_faults(int g, bool is_key, std::span<const From> old, std::span<const To> now);
    AnyHead device_head(const Store& store, int g) const;
    HeadScores head_scores(const Store& store, int head) const;
    Part make_part(Store& store, int layer) const;
    /// Uploads the tables of store_. Units follow the policy's scope.
    void write_tables();
    void write_pins();
    /// `rule` is the policy's, in device memory.
    void draw_noise(const Buffer<RowRule>& rule);
    void find_units();
    std::vector<std::vector<std::int32_t>> all_slots() const;
    /// Slot numbers of every KV head, in device memory.
    struct SlotLists {
        Buffer<std::int32_t> slots, offset;
        int most = 0;  ///< the longest list of a KV head
    };
    SlotLists upload_slots(const std::vector<std::vector<std::int32_t>>& slots) const;
    /// Copies the listed slots of KV heads [first, last), in their order, from a store with other tables to
    /// the first slots of this store.
    void copy_slots(const SlotLists& lists, const Buffer<std::byte>& from,
                    const std::array<bool, kAccumulators>& running, int first, int last);
    PositionLists slots_in_place() const;
    /// Moves the kept slots of every KV head, in their order, to a new store.
    void rebuild(const std::vector<std::vector<std::int32_t>>& kept, Store store);
    int order_index(int g, int position) const;

    std::shared_ptr<Executor> executor_;
    std::shared_ptr<const OnDevice> of_;
    const KvLayout* layout_;
    int head_dim_;
    ResolvedPolicy policy_;
    std::vector<std::vector<std::int32_t>> positions_;  // by slot
    std::vector<std::vector<std::int32_t>> order_;
    std::vector<std::uint8_t> in_text_order_;        // [n_kv_heads]
    std::vector<std::vector<std::int32_t>> pinned_;  // by position
    std::vector<std::optional<KvFault>> faults_;     // [n_kv_heads]
    KeptRows kept_;                                  // rows of attention
    int last_row_ = -1;                              // the last one before the policy changed
    KeptQueries queries_;
    std::vector<Unit> units_;
    std::vector<std::uint8_t> on_host_;  // [units]
    Store store_;
    Buffer<std::byte> tables_;
    // Bounds of the keys of each page (kernels/pages.h); empty until a row reads pages.
    Buffer<float> page_extremes_;
    Buffer<std::int32_t> page_tokens_;
    int page_stride_ = 0, stale_from_ = 0;
    std::optional<ShadowStore> shadow_;
};

}  // namespace keyhole::cuda
