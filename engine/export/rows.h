/// The source of rows for an export's pictures and tables: the arrays streamed during the run (exact),
/// otherwise what the records still hold (half precision, perhaps thinned). Called on one thread; knows no
/// file formats but npy.
#pragma once

#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/npy.h"
#include "engine/export/options.h"
#include "engine/figure/heatmap.h"
#include "engine/trace/run_history.h"

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// A finished [rows, heads..., positions] file, memory-mapped.
class StreamedArray {
  public:
    /// Throws Error(bad_file) if the file does not have this type and shape.
    StreamedArray(const std::filesystem::path& path, NpyType type, NpyShape shape);
    /// Reads line `index` of the last dimension as float.
    void line(std::int64_t index, std::span<float> out) const;

  private:
    MappedFile file_;
    NpyType type_;
    NpyShape shape_;
};

/// The streamed arrays of one lane, as far as they exist.
struct LaneArrays {
    std::optional<StreamedArray> attention, logits, noise, scores, shadow;
};

/// One lane of a finished run, and the part of it that is exported.
class LaneRows {
  public:
    LaneRows(const RunHistory& history, int lane, const ExportRange& range, LaneArrays arrays);

    const RunHistory& history() const { return history_; }
    const RunHistory::Lane& lane() const { return history_.lanes()[to_index(lane_)]; }
    int index() const { return lane_; }
    const KvLayout& layout() const { return history_.layout(lane_); }
    const ExportRange& range() const { return range_; }
    const LaneArrays& arrays() const { return arrays_; }

    /// Write a row by position, 0 or NaN where not attended. out: [n_positions]. Return false if the row is
    /// unknown.
    bool attention(int row, int layer, int head, std::span<float> out) const;
    bool scores(int row, int kv_head, std::span<float> out) const;
    bool logits(int row, int layer, int head, std::span<float> out) const;
    bool noise(int row, int layer, int head, std::span<float> out) const;
    bool shadow(int row, int layer, int head, std::span<float> out) const;
    /// Returns whether the lane processed the row.
    bool has(int row) const;

    /// Returns all rows of a query head, or of a mask. Rows without data are NaN, or evicted and future as
    /// the table says; values that are not finite are kNotFinite.
    Plane attention_plane(int layer, int head) const;
    std::vector<CellState> states(int kv_head) const;
    /// Returns the source of pictures for captions: "exact values", or which rows the record still holds.
    std::string source() const;

  private:
    bool streamed(const std::optional<StreamedArray>& array, int row, int layer, int head,
                  std::span<float> out) const;

    const RunHistory& history_;
    int lane_;
    const ExportRange& range_;
    LaneArrays arrays_;
};

}  // namespace keyhole
