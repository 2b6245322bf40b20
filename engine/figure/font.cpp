#include "engine/figure/font.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"
#include "engine/base/utf8.h"

#include <fontconfig/fontconfig.h>
#include <stb_truetype.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

namespace keyhole {

namespace {

struct Face {
    FontFile file;
    std::vector<unsigned char> bytes;
    stbtt_fontinfo info{};
    bool has(char32_t c) const { return stbtt_FindGlyphIndex(&info, static_cast<int>(c)) != 0; }
};

bool read_font(const unsigned char* bytes, std::size_t n_bytes, int index, stbtt_fontinfo& info) {
    // stb_truetype reads the header of a font or a collection without a size check.
    constexpr std::size_t kHeader = 12;
    const int offset = n_bytes < kHeader ? -1 : stbtt_GetFontOffsetForIndex(bytes, index);
    return offset >= 0 && stbtt_InitFont(&info, bytes, offset) != 0;
}

std::unique_ptr<Face> load_face(const std::string& file, int index) {
    auto face = std::make_unique<Face>();
    face->file = {file, index};
    std::ifstream in(file, std::ios::binary);
    face->bytes.assign(std::istreambuf_iterator<char>(in), {});
    if (!read_font(face->bytes.data(), face->bytes.size(), index, face->info)) return nullptr;
    return face;
}

/// All fonts and glyphs used so far.
class Fonts {
  public:
    const Glyph& get(char32_t c, float size, FontWeight weight) {
        const std::lock_guard lock(mutex_);
        const auto key = std::tuple(c, size, weight);
        if (const auto it = glyphs_.find(key); it != glyphs_.end()) return it->second;
        return glyphs_.emplace(key, rasterise(*face_for(c, weight), c, size)).first->second;
    }

    FontFile file_of(char32_t c, FontWeight weight) {
        const std::lock_guard lock(mutex_);
        return face_for(c, weight)->file;
    }
    double em_of(const FontFile& font, double size) {
        const std::lock_guard lock(mutex_);
        const Face& face = *faces_.at({font.path, font.number});
        return size * static_cast<double>(stbtt_ScaleForPixelHeight(&face.info, 1)) /
               static_cast<double>(stbtt_ScaleForMappingEmToPixels(&face.info, 1));
    }

  private:
    /// Returns the font that fontconfig picks for a family and, when given, a character that it must have.
    Face* match(const char* family, FontWeight weight, std::optional<char32_t> c) {
        FcPattern* pattern = FcPatternCreate();
        FcPatternAddString(pattern, FC_FAMILY, reinterpret_cast<const FcChar8*>(family));
        FcPatternAddInteger(pattern, FC_WEIGHT,
                            weight == FontWeight::bold ? FC_WEIGHT_BOLD : FC_WEIGHT_REGULAR);
        FcPatternAddInteger(pattern, FC_SLANT, FC_SLANT_ROMAN);
        FcPatternAddBool(pattern, FC_SCALABLE, FcTrue);
        FcCharSet* set = FcCharSetCreate();
        if (c) {
            FcCharSetAddChar(set, *c);
            FcPatternAddCharSet(pattern, FC_CHARSET, set);
        }
        FcConfigSubstitute(nullptr, pattern, FcMatchPattern);
        FcDefaultSubstitute(pattern);
        FcResult result = FcResultNoMatch;
        FcPattern* found = FcFontMatch(nullptr, pattern, &result);
        std::string file;
        int index = 0;
        if (found) {
            FcChar8* name = nullptr;
            if (FcPatternGetString(found, FC_FILE, 0, &name) == FcResultMatch)
                file = reinterpret_cast<const char*>(name);
            FcPatternGetInteger(found, FC_INDEX, 0, &index);
            FcPatternDestroy(found);
        }
        FcCharSetDestroy(set);
        FcPatternDestroy(pattern);
        if (file.empty()) return nullptr;
        index &= 0xffff;  // the higher bits choose an instance of a variable font
        const auto key = std::pair(file, index);
        if (const auto it = faces_.find(key); it != faces_.end()) return it->second.get();
        return faces_.emplace(key, load_face(file, index)).first->second.get();
    }

    Face* face_for(char32_t c, FontWeight weight) {
        Face*& base = base_[weight == FontWeight::bold];
        if (!base) base = match("DejaVu Sans", weight, std::nullopt);
        if (!base)
            fail(ErrorCode::unsupported, "no font found for text in figures: install fonts-dejavu-core");
        if (base->has(c)) return base;
        const auto key = std::pair(c, weight);
        if (const auto it = fallback_.find(key); it != fallback_.end()) return it->second;
        Face* other = match("sans", weight, c);
        return fallback_[key] = other && other->has(c) ? other : base;
    }

    static Glyph rasterise(const Face& face, char32_t c, float size) {
        Glyph g;
        const float scale = stbtt_ScaleForPixelHeight(&face.info, size);
        int advance = 0, bearing = 0;
        stbtt_GetCodepointHMetrics(&face.info, static_cast<int>(c), &advance, &bearing);
        g.advance = static_cast<float>(advance) * scale;
        unsigned char* bitmap = stbtt_GetCodepointBitmap(&face.info, scale, scale, static_cast<int>(c),
                                                         &g.width, &g.height, &g.left, &g.top);
        if (bitmap) {
            g.coverage.assign(bitmap, bitmap + static_cast<std::ptrdiff_t>(g.width) * g.height);
            stbtt_FreeBitmap(bitmap, nullptr);
        } else {
            g.width = g.height = 0;
        }
        return g;
    }

    std::mutex mutex_;
    std::map<std::pair<std::string, int>, std::unique_ptr<Face>> faces_;
    std::map<std::pair<char32_t, FontWeight>, Face*> fallback_;
    std::map<std::tuple<char32_t, float, FontWeight>, Glyph> glyphs_;
    Face* base_[2] = {nullptr, nullptr};
};

}  // namespace

namespace {

Fonts& fonts() {
    static Fonts all;
    return all;
}

}  // namespace

const Glyph& glyph(char32_t character, float size, FontWeight weight) {
    return fonts().get(character, size, weight);
}

FontFile font_of(char32_t character, FontWeight weight) {
    return fonts().file_of(character, weight);
}

double em_of(const FontFile& font, double size) {
    return fonts().em_of(font, size);
}

bool is_readable_font(const std::string& file, int number) {
    try {
        const MappedFile mapped(file);
        stbtt_fontinfo info{};
        return read_font(reinterpret_cast<const unsigned char*>(mapped.bytes().data()), mapped.bytes().size(),
                         number, info);
    } catch (const Error&) {
        return false;
    }
}

void append_utf8(std::string& out, char32_t c) {
    const auto put = [&](char32_t bits) { out += static_cast<char>(static_cast<unsigned char>(bits)); };
    if (c < 0x80) {
        put(c);
    } else if (c < 0x800) {
        put(0xc0 | (c >> 6));
        put(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        put(0xe0 | (c >> 12));
        put(0x80 | ((c >> 6) & 0x3f));
        put(0x80 | (c & 0x3f));
    } else {
        put(0xf0 | (c >> 18));
        put(0x80 | ((c >> 12) & 0x3f));
        put(0x80 | ((c >> 6) & 0x3f));
        put(0x80 | (c & 0x3f));
    }
}

std::vector<char32_t> characters(std::string_view utf8) {
    std::vector<char32_t> out;
    while (!utf8.empty()) {
        const std::size_t n = utf8_length(utf8);
        out.push_back(n == 0 ? U'\ufffd' : utf8_decode(utf8.substr(0, n)));
        utf8.remove_prefix(std::max<std::size_t>(n, 1));
    }
    return out;
}

}  // namespace keyhole
