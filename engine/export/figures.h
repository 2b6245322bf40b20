/// The pictures of an export: masks, heat maps and atlas as PNG, score curves as SVG. One thread.
#pragma once

#include "engine/export/rows.h"

#include "engine/figure/frame.h"

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace keyhole {

using ExportProgress = std::function<void(double)>;

/// mask_L{owner layer}_G{index}.png for the KV heads of the range.
void write_masks(const LaneRows& rows, const std::filesystem::path& folder, const ExportProgress& progress);
/// row_000042.png for every row: which positions each KV head of the range stores after it. All of one size, so that they make a film.
void write_mask_frames(const LaneRows& rows, const std::filesystem::path& folder,
                       const ExportProgress& progress);
/// One of them. last_row: the width is that of its positions.
Image mask_frame(const RunHistory& history, int lane, std::span<const int> kv_heads, int row, int last_row,
                 const FigureTexts& texts);
/// heatmap_L*_H*.png for layers and heads of the range, and atlas.png; all on one colour scale.
void write_heatmaps(const LaneRows& rows, const std::filesystem::path& folder,
                    const ExportProgress& progress);
/// scores_L*_G*.svg: a handful of telling tokens (the sink, the highest at the end, the last evicted) and the eviction threshold.
/// thresholds [n_rows, n KV heads of the model], NaN where nothing competed; empty: taken from the records.
void write_score_curves(const LaneRows& rows, const std::vector<float>& thresholds,
                        const std::filesystem::path& folder, const ExportProgress& progress);

}  // namespace keyhole
