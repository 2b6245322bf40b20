#include "tests/window/simulated_user.h"

#include "tests/window/window_run.h"

#include <X11/Xlib.h>
#include <X11/extensions/XTest.h>
#include <X11/keysym.h>
#include <poll.h>
#include <sys/inotify.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>

namespace keyhole::testing {

namespace {

using Clock = std::chrono::steady_clock;

// For slow machines under sanitizers. Elsewhere the awaited states come at once.
constexpr int kPatienceS = 90;
// The pointer may rest where the window does not see it.
constexpr std::chrono::seconds kPointerPatience{5};
// GLFW treats two presses of a key within one millisecond as one.
constexpr unsigned long kKeyMs = 2;

/// Starts a program with its output in a file.
pid_t spawn(const std::vector<std::string>& words, const std::filesystem::path& folder,
            const std::string& log, const std::string& display) {
    const pid_t child = fork();
    if (child != 0) return child;
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    if (chdir(folder.c_str()) != 0 || std::freopen(log.c_str(), "w", stdout) == nullptr) _exit(126);
    dup2(fileno(stdout), 2);
    if (!display.empty()) setenv("DISPLAY", display.c_str(), 1);
    unsetenv("WAYLAND_DISPLAY");
    setenv("LP_NO_RAST", "1", 1);  // no test here looks at pixels: see kNoPixels
    // A test may ask for a model. None must come from a network or from the person at the machine.
    setenv("XDG_CACHE_HOME", (folder / "cache").c_str(), 1);
    setenv("XDG_DATA_HOME", (folder / "data").c_str(), 1);
    setenv("PIP_NO_INDEX", "1", 1);
    unsetenv("PIP_FIND_LINKS");
    execvp(arguments[0], arguments.data());
    _exit(127);
}

}  // namespace

void SimulatedUser::SetUp() {
    folder_ =
        std::filesystem::temp_directory_path() /
        ("keyhole-hand-" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) +
         "-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    watch_ = inotify_init1(IN_CLOEXEC | IN_NONBLOCK);
    inotify_add_watch(watch_, folder_.c_str(), IN_MOVED_TO);
    // A display of its own: all programs of a display share pointer and focus.
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    server_ = spawn({"Xvfb", "-displayfd", std::to_string(ends[1]), "-screen", "0", "1920x1200x24",
                     "-noreset", "-nolisten", "tcp"},
                    folder_, (folder_ / "server.txt").string(), "");
    close(ends[1]);
    std::string number;
    for (char c = 0; read(ends[0], &c, 1) == 1 && c != '\n';) number += c;
    close(ends[0]);
    if (number.empty()) GTEST_SKIP() << "no Xvfb";
    display_name_ = ":" + number;
    display_ = XOpenDisplay(display_name_.c_str());
    ASSERT_NE(display_, nullptr) << display_name_;
}

void SimulatedUser::TearDown() {
    const auto end = [](pid_t& child) {
        if (child <= 0) return;
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        child = -1;
    };
    if (alive()) end(program_);
    if (display_ != nullptr) XCloseDisplay(display_);
    end(server_);
    if (watch_ >= 0) close(watch_);
    std::filesystem::remove_all(folder_);
}

void SimulatedUser::start(const std::string& arguments) {
    n_buttons_ = n_keys_ = n_turns_ = 0;
    report_ = {};
    std::filesystem::remove(folder_ / "report.json");
    if (const auto settings = folder_ / "settings.json";
        !arrangement_.empty() && !std::filesystem::exists(settings))
        std::ofstream(settings) << R"({"arrangement": ")" << arrangement_ << R"(", "strips": "off"})";
    std::vector<std::string> words = {reference::built("keyhole"),
                                      "gui",
                                      "--report",
                                      (folder_ / "report.json").string(),
                                      "--settings",
                                      (folder_ / "settings.json").string(),
                                      "--keep-in",
                                      (folder_ / "runs").string(),
                                      "--size",
                                      std::to_string(width_) + "x" + std::to_string(height_)};
    std::istringstream more(arguments);
    for (std::string word; more >> word;) words.push_back(word);
    XTestFakeMotionEvent(display_, -1, width_ + 100, height_ + 100, 0);
    XFlush(display_);
    program_ = spawn(words, folder_, (folder_ / "out.txt").string(), display_name_);
    ASSERT_TRUE(wait_until("a run", [](const Json& now) {
        return now["has_run"] == true && now["idle"] == true && now["input"]["waiting"] == false &&
               (now["items"].contains("pane text") || now["items"].contains("heatmap") ||
                now["items"].contains("pane story"));
    }));
}

std::string SimulatedUser::output() {
    std::ifstream file(folder_ / "out.txt");
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
}

bool SimulatedUser::alive() {
    if (program_ <= 0) return false;
    if (waitpid(program_, &status_, WNOHANG) == 0) return true;
    program_ = -1;
    return false;
}

int SimulatedUser::quit() {
    strike("Ctrl+Q");
    for (const auto until = Clock::now() + std::chrono::seconds(kPatienceS);
         alive() && Clock::now() < until;) {
        pollfd nothing{-1, 0, 0};
        poll(&nothing, 1, 10);
    }
    EXPECT_FALSE(alive()) << "it does not end";
    return exit_status();
}

int SimulatedUser::exit_status() const {
    return WIFEXITED(status_) ? WEXITSTATUS(status_) : -1;
}

bool SimulatedUser::read_report() {
    std::ifstream file(folder_ / "report.json");
    if (!file) return false;
    report_ = Json::parse(file, nullptr, false);
    return report_.is_object();
}

SimulatedUser::Json SimulatedUser::report() {
    read_report();
    return report_;
}

bool SimulatedUser::wait_for(const std::function<bool(const Json&)>& so, std::chrono::seconds patience) {
    Json taken;  // progress on input extends the time limit, for slow machines
    auto until = Clock::now() + patience;
    while (Clock::now() < until) {
        if (read_report()) {
            if (so(report_)) return true;
            if (taken != report_["input"]) until = Clock::now() + patience;
            taken = report_["input"];
        }
        if (!alive()) return false;
        char events[4096];
        if (read(watch_, events, sizeof events) > 0) continue;
        pollfd change{watch_, POLLIN, 0};
        poll(&change, 1, 200);
    }
    return false;
}

bool SimulatedUser::wait_until(const std::string& what, const std::function<bool(const Json&)>& so) {
    if (wait_for(so, std::chrono::seconds(kPatienceS))) return true;
    if (!alive()) {
        ADD_FAILURE() << "the program ended (status " << status_ << ") before " << what << "\n" << output();
        return false;
    }
    Json brief = report_;
    if (brief.is_object()) brief.erase("items");
    ADD_FAILURE() << "no " << what << " in " << kPatienceS << " s: " << brief << "\n" << output();
    return false;
}

bool SimulatedUser::has_caught_up(const Json& now) const {
    const Json& input = now["input"];
    return input["buttons"] >= n_buttons_ && input["keys"] >= n_keys_ && input["turns"] >= n_turns_ &&
           input["waiting"] == false;
}

bool SimulatedUser::settle() {
    return wait_until("end of the events", [&](const Json& now) { return has_caught_up(now); });
}

bool SimulatedUser::catch_up() {
    return wait_for([&](const Json& now) { return has_caught_up(now); }, std::chrono::seconds(kPatienceS));
}

bool SimulatedUser::shows(const std::string& item) {
    return report()["items"].contains(item);
}

// Outside the window the next click would be nobody's. A widget of the last report may lie there after the
// window became smaller.
void SimulatedUser::move(int x, int y) {
    XTestFakeMotionEvent(display_, -1, std::clamp(x, 0, width_ - 1), std::clamp(y, 0, height_ - 1), 0);
    XFlush(display_);
}

void SimulatedUser::button(int number, bool press) {
    XTestFakeButtonEvent(display_, static_cast<unsigned>(number), press ? True : False, 0);
    XFlush(display_);
    if (number <= 3) ++n_buttons_;
}

void SimulatedUser::wheel(int turns) {
    for (int i = 0; i < std::abs(turns); ++i) {
        button(turns > 0 ? 4 : 5, true);
        button(turns > 0 ? 4 : 5, false);
    }
    n_turns_ += std::abs(turns);
}

void SimulatedUser::point(const std::string& item, double across, double down) {
    if (!wait_until("widget '" + item + "'", [&](const Json& now) { return now["items"].contains(item); }))
        return;
    // Something may have moved it since the report, so a look after the pointer has come decides.
    constexpr int kMostTries = 5;
    for (int tries = 0; tries < kMostTries; ++tries) {
        const Json box = report_["items"][item];
        const int x = static_cast<int>(box[0].get<double>() +
                                       (box[2].get<double>() - box[0].get<double>()) * across),
                  y = static_cast<int>(box[1].get<double>() +
                                       (box[3].get<double>() - box[1].get<double>()) * down);
        move(x, y);
        const auto has_come = [&](const Json& now) { return now["pointer"] == Json{x, y}; };
        if (!wait_for(has_come, kPointerPatience)) return;
        if (!report_["items"].contains(item) || report_["items"][item] == box) return;
    }
}

void SimulatedUser::click(const std::string& item, double across, double down, int number) {
    point(item, across, down);
    button(number, true);
    button(number, false);
    settle();
}

void SimulatedUser::drag(const std::string& item, double from_x, double from_y, double to_x, double to_y) {
    point(item, from_x, from_y);
    const Json box = report_["items"][item];
    button(1, true);
    constexpr int kSteps = 8;
    for (int i = 1; i <= kSteps; ++i) {
        const double x = from_x + (to_x - from_x) * i / kSteps, y = from_y + (to_y - from_y) * i / kSteps;
        move(static_cast<int>(box[0].get<double>() + (box[2].get<double>() - box[0].get<double>()) * x),
             static_cast<int>(box[1].get<double>() + (box[3].get<double>() - box[1].get<double>()) * y));
    }
    button(1, false);
    settle();
}

void SimulatedUser::key_code(unsigned code, bool press) {
    XTestFakeKeyEvent(display_, code, press ? True : False, kKeyMs);
    XFlush(display_);
    if (press) ++n_keys_;
}

void SimulatedUser::press_key(const std::string& keysym, bool press) {
    const KeySym symbol = XStringToKeysym(keysym.c_str());
    ASSERT_NE(symbol, static_cast<KeySym>(NoSymbol)) << keysym;
    key_code(XKeysymToKeycode(display_, symbol), press);
}

void SimulatedUser::strike(const std::string& combination) {
    std::vector<std::string> held;
    std::size_t begin = 0;
    for (std::size_t plus; (plus = combination.find('+', begin)) != std::string::npos && plus > begin;) {
        const std::string name = combination.substr(begin, plus - begin);
        held.push_back(name == "Ctrl" ? "Control_L" : name == "Alt" ? "Alt_L" : "Shift_L");
        begin = plus + 1;
    }
    std::string last = combination.substr(begin);
    if (last.size() == 1 && last[0] >= 'A' && last[0] <= 'Z') last[0] = static_cast<char>(last[0] + 32);
    for (const std::string& name : held) press_key(name, true);
    press_key(last, true);
    press_key(last, false);
    while (!held.empty()) {
        press_key(held.back(), false);
        held.pop_back();
    }
}

void SimulatedUser::scroll_to(const std::string& pane, const std::string& item) {
    point(pane, 0.5, 0.6);
    for (int i = 0; i < 40 && !shows(item); ++i) {
        wheel(-1);
        settle();
    }
    wheel(-2);
    settle();
}

void SimulatedUser::key(const std::string& combination) {
    strike(combination);
    settle();
}

void SimulatedUser::write(std::string_view text) {
    for (const char c : text) {
        // The keysyms of Latin-1 equal their character codes.
        const KeySym symbol = c == '\n' ? XK_Return : static_cast<KeySym>(static_cast<unsigned char>(c));
        const KeyCode code = XKeysymToKeycode(display_, symbol);
        int n_symbols = 0;
        KeySym* symbols = XGetKeyboardMapping(display_, code, 1, &n_symbols);
        const bool shift = n_symbols > 1 && symbols[0] != symbol && symbols[1] == symbol;
        XFree(symbols);
        if (shift) press_key("Shift_L", true);
        key_code(code, true);
        key_code(code, false);
        if (shift) press_key("Shift_L", false);
    }
}

void SimulatedUser::type(std::string_view text) {
    write(text);
    settle();
}

void SimulatedUser::resize(int width, int height) {
    Window root = DefaultRootWindow(display_), ignored = 0, parent = 0;
    Window* children = nullptr;
    unsigned n = 0;
    XQueryTree(display_, root, &ignored, &parent, &children, &n);
    for (unsigned i = 0; i < n; ++i) {
        XWindowAttributes about;
        if (XGetWindowAttributes(display_, children[i], &about) != 0 && about.map_state == IsViewable &&
            about.width > 100)
            XResizeWindow(display_, children[i], static_cast<unsigned>(width), static_cast<unsigned>(height));
    }
    if (children != nullptr) XFree(children);
    XFlush(display_);
    width_ = width, height_ = height;
    move(width / 2, height / 2);
}

}  // namespace keyhole::testing
