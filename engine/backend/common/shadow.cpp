#include "engine/backend/common/shadow.h"

#include "engine/backend/common/kernels.h"
#include "engine/backend/common/kv_rows.h"
#include "engine/backend/common/shared.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/attention.h"

#include <algorithm>
#include <limits>

namespace keyhole {

ShadowStore::ShadowStore(int n_kv_heads, int head_dim)
    : head_dim_(head_dim), keys_(to_index(n_kv_heads)), values_(keys_) {}

void ShadowStore::reserve(int n_positions) {
    for (auto* store : {&keys_, &values_})
        for (std::vector<float>& of_head : *store)
            of_head.reserve(to_index(n_positions) * to_index(head_dim_));
}

void ShadowStore::append(int g, const float* keys, const float* values, int n) {
    const std::ptrdiff_t size = static_cast<std::ptrdiff_t>(n) * head_dim_;
    std::vector<float>& k = keys_[to_index(g)];
    std::vector<float>& v = values_[to_index(g)];
    k.insert(k.end(), keys, keys + size);
    v.insert(v.end(), values, values + size);
}

int ShadowStore::count(int g) const {
    return static_cast<int>(keys_[to_index(g)].size() / to_index(head_dim_));
}

std::int64_t ShadowStore::bytes() const {
    std::size_t n = 0;
    for (const auto* store : {&keys_, &values_})
        for (const std::vector<float>& of_head : *store) n += of_head.capacity();
    return static_cast<std::int64_t>(n * sizeof(float));
}

void begin_shadow(const KvLayout& layout, const ShadowStore* store, int row, bool wants_row, RowOutput& out) {
    const auto n_heads = to_index(layout.n_layers() * layout.n_heads());
    for (auto* values : {&out.shadow.retained_mass, &out.shadow.cosine_ideal, &out.shadow.cosine_full,
                         &out.shadow.output_similarity})
        values->resize(store != nullptr ? n_heads : 0);
    out.values.shadow.resize(store != nullptr && wants_row ? n_heads * to_index(row + 1) : 0);
}

void measure_row(const ShadowStore& store, int g, int head, int k, const AttentionRule& rule,
                 const SeenRow& seen, ShadowScratch& scratch, RowOutput& out) {
    const auto n = to_index(store.count(g));
    const int d = static_cast<int>(scratch.query.size()), n_positions = static_cast<int>(n);
    scratch.full.resize(n);
    scratch.output.resize(to_index(d));
    dot_keys(scratch.query.data(), store.keys(g), n_positions, d, rule.scale, scratch.full.data());
    if (scratch.own_key != nullptr)
        dot_keys(scratch.query.data(), scratch.own_key, 1, d, rule.scale,
                 scratch.full.data() + n_positions - 1);
    if (rule.cap > 0) soft_cap(scratch.full.data(), rule.cap, n_positions);
    if (rule.slope != 0) {
        while (scratch.places.size() < n)
            scratch.places.push_back(static_cast<std::int32_t>(scratch.places.size()));
        add_distances(scratch.places.data(), nullptr, n_positions, rule.slope, n_positions - 1,
                      scratch.full.data());
    }
    for (int p = 0; p < n_positions && rule.hides(n_positions - 1, p); ++p)
        scratch.full[to_index(p)] = -std::numeric_limits<float>::infinity();
    if (seen.sink != nullptr) scratch.logits = scratch.full;
    softmax(scratch.full.data(), n_positions, scratch.full.data());
    float of_tokens = 1;
    if (seen.sink != nullptr)
        of_tokens -= share_with_sink(scratch.logits.data(), n_positions, *seen.sink, scratch.full.data());
    weighted_sum(scratch.full.data(), store.values(g), n_positions, d, scratch.output.data());

    scratch.seen.assign(n, 0.0f);
    scratch.attended.clear();
    for (std::size_t i = 0; i < seen.positions.size(); ++i) {
        const std::int32_t p = seen.positions[i];
        KH_ASSERT(to_index(p) < n, "position {} of {}", p, n);
        scratch.seen[to_index(p)] = seen.probabilities[i];
        if (seen.hidden.empty() || seen.hidden[i] == 0) scratch.attended.push_back(p);
    }
    // A fixed order of summing, whatever the slots.
    std::sort(scratch.attended.begin(), scratch.attended.end());
    ideal_set(scratch.full, k, scratch.ideal);

    const auto at = to_index(head);
    const auto write = [at](std::vector<float>& to, double value) { to[at] = static_cast<float>(value); };
    const double retained = retained_mass(scratch.full, scratch.attended);
    write(out.shadow.retained_mass, of_tokens < 1 ? retained / static_cast<double>(of_tokens) : retained);
    write(out.shadow.cosine_ideal, cosine_ideal(scratch.seen, scratch.full, scratch.ideal));
    write(out.shadow.cosine_full, cosine(scratch.seen, scratch.full));
    write(out.shadow.output_similarity, cosine({seen.output, to_index(d)}, scratch.output));
    if (!out.values.shadow.empty())
        std::copy(scratch.full.begin(), scratch.full.end(),
                  out.values.shadow.begin() + static_cast<std::ptrdiff_t>(at * n));
}

}  // namespace keyhole
