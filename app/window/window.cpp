#include "app/window/window.h"

#include "app/panels/atlas_panel.h"
#include "app/panels/cell_view.h"
#include "app/panels/curves_panel.h"
#include "app/panels/dialogs.h"
#include "app/panels/heatmap_panel.h"
#include "app/panels/inspector_panel.h"
#include "app/panels/lanes_panel.h"
#include "app/panels/time_bar.h"
#include "app/panels/token_strip.h"
#include "app/panels/top_bar.h"
#include "app/window/command_table.h"
#include "app/window/frame_io.h"
#include "app/window/heat_painter.h"
#include "app/window/theme.h"
#include "engine/base/error.h"

#define GLFW_INCLUDE_NONE
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

static_assert(key::kEscape == GLFW_KEY_ESCAPE && key::kEnter == GLFW_KEY_ENTER && key::kTab == GLFW_KEY_TAB &&
              key::kRight == GLFW_KEY_RIGHT && key::kLeft == GLFW_KEY_LEFT && key::kDown == GLFW_KEY_DOWN &&
              key::kUp == GLFW_KEY_UP && key::kHome == GLFW_KEY_HOME && key::kEnd == GLFW_KEY_END &&
              key::kF1 == GLFW_KEY_F1 && key::kF12 == GLFW_KEY_F12 && key::kShift == GLFW_MOD_SHIFT &&
              key::kCtrl == GLFW_MOD_CONTROL && key::kAlt == GLFW_MOD_ALT);

std::string g_glfw_error;  // GLFW reports through a plain function

/// GLFW, the window and its context.
class GlfwWindow {
  public:
    GlfwWindow(int width, int height) {
        glfwSetErrorCallback([](int, const char* text) { g_glfw_error = text; });
        if (!glfwInit()) no_display();
        glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
        glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
        glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
        glfwWindowHint(GLFW_OPENGL_FORWARD_COMPAT, GLFW_TRUE);
        if (width == 0 || height == 0) {
            width = 1600, height = 1000;
            int x = 0, y = 0, w = 0, h = 0;
            if (GLFWmonitor* monitor = glfwGetPrimaryMonitor())
                glfwGetMonitorWorkarea(monitor, &x, &y, &w, &h);
            if (w > 0) width = std::min(width, w), height = std::min(height, h);
        }
        window_ = glfwCreateWindow(width, height, "Keyhole", nullptr, nullptr);
        if (window_ == nullptr) {
            glfwTerminate();
            no_display();
        }
        glfwMakeContextCurrent(window_);
        glfwSwapInterval(1);
        glfwSetWindowSizeLimits(window_, 800, 500, GLFW_DONT_CARE, GLFW_DONT_CARE);
    }
    ~GlfwWindow() {
        glfwDestroyWindow(window_);
        glfwTerminate();
    }
    GlfwWindow(const GlfwWindow&) = delete;
    GLFWwindow* get() const { return window_; }

  private:
    GLFWwindow* window_ = nullptr;
    [[noreturn]] static void no_display() {
        fail(ErrorCode::device,
             "no display: opening the window failed ({}); without one run `keyhole decode`, which writes the "
             "same pictures and numbers",
             g_glfw_error.empty() ? "GLFW says no more" : g_glfw_error);
    }
};

/// ImGui and its two backends.
class ImGuiHost {
  public:
    explicit ImGuiHost(GLFWwindow* window, bool own_input) {
        ImGui::CreateContext();
        ImGui::GetIO().IniFilename = nullptr;
        ImGui::GetIO().ConfigWindowsMoveFromTitleBarOnly = true;
        ImGui_ImplGlfw_InitForOpenGL(window, !own_input);
        ImGui_ImplOpenGL3_Init("#version 330 core");
    }
    ~ImGuiHost() {
        ImGui_ImplOpenGL3_Shutdown();
        ImGui_ImplGlfw_Shutdown();
        ImGui::DestroyContext();
    }
    ImGuiHost(const ImGuiHost&) = delete;
};

struct Panels {
    TopBar top;
    LanesPanel lanes;
    AtlasPanel atlas;
    HeatmapPanel heatmap;
    InspectorPanel inspector;
    CurvesPanel curves;
    TokenStrip strip;
    TimeBar time;
    Dialogs dialogs;
};

struct KeyPress {
    int code = 0, mods = 0;
};
std::vector<KeyPress>* g_keys = nullptr;  // the window's, while it runs: GLFW calls plain functions
int g_frames_wanted = 3;

/// Pane sizes: the user's, or parts of the window.
void lay_out(Panels& panels, const PanelContext& context) {
    AppState& app = context.app;
    ViewState& view = app.view;
    const ImVec2 size = ImGui::GetIO().DisplaySize;
    const float s = context.scale, gap = std::round(6 * s);
    const float wide = size.x / s;
    const float left_width =
        std::round((view.left_width > 0 ? view.left_width : std::clamp(wide * 0.185f, 240.0f, 320.0f)) * s);
    const float right_width =
        std::round((view.right_width > 0 ? view.right_width : std::clamp(wide * 0.2f, 252.0f, 350.0f)) * s);
    const float bottom_height = std::round(
        (view.bottom_height > 0 ? view.bottom_height : std::clamp(size.y / s * 0.2f, 162.0f, 220.0f)) * s);
    const float time_height = std::round(46 * s), status_height = std::round(22 * s);

    ImGui::SetNextWindowPos({0, 0});
    ImGui::SetNextWindowSize(size);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowRounding, 0);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowBorderSize, 0);
    ImGui::PushStyleVar(ImGuiStyleVar_WindowPadding, {gap, gap});
    ImGui::Begin("Keyhole", nullptr,
                 ImGuiWindowFlags_NoTitleBar | ImGuiWindowFlags_NoResize | ImGuiWindowFlags_NoMove |
                     ImGuiWindowFlags_MenuBar | ImGuiWindowFlags_NoBringToFrontOnFocus |
                     ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    ImGui::PopStyleVar(3);
    draw_menus(panels.top, context);
    draw(panels.top, context);

    const float top = ImGui::GetCursorScreenPos().y + std::round(2 * s);
    const float bottom = size.y - status_height;
    const float middle_end = bottom - bottom_height - gap;
    const float centre_left = gap + left_width + gap, centre_right = size.x - gap - right_width - gap;
    const float centre = centre_right - centre_left;
    const float atlas_width = std::clamp(
        std::round(
            (view.atlas_width > 0 ? view.atlas_width : std::clamp(centre / s * 0.37f, 230.0f, 420.0f)) * s),
        120 * s, std::max(centre - 200 * s, 121 * s));
    const auto pane = [&](const char* id, float x, float y, float width, float height, auto&& body,
                          ImGuiWindowFlags flags = 0) {
        ImGui::SetCursorScreenPos({std::round(x), std::round(y)});
        ImGui::BeginChild(id, {std::round(width), std::round(height)}, false,
                          ImGuiWindowFlags_AlwaysUseWindowPadding | flags);
        body();
        ImGui::EndChild();
    };
    const float middle = middle_end - top;
    pane("lanes", gap, top, left_width, middle, [&] { draw(panels.lanes, context); });
    const float n_layers = app.has_run() ? static_cast<float>(app.history.run().config.n_layers) : 8;
    const float n_heads = app.has_run() ? static_cast<float>(app.history.run().config.n_heads) : 8;
    const float atlas_height = std::min(middle * 0.58f, (atlas_width - 46 * s) / n_heads * n_layers + 62 * s);
    pane(
        "atlas", centre_left, top, atlas_width, atlas_height, [&] { draw(panels.atlas, context); },
        ImGuiWindowFlags_NoScrollbar);
    pane(
        "curves", centre_left, top + atlas_height + gap, atlas_width, middle - atlas_height - gap,
        [&] { draw(panels.curves, context); }, ImGuiWindowFlags_NoScrollbar);
    pane(
        "heatmap", centre_left + atlas_width + gap, top, centre - atlas_width - gap, middle,
        [&] { draw(panels.heatmap, context); },
        ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    pane("inspector", centre_right + gap, top, right_width, middle, [&] { draw(panels.inspector, context); });
    pane(
        "strip", gap, middle_end + gap, size.x - 2 * gap, bottom_height - time_height - gap,
        [&] { draw(panels.strip, context); },
        ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    pane(
        "time", gap, bottom - time_height, size.x - 2 * gap, time_height - gap / 2,
        [&] { draw(panels.time, context); },
        ImGuiWindowFlags_NoScrollbar | ImGuiWindowFlags_NoScrollWithMouse);
    ImGui::SetCursorScreenPos({gap + 4 * s, bottom + std::round(3 * s)});
    draw_status(context);

    // Borders that can be dragged.
    const auto drag = [&](const char* id, bool vertical, ImVec2 at, float length, float& stored, float now,
                          float sign) {
        if (const float by = splitter(id, vertical, at, length, gap); by != 0)
            stored = std::max(100.0f, (now + sign * by) / s);
    };
    drag("left|", true, {gap + left_width, top}, middle, view.left_width, left_width, 1);
    drag("atlas|", true, {centre_left + atlas_width, top}, middle, view.atlas_width, atlas_width, 1);
    drag("right|", true, {centre_right, top}, middle, view.right_width, right_width, -1);
    drag("bottom-", false, {gap, middle_end}, size.x - 2 * gap, view.bottom_height, bottom_height, -1);
    ImGui::End();
    draw(panels.dialogs, context);
    draw_token_menu(context);
}

void dispatch_keys(std::vector<KeyPress>& keys, const PanelContext& context, Dialogs& dialogs) {
    for (const KeyPress& press : keys) {
        if (press.code == GLFW_KEY_ESCAPE && context.app.dialog != Dialog::none) {
            context.app.dialog = Dialog::none;
            continue;
        }
        if (context.app.dialog == Dialog::palette) {
            dialogs.keys_down |= press.code == GLFW_KEY_DOWN;
            dialogs.keys_up |= press.code == GLFW_KEY_UP;
        }
        const bool plain = (press.mods & (GLFW_MOD_CONTROL | GLFW_MOD_ALT)) == 0;
        if (ImGui::GetIO().WantTextInput &&
            (plain || press.code == 'C' || press.code == 'V' || press.code == 'Z' || press.code == 'Y'))
            continue;
        if (const UserCommand* command = find_command(Shortcut{press.code, press.mods & 7}))
            run(context, command->id);
    }
    keys.clear();
}

/// Something to look at before anyone clicks: the best-scored token that is no sink, one in the middle, and the
/// first that was evicted.
void first_picks(AppState& app) {
    const int lane = app.shown_lane(), row = app.last_row(), g = app.focused_kv_head();
    std::vector<std::pair<float, int>> evictions;
    const LaneRecord* record = app.record(app.view.lane);
    if (record == nullptr || record->rows == nullptr) return;
    std::vector<float> scores(static_cast<std::size_t>(row) + 1);
    if (!app.history.score_row(lane, row, g, scores)) return;
    int best = -1, gone = -1;
    for (int p = 4; p <= row; ++p) {
        const float score = scores[static_cast<std::size_t>(p)];
        if (std::isnan(score)) continue;
        const bool stored = app.history.stored(lane, g, p, row);
        if (stored && (best < 0 || score > scores[static_cast<std::size_t>(best)])) best = p;
        if (!stored && (gone < 0 || score > scores[static_cast<std::size_t>(gone)])) gone = p;
    }
    app.view.curve_positions.clear();
    for (int p : {best, gone, row})
        if (p >= 0) app.view.curve_positions.push_back(p);
}

}  // namespace

void run_window(WindowOptions options) {
    const GlfwWindow glfw(options.width, options.height);
    GLFWwindow* window = glfw.get();
    const bool scripted = options.script.has_value();

    std::vector<KeyPress> keys;
    g_keys = &keys;
    if (!scripted) {
        glfwSetKeyCallback(window, [](GLFWwindow*, int code, int, int action, int mods) {
            g_frames_wanted = 3;
            if (action != GLFW_RELEASE && g_keys != nullptr) g_keys->push_back({code, mods});
        });
        glfwSetCursorPosCallback(
            window, [](GLFWwindow*, double, double) { g_frames_wanted = std::max(g_frames_wanted, 2); });
        glfwSetMouseButtonCallback(window, [](GLFWwindow*, int, int, int) { g_frames_wanted = 3; });
        glfwSetScrollCallback(window, [](GLFWwindow*, double, double) { g_frames_wanted = 3; });
        glfwSetCharCallback(window, [](GLFWwindow*, unsigned) { g_frames_wanted = 3; });
    }
    glfwSetFramebufferSizeCallback(window, [](GLFWwindow*, int, int) { g_frames_wanted = 3; });
    glfwSetWindowRefreshCallback(window, [](GLFWwindow*) { g_frames_wanted = 3; });

    const ImGuiHost imgui(window, scripted);
    HeatPainter painter;
    AppState app(options.backend, [] { glfwPostEmptyEvent(); });
    app.setup = std::move(options.setup);
    app.view.lane = app.setup.lanes.size() > 1 ? 1 : 0;
    float content_scale = 1, ignored = 1;
    glfwGetWindowContentScale(window, &content_scale, &ignored);
    int framebuffer_width = 0, window_width = 0;
    glfwGetFramebufferSize(window, &framebuffer_width, nullptr);
    glfwGetWindowSize(window, &window_width, nullptr);
    // Where the framebuffer is finer than the window (macOS, Wayland) ImGui scales by itself.
    const float screen_scale = framebuffer_width > window_width ? 1.0f : content_scale;
    if (!options.open.empty())
        app.open_trace(options.open);
    else
        app.start();

    Fonts fonts;
    Panels panels;
    PanelShared shared;
    bool mouse_was_down = false;
    std::uint64_t picked_run = 0;
    int settle = 0;  // frames to draw before the next command of the script
    g_frames_wanted = 3;
    while (!glfwWindowShouldClose(window) && !app.quit) {
        if (g_frames_wanted > 0 || !app.heat_complete)
            glfwPollEvents();
        else
            glfwWaitEventsTimeout(scripted                       ? 0.02
                                  : ImGui::GetIO().WantTextInput ? 0.4
                                                                 : 10.0);  // a caret blinks
        g_frames_wanted = std::max(0, g_frames_wanted - 1);

        app.refresh();
        if (scripted && settle-- <= 0) {
            const auto find_item = [&](std::string_view name) -> std::optional<std::array<double, 4>> {
                const auto found = shared.items.find(name);
                if (found == shared.items.end()) return std::nullopt;
                const auto& [min, max] = found->second;
                return std::array<double, 4>{min.x, min.y, max.x, max.y};
            };
            if (options.script->advance(app, find_item)) {
                settle = 2;
                g_frames_wanted = 3;
            }
        }
        if (app.has_run()) {
            app.heat_complete = app.heat.update(app.history, app.shown_lane(), app.view, 12);
            painter.update(app.heat, app.history, app.shown_lane());
            if (picked_run != app.history.run().id) {
                // The first layers attend evenly: begin where there is something to see.
                if (picked_run == 0) app.view.layer = app.history.run().config.n_layers / 2;
                picked_run = app.history.run().id;
                first_picks(app);
            }
        }
        if (app.scale_changed) {
            app.scale_changed = false;
            fonts = load_fonts(app.view.interface_scale * screen_scale);
            apply_theme(app.view.interface_scale * screen_scale);
            ImGui_ImplOpenGL3_DestroyFontsTexture();
            g_frames_wanted = 3;
        }
        if (std::exchange(app.paste_to_lane, std::nullopt)) {
            const char* text = glfwGetClipboardString(window);
            try {
                run_command(app, fmt::format("lane {} {}", app.view.lane, text == nullptr ? "" : text));
            } catch (const std::exception& error) {
                app.say(error.what(), true);
            }
        }
        if (!app.clipboard_out.empty())
            glfwSetClipboardString(window, std::exchange(app.clipboard_out, "").c_str());

        ImGui_ImplOpenGL3_NewFrame();
        ImGui_ImplGlfw_NewFrame();
        ImGuiIO& io = ImGui::GetIO();
        if (scripted) {
            ScriptInput& input = options.script->input;
            io.MousePos = input.mouse_x < 0 ? ImVec2(-FLT_MAX, -FLT_MAX)
                                            : ImVec2(float(input.mouse_x), float(input.mouse_y));
            for (int button = 0; button < 2; ++button)
                io.MouseDown[button] =
                    (!mouse_was_down && input.clicks == button + 1) || input.held == button + 1;
            if (mouse_was_down) input.clicks = 0;
            mouse_was_down = input.clicks != 0;
            io.MouseWheel = static_cast<float>(std::exchange(input.wheel, 0));
            if (!input.text.empty()) io.AddInputCharactersUTF8(std::exchange(input.text, "").c_str());
        }
        ImGui::NewFrame();
        if (io.KeyCtrl && io.MouseWheel != 0) {
            app.view.interface_scale =
                std::clamp(app.view.interface_scale * std::pow(1.1f, io.MouseWheel), 0.5f, 3.0f);
            app.scale_changed = true;
        }
        shared.batches.clear();
        shared.items.clear();
        shared.hovered = std::exchange(shared.next_hovered, std::nullopt);
        const PanelContext context{
            app, painter, fonts, shared, app.view.interface_scale * screen_scale, io.DisplayFramebufferScale};
        dispatch_keys(keys, context, panels.dialogs);
        lay_out(panels, context);
        if (shared.hovered.has_value() != shared.next_hovered.has_value())
            g_frames_wanted = std::max(g_frames_wanted, 1);

        ImGui::Render();
        int width = 0, height = 0;
        glfwGetFramebufferSize(window, &width, &height);
        glViewport(0, 0, width, height);
        glDisable(GL_SCISSOR_TEST);
        glClearColor(24 / 255.0f, 26 / 255.0f, 31 / 255.0f, 1);
        glClear(GL_COLOR_BUFFER_BIT);
        ImGui_ImplOpenGL3_RenderDrawData(ImGui::GetDrawData());
        try {
            if (const auto path = std::exchange(app.screenshot, std::nullopt)) {
                write_screenshot(*path, width, height);
                app.say("saved " + path->string());
            }
            if (const auto path = std::exchange(app.dump_cells, std::nullopt))
                dump_cells(*path, app, shared, height);
        } catch (const std::exception& error) {
            if (scripted) throw;
            app.say(error.what(), true);
        }
        glfwSwapBuffers(window);
        if (scripted && options.script->done()) app.quit = app.quit || options.script->done();
    }
    g_keys = nullptr;
}

}  // namespace keyhole
