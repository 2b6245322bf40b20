/// What several families read alike. While loading; one thread.
#pragma once

#include "engine/model/checkpoint.h"
#include "engine/model/config_file.h"
#include "engine/model/model.h"

#include <initializer_list>
#include <string>
#include <vector>

namespace keyhole {

/// Throws Error(unsupported): what the model wants, and what there is.
[[noreturn]] void refuse(const ConfigFile& file, const std::string& feature, const std::string& instead);
/// Refuses quantized weights.
void refuse_quantized(const ConfigFile& file);
/// Refuses a flag that is not `wanted`; absent counts as wanted.
void refuse_flag(const ConfigFile& file, const std::string& key, bool wanted, const std::string& instead);

/// bos and eos.
void read_special_tokens(const ConfigFile& file, ModelConfig& config);
/// Whether each layer owns KV heads. Known before the weights are, unlike the table of all heads (KvLayout), which is
/// built when they are there.
std::vector<bool> layers_with_kv(const ModelConfig& config);
/// d_model / n_heads, which must divide; heads_key names the latter.
int even_head_dim(const ConfigFile& file, const ModelConfig& config, const char* width_key,
                  const char* heads_key);
/// silu, gelu, relu and their aliases; gelu_new, gelu_fast and gelu_pytorch_tanh are the tanh form.
Activation read_activation(const ConfigFile& file, const std::string& key, const std::string& fallback);

/// Rotary positions over the first `dims` dimensions, with the scaling under rope_parameters (or rope_scaling, its older form):
/// default, linear, llama3 or yarn; others are refused. theta: where the family keeps its base, else default_theta.
///     default   theta^(-2 i / dims)
///     linear    divided by factor
///     llama3    divided by factor where a wave is longer than original / low_freq_factor, untouched where shorter than
///               original / high_freq_factor, between the two in between
///     yarn      Peng et al., arXiv 2309.00071, section 3.2 with the ramp over dimensions; magnitude 0.1 ln(factor) + 1
void read_rotary(const ConfigFile& file, ModelConfig& config, int dims, const std::string& theta_key,
                 double default_theta = 10000.0);

/// window: of the layers that layer_types calls sliding, where the file has such a list; else of all from first_layer on.
void set_window(const ConfigFile& file, ModelConfig& config, int window, int first_layer);

/// The first of the prefixes under which the checkpoint has `name`; the first of all where none does.
std::string prefix_of(const Checkpoint& checkpoint, std::initializer_list<const char*> prefixes,
                      const std::string& name);

/// Embedding and output matrices; tied ones may be stored under either name.
void take_embeddings(const ModelConfig& config, Checkpoint& checkpoint, const std::string& embedding,
                     const std::string& output, std::int64_t d_embed, ModelWeights& weights);

}  // namespace keyhole
