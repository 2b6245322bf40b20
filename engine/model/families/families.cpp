#include "engine/model/families/family.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace keyhole {

std::span<const Family* const> families() {
    static constexpr std::array kFamilies = {
        &kLlamaFamily,    &kMistralFamily, &kQwen2Family,  &kQwen3Family,   &kGptNeoXFamily,  &kGptJFamily,
        &kMptFamily,      &kGpt2Family,    &kOptFamily,    &kGemma2Family,  &kGemma3Family,   &kPhi3Family,
        &kSmolLm3Family,  &kOlmo2Family,   &kOlmo3Family,  &kGraniteFamily, &kMixtralFamily,  &kOlmoeFamily,
        &kQwen3MoeFamily, &kGptOssFamily,  &kCohereFamily, &kCohere2Family, &kStableLmFamily, &kGlmFamily,
        &kGlm4Family,     &kExaone4Family, &kPhi2Family,   &kBloomFamily,   &kFalconFamily,   &kExaoneFamily};
    return kFamilies;
}

std::string_view known_obstacle(std::string_view name) {
    constexpr std::string_view kRecurrent =
        "it has recurrent layers, which keep one state and no tokens that could be evicted";
    constexpr std::string_view kLatent =
        "its attention is latent (MLA): it stores one vector for all heads, not K and V of each KV head";
    constexpr std::string_view kSharing =
        "its layers share KV heads in a way that this build does not read, and it adds embeddings to each "
        "layer";
    constexpr std::string_view kLlama4 =
        "its layers attend within chunks of the text, and an expert of each layer runs for every token, "
        "which this build does not compute";
    constexpr std::string_view kShared =
        "an expert of each layer runs for every token (a shared expert), which this build does not compute";
    struct Obstacle {
        std::string_view name, why;
    };
    static constexpr Obstacle kObstacles[] = {{"DeepseekV2ForCausalLM", kLatent},
                                              {"DeepseekV3ForCausalLM", kLatent},
                                              {"MiniCPM3ForCausalLM", kLatent},
                                              {"deepseek2", kLatent},
                                              {"minicpm3", kLatent},
                                              {"MambaForCausalLM", kRecurrent},
                                              {"Mamba2ForCausalLM", kRecurrent},
                                              {"FalconMambaForCausalLM", kRecurrent},
                                              {"JambaForCausalLM", kRecurrent},
                                              {"BambaForCausalLM", kRecurrent},
                                              {"ZambaForCausalLM", kRecurrent},
                                              {"Zamba2ForCausalLM", kRecurrent},
                                              {"NemotronHForCausalLM", kRecurrent},
                                              {"GraniteMoeHybridForCausalLM", kRecurrent},
                                              {"Qwen3NextForCausalLM", kRecurrent},
                                              {"Lfm2ForCausalLM", kRecurrent},
                                              {"FalconH1ForCausalLM", kRecurrent},
                                              {"RecurrentGemmaForCausalLM", kRecurrent},
                                              {"RwkvForCausalLM", kRecurrent},
                                              {"MiniMaxForCausalLM", kRecurrent},
                                              {"mamba", kRecurrent},
                                              {"mamba2", kRecurrent},
                                              {"rwkv6", kRecurrent},
                                              {"rwkv7", kRecurrent},
                                              {"jamba", kRecurrent},
                                              {"granitehybrid", kRecurrent},
                                              {"nemotron_h", kRecurrent},
                                              {"qwen3next", kRecurrent},
                                              {"lfm2", kRecurrent},
                                              {"falcon-h1", kRecurrent},
                                              {"Gemma3nForCausalLM", kSharing},
                                              {"Gemma3nForConditionalGeneration", kSharing},
                                              {"gemma3n", kSharing},
                                              {"Gemma4ForCausalLM", kSharing},
                                              {"Gemma4ForConditionalGeneration", kSharing},
                                              {"gemma4", kSharing},
                                              {"Llama4ForCausalLM", kLlama4},
                                              {"Llama4ForConditionalGeneration", kLlama4},
                                              {"llama4", kLlama4},
                                              {"Qwen2MoeForCausalLM", kShared},
                                              {"qwen2moe", kShared},
                                              {"Glm4MoeForCausalLM", kShared},
                                              {"glm4moe", kShared},
                                              {"DeepseekV32ForCausalLM", kLatent}};
    const auto* found = std::find_if(std::begin(kObstacles), std::end(kObstacles),
                                     [name](const Obstacle& one) { return one.name == name; });
    return found == std::end(kObstacles) ? std::string_view() : found->why;
}

const Family& family_of(const ConfigFile& file) {
    const std::vector<std::string> architectures = file.texts("/architectures");
    const std::string model_type = file.text_or("/model_type", "");
    for (const Family* family : families()) {
        const bool named =
            std::find_first_of(architectures.begin(), architectures.end(), family->architectures.begin(),
                               family->architectures.end()) != architectures.end();
        if (named || (architectures.empty() && model_type == family->model_type)) return *family;
    }
    for (const std::string& name : architectures)
        if (const std::string_view why = known_obstacle(name); !why.empty())
            fail(ErrorCode::unsupported,
                 "cannot load {}: its architecture is {}, and {}; choose another model", file.path().string(),
                 name, why);
    std::string supported;
    for (const Family* family : families()) {
        supported += fmt::format("{}{}", supported.empty() ? "" : ", ", family->architectures.front());
    }
    if (architectures.empty() && model_type.empty()) {
        fail(ErrorCode::unsupported,
             "cannot load {}: it names no architecture, neither in architectures nor in model_type; this "
             "build supports {}",
             file.path().string(), supported);
    }
    const std::string found =
        shown_text(architectures.empty() ? "model_type " + model_type
                                         : fmt::format("{}", fmt::join(architectures, ", ")));
    fail(ErrorCode::unsupported, "cannot load {}: its architecture is {}; this build supports {}",
         file.path().string(), found, supported);
}

}  // namespace keyhole
