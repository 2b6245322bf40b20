/// Seeded models in memory with any combination of description fields, for features that no LLaMA folder has.
/// Tests build them on their own thread; the models need no files.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <memory>

namespace reference {

/// config: 0 derives a size from the others (d_model from heads). Empty rotary frequencies and ALiBi slopes
/// are filled in.
struct AnyShape {
    keyhole::ModelConfig config;
    bool biases = false;  ///< on norms and projections
    bool gate = true;
    bool qk_norm = false;
    bool width_norm = false;  ///< of all queries together, and of all keys
    bool input_norms = true;  ///< before both branches
    bool out_norms = false;   ///< after both branches, before they are added
    bool embedding_norm = false;
    bool final_norm = true;
    bool output_bias = false;
    int d_embed = 0;  ///< 0: d_model, without embedding projections
    std::uint64_t seed = 1;
    keyhole::DType dtype = keyhole::DType::f32;  ///< of matrices: f32, f16 or bf16
};

/// The smallest shape with grouped queries: 2 layers, 4 heads of 8 channels, 2 KV heads, rotary positions,
/// and TinyModel's vocabulary.
AnyShape any_shape();

std::shared_ptr<const keyhole::Model> any_model(AnyShape shape);

}  // namespace reference
