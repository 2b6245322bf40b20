#include "engine/analysis/doctor_checks.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/half.h"
#include "engine/policy/formula_maths.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace keyhole {

using State = Finding::State;

namespace {

Finding good(std::string_view name, std::string detail) {
    return {name, State::good, std::move(detail)};
}
Finding broken(std::string_view name, std::string detail) {
    return {name, State::broken, std::move(detail)};
}
Finding unknown(std::string_view name, std::string detail) {
    return {name, State::unknown, std::move(detail)};
}

/// Where decode steps read by pages, the readers of a KV head see no more than their pages hold. Empty: they
/// do, or the lane reads all.
std::string too_much_read(const CheckedLane& x, int g) {
    const ResolvedPolicy& policy = x.policy(g);
    if (!policy.reads_pages() || x.row < policy.n_prompt) return {};
    const auto n_readers = static_cast<std::int64_t>(x.layout().kv_head(g).readers.size());
    const std::int64_t read = x.n_stored(g) - x.n_hidden(g),
                       most = n_readers * policy.n_pages_read() * policy.page;
    return read <= most
               ? std::string()
               : fmt::format("{} reads {} tokens, and its pages hold {}", x.head_name(g), read, most);
}

/// The heads that share a budget by `alloc`: what they hold and may hold together.
struct Sharing {
    std::int64_t stored = 0, room = 0;
};

std::string holder_text(const CheckedLane& x, const Unit& unit) {
    const std::string first = x.head_name(unit.first);
    return unit.n_heads() > 1 ? fmt::format("the heads that select with {} hold", first) : first + " holds";
}

}  // namespace

/// A unit holds its budget, or those that share hold their sum, and the tokens that come before the next
/// eviction is due: every N rows, or once a buffer is full. A lane that evicts after the prompt alone holds
/// what came since too.
Finding check_budget(const CheckedLane& x) {
    constexpr std::string_view kName = "each head holds its budget";
    int most = 0, checked = 0, by_pages = 0;
    std::map<int, Sharing> sharing;
    for (int g = 0; g < x.n_kv(); ++g) {
        if (const std::string fault = too_much_read(x, g); !fault.empty()) return broken(kName, fault);
        by_pages += x.policy(g).reads_pages() ? 1 : 0;
    }
    for (const Unit& unit : x.units()) {
        const int g = unit.first;
        const ResolvedPolicy& policy = x.policy(g);
        const std::optional<int> since = x.rows_beyond(g);
        if (!policy.evicts() || !since) continue;
        const int n = x.n_stored(unit), room = policy.most_stored() - 1 + x.n_pinned(unit) + *since;
        if (policy.alloc != Alloc::uniform) {
            Sharing& together = sharing[policy.alloc == Alloc::global ? 0 : x.reader(g).layer];
            together.stored += n;
            together.room += room;
        } else if (n > room && !policy.counts_columns) {
            return broken(kName,
                          fmt::format("{} {} tokens, the budget is {}", holder_text(x, unit), n, room));
        }
        most = std::max(most, n);
        checked += unit.n_heads();
    }
    for (const auto& [layer, together] : sharing)
        if (together.stored > together.room)
            return broken(kName, fmt::format("the heads that share with layer {} hold {} tokens, and their "
                                             "budgets are {}",
                                             layer, together.stored, together.room));
    if (checked == 0 && by_pages > 0)
        return good(kName,
                    fmt::format("{} KV heads are read by pages, and no more than these hold", by_pages));
    if (checked == 0)
        return unknown(kName,
                       "the lane keeps everything, has not evicted yet, or did so with other settings");
    return good(kName, fmt::format("{} KV heads hold at most {}", checked, most));
}

namespace {

/// Fair spans keep newest tokens each of its own: check_shares() looks at them.
int newest_of(const ResolvedPolicy& policy) {
    return policy.fair.empty() ? policy.newest : 0;
}

}  // namespace

/// A command may evict a recent token between rows, but no row may.
Finding check_window(const CheckedLane& x) {
    constexpr std::string_view kName = "the recent window moves on";
    for (const Eviction& e : x.record.evictions) {
        const int newest = newest_of(x.policy(e.kv_head));
        if (e.row == x.row && e.position > x.row - newest)
            return broken(kName, fmt::format("{} lost token {} of its newest {}", x.head_name(e.kv_head),
                                             e.position, newest));
    }
    int guarded = 0;
    for (int g = 0; g < x.n_kv(); ++g) guarded += x.policy(g).evicts() && newest_of(x.policy(g)) > 0 ? 1 : 0;
    return guarded == 0 ? unknown(kName, "the policy protects no recent tokens")
                        : good(kName, fmt::format("the newest of {} KV heads stay", guarded));
}

namespace {

/// Returns the fault of what a KV head with fair spans kept after the row; empty: none. gone: what left it,
/// ascending.
std::string fault_of_shares(const CheckedLane& x, int g, const std::vector<std::int32_t>& gone) {
    const ResolvedPolicy& policy = x.policy(g);
    const std::vector<std::int32_t> held = x.history.held_positions(x.lane, g, x.row);
    const std::vector<Standing> standing = standings(x.history, x.lane, g, x.row);
    std::vector<std::int32_t> stays;
    for (std::size_t i = 0; i < standing.size(); ++i)
        if (standing[i] == Standing::pinned || standing[i] == Standing::protected_) stays.push_back(held[i]);
    const bool is_exact = policy.unit == 1 && !policy.has_threshold();
    std::size_t s = 0;
    for (const SpanShare& share : span_shares(held, stays, policy, x.row)) {
        int kept = 0;
        for (int i = share.first; i < share.last; ++i)
            kept += std::binary_search(gone.begin(), gone.end(), held[to_index(i)]) ? 0 : 1;
        const std::string& name = policy.fair[s++].name;
        if (kept > share.stored || (is_exact && kept < share.stored))
            return fmt::format("{} keeps {} tokens of span '{}', its share is {}", x.head_name(g), kept, name,
                               share.stored);
    }
    return {};
}

}  // namespace

/// In rows that evict, fair spans keep what their lengths give them.
Finding check_shares(const CheckedLane& x) {
    constexpr std::string_view kName = "each span keeps its share";
    int checked = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        const std::vector<std::int32_t> gone = x.left_with_row(g);
        if (gone.empty() || x.policy(g).fair.empty() || x.policy(g).scope != Scope::head) continue;
        if (const std::string fault = fault_of_shares(x, g, gone); !fault.empty())
            return broken(kName, fault);
        ++checked;
    }
    return checked == 0 ? unknown(kName, "the step evicts nothing by head")
                        : good(kName, fmt::format("those of {} KV heads", checked));
}

/// What a sliding layer cannot see stays stored, and is hidden.
Finding check_sliding_layers(const CheckedLane& x) {
    constexpr std::string_view kName = "sliding layers read their window";
    int slides = 0, most = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        const int window = x.window_of(g);
        if (window == 0) continue;
        const int read = x.n_stored(g) - x.n_hidden(g);
        if (read > window)
            return broken(kName, fmt::format("{} reads {} tokens, and its layer's window is {}",
                                             x.head_name(g), read, window));
        most = std::max(most, read);
        ++slides;
    }
    return good(kName, fmt::format("{} KV heads slide, and read at most {} tokens", slides, most));
}

namespace {

/// Returns why the recorded row is not of the tokens that the mask has; empty: it is, or none is recorded.
std::string fault_of_row(const CheckedLane& x) {
    const RowBlock* block = x.record.rows.get();
    if (block == nullptr || to_index(x.n_kv()) + 1 != block->offset.size()) return {};
    for (int g = 0; g < x.n_kv(); ++g) {
        const std::int64_t n_values = block->offset[to_index(g) + 1] - block->offset[to_index(g)];
        const auto n_held = std::ssize(x.history.held_positions(x.lane, g, x.row));
        if (n_values != n_held)
            return fmt::format("the recorded row has {} values of {}, and the mask {} tokens", n_values,
                               x.head_name(g), n_held);
    }
    return {};
}

}  // namespace

Finding check_counts(const CheckedLane& x) {
    constexpr std::string_view kName = "the cache stores what the mask says";
    std::int64_t n = 0;
    for (int g = 0; g < x.n_kv(); ++g) n += x.n_stored(g);
    // Tokens that a command evicted after the row were still in the cache when the row was recorded.
    if (const LaneRecord* next = x.history.lane_record(x.row + 1, x.lane))
        n += std::count_if(next->evictions.begin(), next->evictions.end(),
                           [&](const Eviction& e) { return e.row == x.row; });
    if (n != x.record.use.stored_tokens)
        return broken(kName,
                      fmt::format("the mask has {} tokens, the cache {}", n, x.record.use.stored_tokens));
    if (x.record.use.allocated_bytes < x.record.use.stored_bytes)
        return broken(kName, "fewer bytes are allocated than stored");
    if (const std::string fault = fault_of_row(x); !fault.empty()) return broken(kName, fault);
    return good(kName, fmt::format("{} tokens over {} KV heads", n, x.n_kv()));
}

Finding check_sums(const CheckedLane& x) {
    constexpr std::string_view kName = "attention sums to 1";
    if (x.record.rows == nullptr || x.record.rows->attention.empty())
        return unknown(kName, "the step's attention is not recorded");
    const RowBlock& block = *x.record.rows;
    double worst = 0;
    for (std::size_t h = 0; h + 1 < block.head_offset.size(); ++h) {
        double sum = 0;
        for (std::int64_t i = block.head_offset[h]; i < block.head_offset[h + 1]; ++i)
            sum += double(float_from_fp16(block.attention[to_index(i)]));
        // A learned sink takes part of the attention, which is no token's.
        const double off =
            x.history.run().config.has_sinks && sum >= 0 ? std::max(sum - 1, 0.0) : std::abs(sum - 1);
        worst = std::max(worst, off);
        // fp16 values are rounded to 11 bits: this deviation is no fault.
        if (!(off < 4e-3)) {
            const int n_heads = x.history.run().layout.n_heads();
            return broken(kName, fmt::format("L{}.H{}: {:.4f}", static_cast<int>(h) / n_heads,
                                             static_cast<int>(h) % n_heads, sum));
        }
    }
    return good(kName, fmt::format("to within {:.1e} in every head", worst));
}

/// A lane that has evicted nothing must equal the reference bit for bit.
Finding check_equals_full(const CheckedLane& x) {
    constexpr std::string_view kName = "before it evicts, it equals Full";
    const LaneRecord* full = x.history.lane_record(x.row, 0);
    if (x.lane == 0 || full == nullptr || full->info->policy.evicts())
        return unknown(kName, "lane 0 is not another, full lane");
    for (int g = 0; g < x.n_kv(); ++g)
        if (x.n_stored(g) != x.row + 1) return unknown(kName, "it has evicted, or hides tokens");
    if (!x.record.kl) return unknown(kName, "the texts have diverged");
    if (x.record.hidden != nullptr || x.record.attended_tokens != full->attended_tokens)
        return unknown(kName, "it has evicted, or hides tokens");
    if (x.record.info->policy.positions != Positions::original)
        return unknown(kName, "it moves keys to other positions");
    const bool same =
        *x.record.kl == 0 && x.record.predicted == full->predicted && x.record.entropy == full->entropy;
    return same ? good(kName, "the same bits")
                : broken(kName, fmt::format("nothing was evicted, but KL is {:.2e}", double(*x.record.kl)));
}

namespace {

/// Returns whether tokens leave a head by their ranks, or blocks of the text by means of them.
bool leaves_by_rank(const ResolvedPolicy& policy) {
    return policy.gap != ResolvedPolicy::Gap::dropped && knows_protected(policy);
}

/// A token that competed, or a block of the text: the mean of its tokens that did.
struct Ranked {
    float rank = 0;
    int n = 0, n_left = 0;
};

/// Returns what a span of a KV head ranked at the step, in text order. left: ascending; ranks: by position.
std::vector<Ranked> ranked_of_span(const SpanShare& span, std::span<const std::int32_t> held,
                                   std::span<const Standing> standing, int unit,
                                   std::span<const std::int32_t> left, std::span<const float> ranks) {
    std::vector<Ranked> out;
    int block = -1;
    for (int i = span.first; i < span.last; ++i) {
        const std::int32_t position = held[to_index(i)];
        if (standing[to_index(i)] != Standing::competes) continue;
        if (unit == 1 || position / unit != block) out.push_back({});
        block = position / unit;
        Ranked& own = out.back();
        own.rank = add(own.rank, ranks[to_index(position)]);
        ++own.n;
        own.n_left += std::binary_search(left.begin(), left.end(), position) ? 1 : 0;
    }
    for (Ranked& own : out) own.rank = lowest_if_nan(own.rank / static_cast<float>(own.n));
    return out;
}

/// Returns the fault of what a KV head lost with the row: in each span nothing that left ranks above what
/// competed and stayed, and blocks leave whole; empty: there is none. left: ascending; ranks: by position.
std::string fault_of_ranks(const CheckedLane& x, int g, const std::vector<std::int32_t>& left,
                           const std::vector<float>& ranks) {
    const std::vector<std::int32_t> held = x.history.held_positions(x.lane, g, x.row);
    const std::vector<Standing> standing = standings(x.history, x.lane, g, x.row);
    const int unit = x.policy(g).unit;
    for (const SpanShare& span : span_shares(held, {}, x.policy(g), x.row)) {
        float best_left = -INFINITY, worst_kept = INFINITY;
        for (const Ranked& own : ranked_of_span(span, held, standing, unit, left, ranks)) {
            if (own.n_left > 0 && own.n_left < own.n)
                return fmt::format("{} lost {} of the {} tokens of a block", x.head_name(g), own.n_left,
                                   own.n);
            if (own.n_left > 0)
                best_left = std::max(best_left, own.rank);
            else
                worst_kept = std::min(worst_kept, own.rank);
        }
        if (best_left > worst_kept)
            return fmt::format("{} lost a {} of rank {} and kept one of {}", x.head_name(g),
                               unit > 1 ? "block" : "token", best_left, worst_kept);
    }
    return {};
}

/// Returns whether blocks of the text leave heads together that hold different tokens of them: ranks of
/// blocks are then of more than one head's record.
bool has_other_blocks(const CheckedLane& x, int g) {
    const Unit unit = unit_of(x.layout(), x.record.info->policy.scope, g);
    return x.policy(g).unit > 1 && !hold_the_same(x.history, x.lane, unit, x.row);
}

}  // namespace

/// Whatever the policy ranks by, the lowest leave.
Finding check_ranks(const CheckedLane& x) {
    constexpr std::string_view kName = "the lowest ranks leave";
    if (x.record.pins != nullptr && !x.record.pins->empty())
        return unknown(kName, "a token is pinned, which holds for all heads that select together");
    if (!fault_of_row(x).empty()) return unknown(kName, "the recorded row is of other tokens");
    std::vector<float> ranks(to_index(x.row) + 1);
    int n_left = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        const std::vector<std::int32_t> left = x.left_with_row(g);
        if (left.empty() || !leaves_by_rank(x.policy(g)) || has_other_blocks(x, g)) continue;
        if (!score_values(x.history, x.lane, x.row, g, ranks))
            return unknown(kName, "the step's scores are not recorded");
        if (const std::string fault = fault_of_ranks(x, g, left, ranks); !fault.empty())
            return broken(kName, fault);
        n_left += static_cast<int>(left.size());
    }
    return n_left == 0 ? unknown(kName, "no token left with this step by its rank")
                       : good(kName, fmt::format("{} tokens ranked no higher than those that stay", n_left));
}

Finding check_lost_mass(const CheckedLane& x) {
    constexpr std::string_view kName = "lost mass is a share";
    const float kept = x.record.measures.retained_mass;
    if (std::isnan(kept)) return unknown(kName, "needs the lane's shadow");
    if (kept < -1e-4f || kept > 1 + 1e-4f) return broken(kName, fmt::format("retained mass is {}", kept));
    return good(kName,
                fmt::format("{:.1f} % of full attention is on tokens that are gone", double(1 - kept) * 100));
}

}  // namespace keyhole
