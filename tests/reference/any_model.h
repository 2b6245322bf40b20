/// Seeded models in memory with any part of the model's description, for what no folder of the LLaMA family has.
#pragma once

#include "engine/model/model.h"

#include <cstdint>
#include <memory>

namespace reference {

/// config: shapes 0 where they follow from the rest (d_model from heads); rotary frequencies and ALiBi slopes are filled where empty.
struct AnyShape {
    keyhole::ModelConfig config;
    bool biases = false;  ///< of norms and products
    bool gate = true;
    bool qk_norm = false;
    bool final_norm = true;
    bool output_bias = false;
    int d_embed = 0;  ///< 0: d_model, and no projections
    std::uint64_t seed = 1;
};

/// The smallest shape that has queries in groups: 2 layers, 4 heads of 8, 2 KV heads, rotary positions, vocabulary of TinyModel.
AnyShape any_shape();

std::shared_ptr<const keyhole::Model> any_model(AnyShape shape);

}  // namespace reference
