/// A canvas that draws on a part of another one, so that a drawing can stand within a larger one. Of a canvas
/// in pixels: scale 1. Any thread, as the other canvas. Knows no data.
#pragma once

#include "engine/figure/canvas.h"

namespace keyhole {

class ShiftedCanvas final : public Canvas {
  public:
    /// (x, y): where the drawing's corner stands on `whole`, which must outlive this.
    ShiftedCanvas(Canvas& whole, Background background, int x, int y)
        : Canvas(background), whole_(whole), x_(x), y_(y) {}
    void path(const std::vector<Run>& runs, const Stroke& stroke) override;
    void fill(double x, double y, double width, double height, Rgb8 color) override {
        whole_.fill(x_ + x, y_ + y, width, height, color);
    }
    void text(double x, double y, const std::string& utf8, const TextStyle& style) override {
        whole_.text(x_ + x, y_ + y, utf8, style);
    }
    void cells(int x, int y, int width, int height, const std::function<void(CellPainter&)>& paint) override {
        whole_.cells(x_ + x, y_ + y, width, height, paint);
    }
    void note(double x, double y, double width, double height, const std::string& words) override {
        whole_.note(x_ + x, y_ + y, width, height, words);
    }

  private:
    Canvas& whole_;
    int x_, y_;
};

}  // namespace keyhole
