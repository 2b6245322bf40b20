#include "app/view/atlas_colors.h"

#include "app/view/view_state.h"
#include "engine/analysis/measure_curves.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

using Needs = AtlasColor::Needs;

enum : int { kOfWatched = -3, kKept = -4, kSinks = -5, kEntropyOfRow = -6, kUnlikeOther = -7 };

std::vector<AtlasColor> make_colors() {
    std::vector<AtlasColor> colors = {
        {-1, "attention", "Attention", "All steps: the largest attention in each cell of a thumbnail."},
        {ViewState::kWatchedSpan, "watched", "Watched words kept",
         "Share of the watched words that the head's cache keeps.", Needs::watched_words},
        {kOfWatched, "watched_attention", "Attention on watched words",
         "Share of the head's attention that the watched words get.", Needs::watched_words},
        {kKept, "kept", "Tokens kept", "Share of all tokens so far that the head's cache keeps."},
        {kSinks, "sink_share", "Sink share",
         "Share of the head's attention that the first four tokens get: the attention sinks."},
        {kEntropyOfRow, "attention_entropy", "Attention entropy",
         "How widely the head spreads its attention, in nats: 0 where one token gets all.", Needs::nothing,
         0},
        {kUnlikeOther, "difference", "Difference to the other lane",
         "Share of the attention that the other lane gives to other tokens.", Needs::other_lane}};
    for (std::size_t i = 0; i < curve_kinds().size(); ++i)
        if (const Measure& m = measure(curve_kinds()[i].measure); m.of_head != nullptr)
            colors.push_back({static_cast<int>(i), m.name, m.label, m.help, Needs::shadow});
    return colors;
}

/// Returns a head's attention at the step; empty where its record was thinned out.
std::vector<float> attention_at(const AtlasSource& of, int lane, int layer, int head) {
    std::vector<float> values(to_index(of.row) + 1);
    const int then = lane_of_row(of.history, lane, of.row);
    if (!of.history.attention_row(then, of.row, layer, head, values)) values.clear();
    for (float& value : values)
        if (!(value > 0)) value = 0;  // hidden or evicted
    return values;
}

float sum_of(std::span<const float> row, int first, int last) {
    float sum = 0;
    for (int p = std::max(first, 0); p <= std::min(last, static_cast<int>(row.size()) - 1); ++p)
        sum += row[to_index(p)];
    return sum;
}

float entropy_of(std::span<const float> row) {
    float sum = 0;
    for (const float p : row)
        if (p > 0) sum -= p * std::log(p);
    return sum;
}

/// Half the sum of the differences: the share that would have to move.
float unlike(std::span<const float> a, std::span<const float> b) {
    float sum = 0;
    for (std::size_t p = 0; p < std::min(a.size(), b.size()); ++p) sum += std::abs(a[p] - b[p]);
    return sum / 2;
}

float kept_part(const AtlasSource& of, int lane, int kv_head) {
    int n = 0;
    for (int p = 0; p <= of.row; ++p) n += of.history.stored(lane, kv_head, p, of.row) ? 1 : 0;
    return static_cast<float>(n) / static_cast<float>(of.row + 1);
}

float value_of(const AtlasColor& color, const AtlasSource& of, int layer, int head) {
    const int lane = lane_of_row(of.history, of.lane, of.row);
    const int kv_head = of.history.layout(lane).kv_head_from_head(layer, head);
    if (color.code == ViewState::kWatchedSpan)
        return span_share(of.history, lane, kv_head, *of.watched, of.row);
    if (color.code == kKept) return kept_part(of, lane, kv_head);
    if (color.needs == Needs::shadow) {
        const LaneRecord* record = of.history.lane_record(of.row, lane);
        return record == nullptr
                   ? NAN
                   : head_measure(*record, color.name, of.history.run().config.n_heads, layer, head);
    }
    const std::vector<float> row = attention_at(of, of.lane, layer, head);
    if (row.empty()) return NAN;
    if (color.code == kOfWatched) return sum_of(row, of.watched->first, of.watched->last);
    if (color.code == kSinks) return sum_of(row, 0, 3);
    if (color.code == kEntropyOfRow) return entropy_of(row);
    const std::vector<float> other = attention_at(of, *of.other, layer, head);
    return other.empty() ? NAN : unlike(row, other);
}

}  // namespace

std::span<const AtlasColor> atlas_colors() {
    static const std::vector<AtlasColor> colors = make_colors();
    return colors;
}

const AtlasColor* atlas_color(int code) {
    const auto found = std::ranges::find(atlas_colors(), code, &AtlasColor::code);
    return found == atlas_colors().end() ? nullptr : &*found;
}

const AtlasColor* atlas_color(std::string_view name) {
    const auto found = std::ranges::find(atlas_colors(), name, &AtlasColor::name);
    return found == atlas_colors().end() ? nullptr : &*found;
}

std::string why_no_colors(const AtlasColor& color, const AtlasSource& of) {
    switch (color.needs) {
        case Needs::nothing:
            break;
        case Needs::watched_words:
            return of.watched ? "" : "No words are watched. Pick words in the text and press W.";
        case Needs::other_lane:
            return of.other ? "" : "It needs a second lane.";
        case Needs::shadow: {
            const LaneRecord* record =
                of.history.lane_record(of.row, lane_of_row(of.history, of.lane, of.row));
            return record != nullptr && record->shadow != nullptr
                       ? ""
                       : "The lane was not measured against full attention at this step.";
        }
    }
    return "";
}

std::vector<float> atlas_values(const AtlasColor& color, const AtlasSource& of) {
    const ModelConfig& config = of.history.run().config;
    std::vector<float> values;
    const bool any = why_no_colors(color, of).empty();
    for (int layer = 0; layer < config.n_layers; ++layer)
        for (int head = 0; head < config.n_heads; ++head)
            values.push_back(any ? value_of(color, of, layer, head) : NAN);
    return values;
}

}  // namespace keyhole
