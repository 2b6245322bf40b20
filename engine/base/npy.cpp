#include "engine/base/npy.h"

#include "engine/base/error.h"
#include "engine/base/half.h"
#include "engine/base/index.h"
#include "engine/base/mapped_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <optional>

namespace keyhole {

static_assert(std::endian::native == std::endian::little, "npy data is written as it lies in memory");

namespace {

constexpr std::size_t kHeaderBytes =
    192;  // a multiple of 64 with room for any shape, so that shrink() can rewrite the header in place
constexpr std::array<std::string_view, 4> kDescr = {"<f4", "<f2", "<i4", "|u1"};

std::string_view descr(NpyType type) {
    return kDescr[to_index(type)];
}

/// Returns the text after a key of the header's dictionary.
std::optional<std::string_view> field(std::string_view header, std::string_view key) {
    const auto at = header.find(key);
    if (at == std::string_view::npos) return std::nullopt;
    std::string_view rest = header.substr(at + key.size());
    const auto begin = rest.find_first_not_of(": ");
    if (begin == std::string_view::npos) return std::nullopt;
    return rest.substr(begin);
}

std::optional<NpyShape> parse_shape(std::string_view text) {
    if (text.empty() || text[0] != '(') return std::nullopt;
    const auto end = text.find(')');
    if (end == std::string_view::npos) return std::nullopt;
    text = text.substr(1, end - 1);
    NpyShape shape;
    while (!text.empty()) {
        const auto skip = text.find_first_not_of(", ");
        if (skip == std::string_view::npos) break;
        text.remove_prefix(skip);
        std::int64_t extent = 0;
        const auto result = std::from_chars(text.data(), text.data() + text.size(), extent);
        if (result.ec != std::errc{} || extent < 0) return std::nullopt;
        text.remove_prefix(to_index(result.ptr - text.data()));
        shape.push_back(extent);
    }
    return shape;
}

/// Returns the size of the data in bytes, or nullopt when it overflows.
std::optional<std::size_t> data_bytes(NpyType type, const NpyShape& shape) {
    std::size_t bytes = npy_type_bytes(type);
    for (std::int64_t extent : shape)
        if (__builtin_mul_overflow(bytes, to_index(extent), &bytes)) return std::nullopt;
    return bytes;
}

}  // namespace

std::size_t npy_type_bytes(NpyType type) {
    constexpr std::array<std::size_t, 4> kBytes = {4, 2, 4, 1};
    return kBytes[to_index(type)];
}

std::int64_t npy_size(const NpyShape& shape) {
    std::int64_t n = 1;
    for (std::int64_t extent : shape) n *= extent;
    return n;
}

std::string npy_header(std::string_view type, const NpyShape& shape) {
    std::string extents;
    for (std::int64_t extent : shape) extents += fmt::format("{}, ", extent);
    if (shape.size() > 1) extents.resize(extents.size() - 2);
    if (shape.size() == 1) extents.pop_back();  // (5,)
    const std::string quoted = type.starts_with('[') ? std::string(type) : fmt::format("'{}'", type);
    std::string text =
        fmt::format("{{'descr': {}, 'fortran_order': False, 'shape': ({}), }}", quoted, extents);
    KH_ASSERT(text.size() < kHeaderBytes - 10, "{}", text);
    text.append(kHeaderBytes - 10 - 1 - text.size(), ' ');
    text += '\n';
    std::string header("\x93NUMPY\x01\x00", 8);
    header += static_cast<char>(static_cast<unsigned char>(text.size() & 0xff));
    header += static_cast<char>(static_cast<unsigned char>(text.size() >> 8));
    return header + text;
}

std::string npy_header(NpyType type, const NpyShape& shape) {
    return npy_header(descr(type), shape);
}

NpyWriter::NpyWriter(std::filesystem::path path, NpyType type, NpyShape shape)
    : path_(std::move(path)), type_(type), shape_(std::move(shape)) {
    const auto bytes = data_bytes(type_, shape_);
    KH_ASSERT(bytes);
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file_ < 0) fail_io("create");
    if (::ftruncate(file_, static_cast<off_t>(kHeaderBytes + *bytes)) != 0) {
        ::close(file_);
        file_ = -1;
        fail_io("reserve");
    }
    write_header();
}

NpyWriter::~NpyWriter() {
    if (file_ >= 0) ::close(file_);
}

void NpyWriter::fail_io(const char* what) const {
    fail(ErrorCode::io, "cannot {} {}: {}; check that the folder is writable and not full", what,
         path_.string(), std::strerror(errno));
}

void NpyWriter::write_bytes(std::int64_t first, const void* data, std::size_t n_bytes) {
    const auto* from = static_cast<const char*>(data);
    auto at = static_cast<off_t>(kHeaderBytes + to_index(first) * npy_type_bytes(type_));
    while (n_bytes > 0) {
        const ssize_t n = ::pwrite(file_, from, n_bytes, at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) fail_io("write");
        from += n;
        at += n;
        n_bytes -= to_index(n);
    }
}

void NpyWriter::write_header() {
    const std::string header = npy_header(descr(type_), shape_);
    if (::pwrite(file_, header.data(), header.size(), 0) != static_cast<ssize_t>(header.size()))
        fail_io("write");
}

void NpyWriter::write(std::int64_t first, std::span<const float> values) {
    KH_ASSERT(first >= 0 && first + static_cast<std::int64_t>(values.size()) <= npy_size(shape_));
    if (type_ == NpyType::f32) {
        write_bytes(first, values.data(), values.size_bytes());
        return;
    }
    if (type_ == NpyType::u8) {
        std::vector<std::uint8_t> bytes(values.size());
        std::transform(values.begin(), values.end(), bytes.begin(),
                       [](float value) { return static_cast<std::uint8_t>(value); });
        write_bytes(first, bytes.data(), bytes.size());
        return;
    }
    KH_ASSERT(type_ == NpyType::f16);
    std::vector<std::uint16_t> half(values.size());
    fp16_from_floats(values, half);
    write_bytes(first, half.data(), half.size() * sizeof(half[0]));
}

void NpyWriter::write(std::int64_t first, std::span<const std::int32_t> values) {
    KH_ASSERT(type_ == NpyType::i32 && first >= 0 &&
              first + static_cast<std::int64_t>(values.size()) <= npy_size(shape_));
    write_bytes(first, values.data(), values.size_bytes());
}

void NpyWriter::shrink(const NpyShape& smaller) {
    KH_ASSERT(smaller.size() == shape_.size());
    if (smaller == shape_) return;
    for (std::size_t d = 0; d < shape_.size(); ++d) KH_ASSERT(smaller[d] <= shape_[d]);
    // Lines move towards the front in ascending order, so none is overwritten before it is read.
    const std::size_t element = npy_type_bytes(type_);
    const std::int64_t new_line = smaller.back(), old_line = shape_.back();
    std::vector<char> line(to_index(new_line) * element);
    const NpyShape old_shape = std::exchange(shape_, smaller);
    const std::int64_t n_lines = new_line == 0 ? 0 : npy_size(smaller) / new_line;
    for (std::int64_t i = 0; i < n_lines; ++i) {
        std::int64_t rest = i, from = 0, stride = 1;
        for (std::size_t d = smaller.size() - 1; d-- > 0;) {
            from += rest % smaller[d] * stride;
            rest /= smaller[d];
            stride *= old_shape[d];
        }
        if (from == i && new_line == old_line) continue;
        const auto at = static_cast<off_t>(kHeaderBytes + to_index(from * old_line) * element);
        if (::pread(file_, line.data(), line.size(), at) != static_cast<ssize_t>(line.size()))
            fail_io("read back");
        write_bytes(i * new_line, line.data(), line.size());
    }
    write_header();
    if (::ftruncate(file_, static_cast<off_t>(kHeaderBytes + to_index(npy_size(shape_)) * element)) != 0)
        fail_io("cut");
}

void NpyWriter::close() {
    if (file_ < 0) return;
    const int file = std::exchange(file_, -1);
    if (::close(file) != 0) fail_io("close");
}

float NpyArray::value(std::int64_t index) const {
    const auto i = to_index(index) * npy_type_bytes(type);
    KH_ASSERT(i < data.size());
    switch (type) {
        case NpyType::f16: {
            std::uint16_t bits = 0;
            std::memcpy(&bits, data.data() + i, sizeof bits);
            return float_from_fp16(bits);
        }
        case NpyType::i32: {
            std::int32_t whole = 0;
            std::memcpy(&whole, data.data() + i, sizeof whole);
            return static_cast<float>(whole);
        }
        case NpyType::u8:
            return static_cast<float>(data[i]);
        case NpyType::f32:
            break;
    }
    float real = 0;
    std::memcpy(&real, data.data() + i, sizeof real);
    return real;
}

void NpyArray::copy_to(void* out, [[maybe_unused]] std::size_t element_bytes) const {
    KH_ASSERT(element_bytes == npy_type_bytes(type), "{} bytes an element, asked for {}",
              npy_type_bytes(type), element_bytes);
    if (!data.empty()) std::memcpy(out, data.data(), data.size());
}

std::vector<std::byte> encode_npy(NpyType type, const NpyShape& shape, const void* data) {
    const std::string header = npy_header(descr(type), shape);
    const std::size_t n = to_index(npy_size(shape)) * npy_type_bytes(type);
    std::vector<std::byte> out(header.size() + n);
    std::memcpy(out.data(), header.data(), header.size());
    if (n) std::memcpy(out.data() + header.size(), data, n);
    return out;
}

std::size_t npy_header_bytes(std::span<const std::byte> begin) {
    if (begin.size() < 10) return 0;
    return 10 + (std::to_integer<std::size_t>(begin[8]) | std::to_integer<std::size_t>(begin[9]) << 8);
}

namespace {

[[noreturn]] void fail_npy(std::string_view name, std::string_view what) {
    fail(ErrorCode::bad_file, "{} is not a .npy array that Keyhole reads: {}", name, what);
}

}  // namespace

NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::string_view name) {
    const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (!text.starts_with("\x93NUMPY") || text.size() < 10)
        fail_npy(name, "it does not begin with the NumPy signature");
    if (text[6] != 1 || text[7] != 0) fail_npy(name, "its format version is not 1.0");
    NpyHeader out;
    out.header_bytes = npy_header_bytes(bytes);
    if (text.size() < out.header_bytes) fail_npy(name, "it is cut off in the header");
    const std::string_view header = text.substr(10, out.header_bytes - 10);
    const auto type_text = field(header, "'descr'"), order = field(header, "'fortran_order'"),
               shape_text = field(header, "'shape'");
    if (!type_text || !order || !shape_text) fail_npy(name, "its header lacks descr, fortran_order or shape");
    if (!order->starts_with("False")) fail_npy(name, "it is in Fortran order");
    const auto type = std::find_if(kDescr.begin(), kDescr.end(), [&](std::string_view d) {
        return type_text->size() > d.size() + 1 && type_text->substr(1, d.size()) == d &&
               (*type_text)[d.size() + 1] == '\'';
    });
    if (type == kDescr.end()) fail_npy(name, "its type is none of <f4, <f2, <i4, |u1");
    out.type = static_cast<NpyType>(type - kDescr.begin());
    const auto shape = parse_shape(*shape_text);
    if (!shape) fail_npy(name, "its shape cannot be read");
    out.shape = *shape;
    const auto n = data_bytes(out.type, out.shape);
    if (!n) fail_npy(name, "its size does not fit its shape");
    out.data_bytes = *n;
    return out;
}

NpyArray decode_npy(std::span<const std::byte> bytes, std::string_view name) {
    NpyHeader header = parse_npy_header(bytes, name);
    if (header.data_bytes != bytes.size() - header.header_bytes)
        fail_npy(name, "its size does not fit its shape");
    NpyArray array;
    array.type = header.type;
    array.shape = std::move(header.shape);
    array.data.assign(bytes.begin() + static_cast<std::ptrdiff_t>(header.header_bytes), bytes.end());
    return array;
}

NpyArray read_npy(const std::filesystem::path& path) {
    return decode_npy(MappedFile(path).bytes(), path.string());
}

}  // namespace keyhole
