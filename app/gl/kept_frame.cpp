#include "app/gl/kept_frame.h"

#include "app/gl/imgui_compat.h"

#include <cmath>
#include <vector>

namespace keyhole {

namespace {

/// Cuts the commands of a frame to rectangles while it exists: a command becomes one for each rectangle that
/// it touches.
class CutCommands {
  public:
    CutCommands(ImDrawData& frame, const std::vector<FrameRect>& rects) : frame_(frame) {
        for (int i = 0; i < frame.CmdListsCount; ++i) {
            ImDrawList& list = *frame.CmdLists[i];
            ImVector<ImDrawCmd>& whole = whole_.emplace_back();
            whole.swap(list.CmdBuffer);
            for (const ImDrawCmd& command : whole) add(list.CmdBuffer, command, rects);
        }
    }
    ~CutCommands() {
        for (int i = 0; i < frame_.CmdListsCount; ++i)
            frame_.CmdLists[i]->CmdBuffer.swap(whole_[static_cast<std::size_t>(i)]);
    }
    CutCommands(const CutCommands&) = delete;

  private:
    ImDrawData& frame_;
    std::vector<ImVector<ImDrawCmd>> whole_;

    void add(ImVector<ImDrawCmd>& to, const ImDrawCmd& command, const std::vector<FrameRect>& rects) const {
        if (command.UserCallback == ImDrawCallback_ResetRenderState) return to.push_back(command);
        const FrameRect room = room_of(command, frame_);
        const ImVec2 zero = frame_.DisplayPos, scale = frame_.FramebufferScale;
        for (const FrameRect& rect : rects) {
            const FrameRect part = intersection(room, rect);
            if (part.empty()) continue;
            ImDrawCmd cut = command;
            cut.ClipRect = {zero.x + static_cast<float>(part.left) / scale.x,
                            zero.y + static_cast<float>(part.top) / scale.y,
                            zero.x + static_cast<float>(part.right) / scale.x,
                            zero.y + static_cast<float>(part.bottom) / scale.y};
            to.push_back(cut);
        }
    }
};

void clear(const FrameRect& rect, int height, ImU32 color) {
    const ImVec4 c = ImGui::ColorConvertU32ToFloat4(color);
    glEnable(GL_SCISSOR_TEST);
    glScissor(rect.left, height - rect.bottom, rect.right - rect.left, rect.bottom - rect.top);
    glClearColor(c.x, c.y, c.z, 1);
    glClear(GL_COLOR_BUFFER_BIT);
}

}  // namespace

/// Makes the picture if its size is another one.
void KeptFrame::fit(const FrameRect& size) {
    if (frame_ && size_ == size) return;
    size_ = size;
    tiles_.forget();
    GLuint name = 0;
    glGenTextures(1, &name);
    picture_ = GlTexture(name);
    glBindTexture(GL_TEXTURE_2D, name);
    glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_NEAREST);
    glTexImage2D(GL_TEXTURE_2D, 0, GL_RGBA8, size.right, size.bottom, 0, GL_RGBA, GL_UNSIGNED_BYTE, nullptr);
    glBindTexture(GL_TEXTURE_2D, 0);
    glGenFramebuffers(1, &name);
    frame_ = GlFramebuffer(name);
    glBindFramebuffer(GL_FRAMEBUFFER, name);
    glFramebufferTexture2D(GL_FRAMEBUFFER, GL_COLOR_ATTACHMENT0, GL_TEXTURE_2D, picture_.name(), 0);
}

void KeptFrame::draw(ImDrawData& frame, ImU32 background, const FrameTiles::PictureOf& picture_of) {
    const FrameRect size = frame_of(frame);
    if (size.empty()) return;
    GLint window = 0;
    glGetIntegerv(GL_DRAW_FRAMEBUFFER_BINDING, &window);
    fit(size);
    // Whole pixels of a part are no whole units of a window whose scale is a fraction.
    const ImVec2 scale = frame.FramebufferScale;
    if (scale.x != std::round(scale.x) || scale.y != std::round(scale.y)) forget();
    const std::vector<FrameRect> rects = tiles_.changes(frame, background, picture_of);
    glBindFramebuffer(GL_FRAMEBUFFER, frame_.name());
    double drawn = 0;
    for (const FrameRect& rect : rects) {
        clear(rect, size.bottom, background);
        drawn += double(rect.right - rect.left) * (rect.bottom - rect.top);
    }
    drawn_share_ = drawn / (double(size.right) * size.bottom);
    if (rects.size() == 1 && rects.front() == size) {
        ImGui_ImplOpenGL3_RenderDrawData(&frame);
    } else if (!rects.empty()) {
        const CutCommands cut(frame, rects);
        ImGui_ImplOpenGL3_RenderDrawData(&frame);
    }
    glBindFramebuffer(GL_READ_FRAMEBUFFER, frame_.name());
    glBindFramebuffer(GL_DRAW_FRAMEBUFFER, static_cast<GLuint>(window));
    glDisable(GL_SCISSOR_TEST);
    glBlitFramebuffer(0, 0, size.right, size.bottom, 0, 0, size.right, size.bottom, GL_COLOR_BUFFER_BIT,
                      GL_NEAREST);
    glBindFramebuffer(GL_FRAMEBUFFER, static_cast<GLuint>(window));
}

}  // namespace keyhole
