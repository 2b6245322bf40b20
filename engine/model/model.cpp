#include "engine/model/model.h"

#include "engine/base/error.h"
#include "engine/model/checkpoint.h"
#include "engine/model/families/family.h"

#include <nlohmann/json.hpp>

#include <array>

namespace keyhole {

namespace {

constexpr std::array kFamilies = {&kLlama};

const Family& family_of(const nlohmann::json& config, const std::string& file) {
    const auto architectures = config.find("architectures");
    std::string name = "unknown";
    if (architectures != config.end() && architectures->is_array() && !architectures->empty() &&
        architectures->front().is_string())
        name = architectures->front().get<std::string>();
    else if (config.value("model_type", nlohmann::json()) == "llama")
        name = "LlamaForCausalLM";
    std::string supported;
    for (const Family* family : kFamilies) {
        if (family->architecture == name) return *family;
        supported += (supported.empty() ? "" : ", ") + std::string(family->architecture);
    }
    fail(ErrorCode::unsupported, "{}: models of architecture {} are not supported; supported: {}", file, name,
         supported);
}

nlohmann::json read_config_json(const std::filesystem::path& file) {
    try {
        nlohmann::json json = nlohmann::json::parse(read_text_file(file));
        if (!json.is_object())
            fail(ErrorCode::bad_file, "{} is no JSON object; download the file again", file.string());
        return json;
    } catch (const nlohmann::json::parse_error& error) {
        fail(ErrorCode::bad_file, "{} is no JSON (byte {}); download the file again", file.string(),
             error.byte);
    }
}

}  // namespace

Model::Model(std::filesystem::path path, ModelConfig config, ModelWeights weights, Tokenizer tokenizer,
             std::string hash, std::shared_ptr<const void> storage)
    : path_(std::move(path)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)),
      layout_(KvLayout::grouped(config_.n_layers, config_.n_heads, config_.n_kv_heads)),
      hash_(std::move(hash)),
      storage_(std::move(storage)) {}

std::int64_t Model::n_parameters() const {
    auto size = [](const Weight& w) { return w.rows * w.cols; };
    std::int64_t n =
        size(weights_.embedding) + size(weights_.final_norm) + (config_.tied ? 0 : size(weights_.output));
    for (const LayerWeights& l : weights_.layers)
        for (const Weight* w :
             {&l.attention_norm, &l.q, &l.k, &l.v, &l.o, &l.mlp_norm, &l.gate, &l.up, &l.down})
            n += size(*w);
    return n;
}

std::shared_ptr<const Model> load_model(const std::filesystem::path& folder) {
    std::error_code ignored;
    if (!std::filesystem::is_directory(folder, ignored))
        fail(ErrorCode::bad_file,
             "there is no model folder {}; give a folder with config.json, model.safetensors and "
             "tokenizer.json",
             folder.string());
    const std::filesystem::path config_file = folder / "config.json";
    const nlohmann::json json = read_config_json(config_file);
    const Family& family = family_of(json, config_file.string());
    const ModelConfig config = family.config(json, config_file.string());
    auto checkpoint = std::make_shared<Checkpoint>(folder);
    ModelWeights weights = family.weights(*checkpoint, config);
    Tokenizer tokenizer = Tokenizer::from_file(folder / "tokenizer.json");
    if (tokenizer.n_vocab() > config.n_vocab)
        fail(ErrorCode::bad_file,
             "{} has ids up to {}, the model has {} embeddings; tokenizer and model do not belong together",
             (folder / "tokenizer.json").string(), tokenizer.n_vocab() - 1, config.n_vocab);
    const std::string hash = fmt::format("{:016x}", checkpoint->digest(json.dump()));
    return std::make_shared<Model>(folder, config, std::move(weights), std::move(tokenizer), hash,
                                   checkpoint);
}

std::int64_t kv_bytes_per_token(const ModelConfig& config, int element_bytes) {
    return std::int64_t{2} * config.n_layers * config.n_kv_heads * config.head_dim * element_bytes;
}

}  // namespace keyhole
