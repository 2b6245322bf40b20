// The picture of lanes side by side: what it says, how lanes share its room, and the size that is asked for.
#include "engine/base/error.h"
#include "engine/figure/lane_columns.h"
#include "engine/figure/lane_look.h"

#include <gtest/gtest.h>

namespace keyhole::test_lane_columns {
namespace {

/// Returns a drawing of one dark rectangle: as wide as asked, with cells of the asked height and words below.
Drawing box(const FigureSize& size) {
    Drawing drawing;
    drawing.width = size.width;
    drawing.height = std::max(size.plot_height, 40) + 30;
    drawing.draw = [size](Canvas& canvas) {
        canvas.cells(4, 2, size.width - 8, std::max(size.plot_height, 40), [&](CellPainter& painter) {
            painter.fill(0, 0, size.width - 8, std::max(size.plot_height, 40), {{1, 2, 3}});
        });
    };
    return drawing;
}

LaneColumnsFigure figure_of(int n_lanes) {
    LaneColumnsFigure figure;
    figure.texts = {"What is the code?", "a model", "Rows: words."};
    figure.words = {{"the ", false, false}, {"code", true, true}};
    figure.plot_height = 60;
    figure.sentence = "One lane lost it.";
    for (int i = 0; i < n_lanes; ++i) {
        LaneColumn& lane = figure.lanes.emplace_back();
        lane.name = std::to_string(i) + " lane";
        lane.note = "keeps 64 tokens";
        lane.look = i;
        lane.mark = i == 1 ? AnswerLine::Mark::wrong : AnswerLine::Mark::right;
        lane.answer = "answer " + std::to_string(i);
        lane.drawing = box;
        lane.holds = {true, false, true, false};
        lane.squares_across = 2;
        lane.holds_note = "2 of 4 heads";
    }
    return figure;
}

int n_of(Rgb8 color, const Image& image) {
    int n = 0;
    for (int y = 0; y < image.height(); ++y)
        for (int x = 0; x < image.width(); ++x) n += image.at(x, y) == color ? 1 : 0;
    return n;
}

TEST(LaneColumns, SayAllOfEachLane) {
    const LaneColumnsFigure figure = figure_of(3);
    const std::string svg = lane_columns_drawing(figure).svg();
    for (const char* words :
         {"What is the code?", "a model", "Rows: words.", "One lane lost it.", "0 lane", "1 lane", "2 lane",
          "answer 0", "answer 1", "keeps 64 tokens", "2 of 4 heads", "✗", "✓"})
        EXPECT_NE(svg.find(words), std::string::npos) << words;
    const Image image = lane_columns_drawing(figure).image();
    EXPECT_GT(n_of({1, 2, 3}, image), 3 * 300 * 60) << "each lane has its drawing";
    for (int lane = 0; lane < 3; ++lane)
        EXPECT_GT(n_of(lane_look(lane, Background::light).color, image), 300) << lane;
}

TEST(LaneColumns, StandBesideEachOtherUpToFour) {
    const Drawing two = lane_columns_drawing(figure_of(2)), four = lane_columns_drawing(figure_of(4)),
                  five = lane_columns_drawing(figure_of(5));
    EXPECT_EQ(two.height, four.height);
    EXPECT_LT(two.width, four.width);
    EXPECT_GT(five.height, four.height + 150) << "two lines of lanes";
    EXPECT_LT(five.width, four.width) << "three and two";
}

TEST(LaneColumns, HaveTheSizeThatIsAsked) {
    LaneColumnsFigure figure = figure_of(3);
    for (const int width : {500, 1000, 3000}) {
        figure.width = width;
        EXPECT_EQ(lane_columns_drawing(figure).image().width(), width);
    }
    figure.width = 1000;
    const int usual = lane_columns_drawing(figure).height;
    for (const int height : {usual - 10, usual + 300}) {
        figure.print.height = height;
        EXPECT_EQ(lane_columns_drawing(figure).height, height);
    }
    figure.print.height = 130;
    EXPECT_THROW(lane_columns_drawing(figure), Error);
    figure.print.height = 0;
    figure.print.bare = true;
    EXPECT_LT(lane_columns_drawing(figure).height, usual);
    EXPECT_EQ(lane_columns_drawing(figure).texts.title, "What is the code?") << "for the file beside it";
}

}  // namespace
}  // namespace keyhole::test_lane_columns
