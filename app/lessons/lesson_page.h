/// Lessons as pages to print: HTML with its pictures inside. Pure functions; any thread; knows no window.
#pragma once

#include "app/lessons/lesson_runner.h"

#include <span>
#include <string>
#include <vector>

namespace keyhole {

/// Who reads a printed lesson. A pupil's has the questions and room to write, and no answers; a teacher's has
/// all that was measured, with the right answers in front.
enum class Reader { teacher, pupil };

struct PrintedLesson {
    Lesson lesson;
    LessonCheck check;                 ///< what its steps measured
    std::vector<std::string> figures;  ///< one for each step, may be empty
};

/// Runs a lesson and draws what its steps look at. A model that cannot be loaded is a fault of this machine,
/// and no part of the page: throws what `models` does, and Error(cancelled).
PrintedLesson run_for_print(const Lesson& lesson, const LessonModels& models, const BackendOptions& backend,
                            const ProgressReport& progress = {});

/// Returns the page of a lesson, or a booklet of several: with a list of them in front, each on a new sheet.
std::string lesson_page(std::span<const PrintedLesson> lessons, Reader reader);

}  // namespace keyhole
