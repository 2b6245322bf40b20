#version 330 core
// One quad over the frame, cut to the canvas by the scissor. No vertex buffer: corners by index (strip of four).

void main() {
    vec2 corner = vec2(float(gl_VertexID & 1), float(gl_VertexID >> 1));
    gl_Position = vec4(corner * 2.0 - 1.0, 0.0, 1.0);
}
