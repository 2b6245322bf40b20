/// Tensors of a `.safetensors` file, memory-mapped and checked, never copied. Const after opening; any
/// thread. Knows no model.
#pragma once

#include "engine/base/mapped_file.h"
#include "engine/model/dtype.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

namespace keyhole {

struct StoredTensor {
    DType dtype = DType::f32;
    std::vector<std::int64_t> shape;
    const std::byte* data = nullptr;  ///< row-major, inside the mapping
};

class SafetensorsFile {
  public:
    /// Throws Error(bad_file) with file and tensor: file missing or truncated, inconsistent offsets in the
    /// header, overlapping tensors. Tensors of other types than f32, f16, bf16 are listed, but tensor()
    /// refuses them.
    explicit SafetensorsFile(const std::filesystem::path& path);

    bool contains(const std::string& name) const;
    /// Throws Error(bad_file) when the tensor is missing, Error(unsupported) for another type.
    StoredTensor tensor(const std::string& name, bool as_bytes = false) const;
    std::vector<std::string> names() const;
    const std::filesystem::path& path() const { return path_; }
    std::span<const std::byte> bytes() const { return file_.bytes(); }  ///< bytes of the whole file

  private:
    struct Entry {
        std::string dtype;
        std::vector<std::int64_t> shape;
        std::size_t begin = 0, end = 0;  // bytes in the data part
    };
    std::filesystem::path path_;
    MappedFile file_;
    std::size_t data_begin_ = 0;
    std::map<std::string, Entry> entries_;
};

}  // namespace keyhole
