#include "app/window/settings.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <fstream>

namespace keyhole {

void RecentFiles::add(const std::filesystem::path& path) {
    std::error_code ignored;
    const std::filesystem::path whole = std::filesystem::absolute(path, ignored);
    const std::string text = (ignored ? path : whole).string();
    std::erase(paths, text);
    paths.insert(paths.begin(), text);
    if (paths.size() > kMost) paths.resize(kMost);
}

std::filesystem::path settings_file() {
    const char* config = std::getenv("XDG_CONFIG_HOME");
    if (config != nullptr && *config != '\0')
        return std::filesystem::path(config) / "keyhole" / "window.json";
    const char* home = std::getenv("HOME");
    if (home == nullptr || *home == '\0') return {};
    return std::filesystem::path(home) / ".config" / "keyhole" / "window.json";
}

void load_settings(const std::filesystem::path& file, ViewState& view, RecentFiles& recent) {
    std::ifstream stream(file, std::ios::binary);
    if (file.empty() || !stream) return;
    const nlohmann::json in = nlohmann::json::parse(stream, nullptr, false);
    if (!in.is_object()) return;
    try {
        view.interface_scale = std::clamp(in.value("interface_scale", view.interface_scale), 0.5f, 3.0f);
        const std::string arranged = in.value("arrangement", std::string());
        for (const Arrangement a : {Arrangement::explore, Arrangement::compare, Arrangement::teach})
            if (arranged == arrangement_name(a)) view.arrangement = a;
        if (const auto map = colormap_from_name(in.value("colors", std::string()))) view.colors = *map;
        view.mask_overlay = in.value("hatch", view.mask_overlay);
        view.attention_range.logarithmic = in.value("logarithmic", view.attention_range.logarithmic);
        view.left_width = in.value("left_width", view.left_width);
        view.right_width = in.value("right_width", view.right_width);
        view.atlas_width = in.value("atlas_width", view.atlas_width);
        view.bottom_height = in.value("bottom_height", view.bottom_height);
        for (const std::string& path : in.value("recent", std::vector<std::string>()))
            if (recent.paths.size() < RecentFiles::kMost) recent.paths.push_back(path);
    } catch (const nlohmann::json::exception&) {  // another version's: what was read stays
    }
}

bool save_settings(const std::filesystem::path& file, const ViewState& view, const RecentFiles& recent) {
    if (file.empty()) return false;
    const nlohmann::json out = {{"interface_scale", view.interface_scale},
                                {"arrangement", arrangement_name(view.arrangement)},
                                {"colors", colormap_name(view.colors)},
                                {"hatch", view.mask_overlay},
                                {"logarithmic", view.attention_range.logarithmic},
                                {"left_width", view.left_width},
                                {"right_width", view.right_width},
                                {"atlas_width", view.atlas_width},
                                {"bottom_height", view.bottom_height},
                                {"recent", recent.paths}};
    std::error_code ignored;
    std::filesystem::create_directories(file.parent_path(), ignored);
    try {
        write_text_file(file, out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
                        Durability::sync);
    } catch (const Error&) {
        return false;
    }
    return true;
}

}  // namespace keyhole
