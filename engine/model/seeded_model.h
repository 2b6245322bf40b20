/// Models of a known shape with seeded random weights and no file, for benches and tests: what a step costs depends on the shape alone.
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

/// A configuration, and which of the optional weights there are.
struct ModelShape {
    std::string name;
    ModelConfig config;
    bool gated = true;         ///< mlp(z) = down(act(gate(z)) * up(z)); else without the gate
    bool biases = false;       ///< of every projection but the output
    bool norm_biases = false;  ///< of every norm
};

/// "pythia-160m", "tinyllama-1.1b", "mpt-7b", "llama-2-7b", "llama-3-8b".
std::vector<std::string_view> shape_names();
/// Throws Error(wrong_use) that lists the names.
ModelShape shape_of(std::string_view name);

enum class SeededStorage {
    own,    ///< as a loaded model's
    unmade  ///< matrices have places but no memory and no values (they read as 0): for a device, which makes its own by seeded_weight()
};

/// What a matrix without values is to be made of, all the same values as of SeededStorage::own; none where it has its values. Any thread.
std::optional<SeededWeight> seeded_weight(const Weight& weight);

/// Bytes of all weights stored as `dtype`.
std::int64_t seeded_weight_bytes(const ModelShape& shape, DType dtype);

/// Weights are uniform with a deviation of 1 / sqrt(d_model), gains 1, biases a tenth of that. The tokenizer is Tokenizer::of_bytes.
/// Throws Error(no_memory) with the size asked for.
std::shared_ptr<const Model> make_seeded_model(const ModelShape& shape, DType dtype, std::uint64_t seed = 1,
                                               SeededStorage storage = SeededStorage::own);

}  // namespace keyhole
