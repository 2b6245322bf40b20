// README's pictures equal the window's, within a tolerance: the same scripts run again.
// KEYHOLE_RENEW_PICTURES=1 takes new pictures (inspect them then). They show the demo model whose digest is
// beside them; with another model the comparison is skipped. Needs a display.
#include "app/models/catalog.h"
#include "engine/base/fnv.h"
#include "engine/base/index.h"
#include "engine/figure/image.h"
#include "tests/reference/source_folder.h"
#include "tests/window/window_run.h"

#include <gtest/gtest.h>
#include <stb/stb_image.h>

#include <array>
#include <cmath>
#include <vector>

namespace keyhole::test_pictures {
namespace {

constexpr int kBlock = 16;  // text may move by a pixel, and speeds change

struct Picture {
    int width = 0, height = 0;
    std::vector<unsigned char> rgb;
    /// Returns the mean of channel c over a block of pixels.
    double mean(int x, int y, int c) const {
        double sum = 0;
        int n = 0;
        for (int v = y; v < std::min(y + kBlock, height); ++v)
            for (int u = x; u < std::min(x + kBlock, width); ++u, ++n)
                sum += rgb[to_index((v * width + u) * 3 + c)];
        return sum / n;
    }
};

Picture read_picture(const std::string& path) {
    Picture picture;
    int channels = 0;
    if (stbi_uc* data = stbi_load(path.c_str(), &picture.width, &picture.height, &channels, 3)) {
        picture.rgb.assign(data, data + std::size_t{3} * to_index(picture.width * picture.height));
        stbi_image_free(data);
    }
    return picture;
}

/// Returns the share of blocks that differ by more than a twelfth of the range in some channel; 1 when sizes
/// differ.
double difference(const Picture& a, const Picture& b) {
    if (a.rgb.empty() || a.width != b.width || a.height != b.height) return 1;
    int n = 0, n_other = 0;
    for (int y = 0; y < a.height; y += kBlock)
        for (int x = 0; x < a.width; x += kBlock, ++n) {
            double most = 0;
            for (int c = 0; c < 3; ++c) most = std::max(most, std::abs(a.mean(x, y, c) - b.mean(x, y, c)));
            n_other += most > 21 ? 1 : 0;
        }
    return double(n_other) / n;
}

/// Returns the FNV-1a hash of the weights.
std::string digest(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    std::uint64_t hash = kFnvBasis;
    std::array<char, 65536> part{};
    while (file.read(part.data(), part.size()) || file.gcount() > 0)
        hash = fnv1a({part.data(), to_index(file.gcount())}, hash);
    return std::to_string(hash);
}

class Pictures : public testing::WindowRun {
  protected:
    Pictures() { needs_pixels_ = true; }

    const std::vector<CatalogModel> own_catalog_ = own_catalog();

    /// A part of the picture that is not dark.
    struct Part {
        int left = 400, top = 350, right = 800, bottom = 750;
    };

    /// arguments: of the model and its prompt; empty: the demo's.
    void compare(const std::string& name, const std::string& script, std::string arguments = "",
                 Part part = {400, 350, 800, 750}) {
        if (arguments.empty())
            arguments = "--model '" + testing::kModel + "' --prompt-file '" +
                        reference::source_folder().string() + "/assets/prompts/garden-gate.txt'";
        const std::string assets = reference::source_folder().string() + "/assets/",
                          kept = assets + name + ".png";
        const bool renews = std::getenv("KEYHOLE_RENEW_PICTURES") != nullptr;
        const std::string model = digest(testing::kModel + "/model.safetensors"),
                          shot = renews ? kept : path("shot.png");
        std::string of;
        std::ifstream(assets + "pictures.txt") >> of;
        if (!renews && of != model)
            GTEST_SKIP() << "the pictures are of another model: KEYHOLE_RENEW_PICTURES=1 takes them anew";
        std::ofstream(path("script.txt")) << "wait idle\n"
                                          << script << "wait idle\nscreenshot " << shot << "\nquit\n";
        ASSERT_EQ(run("gui " + arguments + " --size 1600x1000 --script '" + path("script.txt") + "'"), 0)
            << output_;
        if (renews) std::ofstream(assets + "pictures.txt") << model << "\n";
        const Picture here = read_picture(shot), there = read_picture(kept);
        EXPECT_LT(difference(here, there), 0.03) << kept;
        // The comparison detects a missing pane.
        Picture other = there;
        for (int y = part.top; y < part.bottom && y < other.height; ++y)
            for (int x = part.left; x < part.right && x < other.width; ++x)
                for (int c = 0; c < 3; ++c) other.rgb[to_index((y * other.width + x) * 3 + c)] = 30;
        EXPECT_GT(difference(there, other), 0.03);
    }
};

TEST_F(Pictures, Explore) {
    compare("screenshot", "view.story\nstrips budget\n");  // the first picture
}

TEST_F(Pictures, Compare) {
    compare(
        "compare",
        "step 60\nwait steps 60\nwait idle\nview.compare\nlane.focus 1\ncompare.with 2\nmode.mask\ngoto 3 5\n"
        "view.zoom 3 400 330\npick 420 372\n");
}

TEST_F(Pictures, ALesson) {
    compare("lesson", "lesson.step 2\nwait idle\nlesson.predict 3\nlesson.next\n", "--lesson 9",
            {1200, 100, 1590, 700});
}

/// With the real model, where it is here. It opens with seven lanes and their answers.
TEST_F(Pictures, TheRealModel) {
    const CatalogModel* const model = find_in_catalog(own_catalog_, "smollm2-135m");
    ASSERT_NE(model, nullptr);
    if (!path_if_here(*model)) GTEST_SKIP() << "there is no " << weights_of(*model).string();
    compare("smollm2", "view.story\nwait idle\nwait seconds 3\n", "--model smollm2-135m");
}

// --- seven sizes -------------------------------------------------------------------------------------------

/// Returns the picture with one pixel, the mean, for each block of kThumbBlock x kThumbBlock.
constexpr int kThumbBlock = 8;
Picture thumbnail(const Picture& picture) {
    Picture thumb{(picture.width + kThumbBlock - 1) / kThumbBlock,
                  (picture.height + kThumbBlock - 1) / kThumbBlock,
                  {}};
    for (int y = 0; y < thumb.height; ++y)
        for (int x = 0; x < thumb.width; ++x)
            for (int c = 0; c < 3; ++c) {
                double sum = 0;
                int n = 0;
                for (int v = y * kThumbBlock; v < std::min((y + 1) * kThumbBlock, picture.height); ++v)
                    for (int u = x * kThumbBlock; u < std::min((x + 1) * kThumbBlock, picture.width);
                         ++u, ++n)
                        sum += picture.rgb[to_index((v * picture.width + u) * 3 + c)];
                thumb.rgb.push_back(static_cast<unsigned char>(std::lround(sum / n)));
            }
    return thumb;
}

/// Returns the share of pixels that differ by more than an eighth of the range in some channel; 1 when sizes
/// differ. A block of eight pixels holds a letter or two, which may move by a pixel.
double thumb_difference(const Picture& a, const Picture& b) {
    if (a.rgb.empty() || a.width != b.width || a.height != b.height) return 1;
    int n_other = 0;
    for (std::size_t i = 0; i < a.rgb.size(); i += 3) {
        int most = 0;
        for (std::size_t c = 0; c < 3; ++c) most = std::max(most, std::abs(a.rgb[i + c] - b.rgb[i + c]));
        n_other += most > 32 ? 1 : 0;
    }
    return double(n_other) / (double(a.rgb.size()) / 3);
}

struct Shot {
    const char* name;
    const char* size;
    const char* script;
};

class EverySize : public Pictures, public ::testing::WithParamInterface<Shot> {};

INSTANTIATE_TEST_SUITE_P(
    Sizes, EverySize,
    ::testing::Values(
        Shot{"explore-1024x640", "1024x640", ""},
        Shot{"compare-1280x800-light", "1280x800", "step 12\nwait idle\nui.theme light\nview.compare\n"},
        Shot{"explore-1600x1000-200", "1600x1000", "ui.scale 200\nmode.mask\nstep 12\n"},
        Shot{"story-1024x640", "1024x640", "view.story\n"},
        Shot{"story-1600x1000-200", "1600x1000", "ui.scale 200\nview.story\n"},
        Shot{"teach-1920x1080-light", "1920x1080", "ui.theme light\nview.teach\n"},
        Shot{"explore-2560x1440-six-lanes", "2560x1440", "add\nadd\nadd\nstep 12\nwait idle\ndiff on\n"}),
    [](const auto& shot) {
        std::string name = shot.param.name;
        for (char& c : name) c = c == '-' ? '_' : c;
        return name;
    });

TEST_P(EverySize, LooksAsItDid) {
    const Shot& shot = GetParam();
    const std::string kept =
        reference::source_folder().string() + "/tests/window/pictures/" + shot.name + ".png";
    std::string of;
    std::ifstream(reference::source_folder().string() + "/assets/pictures.txt") >> of;
    const bool renews = std::getenv("KEYHOLE_RENEW_PICTURES") != nullptr;
    if (!renews && of != digest(testing::kModel + "/model.safetensors"))
        GTEST_SKIP() << "the pictures are of another model: KEYHOLE_RENEW_PICTURES=1 takes them anew";
    std::ofstream(path("script.txt"))
        << "wait idle\n"
        << shot.script << "wait idle\nscreenshot " << path("shot.png") << "\nquit\n";
    ASSERT_EQ(run("gui --model '" + testing::kModel + "' --prompt-file '" +
                  reference::source_folder().string() + "/assets/prompts/garden-gate.txt' --size " +
                  shot.size + " --script '" + path("script.txt") + "'"),
              0)
        << output_;
    const Picture here = thumbnail(read_picture(path("shot.png")));
    if (renews) {
        Image image(here.width, here.height);
        for (int y = 0; y < here.height; ++y)
            for (int x = 0; x < here.width; ++x) {
                const unsigned char* c = here.rgb.data() + to_index((y * here.width + x) * 3);
                image.set(x, y, {c[0], c[1], c[2]});
            }
        write_png(image, kept);
    }
    const Picture there = read_picture(kept);
    EXPECT_LT(thumb_difference(here, there), 0.02) << kept;
    Picture other = there;  // a lost pane is seen
    for (int y = there.height / 2; y < there.height * 3 / 4; ++y)
        for (int x = there.width / 3; x < there.width * 2 / 3; ++x)
            for (int c = 0; c < 3; ++c) other.rgb[to_index((y * other.width + x) * 3 + c)] = c == 1 ? 0 : 255;
    EXPECT_GT(thumb_difference(there, other), 0.02);
}

}  // namespace
}  // namespace keyhole::test_pictures
