/// What a person does with pointer and keyboard, in order, until the frame loop takes it. A frame takes as much as Dear ImGui can tell
/// apart: a click that is over before the frame begins is still a press at its place and a release after it, however slow frames are.
/// Window thread; knows neither GLFW nor ImGui, whose codes it passes on.
#pragma once

#include <deque>
#include <vector>

namespace keyhole {

struct InputEvent {
    enum class Kind { move, leave, button, wheel, key, text };
    enum class Action { release, press, again };  ///< again: a key that is held repeats

    Kind kind = Kind::move;
    Action action = Action::press;  ///< of buttons and keys
    int code = 0;                   ///< of the button or key, as GLFW numbers them
    char32_t character = 0;         ///< that a key press writes, or text without a key
    int mods = 0;                   ///< key::kShift and so on that are held at that moment
    double x = 0, y = 0;            ///< move: place in window pixels; wheel: turns
    double time_s = 0;              ///< when it came

    bool is_press() const { return kind == Kind::key && action != Action::release; }
};

/// Who takes key presses and text in the next frame.
enum class KeyTurn {
    waits,  ///< nobody: a field or a list that the last frame opened has no focus yet
    one,    ///< commands: each may change what the next key means, so one press a frame
    typing  ///< a text field: characters may come together
};

class InputQueue {
  public:
    /// mods as GLFW tells them, of keys and buttons; the queue fills in those of the other events. Text joins the key press that wrote it.
    void push(InputEvent event);
    /// Takes the events of the next frame, in order:
    ///   - at most one change of a button, and nothing after it; what was dragged before a release has a frame of its own;
    ///   - turns of the wheel at one place with the same keys held;
    ///   - key presses and text as `keys` says. A repeat of the same key may follow a press.
    std::vector<InputEvent> take_frame(KeyTurn keys);
    bool empty() const { return events_.empty(); }

  private:
    std::deque<InputEvent> events_;
    int mods_ = 0;            // of the newest event
    unsigned held_keys_ = 0;  // modifier keys that are down, a bit each
    unsigned buttons_ = 0;    // down in the frames that were taken, a bit each
    int modifiers_after(const InputEvent& event);
    bool fits(const InputEvent& event, const std::vector<InputEvent>& frame, KeyTurn keys) const;
};

}  // namespace keyhole
