#include "app/state/annotations.h"

#include "engine/base/error.h"
#include "engine/base/json_field.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <array>
#include <system_error>
#include <utility>

namespace keyhole {

namespace {

constexpr std::array kModes = {HeatMode::attention, HeatMode::mask, HeatMode::score};
constexpr std::size_t kMostNoteBytes = 8 << 20, kMostBookmarks = 10'000, kMostBookmarkName = 4096;
constexpr int kMostPlaces = 1 << 20;  // lanes, layers, heads and rows of a run are fewer

/// Checks that places are within what any run can have. The view clamps them to the run that it shows.
Bookmark bookmark_of(const JsonField& in) {
    Bookmark b;
    b.name = in["name"].text(kMostBookmarkName);
    for (const auto& [name, to] :
         {std::pair("lane", &b.lane), {"layer", &b.layer}, {"head", &b.head}, {"row", &b.row}})
        *to = in[name].integer(0, kMostPlaces);
    const std::string& mode_text = in["mode"].text(kMostBookmarkName);
    for (const HeatMode mode : kModes)
        if (mode_text == mode_name(mode)) b.mode = mode;
    if (const std::optional<JsonField> pick = in.find("pick")) {
        b.pick = Pick{pick->at(0).integer(0, kMostPlaces), 0};
        b.pick->position = pick->at(1).integer(0, b.pick->row);
    }
    // Files of older versions lack these.
    if (const std::optional<JsonField> other = in.find("other")) b.other = other->integer(0, kMostPlaces);
    if (const std::optional<JsonField> difference = in.find("difference")) b.difference = difference->flag();
    if (const std::optional<JsonField> name = in.find("arrangement"))
        for (const Arrangement a : kArrangements)
            if (name->text(kMostBookmarkName) == arrangement_name(a)) b.arrangement = a;
    if (const std::optional<JsonField> zoom = in.find("zoom")) {
        const auto corner = [&](std::size_t i) { return zoom->at(i).number(-kMostPlaces, kMostPlaces); };
        const auto cell = [&](std::size_t i) {
            return zoom->at(i).number(HeatView::kMinCell, HeatView::kMaxCell);
        };
        b.zoom = HeatView{corner(0), corner(1), cell(2), cell(3), false};
    }
    return b;
}

}  // namespace

std::filesystem::path annotations_file(const std::filesystem::path& trace) {
    return std::filesystem::path(trace).replace_extension(".notes.json");
}

void save_annotations(const Annotations& annotations, const std::filesystem::path& file) {
    // The name follows from the trace's, so the user has not agreed that another file there be replaced.
    try {
        (void)load_annotations(file);
    } catch (const Error& error) {
        if (annotations.empty()) return;
        fail(ErrorCode::io,
             "cannot write the notes {}: that file is not one of Keyhole's ({}); move it elsewhere",
             file.string(), error.what());
    }
    if (annotations.empty()) {
        std::error_code ignored;
        std::filesystem::remove(file, ignored);
        return;
    }
    nlohmann::json out = {
        {"version", 1}, {"notes", annotations.notes}, {"bookmarks", nlohmann::json::array()}};
    for (const Bookmark& b : annotations.bookmarks) {
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

Annotations load_annotations(const std::filesystem::path& file) {
    std::error_code error;
    if (std::filesystem::status(file, error).type() == std::filesystem::file_type::not_found) return {};
    const std::string name = file.string();
    const nlohmann::json root = parse_json(read_text_file(file, kMostNoteBytes), name);
    const JsonField in(root, name), bookmarks = in["bookmarks"];
    Annotations annotations;
    annotations.notes = in["notes"].text(kMostNoteBytes);
    for (std::size_t i = 0, n = bookmarks.size(kMostBookmarks); i < n; ++i)
        annotations.bookmarks.push_back(bookmark_of(bookmarks.at(i)));
    return annotations;
}

}  // namespace keyhole
