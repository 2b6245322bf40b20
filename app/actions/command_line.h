/// Builds the command line that writes the same files as the current view; "copy as command" copies it.
/// Pure; window thread.
#pragma once

#include "app/view/view_state.h"
#include "engine/session/session.h"

#include <filesystem>
#include <string>

namespace keyhole {

/// Puts the text in single quotes if a shell needs them.
std::string shell_word(std::string_view text);

/// Returns a `keyhole decode ...` command that repeats the run for `n_tokens` steps with its logged
/// commands. The script of commands is passed by process substitution, so it needs a shell such as bash.
/// folder: for the files; list: as --export takes it; extra: further options, such as "--layers 3".
std::string decode_command(const std::filesystem::path& model, const RunSpec& run, int n_tokens,
                           const std::string& list, const std::filesystem::path& folder,
                           const std::string& extra);

/// Returns the words of --export that make an animation of the focused view.
std::string_view gif_of_mode(HeatMode mode);

}  // namespace keyhole
