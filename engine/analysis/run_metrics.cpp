#include "engine/analysis/run_metrics.h"

#include "engine/analysis/measure_table.h"
#include "engine/base/index.h"
#include "engine/policy/kept_set.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

/// A running mean.
struct Mean {
    double sum = 0;
    std::int64_t n = 0;
    void add(double value) {
        sum += value;
        ++n;
    }
    double value() const { return n == 0 ? LaneMetrics::kNone : sum / static_cast<double>(n); }
};

/// The tokens that every KV head of a lane stores, advanced from row to row.
class StoredSets {
  public:
    StoredSets(const RunHistory& history, int lane)
        : history_(history), lane_(lane), sets_(to_index(history.layout(lane).n_kv_heads())) {
        for (int g = 0; g < static_cast<int>(sets_.size()); ++g)
            for (int p = 0; p < history.n_positions(); ++p) {
                const std::int32_t row = history.evicted_at(lane, g, p);
                if (row < 0) continue;
                if (leaving_.size() <= to_index(row)) leaving_.resize(to_index(row) + 1);
                leaving_[to_index(row)].push_back({g, p});
            }
    }

    /// Advances to the state after a row, which must not be earlier than the current one.
    void advance(int row) {
        for (; row_ < row; ++row_) {
            const int next = row_ + 1;
            for (KeptSet& set : sets_) set.insert(next);
            if (to_index(next) < leaving_.size())
                for (const auto& [g, p] : leaving_[to_index(next)]) sets_[to_index(g)].erase(p);
        }
    }
    const KeptSet& of(int g) const { return sets_[to_index(g)]; }

  private:
    const RunHistory& history_;
    int lane_, row_ = -1;
    std::vector<KeptSet> sets_;
    std::vector<std::vector<std::pair<int, int>>> leaving_;  // [row] -> KV head, position
};

void add_scalars(const RunHistory& history, int lane, LaneMetrics& out) {
    const std::span<const Measure> all = measures();
    std::vector<Mean> means(all.size());
    Mean kl, agreement;
    const RunHistory::Lane& info = history.lanes()[to_index(lane)];
    for (const auto& step : history.steps()) {
        const LaneRecord* record = step->row > info.last_row ? nullptr : history.lane_record(step->row, lane);
        if (record == nullptr) continue;
        out.evictions += static_cast<std::int64_t>(record->evictions.size());
        if (step->row < history.n_prompt()) continue;
        ++out.n_rows;
        if (record->kl) {
            kl.add(*record->kl);
            agreement.add(record->agrees.value_or(false) ? 1 : 0);
        }
        for (std::size_t i = 0; i < all.size(); ++i)
            if (all[i].of_row != nullptr)
                if (const float value = all[i].of_row(*record); !std::isnan(value)) means[i].add(value);
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
        out.means.push_back(means[i].value());
        if (all[i].of_row != nullptr && all[i].mean != nullptr) out.*all[i].mean = means[i].value();
    }
    out.kl = kl.value();  // with a KL that is no number it is none
    out.agreement = agreement.value();
    out.n_compared = static_cast<int>(kl.n);
}

void add_heads(const RunHistory& history, int lane, LaneMetrics& out) {
    const std::array<std::pair<std::vector<double>*, std::vector<float> ShadowRow::*>, 4> kinds = {
        {{&out.retained_by_head, &ShadowRow::retained_mass},
         {&out.cosine_ideal_by_head, &ShadowRow::cosine_ideal},
         {&out.cosine_full_by_head, &ShadowRow::cosine_full},
         {&out.output_by_head, &ShadowRow::output_similarity}}};
    for (int row = history.n_prompt(); row <= history.lanes()[to_index(lane)].last_row; ++row) {
        const LaneRecord* record = history.lane_record(row, lane);
        if (record == nullptr || !record->shadow) continue;
        ++out.n_shadow_rows;
        for (const auto& [to, from] : kinds) {
            const std::vector<float>& values = (*record->shadow).*from;
            to->resize(values.size(), 0.0);
            for (std::size_t i = 0; i < values.size(); ++i) (*to)[i] += values[i];
        }
    }
    for (const auto& [to, from] : kinds)
        for (double& value : *to) value /= out.n_shadow_rows;
}

/// Returns the position of the first token that the lane chose differently from lane 0.
std::optional<int> first_divergence(const RunHistory& history, int lane) {
    for (int row = history.n_prompt() - 1; row <= history.lanes()[to_index(lane)].last_row; ++row) {
        const LaneRecord *reference = history.lane_record(row, 0), *record = history.lane_record(row, lane);
        if (reference != nullptr && record != nullptr && reference->predicted != record->predicted)
            return row + 1;
    }
    return std::nullopt;
}

void add_lifetimes(const RunHistory& history, int lane, LaneMetrics& out) {
    const RunHistory::Lane& info = history.lanes()[to_index(lane)];
    const std::span<const int> tokens =
        std::span(info.tokens).first(std::min(info.tokens.size(), to_index(info.last_row + 1)));
    const std::vector<TokenClass> classes = token_classes(history.run(), tokens);
    const std::vector<WordClass> words = word_classes(history.run(), tokens);
    std::array<Mean, kTokenClasses> by_class;
    std::array<Mean, kWordClasses> by_word;
    Mean all;
    for (int p = 0; p < static_cast<int>(tokens.size()); ++p) {
        Mean of_token;
        for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g)
            of_token.add(lifetime(p, history.evicted_at(lane, g, p), info.last_row));
        if (p < kLifetimePositions) out.lifetime_by_position.push_back(of_token.value());
        by_class[to_index(static_cast<int>(classes[to_index(p)]))].add(of_token.value());
        by_word[to_index(static_cast<int>(words[to_index(p)]))].add(of_token.value());
        all.add(of_token.value());
    }
    for (std::size_t c = 0; c < by_class.size(); ++c) {
        out.lifetime_by_class[c] = by_class[c].value();
        out.tokens_by_class[c] = static_cast<int>(by_class[c].n);
    }
    for (std::size_t c = 0; c < by_word.size(); ++c) {
        out.lifetime_by_word_class[c] = by_word[c].value();
        out.tokens_by_word_class[c] = static_cast<int>(by_word[c].n);
    }
    out.lifetime = all.value();
}

/// Returns the number of leading rows with the same tokens in both lanes.
int common_rows(const RunHistory::Lane& a, const RunHistory::Lane& b) {
    const auto [end, other] =
        std::mismatch(a.tokens.begin(), a.tokens.end(), b.tokens.begin(), b.tokens.end());
    return static_cast<int>(end - a.tokens.begin());
}

/// Averages over the KV heads that each layer reads, its owner's if it borrows. Lanes that share KV heads
/// differently are compared by query head.
void add_kept_sets(const RunHistory& history, std::vector<LaneMetrics>& out) {
    const int n_heads = history.run().layout.n_heads();
    const std::span<const RunHistory::Lane> lanes = history.lanes();
    const std::size_t n_layers = to_index(history.run().layout.n_layers());
    struct Pair {
        std::size_t a, b;
        int first, last;
        bool same_layout;
        std::vector<Mean> by_layer;
    };
    std::vector<StoredSets> sets;
    std::vector<Pair> pairs;
    for (std::size_t a = 0; a < lanes.size(); ++a) {
        sets.emplace_back(history, static_cast<int>(a));
        for (std::size_t b = 0; b < a; ++b)
            pairs.push_back(
                {a, b, std::max(lanes[a].first_row, lanes[b].first_row),
                 std::min({lanes[a].last_row, lanes[b].last_row, common_rows(lanes[a], lanes[b]) - 1}),
                 history.same_layout(static_cast<int>(a), static_cast<int>(b)), std::vector<Mean>(n_layers)});
    }
    std::vector<std::vector<Mean>> recent(lanes.size(), std::vector<Mean>(n_layers));
    std::vector<bool> is_there(lanes.size());  // a lane may be away between two rows
    for (int row = history.n_prompt() - 1; row <= history.last_row(); ++row) {
        for (std::size_t a = 0; a < lanes.size(); ++a) {
            const LaneRecord* record = row < lanes[a].first_row || row > lanes[a].last_row
                                           ? nullptr
                                           : history.lane_record(row, static_cast<int>(a));
            is_there[a] = record != nullptr;
            if (record == nullptr) continue;
            sets[a].advance(row);
            if (row < history.n_prompt()) continue;
            const KvLayout& layout = history.layout(static_cast<int>(a));
            for (int l = 0; l < layout.n_layers(); ++l)
                for (int g = layout.first_read(l); g < layout.last_read(l); ++g) {
                    const HeadRef& reader = layout.kv_head(g).readers.front();
                    const int k = record->info->policy.at(reader.layer, reader.head).budget;
                    if (k <= row) recent[a][to_index(l)].add(recent_share(sets[a].of(g), row, k));
                }
        }
        for (Pair& pair : pairs) {
            if (row < pair.first || row > pair.last || !is_there[pair.a] || !is_there[pair.b]) continue;
            const KvLayout& a = history.layout(static_cast<int>(pair.a));
            const KvLayout& b = history.layout(static_cast<int>(pair.b));
            for (int l = 0; l < a.n_layers(); ++l) {
                if (pair.same_layout) {
                    for (int g = a.first_read(l); g < a.last_read(l); ++g)
                        pair.by_layer[to_index(l)].add(jaccard(sets[pair.a].of(g), sets[pair.b].of(g)));
                    continue;
                }
                for (int h = 0; h < n_heads; ++h)
                    pair.by_layer[to_index(l)].add(jaccard(sets[pair.a].of(a.kv_head_from_head(l, h)),
                                                           sets[pair.b].of(b.kv_head_from_head(l, h))));
            }
        }
    }
    for (std::size_t a = 0; a < lanes.size(); ++a) {
        Mean mean;
        for (const Mean& layer : recent[a]) {
            out[a].recent_by_layer.push_back(layer.value());
            if (layer.n > 0) mean.add(layer.value());
        }
        out[a].recent_share = mean.value();
        out[a].jaccard.assign(lanes.size(), std::vector<double>(n_layers, 1.0));
    }
    for (const Pair& pair : pairs)
        for (std::size_t l = 0; l < n_layers; ++l)
            out[pair.a].jaccard[pair.b][l] = out[pair.b].jaccard[pair.a][l] = pair.by_layer[l].value();
}

}  // namespace

std::vector<LaneMetrics> run_metrics(const RunHistory& history) {
    std::vector<LaneMetrics> out(history.lanes().size());
    for (std::size_t i = 0; i < out.size(); ++i) {
        const int lane = static_cast<int>(i);
        add_scalars(history, lane, out[i]);
        add_heads(history, lane, out[i]);
        add_lifetimes(history, lane, out[i]);
        if (i > 0) out[i].first_divergence = first_divergence(history, lane);
    }
    if (!out.empty()) add_kept_sets(history, out);
    return out;
}

double mean_of(std::span<const double> values) {
    return values.empty()
               ? LaneMetrics::kNone
               : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

std::vector<double> by_layer(std::span<const double> by_head, int n_layers) {
    std::vector<double> out;
    const std::size_t n_heads = by_head.size() / to_index(n_layers);
    for (int l = 0; l < n_layers && !by_head.empty(); ++l)
        out.push_back(mean_of(by_head.subspan(to_index(l) * n_heads, n_heads)));
    return out;
}

std::span<const LaneMean> lane_means() {
    static const std::vector<LaneMean> all = [] {
        std::vector<LaneMean> means;
        for (const Measure* m : measures_by(&Measure::column))
            means.push_back({m->name, m->mean, to_index(m - measures().data())});
        return means;
    }();
    return all;
}

}  // namespace keyhole
