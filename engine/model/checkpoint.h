/// The weights of a Hugging Face folder by name, over one file or many shards. Knows no model family. One
/// thread fills it while loading; afterwards it only keeps the mappings that weights point into.
#pragma once

#include "engine/base/mapped_file.h"
#include "engine/model/model.h"
#include "engine/model/safetensors.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace keyhole {

/// Selects rows of a matrix: n blocks of `rows` rows each; block i begins at row first + i * stride.
struct RowBlocks {
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t stride = 0;
    std::int64_t n = 1;
};

class Checkpoint {
  public:
    /// Opens model.safetensors, or else the shards that model.safetensors.index.json lists. Throws
    /// Error(bad_file) with the missing file.
    explicit Checkpoint(const std::filesystem::path& folder);

    bool contains(const std::string& name) const { return shard_of_.count(name) != 0; }
    std::vector<std::string> names() const;  ///< ascending
    /// As SafetensorsFile::tensor(). The tensor must be contained.
    StoredTensor stored(const std::string& name) const { return shards_[shard_of_.at(name)].tensor(name); }
    /// Returns a matrix [rows, cols], or a vector [rows] when cols is 0. Throws Error(bad_file) with tensor
    /// and file when it is missing or has another shape, Error(unsupported) for another type. The weight
    /// points into the mapping, except where the file stores it unaligned: then it points to a copy kept
    /// here.
    Weight weight(const std::string& name, std::int64_t rows, std::int64_t cols = 0);

    /// Returns some rows of a matrix [rows, cols] or of a vector (cols 0), block after block. One block
    /// points into the mapping; several are copied into storage kept here. Throws as weight().
    Weight blocks(const std::string& name, std::int64_t rows, std::int64_t cols, const RowBlocks& which);

    /// Returns a copy of rows [first, first + n) of the transpose of a matrix stored as [cols, rows].
    /// Throws as weight().
    Weight transposed(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t first,
                      std::int64_t n);

    /// Returns a line for every requested tensor that holds NaN or infinity. Up to 1 GiB of files every
    /// value is checked, since the first token reads them all anyway; above that, samples are.
    const std::vector<std::string>& warnings() const { return warnings_; }

    /// Throws Error(bad_file) with the name of a file that was truncated or written to since it was opened.
    void check_unchanged() const;

    /// Adds the files to a digest: see Model::hash.
    std::uint64_t digest(std::uint64_t seed) const;

  private:
    void check(const std::string& name, const Weight& weight);

    std::filesystem::path folder_;
    std::vector<SafetensorsFile> shards_;
    std::map<std::string, std::size_t> shard_of_;
    std::vector<Pages> copies_;
    std::set<std::string> checked_;
    std::vector<std::string> warnings_;
};

}  // namespace keyhole
