#include "app/window/frame_io.h"

#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/philox.h"
#include "engine/figure/image.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace keyhole {

void write_screenshot(const std::filesystem::path& path, int width, int height, const std::string& made_by) {
    std::vector<std::uint8_t> rgb(to_index(width) * to_index(height) * 3);
    glPixelStorei(GL_PACK_ALIGNMENT, 1);
    glReadPixels(0, 0, width, height, GL_RGB, GL_UNSIGNED_BYTE, rgb.data());
    Image image(width, height);
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const std::uint8_t* p =
                rgb.data() + (to_index(height - 1 - y) * to_index(width) + to_index(x)) * 3;
            image.set(x, y, {p[0], p[1], p[2]});
        }
    write_png(image, path, {{"Source", made_by}});
}

void dump_cells(const std::filesystem::path& path, const AppState& app, const PanelShared& shared,
                int frame_height) {
    const HeadMatrix& matrix = app.maps.lane.focus();
    const HeatView& view = shared.heat_view;
    const PixelRect& canvas = shared.heat_canvas;
    const int n = app.run.history.n_positions();
    const int level = std::min(view.level(), static_cast<int>(matrix.pyramid().size()) - 1);
    const Plane& plane = matrix.pyramid()[to_index(level)];
    const int block = matrix.factor() << level;

    nlohmann::json out = {
        {"lane", app.view.lane},
        {"layer", app.view.layer},
        {"head", app.view.head},
        {"mode", mode_name(app.view.mode)},
        {"block", block},
        {"canvas", {double(canvas.x), double(canvas.y), double(canvas.width), double(canvas.height)}},
        {"cell_pixels", {view.cell_width, view.cell_height}},
        {"scale",
         {{"logarithmic", shared.heat_scale.logarithmic},
          {"low", shared.heat_scale.low},
          {"high", shared.heat_scale.high},
          {"gamma", shared.heat_scale.gamma}}},
        {"cells", nlohmann::json::array()}};
    // A fixed pseudo-random walk over the canvas: cells anywhere in view, the same in every run.
    std::uint64_t state = 88172645463325252ull;
    const auto next = [&] {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        return static_cast<double>(state >> 11) / 9007199254740992.0;
    };
    for (int tries = 0; tries < 20000 && out["cells"].size() < 20; ++tries) {
        const int x = static_cast<int>(next() * double(canvas.width)),
                  y = static_cast<int>(next() * double(canvas.height));
        const CanvasPoint cell = view.cell_at({x + 0.5, y + 0.5});
        int p = static_cast<int>(std::floor(cell.x)), i = static_cast<int>(std::floor(cell.y));
        if (p < 0 || i < 0 || p >= n || i >= n) continue;
        const float value = plane.at(p / block, i / block);
        if (std::isnan(value) || value == kNotRecorded || i > app.view.row) continue;
        int px = static_cast<int>(canvas.x) + x, py = static_cast<int>(canvas.y) + y;
        if (view.cell_width >= 3 && view.cell_height >= 3) {  // the middle of the cell
            const CanvasPoint middle = view.pixel_of({p + 0.5, i + 0.5});
            if (middle.x < 0 || middle.y < 0 || middle.x >= double(canvas.width) ||
                middle.y >= double(canvas.height))
                continue;
            px = static_cast<int>(double(canvas.x) + middle.x);
            py = static_cast<int>(double(canvas.y) + middle.y);
        }
        std::uint8_t rgb[4] = {};
        glReadPixels(px, frame_height - 1 - py, 1, 1, GL_RGBA, GL_UNSIGNED_BYTE, rgb);
        p = p / block * block;
        i = i / block * block;
        out["cells"].push_back({{"row", i},
                                {"position", p},
                                {"rows", std::min(block, n - i)},
                                {"positions", std::min(block, n - p)},
                                {"value", value},
                                {"x", px},
                                {"y", py},
                                {"rgb", {rgb[0], rgb[1], rgb[2]}}});
    }
    write_text_file(path, out.dump(1) + "\n");
}

}  // namespace keyhole
