#include "app/papers/run_parts.h"

#include "engine/analysis/run_metrics.h"
#include "engine/base/index.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace keyhole::figure_parts {

namespace {

using State = PaperVerdict::State;
const PaperVerdict kNothingEvicted = {State::unseen, "the budget holds the whole text."};
constexpr float kEmpty = std::numeric_limits<float>::quiet_NaN();

/// Keyformer, figures 14 and 15: maps of the first layers and heads. Decoded rows; exact zeros are empty.
RunPicture heat_maps(const RunHistory& run, int n_layers, int n_heads) {
    constexpr int kCellsBeside = 440;  // of all panels side by side
    n_layers = std::min(n_layers, run.run().config.n_layers);
    n_heads = std::min(n_heads, run.run().config.n_heads);
    const int first = run.n_prompt(), n = run.last_row() + 1;
    const int block = (n * n_heads + kCellsBeside - 1) / kCellsBeside, n_columns = (n + block - 1) / block;
    ValueMap map;
    map.texts = {"", run_subtitle(run),
                 fmt::format("The first {} layers and {} heads, decoded rows. A cell is the largest of {} "
                             "positions; it is empty where all are exactly zero in half precision, and "
                             "behind the row.",
                             n_layers, n_heads, block)};
    map.row_label = "query position";
    map.column_label = "key position";
    map.value_label = "cube root of p";
    map.decimals = -1;
    map.panel_columns = n_heads;
    map.scale = {Colormap::cividis, false, false, 0, 1};
    for (int row = first; row < n; ++row) map.rows.push_back(std::to_string(row));
    for (int column = 0; column < n_columns; ++column) map.columns.push_back(std::to_string(column * block));
    std::vector<float> line(to_index(n));
    double least = 100, most = 0;
    for (int layer = 0; layer < n_layers; ++layer)
        for (int head = 0; head < n_heads; ++head) {
            ValuePanel& panel = map.panels.emplace_back();
            panel.title = fmt::format("L{} H{}", layer, head);
            panel.values.assign(map.rows.size() * map.columns.size(), kEmpty);
            std::int64_t zeros = 0, entries = 0;
            for (int row = first; row < n; ++row) {
                if (!run.attention_row(0, row, layer, head, line)) continue;
                for (int p = 0; p <= row; ++p) {
                    ++entries;
                    const float value = std::cbrt(line[to_index(p)]);
                    zeros += value > 0 ? 0 : 1;
                    float& cell =
                        panel.values[to_index(row - first) * map.columns.size() + to_index(p / block)];
                    if (value > 0) cell = std::isnan(cell) ? value : std::max(cell, value);
                }
            }
            const double share =
                entries > 0 ? 100 * static_cast<double>(zeros) / static_cast<double>(entries) : 0;
            least = std::min(least, share);
            most = std::max(most, share);
        }
    return {std::move(map),
            {State::measured,
             fmt::format("by head, {:.0f} to {:.0f} % of the entries are exactly zero in half precision.",
                         least, most)}};
}

/// TOVA, figures 8, 12 and 13: tokens that layers from `first` on keep after each row, prompt rows included.
ValueMap kept_maps(const RunHistory& run, int first) {
    constexpr int kMostCells = 450;
    const int n = run.last_row() + 1, n_layers = run.run().config.n_layers - first;
    const int beside = std::min(n_layers, 3);
    const int block = std::max(1, n * beside / kMostCells), n_cells = (n + block - 1) / block;
    ValueMap map;
    map.texts = {"", run_subtitle(run), "A token is stored from its own row to the one that evicts it."};
    if (block > 1)
        map.texts.caption += fmt::format(" A cell shows one of {} rows and positions.", block * block);
    map.row_label = "query position";
    map.column_label = "key position";
    map.named_values = {{1.0f, "stored"}, {0.0f, "evicted"}};
    map.empty_name = "not yet there";
    map.decimals = -1;
    map.panel_columns = beside;
    map.scale = {Colormap::cividis, false, false, 0, 1};
    for (int cell = 0; cell < n_cells; ++cell) map.rows.push_back(std::to_string(cell * block));
    map.columns = map.rows;
    for (int layer = first; layer < run.run().config.n_layers; ++layer) {
        ValuePanel& panel = map.panels.emplace_back();
        panel.title = fmt::format("layer {}", layer);
        panel.values.assign(to_index(n_cells) * to_index(n_cells), kEmpty);
        const int g = run.layout(0).kv_head_from_head(layer, 0);
        for (int row = 0; row < n_cells; ++row)
            for (int column = 0; column <= row; ++column) {
                const int gone = run.evicted_at(0, g, column * block);
                panel.values[to_index(row * n_cells + column)] = gone < 0 || gone > row * block ? 1.0f : 0.0f;
            }
    }
    return map;
}

}  // namespace

RunPicture heat_maps_4x4(const RunHistory& run) {
    return heat_maps(run, 4, 4);
}

RunPicture heat_maps_6x8(const RunHistory& run) {
    RunPicture picture = heat_maps(run, 6, 8);
    if (run.run().config.positions == PositionKind::alibi) return picture;
    picture.verdict.state = State::unseen;
    picture.verdict.why = "it has no ALiBi; " + picture.verdict.why;
    return picture;
}

RunPicture kept_by_last_layer(const RunHistory& run) {
    const int last = run.run().config.n_layers - 1;
    const double recent = run_metrics(run)[0].recent_by_layer[to_index(last)];
    if (!std::isfinite(recent)) return {kept_maps(run, last), kNothingEvicted};
    int oldest = 0;
    const int g = run.layout(0).kv_head_from_head(last, 0);
    for (int p = run.last_row(); p >= 0; --p)
        if (run.stored(0, g, p, run.last_row())) oldest = run.last_row() - p;
    return {
        kept_maps(run, last),
        {State::measured,
         fmt::format("{:.0f} % of the kept tokens are recent (paper 73 to 76 %), and the oldest is {} rows "
                     "old.",
                     100 * recent, oldest)}};
}

RunPicture kept_by_every_layer(const RunHistory& run) {
    const std::vector<double> recent = run_metrics(run)[0].recent_by_layer;
    const auto [least, most] = std::minmax_element(recent.begin(), recent.end());
    if (recent.empty() || !std::isfinite(*least) || !std::isfinite(*most))
        return {kept_maps(run, 0), kNothingEvicted};
    return {kept_maps(run, 0),
            {State::measured,
             fmt::format("by layer, {:.0f} to {:.0f} % of the kept tokens are recent (paper 73 to 76 %).",
                         100 * *least, 100 * *most)}};
}

}  // namespace keyhole::figure_parts
