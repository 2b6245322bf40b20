/// Finds lessons: those that come with Keyhole (assets/lessons) and the user's own. Any thread; reads files.
#pragma once

#include "app/lessons/lesson.h"

#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

struct ListedLesson {
    std::filesystem::path file;
    std::string name;   ///< "lost-needle" of 09-lost-needle.json
    bool own = false;   ///< lies in the user's folder
    Lesson lesson;      ///< empty if the file cannot be read
    std::string fault;  ///< why it cannot be read; empty if it can
};

/// Returns $XDG_DATA_HOME/keyhole/lessons, or ~/.local/share/keyhole/lessons; empty if neither is known.
std::filesystem::path own_lessons_folder();
/// Returns all lessons: Keyhole's by number, then the user's by name. A file that cannot be read stands in
/// the list with its fault.
std::vector<ListedLesson> list_all_lessons();
/// Returns the lesson that a person names: by number, by name, or by the path of a .json file. Throws
/// Error(wrong_use) with the nearest names, and what read_lesson() throws.
ListedLesson find_lesson(std::string_view name, std::span<const ListedLesson> all);

}  // namespace keyhole
