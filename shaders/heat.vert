#version 330 core
// Draws one quad per matrix, all matrices of a pane in one call. The vertex index gives the corner (a strip
// of four), the instance gives the rest.

layout(location = 0) in vec4 cut;     // left, top, width, height drawn; framebuffer pixels, y down
layout(location = 1) in vec2 origin;  // of the matrix's canvas; the cut may start inside it
layout(location = 2) in ivec2 source; // layer of `values`, row of `evicted_at`

uniform vec4 frame;  // left, top, width, height of the target picture

flat out vec2 canvas_origin;
flat out int matrix;
flat out int kv_head;

void main() {
    vec2 corner = vec2(float(gl_VertexID & 1), float(gl_VertexID >> 1));
    vec2 at = (cut.xy + corner * cut.zw - frame.xy) / frame.zw;
    gl_Position = vec4(at.x * 2.0 - 1.0, 1.0 - at.y * 2.0, 0.0, 1.0);
    canvas_origin = origin;
    matrix = source.x;
    kv_head = source.y;
}
