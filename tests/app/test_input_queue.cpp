// Input keeps its order, however many events arrive between two frames; and which widget or command receives
// a key.
#include "app/state/keys.h"
#include "app/window/input_queue.h"
#include "app/window/key_focus.h"

#include <gtest/gtest.h>

#include <string>

namespace keyhole::test_input_queue {
namespace {

using Kind = InputEvent::Kind;
using Action = InputEvent::Action;

InputEvent move(double x, double y) {
    return {.kind = Kind::move, .x = x, .y = y};
}
InputEvent press(int button) {
    return {.kind = Kind::button, .action = Action::press, .code = button};
}
InputEvent release(int button) {
    return {.kind = Kind::button, .action = Action::release, .code = button};
}
InputEvent wheel(double turns) {
    return {.kind = Kind::wheel, .y = turns};
}
InputEvent key_event(int code, Action action = Action::press, int mods = 0) {
    return {.kind = Kind::key, .action = action, .code = code, .mods = mods};
}
InputEvent text(char32_t c) {
    return {.kind = Kind::text, .character = c};
}

void type(InputQueue& queue, const std::string& words) {
    for (const char c : words) {
        const int code = c >= 'a' && c <= 'z' ? c - 32 : c;
        queue.push(key_event(code));
        queue.push(text(static_cast<char32_t>(c)));
        queue.push(key_event(code, Action::release));
    }
}

TEST(InputQueue, AClickBetweenTwoFramesIsAPressAtItsPlaceAndARelease) {
    InputQueue queue;
    queue.push(move(10, 20));
    queue.push(move(30, 40));
    queue.push(press(0));
    queue.push(release(0));
    queue.push(move(500, 600));
    auto frame = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(frame.size(), 3u);
    EXPECT_EQ(frame[1].x, 30);
    EXPECT_EQ(frame[2].action, Action::press);
    frame = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(frame.size(), 1u) << "where the pointer went belongs to the next frame";
    EXPECT_EQ(frame[0].action, Action::release);
    frame = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(frame.size(), 1u);
    EXPECT_EQ(frame[0].x, 500);
    EXPECT_TRUE(queue.empty());
}

TEST(InputQueue, WhatIsDraggedComesBeforeTheRelease) {
    InputQueue queue;
    queue.push(press(0));
    queue.push(move(1, 1));
    queue.push(move(90, 90));
    queue.push(release(0));
    EXPECT_EQ(queue.take_frame(KeyTurn::one).size(), 1u);
    const auto dragged = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(dragged.size(), 2u) << "the last move has a frame with the button down";
    EXPECT_EQ(dragged.back().x, 90);
    EXPECT_EQ(queue.take_frame(KeyTurn::one).size(), 1u);
}

TEST(InputQueue, AHundredClicksAreAHundredPresses) {
    InputQueue queue;
    for (int i = 0; i < 100; ++i) {
        queue.push(move(i, 0));
        queue.push(press(i % 2));
        queue.push(release(i % 2));
    }
    int n = 0;
    double x = -1;
    while (!queue.empty()) {
        int changes = 0;
        for (const InputEvent& event : queue.take_frame(KeyTurn::one)) {
            if (event.kind == Kind::move) x = event.x;
            if (event.kind != Kind::button) continue;
            ++changes;
            if (event.action == Action::press) {
                EXPECT_EQ(x, n++);
            }
        }
        EXPECT_LE(changes, 1);
    }
    EXPECT_EQ(n, 100);
}

TEST(InputQueue, WheelTurnsAddUpAtOnePlaceWithOneSetOfKeys) {
    InputQueue queue;
    queue.push(move(5, 5));
    queue.push(wheel(1));
    queue.push(wheel(1));
    queue.push(key_event(341));  // left Ctrl
    queue.push(wheel(1));
    queue.push(move(9, 9));
    EXPECT_EQ(queue.take_frame(KeyTurn::one).size(), 3u);
    EXPECT_EQ(queue.take_frame(KeyTurn::one).size(), 1u);
    const auto with_ctrl = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(with_ctrl.size(), 1u);
    EXPECT_EQ(with_ctrl[0].mods, key::kCtrl) << "the keys held when it turned";
    EXPECT_EQ(queue.take_frame(KeyTurn::one).size(), 1u);
}

TEST(InputQueue, ModifiersAreThoseOfTheMoment) {
    InputQueue queue;
    queue.push(key_event(340, Action::press));  // X11 does not report Shift yet
    queue.push(press(0));
    queue.push(key_event(340, Action::release, key::kShift));  // and still reports it here
    queue.push(move(1, 1));
    EXPECT_EQ(queue.take_frame(KeyTurn::one).front().mods, key::kShift);
    queue.take_frame(KeyTurn::one);
    const auto after = queue.take_frame(KeyTurn::one);
    EXPECT_EQ(after.back().mods, 0);
}

TEST(InputQueue, CommandsComeOneAFrameAndRepeatsTogether) {
    InputQueue queue;
    type(queue, "ab");
    auto frame = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(frame.size(), 1u);
    EXPECT_EQ(frame[0].character, U'a') << "a key and what it writes are one";
    frame = queue.take_frame(KeyTurn::one);
    ASSERT_EQ(frame.size(), 2u);
    EXPECT_EQ(frame[1].code, 'B');
    InputQueue held;
    held.push(key_event(key::kRight));
    for (int i = 0; i < 30; ++i) held.push(key_event(key::kRight, Action::again));
    EXPECT_EQ(held.take_frame(KeyTurn::one).size(), 31u) << "else a held key runs on after it is let go";
}

TEST(InputQueue, AFieldTakesARunOfLettersAndThenTheKeyAfterThem) {
    InputQueue queue;
    type(queue, "hello");
    queue.push(key_event(259));  // Backspace
    queue.push(key_event(259, Action::release));
    type(queue, "p");
    std::u32string words;
    for (const InputEvent& event : queue.take_frame(KeyTurn::typing))
        if (event.character != 0) words += event.character;
    EXPECT_EQ(words, U"hello");
    EXPECT_EQ(queue.take_frame(KeyTurn::typing).size(), 3u);
    EXPECT_TRUE(queue.empty());
}

TEST(InputQueue, KeysWaitForWhatWasOpened) {
    InputQueue queue;
    queue.push(move(3, 3));
    type(queue, "a");
    EXPECT_EQ(queue.take_frame(KeyTurn::waits).size(), 1u);
    EXPECT_TRUE(queue.take_frame(KeyTurn::waits).empty());
    EXPECT_FALSE(queue.empty());
    EXPECT_FALSE(queue.take_frame(KeyTurn::typing).empty());
}

TEST(KeyFocus, LettersAreCommandsOnlyWhereNothingTakesThem) {
    const KeyFocus rest, text_field{.in_text = true}, list{.n_popups = 1}, palette{.dialog = Dialog::palette},
        beside{.dialog = Dialog::doctor};
    for (const int mods : {0, key::kShift})
        for (const int code : {int{'W'}, int{' '}, int{'5'}, key::kRight, key::kHome}) {
            EXPECT_TRUE(is_for_commands(rest, code, mods)) << code;
            EXPECT_TRUE(is_for_commands(beside, code, mods)) << code;
            for (const KeyFocus& focus : {text_field, list, palette})
                EXPECT_FALSE(is_for_commands(focus, code, mods)) << code;
        }
    KeyFocus page = beside;  // a click has put the focus into it
    page.in_page = true;
    for (const int code : {key::kRight, key::kDown, key::kPageDown, key::kHome})
        EXPECT_FALSE(is_for_commands(page, code, 0)) << code;
    for (const int code : {int{'W'}, int{' '}}) EXPECT_TRUE(is_for_commands(page, code, 0)) << code;
    for (const char code : std::string("ACVXYZ")) EXPECT_FALSE(is_for_commands(text_field, code, key::kCtrl));
    EXPECT_FALSE(is_for_commands(text_field, key::kLeft, key::kCtrl));
    EXPECT_FALSE(is_for_commands(text_field, key::kLeft, key::kAlt));
    for (const KeyFocus& focus : {rest, text_field, list, palette, beside})
        EXPECT_TRUE(is_for_commands(focus, 'P', key::kCtrl));
}

}  // namespace
}  // namespace keyhole::test_input_queue
