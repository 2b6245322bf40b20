/// NumPy `.npy` files, format version 1.0, C order, little endian: streamed to disk, built in memory, read
/// back and checked. A writer has one owner; several threads may call write() for different places. Knows
/// base only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

enum class NpyType { f32, f16, i32, u8 };
std::size_t npy_type_bytes(NpyType type);

using NpyShape = std::vector<std::int64_t>;
/// Product of the extents; 1 for a scalar.
std::int64_t npy_size(const NpyShape& shape);

/// A file whose elements are written in any order. Elements that were never written read as 0.
class NpyWriter {
  public:
    /// Creates the file at its full size (sparse). Throws Error(io) with path and reason.
    NpyWriter(std::filesystem::path path, NpyType type, NpyShape shape);
    ~NpyWriter();
    NpyWriter(const NpyWriter&) = delete;
    NpyWriter& operator=(const NpyWriter&) = delete;

    /// Writes elements [first, first + values.size()) in C order, converted to f32, f16 or u8 (u8: whole
    /// numbers 0 to 255). Throws Error(io).
    void write(std::int64_t first, std::span<const float> values);
    /// The same for i32 files.
    void write(std::int64_t first, std::span<const std::int32_t> values);

    /// Reduces every extent to that of a smaller shape and keeps the elements at the remaining indices.
    void shrink(const NpyShape& smaller);
    /// Throws Error(io) when the system reports a late failure. The destructor closes silently.
    void close();

    const std::filesystem::path& path() const { return path_; }
    const NpyShape& shape() const { return shape_; }
    NpyType type() const { return type_; }

  private:
    void write_bytes(std::int64_t first, const void* data, std::size_t n_bytes);
    void write_header();
    [[noreturn]] void fail_io(const char* what) const;

    std::filesystem::path path_;
    NpyType type_;
    NpyShape shape_;
    int file_ = -1;
};

/// A whole array in memory.
struct NpyArray {
    NpyType type = NpyType::f32;
    NpyShape shape;
    std::vector<std::byte> data;

    /// Returns one element of any type as a float.
    float value(std::int64_t index) const;
    /// Returns the elements as they are stored; sizeof(T) must match the type (asserted).
    template <class T>
    std::vector<T> as() const {
        std::vector<T> out(data.size() / sizeof(T));
        copy_to(out.data(), sizeof(T));
        return out;
    }

  private:
    void copy_to(void* out, std::size_t element_bytes) const;
};

/// Returns header and data of an array as one block of bytes.
std::vector<std::byte> encode_npy(NpyType type, const NpyShape& shape, const void* data);
/// Returns the 192 bytes that precede the data. descr: '<f4', or a list of fields for records.
std::string npy_header(std::string_view descr, const NpyShape& shape);
std::string npy_header(NpyType type, const NpyShape& shape);

/// The parsed header.
struct NpyHeader {
    NpyType type = NpyType::f32;
    NpyShape shape;
    std::size_t header_bytes = 0, data_bytes = 0;
};
/// Returns the length of the whole header of a file that begins with these bytes, or 0 when fewer than the
/// 10 bytes that hold the length are given.
std::size_t npy_header_bytes(std::span<const std::byte> begin);
/// Parses the header; `bytes` must hold at least the whole header. Throws Error(bad_file) with `name` and
/// the faulty part: signature, version, header, type.
NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::string_view name);
/// Parses header and data. Throws also when the data's size does not match the shape.
NpyArray decode_npy(std::span<const std::byte> bytes, std::string_view name);
NpyArray read_npy(const std::filesystem::path& path);

}  // namespace keyhole
