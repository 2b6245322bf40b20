/// Runs a script of the window: one command a line; `#` starts a comment. The commands are the ids of the
/// command table and these:
///
///     wait steps N       until N steps were decoded after the prompt
///     wait idle          until no work is under way
///     wait seconds S     at most 180
///     mouse X Y          moves the pointer, in window pixels (the real one is ignored while a script runs)
///     point NAME [X Y]   moves the pointer onto a widget: its id, an option of a card, or a cell of a grid;
///                        X and Y are fractions of its size (default: 0.5 0.5)
///     click              presses and releases the left button; `click 1` the right one
///     press, release     holds the left button for a drag (`press 1`: the right one), and lets go
///     wheel N            turns the wheel
///     key Ctrl+P         presses a shortcut
///     text WORDS         types into the focused field
///     drop PATH          drops a file or folder onto the window; `drop PATH|PATH` drops several
///     try COMMAND        runs a command that may fail: the status line says why, and the script continues
///     deadline S         after S seconds, skips the lines up to `finally`
///     finally            the lines after it always run
///
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/actions/script_step.h"
#include "app/state/app_state.h"
#include "engine/run/command_script.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Input that a script makes in place of a person. The frame loop takes it.
struct ScriptInput {
    double mouse_x = -1, mouse_y = -1;
    int clicks = 0;  ///< button + 1; 0: none
    int held = 0;    ///< button + 1 that is held down; 0: none
    double wheel = 0;
    std::string text;
    std::vector<std::string> dropped;
};

/// Returns left, top, right and bottom of a named widget in window pixels; nullopt if no such widget is
/// visible.
using FindItem = std::function<std::optional<std::array<double, 4>>(std::string_view)>;

class Script {
  public:
    /// Throws Error(bad_file) if the file cannot be read, and Error(wrong_use) as from_text does.
    static Script from_file(const std::filesystem::path& path);
    /// Throws Error(wrong_use) with the number and text of the first invalid line.
    static Script from_text(std::string name, std::string_view text);

    bool done() const { return next_ >= lines_.size(); }
    /// Returns true if a failure now comes from a `try`: the script does not fail by it.
    bool tries() const { return tried_; }
    /// Runs the next command. Returns false if the script must wait. Throws Error(wrong_use) with the line's
    /// number and text.
    bool advance(AppState& app, const FindItem& find_item = {});
    ScriptInput input;

  private:
    struct Line {
        int number = 0;
        std::string text;
        ScriptStep step;
    };
    std::string name_;
    std::vector<Line> lines_;
    std::size_t next_ = 0;
    bool waiting_ = false;
    bool tried_ = false;  // until the next wait is over
    std::optional<std::chrono::steady_clock::time_point> deadline_;
    std::chrono::steady_clock::time_point wait_begin_, progress_at_;
    double wait_progress_ = -1;

    static Script from_lines(std::string name, std::vector<ScriptLine> lines);
    [[noreturn]] void refuse(const Line& line, const char* why) const;
    bool run(const ScriptStep& step, AppState& app, const FindItem& find_item);
    bool wait(const ScriptStep& step, AppState& app);
    bool may_go_on(const ScriptStep& wait, const AppState& app) const;
    void point_at(const std::string& rest, const FindItem& find_item);
};

}  // namespace keyhole
