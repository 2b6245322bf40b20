#include "engine/analysis/doctor.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/policy/formula_maths.h"
#include "engine/policy/selection.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

namespace keyhole {

namespace {

using State = Finding::State;

struct CheckedLane {
    const RunHistory& history;
    int lane, row;
    const LaneRecord& record;

    int n_kv() const { return history.layout(lane).n_kv_heads(); }
    HeadRef reader(int g) const { return history.layout(lane).kv_head(g).readers.front(); }
    const ResolvedPolicy& policy(int g) const {
        return record.info->policy.at(reader(g).layer, reader(g).head);
    }
    /// Returns how many rows of decoding a head has kept since it evicted at the end of the prompt, by the
    /// policy that it has now; nullopt: it evicts at other rows too, or had another policy then.
    std::optional<int> rows_since_prompt(int g) const {
        const ResolvedPolicy& now = policy(g);
        const int end = now.n_prompt - 1;
        if (now.evict != Evict::prompt || now.prefill == PrefillMode::stepwise || row < end) return {};
        const LaneRecord* then = history.lane_record(end, lane);
        if (then == nullptr || then->info->id != record.info->id ||
            !(then->info->policy.at(reader(g).layer, reader(g).head) == now))
            return {};
        return row - end;
    }
    std::string head_name(int g) const { return kv_head_text(history.layout(lane), g); }
    std::vector<int> stored = {};  // [kv_head] tokens
    int n_stored(int g) const { return stored[to_index(g)]; }
    void count_stored() {
        const RunHistory::Lane& of = history.lanes()[to_index(lane)];
        const auto shown = static_cast<std::uint32_t>(row);
        for (int g = 0; g < n_kv(); ++g) {
            const std::int32_t* evicted = &of.evicted_at[to_index(std::int64_t{g} * history.capacity())];
            int n = 0;
            for (int p = 0; p <= row; ++p)
                n += static_cast<std::uint32_t>(evicted[p]) > shown ? 1 : 0;  // -1 (never) is the largest
            stored.push_back(n);
        }
    }
    /// Returns how many tokens none of the head's readers saw.
    int n_hidden(int g) const {
        if (record.hidden == nullptr) return 0;
        int n = 0;
        for (auto byte = record.hidden->offset[to_index(g)]; byte < record.hidden->offset[to_index(g) + 1];
             ++byte)
            n += std::popcount(record.hidden->bits[to_index(byte)]);
        return n;
    }
    int n_pinned(int g) const {
        if (record.pins == nullptr) return 0;
        return static_cast<int>(std::count_if(record.pins->begin(), record.pins->end(),
                                              [&](const Pin& pin) { return pin.kv_head == g; }));
    }
};

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
    const auto n_readers = static_cast<std::int64_t>(x.history.layout(x.lane).kv_head(g).readers.size());
    const std::int64_t read = x.n_stored(g) - x.n_hidden(g),
                       most = n_readers * policy.n_pages_read() * policy.page;
    return read <= most
               ? std::string()
               : fmt::format("{} reads {} tokens, and its pages hold {}", x.head_name(g), read, most);
}

/// With scope head, a head holds its budget, or those that share hold their sum, and the tokens that come
/// before the next eviction is due: every N rows, or once a buffer is full. A lane that evicts after the
/// prompt alone holds what came since too; one that evicts while decoding alone is not examined.
Finding budget(const CheckedLane& x) {
    constexpr std::string_view kName = "each head holds its budget";
    int most = 0, checked = 0, by_pages = 0;
    std::map<int, std::pair<std::int64_t, std::int64_t>> sharing;  // stored and room of heads together
    for (int g = 0; g < x.n_kv(); ++g) {
        const ResolvedPolicy& policy = x.policy(g);
        if (const std::string fault = too_much_read(x, g); !fault.empty()) return broken(kName, fault);
        by_pages += policy.reads_pages() ? 1 : 0;
        const std::optional<int> since_prompt = x.rows_since_prompt(g);
        if (!policy.evicts() || policy.scope != Scope::head ||
            (policy.evict != Evict::always && !since_prompt))
            continue;
        const int n = x.n_stored(g),
                  room = policy.most_stored() - 1 + x.n_pinned(g) + since_prompt.value_or(0);
        if (policy.alloc != Alloc::uniform) {
            auto& [stored, together] = sharing[policy.alloc == Alloc::global ? 0 : x.reader(g).layer];
            stored += n;
            together += room;
        } else if (n > room && !policy.counts_columns)
            return broken(kName,
                          fmt::format("{} holds {} tokens, its budget is {}", x.head_name(g), n, room));
        most = std::max(most, n);
        ++checked;
    }
    for (const auto& [layer, of_group] : sharing)
        if (of_group.first > of_group.second)
            return broken(kName, fmt::format("the heads that share with layer {} hold {} tokens, and their "
                                             "budgets are {}",
                                             layer, of_group.first, of_group.second));
    if (checked == 0 && by_pages > 0)
        return good(kName,
                    fmt::format("{} KV heads are read by pages, and no more than these hold", by_pages));
    if (checked == 0)
        return unknown(kName,
                       "no budget by head: the lane keeps everything, shares it, or evicts while it "
                       "decodes alone");
    return good(kName, fmt::format("{} KV heads hold at most {}", checked, most));
}

/// Fair spans keep newest tokens each of its own: keeps_shares() looks at them.
int newest_of(const ResolvedPolicy& policy) {
    return policy.fair.empty() ? policy.newest : 0;
}

/// A command may evict a recent token between rows, but no row may.
Finding window_advances(const CheckedLane& x) {
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

/// In rows that evict, fair spans keep what their lengths give them.
Finding keeps_shares(const CheckedLane& x) {
    constexpr std::string_view kName = "each span keeps its share";
    int checked = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        std::vector<std::int32_t> gone;
        for (const Eviction& e : x.record.evictions)
            if (e.kv_head == g && e.row == x.row) gone.push_back(e.position);
        if (gone.empty() || x.policy(g).fair.empty() || x.policy(g).scope != Scope::head) continue;
        if (const std::string fault = fault_of_shares(x, g, gone); !fault.empty())
            return broken(kName, fault);
        ++checked;
    }
    return checked == 0 ? unknown(kName, "the step evicts nothing by head")
                        : good(kName, fmt::format("those of {} KV heads", checked));
}

/// Returns the window of a KV head's layer, the largest where several layers read it; 0: it sees all.
int window_of(const CheckedLane& x, int g) {
    const std::vector<int>& windows = x.history.run().config.window;
    int window = 0;
    for (const HeadRef reader : x.history.layout(x.lane).kv_head(g).readers) {
        if (windows.empty() || windows[to_index(reader.layer)] == 0) return 0;
        window = std::max(window, windows[to_index(reader.layer)]);
    }
    return window;
}

/// What a sliding layer cannot see stays stored, and is hidden.
Finding sliding_layers(const CheckedLane& x) {
    constexpr std::string_view kName = "sliding layers read their window";
    int slides = 0, most = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        const int window = window_of(x, g);
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

Finding counts_agree(const CheckedLane& x) {
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

Finding sums_to_one(const CheckedLane& x) {
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
Finding equals_full(const CheckedLane& x) {
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

/// Returns whether one token after the other leaves a head by its rank.
bool leaves_by_rank(const ResolvedPolicy& policy) {
    return policy.unit == 1 && policy.gap != ResolvedPolicy::Gap::dropped && knows_protected(policy);
}

/// Returns the fault of what a KV head lost with the row: in each span no token that left ranks above one
/// that competed and stayed; empty: there is none. left: ascending; ranks: by position.
std::string fault_of_ranks(const CheckedLane& x, int g, const std::vector<std::int32_t>& left,
                           const std::vector<float>& ranks) {
    const std::vector<std::int32_t> held = x.history.held_positions(x.lane, g, x.row);
    const std::vector<Standing> standing = standings(x.history, x.lane, g, x.row);
    for (const SpanShare& span : span_shares(held, {}, x.policy(g), x.row)) {
        float best_left = -INFINITY, worst_kept = INFINITY;
        for (int i = span.first; i < span.last; ++i) {
            const std::int32_t position = held[to_index(i)];
            if (standing[to_index(i)] != Standing::competes) continue;
            const float rank = lowest_if_nan(ranks[to_index(position)]);
            if (std::binary_search(left.begin(), left.end(), position))
                best_left = std::max(best_left, rank);
            else
                worst_kept = std::min(worst_kept, rank);
        }
        if (best_left > worst_kept)
            return fmt::format("{} lost a token of rank {} and kept one of {}", x.head_name(g), best_left,
                               worst_kept);
    }
    return {};
}

/// Whatever the policy ranks by, the lowest leave.
Finding lowest_leave(const CheckedLane& x) {
    constexpr std::string_view kName = "the lowest ranks leave";
    if (x.record.pins != nullptr && !x.record.pins->empty())
        return unknown(kName, "a token is pinned, which holds for all heads that select together");
    if (!fault_of_row(x).empty()) return unknown(kName, "the recorded row is of other tokens");
    std::vector<float> ranks(to_index(x.row) + 1);
    int n_left = 0;
    for (int g = 0; g < x.n_kv(); ++g) {
        std::vector<std::int32_t> left;
        for (const Eviction& e : x.record.evictions)
            if (e.kv_head == g && e.row == x.row) left.push_back(e.position);
        if (left.empty() || !leaves_by_rank(x.policy(g))) continue;
        if (!score_values(x.history, x.lane, x.row, g, ranks))
            return unknown(kName, "the step's scores are not recorded");
        std::sort(left.begin(), left.end());
        if (const std::string fault = fault_of_ranks(x, g, left, ranks); !fault.empty())
            return broken(kName, fault);
        n_left += static_cast<int>(left.size());
    }
    return n_left == 0 ? unknown(kName, "no token left with this step, or whole blocks of the text did")
                       : good(kName, fmt::format("{} tokens ranked no higher than those that stay", n_left));
}

Finding lost_mass(const CheckedLane& x) {
    constexpr std::string_view kName = "lost mass is a share";
    const float kept = x.record.measures.retained_mass;
    if (std::isnan(kept)) return unknown(kName, "needs the lane's shadow");
    if (kept < -1e-4f || kept > 1 + 1e-4f) return broken(kName, fmt::format("retained mass is {}", kept));
    return good(kName,
                fmt::format("{:.1f} % of full attention is on tokens that are gone", double(1 - kept) * 100));
}

}  // namespace

void EvictionOrder::update(const RunHistory& history, int lane) {
    if (generation_ != history.generation() || lane_ != lane) {
        *this = EvictionOrder();
        generation_ = history.generation();
        lane_ = lane;
    }
    const StepList& steps = history.steps();
    gone_.resize(to_index(history.layout(lane).n_kv_heads()));
    for (; n_seen_ < steps.size() && fault_row_ < 0; ++n_seen_) {
        const StepTrace& step = *steps[n_seen_];
        const auto fault = [&](std::string text) {
            if (fault_row_ >= 0) return;
            fault_row_ = step.row;
            fault_ = std::move(text);
        };
        if (step.row <= before_) fault(fmt::format("step {} follows step {}", step.row, before_));
        before_ = step.row;
        const LaneRecord* record = history.lane_record(step.row, lane);
        if (record == nullptr) continue;
        for (const Eviction& e : record->evictions) {
            std::vector<bool>& of_head = gone_[to_index(e.kv_head)];
            const auto p = to_index(e.position);
            if (p >= of_head.size()) of_head.resize(std::max(p + 1, 2 * of_head.size()), false);
            if (e.position > step.row)
                fault(fmt::format("step {} evicted token {}, which came later", step.row, e.position));
            if (of_head[p])
                fault(fmt::format("token {} left {} twice", e.position,
                                  kv_head_text(history.layout(lane), e.kv_head)));
            of_head[p] = true;
        }
    }
}

Finding EvictionOrder::at(const RunHistory& history, int row) const {
    constexpr std::string_view kName = "steps and positions ascend, none twice";
    if (fault_row_ >= 0 && fault_row_ <= row) return broken(kName, fault_);
    return good(kName, fmt::format("{} steps", row - history.steps().front()->row + 1));
}

std::vector<Finding> examine(const RunHistory& history, int lane, int row, EvictionOrder& order) {
    if (history.lane_record(row, lane) == nullptr) return {};
    // A lane that has ended stays as it was: it has read no token since.
    row = std::min(row, history.lanes()[to_index(lane)].last_row);
    const LaneRecord* record = history.lane_record(row, lane);
    if (record == nullptr) return {};
    order.update(history, lane);
    CheckedLane x{history, lane, row, *record};
    x.count_stored();
    std::vector<Finding> findings = {budget(x),       window_advances(x), order.at(history, row),
                                     counts_agree(x), sums_to_one(x),     equals_full(x),
                                     lost_mass(x),    lowest_leave(x)};
    if (record->info->policy.any([](const ResolvedPolicy& one) { return !one.fair.empty(); }))
        findings.push_back(keeps_shares(x));
    for (int g = 0; g < x.n_kv(); ++g)
        if (window_of(x, g) > 0) {
            findings.push_back(sliding_layers(x));
            break;
        }
    return findings;
}

std::vector<Finding> examine(const RunHistory& history, int lane, int row) {
    EvictionOrder order;
    return examine(history, lane, row, order);
}

bool healthy(const std::vector<Finding>& findings) {
    return std::none_of(findings.begin(), findings.end(),
                        [](const Finding& f) { return f.state == State::broken; });
}

void DoctorWatch::update(const RunHistory& history, std::span<const int> lanes, int row, double budget_ms,
                         bool rows_come) {
    using Clock = std::chrono::steady_clock;
    watched_.resize(lanes.size());
    complete_ = true;
    if (history.empty()) return;
    const bool last = row >= history.last_row();
    const auto stale = [&](std::size_t i) {
        const Watched& one = watched_[i];
        return one.generation != history.generation() || one.lane != lanes[i] || one.checked.row != row ||
               one.last != last;
    };
    Clock::time_point begin{};  // the clock is read only if there is work
    for (std::size_t n = 0; n < lanes.size(); ++n) {
        const std::size_t i = next_ % lanes.size();
        if (!stale(i)) {
            ++next_;
            continue;
        }
        if (begin == Clock::time_point{}) {
            begin = Clock::now();
            if (rows_come && begin < not_before_) {
                complete_ = false;
                return;
            }
        } else if (std::chrono::duration<double, std::milli>(Clock::now() - begin).count() >= budget_ms) {
            complete_ = false;
            break;
        }
        Watched& one = watched_[i];
        one.generation = history.generation();
        one.lane = lanes[i];
        one.last = last;
        one.checked.row = row;
        one.checked.findings =
            lanes[i] < 0 ? std::vector<Finding>() : examine(history, lanes[i], row, one.order);
        ++n_examined_;
        ++next_;
    }
    if (begin != Clock::time_point{}) not_before_ = Clock::now() + 19 * (Clock::now() - begin);
}

DoctorWatch::Verdict DoctorWatch::verdict() const {
    Verdict all;
    std::vector<Finding> worst;  // one entry per invariant, in the order of the findings
    const auto weight = [](State state) { return state == State::broken ? 2 : state == State::good ? 1 : 0; };
    for (std::size_t lane = 0; lane < watched_.size(); ++lane) {
        const std::vector<Finding>& findings = watched_[lane].checked.findings;
        for (std::size_t i = 0; i < findings.size(); ++i) {
            if (i >= worst.size()) worst.push_back({findings[i].name, State::unknown, {}});
            if (weight(findings[i].state) > weight(worst[i].state)) worst[i].state = findings[i].state;
            if (findings[i].state != State::broken || all.lane >= 0) continue;
            all.lane = static_cast<int>(lane);
            all.fault = findings[i];
        }
    }
    for (const Finding& f : worst) {
        (f.state == State::broken ? all.n_broken : f.state == State::good ? all.n_hold : all.n_unknown) += 1;
        all.each += fmt::format("{}{}: {}", all.each.empty() ? "" : "\n", f.name,
                                f.state == State::broken ? "BROKEN"
                                : f.state == State::good ? "holds"
                                                         : "not known");
    }
    return all;
}

}  // namespace keyhole
