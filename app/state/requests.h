/// Requests of actions to the frame loop, which owns the screen, the clipboard and the fonts. Window thread.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace keyhole {

struct Requests {
    std::optional<std::filesystem::path> screenshot, dump_cells;  ///< files to write
    std::string clipboard_out;                                    ///< text to copy; empty: none
    std::optional<int> paste_to_lane;  ///< lane into which the clipboard's text is pasted
    std::string action;                ///< to run in the next frame; empty: none
    bool scale_changed = true;         ///< fonts are loaded and the theme is set anew
    bool quit = false;
};

}  // namespace keyhole
