#include "engine/analysis/measure_curves.h"

#include "engine/analysis/no_value.h"
#include "engine/base/index.h"

namespace keyhole {

namespace {

const std::vector<const Measure*>& curves() {
    static const std::vector<const Measure*> all = measures_by(&Measure::curve);
    return all;
}

/// Returns a measure's value in the newest row of a lane; NaN where it has none.
float value_of(const Measure& measure, const RowSoFar& row) {
    if (measure.of_row != nullptr) return measure.of_row(row.record);
    return measure.so_far != nullptr ? measure.so_far(row) : kNoValue;
}

}  // namespace

std::span<const CurveKind> curve_kinds() {
    static const std::vector<CurveKind> kinds = [] {
        std::vector<CurveKind> all;
        for (const Measure* m : curves())
            all.push_back({m->name, m->needs_shadow, m->logarithmic, m->needs_sinks});
        return all;
    }();
    return kinds;
}

int curve_index(std::string_view measure) {
    for (std::size_t i = 0; i < curves().size(); ++i)
        if (curves()[i]->name == measure) return static_cast<int>(i);
    return -1;
}

bool has_curve(const RunHistory& history, int kind) {
    const bool has_sinks = !history.steps().empty() && history.run().config.has_sinks;
    return has_sinks || !curve_kinds()[to_index(kind)].needs_sinks;
}

float head_measure(const LaneRecord& record, std::string_view name, int n_heads, int layer, int head) {
    const auto of_head = measure(name).of_head;
    return record.shadow == nullptr || of_head == nullptr
               ? kNoValue
               : of_head(*record.shadow, to_index(layer * n_heads + head));
}

void MeasureCurves::update(const RunHistory& history) {
    if (generation_ != history.generation()) {
        generation_ = history.generation();
        n_rows_ = 0;
        lanes_.clear();
    }
    for (; n_rows_ < history.steps().size(); ++n_rows_) add_row(history, *history.steps()[n_rows_]);
}

void MeasureCurves::add_row(const RunHistory& history, const StepTrace& step) {
    for (const LaneRecord& record : step.lanes) {
        const int lane = *history.lane_from_id(record.info->id);
        while (lanes_.size() <= to_index(lane)) {
            lanes_.emplace_back();
            lanes_.back().values.assign(curves().size(), std::vector<float>(n_rows_, kNoValue));
        }
        lanes_[to_index(lane)].so_far.add(history, lane, step.row, record);
    }
    for (LaneCurves& of_lane : lanes_)
        for (std::vector<float>& values : of_lane.values) values.push_back(kNoValue);
    for (const LaneRecord& record : step.lanes) {
        const int lane = *history.lane_from_id(record.info->id);
        LaneCurves& of_lane = lanes_[to_index(lane)];
        if (step.row > history.lanes()[to_index(lane)].last_row) continue;
        const RowSoFar row{history, record, lane, step.row, of_lane.so_far, lanes_.front().so_far};
        for (std::size_t kind = 0; kind < curves().size(); ++kind)
            of_lane.values[kind].back() = value_of(*curves()[kind], row);
    }
}

std::span<const float> MeasureCurves::curve(int kind, int lane) const {
    if (to_index(lane) >= lanes_.size()) return {};
    return lanes_[to_index(lane)].values[to_index(kind)];
}

}  // namespace keyhole
