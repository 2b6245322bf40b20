#include "app/actions/action_areas.h"
#include "engine/analysis/compare.h"
#include "engine/base/error.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

using namespace key;

template <Arrangement kArrangement>
void arrange(AppState& app, std::string_view) {
    app.view.arrangement = kArrangement;
}

/// Shows lanes side by side. If no difference was shown yet, the user has not chosen a pair: with three or
/// more lanes it then compares two policies rather than a full lane 0 and one policy.
void arrange_compare(AppState& app, std::string_view) {
    app.view.arrangement = Arrangement::compare;
    if (app.maps.difference.generation() == 0 && app.view.other == 0 && app.run.lane_editor.n_lanes() > 2 &&
        app.run.lane_editor.lanes().front().policy.preset == Preset::full) {
        app.view.lane = std::max(app.view.lane, 1);
        app.view.other = app.view.lane == 1 ? 2 : 1;
    }
}

void arrange_by_name(AppState& app, std::string_view name) {
    for (const Arrangement a : kArrangements)
        if (name == arrangement_name(a)) {
            if (a == Arrangement::compare) return arrange_compare(app, {});
            app.view.arrangement = a;
            return;
        }
    fail(ErrorCode::wrong_use, "'{}' is no arrangement; choose story, explore, compare or teach", name);
}

void need_two_lanes(const AppState& app) {
    if (app.run.lane_editor.n_lanes() < 2)
        fail(ErrorCode::wrong_use, "a comparison needs a second lane; add one");
}

/// Sets the lane that the focused one is compared with.
void compare_with(AppState& app, std::string_view arguments) {
    need_two_lanes(app);
    const int lane = whole_numbers(arguments, 1, 1)[0];
    if (lane < 0 || lane >= app.run.lane_editor.n_lanes() || lane == app.view.lane)
        fail(ErrorCode::wrong_use, "choose a lane from 0 to {}, except {}, which is in focus",
             app.run.lane_editor.n_lanes() - 1, app.view.lane);
    app.view.other = lane;
}

void compare_next(AppState& app, std::string_view) {
    need_two_lanes(app);
    int lane = app.other_lane();
    do lane = (lane + 1) % app.run.lane_editor.n_lanes();
    while (lane == app.view.lane);
    app.view.other = lane;
}

/// Goes to the step after which the two lanes first chose different tokens.
void go_to_first_difference(AppState& app, std::string_view) {
    (void)config_of(app);
    need_two_lanes(app);
    const std::optional<int> at =
        first_divergence(app.run.history, app.need_shown_lane(), app.need_drawn_lane(app.other_lane()));
    if (!at) {
        app.notify(fmt::format("lanes {} and {} have chosen the same tokens so far", app.view.lane,
                               app.other_lane()));
        return;
    }
    move_time(app, *at - 1 - app.view.row);
    app.notify(
        fmt::format("lanes {} and {} first differ at position {}", app.view.lane, app.other_lane(), *at));
}

template <Arrangement kArrangement>
bool is_arranged(const AppState& app) {
    return app.view.arrangement == kArrangement;
}

constexpr std::array kCompareActions = {
    UserAction{"view.story",
               "Story",
               "Shows the question, every lane's answer, and what each lane attends to while it answers.",
               {kF1 + 5, 0},
               arrange<Arrangement::story>,
               {.menu = {MenuGroup::view_arrangement, 0}, .is_on = is_arranged<Arrangement::story>}},
    UserAction{"view.explore",
               "Explore: all views",
               "Shows one lane at a time: all rows, scores, atlas, curves, time.",
               {kF1 + 1, 0},
               arrange<Arrangement::explore>,
               {.menu = {MenuGroup::view_arrangement, 1}, .is_on = is_arranged<Arrangement::explore>}},
    UserAction{"view.compare",
               "Compare",
               "Shows lanes side by side, and their difference.",
               {kF1 + 2, 0},
               arrange_compare,
               {.menu = {MenuGroup::view_arrangement, 2}, .is_on = is_arranged<Arrangement::compare>}},
    UserAction{"view.teach",
               "Teach",
               "Shows few large panes, for a projector.",
               {kF1 + 3, 0},
               arrange<Arrangement::teach>,
               {.menu = {MenuGroup::view_arrangement, 3}, .is_on = is_arranged<Arrangement::teach>}},
    UserAction{"view.arrange",
               "Arrange the panes",
               "story|explore|compare|teach",
               {},
               arrange_by_name,
               {.elsewhere = "Story, Explore, Compare and Teach do the same"}},
    UserAction{"diff",
               "Difference to the other lane",
               "[on|off]: shows the focused lane minus the other one, in the current mode.",
               {'D', 0},
               [](AppState& app, std::string_view a) {
                   need_two_lanes(app);
                   app.view.difference = on_or_off(a, app.view.difference);
                   if (app.view.difference && app.tells_story())
                       app.notify("the story draws no difference; All views and Compare do");
               },
               {.menu = {MenuGroup::view_compare, 1},
                .lacks = need::two_lanes,
                .is_on = [](const AppState& app) { return app.view.difference; }}},
    UserAction{"blink",
               "Blink the other lane",
               "[on|off]: shows the other lane in the same pane while the key is held.",
               {'B', 0},
               [](AppState& app, std::string_view a) {
                   need_two_lanes(app);
                   app.view.blink = on_or_off(a, app.view.blink);
               },
               {.menu = {MenuGroup::view_compare, 2},
                .lacks = need::two_lanes,
                .is_on = [](const AppState& app) { return app.view.blink; }}},
    UserAction{"compare.with",
               "Compare with a lane",
               "INDEX: of the lane to compare with the focused one.",
               {},
               compare_with,
               {.arguments_are_plain = true}},
    UserAction{"compare.next",
               "Compare with the next lane",
               "Compares the focused lane with the next lane instead.",
               {'D', kShift},
               compare_next,
               {.menu = {MenuGroup::view_compare, 3}, .lacks = need::two_lanes}},
    UserAction{"compare.all",
               "All lanes side by side",
               "[on|off]: shows up to four lanes.",
               {},
               [](AppState& app, std::string_view a) {
                   app.view.compares_all = on_or_off(a, app.view.compares_all);
               },
               {.menu = {MenuGroup::view_compare, 4},
                .lacks = need::two_lanes,
                .is_on = [](const AppState& app) { return app.view.compares_all; }}},
    UserAction{
        "compare.watched",
        "Watched words of both lanes",
        "[on|off]: shows their retained share by head and over time, in place of overlap and agreement.",
        {},
        [](AppState& app, std::string_view a) {
            const bool on = on_or_off(a, app.compares_watched());
            if (on && !app.view.watched)
                fail(ErrorCode::wrong_use, "no words are watched; pick some and press W");
            app.view.measure_curve = on ? ViewState::kWatchedSpan : -1;
        },
        {.elsewhere = "a button of the comparison",
         .is_on = [](const AppState& app) { return app.compares_watched(); }}},
    UserAction{"compare.first-difference",
               "Go where the texts first differ",
               "Shows the step after which the two lanes first chose different tokens.",
               {'J', 0},
               go_to_first_difference,
               {.menu = {MenuGroup::view_compare, 5}, .lacks = need::two_lanes}},
};

}  // namespace

std::span<const UserAction> compare_actions() {
    return kCompareActions;
}

}  // namespace keyhole
