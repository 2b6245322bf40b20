/// A tiny version of a published shape, for seeded models that need no folder. Plain data; makes no weights.
#pragma once

#include "engine/model/seeded_model.h"

namespace reference {

/// LLaMA 3 with two layers of four query heads on two KV heads, head size 16, width 64.
inline keyhole::ModelShape tiny_shape(int n_vocab) {
    keyhole::ModelShape shape = keyhole::shape_of("llama-3-8b");
    shape.name = "tiny";
    shape.config.n_layers = 2;
    shape.config.n_heads = 4;
    shape.config.n_kv_heads = 2;
    shape.config.head_dim = 16;
    shape.config.d_model = 64;
    shape.config.d_ff = 96;
    shape.config.rotary.dims = 16;
    shape.config.rotary.inverse_frequency.resize(8);
    shape.config.n_vocab = n_vocab;
    return shape;
}

}  // namespace reference
