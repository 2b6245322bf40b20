/// Animated GIF of pictures of one size. A frame is written as what differs from the one before, in 255 colours of its own. One thread.
#pragma once

#include "engine/figure/image.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

namespace keyhole {

class GifWriter {
  public:
    /// map: the pictures show its colours, and every second one of them (128) is used; none: colours are kept as they are.
    /// Throws Error(wrong_use) for sides that the format has no numbers for (above 65,535).
    GifWriter(int width, int height, std::optional<Colormap> map = std::nullopt);
    ~GifWriter();

    /// Shown for `delay_ms`, in steps of 10. Where a frame has more than 255 new colours, the rarest become the nearest of the others.
    void add(const Image& image, int delay_ms);
    /// Some colour was not kept, those of the map aside.
    bool approximated() const;
    /// The file; repeats for ever. Call once, after one frame at least. Throws Error(no_memory) when the encoder gives up.
    std::vector<std::byte> finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
