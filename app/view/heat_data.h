/// Follows a run with the shown matrices: the focused head, and one thumbnail a head for the atlas. Each
/// step adds one row. A change of focus reads the history again, one slice a frame, so that no frame is
/// long. For a second lane, or the difference of two lanes, only the focused head is read. Window thread;
/// knows no GL.
#pragma once

#include "app/view/view_state.h"
#include "engine/analysis/head_matrix.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <vector>

namespace keyhole {

class HeatData {
  public:
    /// Side of a thumbnail if the model has few heads; with many heads a half or a quarter of it, so that
    /// all thumbnails together have at most kAtlasCells cells.
    static constexpr int kThumbnailSide = 128;
    static constexpr int kAtlasCells = 1 << 22;
    static int thumbnail_side(int n_heads);
    static constexpr int kFocusSide = 4096;
    /// Side for a lane beside the focused one, whose pane is smaller: a quarter of the memory.
    static constexpr int kOtherSide = 2048;

    enum class Kind {
        whole,       ///< the focused head and the atlas
        head,        ///< the focused head alone
        difference,  ///< the focused head of one lane minus another's: difference_values() of compare.h
    };
    explicit HeatData(Kind kind = Kind::whole);

    /// Adds new rows. lane: index into history.lanes(); versus: the lane to subtract, for a difference.
    /// Works for at most `budget_ms`; returns false if rows remain for the next frame.
    bool update(const RunHistory& history, int lane, const ViewState& view, double budget_ms,
                int versus = -1);

    /// Forgets all rows: there is nothing to show.
    void clear();

    std::size_t bytes() const;  ///< size of all matrices
    /// How far the history is read: the first `rows` rows of the first `heads` matrices.
    struct Read {
        int rows = 0, heads = 0;
        bool operator==(const Read&) const = default;
    };
    Read focus_read() const { return {focus_rows_, 1}; }
    Read atlas_read() const;

    /// Returns LaneInfo::id of the lane that the matrices are of; -1: none.
    int lane_id() const { return focus_key_.lane; }

    HeadMatrix& focus() { return focus_; }
    const HeadMatrix& focus() const { return focus_; }
    /// [row] what the focused head's learned sink took of each row; NaN: not known. Empty: the model has no
    /// learned sinks, or something else than attention is shown.
    const std::vector<float>& learned_sink() const { return learned_sink_; }
    /// [layer * n_heads + head]. Holds attention in every mode.
    std::vector<HeadMatrix>& atlas() { return atlas_; }
    const std::vector<HeadMatrix>& atlas() const { return atlas_; }
    /// Changes when the matrices start over, so that the textures are rebuilt.
    std::uint64_t generation() const { return generation_; }

  private:
    struct Key {
        std::uint64_t history = 0;  ///< RunHistory::generation(): a rewound run starts over
        int lane = -1;
        int versus = -1;
        int layer = -1;
        int head = -1;
        HeatMode mode = HeatMode::attention;
        bool operator==(const Key&) const = default;
    };
    struct Deadline;
    Key focus_key(const RunHistory& history, int lane, const ViewState& view, int versus) const;
    /// Start over if something else is shown than before.
    void begin_focus(const Key& key);
    void begin_atlas(const Key& key, std::size_t n_heads);
    /// Read rows until the time is over. Return whether all are read.
    bool read_focus(const RunHistory& history, int lane, const ViewState& view, int versus,
                    const Deadline& deadline);
    bool read_atlas(const RunHistory& history, int lane, const Deadline& deadline);
    bool read_atlas_prompt(const RunHistory& history, int lane, const Deadline& deadline);
    void read_atlas_row(const RunHistory& history, int lane, int row);

    Kind kind_;
    Key focus_key_;
    Key atlas_key_;
    int focus_rows_ = 0;
    int atlas_rows_ = 0;
    std::size_t atlas_heads_ = 0;  ///< heads whose prompt rows are complete
    int image_rows_ = 0;           ///< prompt rows that are read head by head
    std::uint64_t generation_ = 0;
    HeadMatrix focus_;
    std::vector<HeadMatrix> atlas_;
    std::vector<float> row_, learned_sink_;
};

}  // namespace keyhole
