/// The pictures of an export: masks, heat maps and atlas, by default as PNG; score curves as SVG. Called
/// on one thread; knows rows of a finished run, not how they were made.
#pragma once

#include "engine/export/rows.h"

#include "engine/figure/heatmap.h"

#include <filesystem>
#include <functional>
#include <span>
#include <vector>

namespace keyhole {

using ExportProgress = std::function<void(double)>;

/// Returns "L3_G1" for file names.
std::string kv_head_name(const KvHead& head);
/// Returns text such as "keyhole-base · lane 1: h2o:budget=64".
std::string figure_subtitle(const LaneRows& rows);
/// Returns the mask of a KV head over the rows of the range.
MaskFigure mask_figure(const LaneRows& rows, int kv_head);
/// Returns the heat map of a head over the rows of the range.
HeatmapFigure attention_figure(const LaneRows& rows, int layer, int head, const ColorScale& scale);
/// Returns the same for a KV head's scores.
HeatmapFigure score_figure(const LaneRows& rows, int kv_head, const ColorScale& scale);
/// Return one colour scale for all heads of the range.
ColorScale scale_of_attention(const LaneRows& rows);
ColorScale scale_of_scores(const LaneRows& rows);
/// Calls draw(i) for every picture, on all cores. progress is reported in the order of completion.
void draw_all(std::size_t n, const ExportProgress& progress, const std::function<void(std::size_t)>& draw);

/// Writes mask_L{owner layer}_G{index}.png for the KV heads of the range.
void write_masks(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                 const ExportProgress& progress);
/// Writes heatmap_L*_H*.png for layers and heads of the range, and atlas.png, all on one colour scale.
void write_heatmaps(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                    const ExportProgress& progress);
/// Writes scores_L*_G*.svg: a few representative tokens (the sink, the highest at the end, the last evicted)
/// and the eviction threshold. thresholds: [n_rows, n KV heads of the model], NaN where nothing competed;
/// empty: taken from the records.
void write_score_curves(const LaneRows& rows, const std::vector<float>& thresholds, const PictureChoice& how,
                        const std::filesystem::path& folder, const ExportProgress& progress);

}  // namespace keyhole
