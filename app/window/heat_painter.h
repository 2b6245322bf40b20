/// Draws matrices of HeatData: textures of values, the evicted_at table and colours, one quad a matrix, colours
/// in the shader. Window thread, with a current context; knows no ImGui.
#pragma once

#include "app/window/gl.h"
#include "app/window/heat_data.h"
#include "app/window/heat_view.h"
#include "engine/figure/colormap.h"
#include "engine/trace/run_history.h"

#include <array>
#include <deque>
#include <span>

namespace keyhole {

/// A part of the frame, in framebuffer pixels, y down from the top.
struct PixelRect {
    float x = 0, y = 0, width = 0, height = 0;
};

/// One matrix on its canvas.
struct HeatQuad {
    PixelRect canvas;
    PixelRect clip;
    HeatView view;    ///< in framebuffer pixels of the canvas
    int matrix = -1;  ///< -1: the focus; else layer * n_heads + head of the atlas
    int kv_head = 0;
    HeatMode mode = HeatMode::attention;
    bool mask_overlay = true;
    bool difference = false;  ///< values are differences: -1 is a value, not a mark
    ColorScale scale;
    bool marks_clips = false;  ///< values above the range stand out
    int shown_row = 0;
};

class HeatPainter {
  public:
    /// Throws Error(device) with the shader compiler's words.
    HeatPainter();

    /// Brings the textures up to date with the data: usually one row.
    void update(HeatData& data, const RunHistory& history, int lane);
    void draw(const HeatQuad& quad, float frame_width, float frame_height) const;

    /// Side lengths above this are not drawn in one texture; HeatData keeps below it.
    int texture_limit() const { return texture_limit_; }

  private:
    struct MatrixTexture {
        GlTexture texture;
        int side = 0;
        int layers = 0;
    };
    GlProgram program_;
    GlVertexArray no_vertices_;
    MatrixTexture focus_, atlas_;
    GlTexture colors_;
    GlTexture evicted_;
    int evicted_width_ = 0;
    int evicted_heads_ = 0;
    std::uint64_t evicted_history_ = 0;  // generation
    int evicted_lane_ = -1;
    int evicted_row_ = -1;  // last row whose evictions are in the texture
    int texture_limit_ = 0;
    std::uint64_t generation_ = 0;
    int n_positions_ = 0;
    int focus_log2_ = 0, atlas_log2_ = 0;

    int uniform(const char* name) const;
    void fit(MatrixTexture& target, int side, int layers) const;
    static void upload(const MatrixTexture& target, int layer, const HeadMatrix& matrix, int first, int last);
    void update_matrices(MatrixTexture& target, std::span<HeadMatrix> matrices, bool anew);
    void update_evictions(const RunHistory& history, int lane);
};

/// What a frame paints with: the focused lane with its atlas, lanes beside it, and a difference.
struct HeatPainters {
    HeatPainter focus;
    std::deque<HeatPainter> others;  ///< one for each of AppState::others
    HeatPainter difference;
};

/// The window's colours of cells without a value; those with one take the tables of engine/figure.
struct HeatGround {
    static constexpr Rgb8 kUnborn{20, 22, 27};
    static constexpr Rgb8 kMissing{44, 47, 55};
    static constexpr Rgb8 kEvicted{38, 41, 49};
    static constexpr Rgb8 kHatch{66, 70, 82};
    static constexpr Rgb8 kKept{64, 138, 190};
    static constexpr Rgb8 kLastSeen{238, 150, 34};
    static constexpr Rgb8 kHidden{126, 84, 140};
    static constexpr Rgb8 kClip{255, 60, 200};  ///< as no colour map has it
};

}  // namespace keyhole
