// The order in which Tab goes through the widgets: by frame, by dialog, by pane. Needs no display.
#include "app/panels/tab_stops.h"

#include <gtest/gtest.h>

namespace keyhole::test_tab_stops {
namespace {

class Stops : public ::testing::Test {
  protected:
    /// Draws a frame: two panes of the window, and a dialog.
    void draw(bool dialog, bool has_b = true) {
        unsigned id = 0;
        for (const char* name : {"a", "b", "c", "d"}) {
            ++id;
            if (has_b || std::string(name) != "b") tabs.add({name, id, false, id <= 2 ? 1u : 2u, "all"});
        }
        if (dialog)
            for (const char* name : {"x", "y"}) tabs.add({name, ++id, std::string(name) == "x", 3, "dialog"});
        tabs.begin_frame();
    }
    std::string move(bool backward = false, bool by_pane = false, std::string_view root = "") {
        const auto stop = tabs.move(backward, by_pane, root);
        return stop ? stop->name : "";
    }
    TabStops tabs;
};

TEST_F(Stops, GoAroundInTheirOrder) {
    EXPECT_EQ(move(), "") << "nothing is drawn";
    draw(false);
    for (const char* name : {"a", "b", "c", "d", "a"}) EXPECT_EQ(move(), name);
    for (const char* name : {"d", "c"}) EXPECT_EQ(move(true), name);
    EXPECT_TRUE(tabs.takes_sight("c"));
    EXPECT_FALSE(tabs.takes_sight("c")) << "once";
    EXPECT_EQ(tabs.ringed()->id, 3u);
    tabs.clear();
    EXPECT_FALSE(tabs.ringed());
    EXPECT_EQ(move(true), "d") << "from the end";
}

TEST_F(Stops, GoByPaneAndStayInADialog) {
    draw(true);
    EXPECT_EQ(move(), "a");
    EXPECT_EQ(move(false, true), "c");
    EXPECT_EQ(move(false, true), "x");
    EXPECT_EQ(move(true, true), "c");
    EXPECT_EQ(move(true, true), "a");
    for (const char* name : {"x", "y", "x"}) EXPECT_EQ(move(false, false, "dialog"), name);
    draw(false);
    EXPECT_EQ(tabs.ring(), "a") << "where it was before the dialog";
}

TEST_F(Stops, GoOnWhereAWidgetWas) {
    draw(false);
    tabs.start_at(2);
    EXPECT_EQ(tabs.ring(), "b");
    draw(false, false);
    EXPECT_FALSE(tabs.ringed()) << "it is not there";
    EXPECT_EQ(move(), "c");
    tabs.start_at(99);
    EXPECT_EQ(tabs.ring(), "c") << "no such field";
}

}  // namespace
}  // namespace keyhole::test_tab_stops
