/// Queues pointer and keyboard events in order until the frame loop takes them. A frame takes as many events
/// as Dear ImGui can tell apart: a click that ends before the frame begins is still a press at its place and
/// then a release, even if frames are slow. Window thread; knows neither GLFW nor ImGui, whose codes it
/// passes on.
#pragma once

#include <deque>
#include <vector>

namespace keyhole {

struct InputEvent {
    enum class Kind { move, leave, button, wheel, key, text };
    enum class Action { release, press, again };  ///< again: a key that is held repeats

    Kind kind = Kind::move;
    Action action = Action::press;  ///< for buttons and keys
    int code = 0;                   ///< button or key, as GLFW numbers them
    char32_t character = 0;         ///< written by a key press, or text without a key
    int mods = 0;                   ///< modifiers held at that moment: key::kShift and so on
    double x = 0, y = 0;            ///< move: place in window pixels; wheel: turns
    double time_s = 0;              ///< time of arrival

    bool is_press() const { return kind == Kind::key && action != Action::release; }
};

/// Who takes key presses and text in the next frame.
enum class KeyTurn {
    waits,  ///< nobody: a field or list opened by the last frame has no focus yet
    one,    ///< commands: one press a frame, since each may change the meaning of the next key
    typing  ///< a text field: characters may come together
};

class InputQueue {
  public:
    /// Appends an event. For keys and buttons, mods are those that GLFW reports; the queue fills them in for
    /// other events. Text joins the key press that wrote it.
    void push(InputEvent event);
    /// Takes the events of the next frame, in order:
    ///   - at most one change of a button, and nothing after it; a drag before a release has its own frame;
    ///   - turns of the wheel at one place with the same modifiers held;
    ///   - key presses and text as `keys` says. A repeat of the same key may follow a press.
    std::vector<InputEvent> take_frame(KeyTurn keys);
    bool empty() const { return events_.empty(); }

  private:
    std::deque<InputEvent> events_;
    int mods_ = 0;            // after the newest event
    unsigned held_keys_ = 0;  // modifier keys that are down, one bit each
    unsigned buttons_ = 0;    // buttons that are down in the frames taken so far, one bit each
    int modifiers_after(const InputEvent& event);
    bool fits(const InputEvent& event, const std::vector<InputEvent>& frame, KeyTurn keys) const;
};

}  // namespace keyhole
