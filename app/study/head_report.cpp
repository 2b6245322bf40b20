#include "app/study/head_report.h"

#include "app/study/attribution_file.h"
#include "engine/base/counted.h"
#include "engine/base/csv_field.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/eval/answer_file.h"
#include "engine/figure/head_map.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace keyhole {

namespace {

struct HeadColumn {
    const char *name, *title;
    double HeadMeasures::*value;
    const char* sentence;
};
constexpr std::array kHeadColumns = {
    HeadColumn{"held", "held %", &HeadMeasures::held, "Share of the answer's tokens that a head holds"},
    HeadColumn{"attention", "attends %", &HeadMeasures::attention,
               "Attention that a head gives to the answer's tokens"},
    HeadColumn{"full_attention", "in full %", &HeadMeasures::full_attention,
               "Attention to the answer's tokens without eviction"},
    HeadColumn{"lost_mass", "lost %", &HeadMeasures::lost,
               "Attention that a head would give to evicted tokens"},
    HeadColumn{"top_recall", "recall %", &HeadMeasures::recall,
               "Share of the ideal set that a head attends to"},
    HeadColumn{"output_error", "error %", &HeadMeasures::output_error,
               "Error of a head's output: 1 - its cosine with full attention"},
};

/// Returns the part that `attribute` names the KV head of a query head by.
std::string kv_part(const HeadReport& lane, std::size_t i) {
    const int n_heads = lane.layout.n_heads();
    const KvHead& kv = lane.layout.kv_head(
        lane.layout.kv_head_from_head(static_cast<int>(i) / n_heads, static_cast<int>(i) % n_heads));
    return fmt::format("L{}.G{}", kv.owner_layer, kv.index);
}

std::string head_name(const HeadReport& lane, std::size_t i) {
    return fmt::format("L{}.H{}", i / to_index(lane.layout.n_heads()), i % to_index(lane.layout.n_heads()));
}

std::vector<std::string> numbered(char letter, int n) {
    std::vector<std::string> names;
    for (int i = 0; i < n; ++i) names.push_back(fmt::format("{}{}", letter, i));
    return names;
}

/// Returns the values of a lane as a map has them; `layers_across`: its columns are layers.
ValuePanel head_panel(const HeadReport& lane, const HeadColumn& column, bool layers_across) {
    const std::size_t n_layers = to_index(lane.layout.n_layers()), n_heads = to_index(lane.layout.n_heads());
    ValuePanel panel;
    panel.title = lane.label;
    panel.values.resize(n_layers * n_heads);
    panel.notes.resize(n_layers * n_heads);
    for (std::size_t i = 0; i < lane.heads.heads.size(); ++i) {
        const std::size_t layer = i / n_heads, head = i % n_heads;
        const std::size_t at = layers_across ? head * n_layers + layer : i;
        const double value = 100 * (lane.heads.heads[i].*column.value);
        panel.values[at] = static_cast<float>(value);
        panel.notes[at] =
            fmt::format("{}, which reads {}: {:.1f} %", head_name(lane, i), kv_part(lane, i), value);
    }
    return panel;
}

std::string percent_cell(double share) {
    return std::isnan(share) ? "" : fmt::format("{:.1f}", std::max(0.0, 100 * share));
}

}  // namespace

KnownEffects known_effects(const std::filesystem::path& folder, const std::string& asked, int n_questions) {
    const std::filesystem::path file = folder / "attribution.json";
    KnownEffects known;
    std::error_code ignored;
    if (!std::filesystem::exists(file, ignored)) return known;
    try {
        const StoredAttribution stored = read_attribution(read_text_file(file), file.string());
        if (stored.asked.empty())
            known.why_not = "it is of an earlier version, which did not note its questions";
        else if (stored.asked != asked)
            known.why_not = "it is of other questions, or of another model or backend";
        else if (stored.found.n_questions != n_questions)
            known.why_not = fmt::format("it is of {}, and {} are asked",
                                        counted(stored.found.n_questions, "question"), n_questions);
        if (!known.why_not.empty()) return known;
        known.lane = stored.lane;
        for (const PartEffect& effect : stored.found.effects)
            if (std::isfinite(effect.nats.value)) known.nats[part_name(effect.part)] = effect.nats.value;
    } catch (const Error& error) {
        known.why_not = error.what();
    }
    return known;
}

std::string head_text(std::span<const HeadReport> lanes, std::size_t most) {
    std::string text;
    for (const HeadReport& lane : lanes) {
        const std::vector<HeadMeasures>& heads = lane.heads.heads;
        const bool is_placed = lane.heads.n_placed > 0;
        std::vector<std::size_t> order(heads.size());
        std::iota(order.begin(), order.end(), std::size_t{0});
        std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
            return is_placed ? heads[a].full_attention > heads[b].full_attention
                             : heads[a].lost > heads[b].lost;
        });
        text += fmt::format("\n{}, heads that {} most\n{:<9} {:<8}", lane.label,
                            is_placed ? "attend to the answer in full attention" : "lose attention", "head",
                            "reads");
        for (const HeadColumn& column : kHeadColumns) text += fmt::format(" {:>9}", column.title);
        text += lane.effects.empty() ? "\n" : fmt::format(" {:>9}\n", "nats");
        for (std::size_t k = 0; k < std::min(most, order.size()); ++k) {
            const std::size_t i = order[k];
            text += fmt::format("{:<9} {:<8}", head_name(lane, i), kv_part(lane, i));
            for (const HeadColumn& column : kHeadColumns)
                text += fmt::format(" {:>9}", percent_cell(heads[i].*column.value));
            if (const auto found = lane.effects.find(kv_part(lane, i)); found != lane.effects.end())
                text += fmt::format(" {:>+9.3f}", found->second);
            text += "\n";
        }
    }
    return text;
}

std::string head_csv(const std::string& questions, std::span<const HeadReport> lanes) {
    std::string csv = "questions,lane,spec,layer,query_head,part";
    for (const HeadColumn& column : kHeadColumns) csv += fmt::format(",{}", column.name);
    csv += ",nats\n";
    for (const HeadReport& lane : lanes)
        for (std::size_t i = 0; i < lane.heads.heads.size(); ++i) {
            const std::size_t n_heads = to_index(lane.layout.n_heads());
            csv += fmt::format("{},{},{},{},{},{}", csv_field(questions), csv_field(lane.label),
                               csv_field(format_lane_spec(lane.lane)), i / n_heads, i % n_heads,
                               kv_part(lane, i));
            for (const HeadColumn& column : kHeadColumns) {
                const double value = lane.heads.heads[i].*column.value;
                csv += std::isnan(value) ? "," : fmt::format(",{:.6g}", value);
            }
            const auto found = lane.effects.find(kv_part(lane, i));
            csv += found == lane.effects.end() ? ",\n" : fmt::format(",{:.6g}\n", found->second);
        }
    return csv;
}

std::vector<std::string> head_map_names() {
    std::vector<std::string> names;
    for (const HeadColumn& column : kHeadColumns) names.emplace_back(column.name);
    return names;
}

std::vector<HeadMap> head_maps(const std::string& questions, std::span<const HeadReport> lanes) {
    std::vector<HeadMap> maps;
    const KvLayout& layout = lanes.front().layout;  // query heads are the same in all lanes
    const bool layers_across = layers_lie_across(to_index(layout.n_layers()), to_index(layout.n_heads()));
    for (const HeadColumn& column : kHeadColumns) {
        HeadMap& one = maps.emplace_back();
        one.name = column.name;
        ValueMap& map = one.map;
        map.texts.title = column.sentence;
        map.texts.subtitle = questions;
        map.texts.caption = "Means over the rows after the prompt and over questions, in percent.";
        map.value_label = "%";
        map.rows = numbered(layers_across ? 'H' : 'L', layers_across ? layout.n_heads() : layout.n_layers());
        map.columns =
            numbered(layers_across ? 'L' : 'H', layers_across ? layout.n_layers() : layout.n_heads());
        map.row_label = layers_across ? "query head" : "layer";
        map.column_label = layers_across ? "layer" : "query head";
        float most = 0;
        for (const HeadReport& lane : lanes) {
            map.panels.push_back(head_panel(lane, column, layers_across));
            for (const float value : map.panels.back().values)
                if (std::isfinite(value)) most = std::max(most, value);
        }
        map.scale = {Colormap::viridis, false, false, 0, std::max(most, 1e-3f)};
        const auto is_told = [](const ValuePanel& panel) {
            return std::ranges::any_of(panel.values, [](float value) { return std::isfinite(value); });
        };
        if (std::ranges::none_of(map.panels, is_told)) maps.pop_back();
    }
    return maps;
}

nlohmann::json head_json(const std::string& questions, std::span<const HeadReport> lanes) {
    nlohmann::json json = nlohmann::json::array();
    for (const HeadReport& lane : lanes)
        for (std::size_t i = 0; i < lane.heads.heads.size(); ++i) {
            nlohmann::json head = {{"questions", questions},
                                   {"lane", lane.label},
                                   {"head", head_name(lane, i)},
                                   {"part", kv_part(lane, i)}};
            for (const HeadColumn& column : kHeadColumns) {
                const double value = lane.heads.heads[i].*column.value;
                head[column.name] = std::isnan(value) ? nlohmann::json() : nlohmann::json(value);
            }
            if (const auto found = lane.effects.find(kv_part(lane, i)); found != lane.effects.end())
                head["nats"] = found->second;
            json.push_back(std::move(head));
        }
    return json;
}

}  // namespace keyhole
