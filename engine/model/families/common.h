/// Reading that several families share. Used by one thread while loading.
#pragma once

#include "engine/model/checkpoint.h"
#include "engine/model/config_file.h"
#include "engine/model/model.h"

#include <initializer_list>
#include <string>
#include <vector>

namespace keyhole {

/// Throws Error(unsupported): the feature that the model needs, and what is supported instead.
[[noreturn]] void refuse(const ConfigFile& file, const std::string& feature, const std::string& instead);
/// Refuses quantized weights.
void refuse_quantized(const ConfigFile& file);
/// Refuses a flag that differs from `wanted`; an absent flag counts as wanted.
void refuse_flag(const ConfigFile& file, const std::string& key, bool wanted, const std::string& instead);

/// Refuses a configuration of several models in one, and attention to later tokens.
void refuse_other_models(const ConfigFile& file);
/// Reads bos and eos. The defaults of the family stand for absent keys (null is none), if they are tokens.
void read_special_tokens(const ConfigFile& file, ModelConfig& config, int default_bos = -1,
                         int default_eos = -1);
/// Returns for each layer whether it owns KV heads. Works before the weights are loaded, unlike KvLayout,
/// which is built afterwards.
std::vector<bool> layers_with_kv(const ModelConfig& config);
/// Throws unless n_kv_heads divides n_heads.
void check_kv_heads(const ConfigFile& file, const ModelConfig& config);
/// Returns d_model / n_heads; throws unless it divides. The keys name both in the message.
int even_head_dim(const ConfigFile& file, const ModelConfig& config, const char* width_key,
                  const char* heads_key);
/// Reads silu, gelu, relu and their aliases; gelu_new, gelu_fast and gelu_pytorch_tanh are the tanh form.
Activation read_activation(const ConfigFile& file, const std::string& key, const std::string& fallback);

/// Returns the key that holds the rotary parameters, as transformers 5 chooses it: rope_scaling if it has
/// members, else rope_parameters. Warns where both are there and differ; refuses parameters by type of layer.
std::string rope_key(const ConfigFile& file);
/// Reads rotary positions over the first `dims` dimensions, with the scaling under rope_key(): default,
/// linear, llama3, yarn, longrope or dynamic; refuses others. The base is rope_theta under that key, else at
/// theta_key, where the family keeps its own, else default_theta; warns of others.
///     default   theta^(-2 i / dims)
///     linear    divided by factor
///     llama3    divided by factor where a wave is longer than original / low_freq_factor, unchanged where
///               it is shorter than original / high_freq_factor, interpolated between
///     yarn      Peng et al., arXiv 2309.00071, section 3.2, with the ramp over dimensions;
///               magnitude 0.1 ln(factor) + 1
///     longrope  divided by short_factor[i], or in a text longer than the original context by
///               long_factor[i]; magnitude sqrt(1 + ln(factor) / ln(original)), where factor, if absent, is
///               the context over the original one (Ding et al., arXiv 2402.13753)
///     dynamic   in a text of n tokens, longer than the context c: of the base
///               theta (factor n / c - factor + 1)^(dims / (dims - 2))
void read_rotary(const ConfigFile& file, ModelConfig& config, int dims, const std::string& theta_key,
                 double default_theta = 10000.0);
/// The same from the object at a key of its own, such as "/rope_parameters/full_attention".
Rotary rotary_at(const ConfigFile& file, const ModelConfig& config, int dims, const std::string& key,
                 const std::string& theta_key, double default_theta);
/// Reads config.rotary, of full_attention, and config.local_rotary, of sliding_attention: the scaling under
/// rope_key() may be given by type of layer. Else it is that of full_attention, and sliding layers have the
/// base at local_theta_key, unscaled.
void read_rotary_by_layer(const ConfigFile& file, ModelConfig& config, double default_theta,
                          const std::string& local_theta_key, double default_local_theta);
/// Returns unscaled rotary positions of this base.
Rotary plain_rotary(int dims, double theta);
/// Returns the number of dimensions that rotate: head_dim times partial_rotary_factor, which the file has at
/// the top or under rope_key(), else `by_default`.
int rotary_dims(const ConfigFile& file, const ModelConfig& config, double by_default = 1.0);

/// Returns 2^(-bias_max i / m) for i = 1..m, with m the smallest power of two >= n_heads. When m > n_heads,
/// the slopes of even i come first, then those of odd i (ALiBi, section 3, in the order of MPT and BLOOM).
std::vector<float> alibi_slopes(int n_heads, double bias_max);

/// Sets the window of the layers that layer_types calls sliding, or without such a list of all layers from
/// first_layer on.
void set_window(const ConfigFile& file, ModelConfig& config, int window, int first_layer);

/// Sets the window of the layers that layer_types calls sliding; without such a list every layer slides but
/// each `period`th.
void set_window_by_period(const ConfigFile& file, ModelConfig& config, int window, int period);

/// Sets the window of the layers that layer_types calls sliding, or without such a list of those that
/// do not rotate.
void set_window_where_unrotated(const ConfigFile& file, ModelConfig& config, int window);

/// Reads the window of Qwen 2 and 3: with use_sliding_window, layers from max_window_layers on slide.
void set_qwen_window(const ConfigFile& file, ModelConfig& config);

/// Returns the first prefix under which the checkpoint has `name`, or the first prefix when none matches.
std::string prefix_of(const Checkpoint& checkpoint, std::initializer_list<const char*> prefixes,
                      const std::string& name);

/// Reads embedding and output matrices; tied ones may be stored under either name. Tied ones that are stored
/// under both and differ are both used, with a note: transformers 5 does so.
void take_embeddings(const ModelConfig& config, Checkpoint& checkpoint, const std::string& embedding,
                     const std::string& output, std::int64_t d_embed, ModelWeights& weights);

}  // namespace keyhole
