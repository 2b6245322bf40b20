/// Declares OpenGL 3.3 core, as the linked library exports it, and owners of its objects. Window thread,
/// with a current context.
#pragma once

#define GL_GLEXT_PROTOTYPES
#include <GL/gl.h>
#include <GL/glext.h>

#include <utility>

namespace keyhole {

/// Owns one GL name. Move-only.
template <class Deleter>
class GlObject {
  public:
    GlObject() = default;
    explicit GlObject(GLuint name) : name_(name) {}
    GlObject(GlObject&& other) noexcept : name_(std::exchange(other.name_, 0)) {}
    GlObject& operator=(GlObject&& other) noexcept {
        std::swap(name_, other.name_);
        return *this;
    }
    ~GlObject() {
        if (name_ != 0) Deleter()(name_);
    }
    GLuint name() const { return name_; }
    explicit operator bool() const { return name_ != 0; }

  private:
    GLuint name_ = 0;
};

struct DeleteTexture {
    void operator()(GLuint name) const { glDeleteTextures(1, &name); }
};
struct DeleteProgram {
    void operator()(GLuint name) const { glDeleteProgram(name); }
};
struct DeleteVertexArray {
    void operator()(GLuint name) const { glDeleteVertexArrays(1, &name); }
};
struct DeleteBuffer {
    void operator()(GLuint name) const { glDeleteBuffers(1, &name); }
};
struct DeleteFramebuffer {
    void operator()(GLuint name) const { glDeleteFramebuffers(1, &name); }
};
using GlBuffer = GlObject<DeleteBuffer>;
using GlFramebuffer = GlObject<DeleteFramebuffer>;
using GlTexture = GlObject<DeleteTexture>;
using GlProgram = GlObject<DeleteProgram>;
using GlVertexArray = GlObject<DeleteVertexArray>;

}  // namespace keyhole
