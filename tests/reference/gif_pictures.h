/// Reads the frames of an animated GIF as a viewer shows them, with giflib. For tests, on the test's thread;
/// shares only giflib with the engine's GIF writer.
#pragma once

#include "engine/base/index.h"
#include "engine/figure/image.h"

#include <gif_lib.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

namespace keyhole::testing {

struct GifFrame {
    Image image;
    int delay_ms = 0;
};

inline std::vector<GifFrame> read_gif(const std::filesystem::path& path) {
    int error = 0;
    GifFileType* file = DGifOpenFileName(path.c_str(), &error);
    if (file == nullptr || DGifSlurp(file) != GIF_OK) {
        ADD_FAILURE() << path << ": " << GifErrorString(file == nullptr ? error : file->Error);
        return {};
    }
    std::vector<GifFrame> frames;
    Image canvas(file->SWidth, file->SHeight);
    for (int i = 0; i < file->ImageCount; ++i) {
        const SavedImage& saved = file->SavedImages[i];
        GraphicsControlBlock control{};
        EXPECT_EQ(DGifSavedExtensionToGCB(file, i, &control), GIF_OK);
        EXPECT_EQ(control.DisposalMode, DISPOSE_DO_NOT);
        const ColorMapObject& map =
            *(saved.ImageDesc.ColorMap != nullptr ? saved.ImageDesc.ColorMap : file->SColorMap);
        for (int y = 0; y < saved.ImageDesc.Height; ++y)
            for (int x = 0; x < saved.ImageDesc.Width; ++x) {
                const int index = saved.RasterBits[y * saved.ImageDesc.Width + x];
                if (index == control.TransparentColor) continue;
                const GifColorType& c = map.Colors[index];
                canvas.set(saved.ImageDesc.Left + x, saved.ImageDesc.Top + y, {c.Red, c.Green, c.Blue});
            }
        frames.push_back({canvas, control.DelayTime * 10});
    }
    DGifCloseFile(file, &error);
    return frames;
}

/// Returns the comment before the first frame; empty: there is none.
inline std::string gif_comment(const std::filesystem::path& path) {
    int error = 0;
    GifFileType* file = DGifOpenFileName(path.c_str(), &error);
    if (file == nullptr || DGifSlurp(file) != GIF_OK) return {};
    std::string comment;
    bool continues = false;
    const SavedImage& first = file->SavedImages[0];
    for (int i = 0; i < first.ExtensionBlockCount; ++i) {
        const ExtensionBlock& block = first.ExtensionBlocks[i];
        const bool is_comment = block.Function == COMMENT_EXT_FUNC_CODE ||
                                (block.Function == CONTINUE_EXT_FUNC_CODE && continues);
        if (is_comment) comment.append(reinterpret_cast<const char*>(block.Bytes), to_index(block.ByteCount));
        continues = is_comment;
    }
    DGifCloseFile(file, &error);
    return comment;
}

}  // namespace keyhole::testing
