#include "app/papers/run_parts.h"

#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

namespace keyhole::figure_parts {

namespace {

using State = PaperVerdict::State;

std::string lane_name(const RunHistory& run, std::size_t lane) {
    return lane_title(run.steps().back()->lanes[lane].info->spec);
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
        "the token's own.";
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
        text += fmt::format("{}{}: {:.0f} rows for the first token, {:.0f} for the next ones of {:.0f}",
                            text.empty() ? "" : "; ", curve.name, rows[0], others, to_end);
    }
    return {std::move(plot), {State::measured, text + "."}};
}

namespace {

/// TOVA, table 5, 512 states: rows of a tag over the 481 of all tokens.
struct PaperTag {
    std::string_view tag;
    double rows;
};
constexpr double kPaperAll = 481;
constexpr std::array<PaperTag, 14> kPaperTags = {{{".", 645},
                                                  {",", 453},
                                                  {":", 492},
                                                  {")", 670},
                                                  {"$", 724},
                                                  {"\\n", 550},
                                                  {"CD", 537},
                                                  {"POS", 1393},
                                                  {"DT", 379},
                                                  {"IN", 385},
                                                  {"CC", 437},
                                                  {"PRP", 424},
                                                  {"MD", 377},
                                                  {"NNP", 517}}};

/// Returns the first tag of a class that the paper has; NaN if it has none.
double paper_rows(WordClass kind) {
    if (kind == WordClass::space) return kPaperTags[5].rows;
    const std::string tags = fmt::format(" {} ", penn_tags(kind));
    for (const PaperTag& tag : kPaperTags)
        if (tags.find(fmt::format(" {} ", tag.tag)) != std::string::npos) return tag.rows;
    return std::numeric_limits<double>::quiet_NaN();
}

bool is_punctuation(WordClass kind) {
    return kind == WordClass::sentence_end || kind == WordClass::comma || kind == WordClass::pause ||
           kind == WordClass::quote || kind == WordClass::bracket || kind == WordClass::symbol;
}

/// Returns the mean lifetime of punctuation and special signs in rows; NaN if the text has none.
double punctuation_rows(const LaneMetrics& lane) {
    double rows = 0;
    int n = 0;
    for (std::size_t c = 0; c < kWordClasses; ++c) {
        if (!is_punctuation(static_cast<WordClass>(c)) || lane.tokens_by_word_class[c] == 0) continue;
        rows += lane.lifetime_by_word_class[c] * lane.tokens_by_word_class[c];
        n += lane.tokens_by_word_class[c];
    }
    return n > 0 ? rows / n : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace

/// TOVA, tables 2 and 5: the same by kind of word, over the mean of all tokens.
RunPicture lifetime_by_class(const RunHistory& run) {
    const std::vector<LaneMetrics> metrics = run_metrics(run);
    CurvePlot plot;
    plot.subtitle = run_subtitle(run);
    plot.x_label = "kind of word";
    plot.log_y = true;  // the begin of the text stays far longer than all else
    plot.y_label = "rows stored, over those of all tokens";
    plot.caption =
        "Kinds of words are Keyhole's own, by the word alone, in place of the paper's parts of speech; mean "
        "over KV heads. The paper's are 512 states, each of the tag that stands for the kind.";
    std::vector<std::size_t> kinds;
    for (std::size_t c = 0; c < kWordClasses; ++c)
        if (metrics[0].tokens_by_word_class[c] > 0) kinds.push_back(c);
    std::stable_sort(kinds.begin(), kinds.end(), [&](std::size_t a, std::size_t b) {
        return metrics[0].lifetime_by_word_class[a] > metrics[0].lifetime_by_word_class[b];
    });
    Curve paper{"paper, 512"};
    for (std::size_t i = 0; i < kinds.size(); ++i) {
        const auto kind = static_cast<WordClass>(kinds[i]);
        plot.x_words.emplace_back(
            fmt::format("{} ({})", word_class_name(kind), metrics[0].tokens_by_word_class[kinds[i]]));
        if (const double rows = paper_rows(kind); std::isfinite(rows)) {
            paper.x.push_back(static_cast<double>(i));
            paper.y.push_back(rows / kPaperAll);
        }
    }
    std::string text;
    for (std::size_t lane = 0; lane < metrics.size(); ++lane) {
        const LaneMetrics& m = metrics[lane];
        Curve& curve = plot.curves.emplace_back();
        curve.name = lane_name(run, lane);
        for (std::size_t i = 0; i < kinds.size(); ++i) {
            curve.x.push_back(static_cast<double>(i));
            curve.y.push_back(m.lifetime_by_word_class[kinds[i]] / m.lifetime);
        }
        const double rows = punctuation_rows(m);
        text += fmt::format(
            "{}{}: {}, all tokens {:.0f}", text.empty() ? "" : "; ", curve.name,
            std::isfinite(rows) ? fmt::format("punctuation {:.0f} rows", rows) : "no punctuation in the text",
            m.lifetime);
    }
    plot.curves.push_back(std::move(paper));
    return {std::move(plot), {State::measured, text + "."}};
}

RunGains gains_of_punctuation(const RunHistory& run) {
    const std::vector<LaneMetrics> metrics = run_metrics(run);
    RunGains gains;
    for (std::size_t lane = 0; lane < metrics.size(); ++lane)
        gains.emplace_back("punctuation against all tokens, " + lane_name(run, lane),
                           punctuation_rows(metrics[lane]) - metrics[lane].lifetime);
    return gains;
}

}  // namespace keyhole::figure_parts
