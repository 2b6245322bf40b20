/// Tests that draw without a window on the screen. They need a display with OpenGL 3.3.
#pragma once

#include "app/gl/gl.h"

#define GLFW_INCLUDE_NONE
#include <GLFW/glfw3.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

namespace keyhole::testing {

/// Has a context. Is skipped without a display.
class GlTest : public ::testing::Test {
  protected:
    // One window for all tests: a display server without clients restarts and meanwhile refuses new ones.
    static void SetUpTestSuite() {
        for (int tries = 0; tries < 20 && !glfwInit(); ++tries)
            std::this_thread::sleep_for(std::chrono::milliseconds(100));
        glfwWindowHint(GLFW_CONTEXT_VERSION_MAJOR, 3);
        glfwWindowHint(GLFW_CONTEXT_VERSION_MINOR, 3);
        glfwWindowHint(GLFW_OPENGL_PROFILE, GLFW_OPENGL_CORE_PROFILE);
        glfwWindowHint(GLFW_VISIBLE, GLFW_FALSE);
        window_ = glfwCreateWindow(64, 64, "test", nullptr, nullptr);
    }
    static void TearDownTestSuite() {
        if (window_ != nullptr) glfwDestroyWindow(window_);
        glfwTerminate();
    }
    void SetUp() override {
        if (window_ == nullptr) GTEST_SKIP() << "no display with OpenGL 3.3";
        glfwMakeContextCurrent(window_);
    }

    static inline GLFWwindow* window_ = nullptr;
};

/// A picture to draw to, and the bound framebuffer from its construction on.
class TestFrame {
  public:
    TestFrame(int width, int height) : width_(width), height_(height) {
        glGenFramebuffers(1, &frame_);
        glGenRenderbuffers(1, &colors_);
        bind();
        glBindRenderbuffer(GL_RENDERBUFFER, colors_);
        glRenderbufferStorage(GL_RENDERBUFFER, GL_RGBA8, width, height);
        glFramebufferRenderbuffer(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_RENDERBUFFER, colors_);
    }
    ~TestFrame() {
        glDeleteFramebuffers(1, &frame_);
        glDeleteRenderbuffers(1, &colors_);
    }
    TestFrame(const TestFrame&) = delete;

    void bind() const { glBindFramebuffer(GL_FRAMEBUFFER, frame_); }
    /// Returns the pixels as R, G, B, A, the lowest row first.
    std::vector<std::uint8_t> pixels() const {
        std::vector<std::uint8_t> read(static_cast<std::size_t>(width_) * static_cast<std::size_t>(height_) *
                                       4);
        glReadPixels(0, 0, width_, height_, GL_RGBA, GL_UNSIGNED_BYTE, read.data());
        EXPECT_EQ(glGetError(), static_cast<GLenum>(GL_NO_ERROR));
        return read;
    }

  private:
    int width_, height_;
    GLuint frame_ = 0, colors_ = 0;
};

}  // namespace keyhole::testing
