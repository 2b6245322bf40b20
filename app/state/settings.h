/// Stores what the window remembers between starts: scale, arrangement, colours, pane sizes, recent files and
/// models, finished lessons.
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/view/view_state.h"

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

/// Recent files, and recent models among them: newest first, no duplicates, at most kMost of each. Finished
/// lessons.
struct RecentFiles {
    static constexpr std::size_t kMost = 8;
    std::vector<std::string> paths;
    std::vector<std::string> models;
    std::vector<std::string> lessons;  ///< names of the lessons whose last step was seen; all of them
    void add(const std::filesystem::path& path) { add(path, paths); }
    void add_model(const std::filesystem::path& path) { add(path, models); }
    void add_lesson(const std::string& name);
    bool has_finished(const std::string& name) const;
    bool operator==(const RecentFiles&) const = default;

  private:
    static void add(const std::filesystem::path& path, std::vector<std::string>& to);
};

/// Returns the file below $XDG_CONFIG_HOME, else ~/.config; empty if neither is known.
std::filesystem::path settings_file();
/// Reads the fields that the file holds into view and list. Throws Error(bad_file) naming file and field,
/// and then changes nothing.
void load_settings(const std::filesystem::path& file, ViewState& view, RecentFiles& recent);
/// Writes the file atomically and makes its folder. Returns false if it cannot be written, since settings
/// are no reason to stop.
bool save_settings(const std::filesystem::path& file, const ViewState& view, const RecentFiles& recent);

/// Saves the settings a few seconds after a change, so that a window that is killed loses few.
class SettingsFile {
  public:
    using Time = std::chrono::steady_clock::time_point;
    explicit SettingsFile(std::filesystem::path file) : file_(std::move(file)) {}
    /// Call often. The first call says what the file holds.
    void update(const ViewState& view, const RecentFiles& recent, Time now);
    void save(const ViewState& view, const RecentFiles& recent);
    /// Returns whether a change is not saved yet.
    bool waits() const { return changed_at_.has_value(); }

  private:
    void write(std::string text);

    std::filesystem::path file_;
    std::string saved_;  // the text of the file, or what it was meant to be; empty: not known yet
    std::optional<Time> changed_at_;
};

}  // namespace keyhole
