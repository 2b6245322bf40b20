/// Where an export's pictures and tables get their rows: the arrays streamed while the run went on (exact), else what the records
/// still hold (half precision, perhaps thinned). One thread.
#pragma once

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

/// A finished [rows, heads..., positions] file, mapped.
class StreamedArray {
  public:
    /// Throws Error(bad_file) when the file is not the array it was written as.
    StreamedArray(const std::filesystem::path& path, NpyType type, NpyShape shape);
    /// Line `index` of the last dimension, widened.
    void line(std::int64_t index, std::span<float> out) const;

  private:
    MappedFile file_;
    NpyType type_;
    NpyShape shape_;
};

/// Streamed arrays of one lane, those that exist.
struct LaneArrays {
    std::optional<StreamedArray> attention, logits, noise, scores, shadow;
};

/// One lane of a finished run, and the part of it that is exported.
class LaneRows {
  public:
    LaneRows(const RunHistory& history, int lane, const ExportRange& range, LaneArrays arrays);

    const RunHistory& history() const { return history_; }
    const RunHistory::Lane& lane() const { return history_.lanes()[static_cast<std::size_t>(lane_)]; }
    int index() const { return lane_; }
    const KvLayout& layout() const { return history_.layout(lane_); }
    const ExportRange& range() const { return range_; }
    const LaneArrays& arrays() const { return arrays_; }

    /// Row by position, out [n_positions], 0 or NaN where not attended. False where nothing is known of the row.
    bool attention(int row, int layer, int head, std::span<float> out) const;
    bool scores(int row, int kv_head, std::span<float> out) const;
    bool logits(int row, int layer, int head, std::span<float> out) const;
    bool noise(int row, int layer, int head, std::span<float> out) const;
    bool shadow(int row, int layer, int head, std::span<float> out) const;
    /// The lane processed the row.
    bool has(int row) const;

    /// All rows of a query head or a mask; rows without data are NaN and evicted/future as the table says; kNotFinite for values that are none.
    Plane attention_plane(int layer, int head) const;
    std::vector<CellState> states(int kv_head) const;
    /// Where pictures come from, for captions: "exact values" or which rows the record still holds.
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
