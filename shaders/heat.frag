#version 330 core
// Colours of a matrix of one head: rows i over positions p, each pixel one block of the pyramid.
//
// values      x = position block, y = row block, layer = matrix; value, NaN: none, inf: one that is no number, -1: stored and hidden from the row. Level j of the mipmaps holds
//             maxima of 2^j x 2^j blocks (filled by us: the driver's own would average hot cells away)
// evicted_at  x = position, y = KV head; the row whose processing evicted it, -1 never
// colors      x = 0..255, y = colour table
// summaries   x = position block, y = row block, layer = KV head, levels as of `values`: 2 * (cells that are gone) + (1 where a row saw a token
//             for the last time)
//
// Fetches only: data is never filtered. The arithmetic of value to colour is that of engine/figure/colormap.h.

uniform sampler2DArray values;
uniform isampler2D evicted_at;
uniform sampler2D colors;
uniform isampler2DArray summaries;

flat in vec2 canvas_origin;  // framebuffer pixels of the canvas' top left corner, y down from the frame's top
flat in int matrix;          // layer of `values`
flat in int kv_head;         // row of `evicted_at`

uniform int level;       // of the pyramid
uniform int log2_factor; // level 0 of the pyramid holds blocks of this many cells
uniform ivec2 n_cells;   // positions, rows
uniform int shown_row;   // rows after it are dimmed
uniform int color_table; // row of `colors`
uniform int marks_clips; // values beyond the range stand out
uniform int marks_nan;   // what is no finite number does; else it looks like a missing value
uniform float clip_slack;
uniform vec3 color_above;
uniform vec3 color_below;
uniform vec3 color_nan;
uniform int gone_after;  // 1: a token is seen by the row that evicts it; 0: it is not stored after it
uniform int has_marks;   // -1 is a mark; 0: it is a value, of a difference

uniform vec4 frame;           // left, top, width, height of the picture that is drawn into; framebuffer pixels, y down
uniform vec2 first_cell;      // (position, row) at that corner
uniform vec2 cells_per_pixel;

uniform int mode;  // 0 values, 1 mask
uniform int has_summary; // of a mask's blocks; 0: they are looked at cell by cell
uniform int shows_mask;  // hatch over evicted cells; 0: they take the colour of zero
uniform int logarithmic;
uniform int diverging;
uniform float scale_offset;
uniform float scale_factor;
uniform float scale_gamma;

uniform vec3 color_future;
uniform vec3 color_missing;
uniform vec3 color_evicted;
uniform vec3 color_hatch;
uniform vec3 color_kept;
uniform vec3 color_last_seen;
uniform vec3 color_hidden;

out vec4 frag_color;

bool is_nan(float v) {
    return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u;
}

bool is_infinite(float v) {
    return (floatBitsToUint(v) & 0x7fffffffu) == 0x7f800000u;
}

vec3 color_of(float v) {
    if (is_infinite(v)) return marks_nan != 0 ? color_nan : color_missing;
    float a = diverging != 0 ? abs(v) : v;
    float u = logarithmic != 0 ? (a > 0.0 ? log2(a) : scale_offset) : a;
    u = (u - scale_offset) * scale_factor;
    if (marks_clips != 0) {
        if (u > 1.0 + clip_slack) return color_above;
        if (diverging == 0 && (u < -clip_slack || (logarithmic != 0 && !(a > 0.0)))) return color_below;
    }
    u = clamp(u, 0.0, 1.0);
    if (scale_gamma != 1.0) u = pow(u, scale_gamma);
    if (diverging != 0) u = 0.5 + 0.5 * sign(v) * u;
    return texelFetch(colors, ivec2(min(int(u * 256.0), 255), color_table), 0).rgb;
}

vec3 hatched(ivec2 pixel) {
    return (pixel.x + pixel.y) % 6 < 2 ? color_hatch : color_evicted;
}

// Stored, unseen by the row: dots, where evicted cells have stripes.
vec3 dotted(ivec2 pixel) {
    return (pixel.x % 3 == 0 && pixel.y % 3 == 0) ? color_kept : color_hidden;
}

void main() {
    vec2 place = frame.xy + vec2(gl_FragCoord.x, frame.w - gl_FragCoord.y);
    ivec2 pixel = ivec2(place);
    vec2 cell = first_cell + (place - canvas_origin) * cells_per_pixel;
    ivec2 at = ivec2(floor(cell));
    if (at.x < 0 || at.y < 0 || at.x >= n_cells.x || at.y >= n_cells.y) {
        frag_color = vec4(color_future, 1.0);
        return;
    }
    int shift = level + log2_factor;
    ivec2 block = at >> shift;
    ivec2 first = block << shift;
    ivec2 end = min(first + (1 << shift), n_cells);

    float v = texelFetch(values, ivec3(block, matrix), level).x;
    bool any_born = end.y > first.x;
    if (any_born && mode == 0 && !is_nan(v)) {  // most cells by far: what left the cache is not asked
        vec3 c = v == -1.0 && has_marks != 0 ? (shows_mask != 0 ? dotted(pixel) : color_of(0.0)) : color_of(v);
        frag_color = vec4(at.y > shown_row ? mix(c, color_future, 0.72) : c, 1.0);
        return;
    }

    // What the block's cells are, column by column: born are rows >= p, gone are rows >= evicted_at + gone_after.
    int existing = 0;
    int gone = 0;
    bool last_seen = false;
    if (has_summary != 0) {
        // Blocks begin at multiples of their side both ways: below the diagonal all cells are born, on it a triangle.
        ivec2 size = end - first;
        existing = first.x < first.y ? size.x * size.y : first.x == first.y ? size.x * (size.x + 1) / 2 : 0;
        int sums = texelFetch(summaries, ivec3(block, kv_head), level).x;
        gone = sums >> 1;
        last_seen = (sums & 1) != 0;
        end.x = first.x;
    }
    for (int p = first.x; p < end.x; ++p) {
        int first_existing = max(first.y, p);
        if (first_existing >= end.y) break;
        existing += end.y - first_existing;
        int e = texelFetch(evicted_at, ivec2(p, kv_head), 0).x;
        if (e < 0) continue;
        gone += max(0, end.y - max(first_existing, e + gone_after));
        last_seen = last_seen || (e >= first_existing && e < end.y);
        if (mode == 0 && gone > 0) break;
    }

    vec3 color;
    if (existing == 0) {
        color = color_future;
    } else if (mode == 1) {
        vec3 ground = gone > 0 ? hatched(pixel) : color_kept;
        color = mix(ground, color_kept, float(existing - gone) / float(existing));
        if (last_seen) color = color_last_seen;
        if (v == -1.0) color = dotted(pixel);  // a token may leave after a row that did not see it
    } else {
        if (gone > 0)
            color = shows_mask != 0 ? hatched(pixel) : color_of(0.0);
        else
            color = color_missing;
    }
    if (at.y > shown_row) color = mix(color, color_future, 0.72);
    frag_color = vec4(color, 1.0);
}
