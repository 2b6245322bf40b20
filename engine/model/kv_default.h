/// The type in which keys and values are stored unless a lane says otherwise. Any thread. Knows no cache.
#pragma once

#include "engine/base/kv_type.h"
#include "engine/model/model.h"

namespace keyhole {

/// Returns `wanted`, or what stands for automatic: f32 where the weights are f32, else f16. bf16 weights take
/// f16 too, since bf16 rounds eight times as coarsely: it changes which tokens are kept.
KvType kv_type_for(KvType wanted, const Model& model);

}  // namespace keyhole
