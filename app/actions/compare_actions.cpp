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

/// Side by side. Before any difference was on show nobody has chosen a pair: a full lane 0 steps back for two policies.
void arrange_compare(AppState& app, std::string_view) {
    app.view.arrangement = Arrangement::compare;
    if (app.difference.generation() == 0 && app.view.other == 0 && app.lane_editor.n_lanes() > 2 &&
        app.lane_editor.lanes().front().policy.preset == Preset::full) {
        app.view.lane = std::max(app.view.lane, 1);
        app.view.other = app.view.lane == 1 ? 2 : 1;
    }
}

void arrange_by_name(AppState& app, std::string_view name) {
    for (const Arrangement a : {Arrangement::explore, Arrangement::compare, Arrangement::teach})
        if (name == arrangement_name(a)) {
            if (a == Arrangement::compare) return arrange_compare(app, {});
            app.view.arrangement = a;
            return;
        }
    fail(ErrorCode::wrong_use, "'{}': explore, compare or teach", name);
}

void need_two_lanes(const AppState& app) {
    if (app.lane_editor.n_lanes() < 2)
        fail(ErrorCode::wrong_use, "a comparison needs a second lane; add one");
}

/// The lane that the focused one is compared with.
void compare_with(AppState& app, std::string_view arguments) {
    need_two_lanes(app);
    const int card = whole_numbers(arguments, 1, 1)[0];
    if (card < 0 || card >= app.lane_editor.n_lanes() || card == app.view.lane)
        fail(ErrorCode::wrong_use, "lanes are 0 to {}, and not {}, which is in focus",
             app.lane_editor.n_lanes() - 1, app.view.lane);
    app.view.other = card;
}

void compare_next(AppState& app, std::string_view) {
    need_two_lanes(app);
    int card = app.other_card();
    do card = (card + 1) % app.lane_editor.n_lanes();
    while (card == app.view.lane);
    app.view.other = card;
}

/// To the row after which the two lanes first chose another token.
void go_to_parting(AppState& app, std::string_view) {
    (void)config_of(app);
    need_two_lanes(app);
    const std::optional<int> at =
        first_divergence(app.history, app.shown_lane(), app.history_lane(app.other_card()).value_or(0));
    if (!at) {
        app.say(fmt::format("lanes {} and {} have chosen the same tokens so far", app.view.lane,
                            app.other_card()));
        return;
    }
    move_time(app, *at - 1 - app.view.row);
    app.say(fmt::format("lanes {} and {} part at position {}", app.view.lane, app.other_card(), *at));
}

constexpr std::array kTable = {
    UserAction{"view.explore",
               menu::kView,
               "Explore",
               "One lane at a time, atlas and curves.",
               {kF1 + 1, 0},
               arrange<Arrangement::explore>},
    UserAction{"view.compare",
               menu::kView,
               "Compare",
               "Lanes side by side, with what they differ by.",
               {kF1 + 2, 0},
               arrange_compare},
    UserAction{"view.teach",
               menu::kView,
               "Teach",
               "Large and few, for a projector.",
               {kF1 + 3, 0},
               arrange<Arrangement::teach>},
    UserAction{"view.arrange", "", "Arrange the panes", "explore|compare|teach", {}, arrange_by_name},
    UserAction{"diff",
               menu::kView,
               "Difference to the other lane",
               "[on|off]: the focused lane minus the other one, in the mode on show.",
               {'D', 0},
               [](AppState& app, std::string_view a) {
                   need_two_lanes(app);
                   app.view.difference = on_or_off(a, app.view.difference);
               }},
    UserAction{"blink",
               menu::kView,
               "Blink the other lane",
               "[on|off]: the other lane in the same pane, while the key is held.",
               {'B', 0},
               [](AppState& app, std::string_view a) {
                   need_two_lanes(app);
                   app.view.blink = on_or_off(a, app.view.blink);
               }},
    UserAction{"compare.with",
               "",
               "Compare with a lane",
               "INDEX: of the lane to set against the focused one.",
               {},
               compare_with},
    UserAction{"compare.next",
               menu::kView,
               "Compare with the next lane",
               "Another lane takes the place of the other one.",
               {'D', kShift},
               compare_next},
    UserAction{"compare.all",
               menu::kView,
               "All lanes side by side",
               "[on|off]: up to four.",
               {},
               [](AppState& app, std::string_view a) {
                   app.view.compares_all = on_or_off(a, app.view.compares_all);
               }},
    UserAction{"compare.watched",
               "",
               "Watched words of both lanes",
               "[on|off]: their share by head and over time, in place of overlap and agreement.",
               {},
               [](AppState& app, std::string_view a) {
                   const bool on = on_or_off(a, app.compares_watched());
                   if (on && !app.view.watched) fail(ErrorCode::wrong_use, "no words are watched; W watches");
                   app.view.measure_curve = on ? ViewState::kWatchedSpan : -1;
               }},
    UserAction{"compare.parting",
               menu::kView,
               "Where the texts part",
               "To the row after which the two lanes first chose another token.",
               {'J', 0},
               go_to_parting},
};

}  // namespace

std::span<const UserAction> compare_actions() {
    return kTable;
}

}  // namespace keyhole
