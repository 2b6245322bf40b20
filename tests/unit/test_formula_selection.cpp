// Selections by formulas on random caches: the CPU's against a slow reference in double, and the device
// kernels, run on the host, against the CPU's, to the bit. KEYHOLE_SELECTIONS=N makes N selections a policy.
#include "engine/backend/common/choice.h"
#include "engine/backend/common/shared.h"
#include "engine/backend/cpu/select.h"
#include "engine/backend/cuda/choice_launch.h"
#include "engine/backend/cuda/kernels/select.h"
#include "engine/backend/cuda/rules.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "tests/reference/reference_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <set>

namespace keyhole::cuda::test_formula_selection {
namespace {

constexpr int kDim = 16;
constexpr double kEps = 2e-5;  // of a rank, in float

int n_selections() {
    const char* wanted = std::getenv("KEYHOLE_SELECTIONS");
    return wanted != nullptr ? std::atoi(wanted) : 400;
}

/// What a KV head stores.
struct Stored {
    std::vector<std::int32_t> positions;  ///< ascending
    std::vector<std::vector<float>> keys, values;
    std::vector<std::vector<float>> scores;             ///< [reader][token]
    std::vector<std::vector<std::vector<float>>> rows;  ///< [reader][kept row, the oldest first][token]
    std::set<int> pinned;
};

/// A random cache of a layout with a policy, on both backends.
struct Round {
    KvLayout layout;
    ResolvedPolicy policy;
    std::string spec;
    std::vector<Unit> units;
    std::vector<Stored> heads;
    FutureTable future;
    RepeatTable repeats;
    int row = 0;
    int n_kept_rows = 0;  ///< newest rows whose attention is known

    Round(std::mt19937& random, const std::string& preset)
        : layout(KvLayout::shared(2, 4, 1 + static_cast<int>(random() % 2), 1 << random() % 3)) {
        const auto below = [&](int n) { return static_cast<int>(random() % to_index(n)); };
        const auto one_of = [&](const std::vector<std::string>& texts) {
            return texts[to_index(below(static_cast<int>(texts.size())))];
        };
        const int n_prompt = 1 + below(60);
        row = n_prompt - 1 + below(20);
        const int most = std::min(row + 1, 48);
        spec = preset + (preset.find(':') == std::string::npos ? ":" : ",");
        const bool as_code = preset.find("dialect=released") != std::string::npos;
        spec += fmt::format("budget={},scope={},pool={},seed={}", 1 + below(most + 3),
                            as_code ? "head" : one_of({"head", "head", "layer", "shared"}),
                            one_of({"mean", "sum", "max"}), random());
        const bool by_rows =
            preset.starts_with("snapkv") || preset.starts_with("rkv") || preset.starts_with("chunk");
        if (preset.starts_with("lagkv")) spec += fmt::format(",window={}", 2 + below(5));
        if (preset.starts_with("chunk")) spec += fmt::format(",unit={}", 1 + below(6));
        if (by_rows)  // their own newest tokens would fill such budgets
            spec += fmt::format(",recent={},window={},kernel={}{}", one_of({"0", "3", "40%"}), 1 + below(9),
                                one_of({"none", "avg:3", "avg:5", "max:3", "max:7"}),
                                as_code ? "" : ",mix=" + one_of({"0", "0.1", "0.5", "1"}));
        else
            spec += one_of({"", "", ",recent=3", ",sinks=2", ",recent=40%,sinks=1"});
        if (spec.find("every=") == std::string::npos) spec += one_of({"", "", "", ",every=3"});
        spec += one_of({"", ",buffer=0", ",buffer=2", ",buffer=5"});
        // Rows are kept in caches that evict after the prompt. Released code takes neither key.
        if (!as_code) {
            spec += by_rows ? one_of({",evict=always", ",evict=decode"})
                            : one_of({"", "", "", ",evict=prompt", ",evict=decode"});
            spec += one_of({"", "", ",protect=prompt", ",protect=4..9", ",protect=(age<6 or position<2)"});
        }
        policy = resolve(parse_lane_spec(spec).policy, n_prompt, 20);
        units = units_of(layout, policy.scope);
        if (policy.kept_rows() > 0) n_kept_rows = 1 + below(std::min(policy.window, row + 1));
        heads.resize(to_index(layout.n_kv_heads()));
        const bool ties = below(4) == 0;
        std::normal_distribution<float> normal;
        for (const Unit& unit : units) {
            std::set<int> positions = {row};
            const int n = 1 + below(most);
            while (static_cast<int>(positions.size()) < n) positions.insert(below(row + 1));
            for (int g = unit.first; g < unit.last; ++g) {
                Stored& head = heads[to_index(g)];
                head.positions.assign(positions.begin(), positions.end());
                for (std::size_t i = 0; i < positions.size(); ++i) {
                    std::vector<float> key, value;
                    for (int c = 0; c < kDim; ++c) key.push_back(normal(random) + (c == 0 ? 1.0f : 0.0f));
                    for (int c = 0; c < kDim; ++c) value.push_back(normal(random));
                    if (ties && i % 3 == 1) key = head.keys.back();
                    head.keys.push_back(key);
                    head.values.push_back(value);
                }
                for (std::size_t r = 0; r < layout.kv_head(g).readers.size(); ++r) {
                    head.scores.emplace_back();
                    for (std::size_t i = 0; i < positions.size(); ++i)
                        head.scores.back().push_back(ties ? static_cast<float>(below(4)) / 4
                                                          : std::abs(normal(random)));
                    head.rows.emplace_back(to_index(n_kept_rows));
                    for (int k = 0; k < n_kept_rows; ++k)
                        for (const int p : positions)
                            head.rows.back()[to_index(k)].push_back(p > row - n_kept_rows + 1 + k ? 0.0f
                                                                    : ties ? static_cast<float>(below(4)) / 4
                                                                           : std::abs(normal(random)));
                }
                if (below(6) == 0) head.pinned.insert(head.positions[to_index(below(n))]);
            }
        }
        future.first_row = n_prompt - 1;
        future.n_rows = row - future.first_row + 1;
        future.n_columns = row + 1;
        future.n_kv_heads = layout.n_kv_heads();
        for (std::int64_t i = 0; i < std::int64_t{future.n_rows} * future.n_kv_heads * future.n_columns; ++i)
            future.sums.push_back(ties ? static_cast<float>(below(3)) : std::abs(normal(random)));
        repeats = {layout.n_kv_heads(), n_prompt, {}};
        for (int i = 0; i < repeats.n_kv_heads * n_prompt; ++i)
            repeats.most.push_back(static_cast<float>(i % 13) / 13);
    }

    /// Has numbers of all signs in kept rows.
    void make_logits() {
        for (Stored& head : heads)
            for (auto& of_reader : head.rows)
                for (std::vector<float>& of_row : of_reader)
                    for (float& logit : of_row) logit = 4 * logit - 2;
    }

    const ResolvedPolicy& policy_of(const Unit& unit) const {
        return unit_policy(layout, policy, unit.first);
    }
    std::set<int> pinned_in(const Unit& unit) const {
        std::set<int> all;
        for (int g = unit.first; g < unit.last; ++g)
            all.insert(heads[to_index(g)].pinned.begin(), heads[to_index(g)].pinned.end());
        return all;
    }
};

// --- the slow reference ----------------------------------------------------------------------------------

using reference::Vector;

/// Returns the positions of a unit that cannot leave by rule. n_own: how many of them are sinks or recent
/// alone.
std::set<int> guarded_in(const Round& round, const Unit& unit, int* n_own = nullptr) {
    const ResolvedPolicy& policy = round.policy_of(unit);
    const std::vector<std::int32_t>& positions = round.heads[to_index(unit.first)].positions;
    const std::set<int> pinned = round.pinned_in(unit);
    const int n = static_cast<int>(positions.size());
    std::set<int> guarded;
    for (int i = 0; i < n; ++i) {
        const int p = positions[to_index(i)], age = round.row - p;
        const bool by_rule = p < policy.sinks || i >= n - policy.recent;
        const bool by_formula =
            (round.spec.find("protect=prompt") != std::string::npos && p < policy.n_prompt) ||
            (round.spec.find("protect=4..9") != std::string::npos && p >= 4 && p <= 9) ||
            (round.spec.find("protect=(") != std::string::npos && (age < 6 || p < 2));
        if (by_rule || by_formula || pinned.contains(p)) guarded.insert(p);
        if (n_own != nullptr) *n_own += by_rule && !by_formula && !pinned.contains(p);
    }
    return guarded;
}

/// Joins the values of heads, [head][token], into one a token.
Vector joined(Pool pool, const std::vector<Vector>& of_head) {
    Vector out = of_head.front();
    for (std::size_t h = 1; h < of_head.size(); ++h)
        for (std::size_t i = 0; i < out.size(); ++i)
            out[i] = pool == Pool::max ? std::max(out[i], of_head[h][i]) : out[i] + of_head[h][i];
    if (pool == Pool::mean)
        for (double& x : out) x /= static_cast<double>(of_head.size());
    return out;
}

/// Returns what R-KV's code observes of a KV head's tokens (field, section 8): in each row the largest logit
/// of the query heads, softmax over those before the newest tokens that the row sees, the mean over rows.
Vector observed_by_code(const Round& round, const Unit& unit) {
    const Stored& head = round.heads[to_index(unit.first)];
    const std::size_t n = head.positions.size(), n_before = n - std::min(n, to_index(round.policy.recent));
    Vector out(n, 0.0);
    for (int k = 0; k < round.n_kept_rows; ++k) {
        Vector most;
        for (std::size_t i = 0; i < n_before; ++i) {
            if (head.positions[i] > round.row - round.n_kept_rows + 1 + k) break;
            most.push_back(-std::numeric_limits<double>::infinity());
            for (const auto& rows : head.rows)
                most.back() = std::max(most.back(), double{rows[to_index(k)][i]});
        }
        if (most.empty()) continue;
        const Vector shares = reference::softmax(most);
        for (std::size_t i = 0; i < shares.size(); ++i) out[i] += shares[i] / round.n_kept_rows;
    }
    return out;
}

/// Returns SnapKV's value of each token: the mean over the rows, joined over query heads, then the kernel
/// over neighbours among those that compete.
Vector observed(const Round& round, const Unit& unit) {
    std::vector<Vector> means;
    for (int g = unit.first; g < unit.last; ++g)
        for (const auto& rows : round.heads[to_index(g)].rows) {
            means.emplace_back(rows.front().size(), 0.0);
            for (const std::vector<float>& row : rows)
                for (std::size_t i = 0; i < row.size(); ++i)
                    means.back()[i] += row[i] / static_cast<double>(rows.size());
        }
    const std::vector<std::int32_t>& positions = round.heads[to_index(unit.first)].positions;
    const std::set<int> guarded = guarded_in(round, unit);
    const Vector plain =
        round.policy.ranks_as_rkv_code ? observed_by_code(round, unit) : joined(round.policy.pool, means);
    std::vector<std::size_t> competing;
    for (std::size_t i = 0; i < positions.size(); ++i)
        if (!guarded.contains(positions[i])) competing.push_back(i);
    const int kernel = parse_lane_spec(round.spec).policy.kernel;
    if (kernel == 0) return plain;
    return reference::smoothed(plain, competing, std::abs(kernel), kernel < 0);
}

/// Returns CAOTE's errors of a KV head, by its readers: the change of the output by hand, without the token
/// and with the others' shares made larger.
std::vector<Vector> errors_of(const Stored& head) {
    std::vector<Vector> out;
    const std::size_t n = head.positions.size();
    for (const std::vector<float>& scores : head.scores) {
        double total = 0;
        for (const float s : scores) total += double{s};
        const auto output = [&](std::size_t without) {
            Vector o(kDim, 0.0);
            const double rest = total - (without < n ? double{scores[without]} : 0);
            for (std::size_t i = 0; i < n; ++i)
                for (std::size_t c = 0; c < kDim && i != without; ++c)
                    o[c] += double{scores[i]} / rest * double{head.values[i][c]};
            return o;
        };
        const Vector whole = output(n);
        Vector& errors = out.emplace_back();
        for (std::size_t i = 0; i < n; ++i) {
            if (n == 1 || total == 0 || double{scores[i]} > 0.9 * total) return {};  // rounding decides
            Vector change = output(i);
            for (std::size_t c = 0; c < kDim; ++c) change[c] -= whole[c];
            errors.push_back(reference::length_of(change));
        }
    }
    return out;
}

/// Returns LagKV's ranks of a KV head: field, section 10.
Vector lag_ranks(const Round& round, const Stored& head) {
    const auto lag = to_index(round.policy.window);
    Vector ranks(head.positions.size(), 1.0);
    std::size_t first = 0;
    while (first < ranks.size() && head.positions[first] < round.policy.sinks) ++first;
    for (; first + 2 * lag <= ranks.size(); first += lag) {
        Vector raw(lag, 0.0);
        for (const auto* rows : {&head.keys, &head.values}) {
            Vector deviations;
            for (std::size_t i = first; i < first + lag; ++i) {
                Vector scaled;
                for (std::size_t c = 0; c < kDim; ++c) {
                    double low = 1e30, high = -1e30;
                    for (std::size_t j = first + lag; j < first + 2 * lag; ++j) {
                        low = std::min(low, double{(*rows)[j][c]});
                        high = std::max(high, double{(*rows)[j][c]});
                    }
                    scaled.push_back((double{(*rows)[i][c]} - low) / (high - low));
                }
                double mean = 0, square = 0;
                for (const double x : scaled) mean += x / kDim;
                for (const double x : scaled) square += (x - mean) * (x - mean) / (kDim - 1);
                deviations.push_back(std::sqrt(square));
            }
            // A channel that is constant in the next partition divides by 0; then all rank lowest.
            const bool is_finite =
                std::all_of(deviations.begin(), deviations.end(), [](double x) { return std::isfinite(x); });
            const Vector shares = reference::softmax(deviations);
            for (std::size_t i = 0; i < lag; ++i)
                raw[i] += is_finite ? shares[i] : -std::numeric_limits<double>::infinity();
        }
        for (std::size_t i = 0; i < lag; ++i) {
            int below = 0;
            for (std::size_t j = 0; j < lag; ++j) below += raw[j] < raw[i] || (raw[j] == raw[i] && j < i);
            ranks[first + i] = static_cast<double>(below) / static_cast<double>(lag);
        }
    }
    return ranks;
}

/// Returns what the preset ranks in double, by token of the unit; empty where keys are as alike as the
/// threshold of R-KV says, but for rounding.
Vector ranks_of(const Round& round, const Unit& unit, const std::string& preset) {
    const auto n = round.heads[to_index(unit.first)].positions.size();
    if (preset == "snapkv" || preset == "chunk") return observed(round, unit);
    std::vector<Vector> of_head;
    for (int g = unit.first; g < unit.last; ++g) {
        const Stored& head = round.heads[to_index(g)];
        if (preset == "caote") {
            const std::vector<Vector> errors = errors_of(head);
            if (errors.empty()) return {};
            of_head.insert(of_head.end(), errors.begin(), errors.end());
            continue;
        }
        if (preset == "lagkv") {
            of_head.push_back(lag_ranks(round, head));
            continue;
        }
        std::vector<Vector> keys;
        for (const std::vector<float>& key : head.keys) keys.emplace_back(key.begin(), key.end());
        Vector values;
        if (preset.starts_with("rkv")) {
            values = reference::redundancies(keys, round.policy.ranks_as_rkv_code);
            if (values.empty()) return {};
        }
        if (preset == "keydiff") values = reference::cosines_to_mean(keys);
        for (std::size_t i = 0; i < n; ++i) {
            if (preset == "knorm") values.push_back(reference::length_of(keys[i]));
            if (preset == "oracle") values.push_back(round.future.at(g, round.row, head.positions[i]));
        }
        of_head.push_back(values);
    }
    if (preset.starts_with("rkv")) {
        const Vector importance = observed(round, unit), redundancy = joined(round.policy.pool, of_head);
        const double mix = round.policy.ranks_as_rkv_code ? 0.07 : parse_lane_spec(round.spec).policy.mix;
        Vector z;
        for (std::size_t i = 0; i < n; ++i) z.push_back(mix * importance[i] - (1 - mix) * redundancy[i]);
        return z;
    }
    Vector ranks;
    const KvHead& first = round.layout.kv_head(unit.first);
    for (std::size_t i = 0; i < n; ++i) {
        if (preset == "random") {
            ranks.push_back(reference::uniform_at(round.policy.seed, first.owner_layer, first.index,
                                                  round.row, round.heads[to_index(unit.first)].positions[i]));
            continue;
        }
        const double value = joined(round.policy.pool, of_head)[i];
        const bool is_good = preset == "oracle" || preset == "caote" || preset == "lagkv";
        ranks.push_back(is_good ? value : -value);
    }
    return ranks;
}

/// Returns what is wrong with a kept set of blocks: each stays or leaves whole, as few
/// as must, the worst ones.
std::string wrong_with_blocks(const Round& round, const Unit& unit, const Vector& ranks,
                              const std::set<int>& kept, const std::set<int>& guarded) {
    const ResolvedPolicy& policy = round.policy_of(unit);
    const std::vector<std::int32_t>& positions = round.heads[to_index(unit.first)].positions;
    std::map<int, Vector> values;
    std::map<int, int> n_kept;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const int p = positions[i];
        if (guarded.contains(p)) {
            if (!kept.contains(p)) return fmt::format("protected token {} left", p);
            continue;
        }
        values[p / policy.unit].push_back(ranks[i]);
        n_kept[p / policy.unit] += kept.contains(p);
    }
    double worst_kept = std::numeric_limits<double>::infinity(), best_gone = -worst_kept;
    std::size_t largest_gone = 0;
    for (const auto& [block, of_block] : values) {
        const int n = n_kept[block];
        if (n != 0 && n != static_cast<int>(of_block.size())) return fmt::format("block {} is cut", block);
        double mean = 0;
        for (const double x : of_block) mean += x / static_cast<double>(of_block.size());
        if (n > 0)
            worst_kept = std::min(worst_kept, mean);
        else
            best_gone = std::max(best_gone, mean), largest_gone = std::max(largest_gone, of_block.size());
    }
    const int size = static_cast<int>(kept.size());
    if (size > std::max(policy.budget, static_cast<int>(guarded.size()))) return "keeps too many";
    if (size + static_cast<int>(largest_gone) <= policy.budget) return "a block too many left";
    if (best_gone > worst_kept + kEps * std::max(1.0, std::abs(best_gone)))
        return fmt::format("evicted {} and kept {}", best_gone, worst_kept);
    return {};
}

/// Returns what is wrong with a kept set; empty: nothing. By rule G7 of the specification: its size is
/// exact, what is protected stays, and no evicted competitor ranks above a kept one by more than rounding.
std::string wrong_with(const Round& round, const Unit& unit, const Vector& ranks, const std::set<int>& kept) {
    const ResolvedPolicy& policy = round.policy_of(unit);
    const std::vector<std::int32_t>& positions = round.heads[to_index(unit.first)].positions;
    const int n = static_cast<int>(positions.size()), block = round.row - policy.n_prompt + 1;
    const bool due = block % policy.every == 0 && n > policy.budget && n >= policy.budget + policy.buffer &&
                     (policy.prefill == PrefillMode::stepwise || block >= 0) &&
                     !(policy.evict == Evict::prompt && block > 0) &&
                     !(policy.evict == Evict::decode && block <= 0);
    if (!due) return static_cast<int>(kept.size()) == n ? "" : "evicted when nothing was due";
    int n_own = 0;  // sinks and recent
    const std::set<int> guarded = guarded_in(round, unit, &n_own);
    const int budget = policy.budget, n_guarded = static_cast<int>(guarded.size());
    if (policy.unit > 1 && n_guarded <= budget) return wrong_with_blocks(round, unit, ranks, kept, guarded);
    const int size = std::max(budget, n_guarded - n_own);
    if (static_cast<int>(kept.size()) != size) return fmt::format("keeps {}, not {}", kept.size(), size);
    if (n_guarded > budget) return {};  // recent tokens and sinks leave: CpuSelect tests that
    double worst_kept = std::numeric_limits<double>::infinity(), best_gone = -worst_kept;
    for (int i = 0; i < n; ++i) {
        const int p = positions[to_index(i)];
        if (guarded.contains(p)) {
            if (!kept.contains(p)) return fmt::format("protected token {} left", p);
        } else if (kept.contains(p)) {
            worst_kept = std::min(worst_kept, ranks[to_index(i)]);
        } else {
            best_gone = std::max(best_gone, ranks[to_index(i)]);
        }
    }
    if (best_gone > worst_kept + kEps * std::max(1.0, std::abs(best_gone)))
        return fmt::format("evicted {} and kept {}", best_gone, worst_kept);
    return {};
}

// --- both backends ---------------------------------------------------------------------------------------

struct Selected {
    std::vector<std::set<int>> kept;         ///< by unit
    std::vector<std::vector<float>> ranked;  ///< by unit, in text order; empty where nothing was ranked
    std::vector<float> threshold;
};

Selected select_on_cpu(const Round& round) {
    cpu::CpuKvCache cache(round.layout, kDim);
    cache.set_policy(round.policy);
    cache.reserve(64);
    cache.set_future(std::make_shared<const FutureTable>(round.future));
    cache.set_repeats(std::make_shared<const RepeatTable>(round.repeats));
    cache.begin_kept_rows(round.row - round.n_kept_rows + 1);
    for (int g = 0; g < round.layout.n_kv_heads(); ++g) {
        const Stored& head = round.heads[to_index(g)];
        for (std::size_t i = 0; i < head.positions.size(); ++i) {
            const int slot = cache.append(g, head.positions[i]);
            cache.write(g, slot, head.keys[i].data(), head.values[i].data());
            std::size_t r = 0;
            for (const HeadRef& reader : round.layout.kv_head(g).readers) {
                const int of = reader.layer * 4 + reader.head;
                for (int k = 0; k < round.n_kept_rows; ++k)
                    cache.kept_row(round.row - round.n_kept_rows + 1 + k, of)[slot] =
                        head.rows[r][to_index(k)][i];
                cache.score(accumulator_of(round.policy), of)[slot] = head.scores[r++][i];
            }
        }
        for (const int p : head.pinned) cache.set_pinned(g, p, true);
    }
    // Without scores for the record one victim is found a shorter way.
    const std::unique_ptr<KvCache> unrecorded = cache.clone();
    cpu::select_row(static_cast<cpu::CpuKvCache&>(*unrecorded), round.row);
    RowValues values;
    values.offset = {0};
    for (const Stored& head : round.heads)
        values.offset.push_back(values.offset.back() + static_cast<int>(head.positions.size()));
    values.scores.resize(to_index(values.offset.back()));
    values.threshold.assign(round.heads.size(), std::numeric_limits<float>::quiet_NaN());
    Selected out;
    cpu::UnitScores scratch;
    std::vector<int> victims;
    std::vector<Eviction> evictions;
    for (const Unit& unit : round.units) {
        cpu::evict_unit(cache, unit, round.row, cpu::Due::by_row, scratch, victims, &values, evictions);
        const std::vector<std::int32_t> stored = cache.stored_positions(unit.first);
        for (int g = unit.first + 1; g < unit.last; ++g) EXPECT_EQ(cache.stored_positions(g), stored);
        EXPECT_EQ(unrecorded->stored_positions(unit.first), stored) << round.spec << ", row " << round.row;
        out.kept.emplace_back(stored.begin(), stored.end());
        out.ranked.emplace_back(values.scores.begin() + values.offset[to_index(unit.first)],
                                values.scores.begin() + values.offset[to_index(unit.first) + 1]);
        out.threshold.push_back(values.threshold[to_index(unit.first)]);
    }
    return out;
}

/// Runs the kernels over the round's cache, with slots in a random order.
Selected select_on_device(const Round& round, std::mt19937& random) {
    const int n_kv = round.layout.n_kv_heads(), stride = 64, capacity = 56;
    struct Memory {
        std::vector<float> keys, values;
        std::vector<std::int32_t> positions;
        std::vector<std::uint8_t> pinned;
        std::vector<std::vector<float>> scores, rows;
    };
    std::vector<Memory> memory(to_index(n_kv));
    std::vector<DeviceHead<float>> heads;
    std::vector<HeadScores> scores(8);
    std::vector<std::int32_t> order(to_index(n_kv * stride)), unit_of_head, readers, offset = {0};
    std::vector<float> future(to_index(n_kv * stride)), repeat = future;
    std::vector<DeviceUnit> units;
    for (const Unit& unit : round.units) {
        std::vector<int> slots(round.heads[to_index(unit.first)].positions.size());
        for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int>(i);
        std::shuffle(slots.begin(), slots.end(), random);
        const std::set<int> pinned = round.pinned_in(unit);
        for (int g = unit.first; g < unit.last; ++g) {
            const Stored& head = round.heads[to_index(g)];
            Memory& m = memory[to_index(g)];
            m.keys.assign(to_index(capacity * kDim), NAN);
            m.values = m.keys;
            m.positions.assign(to_index(capacity), -1);
            m.pinned.assign(to_index(capacity), 0);
            const std::vector<HeadRef>& of = round.layout.kv_head(g).readers;
            m.scores.assign(of.size(), std::vector<float>(to_index(capacity), NAN));
            const int window = round.policy.kept_rows();
            m.rows.assign(of.size(), std::vector<float>(to_index(capacity * window), NAN));
            for (std::size_t i = 0; i < slots.size(); ++i) {
                const int slot = slots[i];
                for (int c = 0; c < kDim; ++c) {
                    m.keys[to_index((c / 8 * capacity + slot) * 8 + c % 8)] = head.keys[i][to_index(c)];
                    m.values[to_index(slot * kDim + c)] = head.values[i][to_index(c)];
                }
                m.positions[to_index(slot)] = head.positions[i];
                m.pinned[to_index(slot)] = pinned.contains(head.positions[i]) ? 1 : 0;
                for (std::size_t r = 0; r < of.size(); ++r) m.scores[r][to_index(slot)] = head.scores[r][i];
                for (std::size_t r = 0; r < of.size(); ++r)
                    for (int k = 0; k < round.n_kept_rows; ++k)
                        m.rows[r][to_index((round.row - round.n_kept_rows + 1 + k) % window * capacity +
                                           slot)] = head.rows[r][to_index(k)][i];
                order[to_index(g * stride) + i] = slot;
                future[to_index(g * stride) + i] = round.future.at(g, round.row, head.positions[i]);
                repeat[to_index(g * stride) + i] = round.repeats.at(g, head.positions[i]);
            }
            heads.push_back({m.keys.data(), m.values.data(), m.positions.data(), m.pinned.data(),
                             static_cast<std::int32_t>(slots.size()), capacity});
            for (std::size_t r = 0; r < of.size(); ++r) {
                readers.push_back(of[r].layer * 4 + of[r].head);
                HeadScores& reader = scores[to_index(readers.back())];
                reader.score[accumulator_of(round.policy)] = m.scores[r].data();
                reader.kept = m.rows[r].data();
                reader.kept_stride = capacity;
                reader.window = window;
            }
            offset.push_back(static_cast<std::int32_t>(readers.size()));
            unit_of_head.push_back(static_cast<std::int32_t>(units.size()));
        }
        units.push_back({unit.first, unit.last, 0, 0});
    }
    std::vector<RowRule> rules;
    row_rules(round.policy, round.row, true, rules);
    const auto n_units = static_cast<std::int32_t>(units.size());
    LaneView<float> lane{};
    lane.heads = heads.data();
    lane.scores = scores.data();
    lane.units = units.data();
    lane.unit_of_head = unit_of_head.data();
    lane.rules = rules.data();
    lane.n_units = n_units;
    lane.row = round.row;
    lane.list_stride = stride;
    lane.choose = round.policy.choose ? &*round.policy.choose : nullptr;
    lane.protect = round.policy.protect ? &*round.policy.protect : nullptr;
    lane.unsmoothed = round.policy.choose.unsmoothed();
    lane.n_kept_rows = round.n_kept_rows;
    lane.order = order.data();
    lane.future = future.data();
    lane.repeat = repeat.data();
    const ReaderTable table{readers.data(), offset.data()};
    int n_lists = 1;
    for (const FormulaRef& formula : {round.policy.choose, round.policy.protect})
        if (formula) n_lists = std::max(n_lists, formula->n_lists);
    std::vector<float> pooled(to_index(n_units * stride), NAN),
        ties = pooled, lists(to_index(n_units * stride * n_lists), NAN),
        lengths(to_index(n_kv * stride), NAN), likeness = lengths, errors = lengths, lags = lengths,
        directions(to_index(n_kv * kDirection), NAN), threshold(to_index(n_units));
    std::vector<std::int32_t> similar(to_index(n_kv * stride), -2);
    std::vector<double> deviations(to_index(n_kv * stride), NAN), lag_values = deviations,
                                                                  largest = deviations, win_sums = deviations;
    std::vector<float> code_win = lengths;
    std::vector<std::uint8_t> leaves(to_index(n_units * stride), 9), competes = leaves, guarded = leaves;
    std::vector<Leaving> leaving(to_index(n_units));
    std::vector<BlockRank> blocks(to_index(n_units * stride), {NAN, NAN, -9, 0});
    const auto seed = static_cast<unsigned>(random());
    const int n_threads = 32 + static_cast<int>(random() % 3) * 32;
    ChoiceShape shape;
    shape.max_units = n_units;
    shape.n_lists = n_lists;
    shape.stride = stride;
    shape.n_kv_heads = shape.kv_stride = n_kv;
    shape.n_heads = 4;
    shape.head_dim = kDim;
    shape.group = 4 / (n_kv / static_cast<int>(units_of(round.layout, Scope::layer).size()));
    launch_choice(&lane, table, shape,
                  {pooled.data(),  lists.data(),      ties.data(),     competes.data(),   guarded.data(),
                   lengths.data(), directions.data(), likeness.data(), similar.data(),    errors.data(),
                   nullptr,        nullptr,           lags.data(),     deviations.data(), lag_values.data(),
                   nullptr,        nullptr,           nullptr,         largest.data(),    win_sums.data(),
                   code_win.data()},
                  [&](const auto& kernel, const Grid& grid) { run_on_host(kernel, grid, n_threads, seed); });
    run_on_host(
        SelectVictims<float>{&lane, table, pooled.data(), leaves.data(), leaving.data(), threshold.data(),
                             n_units, stride, guarded.data(), ties.data(), blocks.data()},
        {n_units, 1}, 64, seed);
    Selected out;
    for (int u = 0; u < n_units; ++u) {
        const Stored& head = round.heads[to_index(round.units[to_index(u)].first)];
        const std::int32_t* slots = order.data() + round.units[to_index(u)].first * stride;
        std::set<int> kept;
        std::vector<float> ranked;
        for (std::size_t i = 0; i < head.positions.size(); ++i) {
            const int slot = slots[i];
            const Leaving& goes = leaving[to_index(u)];
            const bool left = goes.count == 1 ? goes.slot == slot
                                              : goes.count < 0 && leaves[to_index(u * stride + slot)] != 0;
            if (!left) kept.insert(head.positions[i]);
            ranked.push_back(pooled[to_index(u * stride + slot)]);
        }
        out.kept.push_back(kept);
        out.ranked.push_back(ranked);
        out.threshold.push_back(threshold[to_index(u)]);
    }
    return out;
}

bool same_bits(float a, float b) {
    return (std::isnan(a) && std::isnan(b)) || std::memcmp(&a, &b, sizeof(a)) == 0;
}

/// Compares both backends to the bit.
void expect_equal(const Round& round, const Selected& a, const Selected& b) {
    for (std::size_t u = 0; u < round.units.size(); ++u) {
        for (std::size_t i = 0; i < a.ranked[u].size(); ++i)
            ASSERT_TRUE(same_bits(a.ranked[u][i], b.ranked[u][i]))
                << round.spec << ", row " << round.row << ", unit " << u << ", token " << i << ": "
                << a.ranked[u][i] << " and " << b.ranked[u][i];
        ASSERT_EQ(a.kept[u], b.kept[u]) << round.spec << ", row " << round.row << ", unit " << u;
        ASSERT_TRUE(same_bits(a.threshold[u], b.threshold[u])) << round.spec << ", unit " << u;
    }
}

class FieldSelections : public ::testing::TestWithParam<const char*> {};

TEST_P(FieldSelections, AreRightOnBothBackends) {
    const std::string preset = GetParam();
    std::mt19937 random(1);
    int n = 0, n_due = 0;
    while (n < n_selections()) {
        // keydiff reads the prompt in blocks; here as the others do, so that most rows evict.
        Round round(random, preset == "keydiff" ? "keydiff:prefill=oneshot,every=1"
                            : preset == "lagkv" ? "lagkv:every=1"
                                                : preset);
        if (round.policy.ranks_as_rkv_code) round.make_logits();
        const Selected cpu = select_on_cpu(round);
        if (!has_no_kernel(round.policy)) expect_equal(round, cpu, select_on_device(round, random));
        for (std::size_t u = 0; u < round.units.size(); ++u) {
            const std::size_t stored = round.heads[to_index(round.units[u].first)].positions.size();
            const Vector ranks = ranks_of(round, round.units[u], preset);
            if (ranks.empty()) continue;
            const bool is_ranked = !preset.starts_with("rkv") || cpu.kept[u].size() < stored;
            for (std::size_t i = 0; i < ranks.size() && is_ranked; ++i)
                ASSERT_NEAR(cpu.ranked[u][i], ranks[i], kEps * std::max(1.0, std::abs(ranks[i])))
                    << round.spec << ", row " << round.row << ", token " << i;
            ASSERT_EQ(wrong_with(round, round.units[u], ranks, cpu.kept[u]), "")
                << round.spec << ", row " << round.row << ", unit " << u;
            if (cpu.kept[u].size() == stored) continue;
            ++n_due;
            ++n;
        }
        if (::testing::Test::HasFatalFailure()) return;
    }
    RecordProperty("selections", n);
    EXPECT_GE(n_due, n_selections());
}

INSTANTIATE_TEST_SUITE_P(All, FieldSelections,
                         ::testing::Values("random", "oracle", "knorm", "keydiff", "snapkv", "rkv",
                                           "rkv:dialect=released", "lagkv", "caote", "chunk"),
                         [](const auto& of) {
                             const std::string name = of.param;
                             const std::size_t colon = name.find(':');
                             return name.substr(0, colon) + (colon == std::string::npos ? "" : "AsReleased");
                         });

// R-KV's code looks at logits of all signs; here they are any numbers.
TEST(FormulaKernels, RankAsTheCodeOfRkvWithTheBitsOfTheHost) {
    std::mt19937 random(4);
    int n_ranked = 0;
    for (int i = 0; i < n_selections(); ++i) {
        Round round(random, "rkv:dialect=released");
        round.make_logits();
        const Selected cpu = select_on_cpu(round);
        expect_equal(round, cpu, select_on_device(round, random));
        if (::testing::Test::HasFatalFailure()) return;
        for (const std::vector<float>& of_unit : cpu.ranked)
            n_ranked += std::isfinite(of_unit.front()) ? 1 : 0;
    }
    EXPECT_GT(n_ranked, n_selections() / 2);
}

// The manual's page on CUDA names the same.
TEST(FormulaKernels, SelectOnTheDeviceButForFew) {
    const auto on_host = [](const std::string& spec) {
        return has_no_kernel(resolve(parse_lane_spec(spec).policy, 20, 20));
    };
    for (const char* spec :
         {"chunk:budget=8,evict=always", "h2o:budget=8,unit=4", "rkv:budget=8", "caote:budget=8",
          "lagkv:budget=8", "adakv:budget=8", "critical:budget=8,evict=always",
          "key:budget=8,choose=(wvnorm)", "adakv:budget=8,evict=always"})
        EXPECT_FALSE(on_host(spec)) << spec;
    for (const char* spec : {"expected:budget=8", "tri:budget=8"}) EXPECT_TRUE(on_host(spec)) << spec;
}

// Every word of the language gives the same bits in the kernel as on the host.
TEST(FormulaKernels, GiveTheBitsOfTheHost) {
    std::mt19937 random(2);
    const std::vector<std::string> formulas = {
        "s",
        "-s/(age+1)",
        "smooth(s, avg, 5)*vnorm",
        "smooth(s, max, 7)-0.1*u",
        "rank(s)+rank(knorm)",
        "norm(s)-norm(keydiff)",
        "softmax(s)*exp(-age/8)",
        "first(50%, knorm, -position)",
        "log(s+1e-4)^3+sqrt(vnorm)",
        "largest(s)-mean(s)+std(s)*sum(u)/count",
        "prompt and not age<4 ? s : (s>1 or slot==2 ? future : -1)",
        "clamp(knorm, 1, 4)-abs(s-0.5)+min(u, s)-max(vnorm, 2)",
        "layer+kvhead/8+row*1e-3+n-budget+t+alpha+tau+gain-s",
        "s/0*(position<=3?1:0)",
        "smooth(redundancy)-smooth(s, max, 3)+mix*window",
        "win*vnorm+rank(redundancy)/count",
        "min(repeat, 2)-caote*lag",
        "smooth(caote)+softmax(lag)*vnorm",
        "s^-2 != 1 ? s >= 0.5 ? 1/s : 2 : 3",
    };
    int n = 0;
    for (int i = 0; i < std::max(20, n_selections() / 20); ++i)
        for (const std::string& formula : formulas) {
            const Round round(random, "key:choose=(" + formula + ")");
            expect_equal(round, select_on_cpu(round), select_on_device(round, random));
            if (::testing::Test::HasFatalFailure()) return;
            ++n;
        }
    EXPECT_GT(n, 100);
}

}  // namespace
}  // namespace keyhole::cuda::test_formula_selection
