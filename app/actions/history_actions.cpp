#include "app/actions/history_actions.h"

#include "app/base/saved_policies.h"
#include "engine/analysis/run_rows.h"
#include "engine/base/error.h"
#include "engine/base/number.h"
#include "engine/live/engine.h"

#include <algorithm>

namespace keyhole {

void fork_lane(AppState& app, std::string_view arguments) {
    app.run.need_live_run();
    app.run.lane_editor.run(
        parse_command(arguments.empty() ? fmt::format("fork {}", app.view.lane)
                                        : command_with_saved_policy(fmt::format("fork {}", arguments))));
    app.view.lane = app.run.lane_editor.n_lanes() - 1;
    app.announce(fmt::format("copying to lane {}", app.view.lane),
                 [lane = app.view.lane](const RunState& run) {
                     const std::optional<int> at = row_of_last<ForkLane>(run);
                     return fmt::format("lane {} was copied{}; the copy continues beside it", lane,
                                        at ? fmt::format(" at step {}", *at) : "");
                 });
}

void fork_here(AppState& app, std::string_view) {
    app.run.need_live_run();
    const int lane = app.view.lane;
    const Engine::Together together(app.run.engine());
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

/// Says what a command does with a token: "evicting token 80 “4” of lane 0 everywhere".
std::string touch_words(const AppState& app, const Command& command) {
    const auto words = [&](std::string_view doing, const TokenPlace& at) {
        const std::optional<int> lane = app.run.history_lane(at.index);
        const bool known = lane && at.position >= 0 && at.position <= app.run.last_row();
        const std::string token =
            known ? fmt::format(" “{}”", token_text(app.run.history, *lane, at.position)) : "";
        const std::string place = at.layer < 0  ? "everywhere"
                                  : at.head < 0 ? fmt::format("in layer {}", at.layer)
                                                : fmt::format("in layer {}, head {}", at.layer, at.head);
        return fmt::format("{} token {}{} of lane {} {}", doing, at.position, token, at.index, place);
    };
    if (const auto* evict = std::get_if<EvictToken>(&command)) return words("evicting", evict->at);
    if (const auto* pin = std::get_if<PinToken>(&command)) return words("pinning", pin->at);
    if (const auto* unpin = std::get_if<UnpinToken>(&command)) return words("unpinning", unpin->at);
    return format_command(command);
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
    const std::string what = format_command(command), said = touch_words(app, command);
    app.announce(said, [what, said](const RunState& run) {
        const std::vector<LoggedCommand>& log = run.status.run.commands;
        const auto logged = std::find_if(log.rbegin(), log.rend(), [&](const LoggedCommand& l) {
            return format_command(l.command) == what;
        });
        return fmt::format("{}{}; this counts from the next step on", said,
                           logged == log.rend() ? "" : fmt::format(" after step {}", logged->row));
    });
}

namespace {

void announce_change(AppState& app, const std::string& doing, const std::string& done, RequestId before) {
    if (app.run.engine().last_request() == before) return app.notify(done);
    app.announce(doing, [done](const RunState&) { return done; });
}

}  // namespace

void announce_undo(AppState& app, const std::string& what, RequestId before) {
    announce_change(app, "undoing: " + what, "undone: " + what, before);
}

void announce_redo(AppState& app, const std::string& what, RequestId before) {
    announce_change(app, "redoing: " + what, "redone: " + what, before);
}

}  // namespace keyhole
