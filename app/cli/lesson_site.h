/// Lessons as pages for any web server: an index, a page a lesson whose predictions are checked in the
/// reader's browser, a page a run, and the manual. Pure functions but for write_manual_pages(); any thread.
#pragma once

#include "app/lessons/lesson_runner.h"

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A lesson and what its run has shown.
struct LessonOfSite {
    std::string name;  ///< "09-lost-needle": its files begin so
    Lesson lesson;
    LessonCheck check;
    std::vector<std::string> figures;  ///< one for each step, may be empty
    std::vector<std::string> runs;     ///< [step] file of the page of the run that it ends; empty: none
};

/// Returns "09-lost-needle" for lesson 9, "lost-needle".
std::string site_name(const Lesson& lesson, std::string_view name);

std::string site_lesson_page(const LessonOfSite& of);
std::string site_index_page(const std::vector<LessonOfSite>& lessons,
                            const std::vector<std::string>& manual_pages);
/// Writes manual/NAME.html into the folder for each page of the manual, and the pictures that they show.
void write_manual_pages(const std::filesystem::path& manual, const std::filesystem::path& folder);

}  // namespace keyhole
