/// A person at the window: the program on an X display of its own, moved by real pointer and key events (XTEST), and what it says of itself
/// (`gui --report`). Waits until the report shows a state; a run that ends by itself is a failure with its last words.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/types.h>

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

struct _XDisplay;

namespace keyhole::testing {

class XHand : public ::testing::Test {
  protected:
    using Json = nlohmann::json;

    /// Skips where there is no Xvfb.
    void SetUp() override;
    void TearDown() override;

    /// Starts the program in a folder of its own and waits until it has a run. Each start begins anew.
    void start(const std::string& arguments = "");
    /// The program goes on.
    bool alive();
    /// Closes the window by Ctrl+Q; the exit status, -1 for a signal.
    int quit();

    /// What the program reports now.
    Json report();
    /// Waits until the report is so; fails with `what` after a minute, or when the program ends.
    bool wait_until(const std::string& what, const std::function<bool(const Json&)>& so);
    /// Waits until every event so far was taken by a frame.
    bool settle();
    /// The same where the program may end meanwhile; false: it did, or it hangs.
    bool catch_up();
    int exit_status() const;  ///< of a program that ended; -1 for a signal
    bool shows(const std::string& item);

    // Events. Places are window pixels, or parts of a widget's width and height by name.
    void move(int x, int y);
    void button(int number, bool press);  ///< 1 left, 3 right
    void press_key(const std::string& keysym, bool press);
    void point(const std::string& item, double across = 0.5, double down = 0.5);
    void click(const std::string& item, double across = 0.5, double down = 0.5, int number = 1);
    void drag(const std::string& item, double from_x, double from_y, double to_x, double to_y);
    void wheel(int turns);
    /// "Escape", "Ctrl+P", "Shift+Tab": X's names of keys.
    void key(const std::string& combination);
    void strike(const std::string& combination);  ///< the same without waiting for it
    /// Characters of a US keyboard.
    void type(std::string_view text);
    void write(std::string_view text);  ///< the same without waiting for it
    void resize(int width, int height);

    std::filesystem::path folder_;
    std::string output();  ///< what the program has printed
    int width_ = 1280, height_ = 800;

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
    bool wait_for(const std::function<bool(const Json&)>& so);
    void key_code(unsigned code, bool press);
};

}  // namespace keyhole::testing
