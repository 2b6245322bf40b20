#include "engine/model/gguf_model.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/model/families/family.h"
#include "engine/model/gguf_describer.h"
#include "engine/model/quantised_blocks.h"

#include <fmt/ranges.h>

#include <cmath>
#include <string_view>
#include <vector>

namespace keyhole {
namespace {

/// Names what is in the file instead of a model: general.type says it, or what it holds.
void refuse_no_model(const GgufFile& file) {
    const std::string type = file.text_or("general.type", "model");
    const std::string base = shown_text(file.text_or("general.base_model.0.name", "its base model"));
    if (type == "adapter" || file.has("adapter.type"))
        fail(ErrorCode::unsupported,
             "cannot load {}: it is an adapter (LoRA), no model; merge it into {} with llama-export-lora and "
             "name the result",
             file.path().string(), base);
    if (type != "model")
        fail(ErrorCode::unsupported, "cannot load {}: it is no model, its general.type is {}; name the model",
             file.path().string(), shown_text(type));
    if (file.names().empty())
        fail(ErrorCode::unsupported, "cannot load {}: it has no tensors, only metadata; name the whole model",
             file.path().string());
}

}  // namespace

namespace {

struct GgufArchitecture {
    std::string_view name;
    GgufModel (*describe)(GgufDescriber& file);
};

constexpr GgufArchitecture kArchitectures[] = {
    {"llama", [](GgufDescriber& file) { return file.llama(); }},
    {"qwen2", [](GgufDescriber& file) { return file.llama_form({.family = "Qwen2ForCausalLM"}); }},
    {"qwen3", [](GgufDescriber& file) { return file.llama_form({.family = "Qwen3ForCausalLM"}); }},
    {"gpt2", [](GgufDescriber& file) { return file.gpt2(); }},
    {"gptneox", [](GgufDescriber& file) { return file.gpt_neox(); }},
    {"mpt", [](GgufDescriber& file) { return file.mpt(); }},
    {"gemma2", [](GgufDescriber& file) { return file.gemma2(); }},
    {"gemma3", [](GgufDescriber& file) { return file.gemma3(); }},
    {"phi2", [](GgufDescriber& file) { return file.phi2(); }},
    {"phi3", [](GgufDescriber& file) { return file.phi3(); }},
    {"smollm3", [](GgufDescriber& file) { return file.smollm3(); }},
    {"olmo2", [](GgufDescriber& file) { return file.olmo2(); }},
    {"granite", [](GgufDescriber& file) { return file.granite(); }},
    {"qwen3moe", [](GgufDescriber& file) { return file.qwen3_moe(); }},
    {"olmoe", [](GgufDescriber& file) { return file.olmoe(); }},
    {"gpt-oss", [](GgufDescriber& file) { return file.gpt_oss(); }},
    {"command-r", [](GgufDescriber& file) { return file.cohere(false); }},
    {"cohere2", [](GgufDescriber& file) { return file.cohere(true); }},
    {"stablelm", [](GgufDescriber& file) { return file.stablelm(); }},
    {"chatglm", [](GgufDescriber& file) { return file.glm(); }},
    {"glm4", [](GgufDescriber& file) { return file.glm4(); }},
    // LLaMA under other names; the file has the factors of its rotary scaling.
    {"exaone", [](GgufDescriber& file) { return file.llama_form({.family = "LlamaForCausalLM"}); }},
    {"exaone4", [](GgufDescriber& file) { return file.exaone4(); }},
    {"falcon", [](GgufDescriber& file) { return file.falcon(); }},
    {"bloom", [](GgufDescriber& file) { return file.bloom(); }},
};

}  // namespace

std::vector<std::string_view> gguf_architectures() {
    std::vector<std::string_view> names;
    for (const GgufArchitecture& one : kArchitectures) names.push_back(one.name);
    return names;
}

GgufModel describe_gguf(const GgufFile& file) {
    refuse_no_model(file);
    const std::string architecture = file.text("general.architecture");
    GgufDescriber describer(file, architecture);
    for (const GgufArchitecture& one : kArchitectures)
        if (architecture == one.name) return one.describe(describer);
    if (const std::string_view why = known_obstacle(architecture); !why.empty())
        fail(ErrorCode::unsupported,
             "cannot load {}: its general.architecture is {}, and {}; choose another model",
             file.path().string(), architecture, why);
    fail(ErrorCode::unsupported,
         "cannot load {}: its general.architecture is {}; this build reads {} from GGUF files",
         file.path().string(), shown_text(architecture), fmt::join(gguf_architectures(), ", "));
}

void scale_by_gguf_factors(const GgufFile& file, ModelConfig& config) {
    if (!file.contains(kGgufFactors)) return;
    const StoredTensor factors = file.tensor(kGgufFactors);
    auto& frequencies = config.rotary.inverse_frequency;
    if (factors.dtype != DType::f32 ||
        factors.shape != std::vector{static_cast<std::int64_t>(frequencies.size())} || frequencies.empty())
        fail(ErrorCode::bad_file,
             "cannot use {}: {} wants {} numbers of type F32, one for each pair of dimensions; convert the "
             "model again",
             file.path().string(), kGgufFactors, frequencies.size());
    std::vector<float> values(frequencies.size());
    widen_stored(factors.dtype, factors.data, factors.shape.front(), values.data());
    for (std::size_t i = 0; i < values.size(); ++i) {
        if (!(values[i] > 0) || !std::isfinite(values[i]))
            fail(ErrorCode::bad_file,
                 "cannot use {}: {} holds {}, wanted positive numbers; convert the model again",
                 file.path().string(), kGgufFactors, values[i]);
        frequencies[i] /= static_cast<double>(values[i]);
    }
}

}  // namespace keyhole
