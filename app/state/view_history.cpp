#include "app/state/view_history.h"

#include <utility>

namespace keyhole {

namespace {

/// A fitted zoom follows the run's growth by itself, which is no undoable change.
bool same_zoom(const HeatView& a, const HeatView& b) {
    return a.fitted && b.fitted ? true : a == b;
}

/// Names the first thing that differs between two views, the most visible one first; empty: nothing that
/// undo restores.
std::string_view difference_of(const ViewState& a, const ViewState& b) {
    if (a.arrangement != b.arrangement) return "arrangement of the panes";
    if (a.lane != b.lane) return "focused lane";
    if (a.layer != b.layer || a.head != b.head) return "layer and head";
    if (a.mode != b.mode) return "what the heat map shows";
    if (a.difference != b.difference || a.other != b.other || a.compares_all != b.compares_all)
        return "comparison of lanes";
    if (a.watched != b.watched) return "watched words";
    if (a.pick != b.pick || a.curve_positions != b.curve_positions) return "picked tokens";
    if (!same_zoom(a.heat, b.heat) || a.fitted_rows != b.fitted_rows) return "zoom of the heat map";
    if (a.attention_range != b.attention_range || a.score_range != b.score_range) return "range of colours";
    if (a.colors != b.colors || a.mask_overlay != b.mask_overlay || a.marks_clips != b.marks_clips ||
        a.marks_nan != b.marks_nan)
        return "colours of the heat map";
    if (a.measure_curve != b.measure_curve) return "measure of the curves";
    if (a.atlas_measure != b.atlas_measure) return "colours of the atlas";
    if (a.text_color != b.text_color) return "colours of the text";
    return {};
}

/// Keeps the fields that undo does not touch.
void keep_time(const ViewState& from, ViewState& to) {
    to.row = from.row;
    to.follows_newest = from.follows_newest;
    to.interface_scale = from.interface_scale;
    to.background = from.background;
    to.left_width = from.left_width;
    to.right_width = from.right_width;
    to.atlas_height = from.atlas_height;
    to.text_height = from.text_height;
    to.curves_height = from.curves_height;
    to.side = from.side;
    to.strip_key = from.strip_key;
    to.bounds = from.bounds;
    to.blink = false;
}

}  // namespace

bool ViewHistory::remember(const ViewState& view) {
    if (!std::exchange(any_, true)) {
        last_ = view;
        return false;
    }
    if (difference_of(last_, view).empty()) return false;
    done_.push_back(std::exchange(last_, view));
    if (done_.size() > kMost) done_.erase(done_.begin());
    undone_.clear();
    return true;
}

void ViewHistory::adopt(const ViewState& before, const ViewState& after) {
    const auto move = [&](ViewState& view) {
        const auto take = [&](auto ViewState::*field) {
            if (view.*field == before.*field) view.*field = after.*field;
        };
        const bool same_head = view.layer == before.layer && view.head == before.head;
        if (same_head) view.layer = after.layer, view.head = after.head;
        if (same_zoom(view.heat, before.heat)) view.heat = after.heat;
        take(&ViewState::lane);
        take(&ViewState::other);
        take(&ViewState::pick);
        take(&ViewState::watched);
        take(&ViewState::measure_curve);
        take(&ViewState::curve_positions);
        take(&ViewState::fitted_rows);
    };
    if (difference_of(before, after).empty()) return;
    for (ViewState& view : done_) move(view);
    for (ViewState& view : undone_) move(view);
    if (any_) move(last_);
}

std::string_view ViewHistory::change_to(const std::vector<ViewState>& views, std::size_t n) const {
    if (n >= views.size()) return {};
    ViewState view = views[views.size() - 1 - n];
    keep_time(last_, view);
    if (fit_) fit_(view);
    return difference_of(view, last_);
}

bool ViewHistory::restore(ViewState& view, std::vector<ViewState>& from, std::vector<ViewState>& to) {
    if (from.empty()) return false;
    to.push_back(view);
    ViewState other = std::move(from.back());
    from.pop_back();
    keep_time(view, other);
    if (fit_) fit_(other);
    view = last_ = std::move(other);
    return true;
}

}  // namespace keyhole
