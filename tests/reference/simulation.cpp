#include "tests/reference/simulation.h"

#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <random>

namespace reference {
namespace {

constexpr double kUnseen = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

PositionSet first_positions(int n) {
    PositionSet all;
    for (int p = 0; p < n; ++p) all.insert(p);
    return all;
}

/// Returns a head's logits for a row at visible positions; NaN elsewhere and where the recorded lane did not
/// look.
Vector seen_logits(const Observed& text, int row, std::pair<int, int> head, const PositionSet& visible) {
    Vector logits(keyhole::to_index(row + 1), kUnseen);
    for (int p : visible) logits[keyhole::to_index(p)] = text.logit(row, head.first, head.second, p);
    return logits;
}

/// One running score per (query head, position).
class Scores {
  public:
    Scores(const Observed& text, const Readers& unit)
        : text_(text), unit_(unit), score_(unit.heads.size(), Vector(keyhole::to_index(text.n_rows))) {}

    double& at(std::size_t head, int position) { return score_[head][keyhole::to_index(position)]; }

    /// Probabilities of a row, [head of the unit][position <= row].
    std::vector<Vector> attention(int row, const PositionSet& visible) const {
        std::vector<Vector> p;
        for (const auto& head : unit_.heads) p.push_back(softmax(seen_logits(text_, row, head, visible)));
        return p;
    }
    std::vector<Vector> tempered(int row, const PositionSet& visible, const KeyformerScore& how) const {
        const double tau = how.tau(std::max(0, row - text_.n_prompt + 1));
        std::vector<Vector> p;
        for (const auto& [layer, head] : unit_.heads) {
            Vector x = seen_logits(text_, row, {layer, head}, visible);
            for (int j : visible) {
                double& value = x[keyhole::to_index(j)];
                value = (value + how.gain * how.noise(layer, head, row, j)) / tau;
            }
            p.push_back(softmax(x));
        }
        return p;
    }
    void forget(double alpha) {
        for (Vector& head : score_)
            for (double& value : head) value *= alpha;
    }
    void add(const std::vector<Vector>& p, double weight) {
        for (std::size_t h = 0; h < p.size(); ++h)
            for (std::size_t j = 0; j < p[h].size(); ++j) score_[h][j] += weight * p[h][j];
    }
    void zero(int position) {
        for (Vector& head : score_) head[keyhole::to_index(position)] = 0;
    }
    Vector pooled(int row, PoolOver pool) const {
        Vector out;
        for (std::size_t j = 0; j <= keyhole::to_index(row); ++j) {
            double sum = 0, most = -kInfinity;
            for (const Vector& head : score_) sum += head[j], most = std::max(most, head[j]);
            out.push_back(pool == PoolOver::max   ? most
                          : pool == PoolOver::sum ? sum
                                                  : sum / static_cast<double>(score_.size()));
        }
        return out;
    }

  private:
    const Observed& text_;
    const Readers& unit_;
    std::vector<Vector> score_;
};

/// Returns the best n of the candidates; of equal scores the older loses. Narrows *margin.
PositionSet best(std::vector<int> candidates, const Vector& score, int n, double* margin) {
    const auto at = [&](int p) { return score[keyhole::to_index(p)]; };
    std::sort(candidates.begin(), candidates.end(),
              [&](int a, int b) { return at(a) != at(b) ? at(a) > at(b) : a > b; });
    if (n > 0 && n < static_cast<int>(candidates.size())) {
        const double stays = at(candidates[keyhole::to_index(n - 1)]),
                     leaves = at(candidates[keyhole::to_index(n)]);
        *margin = std::min(*margin, (stays - leaves) / std::max(std::abs(stays), 1e-300));
    }
    candidates.resize(keyhole::to_index(std::clamp(n, 0, static_cast<int>(candidates.size()))));
    return {candidates.begin(), candidates.end()};
}

/// Keeps k of the stored: the protected, the pinned, and the best of the others.
PositionSet protected_and_best(const PositionSet& stored, const Vector& score, int k, Protect protect,
                               double* margin, const PositionSet& pinned = {}) {
    PositionSet kept = pinned;
    std::vector<int> candidates;
    int n_newer = static_cast<int>(stored.size());
    for (int p : stored) {
        --n_newer;
        if (p < protect.first || n_newer < protect.newest)
            kept.insert(p);
        else if (!pinned.contains(p))
            candidates.push_back(p);
    }
    kept.merge(best(candidates, score, k - static_cast<int>(kept.size()), margin));
    return kept;
}

/// A policy that drops entries. Each row joins the stored ones, attends to them and is scored; k stay.
/// score(row, visible) returns the pooled scores after the row.
template <class Score>
Simulated dropping(const Observed& text, int k, Protect protect, Cadence when, Score score) {
    Simulated rows;
    PositionSet stored;
    for (int row = 0; row < text.n_rows; ++row) {
        SimulatedRow out;
        out.margin = kInfinity;
        stored.insert(row);
        out.visible = stored;
        out.scores = score(row, stored);
        if (when.evicts_after(row, text.n_prompt) && static_cast<int>(stored.size()) > k)
            stored = protected_and_best(stored, out.scores, k, protect, &out.margin);
        out.kept = stored;
        rows.push_back(out);
    }
    return rows;
}

/// Returns the newest n of a set.
PositionSet newest(const PositionSet& stored, int n) {
    auto first = stored.end();
    for (int i = 0; i < n && first != stored.begin(); ++i) --first;
    return {first, stored.end()};
}

}  // namespace

double& Observed::logit(int row, int layer, int head, int position) {
    return logits[keyhole::to_index(((row * n_layers + layer) * n_heads + head) * n_rows + position)];
}
double Observed::logit(int row, int layer, int head, int position) const {
    return logits[keyhole::to_index(((row * n_layers + layer) * n_heads + head) * n_rows + position)];
}

Observed random_logits(int n_layers, int n_heads, int n_kv_heads, int n_prompt, int n_rows, double spread,
                       std::uint64_t seed) {
    Observed text{n_layers, n_heads, n_kv_heads, n_prompt, n_rows, {}};
    text.logits.assign(keyhole::to_index(n_rows * n_layers * n_heads * n_rows), kUnseen);
    std::mt19937_64 random(seed);
    for (int row = 0; row < n_rows; ++row)
        for (int l = 0; l < n_layers; ++l)
            for (int h = 0; h < n_heads; ++h)
                for (int p = 0; p <= row; ++p)
                    // Float values, so that both sides start from equal numbers.
                    text.logit(row, l, h, p) = static_cast<double>(static_cast<float>(
                        spread * (2.0 * (static_cast<double>(random() >> 11) / 9007199254740992.0) - 1.0)));
    return text;
}

NoiseOf no_noise() {
    return [](int, int, int, int) { return 0.0; };
}
NoiseOf drawn_noise(Noise noise, bool per_row, std::uint64_t seed) {
    return [=](int layer, int head, int row, int position) {
        return noise_at(noise, per_row, seed, layer, head, row, position);
    };
}

Tau constant_tau(double tau) {
    return [=](int) { return tau; };
}
Tau linear_tau(double begin, double end, int horizon) {
    return [=](int t) { return t >= horizon ? end : begin + t * (end - begin) / horizon; };
}
Tau cosine_tau(double begin, double end, int horizon) {
    return [=](int t) {
        if (t >= horizon) return end;
        return begin + (end - begin) * 0.5 * (1.0 - std::cos(std::numbers::pi * t / horizon));
    };
}
Tau tau_through(std::vector<std::pair<double, double>> points) {
    return [=](int t) {
        const auto next =
            std::find_if(points.begin(), points.end(), [&](const auto& p) { return p.first > t; });
        if (next == points.begin()) return points.front().second;
        if (next == points.end()) return points.back().second;
        const auto& [t0, tau0] = *(next - 1);
        return tau0 + (next->second - tau0) * (t - t0) / (next->first - t0);
    };
}
Tau released_tau(double begin, double end, int horizon) {
    const double delta = (end - begin) / horizon;
    return [=](int itr) { return begin + itr * delta; };
}

std::vector<Readers> selected_together(const Observed& text, Unit unit) {
    const int n_units = unit == Unit::shared  ? 1
                        : unit == Unit::layer ? text.n_layers
                                              : text.n_layers * text.n_kv_heads;
    std::vector<Readers> units(keyhole::to_index(n_units));
    const int group = text.n_heads / text.n_kv_heads;
    for (int l = 0; l < text.n_layers; ++l)
        for (int h = 0; h < text.n_heads; ++h) {
            const int g = h / group;
            const int u = unit == Unit::shared ? 0 : unit == Unit::layer ? l : l * text.n_kv_heads + g;
            Readers& readers = units[keyhole::to_index(u)];
            readers.heads.emplace_back(l, h);
            if (h % group == 0) readers.kv_heads.emplace_back(l, g);
        }
    return units;
}

bool Cadence::evicts_after(int row, int n_prompt) const {
    const int after_prompt = row - (n_prompt - 1);  // 0: the last prompt row, where counting starts
    return (stepwise || after_prompt >= 0) && after_prompt % every == 0;
}

Simulated full(const Observed& text) {
    Simulated rows;
    for (int row = 0; row < text.n_rows; ++row)
        rows.push_back({first_positions(row + 1), first_positions(row + 1), {}, kInfinity});
    return rows;
}

Simulated window(const Observed& text, int k, Cadence when) {
    Simulated rows;
    PositionSet stored;
    for (int row = 0; row < text.n_rows; ++row) {
        stored.insert(row);
        const PositionSet visible = stored;
        if (when.evicts_after(row, text.n_prompt)) stored = newest(stored, k);
        rows.push_back({visible, stored, {}, kInfinity});
    }
    return rows;
}

Simulated sink_and_window(const Observed& text, int k, int sinks, Cadence when) {
    Simulated rows;
    PositionSet stored;
    for (int row = 0; row < text.n_rows; ++row) {
        stored.insert(row);
        const PositionSet visible = stored;
        if (when.evicts_after(row, text.n_prompt) && static_cast<int>(stored.size()) > k) {
            PositionSet kept = newest(stored, k - sinks);
            for (int p = 0; p < sinks; ++p) kept.insert(p);
            stored = kept;
        }
        rows.push_back({visible, stored, {}, kInfinity});
    }
    return rows;
}

Simulated dilated(const Observed& text, int w, int d, Cadence when) {
    Simulated rows;
    PositionSet stored;
    for (int row = 0; row < text.n_rows; ++row) {
        stored.insert(row);
        PositionSet visible;
        for (int i = 0, p = row; i < w && p >= 0; ++i, p -= d + 1) visible.insert(p);
        if (row < text.n_prompt && !when.stepwise) visible = stored;
        if (when.evicts_after(row, text.n_prompt)) stored = newest(stored, w * (d + 1) - 1);
        rows.push_back({visible, stored, {}, kInfinity});
    }
    return rows;
}

Simulated key_only(const Observed& text, const Readers& unit, int k, PoolOver pool, Cadence when) {
    return h2o(text, unit, k, {}, pool, when);
}

Simulated h2o(const Observed& text, const Readers& unit, int k, Protect protect, PoolOver pool,
              Cadence when) {
    Scores sum(text, unit);
    return dropping(text, k, protect, when, [&](int row, const PositionSet& visible) {
        sum.add(sum.attention(row, visible), 1);
        return sum.pooled(row, pool);
    });
}

Simulated tova(const Observed& text, const Readers& unit, int k, Protect protect, PoolOver pool,
               Cadence when) {
    return dropping(text, k, protect, when, [&](int row, const PositionSet& visible) {
        Scores last_row(text, unit);
        last_row.add(last_row.attention(row, visible), 1);
        return last_row.pooled(row, pool);
    });
}

Simulated keyformer(const Observed& text, const Readers& unit, int k, Protect protect,
                    const KeyformerScore& score, PoolOver pool, Cadence when) {
    Scores f(text, unit);
    return dropping(text, k, protect, when, [&](int row, const PositionSet& visible) {
        const double weight = row < text.n_prompt ? 1 : score.damping;
        f.add(f.tempered(row, visible, score), weight);
        return f.pooled(row, pool);
    });
}

Simulated a2sf(const Observed& text, const Readers& unit, int k, Protect protect, double alpha, PoolOver pool,
               Cadence when) {
    Scores forgetting(text, unit);
    return dropping(text, k, protect, when, [&](int row, const PositionSet& visible) {
        forgetting.forget(alpha);
        forgetting.add(forgetting.attention(row, visible), 1);
        return forgetting.pooled(row, pool);
    });
}

Simulated steered(const Observed& text, const Readers& unit, const std::vector<Regime>& regimes,
                  const std::vector<ManualChange>& hands, PoolOver pool) {
    Scores sum(text, unit), forgetting(text, unit), tempered(text, unit);
    Simulated rows;
    PositionSet stored, pinned;
    for (int row = 0; row < text.n_rows; ++row) {
        const auto at = [&](int r) {
            const Regime* now = &regimes.front();
            for (const Regime& regime : regimes)
                if (regime.from_row <= r) now = &regime;
            return now;
        };
        const auto by = [&](const Regime& now) -> const Scores& {
            return now.by == By::sum ? sum : now.by == By::forgetting ? forgetting : tempered;
        };
        const auto select = [&](const Regime& now, double* margin) {
            if (static_cast<int>(stored.size()) > now.k)
                stored =
                    protected_and_best(stored, by(now).pooled(row, pool), now.k, now.protect, margin, pinned);
        };
        const Regime& now = *at(row);
        SimulatedRow out;
        out.margin = kInfinity;
        stored.insert(row);
        out.visible = stored;
        forgetting.forget(now.alpha);
        const std::vector<Vector> p = sum.attention(row, stored);
        sum.add(p, 1), forgetting.add(p, 1);
        const double weight = row < text.n_prompt ? 1 : now.tempering.damping;
        tempered.add(tempered.tempered(row, stored, now.tempering), weight);
        out.scores = by(now).pooled(row, pool);
        if (row + 1 >= text.n_prompt) select(now, &out.margin);
        for (const ManualChange& hand : hands) {
            if (hand.after_row != row) continue;
            if (hand.act == ManualChange::pin) pinned.insert(hand.position);
            if (hand.act != ManualChange::pin) pinned.erase(hand.position);
            if (hand.act == ManualChange::evict) stored.erase(hand.position);
        }
        if (at(row + 1) != &now) select(*at(row + 1), &out.margin);
        out.kept = stored;
        rows.push_back(out);
    }
    return rows;
}

// --- released ----------------------------------------------------------------------------------------------

namespace {

/// Common part of the mask codes: a mask over all columns for the next row, and scores over all columns.
/// score(row, visible) returns the pooled scores after the row. choose(s, scores, mask, margin) sets the mask
/// of s + 1 columns for the next row (all ones at first) and returns the columns whose scores are kept.
template <class Score, class Choose>
Simulated masking(const Observed& text, Score score, Choose choose) {
    Simulated rows;
    PositionSet visible_next = {0};
    for (int row = 0; row < text.n_rows; ++row) {
        SimulatedRow out;
        out.margin = kInfinity;
        out.visible = row < text.n_prompt ? first_positions(row + 1) : visible_next;
        out.scores = score(row, out.visible);
        out.kept = first_positions(row + 1);
        if (row + 1 >= text.n_prompt) {  // the prompt is one call
            std::vector<bool> mask(keyhole::to_index(row + 2), true);
            out.kept = choose(row + 1, out.scores, mask, &out.margin);
            visible_next.clear();
            for (int p = 0; p <= row + 1; ++p)
                if (mask[keyhole::to_index(p)]) visible_next.insert(p);
        }
        rows.push_back(out);
    }
    return rows;
}

void zero_from(std::vector<bool>& mask, int first, int last) {
    for (int p = first; p < last; ++p) mask[keyhole::to_index(p)] = false;
}

std::vector<int> columns(int first, int last) {
    std::vector<int> out;
    for (int p = first; p < last; ++p) out.push_back(p);
    return out;
}

}  // namespace

Simulated released_window(const Observed& text, int k) {
    return masking(
        text, [](int, const PositionSet&) { return Vector(); },
        [&](int s, const Vector&, std::vector<bool>& mask, double*) {
            if (s > k) zero_from(mask, 0, s + 1 - k);
            PositionSet kept;
            for (int p = 0; p < s; ++p)
                if (mask[keyhole::to_index(p)]) kept.insert(p);
            return kept;
        });
}

Simulated released_sink(const Observed& text, int start, int recent) {
    Simulated rows;
    std::vector<int> cache;
    for (int row = 0; row < text.n_rows; ++row) {
        cache.push_back(row);
        const PositionSet visible(cache.begin(), cache.end());
        const int length = static_cast<int>(cache.size());
        if (row + 1 >= text.n_prompt && length > start + recent)
            cache.erase(cache.begin() + start, cache.begin() + (length - recent));
        rows.push_back({visible, {cache.begin(), cache.end()}, {}, kInfinity});
    }
    return rows;
}

Simulated released_h2o(const Observed& text, const Readers& unit, int heavy, int recent, PoolOver pool) {
    Scores previous(text, unit);
    return masking(
        text,
        [&](int row, const PositionSet& visible) {
            previous.add(previous.attention(row, visible), 1);
            return previous.pooled(row, pool);
        },
        [&](int s, const Vector& score, std::vector<bool>& mask, double* margin) {
            if (s <= heavy + recent) return first_positions(s);
            // The mask has s + 1 columns, the scores s. With recent > 0, column s - recent (the gap) is in
            // neither slice. Without a recent window the next row's own column is masked too.
            zero_from(mask, 0, s + 1 - recent);
            PositionSet kept = best(columns(0, s - recent), score, heavy, margin);
            for (int p : kept) mask[keyhole::to_index(p)] = true;
            for (int p = s - recent; p < s; ++p) kept.insert(p);  // score_mask: the gap's score is preserved
            for (int p = 0; p < s; ++p)
                if (!kept.contains(p)) previous.zero(p);
            return kept;
        });
}

Simulated released_tova(const Observed& text, const Readers& layer, int k) {
    Simulated rows;
    std::vector<int> cache;
    for (int row = 0; row < text.n_rows; ++row) {
        cache.push_back(row);
        SimulatedRow out;
        out.margin = kInfinity;
        out.visible = {cache.begin(), cache.end()};
        Scores last(text, layer);
        last.add(last.attention(row, out.visible), 1);
        out.scores = last.pooled(row, PoolOver::mean);
        if (row + 1 >= text.n_prompt && static_cast<int>(cache.size()) > k) {
            const PositionSet kept = best(cache, out.scores, k, &out.margin);
            cache.clear();
            for (int p : kept) cache.push_back(p);
        }
        out.kept = {cache.begin(), cache.end()};
        rows.push_back(out);
    }
    return rows;
}

Simulated released_keyformer(const Observed& text, const Readers& unit, int k, int w,
                             const KeyformerScore& how, PoolOver pool) {
    Scores score(text, unit);
    std::vector<bool> previous_mask;
    return masking(
        text,
        [&](int row, const PositionSet& visible) {
            score.add(score.tempered(row, visible, how), 1);
            return score.pooled(row, pool);
        },
        [&](int s, const Vector& pooled, std::vector<bool>& mask, double* margin) {
            // Python's slice [:-0] is empty: a window of 0 masks nothing.
            if (s > k && w > 0) {
                zero_from(mask, 0, s + 1 - w);
                for (int p : best(columns(0, s - w), pooled, k - w, margin))
                    mask[keyhole::to_index(p)] = true;
                for (std::size_t p = 0; p < previous_mask.size(); ++p) mask[p] = mask[p] && previous_mask[p];
            }
            previous_mask = mask;
            PositionSet kept;
            for (int p = 0; p < s; ++p)
                if (mask[keyhole::to_index(p)])
                    kept.insert(p);
                else
                    score.zero(p);
            return kept;
        });
}

Simulated released_a2sf(const Observed& text, const Readers& unit, int k, int recent, double alpha,
                        PoolOver pool) {
    Scores score(text, unit);
    return masking(
        text,
        [&](int row, const PositionSet& visible) {
            score.forget(alpha);
            score.add(score.attention(row, visible), 1);
            return score.pooled(row, pool);
        },
        [&](int s, const Vector& pooled, std::vector<bool>& mask, double* margin) {
            // the code masks the whole row; policies, section 1: keep all
            if (s <= k) return first_positions(s);
            const int select = k - recent;
            const int forced = std::max(recent, 1);
            const int n_best = recent >= 2 ? select : select - 1;  // the newest takes a heavy slot
            PositionSet kept = best(columns(0, s - forced), pooled, n_best, margin);
            for (int p = s - forced; p < s; ++p) kept.insert(p);
            for (int p = 0; p < s; ++p) {
                mask[keyhole::to_index(p)] = kept.contains(p);
                if (!kept.contains(p)) score.zero(p);
            }
            return kept;
        });
}

}  // namespace reference
