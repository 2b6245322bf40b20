#include "app/cli/figures/run_parts.h"

#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace keyhole::figure_parts {

namespace {

using State = PaperVerdict::State;

std::string lane_name(const RunHistory& run, std::size_t lane) {
    return run.steps().back()->lanes[lane].info->spec;
}

}  // namespace

/// TOVA, figure 9: rows that each of the first 25 tokens stays stored.
RunPicture lifetime_by_position(const RunHistory& run) {
    const std::vector<LaneMetrics> metrics = run_metrics(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "position";
    plot.y_label = "rows that the token stays stored";
    plot.caption =
        "Mean over KV heads. A token that is never evicted counts to the end of the text. Rows count from "
        "the end of the prompt.";
    int first_longest = 0;
    std::string text;
    for (std::size_t lane = 0; lane < metrics.size(); ++lane) {
        const std::vector<double>& rows = metrics[lane].lifetime_by_position;
        Curve& curve = plot.curves.emplace_back();
        curve.name = lane_name(run, lane);
        for (std::size_t p = 0; p < rows.size(); ++p) {
            curve.x.push_back(static_cast<double>(p));
            curve.y.push_back(rows[p]);
        }
        double others = 0;
        for (std::size_t p = 1; p < rows.size(); ++p)
            others += rows[p] / static_cast<double>(rows.size() - 1);
        const double to_end = run.last_row() + 1;
        first_longest += rows[0] >= 0.9 * to_end && others <= 0.5 * rows[0] ? 1 : 0;
        text += fmt::format("{}{}: {:.0f} rows for the first token, {:.0f} for the next ones of {:.0f}",
                            text.empty() ? "" : "; ", curve.name, rows[0], others, to_end);
    }
    const auto n = static_cast<int>(metrics.size());
    return {std::move(plot),
            {first_longest == n   ? State::holds
             : first_longest == 0 ? State::unseen
                                  : State::open,
             text + "."}};
}

/// TOVA, table 2: the same by kind of token.
RunPicture lifetime_by_class(const RunHistory& run) {
    const std::vector<LaneMetrics> metrics = run_metrics(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "kind of token";
    plot.y_label = "rows that a token stays stored";
    plot.caption =
        "Kinds of tokens by their text, in place of the paper's parts of speech; mean over KV heads.";
    plot.x_words.emplace_back("all");
    std::vector<std::size_t> kinds;
    for (std::size_t c = 0; c < kTokenClasses; ++c)
        if (metrics[0].tokens_by_class[c] > 0) {
            kinds.push_back(c);
            plot.x_words.emplace_back(token_class_name(static_cast<TokenClass>(c)));
        }
    int longer = 0;
    std::string text;
    for (std::size_t lane = 0; lane < metrics.size(); ++lane) {
        Curve& curve = plot.curves.emplace_back();
        curve.name = lane_name(run, lane);
        curve.x.push_back(0);
        curve.y.push_back(metrics[lane].lifetime);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            curve.x.push_back(static_cast<double>(i + 1));
            curve.y.push_back(metrics[lane].lifetime_by_class[kinds[i]]);
        }
        const double punctuation =
            metrics[lane].lifetime_by_class[to_index(static_cast<int>(TokenClass::punctuation))];
        longer += punctuation > metrics[lane].lifetime ? 1 : 0;
        text += fmt::format("{}{}: punctuation {:.0f} rows, all tokens {:.0f}", text.empty() ? "" : "; ",
                            curve.name, punctuation, metrics[lane].lifetime);
    }
    return {std::move(plot),
            {longer == static_cast<int>(metrics.size()) ? State::holds : State::fails, text + "."}};
}

}  // namespace keyhole::figure_parts
