#include "app/actions/action_areas.h"
#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <algorithm>
#include <array>

namespace keyhole {

namespace {

void open_page(AppState& app, std::string_view) {
    app.papers.list_made();
    open_dialog<Dialog::papers>(app, {});
}

/// arguments: NAME [MODEL].
void make(AppState& app, std::string_view arguments) {
    const std::size_t end = arguments.find(' ');
    const std::string_view name = arguments.substr(0, end);
    std::string model(end == std::string_view::npos ? "" : arguments.substr(end + 1));
    if (model.empty()) model = app.run.setup.model_folder.string();
    app.papers.make(name, model, app.wake);
    app.notify(
        fmt::format("making {} on {} in the background", app.papers.wanted(), app.papers.wanted_model()));
}

/// arguments: [NAME].
void enlarge(AppState& app, std::string_view name) {
    if (!name.empty() &&
        std::ranges::find(app.papers.cards, name, &PaperCard::name) == app.papers.cards.end())
        fail(ErrorCode::wrong_use, "there is no figure '{}'; the page Papers lists them", shown_text(name));
    if (app.dialog != Dialog::papers) open_page(app, {});
    app.papers.enlarged = name;
}

std::string_view needs_figure_job(const AppState& app) {
    return app.papers.running() ? "" : "no figure is being made";
}

constexpr std::array kPaperActions = {
    UserAction{"papers",
               "Figures of the papers",
               "Shows whether what the papers found holds here.",
               {},
               open_page,
               {.menu = {MenuGroup::help_papers, 1}}},
    UserAction{
        "papers.make",
        "Make a figure of a paper",
        "NAME [MODEL]: runs `keyhole figure NAME` in the background; without MODEL, on that of the run.",
        {},
        make},
    UserAction{"papers.open",
               "Enlarge a figure of a paper",
               "[NAME]: fills the page with its pictures; without a name, back to the list.",
               {},
               enlarge,
               {.elsewhere = "a click on a picture of the page"}},
    UserAction{"papers.cancel",
               "Cancel making the figure",
               "",
               {},
               [](AppState& app, std::string_view) { app.papers.cancel(); },
               {.menu = {MenuGroup::help_papers, 2}, .lacks = needs_figure_job}},
};

}  // namespace

std::span<const UserAction> paper_actions() {
    return kPaperActions;
}

}  // namespace keyhole
