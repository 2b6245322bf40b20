#include "engine/model/model.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/model/checkpoint.h"
#include "engine/model/config_file.h"
#include "engine/model/described_model.h"
#include "engine/model/digest.h"
#include "engine/model/families/family.h"
#include "engine/model/folder_files.h"
#include "engine/model/gguf_model.h"
#include "engine/model/other_formats.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <new>
#include <utility>

namespace keyhole {

namespace {

/// Reads the keys of a model that shares KV heads between layers, from MLKV's code and from Keyhole; any
/// family.
void read_kv_sharing(const ConfigFile& file, ModelConfig& config) {
    config.n_kv_layers = file.count_or("/num_key_value_layers", config.n_layers, kMostLayers);
    if (config.n_kv_layers > config.n_layers) {
        fail(ErrorCode::bad_file,
             "cannot use {}: num_key_value_layers {} is above num_hidden_layers {}; check the file",
             file.path().string(), config.n_kv_layers, config.n_layers);
    }
    if (file.flag_or("/use_key_value_mlp", false)) {
        fail(ErrorCode::unsupported,
             "cannot load {}: use_key_value_mlp is not supported, only linear K and V; choose another model",
             file.path().string());
    }
    config.borrows_unrotated = file.flag_or("/keyhole_borrows_unrotated", config.borrows_unrotated);
    config.merged = file.flag_or("/keyhole_merged", false);
}

}  // namespace

KvLayout layout_of(const ModelConfig& config) {
    return KvLayout::shared(config.n_layers, config.n_heads,
                            config.n_kv_layers > 0 ? config.n_kv_layers : config.n_layers, config.n_kv_heads);
}

Model::Model(std::filesystem::path path, ModelConfig config, ModelWeights weights,
             std::shared_ptr<const Tokenizer> tokenizer, std::string hash,
             std::shared_ptr<const void> storage, std::vector<std::string> warnings)
    : path_(std::move(path)),
      config_(std::move(config)),
      weights_(std::move(weights)),
      tokenizer_(std::move(tokenizer)),
      layout_(layout_of(config_)),
      hash_(std::move(hash)),
      storage_(std::move(storage)),
      warnings_(std::move(warnings)) {}

std::int64_t Model::n_parameters() const {
    std::int64_t n = 0;
    visit_weights(weights_, [&n](const Weight& weight) { n += weight.rows * weight.cols; });
    return n;
}

namespace {

std::vector<std::string> weight_warnings(const Checkpoint& checkpoint) {
    constexpr std::size_t kMost = 4;
    std::vector<std::string> warnings = checkpoint.warnings();
    if (warnings.size() > kMost) {
        const std::size_t more = warnings.size() - kMost;
        warnings.resize(kMost);
        warnings.push_back(fmt::format("{} more tensors hold NaN or infinity", more));
    }
    warnings.insert(warnings.end(), checkpoint.notes().begin(), checkpoint.notes().end());
    return warnings;
}

}  // namespace

namespace {

constexpr int kPadding = 1024;  // rows that checkpoints add to round vocab_size up
constexpr int kFewTokens = 8;   // the divisor of a vocabulary up to which tokens beyond it are few

/// Compares the number of tokens with that of embeddings. Tokens without an embedding hurt only a text that
/// uses one; a tokenizer of another model has many.
void check_vocabulary(const std::filesystem::path& path, bool one_file, const ModelConfig& config,
                      Tokenizer& tokenizer, std::vector<std::string>& warnings) {
    const int n_tokens = tokenizer.n_vocab(), n_vocab = config.n_vocab;
    if (n_vocab - n_tokens > kPadding)
        warnings.push_back(fmt::format(
            "the tokenizer has {} tokens, the model a vocabulary of {}: ids from {} on have no text",
            n_tokens, n_vocab, n_tokens));
    if (n_tokens <= n_vocab) return;
    if (n_tokens - n_vocab > std::min(kPadding, n_vocab / kFewTokens))
        fail(ErrorCode::bad_file,
             "cannot load the model {}: {} has ids up to {}, {} of {}; the two do not belong together",
             path.string(), one_file ? "its tokenizer" : "tokenizer.json", n_tokens - 1,
             one_file ? "the embedding a height" : "config.json a vocab_size", n_vocab);
    warnings.push_back(
        fmt::format("the tokenizer has {} tokens, the model a vocabulary of {}: a text with {} "
                    "(id {}) cannot be read",
                    n_tokens, n_vocab, shown_text(tokenizer.token_bytes(n_tokens - 1)), n_tokens - 1));
    tokenizer.limit_to(n_vocab);
}

/// Leaves out ids that are no tokens of the model.
void check_special_ids(ModelConfig& config, std::vector<std::string>& warnings) {
    const auto is_beyond = [&](const char* name, int id) {
        if (id < config.n_vocab) return false;
        warnings.push_back(
            fmt::format("{} {} is beyond the vocabulary of {} and does not count", name, id, config.n_vocab));
        return true;
    };
    std::erase_if(config.eos, [&](int id) { return is_beyond("eos_token_id", id); });
    if (is_beyond("bos_token_id", config.bos)) config.bos = -1;
}

/// Checks what tokenizer and configuration say of each other, and makes the model.
std::shared_ptr<const Model> assembled(const std::filesystem::path& path, const ConfigFile& config_file,
                                       ModelConfig config, ModelWeights weights, Tokenizer tokenizer,
                                       std::shared_ptr<Checkpoint> checkpoint, std::uint64_t digest) {
    std::vector<std::string> warnings = weight_warnings(*checkpoint);
    warnings.insert(warnings.end(), config_file.warnings().begin(), config_file.warnings().end());
    warnings.insert(warnings.end(), tokenizer.warnings().begin(), tokenizer.warnings().end());
    check_vocabulary(path, config_file.path() == path, config, tokenizer, warnings);
    check_special_ids(config, warnings);
    config.tied = weights.output.data == weights.embedding.data;
    std::string hash = fmt::format("{:016x}", checkpoint->digest(digest));
    checkpoint->check_unchanged();
    return std::make_shared<const Model>(path, std::move(config), std::move(weights), std::move(tokenizer),
                                         std::move(hash), std::move(checkpoint), std::move(warnings));
}

DescribedModel described_gguf(const std::filesystem::path& path) {
    GgufFile file(path);
    file.open_parts();
    GgufModel described = describe_gguf(file);
    const ConfigFile config_file(path, std::move(described.config));
    const Family& family = family_of(config_file);
    ModelConfig config = family.read_config(config_file);
    scale_by_gguf_factors(file, config);
    Tokenizer tokenizer = Tokenizer::from_gguf(file);
    const auto checkpoint = std::make_shared<Checkpoint>(std::move(file), std::move(described.places));
    ModelWeights weights = family.map_weights(config_file, config, *checkpoint);
    checkpoint->refuse_unread();
    return {assembled(path, config_file, std::move(config), std::move(weights), std::move(tokenizer),
                      checkpoint, kDigestSeed),
            checkpoint};
}

/// Adds what generation_config.json says: an end token of either file ends a text; its BOS counts.
void join_generation_config(const ConfigFile& config_file, const std::filesystem::path& folder,
                            ModelConfig& config) {
    const std::filesystem::path path = folder / "generation_config.json";
    if (!is_there(path)) return;
    std::vector<int> eos, bos;
    try {
        const ConfigFile generation(path);
        eos = generation.ids("/eos_token_id");
        bos = generation.ids("/bos_token_id");
    } catch (const Error& error) {
        config_file.warn(fmt::format("its end tokens do not count: {}", error.what()));
        return;
    }
    const auto has = [](const std::vector<int>& ids, int id) {
        return std::find(ids.begin(), ids.end(), id) != ids.end();
    };
    for (const int id : config.eos)
        if (!eos.empty() && !has(eos, id))
            config_file.warn(
                fmt::format("config.json ends texts with id {}, generation_config.json with {}; all "
                            "of them end a text here",
                            id, fmt::join(eos, ", ")));
    for (const int id : eos)
        if (!has(config.eos, id)) config.eos.push_back(id);
    if (bos.empty()) return;
    if (config.bos >= 0 && config.bos != bos.front())
        config_file.warn(
            fmt::format("config.json says {} for bos_token_id, generation_config.json {}, which "
                        "counts, as in transformers",
                        config.bos, bos.front()));
    config.bos = bos.front();
}

DescribedModel described(const std::filesystem::path& path) {
    if (is_there(path) && !is_folder(path) && is_gguf(path)) return described_gguf(path);
    const std::filesystem::path& folder = path;
    if (!is_folder(folder)) {
        const std::string hint = conversion_hint(folder);
        const bool there = is_there(folder);
        fail(ErrorCode::bad_file, "cannot load the model {}: {}; {}", folder.string(),
             there ? "it is not a folder and no GGUF file" : "there is no such folder",
             there && !hint.empty() ? hint : "name a Hugging Face model folder or a GGUF file");
    }
    refuse_adapter(folder);
    if (!is_there(folder / "config.json")) {
        const std::string hint = conversion_hint(folder);
        fail(ErrorCode::bad_file, "cannot load the model {}: it has no config.json; {}", folder.string(),
             hint.empty() ? "name a complete Hugging Face model folder" : hint);
    }
    const ConfigFile whole_file(folder / "config.json");
    const Family& family = family_of(whole_file);
    const std::unique_ptr<ConfigFile> part = family.reads_text_part ? whole_file.text_part() : nullptr;
    const ConfigFile& config_file = part != nullptr ? *part : whole_file;
    if (part != nullptr) config_file.warn("only the language model is read: it takes no pictures");
    ModelConfig config = family.read_config(config_file);
    read_kv_sharing(config_file, config);
    join_generation_config(config_file, folder, config);
    auto checkpoint = std::make_shared<Checkpoint>(folder);
    ModelWeights weights = family.map_weights(config_file, config, *checkpoint);
    checkpoint->refuse_unread();
    Tokenizer tokenizer = Tokenizer::from_folder(folder);
    const std::string& text = whole_file.bytes();
    const std::uint64_t of_config =
        digest_bytes(kDigestSeed, std::as_bytes(std::span<const char>(text.data(), text.size())));
    return {assembled(folder, config_file, std::move(config), std::move(weights), std::move(tokenizer),
                      checkpoint, of_config),
            checkpoint};
}

template <class Work>
auto with_memory_named(const std::filesystem::path& path, Work work) {
    try {
        return work();
    } catch (const std::bad_alloc&) {
        fail(ErrorCode::no_memory,
             "cannot load the model {}: the system gives no more memory; close other programs or choose a "
             "smaller model",
             path.string());
    }
}

}  // namespace

std::int64_t DescribedModel::copied_bytes() const {
    return checkpoint->copied_bytes();
}

DescribedModel describe_model(const std::filesystem::path& path) {
    return with_memory_named(path, [&] { return described(path); });
}

std::shared_ptr<const Model> load_model(const std::filesystem::path& path) {
    return load_model(path, {});
}

std::shared_ptr<const Model> load_model(const std::filesystem::path& path,
                                        const std::function<void(double)>& progress) {
    return with_memory_named(path, [&] {
        const DescribedModel found = described(path);
        found.checkpoint->make_copies(progress);
        found.checkpoint->check_unchanged();
        return found.model;
    });
}

std::int64_t kv_bytes_per_token(const ModelConfig& config, KvType type) {
    const int n_kv_layers = config.n_kv_layers > 0 ? config.n_kv_layers : config.n_layers;
    return std::int64_t{2} * n_kv_layers * config.n_kv_heads * kv_row_bytes(type, config.head_dim);
}

}  // namespace keyhole
