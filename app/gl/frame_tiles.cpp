#include "app/gl/frame_tiles.h"

#include "app/gl/imgui_compat.h"
#include "engine/base/index.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>

namespace keyhole {

namespace {

// Each rectangle costs the vertices of the commands within it once more.
constexpr std::size_t kMostRects = 10;

std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

std::uint64_t mixed(std::uint64_t hash, float a, float b) {
    return mixed(hash,
                 std::uint64_t{std::bit_cast<std::uint32_t>(a)} << 32 | std::bit_cast<std::uint32_t>(b));
}

std::uint64_t mixed(std::uint64_t hash, const ImDrawVert& vertex) {
    hash = mixed(hash, vertex.pos.x, vertex.pos.y);
    return mixed(mixed(hash, vertex.uv.x, vertex.uv.y), vertex.col);
}

std::uint64_t hash_of(const ImVec4& rect) {
    return mixed(mixed(0, rect.x, rect.y), rect.z, rect.w);
}

FrameRect hull(const FrameRect& a, const FrameRect& b) {
    return {std::min(a.left, b.left), std::min(a.top, b.top), std::max(a.right, b.right),
            std::max(a.bottom, b.bottom)};
}

std::int64_t area(const FrameRect& rect) {
    return std::int64_t{rect.right - rect.left} * (rect.bottom - rect.top);
}

/// Joins two rectangles, and takes in all that the new one overlaps.
void join(std::vector<FrameRect>& rects, std::size_t a, std::size_t b) {
    FrameRect joined = hull(rects[a], rects[b]);
    rects.erase(rects.begin() + static_cast<std::ptrdiff_t>(std::max(a, b)));
    rects.erase(rects.begin() + static_cast<std::ptrdiff_t>(std::min(a, b)));
    for (;;) {
        const auto over = std::ranges::find_if(
            rects, [&](const FrameRect& rect) { return !intersection(joined, rect).empty(); });
        if (over == rects.end()) break;
        joined = hull(joined, *over);
        rects.erase(over);
    }
    rects.push_back(joined);
}

/// Joins rectangles until few are left: first those that add the least area.
void join_to_few(std::vector<FrameRect>& rects) {
    while (rects.size() > kMostRects) {
        std::size_t first = 0, second = 1;
        std::int64_t least = std::numeric_limits<std::int64_t>::max();
        for (std::size_t a = 0; a < rects.size(); ++a)
            for (std::size_t b = a + 1; b < rects.size(); ++b) {
                const std::int64_t more = area(hull(rects[a], rects[b])) - area(rects[a]) - area(rects[b]);
                if (more < least) least = more, first = a, second = b;
            }
        join(rects, first, second);
    }
}

}  // namespace

FrameRect intersection(const FrameRect& a, const FrameRect& b) {
    return {std::max(a.left, b.left), std::max(a.top, b.top), std::min(a.right, b.right),
            std::min(a.bottom, b.bottom)};
}

FrameRect frame_of(const ImDrawData& frame) {
    return {0, 0, static_cast<int>(frame.DisplaySize.x * frame.FramebufferScale.x),
            static_cast<int>(frame.DisplaySize.y * frame.FramebufferScale.y)};
}

FrameRect room_of(const ImDrawCmd& command, const ImDrawData& frame) {
    const FrameRect whole = frame_of(frame);
    const float left = (command.ClipRect.x - frame.DisplayPos.x) * frame.FramebufferScale.x,
                top = (command.ClipRect.y - frame.DisplayPos.y) * frame.FramebufferScale.y,
                right = (command.ClipRect.z - frame.DisplayPos.x) * frame.FramebufferScale.x,
                bottom = (command.ClipRect.w - frame.DisplayPos.y) * frame.FramebufferScale.y;
    if (right <= left || bottom <= top) return {};
    if (command.UserCallback != nullptr)
        return intersection(whole, {static_cast<int>(std::floor(left)), static_cast<int>(std::floor(top)),
                                    static_cast<int>(std::ceil(right)), static_cast<int>(std::ceil(bottom))});
    // The backend's numbers are whole in a system with y up.
    const int x = static_cast<int>(left), y = static_cast<int>(static_cast<float>(whole.bottom) - bottom);
    const int width = static_cast<int>(right - left), height = static_cast<int>(bottom - top);
    return intersection(whole, {x, whole.bottom - y - height, x + width, whole.bottom - y});
}

/// Adds a hash to each tile that the pixels touch.
void FrameTiles::add(const FrameRect& pixels, std::uint64_t hash) {
    if (pixels.empty()) return;
    const int left = pixels.left / kSide, right = (pixels.right - 1) / kSide,
              bottom = (pixels.bottom - 1) / kSide;
    for (int row = pixels.top / kSide; row <= bottom; ++row)
        for (std::uint64_t& tile :
             std::span(hashes_).subspan(to_index(row * n_columns_ + left), to_index(right - left + 1)))
            tile = mixed(tile, hash);
}

void FrameTiles::add_command(const ImDrawList& list, const ImDrawCmd& command, const ImDrawData& frame) {
    const FrameRect room = room_of(command, frame);
    if (room.empty()) return;
    std::uint64_t basis = hash_of(command.ClipRect);
    if (!imgui_compat::draws_fonts(command)) basis = mixed(basis, n_frames_);
    const ImVec2 zero = frame.DisplayPos, scale = frame.FramebufferScale;
    for (unsigned at = 0; at + 2 < command.ElemCount; at += 3) {
        std::uint64_t hash = basis;
        ImVec2 low{1e9f, 1e9f}, high{-1e9f, -1e9f};
        for (unsigned k = 0; k < 3; ++k) {
            const ImDrawVert& vertex = list.VtxBuffer[static_cast<int>(
                command.VtxOffset + list.IdxBuffer[static_cast<int>(command.IdxOffset + at + k)])];
            hash = mixed(hash, vertex);
            low = {std::min(low.x, vertex.pos.x), std::min(low.y, vertex.pos.y)};
            high = {std::max(high.x, vertex.pos.x), std::max(high.y, vertex.pos.y)};
        }
        const auto pixel = [](float at_window, float from, float by) {
            return static_cast<int>(std::clamp(std::floor((at_window - from) * by), -1.0f, 1e6f));
        };
        add(intersection(room, {pixel(low.x, zero.x, scale.x), pixel(low.y, zero.y, scale.y),
                                pixel(high.x, zero.x, scale.x) + 1, pixel(high.y, zero.y, scale.y) + 1}),
            hash);
    }
}

/// Returns the changed tiles: runs of a row, joined with equal ones of the row above.
std::vector<FrameRect> FrameTiles::changed_runs() const {
    std::vector<FrameRect> runs;
    for (int row = 0; row < n_rows_; ++row)
        for (int column = 0; column < n_columns_; ++column) {
            const auto differs = [&](int c) {
                const std::size_t tile = to_index(row * n_columns_ + c);
                return c < n_columns_ && hashes_[tile] != before_[tile];
            };
            if (!differs(column)) continue;
            int end = column + 1;
            while (differs(end)) ++end;
            const FrameRect run =
                intersection(size_, {column * kSide, row * kSide, end * kSide, (row + 1) * kSide});
            const auto above = std::ranges::find_if(runs, [&](const FrameRect& r) {
                return r.left == run.left && r.right == run.right && r.bottom == run.top;
            });
            if (above != runs.end())
                above->bottom = run.bottom;
            else
                runs.push_back(run);
            column = end;
        }
    return runs;
}

std::vector<FrameRect> FrameTiles::changes(const ImDrawData& frame, ImU32 background,
                                           const PictureOf& picture_of) {
    const FrameRect size = frame_of(frame);
    before_.swap(hashes_);
    const bool anew = before_.empty() || size != size_ || imgui_compat::fonts_change(frame);
    size_ = size;
    n_columns_ = (size.right + kSide - 1) / kSide;
    n_rows_ = (size.bottom + kSide - 1) / kSide;
    ++n_frames_;
    hashes_.assign(to_index(n_columns_ * n_rows_), mixed(0, background));
    for (int i = 0; i < frame.CmdListsCount; ++i)
        for (const ImDrawCmd& command : frame.CmdLists[i]->CmdBuffer) {
            if (command.UserCallback == nullptr)
                add_command(*frame.CmdLists[i], command, frame);
            else if (command.UserCallback != ImDrawCallback_ResetRenderState)
                add(room_of(command, frame), mixed(hash_of(command.ClipRect), picture_of(command)));
        }
    if (anew) return {size};
    std::vector<FrameRect> rects = changed_runs();
    join_to_few(rects);
    return rects;
}

}  // namespace keyhole
