/// Runs the commands on the run's history and on single tokens: fork, rewind, branch, evict, pin, unpin.
/// Each takes arguments in the engine's text form; without arguments it uses the picked cell and the shown
/// step. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace keyhole {

/// [LANE [SPEC]], default: the focused lane. Copies the lane in its state after the newest step.
void fork_lane(AppState& app, std::string_view arguments);
/// Copies the focused lane in its state at the shown step. If that is not the newest step, rewinds to it
/// first.
void fork_here(AppState& app, std::string_view arguments);
/// [STEP] [keep], default: the shown step. The steps after it become a branch. keep: keeps the current
/// settings.
void rewind_run(AppState& app, std::string_view arguments);
/// ID: of a branch that a rewind left behind.
void go_to_branch(AppState& app, std::string_view arguments);

/// verb: evict, pin or unpin. arguments: [LANE POSITION [L<l>[.H<h>]]] as the engine takes them, or
/// [head|layer|all] for the picked token of the focused lane (default: head). For one query head, the
/// command applies to its KV head and therefore to all query heads that read it.
void touch_token(AppState& app, std::string_view verb, std::string_view arguments);

/// Say that a change of lanes is undone or redone, and once it is that it was. before: the newest request
/// without it: a change that needed none is done at once.
void announce_undo(AppState& app, const std::string& what, RequestId before);
void announce_redo(AppState& app, const std::string& what, RequestId before);

/// Returns the row after which the last command of a kind was applied; nullopt: the run has none.
template <class Kind>
std::optional<int> row_of_last(const RunState& run) {
    const std::vector<LoggedCommand>& log = run.status.run.commands;
    for (auto logged = log.rbegin(); logged != log.rend(); ++logged)
        if (std::holds_alternative<Kind>(logged->command)) return logged->row;
    return std::nullopt;
}

}  // namespace keyhole
