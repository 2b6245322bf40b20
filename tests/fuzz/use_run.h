/// Uses an accepted run as the window and the exports do. Everything they rely on must hold for any run that
/// a reader accepts.
#pragma once

#include "engine/analysis/doctor.h"
#include "engine/analysis/measure_curves.h"
#include "engine/analysis/run_metrics.h"
#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_lifetime.h"
#include "engine/analysis/token_state.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/policy/lane_spec.h"
#include "engine/trace/run_history.h"

#include "tests/fuzz/fuzz.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// At most `most` values of [first, last], both ends included.
inline std::vector<int> some_of(int first, int last, int most) {
    std::vector<int> out;
    const int step = std::max(1, (last - first + most - 1) / most);
    for (int i = first; i < last; i += step) out.push_back(i);
    if (last >= first) out.push_back(last);
    return out;
}

/// Exports and answers parse the lanes of an accepted run, where no message can name the file.
inline void must_be_spec(const std::string& spec) {
    try {
        (void)parse_lane_spec(spec);
    } catch (const Error&) {
        std::abort();
    }
}

inline void use_run(const StepList& steps) {
    RunHistory history;
    history.update(steps);
    constexpr int kMostRead = 4096;
    if (history.n_positions() > kMostRead) return;
    const RunInfo& run = history.run();
    for (const std::string& lane : run.start.lanes) must_be_spec(lane);
    std::shared_ptr<const LaneInfo> known;
    std::size_t n_bytes = 0;  // read, so that the access happens
    const auto look = [&](const std::string& text) { n_bytes += text.size(); };
    for (const int token : run.prompt_tokens) look(run.token_display[keyhole::to_index(token)]);
    for (const auto& step : steps)
        for (const LaneRecord& record : step->lanes) {
            if (record.info != known) must_be_spec(record.info->effective);
            known = record.info;
            look(run.token_bytes[keyhole::to_index(record.predicted)]);
            for (const TopToken& top : record.top) look(run.token_display[keyhole::to_index(top.id)]);
        }
    const int n_lanes = static_cast<int>(history.lanes().size());
    std::vector<float> row_values(keyhole::to_index(history.n_positions()));
    for (const int lane : some_of(0, n_lanes - 1, 4)) {
        const KvLayout& layout = history.layout(lane);
        for (const int row : some_of(0, history.last_row(), 6)) {
            const std::span<float> values(row_values.data(), keyhole::to_index(row) + 1);
            for (const int layer : some_of(0, layout.n_layers() - 1, 2))
                for (const int head : some_of(0, layout.n_heads() - 1, 2)) {
                    history.attention_row(lane, row, layer, head, row_values);
                    for (const HeatMode mode : {HeatMode::attention, HeatMode::mask, HeatMode::score})
                        picture_values(history, lane, row, layer, head, mode, values);
                    competition(history, lane, layer, head, row / 2, row);
                    attention_sum(history, lane, row, layer, head, std::vector{0, row / 2, row});
                }
            for (const int g : some_of(0, layout.n_kv_heads() - 1, 3)) {
                history.score_row(lane, row, g, row_values);
                history.attended_positions(lane, g, row);
                threshold_at(history, lane, row, g);
                for (const int p : some_of(0, row, 3)) {
                    look(presence_text(history, lane, g, p, row));
                    look(eviction_cause(history, lane, g, p));
                    history.pinned(lane, g, p, row);
                }
            }
            for (const Finding& finding : examine(history, lane, row)) look(finding.detail);
            look(token_text(history, lane, row));
            look(recording_note(history, lane, 1, 0));
        }
        if (const auto span = find_span(history, lane, "a"))
            look(span_verdict(span_lifetime(history, lane, *span)));
        span_lifetime(history, lane, {0, history.last_row()});
    }
    MeasureCurves curves;
    curves.update(history);
    for (const LaneMetrics& metrics : run_metrics(history)) n_bytes += metrics.jaccard.size();
    if (n_bytes == SIZE_MAX) std::abort();
}

}  // namespace keyhole
