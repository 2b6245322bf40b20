#include "engine/backend/common/choice.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/allocation.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace keyhole {
namespace {

/// Returns the mean direction of all stored keys, [head_dim], and its length behind it. Each channel has 32
/// sums, of every 32nd token each.
std::vector<float> mean_direction(const ChoiceHead& head, std::span<const float> lengths, int head_dim) {
    constexpr std::size_t kSums = 32;
    const std::size_t d = to_index(head_dim), n = head.positions.size();
    std::vector<float> sums(kSums * d, 0), mean(d + 1);
    for (std::size_t i = 0; i < n; ++i) {
        float* sum = sums.data() + i % kSums * d;
        for (std::size_t c = 0; c < d; ++c)
            sum[c] = add(sum[c], unit_channel(head.keys[i * d + c], lengths[i]));
    }
    for (std::size_t c = 0; c < d; ++c) {
        float of_channel[kSums];
        for (std::size_t j = 0; j < kSums; ++j) of_channel[j] = sums[j * d + c];
        mean[c] = sum_in_pairs(of_channel) / static_cast<float>(n);
    }
    const auto channel = [&](int c) { return mean[to_index(c)]; };
    mean[d] = length_of(head_dim, channel);
    return mean;
}

/// Returns the share of each token in the likeness of all keys to it: R-KV, section 3. c is the cosine of two
/// different keys; in each row the youngest key with c > 0.5 counts 0; then means over rows, and softmax.
std::vector<float> redundancy_of(const ChoiceHead& head, std::span<const float> lengths, int head_dim) {
    constexpr std::size_t kSums = 32;
    const std::size_t d = to_index(head_dim), n = head.positions.size();
    std::vector<float> sums(kSums * n, 0), row(n), out(n);
    for (std::size_t i = 0; i < n; ++i) {
        const float* own = head.keys.data() + i * d;
        std::size_t youngest = n;
        for (std::size_t j = 0; j < n; ++j) {
            const float* other = head.keys.data() + j * d;
            const float dot = dot_channels(
                head_dim, [&](int c) { return own[c]; }, [&](int c) { return other[c]; });
            row[j] = i == j ? 0.0f : cosine_of(dot, lengths[i], lengths[j]);
            if (row[j] > kSimilar) youngest = j;
        }
        if (youngest < n) row[youngest] = 0;
        float* sum = sums.data() + i % kSums * n;
        for (std::size_t j = 0; j < n; ++j) sum[j] = add(sum[j], row[j]);
    }
    float most[kSums], total[kSums];
    std::fill(most, most + kSums, -std::numeric_limits<float>::infinity());
    for (std::size_t j = 0; j < n; ++j) {
        float of_token[kSums];
        for (std::size_t i = 0; i < kSums; ++i) of_token[i] = sums[i * n + j];
        out[j] = sum_in_pairs(of_token) / static_cast<float>(n);
        most[j % kSums] = formula_max(most[j % kSums], out[j]);
    }
    float largest = most[0];
    for (const float one : most) largest = formula_max(largest, one);
    std::fill(total, total + kSums, 0.0f);
    for (std::size_t j = 0; j < n; ++j)
        total[j % kSums] = add(total[j % kSums], formula_exp(add(out[j], -largest)));
    const float all = sum_in_pairs(total);
    for (float& x : out) x = formula_exp(add(x, -largest)) / all;
    return out;
}

/// Returns a quantity of each token that a KV head stores.
std::vector<float> of_head(Quantity quantity, const ChoiceUnit& of, std::size_t index) {
    const ChoiceHead& head = of.heads[index];
    const std::size_t n = head.positions.size(), d = to_index(of.head_dim);
    std::vector<float> out(n);
    const auto lengths = [&](const std::vector<float>& rows) {
        KH_ASSERT(rows.size() == n * d, "{} numbers for {} tokens", rows.size(), n);
        for (std::size_t i = 0; i < n; ++i)
            out[i] = length_of(of.head_dim, [&](int c) { return rows[i * d + to_index(c)]; });
    };
    if (quantity == Quantity::vnorm) {
        lengths(head.values);
    } else if (quantity == Quantity::future) {
        for (std::size_t i = 0; i < n && of.future != nullptr; ++i)
            out[i] = of.future->at(of.unit.first + static_cast<int>(index), of.row, head.positions[i]);
    } else {
        lengths(head.keys);
        if (quantity == Quantity::knorm) return out;
        if (quantity == Quantity::redundancy) return redundancy_of(head, out, of.head_dim);
        const std::vector<float> mean = mean_direction(head, out, of.head_dim);
        for (std::size_t i = 0; i < n; ++i) {
            const float dot = dot_channels(
                of.head_dim, [&](int c) { return head.keys[i * d + to_index(c)]; },
                [&](int c) { return mean[to_index(c)]; });
            out[i] = cosine_of(dot, out[i], mean[d]);
        }
    }
    return out;
}

/// Returns a quantity of the unit's tokens, pooled over the KV heads that store them.
std::vector<float> pooled_quantity(Quantity quantity, const ChoiceUnit& of) {
    const Pool pool = of.policy.pool;
    std::vector<float> out(of.positions.size(), 0);
    std::vector<int> count(of.positions.size(), 0);
    for (std::size_t h = 0; h < of.heads.size(); ++h) {
        const std::vector<float> own = of_head(quantity, of, h);
        std::size_t column = 0;
        for (std::size_t i = 0; i < own.size(); ++i, ++column) {
            while (of.positions[column] != of.heads[h].positions[i]) ++column;
            float& value = out[column];
            if (count[column]++ == 0)
                value = own[i];
            else
                value = pool == Pool::max ? formula_max(value, own[i]) : add(value, own[i]);
        }
    }
    if (pool == Pool::mean)
        for (std::size_t i = 0; i < out.size(); ++i)
            if (count[i] > 1) out[i] /= static_cast<float>(count[i]);
    return out;
}

/// What a formula sees of a unit. Lists are made when a formula names their quantity.
struct HostEnv {
    const ChoiceUnit& of;
    std::span<const float> scores;
    std::array<std::vector<float>, kQuantities> lists{};
    float tau = 1;

    HostEnv(const ChoiceUnit& unit, std::span<const float> pooled)
        : of(unit), scores(pooled), tau(unit.policy.tau_at(unit.row)) {
        for (const Quantity q :
             {Quantity::knorm, Quantity::vnorm, Quantity::keydiff, Quantity::redundancy, Quantity::future})
            if (of.policy.names(q)) lists[to_index(static_cast<int>(q))] = pooled_quantity(q, of);
    }
    int budget() const { return of.policy.budget; }
    float quantity(Quantity q, int i) const {
        const ResolvedPolicy& policy = of.policy;
        const std::int32_t position = of.positions[to_index(i)];
        switch (q) {
            case Quantity::row:
                return static_cast<float>(of.row);
            case Quantity::t:
                return static_cast<float>(std::max(of.row - policy.n_prompt + 1, 0));
            case Quantity::n:
                return static_cast<float>(policy.n_prompt);
            case Quantity::count:
                return static_cast<float>(of.positions.size());
            case Quantity::budget:
                return static_cast<float>(policy.budget);
            case Quantity::layer:
                return static_cast<float>(first().owner_layer);
            case Quantity::kvhead:
                return static_cast<float>(first().index);
            case Quantity::alpha:
                return policy.alpha;
            case Quantity::tau:
                return tau;
            case Quantity::gain:
                return policy.gain;
            case Quantity::mix:
                return policy.mix;
            case Quantity::window:
                return static_cast<float>(policy.window);
            case Quantity::win:
                return of.win.empty() ? NAN : of.win[to_index(i)];
            case Quantity::age:
                return static_cast<float>(of.row - position);
            case Quantity::position:
                return static_cast<float>(position);
            case Quantity::slot:
                return static_cast<float>(i);
            case Quantity::prompt:
                return position < policy.n_prompt ? 1.0f : 0.0f;
            case Quantity::s:
                return scores[to_index(i)];
            case Quantity::u:
                return uniform_at(policy.seed, first().owner_layer, first().index, of.row, position);
            default:
                return lists[to_index(static_cast<int>(q))][to_index(i)];
        }
    }
    const KvHead& first() const { return of.layout.kv_head(of.unit.first); }
};

}  // namespace

void add_seen(const float* row_values, const std::int32_t* positions, int row, int n, float* sum) {
    for (int i = 0; i < n; ++i) sum[i] = add(sum[i], positions[i] <= row ? row_values[i] : 0.0f);
}

std::vector<float> choose_on_host(const ChoiceUnit& of, std::span<float> pooled,
                                  std::vector<std::int32_t>& pinned) {
    const int n = static_cast<int>(of.positions.size());
    if (n == 0) return {};
    const ResolvedPolicy& policy = of.policy;
    const HostEnv env(of, pooled);
    std::vector<std::uint8_t> competes(to_index(n));
    for (int i = 0; i < n; ++i)
        competes[to_index(i)] =
            of.positions[to_index(i)] >= policy.sinks && i < n - policy.newest &&
                    !std::binary_search(pinned.begin(), pinned.end(), of.positions[to_index(i)])
                ? 1
                : 0;
    std::vector<float> lists;
    FormulaRun<HostEnv>::Sums sums;
    const auto run = [&](const FormulaTable& table) {
        lists.resize(to_index(table.n_lists) * to_index(n));
        const FormulaRun<HostEnv> formula{env, table, lists.data(), n, competes.data(), n, 0, 1, sums};
        for (int step = 0; step < table.n_steps; ++step) formula.step(step);
    };
    if (policy.protect) {
        run(*policy.protect);
        const std::size_t n_pinned = pinned.size();
        for (int i = 0; i < n; ++i) {
            if (lists[to_index(i)] == 0) continue;
            competes[to_index(i)] = 0;
            pinned.push_back(of.positions[to_index(i)]);
        }
        std::inplace_merge(pinned.begin(), pinned.begin() + static_cast<std::ptrdiff_t>(n_pinned),
                           pinned.end());
    }
    if (!policy.choose) return {};
    std::vector<float> ties;
    if (const FormulaTable* unsmoothed = policy.choose.unsmoothed()) {
        run(*unsmoothed);
        ties.assign(lists.begin(), lists.begin() + n);
    }
    run(*policy.choose);
    std::copy_n(lists.begin(), n, pooled.begin());
    return ties;
}

namespace {

/// Returns the tokens of a prompt's unit that may leave.
HeadShare share_of(const ResolvedPolicy& policy, int n, const PromptChoice& choice) {
    HeadShare share;
    for (std::int32_t p = policy.sinks; p < n - policy.newest; ++p) {
        if (std::binary_search(choice.guarded.begin(), choice.guarded.end(), p)) continue;
        share.positions.push_back(p);
        share.score.push_back(choice.score[to_index(p)]);
        if (!choice.ties.empty()) share.tie.push_back(choice.ties[to_index(p)]);
    }
    const int n_free = static_cast<int>(share.positions.size());
    share.budget = std::clamp(policy.stored - (n - n_free), 0, n_free);
    return share;
}

}  // namespace

void share_prompt_budgets(const KvLayout& layout, int n,
                          const std::function<const ResolvedPolicy&(std::size_t lane)>& policy_of,
                          std::span<const PromptChoice> choices) {
    for (std::size_t first = 0, last = 0; first < choices.size(); first = last) {
        const std::size_t lane = choices[first].lane;
        const ResolvedPolicy& policy = policy_of(lane);
        const auto layer_of = [&](const PromptChoice& c) { return layout.kv_head(c.unit.first).owner_layer; };
        const auto together = [&](const PromptChoice& c) {
            return c.lane == lane &&
                   (policy.alloc == Alloc::global || layer_of(c) == layer_of(choices[first]));
        };
        for (last = first; last < choices.size() && together(choices[last]);) ++last;
        if (policy.alloc == Alloc::uniform) continue;
        std::vector<HeadShare> shares;
        std::vector<std::size_t> sharing;
        bool leave = false;
        for (std::size_t i = first; i < last; ++i) {
            const ResolvedPolicy& own = unit_policy(layout, policy, choices[i].unit.first);
            if (!own.evicts()) continue;  // it keeps all tokens, whatever the others do
            leave = leave || own.exceeded(n, n - 1);
            shares.push_back(share_of(own, n, choices[i]));
            sharing.push_back(i);
        }
        if (!leave) continue;
        const std::vector<int> kept = share_budget(shares, policy.floor);
        for (std::size_t i = 0; i < sharing.size(); ++i)
            *choices[sharing[i]].stored = n - static_cast<int>(shares[i].positions.size()) + kept[i];
    }
}

float prompt_victims(const ResolvedPolicy& policy, int n, int stored, std::span<const float> score,
                     std::span<const float> ties, std::span<const std::int32_t> guarded,
                     std::vector<int>& victims) {
    const std::vector<std::int32_t> positions = prompt_positions(n);
    if (stored == policy.stored)
        return select_victims(positions, score, guarded, policy, n - 1, victims, ties);
    ResolvedPolicy own = policy;
    own.stored = stored;
    own.buffer = 0;
    return select_victims(positions, score, guarded, own, n - 1, victims, ties);
}

}  // namespace keyhole
