#include "app/window/window.h"

#include "app/actions/action_table.h"
#include "app/base/command_text.h"
#include "app/base/version.h"
#include "app/gl/heat_painter.h"
#include "app/gl/imgui_compat.h"
#include "app/gl/imgui_items.h"
#include "app/gl/kept_frame.h"
#include "app/gl/theme.h"
#include "app/panels/arrangement.h"
#include "app/panels/device_strip.h"
#include "app/panels/first_words.h"
#include "app/panels/interrupted_run.h"
#include "app/state/lesson_steps.h"
#include "app/state/paper_cards.h"
#include "app/state/run_backups.h"
#include "app/view/story_text.h"
#include "app/window/frame_io.h"
#include "app/window/imgui_input.h"
#include "app/window/key_focus.h"
#include "app/window/window_report.h"
#include "engine/analysis/opening_head.h"
#include "engine/analysis/score_curves.h"
#include "engine/analysis/watched_span.h"
#include "engine/base/child_process.h"
#include "engine/base/error.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/base/model_name.h"
#include "engine/base/user_folder.h"
#include "engine/export/captions.h"

#define GLFW_INCLUDE_NONE
#include <GLFW/glfw3.h>
#include <backends/imgui_impl_glfw.h>
#include <backends/imgui_impl_opengl3.h>
#include <imgui.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

namespace {

static_assert(key::kEscape == GLFW_KEY_ESCAPE && key::kEnter == GLFW_KEY_ENTER && key::kTab == GLFW_KEY_TAB &&
              key::kRight == GLFW_KEY_RIGHT && key::kLeft == GLFW_KEY_LEFT && key::kDown == GLFW_KEY_DOWN &&
              key::kUp == GLFW_KEY_UP && key::kPageUp == GLFW_KEY_PAGE_UP &&
              key::kPageDown == GLFW_KEY_PAGE_DOWN && key::kHome == GLFW_KEY_HOME &&
              key::kEnd == GLFW_KEY_END && key::kF1 == GLFW_KEY_F1 && key::kF12 == GLFW_KEY_F12 &&
              key::kShift == GLFW_MOD_SHIFT && key::kCtrl == GLFW_MOD_CONTROL && key::kAlt == GLFW_MOD_ALT);

std::string g_glfw_error;  // GLFW reports through a plain function

/// Owns GLFW, the window and its context.
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
             "no display: opening the window failed ({}); `keyhole decode` needs no window and writes the "
             "same pictures and numbers",
             g_glfw_error.empty() ? "GLFW says no more" : g_glfw_error);
    }
};

/// Owns ImGui and its two backends. Fields hold characters beyond 16 bits escaped; the clipboard holds them
/// unescaped.
class ImGuiHost {
  public:
    explicit ImGuiHost(GLFWwindow* window) {
        ImGui::CreateContext();
        ImGui::GetIO().IniFilename = nullptr;
        ImGui::GetIO().ConfigWindowsMoveFromTitleBarOnly = true;
        ImGui_ImplGlfw_InitForOpenGL(window, false);  // InputQueue has the callbacks
        imgui_compat::use_clipboard<clipboard_text, set_clipboard_text>();
        ImGui_ImplOpenGL3_Init("#version 330 core");
    }
    ~ImGuiHost() {
        ImGui_ImplOpenGL3_Shutdown();
        ImGui_ImplGlfw_Shutdown();
        ImGui::DestroyContext();
    }
    ImGuiHost(const ImGuiHost&) = delete;

  private:
    static const char* clipboard_text() {
        static std::string text;
        const char* held = glfwGetClipboardString(nullptr);
        text = for_field(held == nullptr ? "" : held);
        return text.c_str();
    }
    static void set_clipboard_text(const char* text) {
        glfwSetClipboardString(nullptr, from_field(text).c_str());
    }
};

std::vector<std::string>* g_dropped = nullptr;  // the running window's; GLFW calls plain functions
InputQueue* g_input = nullptr;
int g_frames_wanted = 3;

void push(InputEvent event) {
    g_frames_wanted = 3;
    event.time_s = glfwGetTime();
    if (g_input != nullptr) g_input->push(event);
}

InputEvent::Action action_of(int glfw) {
    return glfw == GLFW_RELEASE  ? InputEvent::Action::release
           : glfw == GLFW_REPEAT ? InputEvent::Action::again
                                 : InputEvent::Action::press;
}

/// Puts the user's pointer and key events into the queue.
void listen(GLFWwindow* window) {
    using Kind = InputEvent::Kind;
    glfwSetKeyCallback(window, [](GLFWwindow*, int code, int, int action, int mods) {
        push({.kind = Kind::key, .action = action_of(action), .code = code, .mods = mods & 15});
    });
    glfwSetCharCallback(window, [](GLFWwindow*, unsigned c) {
        push({.kind = Kind::text, .character = static_cast<char32_t>(c)});
    });
    glfwSetMouseButtonCallback(window, [](GLFWwindow*, int button, int action, int mods) {
        push({.kind = Kind::button, .action = action_of(action), .code = button, .mods = mods & 15});
    });
    glfwSetCursorPosCallback(
        window, [](GLFWwindow*, double x, double y) { push({.kind = Kind::move, .x = x, .y = y}); });
    glfwSetCursorEnterCallback(window, [](GLFWwindow*, int entered) {
        if (!entered) push({.kind = Kind::leave});
    });
    glfwSetScrollCallback(
        window, [](GLFWwindow*, double x, double y) { push({.kind = Kind::wheel, .x = x, .y = y}); });
}

/// Queues what a script did with pointer and keys since the last frame, as if a user did it.
void listen(ScriptInput& script, ScriptInput& before) {
    using Kind = InputEvent::Kind;
    using Action = InputEvent::Action;
    if (script.mouse_x != before.mouse_x || script.mouse_y != before.mouse_y)
        push({.kind = Kind::move, .x = script.mouse_x, .y = script.mouse_y});
    if (before.held != 0 && script.held != before.held)
        push({.kind = Kind::button, .action = Action::release, .code = before.held - 1});
    if (script.held != 0 && script.held != before.held)
        push({.kind = Kind::button, .action = Action::press, .code = script.held - 1});
    if (const int button = std::exchange(script.clicks, 0) - 1; button >= 0) {
        push({.kind = Kind::button, .action = Action::press, .code = button});
        push({.kind = Kind::button, .action = Action::release, .code = button});
    }
    if (const double turns = std::exchange(script.wheel, 0); turns != 0)
        push({.kind = Kind::wheel, .y = turns});
    for (const char32_t c : characters_of(for_field(std::exchange(script.text, ""))))
        push({.kind = Kind::text, .character = c});
    before = script;
}

using Clock = std::chrono::steady_clock;

/// Frames that the user causes come as quickly as screens show them.
constexpr double kFrameS = 1.0 / 60;

/// Returns the seconds between two frames that only new steps cause. The processor is for decoding: there are
/// at most 20 frames a second, and fewer where a frame takes long (software GL, whose threads take more than
/// this one waits), so that frames fill about 6 % of the time; but at least two, so that a run is seen to go
/// on. frame_s: seconds that a frame takes.
double between_steps_s(double frame_s) {
    return std::clamp(frame_s / 0.06, 1.0 / 20, 1.0 / 2);
}

/// Processes events until the next frame is due. input_apart_s, steps_apart_s: seconds between two frames
/// that the user causes, and between two that only steps cause.
void wait_for_turn(Clock::time_point last_frame, bool steps_alone, double input_apart_s,
                   double steps_apart_s) {
    for (;;) {
        const double apart = steps_alone && g_frames_wanted == 0 ? steps_apart_s : input_apart_s;
        const double left = apart - std::chrono::duration<double>(Clock::now() - last_frame).count();
        if (left <= 0) return;
        glfwWaitEventsTimeout(left);
    }
}

/// Returns the scale of fonts and panes: the user's choice, larger for a projector. A small window has no
/// room for large type beside two heat maps. wide, high: of the window, unscaled.
float wanted_scale(const AppState& app, float wide, float high) {
    if (app.view.arrangement == Arrangement::teach && !app.lesson.shown) {
        // The smallest type has 1/45 of the height, so that the back row can read it.
        constexpr float kPart = 45, kSmallest = 12;  // pixels of the smallest type: see load_fonts()
        return std::max(app.view.interface_scale * 1.25f, (high / kPart + 0.51f) / kSmallest);
    }
    const bool fits = app.view.arrangement == Arrangement::teach || wide >= 1400 * app.view.interface_scale;
    return app.view.interface_scale * (app.for_projector() && fits ? 1.25f : 1.0f);
}

/// Returns the scale of the screen that the window is on, which may change. If the framebuffer is finer than
/// the window (macOS, Wayland) ImGui scales by itself.
float screen_scale(GLFWwindow* window) {
    float content = 1, ignored = 1;
    int framebuffer_width = 0, window_width = 0;
    glfwGetWindowContentScale(window, &content, &ignored);
    glfwGetFramebufferSize(window, &framebuffer_width, nullptr);
    glfwGetWindowSize(window, &window_width, nullptr);
    return framebuffer_width > window_width ? 1.0f : content;
}

/// Updates the textures of what is visible. A lane without a picture has no textures to update.
void update_painters(HeatPainters& painters, AppState& app) {
    const std::optional<int> shown = app.shown_lane();
    if (shown) painters.focus.update(app.maps.lane, app.run.history, *shown, app.view.mode == HeatMode::mask);
    const std::vector<int> cards = app.compared_lanes();
    while (painters.others.size() > app.maps.others.size()) painters.others.pop_back();
    while (painters.others.size() < app.maps.others.size()) painters.others.emplace_back();
    for (std::size_t i = 0; i < cards.size() && i < app.maps.others.size(); ++i)
        if (const std::optional<int> other = app.run.drawn_lane(cards[i]))
            painters.others[i].update(app.maps.others[i], app.run.history, *other);
    if (app.shows_difference() && shown && app.run.drawn_lane(app.other_lane()))
        painters.difference.update(app.maps.difference, app.run.history, *shown);
}

/// Calls GLFW's drop callback, as a drop from the desktop does.
void drop(GLFWwindow* window, const std::vector<std::string>& paths) {
    std::vector<const char*> names;
    for (const std::string& path : paths) names.push_back(path.c_str());
    const GLFWdropfun callback = glfwSetDropCallback(window, nullptr);
    glfwSetDropCallback(window, callback);
    if (callback != nullptr) callback(window, static_cast<int>(names.size()), names.data());
}

KeyFocus key_focus(const AppState& app) {
    const DialogRow* row = dialog_row(app.dialog);
    return {text_field_active(), n_open_popups(), app.dialog,
            row != nullptr && !row->in_front && has_focus(row->title)};
}

/// Handles Escape: closes the innermost open thing, with its field. Returns false if nothing is open.
bool close_innermost(AppState& app) {
    const KeyFocus focus = key_focus(app);
    if (focus.in_text) leave_text_field();
    if (focus.n_popups > 0)
        close_top_popup();
    else if (focus.dialog != Dialog::none && (!focus.in_text || is_in_front(focus.dialog)))
        app.dialog = Dialog::none;
    else
        return focus.in_text;
    return true;
}

/// Moves the ring of the keyboard, or presses what it is around. Returns whether the key did so.
bool take_ring_key(const InputEvent& event, const AppState& app, PanelShared& shared) {
    const KeyFocus focus = key_focus(app);
    const bool shift = (event.mods & key::kShift) != 0, ctrl = (event.mods & key::kCtrl) != 0;
    if (focus.n_popups > 0 || (event.mods & ~(key::kShift | key::kCtrl)) != 0) return false;
    if (event.code == key::kTab && !shared.word_list) {
        const DialogRow* row = dialog_row(focus.dialog);
        const bool only_dialog =
            row != nullptr && (row->in_front || (focus.in_page && !shared.tabs.ringed()));
        if (focus.in_text) shared.tabs.start_at(active_item());
        const auto stop = shared.tabs.move(shift, ctrl, only_dialog ? row->title : std::string_view());
        if (!stop) return false;
        if (focus.in_text) leave_text_field();
        if (stop->takes_text) press_item(stop->id, true);
        return true;
    }
    const std::optional<TabStop> ringed = shared.tabs.ringed();
    if (focus.in_text || !ringed || event.mods != 0) return false;
    const DialogRow* row = dialog_row(focus.dialog);
    if (row != nullptr && row->in_front && ringed->root != row->title) return false;
    if (event.code == GLFW_KEY_ESCAPE && focus.dialog == Dialog::none) {
        shared.tabs.clear();
        return true;
    }
    if (event.code != GLFW_KEY_ENTER && event.code != GLFW_KEY_KP_ENTER && event.code != GLFW_KEY_SPACE)
        return false;
    if (event.action == InputEvent::Action::press) press_item(ringed->id, ringed->takes_text);
    return true;
}

/// Runs the keys that are commands, in order. Returns the other events for ImGui, so that a command key
/// writes no text.
std::vector<InputEvent> run_keys(const std::vector<InputEvent>& frame, AppState& app,
                                 const PanelContext& context, Dialogs& dialogs) {
    std::vector<InputEvent> left;
    for (const InputEvent& event : frame) {
        if (event.kind == InputEvent::Kind::move)
            app.hovered_pane =
                pane_at(context.shared, {static_cast<float>(event.x), static_cast<float>(event.y)});
        const bool press = event.is_press();
        if (press && event.code == GLFW_KEY_ESCAPE && std::exchange(context.shared.word_list, false)) {
            context.shared.closes_word_list = true;
            continue;
        }
        if (event.kind == InputEvent::Kind::button && event.action == InputEvent::Action::press)
            context.shared.tabs.clear();
        if (press && take_ring_key(event, app, context.shared)) continue;
        if (press && event.code == GLFW_KEY_ESCAPE &&
            (event.action == InputEvent::Action::again || close_innermost(app)))
            continue;
        const UserAction* action =
            event.kind == InputEvent::Kind::key ? find_action(Shortcut{event.code, event.mods}) : nullptr;
        if (press && action != nullptr && is_for_commands(key_focus(app), event.code, event.mods)) {
            const Dialog before = app.dialog;
            if (action->id != "blink" || event.action == InputEvent::Action::press) run(context, action->id);
            // The field belonged to the dialog.
            if (app.dialog != before && text_field_active()) leave_text_field();
            continue;
        }
        if (event.kind == InputEvent::Kind::key && !press &&
            event.code == find_action("blink")->shortcut.code)
            app.view.blink = false;
        if (const KeyFocus focus = key_focus(app); press && focus.in_page && !focus.in_text &&
                                                   focus.n_popups == 0 && event.mods == 0 &&
                                                   moves_in_page(event.code))
            scroll_focused(event.code);
        if (press && app.dialog == Dialog::palette && event.mods == 0)
            dialogs.selected_by += event.code == GLFW_KEY_DOWN ? 1 : event.code == GLFW_KEY_UP ? -1 : 0;
        left.push_back(event);
        if (event.kind == InputEvent::Kind::key && event.code == GLFW_KEY_ENTER && event.mods == 0 &&
            keys_move_in_menu() && !key_focus(app).in_text)
            left.back().code = GLFW_KEY_SPACE;  // by which ImGui takes an entry
    }
    return left;
}

constexpr double kFirstSpeed = 8;  // steps a second

/// Picks tokens so that the window shows something before the first click: the watched words, or else what
/// tells most.
void first_picks(AppState& app) {
    const LaneRecord* record = app.record(app.view.lane);
    if (record == nullptr || record->rows == nullptr) return;
    std::vector<int> telling =
        telling_positions(app.run.history, app.need_shown_lane(), app.focused_kv_head(), app.run.last_row());
    if (telling.empty()) return;
    std::vector<int>& picked = app.view.curve_positions;
    picked = app.view.watched ? std::vector<int>() : std::move(telling);
    if (!app.view.watched) return;
    for (int p = app.view.watched->first; p <= app.view.watched->last; ++p)
        if (picked.size() < ViewState::kMaxCurves) picked.push_back(p);
}

/// The frame loop: input, update, draw.
class WindowLoop {
  public:
    explicit WindowLoop(WindowOptions options);
    ~WindowLoop();
    void run();

  private:
    bool scripted() const { return options_.script.has_value() || options_.driver != nullptr; }

    // Input.
    void wait_for_events(bool behind);
    bool run_script();
    std::vector<InputEvent> take_events();

    // Update. Functions that return bool tell whether a frame is due.
    bool update();
    bool refresh();
    void prepare_frame();
    void prepare_maps();
    bool is_worth_keeping() const;
    void name_window();
    void look_at_new_run();
    void look_at_prompt();
    void wait_for_story();
    void load_fonts_again();
    void serve_clipboard();

    // Draw.
    void draw();
    bool has_come_to_rest();
    void bring_to_rest();
    bool may_skip_picture();
    void render();
    void write_files(int width, int height);

    void act(std::string_view text);
    PanelContext context() {
        return {app_, act_, painters_, fonts_, shared_, scale_, ImGui::GetIO().DisplayFramebufferScale};
    }

    WindowOptions options_;
    const GlfwWindow glfw_;
    GLFWwindow* const window_;
    InputQueue input_;
    std::vector<std::string> dropped_;
    const ImGuiHost imgui_;
    ImGuiInput imgui_input_;
    HeatPainters painters_;
    KeptFrame kept_;
    AppState app_;
    RunBackups run_backups_;
    const std::function<void(std::string_view)> act_ = [this](std::string_view text) { act(text); };
    Fonts fonts_;
    Panels panels_;
    PanelShared shared_;
    InterruptedRuns interrupted_;
    WindowReport report_;
    ScriptInput script_before_;
    KeyFocus keys_were_for_;
    std::uint64_t picked_run_ = 0;
    std::string title_;
    std::string shown_prompt_;  // that look_at_prompt() has seen
    std::string first_prompt_;  // of the first live run
    float scale_ = 0, drawn_scale_ = 0;
    /// The trace of the command line is not read yet. Without it there is nothing to show.
    bool starting_ = false;
    Clock::time_point last_frame_;
    int n_skipped_ = 0;                    ///< frames since the last one that was shown
    std::int64_t seen_notice_ = 0;         ///< its number in the frame before
    Dialog dialog_before_ = Dialog::none;  ///< of the frame before
    std::string refused_;                  ///< why an action failed last
    int refused_in_ = 0;                   ///< the frame in which it did
    double frame_s_ = 0;                   ///< seconds that a frame takes, averaged over the last ones
    SettingsFile settings_{options_.settings};
    bool first_start_ = false;  ///< the first words are on show
    int frames_to_wait_ = 0;    ///< frames to draw before the script's next command
    std::uint64_t places_ = 0;  ///< a hash of where the last frame's widgets were
    int n_moved_ = 0;           ///< frames in a row, the last included, in which a widget moved
    bool moves_ = false;        ///< the next frame's widgets may lie elsewhere
    bool idle_ = false;         ///< nothing ran when the last frame was due
};

WindowLoop::WindowLoop(WindowOptions options)
    : options_(std::move(options)),
      glfw_(options_.width, options_.height),
      window_(glfw_.get()),
      imgui_(window_),
      imgui_input_(window_),
      app_(options_.backend, [] { glfwPostEmptyEvent(); }),
      run_backups_(options_.run_backups),
      report_(options_.report),
      starting_(!options_.open.empty()) {
    g_input = &input_;
    g_dropped = &dropped_;
    g_frames_wanted = 3;
    if (!scripted()) listen(window_);
    glfwSetDropCallback(window_, [](GLFWwindow*, int n, const char** paths) {
        g_frames_wanted = 3;
        if (g_dropped != nullptr) g_dropped->assign(paths, paths + n);
    });
    glfwSetFramebufferSizeCallback(window_, [](GLFWwindow*, int, int) { g_frames_wanted = 3; });
    glfwSetWindowContentScaleCallback(window_, [](GLFWwindow*, float, float) { g_frames_wanted = 3; });
    glfwSetWindowRefreshCallback(window_, [](GLFWwindow*) { g_frames_wanted = 3; });

    app_.last_run = run_backups_.last();
    app_.papers.cards = paper_cards();
    app_.papers.program = keyhole_program();
    if (const std::filesystem::path data = user_folder(UserFolder::data); !data.empty()) {
        app_.papers.folder = data / "papers";
        app_.attribution.folder = data / "attributions";
    }
    app_.attribution.program = app_.papers.program;
    app_.run.setup = std::move(options_.setup);
    app_.run.lane_editor.reset({}, options_.follow);
    app_.view.lane = app_.run.setup.lanes.size() > 1 ? 1 : 0;
    // Scripts begin with all views: they name the arrangement that they want.
    if (!scripted()) {
        app_.view.arrangement = Arrangement::story;
        app_.view.strip_key = "budget";
        app_.view.bounds = true;
    }
    std::string fault_of_settings;
    std::error_code ignored;
    first_start_ = !options_.settings.empty() && options_.open.empty() && options_.lesson.empty() &&
                   !std::filesystem::exists(options_.settings, ignored);
    try {
        load_settings(options_.settings, app_.view, app_.recent);
    } catch (const Error& error) {
        fault_of_settings = error.what();
    }
    // Slow enough to read. Scripts do not read.
    if (!scripted()) app_.run.set_speed(kFirstSpeed);
    if (starting_)
        app_.open_trace(options_.open);
    else
        app_.start();
    if (!scripted()) app_.prove_device_once();
    app_.lesson.wanted = options_.lesson;
    if (!fault_of_settings.empty()) app_.notify(fault_of_settings, true);
}

WindowLoop::~WindowLoop() {
    g_input = nullptr;
    g_dropped = nullptr;
}

void WindowLoop::run() {
    wait_for_story();
    while (!glfwWindowShouldClose(window_) && !app_.requests.quit) {
        const bool behind = !app_.maps.complete || std::exchange(shared_.panes_lag, false);
        wait_for_events(behind);
        bool due = g_frames_wanted > 0 || behind || (!scripted() && ImGui::GetIO().WantTextInput);
        g_frames_wanted = std::max(0, g_frames_wanted - 1);
        last_frame_ = Clock::now();
        settings_.update(app_.view, app_.recent, last_frame_);
        app_.frames.frame_begins();
        due = update() || due;
        due = has_come_to_rest() || due;
        if (!due && !app_.requests.quit) {  // nothing new to show, but the engine may have come to rest
            if (const bool waiting = !input_.empty() || moves_; report_.is_late(app_, waiting))
                report_.write(app_, shared_, key_focus(app_), waiting);
            continue;
        }
        draw();
        const double took = std::chrono::duration<double>(Clock::now() - last_frame_).count();
        frame_s_ += (took - frame_s_) / 8;
        if (options_.script && options_.script->done()) app_.requests.quit = true;
    }
    settings_.save(app_.view, app_.recent);
}

/// Returns whether the live run has more than what a start or a lesson shows: commands, a prompt of the
/// user's, or a longer text.
bool WindowLoop::is_worth_keeping() const {
    if (scripted() || app_.lesson.open()) return false;
    const bool own_prompt = app_.run.setup.guide.watch.empty() && app_.run.setup.prompt != first_prompt_;
    return !app_.run.status.run.commands.empty() || own_prompt || app_.run.n_decoded() > Story::kMostRows;
}

/// Runs an action. A failure goes to the status line, and leaves it when an action of a later frame succeeds.
/// Other notices go with the next action.
void WindowLoop::act(std::string_view text) {
    try {
        const bool is_seen = !app_.notice.is_fault && app_.notice.number == seen_notice_;
        run_action(app_, text);
        const UserAction* action = find_action(text.substr(0, text.find(' ')));
        if (is_seen && !action->traits.is_drag && app_.notice.number == seen_notice_) app_.notify("");
        if (app_.notice.is_fault && app_.notice.text == refused_ && ImGui::GetFrameCount() > refused_in_)
            app_.notify("");
    } catch (const std::exception& error) {
        app_.notify(error.what(), true);
        refused_ = error.what();
        refused_in_ = ImGui::GetFrameCount();
    }
}

/// Waits until something happens or a frame is due. behind: the last frame did not show everything.
void WindowLoop::wait_for_events(bool behind) {
    if (g_frames_wanted > 0 || behind)
        glfwPollEvents();
    else
        glfwWaitEventsTimeout(scripted()                     ? 0.02
                              : !app_.doctor.complete()      ? 0.05
                              : report_.wanted()             ? 0.1
                              : ImGui::GetIO().WantTextInput ? 0.4  // for the blinking caret
                              : settings_.waits()            ? 1.0
                                                             : 10.0);
    if (!scripted() || g_frames_wanted == 0)
        // A program that reads the reports waits for every frame: none of them waits for a screen.
        wait_for_turn(last_frame_, app_.maps.complete, report_.wanted() ? 0 : kFrameS,
                      between_steps_s(frame_s_));
}

/// Runs the script's next command once the last one has been drawn. Returns true if it ran one.
bool WindowLoop::run_script() {
    if (options_.driver != nullptr) {
        if (!options_.driver->turn(app_)) return false;
        g_frames_wanted = 2;
        return true;
    }
    if (!scripted() || starting_ || !input_.empty() || frames_to_wait_-- > 0) return false;
    const auto find_item = [&](std::string_view name) -> std::optional<std::array<double, 4>> {
        const auto found = shared_.items.find(name);
        if (found == shared_.items.end()) return std::nullopt;
        const NamedItem& item = found->second;
        return std::array<double, 4>{item.min.x, item.min.y, item.max.x, item.max.y};
    };
    if (!options_.script->advance(app_, find_item)) return false;
    frames_to_wait_ = 2;
    g_frames_wanted = 3;
    return true;
}

/// Takes this frame's events from the queue. If a frame has opened something, it takes keys only from the
/// next frame on.
std::vector<InputEvent> WindowLoop::take_events() {
    if (options_.script) {
        listen(options_.script->input, script_before_);
        if (!options_.script->input.dropped.empty())
            drop(window_, std::exchange(options_.script->input.dropped, {}));
    }
    const KeyFocus keys_are_for = key_focus(app_);
    std::vector<InputEvent> events =
        input_.take_frame(keys_are_for != std::exchange(keys_were_for_, keys_are_for) ? KeyTurn::waits
                          : keys_are_for.in_text                                      ? KeyTurn::typing
                                                                                      : KeyTurn::one);
    if (!input_.empty()) g_frames_wanted = std::max(g_frames_wanted, 2);
    report_.count(events);
    return events;
}

/// Takes what the engine, the jobs and the script changed.
bool WindowLoop::update() {
    bool due = refresh();
    if (app_.run.has_steps()) {
        // The doctor may have paused: no frame is due unless it examined something.
        const std::int64_t n_examined = app_.doctor.n_examined();
        app_.update_doctor(4);
        due = due || app_.doctor.n_examined() != n_examined;
    }
    return run_script() || due;
}

bool WindowLoop::refresh() {
    const bool due = app_.refresh();
    if (app_.run.has_steps()) look_at_new_run();
    if (app_.run.live() && app_.run.has_steps()) {
        run_backups_.update(app_.run.history.steps());
        run_backups_.keep_as_last(is_worth_keeping());
    }
    if (std::string fault = run_backups_.take_fault(); !fault.empty()) app_.notify(std::move(fault), true);
    if (starting_ && !app_.jobs.opening()) {
        starting_ = false;
        if (!app_.run.has_steps() && !app_.jobs.open_job.fault().empty())
            fail(ErrorCode::bad_file, "{}", app_.jobs.open_job.fault());
    }
    return due;
}

/// Names trace and model in the title bar.
void WindowLoop::name_window() {
    std::string title = "Keyhole";
    if (app_.run.has_steps()) {
        title = model_name(app_.run.history.run().model_path) + " – " + title;
        if (!app_.run.live()) title = app_.run.opened_file.filename().string() + " – " + title;
    }
    if (title != title_) glfwSetWindowTitle(window_, printable_text(title).c_str());
    title_ = std::move(title);
}

/// Prepares the frame: fonts, clipboard.
void WindowLoop::prepare_frame() {
    name_window();
    load_fonts_again();
    serve_clipboard();
}

/// Makes matrices and textures of the lanes and the head that the frame shows.
void WindowLoop::prepare_maps() {
    if (!app_.run.has_steps()) return;
    apply_lesson_look(app_);
    app_.update_maps(12);  // last: it reads the head that was picked
    update_painters(painters_, app_);
}

/// Looks at what matters most in a run that has just come.
void WindowLoop::look_at_new_run() {
    const std::uint64_t id = app_.run.history.run().id;
    if (picked_run_ == id) return;
    if (first_prompt_.empty() && app_.run.live()) first_prompt_ = app_.run.setup.prompt;
    app_.choose_by_itself([&] {
        if (picked_run_ == 0 || shown_prompt_ != app_.run.history.run().prompt) look_at_prompt();
        picked_run_ = id;
        first_picks(app_);
    });
}

/// Decodes the answer before the window shows anything, unless it takes longer than people wait gladly: then
/// the story view shows how far it is.
void WindowLoop::wait_for_story() {
    constexpr auto kPatience = std::chrono::milliseconds(600);
    if (!app_.tells_story() || starting_ || !options_.lesson.empty()) return;
    const auto until = Clock::now() + kPatience;
    const auto told = [&] { return app_.run.has_steps() && app_.run.n_decoded() > 0 && app_.is_settled(); };
    while (Clock::now() < until && !told() && app_.run.status.phase != EnginePhase::failed) {
        glfwWaitEventsTimeout(0.02);
        refresh();
        app_.maps.complete = true;  // nothing is drawn yet
    }
}

/// Watches the words that the prompt's file or the trace names, and shows the head that matters most; without
/// one a middle layer, since the first layers attend evenly.
void WindowLoop::look_at_prompt() {
    const RunHistory& history = app_.run.history;
    shown_prompt_ = history.run().prompt;
    if (picked_run_ != 0) app_.view.watched.reset();  // words of another prompt
    if (const std::optional<TokenSpan> words = words_to_watch(app_)) {
        app_.view.watched = words;
        app_.view.measure_curve = ViewState::kWatchedSpan;
    }
    if (!app_.view.watched && app_.view.measure_curve == ViewState::kWatchedSpan)
        app_.view.measure_curve = -1;
    const HeadPlace middle{app_.run.history.run().config.n_layers / 2, 0};
    const HeadPlace place =
        opening_head(app_.run.history, app_.text_lane(), app_.view.watched).value_or(middle);
    app_.view.layer = place.layer;
    app_.view.head = place.head;
}

/// Loads the fonts if the scale has changed or the run brought new characters.
void WindowLoop::load_fonts_again() {
    const float screen = screen_scale(window_);
    scale_ =
        wanted_scale(app_, ImGui::GetIO().DisplaySize.x / screen, ImGui::GetIO().DisplaySize.y / screen) *
        screen;
    std::vector<TopToken> more;  // tokens that no record holds
    if (const auto& counterfactual = app_.run.status.counterfactual) more = counterfactual->with;
    if (const auto& answers = app_.run.status.answers)
        for (const LaneAnswer& answer : *answers)
            for (const int token : answer.tokens) more.push_back({token, 0});
    const bool learned = app_.glyphs.learn(app_.run.history, more);
    if (!std::exchange(app_.requests.scale_changed, false) && !learned && drawn_scale_ == scale_) return;
    const bool first = std::exchange(drawn_scale_, scale_) == 0;
    fonts_ = load_fonts(scale_, app_.glyphs);
    apply_theme(scale_, app_.view.background);
    imgui_compat::renew_font_texture(first);
    kept_.forget();
    g_frames_wanted = 3;
}

void WindowLoop::serve_clipboard() {
    if (std::exchange(app_.requests.paste_to_lane, std::nullopt)) {
        const char* text = glfwGetClipboardString(window_);
        act(fmt::format("lane {} {}", app_.view.lane, text == nullptr ? "" : text));
    }
    if (!app_.requests.clipboard_out.empty())
        glfwSetClipboardString(window_, std::exchange(app_.requests.clipboard_out, "").c_str());
}

void WindowLoop::draw() {
    prepare_frame();
    ImGui_ImplOpenGL3_NewFrame();
    ImGui_ImplGlfw_NewFrame();
    const std::vector<InputEvent> events = run_keys(take_events(), app_, context(), panels_.dialogs);
    prepare_maps();  // after the keys, which may focus another lane
    imgui_input_.hand_over(events);
    let_keys_move_in_menus();
    ImGui::NewFrame();
    const ImGuiIO& io = ImGui::GetIO();
    if (io.KeyCtrl && io.MouseWheel != 0)
        act(fmt::format("ui.scale {}", 100 * app_.view.interface_scale * std::pow(1.1f, io.MouseWheel)));
    shared_.batches.clear();
    shared_.items.clear();
    shared_.tabs.begin_frame();
    shared_.covers = std::exchange(shared_.covers_drawn, {});
    shared_.panes.clear();
    shared_.word_list = false;
    shared_.drawn_heat.reset();
    shared_.hovered = std::exchange(shared_.next_hovered, std::nullopt);
    for (const std::string& path : std::exchange(dropped_, {})) act("open " + path);
    if (!app_.requests.action.empty()) act(std::exchange(app_.requests.action, {}));
    lay_out(panels_, context());
    shared_.strips_drawn = 0;
    draw_interrupted_runs(interrupted_, run_backups_, context());
    draw_device_strip(context());
    draw_first_words(first_start_, context());
    if (shared_.strips != shared_.strips_drawn) g_frames_wanted = std::max(g_frames_wanted, 1);
    shared_.strips = shared_.strips_drawn;
    if (shared_.drawn_heat) app_.heat_was_drawn(*shared_.drawn_heat);
    if (app_.run.has_steps() && !io.MouseDown[0] && !io.MouseDown[1]) app_.remember_changes();
    if (shared_.hovered.has_value() != shared_.next_hovered.has_value())
        g_frames_wanted = std::max(g_frames_wanted, 1);
    seen_notice_ = app_.notice.number;
    // The ring of the keyboard leaves a dialog once a frame without the dialog was drawn.
    if (std::exchange(dialog_before_, app_.dialog) != app_.dialog)
        g_frames_wanted = std::max(g_frames_wanted, 2);
    bring_to_rest();
    if (may_skip_picture()) {
        ImGui::EndFrame();
        app_.frames.frame_ends();
        return;
    }
    n_skipped_ = 0;
    render();
    if (options_.driver != nullptr) options_.driver->drawn(app_, shared_);
    report_.write(app_, shared_, key_focus(app_), !input_.empty() || moves_);
    app_.texture_bytes = painters_.texture_bytes() + texture_bytes(panels_.dialogs);
    app_.frames.frame_ends();
}

/// Returns whether all work has ended since the last call. What moved with the work, a bar say, moves no
/// more: the layout comes to rest anew.
bool WindowLoop::has_come_to_rest() {
    const bool idle = app_.idle();
    if (std::exchange(idle_, idle) || !idle) return false;
    n_moved_ = 0;
    return true;
}

/// Asks for another frame while widgets move: a frame lays out by sizes of the frame before. Otherwise the
/// user's next click would move them, away from the pointer. What moves with every step is not waited for.
void WindowLoop::bring_to_rest() {
    constexpr int kMost = 4;
    std::uint64_t places = kFnvBasis;
    for (const auto& [name, item] : shared_.items) {
        places = fnv1a(name, places);
        places = fnv1a({reinterpret_cast<const char*>(&item), sizeof item}, places);
    }
    n_moved_ = std::exchange(places_, places) == places ? 0 : n_moved_ + 1;
    moves_ = n_moved_ > 0 && n_moved_ <= kMost;
    if (moves_) g_frames_wanted = std::max(g_frames_wanted, 1);
}

/// Returns whether events wait whose frame will show more: then this frame only takes its input. A press and
/// its release need a frame each, and with many of them a slow screen would fall behind the user.
bool WindowLoop::may_skip_picture() {
    constexpr int kMost = 12;  // so that something moves meanwhile
    const bool wanted = app_.requests.screenshot || app_.requests.dump_cells || options_.driver != nullptr;
    return !input_.empty() && !wanted && !app_.requests.quit && ++n_skipped_ <= kMost;
}

/// Draws the frame on the screen and saves what was asked for.
void WindowLoop::render() {
    // A frame that is saved must be complete.
    shared_.panes_may_lag = !app_.requests.screenshot && !app_.requests.dump_cells;
    ImGui::Render();
    int width = 0, height = 0;
    glfwGetFramebufferSize(window_, &width, &height);
    kept_.draw(*ImGui::GetDrawData(), theme::colors().window, keep_picture);
    write_files(width, height);
    glfwSwapBuffers(window_);
}

void WindowLoop::write_files(int width, int height) {
    try {
        if (const auto path = std::exchange(app_.requests.screenshot, std::nullopt)) {
            write_screenshot(*path, width, height,
                             app_.run.has_steps()
                                 ? made_by(app_.run.history.run(), program_name(), command_text())
                                 : program_name());
            app_.notify("saved " + std::filesystem::absolute(*path).string());
        }
        if (const auto path = std::exchange(app_.requests.dump_cells, std::nullopt))
            dump_cells(*path, app_, shared_, height);
    } catch (const std::exception& error) {
        if (options_.script && !options_.script->tries()) throw;
        app_.notify(error.what(), true);
    }
}

}  // namespace

void run_window(WindowOptions options) {
    WindowLoop(std::move(options)).run();
}

}  // namespace keyhole
