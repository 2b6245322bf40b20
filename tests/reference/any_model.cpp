#include "tests/reference/any_model.h"

#include "engine/base/half.h"
#include "engine/base/index.h"
#include "tests/reference/source_folder.h"

#include <cmath>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

namespace reference {
namespace {

using keyhole::Weight;

/// Draws random weights and keeps them in memory.
class Drawer {
  public:
    Drawer(std::uint64_t seed, keyhole::DType dtype)
        : random_(seed), dtype_(dtype), kept_(std::make_shared<std::deque<std::vector<float>>>()) {}

    /// Uniform about `middle` with the given standard deviation.
    Weight draw(int rows, int cols, double deviation, double middle = 0) {
        std::vector<float>& values = kept_->emplace_back();
        for (int i = 0; i < rows * cols; ++i) {
            const double centred = 2.0 * (static_cast<double>(random_() >> 11) / 9007199254740992.0) - 1.0;
            values.push_back(static_cast<float>(middle + deviation * std::sqrt(3.0) * centred));
        }
        return {keyhole::DType::f32, values.data(), rows, cols};
    }
    /// The same, in the type of the matrices.
    Weight matrix(int rows, int cols, double deviation) {
        Weight w = draw(rows, cols, deviation);
        if (dtype_ == keyhole::DType::f32) return w;
        std::vector<float>& values = kept_->back();  // its first half then holds the narrow ones
        auto* narrow = reinterpret_cast<std::uint16_t*>(values.data());
        for (std::size_t i = 0; i < values.size(); ++i) {
            const std::uint16_t bits = dtype_ == keyhole::DType::f16 ? keyhole::fp16_from_float(values[i])
                                                                     : keyhole::bf16_from_float(values[i]);
            std::memcpy(narrow + i, &bits, sizeof(bits));
        }
        w.dtype = dtype_;
        return w;
    }
    /// Inputs of deviation 1 give outputs of deviation 1.7, so that attention is not flat.
    Weight product(int rows, int cols) { return matrix(rows, cols, 1.7 / std::sqrt(cols)); }
    Weight gain(int n) { return draw(n, 1, 0.2, 1.0); }
    Weight bias(int n, bool wanted) { return wanted ? draw(n, 1, 0.3) : Weight(); }
    std::shared_ptr<const void> kept() const { return kept_; }

  private:
    std::mt19937_64 random_;
    keyhole::DType dtype_;
    std::shared_ptr<std::deque<std::vector<float>>> kept_;  // elements do not move when it grows
};

void draw_experts(const keyhole::ModelConfig& c, Drawer& drawer, bool biases, keyhole::LayerWeights& layer) {
    layer.router = drawer.product(c.n_experts, c.d_model);
    layer.router_bias = drawer.bias(c.n_experts, biases);
    for (int e = 0; e < c.n_experts; ++e)
        layer.experts.push_back({drawer.product(c.d_expert, c.d_model), drawer.product(c.d_expert, c.d_model),
                                 drawer.bias(c.d_expert, biases), drawer.bias(c.d_expert, biases),
                                 drawer.product(c.d_model, c.d_expert), drawer.bias(c.d_model, biases)});
}

}  // namespace

AnyShape any_shape() {
    AnyShape shape;
    keyhole::ModelConfig& c = shape.config;
    c.family = "any";
    c.n_layers = 2;
    c.n_heads = 4;
    c.n_kv_heads = 2;
    c.head_dim = 8;
    c.d_ff = 40;
    c.n_vocab = 258;
    c.n_ctx = 512;
    c.rotary.dims = c.head_dim;
    return shape;
}

std::shared_ptr<const keyhole::Model> any_model(AnyShape shape) {
    keyhole::ModelConfig& c = shape.config;
    if (c.d_model == 0) c.d_model = c.n_heads * c.head_dim;
    if (c.positions != keyhole::PositionKind::rotary) c.rotary = {};
    for (int i = 0; c.rotary.inverse_frequency.size() < keyhole::to_index(c.rotary.dims / 2); ++i)
        c.rotary.inverse_frequency.push_back(std::pow(10000.0, -2.0 * i / c.rotary.dims));
    if (c.positions == keyhole::PositionKind::alibi)
        for (int h = 0; h < c.n_heads; ++h)
            c.alibi_slopes.push_back(std::pow(0.5f, static_cast<float>(h + 1)));
    Drawer drawer(shape.seed, shape.dtype);
    keyhole::ModelWeights w;
    const int d = c.d_model, d_q = c.n_heads * c.head_dim, d_kv = c.n_kv_heads * c.head_dim;
    const int d_embed = shape.d_embed > 0 ? shape.d_embed : d;
    w.embedding = drawer.matrix(c.n_vocab, d_embed, 1.0);
    if (c.positions == keyhole::PositionKind::learned)
        w.position_embedding = drawer.matrix(c.n_ctx + c.position_offset, d, 1.0);
    if (shape.d_embed > 0) {
        w.project_in = drawer.product(d, d_embed);
        w.project_out = drawer.product(d_embed, d);
    }
    const bool b = shape.biases;
    if (shape.embedding_norm) {
        w.embedding_norm = drawer.gain(d);
        w.embedding_norm_bias = drawer.bias(d, b);
    }
    for (int l = 0; l < c.n_layers; ++l) {
        keyhole::LayerWeights& layer = w.layers.emplace_back();
        if (shape.input_norms) {
            layer.attention_norm = drawer.gain(d);
            layer.attention_norm_bias = drawer.bias(d, b);
        }
        layer.q = drawer.product(d_q, d);
        layer.k = drawer.product(d_kv, d);
        layer.v = drawer.product(d_kv, d);
        layer.q_bias = drawer.bias(d_q, b);
        layer.k_bias = drawer.bias(d_kv, b);
        layer.v_bias = drawer.bias(d_kv, b);
        if (shape.qk_norm) {
            layer.q_norm = drawer.gain(c.head_dim);
            layer.k_norm = drawer.gain(c.head_dim);
        }
        if (shape.width_norm) {
            layer.q_norm = drawer.gain(d_q);
            layer.k_norm = drawer.gain(d_kv);
        }
        if (c.has_sinks) layer.sinks = drawer.draw(c.n_heads, 1, 1.0);
        layer.o = drawer.product(d, d_q);
        layer.o_bias = drawer.bias(d, b);
        if (shape.out_norms) {
            layer.attention_out_norm = drawer.gain(d);
            layer.mlp_out_norm = drawer.gain(d);
        }
        if (!c.shared_norm && shape.input_norms) {
            layer.mlp_norm = drawer.gain(d);
            layer.mlp_norm_bias = drawer.bias(d, b);
        }
        if (c.n_experts > 0) {
            draw_experts(c, drawer, b, layer);
            continue;
        }
        if (shape.gate) layer.gate = drawer.product(c.d_ff, d);
        layer.up = drawer.product(c.d_ff, d);
        layer.gate_bias = drawer.bias(c.d_ff, b && shape.gate);
        layer.up_bias = drawer.bias(c.d_ff, b);
        layer.down = drawer.product(d, c.d_ff);
        layer.down_bias = drawer.bias(d, b);
    }
    if (shape.final_norm) {
        w.final_norm = drawer.gain(d);
        w.final_norm_bias = drawer.bias(d, b);
    }
    w.output = drawer.product(c.n_vocab, d_embed);
    w.output_bias = drawer.bias(c.n_vocab, shape.output_bias);
    return std::make_shared<const keyhole::Model>(
        "any", c, w,
        std::make_shared<const keyhole::Tokenizer>(
            keyhole::Tokenizer::from_file(source_folder() / "tests/fixtures/tokenizers/byte_level.json")),
        "any", drawer.kept());
}

}  // namespace reference
