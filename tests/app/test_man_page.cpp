// Manual pages for man: what roff would take for commands is escaped, and every block of a page is drawn.
#include "app/manual/page.h"
#include "app/manual/roff.h"

#include <gtest/gtest.h>

#include <string>

namespace keyhole::test_man_page {
namespace {

TEST(ManPage, EscapesWhatRoffTakesForCommands) {
    EXPECT_EQ(roff_escaped("a-b \\n"), "a\\-b \\en");
    EXPECT_EQ(roff_escaped(".TH\n'x' ~"), "\\&.TH\n\\&\\(aqx\\(aq \\(ti");
    EXPECT_EQ(roff_escaped("0.5"), "0.5");
}

TEST(ManPage, DrawsEveryBlock) {
    const ManualPage page = parse_manual_page("p",
                                              "# Title\n\n## One head\n\nA **bold** [page](lessons.md), "
                                              "[models](models.md), [web](https://x.org).\n\n"
                                              "1. first\n2. second\n   - inner\n\nThen:\n\n    code -x\n\n"
                                              "| a | b |\n| --- | --- |\n| 1 | `.x` |\n");
    const std::string text = roff_text(page);
    EXPECT_EQ(text.find("Title"), std::string::npos);
    EXPECT_NE(text.find(".SH \"ONE HEAD\"\n"), std::string::npos) << text;
    EXPECT_NE(
        text.find("A \\fBbold\\fR page (\\fBkeyhole\\-lessons\\fR(7)), \\fBkeyhole\\-models\\fR(7), web "
                  "(https://x.org)."),
        std::string::npos)
        << text;
    EXPECT_NE(text.find(".IP 2. 4\nsecond\n"), std::string::npos) << text;
    EXPECT_NE(text.find(".RS 4\n.IP \\(bu 4\ninner\n.RE\n"), std::string::npos) << text;
    EXPECT_NE(text.find(".nf\n"), std::string::npos) << text;
    EXPECT_NE(text.find("code \\-x"), std::string::npos) << text;
    EXPECT_NE(text.find("1  \\(ga.x\\(ga"), std::string::npos) << text;
}

}  // namespace
}  // namespace keyhole::test_man_page
