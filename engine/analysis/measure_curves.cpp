#include "engine/analysis/measure_curves.h"

#include "engine/analysis/no_value.h"
#include "engine/base/index.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

constexpr std::array kKinds = {CurveKind{"kl", false, true},
                               CurveKind{"entropy", false, false},
                               CurveKind{"agreement", false, false},
                               CurveKind{"jaccard", false, false},
                               CurveKind{"recent_share", false, false},
                               CurveKind{"sink_share", false, false},
                               CurveKind{"retained_mass", true, false},
                               CurveKind{"lost_mass", true, true},
                               CurveKind{"cosine_ideal", true, false},
                               CurveKind{"cosine_full", true, false},
                               CurveKind{"output_similarity", true, false}};

float of_record(const LaneRecord& record, std::string_view measure) {
    const RowMeasures& m = record.measures;
    if (measure == "kl") return record.kl.value_or(kNoValue);
    if (measure == "entropy") return record.entropy;
    if (measure == "sink_share") return m.sink_share;
    if (measure == "retained_mass") return m.retained_mass;
    if (measure == "lost_mass") return 1 - m.retained_mass;
    if (measure == "cosine_ideal") return m.cosine_ideal;
    if (measure == "cosine_full") return m.cosine_full;
    if (measure == "output_similarity") return m.output_similarity;
    return kNoValue;
}

/// Returns the mean over KV heads; NaN before any head holds more than its budget.
float mean_recent_share(const KvLayout& layout, const LaneRecord& record, std::span<const KeptSet> stored,
                        int row) {
    double sum = 0;
    int n = 0;
    for (std::size_t g = 0; g < stored.size(); ++g) {
        const HeadRef reader = layout.kv_head(static_cast<int>(g)).readers.front();
        const int budget = record.info->policy.at(reader.layer, reader.head).budget;
        if (row + 1 <= budget) continue;
        sum += recent_share(stored[g], row, budget);
        ++n;
    }
    return n == 0 ? kNoValue : static_cast<float>(sum / n);
}

/// Returns the mean over KV heads; over query heads if the lanes share KV heads differently.
float mean_jaccard(const RunHistory& history, int lane, std::span<const KeptSet> a,
                   std::span<const KeptSet> b) {
    double sum = 0;
    if (history.same_layout(0, lane)) {
        for (std::size_t g = 0; g < a.size(); ++g) sum += jaccard(a[g], b[g]);
        return static_cast<float>(sum / static_cast<double>(a.size()));
    }
    const KvLayout &first = history.layout(0), &second = history.layout(lane);
    for (int l = 0; l < first.n_layers(); ++l)
        for (int h = 0; h < first.n_heads(); ++h)
            sum += jaccard(a[to_index(first.kv_head_from_head(l, h))],
                           b[to_index(second.kv_head_from_head(l, h))]);
    return static_cast<float>(sum / (first.n_layers() * first.n_heads()));
}

}  // namespace

std::span<const CurveKind> curve_kinds() {
    return kKinds;
}

int curve_index(std::string_view measure) {
    for (std::size_t i = 0; i < kKinds.size(); ++i)
        if (kKinds[i].measure == measure) return static_cast<int>(i);
    return -1;
}

float head_measure(const LaneRecord& record, std::string_view measure, int n_heads, int layer, int head) {
    if (record.shadow == nullptr) return kNoValue;
    const ShadowRow& shadow = *record.shadow;
    const std::vector<float>* values = measure == "cosine_ideal"        ? &shadow.cosine_ideal
                                       : measure == "cosine_full"       ? &shadow.cosine_full
                                       : measure == "output_similarity" ? &shadow.output_similarity
                                                                        : &shadow.retained_mass;
    const std::size_t i = to_index(layer * n_heads + head);
    if (i >= values->size()) return kNoValue;
    return measure == "lost_mass" ? 1 - (*values)[i] : (*values)[i];
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
    const int row = step.row;
    for (const LaneRecord& record : step.lanes) {
        const std::size_t lane = to_index(*history.lane_from_id(record.info->id));
        while (lanes_.size() <= lane) {
            lanes_.emplace_back();
            lanes_.back().values.assign(kKinds.size(), std::vector<float>(n_rows_, kNoValue));
        }
        LaneCurves& curves = lanes_[lane];
        if (curves.stored.empty()) {  // a lane's first row: take its past from the table
            const int n_kv = history.layout(static_cast<int>(lane)).n_kv_heads();
            curves.stored.resize(to_index(n_kv));
            for (int g = 0; g < n_kv; ++g)
                for (int p = 0; p <= row; ++p)
                    if (history.stored(static_cast<int>(lane), g, p, row))
                        curves.stored[to_index(g)].insert(p);
        } else if (row <= history.lanes()[lane].last_row) {
            for (KeptSet& set : curves.stored) set.insert(row);
            for (const Eviction& e : record.evictions) curves.stored[to_index(e.kv_head)].erase(e.position);
        }
    }
    for (LaneCurves& curves : lanes_)
        for (std::vector<float>& values : curves.values) values.push_back(kNoValue);
    for (const LaneRecord& record : step.lanes) {
        const std::size_t lane = to_index(*history.lane_from_id(record.info->id));
        LaneCurves& curves = lanes_[lane];
        if (row > history.lanes()[lane].last_row) continue;
        for (std::size_t kind = 0; kind < kKinds.size(); ++kind)
            curves.values[kind].back() = of_record(record, kKinds[kind].measure);
        curves.values[to_index(curve_index("recent_share"))].back() =
            mean_recent_share(history.layout(static_cast<int>(lane)), record, curves.stored, row);
        if (record.agrees) {
            ++curves.n_compared;
            curves.n_agreed += *record.agrees ? 1 : 0;
            curves.values[to_index(curve_index("agreement"))].back() =
                static_cast<float>(curves.n_agreed) / static_cast<float>(curves.n_compared);
        }
        // Only before the texts diverge, like the KL.
        if (record.kl && !lanes_.front().stored.empty())
            curves.values[to_index(curve_index("jaccard"))].back() =
                mean_jaccard(history, static_cast<int>(lane), lanes_.front().stored, curves.stored);
    }
}

std::span<const float> MeasureCurves::curve(int kind, int lane) const {
    if (to_index(lane) >= lanes_.size()) return {};
    return lanes_[to_index(lane)].values[to_index(kind)];
}

}  // namespace keyhole
