/// Reads and writes lessons: one JSON file each. Any thread; knows no session and no window.
///
/// Members; those with "?" may be left out:
///     version 1, number?, title, question, note?, run, steps
///     run    {model?, prompt, then?, lanes?, follow?, chat?, answer?, watch?, stop?}
///     steps  [{title?, text, run?, do?, look?, predict?, reveal? {do?, text?, claims?}, play?, note?}]
/// assets/manual/lessons.md describes each of them.
#pragma once

#include "app/lessons/lesson.h"

#include <filesystem>
#include <string>
#include <string_view>

namespace keyhole {

/// Parses a lesson. name: the file, for messages. Throws Error(bad_file) with file, member and what is
/// wanted; also for a text of more than Lesson::kMostWords words, an unknown member, an unknown measure, an
/// invalid lane or command.
Lesson parse_lesson(std::string_view text, std::string_view name);
Lesson read_lesson(const std::filesystem::path& file);
/// Returns the file's text; parse_lesson() gives an equal lesson.
std::string lesson_text(const Lesson& lesson);
/// Writes the file atomically. Throws Error(io).
void write_lesson(const Lesson& lesson, const std::filesystem::path& file);

/// Returns the words of a LessonText. Files are those below assets/. Throws Error(bad_file).
std::string words_of(const LessonText& text);

}  // namespace keyhole
