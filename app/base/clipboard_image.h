/// Puts a picture on the desktop's clipboard. GLFW holds texts alone, so wl-copy (Wayland) or xclip (X) does
/// it. Any thread; waits for the program at most some seconds.
#pragma once

#include <filesystem>

namespace keyhole {

/// file: a PNG file, which is read before this returns. Throws Error(io) if neither program is installed or
/// if it fails, and says what to install.
void copy_image_to_clipboard(const std::filesystem::path& file);

}  // namespace keyhole
