/// The weights of a Hugging Face folder by name, over one file or many shards. Knows no model family.
/// Filled while loading (one thread), then only kept alive: weights point into its mappings.
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

/// Rows of a matrix: n blocks of `rows` rows each, the i-th from row first + i * stride on.
struct RowBlocks {
    std::int64_t first = 0;
    std::int64_t rows = 0;
    std::int64_t stride = 0;
    std::int64_t n = 1;
};

class Checkpoint {
  public:
    /// model.safetensors, else the shards that model.safetensors.index.json lists. Throws Error(bad_file)
    /// naming what is
    /// missing.
    explicit Checkpoint(const std::filesystem::path& folder);

    bool contains(const std::string& name) const { return shard_of_.count(name) != 0; }
    std::vector<std::string> names() const;  ///< ascending
    /// As SafetensorsFile::tensor(); it must be contained.
    StoredTensor stored(const std::string& name) const { return shards_[shard_of_.at(name)].tensor(name); }
    /// A matrix [rows, cols], or a vector [rows] where cols is 0. Throws Error(bad_file) naming tensor and
    /// file when it is
    /// missing or of another shape, Error(unsupported) for another type. Points into the mapping, except
    /// where the file
    /// placed it off its alignment: then a copy is kept here.
    Weight weight(const std::string& name, std::int64_t rows, std::int64_t cols = 0);

    /// Some rows of a matrix [rows, cols] or of a vector (cols 0), one block after the other: one block points into the
    /// mapping, several are copied into storage kept here. Errors as weight().
    Weight blocks(const std::string& name, std::int64_t rows, std::int64_t cols, const RowBlocks& which);

    /// Rows [first, first + n) of the transpose of a matrix that is stored as [cols, rows], copied. Errors as weight().
    Weight transposed(const std::string& name, std::int64_t rows, std::int64_t cols, std::int64_t first,
                      std::int64_t n);

    /// A line for every tensor that was asked for and holds NaN or infinity. All of it is looked at up to 1 GiB of files, as
    /// the first token will read it anyway; beyond that samples are.
    const std::vector<std::string>& warnings() const { return warnings_; }

    /// Throws Error(bad_file) naming a file that was cut or written to since it was opened.
    void check_unchanged() const;

    /// Folds the files into a digest: see Model::hash.
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
