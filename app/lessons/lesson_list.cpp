#include "app/lessons/lesson_list.h"

#include "app/base/assets.h"
#include "app/lessons/lesson_file.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/number.h"
#include "engine/base/user_folder.h"
#include "engine/policy/spec_text.h"

#include <algorithm>
#include <system_error>
#include <tuple>

namespace keyhole {

namespace {

/// Returns "lost-needle" for "09-lost-needle".
std::string name_of(const std::filesystem::path& file) {
    std::string stem = file.stem().string();
    const std::size_t dash = stem.find('-');
    if (dash != std::string::npos && dash > 0 && dash + 1 < stem.size() &&
        stem.find_first_not_of("0123456789") == dash)
        stem.erase(0, dash + 1);
    return stem;
}

ListedLesson listed(const std::filesystem::path& file, bool own) {
    ListedLesson one{file, name_of(file), own, {}, {}};
    try {
        one.lesson = read_lesson(file);
    } catch (const Error& error) {
        one.fault = error.what();
    }
    return one;
}

void add_folder(const std::filesystem::path& folder, bool own, std::vector<ListedLesson>& all) {
    if (folder.empty()) return;
    std::vector<ListedLesson> found;
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error))
        if (entry->path().extension() == ".json") found.push_back(listed(entry->path(), own));
    std::sort(found.begin(), found.end(), [](const ListedLesson& a, const ListedLesson& b) {
        return std::tie(a.lesson.number, a.name) < std::tie(b.lesson.number, b.name);
    });
    std::move(found.begin(), found.end(), std::back_inserter(all));
}

}  // namespace

std::filesystem::path own_lessons_folder() {
    const std::filesystem::path data = user_folder(UserFolder::data);
    return data.empty() ? data : data / "lessons";
}

/// A path was meant, and no name that is spelled like one.
[[noreturn]] static void refuse_missing_file(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::string shown = shown_text(path.string());
    if (std::filesystem::is_symlink(std::filesystem::symlink_status(path, ignored)))
        fail(ErrorCode::bad_file,
             "cannot read the lesson {}: it is a link to {}, which is not there; check the path", shown,
             shown_text(std::filesystem::read_symlink(path, ignored).string()));
    if (std::filesystem::exists(path, ignored))
        fail(ErrorCode::bad_file, "cannot read {} as a lesson: its name does not end in .json; rename it",
             shown);
    fail(ErrorCode::bad_file,
         "cannot read the lesson {}: there is no such file; check the path, or take a name that keyhole "
         "lesson --list prints",
         shown);
}

std::vector<ListedLesson> list_all_lessons() {
    std::vector<ListedLesson> all;
    if (const std::filesystem::path assets = find_assets(); !assets.empty())
        add_folder(assets / "lessons", false, all);
    add_folder(own_lessons_folder(), true, all);
    return all;
}

ListedLesson find_lesson(std::string_view name, std::span<const ListedLesson> all) {
    const auto known = [&](const ListedLesson& one) {
        if (!one.fault.empty()) fail(ErrorCode::bad_file, "{}", one.fault);
        return one;
    };
    if (const auto number = number_from_text(name, 1, 9999))
        for (const ListedLesson& one : all)
            if (one.lesson.number == *number) return known(one);
    for (const ListedLesson& one : all)
        if (one.name == name || one.file.stem().string() == name) return known(one);
    const std::filesystem::path path(name);
    std::error_code ignored;
    // A lesson of Keyhole stays one when it is named by its path: its file is not the user's to change.
    for (const ListedLesson& one : all)
        if (std::filesystem::equivalent(one.file, path, ignored)) return known(one);
    if (path.extension() == ".json" && std::filesystem::exists(path, ignored))
        return {path, name_of(path), true, read_lesson(path), {}};
    const bool is_there =
        std::filesystem::symlink_status(path, ignored).type() != std::filesystem::file_type::not_found;
    if (path.has_parent_path() || path.extension() == ".json" || is_there) refuse_missing_file(path);
    std::vector<std::string_view> names;
    for (const ListedLesson& one : all) names.push_back(one.name);
    if (names.empty())
        fail(ErrorCode::wrong_use,
             "there is no lesson '{}': none are installed; give the path of a .json file", shown_text(name));
    const std::string hint = spec_text::near_hint(name, names);
    fail(ErrorCode::wrong_use,
         "there is no lesson '{}'{} keyhole lesson --list lists all; the path of a .json file works too",
         shown_text(name), hint.empty() ? ";" : hint);
}

}  // namespace keyhole
