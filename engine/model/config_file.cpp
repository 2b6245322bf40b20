#include "engine/model/config_file.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <cmath>

namespace keyhole {

struct ConfigFile::Json {
    nlohmann::json root;

    /// Null when absent.
    const nlohmann::json* find(const std::string& key) const {
        const nlohmann::json::json_pointer at(key);
        if (!root.contains(at) || root.at(at).is_null()) return nullptr;
        return &root.at(at);
    }
};

ConfigFile::ConfigFile(const std::filesystem::path& path) : path_(path), bytes_(read_text_file(path)) {
    json_ = std::make_unique<Json>();
    if (is_shallow_json(bytes_)) json_->root = nlohmann::json::parse(bytes_, nullptr, false);
    if (!json_->root.is_object()) {
        fail(ErrorCode::bad_file, "cannot read {}: it is not a JSON object; copy or download the file again",
             path_.string());
    }
}

ConfigFile::~ConfigFile() = default;

void ConfigFile::wrong(const std::string& key, const char* wanted) const {
    const nlohmann::json* found = json_->find(key);
    std::string value = "absent";
    if (found != nullptr) {
        value = found->dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
        if (value.size() > 60) value = value.substr(0, 60) + "...";
    }
    fail(ErrorCode::bad_file, "cannot use {}: {} is {}, wanted {}; check the file", path_.string(),
         key.substr(1), value, wanted);
}

bool ConfigFile::has(const std::string& key) const {
    return json_->find(key) != nullptr;
}

int ConfigFile::count(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    constexpr std::uint64_t kMost = 1u << 24;  // tables of that length do no harm
    if (found == nullptr || !found->is_number_unsigned() || found->get<std::uint64_t>() < 1 ||
        found->get<std::uint64_t>() > kMost) {
        wrong(key, "a positive whole number");
    }
    return found->get<int>();
}

int ConfigFile::count_or(const std::string& key, int fallback) const {
    return has(key) ? count(key) : fallback;
}

int ConfigFile::count_or_zero(const std::string& key, int fallback) const {
    const nlohmann::json* found = json_->find(key);
    if (found != nullptr && found->is_number_unsigned() && found->get<std::uint64_t>() == 0) return 0;
    return count_or(key, fallback);
}

double ConfigFile::positive_or(const std::string& key, double fallback) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr) return fallback;
    if (!found->is_number()) wrong(key, "a positive number");
    const double value = found->get<double>();
    if (!std::isfinite(value) || value <= 0) wrong(key, "a positive number");
    return value;
}

bool ConfigFile::flag_or(const std::string& key, bool fallback) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr) return fallback;
    if (!found->is_boolean()) wrong(key, "true or false");
    return found->get<bool>();
}

std::string ConfigFile::text_or(const std::string& key, const std::string& fallback) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr) return fallback;
    if (!found->is_string()) wrong(key, "a text");
    return found->get<std::string>();
}

std::vector<std::string> ConfigFile::texts(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    std::vector<std::string> texts;
    if (found == nullptr) return texts;
    if (!found->is_array()) wrong(key, "a list of texts");
    for (const nlohmann::json& item : *found) {
        if (!item.is_string()) wrong(key, "a list of texts");
        texts.push_back(item.get<std::string>());
    }
    return texts;
}

std::vector<int> ConfigFile::ids(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    std::vector<int> ids;
    if (found == nullptr) return ids;
    const auto add = [&](const nlohmann::json& item) {
        constexpr std::int64_t kMost = 1 << 30;
        // Some files say -1 for none.
        if (!item.is_number_integer() || item.get<std::int64_t>() < -1 || item.get<std::int64_t>() > kMost) {
            wrong(key, "a token id or a list of them");
        }
        if (item.get<int>() >= 0) ids.push_back(item.get<int>());
    };
    if (found->is_array()) {
        for (const nlohmann::json& item : *found) add(item);
    } else {
        add(*found);
    }
    return ids;
}

}  // namespace keyhole
