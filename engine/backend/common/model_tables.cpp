#include "engine/backend/common/model_tables.h"

#include "engine/backend/common/kernels.h"
#include "engine/base/index.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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
    const auto gain = [this](const Weight& weight) {
        std::vector<float> values = widened(weight);
        if (config_->norm_offset != 0)
            for (float& value : values) value += config_->norm_offset;
        return values;
    };
    const auto norm = [&](const Weight& weight, const Weight& bias) {
        return Norm{gain(weight), widened(bias)};
    };
    for (const LayerWeights& l : w.layers) {
        Layer& t = layers.emplace_back();
        t.attention_norm = norm(l.attention_norm, l.attention_norm_bias);
        t.mlp_norm = norm(l.mlp_norm, l.mlp_norm_bias);
        t.attention_out_norm = norm(l.attention_out_norm, {});
        t.mlp_out_norm = norm(l.mlp_out_norm, {});
        (l.q_norm.rows > config_->head_dim ? t.q_width_norm : t.q_norm) = gain(l.q_norm);
        (l.k_norm.rows > config_->head_dim ? t.k_width_norm : t.k_norm) = gain(l.k_norm);
        t.q_bias = widened(l.q_bias);
        t.k_bias = widened(l.k_bias);
        t.v_bias = widened(l.v_bias);
        t.o_bias = widened(l.o_bias);
        t.gate_bias = widened(l.gate_bias);
        t.up_bias = widened(l.up_bias);
        t.down_bias = widened(l.down_bias);
        t.sinks = widened(l.sinks);
        t.router_bias = widened(l.router_bias);
        for (const ExpertWeights& e : l.experts)
            t.experts.push_back({widened(e.gate_bias), widened(e.up_bias), widened(e.down_bias)});
    }
    embedding_norm = norm(w.embedding_norm, w.embedding_norm_bias);
    final_norm = norm(w.final_norm, w.final_norm_bias);
    output_bias = widened(w.output_bias);
}

void ModelTables::angles(const Rotary& rotary, int position, int n_tokens, float* cosine, float* sine) const {
    const auto write = [&](const std::vector<double>& frequencies) {
        for (std::size_t i = 0; i < frequencies.size(); ++i) {
            const double angle = position * frequencies[i];
            cosine[i] = static_cast<float>(std::cos(angle) * static_cast<double>(rotary.magnitude));
            sine[i] = static_cast<float>(std::sin(angle) * static_cast<double>(rotary.magnitude));
        }
    };
    if (rotary.changes_with_length())
        write(rotary.frequencies_for(n_tokens));
    else
        write(rotary.inverse_frequency);
}

void ModelTables::angles(int position, int n_tokens, float* cosine, float* sine) const {
    angles(config_->rotary, position, n_tokens, cosine, sine);
}

void ModelTables::normalize_width(const std::vector<float>& norm, float* x) const {
    if (!norm.empty()) rms_norm({x, norm.size()}, norm.data(), config_->norm_eps, x);
}

void ModelTables::add_branch(const Norm& norm, float* branch, std::int64_t n_rows, float* x) const {
    const auto d = to_index(config_->d_model);
    for (std::int64_t i = 0; i < n_rows && !norm.gain.empty(); ++i)
        normalize(norm, {branch + to_index(i) * d, d}, branch + to_index(i) * d);
    const std::int64_t n = n_rows * config_->d_model;
    if (config_->residual_scale != 1)
        for (std::int64_t i = 0; i < n; ++i) branch[i] *= config_->residual_scale;
    add_to(x, branch, n);
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

void finish_logits(const ModelConfig& config, float* logits) {
    if (config.logit_scale != 1)
        for (int v = 0; v < config.n_vocab; ++v) logits[v] *= config.logit_scale;
    if (config.logit_cap > 0) soft_cap(logits, config.logit_cap, config.n_vocab);
}

void choose_experts(const ModelConfig& config, float* logits, std::vector<int>& chosen,
                    std::vector<float>& weights) {
    softmax(logits, config.n_experts, logits);
    chosen.resize(to_index(config.n_experts));
    std::iota(chosen.begin(), chosen.end(), 0);
    const auto n = to_index(config.n_experts_used);
    std::partial_sort(
        chosen.begin(), chosen.begin() + static_cast<std::ptrdiff_t>(n), chosen.end(),
        [logits](int a, int b) { return logits[a] > logits[b] || (logits[a] == logits[b] && a < b); });
    chosen.resize(n);
    weights.clear();
    float sum = 0;
    for (const int expert : chosen) {
        weights.push_back(logits[expert]);
        sum += logits[expert];
    }
    if (config.experts_sum_to_one)
        for (float& weight : weights) weight /= sum;
}

void begin_experts(const ModelConfig& config, RowOutput& out) {
    const int n = config.n_experts > 0 ? config.n_layers * config.n_experts_used : 0;
    out.experts.assign(to_index(n), RowOutput::kNoExpert);
}

void keep_experts(std::span<const int> chosen, int layer, RowOutput& out) {
    const std::size_t first = to_index(layer) * chosen.size();
    for (std::size_t i = 0; i < chosen.size(); ++i)
        out.experts[first + i] = static_cast<std::uint16_t>(chosen[i]);
}

}  // namespace keyhole
