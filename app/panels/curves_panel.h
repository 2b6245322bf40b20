/// Plots the scores of the picked tokens over the steps, with the eviction threshold and tau.
/// Window thread, within a frame; knows nothing of the engine's thread.
#pragma once

#include "app/panels/panel.h"

#include <cstdint>
#include <tuple>
#include <vector>

namespace keyhole {

/// Scores of positions in a KV head, one value a record; NaN: none. update() reads only the new rows.
struct ScoreCurves {
    std::vector<float> threshold, tau;
    std::vector<std::vector<float>> scores;  ///< [index into the requested positions][record]
    void update(const RunHistory& history, int of_lane, int of_head, const std::vector<int>& of);

  private:
    std::tuple<std::uint64_t, int, int, std::vector<int>> key_;
    std::size_t n_rows_ = 0;
};

struct CurvesPanel {
    ScoreCurves scores;
};

void draw(CurvesPanel& panel, const PanelContext& context);

}  // namespace keyhole
