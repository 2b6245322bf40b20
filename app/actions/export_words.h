/// What the export actions write, as words and options of the command line. Window thread; copies and starts
/// nothing.
#pragma once

#include "app/state/app_state.h"
#include "app/view/view_export.h"

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// Returns the export that the user's word names. "run": everything chosen in the export dialog; "frames"
/// and "gif": the mask over time; "gif-view": the focused view over time.
ExportRequest request_of(const AppState& app, std::string_view what);

/// The words for what the window shows: the story, lanes side by side, the focused head.
inline constexpr std::array<std::string_view, 3> kShownParts = {"story", "lanes", "head"};
/// Returns the one that is on show.
std::string_view shown_part(const AppState& app);

/// Returns the picture that a word of the user names: a part that the window shows, "" being the one on show;
/// "curves": the curves panel; or the name of a kind that needs no arguments but two lanes. nullopt for any
/// other word.
std::optional<ViewWord> view_word(const AppState& app, std::string_view what);

/// Returns what the window's pictures are drawn from, at the shown step. It refers to the run and to `app`.
PictureSource picture_source(const AppState& app, const ViewWord& word);

/// Returns the command-line options of a view word.
std::string view_options(const AppState& app, const ViewWord& word);

/// Returns the command line that writes the files of a list into a folder. extra: further options.
std::string command_of(const AppState& app, const std::string& list, const std::filesystem::path& folder,
                       const std::string& extra);

/// Returns the command-line options of an export.
std::string export_options(const AppState& app, const ExportRequest& request);

}  // namespace keyhole
