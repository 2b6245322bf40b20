#include "app/papers/run_parts.h"

#include "engine/analysis/row_shape.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/math.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole::figure_parts {

namespace {

using State = PaperVerdict::State;
constexpr std::array<double, 6> kThresholds = {0, 0.01, 0.02, 0.03, 0.04, 0.05};

/// Returns [layer][threshold], in per cent.
std::vector<std::array<double, kThresholds.size()>> sparsity(const AttentionRows& rows) {
    std::vector<std::array<double, kThresholds.size()>> share(to_index(rows.n_layers));
    for (auto& of_layer : share) of_layer.fill(0);
    rows.for_each([&](int layer, std::span<const float> row) {
        for (std::size_t t = 0; t < kThresholds.size(); ++t)
            share[to_index(layer)][t] +=
                100 * sparse_share(row, kThresholds[t]) / static_cast<double>(rows.rows_of_layer);
    });
    return share;
}

CurvePlot sparsity_plot(const AttentionRows& rows) {
    CurvePlot plot;
    plot.subtitle = rows.subtitle;
    plot.y_label = "entries next to zero, %";
    plot.caption =
        "Share of the positions up to a row with a probability of at most so many per cent of the row's "
        "largest (0: exactly zero in half precision), mean over rows and heads.";
    return plot;
}

/// Returns p without hidden positions, as probabilities of the visible ones.
std::vector<double> renormalised(std::span<const float> p, const std::vector<char>& visible) {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
        if (visible[i] != 0) sum += static_cast<double>(p[i]);
    std::vector<double> out(p.size(), 0);
    for (std::size_t i = 0; i < p.size() && sum > 0; ++i)
        if (visible[i] != 0) out[i] = static_cast<double>(p[i]) / sum;
    return out;
}

}  // namespace

RunPicture sparsity_by_layer(const AttentionRows& rows) {
    const auto share = sparsity(rows);
    CurvePlot plot = sparsity_plot(rows);
    plot.x_label = "layer";
    for (std::size_t t = 0; t < kThresholds.size(); ++t) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = fmt::format("{:g} %", 100 * kThresholds[t]);
        for (std::size_t layer = 0; layer < share.size(); ++layer) {
            curve.x.push_back(rows.layer_number(layer));
            curve.y.push_back(share[layer][t]);
        }
    }
    const auto [least, most] = std::minmax_element(share.begin(), share.end(),
                                                   [](const auto& a, const auto& b) { return a[1] < b[1]; });
    return {std::move(plot),
            {State::measured,
             fmt::format("at 1 %, layers range from {:.0f} to {:.0f} %.", (*least)[1], (*most)[1])}};
}

RunPicture sparsity_by_threshold(const AttentionRows& rows) {
    const auto share = sparsity(rows);
    CurvePlot plot = sparsity_plot(rows);
    plot.x_label = "threshold, % of the largest";
    Curve& curve = plot.curves.emplace_back();
    curve.name = rows.layers.empty() ? "all layers" : "these layers";
    for (std::size_t t = 0; t < kThresholds.size(); ++t) {
        double sum = 0;
        for (const auto& of_layer : share) sum += of_layer[t];
        curve.x.push_back(100 * kThresholds[t]);
        curve.y.push_back(sum / rows.n_layers);
    }
    return {
        plot,
        {State::measured, fmt::format("{:.0f} % at 0, {:.0f} % at 5 %.", curve.y.front(), curve.y.back())}};
}

RunPicture attention_mass(const AttentionRows& rows) {
    constexpr std::size_t kPoints = 101;
    std::vector<std::vector<double>> mass(to_index(rows.n_layers), std::vector<double>(kPoints, 0));
    rows.for_each([&](int layer, std::span<const float> row) { add_mass_curve(row, mass[to_index(layer)]); });
    CurvePlot plot;
    plot.subtitle = rows.subtitle;
    plot.x_label = "largest entries, % of the context";
    plot.y_label = "attention mass, %";
    plot.ordered = true;
    Curve mean{rows.layers.empty() ? "mean of all layers" : "mean of these layers",
               {},
               std::vector<double>(kPoints, 0),
               true};
    for (std::size_t layer = 0; layer < mass.size(); ++layer) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = fmt::format("layer {}", rows.layer_number(layer));
        for (std::size_t i = 0; i < kPoints; ++i) {
            curve.x.push_back(static_cast<double>(i));
            curve.y.push_back(100 * mass[layer][i] / static_cast<double>(rows.rows_of_layer));
            mean.y[i] += curve.y.back() / rows.n_layers;
        }
    }
    mean.x = plot.curves.front().x;
    const auto at = std::find_if(mean.y.begin(), mean.y.end(), [](double y) { return y >= 90; });
    const double x90 = static_cast<double>(at - mean.y.begin());
    mean.end_mark = x90;
    plot.curves.push_back(std::move(mean));
    plot.caption =
        "Each row sorted down and summed up; mean over rows and heads of a layer. The cross marks "
        "where the mean of all layers reaches 90 %.";
    return {
        std::move(plot),
        {State::measured, fmt::format("the largest {:.0f} % of the entries hold 90 % of the mass.", x90)}};
}

/// Keyformer, figure 4: the probabilities of the kept tokens of one row, over all tokens and over the kept.
RunPicture score_shift(const RunHistory& run) {
    constexpr int kEvicts = 1;
    std::vector<double> before, after, count;
    std::vector<double> factors;
    std::vector<float> line(to_index(run.last_row() + 1));
    for (int row = run.n_prompt(); row <= run.last_row(); ++row)
        each_head(run, [&](int layer, int head) {
            if (!run.attention_row(0, row, layer, head, line)) return;
            const int g = run.layout(kEvicts).kv_head_from_head(layer, head);
            std::vector<char> kept(to_index(row) + 1, 0);
            for (const std::int32_t p : run.attended_positions(kEvicts, g, row)) kept[to_index(p)] = 1;
            const auto all = std::span<const float>(line).first(to_index(row) + 1);
            const std::vector<double> reduced = renormalised(all, kept);
            std::vector<std::pair<double, double>> of_kept;
            double sum = 0;
            for (std::size_t p = 0; p < kept.size(); ++p)
                if (kept[p] != 0) {
                    of_kept.emplace_back(static_cast<double>(all[p]), reduced[p]);
                    sum += static_cast<double>(all[p]);
                }
            if (!(sum > 0)) return;
            std::sort(of_kept.begin(), of_kept.end(), std::greater<>());
            before.resize(std::max(before.size(), of_kept.size()), 0);
            after.resize(before.size(), 0);
            count.resize(before.size(), 0);
            for (std::size_t i = 0; i < of_kept.size(); ++i) {
                before[i] += of_kept[i].first;
                after[i] += of_kept[i].second;
                count[i] += 1;
            }
            factors.push_back(1 / sum);
        });
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "kept token, from the most likely on";
    plot.y_label = "probability, mean over rows and heads";
    plot.caption = "The softmax of one row over all tokens, and over those that h2o kept at 50 %.";
    plot.log_x = plot.log_y = true;
    plot.curves = {{"softmax over all tokens"}, {"softmax over the kept tokens"}};
    for (std::size_t i = 0; i < count.size(); i = i < 8 ? i + 1 : i * 5 / 4) {
        for (Curve& curve : plot.curves) curve.x.push_back(static_cast<double>(i + 1));
        plot.curves[0].y.push_back(before[i] / count[i]);
        plot.curves[1].y.push_back(after[i] / count[i]);
    }
    const auto middle = factors.begin() + static_cast<std::ptrdiff_t>(factors.size() / 2);
    std::nth_element(factors.begin(), middle, factors.end());
    const double factor = factors.empty() ? 1 : *middle;
    return {std::move(plot),
            {State::measured,
             fmt::format("without the others, the kept tokens have {:.2f} times the probability (median over "
                         "rows and heads; the same factor for all tokens of a row).",
                         factor)}};
}

namespace {

constexpr int kDraws = 24;
constexpr std::array<double, 5> kTaus = {1, 1.25, 1.5, 1.75, 2};
constexpr std::array kKinds = {NoiseKind::none, NoiseKind::constant, NoiseKind::gaussian, NoiseKind::gumbel};
constexpr std::array<std::string_view, 4> kNames = {"none", "constant", "gaussian", "gumbel"};
constexpr std::size_t kNoNoise = 0, kGumbel = 3;
using Entropies = std::array<std::array<double, kTaus.size()>, kKinds.size()>;  // [kind][tau], nats

/// Returns means over heads and the last rows.
Entropies score_entropies(const RunHistory& run) {
    constexpr int kMostRows = 4;
    Entropies h{};
    std::vector<float> line(to_index(run.last_row() + 1));
    int n = 0;
    for (int row = std::max(run.n_prompt(), run.last_row() + 1 - kMostRows); row <= run.last_row(); ++row)
        each_head(run, [&](int layer, int head) {
            if (!run.attention_row(0, row, layer, head, line)) return;
            ++n;
            const std::size_t size = to_index(row) + 1;
            std::vector<double> mean(size), z(size);
            for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
                for (std::size_t t = 0; t < kTaus.size(); ++t) {
                    std::fill(mean.begin(), mean.end(), 0.0);
                    const int draws =
                        kKinds[kind] == NoiseKind::gumbel || kKinds[kind] == NoiseKind::gaussian ? kDraws : 1;
                    for (int draw = 0; draw < draws; ++draw) {
                        double sum = 0;
                        for (std::size_t p = 0; p < size; ++p) {
                            // The logit up to a constant: what underflowed in half precision stays 0.
                            const double zeta = static_cast<double>(
                                noise_at(kKinds[kind], NoiseDraw::token, static_cast<std::uint64_t>(draw + 1),
                                         layer, head, row, static_cast<int>(p)));
                            const double a = static_cast<double>(line[p]);
                            z[p] = a > 0 ? std::exp((std::log(a) + zeta) / kTaus[t]) : 0;
                            sum += z[p];
                        }
                        for (std::size_t p = 0; p < size; ++p) mean[p] += z[p] / sum / draws;
                    }
                    h[kind][t] += entropy_of(mean);
                }
        });
    for (auto& of_kind : h)
        for (double& value : of_kind) value /= std::max(n, 1);
    return h;
}

}  // namespace

/// Keyformer, equation 8: the entropy of the expected score softmax, with and without noise.
RunPicture score_entropy(const RunHistory& run) {
    const Entropies h = score_entropies(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "tau";
    plot.y_label = "entropy of the expected scores, nats";
    plot.whole_x = false;
    plot.caption = fmt::format(
        "H(E[softmax((x + noise) / tau)]) over {} draws of the noise; mean over heads and the last rows. "
        "Constant noise and none are equal.",
        kDraws);
    for (std::size_t kind = 0; kind < kKinds.size(); ++kind) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = std::string(kNames[kind]);
        for (std::size_t t = 0; t < kTaus.size(); ++t) {
            curve.x.push_back(kTaus[t]);
            curve.y.push_back(h[kind][t]);
        }
    }
    return {std::move(plot),
            {State::measured, fmt::format("{:.2f} nats with Gumbel noise, {:.2f} without, at tau 1.",
                                          h[kGumbel][0], h[kNoNoise][0])}};
}

RunGains gains_of_entropy(const RunHistory& run) {
    const Entropies h = score_entropies(run);
    RunGains gains;
    for (std::size_t t = 0; t < kTaus.size(); ++t)
        gains.emplace_back(fmt::format("gumbel against none, tau {:g}", kTaus[t]),
                           h[kGumbel][t] - h[kNoNoise][t]);
    return gains;
}

}  // namespace keyhole::figure_parts
