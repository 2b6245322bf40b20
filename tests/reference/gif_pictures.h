/// Reads the frames of an animated GIF as a viewer shows them, with giflib. For tests, on the test's thread;
/// shares only giflib with the engine's GIF writer.
#pragma once

#include "engine/figure/image.h"

#include <gif_lib.h>
#include <gtest/gtest.h>

#include <filesystem>
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

}  // namespace keyhole::testing
