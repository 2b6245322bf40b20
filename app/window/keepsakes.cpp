#include "app/window/keepsakes.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <fstream>

namespace keyhole {

namespace {

constexpr std::array kModes = {HeatMode::attention, HeatMode::mask, HeatMode::score};

}  // namespace

std::filesystem::path keepsakes_file(const std::filesystem::path& trace) {
    return std::filesystem::path(trace).replace_extension(".notes.json");
}

void save_keepsakes(const Keepsakes& keepsakes, const std::filesystem::path& file) {
    if (keepsakes.empty()) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
        return;
    }
    nlohmann::json out = {{"version", 1}, {"notes", keepsakes.notes}, {"bookmarks", nlohmann::json::array()}};
    for (const Bookmark& b : keepsakes.bookmarks) {
        nlohmann::json one = {{"name", b.name}, {"lane", b.lane}, {"layer", b.layer},
                              {"head", b.head}, {"row", b.row},   {"mode", mode_name(b.mode)}};
        one["other"] = b.other;
        one["difference"] = b.difference;
        one["arrangement"] = arrangement_name(b.arrangement);
        if (b.zoom) one["zoom"] = {b.zoom->left, b.zoom->top, b.zoom->cell_width, b.zoom->cell_height};
        if (b.pick) one["pick"] = {b.pick->row, b.pick->position};
        out["bookmarks"].push_back(std::move(one));
    }
    write_text_file(file, out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n",
                    Durability::sync);
}

Keepsakes load_keepsakes(const std::filesystem::path& file) {
    Keepsakes keepsakes;
    std::ifstream stream(file, std::ios::binary);
    if (!stream) return keepsakes;
    try {
        const nlohmann::json in = nlohmann::json::parse(stream);
        keepsakes.notes = in.at("notes").get<std::string>();
        for (const nlohmann::json& one : in.at("bookmarks")) {
            Bookmark b;
            one.at("name").get_to(b.name);
            for (const auto& [name, to] :
                 {std::pair("lane", &b.lane), {"layer", &b.layer}, {"head", &b.head}, {"row", &b.row}})
                one.at(name).get_to(*to);
            // Not in files of older versions.
            b.other = one.value("other", 0);
            b.difference = one.value("difference", false);
            for (const Arrangement a : {Arrangement::explore, Arrangement::compare, Arrangement::teach})
                if (one.value("arrangement", "") == arrangement_name(a)) b.arrangement = a;
            if (one.contains("zoom")) {
                const nlohmann::json& zoom = one["zoom"];
                b.zoom = HeatView{
                    zoom.at(0), zoom.at(1),
                    std::clamp(zoom.at(2).get<double>(), HeatView::kMinCell, HeatView::kMaxCell),
                    std::clamp(zoom.at(3).get<double>(), HeatView::kMinCell, HeatView::kMaxCell), false};
            }
            for (const HeatMode mode : kModes)
                if (one.at("mode").get<std::string>() == mode_name(mode)) b.mode = mode;
            if (one.contains("pick")) b.pick = Pick{one["pick"].at(0), one["pick"].at(1)};
            keepsakes.bookmarks.push_back(std::move(b));
        }
    } catch (const nlohmann::json::exception& error) {
        fail(ErrorCode::bad_file, "reading the notes {}: {}; mend the file or move it away", file.string(),
             error.what());
    }
    return keepsakes;
}

}  // namespace keyhole
