/// Animations: the contents of the caches row by row, as PNG files or an animated GIF, and GIFs that show how
/// the picture of a head grows. Called on one thread; knows rows of a finished run, not how they were made.
#pragma once

#include "engine/export/figures.h"

#include <filesystem>
#include <span>

namespace keyhole {

/// Draws which positions each listed KV head stores after a row. last_row: the picture is wide enough for its
/// positions.
Image mask_frame(const RunHistory& history, int lane, std::span<const int> kv_heads, int row, int last_row,
                 const FigureTexts& texts, Background background = Background::light);
/// Writes row_000042.png for every row: mask_frame() of the KV heads of the range, all of one size.
void write_mask_frames(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                       const ExportProgress& progress);

/// Most rows in a GIF. A longer run shows every second, third ... row, always including the last, and its
/// caption says so.
inline constexpr int kMostGifFrames = 500;

/// Writes mask.gif, or the same as a video,: the same pictures as one animation.
void write_mask_gif(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                    const ExportProgress& progress);
/// Write heatmap_L*_H*.gif, mask_L*_G*.gif and scores_L*_G*.gif: an animation for each head of the range.
/// Later rows have the colour of the background.
void write_attention_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                          const ExportProgress& progress);
void write_head_mask_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                          const ExportProgress& progress);
void write_score_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                      const ExportProgress& progress);

}  // namespace keyhole
