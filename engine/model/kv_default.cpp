#include "engine/model/kv_default.h"

namespace keyhole {

KvType kv_type_for(KvType wanted, const Model& model) {
    if (wanted != KvType::automatic) return wanted;
    return model.weights().layers.front().q.dtype == DType::f32 ? KvType::f32 : KvType::f16;
}

}  // namespace keyhole
