/// Declares what every panel receives, and small shared widgets. A panel is `struct XPanel` with its own
/// state and `draw(XPanel&, const PanelContext&)`. It reads the record, edits its own state and runs
/// commands. Window thread.
#pragma once

#include "app/actions/action_table.h"
#include "app/gl/heat_painter.h"
#include "app/gl/theme.h"
#include "app/panels/scopes.h"
#include "app/panels/tab_stops.h"
#include "app/state/app_state.h"
#include "app/view/number_text.h"

#include <imgui.h>

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace keyhole {

struct PanelShared;

/// Quads that one draw callback paints. Exists until the frame is drawn.
struct HeatBatch {
    HeatPainter* painter = nullptr;
    PanelShared* shared = nullptr;  ///< gets panes_lag set if the picture is not the newest one
    std::vector<HeatQuad> quads;
    float frame_width = 0, frame_height = 0;
    ImVec2 scale{1, 1};  ///< framebuffer pixels per window pixel
};

/// Rectangle of a widget, and the part of it that its pane does not clip; in window pixels.
struct NamedItem {
    ImVec2 min, max;
    ImVec2 seen_min, seen_max;
};

/// What a pane drew in the last frame, for the report: always one run, one lane and one step.
struct DrawnPane {
    std::uint64_t run = 0;  ///< RunInfo::id
    int lane = 0, id = -1;  ///< as listed, and LaneInfo::id of the records; -1: nothing was drawn
    int row = 0;
    std::string title, mark;  ///< as in LaneOnShow
};

/// State that panels share within a frame.
struct PanelShared {
    std::optional<Pick> hovered;       ///< cell of the focused head under the pointer, in heat map or text
    std::optional<Pick> next_hovered;  ///< collected for the next frame
    bool open_token_menu = false;      ///< request to open the menu of the picked token
    std::deque<HeatBatch> batches;
    bool curves_below = false;  ///< the curves have a pane beside the details in this frame
    float strips = 0;           ///< height of the notices at the lower edge, in the last frame
    float strips_drawn = 0;     ///< the same of this frame, so far
    /// Where the pointer is since a press: left, top, right, bottom. A tooltip waits until it has left.
    std::optional<ImVec4> pressed;
    /// What a question of a lesson hides: left, top, right, bottom, in the last frame and so far in this one.
    std::vector<ImVec4> covers, covers_drawn;
    bool panes_lag = false;         ///< another frame is due
    bool word_list = false;         ///< words are offered to the edited field: Escape closes their list
    bool closes_word_list = false;  ///< Escape was pressed
    bool panes_may_lag = true;      ///< false in a frame that is saved to a file
    /// Widgets of the last frame by name. Scripts point at them, and the report lists them.
    std::map<std::string, NamedItem, std::less<>> items;
    std::map<std::string, DrawnPane, std::less<>> panes;  ///< of the last frame, by name
    TabStops tabs;
    /// Where the last heat map of the frame was drawn; nullopt: none. See AppState::heat_was_drawn().
    std::optional<DrawnHeat> drawn_heat;
    // Values of the last frame for dump-cells. heat_canvas is in framebuffer pixels.
    PixelRect heat_canvas;
    HeatView heat_view;  ///< in framebuffer pixels
    ColorScale heat_scale;
};

struct PanelContext {
    const AppState& app;
    /// Runs an action of the table; a failure goes to the status line. Panels change the state in no other
    /// way. Call it as run(context, text).
    const std::function<void(std::string_view)>& run_action;
    HeatPainters& painters;
    const Fonts& fonts;
    PanelShared& shared;
    float scale = 1;
    ImVec2 frame_scale{1, 1};  ///< framebuffer pixels per window pixel

    float px(float unscaled) const { return unscaled * scale; }
    /// The pane is read from a distance: its small print is as large as other text, and takes more room.
    bool from_afar() const { return fonts.small == fonts.book; }
};

/// Paints heat quads at this point of the draw list.
void paint_heat(const PanelContext& context, HeatPainter& painter, ImDrawList& list,
                std::vector<HeatQuad> quads);
/// Draws the stored picture of a command that paint_heat() added, if it is out of date. Returns its number,
/// see HeatPainter::kept_number(). Call for each such command before the frame is drawn.
std::uint64_t keep_picture(const ImDrawCmd& command);
/// Returns the pane that lay at a place in the last frame; "": none.
std::string pane_at(const PanelShared& shared, ImVec2 at);
PixelRect frame_rect(const PanelContext& context, ImVec2 min, ImVec2 max);

/// Runs an action of the table.
void run(const PanelContext& context, std::string_view text);
/// Picks a cell. adds: the other picked tokens keep their curves.
void pick(const PanelContext& context, Pick cell, bool adds);
/// Returns a sentence with a capital first letter.
std::string capitalised(std::string text);
/// Returns the help of an action without its arguments, which only scripts and the palette take.
std::string help_without_arguments(const UserAction& action);
/// Returns whether the help begins with arguments that must be given.
bool needs_arguments(const UserAction& action);
/// Shows title, key and help of an action if the last item is hovered.
void action_tooltip(const PanelContext& context, std::string_view id);
bool lit_button(const char* label, bool lit, float width = 0);
/// Draws a button for an action; `lit` if the state that it switches is on.
bool action_button(const PanelContext& context, std::string_view id, const char* label, bool lit = false,
                   float width = 0);
/// Shows a text beside, below or above the last item if it is hovered, also if it is disabled.
void tooltip(const PanelContext& context, std::string_view text);
/// Shows a text at the pointer, whatever is hovered; wraps long text.
void show_tooltip(const PanelContext& context, std::string_view text);
/// Gives the last item a name, so that a script can point at it (`point NAME`), and Tab can go to it.
void mark_item(const PanelContext& context, std::string_view name);
/// The same of a number with buttons beside it, which ImGui makes several items of. label: its own.
void mark_field(const PanelContext& context, std::string_view name, const char* label);
/// Names the last item, which does what the place of the pointer says: Tab passes it.
void mark_plot(const PanelContext& context, std::string_view name);
/// Names a part of the current window.
void mark_area(const PanelContext& context, std::string_view name, ImVec2 min, ImVec2 max);

/// Draws a slider without its value, which the grab would hide: the caller writes the value below or beside
/// it. format: of the number that Ctrl+click types. As wide as SetNextItemWidth() says.
bool bar_slider(const PanelContext& context, const char* id, float& value, float low, float high,
                const char* format, ImGuiSliderFlags flags = 0);

/// Continues on the same line if a button with this label fits there, else on the next line.
void next_to(const char* label, float gap);

/// Draws dim text, as many of its clauses as the line has room for; if some are missing, hovering shows all.
void dim_text(const PanelContext& context, std::string_view text);
/// Returns the colour of a listed lane, which it keeps while others come and go.
ImU32 lane_ink(const PanelContext& context, int lane);
void heading(const PanelContext& context, std::string_view text, ImU32 color = theme::colors().text);
void colored_text(ImU32 color, std::string_view text);
/// Draws text in the small font, wrapped at blanks alone, so that no number breaks at its point.
void small_words(const PanelContext& context, std::string_view text, ImU32 color = theme::colors().dim);
/// Opens a child that fills the room, with the background of texts; padding: above and below, unscaled.
ScopedChild words_child(const PanelContext& context, const char* id, float padding);
/// Returns the text, shortened with an ellipsis if it is wider than `width` pixels in the current font.
std::string fitted(std::string_view text, float width);
/// Returns the first clauses of the text that fit; "": none does.
std::string_view fitting_clauses(std::string_view text, float width);
/// Draws the number and name of the lane that is on show in its colour, cut where the column ends. The name
/// is that of the records: see LaneOnShow::title.
void draw_lane_title(const PanelContext& context, int lane);
/// Draws behind the last item what the lane's records are, if not those of its present settings. titled: with
/// the lane's title.
void draw_lane_mark(const PanelContext& context, int lane, bool titled = true);
/// Reports that a pane shows the lane.
void note_shown_lane(const PanelContext& context, std::string_view pane, int lane);
/// The same. Returns false if there is nothing of it to show yet, and says why.
bool shows_lane(const PanelContext& context, std::string_view pane, int lane);
/// Draws text turned by 90 degrees so that it reads upward; `at` is its lower left corner.
void text_upward(ImDrawList& list, ImVec2 at, ImU32 color, const char* text);
/// Finishes a plot over the steps: draws the line of the shown step at x = shown, pops the clip rectangle
/// that the caller pushed, and labels the first and the last step below. If there is only one step, says
/// that curves need more.
void finish_row_plot(ImDrawList& list, ImVec2 min, ImVec2 size, float shown, int first_row, int last_row);
/// Draws a bar that drags the border between two panes; `vertical`: it separates left from right. Returns
/// the movement.
float splitter(const char* id, bool vertical, ImVec2 at, float length, float thickness);

/// Returns the text of a token in characters that the fonts have; "" beyond the lane's end.
const std::string& token_words(const AppState& app, int lane, int position);
const std::string& token_words(const AppState& app, int id);
/// Returns a token's text for display; blanks are made visible if there is nothing else.
std::string visible(std::string_view token);
std::string bytes_text(std::int64_t bytes);
/// Returns a value that was stored in half precision, with no more digits than it holds.
std::string half_text(double value);

}  // namespace keyhole
