#include "app/window/command_areas.h"

#include "engine/base/error.h"

#include <array>

namespace keyhole {

namespace {

using namespace key;

void start_export(AppState& app) {
    if (!app.live() || !app.has_run())
        fail(ErrorCode::wrong_use, "an export re-runs a live run; for an opened trace use keyhole replay");
    app.export_job.start(app.engine().model(), app.status.run, app.last_row(), app.backend_options, app.wake);
}

void export_run(AppState& app, std::string_view arguments) {
    if (arguments.empty()) {
        open_dialog<Dialog::export_run>(app, {});
        return;
    }
    const std::size_t blank = arguments.find(' ');
    app.export_job.wish.folder = std::filesystem::path(arguments.substr(0, blank));
    if (blank != std::string_view::npos) app.export_job.wish.list = arguments.substr(blank + 1);
    start_export(app);
}

constexpr std::array kTable = {
    UserCommand{"file.open",
                menu::kFile,
                "Open a trace…",
                "[FILE.keyhole]",
                {'O', kCtrl},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::open_trace>(app, {})
                              : app.open_trace(std::filesystem::path(a));
                }},
    UserCommand{"file.save",
                menu::kFile,
                "Save the trace…",
                "[FILE.keyhole]",
                {'S', kCtrl},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::save_trace>(app, {})
                              : app.save_trace(std::filesystem::path(a));
                }},
    UserCommand{"file.export",
                menu::kFile,
                "Export the run…",
                "[FOLDER [LIST]]: the same files as keyhole decode.",
                {'E', kCtrl},
                export_run},
    UserCommand{"file.picture",
                menu::kFile,
                "Save a picture of the focused view…",
                "[FILE.png]: with axes, scale and caption.",
                {'E', kCtrl | kShift},
                [](AppState& app, std::string_view a) {
                    a.empty() ? open_dialog<Dialog::save_picture>(app, {})
                              : app.save_picture(std::filesystem::path(a));
                }},
    UserCommand{"screenshot",
                menu::kFile,
                "Save a screenshot…",
                "[FILE.png]: the window as it is.",
                {kF12, 0},
                [](AppState& app, std::string_view a) {
                    if (a.empty())
                        open_dialog<Dialog::save_screenshot>(app, {});
                    else
                        app.screenshot = std::filesystem::path(a);
                }},
    UserCommand{"dump-cells",
                "",
                "Write cells and their pixels",
                "FILE: 20 cells of the heat map with value and colour, as JSON.",
                {},
                [](AppState& app, std::string_view a) {
                    if (a.empty()) fail(ErrorCode::wrong_use, "a file is needed");
                    app.dump_cells = std::filesystem::path(a);
                }},
    UserCommand{"quit",
                menu::kFile,
                "Quit",
                "",
                {'Q', kCtrl},
                [](AppState& app, std::string_view) { app.quit = true; }},
};

}  // namespace

std::span<const UserCommand> export_commands() {
    return kTable;
}

}  // namespace keyhole
