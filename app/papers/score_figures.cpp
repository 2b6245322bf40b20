#include "app/papers/run_parts.h"

#include "engine/analysis/run_metrics.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/export/captions.h"
#include "engine/policy/lane_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

namespace keyhole::figure_parts {

namespace {

using State = PaperVerdict::State;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kAlpha = 0.2;  // forgetting factor of the pictures

/// Returns the score of every position after the last row: sum over rows of alpha^(last - row) * p.
std::vector<double> forgetting_sum(const Plane& p, double alpha) {
    std::vector<double> score(to_index(p.width), 0);
    for (int row = 0; row < p.height; ++row)
        for (int k = 0; k < p.width; ++k) {
            double& s = score[to_index(k)];
            s = alpha * s + static_cast<double>(p.at(k, row));
        }
    return score;
}

/// Returns the positions of the largest scores.
std::vector<std::size_t> top(const std::vector<double>& score, std::size_t n) {
    std::vector<std::size_t> order(score.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return score[a] > score[b]; });
    order.resize(std::min(n, order.size()));
    return order;
}

/// A toy of this many rows, and the run's short text for maps.
constexpr int kToyRows = 8;

constexpr std::size_t kTop = 5;  // scores that figure 1 marks
constexpr std::array<double, 2> kSums = {1, kAlpha};

/// Returns the scores of all tokens after the last row, sums over heads, for each of kSums.
std::array<std::vector<double>, 2> scores_of_tokens(const RunHistory& run) {
    std::array<std::vector<double>, 2> score;
    for (auto& of_sum : score) of_sum.assign(to_index(run.last_row() + 1), 0);
    each_head(run, [&](int layer, int head) {
        const Plane p = attention_matrix(run, layer, head);
        for (std::size_t i = 0; i < kSums.size(); ++i) {
            const std::vector<double> of_head = forgetting_sum(p, kSums[i]);
            for (std::size_t k = 0; k < of_head.size(); ++k) score[i][k] += of_head[k];
        }
    });
    return score;
}

/// Returns where the highest scores stand, in per cent of the text: their mean.
double place_of_top(const std::vector<double>& score) {
    double place = 0;
    for (const std::size_t k : top(score, kTop))
        place += 100 * static_cast<double>(k) / static_cast<double>(score.size()) / kTop;
    return place;
}

}  // namespace

/// A2SF, figure 1: accumulated scores of all tokens, the top five marked.
RunPicture accumulated_scores(const RunHistory& run) {
    const std::array<std::vector<double>, 2> score = scores_of_tokens(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "position";
    plot.y_label = "score, sum over heads";
    plot.own_y = true;
    plot.caption = "Full attention, after the last row. The five highest scores are marked.";
    for (std::size_t i = 0; i < kSums.size(); ++i) {
        CurvePanel& panel = plot.panels.emplace_back();
        panel.title =
            i == 0 ? "sum of all rows (A2S)" : fmt::format("with forgetting, alpha {:g} (A2SF)", kAlpha);
        Curve all{"score"}, best{"top 5"};
        const std::vector<std::size_t> chosen = top(score[i], kTop);
        for (std::size_t k = 0; k < score[i].size(); ++k) {
            all.x.push_back(static_cast<double>(k));
            all.y.push_back(score[i][k]);
            if (std::find(chosen.begin(), chosen.end(), k) == chosen.end()) continue;
            // A point between gaps has no line.
            best.x.insert(best.x.end(), {static_cast<double>(k), static_cast<double>(k)});
            best.y.insert(best.y.end(), {score[i][k], kNone});
        }
        panel.curves = {std::move(all), std::move(best)};
    }
    return {
        std::move(plot),
        {State::measured,
         fmt::format("the top five stand at {:.0f} % of the text with the sum, at {:.0f} % with forgetting.",
                     place_of_top(score[0]), place_of_top(score[1]))}};
}

RunGains gains_of_forgetting(const RunHistory& run) {
    const std::array<std::vector<double>, 2> score = scores_of_tokens(run);
    return {{"place of the top five, with forgetting against the sum",
             place_of_top(score[1]) - place_of_top(score[0])}};
}

/// A2SF, figure 2: a toy of eight rows: p, the weights, and their product with its sums.
RunPicture toy_matrix(const RunHistory& run) {
    constexpr double kToyAlpha = 0.5;
    const int layer = run.run().config.n_layers - 1;
    const Plane p = attention_matrix(run, layer, 0);
    const int n = std::min(kToyRows, p.height);
    ValueMap map;
    map.texts = {"", run_subtitle(run),
                 fmt::format("The first {} rows of layer {}, head 0. The last line is the sum of its column: "
                             "the score after these rows.",
                             n, layer)};
    map.row_label = "query position";
    map.column_label = "key position";
    map.value_label = "p or weight";
    map.decimals = 2;
    map.scale = {Colormap::cividis, false, false, 0, 1};
    for (int i = 0; i < n; ++i) {
        map.rows.push_back(std::to_string(i));
        map.columns.push_back(std::to_string(i));
    }
    map.rows.emplace_back("sum");
    const auto panel = [&](const std::string& title, double alpha, bool with_p) {
        ValuePanel& out = map.panels.emplace_back();
        out.title = title;
        out.values.assign(to_index(n) * to_index(n + 1), static_cast<float>(kNone));
        for (int k = 0; k < n; ++k) {
            double sum = 0;
            for (int q = k; q < n; ++q) {
                const double weight =
                    std::pow(alpha, n - 1 - q) * (with_p ? static_cast<double>(p.at(k, q)) : 1);
                sum += weight;
                out.values[to_index(q * n + k)] = static_cast<float>(weight);
            }
            if (with_p) out.values[to_index(n * n + k)] = static_cast<float>(sum);
        }
    };
    panel("p (A2S)", 1, true);
    panel(fmt::format("alpha^(n-q), alpha {:g}", kToyAlpha), kToyAlpha, false);
    panel("p alpha^(n-q) (A2SF)", kToyAlpha, true);
    const auto sum_of = [&](std::size_t i, int k) { return map.panels[i].values[to_index(n * n + k)]; };
    const float before = sum_of(0, 0), after = sum_of(2, 0);
    return {std::move(map),
            {State::measured,
             fmt::format("the first token's score falls from {:.2f} to {:.2f}.", before, after)}};
}

/// Returns a full row with all but its best k older tokens removed, and renormalised.
std::vector<double> ideal_row(std::span<const float> full, int k) {
    const std::vector<double> others(full.begin(), full.end() - 1);
    std::vector<double> row(full.size(), 0);
    row.back() = static_cast<double>(full.back());
    for (const std::size_t i : top(others, to_index(k))) row[i] = others[i];
    const double sum = std::accumulate(row.begin(), row.end(), 0.0);
    for (double& p : row) p = sum > 0 ? p / sum : 0;
    return row;
}

/// Returns the mean cosine of a lane's rows to the ideal ones, over all rows and heads.
double cosine_of(const RunHistory& run, int lane, int k) {
    std::vector<float> full(to_index(run.last_row() + 1)), mine(full.size());
    double cosine = 0;
    int n = 0;
    for (int row = run.n_prompt(); row <= run.last_row(); ++row)
        each_head(run, [&](int layer, int head) {
            if (!run.attention_row(0, row, layer, head, full) ||
                !run.attention_row(lane, row, layer, head, mine))
                return;
            const std::vector<double> ideal =
                ideal_row(std::span<const float>(full).first(to_index(row) + 1), k);
            double dot = 0, aa = 0, bb = 0;
            for (std::size_t i = 0; i < ideal.size(); ++i) {
                const double a = static_cast<double>(mine[i]);
                dot += a * ideal[i];
                aa += a * a;
                bb += ideal[i] * ideal[i];
            }
            if (!(aa > 0 && bb > 0)) return;
            cosine += dot / std::sqrt(aa * bb);
            ++n;
        });
    return n > 0 ? cosine / n : kNone;
}

namespace {

/// Returns how near each lane is to the ideal one, mean over rows and heads, as table 2 measures it. A lane
/// without a shadow is compared with what the first lane attends to.
std::vector<double> nearness(const RunHistory& run) {
    std::vector<double> cosines;
    for (const LaneMetrics& metrics : run_metrics(run)) {
        const auto lane = static_cast<int>(cosines.size());
        cosines.push_back(std::isfinite(metrics.cosine_ideal)
                              ? metrics.cosine_ideal
                              : cosine_of(run, lane, stored_tokens(run, lane)));
    }
    return cosines;
}

/// Returns the lanes' names for a reader: without the shadow that only measures.
std::vector<std::string> shown_lanes(const RunHistory& run) {
    constexpr std::string_view kShadow = ",shadow=on";
    std::vector<std::string> names;
    for (const LaneRecord& lane : run.steps().back()->lanes) {
        std::string& name = names.emplace_back(lane_title(lane.info->spec));
        if (const std::size_t at = name.find(kShadow); at != std::string::npos)
            name.erase(at, kShadow.size());
    }
    return names;
}

}  // namespace

/// A2SF, figure 4: masked, renormalised attention by ideal, local, H2O and A2SF.
RunPicture masked_maps(const RunHistory& run) {
    const int layer = run.run().config.n_layers / 2, head = 0;
    const int first = run.n_prompt(), n = run.last_row() + 1;
    ValueMap map;
    map.texts = {"", run_subtitle(run),
                 fmt::format("Layer {}, head 0; the cube root of the probabilities, as in the released code. "
                             "Ideal: the best tokens of each full row.",
                             layer)};
    map.row_label = "query position";
    map.column_label = "key position";
    map.value_label = "cube root of p";
    map.decimals = -1;
    map.scale = {Colormap::cividis, false, false, 0, 1};
    for (int row = first; row < n; ++row) map.rows.push_back(std::to_string(row));
    for (int p = 0; p < n; ++p) map.columns.push_back(std::to_string(p));
    const int k = stored_tokens(run, 1);
    const std::vector<std::string> lanes = shown_lanes(run);
    const std::vector<double> near = nearness(run);
    std::vector<float> line(to_index(n));
    std::string cosines;
    for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
        ValuePanel& panel = map.panels.emplace_back();
        panel.title = lane == 0 ? "ideal" : lanes[lane];
        panel.values.assign(to_index(n) * to_index(n - first), static_cast<float>(kNone));
        for (int row = first; row < n; ++row) {
            if (!run.attention_row(static_cast<int>(lane), row, layer, head, line)) continue;
            const auto seen = std::span<const float>(line).first(to_index(row) + 1);
            const std::vector<double> p =
                lane == 0 ? ideal_row(seen, k) : std::vector<double>(seen.begin(), seen.end());
            for (std::size_t i = 0; i < p.size(); ++i)
                panel.values[to_index(row - first) * to_index(n) + i] = static_cast<float>(std::cbrt(p[i]));
        }
        if (lane == 0) continue;
        cosines += fmt::format("{}{} {:.3f}", cosines.empty() ? "" : ", ", panel.title, near[lane]);
    }
    return {std::move(map),
            {State::measured, "cosine to the ideal rows, mean over all heads: " + cosines + "."}};
}

namespace {

/// Returns how much nearer to the ideal each lane of A2SF is than each other lane.
RunGains nearer(const std::vector<std::string>& lanes, const std::vector<double>& cosines) {
    RunGains gains;
    for (std::size_t mine = 0; mine < lanes.size(); ++mine)
        for (std::size_t other = 0; other < lanes.size(); ++other)
            if (lanes[mine].starts_with("a2sf") && !lanes[other].starts_with("a2sf"))
                gains.emplace_back(lanes[mine] + " against " + lanes[other], cosines[mine] - cosines[other]);
    return gains;
}

}  // namespace

RunGains gains_of_masks(const RunHistory& run) {
    std::vector<std::string> lanes = shown_lanes(run);
    std::vector<double> near = nearness(run);
    lanes.erase(lanes.begin());  // the ideal
    near.erase(near.begin());
    return nearer(lanes, near);
}

/// A2SF, figure 6: p, its sum and its forgetting sum of some tokens, row by row; a cross where it is evicted.
RunPicture scores_over_steps(const RunHistory& run) {
    constexpr std::size_t kTokens = 4;
    const int layer = run.run().config.n_layers / 2, head = 0;
    const Plane p = attention_matrix(run, layer, head);
    std::vector<double> sum = forgetting_sum(p, 1);
    for (std::size_t k = to_index(run.n_prompt()); k < sum.size(); ++k) sum[k] = 0;
    std::vector<std::size_t> tokens = top(sum, kTokens);
    if (std::find(tokens.begin(), tokens.end(), std::size_t{0}) == tokens.end()) tokens.push_back(0);
    std::sort(tokens.begin(), tokens.end());
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = kStepAxis;
    plot.y_label = "attention or score";
    plot.own_y = true;
    plot.caption = fmt::format(
        "Layer {}, head 0, full attention: the first token and the highest sums. A cross marks the row at "
        "which the lane of this score evicted the token (h2o for the sum, a2sf for the forgetting sum).",
        layer);
    const std::array<std::string, 3> titles = {"p", "sum (A2S)", fmt::format("alpha {:g} (A2SF)", kAlpha)};
    const std::array<double, 3> alphas = {0, 1, kAlpha};
    int falls = 0, n = 0;
    for (std::size_t i = 0; i < titles.size(); ++i) {
        CurvePanel& panel = plot.panels.emplace_back();
        panel.title = titles[i];
        for (const std::size_t k : tokens) {
            const auto display = run.run().token_display[to_index(run.lanes()[0].tokens[k])];
            Curve curve{fmt::format("{} {}", k, display)};
            double s = 0;
            for (int row = static_cast<int>(k); row < p.height; ++row) {
                s = alphas[i] * s + static_cast<double>(p.at(static_cast<int>(k), row));
                curve.x.push_back(row);
                curve.y.push_back(s);
            }
            if (i > 0) {
                const int lane = static_cast<int>(i), g = run.layout(lane).kv_head_from_head(layer, head);
                const int gone = run.evicted_at(lane, g, static_cast<int>(k));
                if (gone >= 0) curve.end_mark = gone;
            }
            if (i == 2 && k > 0) {
                ++n;
                falls += s < 0.5 * *std::max_element(curve.y.begin(), curve.y.end()) ? 1 : 0;
            }
            panel.curves.push_back(std::move(curve));
        }
    }
    return {
        std::move(plot),
        {State::measured,
         fmt::format("the forgetting sums of {} of {} tokens end below half of their peak; sums never fall.",
                     falls, n)}};
}

/// A2SF, table 2: cosine of each lane's attention to the ideal one, beside the paper's.
RunPicture cosine_to_ideal(const RunHistory& run) {
    const std::vector<LaneMetrics> metrics = run_metrics(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "lane";
    plot.y_label = "cosine to the ideal attention";
    plot.whole_x = false;
    plot.caption =
        "Mean over rows, layers and heads; the paper's is the mean of four data sets on LLaMA 2 7B.";
    Curve ours{"here"}, paper{"paper"};
    const std::array<double, 4> printed = {0.318, 0.967, 0.991, 0.989};
    std::vector<LaneSpec> specs;
    for (const LaneRecord& lane : run.steps().back()->lanes)
        specs.push_back(parse_stored_lane_spec(lane.info->spec));
    const std::vector<std::string> names = lane_names(specs);
    std::string text;
    for (std::size_t lane = 0; lane < metrics.size() && lane < printed.size(); ++lane) {
        plot.x_words.push_back(names[lane]);
        ours.x.push_back(static_cast<double>(lane));
        ours.y.push_back(metrics[lane].cosine_ideal);
        paper.x.push_back(static_cast<double>(lane));
        paper.y.push_back(printed[lane]);
        text += fmt::format("{}{} {:.3f} (paper {:.3f})", lane == 0 ? "" : ", ", plot.x_words.back(),
                            metrics[lane].cosine_ideal, printed[lane]);
    }
    plot.curves = {ours, paper};
    return {std::move(plot), {State::measured, text + "."}};
}

RunGains gains_of_cosine(const RunHistory& run) {
    return nearer(shown_lanes(run), nearness(run));
}

}  // namespace keyhole::figure_parts
