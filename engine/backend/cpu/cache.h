/// K, V, positions and scores of one lane in main memory. Engine thread; several threads may work on
/// different heads of one cache at the same time. Knows no kernel.
///
/// Slots of a KV head are dense, [0, count): the last slot moves into the slot of an evicted token. `order`
/// lists slots by ascending position, so text order takes one look-up. Keys are stored rotated at their
/// original position, K and V in the type that the policy asks for (kv_dtype).
#pragma once

#include "engine/backend/backend.h"
#include "engine/backend/common/accumulators.h"
#include "engine/backend/common/kept_queries.h"
#include "engine/backend/common/key_pages.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/backend/common/shadow.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/policy/win_rows.h"

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace keyhole::cpu {

class CpuKvCache final : public KvCache {
  public:
    /// layout must outlive the cache.
    CpuKvCache(const KvLayout& layout, int head_dim);
    /// Makes a cache for a model and keeps the model loaded.
    explicit CpuKvCache(std::shared_ptr<const Model> model);

    CacheUse use() const override;
    std::vector<std::int32_t> stored_positions(int kv_head) const override;
    RankedUnit rank(int kv_head, const RankFormulas& by, int row) const override;
    std::optional<KvFault> fault() const override;
    std::unique_ptr<KvCache> clone() const override;
    bool evict(int g, int position) override;
    bool set_pinned(int g, int position, bool pinned) override;
    std::vector<std::int32_t> pinned_positions(int g) const override { return pinned(g); }

    /// Starts the accumulators that the policy needs (each is copied from its nearest running accumulator),
    /// draws the noise of stored tokens, and converts K and V to the policy's type. A shadow can start only
    /// with an empty cache; later it would lack the evicted tokens. last_row: the last one so far. Throws
    /// Error(no_memory), and then nothing has changed.
    void set_policy(const ResolvedPolicy& policy, int last_row = -1);
    const ResolvedPolicy& policy() const override { return policy_; }
    const KvLayout& layout() const { return *layout_; }
    /// The model whose K and V these are; null where the cache was made for a layout alone.
    const std::shared_ptr<const Model>& model() const { return model_; }

    /// Makes room for capacity[g] slots in every KV head, at least for what each stores. A cache that evicts
    /// nothing reserves addresses for a longer text and grows in place, unless it has 32 to 256 MB and the
    /// system large pages. Other caches move to new pages; the old pages go back to the system. With one
    /// number, all heads get the same capacity.
    void reserve(std::span<const int> capacity);
    void reserve(int capacity);
    void clear();

    int capacity(int g) const { return store_.capacity[to_index(g)]; }
    /// True before the first reserve() and after clear().
    bool has_no_room() const { return store_.pages.size_bytes() == 0; }
    int count(int g) const { return count_[to_index(g)]; }
    int largest_count() const;

    KvType kv_type() const { return store_.type; }
    KvRows keys(int g) const { return store_.rows(store_.keys_at, g, head_dim_); }      ///< by slot
    KvRows values(int g) const { return store_.rows(store_.values_at, g, head_dim_); }  ///< by slot
    /// Stores K and V [head_dim] of a slot, rounded to kv_type().
    void write(int g, int slot, const float* key, const float* value);
    std::int32_t* positions(int g) const { return store_.ints(store_.positions_at, g); }  ///< by slot
    std::int32_t* order(int g) const { return store_.ints(store_.order_at, g); }
    /// Scores by slot of query head `head` = layer * n_heads + h; null when that accumulator does not run.
    float* score(int accumulator, int head) const { return store_.score(accumulator, head); }
    /// Attention of one of the newest rows by slot, or its logits (ranks_as_rkv_code); null where the cache
    /// keeps none. Slots of tokens that are younger than the row, or of another fair span, hold no number.
    float* kept_row(int row, int head) const {
        return store_.window == 0
                   ? nullptr
                   : store_.of_head(store_.window_at, head) + row % store_.window * store_.n_scores;
    }
    /// Returns which rows it has kept by `row`; empty: it keeps none.
    std::vector<WinRows> kept_rows(int row) const {
        return store_.window == 0 ? std::vector<WinRows>() : kept_.at(policy_, row);
    }
    bool knows_rows(int row) const { return store_.window > 0 && kept_.any(policy_, row); }
    int window() const { return store_.window; }
    KeptQueries& kept_queries() { return queries_; }
    const KeptQueries& kept_queries() const { return queries_; }
    /// Tells from which row on they are kept, once a prompt's rows have been written.
    void begin_kept_rows(int row) { kept_.begin(policy_, row); }
    /// Returns the pages of what a KV head stores, brought up to date. page: tokens of the text in one.
    const KeyPages& pages(int g, int page);
    /// Noise by slot, drawn once for each token; null when the policy does not draw noise per token.
    float* noise(int head) const {
        return store_.has_noise ? store_.of_head(store_.noise_at, head) : nullptr;
    }

    /// Lengths of keys (knorm) or values (vnorm) by slot, as they are stored, and how far values reach
    /// (wvnorm); null where neither rows nor selections after them name them, where only selections name
    /// wvnorm, and for other quantities.
    const float* lengths(Quantity q, int g) const {
        for (std::size_t i = 0; i < kLengths.size(); ++i)
            if (q == kLengths[i] && store_.has_lengths[i]) return store_.floats(store_.lengths_at[i], g);
        return nullptr;
    }

    /// Computes how far the values of a KV head reach that were written since the last call, where the cache
    /// keeps that: several at once, since each call widens the head's part of W_o.
    void measure_reach(int g);
    bool keeps_reach() const { return lengths(Quantity::wvnorm, 0) != nullptr; }
    void set_reach(int g, int slot, float reach) {
        const_cast<float*>(lengths(Quantity::wvnorm, g))[slot] = reach;
    }

    /// All K and V of the text where the policy asked for a shadow from the start; else null.
    ShadowStore* shadow() { return shadow_ ? &*shadow_ : nullptr; }
    const ShadowStore* shadow() const { return shadow_ ? &*shadow_ : nullptr; }

    /// True while slots lie in text order: order(g)[i] == i. This holds until something is evicted.
    bool is_in_order(int g) const { return in_order_[to_index(g)] != 0; }
    /// Copies [count(g)] values by slot into text order.
    template <class T>
    void copy_in_order(int g, const T* by_slot, T* to) const {
        if (is_in_order(g)) {
            std::copy_n(by_slot, count(g), to);
            return;
        }
        const std::int32_t* slots = order(g);
        for (int i = 0; i < count(g); ++i) to[i] = by_slot[slots[i]];
    }
    /// Returns the index into order(g) of a position; -1 when it is not stored.
    int order_index(int g, int position) const;
    /// Pinned positions, ascending; nearly always empty.
    const std::vector<std::int32_t>& pinned(int g) const { return pinned_[to_index(g)]; }

    /// Returns a slot for a token newer than all stored ones, with scores 0 and noise drawn. The caller
    /// writes K and V. The cache must have room.
    int append(int g, int position);
    /// Removes entries, given by ascending indices into order(g), and their pins.
    void evict(int g, std::span<const int> order_indices);

  private:
    /// What is kept with a token rather than computed at each selection.
    static constexpr std::array kLengths = {Quantity::knorm, Quantity::vnorm, Quantity::wvnorm};
    using Lengths = std::array<bool, kLengths.size()>;

    /// One allocation and the offsets of its parts, in 4-byte words. Each head has its own stretch of slots;
    /// the stretches follow each other.
    struct Store {
        Pages pages;
        std::vector<int> capacity;  // [n_kv_heads]
        std::vector<int>
            kept;  // [n_kv_heads] slots that addresses are kept for; pages come when they are written
        std::vector<std::int64_t> first_slot;   // [n_kv_heads] slots of the KV heads before this one
        std::vector<std::int64_t> first_score;  // [n_layers * n_heads] the same for the scores of query heads
        std::array<bool, kAccumulators> running{true};
        bool has_noise = false;
        Lengths has_lengths{};
        int window = 0;             // newest rows of attention that it keeps, row r in stretch r % window
        std::int64_t n_scores = 0;  // slots of all query heads, the size of a stretch
        KvType type = KvType::f32;
        std::size_t keys_at = 0, values_at = 0, positions_at = 0, order_at = 0, noise_at = 0, window_at = 0;
        std::array<std::size_t, kAccumulators> score_at{};
        std::array<std::size_t, kLengths.size()> lengths_at{};

        KvRows rows(std::size_t at, int g, int head_dim) const {
            const KvRows first{reinterpret_cast<std::byte*>(static_cast<float*>(pages.data()) + at), type,
                               head_dim};
            return first.from_row(first_slot[to_index(g)]);
        }
        float* floats(std::size_t at, int g) const {
            return static_cast<float*>(pages.data()) + at + first_slot[to_index(g)];
        }
        std::int32_t* ints(std::size_t at, int g) const {
            return static_cast<std::int32_t*>(pages.data()) + at + first_slot[to_index(g)];
        }
        float* of_head(std::size_t at, int head) const {
            return static_cast<float*>(pages.data()) + at + first_score[to_index(head)];
        }
        float* score(int accumulator, int head) const {
            const std::size_t a = to_index(accumulator);
            return running[a] ? of_head(score_at[a], head) : nullptr;
        }
    };

    Store make_store(std::vector<int> capacity, const std::array<bool, kAccumulators>& running,
                     bool has_noise) const;
    /// The same with addresses reserved for kept[g] slots, at least the capacity.
    Store make_store(std::vector<int> capacity, std::vector<int> kept,
                     const std::array<bool, kAccumulators>& running, bool has_noise) const;
    std::optional<Store> store_for_policy() const;
    /// Returns for each KV head how many slots it may grow to.
    std::vector<int> slots_to_keep(std::span<const int> capacity) const;
    /// Copies everything stored from another store.
    void copy_from(const Store& old);
    /// Moves everything stored into a new store.
    void move_to(Store store);
    void draw_noise(int g, int slot);
    void begin_formula(int head);
    void move_slot(int g, int from, int to);
    void copy_kept_rows(const Store& old, int g, int head);
    template <class Visit>
    void for_readers(int g, Visit visit) const;

    std::int64_t page_bytes() const;
    KvType wanted_type() const;
    Lengths wanted_lengths() const;
    /// Computes the lengths that are kept of a slot's key and value; its reach is due then.
    void measure(int g, int slot);
    void copy_lengths(const Store& old, int g);
    /// Notes a stored row that is not finite. was_finite: before it was stored.
    void note_fault(int g, int slot, bool is_key, bool was_finite);
    /// Looks for what the conversion to the store's type made infinite.
    void find_faults(const Store& old);

    std::shared_ptr<const Model> model_;
    const KvLayout* layout_;
    int head_dim_;
    ResolvedPolicy policy_;
    std::vector<int> count_;
    std::vector<char> in_order_;                     // [n_kv_heads]
    std::vector<std::vector<std::int32_t>> pinned_;  // by position, so that moving slots does not change them
    std::vector<std::optional<KvFault>> faults_;     // [n_kv_heads]
    KeptRows kept_;                                  // rows of attention
    int last_row_ = -1;                              // the last one before the policy changed
    KeptQueries queries_;
    Store store_;
    std::vector<KeyPages> pages_;  // [n_kv_heads], empty where no row reads by pages
    std::optional<ShadowStore> shadow_;
};

}  // namespace keyhole::cpu
