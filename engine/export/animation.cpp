#include "engine/export/animation.h"

#include "engine/analysis/token_state.h"
#include "engine/base/index.h"
#include "engine/base/make_folder.h"
#include "engine/base/mapped_file.h"
#include "engine/base/threads.h"
#include "engine/figure/figure_colors.h"
#include "engine/figure/film.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace keyhole {

namespace {

constexpr int kFrameMs = 100, kLastFrameMs = 2000;

/// Returns the rows that have a picture of their own: records know what is stored from the last prompt row
/// on.
std::pair<int, int> recorded_rows(const LaneRows& rows) {
    const int first = std::max(rows.range().first_row, rows.history().steps().front()->row);
    return {std::max(first, rows.lane().first_row), std::min(rows.range().last_row, rows.lane().last_row)};
}

/// At most kMostGifFrames rows of [first, last], evenly spaced and with the last, and the sentence on what
/// was left out.
struct AnimationRows {
    std::vector<int> rows;
    std::string note;

    AnimationRows(int first, int last) {
        const int n = last - first + 1, step = (n + kMostGifFrames - 1) / kMostGifFrames;
        for (int row = last; row >= first; row -= step) rows.insert(rows.begin(), row);
        if (step > 1) note = fmt::format(" One row in {} is shown.", step);
    }
};

/// path: without the ending.
void write_animation(const AnimationRows& animation, std::optional<Colormap> map, const PictureChoice& how,
                     const std::filesystem::path& path, const ExportProgress& progress,
                     const std::function<Image(int row)>& draw) {
    // Frames are drawn on all cores a few at a time, and written in order.
    ThreadPool pool(0);
    const std::size_t n = animation.rows.size(), chunk = to_index(4 * pool.n_threads());
    // The legend grows with the rows: the last one needs the largest picture.
    const Image last = draw(animation.rows.back());
    FilmWriter film(how.film, last.width(), last.height(), map, how.made_by);
    for (std::size_t begin = 0; begin < n; begin += chunk) {
        std::vector<Image> images(std::min(chunk, n - begin));
        pool.parallel_for(static_cast<std::int64_t>(images.size()), [&](std::int64_t i, int) {
            images[to_index(i)] = draw(animation.rows[begin + to_index(i)]);
        });
        for (std::size_t i = 0; i < images.size(); ++i) {
            Image canvas(last.width(), last.height(), figure_colors(how.background).paper);
            canvas.paste(images[i], 0, 0);
            film.add(canvas, begin + i + 1 == n ? kLastFrameMs : kFrameMs);
        }
        if (progress) progress(static_cast<double>(begin + images.size()) / static_cast<double>(n));
    }
    std::filesystem::path file = path;
    file += fmt::format(".{}", film_name(how.film));
    write_file(file, film.finish());
}

constexpr const char* kFrameCaption = "One line a KV head, one column a position; evictions follow the row.";

FigureTexts frame_texts(const LaneRows& rows, int row, const std::string& note) {
    return {fmt::format("What the cache holds after row {}", row), figure_subtitle(rows),
            kFrameCaption + note};
}

/// Returns a caption note where pixels are shares of several cells, which have more shades than a frame of a
/// GIF has colours; otherwise an empty text.
std::string shades_note(int n_columns, int n_rows, const FigureSize& size, FilmFormat film) {
    return film == FilmFormat::gif &&
                   layout_cells(n_columns, n_rows, size.max_width, size.max_height).factor > 1
               ? " Shades beyond 255 in a frame are drawn as the nearest."
               : "";
}

/// Returns the states with cells of rows after `row` set to future.
std::vector<CellState> states_up_to(const std::vector<CellState>& states, int n_columns, int first_row,
                                    int row) {
    std::vector<CellState> out = states;
    const auto from = std::min(to_index(row + 1 - first_row) * to_index(n_columns), out.size());
    std::fill(out.begin() + static_cast<std::ptrdiff_t>(from), out.end(), CellState::future);
    return out;
}

/// Writes one animation after another, with progress over all of them.
void each_film(std::size_t n, const ExportProgress& progress,
               const std::function<void(std::size_t, const ExportProgress&)>& write) {
    for (std::size_t i = 0; i < n; ++i)
        write(i, [&](double share) {
            if (progress) progress((static_cast<double>(i) + share) / static_cast<double>(n));
        });
}

void write_growing(const LaneRows& rows, HeatmapFigure figure, const PictureChoice& how,
                   const std::filesystem::path& path, const ExportProgress& progress) {
    const AnimationRows animation(rows.range().first_row, rows.range().last_row);
    const std::string title = figure.texts.title;
    const std::string colors = how.film == FilmFormat::gif ? fmt::format("; 128 of the 256 colours of {}",
                                                                         colormap_name(figure.scale.map))
                                                           : "";
    figure.texts.caption += fmt::format(" A frame a row{}.{}", colors, animation.note);
    write_animation(animation, figure.scale.map, how, path, progress, [&](int row) {
        HeatmapFigure frame = figure;
        frame.texts.title = fmt::format("{}, up to row {}", title, row);
        if (!frame.side.values.empty()) frame.side.values.resize(to_index(row - rows.range().first_row) + 1);
        frame.states = states_up_to(figure.states, figure.values.width, rows.range().first_row, row);
        return draw_heatmap(frame);
    });
}

}  // namespace

Image mask_frame(const RunHistory& history, int lane, std::span<const int> kv_heads, int row, int last_row,
                 const FigureTexts& texts, Background background) {
    const std::vector<int>& tokens = history.lanes()[to_index(lane)].tokens;
    MaskFigure figure;
    figure.texts = texts;
    figure.background = background;
    figure.n_columns = last_row + 1;
    figure.n_rows = static_cast<int>(kv_heads.size());
    figure.row_axis = {"KV head (layer.head)", 0, {}};
    figure.column_axis = {"position", 0, {}};
    for (const int g : kv_heads) {
        const KvHead& head = history.layout(lane).kv_head(g);
        figure.row_axis.tokens.push_back(fmt::format("{}.{}", head.owner_layer, head.index));
        for (int p = 0; p <= last_row; ++p) figure.states.push_back(mask_state(history, lane, g, p, row));
    }
    for (int p = 0; p <= last_row; ++p) {
        // Include later tokens: labels that grow would change the size of the picture.
        const bool known = p < static_cast<int>(tokens.size());
        figure.column_axis.tokens.push_back(known ? history.run().token_display[to_index(tokens[to_index(p)])]
                                                  : std::string());
    }
    return draw_mask(figure);
}

void write_mask_frames(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                       const ExportProgress& progress) {
    const auto [first, last] = recorded_rows(rows);
    if (last < first) return;
    make_folder(folder);
    draw_all(to_index(last - first + 1), progress, [&, from = first](std::size_t i) {
        const int row = from + static_cast<int>(i);
        write_png(mask_frame(rows.history(), rows.index(), rows.range().kv_heads, row, rows.range().last_row,
                             frame_texts(rows, row, ""), how.background),
                  folder / fmt::format("row_{:06}.png", row), {{"Source", how.made_by}});
    });
}

void write_mask_gif(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                    const ExportProgress& progress) {
    const auto [first, last] = recorded_rows(rows);
    if (last < first) return;
    const ExportRange& range = rows.range();
    const AnimationRows animation(first, last);
    const std::string note =
        animation.note +
        shades_note(range.n_positions(), static_cast<int>(range.kv_heads.size()), FigureSize{}, how.film);
    write_animation(animation, std::nullopt, how, folder / "mask", progress, [&](int row) {
        return mask_frame(rows.history(), rows.index(), range.kv_heads, row, range.last_row,
                          frame_texts(rows, row, note), how.background);
    });
}

void write_attention_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                          const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    const ColorScale scale = scale_of_attention(rows);
    each_film(range.layers.size() * range.heads.size(), progress,
              [&](std::size_t i, const ExportProgress& of_film) {
                  const int layer = range.layers[i / range.heads.size()],
                            head = range.heads[i % range.heads.size()];
                  HeatmapFigure figure = attention_figure(rows, layer, head, scale);
                  figure.background = how.background;
                  write_growing(rows, std::move(figure), how,
                                folder / fmt::format("heatmap_L{}_H{}", layer, head), of_film);
              });
}

void write_score_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                      const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    const ColorScale scale = scale_of_scores(rows);
    each_film(range.kv_heads.size(), progress, [&](std::size_t i, const ExportProgress& of_film) {
        const int g = range.kv_heads[i];
        HeatmapFigure figure = score_figure(rows, g, scale);
        figure.background = how.background;
        write_growing(rows, std::move(figure), how,
                      folder / fmt::format("scores_{}", kv_head_name(rows.layout().kv_head(g))), of_film);
    });
}

void write_head_mask_gifs(const LaneRows& rows, const PictureChoice& how, const std::filesystem::path& folder,
                          const ExportProgress& progress) {
    const ExportRange& range = rows.range();
    if (range.n_rows() == 0) return;
    const AnimationRows animation(range.first_row, range.last_row);
    each_film(range.kv_heads.size(), progress, [&](std::size_t i, const ExportProgress& of_film) {
        const int g = range.kv_heads[i];
        MaskFigure figure = mask_figure(rows, g);
        figure.background = how.background;
        figure.texts.caption += " A frame a row." + animation.note +
                                shades_note(figure.n_columns, figure.n_rows, figure.size, how.film);
        const std::string title = figure.texts.title;
        write_animation(
            animation, std::nullopt, how,
            folder / fmt::format("mask_{}", kv_head_name(rows.layout().kv_head(g))), of_film, [&](int row) {
                MaskFigure frame = figure;
                frame.texts.title = fmt::format("{}, up to row {}", title, row);
                frame.states = states_up_to(figure.states, figure.n_columns, range.first_row, row);
                return draw_mask(frame);
            });
    });
}

}  // namespace keyhole
