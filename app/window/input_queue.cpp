#include "app/window/input_queue.h"

#include "app/state/keys.h"

#include <algorithm>

namespace keyhole {

namespace {

using EventKind = InputEvent::Kind;

/// GLFW codes of left Shift, Ctrl, Alt and Super, then the right ones.
constexpr int kFirstModifier = 340, kLastModifier = 347;

/// Returns true if GLFW may report a character right after this key press.
bool may_write(const InputEvent& event) {
    constexpr int kUnknown = -1, kFirstOfKeypad = 320, kLastOfKeypad = 336;
    return event.is_press() && event.character == 0 &&
           (event.code == kUnknown || (event.code >= ' ' && event.code < key::kEscape) ||
            (event.code >= kFirstOfKeypad && event.code <= kLastOfKeypad));
}

/// Returns true if the event does nothing but write a character.
bool only_writes(const InputEvent& event) {
    return event.character != 0 && (event.mods & ~key::kShift) == 0;
}

}  // namespace

int InputQueue::modifiers_after(const InputEvent& event) {
    if (event.kind != EventKind::key && event.kind != EventKind::button) return mods_;
    if (event.kind == EventKind::button || event.code < kFirstModifier || event.code > kLastModifier)
        return event.mods;
    // X11 reports the modifiers as they were before the event, so a modifier key does not include itself.
    const int own = 1 << ((event.code - kFirstModifier) % 4);
    const unsigned bit = 1u << (event.code - kFirstModifier),
                   both = 0x11u << ((event.code - kFirstModifier) % 4);
    held_keys_ = event.action == InputEvent::Action::release ? held_keys_ & ~bit : held_keys_ | bit;
    return (held_keys_ & both) != 0 ? event.mods | own : event.mods & ~own;
}

void InputQueue::push(InputEvent event) {
    event.mods = mods_ = modifiers_after(event);
    if (event.kind == EventKind::text && !events_.empty() && may_write(events_.back()))
        events_.back().character = event.character;
    else
        events_.push_back(event);
}

bool InputQueue::fits(const InputEvent& event, const std::vector<InputEvent>& frame, KeyTurn keys) const {
    if (keys == KeyTurn::waits && (event.is_press() || event.kind == EventKind::text)) return false;
    if (frame.empty()) return true;
    const InputEvent& last = frame.back();
    if (last.kind == EventKind::button) return false;
    if (last.kind == EventKind::wheel && (event.kind != EventKind::wheel || event.mods != last.mods))
        return false;
    if (last.is_press() && !(keys == KeyTurn::typing && only_writes(last)))
        return event.is_press() && event.action == InputEvent::Action::again && event.code == last.code;
    if (event.kind == EventKind::button)
        return buttons_ == 0 || std::none_of(frame.begin(), frame.end(), [](const InputEvent& before) {
                   return before.kind == EventKind::move;
               });
    if (event.kind == EventKind::move || event.kind == EventKind::leave)
        return last.kind == EventKind::move || last.kind == EventKind::leave;
    return true;
}

std::vector<InputEvent> InputQueue::take_frame(KeyTurn keys) {
    std::vector<InputEvent> frame;
    while (!events_.empty() && fits(events_.front(), frame, keys)) {
        frame.push_back(events_.front());
        events_.pop_front();
    }
    if (!frame.empty() && frame.back().kind == EventKind::button) {
        const unsigned bit = 1u << frame.back().code;
        buttons_ = frame.back().action == InputEvent::Action::press ? buttons_ | bit : buttons_ & ~bit;
    }
    return frame;
}

}  // namespace keyhole
