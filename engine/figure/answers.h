/// The picture of what each lane answers: a line a lane, marked right or wrong, with the words framed in
/// which it differs from lane 0. Plain data in, a drawing out; any thread. Knows no run.
#pragma once

#include "engine/figure/drawing.h"
#include "engine/figure/frame.h"

#include <string>
#include <vector>

namespace keyhole {

struct AnswerWord {
    std::string text;  ///< with its blanks
    bool differs = false;
};

struct AnswerLine {
    enum class Mark { none, right, wrong };
    std::string lane;      ///< its number and preset: "1 h2o"
    std::string settings;  ///< its spec, drawn small below; empty: none
    Mark mark = Mark::none;
    std::vector<AnswerWord> words;
    std::string note;  ///< after the words, in soft ink: "…", or why there are none
};

struct AnswersFigure {
    FigureTexts texts;
    std::vector<AnswerLine> lines;
    int width = 0;  ///< of the picture in pixels, with text in proportion; 0: 960
    PrintForm print = {};
    Background background = Background::light;
};
Drawing answers_drawing(const AnswersFigure& figure);

}  // namespace keyhole
