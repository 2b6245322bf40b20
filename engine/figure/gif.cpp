#include "engine/figure/gif.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <unordered_map>

namespace keyhole {

namespace {

constexpr int kColors = 256, kTransparent = kColors - 1, kLargestSide = 65'535;

using Code = std::uint32_t;  // r, g, b
Code code_of(Rgb8 c) {
    return (Code{c.r} << 16) | (Code{c.g} << 8) | Code{c.b};
}

int distance(Code a, Code b) {
    int sum = 0;
    for (const unsigned shift : {0u, 8u, 16u}) {
        const int d = static_cast<int>((a >> shift) & 0xff) - static_cast<int>((b >> shift) & 0xff);
        sum += d * d;
    }
    return sum;
}

/// The part of a picture that a frame draws.
struct Box {
    int left = 0, top = 0, width = 1, height = 1;
};

/// Colours of a frame, and the index that each colour of the picture takes.
struct Palette {
    std::vector<Code> colors;  ///< at most kTransparent
    std::unordered_map<Code, int> index;
    bool exact = true;
};

Palette palette_of(const std::unordered_map<Code, int>& counts) {
    std::vector<std::pair<int, Code>> by_count;
    for (const auto& [color, n] : counts) by_count.emplace_back(n, color);
    std::sort(by_count.begin(), by_count.end(), [](const auto& a, const auto& b) {
        return a.first != b.first ? a.first > b.first : a.second < b.second;
    });
    Palette palette;
    palette.exact = by_count.size() <= kTransparent;
    for (std::size_t i = 0; i < by_count.size(); ++i) {
        const Code color = by_count[i].second;
        if (i < kTransparent) {
            palette.index[color] = static_cast<int>(i);
            palette.colors.push_back(color);
            continue;
        }
        const auto nearest =
            std::min_element(palette.colors.begin(), palette.colors.end(),
                             [&](Code a, Code b) { return distance(a, color) < distance(b, color); });
        palette.index[color] = static_cast<int>(nearest - palette.colors.begin());
    }
    return palette;
}

int append_bytes(GifFileType* file, const GifByteType* data, int size) {
    auto* out = static_cast<std::vector<std::byte>*>(file->UserData);
    const auto* first = reinterpret_cast<const std::byte*>(data);
    out->insert(out->end(), first, first + size);
    return size;
}

}  // namespace

struct GifWriter::Impl {
    int width, height;
    std::unordered_map<Code, Code> of_map;  // unused entries of the map -> the entry below
    std::vector<std::byte> bytes;
    GifFileType* file = nullptr;
    std::vector<std::uint8_t> before;  // rgb of the last frame
    bool approximated = false;

    Impl(int w, int h, std::optional<Colormap> map, const std::string& comment) : width(w), height(h) {
        if (w < 1 || h < 1 || w > kLargestSide || h > kLargestSide)
            fail(ErrorCode::wrong_use, "a GIF of {} x {} pixels: sides are 1 to {}", w, h, kLargestSide);
        if (map) {
            const auto& table = colormap_table(*map);
            for (std::size_t i = 0; i + 1 < table.size(); i += 2)
                of_map.emplace(code_of(table[i + 1]), code_of(table[i]));
            for (std::size_t i = 0; i < table.size(); i += 2) of_map.erase(code_of(table[i]));
        }
        int error = 0;
        file = EGifOpen(&bytes, append_bytes, &error);
        if (file == nullptr) fail_with(error);
        EGifSetGifVersion(file, true);
        need(EGifPutScreenDesc(file, width, height, 8, 0, nullptr));
        need(EGifPutExtensionLeader(file, APPLICATION_EXT_FUNC_CODE));
        need(EGifPutExtensionBlock(file, 11, "NETSCAPE2.0"));
        constexpr std::array<GifByteType, 3> kForEver = {1, 0, 0};
        need(EGifPutExtensionBlock(file, 3, kForEver.data()));
        need(EGifPutExtensionTrailer(file));
        if (!comment.empty()) need(EGifPutComment(file, comment.c_str()));
    }
    ~Impl() {
        int ignored = 0;
        if (file != nullptr) EGifCloseFile(file, &ignored);
    }
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;

    [[noreturn]] void fail_with(int error) const {
        const char* why = GifErrorString(error);
        fail(ErrorCode::no_memory, "cannot encode a GIF of {} x {} pixels: {}", width, height,
             why != nullptr ? why : "not enough memory");
    }
    void need(int result) const {
        if (result != GIF_OK) fail_with(file->Error);
    }

    bool changed(const Image& image, int x, int y) const {
        const std::size_t i = (to_index(y) * to_index(width) + to_index(x)) * 3;
        return before.empty() || !std::equal(before.begin() + static_cast<std::ptrdiff_t>(i),
                                             before.begin() + static_cast<std::ptrdiff_t>(i) + 3,
                                             image.rgb().begin() + static_cast<std::ptrdiff_t>(i));
    }
    /// Returns the part that changed; one pixel when nothing did, since a frame cannot be empty.
    Box changed_box(const Image& image) const {
        int left = width, top = height, right = -1, bottom = -1;
        for (int y = 0; y < height; ++y)
            for (int x = 0; x < width; ++x)
                if (changed(image, x, y)) {
                    left = std::min(left, x);
                    right = std::max(right, x);
                    top = std::min(top, y);
                    bottom = y;
                }
        return right < 0 ? Box{} : Box{left, top, right - left + 1, bottom - top + 1};
    }
    Code shown(const Image& image, int x, int y) const {
        const Code color = code_of(image.at(x, y));
        const auto it = of_map.find(color);
        return it == of_map.end() ? color : it->second;
    }

    void add(const Image& image, int delay_ms) {
        KH_ASSERT(image.width() == width && image.height() == height);
        const Box box = changed_box(image);
        std::unordered_map<Code, int> counts;
        for (int y = box.top; y < box.top + box.height; ++y)
            for (int x = box.left; x < box.left + box.width; ++x)
                if (changed(image, x, y)) ++counts[shown(image, x, y)];
        const Palette palette = palette_of(counts);
        approximated = approximated || !palette.exact;

        GraphicsControlBlock control{};
        control.DisposalMode = DISPOSE_DO_NOT;
        control.DelayTime = delay_ms / 10;
        control.TransparentColor = kTransparent;
        std::array<GifByteType, 4> extension{};
        EGifGCBToExtension(&control, extension.data());
        need(EGifPutExtension(file, GRAPHICS_EXT_FUNC_CODE, 4, extension.data()));
        std::array<GifColorType, kColors> colors{};
        for (std::size_t i = 0; i < palette.colors.size(); ++i)
            colors[i] = {static_cast<GifByteType>(palette.colors[i] >> 16),
                         static_cast<GifByteType>(palette.colors[i] >> 8),
                         static_cast<GifByteType>(palette.colors[i])};
        const std::unique_ptr<ColorMapObject, decltype(&GifFreeMapObject)> table(
            GifMakeMapObject(kColors, colors.data()), &GifFreeMapObject);
        if (!table) fail_with(E_GIF_ERR_NOT_ENOUGH_MEM);
        need(EGifPutImageDesc(file, box.left, box.top, box.width, box.height, false, table.get()));
        std::vector<GifPixelType> line(to_index(box.width));
        for (int y = box.top; y < box.top + box.height; ++y) {
            for (int x = box.left; x < box.left + box.width; ++x)
                line[to_index(x - box.left)] = static_cast<GifPixelType>(
                    changed(image, x, y) ? palette.index.at(shown(image, x, y)) : kTransparent);
            need(EGifPutLine(file, line.data(), box.width));
        }
        before = image.rgb();
    }
};

GifWriter::GifWriter(int width, int height, std::optional<Colormap> map, const std::string& comment)
    : impl_(std::make_unique<Impl>(width, height, map, comment)) {}
GifWriter::~GifWriter() = default;

void GifWriter::add(const Image& image, int delay_ms) {
    impl_->add(image, delay_ms);
}

bool GifWriter::approximated() const {
    return impl_->approximated;
}

std::vector<std::byte> GifWriter::finish() {
    KH_ASSERT(!impl_->before.empty());
    int error = 0;
    GifFileType* file = std::exchange(impl_->file, nullptr);
    if (EGifCloseFile(file, &error) != GIF_OK) impl_->fail_with(error);
    return std::move(impl_->bytes);
}

}  // namespace keyhole
