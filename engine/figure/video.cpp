#include "engine/figure/video.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#if KH_HAVE_VIDEO

extern "C" {
#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>
}

#include <algorithm>
#include <array>
#include <cmath>

namespace keyhole {

namespace {

/// Returns an encoder of the system that runs in software; null if there is none.
const AVCodec* encoder_of(FilmFormat format) {
    const auto first = [](std::initializer_list<const char*> names) {
        for (const char* name : names)
            if (const AVCodec* codec = avcodec_find_encoder_by_name(name)) return codec;
        return static_cast<const AVCodec*>(nullptr);
    };
    return format == FilmFormat::webm ? first({"libvpx-vp9"}) : first({"libx264", "libopenh264", "mpeg4"});
}

struct Release {
    void operator()(AVCodecContext* it) const { avcodec_free_context(&it); }
    void operator()(AVFrame* it) const { av_frame_free(&it); }
    void operator()(AVPacket* it) const { av_packet_free(&it); }
    void operator()(AVFormatContext* it) const { avformat_free_context(it); }
};

void check_av(int status, const char* what) {
    if (status >= 0) return;
    std::array<char, AV_ERROR_MAX_STRING_SIZE> reason{};
    av_strerror(status, reason.data(), reason.size());
    fail(ErrorCode::no_memory, "cannot encode a video: {}: {}", what, reason.data());
}

struct Yuv {
    double y = 0, u = 0, v = 0;
};

/// BT.709, of 16 to 235 and 16 to 240.
Yuv yuv_of(Rgb8 color) {
    const double r = color.r / 255.0, g = color.g / 255.0, b = color.b / 255.0;
    const double y = 0.2126 * r + 0.7152 * g + 0.0722 * b;
    return {16 + 219 * y, 128 + 224 * (b - y) / 1.8556, 128 + 224 * (r - y) / 1.5748};
}

std::uint8_t byte_of(double value) {
    return static_cast<std::uint8_t>(std::lround(std::clamp(value, 0.0, 255.0)));
}

}  // namespace

bool has_video(FilmFormat format) {
    return format != FilmFormat::gif && encoder_of(format) != nullptr;
}

struct VideoWriter::Impl {
    std::unique_ptr<AVFormatContext, Release> file;
    std::unique_ptr<AVCodecContext, Release> codec;
    std::unique_ptr<AVFrame, Release> frame{av_frame_alloc()};
    std::unique_ptr<AVPacket, Release> packet{av_packet_alloc()};
    AVStream* stream = nullptr;
    std::int64_t n_frames = 0;

    ~Impl() {
        if (file == nullptr || file->pb == nullptr) return;
        std::uint8_t* unused = nullptr;
        avio_close_dyn_buf(file->pb, &unused);
        av_free(unused);
    }

    void open(FilmFormat format, int width, int height, const std::string& comment) {
        AVFormatContext* made = nullptr;
        check_av(avformat_alloc_output_context2(&made, nullptr, format == FilmFormat::webm ? "webm" : "mp4",
                                                nullptr),
                 "the container");
        file.reset(made);
        if (!comment.empty())
            check_av(av_dict_set(&file->metadata, "comment", comment.c_str(), 0), "its comment");
        const AVCodec* encoder = encoder_of(format);
        codec.reset(avcodec_alloc_context3(encoder));
        stream = avformat_new_stream(file.get(), nullptr);
        if (!codec || !stream || !frame || !packet) fail(ErrorCode::no_memory, "cannot encode a video");
        codec->width = width + width % 2;
        codec->height = height + height % 2;
        codec->time_base = {VideoWriter::kFrameMs, 1000};
        codec->framerate = {1000, VideoWriter::kFrameMs};
        // All colours of single cells in WebM; what every player and slide takes in MP4.
        codec->pix_fmt = format == FilmFormat::webm ? AV_PIX_FMT_YUV444P : AV_PIX_FMT_YUV420P;
        codec->color_range = AVCOL_RANGE_MPEG;
        codec->colorspace = AVCOL_SPC_BT709;
        codec->color_primaries = AVCOL_PRI_BT709;
        codec->color_trc = AVCOL_TRC_BT709;
        codec->bit_rate = 0;
        // Equal pictures make equal files.
        codec->flags |= AV_CODEC_FLAG_BITEXACT;
        codec->thread_count = 1;
        file->flags |= AVFMT_FLAG_BITEXACT;
        if ((file->oformat->flags & AVFMT_GLOBALHEADER) != 0) codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
        // An encoder ignores the options of the others.
        av_opt_set(codec->priv_data, "crf", "18", 0);
        av_opt_set(codec->priv_data, "deadline", "good", 0);
        av_opt_set(codec->priv_data, "cpu-used", "4", 0);
        if (std::string_view(encoder->name) == "mpeg4") {
            codec->flags |= AV_CODEC_FLAG_QSCALE;
            codec->global_quality = 2 * FF_QP2LAMBDA;
        }
        check_av(avcodec_open2(codec.get(), encoder, nullptr), encoder->name);
        check_av(avcodec_parameters_from_context(stream->codecpar, codec.get()), "the stream");
        stream->time_base = codec->time_base;
        stream->avg_frame_rate = codec->framerate;
        check_av(avio_open_dyn_buf(&file->pb), "memory");
        check_av(avformat_write_header(file.get(), nullptr), "the header");
        frame->format = codec->pix_fmt;
        frame->width = codec->width;
        frame->height = codec->height;
        check_av(av_frame_get_buffer(frame.get(), 0), "a frame");
    }

    /// Converts a picture. The last line and column stand for those that an odd side lacks.
    void put(const Image& image) {
        check_av(av_frame_make_writable(frame.get()), "a frame");
        const int block = codec->pix_fmt == AV_PIX_FMT_YUV444P ? 1 : 2;
        const auto at = [&](int x, int y) {
            return yuv_of(image.at(std::min(x, image.width() - 1), std::min(y, image.height() - 1)));
        };
        const auto plane = [&](int i, int x, int y) -> std::uint8_t& {
            return frame->data[i][y * frame->linesize[i] + x];
        };
        for (int y = 0; y < codec->height; y += block)
            for (int x = 0; x < codec->width; x += block) {
                Yuv sum;
                for (int dy = 0; dy < block; ++dy)
                    for (int dx = 0; dx < block; ++dx) {
                        const Yuv one = at(x + dx, y + dy);
                        plane(0, x + dx, y + dy) = byte_of(one.y);
                        sum.u += one.u;
                        sum.v += one.v;
                    }
                plane(1, x / block, y / block) = byte_of(sum.u / (block * block));
                plane(2, x / block, y / block) = byte_of(sum.v / (block * block));
            }
    }

    /// frame: null at the end.
    void encode(const AVFrame* one) {
        check_av(avcodec_send_frame(codec.get(), one), "a frame");
        while (true) {
            const int status = avcodec_receive_packet(codec.get(), packet.get());
            if (status == AVERROR(EAGAIN) || status == AVERROR_EOF) return;
            check_av(status, "a packet");
            packet->duration = 1;
            av_packet_rescale_ts(packet.get(), codec->time_base, stream->time_base);
            packet->stream_index = stream->index;
            check_av(av_interleaved_write_frame(file.get(), packet.get()), "the file");
        }
    }
};

VideoWriter::VideoWriter(FilmFormat format, int width, int height, const std::string& comment)
    : impl_(std::make_unique<Impl>()) {
    constexpr int kMostSide = 16'384;
    if (width > kMostSide || height > kMostSide)
        fail(ErrorCode::wrong_use, "a video has at most {0} x {0} pixels, not {1} x {2}", kMostSide, width,
             height);
    av_log_set_level(AV_LOG_ERROR);
    impl_->open(format, width, height, comment);
}

VideoWriter::~VideoWriter() = default;

void VideoWriter::add(const Image& image, int delay_ms) {
    impl_->put(image);
    for (int i = 0; i < std::max(delay_ms / kFrameMs, 1); ++i) {
        impl_->frame->pts = impl_->n_frames++;
        impl_->encode(impl_->frame.get());
    }
}

std::vector<std::byte> VideoWriter::finish() {
    impl_->encode(nullptr);
    check_av(av_write_trailer(impl_->file.get()), "the end of the file");
    std::uint8_t* bytes = nullptr;
    const int n = avio_close_dyn_buf(impl_->file->pb, &bytes);
    impl_->file->pb = nullptr;
    const auto* first = reinterpret_cast<const std::byte*>(bytes);
    std::vector<std::byte> out(first, first + std::max(n, 0));
    av_free(bytes);
    if (out.empty()) fail(ErrorCode::no_memory, "cannot encode a video: no memory");
    return out;
}

}  // namespace keyhole

#else

namespace keyhole {

bool has_video(FilmFormat) {
    return false;
}

struct VideoWriter::Impl {};

VideoWriter::VideoWriter(FilmFormat, int, int, const std::string&) {}
VideoWriter::~VideoWriter() = default;
void VideoWriter::add(const Image&, int) {}
std::vector<std::byte> VideoWriter::finish() {
    return {};
}

}  // namespace keyhole

#endif
