#include "tests/reference/reference_model.h"

#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <numbers>
#include <stdexcept>
#include <string>

namespace reference {
namespace {

// IEEE 754 binary16: sign, 5 bits of exponent (bias 15), 10 of fraction.
double double_from_fp16(unsigned bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits >> 10) & 31u);
    const double fraction = static_cast<double>(bits & 1023u) / 1024.0;
    if (exponent == 0) return sign * std::ldexp(fraction, -14);
    return sign * std::ldexp(1.0 + fraction, exponent - 15);
}

// bfloat16: sign, 8 bits of exponent (bias 127), 7 of fraction.
double double_from_bf16(unsigned bits) {
    const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
    const int exponent = static_cast<int>((bits >> 7) & 255u);
    const double fraction = static_cast<double>(bits & 127u) / 128.0;
    if (exponent == 0) return sign * std::ldexp(fraction, -126);
    return sign * std::ldexp(1.0 + fraction, exponent - 127);
}

std::string read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("reference: cannot read " + path.string());
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

struct TensorFile {
    std::string bytes;
    nlohmann::json header;
    std::size_t data_begin = 0;

    explicit TensorFile(const std::filesystem::path& path) : bytes(read_file(path)) {
        std::uint64_t length = 0;
        std::memcpy(&length, bytes.data(), 8);
        header = nlohmann::json::parse(bytes.substr(8, length));
        data_begin = 8 + length;
    }

    Matrix matrix(const std::string& name) const {
        const nlohmann::json& entry = header.at(name);
        Matrix m;
        m.rows = entry["shape"][0];
        m.cols = entry["shape"].size() > 1 ? entry["shape"][1].get<int>() : 1;
        const char* at = bytes.data() + data_begin + entry["data_offsets"][0].get<std::size_t>();
        const std::string dtype = entry["dtype"];
        for (int i = 0; i < m.rows * m.cols; ++i) {
            if (dtype == "F32") {
                float value;
                std::memcpy(&value, at + 4 * i, 4);
                m.values.push_back(static_cast<double>(value));
            } else {
                std::uint16_t value;
                std::memcpy(&value, at + 2 * i, 2);
                m.values.push_back(dtype == "F16" ? double_from_fp16(value) : double_from_bf16(value));
            }
        }
        return m;
    }
    Vector vector(const std::string& name) const { return matrix(name).values; }
};

Vector times(const Matrix& w, const Vector& x) {
    Vector y(keyhole::to_index(w.rows), 0.0);
    for (int r = 0; r < w.rows; ++r)
        for (int c = 0; c < w.cols; ++c)
            y[keyhole::to_index(r)] += w.values[keyhole::to_index(r * w.cols + c)] * x[keyhole::to_index(c)];
    return y;
}

void add_to(Vector& x, const Vector& y) {
    for (std::size_t i = 0; i < y.size(); ++i) x[i] += y[i];
}

Vector affine(const Matrix& w, const Vector& bias, const Vector& x) {
    Vector y = times(w, x);
    add_to(y, bias);
    return y;
}

Vector rms_norm(const Vector& x, const Vector& gain, double eps) {
    double squares = 0;
    for (double value : x) squares += value * value;
    const double scale = 1.0 / std::sqrt(squares / static_cast<double>(x.size()) + eps);
    Vector y = x;
    for (std::size_t i = 0; i < x.size(); ++i) y[i] = x[i] * scale * gain[i];
    return y;
}

Vector normed_by(const Weights& w, const Vector& gain, const Vector& bias, const Vector& x) {
    if (gain.empty()) return x;
    if (!w.layer_norm) return rms_norm(x, gain, w.norm_eps);
    const double n = static_cast<double>(x.size());
    double mean = 0, variance = 0;
    for (double value : x) mean += value / n;
    for (double value : x) variance += (value - mean) * (value - mean) / n;
    Vector y = x;
    for (std::size_t i = 0; i < x.size(); ++i)
        y[i] = (x[i] - mean) / std::sqrt(variance + w.norm_eps) * gain[i];
    add_to(y, bias);
    return y;
}

double activated(Act act, double x) {
    switch (act) {
        case Act::silu:
            return x / (1.0 + std::exp(-x));
        case Act::gelu:
            return x * 0.5 * std::erfc(-x / std::sqrt(2.0));
        case Act::gelu_tanh:
            return 0.5 * x *
                   (1.0 + std::tanh(std::sqrt(2.0 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
        case Act::relu:
            return std::max(x, 0.0);
        case Act::clamped_swiglu:
            break;  // gate_by()
    }
    return x;
}

// gate <- act(gate) * up, or what gpt-oss makes of the two.
void gate_by(Act act, Vector& gate, const Vector& up) {
    for (std::size_t i = 0; i < gate.size(); ++i) {
        if (act != Act::clamped_swiglu) {
            gate[i] = activated(act, gate[i]) * up[i];
            continue;
        }
        const double g = std::min(gate[i], 7.0);
        gate[i] = g / (1.0 + std::exp(-1.702 * g)) * (std::clamp(up[i], -7.0, 7.0) + 1.0);
    }
}

Vector softmax_of_all(const Vector& x) {
    const double most = *std::max_element(x.begin(), x.end());
    Vector p = x;
    double sum = 0;
    for (double& value : p) sum += value = std::exp(value - most);
    for (double& value : p) value /= sum;
    return p;
}

Vector mlp_of_experts(const Weights& w, const LayerWeights& layer, const Vector& x) {
    Vector p = softmax_of_all(affine(layer.router, layer.router_bias, x));
    Vector out(x.size(), 0.0);
    std::vector<std::pair<double, std::size_t>> best;
    for (std::size_t e = 0; e < p.size(); ++e) best.emplace_back(-p[e], e);
    std::sort(best.begin(), best.end());
    best.resize(keyhole::to_index(w.experts_used));
    double sum = 0;
    for (const auto& [negative, e] : best) sum -= negative;
    for (const auto& [negative, e] : best) {
        const LayerWeights::Expert& expert = layer.experts[e];
        Vector hidden = affine(expert.gate, expert.gate_bias, x);
        gate_by(w.act, hidden, affine(expert.up, expert.up_bias, x));
        Vector made = affine(expert.down, expert.down_bias, hidden);
        for (double& value : made) value *= -negative / (w.experts_sum_to_one ? sum : 1.0);
        add_to(out, made);
    }
    return out;
}

Vector mlp(const Weights& w, const LayerWeights& layer, const Vector& x) {
    if (!layer.experts.empty()) return mlp_of_experts(w, layer, x);
    Vector hidden = affine(layer.up, layer.up_bias, x);
    if (layer.gate.values.empty()) {
        for (double& value : hidden) value = activated(w.act, value);
    } else {
        Vector gate = affine(layer.gate, layer.gate_bias, x);
        gate_by(w.act, gate, hidden);
        hidden = gate;
    }
    return affine(layer.down, layer.down_bias, hidden);
}

Vector head_of(const Vector& all, int head, int head_dim) {
    return {all.begin() + head * head_dim, all.begin() + (head + 1) * head_dim};
}

Vector clipped(Vector x, double limit) {
    if (limit > 0)
        for (double& value : x) value = std::clamp(value, -limit, limit);
    return x;
}

double soft_capped(double x, double cap) {
    return cap > 0 ? cap * std::tanh(x / cap) : x;
}

// RoPE: rotates channels c and c + dims / 2 (interleaved: 2 c and 2 c + 1) by the angle
// position * inverse_frequency[c].
Vector rotated(const Weights& w, const Vector& x, const std::vector<ChannelAngle>& angles) {
    const std::size_t half = angles.size();
    Vector y = x;
    for (std::size_t c = 0; c < half; ++c) {
        const std::size_t a = w.interleaved ? 2 * c : c, b = w.interleaved ? 2 * c + 1 : c + half;
        y[a] = angles[c].magnitude * (x[a] * angles[c].cos - x[b] * angles[c].sin);
        y[b] = angles[c].magnitude * (x[b] * angles[c].cos + x[a] * angles[c].sin);
    }
    return y;
}

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
}

// Owner layers are int(i * L / m); returns the nearest owner at or below.
int nearest_owner(int layer, int n_layers, int n_kv_layers) {
    int nearest = 0;
    for (int i = 1; i < n_kv_layers; ++i)
        if (i * n_layers / n_kv_layers <= layer) nearest = i * n_layers / n_kv_layers;
    return nearest;
}

}  // namespace

Weights load_weights(const std::filesystem::path& folder) {
    const nlohmann::json config = nlohmann::json::parse(read_file(folder / "config.json"));
    const TensorFile file(folder / "model.safetensors");
    Weights w;
    w.n_layers = config["num_hidden_layers"];
    w.n_heads = config["num_attention_heads"];
    w.n_kv_heads = config["num_key_value_heads"];
    w.d_model = config["hidden_size"];
    w.head_dim = config.value("head_dim", w.d_model / w.n_heads);
    w.d_ff = config["intermediate_size"];
    w.n_vocab = config["vocab_size"];
    w.norm_eps = config["rms_norm_eps"];
    w.rotary_dims = w.head_dim;  // theta^(-2 c / d)
    for (int c = 0; c < w.head_dim / 2; ++c)
        w.inverse_frequency.push_back(std::pow(config["rope_theta"].get<double>(), -2.0 * c / w.head_dim));
    w.embedding = file.matrix("model.embed_tokens.weight");
    w.final_norm = file.vector("model.norm.weight");
    w.output = config["tie_word_embeddings"] ? w.embedding : file.matrix("lm_head.weight");
    const int n_kv_layers = config.value("num_key_value_layers", w.n_layers);
    for (int l = 0; l < w.n_layers; ++l) w.owner.push_back(nearest_owner(l, w.n_layers, n_kv_layers));
    w.borrows_unrotated = config.value("keyhole_borrows_unrotated", false);
    for (int l = 0; l < w.n_layers; ++l) {
        const std::string at = "model.layers." + std::to_string(l) + ".";
        w.layers.push_back({file.vector(at + "input_layernorm.weight"),
                            file.matrix(at + "self_attn.q_proj.weight"),
                            w.owns(l) ? file.matrix(at + "self_attn.k_proj.weight") : Matrix(),
                            w.owns(l) ? file.matrix(at + "self_attn.v_proj.weight") : Matrix(),
                            file.matrix(at + "self_attn.o_proj.weight"),
                            file.vector(at + "post_attention_layernorm.weight"),
                            file.matrix(at + "mlp.gate_proj.weight"),
                            file.matrix(at + "mlp.up_proj.weight"),
                            file.matrix(at + "mlp.down_proj.weight"),
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {},
                            {}});
    }
    return w;
}

namespace {

Matrix matrix_of(const keyhole::Weight& weight) {
    Matrix m;
    if (weight.data == nullptr) return m;
    m.rows = static_cast<int>(weight.rows);
    m.cols = static_cast<int>(weight.cols);
    if (keyhole::is_quantised(weight.dtype)) {  // what the values are is the loader's concern
        std::vector<float> values(static_cast<std::size_t>(m.rows) * static_cast<std::size_t>(m.cols));
        keyhole::widen_stored(weight.dtype, weight.data, weight.rows * weight.cols, values.data());
        m.values.assign(values.begin(), values.end());
        return m;
    }
    const char* at = static_cast<const char*>(weight.data);
    for (int i = 0; i < m.rows * m.cols; ++i) {
        float single = 0;
        std::uint16_t bits = 0;
        if (weight.dtype == keyhole::DType::f32) {
            std::memcpy(&single, at + 4 * i, 4);
            m.values.push_back(static_cast<double>(single));
            continue;
        }
        std::memcpy(&bits, at + 2 * i, 2);
        m.values.push_back(weight.dtype == keyhole::DType::f16 ? double_from_fp16(bits)
                                                               : double_from_bf16(bits));
    }
    return m;
}

Vector vector_of(const keyhole::Weight& weight) {
    return matrix_of(weight).values;
}

}  // namespace

Weights weights_of(const keyhole::Model& model) {
    const keyhole::ModelConfig& c = model.config();
    const keyhole::ModelWeights& from = model.weights();
    Weights w;
    w.n_layers = c.n_layers;
    w.n_heads = c.n_heads;
    w.n_kv_heads = c.n_kv_heads;
    w.head_dim = c.head_dim;
    w.d_model = c.d_model;
    w.d_ff = c.d_ff;
    w.n_vocab = c.n_vocab;
    w.norm_eps = static_cast<double>(c.norm_eps);
    w.layer_norm = c.norm == keyhole::NormKind::layer;
    w.parallel = c.parallel;
    w.shared_norm = c.shared_norm;
    w.post_norm = c.post_norm;
    w.act = static_cast<Act>(c.activation);
    if (c.positions == keyhole::PositionKind::rotary) w.rotary_dims = c.rotary.dims;
    w.interleaved = c.rotary.interleaved;
    w.inverse_frequency = c.rotary.inverse_frequency;
    w.magnitude = static_cast<double>(c.rotary.magnitude);
    if (c.positions == keyhole::PositionKind::alibi)
        w.alibi_slopes.assign(c.alibi_slopes.begin(), c.alibi_slopes.end());
    w.attention_scale = static_cast<double>(c.attention_scale);
    w.clip_qkv = static_cast<double>(c.clip_qkv);
    w.window = c.window;
    w.position_offset = c.position_offset;
    w.local_frequency = c.local_rotary.inverse_frequency;
    w.local_magnitude = static_cast<double>(c.local_rotary.magnitude);
    w.unrotated = c.unrotated;
    w.embedding_scale = static_cast<double>(c.embedding_scale);
    w.residual_scale = static_cast<double>(c.residual_scale);
    w.logit_scale = static_cast<double>(c.logit_scale);
    w.logit_cap = static_cast<double>(c.logit_cap);
    w.attention_cap = static_cast<double>(c.attention_cap);
    w.experts_used = c.n_experts_used;
    w.experts_sum_to_one = c.experts_sum_to_one;
    const auto gain_of = [&](const keyhole::Weight& weight) {
        Vector gain = vector_of(weight);
        for (double& value : gain) value += static_cast<double>(c.norm_offset);
        return gain;
    };
    w.embedding = matrix_of(from.embedding);
    w.embedding_norm = gain_of(from.embedding_norm);
    w.embedding_norm_bias = vector_of(from.embedding_norm_bias);
    if (c.positions == keyhole::PositionKind::learned)
        w.position_embedding = matrix_of(from.position_embedding);
    w.project_in = matrix_of(from.project_in);
    w.project_out = matrix_of(from.project_out);
    w.final_norm = gain_of(from.final_norm);
    w.final_norm_bias = vector_of(from.final_norm_bias);
    w.output = matrix_of(from.output);
    w.output_bias = vector_of(from.output_bias);
    for (const keyhole::LayerWeights& l : from.layers) {
        w.layers.push_back({gain_of(l.attention_norm),
                            matrix_of(l.q),
                            matrix_of(l.k),
                            matrix_of(l.v),
                            matrix_of(l.o),
                            gain_of(l.mlp_norm),
                            matrix_of(l.gate),
                            matrix_of(l.up),
                            matrix_of(l.down),
                            vector_of(l.attention_norm_bias),
                            vector_of(l.mlp_norm_bias),
                            vector_of(l.q_bias),
                            vector_of(l.k_bias),
                            vector_of(l.v_bias),
                            vector_of(l.o_bias),
                            vector_of(l.gate_bias),
                            vector_of(l.up_bias),
                            vector_of(l.down_bias),
                            gain_of(l.q_norm),
                            gain_of(l.k_norm),
                            gain_of(l.attention_out_norm),
                            gain_of(l.mlp_out_norm),
                            vector_of(l.sinks),
                            matrix_of(l.router),
                            vector_of(l.router_bias),
                            {}});
        for (const keyhole::ExpertWeights& e : l.experts)
            w.layers.back().experts.push_back({matrix_of(e.gate), matrix_of(e.up), matrix_of(e.down),
                                               vector_of(e.gate_bias), vector_of(e.up_bias),
                                               vector_of(e.down_bias)});
    }
    return w;
}

namespace {

// values [heads, per_head]: returns the mean of each `group` neighbours.
Vector mean_of_groups(const Vector& values, std::size_t per_head, std::size_t group) {
    Vector out;
    for (std::size_t first = 0; first < values.size(); first += group * per_head)
        for (std::size_t i = 0; i < per_head; ++i) {
            double sum = 0;
            for (std::size_t j = 0; j < group; ++j) sum += values[first + j * per_head + i];
            out.push_back(sum / static_cast<double>(group));
        }
    return out;
}

}  // namespace

Weights shared_weights(const Weights& weights, int n_kv_layers, int n_kv_heads, bool released) {
    Weights out = weights;
    const auto group = keyhole::to_index(weights.n_kv_heads / n_kv_heads);
    out.n_kv_heads = n_kv_heads;
    out.owner.clear();
    for (int l = 0; l < weights.n_layers; ++l)
        out.owner.push_back(nearest_owner(l, weights.n_layers, n_kv_layers));
    out.borrows_unrotated = released && n_kv_layers < weights.n_layers;
    const auto merge = [&](std::size_t owner, auto values_of, std::size_t per_head) {
        Vector merged;
        double n = 0;
        for (std::size_t l = owner; l < out.layers.size() && out.owner[l] == static_cast<int>(owner);
             ++l, ++n) {
            const Vector next = mean_of_groups(values_of(weights.layers[l]), per_head, group);
            if (n == 0) merged = next;
            for (std::size_t i = 0; n > 0 && i < merged.size(); ++i)
                merged[i] =
                    released ? (merged[i] + next[i]) / 2 : merged[i] + (next[i] - merged[i]) / (n + 1);
        }
        return merged;
    };
    const auto d = keyhole::to_index(weights.head_dim), cols = keyhole::to_index(weights.d_model);
    for (std::size_t l = 0; l < out.layers.size(); ++l) {
        LayerWeights& layer = out.layers[l];
        if (!out.owns(static_cast<int>(l))) {
            layer.k = layer.v = {};
            layer.k_bias = layer.v_bias = {};
            continue;
        }
        layer.k.values = merge(
            l, [](const LayerWeights& w) { return w.k.values; }, d * cols);
        layer.v.values = merge(
            l, [](const LayerWeights& w) { return w.v.values; }, d * cols);
        layer.k.rows = layer.v.rows = n_kv_heads * weights.head_dim;
        if (layer.k_bias.empty()) continue;
        layer.k_bias = merge(
            l, [](const LayerWeights& w) { return w.k_bias; }, d);
        layer.v_bias = merge(
            l, [](const LayerWeights& w) { return w.v_bias; }, d);
    }
    return out;
}

PositionSets empty_sets(const Weights& weights) {
    return PositionSets(keyhole::to_index(weights.n_layers),
                        std::vector<std::set<int>>(keyhole::to_index(weights.n_kv_heads)));
}

Vector softmax(const Vector& logits) {
    double maximum = -std::numeric_limits<double>::infinity();
    for (double logit : logits)
        if (!std::isnan(logit)) maximum = std::max(maximum, logit);
    Vector p(logits.size(), 0.0);
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i)
        if (!std::isnan(logits[i])) sum += p[i] = std::exp(logits[i] - maximum);
    for (double& value : p) value /= sum;
    return p;
}

Sequence::Sequence(const Weights& weights) : weights_(weights) {
    const std::vector<std::vector<Vector>> layer(keyhole::to_index(weights.n_kv_heads));
    keys_.assign(keyhole::to_index(weights.n_layers), layer);
    values_ = keys_;
    queries_.assign(keyhole::to_index(weights.n_layers),
                    std::vector<std::vector<Vector>>(keyhole::to_index(weights.n_heads)));
}

const Vector& Sequence::raw_key(int layer, int kv_head, int position) const {
    return keys_[keyhole::to_index(layer)][keyhole::to_index(kv_head)][keyhole::to_index(position)];
}

const Vector& Sequence::raw_query(int layer, int head, int position) const {
    return queries_[keyhole::to_index(layer)][keyhole::to_index(head)][keyhole::to_index(position)];
}

const Vector& Sequence::value(int layer, int kv_head, int position) const {
    return values_[keyhole::to_index(layer)][keyhole::to_index(kv_head)][keyhole::to_index(position)];
}

Vector Sequence::turned(int layer, const Vector& x, double place) const {
    std::vector<ChannelAngle> angles;
    for (const double frequency : weights_.frequency_of(layer))
        angles.push_back({std::cos(place * frequency), std::sin(place * frequency), weights_.magnitude});
    return rotated(weights_, x, angles);
}

std::vector<int> places_of(Places places, const std::vector<int>& positions) {
    std::vector<int> out;
    int sum = 0, last = 0;
    for (std::size_t i = 0; i < positions.size(); ++i) {
        const double gap = positions[i] - last;
        last = positions[i];
        sum +=
            static_cast<int>(gap > 10 ? std::ceil(10 + std::log(std::log(gap - 10 + std::exp(1.0)))) : gap);
        out.push_back(places == Places::original ? positions[i]
                      : places == Places::cache  ? static_cast<int>(i)
                                                 : sum);
    }
    return out;
}

Vector Sequence::key(int layer, int kv_head, int position) {
    const Vector& stored =
        keys_[keyhole::to_index(layer)][keyhole::to_index(kv_head)][keyhole::to_index(position)];
    return rotated(weights_, stored, angles_at(layer, position));
}

const std::vector<ChannelAngle>& Sequence::angles_at(int layer, int position) {
    angles_.resize(weights_.layers.size());
    auto& angles = angles_[keyhole::to_index(layer)];
    const bool rotates = weights_.rotary_dims > 0 &&
                         (weights_.unrotated.empty() || !weights_.unrotated[keyhole::to_index(layer)]);
    const Vector frequencies = rotates ? weights_.frequency_of(layer) : Vector();
    const bool is_local = frequencies != weights_.inverse_frequency;
    const double magnitude = is_local ? weights_.local_magnitude : weights_.magnitude;
    while (angles.size() <= keyhole::to_index(position)) {
        const auto p = static_cast<double>(angles.size());
        std::vector<ChannelAngle>& here = angles.emplace_back();
        for (const double frequency : frequencies)
            here.push_back({std::cos(p * frequency), std::sin(p * frequency), magnitude});
    }
    return angles[keyhole::to_index(position)];
}

void Sequence::round_stored(Vector& key, Vector& value, int layer, int position) {
    const std::vector<ChannelAngle>& angles = angles_at(layer, position);
    std::vector<ChannelAngle> back = angles;
    for (ChannelAngle& angle : back) angle.sin = -angle.sin;
    Vector turned = rotated(weights_, key, angles);
    rounding_(turned);
    key = rotated(weights_, turned, back);
    rounding_(value);
}

void Sequence::store_as(Rounding rounding) {
    rounding_ = std::move(rounding);
    for (std::size_t l = 0; l < keys_.size(); ++l)
        for (std::size_t g = 0; g < keys_[l].size(); ++g)
            for (std::size_t p = 0; p < keys_[l][g].size(); ++p)
                round_stored(keys_[l][g][p], values_[l][g][p], static_cast<int>(l), static_cast<int>(p));
}

Row Sequence::feed(int token, const PositionSets& visible, Places places, bool sees_itself, int call_begin) {
    const Weights& w = weights_;
    if (call_begin < 0) call_begin = next_row_;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    const double scale =
        w.attention_scale > 0 ? w.attention_scale : 1.0 / std::sqrt(static_cast<double>(w.head_dim));
    Row out;
    out.row = next_row_;
    const auto row_of = [](const Matrix& m, int r) {
        return Vector(m.values.begin() + r * m.cols, m.values.begin() + (r + 1) * m.cols);
    };
    Vector x = row_of(w.embedding, token);
    if (!w.project_in.values.empty()) x = times(w.project_in, x);
    for (double& value : x) value *= w.embedding_scale;
    x = normed_by(w, w.embedding_norm, w.embedding_norm_bias, x);
    if (!w.position_embedding.values.empty())
        add_to(x, row_of(w.position_embedding, next_row_ + w.position_offset));
    for (std::size_t l = 0; l < w.layers.size(); ++l) {
        const LayerWeights& layer = w.layers[l];
        const int window = w.window.empty() ? 0 : w.window[l];
        const Vector normed =
            w.post_norm ? x : normed_by(w, layer.attention_norm, layer.attention_norm_bias, x);
        const auto of_all = [&](const Vector& gain) { return gain.size() > keyhole::to_index(w.head_dim); };
        const auto made = [&](const Matrix& m, const Vector& bias, const Vector& gain) {
            const Vector made_by = affine(m, bias, normed);
            return clipped(of_all(gain) ? rms_norm(made_by, gain, w.norm_eps) : made_by, w.clip_qkv);
        };
        const Vector q = made(layer.q, layer.q_bias, layer.q_norm);
        const auto owner = keyhole::to_index(w.owner_of(static_cast<int>(l)));
        for (int g = 0; g < w.n_kv_heads && owner == l; ++g) {
            const Vector k = made(layer.k, layer.k_bias, layer.k_norm), v = made(layer.v, layer.v_bias, {});
            const bool by_head = !layer.k_norm.empty() && !of_all(layer.k_norm);
            const auto at = keyhole::to_index(g);
            const Vector key = head_of(k, g, w.head_dim);
            keys_[l][at].push_back(by_head ? rms_norm(key, layer.k_norm, w.norm_eps) : key);
            values_[l][at].push_back(head_of(v, g, w.head_dim));
            if (rounding_)
                round_stored(keys_[l][at].back(), values_[l][at].back(), static_cast<int>(l), next_row_);
        }
        Vector mixed;
        out.attention.emplace_back();
        out.logits.emplace_back();
        out.full.emplace_back();
        out.output_similarity.emplace_back();
        for (int h = 0; h < w.n_heads; ++h) {
            const auto g = keyhole::to_index(h / (w.n_heads / w.n_kv_heads));
            const double slope = w.alibi_slopes.empty() ? 0.0 : w.alibi_slopes[keyhole::to_index(h)];
            Vector q_head = head_of(q, h, w.head_dim);
            if (!layer.q_norm.empty() && !of_all(layer.q_norm))
                q_head = rms_norm(q_head, layer.q_norm, w.norm_eps);
            queries_[l][keyhole::to_index(h)].push_back(q_head);
            const auto logit = [&](int p, int key_place, int query_place) {
                const Vector& key = keys_[owner][g][keyhole::to_index(p)];
                const bool raw = w.borrows_unrotated && owner != l && p >= call_begin;
                const Vector turned = rotated(w, q_head, angles_at(static_cast<int>(l), query_place));
                const double product =
                    scale *
                    dot(turned, raw ? key : rotated(w, key, angles_at(static_cast<int>(l), key_place)));
                return soft_capped(product, w.attention_cap) + slope * (key_place - query_place);
            };
            const auto mix = [&](const Vector& attention) {
                Vector output(keyhole::to_index(w.head_dim), 0.0);
                for (std::size_t p = 0; p < attention.size(); ++p)
                    for (std::size_t c = 0; c < output.size(); ++c)
                        output[c] += attention[p] * values_[owner][g][p][c];
                return output;
            };
            const auto beyond_window = [&](int p) { return window > 0 && p <= next_row_ - window; };
            std::set<int> stored = visible[owner][g];
            stored.insert(next_row_);  // the query stands at its own token's place
            if (reads_)
                stored = reads_(static_cast<int>(l), h,
                                rotated(w, q_head, angles_at(static_cast<int>(l), next_row_)), stored);
            const std::vector<int> seen(stored.begin(), stored.end());
            const std::vector<int> place = places_of(places, seen);
            // A head that reads a part may not read its own token.
            const int here = reads_ ? next_row_ : place.back();
            Vector logits(keyhole::to_index(next_row_ + 1), nan), every = logits;
            for (std::size_t i = 0; i < seen.size(); ++i)
                if ((seen[i] != next_row_ || sees_itself) && !beyond_window(seen[i]))
                    logits[keyhole::to_index(seen[i])] = logit(seen[i], place[i], here);
            for (int p = 0; p <= next_row_; ++p)
                if (!beyond_window(p)) every[keyhole::to_index(p)] = logit(p, p, next_row_);
            const auto attend = [&](const Vector& row) {
                if (layer.sinks.empty()) return softmax(row);
                Vector and_sink = row;  // the sink is one more place to attend to, without a value
                and_sink.push_back(layer.sinks[keyhole::to_index(h)]);
                Vector p = softmax(and_sink);
                p.pop_back();
                return p;
            };
            const Vector attention = attend(logits), full = attend(every);
            const Vector output = mix(attention), full_output = mix(full);
            mixed.insert(mixed.end(), output.begin(), output.end());
            out.attention.back().push_back(attention);
            out.logits.back().push_back(logits);
            out.full.back().push_back(full);
            out.output_similarity.back().push_back(
                dot(output, full_output) / std::sqrt(dot(output, output) * dot(full_output, full_output)));
        }
        const auto add_branch = [&](Vector branch, const Vector& gain) {
            if (!gain.empty()) branch = normed_by(w, gain, {}, branch);
            for (double& value : branch) value *= w.residual_scale;
            add_to(x, branch);
        };
        const Vector before = x;
        add_branch(affine(layer.o, layer.o_bias, mixed), layer.attention_out_norm);
        if (w.parallel) {
            add_branch(
                mlp(w, layer,
                    w.shared_norm ? normed : normed_by(w, layer.mlp_norm, layer.mlp_norm_bias, before)),
                layer.mlp_out_norm);
        } else if (w.post_norm) {
            x = normed_by(w, layer.attention_norm, layer.attention_norm_bias, x);
            add_to(x, mlp(w, layer, x));
            x = normed_by(w, layer.mlp_norm, layer.mlp_norm_bias, x);
        } else {
            add_branch(mlp(w, layer, normed_by(w, layer.mlp_norm, layer.mlp_norm_bias, x)),
                       layer.mlp_out_norm);
        }
    }
    x = normed_by(w, w.final_norm, w.final_norm_bias, x);
    if (!w.project_out.values.empty()) x = times(w.project_out, x);
    out.next_logits = affine(w.output, w.output_bias, x);
    for (double& logit : out.next_logits) logit = soft_capped(logit * w.logit_scale, w.logit_cap);
    ++next_row_;
    return out;
}

}  // namespace reference
