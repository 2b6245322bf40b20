/// The surface of a line plot: SVG text or pixels. Used by curves.cpp only; any thread, one plot on one
/// thread. Knows no data.
#pragma once

#include "engine/figure/image.h"

#include <string>
#include <utility>
#include <vector>

namespace keyhole {

struct Stroke {
    Rgb8 color;
    double width = 1;
    std::vector<double> dash = {};  ///< lengths on, off, on, ...; empty: solid
    double opacity = 1;
    bool round = true;  ///< round ends and joints
};

enum class TextRole { title, subtitle, tick, label, note, halo };

class Canvas {
  public:
    using Run = std::vector<std::pair<double, double>>;  ///< x, y in pixels
    virtual ~Canvas() = default;
    /// Draws polylines as one path.
    virtual void path(const std::vector<Run>& runs, const Stroke& stroke) = 0;
    /// Draws text; (x, y) is the start, middle or end of its baseline. upward: turned by a quarter.
    virtual void text(double x, double y, const std::string& value, TextRole role,
                      TextAlign align = TextAlign::left, bool upward = false) = 0;
};

class SvgCanvas final : public Canvas {
  public:
    SvgCanvas(int width, int height);
    void path(const std::vector<Run>& runs, const Stroke& stroke) override;
    void text(double x, double y, const std::string& value, TextRole role, TextAlign align,
              bool upward) override;
    std::string take() { return std::move(out_) + "</svg>\n"; }

  private:
    std::string out_;
};

class ImageCanvas final : public Canvas {
  public:
    ImageCanvas(int width, int height) : image_(width, height) {}
    void path(const std::vector<Run>& runs, const Stroke& stroke) override;
    void text(double x, double y, const std::string& value, TextRole role, TextAlign align,
              bool upward) override;
    Image take() { return std::move(image_); }

  private:
    void segment(double x0, double y0, double x1, double y1, const Stroke& stroke);
    Image image_;
};

}  // namespace keyhole
