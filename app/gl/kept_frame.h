/// Keeps the picture of the window and draws again only what has changed: with software GL a frame costs what
/// its area costs, and the processor is for decoding. Window thread, with a current context.
#pragma once

#include "app/gl/frame_tiles.h"
#include "app/gl/gl.h"

namespace keyhole {

class KeptFrame {
  public:
    /// Draws what differs from the frame before, and copies the whole frame to the framebuffer that is bound.
    /// A callback gets the part of its rectangle that it may draw to as ImDrawCmd::ClipRect, in whole pixels.
    void draw(ImDrawData& frame, ImU32 background, const FrameTiles::PictureOf& picture_of);
    /// The next frame is drawn anew. Call when textures got other contents.
    void forget() { tiles_.forget(); }
    /// Returns the share of the last frame that was drawn.
    double drawn_share() const { return drawn_share_; }

  private:
    FrameTiles tiles_;
    GlFramebuffer frame_;
    GlTexture picture_;
    FrameRect size_;
    double drawn_share_ = 0;

    void fit(const FrameRect& size);
};

}  // namespace keyhole
