/// Keyhole's folders in the user's home, by the XDG base directory specification. Any thread; creates none.
#pragma once

#include <filesystem>

namespace keyhole {

enum class UserFolder {
    cache,   ///< can be made again: downloaded models, proofs of devices
    config,  ///< settings of the window
    data,    ///< made by the user: lessons, figures of the papers
    state,   ///< spools and crash reports
};

/// Returns the folder `keyhole` below $XDG_CACHE_HOME (CONFIG, DATA, STATE). Where that variable names no
/// absolute path, it lies below ~/.cache, ~/.config, ~/.local/share or ~/.local/state. Empty: there is no
/// $HOME either.
std::filesystem::path user_folder(UserFolder kind);

}  // namespace keyhole
