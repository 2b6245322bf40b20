/// Makes the lanes consume given tokens, on request of the window. If the shown step is not the newest one,
/// the run is rewound first. Every change is an engine command, so the log and every replay contain it.
/// Window thread; knows neither GL nor ImGui. All functions throw Error(wrong_use).
#pragma once

#include "app/state/app_state.h"

#include <string>
#include <string_view>

namespace keyhole {

/// Makes the step after `row` consume this token.
void force_next(AppState& app, int row, int token);
/// Makes all lanes consume the text after the newest step, keeping their caches; then stops.
void say_turn(AppState& app, std::string_view text);
/// Quotes text typed into a field for `say` and `token.edit`: keeps blanks, keeps \n and \t as escapes, and
/// takes all other characters literally.
std::string quoted_as_typed(std::string_view typed);
/// Replaces the generated token at a position, and all later ones, by the text.
void edit_text(AppState& app, int position, std::string_view text);

}  // namespace keyhole
