/// What the queries of a model's heads are like before their rotation, measured on some text: `expected` and
/// `tri` of formulas rank by it in place of the lane's own queries. Read from a file. Immutable; any thread.
#pragma once

#include "engine/model/model.h"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace keyhole {

/// Of the queries of one head before the rotation.
struct QueryMoments {
    int n = 0;                       ///< rows; 0: nothing is known
    std::vector<double> mean;        ///< [head_dim]
    std::vector<double> covariance;  ///< [head_dim, head_dim], divided by n
    std::vector<double> lengths;     ///< [rotary.dims / 2] mean length of each rotated pair
};

/// Returns the two channels that turn together.
std::pair<std::size_t, std::size_t> rotated_channels(const Rotary& rotary, std::size_t pair);
/// rotary: null: it rotates nothing.
std::size_t n_rotated_pairs(const Rotary* rotary);

/// rows: pointers to queries [head_dim]. rotary: of the layer; null: it rotates nothing.
QueryMoments query_moments(std::span<const float* const> rows, int head_dim, const Rotary* rotary);

struct Calibration {
    int n_layers = 0, n_heads = 0, head_dim = 0;
    int n_pairs = 0;
    bool has_covariance = false;      ///< `expected` needs it
    std::uint64_t digest = 0;         ///< of the file's bytes
    std::vector<QueryMoments> heads;  ///< [n_layers * n_heads]
};

/// A calibration, or none, as a lane names it.
struct CalibrationRef {
    std::string path{};                         ///< empty: none
    std::shared_ptr<const Calibration> read{};  ///< null: the file was not read, as in texts of others
    explicit operator bool() const { return !path.empty(); }
    bool operator==(const CalibrationRef& other) const {
        return path == other.path && (read == nullptr) == (other.read == nullptr) &&
               (read == nullptr || read->digest == other.read->digest);
    }
};

/// Reads a safetensors file: `mean` [layers, query heads, head_dim], `length` [layers, query heads, pairs]
/// and, for `expected`, `covariance` [layers, query heads, head_dim, head_dim]; f32, f16 or bf16. Throws
/// Error(bad_file) with the file and the fault.
std::shared_ptr<const Calibration> read_calibration(const std::filesystem::path& path);

/// Writes such a file from the moments of all heads. Throws Error(io).
void write_calibration(const std::filesystem::path& path, int n_layers, int n_heads,
                       std::span<const QueryMoments> heads);

}  // namespace keyhole
