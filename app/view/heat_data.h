/// Follows a run with the matrices on show: the focused head, and one thumbnail a head for the atlas. One row
/// a step is added; a change of focus reads the history again, a slice a frame so that no frame is long.
/// Of a second lane, or of what two lanes differ by, only the focused head. Window thread; knows no GL.
#pragma once

#include "engine/analysis/head_matrix.h"
#include "app/view/view_state.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <vector>

namespace keyhole {

class HeatData {
  public:
    /// Of an atlas of few heads; of many, half or a quarter: all thumbnails together take at most kAtlasCells.
    static constexpr int kThumbnailSide = 128;
    static constexpr int kAtlasCells = 1 << 22;
    static int thumbnail_side(int n_heads);
    static constexpr int kFocusSide = 4096;
    /// Of a lane beside the focused one, whose pane is a part of the window: a quarter of the memory.
    static constexpr int kOtherSide = 2048;

    enum class Kind {
        whole,       ///< the focused head and the atlas
        head,        ///< the focused head alone
        difference,  ///< the focused head of a lane minus that of another: difference_values() of compare.h
    };
    explicit HeatData(Kind kind = Kind::whole);

    /// lane: index into history.lanes(); versus: what is taken from it, of a difference. Works at most `budget_ms`; false when rows
    /// remain for the next frame.
    bool update(const RunHistory& history, int lane, const ViewState& view, double budget_ms,
                int versus = -1);

    std::size_t bytes() const;  ///< of all matrices

    HeadMatrix& focus() { return focus_; }
    const HeadMatrix& focus() const { return focus_; }
    /// [layer * n_heads + head]: attention, whatever the focus shows.
    std::vector<HeadMatrix>& atlas() { return atlas_; }
    const std::vector<HeadMatrix>& atlas() const { return atlas_; }
    /// Changes when the matrices start over: textures are made anew.
    std::uint64_t generation() const { return generation_; }

  private:
    struct Key {
        std::uint64_t history = 0;  ///< generation: a rewound run starts over
        int lane = -1;
        int versus = -1;
        int layer = -1;
        int head = -1;
        HeatMode mode = HeatMode::attention;
        bool operator==(const Key&) const = default;
    };
    Kind kind_;
    Key focus_key_;
    Key atlas_key_;
    int focus_rows_ = 0;
    int atlas_rows_ = 0;
    std::size_t atlas_heads_ = 0;  ///< whose rows of the prompt are there
    std::uint64_t generation_ = 0;
    HeadMatrix focus_;
    std::vector<HeadMatrix> atlas_;
    std::vector<float> row_;
};

}  // namespace keyhole
