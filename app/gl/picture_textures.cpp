#include "app/gl/picture_textures.h"

#include "engine/base/index.h"

#include <stb_image.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

namespace keyhole {

namespace {

constexpr int kMostSide = 8192, kMostPixels = 40'000'000;

struct Pixels {
    int width = 0, height = 0;
    std::vector<std::uint8_t> rgb;
};

/// Returns the pixels of a PNG file, each the mean of `by` x `by` of the file's; none if it cannot be shown.
Pixels read_pixels(const std::filesystem::path& file, int most_width) {
    const std::string name = file.string();
    int width = 0, height = 0, channels = 0;
    if (stbi_info(name.c_str(), &width, &height, &channels) == 0 || width > kMostSide || height > kMostSide ||
        width * height > kMostPixels)
        return {};
    const std::unique_ptr<stbi_uc, void (*)(void*)> read(
        stbi_load(name.c_str(), &width, &height, &channels, 3), &stbi_image_free);
    if (read == nullptr) return {};
    const int by = std::max(1, (width + most_width - 1) / most_width);
    Pixels pixels{width / by, height / by, {}};
    if (pixels.width < 1 || pixels.height < 1) return {};
    pixels.rgb.reserve(to_index(pixels.width) * to_index(pixels.height) * 3);
    for (int y = 0; y < pixels.height; ++y)
        for (int x = 0; x < pixels.width; ++x)
            for (int c = 0; c < 3; ++c) {
                int sum = 0;
                for (int row = y * by; row < (y + 1) * by; ++row)
                    for (int column = x * by; column < (x + 1) * by; ++column)
                        sum += read.get()[(to_index(row) * to_index(width) + to_index(column)) * 3 +
                                          to_index(c)];
                pixels.rgb.push_back(static_cast<std::uint8_t>(sum / (by * by)));
            }
    return pixels;
}

GlTexture upload(const Pixels& pixels) {
    GLuint name = 0;
    glGenTextures(1, &name);
    GlTexture texture(name);
    glBindTexture(GL_TEXTURE_2D, name);
    glPixelStorei(GL_UNPACK_ALIGNMENT, 1);
    glTexImage2D(GL_TEXTURE_2D, 0, GL_RGB8, pixels.width, pixels.height, 0, GL_RGB, GL_UNSIGNED_BYTE,
                 pixels.rgb.data());
    glGenerateMipmap(GL_TEXTURE_2D);
    glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MIN_FILTER, GL_LINEAR_MIPMAP_LINEAR);
    glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_MAG_FILTER, GL_LINEAR);
    glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_S, GL_CLAMP_TO_EDGE);
    glTexParameteri(GL_TEXTURE_2D, GL_TEXTURE_WRAP_T, GL_CLAMP_TO_EDGE);
    glBindTexture(GL_TEXTURE_2D, 0);
    return texture;
}

}  // namespace

const PictureTexture* PictureTextures::get(const std::filesystem::path& file, int most_width) {
    std::error_code error;
    const auto written = std::filesystem::last_write_time(file, error);
    if (error) return nullptr;
    const std::pair key(file, most_width);
    auto found = pictures_.find(key);
    if (found == pictures_.end() || found->second.written != written) {
        if (loaded_ && !loads_all_) {
            waits_ = true;
            if (found != pictures_.end()) found->second.used = true;
            return nullptr;
        }
        loaded_ = true;
        const Pixels pixels = read_pixels(file, most_width);
        PictureTexture picture;
        if (pixels.width > 0) picture = {upload(pixels), pixels.width, pixels.height, {}};
        picture.written = written;
        found = pictures_.insert_or_assign(key, std::move(picture)).first;
    }
    found->second.used = true;
    return found->second.texture ? &found->second : nullptr;
}

bool PictureTextures::end_frame() {
    for (auto entry = pictures_.begin(); entry != pictures_.end();)
        entry = std::exchange(entry->second.used, false) ? std::next(entry) : pictures_.erase(entry);
    loaded_ = false;
    return std::exchange(waits_, false);
}

std::size_t PictureTextures::bytes() const {
    std::size_t sum = 0;
    for (const auto& [key, picture] : pictures_)
        sum += to_index(picture.width) * to_index(picture.height) * 4;  // with its smaller copies
    return sum;
}

}  // namespace keyhole
