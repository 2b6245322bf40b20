/// What the window remembers from one start to the next: scale, arrangement, colours, pane sizes, recent files. Window thread; knows
/// neither GL nor ImGui.
#pragma once

#include "app/view/view_state.h"

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole {

/// Newest first, each once, at most kMost.
struct RecentFiles {
    static constexpr std::size_t kMost = 8;
    std::vector<std::string> paths;
    void add(const std::filesystem::path& path);
    bool operator==(const RecentFiles&) const = default;
};

/// Below $XDG_CONFIG_HOME, else ~/.config; empty when neither is known.
std::filesystem::path settings_file();
/// Into the view and the list, as far as the file holds them. Throws Error(bad_file) naming file and field, and then
/// changes nothing.
void load_settings(const std::filesystem::path& file, ViewState& view, RecentFiles& recent);
/// Makes its folder; the file is whole or as it was. False when it cannot be written: settings are no reason to stop.
bool save_settings(const std::filesystem::path& file, const ViewState& view, const RecentFiles& recent);

}  // namespace keyhole
