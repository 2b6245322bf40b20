// Selects the files of a folder that make its tokenizer.
#include "engine/model/tokenizer_file.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/model/folder_files.h"
#include "engine/model/special_tokens.h"

#include <nlohmann/json.hpp>

#include <optional>
#include <string_view>

namespace keyhole {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr JsonBounds kSettingsBounds{std::size_t{4} << 20, 250'000};
constexpr JsonBounds kVocabularyBounds{std::size_t{64} << 20, 4'000'000};

/// Returns an empty object when the file does not exist.
Json read_if_there(const fs::path& path, const JsonBounds& bounds) {
    return is_there(path) ? read_json_object(path, bounds) : Json::object();
}

/// Reads tokenizer_config.json, completed by the older special_tokens_map.json.
Json read_settings(const fs::path& folder) {
    Json settings = read_if_there(folder / "special_tokens_map.json", kSettingsBounds);
    settings.update(read_if_there(folder / "tokenizer_config.json", kSettingsBounds));
    return settings;
}

/// Returns the content of a special token, which is a text or an object; empty when absent.
std::string content_of(const Json& settings, const std::string& key) {
    const auto found = settings.find(key);
    if (found == settings.end()) return {};
    if (found->is_string()) return found->get<std::string>();
    const Json content = found->is_object() && found->contains("content") ? found->at("content") : Json();
    return content.is_string() ? content.get<std::string>() : std::string();
}

bool is_set(const Json& settings, const char* key) {
    const auto found = settings.find(key);
    return found != settings.end() && found->is_boolean() && found->get<bool>();
}

/// Reads the lines of merges.txt without its version.
Json read_merges(const fs::path& path) {
    const std::string text = read_text_file(path, kVocabularyBounds.bytes);
    Json merges = Json::array();
    for (std::size_t begin = 0; begin < text.size();) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        std::string_view line = std::string_view(text).substr(begin, end - begin);
        if (line.ends_with('\r')) line.remove_suffix(1);
        if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) merges.push_back(line);
        if (merges.size() > kVocabularyBounds.values)
            fail(ErrorCode::bad_file,
                 "cannot read {}: it has more than {} lines; copy or download the file again", path.string(),
                 kVocabularyBounds.values);
        begin = end + 1;
    }
    return merges;
}

/// Reads GPT-2's and OPT's tokenizers when there is no tokenizer.json.
TokenizerParts read_vocab_and_merges(const fs::path& folder, const Json& settings) {
    const TokenizerPlaces places{folder / "vocab.json", folder / "merges.txt", folder / "vocab.json"};
    const Json byte_level = {{"type", "ByteLevel"},
                             {"add_prefix_space", is_set(settings, "add_prefix_space")}};
    Json object = {{"pre_tokenizer", byte_level}, {"decoder", byte_level}, {"model", {{"type", "BPE"}}}};
    object["model"]["vocab"] = read_json_object(places.vocabulary, kVocabularyBounds);
    object["model"]["merges"] = read_merges(places.merges);
    return read_tokenizer_object(object, places);
}

/// Names the tokens that GPT-2's class of transformers names where the files do not.
void name_by_default(TokenizerParts& parts, Json& settings) {
    constexpr const char* kDefault = "<|endoftext|>";
    if (parts.ids.count(kDefault) == 0) return;
    for (const char* key : {"bos_token", "eos_token", "unk_token"}) {
        if (settings.contains(key)) continue;
        settings[key] = kDefault;
        parts.named.emplace_back(key, kDefault);
        if (parts.added_at.count(kDefault) == 0)
            add_token(parts, {.content = kDefault, .special = true, .normalized = false});
    }
}

/// Returns the token that tokenizer_config.json adds at one end of every text, or nullopt.
std::optional<int> wanted_token(const TokenizerParts& parts, const Json& settings, const std::string& which,
                                const fs::path& folder) {
    if (!is_set(settings, ("add_" + which + "_token").c_str())) return std::nullopt;
    const std::string content = content_of(settings, which + "_token");
    const auto found = parts.ids.find(content);
    if (content.empty() || found == parts.ids.end())
        fail(ErrorCode::bad_file,
             "cannot use {}: add_{}_token is true, but its {}_token '{}' is no token; check the file",
             (folder / "tokenizer_config.json").string(), which, which, shown_text(content));
    return found->second;
}

/// Returns the template of chat_template.jinja, or else of tokenizer_config.json: a text, or a list of named
/// ones, of which "default" is taken.
std::string read_chat_template(const fs::path& folder, const Json& settings) {
    const fs::path file = folder / "chat_template.jinja";
    if (is_there(file)) return read_text_file(file, kSettingsBounds.bytes);
    const auto found = settings.find("chat_template");
    if (found == settings.end()) return {};
    if (found->is_string()) return found->get<std::string>();
    if (found->is_array())
        for (const Json& named : *found)
            if (content_of(named, "name") == "default") return content_of(named, "template");
    return {};
}

[[noreturn]] void fail_without(const fs::path& folder) {
    const bool sentencepiece = is_there(folder / "tokenizer.model");
    fail(ErrorCode::bad_file, "cannot load the model {}: it has no tokenizer.json; {}", folder.string(),
         sentencepiece ? "convert tokenizer.model with transformers: "
                         "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)"
                       : "name a complete Hugging Face model folder");
}

}  // namespace

TokenizerParts read_tokenizer_folder(const fs::path& folder) {
    const bool plain = is_there(folder / "vocab.json") && is_there(folder / "merges.txt");
    const bool whole = is_there(folder / "tokenizer.json");
    if (!plain && !whole) fail_without(folder);
    Json settings = read_settings(folder);
    TokenizerParts parts =
        whole ? read_tokenizer_file(folder / "tokenizer.json") : read_vocab_and_merges(folder, settings);
    parts.chat_template = read_chat_template(folder, settings);
    join_special_tokens(folder, parts);
    if (!whole) {
        name_by_default(parts, settings);
        if (const auto bos = wanted_token(parts, settings, "bos", folder)) parts.before.push_back(*bos);
        if (const auto eos = wanted_token(parts, settings, "eos", folder)) parts.after.push_back(*eos);
    } else if (!parts.has_post_processor) {
        for (const char* key : {"add_bos_token", "add_eos_token"})
            if (is_set(settings, key))
                parts.warnings.push_back(fmt::format(
                    "tokenizer_config.json has {} true, but tokenizer.json has no post_processor: "
                    "no token is added, as in transformers 5",
                    key));
    }
    return parts;
}

}  // namespace keyhole
