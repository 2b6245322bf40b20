#include "app/window/heat_painter.h"

#include "app/window/shader_source.h"
#include "engine/base/error.h"

#include <algorithm>
#include <bit>
#include <string>
#include <vector>

namespace keyhole {

namespace {

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
        log.resize(static_cast<std::size_t>(length));
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

int log2_of(int power_of_two) {
    return std::countr_zero(static_cast<unsigned>(power_of_two));
}

}  // namespace

HeatPainter::HeatPainter() : program_(link("heat.vert", "heat.frag")) {
    GLuint vertices = 0;
    glGenVertexArrays(1, &vertices);
    no_vertices_ = GlVertexArray(vertices);
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

int HeatPainter::uniform(const char* name) const {
    return glGetUniformLocation(program_.name(), name);
}

void HeatPainter::fit(MatrixTexture& target, int side, int layers) const {
    if (target.texture && target.side == side && target.layers == layers) {
        glBindTexture(GL_TEXTURE_2D_ARRAY, target.texture.name());
        return;
    }
    target.texture = make_texture(GL_TEXTURE_2D_ARRAY);
    target.side = side;
    target.layers = layers;
    const int n_levels = log2_of(side) + 1;
    glTexParameteri(GL_TEXTURE_2D_ARRAY, GL_TEXTURE_MAX_LEVEL, n_levels - 1);
    for (int level = 0; level < n_levels; ++level)
        glTexImage3D(GL_TEXTURE_2D_ARRAY, level, GL_R32F, side >> level, side >> level, layers, 0, GL_RED,
                     GL_FLOAT, nullptr);
}

/// Rows [first, last] of level 0 and what depends on them.
void HeatPainter::upload(const MatrixTexture& target, int layer, const HeadMatrix& matrix, int first,
                         int last) {
    const std::vector<Plane>& pyramid = matrix.pyramid();
    for (std::size_t level = 0; level < pyramid.size(); ++level) {
        const Plane& plane = pyramid[level];
        const int top = first >> level;
        const int n = (last >> level) - top + 1;
        glTexSubImage3D(
            GL_TEXTURE_2D_ARRAY, static_cast<GLint>(level), 0, top, layer, plane.width, n, 1, GL_RED,
            GL_FLOAT,
            plane.values.data() + static_cast<std::size_t>(top) * static_cast<std::size_t>(plane.width));
    }
    (void)target;
}

void HeatPainter::update_matrices(MatrixTexture& target, std::span<HeadMatrix> matrices, bool anew) {
    if (matrices.empty()) return;
    fit(target, matrices.front().side(), static_cast<int>(matrices.size()));
    for (std::size_t i = 0; i < matrices.size(); ++i) {
        const HeadMatrix::Changes changes = matrices[i].take_changes();
        if (anew || changes.all)
            upload(target, static_cast<int>(i), matrices[i], 0, matrices[i].side() - 1);
        else if (changes.first <= changes.last)
            upload(target, static_cast<int>(i), matrices[i], changes.first, changes.last);
    }
}

void HeatPainter::update_evictions(const RunHistory& history, int lane) {
    const RunHistory::Lane& shown = history.lanes()[static_cast<std::size_t>(lane)];
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
        return;
    }
    glBindTexture(GL_TEXTURE_2D, evicted_.name());
    for (int row = evicted_row_ + 1; row <= history.last_row(); ++row) {
        const LaneRecord* record = history.lane_record(row, lane);
        if (record == nullptr) continue;
        for (const Eviction& e : record->evictions)
            if (e.position < width)
                glTexSubImage2D(GL_TEXTURE_2D, 0, e.position, e.kv_head, 1, 1, GL_RED_INTEGER, GL_INT,
                                &e.row);
    }
    evicted_row_ = history.last_row();
}

void HeatPainter::update(HeatData& data, const RunHistory& history, int lane) {
    const bool anew = generation_ != data.generation();
    generation_ = data.generation();
    update_matrices(focus_, {&data.focus(), 1}, anew);
    update_matrices(atlas_, data.atlas(), anew);
    update_evictions(history, lane);
    n_positions_ = history.n_positions();
    focus_log2_ = log2_of(data.focus().factor());
    atlas_log2_ = data.atlas().empty() ? 0 : log2_of(data.atlas().front().factor());
}

void HeatPainter::draw(const HeatQuad& quad, float frame_width, float frame_height) const {
    const MatrixTexture& source = quad.matrix < 0 ? focus_ : atlas_;
    if (!source.texture || !evicted_) return;
    const auto i32 = [](float value) { return static_cast<GLint>(value); };
    const int log2_factor = quad.matrix < 0 ? focus_log2_ : atlas_log2_;
    const int level = std::clamp(quad.view.level() - log2_factor, 0, log2_of(source.side));

    const float left = std::max(quad.clip.x, quad.canvas.x), top = std::max(quad.clip.y, quad.canvas.y);
    const float right = std::min(quad.clip.x + quad.clip.width, quad.canvas.x + quad.canvas.width);
    const float bottom = std::min(quad.clip.y + quad.clip.height, quad.canvas.y + quad.canvas.height);
    if (right <= left || bottom <= top) return;
    glViewport(0, 0, i32(frame_width), i32(frame_height));
    glEnable(GL_SCISSOR_TEST);
    glScissor(i32(left), i32(frame_height - bottom), i32(right - left), i32(bottom - top));
    glDisable(GL_BLEND);

    glUseProgram(program_.name());
    const auto set_int = [&](const char* name, int value) { glUniform1i(uniform(name), value); };
    const auto set_float = [&](const char* name, double value) {
        glUniform1f(uniform(name), static_cast<float>(value));
    };
    const auto set_color = [&](const char* name, Rgb8 c) {
        glUniform3f(uniform(name), float(c.r) / 255, float(c.g) / 255, float(c.b) / 255);
    };
    set_int("values", 0);
    set_int("evicted_at", 1);
    set_int("colors", 2);
    set_int("matrix", std::max(quad.matrix, 0));
    set_int("kv_head", quad.kv_head);
    set_int("level", level);
    set_int("log2_factor", log2_factor);
    glUniform2i(uniform("n_cells"), n_positions_, n_positions_);
    set_int("shown_row", quad.shown_row);
    glUniform2f(uniform("canvas_origin"), quad.canvas.x, quad.canvas.y);
    set_float("frame_height", frame_height);
    glUniform2f(uniform("first_cell"), static_cast<float>(quad.view.left), static_cast<float>(quad.view.top));
    glUniform2f(uniform("cells_per_pixel"), static_cast<float>(1 / quad.view.cell_width),
                static_cast<float>(1 / quad.view.cell_height));
    set_int("mode", quad.mode == HeatMode::mask && !quad.difference ? 1 : 0);
    set_int("shows_mask", quad.mask_overlay ? 1 : 0);
    set_int("has_marks", quad.difference ? 0 : 1);
    set_int("color_table", static_cast<int>(quad.scale.map));
    const ScaleTerms terms = scale_terms(quad.scale);
    set_int("logarithmic", terms.logarithmic ? 1 : 0);
    set_int("diverging", terms.diverging ? 1 : 0);
    set_float("scale_offset", terms.offset);
    set_float("scale_factor", terms.factor);
    set_float("scale_gamma", terms.gamma);
    set_color("color_unborn", HeatGround::kUnborn);
    set_color("color_missing", HeatGround::kMissing);
    set_color("color_evicted", HeatGround::kEvicted);
    set_color("color_hatch", HeatGround::kHatch);
    set_color("color_kept", HeatGround::kKept);
    set_color("color_last_seen", HeatGround::kLastSeen);
    set_color("color_hidden", HeatGround::kHidden);
    set_int("marks_clips", quad.marks_clips ? 1 : 0);
    set_color("color_clip", HeatGround::kClip);

    glActiveTexture(GL_TEXTURE2);
    glBindTexture(GL_TEXTURE_2D, colors_.name());
    glActiveTexture(GL_TEXTURE1);
    glBindTexture(GL_TEXTURE_2D, evicted_.name());
    glActiveTexture(GL_TEXTURE0);
    glBindTexture(GL_TEXTURE_2D_ARRAY, source.texture.name());
    glBindVertexArray(no_vertices_.name());
    glDrawArrays(GL_TRIANGLE_STRIP, 0, 4);
    glBindVertexArray(0);
}

}  // namespace keyhole
