#include "app/panels/dialogs.h"

#include "app/actions/export_words.h"
#include "app/actions/menus.h"
#include "app/actions/steer.h"
#include "app/gl/imgui_compat.h"
#include "app/panels/attribution_page.h"
#include "app/panels/doctor_panel.h"
#include "app/panels/first_words.h"
#include "app/panels/manual_reader.h"
#include "app/panels/notes_dialog.h"
#include "app/panels/override_matrix.h"
#include "app/panels/papers_page.h"
#include "app/panels/policies_page.h"
#include "app/panels/why_page.h"
#include "app/view/focus_picture.h"
#include "app/view/view_export.h"
#include "engine/base/index.h"
#include "engine/export/options.h"

#include <fmt/ranges.h>
#include <imgui_stdlib.h>

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

namespace keyhole {

struct DialogPages {
    OverrideMatrix overrides;
    DoctorPanel doctor;
    WhyPage why;
    ManualReader manual;
    PapersPage papers;
    PoliciesPage policies;
    AttributionPage attribution;
};

namespace {

bool matches(std::string_view text, std::string_view words) {
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; };
    return std::search(text.begin(), text.end(), words.begin(), words.end(),
                       [&](char a, char b) { return lower(a) == lower(b); }) != text.end();
}

void close(const PanelContext& context) {
    run(context, "dialog.close");
}

/// Returns whether Enter was pressed in the dialog that is being drawn: it confirms the main button. Not the
/// press that opened the dialog.
bool confirms(bool opening) {
    return !opening && ImGui::IsWindowFocused(ImGuiFocusedFlags_RootAndChildWindows) &&
           (imgui_compat::is_pressed(ImGuiKey_Enter, false) ||
            imgui_compat::is_pressed(imgui_compat::kKeypadEnter, false));
}

constexpr float kMostHeight = 0.78f;  // of a dialog in front, of the window's

/// Begins a window in the upper middle. Returns false if it is not to be drawn. Call End() either way.
bool begin_in_front(const PanelContext& context, const DialogRow& row, bool opening) {
    const ImVec2 display = ImGui::GetIO().DisplaySize;
    ImGui::SetNextWindowPos({display.x / 2, display.y * 0.14f}, ImGuiCond_Always, {0.5f, 0});
    const float wide = std::min(context.px(row.width), display.x * 0.96f);
    ImGui::SetNextWindowSizeConstraints({wide, 0}, {wide, display.y * kMostHeight});
    if (opening) ImGui::SetNextWindowFocus();
    bool open = true;
    const bool shown = ImGui::Begin(row.title.data(), &open,
                                    ImGuiWindowFlags_NoCollapse | ImGuiWindowFlags_NoMove |
                                        ImGuiWindowFlags_AlwaysAutoResize | ImGuiWindowFlags_NoSavedSettings);
    if (!open) close(context);
    return shown;
}

/// Begins a movable window, at first beside the lanes. Returns false if it is not to be drawn. Call End()
/// either way.
bool begin_beside(const PanelContext& context, const DialogRow& row, bool opening) {
    const float lanes = context.app.view.left_width > 0 ? context.app.view.left_width : 320;
    const ImVec2 display = ImGui::GetIO().DisplaySize;
    const float wide = std::min(context.px(row.width), display.x * 0.96f);
    ImGui::SetNextWindowPos({std::clamp(context.px(lanes + 16), 0.0f, display.x - wide), context.px(60)},
                            ImGuiCond_Appearing);
    ImGui::SetNextWindowSizeConstraints({wide, 0}, {wide, display.y - context.px(90)});
    if (opening) ImGui::SetNextWindowFocus();
    bool open = true;
    const bool shown = ImGui::Begin(
        row.title.data(), &open,
        ImGuiWindowFlags_NoCollapse | ImGuiWindowFlags_AlwaysAutoResize | ImGuiWindowFlags_NoSavedSettings);
    if (!open) close(context);
    return shown;
}

/// Runs an action of the palette. If its arguments must be given and no dialog asks for them, writes its id
/// into the field.
void choose(Dialogs& panel, const PanelContext& context, const UserAction& action) {
    if (needs_arguments(action) && !action.title.ends_with("…")) {
        panel.text = fmt::format("{} ", action.id);
        panel.selected = 0;
        panel.to_end = true;
    } else {
        close(context);
        run(context, action.id);
    }
}

/// Returns how well an action fits the words: 0: its id, 1: its title or a part of its id, 2: its help.
std::optional<int> fit_of(const UserAction& action, const std::string& words, bool is_id) {
    const std::string first_word = words.substr(0, words.find(' '));
    if (action.id == first_word) return 0;
    if (matches(action.title, words) || matches(action.id, is_id ? first_word : words)) return 1;
    if (!words.empty() && matches(action.help, words)) return 2;
    return std::nullopt;
}

/// Returns the actions that fit the words, the best first.
std::vector<const UserAction*> actions_for(const std::string& words, bool is_id) {
    std::array<std::vector<const UserAction*>, 3> found;
    for (const UserAction& action : action_table())
        if (const auto fit = fit_of(action, words, is_id)) found[to_index(*fit)].push_back(&action);
    for (const int fit : {1, 2})
        found[0].insert(found[0].end(), found[to_index(fit)].begin(), found[to_index(fit)].end());
    return std::move(found[0]);
}

/// Draws the matching actions, a line each. A click chooses one.
void draw_found(Dialogs& panel, const PanelContext& context, const std::vector<const UserAction*>& found) {
    const ScopedChild child("found", {0, context.px(360)});
    for (std::size_t i = 0; i < found.size(); ++i) {
        const UserAction& action = *found[i];
        const ScopedId id(static_cast<int>(i));
        const bool selected = static_cast<int>(i) == panel.selected;
        const float top = ImGui::GetCursorPosY();
        if (ImGui::Selectable("##row", selected)) {
            choose(panel, context, action);
            panel.takes_focus = panel.to_end;
        }
        mark_item(context, fmt::format("palette {}", action.id));
        if (selected && panel.selected_by != 0) ImGui::SetScrollHereY();
        ImGui::SameLine(context.px(6));
        ImGui::TextUnformatted(std::string(action.title).c_str());
        ImGui::SameLine();
        const std::string keys = shortcut_text(action.shortcut);
        const std::string words =
            fmt::format("{}{}{}", action.id, action.help.empty() ? "" : "   ", action.help);
        const float room = ImGui::GetContentRegionAvail().x - context.px(24) -
                           (keys.empty() ? 0 : ImGui::CalcTextSize(keys.c_str()).x);
        const std::string cut = [&] {
            const ScopedFont font(context.fonts.small);
            return fitted(words, room);
        }();
        dim_text(context, cut);
        if (cut != words) tooltip(context, action.help);
        if (!keys.empty()) {
            ImGui::SetCursorPos(
                {ImGui::GetWindowWidth() - ImGui::CalcTextSize(keys.c_str()).x - context.px(16), top});
            ImGui::TextDisabled("%s", keys.c_str());
        }
    }
    if (found.empty()) ImGui::TextDisabled("no command contains these words");
}

/// Moves the cursor behind words that were written into the field; else ImGui selects them all.
int move_to_end(ImGuiInputTextCallbackData* data) {
    Dialogs& panel = *static_cast<Dialogs*>(data->UserData);
    if (std::exchange(panel.to_end, false))
        data->CursorPos = data->SelectionStart = data->SelectionEnd = data->BufTextLen;
    return 0;
}

/// Runs what Enter ends: the field's words with their arguments, or the selected action.
void enter(Dialogs& panel, const PanelContext& context, const std::vector<const UserAction*>& found,
           bool is_id) {
    const std::string text = from_field(panel.text);
    const bool has_arguments = is_id && text.find(' ') != std::string::npos;
    if (!has_arguments && !found.empty()) {
        choose(panel, context, *found[to_index(panel.selected)]);
    } else {
        close(context);
        run(context, text);
    }
}

void draw_palette(Dialogs& panel, const PanelContext& context, bool opening) {
    if (opening || std::exchange(panel.takes_focus, false)) ImGui::SetKeyboardFocusHere();
    ImGui::SetNextItemWidth(-1);
    const bool entered = ImGui::InputTextWithHint(
        "##words", "a command, or its id with arguments: lane 1 h2o:budget=32", &panel.text,
        ImGuiInputTextFlags_EnterReturnsTrue | ImGuiInputTextFlags_CallbackAlways, move_to_end, &panel);
    mark_item(context, "palette.words");
    const bool is_id = find_action(panel.text.substr(0, panel.text.find(' '))) != nullptr;
    const std::vector<const UserAction*> found = actions_for(panel.text, is_id);
    panel.selected =
        std::clamp(panel.selected + panel.selected_by, 0, std::max(0, static_cast<int>(found.size()) - 1));
    if (entered) enter(panel, context, found, is_id);
    // At once, or the letters that follow Enter would be lost.
    if (entered && panel.to_end) ImGui::SetKeyboardFocusHere(-1);
    draw_found(panel, context, found);
}

void draw_keys(Dialogs&, const PanelContext& context, bool) {
    struct KeyLine {
        std::string keys, title;
    };
    std::vector<std::pair<std::string_view, std::vector<KeyLine>>> groups;  // grouped as in the menus
    std::size_t n_lines = 0;
    for (const UserAction& action : action_table()) {
        const bool speeds = action.id == "run.speed0";
        if (action.shortcut.code == 0 || (action.id.starts_with("run.speed") && !speeds)) continue;
        std::string_view menu = menu_of(action);
        if (menu.empty()) menu = "Other";
        auto group =
            std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == menu; });
        if (group == groups.end()) {
            group = groups.insert(groups.end(), {menu, {}});
            n_lines += 2;
        }
        group->second.push_back({speeds ? "0 … 9" : shortcut_text(action.shortcut),
                                 speeds ? "Speed (0: no limit)" : std::string(action.title)});
        ++n_lines;
    }
    std::stable_partition(groups.begin(), groups.end(), [](const auto& g) { return g.first != "Other"; });
    groups.push_back({"Without a pointer",
                      {{"Tab", "The next button or field"},
                       {"Shift+Tab", "The one before"},
                       {"Ctrl+Tab", "The next pane"},
                       {"Enter, Space", "Press what has the ring"},
                       {"Esc", "Take the ring away"}}});
    n_lines += groups.back().second.size() + 2;
    if (ImGui::BeginTable("keys", 2, ImGuiTableFlags_SizingStretchSame)) {
        std::size_t n = 0;
        ImGui::TableNextColumn();
        for (const auto& [menu, lines] : groups) {
            // Goes to the second column where that balances the two best.
            if (ImGui::TableGetColumnIndex() == 0 && n + (lines.size() + 2) / 2 > n_lines / 2)
                ImGui::TableNextColumn();
            n += lines.size() + 2;
            heading(context, menu);
            for (const KeyLine& line : lines) {
                colored_text(theme::colors().accent, line.keys);
                ImGui::SameLine(context.px(110));
                const std::string title = fitted(line.title, ImGui::GetContentRegionAvail().x);
                ImGui::TextUnformatted(title.c_str());
                if (title != line.title) tooltip(context, line.title);
            }
            ImGui::Spacing();
        }
        ImGui::EndTable();
    }
    ImGui::Separator();
    dim_text(context,
             "Heat map: wheel zooms at the pointer (Shift: fast), left-drag pans, right-drag zooms to a box, "
             "double-click fits,");
    dim_text(context, "click picks, Shift+click picks several. Ctrl+wheel scales the interface.");
}

/// Draws the words that can be exported, a line each.
void draw_export_words(const PanelContext& context, const ExportRequest& request) {
    std::string list;
    const std::string now = "," + request.list + ",";
    // On a small screen the many rows scroll, so that the button stays in sight.
    const float below = 12 * ImGui::GetFrameHeightWithSpacing();
    const ScopedVar padding(ImGuiStyleVar_FramePadding, {context.px(4), context.px(1)}),
        spacing(ImGuiStyleVar_ItemSpacing, {context.px(8), context.px(2)});
    const float all = static_cast<float>(export_words().size()) * ImGui::GetFrameHeightWithSpacing();
    const float room = kMostHeight * ImGui::GetIO().DisplaySize.y - below;
    std::optional<ScopedChild> words(std::in_place, "words", ImVec2(0, std::min(all, room)), false, 0);
    for (const ExportWord& word : export_words()) {
        const std::string name(word.name);
        bool on = now.find("," + name + ",") != std::string::npos;
        ImGui::Checkbox(name.c_str(), &on);
        mark_item(context, "export " + name);
        ImGui::SameLine(context.px(130));
        dim_text(context, std::string(word.help));
        if (on) list += (list.empty() ? "" : ",") + name;
    }
    words.reset();
    // Views of the window: a few by a box, others stay as they were typed.
    std::string rest = request.list;
    std::vector<ViewWord> views = take_view_words(rest);
    dim_text(context, "views");
    for (const std::string_view offered : offered_pictures()) {
        const std::string name(offered);
        std::string text = name;
        const ViewWord word = take_view_words(text).front();
        bool on = std::find(views.begin(), views.end(), word) != views.end();
        ImGui::SameLine();
        if (ImGui::Checkbox(name.c_str(), &on)) on ? views.push_back(word) : (void)std::erase(views, word);
        mark_item(context, fmt::format("export {}", name));
    }
    for (const ViewWord& word : views) list += (list.empty() ? "" : ",") + format_view_word(word);
    if (list != request.list) run(context, "export.list " + list);
}

/// Draws a field for a size that is 0 where it follows from the content, else within bounds.
template <class Number>
Number size_field(const PanelContext& context, const char* label, const char* mark, Number now, Number least,
                  Number most) {
    auto typed = static_cast<double>(now);
    ImGui::SetNextItemWidth(context.px(80));
    ImGui::InputDouble(label, &typed, 0, 0, "%g");
    mark_item(context, mark);
    return typed <= 0 ? Number{0} : std::clamp(static_cast<Number>(typed), least, most);
}

/// Draws formats, background and sizes of the pictures of an export.
void draw_export_pictures(const PanelContext& context, const PictureChoice& now) {
    PictureChoice choice = now;
    choice.formats.clear();
    for (const PictureFormat format : kPictureFormats) {
        const std::string name(format_name(format));
        bool on = std::find(now.formats.begin(), now.formats.end(), format) != now.formats.end();
        ImGui::Checkbox(name.c_str(), &on);
        mark_item(context, "export picture " + name);
        ImGui::SameLine();
        if (on) choice.formats.push_back(format);
    }
    bool dark = now.background == Background::dark;
    ImGui::Checkbox("dark", &dark);
    mark_item(context, "export picture dark");
    choice.background = dark ? Background::dark : Background::light;
    ImGui::SameLine();
    ImGui::Checkbox("without words", &choice.print.bare);
    mark_item(context, "export picture bare");
    tooltip(context, "Title, subtitle and caption stand in a text file beside each picture.");
    choice.width = size_field(context, "wide", "export picture width", now.width, PictureChoice::kLeastWidth,
                              PictureChoice::kMostWidth);
    tooltip(context,
            "In pixels, of masks, heat maps and scores. 0: each as wide as its cells need. No format "
            "chosen: PNG, and SVG for curves.");
    ImGui::SameLine();
    choice.print.height = size_field(context, "high", "export picture height", now.print.height,
                                     PrintForm::kLeastHeight, PrintForm::kMostHeight);
    tooltip(context, "In pixels. 0: what the content needs.");
    ImGui::SameLine();
    choice.print.font_size = size_field(context, "points", "export picture font", now.print.font_size,
                                        PrintForm::kLeastFont, PrintForm::kMostFont);
    tooltip(context, "Size of the numbers on the axes; other text in proportion. 0: by the width.");
    ImGui::SameLine();
    dim_text(context, "0: automatic");
    if (choice == now) return;
    std::vector<std::string_view> formats;
    for (const PictureFormat format : choice.formats) formats.push_back(format_name(format));
    run(context, fmt::format("export.pictures {} {} {}{} high={} font={:g}", fmt::join(formats, ","),
                             choice.width, dark ? "dark" : "light", choice.print.bare ? " bare" : "",
                             choice.print.height, choice.print.font_size));
}

/// Draws the button that asks with the desktop's dialog for the path that an action needs.
void draw_browse(const PanelContext& context, const std::string& action) {
    const ScopedDisabled disabled(context.app.jobs.choosing());
    if (ImGui::Button("Browse…")) run(context, "file.browse " + action);
    mark_item(context, "field.browse");
    tooltip(context, "Asks with the file dialog of the desktop.");
}

void draw_export(Dialogs&, const PanelContext& context, bool opening) {
    const AppState& app = context.app;
    const bool entered = confirms(opening);
    const ExportRequest& request = app.jobs.export_job.request;
    std::string folder = request.folder.string();
    ImGui::TextUnformatted("Folder");
    ImGui::SetNextItemWidth(-1);
    if (ImGui::InputText("##folder", &folder)) run(context, "export.folder " + folder);
    mark_item(context, "export.folder");
    draw_browse(context, "export.folder");
    draw_export_words(context, request);
    draw_export_pictures(context, request.pictures);
    bool all_rows = request.all_rows;
    if (ImGui::Checkbox("include the prompt's rows", &all_rows))
        run(context, fmt::format("export.rows {}", all_rows ? "all" : "decoded"));
    mark_item(context, "export.rows");
    small_words(context,
                app.run.live()
                    ? "The run is replayed in the background with all its changes, so the files are exact "
                      "and equal those of keyhole decode."
                    : "Exports the records of the opened trace, attention in half precision: the same "
                      "files as those of keyhole replay. Logits, noise and shadow need a run.");
    action_button(context, "file.copy", "Copy as command for the view");
    ImGui::SameLine();
    if (ImGui::Button("… for this export")) run(context, "file.copy run");
    mark_item(context, "file.copy run");
    const bool off = app.jobs.export_job.running() || request.list.empty() || !app.run.has_steps();
    {
        const ScopedDisabled disabled(off);
        if (ImGui::Button("Export") || (entered && !off)) run(context, "export.start");
        mark_item(context, "export.start");
    }
    ImGui::SameLine();
    if (app.jobs.export_job.running()) {
        ImGui::ProgressBar(static_cast<float>(app.jobs.export_job.progress()), {context.px(220), 0});
        ImGui::SameLine();
        if (ImGui::Button("Cancel")) run(context, "export.cancel");
    } else if (const std::string result = app.jobs.export_job.result(); !result.empty()) {
        const ScopedColor color(ImGuiCol_Text,
                                app.jobs.export_job.failed() ? theme::colors().fault : theme::colors().good);
        ImGui::TextWrapped("%s", result.c_str());
    }
}

/// A dialog with one field and a button. Its action gets the typed text as its arguments.
struct FieldForm {
    Dialog dialog;
    const char* hint;
    const char* button;
    const char* preset = "";
    bool as_typed = false;  ///< blanks at the ends count
    bool is_path = false;   ///< the desktop's dialog can give it
    bool writes = false;    ///< a file, which is replaced only on a second press
    bool finds = false;     ///< words; it stays open, for the next or the previous place
};

constexpr std::array kFieldForms = {
    FieldForm{Dialog::open_trace, "path of a .keyhole file", "Open", "", false, true},
    FieldForm{Dialog::save_trace, "path", "Save", "run.keyhole", false, true, true},
    FieldForm{Dialog::save_screenshot, "path", "Save", "keyhole.png", false, true, true},
    FieldForm{Dialog::go_to, "layer head [step], such as L3 H2 or 3 2 370", "Go"},
    FieldForm{Dialog::find, "words of the text", "Find next", "", false, false, false, true},
    FieldForm{Dialog::say, "text that all lanes read next; \\n for a line end", "Read", "", true},
    FieldForm{Dialog::edit_token, "text that replaces the token and all later ones", "Go back and read", "",
              true},
};

// What is offered as a path is selected each time the dialog opens, so that typing replaces it.
constexpr ImGuiInputTextFlags kUsualField = ImGuiInputTextFlags_EnterReturnsTrue,
                              kPathField = kUsualField | ImGuiInputTextFlags_AutoSelectAll;

/// Returns the action that a form runs, with the arguments before the typed text.
std::string action_of(const FieldForm& form, const AppState& app) {
    const std::string action(dialog_row(form.dialog)->action);
    if (form.dialog != Dialog::edit_token) return action;
    return fmt::format("{} {}", action, app.view.pick ? app.view.pick->position : 0);
}

/// Returns the name, with a number where a file of this name exists.
std::string free_name(const std::filesystem::path& name) {
    std::error_code ignored;
    std::filesystem::path free = name;
    for (int n = 2; std::filesystem::exists(free, ignored); ++n)
        free = fmt::format("{}-{}{}", name.stem().string(), n, name.extension().string());
    return free.string();
}

/// Returns whether the file of the name in the field may be written: there is none, or the user presses a
/// second time. Then the words below the field say so.
bool may_write(Dialogs& panel, bool entered) {
    constexpr double kNoDoubleClick = 0.4;  // seconds
    std::error_code ignored;
    const std::string name = from_field(panel.text);
    if (!std::filesystem::exists(name, ignored) || std::filesystem::is_directory(name, ignored)) return true;
    if (panel.replaces == panel.text) return ImGui::GetTime() > panel.asked_at + kNoDoubleClick;
    panel.replaces = panel.text;
    panel.asked_at = ImGui::GetTime();
    panel.takes_focus = entered;  // so that Enter is the second press
    return false;
}

/// The button that writes, and what stands below it.
const char* write_button(const Dialogs& panel, const char* usual) {
    return !panel.text.empty() && panel.replaces == panel.text ? "Replace" : usual;
}

void draw_write_note(const Dialogs& panel, const PanelContext& context) {
    std::error_code ignored;
    if (!panel.text.empty() && panel.replaces == panel.text)
        small_words(context, "This file exists. Replace, or Enter, replaces it.");
    else if (std::filesystem::is_directory(from_field(panel.text), ignored))
        small_words(context, "This is a folder: name a file in it.");
    else
        small_words(context, "In " + std::filesystem::current_path(ignored).string() +
                                 ", unless you name another folder.");
    mark_item(context, "field.note");
}

/// Returns whether a file of the name in the field is there to be read; else says that there is none.
bool may_read(Dialogs& panel) {
    std::error_code ignored;
    if (std::filesystem::exists(from_field(panel.text), ignored)) return true;
    panel.note = "There is no such file.";
    panel.note_is_fault = panel.takes_focus = true;
    return false;
}

/// Runs the form's action with the typed text. The dialog stays open where it fails, so that the text can be
/// mended.
void run_form(const FieldForm& form, Dialogs& panel, const PanelContext& context, const std::string& action) {
    const AppState& app = context.app;
    const std::int64_t before = app.notice.number;
    const std::string typed = from_field(panel.text);
    run(context, fmt::format("{} {}", action, form.as_typed ? quoted_as_typed(typed) : typed));
    panel.note_is_fault = app.notice.is_fault && app.notice.number != before;
    panel.note = app.notice.text;
    if (form.finds) panel.found = panel.text;
    if (panel.note_is_fault || form.finds)
        panel.takes_focus = context.shared.panes_lag = true;  // in the next frame, which is due
    else if (app.dialog == panel.shown)
        close(context);
}

void draw_field(const FieldForm& form, Dialogs& panel, const PanelContext& context, bool opening) {
    if (opening) {
        panel.text = form.writes ? free_name(form.preset) : form.finds ? panel.found : form.preset;
        panel.replaces.clear();
        panel.note.clear();
    }
    if (opening || std::exchange(panel.takes_focus, false)) ImGui::SetKeyboardFocusHere();
    const std::string action = action_of(form, context.app);
    ImGui::SetNextItemWidth(-1);
    const bool selects = form.is_path || form.finds;
    const bool entered =
        ImGui::InputTextWithHint("##field", form.hint, &panel.text, selects ? kPathField : kUsualField) ||
        confirms(opening);
    mark_item(context, "field");
    const bool backward = form.finds && ImGui::GetIO().KeyShift;
    const bool pressed = ImGui::Button(form.writes ? write_button(panel, form.button) : form.button);
    mark_item(context, "field.go");
    const bool may_run = (pressed || entered) && !panel.text.empty() &&
                         (form.writes ? may_write(panel, entered) : !form.is_path || may_read(panel));
    if (may_run) run_form(form, panel, context, entered && backward ? "find.previous" : action);
    if (form.finds) {
        ImGui::SameLine();
        if (ImGui::Button("Find previous") && !panel.text.empty())
            run_form(form, panel, context, "find.previous");
        mark_item(context, "field.previous");
        tooltip(context, "Shift+Enter");
    }
    if (form.is_path) {
        ImGui::SameLine();
        draw_browse(context, action);
    }
    ImGui::SameLine();
    if (ImGui::Button("Cancel")) close(context);
    mark_item(context, "field.cancel");
    if (form.writes) draw_write_note(panel, context);
    if (!panel.note.empty())
        small_words(context, capitalised(panel.note),
                    panel.note_is_fault ? theme::colors().fault : theme::colors().dim);
}

/// Draws the choices of format, which is the ending of the name, and of the background.
void draw_picture_format(Dialogs& panel, const PanelContext& context) {
    std::filesystem::path path = from_field(panel.text);
    const std::optional<PictureFormat> now = format_of(path);
    for (const PictureFormat format : kPictureFormats) {
        const std::string ending = fmt::format(".{}", format_name(format));
        if (format != kPictureFormats.front()) ImGui::SameLine();
        if (ImGui::RadioButton(ending.c_str(), now == format))
            panel.text = path.replace_extension(ending).string();
        mark_item(context, "picture " + ending);
    }
    dim_text(context, "SVG and PDF stay sharp at any size and keep the text as text.");
    if (ImGui::RadioButton("light, for paper", !panel.picture_is_dark)) panel.picture_is_dark = false;
    mark_item(context, "picture light");
    ImGui::SameLine();
    if (ImGui::RadioButton("dark", panel.picture_is_dark)) panel.picture_is_dark = true;
    mark_item(context, "picture dark");
}

/// Returns the name that is offered for a picture of a part.
std::string picture_name(std::string_view part) {
    return fmt::format("{}.png", part == "head" ? "heatmap" : part);
}

/// Draws the choice of what the picture shows.
void draw_picture_part(Dialogs& panel, const PanelContext& context) {
    static constexpr std::array kNames = {"the story", "lanes side by side", "the focused head"};
    static_assert(kNames.size() == kShownParts.size());
    for (std::size_t i = 0; i < kShownParts.size(); ++i) {
        const std::string_view part = kShownParts[i];
        if (i > 0) ImGui::SameLine();
        if (ImGui::RadioButton(kNames[i], panel.picture_part == part)) {
            const bool was_offered = panel.text == free_name(picture_name(panel.picture_part));
            panel.picture_part = part;
            if (was_offered) panel.text = free_name(picture_name(part));
        }
        mark_item(context, fmt::format("picture part {}", part));
    }
}

/// Draws the fields of the picture dialog: path, width, the part of the view, format and background.
void draw_picture(Dialogs& panel, const PanelContext& context, bool opening) {
    if (opening) {
        panel.picture_part = shown_part(context.app);
        panel.text = free_name(picture_name(panel.picture_part));
        panel.replaces.clear();
    }
    if (opening || std::exchange(panel.takes_focus, false)) ImGui::SetKeyboardFocusHere();
    ImGui::SetNextItemWidth(-1);
    const bool entered =
        ImGui::InputTextWithHint("##field", "path", &panel.text, kPathField) || confirms(opening);
    draw_picture_part(panel, context);
    static constexpr std::array kWidths = {0, 800, 1200, 2400, 4800};
    for (const int width : kWidths) {
        if (width != 0) ImGui::SameLine();
        const std::string name = width == 0 ? "automatic" : std::to_string(width);
        if (ImGui::RadioButton(name.c_str(), panel.picture_width == width)) panel.picture_width = width;
        mark_item(context, "picture width " + std::to_string(width));
    }
    ImGui::SetNextItemWidth(context.px(120));
    ImGui::InputInt("pixels wide", &panel.picture_width, 100, 500);
    panel.picture_width = std::clamp(panel.picture_width, 0, PictureChoice::kMostWidth);
    if (ImGui::IsItemDeactivated() && panel.picture_width > 0)
        panel.picture_width = std::max(panel.picture_width, PictureChoice::kLeastWidth);
    mark_field(context, "picture width", "pixels wide");
    {
        const ScopedDisabled disabled(panel.picture_part == "story");
        ImGui::Checkbox("only what the zoom shows", &panel.picture_of_shown);
        mark_item(context, "picture of shown");
    }
    draw_picture_format(panel, context);
    const bool pressed = ImGui::Button(write_button(panel, "Save"));
    mark_item(context, "picture.save");
    if ((pressed || entered) && !panel.text.empty() && may_write(panel, entered)) {
        close(context);
        run(context,
            fmt::format("file.picture {} {}{}{}{}", from_field(panel.text), panel.picture_part,
                        panel.picture_width > 0 ? fmt::format(" {}", panel.picture_width) : std::string(),
                        panel.picture_is_dark ? " dark" : "", panel.picture_of_shown ? " shown" : ""));
    }
    ImGui::SameLine();
    if (ImGui::Button("Cancel")) close(context);
    mark_item(context, "picture.cancel");
    draw_write_note(panel, context);
}

void draw_about(Dialogs&, const PanelContext& context, bool) {
    for (const SeenPart& part : parts_on_show()) {
        heading(context, part.name, theme::colors().accent);
        ImGui::TextWrapped("%.*s", static_cast<int>(part.words.size()), part.words.data());
    }
}

/// How a dialog is drawn within its window, if not by a form.
struct DialogContent {
    Dialog dialog;
    void (*draw)(Dialogs&, const PanelContext&, bool opening);
};

constexpr std::array kDialogContents = {
    DialogContent{Dialog::palette, draw_palette},
    DialogContent{Dialog::keys, draw_keys},
    DialogContent{Dialog::export_run, draw_export},
    DialogContent{Dialog::save_picture, draw_picture},
    DialogContent{Dialog::about, draw_about},
    DialogContent{Dialog::overrides, [](Dialogs& d, const PanelContext& context,
                                        bool opening) { draw(d.pages->overrides, context, opening); }},
    DialogContent{Dialog::why,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->why, context); }},
    DialogContent{Dialog::doctor,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->doctor, context); }},
    DialogContent{Dialog::notes,
                  [](Dialogs&, const PanelContext& context, bool opening) { draw_notes(context, opening); }},
    DialogContent{Dialog::manual,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->manual, context); }},
    DialogContent{Dialog::papers,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->papers, context); }},
    DialogContent{Dialog::policies,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->policies, context); }},
    DialogContent{Dialog::attribution,
                  [](Dialogs& d, const PanelContext& context, bool) { draw(d.pages->attribution, context); }},
};

void draw_content(Dialogs& panel, const PanelContext& context, bool opening) {
    for (const FieldForm& form : kFieldForms)
        if (form.dialog == panel.shown) return draw_field(form, panel, context, opening);
    for (const DialogContent& content : kDialogContents)
        if (content.dialog == panel.shown) return content.draw(panel, context, opening);
}

}  // namespace

std::size_t texture_bytes(const Dialogs& panel) {
    return panel.pages == nullptr ? 0 : panel.pages->papers.pictures.bytes();
}

void draw(Dialogs& panel, const PanelContext& context) {
    const AppState& app = context.app;
    if (panel.pages == nullptr) panel.pages = std::make_shared<DialogPages>();
    const bool opening = panel.shown != app.dialog;
    if (opening) {
        panel.text = app.palette_text;
        panel.selected = 0;
    }
    panel.shown = app.dialog;
    const DialogRow* row = dialog_row(app.dialog);
    if (row == nullptr) return;
    if (row->in_front ? begin_in_front(context, *row, opening) : begin_beside(context, *row, opening))
        draw_content(panel, context, opening);
    // A window takes the height of its content one frame later.
    const float height = ImGui::GetCursorPosY();
    if (std::exchange(panel.content_height, height) != height) context.shared.panes_lag = true;
    ImGui::End();
    panel.selected_by = 0;
}

}  // namespace keyhole
