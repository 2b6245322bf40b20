// Lines of a field: wrapped at its width, edited as if they were not.
#include "app/gl/wrapped_text.h"

#include <gtest/gtest.h>

#include <random>

namespace keyhole::test_wrapped_text {
namespace {

float one_each(std::string_view text) {
    return static_cast<float>(text.size());
}

WrappedText wrapped(std::string_view text, float width) {
    WrappedText lines;
    lines.set(text, width, one_each);
    return lines;
}

TEST(WrappedText, BreaksAfterWordsAndInsideLongOnes) {
    EXPECT_EQ(wrapped("the code of the gate", 8).shown(), "the code \nof the \ngate");
    EXPECT_EQ(wrapped("ab\ncd ef", 4).shown(), "ab\ncd \nef");
    EXPECT_EQ(wrapped("abcdefghij k", 4).shown(), "abcd\nefgh\nij k");
    EXPECT_EQ(wrapped("", 4).shown(), "");
    for (const std::string_view text : {"the code of the gate", "ab\ncd ef", "  a  b\n\n c", "abcdefghij k"})
        for (float width = 1; width < 12; ++width) EXPECT_EQ(wrapped(text, width).text(), text);
}

TEST(WrappedText, DeletingAShownLineEndDeletesTheCharacterBesideIt) {
    WrappedText lines = wrapped("the code of", 8);  // "the code \nof"
    EXPECT_EQ(lines.edited("the code of", 10, 9, one_each),
              9u);  // Backspace at the beginning of the second line
    EXPECT_EQ(lines.text(), "the codeof");
    lines = wrapped("the code of", 8);
    lines.edited("the code of", 9, 9, one_each);  // Delete at the end of the first
    EXPECT_EQ(lines.text(), "the code f");
    lines = wrapped("a\nb", 8);
    lines.edited("ab", 2, 1, one_each);  // a line end of the text itself
    EXPECT_EQ(lines.text(), "ab");
}

/// Compares any edit of the shown text with the same edit of the unwrapped text.
TEST(WrappedText, AnyEditIsThatOfTheTextItself) {
    std::mt19937 random(3);
    WrappedText lines = wrapped("once upon a time there was a cat", 9);
    std::size_t cursor = 0;
    for (int i = 0; i < 3000; ++i) {
        cursor = random() % (lines.shown().size() + 1);
        std::string now = lines.shown(), expected = lines.text();
        std::size_t place = 0;  // the cursor's index in the text
        for (std::size_t at = 0, n = 0; at < cursor; ++at) {
            const bool soft = lines.shown()[at] == '\n' && (n >= expected.size() || expected[n] != '\n');
            if (!soft) ++n;
            place = n;
        }
        const std::string put = random() % 3 == 0 ? "x" : random() % 2 == 0 ? " yz" : "\n";
        if (expected.size() < 80) {
            now.insert(cursor, put);
            expected.insert(place, put);
            lines.edited(now, cursor, cursor + put.size(), one_each);
            ASSERT_EQ(lines.text(), expected) << i;
        } else {
            lines.set("once upon a time", 9, one_each);
        }
        std::size_t used = 0;
        for (const char c : lines.shown()) {
            used = c == '\n' ? 0 : used + 1;
            ASSERT_LE(used, 9u + 4) << lines.shown();  // trailing blanks may exceed the width
        }
    }
}

}  // namespace
}  // namespace keyhole::test_wrapped_text
