/// Pictures in motion: an animated GIF, or a video by the system's libavcodec where the program was built
/// with it. One thread. Knows images only.
#pragma once

#include "engine/figure/drawing.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Throws Error(unsupported), in one line, if this build has no encoder for the format.
void check_film(FilmFormat format);

class FilmWriter {
  public:
    /// map: see GifWriter. made_by: is kept in the file as its comment. Throws as check_film(), and
    /// Error(wrong_use) for sides that it cannot store.
    FilmWriter(FilmFormat format, int width, int height, std::optional<Colormap> map = std::nullopt,
               const std::string& made_by = {});
    ~FilmWriter();

    /// Adds a frame that is shown for `delay_ms`, in steps of 10; those of a video are 100.
    void add(const Image& image, int delay_ms);
    /// Returns the file. A GIF repeats for ever. Call it once, after at least one frame. Throws
    /// Error(no_memory) when the encoder fails.
    std::vector<std::byte> finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
