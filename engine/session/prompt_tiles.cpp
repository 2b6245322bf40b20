#include "engine/session/prompt_tiles.h"

#include "engine/base/half.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace keyhole {

template <class Tile>
void LaneTiles::send(Tile tile, void (PrefillSink::*what)(const Tile&)) {
    if (tile.lane < 0 && !all_lanes_) {
        for (int lane : lanes_) {
            tile.lane = lane;
            (to_.*what)(tile);
        }
        return;
    }
    if (tile.lane >= 0) tile.lane = lanes_[to_index(tile.lane)];
    (to_.*what)(tile);
}

template void LaneTiles::send(PrefillTile, void (PrefillSink::*)(const PrefillTile&));
template void LaneTiles::send(InputTile, void (PrefillSink::*)(const InputTile&));

namespace {

std::size_t reduced_size(std::size_t n, int reduction) {
    return (n + to_index(reduction) - 1) / to_index(reduction);
}

}  // namespace

int prompt_reduction(std::size_t n_heads, std::size_t n_prompt) {
    constexpr std::size_t kBudgetBytes = std::size_t{64} << 20;
    int reduction = 1;
    for (std::size_t size = n_prompt; n_heads * size * size * sizeof(std::uint16_t) > kBudgetBytes;
         size = reduced_size(n_prompt, reduction))
        reduction *= 2;
    return reduction;
}

PromptRecorder::PromptRecorder(const RunInfo& run, PrefillSink* next)
    : next_(next), n_heads_(run.config.n_heads) {
    const std::size_t n = to_index(run.n_prompt());
    const std::size_t heads = to_index(run.config.n_layers * run.config.n_heads);
    rows_ = std::make_shared<PromptRows>();
    rows_->reduction = prompt_reduction(heads, n);
    const std::size_t size = reduced_size(n, rows_->reduction);
    rows_->size = static_cast<int>(size);
    rows_->attention.assign(heads * size * size, 0);
}

RowRequest PromptRecorder::requested() const {
    RowRequest requested = next_ != nullptr ? next_->requested() : RowRequest{};
    requested.attention = true;
    return requested;
}

void PromptRecorder::attention(const PrefillTile& tile) {
    const std::size_t size = to_index(rows_->size);
    std::uint16_t* image =
        rows_->attention.data() + to_index(tile.layer * n_heads_ + tile.head) * size * size;
    for (int i = 0; i < tile.n_rows; ++i) {
        std::uint16_t* line = image + to_index((tile.first_row + i) / rows_->reduction) * size;
        const float* values = tile.values + static_cast<std::int64_t>(i) * tile.n_columns;
        const int n = tile.first_row + i + 1;
        for (int p = 0; p < n; p += rows_->reduction, ++line) {
            float most = values[p];
            for (int q = p + 1; q < std::min(p + rows_->reduction, n); ++q)
                if (!(values[q] <= most) && !std::isnan(most)) most = values[q];  // keeps a NaN
            // fp16 values of one sign are ordered like their bits
            *line = std::max(*line, fp16_from_float(most));
        }
    }
    if (next_ != nullptr && next_->requested().attention) next_->attention(tile);
}

}  // namespace keyhole
