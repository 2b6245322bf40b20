/// A GGUF file (versions 2 and 3, little-endian), memory-mapped and checked: typed metadata and tensors,
/// never copied. Const after opening; any thread. Knows no model.
/// Source: docs/gguf.md of the ggml project.
#pragma once

#include "engine/base/mapped_file.h"
#include "engine/model/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

class GgufFile {
  public:
    /// Throws Error(bad_file) with file and place: file missing, truncated, of another version or byte order,
    /// counts and lengths beyond the file, lists of lists, offsets that are not aligned or outside of the
    /// file, overlapping tensors. Tensors of types that DType lacks are listed, but tensor() refuses them.
    explicit GgufFile(const std::filesystem::path& path);

    /// Opens the other parts of a model in several files, NAME-00001-of-0000N.gguf being the first: their
    /// tensors are then those of this file. Throws Error(bad_file) with the part that is missing, or whose
    /// numbers do not fit; Error(wrong_use) when this is not the first.
    void open_parts();
    std::span<const GgufFile> parts() const { return parts_; }  ///< the others, in their order

    const std::filesystem::path& path() const { return path_; }
    std::span<const std::byte> bytes() const { return file_.bytes(); }  ///< bytes of the whole file
    /// Bytes of metadata and tensor list.
    std::span<const std::byte> header() const { return file_.bytes().first(header_size_); }

    bool has(const std::string& key) const { return values_.count(key) != 0; }
    std::vector<std::string> keys() const;  ///< ascending
    /// All readers throw Error(bad_file) with file, key and what was wanted: the value has another type, is
    /// out of range, or is absent without a fallback.
    std::string text(const std::string& key) const;
    std::string text_or(const std::string& key, const std::string& fallback) const;
    bool flag_or(const std::string& key, bool fallback) const;
    /// Returns a whole number from 1 to `most`, or from 0 on; a list of equal numbers counts as one.
    int count(const std::string& key, int most) const { return whole_number(key, 1, most); }
    int count_or(const std::string& key, int fallback, int most) const;
    int count_or_zero(const std::string& key, int fallback, int most) const;
    /// Returns a finite number.
    double number_or(const std::string& key, double fallback) const;
    /// Returns a positive number that fits a float.
    double positive_or(const std::string& key, double fallback) const;
    /// Returns the texts of a list, views of the mapping; an absent key gives none.
    std::vector<std::string_view> texts(const std::string& key) const;
    /// Returns the numbers of a list; an absent key gives none.
    std::vector<float> numbers(const std::string& key) const;
    std::vector<std::int32_t> integers(const std::string& key) const;
    /// Returns the flags (0 or 1) of a list, or one whole number; an absent key gives none.
    std::vector<std::int32_t> flags_or_number(const std::string& key) const;

    bool contains(const std::string& name) const;
    /// Returns a tensor; the shape lists rows before columns. Throws Error(bad_file) when it is missing,
    /// Error(unsupported) for a type that DType lacks.
    StoredTensor tensor(const std::string& name) const;
    std::vector<std::string> names() const;  ///< of the tensors, ascending

  private:
    enum class Type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };
    struct Value {
        Type type = Type::u8;
        Type of = Type::u8;  ///< list: the type of its elements
        std::uint64_t n = 1;
        std::span<const std::byte> bytes;  ///< of the value, or of all elements
    };
    struct Entry {
        std::uint32_t type = 0;
        std::vector<std::int64_t> shape;
        std::size_t begin = 0, end = 0;  // bytes in the file; begin = end for an unknown type
    };
    class Cursor;

    Value read_value(Cursor& cursor, const std::string& key) const;
    void read_tensor(Cursor& cursor);
    void place_tensors();
    [[noreturn]] void wrong(const std::string& key, const std::string& wanted) const;
    const Value* find(const std::string& key) const;
    int whole_number(const std::string& key, int least, int most) const;
    /// Returns a list of plain numbers, or null for an absent key; throws for anything else.
    const Value* number_list(const std::string& key) const;
    std::string shown(const Value& value) const;

    std::filesystem::path path_;
    MappedFile file_;
    std::size_t header_size_ = 0;
    std::map<std::string, Value> values_;
    std::map<std::string, Entry> tensors_;
    std::vector<GgufFile> parts_;
};

/// Returns whether the file begins as a GGUF file does, or is called one (.gguf). Throws Error(bad_file) for
/// anything that is no ordinary file.
bool is_gguf(const std::filesystem::path& path);

}  // namespace keyhole
