#include "engine/model/families/common.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace keyhole {

void refuse(const ConfigFile& file, const std::string& feature, const std::string& instead) {
    fail(ErrorCode::unsupported, "cannot load {}: {} is not supported, only {}; choose another model",
         file.path().string(), shown_text(feature), instead);
}

void refuse_quantized(const ConfigFile& file) {
    if (file.has("/quantization_config")) refuse(file, "quantization_config", "weights in F32, F16 or BF16");
}

void refuse_flag(const ConfigFile& file, const std::string& key, bool wanted, const std::string& instead) {
    if (file.flag_or(key, wanted) != wanted)
        refuse(file, fmt::format("{} {}", key.substr(1), wanted ? "false" : "true"), instead);
}

void read_special_tokens(const ConfigFile& file, ModelConfig& config) {
    const std::vector<int> bos = file.ids("/bos_token_id");
    config.bos = bos.empty() ? -1 : bos.front();
    config.eos = file.ids("/eos_token_id");
}

std::vector<bool> layers_with_kv(const ModelConfig& config) {
    std::vector<bool> owns(to_index(config.n_layers), false);
    const int n_kv_layers = config.n_kv_layers > 0 ? config.n_kv_layers : config.n_layers;
    for (const int layer : kv_owner_layers(config.n_layers, n_kv_layers)) owns[to_index(layer)] = true;
    return owns;
}

int even_head_dim(const ConfigFile& file, const ModelConfig& config, const char* width_key,
                  const char* heads_key) {
    if (config.d_model % config.n_heads != 0)
        fail(ErrorCode::bad_file, "cannot use {}: {} {} is no multiple of {} {}; check the file",
             file.path().string(), width_key, config.d_model, heads_key, config.n_heads);
    return config.d_model / config.n_heads;
}

Activation read_activation(const ConfigFile& file, const std::string& key, const std::string& fallback) {
    const std::string name = file.text_or(key, fallback);
    const auto is = [&name](std::initializer_list<const char*> names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    if (is({"silu", "swish"})) return Activation::silu;
    if (is({"gelu", "gelu_python"})) return Activation::gelu;
    if (is({"gelu_new", "gelu_fast", "gelu_pytorch_tanh"})) return Activation::gelu_tanh;
    if (is({"relu"})) return Activation::relu;
    refuse(file, fmt::format("{} {}", key.substr(1), name), "silu, gelu, gelu_new and relu");
}

namespace {

/// Returns the dimension whose wave turns this often over the original context: YaRN, equation 17 solved
/// for i.
double yarn_dimension(double turns, int dims, double theta, double original) {
    return dims * std::log(original / (turns * 2.0 * std::numbers::pi)) / (2.0 * std::log(theta));
}

void scale_llama3(const ConfigFile& file, const std::string& at, double original, double factor,
                  Rotary& rotary) {
    const double low = file.positive_or(at + "/low_freq_factor", 1.0),
                 high = file.positive_or(at + "/high_freq_factor", 4.0);
    for (double& frequency : rotary.inverse_frequency) {
        const double turns = original * frequency / (2.0 * std::numbers::pi);  // in the original context
        const double kept = std::clamp(high > low ? (turns - low) / (high - low) : 1.0, 0.0, 1.0);
        frequency = (1.0 - kept) * frequency / factor + kept * frequency;
    }
}

void scale_yarn(const ConfigFile& file, const std::string& at, double theta, double original, double factor,
                Rotary& rotary) {
    double low = yarn_dimension(file.positive_or(at + "/beta_fast", 32.0), rotary.dims, theta, original);
    double high = yarn_dimension(file.positive_or(at + "/beta_slow", 1.0), rotary.dims, theta, original);
    if (file.flag_or(at + "/truncate", true)) {
        low = std::floor(low);
        high = std::ceil(high);
    }
    low = std::max(low, 0.0);
    high = std::min(high, rotary.dims - 1.0);
    if (low == high) high += 0.001;
    for (std::size_t i = 0; i < rotary.inverse_frequency.size(); ++i) {
        const double slowed = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
        double& frequency = rotary.inverse_frequency[i];
        frequency = slowed * frequency / factor + (1.0 - slowed) * frequency;
    }
    const auto magnitude = [factor](double scale) {
        return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
    };
    double found = magnitude(1.0);
    if (file.has(at + "/mscale") && file.has(at + "/mscale_all_dim"))
        found = magnitude(file.positive_or(at + "/mscale", 1.0)) /
                magnitude(file.positive_or(at + "/mscale_all_dim", 1.0));
    rotary.magnitude = static_cast<float>(file.positive_or(at + "/attention_factor", found));
}

/// Applies the scaling that the file has under `at`.
void scale_rotary(const ConfigFile& file, const std::string& at, double theta, ModelConfig& config) {
    const std::string type = file.text_or(at + "/rope_type", file.text_or(at + "/type", "default"));
    if (type == "default") return;
    const double original = file.positive_or(at + "/original_max_position_embeddings", config.n_ctx);
    const double factor = file.positive_or(at + "/factor", config.n_ctx / original);
    if (type == "linear") {
        for (double& frequency : config.rotary.inverse_frequency) frequency /= factor;
    } else if (type == "llama3") {
        scale_llama3(file, at, original, factor, config.rotary);
    } else if (type == "yarn") {
        scale_yarn(file, at, theta, original, factor, config.rotary);
    } else {
        refuse(file, fmt::format("{} of type {}", at.substr(1), type), "default, linear, llama3 and yarn");
    }
}

}  // namespace

void read_rotary(const ConfigFile& file, ModelConfig& config, int dims, const std::string& theta_key,
                 double default_theta) {
    if (dims < 2 || dims % 2 != 0 || dims > config.head_dim)
        fail(ErrorCode::bad_file,
             "cannot use {}: {} of {} dimensions of a head would be rotary, which come in pairs; check the "
             "file",
             file.path().string(), dims, config.head_dim);
    const std::string at = file.has("/rope_parameters") ? "/rope_parameters" : "/rope_scaling";
    if (at != "/rope_scaling") file.text_or("/rope_scaling/type", "");  // refuses a value that is no object
    const double theta =
        file.positive_or(theta_key, file.positive_or("/rope_parameters/rope_theta", default_theta));
    config.positions = PositionKind::rotary;
    config.rope_theta = static_cast<float>(theta);
    config.rotary.dims = dims;
    for (int i = 0; i < dims / 2; ++i)
        config.rotary.inverse_frequency.push_back(std::pow(theta, -2.0 * i / dims));
    scale_rotary(file, at, theta, config);
    // Values that are valid one by one may still give infinities together.
    const auto& frequencies = config.rotary.inverse_frequency;
    if (!std::isfinite(config.rotary.magnitude) ||
        !std::all_of(frequencies.begin(), frequencies.end(),
                     [](double f) { return f <= std::numeric_limits<float>::max(); }))
        fail(ErrorCode::bad_file,
             "cannot use {}: its rotary base and {} give no finite angles; check the file",
             file.path().string(), at.substr(1));
}

void set_window(const ConfigFile& file, ModelConfig& config, int window, int first_layer) {
    const std::vector<std::string> types = file.texts("/layer_types");
    if (!types.empty() && types.size() != to_index(config.n_layers))
        fail(ErrorCode::bad_file, "cannot use {}: layer_types names {} layers of {}; check the file",
             file.path().string(), types.size(), config.n_layers);
    for (int l = 0; l < config.n_layers; ++l) {
        bool slides = l >= first_layer;
        if (!types.empty()) {
            const std::string& type = types[to_index(l)];
            slides = type == "sliding_attention";
            if (!slides && type != "full_attention")
                refuse(file, "a layer of type " + type, "full_attention and sliding_attention");
        }
        config.window.push_back(slides ? window : 0);
    }
}

std::string prefix_of(const Checkpoint& checkpoint, std::initializer_list<const char*> prefixes,
                      const std::string& name) {
    for (const char* prefix : prefixes)
        if (checkpoint.contains(prefix + name)) return prefix;
    return *prefixes.begin();
}

void take_embeddings(const ModelConfig& config, Checkpoint& checkpoint, const std::string& embedding,
                     const std::string& output, std::int64_t d_embed, ModelWeights& weights) {
    const bool by_output = config.tied && !checkpoint.contains(embedding) && checkpoint.contains(output);
    weights.embedding = checkpoint.weight(by_output ? output : embedding, config.n_vocab, d_embed);
    weights.output = config.tied ? weights.embedding : checkpoint.weight(output, config.n_vocab, d_embed);
}

}  // namespace keyhole
