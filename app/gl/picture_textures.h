/// Shows PNG files in the window: keeps them as textures, shrunk to the size that is shown. Window thread,
/// with a current context.
#pragma once

#include "app/gl/gl.h"

#include <cstddef>
#include <filesystem>
#include <map>
#include <utility>

namespace keyhole {

struct PictureTexture {
    GlTexture texture;  ///< none: the file cannot be shown
    int width = 0, height = 0;
    std::filesystem::file_time_type written;  ///< time of the file that was read
    bool used = false;                        ///< in this frame
};

class PictureTextures {
  public:
    /// Returns the picture, at most `most_width` pixels wide; null while it is not loaded, or if the file
    /// cannot be shown. Reads a file again when it has changed.
    const PictureTexture* get(const std::filesystem::path& file, int most_width);
    /// Call once a frame, after all get(). Drops what no get() asked for. Returns true if a picture was
    /// asked for that is not loaded; another frame then loads it.
    bool end_frame();
    /// Lets the next frames load as many pictures as they ask for, not one each: for a saved frame.
    void load_all(bool all) { loads_all_ = all; }
    std::size_t bytes() const;

  private:
    std::map<std::pair<std::filesystem::path, int>, PictureTexture> pictures_;
    bool loaded_ = false;  // one in this frame
    bool waits_ = false;
    bool loads_all_ = false;
};

}  // namespace keyhole
