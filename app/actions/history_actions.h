/// Commands on the run's history and on single tokens: fork, rewind, branch, evict, pin, unpin. In the engine's text forms, and without
/// arguments on what is picked and shown. Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"

#include <string_view>

namespace keyhole {

/// [LANE [SPEC]]: the focused lane without. Copies the lane as it is after the newest row.
void fork_lane(AppState& app, std::string_view arguments);
/// The focused lane as it was at the shown row: rewinds there first, where that is not the newest row.
void fork_here(AppState& app, std::string_view arguments);
/// [ROW] [keep]: the shown row without. What comes after it becomes a branch; keep: with the settings of now.
void rewind_run(AppState& app, std::string_view arguments);
/// ID: of a branch that a rewind left.
void go_to_branch(AppState& app, std::string_view arguments);

/// evict, pin or unpin: [LANE POSITION [L<l>[.H<h>]]] as the engine has it; or [head|layer|all] on the picked token of the focused lane,
/// head without. A token in one head is one in its KV head, with all that read it.
void touch_token(AppState& app, std::string_view verb, std::string_view arguments);

}  // namespace keyhole
