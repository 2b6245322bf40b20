/// The command line that makes the files of a view: what "copy as command" copies. Pure; window thread.
#pragma once

#include "app/view/view_state.h"
#include "engine/session/session.h"

#include <filesystem>
#include <string>

namespace keyhole {

/// In single quotes for a shell, where it needs them.
std::string shell_word(std::string_view text);

/// `keyhole decode ...`: the run up to a row with its commands at their rows (by process substitution of a shell such as bash). folder:
/// of the files; list: as --export; extra: further options, such as "--layers 3".
std::string decode_command(const std::filesystem::path& model, const RunSpec& run, int n_tokens,
                           const std::string& list, const std::filesystem::path& folder,
                           const std::string& extra);

/// Words of --export that make a film of what the focused view shows.
std::string_view gif_of_mode(HeatMode mode);

}  // namespace keyhole
