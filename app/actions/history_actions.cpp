#include "app/actions/history_actions.h"

#include "engine/base/error.h"
#include "engine/base/number.h"

namespace keyhole {

void fork_lane(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    app.run.lane_editor.run(parse_command(arguments.empty() ? fmt::format("fork {}", app.view.lane)
                                                            : "fork " + std::string(arguments)));
    app.view.lane = app.run.lane_editor.n_lanes() - 1;
    app.notify(fmt::format("lane {} is copied at step {}; the copy continues beside it", app.view.lane,
                           app.run.last_row()));
}

void fork_here(AppState& app, std::string_view) {
    app.run.need_live_run();
    const int lane = app.view.lane;
    if (app.view.row < app.run.last_row()) app.rewind(app.view.row);
    fork_lane(app, fmt::format("{}", lane));
}

void rewind_run(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    const bool keeps = arguments == "keep" || arguments.ends_with(" keep");
    if (keeps) arguments.remove_suffix(arguments == "keep" ? 4 : 5);
    app.rewind(arguments.empty() ? app.view.row : read_number<int>("the step to go back to", arguments),
               keeps);
}

void go_to_branch(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    app.go_to_branch(read_number<int>("the number of a branch", arguments));
}

void touch_token(AppState& app, std::string_view verb, std::string_view arguments) {
    app.run.need_live_run();
    std::string text(arguments);
    if (arguments.empty() || arguments == "head" || arguments == "layer" || arguments == "all") {
        if (!app.view.pick) fail(ErrorCode::wrong_use, "{}: pick a token first, or name LANE POSITION", verb);
        text = fmt::format("{} {}", app.view.lane, app.view.pick->position);
        if (arguments != "all") text += fmt::format(" L{}", app.view.layer);
        if (arguments.empty() || arguments == "head") text += fmt::format(".H{}", app.view.head);
    }
    const Command command = parse_command(fmt::format("{} {}", verb, text));
    app.run.lane_editor.run(command);
    app.notify(fmt::format("{}, after step {}: takes effect with the next step", format_command(command),
                           app.run.last_row()));
}

}  // namespace keyhole
