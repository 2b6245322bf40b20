#include "tests/reference/reference_policy.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numbers>

namespace reference {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

}  // namespace

std::array<std::uint32_t, 4> philox(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key) {
    for (int round = 1; round <= 10; ++round) {
        const std::uint64_t left = counter[0] * 3528531795ull;   // 0xD2511F53
        const std::uint64_t right = counter[2] * 3449720151ull;  // 0xCD9E8D57
        counter = {static_cast<std::uint32_t>(right / 4294967296ull) ^ counter[1] ^ key[0],
                   static_cast<std::uint32_t>(right % 4294967296ull),
                   static_cast<std::uint32_t>(left / 4294967296ull) ^ counter[3] ^ key[1],
                   static_cast<std::uint32_t>(left % 4294967296ull)};
        key = {key[0] + 2654435769u, key[1] + 3144134277u};  // golden ratio; sqrt(3) - 1
    }
    return counter;
}

double noise_at(Noise noise, bool per_row, std::uint64_t seed, int layer, int head, int row, int position) {
    // Mean and deviation of Gumbel(0, 1): Euler's constant and pi / sqrt(6).
    const double mean = std::numbers::egamma, deviation = std::numbers::pi / std::sqrt(6.0);
    if (noise == Noise::none) return 0;
    if (noise == Noise::constant) return mean;
    const auto bits = philox(
        {static_cast<std::uint32_t>(position), per_row ? static_cast<std::uint32_t>(row) : 4294967295u,
         static_cast<std::uint32_t>(layer), static_cast<std::uint32_t>(head)},
        {static_cast<std::uint32_t>(seed % 4294967296ull), static_cast<std::uint32_t>(seed / 4294967296ull)});
    // The middle of one of 2^23 equal cells of (0, 1).
    const double u = (std::floor(bits[0] / 512.0) + 0.5) / 8388608.0;
    const double v = (std::floor(bits[1] / 512.0) + 0.5) / 8388608.0;
    if (noise == Noise::gumbel) return -std::log(-std::log(u));
    return mean + deviation * std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * std::numbers::pi * v);
}

Lane::Lane(const Weights& weights, const Policy& policy, int n_prompt)
    : weights_(weights),
      policy_(policy),
      n_prompt_(n_prompt),
      sequence_(weights),
      stored_(empty_sets(weights)) {
    score_.assign(keyhole::to_index(weights.n_layers),
                  std::vector<Vector>(keyhole::to_index(weights.n_heads)));
    sum_ = score_;
}

// Keyformer: tau_init for the prompt; t = 1 is the first decode row; held at tau_end from t = T on.
double Lane::tau_at(int row) const {
    if (row < n_prompt_) return policy_.tau_begin;
    const double t = std::min(1.0, static_cast<double>(row - n_prompt_ + 1) / policy_.horizon);
    const double share =
        policy_.tau_shape == TauShape::linear ? t : (1.0 - std::cos(std::numbers::pi * t)) / 2.0;
    return policy_.tau_begin + share * (policy_.tau_end - policy_.tau_begin);
}

bool Lane::evicts_after(int row) const {
    const int blocks_from = row - (n_prompt_ - 1);  // the last prompt row closes a block
    if (policy_.phase == Phase::prompt && blocks_from > 0) return false;
    if (policy_.phase == Phase::decode && blocks_from <= 0) return false;
    return (blocks_from >= 0 || policy_.stepwise) && blocks_from % policy_.every == 0;
}

/// Under Unit::column, the mean over layers of what each KV head's query heads make together.
double Lane::mean_of_column(int kv_head, const std::function<double(int l, int h)>& of) const {
    const int group = weights_.n_heads / weights_.n_kv_heads;
    double sum = 0;
    for (int l = 0; l < weights_.n_layers; ++l) {
        double most = -std::numeric_limits<double>::infinity(), added = 0;
        for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
            most = std::max(most, of(l, h));
            added += of(l, h);
        }
        sum += policy_.pool == PoolOver::max ? most : policy_.pool == PoolOver::sum ? added : added / group;
    }
    return sum / weights_.n_layers;
}

double Lane::pooled(int layer, int kv_head, int position) const {
    const int group = weights_.n_heads / weights_.n_kv_heads;
    if (policy_.unit == Unit::column)
        return mean_of_column(kv_head, [&](int l, int h) {
            return score_[keyhole::to_index(l)][keyhole::to_index(h)][keyhole::to_index(position)];
        });
    std::vector<double> read;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int h = 0; h < weights_.n_heads; ++h) {
            const bool reads =
                policy_.unit == Unit::shared ||
                (weights_.owner_of(l) == layer && (policy_.unit == Unit::layer || h / group == kv_head));
            if (reads)
                read.push_back(
                    score_[keyhole::to_index(l)][keyhole::to_index(h)][keyhole::to_index(position)]);
        }
    if (policy_.pool == PoolOver::max) return *std::max_element(read.begin(), read.end());
    double sum = 0;
    for (double score : read) sum += score;
    return policy_.pool == PoolOver::sum ? sum : sum / static_cast<double>(read.size());
}

/// Returns the KV heads that keep one set with this one.
std::vector<std::pair<int, int>> Lane::kv_heads_with(int layer, int kv_head) const {
    std::vector<std::pair<int, int>> heads;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g)
            if (policy_.unit == Unit::shared || (policy_.unit == Unit::column && g == kv_head) ||
                (l == layer && (policy_.unit == Unit::layer || g == kv_head)))
                heads.emplace_back(l, g);
    return heads;
}

double Lane::quantity(int layer, int kv_head, int position) const {
    const auto& keys = keys_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    if (policy_.ranks == RanksBy::future) return future_(layer, kv_head, row_, position);
    if (policy_.ranks == RanksBy::knorm) return length_of(keys[keyhole::to_index(position)]);
    std::vector<Vector> stored;
    std::size_t at = 0;
    for (int p : stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)]) {
        if (p == position) at = stored.size();
        stored.push_back(keys[keyhole::to_index(p)]);
    }
    return cosines_to_mean(stored)[at];
}

const HeadFormulas& Lane::formulas_of(int layer, int kv_head) const {
    static const HeadFormulas none;
    const auto found = policy_.formulas.find({weights_.owner_of(layer), kv_head});
    return found == policy_.formulas.end() ? none : found->second;
}

/// Joins what several heads have of a token.
double Lane::joined(const std::vector<double>& values, bool over_layers) const {
    const PoolOver pool = over_layers ? PoolOver::mean : policy_.pool;
    if (pool == PoolOver::max) return *std::max_element(values.begin(), values.end());
    double sum = 0;
    for (const double value : values) sum += value;
    return pool == PoolOver::sum ? sum : sum / static_cast<double>(values.size());
}

/// Returns the lengths of a token's key and value, joined over the KV heads that keep one set.
std::vector<double> Lane::lengths_of(int layer, int kv_head, int position) const {
    std::vector<double> keys, values;
    for (const auto& [l, g] : kv_heads_with(layer, kv_head)) {
        if (!stored_[keyhole::to_index(l)][keyhole::to_index(g)].contains(position)) continue;
        keys.push_back(
            length_of(keys_[keyhole::to_index(l)][keyhole::to_index(g)][keyhole::to_index(position)]));
        values.push_back(length_of(sequence_.value(l, g, position)));
    }
    const bool over_layers = policy_.unit == Unit::column;
    return {joined(keys, over_layers), joined(values, over_layers)};
}

/// Returns a stored token with its place: the slot-th of `count` in text order, after a row.
Seen Lane::seen_at(int position, std::size_t slot, std::size_t count, int row, int layer, int kv_head) const {
    Seen token;
    token.row = row;
    token.age = row - position;
    token.position = position;
    token.slot = static_cast<int>(slot);
    token.n = n_prompt_;
    token.count = static_cast<int>(count);
    token.budget = policy_.budget;
    token.layer = layer;
    token.kv_head = kv_head;
    return token;
}

/// Returns what a selection's formula sees of the stored tokens, in text order.
std::vector<Seen> Lane::seen_by_selection(int layer, int kv_head, bool marks_competing) const {
    const auto [first_layer, first_head] = kv_heads_with(layer, kv_head).front();
    const std::set<int>& stored = stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    const std::vector<int> free = marks_competing ? competing(layer, kv_head) : std::vector<int>();
    std::vector<Seen> out;
    for (const int p : stored) {
        Seen token = seen_at(p, out.size(), stored.size(), row_, first_layer, first_head);
        const std::vector<double> lengths = lengths_of(layer, kv_head, p);
        token.s = pooled(layer, kv_head, p);
        token.knorm = lengths[0];
        token.vnorm = lengths[1];
        token.u = uniform_at(policy_.seed, first_layer, first_head, row_, p);
        token.competes = std::binary_search(free.begin(), free.end(), p);
        out.push_back(token);
    }
    return out;
}

/// Makes the scores after a row by the formula of a query head.
void Lane::score_row(const Row& row, int layer, int head) {
    const std::size_t l = keyhole::to_index(layer), h = keyhole::to_index(head);
    const int group = weights_.n_heads / weights_.n_kv_heads, owner = weights_.owner_of(layer);
    const std::set<int>& stored = stored_[keyhole::to_index(owner)][keyhole::to_index(head / group)];
    std::vector<Seen> tokens;
    for (const int position : stored) {
        const std::size_t p = keyhole::to_index(position);
        Seen token = seen_at(position, tokens.size(), stored.size(), row.row, layer, head / group);
        token.s = score_[l][h][p];
        token.p = row.attention[l][h][p];
        token.logit = row.logits[l][h][p];
        token.knorm = length_of(keys_[keyhole::to_index(owner)][keyhole::to_index(head / group)][p]);
        token.vnorm = length_of(sequence_.value(owner, head / group, position));
        token.head = head;
        tokens.push_back(token);
    }
    const Vector values = formulas_of(layer, head / group).score(tokens);
    for (std::size_t i = 0; i < tokens.size(); ++i)
        score_[l][h][keyhole::to_index(tokens[i].position)] = values[i];
}

/// Returns the stored positions that may leave.
std::vector<int> Lane::competing(int layer, int kv_head) const {
    const std::set<int>& stored = stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    const std::vector<int> by_age(stored.begin(), stored.end());
    std::vector<int> free;
    if (!policy_.spans.empty()) {
        for (const SpanRoom& span : rooms_of_spans(layer, kv_head))
            free.insert(free.end(), span.free.begin(), span.free.end());
        return free;
    }
    const Formula& protect = formulas_of(layer, kv_head).protect;
    const Vector holds = protect ? protect(seen_by_selection(layer, kv_head, false)) : Vector();
    for (std::size_t i = 0; i < by_age.size(); ++i) {
        if (protect && holds[i] != 0) continue;
        const bool is_recent = i + keyhole::to_index(policy_.recent) >= by_age.size();
        const bool is_protected = by_age[i] >= policy_.protect_from && by_age[i] <= policy_.protect_to;
        if (by_age[i] >= policy_.sinks && !is_recent && !is_protected) free.push_back(by_age[i]);
    }
    return free;
}

/// The mean of a token's attention over the newest rows, joined over the query heads that share the set.
double Lane::observed(int layer, int kv_head, int position) const {
    if (policy_.as_rkv_code) return observed_by_code(layer, kv_head, position);
    const int group = weights_.n_heads / weights_.n_kv_heads;
    // The newest rows; of fair spans, those of the token's own.
    std::vector<int> rows;
    for (int row = 0; row <= row_; ++row)
        if (span_of(row) == span_of(position)) rows.push_back(row);
    rows.erase(rows.begin(), rows.end() - std::min<std::ptrdiff_t>(
                                              std::ssize(rows), part_of(policy_.window, span_of(position))));
    const auto mean = [&](int l, int h) {
        double sum = 0;
        for (const int row : rows)
            if (row >= position)
                sum += seen_[keyhole::to_index(row)][keyhole::to_index(l)][keyhole::to_index(h)]
                            [keyhole::to_index(position)];
        return sum / static_cast<double>(rows.size());
    };
    if (policy_.unit == Unit::column) return mean_of_column(kv_head, mean);
    std::vector<double> read;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int h = 0; h < weights_.n_heads; ++h)
            if (policy_.unit == Unit::shared ||
                (weights_.owner_of(l) == layer && (policy_.unit == Unit::layer || h / group == kv_head)))
                read.push_back(mean(l, h));
    if (policy_.pool == PoolOver::max) return *std::max_element(read.begin(), read.end());
    double sum = 0;
    for (double value : read) sum += value;
    return policy_.pool == PoolOver::sum ? sum : sum / static_cast<double>(read.size());
}

/// R-KV's released code: in each row the largest logit of the query heads, softmax over what stands before
/// the window, the mean over rows.
double Lane::observed_by_code(int layer, int kv_head, int position) const {
    const std::set<int>& stored = stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    const std::vector<int> all(stored.begin(), stored.end());
    const std::size_t n_before = all.size() - std::min(all.size(), keyhole::to_index(policy_.recent));
    const auto at = std::find(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(n_before), position);
    const auto place = keyhole::to_index(at - all.begin());
    if (place >= n_before) return 0;
    const int group = weights_.n_heads / weights_.n_kv_heads, n_rows = std::min(policy_.window, row_ + 1);
    double sum = 0;
    for (int row = row_ - n_rows + 1; row <= row_; ++row) {
        Vector most(n_before, kNan);
        for (std::size_t i = 0; i < n_before && all[i] <= row; ++i)
            for (int l = 0; l < weights_.n_layers; ++l)
                for (int h = 0; h < weights_.n_heads; ++h) {
                    if (weights_.owner_of(l) != layer || h / group != kv_head) continue;
                    const double logit = logits_[keyhole::to_index(row)][keyhole::to_index(l)]
                                                [keyhole::to_index(h)][keyhole::to_index(all[i])];
                    most[i] = std::isnan(most[i]) ? logit : std::max(most[i], logit);
                }
        // Where the layer's window hides all of them from the row, it adds nothing.
        const bool sees = std::any_of(most.begin(), most.end(), [](double x) { return !std::isnan(x); });
        if (sees) sum += softmax(most)[place];
    }
    return sum / n_rows;
}

/// Smooths the importance of each span's competing tokens among themselves. indices: of those in `all`.
Vector Lane::smoothed_in_spans(const std::vector<int>& all, const Vector& importance,
                               const std::vector<std::size_t>& indices) const {
    Vector out(importance.size(), 0.0);
    for (std::size_t s = 0; s < std::max<std::size_t>(policy_.spans.size(), 1); ++s) {
        std::vector<std::size_t> own;
        for (const std::size_t i : indices)
            if (span_of(all[i]) == s) own.push_back(i);
        const Vector smooth = smoothed(importance, own, policy_.kernel, policy_.kernel_max);
        for (const std::size_t i : own) out[i] = smooth[i];
    }
    return out;
}

/// What a selection ranks, by stored position; the larger stays.
std::map<int, double> Lane::ranks(int layer, int kv_head) const {
    const std::set<int>& stored = stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    std::map<int, double> out;
    if (const Formula& choose = formulas_of(layer, kv_head).choose) {
        const Vector values = choose(seen_by_selection(layer, kv_head, true));
        std::size_t i = 0;
        for (const int p : stored) out[p] = values[i++];
        return out;
    }
    if (policy_.ranks == RanksBy::expected || policy_.ranks == RanksBy::tri)
        return ranks_by_queries(layer, kv_head);
    if (policy_.ranks != RanksBy::observed && policy_.ranks != RanksBy::likeness) {
        for (const int p : stored) out[p] = rank(layer, kv_head, p);
        return out;
    }
    const std::vector<int> all(stored.begin(), stored.end()), free = competing(layer, kv_head);
    Vector importance;
    std::vector<std::size_t> indices;
    for (std::size_t i = 0; i < all.size(); ++i) {
        importance.push_back(observed(layer, kv_head, all[i]));
        if (std::binary_search(free.begin(), free.end(), all[i])) indices.push_back(i);
    }
    if (policy_.kernel > 0) importance = smoothed_in_spans(all, importance, indices);
    Vector redundancy(all.size(), 0.0);
    if (policy_.ranks == RanksBy::likeness) {
        const auto heads = kv_heads_with(layer, kv_head);
        std::vector<Vector> of_head;
        for (const auto& [l, g] : heads) {
            std::vector<Vector> keys;
            for (const int p : all)
                keys.push_back(keys_[keyhole::to_index(l)][keyhole::to_index(g)][keyhole::to_index(p)]);
            of_head.push_back(redundancies(keys, policy_.as_rkv_code));
        }
        for (std::size_t i = 0; i < all.size(); ++i) {
            const PoolOver pool = policy_.unit == Unit::column ? PoolOver::mean : policy_.pool;
            double joined = of_head.front().at(i);
            for (std::size_t h = 1; h < of_head.size(); ++h)
                joined =
                    pool == PoolOver::max ? std::max(joined, of_head[h].at(i)) : joined + of_head[h].at(i);
            redundancy[i] = pool == PoolOver::mean ? joined / static_cast<double>(heads.size()) : joined;
        }
    }
    const bool mixes = policy_.ranks == RanksBy::likeness;
    for (std::size_t i = 0; i < all.size(); ++i)
        out[all[i]] = mixes ? policy_.mix * importance[i] - (1 - policy_.mix) * redundancy[i] : importance[i];
    return out;
}

/// Returns what a query head makes of the tokens that a KV head stores, in text order.
Vector Lane::by_query_head(int layer, int head, int owner, int kv_head) const {
    constexpr int kKept = 256;  // the newest queries, once the prompt is read
    const std::set<int>& stored = stored_[keyhole::to_index(owner)][keyhole::to_index(kv_head)];
    const bool is_prompt = row_ == n_prompt_ - 1 && !policy_.stepwise;
    std::vector<Vector> queries, keys;
    const int first_row =
                  policy_.calibrated > 0 ? 4 : std::max(policy_.sinks, is_prompt ? 0 : row_ - kKept + 1),
              last_row = policy_.calibrated > 0 ? policy_.calibrated : row_;
    for (int row = first_row; row <= last_row; ++row)
        queries.push_back(sequence_.raw_query(layer, head, row));
    const TurnTo turn = [&](const Vector& x, double place) { return sequence_.turned(layer, x, place); };
    Vector out(stored.size(), 0.0);
    if (queries.empty()) return Vector(stored.size(), kNan);
    const std::vector<int> all(stored.begin(), stored.end());
    if (policy_.ranks == RanksBy::tri) {
        std::vector<std::pair<std::size_t, std::size_t>> pairs;
        const std::size_t half = keyhole::to_index(weights_.rotary_dims) / 2;
        for (std::size_t c = 0; c < half; ++c) pairs.emplace_back(c, c + half);
        Vector offsets;
        for (int i = 0; i < 17; ++i) offsets.push_back(std::pow(2.0, i));
        const std::vector<int> free = competing(owner, kv_head);
        std::vector<bool> competes;
        for (const int p : all) {
            keys.push_back(sequence_.raw_key(owner, kv_head, p));
            competes.push_back(std::binary_search(free.begin(), free.end(), p));
        }
        return deviations(tri_values(queries, keys, all, turn, row_ + 1, offsets, pairs), competes);
    }
    std::size_t first = 0;
    while (first < all.size() && all[first] < policy_.sinks) ++first;
    for (std::size_t i = first; i < all.size(); ++i)
        keys.push_back(
            keys_[keyhole::to_index(owner)][keyhole::to_index(kv_head)][keyhole::to_index(all[i])]);
    const double scale = 1 / std::sqrt(static_cast<double>(weights_.head_dim));
    const Vector shares = expected_shares(queries, keys, turn, row_ + 1, policy_.ahead, scale);
    for (std::size_t i = first; i < all.size(); ++i) out[i] = shares[i - first];
    return out;
}

/// Expected Attention and TriAttention.
std::map<int, double> Lane::ranks_by_queries(int layer, int kv_head) const {
    const int group = weights_.n_heads / weights_.n_kv_heads;
    const auto joined = [&](const std::vector<double>& values) {
        if (policy_.pool == PoolOver::max) return *std::max_element(values.begin(), values.end());
        double sum = 0;
        for (const double value : values) sum += value;
        return policy_.pool == PoolOver::sum ? sum : sum / static_cast<double>(values.size());
    };
    std::map<int, std::vector<double>> values, lengths;
    for (const auto& [owner, g] : kv_heads_with(layer, kv_head)) {
        const std::set<int>& stored = stored_[keyhole::to_index(owner)][keyhole::to_index(g)];
        std::map<int, std::vector<double>> of_head;
        for (int l = 0; l < weights_.n_layers; ++l)
            for (int h = 0; h < weights_.n_heads; ++h) {
                if (weights_.owner_of(l) != owner || h / group != g) continue;
                const Vector own = by_query_head(l, h, owner, g);
                std::size_t i = 0;
                for (const int p : stored) of_head[p].push_back(own[i++]);
            }
        for (const int p : stored) {
            values[p].push_back(joined(of_head[p]));
            lengths[p].push_back(length_of(sequence_.value(owner, g, p)));
        }
    }
    const auto joined_heads = [&](const std::vector<double>& own) {
        if (policy_.unit != Unit::column) return joined(own);
        double sum = 0;
        for (const double value : own) sum += value;
        return sum / static_cast<double>(own.size());
    };
    std::map<int, double> out;
    for (const auto& [p, own] : values)
        out[p] = policy_.ranks == RanksBy::tri ? joined_heads(own)
                                               : (joined_heads(own) + 0.01) * joined_heads(lengths[p]);
    return out;
}

/// Returns whether tokens are ranked only where some leave, since that takes long.
bool Lane::ranks_late() const {
    return policy_.ranks == RanksBy::likeness || policy_.ranks == RanksBy::expected ||
           policy_.ranks == RanksBy::tri;
}

double Lane::rank(int layer, int kv_head, int position) const {
    const std::vector<std::pair<int, int>> heads = kv_heads_with(layer, kv_head);
    switch (policy_.ranks) {
        case RanksBy::score:
            return pooled(layer, kv_head, position);
        case RanksBy::random:
            return uniform_at(policy_.seed, heads.front().first, heads.front().second, row_, position);
        default:
            break;
    }
    std::vector<double> values;
    for (const auto& [l, g] : heads)
        if (stored_[keyhole::to_index(l)][keyhole::to_index(g)].contains(position))
            values.push_back(quantity(l, g, position));
    const PoolOver pool = policy_.unit == Unit::column ? PoolOver::mean : policy_.pool;
    double joined = *std::max_element(values.begin(), values.end());
    if (pool != PoolOver::max) {
        joined = 0;
        for (double value : values) joined += value;
        if (pool == PoolOver::mean) joined /= static_cast<double>(values.size());
    }
    return policy_.ranks == RanksBy::future ? joined : -joined;
}

namespace {

/// Returns whole numbers with the sum of the parts: those with the largest fractions are rounded up.
std::vector<int> whole_parts(const Vector& parts) {
    std::vector<int> whole;
    double sum = 0;
    int given = 0;
    for (const double part : parts) {
        whole.push_back(static_cast<int>(std::floor(part + 1e-9)));
        sum += part;
        given += whole.back();
    }
    for (; given < std::lround(sum); ++given) {
        std::size_t best = 0;
        for (std::size_t i = 1; i < parts.size(); ++i)
            if (parts[i] - whole[i] > parts[best] - whole[best] + 1e-9) best = i;
        ++whole[best];
    }
    return whole;
}

}  // namespace

/// PyramidKV: a straight line over the layers with KV heads of their own.
int Lane::budget_of(int layer) const {
    if (policy_.beta == 0 || n_prompt_ <= policy_.budget) return policy_.budget;
    int n_layers = 0, place = 0;
    for (int l = 0; l < weights_.n_layers; ++l) {
        if (l == layer) place = n_layers;
        n_layers += weights_.owns(l) ? 1 : 0;
    }
    const int kept = policy_.recent + policy_.sinks;
    const double mean = policy_.budget - kept;
    double low = mean / policy_.beta, high = 2 * mean - low;
    if (high > n_prompt_ - kept) {
        high = n_prompt_ - kept;
        low = 2 * mean - high;
    }
    Vector line;
    for (int l = 0; l < n_layers; ++l)
        line.push_back(n_layers == 1 ? mean : high - l * (high - low) / (n_layers - 1));
    return whole_parts(line)[keyhole::to_index(place)] + kept;
}

/// Returns how many of its competing tokens each KV head keeps.
Lane::Rooms Lane::rooms(double* margin) const {
    Rooms own;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g) {
            const std::size_t n = stored_[keyhole::to_index(l)][keyhole::to_index(g)].size();
            own[{l, g}] = budget_of(l) - static_cast<int>(n - competing(l, g).size());
        }
    return policy_.shares == Shares::none ? own : shared_rooms(own, margin);
}

/// Ada-KV: of all tokens of the heads that share, the best as many as their rooms together; each head keeps
/// its floor and the rest of its share of them.
Lane::Rooms Lane::shared_rooms(const Rooms& own, double* margin) const {
    struct Token {
        double value, plain;
        int position;
        std::pair<int, int> head;
    };
    Rooms out;
    for (int group = 0; group < (policy_.shares == Shares::layer ? weights_.n_layers : 1); ++group) {
        if (!is_due(group)) continue;
        std::vector<Token> all;
        std::vector<std::pair<int, int>> heads;
        int total = 0;
        for (const auto& [head, room] : own) {
            if (policy_.shares == Shares::layer && head.first != group) continue;
            heads.push_back(head);
            total += room;
            const std::map<int, double> value = ranks(head.first, head.second);
            for (const int p : competing(head.first, head.second))
                all.push_back(
                    {value.at(p), policy_.kernel > 0 ? observed(head.first, head.second, p) : 0.0, p, head});
        }
        if (heads.empty()) continue;
        std::sort(all.begin(), all.end(), [](const Token& a, const Token& b) {
            if (a.value != b.value) return a.value > b.value;
            if (a.plain != b.plain) return a.plain > b.plain;
            return a.position != b.position ? a.position > b.position : a.head > b.head;
        });
        const double floor = policy_.shares == Shares::layer ? policy_.floor : 0;
        Vector parts;
        for (const auto& head : heads) {
            int among = 0;
            for (int i = 0; i < std::min(total, static_cast<int>(all.size())); ++i)
                among += all[keyhole::to_index(i)].head == head;
            parts.push_back(floor * own.at(head) + (1 - floor) * among);
        }
        const std::vector<int> kept = whole_parts(parts);
        int rest = 0;
        for (std::size_t i = 0; i < heads.size(); ++i) {
            const int n = static_cast<int>(competing(heads[i].first, heads[i].second).size());
            out[heads[i]] = std::min(kept[i], n);
            rest += kept[i] - out[heads[i]];
        }
        for (; rest > 0; --rest) {  // to the best token that would leave
            std::map<std::pair<int, int>, int> stays = out;
            for (const Token& token : all)
                if (stays[token.head]-- <= 0) {
                    ++out[token.head];
                    break;
                }
        }
        if (total == 0 || total >= static_cast<int>(all.size())) continue;
        const Token &last = all[keyhole::to_index(total - 1)], &next = all[keyhole::to_index(total)];
        const bool level = last.value == next.value;
        const double a = level ? last.plain : last.value, b = level ? next.plain : next.value;
        *margin = std::min(*margin, (a - b) / std::max(std::abs(a), 1e-300));
    }
    return out;
}

/// Returns whether the heads of a layer that share, or all, store as many tokens as make an eviction due.
bool Lane::is_due(int group) const {
    if (row_ == n_prompt_ - 1 && !policy_.stepwise) return n_prompt_ > policy_.budget;
    int stored = 0, most = 0;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g) {
            if (policy_.shares == Shares::layer && l != group) continue;
            stored += static_cast<int>(stored_[keyhole::to_index(l)][keyhole::to_index(g)].size());
            most += budget_of(l) + std::max(policy_.buffer, 1);
        }
    return stored >= most;
}

std::size_t Lane::span_of(int position) const {
    std::size_t span = 0;
    while (span + 1 < policy_.spans.size() && policy_.spans[span].second < position) ++span;
    return span;
}

/// Divides a number over the spans by how many tokens of each the text has. A span that would get less than
/// its least, or more than its most, gets that, and the others divide what is left.
std::vector<int> Lane::shares_of_spans(int total, const std::vector<int>& least,
                                       const std::vector<int>& most) const {
    std::map<std::size_t, int> settled;
    for (;;) {
        int left = total;
        double length = 0;
        for (const auto& [span, share] : settled) left -= share;
        Vector lengths;
        for (std::size_t s = 0; s < policy_.spans.size(); ++s) {
            const auto& [first, last] = policy_.spans[s];
            lengths.push_back(settled.contains(s) ? 0.0 : std::max(0, std::min(last, row_) - first + 1));
            length += lengths.back();
        }
        Vector parts;
        for (const double own : lengths) parts.push_back(length == 0 ? 0 : std::max(left, 0) * own / length);
        std::vector<int> shares = whole_parts(parts);
        std::map<std::size_t, int> raised, lowered;
        int more = 0, less = 0;
        for (std::size_t s = 0; s < shares.size(); ++s) {
            if (settled.contains(s)) continue;
            if (shares[s] < least[s]) raised[s] = least[s], more += least[s] - shares[s];
            if (shares[s] > most[s]) lowered[s] = most[s], less += shares[s] - most[s];
        }
        if (more == less) {
            for (const auto& [span, share] : settled) shares[span] = share;
            for (const auto& [span, share] : raised) shares[span] = share;
            for (const auto& [span, share] : lowered) shares[span] = share;
            return shares;
        }
        settled.merge(more > less ? raised : lowered);
    }
}

/// Returns the part of a window that a span has: as even as it goes, the first ones the larger parts.
int Lane::part_of(int window, std::size_t span) const {
    if (policy_.spans.empty()) return window;
    std::vector<int> parts(policy_.spans.size(), 0);
    for (int row = 0; row < window; ++row) ++parts[keyhole::to_index(row) % parts.size()];
    return std::max(parts[span], 1);
}

/// Returns what each span of a KV head stores and may keep. Its own first and newest tokens, and what is
/// protected, do not compete.
std::vector<Lane::SpanRoom> Lane::rooms_of_spans(int layer, int kv_head) const {
    const std::size_t n_spans = policy_.spans.size();
    std::vector<std::vector<int>> held(n_spans);
    std::vector<int> least(n_spans, 0), most(n_spans, 0);
    const auto guarded = [&](int p) { return p >= policy_.protect_from && p <= policy_.protect_to; };
    const std::set<int>& stored = stored_[keyhole::to_index(layer)][keyhole::to_index(kv_head)];
    for (const int p : stored) {
        held[span_of(p)].push_back(p);
        ++most[span_of(p)];
        least[span_of(p)] += guarded(p) ? 1 : 0;
    }
    const int total = std::min(policy_.budget, static_cast<int>(stored.size()));
    const std::vector<int> budget = shares_of_spans(total, least, most),
                           recent = shares_of_spans(std::min(policy_.recent, static_cast<int>(stored.size())),
                                                    std::vector<int>(n_spans), budget);
    const bool votes = policy_.ranks == RanksBy::observed || policy_.ranks == RanksBy::likeness;
    std::vector<SpanRoom> rooms;
    for (std::size_t s = 0; s < n_spans; ++s) {
        const int sinks = std::min(policy_.sinks, budget[s]);
        const bool keeps_tail = policy_.recent + policy_.sinks >= policy_.budget;
        const int own = votes ? part_of(policy_.recent, s) : recent[s];
        const int newest = keeps_tail ? budget[s] - sinks : std::min(own, budget[s] - sinks);
        SpanRoom& room = rooms.emplace_back();
        for (int i = 0; i < most[s] - newest; ++i)
            if (const int p = held[s][keyhole::to_index(i)];
                p >= policy_.spans[s].first + sinks && !guarded(p))
                room.free.push_back(p);
        room.n_leave = most[s] - budget[s];
    }
    return rooms;
}

/// Each span keeps of its competing tokens the best.
std::vector<Gone> Lane::select_fairly(double* margin) const {
    std::vector<Gone> gone;
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g) {
            const int n = static_cast<int>(stored_[keyhole::to_index(l)][keyhole::to_index(g)].size());
            if (n <= policy_.budget || n < policy_.budget + policy_.buffer) continue;
            const std::map<int, double> value = ranks(l, g);
            for (SpanRoom& span : rooms_of_spans(l, g)) {
                const int room = static_cast<int>(span.free.size()) - span.n_leave;
                keep_best(value, l, g, room, span.free, gone, margin);
            }
        }
    std::sort(gone.begin(), gone.end());
    return gone;
}

/// Keeps the `room` best of the tokens that compete; the others leave. The margin becomes no larger than the
/// gap between the two.
void Lane::keep_best(const std::map<int, double>& value, int layer, int kv_head, int room,
                     std::vector<int>& free, std::vector<Gone>& gone, double* margin) const {
    // Of equal scores the lower one before smoothing is evicted, then the older.
    const auto plain = [&](int p) { return policy_.kernel > 0 ? observed(layer, kv_head, p) : 0.0; };
    std::sort(free.begin(), free.end(), [&](int a, int b) {
        if (value.at(a) != value.at(b)) return value.at(a) > value.at(b);
        const double x = plain(a), y = plain(b);
        return x != y ? x > y : a > b;
    });
    for (std::size_t i = keyhole::to_index(room); i < free.size(); ++i)
        gone.push_back({layer, kv_head, free[i]});
    if (room <= 0 || room >= static_cast<int>(free.size())) return;
    const int last = free[keyhole::to_index(room - 1)], next = free[keyhole::to_index(room)];
    const bool level = value.at(last) == value.at(next) && policy_.kernel > 0;  // a plateau of a maximum
    const double stays = level ? plain(last) : value.at(last), leaves = level ? plain(next) : value.at(next);
    *margin = std::min(*margin, (stays - leaves) / std::max(std::abs(stays), 1e-300));
}

std::vector<Gone> Lane::select(double* margin) const {
    std::vector<Gone> gone;
    *margin = std::numeric_limits<double>::infinity();
    if (policy_.budget == 0) return gone;
    if (!policy_.spans.empty()) return select_fairly(margin);
    const bool shares = policy_.shares != Shares::none;
    const Rooms room_of = rooms(margin);
    for (int l = 0; l < weights_.n_layers; ++l)
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g) {
            const std::set<int>& stored = stored_[keyhole::to_index(l)][keyhole::to_index(g)];
            const int budget = budget_of(l);
            const int n = static_cast<int>(stored.size());
            const bool is_full = n > budget && n >= budget + policy_.buffer;
            if (!shares && !is_full && policy_.threshold == 0) continue;
            if (!room_of.contains({l, g})) continue;
            std::vector<int> free = competing(l, g);
            int room = shares || is_full ? room_of.at({l, g}) : static_cast<int>(free.size());
            const std::map<int, double> value = ranks(l, g);
            if (policy_.threshold != 0) {
                int n_stay = 0;
                for (const int p : free) {
                    n_stay += value.at(p) >= policy_.threshold ? 1 : 0;
                    *margin = std::min(*margin, std::abs(value.at(p) / policy_.threshold - 1));
                }
                room = std::min(room, n_stay);
            }
            keep_best(value, l, g, room, free, gone, margin);
        }
    std::sort(gone.begin(), gone.end());
    return gone;
}

LaneRow Lane::feed(int token) {
    LaneRow out;
    const bool in_prompt = sequence_.next_row() < n_prompt_ && !policy_.stepwise;  // one call
    out.model = sequence_.feed(token, stored_, policy_.places, true, in_prompt ? 0 : -1);
    const int row = row_ = out.model.row;
    keys_.resize(keyhole::to_index(weights_.n_layers));
    for (int l = 0; l < weights_.n_layers; ++l) {
        keys_[keyhole::to_index(l)].resize(keyhole::to_index(weights_.n_kv_heads));
        for (int g = 0; g < weights_.n_kv_heads && weights_.owns(l); ++g)
            keys_[keyhole::to_index(l)][keyhole::to_index(g)].push_back(sequence_.key(l, g, row));
    }
    out.tau = tau_at(row);
    const double weight = row >= n_prompt_ ? policy_.damping : 1.0;
    for (auto& layer : stored_)
        if (weights_.owns(static_cast<int>(&layer - stored_.data())))
            for (auto& head : layer) head.insert(row);
    out.attended = stored_;
    for (std::size_t l = 0; l < score_.size(); ++l) {
        out.noise.emplace_back();
        for (std::size_t h = 0; h < score_[l].size(); ++h) {
            Vector noise(keyhole::to_index(row + 1), kNan), tempered = noise;
            for (std::size_t p = 0; p < noise.size(); ++p) {
                const double logit = out.model.logits[l][h][p];
                if (std::isnan(logit)) continue;
                const double zeta =
                    noise_at(policy_.noise, policy_.noise_per_row, policy_.seed, static_cast<int>(l),
                             static_cast<int>(h), row, static_cast<int>(p));
                if (policy_.noise != Noise::none) noise[p] = zeta;
                tempered[p] = (logit + policy_.gain * zeta) / out.tau;
            }
            if (const Vector& sinks = weights_.layers[l].sinks; !sinks.empty())
                tempered.push_back(sinks[h] / out.tau);  // takes its part, and has no score
            Vector share = softmax(tempered);
            share.resize(noise.size());
            score_[l][h].resize(share.size(), 0.0);
            sum_[l][h].resize(share.size(), 0.0);
            const int group = weights_.n_heads / weights_.n_kv_heads;
            const bool by_formula =
                static_cast<bool>(formulas_of(static_cast<int>(l), static_cast<int>(h) / group).score);
            for (std::size_t p = 0; p < share.size(); ++p) {
                if (!by_formula && (!scores_by_span() || span_of(static_cast<int>(p)) == span_of(row)))
                    score_[l][h][p] = policy_.alpha * score_[l][h][p] + weight * share[p];
                sum_[l][h][p] += weight * share[p];
            }
            if (by_formula) score_row(out.model, static_cast<int>(l), static_cast<int>(h));
            out.noise.back().push_back(noise);
        }
    }
    seen_.push_back(out.model.attention);
    if (policy_.as_rkv_code) logits_.push_back(out.model.logits);
    // Likeness takes long, so that scores of rows that evict nothing are not made.
    // Lanes that evict only once the whole prompt is read keep no rows after it.
    const bool ranks_now = (!ranks_late() || evicts_after(row)) &&
                           !(policy_.ranks == RanksBy::observed && policy_.phase == Phase::prompt &&
                             !policy_.stepwise && row >= n_prompt_);
    for (int l = 0; l < weights_.n_layers; ++l) {
        out.scores.emplace_back();
        for (int g = 0; g < weights_.n_kv_heads; ++g) {
            Vector scores(keyhole::to_index(row + 1), kNan);
            const std::size_t n = stored_[keyhole::to_index(l)][keyhole::to_index(g)].size();
            const bool is_due = static_cast<int>(n) > policy_.budget &&
                                static_cast<int>(n) >= policy_.budget + policy_.buffer;
            if (weights_.owns(l) && ranks_now && (!ranks_late() || is_due))
                for (const auto& [p, value] : ranks(l, g)) scores[keyhole::to_index(p)] = value;
            out.scores.back().push_back(scores);
        }
    }
    out.margin = std::numeric_limits<double>::infinity();
    if (evicts_after(row)) out.evictions = select(&out.margin);
    for (const Gone& g : out.evictions)
        stored_[keyhole::to_index(g.layer)][keyhole::to_index(g.kv_head)].erase(g.position);
    return out;
}

double uniform_at(std::uint64_t seed, int layer, int kv_head, int row, int position) {
    const auto bits = philox(
        {static_cast<std::uint32_t>(position), static_cast<std::uint32_t>(row),
         static_cast<std::uint32_t>(layer), 2147483648u + static_cast<std::uint32_t>(kv_head)},
        {static_cast<std::uint32_t>(seed % 4294967296ull), static_cast<std::uint32_t>(seed / 4294967296ull)});
    return (std::floor(bits[0] / 512.0) + 0.5) / 8388608.0;
}

double length_of(const Vector& x) {
    double sum = 0;
    for (double value : x) sum += value * value;
    return std::sqrt(sum);
}

Vector smoothed(const Vector& values, const std::vector<std::size_t>& competing, int width, bool is_max) {
    Vector out(values.size(), 0.0);
    const int n = static_cast<int>(competing.size());
    for (int i = 0; i < n; ++i) {
        double sum = 0, most = -std::numeric_limits<double>::infinity();
        for (int j = std::max(0, i - width / 2); j <= std::min(n - 1, i + width / 2); ++j) {
            sum += values[competing[keyhole::to_index(j)]];
            most = std::max(most, values[competing[keyhole::to_index(j)]]);
        }
        out[competing[keyhole::to_index(i)]] = is_max ? most : sum / width;
    }
    return out;
}

Vector redundancies(const std::vector<Vector>& keys, bool spares_first) {
    const std::size_t n = keys.size();
    std::vector<Vector> c(n, Vector(n, 0.0));
    for (std::size_t i = 0; i < n; ++i)
        for (std::size_t j = 0; j < n; ++j) {
            double dot = 0;
            for (std::size_t k = 0; k < keys[i].size(); ++k) dot += keys[i][k] * keys[j][k];
            if (i != j) c[i][j] = dot / std::max(length_of(keys[i]) * length_of(keys[j]), 1e-12);
            if (std::abs(c[i][j] - 0.5) < 1e-5) return {};
        }
    for (Vector& row : c) {
        std::size_t j = n;
        while (j > 0 && row[j - 1] <= 0.5) --j;
        if (j > 0) row[j - 1] = 0;
        if (j == 0 && spares_first) row[0] = 0;
    }
    Vector mean(n, 0.0);
    for (const Vector& row : c)
        for (std::size_t j = 0; j < n; ++j) mean[j] += row[j] / static_cast<double>(n);
    return softmax(mean);
}

namespace {

Vector mean_of(const std::vector<Vector>& rows) {
    Vector mean(rows.front().size(), 0.0);
    for (const Vector& row : rows)
        for (std::size_t c = 0; c < mean.size(); ++c) mean[c] += row[c] / static_cast<double>(rows.size());
    return mean;
}

double inner(const Vector& a, const Vector& b) {
    double sum = 0;
    for (std::size_t c = 0; c < a.size(); ++c) sum += a[c] * b[c];
    return sum;
}

}  // namespace

Vector expected_shares(const std::vector<Vector>& queries, const std::vector<Vector>& keys,
                       const TurnTo& turn, int first, int n, double scale) {
    // The mean over places of each query as it would be there: linear, so that its mean and covariance are
    // those of the rotated statistics.
    std::vector<Vector> come;
    for (const Vector& query : queries) {
        std::vector<Vector> at;
        for (int i = 0; i < n; ++i) at.push_back(turn(query, first + i));
        come.push_back(mean_of(at));
    }
    const Vector mean = mean_of(come);
    Vector x;
    for (const Vector& key : keys) {
        double spread = 0;  // k.C k: the variance of q.k
        for (const Vector& query : come) {
            const double away = inner(query, key) - inner(mean, key);
            spread += away * away / static_cast<double>(come.size());
        }
        x.push_back(scale * inner(mean, key) + scale * scale / 2 * spread);
    }
    return softmax(x);
}

Vector tri_values(const std::vector<Vector>& queries, const std::vector<Vector>& keys,
                  const std::vector<int>& places, const TurnTo& turn, int next,
                  const std::vector<double>& offsets,
                  const std::vector<std::pair<std::size_t, std::size_t>>& pairs) {
    const auto length = [](const Vector& x, std::pair<std::size_t, std::size_t> pair) {
        return std::sqrt(x[pair.first] * x[pair.first] + x[pair.second] * x[pair.second]);
    };
    const Vector mean = mean_of(queries), mean_here = turn(mean, 0);
    Vector out;
    for (std::size_t i = 0; i < keys.size(); ++i) {
        const Vector key = turn(keys[i], 0);
        double score = 0;
        for (const double offset : offsets)
            score += inner(turn(mean, next - places[i] + offset), key) / static_cast<double>(offsets.size());
        for (const auto& pair : pairs) {
            double lengths = 0;
            for (const Vector& query : queries)
                lengths += length(turn(query, 0), pair) / static_cast<double>(queries.size());
            score += (lengths - length(mean_here, pair)) * length(key, pair);
        }
        out.push_back(score);
    }
    return out;
}

Vector deviations(const Vector& values, const std::vector<bool>& competes) {
    double mean = 0, square = 0, n = 0;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (competes[i]) mean += values[i], ++n;
    if (n > 0) mean /= n;
    for (std::size_t i = 0; i < values.size(); ++i)
        if (competes[i]) square += (values[i] - mean) * (values[i] - mean) / n;
    const double spread = n > 0 ? std::max(std::sqrt(square), 1e-6) : 1;
    Vector out;
    for (const double value : values) out.push_back((value - mean) / spread);
    return out;
}

Vector cosines_to_mean(const std::vector<Vector>& keys) {
    Vector mean(keys.front().size(), 0.0), cosines;
    for (const Vector& key : keys)
        for (std::size_t c = 0; c < mean.size(); ++c)
            mean[c] += key[c] / std::max(length_of(key), 1e-12) / static_cast<double>(keys.size());
    for (const Vector& key : keys) {
        double dot = 0;
        for (std::size_t c = 0; c < mean.size(); ++c) dot += key[c] * mean[c];
        cosines.push_back(dot / std::max(length_of(key) * length_of(mean), 1e-12));
    }
    return cosines;
}

Lane::Future future_of(const Weights& weights, const std::vector<int>& tokens) {
    Sequence sequence(weights);
    PositionSets all = empty_sets(weights);
    auto rows = std::make_shared<std::vector<Row>>();
    for (const int token : tokens) {
        rows->push_back(sequence.feed(token, all, Places::original, true, -1));
        for (int l = 0; l < weights.n_layers; ++l)
            for (int g = 0; g < weights.n_kv_heads && weights.owns(l); ++g)
                all[keyhole::to_index(l)][keyhole::to_index(g)].insert(rows->back().row);
    }
    return [&weights, rows](int layer, int kv_head, int row, int position) {
        const int group = weights.n_heads / weights.n_kv_heads;
        double sum = 0;
        for (std::size_t i = keyhole::to_index(row + 1); i < rows->size(); ++i) {
            double mean = 0;
            int n = 0;
            for (int l = 0; l < weights.n_layers; ++l)
                for (int h = 0; h < weights.n_heads; ++h)
                    if (weights.owner_of(l) == layer && h / group == kv_head) {
                        mean += (*rows)[i].attention[keyhole::to_index(l)][keyhole::to_index(h)]
                                                    [keyhole::to_index(position)];
                        ++n;
                    }
            sum += mean / n;
        }
        return sum;
    };
}

std::vector<Gone> Lane::change(const Policy& policy) {
    const bool were_by_span = scores_by_span();
    const auto heads_by_formula = [&] {
        std::vector<std::vector<bool>> heads(score_.size(),
                                             std::vector<bool>(keyhole::to_index(weights_.n_heads)));
        const int group = weights_.n_heads / weights_.n_kv_heads;
        for (int l = 0; l < weights_.n_layers; ++l)
            for (int h = 0; h < weights_.n_heads; ++h)
                heads[keyhole::to_index(l)][keyhole::to_index(h)] =
                    static_cast<bool>(formulas_of(l, h / group).score);
        return heads;
    };
    const auto before = heads_by_formula();
    policy_ = policy;
    const auto after = heads_by_formula();  // a formula that begins or ends finds the plain sums
    for (std::size_t l = 0; l < score_.size(); ++l)
        for (std::size_t h = 0; h < score_[l].size(); ++h)
            if (before[l][h] != after[l][h]) score_[l][h] = sum_[l][h];
    if (scores_by_span() != were_by_span) score_ = sum_;  // of which no other score was made so far
    double margin = 0;
    const std::vector<Gone> gone = select(&margin);
    for (const Gone& g : gone)
        stored_[keyhole::to_index(g.layer)][keyhole::to_index(g.kv_head)].erase(g.position);
    return gone;
}

}  // namespace reference
