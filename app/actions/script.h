/// A script of the window: one command a line, `#` starts a comment. The ids are those of the command table,
/// and besides
///
///     wait rows N        until N rows were decoded since the prompt
///     wait idle          until nothing is under way
///     wait seconds S     at most 180
///     mouse X Y          the pointer, in window pixels (the real one is ignored while a script runs)
///     point NAME [X Y]   the pointer on a widget: its id, the option of a card, a cell of a grid; X and Y are parts of it, 0.5 0.5 without
///     click              presses and releases the left button; `click 1` the right one
///     press, release     holds the left button (`press 1` the right one), to drag meanwhile; lets go
///     wheel N            turns the wheel
///     key Ctrl+P         presses a shortcut
///     text WORDS         types into the field that has the focus
///     drop PATH          drops a file or folder onto the window, as the desktop does; `drop PATH|PATH` several
///     try COMMAND        a command that may be refused: the status line says why, and the script goes on
///     deadline S         from S seconds on, lines up to `finally` are skipped
///     finally            what is done in any case
///
/// Window thread; knows neither GL nor ImGui.
#pragma once

#include "app/state/app_state.h"
#include "app/actions/script_step.h"
#include "engine/session/script.h"

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// Input that a script makes instead of a person; taken by the frame loop.
struct ScriptInput {
    double mouse_x = -1, mouse_y = -1;
    int clicks = 0;  ///< button + 1; 0: none
    int held = 0;    ///< button + 1 that is down until released
    double wheel = 0;
    std::string text;
    std::vector<std::string> dropped;
};

/// Left, top, right, bottom of a named widget in window pixels; nullopt: none of this name is on show.
using FindItem = std::function<std::optional<std::array<double, 4>>(std::string_view)>;

class Script {
  public:
    /// Throws Error(bad_file) when it cannot be read, Error(wrong_use) as from_text.
    static Script from_file(const std::filesystem::path& path);
    /// Throws Error(wrong_use) with the number and text of a line that is none.
    static Script from_text(std::string name, std::string_view text);

    bool done() const { return next_ >= lines_.size(); }
    /// What fails now comes of a `try`: no fault of the script.
    bool tries() const { return tried_; }
    /// Runs the next command; false: it must wait. Throws Error(wrong_use) with the line's number and text.
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
