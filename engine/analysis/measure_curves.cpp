#include "engine/analysis/measure_curves.h"

#include "engine/analysis/no_value.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole {

namespace {

const std::vector<const Measure*>& curves() {
    static const std::vector<const Measure*> all = measures_by(&Measure::curve);
    return all;
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

/// Returns the most megabytes of K and V that a lane stored at a time during its prompt, by its policy; 0
/// where the bytes of a token are not known.
float prompt_peak(const KvLayout& layout, const LaneInfo& lane, int n_prompt) {
    const ResolvedPolicy& policy = lane.policy;
    double tokens = 0;
    for (int g = 0; g < layout.n_kv_heads(); ++g) {
        const HeadRef reader = layout.kv_head(g).readers.front();
        const ResolvedPolicy& of_head = policy.at(reader.layer, reader.head);
        const bool keeps_all = policy.prefill == PrefillMode::oneshot || !of_head.evicts() ||
                               of_head.keeps_memory || of_head.evict == Evict::decode ||
                               of_head.alloc != Alloc::uniform;
        tokens += keeps_all ? n_prompt : std::min(n_prompt, of_head.most_stored());
    }
    return static_cast<float>(1e-6 * double(lane.token_bytes) * tokens / layout.n_kv_heads());
}

/// Returns the most megabytes that a lane stored at a time in a row: before the row's own eviction. What the
/// last row of the prompt evicts counts as the prompt's.
float row_peak(const LaneRecord& record, int row, int n_prompt) {
    const CacheUse& use = record.use;
    if (use.stored_tokens == 0) return 0;
    const auto evicted = row < n_prompt ? 0
                                        : std::count_if(record.evictions.begin(), record.evictions.end(),
                                                        [&](const Eviction& e) { return e.row == row; });
    const double token = double(use.stored_bytes) / double(use.stored_tokens);
    return static_cast<float>(1e-6 * (double(use.stored_bytes) + token * double(evicted)));
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
    const int row = step.row;
    for (const LaneRecord& record : step.lanes) {
        const std::size_t lane = to_index(*history.lane_from_id(record.info->id));
        while (lanes_.size() <= lane) {
            lanes_.emplace_back();
            lanes_.back().values.assign(curves().size(), std::vector<float>(n_rows_, kNoValue));
        }
        LaneCurves& of_lane = lanes_[lane];
        if (of_lane.stored.empty()) {  // a lane's first row: take its past from the table
            const int n_kv = history.layout(static_cast<int>(lane)).n_kv_heads();
            of_lane.stored.resize(to_index(n_kv));
            for (int g = 0; g < n_kv; ++g)
                for (int p = 0; p <= row; ++p)
                    if (history.stored(static_cast<int>(lane), g, p, row))
                        of_lane.stored[to_index(g)].insert(p);
        } else if (row <= history.lanes()[lane].last_row) {
            for (KeptSet& set : of_lane.stored) set.insert(row);
            for (const Eviction& e : record.evictions) of_lane.stored[to_index(e.kv_head)].erase(e.position);
        }
    }
    for (LaneCurves& of_lane : lanes_)
        for (std::vector<float>& values : of_lane.values) values.push_back(kNoValue);
    for (const LaneRecord& record : step.lanes) {
        const std::size_t lane = to_index(*history.lane_from_id(record.info->id));
        LaneCurves& of_lane = lanes_[lane];
        if (row > history.lanes()[lane].last_row) continue;
        for (std::size_t kind = 0; kind < curves().size(); ++kind)
            if (const auto of_row = curves()[kind]->of_row) of_lane.values[kind].back() = of_row(record);
        const KvLayout& layout = history.layout(static_cast<int>(lane));
        if (of_lane.peak_megabytes == 0)
            of_lane.peak_megabytes = prompt_peak(layout, *record.info, history.n_prompt());
        of_lane.peak_megabytes = std::max(of_lane.peak_megabytes, row_peak(record, row, history.n_prompt()));
        of_lane.values[to_index(curve_index("kv_peak_megabytes"))].back() = of_lane.peak_megabytes;
        of_lane.values[to_index(curve_index("recent_share"))].back() =
            mean_recent_share(history.layout(static_cast<int>(lane)), record, of_lane.stored, row);
        if (record.agrees) {
            ++of_lane.n_compared;
            of_lane.n_agreed += *record.agrees ? 1 : 0;
            of_lane.values[to_index(curve_index("agreement"))].back() =
                static_cast<float>(of_lane.n_agreed) / static_cast<float>(of_lane.n_compared);
        }
        // Only before the texts diverge, like the KL.
        if (record.kl && !lanes_.front().stored.empty())
            of_lane.values[to_index(curve_index("jaccard"))].back() =
                mean_jaccard(history, static_cast<int>(lane), lanes_.front().stored, of_lane.stored);
    }
}

std::span<const float> MeasureCurves::curve(int kind, int lane) const {
    if (to_index(lane) >= lanes_.size()) return {};
    return lanes_[to_index(lane)].values[to_index(kind)];
}

}  // namespace keyhole
