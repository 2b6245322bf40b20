/// NumPy `.npy` files, format version 1.0, C order, little endian: streamed to disk, made in memory, read back and checked.
/// A writer belongs to one owner; write() may be called from several threads for different places. Knows base only.
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

/// A file whose elements are written in any order. What was never written reads as 0.
class NpyWriter {
  public:
    /// Creates the file at its full size (sparse). Throws Error(io) with path and reason.
    NpyWriter(std::filesystem::path path, NpyType type, NpyShape shape);
    ~NpyWriter();
    NpyWriter(const NpyWriter&) = delete;
    NpyWriter& operator=(const NpyWriter&) = delete;

    /// Elements [first, first + values.size()) in C order, converted to f32, f16 or u8 (whole numbers 0 to 255). Throws Error(io).
    void write(std::int64_t first, std::span<const float> values);
    /// i32 files.
    void write(std::int64_t first, std::span<const std::int32_t> values);

    /// Cuts every extent down to that of a smaller shape, keeping what stands at the remaining indices.
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

    /// One element widened: f32, f16, i32 and u8 alike.
    float value(std::int64_t index) const;
    /// The elements as they are stored; the type must match in size (asserted).
    template <class T>
    std::vector<T> as() const {
        std::vector<T> out(data.size() / sizeof(T));
        copy_to(out.data(), sizeof(T));
        return out;
    }

  private:
    void copy_to(void* out, std::size_t element_bytes) const;
};

/// Header and data of an array.
std::vector<std::byte> encode_npy(NpyType type, const NpyShape& shape, const void* data);
/// The 192 bytes that stand before the data. descr: '<f4', or a list of fields for records.
std::string npy_header(std::string_view descr, const NpyShape& shape);
std::string npy_header(NpyType type, const NpyShape& shape);

/// What stands before the data.
struct NpyHeader {
    NpyType type = NpyType::f32;
    NpyShape shape;
    std::size_t header_bytes = 0, data_bytes = 0;
};
/// Bytes that hold the whole header of an array whose file begins with these; 0: fewer than the 10 that say so.
std::size_t npy_header_bytes(std::span<const std::byte> begin);
/// From the first bytes of a file, the whole header among them. Throws Error(bad_file) naming `name` and the part that is wrong: magic,
/// version, header, type.
NpyHeader parse_npy_header(std::span<const std::byte> bytes, std::string_view name);
/// The same, and its size.
NpyArray decode_npy(std::span<const std::byte> bytes, std::string_view name);
NpyArray read_npy(const std::filesystem::path& path);

}  // namespace keyhole
