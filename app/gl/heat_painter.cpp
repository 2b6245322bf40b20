#include "app/gl/heat_painter.h"

#include "app/gl/shader_source.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/figure/both_color.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <string>
#include <vector>

namespace keyhole {

namespace {

constexpr std::size_t kFewEvictions = 64;  // up to this number, each is uploaded by its own call
constexpr double kCheapMs = 6;             // ms: a pane that costs more is redrawn less often during a run,
constexpr double kRest = 4;                // at most once in this multiple of its cost

GLuint compile(GLenum kind, std::string_view name) {
    const std::string_view text = shader_source(name);
    const GLuint shader = glCreateShader(kind);
    const GLchar* data = text.data();
    const GLint size = static_cast<GLint>(text.size());
    glShaderSource(shader, 1, &data, &size);
    glCompileShader(shader);
    GLint good = 0;
    glGetShaderiv(shader, GL_COMPILE_STATUS, &good);
    if (!good) {
        std::string log(4096, '\0');
        GLsizei length = 0;
        glGetShaderInfoLog(shader, static_cast<GLsizei>(log.size()), &length, log.data());
        log.resize(to_index(length));
        fail(ErrorCode::device,
             "compiling the shader {} ({} bytes): {}; check the graphics driver (OpenGL 3.3)", name,
             text.size(), log);
    }
    return shader;
}

GlProgram link(std::string_view vertex, std::string_view fragment) {
    const GLuint v = compile(GL_VERTEX_SHADER, vertex);
    const GLuint f = compile(GL_FRAGMENT_SHADER, fragment);
    GlProgram program(glCreateProgram());
    glAttachShader(program.name(), v);
    glAttachShader(program.name(), f);
    glLinkProgram(program.name());
    glDeleteShader(v);
    glDeleteShader(f);
    GLint good = 0;
    glGetProgramiv(program.name(), GL_LINK_STATUS, &good);
    if (!good)
        fail(ErrorCode::device, "linking {} and {} failed; check the graphics driver (OpenGL 3.3)", vertex,
             fragment);
    return program;
}

GlTexture make_texture(GLenum target) {
    GLuint name = 0;
    glGenTextures(1, &name);
    glBindTexture(target, name);
    glTexParameteri(target, GL_TEXTURE_MIN_FILTER,
                    target == GL_TEXTURE_2D_ARRAY ? GL_NEAREST_MIPMAP_NEAREST : GL_NEAREST);
    glTexParameteri(target, GL_TEXTURE_MAG_FILTER, GL_NEAREST);
    glTexParameteri(target, GL_TEXTURE_WRAP_S, GL_CLAMP_TO_EDGE);
    glTexParameteri(target, GL_TEXTURE_WRAP_T, GL_CLAMP_TO_EDGE);
    return GlTexture(name);
}

constexpr std::string_view kUniforms[] = {
    "values",          "evicted_at",   "colors",      "level",           "log2_factor",
    "n_cells",         "shown_row",    "color_table", "marks_clips",     "marks_nan",
    "clip_slack",      "color_above",  "color_below", "color_nan",       "gone_after",
    "has_marks",       "shows_both",   "color_both",  "frame",           "first_cell",
    "cells_per_pixel", "mode",         "shows_mask",  "logarithmic",     "diverging",
    "scale_offset",    "scale_factor", "scale_gamma", "color_future",    "color_missing",
    "color_evicted",   "color_hatch",  "color_kept",  "color_last_seen", "color_hidden",
    "summaries",       "has_summary",  "rows_read",   "heads_read"};

/// Vertex data that heat.vert reads for a quad.
struct Instance {
    float cut[4];
    float origin[2];
    std::int32_t source[2];
};

void lay_out_instances(const GlVertexArray& array, const GlBuffer& buffer) {
    const auto offset = [](std::size_t bytes) { return reinterpret_cast<const void*>(bytes); };
    glBindVertexArray(array.name());
    glBindBuffer(GL_ARRAY_BUFFER, buffer.name());
    glVertexAttribPointer(0, 4, GL_FLOAT, GL_FALSE, sizeof(Instance), offset(offsetof(Instance, cut)));
    glVertexAttribPointer(1, 2, GL_FLOAT, GL_FALSE, sizeof(Instance), offset(offsetof(Instance, origin)));
    glVertexAttribIPointer(2, 2, GL_INT, sizeof(Instance), offset(offsetof(Instance, source)));
    for (GLuint i = 0; i < 3; ++i) {
        glEnableVertexAttribArray(i);
        glVertexAttribDivisor(i, 1);
    }
    glBindVertexArray(0);
    glBindBuffer(GL_ARRAY_BUFFER, 0);
}

/// Returns the visible part of a quad in whole pixels; width or height 0 if there is none.
PixelRect cut_of(const HeatQuad& quad) {
    const float left = std::floor(std::max(quad.clip.x, quad.canvas.x)),
                top = std::floor(std::max(quad.clip.y, quad.canvas.y));
    const float right =
        std::floor(std::min(quad.clip.x + quad.clip.width, quad.canvas.x + quad.canvas.width));
    const float bottom =
        std::floor(std::min(quad.clip.y + quad.clip.height, quad.canvas.y + quad.canvas.height));
    return {left, top, std::max(0.0f, right - left), std::max(0.0f, bottom - top)};
}

int log2_of(int power_of_two) {
    return std::countr_zero(static_cast<unsigned>(power_of_two));
}

}  // namespace

HeatPainter::HeatPainter() : program_(link("heat.vert", "heat.frag")) {
    GLuint vertices = 0;
    glGenVertexArrays(1, &vertices);
    vertices_ = GlVertexArray(vertices);
    for (const std::string_view name : kUniforms)
        uniforms_.emplace(name, glGetUniformLocation(program_.name(), name.data()));
    GLuint buffer = 0;
    glGenBuffers(1, &buffer);
    instances_ = GlBuffer(buffer);
    lay_out_instances(vertices_, instances_);
    glGetIntegerv(GL_MAX_TEXTURE_SIZE, &texture_limit_);
    colors_ = make_texture(GL_TEXTURE_2D);
    std::vector<Rgb8> tables;  // one below the other
    for (const Colormap map : kColormaps)
        tables.insert(tables.end(), colormap_table(map).begin(), colormap_table(map).end());
    glPixelStorei(GL_UNPACK_ALIGNMENT, 1);
    glTexImage2D(GL_TEXTURE_2D, 0, GL_RGB8, 256, static_cast<GLsizei>(kColormaps.size()), 0, GL_RGB,
                 GL_UNSIGNED_BYTE, tables.data());
    glPixelStorei(GL_UNPACK_ALIGNMENT, 4);
}

/// Sizes a texture. counts: it holds integers. Returns true if the texture was made anew.
bool HeatPainter::fit(MatrixTexture& target, int side, int layers, bool counts) const {
    if (target.texture && target.side == side && target.layers == layers) {
        glBindTexture(GL_TEXTURE_2D_ARRAY, target.texture.name());
        return false;
    }
    target.texture = make_texture(GL_TEXTURE_2D_ARRAY);
    target.side = side;
    target.layers = layers;
    const int n_levels = log2_of(side) + 1;
    glTexParameteri(GL_TEXTURE_2D_ARRAY, GL_TEXTURE_MAX_LEVEL, n_levels - 1);
    for (int level = 0; level < n_levels; ++level)
        glTexImage3D(GL_TEXTURE_2D_ARRAY, level, counts ? GL_R32I : GL_R32F, side >> level, side >> level,
                     layers, 0, counts ? GL_RED_INTEGER : GL_RED, counts ? GL_INT : GL_FLOAT, nullptr);
    return true;
}

/// Uploads rows [first, last] of level 0, and the higher-level rows that depend on them, for all these
/// matrices: one call a level.
void HeatPainter::upload(std::span<const HeadMatrix> matrices, int first_layer, int first, int last) {
    const std::size_t n_levels = matrices.front().pyramid().size();
    for (std::size_t level = 0; level < n_levels; ++level) {
        const int width = matrices.front().pyramid()[level].width, top = first >> level,
                  n = (last >> level) - top + 1;
        const std::size_t begin = to_index(top) * to_index(width), size = to_index(n) * to_index(width);
        const float* from = matrices.front().pyramid()[level].values.data() + begin;
        if (matrices.size() > 1) {
            staged_.resize(matrices.size() * size);
            for (std::size_t i = 0; i < matrices.size(); ++i)
                std::copy_n(matrices[i].pyramid()[level].values.data() + begin, size,
                            staged_.data() + i * size);
            from = staged_.data();
        }
        glTexSubImage3D(GL_TEXTURE_2D_ARRAY, static_cast<GLint>(level), 0, top, first_layer, width, n,
                        static_cast<GLsizei>(matrices.size()), GL_RED, GL_FLOAT, from);
    }
}

bool HeatPainter::update_matrices(MatrixTexture& target, std::span<HeadMatrix> matrices, bool anew) {
    if (matrices.empty()) return false;
    anew = fit(target, matrices.front().side(), static_cast<int>(matrices.size())) || anew;
    // Usually all matrices changed in the same row. Uploads the box from the first changed row and matrix to
    // the last.
    int first = matrices.front().side(), last = -1;
    std::size_t begin = matrices.size(), end = 0;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        HeadMatrix::Changes changes = matrices[i].take_changes();
        if (anew || changes.all) changes = {true, 0, matrices[i].side() - 1};
        if (changes.last < changes.first) continue;
        first = std::min(first, changes.first), last = std::max(last, changes.last);
        begin = std::min(begin, i), end = i + 1;
    }
    if (last < first) return false;
    upload(matrices.subspan(begin, end - begin), static_cast<int>(begin), first, last);
    return true;
}

bool HeatPainter::update_summary(const RunHistory& history, int lane) {
    summary_.update(history, lane, atlas_.side, 1 << atlas_log2_);
    MaskSummary::Changes changes = summary_.take_changes();
    if (fit(masks_, summary_.side(), summary_.n_heads(), true) || changes.all)
        changes = {true, 0, summary_.side() - 1};
    if (changes.last < changes.first) return false;
    for (int level = 0; level < summary_.n_levels(); ++level) {
        const int side = summary_.side() >> level, top = changes.first >> level,
                  n = (changes.last >> level) - top + 1;
        glPixelStorei(GL_UNPACK_IMAGE_HEIGHT, side);  // uploads only a part of each head's rows
        glTexSubImage3D(GL_TEXTURE_2D_ARRAY, level, 0, top, 0, side, n, summary_.n_heads(), GL_RED_INTEGER,
                        GL_INT, summary_.level(level).data() + static_cast<std::ptrdiff_t>(top) * side);
    }
    glPixelStorei(GL_UNPACK_IMAGE_HEIGHT, 0);
    return true;
}

bool HeatPainter::update_evictions(const RunHistory& history, int lane) {
    const RunHistory::Lane& shown = history.lanes()[to_index(lane)];
    const int heads = history.layout(lane).n_kv_heads();
    const int width = std::min(history.capacity(), texture_limit_);
    if (!evicted_ || evicted_width_ != width || evicted_heads_ != heads ||
        evicted_history_ != history.generation() || evicted_lane_ != shown.id) {
        evicted_ = make_texture(GL_TEXTURE_2D);
        glPixelStorei(GL_UNPACK_ROW_LENGTH, history.capacity());
        glTexImage2D(GL_TEXTURE_2D, 0, GL_R32I, width, heads, 0, GL_RED_INTEGER, GL_INT,
                     shown.evicted_at.data());
        glPixelStorei(GL_UNPACK_ROW_LENGTH, 0);
        evicted_width_ = width;
        evicted_heads_ = heads;
        evicted_history_ = history.generation();
        evicted_lane_ = shown.id;
        evicted_row_ = history.last_row();
        return true;
    }
    if (evicted_row_ == history.last_row()) return false;
    glBindTexture(GL_TEXTURE_2D, evicted_.name());
    std::vector<Eviction> fresh;
    for (int row = evicted_row_ + 1; row <= history.last_row(); ++row)
        if (const LaneRecord* record = history.lane_record(row, lane))
            fresh.insert(fresh.end(), record->evictions.begin(), record->evictions.end());
    evicted_row_ = history.last_row();
    if (fresh.size() > kFewEvictions) {  // many calls cost more than uploading everything
        glPixelStorei(GL_UNPACK_ROW_LENGTH, history.capacity());
        glTexSubImage2D(GL_TEXTURE_2D, 0, 0, 0, width, heads, GL_RED_INTEGER, GL_INT,
                        shown.evicted_at.data());
        glPixelStorei(GL_UNPACK_ROW_LENGTH, 0);
        return true;
    }
    for (const Eviction& e : fresh)
        if (e.position < width)
            glTexSubImage2D(GL_TEXTURE_2D, 0, e.position, e.kv_head, 1, 1, GL_RED_INTEGER, GL_INT, &e.row);
    return true;
}

std::size_t HeatPainter::texture_bytes() const {
    const auto cells = [](const MatrixTexture& t) {
        std::size_t n = 0;
        for (int side = t.side; side > 0; side /= 2) n += to_index(side) * to_index(side);
        return n * to_index(t.layers);
    };
    std::size_t pictures = 0;
    for (const Pane& pane : panes_) pictures += to_index(pane.width) * to_index(pane.height) * 4;
    const std::size_t table = to_index(evicted_width_) * to_index(evicted_heads_);
    return (cells(focus_) + cells(atlas_) + cells(masks_)) * sizeof(float) + table * sizeof(std::int32_t) +
           pictures;
}

std::size_t HeatPainters::texture_bytes() const {
    std::size_t sum = focus.texture_bytes() + difference.texture_bytes();
    for (const HeatPainter& other : others) sum += other.texture_bytes();
    return sum;
}

void HeatPainter::update(HeatData& data, const RunHistory& history, int lane, bool masks) {
    const bool anew = generation_ != data.generation();
    generation_ = data.generation();
    bool changed = update_matrices(focus_, {&data.focus(), 1}, anew);
    changed = update_matrices(atlas_, data.atlas(), anew) || changed;
    changed = update_evictions(history, lane) || changed || n_positions_ != history.n_positions();
    n_positions_ = history.n_positions();
    changed = focus_read_ != data.focus_read() || atlas_read_ != data.atlas_read() || changed;
    focus_read_ = data.focus_read();
    atlas_read_ = data.atlas_read();
    focus_log2_ = log2_of(data.focus().factor());
    atlas_log2_ = data.atlas().empty() ? 0 : log2_of(data.atlas().front().factor());
    // If the matrices lag behind the run, the shader looks at the cells itself.
    has_summary_ = masks && !data.atlas().empty() && (atlas_.side << atlas_log2_) >= n_positions_;
    if (has_summary_) changed = update_summary(history, lane) || changed;
    if (!masks) masks_ = {};
    if (changed) ++version_;
}

void HeatPainter::draw(const HeatQuad& quad, float frame_width, float frame_height) {
    draw({&quad, 1}, frame_width, frame_height);
}

void HeatPainter::draw(std::span<const HeatQuad> quads, float frame_width, float frame_height) {
    draw_into(quads, {0, 0, frame_width, frame_height});
}

bool HeatPainter::keep(std::span<const HeatQuad> quads, float frame_width, float frame_height,
                       Rgb8 background, bool may_lag) {
    using Clock = std::chrono::steady_clock;
    static std::uint64_t g_number = 0;
    if (quads.empty()) return true;
    Pane& pane = panes_[pane_of(quads)];
    const bool moved = !std::equal(quads.begin(), quads.end(), pane.quads.begin(), pane.quads.end());
    bool lags = false;
    if (moved || pane.version != version_) {
        // Only new rows: shown row, scale and fit follow them. Changes by the user are drawn at once.
        const bool only_rows =
            pane.quads.size() == quads.size() && pane.version != version_ && pane.generation == generation_ &&
            pane.quads.front().canvas == quads.front().canvas &&
            pane.quads.front().clip == quads.front().clip && pane.quads.front().mode == quads.front().mode &&
            pane.quads.front().kv_head == quads.front().kv_head &&
            pane.quads.front().mask_overlay == quads.front().mask_overlay &&
            pane.quads.front().scale.map == quads.front().scale.map &&
            pane.quads.front().scale.marks_clips == quads.front().scale.marks_clips &&
            pane.quads.front().scale.marks_nan == quads.front().scale.marks_nan &&
            (quads.front().view.fitted
                 ? pane.quads.front().view.fitted && pane.quads.front().view.top == quads.front().view.top
                 : pane.quads.front().view == quads.front().view);
        const double since = std::chrono::duration<double, std::milli>(Clock::now() - pane.drawn_at).count();
        lags = may_lag && only_rows && pane.cost_ms > kCheapMs && since < kRest * pane.cost_ms;
    }
    GLint window = 0;
    glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &window);
    glDisable(GL_SCISSOR_TEST);
    if (!lags && (moved || pane.version != version_)) {
        float left = frame_width, top = frame_height, right = 0, bottom = 0;
        for (const HeatQuad& quad : quads) {
            const PixelRect cut = cut_of(quad);
            if (cut.width == 0 || cut.height == 0) continue;
            left = std::min(left, cut.x), top = std::min(top, cut.y);
            right = std::max(right, cut.x + cut.width), bottom = std::max(bottom, cut.y + cut.height);
        }
        if (right <= left || bottom <= top) {
            if (pane.width != 0) pane.number = ++g_number;  // there is nothing to show now
            pane.quads.clear();
            pane.width = pane.height = 0;
            return true;
        }
        const int width = static_cast<int>(right - left), height = static_cast<int>(bottom - top);
        if (!pane.frame || pane.width != width || pane.height != height) {
            pane.picture = make_texture(GL_TEXTURE_2D);
            glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, width, height, 0, GL_RGBA, GL_UNSIGNED_BYTE, nullptr);
            GLuint name = 0;
            glGenFramebuffers(1, &name);
            pane.frame = GlFramebuffer(name);
            glBindFramebuffer(GL_FRAMEBUFFER, name);
            glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, pane.picture.name(),
                                   0);
        }
        glBindFramebuffer(GL_FRAMEBUFFER, pane.frame.name());
        pane.x = static_cast<int>(left), pane.y = static_cast<int>(top);
        pane.width = width, pane.height = height;
        const auto begin = Clock::now();
        glClearColor(float(background.r) / 255, float(background.g) / 255, float(background.b) / 255, 1);
        glClear(GL_COLOR_BUFFER_BIT);
        draw_into(quads, {left, top, right - left, bottom - top});
        glFinish();  // waits, to measure the cost
        pane.drawn_at = Clock::now();
        pane.cost_ms = std::chrono::duration<double, std::milli>(pane.drawn_at - begin).count();
        pane.quads.assign(quads.begin(), quads.end());
        pane.version = version_;
        pane.generation = generation_;
        pane.number = ++g_number;
        ++n_redrawn_;
        glBindFramebuffer(GL_FRAMEBUFFER, static_cast<GLuint>(window));
    }
    return !lags;
}

void HeatPainter::draw_kept(std::span<const HeatQuad> quads, float frame_height,
                            const PixelRect& clip) const {
    const Pane& pane = panes_[pane_of(quads)];
    if (pane.width == 0) return;
    GLint window = 0;
    glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &window);
    glBindFramebuffer(GL_READ_FRAMEBUFFER, pane.frame.name());
    const int bottom = static_cast<int>(frame_height) - pane.y - pane.height;
    const int left = static_cast<int>(std::floor(clip.x)),
              low = static_cast<int>(std::ceil(clip.y + clip.height));
    glEnable(GL_SCISSOR_TEST);
    glScissor(left, static_cast<int>(frame_height) - low,
              static_cast<int>(std::ceil(clip.x + clip.width)) - left,
              low - static_cast<int>(std::floor(clip.y)));
    glBlitFramebuffer(0, 0, pane.width, pane.height, pane.x, bottom, pane.x + pane.width,
                      bottom + pane.height, GL_COLOR_BUFFER_BIT, GL_NEAREST);
    glBindFramebuffer(GL_FRAMEBUFFER, static_cast<GLuint>(window));
}

std::uint64_t HeatPainter::kept_number(std::span<const HeatQuad> quads) const {
    return panes_[pane_of(quads)].number;
}

/// frame: the picture's rectangle in the window.
void HeatPainter::draw_into(std::span<const HeatQuad> quads, const PixelRect& frame) {
    if (quads.empty()) return;
    const HeatQuad& quad = quads.front();
    const MatrixTexture& source = quad.matrix < 0 ? focus_ : atlas_;
    if (!source.texture || !evicted_) return;
    const int log2_factor = quad.matrix < 0 ? focus_log2_ : atlas_log2_;
    const int level = std::clamp(quad.view.level() - log2_factor, 0, log2_of(source.side));
    std::vector<Instance> instances;
    for (const HeatQuad& q : quads) {
        const PixelRect cut = cut_of(q);
        if (cut.width == 0 || cut.height == 0) continue;
        instances.push_back({{cut.x, cut.y, cut.width, cut.height},
                             {q.canvas.x, q.canvas.y},
                             {std::max(q.matrix, 0), q.kv_head}});
    }
    if (instances.empty()) return;
    glViewport(0, 0, static_cast<GLint>(frame.width), static_cast<GLint>(frame.height));
    glDisable(GL_SCISSOR_TEST);
    glDisable(GL_BLEND);

    glUseProgram(program_.name());
    const auto set_int = [&](std::string_view name, int value) { glUniform1i(uniform(name), value); };
    const auto set_float = [&](std::string_view name, double value) {
        glUniform1f(uniform(name), static_cast<float>(value));
    };
    const auto set_color = [&](std::string_view name, Rgb8 c) {
        glUniform3f(uniform(name), float(c.r) / 255, float(c.g) / 255, float(c.b) / 255);
    };
    set_int("values", 0);
    set_int("evicted_at", 1);
    set_int("colors", 2);
    set_int("summaries", 3);
    const bool summed = has_summary_ && quad.matrix >= 0 && quad.mode == HeatMode::mask && !quad.difference;
    set_int("has_summary", summed ? 1 : 0);
    set_int("level", level);
    set_int("log2_factor", log2_factor);
    glUniform2i(uniform("n_cells"), n_positions_, n_positions_);
    const HeatData::Read read = quad.matrix < 0 ? focus_read_ : atlas_read_;
    set_int("rows_read", read.rows);
    set_int("heads_read", read.heads);
    set_int("shown_row", quad.shown_row);
    glUniform4f(uniform("frame"), frame.x, frame.y, frame.width, frame.height);
    glUniform2f(uniform("first_cell"), static_cast<float>(quad.view.left), static_cast<float>(quad.view.top));
    glUniform2f(uniform("cells_per_pixel"), static_cast<float>(1 / quad.view.cell_width),
                static_cast<float>(1 / quad.view.cell_height));
    set_int("mode", quad.mode == HeatMode::mask && !quad.difference ? 1 : 0);
    set_int("shows_mask", quad.mask_overlay ? 1 : 0);
    set_int("has_marks", quad.difference ? 0 : 1);
    set_int("gone_after", quad.difference && quad.mode == HeatMode::mask ? 0 : 1);
    set_int("color_table", static_cast<int>(quad.scale.map));
    const ScaleTerms terms = scale_terms(quad.scale);
    set_int("logarithmic", terms.logarithmic ? 1 : 0);
    set_int("diverging", terms.diverging ? 1 : 0);
    set_float("scale_offset", terms.offset);
    set_float("scale_factor", terms.factor);
    set_float("scale_gamma", terms.gamma);
    const CellColors colors = cell_colors(quad.background);
    set_color("color_future", colors.future);
    set_color("color_missing", colors.missing);
    set_color("color_evicted", colors.evicted);
    set_color("color_hatch", colors.hatch);
    set_color("color_kept", colors.kept);
    set_color("color_last_seen", colors.last_seen);
    set_color("color_hidden", colors.hidden);
    set_int("shows_both", quad.difference && quad.mode == HeatMode::mask ? 1 : 0);
    set_color("color_both", both_color(quad.background));
    set_int("marks_clips", quad.scale.marks_clips ? 1 : 0);
    set_int("marks_nan", quad.scale.marks_nan ? 1 : 0);
    set_float("clip_slack", kClipSlack);
    set_color("color_above", kAboveColor);
    set_color("color_below", kBelowColor);
    set_color("color_nan", kNanColor);

    glActiveTexture(GL_TEXTURE3);
    glBindTexture(GL_TEXTURE_2D_ARRAY, summed ? masks_.texture.name() : 0);
    glActiveTexture(GL_TEXTURE2);
    glBindTexture(GL_TEXTURE_2D, colors_.name());
    glActiveTexture(GL_TEXTURE1);
    glBindTexture(GL_TEXTURE_2D, evicted_.name());
    glActiveTexture(GL_TEXTURE0);
    glBindTexture(GL_TEXTURE_2D_ARRAY, source.texture.name());
    glBindBuffer(GL_ARRAY_BUFFER, instances_.name());
    glBufferData(GL_ARRAY_BUFFER, static_cast<GLsizeiptr>(instances.size() * sizeof(Instance)),
                 instances.data(), GL_STREAM_DRAW);
    glBindVertexArray(vertices_.name());
    glDrawArraysInstanced(GL_TRIANGLE_STRIP, 0, 4, static_cast<GLsizei>(instances.size()));
    glBindVertexArray(0);
    glBindBuffer(GL_ARRAY_BUFFER, 0);
}

}  // namespace keyhole
