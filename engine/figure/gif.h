/// Animated GIFs from pictures of one size. A frame stores only its changes from the previous one, in 255
/// colours of its own. One thread. Knows images only.
#pragma once

#include "engine/figure/image.h"

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

class GifWriter {
  public:
    /// map: the pictures use its colours, of which every second one (128) is kept; none: colours stay as
    /// they are. comment: what made it, kept in the file. Throws Error(wrong_use) for sides that the format
    /// cannot store (above 65,535).
    GifWriter(int width, int height, std::optional<Colormap> map = std::nullopt,
              const std::string& comment = {});
    ~GifWriter();

    /// Adds a frame that is shown for `delay_ms`, in steps of 10. When it has more than 255 new colours,
    /// the rarest are replaced by the nearest of the others.
    void add(const Image& image, int delay_ms);
    /// Returns whether any colour was replaced, apart from those of the map.
    bool approximated() const;
    /// Returns the file, which repeats for ever. Call it once, after at least one frame. Throws
    /// Error(no_memory) when the encoder fails.
    std::vector<std::byte> finish();

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace keyhole
