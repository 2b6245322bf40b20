/// Another sharing of KV heads for a loaded model, by merging its K and V projections: MHA to GQA, MQA or MLKV. The result is a model
/// of its own, damaged until it is trained again. Any thread; knows model only.
/// Sources: GQA (Ainslie et al. 2023), section 2.1; MLKV (Zuhri et al. 2024), section 4.2; policies, section 2.11.
#pragma once

#include "engine/model/model.h"

#include <memory>
#include <string>

namespace keyhole {

/// How K and V of several layers become one. Inside a layer it is always the mean over the group's heads.
/// uniform: the mean over the layers. released: W <- (W + next) / 2 from layer to layer, so that three layers weigh 1/4, 1/4, 1/2,
/// and borrowing layers take keys that were not rotated (ModelConfig::borrows_unrotated).
enum class KvMerge { uniform, released };

/// A sharing as a lane asks for it. Plain values.
struct KvSharing {
    enum class Kind { own, mha, gqa, mqa, mlkv };
    Kind kind = Kind::own;  ///< own: as the checkpoint has it
    int n_kv_layers = 0;    ///< m of mlkv: layers that own KV heads
    int n_kv_heads = 0;     ///< G of gqa, g of mlkv: KV heads in each of them
    KvMerge merge = KvMerge::uniform;
    bool compensate = false;  ///< widen the MLPs by the parameters lost: compensating_neurons()
    bool operator==(const KvSharing&) const = default;
};

/// Layers that own KV heads, and KV heads in each.
struct KvShape {
    int n_layers = 0;
    int n_heads = 0;
    bool operator==(const KvShape&) const = default;
};
KvShape kv_shape(const ModelConfig& config);
KvShape kv_shape(const KvSharing& sharing, const ModelConfig& config);

/// The layout that a lane with this sharing has. Throws Error(wrong_use) with what check_sharing() says.
KvLayout layout_of(const ModelConfig& config, const KvSharing& sharing);

/// "mha", "gqa:4", "mqa", "mlkv:m=4,g=1": what the model is.
std::string kv_name(const ModelConfig& config);

/// Why the model cannot be shared so, one sentence; empty when it can. Heads merge in whole groups, never apart; an owner of KV heads
/// must be one already.
std::string check_sharing(const KvSharing& sharing, const ModelConfig& config);

/// Neurons that each layer's MLP grows by, as the released converter counts:
///     lost = (KV heads before - after) * (2 * d_model * head_dim, + 2 * head_dim with biases)
///     round(floor(lost / layers) / d_model), half to even, divided by the matrices of the MLP (2; 3 with a gate) and rounded down
int compensating_neurons(const ModelConfig& config, const KvShape& from, const KvShape& to, bool biases,
                         bool gated);

/// The model with merged K and V, in the types of `base` (sums in double, rounded once); all other weights are those of `base`, which
/// stays loaded. With `compensate`, new neurons are copies of the first ones, so the function changes besides. The base itself where
/// nothing changes; a merge that somebody still holds is given again. Any thread. Throws Error(wrong_use) with what check_sharing() says.
std::shared_ptr<const Model> shared_model(std::shared_ptr<const Model> base, const KvSharing& sharing);

}  // namespace keyhole
