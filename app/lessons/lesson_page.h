/// A lesson as a page to print or to read: HTML with its pictures inside, drawn by the code of all figures.
/// Any thread; knows no window.
#pragma once

#include "app/lessons/lesson_runner.h"

#include <string>
#include <vector>

namespace keyhole {

/// Draws what a step looks at, as HTML: the answers of the lanes, the text with what a lane keeps, a head, an
/// atlas or a curve. Empty if the step looks at none of these.
std::string step_figure(const LessonStep& step, const Lesson& lesson, const Evidence& evidence);

/// Returns the page. check: what its steps measured; figures: one for each step, may be empty.
std::string lesson_page(const Lesson& lesson, const LessonCheck& check,
                        const std::vector<std::string>& figures);

}  // namespace keyhole
