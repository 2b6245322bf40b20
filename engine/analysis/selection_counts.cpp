#include "engine/analysis/selection_counts.h"

#include "engine/analysis/competing.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace keyhole {

namespace {

/// Returns the newest row up to `row` after which a KV head lost a token; -1: none.
int newest_selection(const RunHistory& history, int lane, int row) {
    int newest = -1;
    for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g)
        for (int p = 0; p <= row && p < history.n_positions(); ++p)
            if (const int at = history.evicted_at(lane, g, p); at <= row) newest = std::max(newest, at);
    return newest;
}

/// Adds the counts of one KV head.
void add_head(const RunHistory& history, int lane, int g, std::span<const float> scores,
              SelectionCounts& counts) {
    const std::vector<std::int32_t> held = history.held_positions(lane, g, counts.row);
    const std::vector<Standing> standing = standings(history, lane, g, counts.row);
    if (standing.size() != held.size()) return;
    std::vector<float> left, stayed;
    int n_nan = 0;
    for (std::size_t i = 0; i < held.size(); ++i) {
        if (standing[i] != Standing::competes) continue;
        const float score = scores[to_index(held[i])];
        if (std::isnan(score)) ++n_nan;
        (history.evicted_at(lane, g, held[i]) == counts.row ? left : stayed).push_back(score);
    }
    if (left.empty()) return;
    ++counts.n_heads;
    counts.n_ranked += static_cast<int>(left.size() + stayed.size());
    counts.n_nan += n_nan;
    if (n_nan > 0 && counts.n_nan_heads++ == 0) counts.first_nan_head = g;
    // At the cut: the best score that left, which some tokens have that stayed.
    const auto rank = [](float score) { return std::isnan(score) ? -HUGE_VALF : score; };
    const float cut = rank(*std::ranges::max_element(left, {}, rank));
    const auto at_cut = [&](const std::vector<float>& of) {
        return static_cast<int>(std::ranges::count(of, cut, rank));
    };
    if (const int n = at_cut(stayed); n > 0) {
        counts.n_tied += n + at_cut(left);
        ++counts.n_tied_heads;
    }
}

}  // namespace

std::optional<SelectionCounts> last_selection(const RunHistory& history, int lane, int row) {
    SelectionCounts counts;
    counts.row = newest_selection(history, lane, row);
    if (counts.row < history.n_prompt() - 1) return std::nullopt;
    std::vector<float> scores(to_index(counts.row) + 1);
    for (int g = 0; g < history.layout(lane).n_kv_heads(); ++g) {
        if (!history.score_row(lane, counts.row, g, scores)) return std::nullopt;
        add_head(history, lane, g, scores, counts);
    }
    return counts.n_heads == 0 ? std::nullopt : std::optional(counts);
}

std::string selection_words(const SelectionCounts& counts, const KvLayout& layout) {
    std::string found;
    if (counts.n_nan > 0)
        found = fmt::format("{} of {} scores are NaN, first in {}, and rank lowest", counts.n_nan,
                            counts.n_ranked, kv_head_text(layout, counts.first_nan_head));
    if (counts.n_tied > 0)
        found += fmt::format(
            "{}{} of {} tokens tie at the cut, in {} of {} KV heads; of equal ones the newer "
            "stay",
            found.empty() ? "" : "; ", counts.n_tied, counts.n_ranked, counts.n_tied_heads, counts.n_heads);
    return found.empty() ? found : fmt::format("At the selection after row {}: {}.", counts.row, found);
}

}  // namespace keyhole
