/// The surface that figures draw on: pixels, SVG or PDF. One drawing makes all three, so that they say the
/// same. Any thread, one picture on one thread. Knows no data.
#pragma once

#include "engine/figure/figure_colors.h"
#include "engine/figure/image.h"

#include <functional>
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

/// The fill of a cell or of a swatch in the legend. hatched: the pattern of evicted cells, whatever the
/// colour.
struct CellFill {
    Rgb8 color = {};
    bool hatched = false;
};

/// Fills cells of a picture within the picture.
class CellPainter {
  public:
    /// (left, top): of the cells in the image; shift: moves the hatch, so that it does not depend on whether
    /// the cells are drawn into the whole picture or into a part of it.
    CellPainter(Image& image, int left, int top, int shift, const CellColors& colors)
        : image_(image), left_(left), top_(top), shift_(shift), colors_(colors) {}
    void fill(int x, int y, int width, int height, const CellFill& fill);

  private:
    Image& image_;
    int left_, top_, shift_;
    const CellColors& colors_;
};

class Canvas {
  public:
    using Run = std::vector<std::pair<double, double>>;  ///< x, y
    explicit Canvas(Background background) : colors_(figure_colors(background)) {}
    virtual ~Canvas() = default;
    Canvas(const Canvas&) = delete;
    Canvas& operator=(const Canvas&) = delete;

    const FigureColors& colors() const { return colors_; }
    /// Draws polylines as one path.
    virtual void path(const std::vector<Run>& runs, const Stroke& stroke) = 0;
    virtual void fill(double x, double y, double width, double height, Rgb8 color) = 0;
    /// Draws text; (x, y) is the start, middle or end of its baseline, as style.align says.
    virtual void text(double x, double y, const std::string& utf8, const TextStyle& style) = 0;
    /// Draws cells of whole pixels: `paint` fills them, relative to (x, y). SVG and PDF hold them as one
    /// picture without loss.
    virtual void cells(int x, int y, int width, int height,
                       const std::function<void(CellPainter&)>& paint) = 0;

    /// Gives a place words that show while the pointer is on it. Pictures without a pointer ignore them.
    virtual void note(double /*x*/, double /*y*/, double /*width*/, double /*height*/,
                      const std::string& /*words*/) {}

    void outline(double x, double y, double width, double height, Rgb8 color);
    void swatch(int x, int y, int width, int height, const CellFill& fill);

  private:
    FigureColors colors_;
};

/// Draws pixels. scale: pixels per unit; the coordinates of cells must then be those of the scale 1.
class ImageCanvas final : public Canvas {
  public:
    ImageCanvas(int width, int height, Background background, double scale = 1)
        : Canvas(background), image_(width, height, colors().paper), scale_(scale) {}
    void path(const std::vector<Run>& runs, const Stroke& stroke) override;
    void fill(double x, double y, double width, double height, Rgb8 color) override;
    void text(double x, double y, const std::string& utf8, const TextStyle& style) override;
    void cells(int x, int y, int width, int height, const std::function<void(CellPainter&)>& paint) override;
    Image take() { return std::move(image_); }

  private:
    void segment(double x0, double y0, double x1, double y1, const Stroke& stroke);
    Image image_;
    double scale_;
};

}  // namespace keyhole
