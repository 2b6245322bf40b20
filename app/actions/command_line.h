/// Builds the command line that writes the same files as the current view; "copy as command" copies it.
/// Pure; window thread.
#pragma once

#include "app/base/command_text.h"
#include "app/view/view_state.h"
#include "engine/base/backend_options.h"
#include "engine/run/run_spec.h"

#include <filesystem>
#include <string>

namespace keyhole {

/// Returns a `keyhole decode ...` command that repeats the run for `n_tokens` steps with its logged
/// commands. The script of commands is passed by process substitution, so it needs a shell such as bash.
/// A lane whose tau rises over the tokens to come names its horizon, since the command knows their number and
/// the run may not have known it.
/// folder: for the files; list: as --export takes it; extra: further options, such as "--layers 3".
std::string decode_command(const std::filesystem::path& model, const RunSpec& run, int n_tokens,
                           const std::string& list, const std::filesystem::path& folder,
                           const std::string& extra, const BackendOptions& backend = {});

/// Returns the words of --export that make an animation of the focused view.
std::string_view gif_of_mode(HeatMode mode);

}  // namespace keyhole
