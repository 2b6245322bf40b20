#version 330 core
// One quad a matrix, all matrices of a pane in one call: corners by index (strip of four), the rest by instance.

layout(location = 0) in vec4 cut;     // left, top, width, height of what is drawn; framebuffer pixels, y down
layout(location = 1) in vec2 origin;  // of the matrix' canvas, which the cut may begin inside of
layout(location = 2) in ivec2 source; // layer of `values`, row of `evicted_at`

uniform vec4 frame;  // left, top, width, height of the picture that is drawn into

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
