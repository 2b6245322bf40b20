/// Putting words into the lanes' mouths, from the window: at an earlier row the run goes back there first. Every step is a command of the
/// engine, so log and replay have it. Window thread; knows neither GL nor ImGui. All throw Error(wrong_use).
#pragma once

#include "app/state/app_state.h"

#include <string>
#include <string_view>

namespace keyhole {

/// The row after `row` consumes this token.
void force_next(AppState& app, int row, int token);
/// All lanes read the text after the newest row, caches kept, and stop there.
void say_turn(AppState& app, std::string_view text);
/// What was typed into a field, as `say` and `token.edit` read it: blanks kept, \n and \t meant, all else as it stands.
std::string quoted_as_typed(std::string_view typed);
/// The text stands in place of the generated token at a position and of what came after it.
void edit_text(AppState& app, int position, std::string_view text);

}  // namespace keyhole
