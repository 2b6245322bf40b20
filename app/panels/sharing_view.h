/// How a lane shares KV heads: the choice on its policy card, what it costs by the equation and as measured, and a picture of which
/// heads of which layers read the same K and V. Window thread.
#pragma once

#include "app/panels/policy_widgets.h"
#include "engine/model/kv_sharing.h"

namespace keyhole {

/// The sharings that a model can take, its own first: GQA by the divisors of its KV heads, MQA, and MLKV by those of its layers.
std::vector<KvSharing> sharing_choices(const ModelConfig& config);

/// Choice, merge and compensation, bytes of a token, and the picture.
void draw_sharing(KvSharing& sharing, PolicyEditor& edit);

}  // namespace keyhole
