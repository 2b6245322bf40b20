#include "engine/model/special_tokens.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"
#include "engine/model/folder_files.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <set>

namespace keyhole {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr JsonBounds kBounds{std::size_t{4} << 20, 250'000};
constexpr int kMostIds = 1 << 22;
constexpr const char* kExtra = "extra_special_tokens";
constexpr std::array<std::string_view, 7> kNames = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                    "pad_token", "cls_token", "mask_token"};

Json read_if_there(const fs::path& path) {
    return is_there(path) ? read_json_object(path, kBounds) : Json::object();
}

/// Returns the keys of a file and of its extra_special_tokens as they are written: ids depend on their order.
std::vector<std::string> keys_in_order(const fs::path& path) {
    std::vector<std::string> keys;
    if (!is_there(path)) return keys;
    std::string outer;
    const auto on_event = [&](int depth, Json::parse_event_t event, Json& key) {
        if (event != Json::parse_event_t::key) return true;
        const auto name = key.get<std::string>();
        if (depth == 1) outer = name;
        if (depth == 1 || (depth == 2 && outer == kExtra)) keys.push_back(name);
        return true;
    };
    const Json all = Json::parse(read_text_file(path, kBounds.bytes), on_event);
    KH_ASSERT(all.is_object());  // it was read before
    return keys;
}

class Joiner {
  public:
    Joiner(const fs::path& folder, TokenizerParts& parts)
        : folder_(folder), parts_(parts), config_(read_if_there(folder / kConfig)) {}
    void join();

  private:
    static constexpr const char* kConfig = "tokenizer_config.json";
    static constexpr const char* kMap = "special_tokens_map.json";
    static constexpr const char* kAdded = "added_tokens.json";

    struct Wanted {
        AddedToken token;
        int given = -1;  ///< the id in the file
        const char* file = kConfig;
    };

    [[noreturn]] void broken(const char* file, const std::string& what) const {
        fail(ErrorCode::bad_file, "cannot use {}: {}; check the file", (folder_ / file).string(), what);
    }
    int id_of(const Json& value, const std::string& of, const char* file) const {
        if (!value.is_number_integer() || value.get<std::int64_t>() < 0 ||
            value.get<std::int64_t>() >= kMostIds)
            broken(file, fmt::format("the id of {} is {}, wanted a whole number from 0 to {}", shown_text(of),
                                     shown_text(value.dump(-1, ' ', true, Json::error_handler_t::replace)),
                                     kMostIds - 1));
        return value.get<int>();
    }
    AddedToken token_of(const Json& value, const std::string& name, const char* file, bool special) const;
    bool flag(const Json& object, const char* key, bool fallback, const std::string& of,
              const char* file) const;

    void take_map();
    std::vector<Wanted> listed() const;
    std::vector<Wanted> from_added_file() const;
    std::vector<Wanted> named();
    std::vector<Wanted> extra() const;
    void add(std::vector<Wanted> tokens, bool only_new);

    fs::path folder_;
    TokenizerParts& parts_;
    Json config_;
    std::map<std::string, const char*> file_of_;  // where a named token comes from
};

bool Joiner::flag(const Json& object, const char* key, bool fallback, const std::string& of,
                  const char* file) const {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) return fallback;
    if (!found->is_boolean())
        broken(file, fmt::format("{} of {} is neither true nor false", key, shown_text(of)));
    return found->get<bool>();
}

/// Reads a token: a text, or an object with content and flags.
AddedToken Joiner::token_of(const Json& value, const std::string& name, const char* file,
                            bool special) const {
    AddedToken token;
    token.special = special;
    if (value.is_string()) {
        token.content = value.get<std::string>();
    } else {
        const auto content = value.is_object() ? value.find("content") : value.end();
        if (!value.is_object() || content == value.end() || !content->is_string())
            broken(file, fmt::format("{} is no token (a text, or an object with a text as content)",
                                     shown_text(name)));
        token.content = content->get<std::string>();
        token.special = flag(value, "special", special, name, file);
        token.normalized = flag(value, "normalized", !token.special, name, file);
        token.single_word = flag(value, "single_word", false, name, file);
        token.lstrip = flag(value, "lstrip", false, name, file);
        token.rstrip = flag(value, "rstrip", false, name, file);
    }
    if (token.content.size() > kLongestAddedToken)
        broken(file, fmt::format("the added token {} has {} bytes, at most {} are read",
                                 shown_text(token.content), token.content.size(), kLongestAddedToken));
    return token;
}

/// The older file stands above tokenizer_config.json, unless that has a list of added tokens.
void Joiner::take_map() {
    const Json map = read_if_there(folder_ / kMap);
    for (const auto& [key, value] : map.items()) {
        const auto before = config_.find(key);
        const bool is_name = std::find(kNames.begin(), kNames.end(), key) != kNames.end();
        if (is_name && before != config_.end() && !before->is_null() && !value.is_null()) {
            const std::string one = token_of(*before, key, kConfig, true).content,
                              other = token_of(value, key, kMap, true).content;
            if (one != other)
                parts_.warnings.push_back(fmt::format("{} says {} for {}, {} says {}; {} is used", kConfig,
                                                      shown_text(one), key, kMap, shown_text(other),
                                                      shown_text(other)));
        }
        config_[key] = value;
        file_of_[key] = kMap;
    }
}

std::vector<Joiner::Wanted> Joiner::listed() const {
    std::map<int, Wanted> by_id;
    for (const auto& [key, value] : config_["added_tokens_decoder"].items()) {
        int id = -1;
        const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
        if (error != std::errc() || end != key.data() + key.size() || id < 0 || id >= kMostIds)
            broken(kConfig,
                   fmt::format("added_tokens_decoder has the id {}, wanted a whole number from 0 to {}",
                               shown_text(key), kMostIds - 1));
        if (!value.is_object()) broken(kConfig, fmt::format("added_tokens_decoder/{} is no object", id));
        by_id[id] = {token_of(value, fmt::format("added_tokens_decoder/{}", id), kConfig, false), id,
                     kConfig};
    }
    std::vector<Wanted> tokens;
    for (auto& [id, wanted] : by_id) tokens.push_back(std::move(wanted));
    return tokens;
}

std::vector<Joiner::Wanted> Joiner::from_added_file() const {
    std::set<std::string> special;
    for (const std::string_view name : kNames)
        if (const auto found = config_.find(name); found != config_.end() && !found->is_null())
            special.insert(token_of(*found, std::string(name), kConfig, true).content);
    for (const Wanted& one : extra()) special.insert(one.token.content);
    std::map<int, Wanted> by_id;
    const Json added = read_if_there(folder_ / kAdded);
    for (const auto& [content, value] : added.items()) {
        const bool is_special = special.count(content) != 0;
        Wanted wanted{token_of(Json(content), content, kAdded, is_special), id_of(value, content, kAdded),
                      kAdded};
        wanted.token.normalized = !is_special;
        by_id[wanted.given] = std::move(wanted);
    }
    // An id that tokenizer.json gives to an added token is that token's.
    for (const AddedToken& token : parts_.added) {
        const auto taken = by_id.find(token.id);
        if (taken == by_id.end()) continue;
        if (taken->second.token.content != token.content)
            parts_.warnings.push_back(fmt::format(
                "{} gives the token {} the id {}, which is that of {}: it is no "
                "token",
                kAdded, shown_text(taken->second.token.content), token.id, shown_text(token.content)));
        by_id.erase(taken);
    }
    std::vector<Wanted> tokens;
    for (auto& [id, wanted] : by_id) tokens.push_back(std::move(wanted));
    return tokens;
}

/// Returns the tokens that have a name, and keeps their names.
std::vector<Joiner::Wanted> Joiner::named() {
    std::vector<Wanted> tokens;
    const auto take = [&](const std::string& name, const Json& value) {
        const auto file = file_of_.find(name);
        Wanted wanted{token_of(value, name, file == file_of_.end() ? kConfig : file->second, true), -1,
                      kConfig};
        if (wanted.token.content.empty()) return;
        wanted.token.special = true;
        parts_.named.emplace_back(name, wanted.token.content);
        tokens.push_back(std::move(wanted));
    };
    for (const std::string_view name : kNames)
        if (const auto found = config_.find(name); found != config_.end() && !found->is_null())
            take(std::string(name), *found);
    // Names of the model's own, each with a text: {"image_token": "<image>"}, at the top or in kExtra.
    Json more = Json::object();
    for (const auto& [key, value] : config_.items()) {
        const bool has_name = std::find(kNames.begin(), kNames.end(), key) != kNames.end();
        const bool is_token = value.is_string() || (value.is_object() && value.contains("content"));
        if (!has_name && key.ends_with("_token") && is_token) more[key] = value;
    }
    const auto found = config_.find(kExtra);
    if (found != config_.end() && found->is_object())
        for (const auto& [key, value] : found->items()) more[key] = value;
    std::vector<std::string> order = keys_in_order(folder_ / kConfig);
    for (const auto& [key, value] : more.items()) order.push_back(key);
    for (const std::string& key : order) {
        const auto value = more.find(key);
        if (value == more.end()) continue;
        take(key, *value);
        more.erase(value);
    }
    return tokens;
}

std::vector<Joiner::Wanted> Joiner::extra() const {
    std::vector<Wanted> tokens;
    // The newer list replaces the older one.
    for (const char* key : {kExtra, "additional_special_tokens"}) {
        const auto found = config_.find(key);
        if (found == config_.end() || found->empty()) continue;
        if (found->is_object()) continue;
        if (!found->is_array()) broken(kConfig, fmt::format("{} is no list", key));
        for (const Json& value : *found) {
            tokens.push_back({token_of(value, key, kConfig, true), -1, kConfig});
            tokens.back().token.special = true;
        }
        break;
    }
    return tokens;
}

void Joiner::add(std::vector<Wanted> tokens, bool only_new) {
    std::set<std::string> known;
    for (const AddedToken& token : parts_.added) known.insert(token.content);
    int n_moved = 0;
    for (Wanted& wanted : tokens) {
        if (wanted.token.content.empty()) continue;
        if (only_new && !known.insert(wanted.token.content).second) continue;
        const std::string content = wanted.token.content;
        const int id = add_token(parts_, std::move(wanted.token));
        if (wanted.given < 0 || wanted.given == id || n_moved++ > 0) continue;
        parts_.warnings.push_back(
            fmt::format("{} gives the token {} the id {}; it has {}, as in transformers", wanted.file,
                        shown_text(content), wanted.given, id));
    }
    if (n_moved > 1) parts_.warnings.back() += fmt::format(" ({} tokens in all)", n_moved);
}

void Joiner::join() {
    const auto list = config_.find("added_tokens_decoder");
    const bool has_list = list != config_.end() && !list->is_null();
    if (has_list && !list->is_object()) broken(kConfig, "added_tokens_decoder is no object");
    if (!has_list) take_map();
    std::vector<Wanted> tokens = has_list ? listed() : from_added_file();
    const std::vector<Wanted> names = named();
    for (Wanted& wanted : tokens)
        for (const Wanted& name : names)
            if (name.token.content == wanted.token.content) wanted.token.special = true;
    add(std::move(tokens), false);
    add(names, true);
    add(extra(), true);
}

}  // namespace

void join_special_tokens(const fs::path& folder, TokenizerParts& parts) {
    Joiner(folder, parts).join();
}

}  // namespace keyhole
