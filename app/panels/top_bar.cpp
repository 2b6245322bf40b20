#include "app/panels/top_bar.h"

#include <imgui_stdlib.h>
#include "app/actions/menus.h"
#include "app/base/assets.h"
#include "app/gl/imgui_compat.h"
#include "app/models/catalog.h"
#include "app/state/shown_answers.h"
#include "engine/base/index.h"
#include "engine/base/model_name.h"

#include <algorithm>
#include <array>
#include <utility>

namespace keyhole {

namespace {

std::string one_line(std::string text) {
    for (char& c : text)
        if (c == '\n' || c == '\r' || c == '\t') c = ' ';
    return text;
}

std::vector<std::filesystem::path> texts_in(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> found;
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored))
        if (entry.path().extension() == ".txt") found.push_back(entry.path());
    std::sort(found.begin(), found.end());
    return found;
}

/// Draws a button that looks like the field that it opens.
bool prompt_button(const std::string& line, float width) {
    const ScopedColor background(ImGuiCol_Button, ImGui::GetColorU32(ImGuiCol_FrameBg));
    const ScopedVar align(ImGuiStyleVar_ButtonTextAlign, {0, 0.5f});
    return ImGui::Button((line + "##prompt").c_str(), {width, 0});
}

void set_draft(TopBar& panel, std::string text) {
    panel.draft = std::move(text);
    panel.draft_is_new = true;
}

/// A right answer that came with a text leaves with it, and is back with it; one that was typed stays.
void follow_text(TopBar& panel) {
    const bool is_given = panel.draft == panel.file_text;
    if (is_given && panel.answer.empty())
        panel.answer = panel.file_answer;
    else if (!is_given && panel.answer == panel.file_answer)
        panel.answer.clear();
}

/// Puts the prompt of the run into the field.
void take_prompt_of_run(TopBar& panel, const AppState& app, const std::string& prompt) {
    set_draft(panel, for_field(prompt));
    panel.answer = for_field(right_answer(app));
    if (panel.draft == panel.file_text) return;
    panel.draft_file.clear();
    panel.file_text = panel.draft;
    // What a file says of its prompt is more than an answer, which is all that a user can give.
    const PromptGuide& guide = app.run.setup.guide;
    const bool is_of_file = !guide.watch.empty() || !guide.shows.empty();
    panel.file_answer = is_of_file ? panel.answer : "";
}

/// Edits the draft in a field of this size.
void edit_draft(TopBar& panel, ImVec2 size) {
    WrappedText& lines = panel.field.lines;
    const float width = room_for_lines(size.x);
    if (std::exchange(panel.draft_is_new, false) || lines.width() != width)
        lines.set(panel.draft, width, drawn_width);
    draw_wrapped_field("##text", panel.field, lines.shown(), size);
    panel.draft = lines.text();
}

/// Asks for the right answer, with which the lanes' answers are marked.
void draw_right_answer(TopBar& panel, const PanelContext& context) {
    ImGui::AlignTextToFramePadding();
    ImGui::TextUnformatted("What is the right answer?");
    ImGui::SameLine();
    ImGui::SetNextItemWidth(-1);
    ImGui::InputTextWithHint("##answer", "leave it empty if you do not know it", &panel.answer);
    mark_item(context, "prompt.answer");
    tooltip(context, "An answer that contains it is marked ✓, another one ✗, and Run stops where it ends.");
}

/// Draws a button for each sample, which puts it into the field, and a line on what it shows.
void draw_samples(TopBar& panel, const PanelContext& context) {
    heading(context, "Prompt");
    for (const std::filesystem::path& file : texts_in(find_assets() / "prompts")) {
        const std::string name = file.stem().string();
        ImGui::SameLine();
        if (ImGui::CalcTextSize(name.c_str()).x + context.px(12) > ImGui::GetContentRegionAvail().x)
            ImGui::NewLine();
        if (ImGui::SmallButton(name.c_str())) {
            const PromptFile prompt = read_prompt_file(file);
            set_draft(panel, for_field(prompt.text));
            panel.draft_file = file;
            panel.file_text = panel.draft;
            panel.answer = panel.file_answer = for_field(prompt.guide.answer);
            panel.shows = prompt.guide.shows;
        }
        mark_item(context, "prompt " + name);
        if (ImGui::IsItemHovered()) show_tooltip(context, read_prompt_file(file).guide.shows);
    }
    const bool is_sample = !panel.draft_file.empty() && panel.draft == panel.file_text;
    small_words(context, is_sample && !panel.shows.empty()
                             ? panel.shows
                             : "Samples: each shows one effect. Or write a prompt of your own.");
}

void start_draft(TopBar& panel, const PanelContext& context) {
    ImGui::CloseCurrentPopup();
    // An unchanged file keeps what is known about it, such as the right answer.
    const bool is_file =
        !panel.draft_file.empty() && panel.draft == panel.file_text && panel.answer == panel.file_answer;
    run(context, is_file ? "open " + panel.draft_file.string() : "prompt " + from_field(panel.draft));
    if (!is_file && !panel.answer.empty()) run(context, "prompt.answer " + from_field(panel.answer));
}

/// Returns the model to offer where a demo model is loaded, which answers only its stories; null: none.
const CatalogModel* model_to_offer(const AppState& app) {
    const CatalogModel* now = find_by_path(app.catalog, app.run.setup.model_folder);
    if (now == nullptr || now->package) return nullptr;
    const auto real =
        std::ranges::find_if(app.catalog, [](const CatalogModel& m) { return m.package.has_value(); });
    return real == app.catalog.end() ? nullptr : &*real;
}

constexpr const char* kDemoAnswers =
    "The demo model is tiny: it finds a code, a name, a place or a list that the text itself gives, asked "
    "for as in the samples. Any other question gets nonsense from every lane.";

/// Says what the demo model can answer, and offers a real one.
void draw_model_offer(const PanelContext& context, const CatalogModel& model) {
    small_words(context, kDemoAnswers, theme::colors().warm);
    const AppState& app = context.app;
    if (path_if_here(model)) {
        if (ImGui::Button(("Take " + model.name).c_str())) {
            ImGui::CloseCurrentPopup();
            run(context, "model " + model.name);
        }
    } else {
        const ScopedDisabled disabled(app.jobs.getting());
        const std::string label =
            fmt::format("Get a real model ({})", megabytes_text(model.download_bytes()));
        if (ImGui::Button(label.c_str())) run(context, "model.get " + model.name);
    }
    mark_item(context, "prompt.model");
    tooltip(context,
            fmt::format("{}: {}. The run starts with it when it is there.", model.name, model.shows));
    if (!app.jobs.getting()) return;
    ImGui::SameLine();
    ImGui::ProgressBar(static_cast<float>(app.jobs.get_job.progress()),
                       {ImGui::GetContentRegionAvail().x, 0});
}

/// Returns the height that draw_model_offer() needs.
float offer_height(const PanelContext& context, const CatalogModel* model) {
    if (model == nullptr) return 0;
    const ScopedFont font(context.fonts.small);
    const float words = ImGui::CalcTextSize(kDemoAnswers, nullptr, false, ImGui::GetContentRegionAvail().x).y;
    return words + ImGui::GetStyle().ItemSpacing.y + ImGui::GetFrameHeightWithSpacing();
}

void draw_prompt_popup(TopBar& panel, const PanelContext& context) {
    const ImVec2 display = ImGui::GetIO().DisplaySize;
    ImGui::SetNextWindowSize(
        {std::min(context.px(720), display.x * 0.96f), std::min(context.px(440), display.y * 0.8f)},
        ImGuiCond_Always);
    const ScopedPopup popup("prompt", ImGuiWindowFlags_NoMove);
    if (!popup.open()) return;
    draw_samples(panel, context);
    const ImVec2 room = ImGui::GetContentRegionAvail();
    const CatalogModel* const offer = model_to_offer(context.app);
    const float below = 2 * ImGui::GetFrameHeightWithSpacing() + offer_height(context, offer) + context.px(4);
    if (ImGui::IsWindowAppearing()) ImGui::SetKeyboardFocusHere();
    const std::string before = panel.draft;
    edit_draft(panel, {room.x, std::max(room.y - below, 3 * ImGui::GetFrameHeight())});
    mark_item(context, "prompt.text");
    // Makes the next frame's fonts hold what was typed or pasted.
    if (panel.draft != before) follow_text(panel);
    if (panel.draft != before || ImGui::IsWindowAppearing()) (void)context.app.glyphs.text(panel.draft);
    if (offer != nullptr) draw_model_offer(context, *offer);
    draw_right_answer(panel, context);
    {
        const ScopedDisabled disabled(panel.draft.empty());
        const bool enters = ImGui::GetIO().KeyCtrl && (imgui_compat::is_pressed(ImGuiKey_Enter) ||
                                                       imgui_compat::is_pressed(imgui_compat::kKeypadEnter));
        if (ImGui::Button("Restart with this prompt") || (enters && !panel.draft.empty()))
            start_draft(panel, context);
        mark_item(context, "prompt.restart");
        tooltip(context, "Ctrl+Enter does the same.");
    }
    ImGui::SameLine();
    bool chat = context.app.run.setup.chat;
    if (ImGui::Checkbox("as a chat turn", &chat)) run(context, chat ? "prompt.chat on" : "prompt.chat off");
    mark_item(context, "prompt.chat");
    tooltip(context, "Writes the prompt in the form of the model's chat template, from the next start on.");
    ImGui::SameLine();
    dim_text(context, "The lanes keep their settings; their caches start empty.");
}

/// Draws the offer to download a model of the catalogue, or how far its download is.
void draw_offer(const PanelContext& context, const CatalogModel& model) {
    const AppState& app = context.app;
    ImGui::Spacing();
    if (app.jobs.wanted_model == model.name) {
        const float cancel_width = context.px(72);
        ImGui::ProgressBar(static_cast<float>(app.jobs.get_job.progress()),
                           {ImGui::GetContentRegionAvail().x - cancel_width - context.px(6), 0});
        ImGui::SameLine(0, context.px(6));
        action_button(context, "model.cancel", "Cancel", false, cancel_width);
    } else {
        const ScopedDisabled disabled(app.jobs.getting());
        const std::string label =
            fmt::format("Get a real model ({})##{}", megabytes_text(model.download_bytes()), model.name);
        if (ImGui::Button(label.c_str())) run(context, "model.get " + model.name);
        mark_item(context, "model.get " + model.name);
    }
    small_words(context,
                fmt::format("{}: {}. {:.0f} M parameters, {}. {}, downloaded by pip, curl or wget; from {}.",
                            model.name, model.shows, 1e-6 * static_cast<double>(model.parameters),
                            model.license, "Python package " + model.package->requirement(), model.source));
    ImGui::Spacing();
}

/// Lists the models of the catalogue. Returns the chosen one.
std::filesystem::path choose_from_catalog(const PanelContext& context) {
    const AppState& app = context.app;
    std::filesystem::path chosen;
    for (const CatalogModel& model : app.catalog) {
        const auto here = path_if_here(model);
        if (!here && !model.package) continue;
        if (!here) {
            draw_offer(context, model);
            continue;
        }
        if (ImGui::Selectable(model.name.c_str(), *here == app.run.setup.model_folder)) chosen = *here;
        mark_item(context, "model " + model.name);
        ImGui::SameLine(context.px(150));
        dim_text(context, model.shows);
    }
    return chosen;
}

/// Lists recent models that are not in the catalogue. Returns the chosen one.
std::filesystem::path choose_recent(const PanelContext& context) {
    const AppState& app = context.app;
    std::vector<std::string> others = app.recent.models;
    for (const CatalogModel& model : app.catalog)
        if (const auto here = path_if_here(model)) std::erase(others, here->string());
    if (others.empty()) return {};
    heading(context, "Recent models");
    std::error_code ignored;
    const std::string now = std::filesystem::absolute(app.run.setup.model_folder, ignored).string();
    std::filesystem::path chosen;
    for (std::size_t i = 0; i < others.size(); ++i) {
        const ScopedId id(static_cast<int>(i));
        if (ImGui::Selectable(fitted(others[i], ImGui::GetContentRegionAvail().x).c_str(), others[i] == now))
            chosen = others[i];
        mark_item(context, fmt::format("model.recent {}", i + 1));
    }
    return chosen;
}

void draw_model_popup(TopBar& panel, const PanelContext& context) {
    const AppState& app = context.app;
    ImGui::SetNextWindowSize({context.px(640), 0}, ImGuiCond_Appearing);
    const bool was_getting = std::exchange(panel.was_getting, app.jobs.getting());
    const ScopedPopup popup("model", ImGuiWindowFlags_NoMove);
    if (!popup.open()) return;
    if (was_getting && !app.jobs.getting()) ImGui::CloseCurrentPopup();  // the status line says how it ended
    heading(context, "Model");
    if (app.run.has_steps()) {
        const ModelConfig& c = app.run.history.run().config;
        dim_text(
            context,
            fmt::format(
                "{} · {} layers, {} heads, {} KV heads of {} · width {} · vocabulary {} · trained context {}",
                c.family, c.n_layers, c.n_heads, c.n_kv_heads, c.head_dim, c.d_model, c.n_vocab, c.n_ctx));
    }
    std::filesystem::path chosen = choose_from_catalog(context);
    if (const std::filesystem::path recent = choose_recent(context); !recent.empty()) chosen = recent;
    ImGui::SetNextItemWidth(-1);
    if (ImGui::InputTextWithHint("##folder",
                                 "a folder, a GGUF file, ORG/NAME of the hub, or a name; Enter loads it",
                                 &panel.model_text, ImGuiInputTextFlags_EnterReturnsTrue))
        chosen = panel.model_text;
    mark_item(context, "model.folder");
    small_words(context, "A folder or a .gguf file can also be dropped on the window.");
    if (!chosen.empty()) {
        // The offer to get a model stays in sight.
        const CatalogModel* named = find_in_catalog(app.catalog, chosen.string());
        if (named == nullptr || path_if_here(*named)) ImGui::CloseCurrentPopup();
        run(context, "model " + chosen.string());
    }
}

/// Lists recently opened traces, models and prompts, newest first.
void draw_recent_files(const PanelContext& context) {
    const std::vector<std::string>& paths = context.app.recent.paths;
    const ScopedMenu menu("Recent files", !paths.empty());
    mark_item(context, "menu Recent files");
    if (!menu.open()) return;
    std::string asked;
    for (std::size_t i = 0; i < paths.size(); ++i) {
        const ScopedId id(static_cast<int>(i));
        if (ImGui::MenuItem(fitted(paths[i], context.px(480)).c_str()))
            asked = fmt::format("recent {}", i + 1);
    }
    if (!asked.empty()) run(context, asked);  // this changes the list
}

/// Lists the lessons by number, and below them the user's own.
void draw_lesson_names(TopBar& panel, const PanelContext& context) {
    if (ImGui::IsWindowAppearing() || panel.lessons.empty()) panel.lessons = list_all_lessons();
    for (const ListedLesson& one : panel.lessons) {
        if (!one.fault.empty() || (one.lesson.number == 0 && !one.own)) continue;
        const std::string number = one.lesson.number == 0 ? "" : fmt::format("{}", one.lesson.number);
        const std::string title = fmt::format("{:>2}  {}", number, one.lesson.title);
        if (ImGui::MenuItem(title.c_str(), nullptr, context.app.recent.has_finished(one.name)))
            run(context, "lesson " + one.name);
        mark_item(context, fmt::format("menu lesson {}", number.empty() ? one.name : number));
        tooltip(context, one.lesson.question);
    }
    ImGui::Separator();
}

void draw_menu_item(TopBar& panel, const PanelContext& context, const MenuItem& item) {
    const UserAction& action = *item.action;
    if (action.id == "recent") return draw_recent_files(context);
    if (action.id == "lesson") draw_lesson_names(panel, context);
    const ActionState state = action_state(context.app, item);
    std::string title(item.title());
    if (!state.object.empty()) title += ": " + fitted(state.object, context.px(240));
    if (ImGui::MenuItem(title.c_str(), shortcut_text(action.shortcut).c_str(), state.ticked,
                        state.possible()))
        run(context, item.text());
    mark_item(context, fmt::format("{} {}", state.possible() ? "menu" : "greyed", item.text()));
    std::string words = help_without_arguments(action);
    if (!state.possible()) words += (words.empty() ? "" : "\n") + capitalised(std::string(state.lacks)) + ".";
    if (!words.empty()) tooltip(context, words);
}

void draw_menu(TopBar& panel, const PanelContext& context, const Menu& menu) {
    for (const MenuSection& section : menu.sections) {
        if (&section != &menu.sections.front() && section.title.empty()) ImGui::Separator();
        if (section.title.empty()) {
            for (const MenuItem& item : section.items) draw_menu_item(panel, context, item);
            continue;
        }
        const ScopedMenu opened(std::string(section.title).c_str());
        mark_item(context, fmt::format("menu {}", section.title));
        if (!opened.open()) continue;
        for (const MenuItem& item : section.items) draw_menu_item(panel, context, item);
    }
}

/// Draws the buttons run or stop and one step, and the speed.
void draw_run_buttons(const PanelContext& context) {
    const AppState& app = context.app;
    const bool running = app.run.stoppable();
    const ScopedDisabled disabled(!app.run.live());
    {
        const theme::Colors& c = theme::colors();
        const ScopedColor background(ImGuiCol_Button, running ? c.stop : c.run),
            hovered(ImGuiCol_ButtonHovered, running ? c.stop_hovered : c.run_hovered),
            ink(ImGuiCol_Text, c.on_run);
        const char* const start = app.run.n_decoded() > 0 ? "▶  Continue" : "▶  Run";
        action_button(context, "run.toggle", running ? "■  Stop" : start, false, context.px(96));
    }
    ImGui::SameLine(0, context.px(4));
    action_button(context, "run.step", "Step", false, context.px(52));
    ImGui::SameLine(0, context.px(4));
    static constexpr std::array<const char*, 6> kNames = {"full speed", "1 step/s",   "3 steps/s",
                                                          "8 steps/s",  "20 steps/s", "60 steps/s"};
    static constexpr std::array<double, 6> kRates = {0, 1, 3, 8, 20, 60};
    ImGui::SetNextItemWidth(context.px(104));
    const std::string now = app.run.speed == 0
                                ? "full speed"
                                : fmt::format("{} step{}/s", app.run.speed, app.run.speed == 1 ? "" : "s");
    ScopedCombo combo("##speed", now.c_str());
    if (!combo.open()) {
        mark_item(context, "speed");
        return tooltip(context, "The speed of Run. The digit keys also set it.");
    }
    for (std::size_t i = 0; i < kNames.size(); ++i) {
        if (combo.item(kNames[i], app.run.speed == kRates[i]))
            run(context, fmt::format("run.speed {}", kRates[i]));
        mark_item(context, fmt::format("speed {}", kRates[i]));
    }
}

}  // namespace

void draw_menus(TopBar& panel, const PanelContext& context) {
    const ScopedMenuBar bar;
    if (!bar.open()) return;
    heading(context, "Keyhole");
    ImGui::Dummy({context.px(6), 0});
    for (const Menu& menu : menu_bar()) {
        const ScopedMenu opened(std::string(menu.title).c_str());
        if (opened.open())
            draw_menu(panel, context, menu);
        else
            mark_item(context, fmt::format("menu {}", menu.title));
    }
    const std::string hint = "F1: manual   Ctrl+P: every command";
    const ScopedFont font(context.fonts.small);
    const float width = ImGui::CalcTextSize(hint.c_str()).x;
    if (const float x = ImGui::GetWindowWidth() - width - context.px(14); x > ImGui::GetCursorPosX()) {
        ImGui::SetCursorPosX(x);
        colored_text(theme::colors().faint, hint);
    }
}

void draw(TopBar& panel, const PanelContext& context) {
    const AppState& app = context.app;
    draw_run_buttons(context);
    ImGui::SameLine(0, context.px(14));
    const std::string model =
        model_name(app.run.has_steps() ? std::filesystem::path(app.run.history.run().model_path)
                                       : app.run.setup.model_folder);
    const float model_width = context.px(150), restart_width = context.px(72);
    if (ImGui::Button(fitted(model.empty() ? "model…" : model, model_width - context.px(14)).c_str(),
                      {model_width, 0})) {
        panel.model_text = app.run.setup.model_folder.string();
        ImGui::OpenPopup("model");
    }
    mark_item(context, "model");
    tooltip(context, "The model. Click to load another one.");
    draw_model_popup(panel, context);
    ImGui::SameLine(0, context.px(6));

    // The prompt's first line. A click opens all of it.
    const float width = ImGui::GetContentRegionAvail().x - restart_width - context.px(6);
    const std::string& shown = app.run.live() ? app.run.setup.prompt : app.run.history.run().prompt;
    const std::string line = fitted(one_line(app.glyphs.text(shown.substr(0, 400))), width - context.px(16));
    if (prompt_button(line, width)) {
        // A text that was typed and not run yet stays, until another prompt runs.
        if (panel.draft.empty() || panel.draft_of != shown) {
            take_prompt_of_run(panel, app, shown);
        }
        panel.draft_of = shown;
        ImGui::OpenPopup("prompt");
    }
    mark_item(context, "prompt");
    tooltip(context, "The prompt. Click to edit it.");
    draw_prompt_popup(panel, context);
    ImGui::SameLine(0, context.px(6));
    action_button(context, "run.restart", "Restart", false, restart_width);
}

}  // namespace keyhole
