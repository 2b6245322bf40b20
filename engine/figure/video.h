/// Videos by libavcodec: VP9 in WebM, H.264 or MPEG-4 in MP4. Used by film.cpp only; one thread.
#pragma once

#include "engine/figure/drawing.h"

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace keyhole {

/// Returns whether this build has an encoder for the format.
bool has_video(FilmFormat format);

class VideoWriter {
  public:
    static constexpr int kFrameMs = 100;
    /// Needs has_video(). Sides become even. comment: is kept in the file.
    VideoWriter(FilmFormat format, int width, int height, const std::string& comment = {});
    ~VideoWriter();
    /// Adds a frame that is shown for `delay_ms`, in steps of kFrameMs.
    void add(const Image& image, int delay_ms);
    /// Returns the file. Throws Error(no_memory) when the encoder fails.
    std::vector<std::byte> finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
