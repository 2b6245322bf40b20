/// Draws how a lane shares KV heads: the choice on its policy card, its cost by the equation and as
/// measured, and a picture of which heads of which layers read the same K and V. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"
#include "engine/model/kv_sharing.h"

namespace keyhole {

/// Returns the sharings that a model can use, its own first: GQA by the divisors of its KV heads, MQA, and
/// MLKV by the divisors of its layers.
std::vector<KvSharing> sharing_choices(const ModelConfig& config);

/// Draws the choices of sharing, merge and compensation, the bytes per token, and the picture.
void draw_sharing(KvSharing& sharing, PolicyEditor& edit);

}  // namespace keyhole
