#include "engine/export/rows.h"

#include "engine/analysis/token_state.h"
#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cstring>
#include <limits>

namespace keyhole {

namespace {

/// Returns the index of a value in an ascending list that contains it.
std::int64_t index_of(const std::vector<int>& list, int value) {
    const auto it = std::lower_bound(list.begin(), list.end(), value);
    KH_ASSERT(it != list.end() && *it == value, "{}", value);
    return it - list.begin();
}

}  // namespace

StreamedArray::StreamedArray(const std::filesystem::path& path, NpyType type, NpyShape shape)
    : file_(path), type_(type), shape_(std::move(shape)) {
    const std::size_t expected =
        npy_header("<f4", shape_).size() + to_index(npy_size(shape_)) * npy_type_bytes(type_);
    if (file_.bytes().size() != expected)
        fail(ErrorCode::bad_file,
             "{} has {} bytes instead of {}: something else wrote to it during the export", path.string(),
             file_.bytes().size(), expected);
}

void StreamedArray::line(std::int64_t index, std::span<float> out) const {
    const auto n = to_index(shape_.back());
    KH_ASSERT(out.size() >= n);
    const std::size_t element = npy_type_bytes(type_);
    const std::size_t header = file_.bytes().size() - to_index(npy_size(shape_)) * element;
    const std::byte* from = file_.bytes().data() + header + to_index(index) * n * element;
    if (type_ == NpyType::f32) {
        std::memcpy(out.data(), from, n * element);
        return;
    }
    for (std::size_t i = 0; i < n; ++i) {
        std::uint16_t bits = 0;
        std::memcpy(&bits, from + i * element, sizeof bits);
        out[i] = float_from_fp16(bits);
    }
}

LaneRows::LaneRows(const RunHistory& history, int lane, const ExportRange& range, LaneArrays arrays)
    : history_(history), lane_(lane), range_(range), arrays_(std::move(arrays)) {}

bool LaneRows::has(int row) const {
    // Prompt rows were processed by the lanes of the start. A lane that joined later processed them without a
    // record.
    const RunHistory::Lane& l = lane();
    return row <= l.last_row && (row >= l.first_row || l.first_row == history_.n_prompt() - 1);
}

bool LaneRows::streamed(const std::optional<StreamedArray>& array, int row, int layer, int head,
                        std::span<float> out) const {
    if (!array || !has(row)) return false;
    const auto line = ((row - range_.first_row) * static_cast<std::int64_t>(range_.layers.size()) +
                       index_of(range_.layers, layer)) *
                          static_cast<std::int64_t>(range_.heads.size()) +
                      index_of(range_.heads, head);
    array->line(line, out);
    return true;
}

bool LaneRows::attention(int row, int layer, int head, std::span<float> out) const {
    if (arrays_.attention) return streamed(arrays_.attention, row, layer, head, out);
    return has(row) && history_.attention_row(lane_, row, layer, head, out);
}

bool LaneRows::logits(int row, int layer, int head, std::span<float> out) const {
    return streamed(arrays_.logits, row, layer, head, out);
}

bool LaneRows::noise(int row, int layer, int head, std::span<float> out) const {
    return streamed(arrays_.noise, row, layer, head, out);
}

bool LaneRows::shadow(int row, int layer, int head, std::span<float> out) const {
    return streamed(arrays_.shadow, row, layer, head, out);
}

bool LaneRows::scores(int row, int kv_head, std::span<float> out) const {
    if (!has(row)) return false;
    if (!arrays_.scores) return history_.score_row(lane_, row, kv_head, out);
    arrays_.scores->line((row - range_.first_row) * static_cast<std::int64_t>(range_.kv_heads.size()) +
                             index_of(range_.kv_heads, kv_head),
                         out);
    return true;
}

Plane LaneRows::attention_plane(int layer, int head) const {
    const int n_positions = range_.n_positions();
    Plane plane(n_positions, range_.n_rows(), std::numeric_limits<float>::quiet_NaN());
    const int g = layout().kv_head_from_head(layer, head);
    std::vector<float> line(to_index(n_positions));
    for (int y = 0; y < plane.height; ++y)
        if (attention(range_.first_row + y, layer, head, line)) {
            mark_not_finite(std::span(line),
                            [&](int p) { return history_.attended(lane_, g, p, range_.first_row + y); });
            std::copy(line.begin(), line.end(), plane.values.begin() + std::int64_t{y} * n_positions);
        }
    return plane;
}

std::vector<CellState> LaneRows::states(int kv_head) const {
    const int n_positions = range_.n_positions();
    std::vector<CellState> states(to_index(n_positions) * to_index(range_.n_rows()), CellState::future);
    for (int y = 0; y < range_.n_rows(); ++y) {
        const int row = range_.first_row + y;
        if (!has(row)) continue;
        for (int p = 0; p <= row && p < n_positions; ++p)
            states[to_index(y) * to_index(n_positions) + to_index(p)] =
                mask_state(history_, lane_, kv_head, p, row);
    }
    return states;
}

std::string LaneRows::source() const {
    if (arrays_.attention) return "Exact values.";
    int n_kept = 0, n_rows = 0;
    for (int row = range_.first_row; row <= std::min(range_.last_row, lane().last_row); ++row) {
        const LaneRecord* record = has(row) ? history_.lane_record(row, lane_) : nullptr;
        ++n_rows;
        if (record && record->rows) ++n_kept;
    }
    if (n_kept == n_rows) return "Values in half precision, as recorded.";
    return fmt::format(
        "Values in half precision; the record holds {} of {} rows, the others were thinned out and have no "
        "value.",
        n_kept, n_rows);
}

}  // namespace keyhole
