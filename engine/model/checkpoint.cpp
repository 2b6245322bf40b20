#include "engine/model/checkpoint.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapping_guard.h"
#include "engine/model/digest.h"
#include "engine/model/folder_files.h"
#include "engine/model/other_formats.h"
#include "engine/model/weight_check.h"

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstring>

namespace keyhole {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";
constexpr JsonBounds kIndexBounds{std::size_t{32} << 20, 1'000'000};

std::string shape_text(const std::vector<std::int64_t>& shape) {
    return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Returns the shard file of every tensor from the index.
std::map<std::string, std::string> read_index(const fs::path& path) {
    const nlohmann::json index = read_json_object(path, kIndexBounds);
    if (!index.contains("weight_map") || !index["weight_map"].is_object()) {
        fail(ErrorCode::bad_file, "cannot read {}: it has no weight_map; copy or download the file again",
             path.string());
    }
    std::map<std::string, std::string> files;
    for (const auto& [name, file] : index["weight_map"].items()) {
        const fs::path plain = file.is_string() ? file.get<std::string>() : std::string();
        if (plain.empty() || plain != plain.filename() || plain == ".." || plain == ".") {
            fail(ErrorCode::bad_file,
                 "cannot use {}: the file of tensor {} is not a plain file name; check the file",
                 path.string(), shown_text(name));
        }
        files[name] = plain.string();
    }
    return files;
}

}  // namespace

Checkpoint::Checkpoint(const fs::path& folder) : folder_(folder) {
    const fs::path single = folder / kSingleFile, index = folder / kIndexFile;
    if (is_there(single)) {
        shards_.emplace_back(single);
        for (const std::string& name : shards_[0].names()) shard_of_[name] = 0;
        return;
    }
    if (!is_there(index)) {
        const std::string hint = conversion_hint(folder);
        fail(ErrorCode::bad_file, "cannot find weights in {}: it has neither {} nor {}; {}", folder.string(),
             kSingleFile, kIndexFile, hint.empty() ? "name a Hugging Face model folder" : hint);
    }
    const std::map<std::string, std::string> file_of = read_index(index);
    std::map<std::string, std::size_t> shard_by_file;
    for (const auto& [name, file] : file_of) shard_by_file[file] = 0;
    for (auto& [file, shard] : shard_by_file) {  // ascending by name: the digest depends on it
        if (!is_there(folder / file)) {
            fail(ErrorCode::bad_file, "cannot find {}, which {} lists; copy or download the missing shard",
                 shown_text((folder / file).string()), kIndexFile);
        }
        shard = shards_.size();
        shards_.emplace_back(folder / file);
    }
    for (const auto& [name, file] : file_of) {
        const std::size_t shard = shard_by_file[file];
        if (shards_[shard].contains(name)) shard_of_[name] = shard;
    }
}

std::vector<std::string> Checkpoint::names() const {
    std::vector<std::string> names;
    for (const auto& [name, shard] : shard_of_) names.push_back(name);
    return names;
}

Weight Checkpoint::weight(const std::string& name, std::int64_t rows, std::int64_t cols) {
    const auto found = shard_of_.find(name);
    if (found == shard_of_.end()) {
        const std::string first = shard_of_.empty() ? "none" : shown_text(shard_of_.begin()->first);
        fail(ErrorCode::bad_file,
             "cannot find tensor {} in {} ({} tensors, the first is {}); the weights do not belong to its "
             "config.json",
             name, shards_.size() == 1 ? shards_[0].path().string() : folder_.string(), shard_of_.size(),
             first);
    }
    const SafetensorsFile& file = shards_[found->second];
    const StoredTensor stored = file.tensor(name);
    const std::vector<std::int64_t> wanted =
        cols == 0 ? std::vector<std::int64_t>{rows} : std::vector<std::int64_t>{rows, cols};
    if (stored.shape != wanted) {
        fail(ErrorCode::bad_file,
             "cannot use tensor {} in {}: its shape is {}, config.json asks for {}; "
             "the two files do not belong together",
             name, file.path().string(), shape_text(stored.shape), shape_text(wanted));
    }
    Weight weight{stored.dtype, stored.data, rows, cols == 0 ? 1 : cols};
    if (reinterpret_cast<std::uintptr_t>(stored.data) % dtype_bytes(stored.dtype) != 0) {
        const auto n_bytes = to_index(weight.rows * weight.cols) * dtype_bytes(stored.dtype);
        Pages& copy = copies_.emplace_back(n_bytes);
        std::memcpy(copy.data(), stored.data, n_bytes);
        weight.data = copy.data();
    }
    check(name, weight);
    return weight;
}

void Checkpoint::check(const std::string& name, const Weight& weight) {
    if (!checked_.insert(name).second) return;
    constexpr std::size_t kWhole = std::size_t{1} << 30;
    std::size_t n_bytes = 0;
    for (const SafetensorsFile& shard : shards_) n_bytes += shard.bytes().size();
    const auto n = to_index(weight.rows * weight.cols);
    const auto bad = find_non_finite(weight.dtype, weight.data, n, n_bytes <= kWhole);
    if (!bad) return;
    warnings_.push_back(fmt::format("tensor {} holds {} in {} of {} weights{}", name,
                                    bad->has_nan ? "NaN" : "infinity", bad->n, bad->n_looked,
                                    bad->n_looked < n ? fmt::format(" looked at ({} in all)", n) : ""));
}

Weight Checkpoint::blocks(const std::string& name, std::int64_t rows, std::int64_t cols,
                          const RowBlocks& which) {
    Weight whole = weight(name, rows, cols);
    const std::size_t row_bytes = to_index(whole.cols) * dtype_bytes(whole.dtype);
    const auto at = [&](std::int64_t row) {
        return static_cast<const std::byte*>(whole.data) + to_index(row) * row_bytes;
    };
    const std::size_t block_bytes = to_index(which.rows) * row_bytes;
    Weight part{whole.dtype, at(which.first), which.n * which.rows, whole.cols};
    if (which.n == 1) return part;
    Pages& copy = copies_.emplace_back(to_index(which.n) * block_bytes);
    for (std::int64_t i = 0; i < which.n; ++i)
        std::memcpy(static_cast<std::byte*>(copy.data()) + to_index(i) * block_bytes,
                    at(which.first + i * which.stride), block_bytes);
    part.data = copy.data();
    return part;
}

namespace {

/// Computes to [n, rows] = columns [first, first + n) of from [rows, cols], in squares that fit the CPU
/// cache.
template <class T>
void transpose(const T* from, std::int64_t rows, std::int64_t cols, std::int64_t first, std::int64_t n,
               T* to) {
    constexpr std::int64_t kSquare = 64;
    for (std::int64_t r = 0; r < rows; r += kSquare)
        for (std::int64_t c = 0; c < n; c += kSquare)
            for (std::int64_t j = c; j < std::min(n, c + kSquare); ++j)
                for (std::int64_t i = r; i < std::min(rows, r + kSquare); ++i)
                    to[j * rows + i] = from[i * cols + first + j];
}

}  // namespace

Weight Checkpoint::transposed(const std::string& name, std::int64_t rows, std::int64_t cols,
                              std::int64_t first, std::int64_t n) {
    const Weight stored = weight(name, cols, rows);
    Pages& copy = copies_.emplace_back(to_index(n * cols) * dtype_bytes(stored.dtype));
    if (stored.dtype == DType::f32)
        transpose(static_cast<const float*>(stored.data), cols, rows, first, n,
                  static_cast<float*>(copy.data()));
    else
        transpose(static_cast<const std::uint16_t*>(stored.data), cols, rows, first, n,
                  static_cast<std::uint16_t*>(copy.data()));
    return {stored.dtype, copy.data(), n, cols};
}

void Checkpoint::check_unchanged() const {
    for (const SafetensorsFile& shard : shards_) check_mapping(shard.bytes().data());
}

std::uint64_t Checkpoint::digest(std::uint64_t seed) const {
    constexpr std::size_t kWhole = std::size_t{64} << 20, kBlock = std::size_t{64} << 10, kBlocks = 512;
    std::uint64_t digest = seed;
    for (const SafetensorsFile& shard : shards_) {
        const std::span<const std::byte> bytes = shard.bytes();
        if (bytes.size() <= kWhole) {
            digest = digest_bytes(digest, bytes);
            continue;
        }
        // Reading gigabytes from a cold disk only for a name would delay the start.
        digest = digest_word(digest, bytes.size());
        for (std::size_t i = 0; i < kBlocks; ++i) {
            const std::size_t at = (bytes.size() - kBlock) / (kBlocks - 1) * i;
            digest = digest_bytes(digest, bytes.subspan(at, kBlock));
        }
    }
    return digest;
}

}  // namespace keyhole
