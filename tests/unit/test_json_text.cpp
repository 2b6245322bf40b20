#include "engine/base/json_text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

namespace keyhole::test_json_text {
namespace {

TEST(PrintableText, HasNothingThatATerminalTakesForACommand) {
    EXPECT_EQ(printable_text("\x1b]0;title\x07\x1b[31mred\x7f"), "?]0;title??[31mred?");
    EXPECT_EQ(printable_text("\xc2\x9b"
                             "31m"),
              "?31m");  // U+009B, the one-character form of ESC [
    EXPECT_EQ(printable_text("\x9b"
                             "31m \xff\xc3"),
              "?31m ??");  // bytes that are not UTF-8
    EXPECT_EQ(printable_text("a\xe2\x80\xae"
                             "b\xe2\x80\xa8"),
              "a?b?");  // right to left, end of line
    EXPECT_EQ(printable_text(std::string_view("a\0b\r\n", 5)), "a?b??");
}

TEST(PrintableText, LeavesTextAsItIs) {
    EXPECT_EQ(printable_text("caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x96\x81x"),
              "caf\xc3\xa9 \xf0\x9f\x98\x80 \xe2\x96\x81x");
    EXPECT_EQ(printable_text("two\tlines\n\r", true), "two\tlines\n?");
}

TEST(ShownText, IsShortAndCutBetweenCharacters) {
    const auto xs = [](std::size_t n) { return std::string(n, 'x'); };
    EXPECT_EQ(shown_text(xs(120)), xs(120));
    EXPECT_EQ(shown_text(xs(121)), fmt::format("{}...", xs(120)));
    EXPECT_EQ(shown_text(fmt::format("{}\xc3\xa9yy", xs(119))), fmt::format("{}...", xs(119)));
    EXPECT_EQ(shown_text("a\nb"), "a?b");
}

}  // namespace
}  // namespace keyhole::test_json_text
