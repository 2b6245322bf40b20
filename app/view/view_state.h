/// Holds what the window shows: lane, layer, head, mode, range, picks, the shown step, pane sizes. Plain
/// values; window thread; knows neither GL nor ImGui nor the engine's thread.
#pragma once

#include "app/view/heat_view.h"
#include "app/view/panes.h"
#include "engine/analysis/heat_mode.h"
#include "engine/analysis/token_span.h"
#include "engine/figure/colormap.h"

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Arrangements of the panes: one lane at a time; lanes side by side; the answers for a projector; the
/// answers and what each lane attends to while it answers.
enum class Arrangement { explore, compare, teach, story };
inline constexpr std::array kArrangements = {Arrangement::story, Arrangement::explore, Arrangement::compare,
                                             Arrangement::teach};
std::string_view arrangement_name(Arrangement arrangement);

/// The measure that colours the tokens of the text: share of the KV heads that keep them, score in the
/// focused head, or age in steps.
enum class TextColor { share, score, age };
std::string_view text_color_name(TextColor color);

/// Rows that a fitted zoom shows. automatic: see AppState::first_fitted_row().
enum class FittedRows { automatic, whole, decoded };

struct RangeChoice {
    bool logarithmic = true;
    bool automatic = true;
    bool sinks_count = true;  ///< the first tokens count in the automatic range
    float low = 1e-4f;        ///< when not automatic
    float high = 1;
    float gamma = 1;  ///< of the colours, ColorScale::gamma
    bool operator==(const RangeChoice&) const = default;
};

/// A picked cell of the focused head.
struct Pick {
    int row = 0;
    int position = 0;
    bool operator==(const Pick&) const = default;
};

struct ViewState {
    int lane = 0;  ///< in focus, as the lanes are listed
    int layer = 0;
    int head = 0;
    HeatMode mode = HeatMode::attention;
    bool mask_overlay = true;                        ///< hatch over evicted cells
    Colormap colors = Colormap::viridis;             ///< of attention and scores; differences have their own
    bool marks_clips = false;                        ///< values outside the range have their own colours
    bool marks_nan = true;                           ///< NaN and infinities have their own colours
    Arrangement arrangement = Arrangement::explore;  ///< the window itself opens with the story
    int other = 0;                                   ///< lane that the focused one is compared with
    bool compares_all = false;                       ///< side by side: all lanes, not only two
    bool difference = false;                         ///< the focused pane shows lane - other
    bool blink = false;                              ///< the focused pane shows the other lane
    RangeChoice attention_range;
    RangeChoice score_range;
    HeatView heat;
    FittedRows fitted_rows = FittedRows::automatic;

    bool follows_newest = true;
    int row = 0;  ///< the shown row; the newest while following

    std::optional<Pick> pick;
    std::optional<Pick> center_request;  ///< the heat map centres this cell in its next frame
    std::vector<int> curve_positions;    ///< tokens whose scores are plotted, at most kMaxCurves
    static constexpr std::size_t kMaxCurves = 6;

    /// Index into curve_kinds() that the curves panel draws; -1: scores of picked tokens.
    int measure_curve = -1;
    int atlas_measure = -1;                  ///< the same for the atlas' colours; -1: attention
    static constexpr int kWatchedSpan = -2;  ///< replaces a measure, for both
    float atlas_zoom = 1;                    ///< 1: all heads fit into the atlas' width
    static constexpr float kLargestAtlasZoom = 16;
    std::optional<TokenSpan> watched;

    /// The option whose values a strip beside each answer tries: see kStripOptions; empty: none.
    std::string strip_key;
    bool bounds = false;  ///< *Answers* has a floor and a ceiling below the lanes

    TextColor text_color = TextColor::share;
    bool advanced = false;  ///< the focused lane's card shows all options, not only the usual ones

    Background background = Background::dark;  ///< the window's theme
    float interface_scale = 1;
    // Panes, in unscaled pixels; 0: the default for the window's size.
    float left_width = 0, right_width = 0, atlas_height = 0, text_height = 0, curves_height = 0;
    Pane side = Pane::lanes;  ///< visible among those that share a column if the window has no room for all

    RangeChoice& range() { return mode == HeatMode::score ? score_range : attention_range; }
    const RangeChoice& range() const { return mode == HeatMode::score ? score_range : attention_range; }

    /// Moves within bounds. Rows go from first_row to last_row.
    void move_row(int by, int first_row, int last_row);
    void move_layer(int by, int n_layers);
    void move_head(int by, int n_heads);
    void move_pick(int by_row, int by_position, int last_row);
    /// Picks a cell. adds: adds its token's curve to the others; otherwise it replaces them.
    void pick_cell(Pick cell, bool adds);
    bool has_picked(int position) const;
    /// Clamps everything to a new run.
    void fit_to(int n_lanes, int n_layers, int n_heads, int first_row, int last_row);
};

/// Returns the range in force. An automatic range follows the largest shown value.
ColorScale color_scale(const ViewState& view, float largest);
/// Returns the range for differences, symmetric about zero. largest: largest magnitude.
ColorScale difference_scale(const ViewState& view, float largest, Background background);

}  // namespace keyhole
