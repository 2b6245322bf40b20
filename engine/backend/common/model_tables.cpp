#include "engine/backend/common/model_tables.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>

namespace keyhole {

namespace {

std::vector<float> widened(const Weight& w) {
    if (w.data == nullptr) return {};
    std::vector<float> out(to_index(w.rows * w.cols));
    widen_rows(w, 0, w.rows, out.data());
    return out;
}

}  // namespace

ModelTables::ModelTables(const Model& model) : config_(&model.config()) {
    const ModelWeights& w = model.weights();
    for (const LayerWeights& l : w.layers)
        layers.push_back({{widened(l.attention_norm), widened(l.attention_norm_bias)},
                          {widened(l.mlp_norm), widened(l.mlp_norm_bias)},
                          widened(l.q_norm),
                          widened(l.k_norm),
                          widened(l.q_bias),
                          widened(l.k_bias),
                          widened(l.v_bias),
                          widened(l.o_bias),
                          widened(l.gate_bias),
                          widened(l.up_bias),
                          widened(l.down_bias)});
    final_norm = {widened(w.final_norm), widened(w.final_norm_bias)};
    output_bias = widened(w.output_bias);
}

void ModelTables::angles(int position, float* cosine, float* sine) const {
    const Rotary& rotary = config_->rotary;
    for (std::size_t i = 0; i < rotary.inverse_frequency.size(); ++i) {
        const double angle = position * rotary.inverse_frequency[i];
        cosine[i] = static_cast<float>(std::cos(angle) * static_cast<double>(rotary.magnitude));
        sine[i] = static_cast<float>(std::sin(angle) * static_cast<double>(rotary.magnitude));
    }
}

void ModelTables::normalize(const Norm& norm, std::span<const float> x, float* out) const {
    if (norm.gain.empty()) {
        if (out != x.data()) std::copy(x.begin(), x.end(), out);
    } else if (config_->norm == NormKind::rms) {
        rms_norm(x, norm.gain.data(), config_->norm_eps, out);
    } else {
        layer_norm(x, norm.gain.data(), or_null(norm.bias), config_->norm_eps, out);
    }
}

void ModelTables::norm_and_rotate(float* x, const std::vector<float>& norm, const float* cosine,
                                  const float* sine) const {
    if (config_->clip_qkv > 0) clip(x, config_->clip_qkv, config_->head_dim);
    if (!norm.empty()) rms_norm({x, norm.size()}, norm.data(), config_->norm_eps, x);
    if (config_->rotary.dims > 0 && cosine != nullptr) rotate_head(x, cosine, sine, config_->rotary);
}

}  // namespace keyhole
