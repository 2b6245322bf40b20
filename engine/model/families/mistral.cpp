// Mistral: LLaMA's form with a sliding window: a row of such a layer sees the newest sliding_window tokens.
// Every layer slides unless layer_types says otherwise.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kMistralForm = {.name = "mistral", .n_kv_heads = 8, .bos = 1, .eos = 2};

ModelConfig read_mistral(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, kMistralForm);
    if (file.is_null("/sliding_window")) return config;
    set_window(file, config, file.count_or("/sliding_window", 4096, kMostPositions), 0);
    return config;
}

ModelWeights map_mistral(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kMistralForm, checkpoint);
}

}  // namespace

const Family kMistralFamily = {"mistral", {"MistralForCausalLM"}, "mistral", read_mistral, map_mistral};

}  // namespace keyhole
