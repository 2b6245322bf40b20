/// Finds the parts of a frame that differ from the frame before. Window thread; needs no OpenGL.
#pragma once

#include <imgui.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace keyhole {

/// Pixels [left, right) x [top, bottom) of the frame, y down.
struct FrameRect {
    int left = 0, top = 0, right = 0, bottom = 0;
    bool empty() const { return right <= left || bottom <= top; }
    bool operator==(const FrameRect&) const = default;
};
FrameRect intersection(const FrameRect& a, const FrameRect& b);

/// Returns the size of a frame in framebuffer pixels.
FrameRect frame_of(const ImDrawData& frame);
/// Returns the pixels that a command may draw to: what ImGui's OpenGL backend hands to glScissor(), or all
/// that a callback's rectangle touches.
FrameRect room_of(const ImDrawCmd& command, const ImDrawData& frame);

/// Splits the frame into tiles and keeps a hash of each: of all triangles that may cover one of its pixels,
/// in their order, with their clip rectangle and texture. Two frames with equal hashes show the same there.
class FrameTiles {
  public:
    static constexpr int kSide = 32;  ///< pixels of a tile
    /// Returns a number that changes whenever a callback would draw something else.
    using PictureOf = std::function<std::uint64_t(const ImDrawCmd&)>;

    /// Takes the next frame. Returns rectangles that hold all pixels that may differ from the frame before:
    /// few, none over another, the whole frame the first time. A texture that holds no fonts counts as
    /// changed.
    std::vector<FrameRect> changes(const ImDrawData& frame, ImU32 background, const PictureOf& picture_of);
    /// The next frame differs everywhere.
    void forget() { hashes_.clear(); }

  private:
    FrameRect size_;
    int n_columns_ = 0, n_rows_ = 0;
    std::uint64_t n_frames_ = 0;
    std::vector<std::uint64_t> hashes_, before_;  // a tile, row by row

    void add_command(const ImDrawList& list, const ImDrawCmd& command, const ImDrawData& frame);
    void add(const FrameRect& pixels, std::uint64_t hash);
    std::vector<FrameRect> changed_runs() const;
};

}  // namespace keyhole
