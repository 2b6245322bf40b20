#version 330 core
// Colours the matrix of one head: rows i over positions p. Each pixel shows one block of the pyramid.
//
// values      x = position block, y = row block, layer = matrix. A value; NaN: none; inf: not a number;
//             -inf: the row was not recorded; -1: stored but hidden from the row. Mipmap level j holds maxima
//             of 2^j x 2^j blocks (filled by us, since the driver's mipmaps would average hot cells away)
// evicted_at  x = position, y = KV head; the row that evicted it, -1: never
// colors      x = 0..255, y = colour table
// summaries   x = position block, y = row block, layer = KV head, levels as in `values`:
//             2 * (number of evicted cells) + (1 where a row saw a token for the last time)
//
// Uses texelFetch only: data is never filtered. Values become colours as in engine/figure/colormap.h.

uniform sampler2DArray values;
uniform isampler2D evicted_at;
uniform sampler2D colors;
uniform isampler2DArray summaries;

flat in vec2 canvas_origin;  // top left corner of the canvas; framebuffer pixels, y down from the frame's top
flat in int matrix;          // layer of `values`
flat in int kv_head;         // row of `evicted_at`

uniform int level;       // of the pyramid
uniform int log2_factor; // level 0 of the pyramid holds blocks of this many cells
uniform ivec2 n_cells;   // positions, rows
uniform int rows_read;   // later rows are not in `values` yet,
uniform int heads_read;  // nor are later layers of it
uniform int shown_row;   // rows after it are dimmed
uniform int color_table; // row of `colors`
uniform int marks_clips; // 1: values outside the range get colours of their own
uniform int marks_nan;   // 1: so do values that are not finite; 0: they look like missing values
uniform float clip_slack;
uniform vec3 color_above;
uniform vec3 color_below;
uniform vec3 color_nan;
uniform int gone_after;  // 1: a token is gone from the row after its eviction on; 0: from the evicting row on
uniform int has_marks;   // 1: -1 is a mark; 0: it is a value (of a difference)
uniform int shows_both;  // 1: 0 is what both lanes store, with a colour of its own
uniform vec3 color_both;

uniform vec4 frame;           // left, top, width, height of the target picture; framebuffer pixels, y down
uniform vec2 first_cell;      // (position, row) at that corner
uniform vec2 cells_per_pixel;

uniform int mode;  // 0 values, 1 mask
uniform int has_summary; // 1: a mask's blocks have summaries; 0: cells are read one by one
uniform int shows_mask;  // 1: evicted cells are hatched; 0: they have the colour of zero
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
    if (shows_both != 0 && v == 0.0) return color_both;
    if (is_infinite(v)) return v > 0.0 && marks_nan != 0 ? color_nan : color_missing;
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

// Dots for a token that is stored but hidden from the row; evicted cells have stripes.
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
    if (any_born && mode == 0 && is_nan(v) && (at.y >= rows_read || matrix >= heads_read)) {
        frag_color = vec4(at.y > shown_row ? mix(color_missing, color_future, 0.72) : color_missing, 1.0);
        return;
    }
    if (any_born && mode == 0 && !is_nan(v)) {  // the usual case: evictions do not matter
        vec3 c = v == -1.0 && has_marks != 0 ? (shows_mask != 0 ? dotted(pixel) : color_of(0.0))
                                             : color_of(v);
        frag_color = vec4(at.y > shown_row ? mix(c, color_future, 0.72) : c, 1.0);
        return;
    }

    // Counts the block's cells column by column: born where row >= p, gone where
    // row >= evicted_at + gone_after.
    int existing = 0;
    int gone = 0;
    bool last_seen = false;
    if (has_summary != 0) {
        // Blocks start at multiples of their side in both directions. So below the diagonal all cells of a
        // block are born, and on it a triangle.
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
        if (v == -1.0) color = dotted(pixel);  // a token may be evicted after a row that did not see it
    } else {
        if (gone > 0)
            color = shows_mask != 0 ? hatched(pixel) : color_of(0.0);
        else
            color = color_missing;
    }
    if (at.y > shown_row) color = mix(color, color_future, 0.72);
    frag_color = vec4(color, 1.0);
}
