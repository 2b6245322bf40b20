/// Holds a user's additions to a run: bookmarks and notes. Stored in a file beside the trace. Window thread;
/// knows neither GL nor ImGui.
#pragma once

#include "app/view/view_state.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// A stored view of the run.
struct Bookmark {
    std::string name;
    int lane = 0, layer = 0, head = 0, row = 0;
    HeatMode mode = HeatMode::attention;
    std::optional<Pick> pick;
    int other = 0;  ///< lane that the focused one is compared with
    bool difference = false;
    Arrangement arrangement = Arrangement::explore;
    std::optional<HeatView> zoom;  ///< empty: the whole matrix
    bool operator==(const Bookmark&) const = default;
};

struct Annotations {
    std::vector<Bookmark> bookmarks;
    std::string notes;
    std::filesystem::path trace;  ///< that they are of; empty: the live run. Not stored
    bool empty() const { return bookmarks.empty() && notes.empty(); }
    bool operator==(const Annotations&) const = default;
};

/// Returns "run.notes.json" in the same folder for a trace "run.keyhole".
std::filesystem::path annotations_file(const std::filesystem::path& trace);
/// Writes the file atomically; removes it if there is nothing to store. Throws Error(io).
void save_annotations(const Annotations& annotations, const std::filesystem::path& file);
/// Returns the file's content; empty if there is no file. Throws Error(bad_file) naming file and field.
Annotations load_annotations(const std::filesystem::path& file);

}  // namespace keyhole
