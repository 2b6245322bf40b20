/// A simulated user: runs the program on an X display of its own, sends real pointer and key events (XTEST),
/// and reads the program's state (`gui --report`). Waits until the report shows a state. If the program ends
/// unexpectedly, the test fails with its output.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

struct _XDisplay;

namespace keyhole::testing {

class SimulatedUser : public ::testing::Test {
  protected:
    using Json = nlohmann::json;

    /// Skips the test where there is no Xvfb.
    void SetUp() override;
    void TearDown() override;

    /// Starts the program in a folder of its own and waits until it has a run. Each start is a fresh one.
    void start(const std::string& arguments = "");
    /// Returns whether the program is running.
    bool alive();
    /// Closes the window by Ctrl+Q. Returns the exit status, -1 for a signal.
    int quit();

    /// Returns the program's present report.
    Json report();
    /// Waits until the condition holds for the report. Fails with `what` after 90 s without progress, or when
    /// the program ends.
    bool wait_until(const std::string& what, const std::function<bool(const Json&)>& so);
    /// Waits until a frame has taken every event sent so far.
    bool settle();
    /// Does the same where the program may end meanwhile. Returns false when it ended or hangs.
    bool catch_up();
    int exit_status() const;  ///< of the ended program; -1 for a signal
    bool shows(const std::string& item);

    // Sends events. Places are window pixels, or shares of a widget's width and height by its name.
    void move(int x, int y);
    void button(int number, bool press);  ///< 1 left, 3 right
    void press_key(const std::string& keysym, bool press);
    void point(const std::string& item, double across = 0.5, double down = 0.5);
    void click(const std::string& item, double across = 0.5, double down = 0.5, int number = 1);
    void drag(const std::string& item, double from_x, double from_y, double to_x, double to_y);
    void wheel(int turns);
    void scroll_to(const std::string& pane, const std::string& item);  ///< and a little further
    /// Presses a combination of X key names: "Escape", "Ctrl+P", "Shift+Tab".
    void key(const std::string& combination);
    void strike(const std::string& combination);  ///< the same without waiting
    /// Types characters of a US keyboard.
    void type(std::string_view text);
    void write(std::string_view text);  ///< the same without waiting
    void resize(int width, int height);

    std::filesystem::path folder_;
    std::string output();  ///< everything that the program has printed
    int width_ = 1280, height_ = 800;
    /// In which the window opens, unless its settings are there already; empty: in its own.
    std::string arrangement_ = "explore";

  private:
    _XDisplay* display_ = nullptr;
    pid_t server_ = -1, program_ = -1;
    int status_ = 0;  // of the program, once it has ended
    int watch_ = -1;  // inotify on the folder
    std::string display_name_;
    Json report_;
    int n_buttons_ = 0, n_keys_ = 0, n_turns_ = 0;  // sent since the start
    bool read_report();
    bool has_caught_up(const Json& now) const;
    bool wait_for(const std::function<bool(const Json&)>& so, std::chrono::seconds patience);
    void key_code(unsigned code, bool press);
};

}  // namespace keyhole::testing
