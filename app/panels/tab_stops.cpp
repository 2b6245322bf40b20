#include "app/panels/tab_stops.h"

#include <algorithm>
#include <utility>

namespace keyhole {

void TabStops::begin_frame() {
    stops_ = std::exchange(next_, {});
    if (ring_.empty() || std::ranges::find(stops_, root_, &TabStop::root) != stops_.end()) return;
    ring_.clear();  // its dialog has closed
    const auto before = std::ranges::find(stops_, std::exchange(before_, {}), &TabStop::name);
    if (before != stops_.end()) put(static_cast<std::size_t>(before - stops_.begin()));
}

void TabStops::put(std::size_t place) {
    const TabStop& stop = stops_[place];
    if (stop.root != root_) before_ = ring_;
    ring_ = stop.name;
    root_ = stop.root;
    place_ = place;
}

void TabStops::start_at(unsigned id) {
    const auto found = std::ranges::find(stops_, id, &TabStop::id);
    if (found != stops_.end()) put(static_cast<std::size_t>(found - stops_.begin()));
}

void TabStops::add(TabStop stop) {
    // A widget that was marked with two names is one stop.
    if (next_.empty() || next_.back().id != stop.id) next_.push_back(std::move(stop));
}

std::optional<TabStop> TabStops::move(bool backward, bool by_pane, std::string_view root) {
    const auto counts = [&](const TabStop& stop) { return root.empty() || stop.root == root; };
    const std::size_t n = stops_.size();
    if (n == 0) return std::nullopt;
    const auto now = std::ranges::find(stops_, ring_, &TabStop::name);
    const bool has_ring = !ring_.empty() && now != stops_.end();
    std::size_t at = has_ring        ? static_cast<std::size_t>(now - stops_.begin())
                     : ring_.empty() ? (backward ? 0 : n - 1)
                                     : std::min(place_, n - 1);
    // The widget with the ring is gone, and the next one stands in its place.
    if (!has_ring && !ring_.empty() && !backward) at = (at + n - 1) % n;
    const unsigned from = has_ring ? now->window : 0;
    for (std::size_t i = 0; i < n; ++i) {
        at = (at + (backward ? n - 1 : 1)) % n;
        if (!counts(stops_[at]) || (by_pane && stops_[at].window == from)) continue;
        // Backward by panes: to the first stop of the pane.
        while (by_pane && backward && at > 0 && stops_[at - 1].window == stops_[at].window) --at;
        put(at);
        is_new_ = true;
        return stops_[at];
    }
    return std::nullopt;
}

std::optional<TabStop> TabStops::ringed() const {
    const auto found = std::ranges::find(stops_, ring_, &TabStop::name);
    return ring_.empty() || found == stops_.end() ? std::nullopt : std::optional(*found);
}

bool TabStops::takes_sight(std::string_view name) {
    return name == ring_ && std::exchange(is_new_, false);
}

}  // namespace keyhole
