#include "app/window/heat_data.h"

#include "app/window/compare.h"
#include "app/window/run_rows.h"

#include <chrono>

namespace keyhole {

HeatData::HeatData(Kind kind)
    : kind_(kind), focus_(64, kFocusSide, kind == Kind::difference ? Reduction::magnitude : Reduction::max) {}

bool HeatData::update(const RunHistory& history, int lane, const ViewState& view, double budget_ms,
                      int versus) {
    using Clock = std::chrono::steady_clock;
    const auto begin = Clock::now();
    const auto out_of_time = [&] {
        return std::chrono::duration<double, std::milli>(Clock::now() - begin).count() > budget_ms;
    };
    const RunInfo& run = history.run();
    const int n_rows = history.n_positions();
    row_.resize(static_cast<std::size_t>(n_rows));

    const bool differs = kind_ == Kind::difference;
    const auto id_of = [&](int i) { return i < 0 ? -1 : history.lanes()[static_cast<std::size_t>(i)].id; };
    const Key focus_key{history.generation(),
                        id_of(lane),
                        id_of(versus),
                        view.layer,
                        view.head,
                        differs || view.mode == HeatMode::score ? view.mode : HeatMode::attention};
    if (focus_key != focus_key_) {
        focus_.clear();
        focus_rows_ = 0;
        focus_key_ = focus_key;
        ++generation_;
    }
    const int g = history.layout(lane).kv_head_from_head(view.layer, view.head);
    while (focus_rows_ < n_rows) {
        const int row = focus_rows_++;
        const std::span<float> values(row_.data(), static_cast<std::size_t>(row) + 1);
        if (differs ? difference_values(history, lane, versus, row, view.layer, view.head, view.mode, values)
            : focus_key.mode == HeatMode::score
                ? score_values(history, lane, row, g, values)
                : attention_values(history, lane, row, view.layer, view.head, values))
            focus_.add_row(row, values);
        if (out_of_time()) break;
    }

    if (kind_ != Kind::whole) return focus_rows_ >= n_rows;
    const Key atlas_key{history.generation(), focus_key.lane, -1, 0, 0, HeatMode::attention};
    const std::size_t n_all = static_cast<std::size_t>(run.config.n_layers * run.config.n_heads);
    if (atlas_key != atlas_key_ || atlas_.size() != n_all) {
        atlas_.assign(n_all, HeadMatrix(kThumbnailSide, kThumbnailSide));
        atlas_rows_ = 0;
        atlas_key_ = atlas_key;
        ++generation_;
    }
    while (atlas_rows_ < n_rows && !out_of_time()) {
        attention_values_of_all(
            history, lane, atlas_rows_++, [&](int layer, int head, std::span<const float> values) {
                atlas_[static_cast<std::size_t>(layer * run.config.n_heads + head)].add_row(
                    static_cast<int>(values.size()) - 1, values);
            });
    }
    // Rows that are not recorded leave the thumbnails shorter than the run; their blocks must still agree.
    return focus_rows_ >= n_rows && atlas_rows_ >= n_rows;
}

}  // namespace keyhole
