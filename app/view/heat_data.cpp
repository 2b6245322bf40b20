#include "app/view/heat_data.h"

#include "engine/analysis/compare.h"
#include "engine/analysis/no_value.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/index.h"

#include <algorithm>
#include <bit>
#include <chrono>

namespace keyhole {

HeatData::HeatData(Kind kind)
    : kind_(kind),
      focus_(64, kind == Kind::head ? kOtherSide : kFocusSide,
             kind == Kind::difference ? Reduction::magnitude : Reduction::max) {}

HeatData::Read HeatData::atlas_read() const {
    const int n = static_cast<int>(atlas_.size()), n_begun = static_cast<int>(atlas_heads_);
    return image_rows_ > 0 && n_begun < n ? Read{image_rows_, n_begun} : Read{atlas_rows_, n};
}

std::size_t HeatData::bytes() const {
    std::size_t sum = focus_.bytes();
    for (const HeadMatrix& thumbnail : atlas_) sum += thumbnail.bytes();
    return sum;
}

void HeatData::clear() {
    if (focus_key_ == Key{} && atlas_key_ == Key{}) return;
    focus_.clear();
    learned_sink_.clear();
    atlas_.clear();
    focus_key_ = atlas_key_ = {};
    focus_rows_ = atlas_rows_ = 0;
    atlas_heads_ = 0;
    ++generation_;
}

int HeatData::thumbnail_side(int n_heads) {
    int side = kThumbnailSide;
    while (side > 32 && n_heads > kAtlasCells / (side * side)) side /= 2;
    return side;
}

struct HeatData::Deadline {
    using Clock = std::chrono::steady_clock;
    double budget_ms = 0;
    Clock::time_point begin = Clock::now();
    bool is_over() const {
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() > budget_ms;
    }
};

HeatData::Key HeatData::focus_key(const RunHistory& history, int lane, const ViewState& view,
                                  int versus) const {
    const auto id_of = [&](int i) { return i < 0 ? -1 : history.lanes()[to_index(i)].id; };
    const bool has_mode = kind_ == Kind::difference || view.mode == HeatMode::score;
    return {history.generation(), id_of(lane), id_of(versus),
            view.layer,           view.head,   has_mode ? view.mode : HeatMode::attention};
}

void HeatData::begin_focus(const Key& key) {
    if (key == focus_key_) return;
    focus_.clear();
    learned_sink_.clear();
    focus_rows_ = 0;
    focus_key_ = key;
    ++generation_;
}

bool HeatData::read_focus(const RunHistory& history, int lane, const ViewState& view, int versus,
                          const Deadline& deadline) {
    const int n_rows = history.n_positions(), n_prompt_rows = history.n_prompt() - 1;
    row_.resize(to_index(n_rows));
    focus_.make_room(n_rows);
    const bool differs = kind_ == Kind::difference;
    const HeatMode mode = focus_key_.mode;
    const bool has_sink_column = history.run().config.has_sinks && !differs && mode == HeatMode::attention;
    const PromptRows* prompt = has_sink_column ? prompt_image_of(history, lane) : nullptr;
    const bool is_reduced = prompt != nullptr && prompt->reduction > 1;
    while (focus_rows_ < n_rows) {
        const int row = focus_rows_++;
        const std::span<float> values(row_.data(), to_index(row) + 1);
        float sink_share = kNoValue;
        if (differs ? difference_values(history, lane, versus, row, view.layer, view.head, view.mode, values)
                    : picture_values(history, lane, row, view.layer, view.head, mode, values)) {
            focus_.fold_row(row, values);
            if (has_sink_column && !(row < n_prompt_rows && is_reduced)) sink_share = left_to_sink(values);
        } else if (differs || !is_recorded(history, lane, row)) {
            std::fill(values.begin(), values.end(), kNotRecorded);
            focus_.fold_row(row, values);
        }
        if (has_sink_column) learned_sink_.push_back(sink_share);
        if (deadline.is_over()) break;
    }
    focus_.finish_rows();
    return focus_rows_ >= n_rows;
}

void HeatData::begin_atlas(const Key& key, std::size_t n_heads) {
    if (key == atlas_key_ && atlas_.size() == n_heads) return;
    const int side = thumbnail_side(static_cast<int>(n_heads));
    atlas_.assign(n_heads, HeadMatrix(side, side));
    atlas_rows_ = 0;
    atlas_heads_ = 0;
    atlas_key_ = key;
    ++generation_;
}

/// Reads the prompt head by head from its image, if there is one.
bool HeatData::read_atlas_prompt(const RunHistory& history, int lane, const Deadline& deadline) {
    const int n_image_rows = std::min(history.n_prompt() - 1, history.n_positions());
    image_rows_ = 0;
    const PromptRows* image = prompt_image_of(history, lane);
    if (image != nullptr && n_image_rows > 0) {
        image_rows_ = n_image_rows;
        const std::vector<int>& windows = history.run().config.window;
        const std::size_t size = to_index(image->size) * to_index(image->size);
        while (atlas_heads_ < atlas_.size() && !deadline.is_over()) {
            HeadMatrix& matrix = atlas_[atlas_heads_];
            matrix.make_room(n_image_rows);  // the same for all heads, even if rows arrive meanwhile
            const std::size_t layer = atlas_heads_ / to_index(history.run().config.n_heads);
            matrix.fold_image({image->attention.data() + atlas_heads_ * size, size}, image->size,
                              image->reduction, n_image_rows, windows.empty() ? 0 : windows[layer],
                              kHiddenValue);
            matrix.finish_rows();
            ++atlas_heads_;
        }
        if (atlas_heads_ < atlas_.size()) return false;
    }
    atlas_rows_ = std::max(atlas_rows_, n_image_rows);
    return true;
}

void HeatData::read_atlas_row(const RunHistory& history, int lane, int row) {
    for (HeadMatrix& matrix : atlas_) matrix.make_room(row + 1);
    const int log2_block = std::countr_zero(static_cast<unsigned>(atlas_.front().factor()));
    if (!is_recorded(history, lane, row)) {
        const std::vector<float> none(to_index(row >> log2_block) + 1, kNotRecorded);
        for (HeadMatrix& matrix : atlas_) matrix.fold_blocks(row, none, kNoValue);
        return;
    }
    const int n_heads = history.run().config.n_heads;
    attention_blocks_of_all(history, lane, row, log2_block, [&](int layer, int head, const BlockRow& blocks) {
        atlas_[to_index(layer * n_heads + head)].fold_blocks(row, blocks.maxima, blocks.past_sinks);
    });
}

bool HeatData::read_atlas(const RunHistory& history, int lane, const Deadline& deadline) {
    if (!read_atlas_prompt(history, lane, deadline)) return false;
    // Then row by row for all heads at once.
    const int n_rows = history.n_positions();
    while (atlas_rows_ < n_rows && !deadline.is_over()) read_atlas_row(history, lane, atlas_rows_++);
    for (HeadMatrix& matrix : atlas_) matrix.finish_rows();
    // Steps that are not recorded leave the thumbnails shorter than the run; their blocks must still agree.
    return atlas_rows_ >= n_rows;
}

bool HeatData::update(const RunHistory& history, int lane, const ViewState& view, double budget_ms,
                      int versus) {
    const Deadline deadline{budget_ms};
    const Key key = focus_key(history, lane, view, versus);
    begin_focus(key);
    const bool has_focus = read_focus(history, lane, view, versus, deadline);
    if (kind_ != Kind::whole) return has_focus;
    const ModelConfig& config = history.run().config;
    begin_atlas({history.generation(), key.lane, -1, 0, 0, HeatMode::attention},
                to_index(config.n_layers * config.n_heads));
    return read_atlas(history, lane, deadline) && has_focus;
}

}  // namespace keyhole
