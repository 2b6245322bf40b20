#include "app/state/settings.h"

#include "app/state/answer_strips.h"
#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/mapped_file.h"
#include "engine/base/user_folder.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>
#include <utility>

namespace keyhole {

void RecentFiles::add(const std::filesystem::path& path, std::vector<std::string>& to) {
    std::error_code ignored;
    const std::filesystem::path whole = std::filesystem::absolute(path, ignored);
    const std::string text = (ignored ? path : whole).string();
    std::erase(to, text);
    to.insert(to.begin(), text);
    if (to.size() > kMost) to.resize(kMost);
}

void RecentFiles::add_lesson(const std::string& name) {
    if (!has_finished(name)) lessons.push_back(name);
}

bool RecentFiles::has_finished(const std::string& name) const {
    return std::ranges::find(lessons, name) != lessons.end();
}

std::filesystem::path settings_file() {
    const std::filesystem::path config = user_folder(UserFolder::config);
    return config.empty() ? config : config / "window.json";
}

void load_settings(const std::filesystem::path& file, ViewState& view, RecentFiles& recent) {
    std::error_code error;
    if (file.empty() || std::filesystem::status(file, error).type() == std::filesystem::file_type::not_found)
        return;
    constexpr std::size_t kMostBytes = 1 << 20, kMostText = 4096, kMostFiles = 1000;
    constexpr double kWidest = 100'000;  // pixels
    const std::string name = file.string();
    const nlohmann::json root = parse_json(read_text_file(file, kMostBytes), name);
    const JsonField in(root, name);
    ViewState read = view;
    RecentFiles files = recent;
    if (const std::optional<JsonField> scale = in.find("interface_scale"))
        read.interface_scale = static_cast<float>(std::clamp(scale->number(0, kWidest), 0.5, 3.0));
    if (const std::optional<JsonField> arranged = in.find("arrangement"))
        for (const Arrangement a : kArrangements)
            if (arranged->text(kMostText) == arrangement_name(a)) read.arrangement = a;
    if (const std::optional<JsonField> theme = in.find("theme"))
        read.background = theme->text(kMostText) == "light" ? Background::light : Background::dark;
    if (const std::optional<JsonField> colors = in.find("colors"))
        if (const auto map = colormap_from_name(colors->text(kMostText))) read.colors = *map;
    if (const std::optional<JsonField> strips = in.find("strips")) {
        const std::string& key = strips->text(kMostText);
        read.strip_key =
            std::ranges::find(kStripOptions, key, &StripOption::key) != kStripOptions.end() ? key : "";
    }
    for (const auto& [key, to] : {std::pair("hatch", &read.mask_overlay),
                                  {"bounds", &read.bounds},
                                  {"logarithmic", &read.attention_range.logarithmic}})
        if (const std::optional<JsonField> flag = in.find(key)) *to = flag->flag();
    for (const auto& [key, to] : {std::pair("left_width", &read.left_width),
                                  {"right_width", &read.right_width},
                                  {"atlas_height", &read.atlas_height},
                                  {"text_height", &read.text_height},
                                  {"curves_height", &read.curves_height}})
        if (const std::optional<JsonField> width = in.find(key))
            *to = static_cast<float>(width->number(0, kWidest));
    for (const auto& [key, to] : {std::pair("recent", &files.paths), {"recent_models", &files.models}})
        if (const std::optional<JsonField> paths = in.find(key))
            for (std::size_t i = 0, n = paths->size(kMostFiles); i < n; ++i)
                if (const std::string& path = paths->at(i).text(kMostText); to->size() < RecentFiles::kMost)
                    to->push_back(path);
    if (const std::optional<JsonField> lessons = in.find("finished_lessons"))
        for (std::size_t i = 0, n = lessons->size(kMostFiles); i < n; ++i)
            files.add_lesson(lessons->at(i).text(kMostText));
    view = std::move(read);
    recent = std::move(files);
}

namespace {

std::string settings_text(const ViewState& view, const RecentFiles& recent) {
    const nlohmann::json out = {{"interface_scale", view.interface_scale},
                                {"arrangement", arrangement_name(view.arrangement)},
                                {"theme", view.background == Background::light ? "light" : "dark"},
                                {"colors", colormap_name(view.colors)},
                                {"strips", view.strip_key},
                                {"bounds", view.bounds},
                                {"hatch", view.mask_overlay},
                                {"logarithmic", view.attention_range.logarithmic},
                                {"left_width", view.left_width},
                                {"right_width", view.right_width},
                                {"atlas_height", view.atlas_height},
                                {"text_height", view.text_height},
                                {"curves_height", view.curves_height},
                                {"recent", recent.paths},
                                {"recent_models", recent.models},
                                {"finished_lessons", recent.lessons}};
    return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

bool write_settings(const std::filesystem::path& file, const std::string& text) {
    if (file.empty()) return false;
    std::error_code ignored;
    std::filesystem::create_directories(file.parent_path(), ignored);
    try {
        write_text_file(file, text, Durability::sync);
    } catch (const Error&) {
        return false;
    }
    return true;
}

}  // namespace

bool save_settings(const std::filesystem::path& file, const ViewState& view, const RecentFiles& recent) {
    return write_settings(file, settings_text(view, recent));
}

void SettingsFile::update(const ViewState& view, const RecentFiles& recent, Time now) {
    constexpr std::chrono::seconds kPatience{3};  // a dragged border changes in every frame
    if (file_.empty()) return;
    std::string text = settings_text(view, recent);
    if (saved_.empty()) saved_ = text;
    if (text == saved_) return changed_at_.reset();
    if (!changed_at_) changed_at_ = now;
    if (now - *changed_at_ >= kPatience) write(std::move(text));
}

void SettingsFile::write(std::string text) {
    (void)write_settings(file_, text);
    saved_ = std::move(text);
    changed_at_.reset();
}

void SettingsFile::save(const ViewState& view, const RecentFiles& recent) {
    write(settings_text(view, recent));
}

}  // namespace keyhole
