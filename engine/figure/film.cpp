#include "engine/figure/film.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/figure/gif.h"
#include "engine/figure/video.h"

#include <array>

namespace keyhole {

std::string_view film_name(FilmFormat format) {
    static constexpr std::array<std::string_view, 3> kNames = {"gif", "webm", "mp4"};
    return kNames[to_index(format)];
}

void check_film(FilmFormat format) {
    if (format == FilmFormat::gif || has_video(format)) return;
    fail(ErrorCode::unsupported,
         "this build has no video encoder for {}; take --format gif, or build with libavcodec-dev and "
         "libavformat-dev installed",
         film_name(format));
}

struct FilmWriter::Impl {
    std::optional<GifWriter> gif;
    std::optional<VideoWriter> video;
};

FilmWriter::FilmWriter(FilmFormat format, int width, int height, std::optional<Colormap> map,
                       const std::string& made_by)
    : impl_(std::make_unique<Impl>()) {
    check_film(format);
    if (format == FilmFormat::gif)
        impl_->gif.emplace(width, height, map, made_by);
    else
        impl_->video.emplace(format, width, height, made_by);
}

FilmWriter::~FilmWriter() = default;

void FilmWriter::add(const Image& image, int delay_ms) {
    impl_->gif ? impl_->gif->add(image, delay_ms) : impl_->video->add(image, delay_ms);
}

std::vector<std::byte> FilmWriter::finish() {
    return impl_->gif ? impl_->gif->finish() : impl_->video->finish();
}

}  // namespace keyhole
