/// Draws the matrices of HeatData. Uploads values, the evicted_at table and colours as textures, draws one
/// quad a matrix, and maps values to colours in the shader. Window thread, with a current context; knows no
/// ImGui.
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

/// A rectangle of the frame in framebuffer pixels, y down from the top.
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
    bool difference = false;  ///< values are differences, so -1 is a value and not a mark
    ColorScale scale;
    int shown_row = 0;
    Background background = Background::dark;
    bool operator==(const HeatQuad&) const = default;
};

class HeatPainter {
  public:
    /// Throws Error(device) with the shader compiler's message.
    HeatPainter();

    /// Updates the textures to the data; usually one row is new. masks: the atlas draws masks. It then sums
    /// up blocks of cells here, not cell by cell in the shader; the picture is the same.
    void update(HeatData& data, const RunHistory& history, int lane, bool masks = false);
    void draw(const HeatQuad& quad, float frame_width, float frame_height);
    /// Draws the matrices of one pane. They may differ only in canvas, clip, matrix and KV head.
    void draw(std::span<const HeatQuad> quads, float frame_width, float frame_height);
    /// Draws the same into a stored picture that is kept until the quads or the textures change. `background`
    /// fills the space between the quads. If drawing a pane takes long and only new rows arrive, it is
    /// redrawn less often. Returns false if the picture lags behind and another frame is due.
    bool keep(std::span<const HeatQuad> quads, float frame_width, float frame_height, Rgb8 background,
              bool may_lag = true);
    /// Copies what keep() stored for a pane to the frame, as far as it lies within `clip`.
    void draw_kept(std::span<const HeatQuad> quads, float frame_height, const PixelRect& clip) const;
    /// Returns a number that no other picture of any painter has: it changes whenever keep() draws a pane.
    std::uint64_t kept_number(std::span<const HeatQuad> quads) const;
    /// Number of pictures that keep() has redrawn.
    int n_redrawn() const { return n_redrawn_; }

    /// Returns the size of all its textures.
    std::size_t texture_bytes() const;

  private:
    struct MatrixTexture {
        GlTexture texture;
        int side = 0;
        int layers = 0;
    };
    /// The last picture of a pane.
    struct Pane {
        GlFramebuffer frame;
        GlTexture picture;
        int x = 0, y = 0, width = 0, height = 0;  // in the window's frame, y down
        std::vector<HeatQuad> quads;
        std::uint64_t version = 0, generation = 0, number = 0;
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
    bool has_summary_ = false;   // matches the content of the other textures
    std::vector<float> staged_;  // the values of one upload
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
    HeatData::Read focus_read_, atlas_read_;
    int focus_log2_ = 0, atlas_log2_ = 0;

    static std::size_t pane_of(std::span<const HeatQuad> quads) { return quads.front().matrix < 0 ? 0 : 1; }
    int uniform(std::string_view name) const { return uniforms_.at(name); }
    void draw_into(std::span<const HeatQuad> quads, const PixelRect& frame);
    bool fit(MatrixTexture& target, int side, int layers, bool counts = false) const;
    void upload(std::span<const HeadMatrix> matrices, int first_layer, int first, int last);
    bool update_matrices(MatrixTexture& target, std::span<HeadMatrix> matrices, bool anew);
    bool update_evictions(const RunHistory& history, int lane);
    bool update_summary(const RunHistory& history, int lane);
};

/// The painters of a frame: the focused lane with its atlas, the lanes beside it, and the difference.
struct HeatPainters {
    HeatPainter focus;
    std::deque<HeatPainter> others;  ///< one for each of AppState::others
    HeatPainter difference;
    std::size_t texture_bytes() const;
};

}  // namespace keyhole
