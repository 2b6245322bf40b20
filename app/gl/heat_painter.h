/// Draws matrices of HeatData: textures of values, the evicted_at table and colours, one quad a matrix, colours
/// in the shader. Window thread, with a current context; knows no ImGui.
#pragma once

#include "app/gl/gl.h"
#include "app/view/heat_data.h"
#include "app/view/heat_view.h"
#include "engine/analysis/mask_summary.h"
#include "engine/figure/colormap.h"
#include "engine/trace/run_history.h"

#include <array>
#include <chrono>
#include <deque>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace keyhole {

/// A part of the frame, in framebuffer pixels, y down from the top.
struct PixelRect {
    float x = 0, y = 0, width = 0, height = 0;
    bool operator==(const PixelRect&) const = default;
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
    int shown_row = 0;
    bool operator==(const HeatQuad&) const = default;
};

class HeatPainter {
  public:
    /// Throws Error(device) with the shader compiler's words.
    HeatPainter();

    /// Brings the textures up to date with the data: usually one row. masks: the atlas is drawn as masks, whose blocks are then
    /// summed up here instead of cell by cell in the shader; the picture is the same.
    void update(HeatData& data, const RunHistory& history, int lane, bool masks = false);
    void draw(const HeatQuad& quad, float frame_width, float frame_height);
    /// Matrices of one pane: they differ in canvas, clip, matrix and KV head alone.
    void draw(std::span<const HeatQuad> quads, float frame_width, float frame_height);
    /// The same from a picture that is kept until the quads or the textures change: a frame in which only the pointer moves costs a
    /// copy. `ground` shows between the quads. A pane that takes long is drawn again less often while only rows come; false: what is
    /// on show lags behind, and another frame is due.
    bool draw_kept(std::span<const HeatQuad> quads, float frame_width, float frame_height, Rgb8 ground,
                   bool may_lag = true);
    /// Pictures that draw_kept() has drawn anew.
    int n_redrawn() const { return n_redrawn_; }

    /// Side lengths above this are not drawn in one texture; HeatData keeps below it.
    int texture_limit() const { return texture_limit_; }
    /// Of all its textures.
    std::size_t texture_bytes() const;

  private:
    struct MatrixTexture {
        GlTexture texture;
        int side = 0;
        int layers = 0;
    };
    /// A pane as it was drawn last.
    struct Pane {
        GlFramebuffer frame;
        GlTexture picture;
        int x = 0, y = 0, width = 0, height = 0;  // in the window's frame, y down
        std::vector<HeatQuad> quads;
        std::uint64_t version = 0, generation = 0;
        double cost_ms = 0;
        std::chrono::steady_clock::time_point drawn_at;
    };
    GlProgram program_;
    std::unordered_map<std::string_view, GLint> uniforms_;
    GlBuffer instances_;
    std::array<Pane, 2> panes_;  // the focus, the atlas
    std::uint64_t version_ = 1;  // of the textures
    int n_redrawn_ = 0;
    GlVertexArray vertices_;
    MatrixTexture focus_, atlas_, masks_;
    MaskSummary summary_;
    bool has_summary_ = false;   // of what the other textures hold
    std::vector<float> staged_;  // of one upload
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

    int uniform(std::string_view name) const { return uniforms_.at(name); }
    void draw_into(std::span<const HeatQuad> quads, const PixelRect& frame);
    bool fit(MatrixTexture& target, int side, int layers, bool counts = false) const;
    void upload(std::span<const HeadMatrix> matrices, int first_layer, int first, int last);
    bool update_matrices(MatrixTexture& target, std::span<HeadMatrix> matrices, bool anew);
    bool update_evictions(const RunHistory& history, int lane);
    bool update_summary(const RunHistory& history, int lane);
};

/// What a frame paints with: the focused lane with its atlas, lanes beside it, and a difference.
struct HeatPainters {
    HeatPainter focus;
    std::deque<HeatPainter> others;  ///< one for each of AppState::others
    HeatPainter difference;
    std::size_t texture_bytes() const;
};

/// The window's colours of cells without a value; those with one take the tables and marks of engine/figure.
struct HeatGround {
    static constexpr Rgb8 kFuture{20, 22, 27};
    static constexpr Rgb8 kMissing{44, 47, 55};
    static constexpr Rgb8 kEvicted{38, 41, 49};
    static constexpr Rgb8 kHatch{66, 70, 82};
    static constexpr Rgb8 kKept{64, 138, 190};
    static constexpr Rgb8 kLastSeen{238, 150, 34};
    static constexpr Rgb8 kHidden{126, 84, 140};
};

}  // namespace keyhole
