/// Parses one line of a window script. script.h lists the forms; all lines are parsed before any of them
/// runs. Any thread; knows no window.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole {

struct ScriptStep {
    enum class Kind {
        command,
        attempt,
        deadline,
        finally,
        wait_idle,
        wait_steps,
        wait_seconds,
        mouse,
        point,
        press,
        release,
        click,
        wheel,
        drop,
        text,
        key
    };
    Kind kind = Kind::command;
    std::string words{};               ///< of command, attempt, point, text, key
    double x = 0, y = 0;               ///< mouse: window pixels; wheel: x is the number of turns
    double seconds = 0;                ///< of wait_seconds, deadline
    int n = 0;                         ///< wait_steps: steps; press and click: button, 0 left, 1 right
    std::vector<std::string> paths{};  ///< of drop
    bool operator==(const ScriptStep&) const = default;
};

/// Throws Error(wrong_use) for an invalid line.
ScriptStep parse_script_step(std::string_view line);

/// Parses the two fractions that may follow the name in `point`. Throws Error(wrong_use).
std::pair<double, double> parse_parts(std::string_view text);

}  // namespace keyhole
