#include "engine/model/families/common.h"

#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/base/json_text.h"

#include <algorithm>
#include <cmath>
#include <cstring>
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

void refuse_other_models(const ConfigFile& file) {
    if (file.has("/text_config")) refuse(file, "a model in parts (text_config)", "language models alone");
    if (file.has("/is_causal") && !file.flag_or("/is_causal", true))
        refuse(file, "is_causal false", "attention to earlier tokens");
}

void read_special_tokens(const ConfigFile& file, ModelConfig& config, int default_bos, int default_eos) {
    const auto read = [&](const std::string& key, int by_default) {
        const bool is_absent = !file.has(key) && !file.is_null(key);
        const bool is_token = by_default >= 0 && by_default < config.n_vocab;
        return is_absent && is_token ? std::vector<int>{by_default} : file.ids(key);
    };
    const std::vector<int> bos = read("/bos_token_id", default_bos);
    config.bos = bos.empty() ? -1 : bos.front();
    config.eos = read("/eos_token_id", default_eos);
}

std::vector<bool> layers_with_kv(const ModelConfig& config) {
    std::vector<bool> owns(to_index(config.n_layers), false);
    const int n_kv_layers = config.n_kv_layers > 0 ? config.n_kv_layers : config.n_layers;
    for (const int layer : kv_owner_layers(config.n_layers, n_kv_layers)) owns[to_index(layer)] = true;
    return owns;
}

void check_kv_heads(const ConfigFile& file, const ModelConfig& config) {
    if (config.n_heads % config.n_kv_heads != 0)
        fail(ErrorCode::bad_file,
             "cannot use {}: num_attention_heads {} is no multiple of num_key_value_heads {}; check the file",
             file.path().string(), config.n_heads, config.n_kv_heads);
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
    double low =
        yarn_dimension(file.positive_or_unset(at + "/beta_fast", 32.0), rotary.dims, theta, original);
    double high =
        yarn_dimension(file.positive_or_unset(at + "/beta_slow", 1.0), rotary.dims, theta, original);
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
    const double scale = file.positive_or_unset(at + "/mscale", 0.0),
                 of_all = file.positive_or_unset(at + "/mscale_all_dim", 0.0);
    if (scale > 0 && of_all > 0) found = magnitude(scale) / magnitude(of_all);
    rotary.magnitude = static_cast<float>(file.positive_or(at + "/attention_factor", found));
}

/// Returns the context that the model was trained for before it was extended.
double original_context(const ConfigFile& file, const std::string& at, const ModelConfig& config) {
    const std::string top = "/original_max_position_embeddings", inner = at + top;
    if (file.differ(top, inner))
        file.warn(
            fmt::format("config.json says {} for original_max_position_embeddings at the top and {} in "
                        "{}; the first counts, as in transformers",
                        file.shown(top), file.shown(inner), at.substr(1)));
    return file.positive_or(top, file.positive_or(inner, config.n_ctx));
}

/// Divides each frequency by its factor in the list at `key`.
std::vector<double> divided(const ConfigFile& file, const std::string& key,
                            const std::vector<double>& frequencies) {
    const std::vector<double> factors = file.positives(key);
    if (factors.size() != frequencies.size())
        fail(ErrorCode::bad_file,
             "cannot use {}: {} has {} numbers, wanted {}, one for each pair of "
             "dimensions; check the file",
             file.path().string(), key.substr(1), factors.size(), frequencies.size());
    std::vector<double> out;
    for (std::size_t i = 0; i < factors.size(); ++i) out.push_back(frequencies[i] / factors[i]);
    return out;
}

void scale_longrope(const ConfigFile& file, const std::string& at, int n_ctx, double original,
                    Rotary& rotary) {
    const double factor = file.positive_or(at + "/factor", n_ctx / original);
    const double found = factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
    rotary.magnitude = static_cast<float>(file.positive_or(at + "/attention_factor", found));
    rotary.switch_length = static_cast<int>(original);
    rotary.long_inverse_frequency = divided(file, at + "/long_factor", rotary.inverse_frequency);
    rotary.inverse_frequency = divided(file, at + "/short_factor", rotary.inverse_frequency);
}

/// Applies the scaling that the file has under `at`.
void scale_rotary(const ConfigFile& file, const std::string& at, double theta, const ModelConfig& config,
                  Rotary& rotary) {
    if (file.differ(at + "/rope_type", at + "/type"))
        file.warn(
            fmt::format("config.json says {} for rope_type and {} for type in {}; rope_type counts, as in "
                        "transformers",
                        file.shown(at + "/rope_type"), file.shown(at + "/type"), at.substr(1)));
    const std::string type = file.text_or(at + "/rope_type", file.text_or(at + "/type", "default"));
    if (type == "default") return;
    const bool by_original = type == "llama3" || type == "yarn" || type == "longrope" || type == "su";
    const double original = by_original ? original_context(file, at, config) : config.n_ctx;
    const double factor = file.positive_or(at + "/factor", config.n_ctx / original);
    if (type == "linear") {
        for (double& frequency : rotary.inverse_frequency) frequency /= factor;
    } else if (type == "llama3") {
        scale_llama3(file, at, original, factor, rotary);
    } else if (type == "yarn") {
        scale_yarn(file, at, theta, original, factor, rotary);
    } else if (type == "longrope" || type == "su") {  // as Phi-3 called it at first
        scale_longrope(file, at, config.n_ctx, original, rotary);
    } else if (type == "dynamic") {
        if (rotary.dims < 4)
            refuse(file, fmt::format("{} of type dynamic over {} dimensions", at.substr(1), rotary.dims),
                   "more than 2");
        rotary.dynamic_factor = file.positive_or(at + "/factor", 1.0);
        rotary.base = theta;
        rotary.switch_length = config.n_ctx;
    } else {
        refuse(file, fmt::format("{} of type {}", at.substr(1), type),
               "default, linear, llama3, yarn, longrope and dynamic");
    }
}

constexpr const char *kScaling = "/rope_scaling", *kParameters = "/rope_parameters";

/// Names every rope_theta of the file that is not the one used.
void warn_of_thetas(const ConfigFile& file, const std::string& theta_key, const std::string& used,
                    double theta) {
    for (const std::string& key :
         {theta_key, std::string(kScaling) + "/rope_theta", std::string(kParameters) + "/rope_theta"})
        if (key != used && file.has(key) && file.positive_or(key, theta) != theta)
            file.warn(fmt::format("config.json says {} for {}, but {:g} counts ({}), as in transformers",
                                  file.shown(key), key.substr(1), theta,
                                  used.empty() ? "the default" : used.substr(1)));
}

}  // namespace

std::string rope_key(const ConfigFile& file) {
    for (const char* key : {kScaling, kParameters})
        file.text_or(std::string(key) + "/type", "");  // refuses a value that is no object
    const bool by_scaling = file.has_members(kScaling);
    if (by_scaling && file.has_members(kParameters) && file.differ(kScaling, kParameters))
        file.warn(
            "config.json has rope_scaling and rope_parameters, which differ; rope_scaling counts alone, as "
            "in transformers");
    return by_scaling ? kScaling : kParameters;
}

Rotary plain_rotary(int dims, double theta) {
    Rotary rotary;
    rotary.dims = dims;
    rotary.base = theta;
    for (int i = 0; i < dims / 2; ++i) rotary.inverse_frequency.push_back(std::pow(theta, -2.0 * i / dims));
    return rotary;
}

Rotary rotary_at(const ConfigFile& file, const ModelConfig& config, int dims, const std::string& at,
                 const std::string& theta_key, double default_theta) {
    if (dims < 2 || dims % 2 != 0 || dims > config.head_dim)
        fail(ErrorCode::bad_file,
             "cannot use {}: {} of {} dimensions of a head would be rotary, which come in pairs; check the "
             "file",
             file.path().string(), dims, config.head_dim);
    const std::string inner = at + "/rope_theta";
    const std::string used = file.has(inner) ? inner : file.has(theta_key) ? theta_key : "";
    const double theta = used.empty() ? default_theta : file.positive_or(used, default_theta);
    warn_of_thetas(file, theta_key, used, theta);
    Rotary rotary = plain_rotary(dims, theta);
    scale_rotary(file, at, theta, config, rotary);
    // Values that are valid one by one may still give infinities together.
    const auto are_finite = [](const std::vector<double>& frequencies) {
        return std::all_of(frequencies.begin(), frequencies.end(),
                           [](double f) { return f <= std::numeric_limits<float>::max(); });
    };
    if (!std::isfinite(rotary.magnitude) || !are_finite(rotary.inverse_frequency) ||
        !are_finite(rotary.long_inverse_frequency))
        fail(ErrorCode::bad_file,
             "cannot use {}: its rotary base and {} give no finite angles; check the file",
             file.path().string(), at.substr(1));
    return rotary;
}

void read_rotary(const ConfigFile& file, ModelConfig& config, int dims, const std::string& theta_key,
                 double default_theta) {
    const std::string at = rope_key(file);
    for (const std::string key : {kScaling, kParameters})
        for (const char* layers : {"/full_attention", "/sliding_attention"})
            if (file.has(key + layers))
                refuse(file, fmt::format("{} by type of layer", key.substr(1)), "one for all layers");
    config.positions = PositionKind::rotary;
    config.rotary = rotary_at(file, config, dims, at, theta_key, default_theta);
    config.rope_theta = static_cast<float>(config.rotary.base);
}

void read_rotary_by_layer(const ConfigFile& file, ModelConfig& config, double default_theta,
                          const std::string& local_theta_key, double default_local_theta) {
    const std::string at = rope_key(file), full = at + "/full_attention", local = at + "/sliding_attention";
    config.positions = PositionKind::rotary;
    config.rotary =
        rotary_at(file, config, config.head_dim, file.has(full) ? full : at, "/rope_theta", default_theta);
    config.rope_theta = static_cast<float>(config.rotary.base);
    // A key that is not there has no scaling.
    config.local_rotary = rotary_at(file, config, config.head_dim, file.has(local) ? local : "/none",
                                    local_theta_key, default_local_theta);
}

int rotary_dims(const ConfigFile& file, const ModelConfig& config, double by_default) {
    const double factor = file.positive_or(rope_key(file) + "/partial_rotary_factor",
                                           file.positive_or("/partial_rotary_factor", by_default));
    return static_cast<int>(config.head_dim * std::min(factor, 2.0));
}

namespace {

/// Sets the window of the layers that layer_types calls sliding, or without such a list of those that
/// slides_by_default(layer) names.
template <class Slides>
void set_window_where(const ConfigFile& file, ModelConfig& config, int window, Slides slides_by_default) {
    const std::vector<std::string> types = file.texts("/layer_types");
    if (!types.empty() && types.size() != to_index(config.n_layers))
        fail(ErrorCode::bad_file, "cannot use {}: layer_types names {} layers of {}; check the file",
             file.path().string(), types.size(), config.n_layers);
    for (int l = 0; l < config.n_layers; ++l) {
        bool slides = slides_by_default(l);
        if (!types.empty()) {
            const std::string& type = types[to_index(l)];
            slides = type == "sliding_attention";
            if (!slides && type != "full_attention")
                refuse(file, "a layer of type " + type, "full_attention and sliding_attention");
        }
        config.window.push_back(slides ? window : 0);
    }
}

}  // namespace

std::vector<float> alibi_slopes(int n_heads, double bias_max) {
    int m = 1;
    while (m < n_heads) m *= 2;
    std::vector<float> slopes;
    const auto add = [&](int first, int step) {
        for (int i = first; i <= m && static_cast<int>(slopes.size()) < n_heads; i += step)
            slopes.push_back(static_cast<float>(std::exp2(-bias_max * i / m)));
    };
    if (m == n_heads) {
        add(1, 1);
    } else {
        add(2, 2);
        add(1, 2);
    }
    return slopes;
}

void set_window(const ConfigFile& file, ModelConfig& config, int window, int first_layer) {
    set_window_where(file, config, window, [first_layer](int layer) { return layer >= first_layer; });
}

void set_window_by_period(const ConfigFile& file, ModelConfig& config, int window, int period) {
    set_window_where(file, config, window, [period](int layer) { return (layer + 1) % period != 0; });
}

void set_window_where_unrotated(const ConfigFile& file, ModelConfig& config, int window) {
    set_window_where(file, config, window, [&config](int layer) {
        return !config.unrotated.empty() && config.unrotated[to_index(layer)];
    });
}

void set_qwen_window(const ConfigFile& file, ModelConfig& config) {
    if (file.flag_or("/use_sliding_window", false)) {
        if (!file.is_null("/sliding_window"))
            set_window(file, config, file.count_or("/sliding_window", 4096, kMostPositions),
                       file.count_or_zero("/max_window_layers", 28, kMostLayers));
        return;
    }
    const std::vector<std::string> types = file.texts("/layer_types");
    if (std::find(types.begin(), types.end(), "sliding_attention") != types.end())
        file.warn(
            "layer_types of config.json names sliding layers and use_sliding_window is not true: no layer "
            "slides");
}

namespace {

bool same_bytes(const Weight& a, const Weight& b) {
    return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols &&
           std::memcmp(a.data, b.data, to_index(stored_bytes(a))) == 0;
}

}  // namespace

std::string prefix_of(const Checkpoint& checkpoint, std::initializer_list<const char*> prefixes,
                      const std::string& name) {
    for (const char* prefix : prefixes)
        if (checkpoint.contains(prefix + name)) return prefix;
    return *prefixes.begin();
}

void take_embeddings(const ModelConfig& config, Checkpoint& checkpoint, const std::string& embedding,
                     const std::string& output, std::int64_t d_embed, ModelWeights& weights) {
    const bool has_both = checkpoint.contains(embedding) && checkpoint.contains(output);
    const bool by_output = config.tied && !checkpoint.contains(embedding) && checkpoint.contains(output);
    weights.embedding = checkpoint.weight(by_output ? output : embedding, config.n_vocab, d_embed);
    weights.output = weights.embedding;
    if (config.tied && !has_both) return;
    if (!config.tied && !checkpoint.contains(output) && checkpoint.contains(embedding))
        checkpoint.fail_without(output,
                                "if its output is the embedding, set tie_word_embeddings to true in "
                                "config.json; else the file is not the whole model");
    weights.output = checkpoint.weight(output, config.n_vocab, d_embed);
    if (!config.tied) return;
    if (same_bytes(weights.embedding, weights.output)) {
        weights.output = weights.embedding;
        return;
    }
    checkpoint.add_note(
        fmt::format("config.json says that the output is the embedding (tie_word_embeddings), "
                    "but {} holds another matrix: it is used, as in transformers",
                    output));
}

}  // namespace keyhole
