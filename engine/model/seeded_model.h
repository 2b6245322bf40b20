/// Models of a known shape with seeded random weights and no file, for benchmarks and tests: the cost of a
/// step depends on the shape only. Any thread. Knows model only.
#pragma once

#include "engine/model/model.h"
#include "engine/model/seeded_value.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace keyhole {

/// A configuration, and which of the optional weights exist.
struct ModelShape {
    std::string name;
    ModelConfig config;
    bool gated = true;         ///< mlp(z) = down(act(gate(z)) * up(z)); else without the gate
    bool biases = false;       ///< every projection but the output has one
    bool norm_biases = false;  ///< every norm has one
};

/// "pythia-160m", "tinyllama-1.1b", "mpt-7b", "llama-2-7b", "llama-3-8b".
std::vector<std::string_view> shape_names();
/// Throws Error(wrong_use) with the list of names.
ModelShape shape_of(std::string_view name);

enum class SeededStorage {
    own,  ///< as in a loaded model
    /// Matrices have addresses but no memory and no values (they read as 0); a device fills its own by
    /// seeded_weight().
    unmade
};

/// Returns how to generate the values of a matrix without values (the same values as with
/// SeededStorage::own), or nullopt when the matrix has values. Any thread.
std::optional<SeededWeight> seeded_weight(const Weight& weight);

/// Returns the bytes of all weights stored as `dtype`.
std::int64_t seeded_weight_bytes(const ModelShape& shape, DType dtype);

/// Makes a model. Weights are uniform with a deviation of 1 / sqrt(d_model), gains are 1, biases are uniform
/// in (-0.1, 0.1). Quantised matrices consist of seeded_blocks(), with storage of their own (both asserted);
/// gains and biases are then f32. The tokenizer is Tokenizer::of_bytes. Throws Error(no_memory) with the
/// requested size.
std::shared_ptr<const Model> make_seeded_model(const ModelShape& shape, DType dtype, std::uint64_t seed = 1,
                                               SeededStorage storage = SeededStorage::own);

}  // namespace keyhole
