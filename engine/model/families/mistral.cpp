// Mistral: LLaMA's form with a sliding window in every layer: a row sees the newest sliding_window tokens.
#include "engine/model/families/common.h"
#include "engine/model/families/llama_form.h"

namespace keyhole {
namespace {

constexpr LlamaForm kForm = {.name = "mistral"};

ModelConfig read_config(const ConfigFile& file) {
    ModelConfig config = read_llama_config(file, kForm);
    if (file.has("/sliding_window"))
        set_window(file, config, file.count("/sliding_window", kMostPositions), 0);
    return config;
}

ModelWeights map_weights(const ConfigFile&, const ModelConfig& config, Checkpoint& checkpoint) {
    return map_llama_weights(config, kForm, checkpoint);
}

}  // namespace

const Family kMistralFamily = {"mistral", {"MistralForCausalLM"}, "mistral", read_config, map_weights};

}  // namespace keyhole
