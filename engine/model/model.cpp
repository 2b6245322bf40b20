#include "engine/model/model.h"

#include "engine/base/error.h"
#include "engine/model/checkpoint.h"
#include "engine/model/config_file.h"
#include "engine/model/digest.h"
#include "engine/model/families/family.h"

#include <utility>

namespace keyhole {

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
    std::int64_t n = 0;
    visit_weights(weights_, [&n](const Weight& weight) { n += weight.rows * weight.cols; });
    return n;
}

std::shared_ptr<const Model> load_model(const std::filesystem::path& folder) {
    namespace fs = std::filesystem;
    if (!fs::is_directory(folder)) {
        fail(ErrorCode::bad_file, "cannot load the model {}: {}; name a Hugging Face model folder",
             folder.string(), fs::exists(folder) ? "it is not a folder" : "there is no such folder");
    }
    if (!fs::exists(folder / "config.json")) {
        fail(ErrorCode::bad_file,
             "cannot load the model {}: it has no config.json; name a complete Hugging Face model folder",
             folder.string());
    }
    const ConfigFile config_file(folder / "config.json");
    const Family& family = family_of(config_file);
    ModelConfig config = family.read_config(config_file);
    auto checkpoint = std::make_shared<Checkpoint>(folder);
    ModelWeights weights = family.map_weights(config, *checkpoint);
    Tokenizer tokenizer = Tokenizer::from_folder(folder);
    if (tokenizer.n_vocab() > config.n_vocab) {
        fail(ErrorCode::bad_file,
             "cannot load the model {}: tokenizer.json has ids up to {}, config.json a vocab_size of {}; "
             "the two files do not belong together",
             folder.string(), tokenizer.n_vocab() - 1, config.n_vocab);
    }
    for (const int id : config.eos) {
        if (id >= config.n_vocab) {
            fail(ErrorCode::bad_file,
                 "cannot use {}: eos_token_id {} is beyond vocab_size {}; check the file",
                 config_file.path().string(), id, config.n_vocab);
        }
    }
    if (config.bos >= config.n_vocab) {
        fail(ErrorCode::bad_file, "cannot use {}: bos_token_id {} is beyond vocab_size {}; check the file",
             config_file.path().string(), config.bos, config.n_vocab);
    }
    const std::string& text = config_file.bytes();
    const std::uint64_t of_config =
        digest_bytes(kDigestSeed, std::as_bytes(std::span<const char>(text.data(), text.size())));
    std::string hash = fmt::format("{:016x}", checkpoint->digest(of_config));
    return std::make_shared<const Model>(folder, std::move(config), std::move(weights), std::move(tokenizer),
                                         std::move(hash), std::move(checkpoint));
}

std::int64_t kv_bytes_per_token(const ModelConfig& config, int element_bytes) {
    return std::int64_t{2} * config.n_layers * config.n_kv_heads * config.head_dim * element_bytes;
}

}  // namespace keyhole
