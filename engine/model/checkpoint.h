/// The tensors of a Hugging Face folder: one `model.safetensors`, or shards named by `model.safetensors.index.json`.
/// Used while loading, one thread.
#pragma once

#include "engine/model/model.h"

#include <filesystem>
#include <initializer_list>
#include <string>
#include <vector>

namespace keyhole {

class Checkpoint {
  public:
    /// Throws Error(bad_file): nothing to load, a shard is missing, or a file is damaged.
    explicit Checkpoint(const std::filesystem::path& folder);

    bool contains(const std::string& name) const;
    /// A vector [rows] (cols 0) or matrix [rows, cols] of exactly this shape. Throws Error(bad_file) with name and both shapes.
    Weight weight(const std::string& name, std::int64_t rows, std::int64_t cols = 0) const;

    /// 64-bit FNV-1a over names, types, shapes and 64-bit words of every tensor: every word up to 1 MiB of a tensor, beyond that 128 Ki
    /// words spread evenly, so that a large model is named in a blink.
    /// `also` (the config) is hashed too.
    std::uint64_t digest(std::string_view also) const;

  private:
    const SafetensorsFile* file_of(const std::string& name) const;

    std::vector<SafetensorsFile> files_;
};

}  // namespace keyhole
