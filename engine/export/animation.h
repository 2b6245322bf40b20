/// Pictures that follow one another: what the caches hold row by row, as PNG files or an animated GIF, and GIFs of how the picture of a
/// head grows. One thread.
#pragma once

#include "engine/export/figures.h"

#include <filesystem>
#include <span>

namespace keyhole {

/// Which positions each KV head of the list stores after a row. last_row: the width is that of its positions.
Image mask_frame(const RunHistory& history, int lane, std::span<const int> kv_heads, int row, int last_row,
                 const FigureTexts& texts);
/// row_000042.png for every row: mask_frame() of the KV heads of the range. All of one size.
void write_mask_frames(const LaneRows& rows, const std::filesystem::path& folder,
                       const ExportProgress& progress);

/// A GIF holds so many rows; of longer runs every second, third ... row, the last one always, and its caption says so.
inline constexpr int kMostGifFrames = 500;

/// mask.gif: the same pictures as one film.
void write_mask_gif(const LaneRows& rows, const std::filesystem::path& folder,
                    const ExportProgress& progress);
/// heatmap_L*_H*.gif, mask_L*_G*.gif, scores_L*_G*.gif: a film for each head of the range; rows to come are white.
void write_attention_gifs(const LaneRows& rows, const std::filesystem::path& folder,
                          const ExportProgress& progress);
void write_head_mask_gifs(const LaneRows& rows, const std::filesystem::path& folder,
                          const ExportProgress& progress);
void write_score_gifs(const LaneRows& rows, const std::filesystem::path& folder,
                      const ExportProgress& progress);

}  // namespace keyhole
