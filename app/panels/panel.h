/// What every panel gets, and small widgets that they share. A panel is `struct XPanel` with its own state and
/// `draw(XPanel&, const PanelContext&)`; it reads the record, edits its own state and runs commands. Window
/// thread.
#pragma once

#include "app/panels/scopes.h"
#include "app/state/app_state.h"
#include "app/actions/action_table.h"
#include "app/gl/heat_painter.h"
#include "app/gl/theme.h"

#include <imgui.h>

#include <deque>
#include <map>
#include <string>
#include <string_view>

namespace keyhole {

struct PanelShared;

/// Quads that one draw callback paints; lives until the frame is drawn.
struct HeatBatch {
    HeatPainter* painter = nullptr;
    PanelShared* shared = nullptr;  ///< is told where the picture on show is not the newest
    std::vector<HeatQuad> quads;
    float frame_width = 0, frame_height = 0;
};

/// Where a widget is, and the part of it that its pane does not cut off; in window pixels.
struct NamedItem {
    ImVec2 min, max;
    ImVec2 seen_min, seen_max;
};

/// What panels tell each other within a frame.
struct PanelShared {
    std::optional<Pick> hovered;       ///< cell of the focused head under the pointer, by heat map or strip
    std::optional<Pick> next_hovered;  ///< being collected for the next frame
    bool open_token_menu = false;      ///< asks for the menu of the picked token
    std::deque<HeatBatch> batches;
    bool panes_lag = false;     ///< another frame is due
    bool panes_may_lag = true;  ///< not in a frame that becomes a file
    /// Widgets by name: what a script points at, and the report lists. Of the last frame.
    std::map<std::string, NamedItem, std::less<>> items;
    // Of the last frame, for dump-cells: the heat map's canvas in framebuffer pixels.
    PixelRect heat_canvas;
    HeatView heat_view;  ///< in framebuffer pixels
    ColorScale heat_scale;
};

struct PanelContext {
    AppState& app;
    HeatPainters& painters;
    const Fonts& fonts;
    PanelShared& shared;
    float scale = 1;
    ImVec2 frame_scale{1, 1};  ///< framebuffer pixels a window pixel

    float px(float unscaled) const { return unscaled * scale; }
};

/// Paints heat quads at this place of the draw list.
void paint_heat(const PanelContext& context, HeatPainter& painter, ImDrawList& list,
                std::vector<HeatQuad> quads);
PixelRect frame_rect(const PanelContext& context, ImVec2 min, ImVec2 max);

/// Runs a command of the table; a failure goes to the status line.
void run(const PanelContext& context, std::string_view text);
/// Title, key and help of a command, when the last item is hovered.
void action_tooltip(const PanelContext& context, std::string_view id);
bool lit_button(const char* label, bool lit, float width = 0);
/// A button of a command; `lit` when what it switches is on.
bool command_button(const PanelContext& context, std::string_view id, const char* label, bool lit = false,
                    float width = 0);
/// Shows on hover of the last item, greyed ones too.
void tooltip(const PanelContext& context, std::string_view text);
/// At the pointer, whatever it is over; long text in several lines.
void show_tooltip(const PanelContext& context, std::string_view text);
/// Gives the last item a name, so that a script can point at it (`point NAME`).
void mark_item(const PanelContext& context, std::string_view name);
/// The same for a part of the present window.
void mark_area(const PanelContext& context, std::string_view name, ImVec2 min, ImVec2 max);

/// Goes on beside the last item where a button with this label fits, else on the next line.
void next_to(const char* label, float gap);

/// Cut where the line has no room for it; then the pointer shows the whole.
void dim_text(const PanelContext& context, std::string_view text);
void heading(const PanelContext& context, std::string_view text, ImU32 color = theme::kText);
void colored_text(ImU32 color, std::string_view text);
/// In the small font, in several lines.
void small_words(const PanelContext& context, std::string_view text, ImU32 color = theme::kDim);
/// Fills the room, on the ground of texts; padding: above and below, unscaled.
ScopedChild words_child(const PanelContext& context, const char* id, float padding);
/// Cut with an ellipsis where it is wider than `width` pixels, in the current font.
std::string fitted(std::string_view text, float width);
/// Draws text turned by a quarter: it reads upward, `at` is its lower left corner.
void text_upward(ImDrawList& list, ImVec2 at, ImU32 color, const char* text);
/// Ends a plot against the row: the line of the shown row at x = shown, the clip rectangle that the caller pushed, and the first and last
/// row below; where there is one row alone, that curves come with more.
void finish_row_plot(ImDrawList& list, ImVec2 min, ImVec2 size, float shown, int first_row, int last_row);
/// A bar that drags the border between two panes; `vertical`: it parts left from right. Returns the movement.
float splitter(const char* id, bool vertical, ImVec2 at, float length, float thickness);

/// Text of a token, in characters that the fonts have; "" beyond the lane's end.
const std::string& token_words(const AppState& app, int lane, int position);
const std::string& token_words(const AppState& app, int id);
/// A token's text to look at: one of blanks alone shows them.
std::string visible(std::string_view token);
std::string bytes_text(std::int64_t bytes);
std::string number_text(double value);

}  // namespace keyhole
