#include "tests/reference/policy_cases.h"

#include "engine/base/index.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace reference {
namespace {

constexpr Cadence kEveryRow{};
constexpr PoolOver kMean = PoolOver::mean;

const char* word(Unit unit) {
    return unit == Unit::head ? "head" : unit == Unit::layer ? "layer" : "shared";
}
const char* word(PoolOver pool) {
    return pool == PoolOver::mean ? "mean" : pool == PoolOver::sum ? "sum" : "max";
}

/// Collects cases for one budget k, at least 1.
class Cases {
  public:
    Cases(int budget, int n_generate)
        : budget_(budget),
          k_(std::max(budget, 1)),
          half_(k_ * 50 / 100),
          third_(k_ * 30 / 100),
          T_(n_generate) {}

    std::vector<PolicyCase> all() {
        add("full", Unit::head, [](const Observed& t, const Readers&, const NoiseOf&) { return full(t); });
        all_.back().evicts = false;
        windows();
        for (Unit unit : {Unit::head, Unit::layer, Unit::shared})
            for (PoolOver pool : {PoolOver::mean, PoolOver::sum, PoolOver::max}) scopes(unit, pool);
        h2o_options();
        tova_options();
        keyformer_options();
        a2sf_options();
        released();
        overrides();
        return all_;
    }

  private:
    using Simulate = std::function<Simulated(const Observed&, const Readers&, const NoiseOf&)>;

    void add(const std::string& spec, Unit unit, Simulate simulate, NoiseOf noise = no_noise()) {
        all_.push_back({spec, unit, std::move(noise), std::move(simulate)});
    }
    std::string spec(const std::string& preset, const std::string& keys = "") const {
        return fmt::format("{}:budget={}{}{}", preset, budget_, keys.empty() ? "" : ",", keys);
    }
    Protect newest(int n) const { return newest_of(k_, n); }
    static Protect newest_of(int k, int n) { return {0, std::min(n, k)}; }

    void windows() {
        const int k = k_;
        for (const auto& [keys, when] :
             std::vector<std::pair<std::string, Cadence>>{{"", kEveryRow},
                                                          {"every=3", {false, 3}},
                                                          {"prefill=stepwise", {true, 1}},
                                                          {"prefill=stepwise,every=2", {true, 2}}}) {
            add(spec("window", keys), Unit::head,
                [=](const Observed& t, const Readers&, const NoiseOf&) { return window(t, k, when); });
            for (int sinks : {4, 2, 0}) {
                const std::string own = fmt::format("sinks={}{}{}", sinks, keys.empty() ? "" : ",", keys);
                add(spec("sink", own), Unit::head, [=](const Observed& t, const Readers&, const NoiseOf&) {
                    return sink_and_window(t, k, std::min(sinks, k), when);
                });
            }
            for (int d : {1, 2}) {
                const std::string own = fmt::format("dilation={}{}{}", d, keys.empty() ? "" : ",", keys);
                add(spec("dilated", own), Unit::head, [=](const Observed& t, const Readers&, const NoiseOf&) {
                    return dilated(t, k, d, when);
                });
            }
        }
    }

    void scopes(Unit unit, PoolOver pool) {
        const int k = k_;
        const std::string keys = fmt::format("scope={},pool={}", word(unit), word(pool));
        const Protect recent = newest(half_);
        add(spec("h2o", keys), unit, [=](const Observed& t, const Readers& r, const NoiseOf&) {
            return h2o(t, r, k, recent, pool, kEveryRow);
        });
        add(spec("key", keys), unit, [=](const Observed& t, const Readers& r, const NoiseOf&) {
            return key_only(t, r, k, pool, kEveryRow);
        });
        add(spec("tova", keys), unit, [=](const Observed& t, const Readers& r, const NoiseOf&) {
            return tova(t, r, k, {}, pool, kEveryRow);
        });
        add(spec("a2sf", keys), unit, [=](const Observed& t, const Readers& r, const NoiseOf&) {
            return a2sf(t, r, k, {}, 0.2, pool, kEveryRow);
        });
        add(
            spec("keyformer", keys), unit,
            [=, p = newest(third_), tau = linear_tau(1, 2, T_)](const Observed& t, const Readers& r,
                                                                const NoiseOf& noise) {
                return keyformer(t, r, k, p, {tau, noise, 1, 1}, pool, kEveryRow);
            },
            drawn_noise(Noise::gumbel, false, 1));
    }

    void h2o_options() {
        const int k = k_;
        const auto point = [&](const std::string& keys, Protect protect, Cadence when) {
            add(spec("h2o", keys), Unit::head, [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return h2o(t, r, k, protect, kMean, when);
            });
        };
        point("recent=0", {}, kEveryRow);
        point("recent=1", newest(1), kEveryRow);
        point("recent=100000", {0, k}, kEveryRow);
        point("recent=100%", {0, k}, kEveryRow);
        point("recent=rest,sinks=1", {1, k - 1}, kEveryRow);
        point("sinks=2,recent=1", {std::min(2, k), std::min(1, k - std::min(2, k))}, kEveryRow);
        point("sinks=100", {k, 0}, kEveryRow);
        point("every=3", newest(half_), {false, 3});
        point("every=50", newest(half_), {false, 50});
        point("prefill=stepwise", newest(half_), {true, 1});
        point("prefill=stepwise,every=4", newest(half_), {true, 4});
    }

    void tova_options() {
        const int k = k_;
        for (int sinks : {1, 4})
            add(spec("tova", fmt::format("sinks={}", sinks)), Unit::layer,
                [=](const Observed& t, const Readers& r, const NoiseOf&) {
                    return tova(t, r, k, {std::min(sinks, k), 0}, kMean, kEveryRow);
                });
        add(spec("tova", "prefill=stepwise"), Unit::layer,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return tova(t, r, k, {}, kMean, {true, 1});
            });
        add(spec("tova", "sinks=4,prefill=stepwise"), Unit::layer,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return tova(t, r, k, {std::min(4, k), 0}, kMean, {true, 1});
            });
        add(spec("tova", "every=2"), Unit::layer, [=](const Observed& t, const Readers& r, const NoiseOf&) {
            return tova(t, r, k, {}, kMean, {false, 2});
        });
    }

    void keyformer_point(const std::string& keys, Tau tau, NoiseOf noise, double gain = 1, double damping = 1,
                         Cadence when = kEveryRow, Unit unit = Unit::head) {
        add(
            spec("keyformer", keys), unit,
            [=, k = k_, p = newest(third_)](const Observed& t, const Readers& r, const NoiseOf& zeta) {
                return keyformer(t, r, k, p, {tau, zeta, gain, damping}, kMean, when);
            },
            std::move(noise));
    }

    void keyformer_options() {
        const Tau rising = linear_tau(1, 2, T_);
        const NoiseOf gumbel = drawn_noise(Noise::gumbel, false, 1);
        keyformer_point("noise=none", rising, no_noise());
        keyformer_point("noise=constant", rising, drawn_noise(Noise::constant, false, 1));
        keyformer_point("noise=gaussian", rising, drawn_noise(Noise::gaussian, false, 1));
        keyformer_point("draw=row", rising, drawn_noise(Noise::gumbel, true, 1));
        keyformer_point("noise=gaussian,draw=row", rising, drawn_noise(Noise::gaussian, true, 1));
        keyformer_point("seed=98765432109", rising, drawn_noise(Noise::gumbel, false, 98765432109));
        keyformer_point("tau=1", constant_tau(1), gumbel);
        keyformer_point("tau=2..0.5", linear_tau(2, 0.5, T_), gumbel);
        keyformer_point("tau=1..3@cosine", cosine_tau(1, 3, T_), gumbel);
        keyformer_point("tau=(0:0.5 3:1 8:4)", tau_through({{0, 0.5}, {3, 1}, {8, 4}}), gumbel);
        keyformer_point("tau=(2:0.5 6:2)", tau_through({{2, 0.5}, {6, 2}}), gumbel);
        keyformer_point("horizon=5", linear_tau(1, 2, 5), gumbel);
        keyformer_point("noise=none,tau=0.25", constant_tau(0.25), no_noise());
        keyformer_point("gain=0.3", rising, gumbel, 0.3);
        keyformer_point("gain=0", rising, gumbel, 0);
        keyformer_point("gain=-1", rising, gumbel, -1);
        keyformer_point("damping=0.5", rising, gumbel, 1, 0.5);
        keyformer_point("damping=0", rising, gumbel, 1, 0);
        keyformer_point("damping=0.5,prefill=stepwise", rising, gumbel, 1, 0.5, {true, 1});
        keyformer_point("prefill=stepwise,draw=row", rising, drawn_noise(Noise::gumbel, true, 1), 1, 1,
                        {true, 1});
        keyformer_point("every=8", rising, gumbel, 1, 1, {false, 8});
        keyformer_point("scope=shared,draw=row", rising, drawn_noise(Noise::gumbel, true, 1), 1, 1, kEveryRow,
                        Unit::shared);
    }

    void a2sf_options() {
        const int k = k_;
        const auto point = [&](const std::string& keys, double alpha, Protect protect, Cadence when) {
            add(spec("a2sf", keys), Unit::head, [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return a2sf(t, r, k, protect, alpha, kMean, when);
            });
        };
        for (double alpha : {0.0, 0.1, 0.5, 0.9, 1.0})
            point(fmt::format("alpha={}", alpha), alpha, {}, kEveryRow);
        point("recent=2", 0.2, newest(2), kEveryRow);
        point("alpha=0.7,prefill=stepwise", 0.7, {}, {true, 1});
        point("alpha=0.7,every=3", 0.7, {}, {false, 3});
    }

    void released() {
        const int k = k_, T = T_;
        const std::string dialect = "dialect=released";
        add(spec("window", dialect), Unit::head,
            [=](const Observed& t, const Readers&, const NoiseOf&) { return released_window(t, k); });
        for (int sinks : {4, 0})
            add(spec("sink", fmt::format("sinks={},{}", sinks, dialect)), Unit::head,
                [=](const Observed& t, const Readers&, const NoiseOf&) {
                    return released_sink(t, std::min(sinks, k), k - std::min(sinks, k));
                });
        // Options that the released code does not know have no effect.
        add(spec("tova", dialect + ",prefill=stepwise,every=3,pool=max,scope=head"), Unit::layer,
            [=](const Observed& t, const Readers& r, const NoiseOf&) { return released_tova(t, r, k); });
        for (PoolOver pool : {PoolOver::mean, PoolOver::max})
            for (int recent : {0, 1, 2, half_, k}) {
                const int w = std::min(recent, k);
                const std::string keys = fmt::format("recent={},pool={},{}", recent, word(pool), dialect);
                add(spec("h2o", keys + ",prefill=stepwise,every=2,scope=layer"), Unit::head,
                    [=](const Observed& t, const Readers& r, const NoiseOf&) {
                        return released_h2o(t, r, k - w, w, pool);
                    });
                add(spec("a2sf", keys), Unit::head, [=](const Observed& t, const Readers& r, const NoiseOf&) {
                    return released_a2sf(t, r, k, w, 0.2, pool);
                });
                add(
                    spec("keyformer", keys + ",draw=token,damping=0.5,every=4"), Unit::head,
                    [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                        return released_keyformer(t, r, k, w, {released_tau(1, 2, T), noise, 1, 1}, pool);
                    },
                    drawn_noise(Noise::gumbel, true, 1));
            }
        for (double alpha : {0.0, 1.0})
            add(spec("a2sf", fmt::format("alpha={},{}", alpha, dialect)), Unit::head,
                [=](const Observed& t, const Readers& r, const NoiseOf&) {
                    return released_a2sf(t, r, k, 0, alpha, kMean);
                });
        add(
            spec("keyformer", "recent=2,horizon=3,tau=1..1.5," + dialect), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                return released_keyformer(t, r, k, std::min(2, k), {released_tau(1, 1.5, 3), noise, 1, 1},
                                          kMean);
            },
            drawn_noise(Noise::gumbel, true, 1));
    }

    /// Overrides are per layer: a KV-head override would have to be given for all its readers.
    void overrides() {
        const int k = k_, other = k_ + 3, T = T_;
        const auto layer_of = [](const Readers& r) { return r.heads.front().first; };
        add(spec("h2o", fmt::format("recent=1,budget@L1={}", other)), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return h2o(t, r, layer_of(r) == 1 ? other : k, newest_of(k, 1), kMean, kEveryRow);
            });
        add(spec("h2o", "recent=1,budget@L0=all"), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return layer_of(r) == 0 ? full_with_scores(t, r)
                                        : h2o(t, r, k, newest_of(k, 1), kMean, kEveryRow);
            });
        add(spec("h2o", "recent=0,recent@L1=2"), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return h2o(t, r, k, newest_of(k, layer_of(r) == 1 ? 2 : 0), kMean, kEveryRow);
            });
        add(spec("a2sf", "alpha@L0=0.9,alpha@L1=1"), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                const int l = layer_of(r);
                return a2sf(t, r, k, {}, l == 0 ? 0.9 : l == 1 ? 1.0 : 0.2, kMean, kEveryRow);
            });
        add(spec("tova", fmt::format("budget@L0={},alpha@L1=0.5", other)), Unit::layer,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return layer_of(r) == 1 ? a2sf(t, r, k, {}, 0.5, kMean, kEveryRow)
                                        : tova(t, r, layer_of(r) == 0 ? other : k, {}, kMean, kEveryRow);
            });
        add(
            spec("keyformer", "recent=1,tau@L1=3,gain@L0=0.5"), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                const int l = layer_of(r);
                return keyformer(t, r, k, newest_of(k, 1),
                                 {l == 1 ? constant_tau(3) : linear_tau(1, 2, T), noise, l == 0 ? 0.5 : 1, 1},
                                 kMean, kEveryRow);
            },
            drawn_noise(Noise::gumbel, false, 1));
        // One layer uses a temperature, the other is plain H2O.
        add(spec("keyformer", "recent=1,noise=none,tau=1,tau@L1=0.5"), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                return keyformer(t, r, k, newest_of(k, 1),
                                 {constant_tau(layer_of(r) == 1 ? 0.5 : 1), noise, 1, 1}, kMean, kEveryRow);
            });
        add(spec("h2o", fmt::format("recent=2,budget@L1={},{}", other, "dialect=released")), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                const int own = layer_of(r) == 1 ? other : k, w = std::min(2, own);
                return released_h2o(t, r, own - w, w, kMean);
            });
        add(
            spec("keyformer", fmt::format("recent=2,budget@L0={},{}", other, "dialect=released")), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                const int own = layer_of(r) == 0 ? other : k;
                return released_keyformer(t, r, own, std::min(2, own), {released_tau(1, 2, T), noise, 1, 1},
                                          kMean);
            },
            drawn_noise(Noise::gumbel, true, 1));
        add(spec("dilated", fmt::format("budget@L1={}", other)), Unit::head,
            [=](const Observed& t, const Readers& r, const NoiseOf&) {
                return dilated(t, layer_of(r) == 1 ? other : k, 1, kEveryRow);
            });
    }

    /// Nothing is evicted; scores accumulate.
    static Simulated full_with_scores(const Observed& text, const Readers& unit) {
        return h2o(text, unit, text.n_rows, {}, kMean, kEveryRow);
    }

    int budget_, k_, half_, third_, T_;
    std::vector<PolicyCase> all_;
};

}  // namespace

std::vector<PolicyCase> policy_cases(int k, int n_generate) {
    return Cases(k, n_generate).all();
}

std::vector<PolicyCase> percent_cases(int n, int T) {
    std::vector<PolicyCase> cases;
    for (int percent : {7, 29, 40, 58, 100}) {
        // int(n * kv / 100) and int(k * recent / 100), at least one token.
        const int k = std::max(1, n * percent / 100);
        const int half = k * 50 / 100, third = k * 30 / 100;
        cases.push_back({fmt::format("h2o:budget={}%", percent), Unit::head, no_noise(),
                         [=](const Observed& t, const Readers& r, const NoiseOf&) {
                             return h2o(t, r, k, {0, half}, kMean, kEveryRow);
                         }});
        cases.push_back(
            {fmt::format("keyformer:budget={}%,dialect=released", percent), Unit::head,
             drawn_noise(Noise::gumbel, true, 1),
             [=](const Observed& t, const Readers& r, const NoiseOf& noise) {
                 return released_keyformer(t, r, k, third, {released_tau(1, 2, T), noise, 1, 1}, kMean);
             }});
        // int(ratio * n), the ratio a double; H2O truncates heavy and recent apart.
        const int each = static_cast<int>(percent / 2.0 / 100 * n);
        const int heavy = each == 0 ? 1 : each;
        cases.push_back({fmt::format("h2o:budget={}%,dialect=released", percent), Unit::head, no_noise(),
                         [=](const Observed& t, const Readers& r, const NoiseOf&) {
                             return released_h2o(t, r, heavy, each, kMean);
                         }});
        const int select = std::max(1, static_cast<int>(percent / 100.0 * n));
        cases.push_back({fmt::format("a2sf:budget={}%,dialect=released", percent), Unit::head, no_noise(),
                         [=](const Observed& t, const Readers& r, const NoiseOf&) {
                             return released_a2sf(t, r, select, 0, 0.2, kMean);
                         }});
    }
    return cases;
}

Difference compare_rows(const Simulated& got, const Simulated& expected, int first_row, double tolerance) {
    Difference out;
    out.least_margin = std::numeric_limits<double>::infinity();
    if (got.size() != expected.size()) return {.what = "another number of rows"};
    for (std::size_t row = keyhole::to_index(first_row); row < got.size(); ++row) {
        const SimulatedRow &a = got[row], &b = expected[row];
        const auto fail = [&](const std::string& what) {
            out.what = fmt::format("row {}: {}, margin {:.2g}; sees {}, keeps {}; should see {}, keep {}",
                                   row, what, b.margin, a.visible, a.kept, b.visible, b.kept);
            return out;
        };
        if (a.visible != b.visible) return fail("sees other tokens");
        for (int p : b.visible) {
            if (b.scores.empty() || a.scores.empty()) break;
            const double x = a.scores[keyhole::to_index(p)], y = b.scores[keyhole::to_index(p)];
            if (!(std::abs(x - y) <= tolerance * std::max(1.0, std::abs(y))))
                return fail(fmt::format("score of token {} is {}, not {}", p, x, y));
        }
        out.least_margin = std::min(out.least_margin, b.margin);
        out.n_choices += b.kept.size() < b.visible.size();
        if (a.kept == b.kept) continue;
        out.near_tie = a.kept.size() == b.kept.size() && b.margin < 1e-5;
        return fail("keeps other tokens");
    }
    return out;
}

}  // namespace reference
