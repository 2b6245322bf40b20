#include "engine/base/wrapped_lines.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keyhole::test_wrapped_lines {
namespace {

std::vector<std::string> wrapped(std::string_view text, std::size_t width) {
    return wrapped_lines(text, [&](std::string_view line) { return line.size() <= width; });
}

TEST(WrappedLines, BreakAtBlanksAlone) {
    using Lines = std::vector<std::string>;
    EXPECT_EQ(wrapped("another word, KL 4.2315 nats", 20), (Lines{"another word, KL", "4.2315 nats"}));
    EXPECT_EQ(wrapped("another word, KL 4.2315 nats", 28), (Lines{"another word, KL 4.2315 nats"}));
    EXPECT_EQ(wrapped("longer than all", 3), (Lines{"longer", "than", "all"}));
    EXPECT_EQ(wrapped("one\ntwo three\n\nfour", 9), (Lines{"one", "two three", "", "four"}));
    EXPECT_EQ(wrapped("", 5), Lines{});
    EXPECT_EQ(wrapped(" blank first\n", 20), (Lines{"blank first"}));
}

}  // namespace
}  // namespace keyhole::test_wrapped_lines
