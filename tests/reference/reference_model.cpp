#include "tests/reference/reference_model.h"

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
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
    Vector y(static_cast<std::size_t>(w.rows), 0.0);
    for (int r = 0; r < w.rows; ++r)
        for (int c = 0; c < w.cols; ++c)
            y[static_cast<std::size_t>(r)] +=
                w.values[static_cast<std::size_t>(r * w.cols + c)] * x[static_cast<std::size_t>(c)];
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

void add_to(Vector& x, const Vector& y) {
    for (std::size_t i = 0; i < x.size(); ++i) x[i] += y[i];
}

Vector head_of(const Vector& all, int head, int head_dim) {
    return {all.begin() + head * head_dim, all.begin() + (head + 1) * head_dim};
}

// RoPE of the Hugging Face LLaMA: channel c turns with channel c + d/2 by position * theta^(-2c/d).
Vector rotated(const Vector& x, int position, double theta) {
    const std::size_t half = x.size() / 2;
    Vector y = x;
    for (std::size_t c = 0; c < half; ++c) {
        const double angle =
            position * std::pow(theta, -2.0 * static_cast<double>(c) / static_cast<double>(x.size()));
        y[c] = x[c] * std::cos(angle) - x[c + half] * std::sin(angle);
        y[c + half] = x[c + half] * std::cos(angle) + x[c] * std::sin(angle);
    }
    return y;
}

double dot(const Vector& a, const Vector& b) {
    double sum = 0;
    for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
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
    w.rope_theta = config["rope_theta"];
    w.embedding = file.matrix("model.embed_tokens.weight");
    w.final_norm = file.vector("model.norm.weight");
    w.output = config["tie_word_embeddings"] ? w.embedding : file.matrix("lm_head.weight");
    for (int l = 0; l < w.n_layers; ++l) {
        const std::string at = "model.layers." + std::to_string(l) + ".";
        w.layers.push_back(
            {file.vector(at + "input_layernorm.weight"), file.matrix(at + "self_attn.q_proj.weight"),
             file.matrix(at + "self_attn.k_proj.weight"), file.matrix(at + "self_attn.v_proj.weight"),
             file.matrix(at + "self_attn.o_proj.weight"), file.vector(at + "post_attention_layernorm.weight"),
             file.matrix(at + "mlp.gate_proj.weight"), file.matrix(at + "mlp.up_proj.weight"),
             file.matrix(at + "mlp.down_proj.weight")});
    }
    return w;
}

PositionSets empty_sets(const Weights& weights) {
    return PositionSets(static_cast<std::size_t>(weights.n_layers),
                        std::vector<std::set<int>>(static_cast<std::size_t>(weights.n_kv_heads)));
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
    const std::vector<std::vector<Vector>> layer(static_cast<std::size_t>(weights.n_kv_heads));
    keys_.assign(static_cast<std::size_t>(weights.n_layers), layer);
    values_ = keys_;
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

Row Sequence::feed(int token, const PositionSets& visible, Places places, bool sees_itself) {
    const Weights& w = weights_;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    Row out;
    out.row = next_row_;
    const auto embedded = w.embedding.values.begin() + token * w.d_model;
    Vector x(embedded, embedded + w.d_model);
    for (std::size_t l = 0; l < w.layers.size(); ++l) {
        const LayerWeights& layer = w.layers[l];
        const Vector normed = rms_norm(x, layer.attention_norm, w.norm_eps);
        const Vector q = times(layer.q, normed), k = times(layer.k, normed), v = times(layer.v, normed);
        for (int g = 0; g < w.n_kv_heads; ++g) {
            const auto at = static_cast<std::size_t>(g);
            keys_[l][at].push_back(head_of(k, g, w.head_dim));
            values_[l][at].push_back(head_of(v, g, w.head_dim));
        }
        Vector mixed;
        out.attention.emplace_back();
        out.logits.emplace_back();
        out.full.emplace_back();
        out.output_similarity.emplace_back();
        for (int h = 0; h < w.n_heads; ++h) {
            const auto g = static_cast<std::size_t>(h / (w.n_heads / w.n_kv_heads));
            std::set<int> stored = visible[l][g];
            stored.insert(next_row_);  // the query stands where its own token does
            const std::vector<int> seen(stored.begin(), stored.end());
            const std::vector<int> place = places_of(places, seen);
            const Vector query = rotated(head_of(q, h, w.head_dim), place.back(), w.rope_theta);
            Vector logits(static_cast<std::size_t>(next_row_ + 1), nan);
            for (std::size_t i = 0; i < seen.size(); ++i) {
                if (seen[i] == next_row_ && !sees_itself) continue;
                const auto p = static_cast<std::size_t>(seen[i]);
                const Vector key = rotated(keys_[l][g][p], place[i], w.rope_theta);
                logits[p] = dot(query, key) / std::sqrt(static_cast<double>(w.head_dim));
            }
            const Vector attention = softmax(logits);
            Vector output(static_cast<std::size_t>(w.head_dim), 0.0);
            for (std::size_t p = 0; p < attention.size(); ++p)
                for (std::size_t c = 0; c < output.size(); ++c)
                    output[c] += attention[p] * values_[l][g][p][c];
            mixed.insert(mixed.end(), output.begin(), output.end());
            out.attention.back().push_back(attention);
            out.logits.back().push_back(logits);

            Vector every;
            const Vector there = rotated(head_of(q, h, w.head_dim), next_row_, w.rope_theta);
            for (int p = 0; p <= next_row_; ++p) {
                const Vector key = rotated(keys_[l][g][static_cast<std::size_t>(p)], p, w.rope_theta);
                every.push_back(dot(there, key) / std::sqrt(static_cast<double>(w.head_dim)));
            }
            const Vector full = softmax(every);
            Vector full_output(output.size(), 0.0);
            for (std::size_t p = 0; p < full.size(); ++p)
                for (std::size_t c = 0; c < output.size(); ++c)
                    full_output[c] += full[p] * values_[l][g][p][c];
            out.full.back().push_back(full);
            out.output_similarity.back().push_back(
                dot(output, full_output) / std::sqrt(dot(output, output) * dot(full_output, full_output)));
        }
        add_to(x, times(layer.o, mixed));
        const Vector inner = rms_norm(x, layer.mlp_norm, w.norm_eps);
        Vector hidden = times(layer.gate, inner);
        const Vector up = times(layer.up, inner);
        for (std::size_t i = 0; i < hidden.size(); ++i)
            hidden[i] = hidden[i] / (1.0 + std::exp(-hidden[i])) * up[i];
        add_to(x, times(layer.down, hidden));
    }
    out.next_logits = times(w.output, rms_norm(x, w.final_norm, w.norm_eps));
    ++next_row_;
    return out;
}

}  // namespace reference
