#include "engine/export/captions.h"

#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"

#include <fmt/format.h>

#include <algorithm>

namespace keyhole {

std::string head_title(HeatMode mode, const KvLayout& layout, int layer, int head) {
    if (mode == HeatMode::attention) return fmt::format("Attention of layer {}, head {}", layer, head);
    return kv_head_title(mode, layout, layout.kv_head_from_head(layer, head));
}

std::string kv_head_title(HeatMode mode, const KvLayout& layout, int kv_head) {
    const KvHead& head = layout.kv_head(kv_head);
    return fmt::format("{} of layer {}, KV head {}", mode == HeatMode::mask ? "Kept tokens" : "Scores",
                       head.owner_layer, head.index);
}

std::string made_by(const RunInfo& run, const std::string& program, const std::string& command) {
    if (program.empty() && command.empty()) return "";
    return fmt::format("{}: {}; model {}, {}", program, command, model_name(run.model_path), run.model_hash);
}

std::string head_caption(HeatMode mode, const ColorScale& scale) {
    constexpr std::string_view kMask =
        "The tokens that the KV head stores. A row attends to its own token and to what was stored before "
        "it; evictions follow the row.";
    if (mode == HeatMode::mask) return std::string(kMask);
    return fmt::format("{} Colours are {}, from {:.3g} to {:.3g}.",
                       mode == HeatMode::attention
                           ? "Attention probability: each row is a query position."
                           : "Pooled score after each query position, before its eviction.",
                       scale.logarithmic ? "logarithmic" : "linear", scale.low, scale.high);
}

MarkedColumns marked_columns(const RunHistory& history, int lane, const std::optional<TokenSpan>& watched,
                             int first_position, int last_position) {
    if (!watched || watched->first > last_position || watched->last < first_position) return {};
    return {std::max(watched->first, first_position) - first_position,
            std::min(watched->last, last_position) - first_position, span_name(history, lane, *watched)};
}

std::string lane_settings(const RunHistory& history, int lane, int number, int row) {
    const LaneRecord* record = history.lane_record(std::max(row, history.n_prompt() - 1), lane);
    return fmt::format("lane {}: {}", number, record == nullptr ? "" : record->info->effective);
}

std::string lane_subtitle(const RunHistory& history, int lane, int number, int row) {
    return fmt::format("{} · {}", model_name(history.run().model_path),
                       lane_settings(history, lane, number, row));
}

int lane_number(const RunHistory& history, int lane) {
    const std::vector<LaneRecord>& last = history.steps().back()->lanes;
    for (std::size_t i = 0; i < last.size(); ++i)
        if (history.lane_from_id(last[i].info->id) == lane) return static_cast<int>(i);
    return lane;
}

}  // namespace keyhole
