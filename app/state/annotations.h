/// What a person adds to a run: bookmarks of places to come back to, and notes. Kept in a file beside the trace. Window thread; knows
/// neither GL nor ImGui.
#pragma once

#include "app/view/view_state.h"

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

/// A view of the run.
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
    bool empty() const { return bookmarks.empty() && notes.empty(); }
    bool operator==(const Annotations&) const = default;
};

/// "run.keyhole" has "run.notes.json" beside it.
std::filesystem::path annotations_file(const std::filesystem::path& trace);
/// Whole or not at all. Throws Error(io). Nothing to keep: no file, and an old one goes.
void save_annotations(const Annotations& annotations, const std::filesystem::path& file);
/// Empty where there is no file. Throws Error(bad_file) naming file and field.
Annotations load_annotations(const std::filesystem::path& file);

}  // namespace keyhole
