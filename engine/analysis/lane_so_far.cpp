#include "engine/analysis/lane_so_far.h"

#include "engine/analysis/no_value.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

/// Returns the most megabytes of K and V that a lane stored at a time during its prompt, by its policy; 0
/// where the bytes of a token are not known.
double prompt_peak(const KvLayout& layout, const LaneInfo& lane, int n_prompt) {
    const ResolvedPolicy& policy = lane.policy;
    double tokens = 0;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const HeadRef reader = layout.kv_head(g).readers.front();
        const ResolvedPolicy& of_head = policy.at(reader.layer, reader.head);
        const bool keeps_all = policy.prefill == PrefillMode::oneshot || !of_head.evicts() ||
                               of_head.keeps_memory || of_head.evict == Evict::decode ||
                               of_head.alloc != Alloc::uniform;
        tokens += keeps_all ? n_prompt : std::min(n_prompt, of_head.most_stored());
    }
    return 1e-6 * double(lane.token_bytes) * tokens / layout.n_kv_heads();
}

/// Returns the most megabytes that a lane stored at a time in a row: before the row's own eviction. What the
/// last row of the prompt evicts counts as the prompt's.
double row_peak(const LaneRecord& record, int row, int n_prompt) {
    const CacheUse& use = record.use;
    if (use.stored_tokens == 0) return 0;
    const auto evicted = row < n_prompt ? 0
                                        : std::count_if(record.evictions.begin(), record.evictions.end(),
                                                        [&](const Eviction& e) { return e.row == row; });
    const double token = double(use.stored_bytes) / double(use.stored_tokens);
    return 1e-6 * (double(use.stored_bytes) + token * double(evicted));
}

}  // namespace

void LaneSoFar::add(const RunHistory& history, int lane, int row, const LaneRecord& record) {
    const KvLayout& layout = history.layout(lane);
    if (row > history.lanes()[to_index(lane)].last_row) return;
    if (stored.empty()) kv_peak_megabytes = prompt_peak(layout, *record.info, history.n_prompt());
    // Takes from the table what came before its first row, or while it was removed.
    if (stored.empty() || row != last_row + 1) {
        stored = stored_sets(history, lane, row);
    } else {
        for (KeptSet& set : stored) set.insert(row);
        for (const Eviction& e : record.evictions) stored[to_index(e.kv_head)].erase(e.position);
    }
    last_row = row;
    kv_peak_megabytes = std::max(kv_peak_megabytes, row_peak(record, row, history.n_prompt()));
    if (!record.agrees) return;
    ++n_compared;
    n_agreed += *record.agrees ? 1 : 0;
}

float recent_share_so_far(const RowSoFar& of) {
    const KvLayout& layout = of.history.layout(of.lane);
    double sum = 0;
    int n = 0;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const HeadRef reader = layout.kv_head(g).readers.front();
        const int budget = of.record.info->policy.at(reader.layer, reader.head).budget;
        if (of.row + 1 <= budget) continue;
        sum += recent_share(of.of_lane.stored[to_index(g)], of.row, budget);
        ++n;
    }
    return n == 0 ? kNoValue : static_cast<float>(sum / n);
}

float jaccard_so_far(const RowSoFar& of) {
    const std::vector<KeptSet>&a = of.of_first.stored, &b = of.of_lane.stored;
    if (!of.record.kl || a.empty()) return kNoValue;  // only before the texts diverge, like the KL
    double sum = 0;
    if (of.history.same_layout(0, of.lane)) {
        for (std::size_t g = 0; g < a.size(); ++g) sum += jaccard(a[g], b[g]);
        return static_cast<float>(sum / static_cast<double>(a.size()));
    }
    const KvLayout &first = of.history.layout(0), &second = of.history.layout(of.lane);
    for (int l = 0; l < first.n_layers(); ++l)
        for (int h = 0; h < first.n_heads(); ++h)
            sum += jaccard(a[to_index(first.kv_head_from_head(l, h))],
                           b[to_index(second.kv_head_from_head(l, h))]);
    return static_cast<float>(sum / (first.n_layers() * first.n_heads()));
}

float agreement_so_far(const RowSoFar& of) {
    if (!of.record.agrees) return kNoValue;
    return static_cast<float>(of.of_lane.n_agreed) / static_cast<float>(of.of_lane.n_compared);
}

float kv_peak_so_far(const RowSoFar& of) {
    return static_cast<float>(of.of_lane.kv_peak_megabytes);
}

std::vector<KeptSet> stored_sets(const RunHistory& history, int lane, int row) {
    std::vector<KeptSet> stored(to_index(history.layout(lane).n_kv_heads()));
    for (std::size_t g = 0; g < stored.size(); ++g)
        for (int p = 0; p <= row; ++p)
            if (history.stored(lane, static_cast<int>(g), p, row)) stored[g].insert(p);
    return stored;
}

double paged_bytes(const KvLayout& layout, std::span<const KeptSet> stored, std::int64_t token_bytes) {
    std::int64_t n_tokens = 0;  // summed over KV heads
    for (int layer = 0; layer < layout.n_layers(); ++layer) {
        const int first = layout.first_of_layer(layer), last = layout.first_of_layer(layer + 1);
        const int n_pages = KeptSet::count_pages(stored.subspan(to_index(first), to_index(last - first)));
        n_tokens += std::int64_t{last - first} * n_pages * kPageTokens;
    }
    return double(token_bytes) * double(n_tokens) / layout.n_kv_heads();
}

float kv_paged_so_far(const RowSoFar& of) {
    const LaneInfo& lane = *of.record.info;
    if (lane.token_bytes == 0) return kNoValue;  // older traces do not have it
    return static_cast<float>(1e-6 *
                              paged_bytes(of.history.layout(of.lane), of.of_lane.stored, lane.token_bytes));
}

}  // namespace keyhole
