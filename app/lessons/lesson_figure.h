/// What a step of a lesson looks at, as HTML with its pictures inside, drawn by the code of all figures. Any
/// thread; knows no window.
#pragma once

#include "app/lessons/lesson_claims.h"

#include <string>

namespace keyhole {

/// Draws the answers of the lanes, the text with what a lane keeps, a head, an atlas or a curve. Empty if the
/// step looks at none of these.
std::string step_figure(const LessonStep& step, const Lesson& lesson, const Evidence& evidence);

}  // namespace keyhole
