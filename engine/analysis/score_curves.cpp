#include "engine/analysis/score_curves.h"

#include "engine/analysis/run_rows.h"
#include "engine/analysis/token_class.h"
#include "engine/base/index.h"

#include <cmath>
#include <limits>

namespace keyhole {

void ScoreCurves::update(const RunHistory& history, int of_lane, int of_head, const std::vector<int>& of) {
    const auto key = std::tuple(history.generation(), of_lane, of_head, of);
    if (key != key_) {
        key_ = key;
        n_rows_ = 0;
        threshold.clear();
        tau.clear();
        scores.assign(of.size(), {});
    }
    constexpr float kNone = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> row;
    for (const StepList& steps = history.steps(); n_rows_ < steps.size(); ++n_rows_) {
        const int r = steps[n_rows_]->row;
        const LaneRecord* record = history.lane_record(r, of_lane);
        threshold.push_back(threshold_at(history, of_lane, r, of_head));
        tau.push_back(record == nullptr ? kNone : record->tau);
        row.resize(to_index(r) + 1);
        const bool known = !of.empty() && score_values(history, of_lane, r, of_head, row);
        for (std::size_t c = 0; c < of.size(); ++c)
            scores[c].push_back(known && of[c] <= r ? row[to_index(of[c])] : kNone);
    }
}

std::vector<int> telling_positions(const RunHistory& history, int lane, int kv_head, int row) {
    constexpr int kSinks = 4;
    std::vector<float> scores(to_index(row) + 1);
    if (!history.score_row(lane, row, kv_head, scores)) return {};
    const std::vector<TokenClass> classes =
        token_classes(history.run(), history.lanes()[to_index(lane)].tokens);
    const auto is_word = [&](int p) {
        if (to_index(p) >= classes.size()) return false;
        const TokenClass of = classes[to_index(p)];
        return of == TokenClass::word_start || of == TokenClass::number;
    };
    std::vector<int> positions;
    for (const bool words_alone : {true, false}) {
        int best = -1, gone = -1;
        for (int p = kSinks; p <= row; ++p) {
            if (std::isnan(scores[to_index(p)]) || (words_alone && !is_word(p))) continue;
            int& highest = history.stored(lane, kv_head, p, row) ? best : gone;
            if (highest < 0 || scores[to_index(p)] > scores[to_index(highest)]) highest = p;
        }
        for (const int p : {best, gone})
            if (p >= 0) positions.push_back(p);
        if (!positions.empty()) break;
    }
    return positions;
}

}  // namespace keyhole
