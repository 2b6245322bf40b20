#include "engine/base/index.h"
#include "engine/figure/film.h"
#include "engine/figure/gif.h"
#include "engine/figure/video.h"

#include "engine/base/error.h"
#include "engine/base/mapped_file.h"
#include "engine/export/animation.h"
#include "engine/export/exporter.h"
#include "engine/figure/figure_colors.h"

#include "tests/reference/gif_pictures.h"
#include "tests/reference/temp_folder.h"
#include "tests/unit/test_trace.h"

#include <stb/stb_image.h>

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <set>

namespace keyhole::test_gif {
namespace {

namespace fs = std::filesystem;
using testing::GifFrame;
using testing::read_gif;

/// Counts pixels that differ by more than `most` in some channel.
int n_apart(const Image& a, const Image& b, int most) {
    EXPECT_EQ(a.width(), b.width());
    EXPECT_EQ(a.height(), b.height());
    if (a.width() != b.width() || a.height() != b.height()) return -1;
    int n = 0;
    for (std::size_t i = 0; i < a.rgb().size(); i += 3) {
        int apart = 0;
        for (std::size_t c = 0; c < 3; ++c)
            apart = std::max(apart, std::abs(int{a.rgb()[i + c]} - int{b.rgb()[i + c]}));
        n += apart > most;
    }
    return n;
}

Image read_png(const fs::path& path) {
    int width = 0, height = 0, channels = 0;
    stbi_uc* data = stbi_load(path.c_str(), &width, &height, &channels, 3);
    EXPECT_NE(data, nullptr) << path;
    if (data == nullptr) return {};
    Image image(width, height);
    for (int y = 0; y < height; ++y)
        for (int x = 0; x < width; ++x) {
            const stbi_uc* p = data + (y * width + x) * 3;
            image.set(x, y, {p[0], p[1], p[2]});
        }
    stbi_image_free(data);
    return image;
}

class Gif : public ::testing::Test {
  protected:
    fs::path write(GifWriter& gif) {
        const fs::path path = folder_.path() / "film.gif";
        write_file(path, gif.finish());
        return path;
    }
    reference::TempFolder folder_{"gif"};
};

/// A comment of more than a block of 255 bytes.
TEST_F(Gif, KeepsItsComment) {
    const std::string comment = "Keyhole: " + std::string(600, 'x') + " end";
    GifWriter with(3, 2, std::nullopt, comment), without(3, 2);
    for (GifWriter* gif : {&with, &without}) gif->add(Image(3, 2, {1, 2, 3}), 70);
    EXPECT_EQ(testing::gif_comment(write(without)), "");
    const fs::path file = write(with);
    EXPECT_EQ(testing::gif_comment(file), comment);
    EXPECT_EQ(read_gif(file).size(), 1u);
}

TEST_F(Gif, KeepsEveryColourOfFramesThatChangeInPart) {
    GifWriter gif(37, 23);  // sides without common divisors
    std::vector<Image> pictures(4, Image(37, 23, {250, 240, 230}));
    pictures[1].fill(5, 7, 9, 3, {1, 2, 3});
    pictures[2] = pictures[1];                    // nothing changes
    pictures[3].fill(36, 22, 1, 1, {9, 9, 200});  // the block disappears, a corner pixel appears
    for (const Image& picture : pictures) gif.add(picture, 70);
    EXPECT_FALSE(gif.approximated());
    const std::vector<GifFrame> frames = read_gif(write(gif));
    ASSERT_EQ(frames.size(), 4u);
    for (std::size_t i = 0; i < 4; ++i) {
        EXPECT_EQ(frames[i].image.rgb(), pictures[i].rgb()) << i;
        EXPECT_EQ(frames[i].delay_ms, 70);
    }
}

TEST_F(Gif, HasRoomFor255ColoursAndTakesTheNearestBeyond) {
    const auto picture = [](int n) {
        Image image(20, 20);
        for (int i = 0; i < 400; ++i)
            image.set(i % 20, i / 20,
                      {static_cast<std::uint8_t>(std::min(i, n - 1)),
                       static_cast<std::uint8_t>(i < 256 ? 0 : 10), 0});
        return image;
    };
    GifWriter exact(20, 20), close(20, 20);
    exact.add(picture(254), 10);  // and one more with another green value
    EXPECT_FALSE(exact.approximated());
    EXPECT_EQ(read_gif(write(exact)).front().image.rgb(), picture(254).rgb());
    close.add(picture(256), 10);
    EXPECT_TRUE(close.approximated());
    const Image shown = read_gif(write(close)).front().image;
    EXPECT_EQ(n_apart(shown, picture(256), 0), 2);  // the two rarest, ...
    EXPECT_EQ(n_apart(shown, picture(256), 2), 0);  // ... by two steps
}

TEST_F(Gif, UsesEverySecondColourOfTheMap) {
    const auto& table = colormap_table(Colormap::viridis);
    Image image(256, 2);
    for (int x = 0; x < 256; ++x) image.set(x, 0, table[to_index(x)]);
    GifWriter gif(256, 2, Colormap::viridis);
    gif.add(image, 10);
    EXPECT_FALSE(gif.approximated());
    const Image shown = read_gif(write(gif)).front().image;
    std::set<std::array<int, 3>> used;
    for (int x = 0; x < 256; ++x) {
        const Rgb8 c = shown.at(x, 0);
        used.insert({c.r, c.g, c.b});
        // Some entries are equal to their neighbours.
        EXPECT_TRUE(c == table[to_index(x / 2 * 2)] || c == table[to_index(x)]) << x;
    }
    EXPECT_LE(used.size(), 128u);
    EXPECT_GT(used.size(), 120u);
    EXPECT_EQ(shown.at(9, 1), (Rgb8{255, 255, 255}));
}

TEST_F(Gif, RefusesSidesThatItHasNoNumbersFor) {
    EXPECT_THROW(GifWriter(70'000, 5), Error);
    EXPECT_THROW(GifWriter(0, 5), Error);
}

/// Exports the records of a made-up run, as decode exports what its records hold.
class Animations : public Gif {
  protected:
    void SetUp() override {
        testing_trace::Maker maker;
        maker.add_lane(0, 0);
        maker.add_lane(1, 4);
        StepList steps;
        for (int i = 0; i <= 9; ++i) steps.push_back(maker.next().step);
        history_.update(steps);
    }
    void write(const std::string& list, Background background = Background::light) {
        ExportOptions options;
        options.pictures.background = background;
        options.folder = folder_.path();
        options.layers = {1};
        options.heads = {2};
        parse_export_list(list, options);
        export_history(history_, options);
    }
    fs::path file(const std::string& name) const { return folder_.path() / "lane1" / name; }
    RunHistory history_;
};

/// A video where the build has an encoder, one clear line where it has none.
TEST_F(Animations, AreVideosWhereTheBuildHasAnEncoder) {
    for (const FilmFormat format : {FilmFormat::webm, FilmFormat::mp4}) {
        std::string list = fmt::format("svg,{}", film_name(format));
        EXPECT_EQ(take_film(list), format);
        EXPECT_EQ(list, "svg");
        if (!has_video(format)) {
            std::string words;
            try {
                check_film(format);
            } catch (const Error& error) {
                words = error.what();
            }
            EXPECT_NE(words.find("this build has no video encoder"), std::string::npos) << words;
            EXPECT_EQ(words.find('\n'), std::string::npos);
            continue;
        }
        FilmWriter film(format, 33, 21, std::nullopt, "Keyhole: keyhole x");
        for (const Rgb8 color : {Rgb8{255, 0, 0}, Rgb8{0, 0, 255}}) film.add(Image(33, 21, color), 100);
        const std::vector<std::byte> bytes = film.finish();
        const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        EXPECT_EQ(text.substr(format == FilmFormat::webm ? 0 : 4, 4),
                  format == FilmFormat::webm ? "\x1a\x45\xdf\xa3" : "ftyp");
        EXPECT_GT(text.size(), 500u);
        EXPECT_NE(text.find("Keyhole: keyhole x"), std::string::npos) << film_name(format);
    }
    std::string none = "png,svg";
    EXPECT_EQ(take_film(none), FilmFormat::gif);
}

/// Animations of the mask on both backgrounds.
class MaskAnimations : public Animations, public ::testing::WithParamInterface<Background> {};

TEST_P(MaskAnimations, AreTheirPngFrames) {
    write("frames,gif", GetParam());
    const std::vector<GifFrame> frames = read_gif(file("mask.gif"));
    ASSERT_EQ(frames.size(), 9u);
    for (int i = 0; i < 9; ++i)
        EXPECT_EQ(n_apart(frames[to_index(i)].image,
                          read_png(file(fmt::format("frames/row_{:06}.png", testing_trace::kPrompt + i))), 0),
                  0)
            << i;
    EXPECT_GT(frames.back().delay_ms, frames.front().delay_ms);
    EXPECT_NE(frames[0].image.rgb(), frames[1].image.rgb());
    EXPECT_EQ(frames[0].image.at(0, 0), figure_colors(GetParam()).paper);
}

INSTANTIATE_TEST_SUITE_P(Backgrounds, MaskAnimations, ::testing::Values(Background::light, Background::dark));

class HeadAnimations : public MaskAnimations {};

TEST_P(HeadAnimations, EndWithTheirPicture) {
    write("mask,heatmap,gif-attention,gif-mask,gif-scores", GetParam());
    const Rgb8 paper = figure_colors(GetParam()).paper;
    // Title and caption differ, so the test compares the middle of the pictures. The caption changes the
    // height.
    const auto middle = [](const Image& image) {
        Image part(image.width(), 190);
        for (int y = 0; y < 190; ++y)
            for (int x = 0; x < image.width(); ++x) part.set(x, y, image.at(x, y + 60));
        return part;
    };
    const std::vector<GifFrame> masks = read_gif(file("mask_L1_G1.gif"));
    ASSERT_EQ(masks.size(), 9u);
    EXPECT_EQ(n_apart(middle(masks.back().image), middle(read_png(file("mask_L1_G1.png"))), 0), 0);
    const std::vector<GifFrame> heat = read_gif(file("heatmap_L1_H2.gif"));
    ASSERT_EQ(heat.size(), 9u);
    // Adjacent viridis entries differ by at most 6 in any channel.
    EXPECT_EQ(n_apart(middle(heat.back().image), middle(read_png(file("heatmap_L1_H2.png"))), 6), 0);
    EXPECT_GT(n_apart(middle(heat.front().image), middle(heat.back().image), 6), 1000);
    const std::vector<GifFrame> scores = read_gif(file("scores_L1_G1.gif"));
    ASSERT_EQ(scores.size(), 9u);
    for (const GifFrame& first : {masks.front(), heat.front(), scores.front()})
        EXPECT_EQ(first.image.at(first.image.width() - 1, first.image.height() - 1), paper);
    EXPECT_FALSE(fs::exists(file("scores.npy")));
    EXPECT_FALSE(fs::exists(file("attention.npy")));
}

INSTANTIATE_TEST_SUITE_P(Backgrounds, HeadAnimations, ::testing::Values(Background::light, Background::dark));

}  // namespace
}  // namespace keyhole::test_gif
