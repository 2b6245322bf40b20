/// Changes how a loaded model shares KV heads, by merging its K and V projections: MHA to GQA, MQA or MLKV;
/// that damages it until it is trained again. Heads may also be split into copies, which changes nothing.
/// Sources: GQA (Ainslie et al. 2023), section 2.1; MLKV (Zuhri et al. 2024), section 4.2; policies,
/// section 2.11. Any thread; knows model only.
#pragma once

#include "engine/model/model.h"

#include <memory>
#include <string>

namespace keyhole {

/// How K and V of several layers are merged. Within a layer the result is always the mean over the group's
/// heads. uniform: the mean over the layers. released: W <- (W + next) / 2 from layer to layer, so that
/// three layers weigh 1/4, 1/4, 1/2; borrowing layers then read keys before rotation
/// (ModelConfig::borrows_unrotated).
enum class KvMerge { uniform, released };

/// A sharing as a lane requests it. Plain values.
struct KvSharing {
    enum class Kind { own, mha, gqa, mqa, mlkv };
    Kind kind = Kind::own;  ///< own: as the checkpoint has it
    int n_kv_layers = 0;    ///< m of mlkv: number of layers that own KV heads
    int n_kv_heads = 0;     ///< G of gqa, g of mlkv: KV heads in each of those layers
    KvMerge merge = KvMerge::uniform;
    bool compensate = false;  ///< widen the MLPs by the parameters lost: compensating_neurons()
    bool operator==(const KvSharing&) const = default;
};

/// The number of layers that own KV heads, and of KV heads in each.
struct KvShape {
    int n_layers = 0;
    int n_heads = 0;
    bool operator==(const KvShape&) const = default;
};
KvShape kv_shape(const ModelConfig& config);
KvShape kv_shape(const KvSharing& sharing, const ModelConfig& config);

/// Returns the layout of a lane with this sharing. Throws Error(wrong_use) with the text of
/// check_sharing().
KvLayout layout_of(const ModelConfig& config, const KvSharing& sharing);

/// Returns the model's sharing as text: "mha", "gqa:4", "mqa", "mlkv:m=4,g=1".
std::string kv_name(const ModelConfig& config);

/// Returns one sentence on why the model cannot be shared this way; empty when it can. Heads merge in whole
/// groups, or each is split into equal copies; a layer that shall own KV heads must already own some.
std::string check_sharing(const KvSharing& sharing, const ModelConfig& config);

/// Returns the number of neurons that each layer's MLP grows by, as the released converter counts:
///     lost = (KV heads before - after) * (2 * d_model * head_dim, + 2 * head_dim with biases)
///     n    = round(floor(lost / layers) / d_model), half to even
/// Returns n divided by the number of MLP matrices (2; 3 with a gate), rounded down.
int compensating_neurons(const ModelConfig& config, const KvShape& from, const KvShape& to, bool biases,
                         bool gated);

/// Returns the model with merged K and V, in the types of `base` (sums in double, rounded once); quantised
/// ones become float. All other weights are those of `base`, which stays loaded. With `compensate`, new
/// neurons are copies of the first ones, which also changes the function.
///
/// Returns `base` itself when nothing changes, and an existing merged model while somebody still holds it.
/// Any thread. Throws Error(wrong_use) with the text of check_sharing().
std::shared_ptr<const Model> shared_model(std::shared_ptr<const Model> base, const KvSharing& sharing);

}  // namespace keyhole
