#include "engine/model/config_file.h"

#include "engine/base/error.h"
#include "engine/base/json_file.h"
#include "engine/base/json_text.h"
#include "engine/base/mapped_file.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace keyhole {

namespace {

constexpr JsonBounds kConfigBounds{std::size_t{4} << 20, 250'000};

/// Returns a value in a short form for a message.
std::string shown(const nlohmann::json& value) {
    constexpr std::size_t kLongest = 60;
    if (value.is_structured()) return value.is_array() ? "a list" : "an object";
    const std::string text =
        shown_text(value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));  // ASCII only
    return text.size() > kLongest ? fmt::format("{}...", text.substr(0, kLongest)) : text;
}

}  // namespace

struct ConfigFile::Json {
    nlohmann::json root;
    std::filesystem::path path;

    /// Returns null when absent.
    const nlohmann::json* find(const std::string& key) const {
        const nlohmann::json* at = &root;
        for (std::size_t begin = 1; at != nullptr && begin <= key.size();) {
            if (!at->is_object()) {
                fail(ErrorCode::bad_file, "cannot use {}: {} is {}, wanted an object; check the file",
                     path.string(), key.substr(1, begin - 2), keyhole::shown(*at));
            }
            const std::size_t end = std::min(key.find('/', begin), key.size());
            const auto member = at->find(key.substr(begin, end - begin));
            at = member == at->end() || member->is_null() ? nullptr : &*member;
            begin = end + 1;
        }
        return at;
    }
};

ConfigFile::ConfigFile(const std::filesystem::path& path)
    : ConfigFile(path, read_text_file(path, kConfigBounds.bytes)) {}

ConfigFile::ConfigFile(const std::filesystem::path& path, std::string text)
    : path_(path), bytes_(std::move(text)) {
    json_ = std::make_unique<Json>();
    json_->root = json_object_of(bytes_, path_, kConfigBounds.values);
    json_->path = path_;
}

ConfigFile::~ConfigFile() = default;

void ConfigFile::wrong(const std::string& key, const std::string& wanted) const {
    fail(ErrorCode::bad_file, "cannot use {}: {} is {}, wanted {}; check the file", path_.string(),
         key.substr(1), shown(key), wanted);
}

void ConfigFile::no_count(const std::string& key, int least, int most) const {
    wrong(key, fmt::format("a whole number from {} to {}", least, most));
}

bool ConfigFile::has(const std::string& key) const {
    return json_->find(key) != nullptr;
}

void ConfigFile::warn(std::string line) const {
    if (std::find(warnings_.begin(), warnings_.end(), line) == warnings_.end())
        warnings_.push_back(std::move(line));
}

bool ConfigFile::is_null(const std::string& key) const {
    const nlohmann::json::json_pointer pointer(key);
    return json_->root.contains(pointer) && json_->root.at(pointer).is_null();
}

bool ConfigFile::has_members(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    return found != nullptr && found->is_object() && !found->empty();
}

bool ConfigFile::differ(const std::string& one, const std::string& other) const {
    const nlohmann::json *a = json_->find(one), *b = json_->find(other);
    return a != nullptr && b != nullptr && *a != *b;
}

std::string ConfigFile::shown(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    return found == nullptr ? "absent" : keyhole::shown(*found);
}

int ConfigFile::count(const std::string& key, int most) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr || !found->is_number_unsigned() || found->get<std::uint64_t>() < 1 ||
        found->get<std::uint64_t>() > static_cast<std::uint64_t>(most)) {
        no_count(key, 1, most);
    }
    return found->get<int>();
}

int ConfigFile::count_or(const std::string& key, int fallback, int most) const {
    return has(key) ? count(key, most) : fallback;
}

int ConfigFile::count_or_zero(const std::string& key, int fallback, int most) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr) return fallback;
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() > static_cast<std::uint64_t>(most))
        no_count(key, 0, most);
    return found->get<int>();
}

double ConfigFile::positive_or(const std::string& key, double fallback) const {
    const nlohmann::json* found = json_->find(key);
    if (found == nullptr) return fallback;
    if (!found->is_number()) wrong(key, "a positive number");
    const double value = found->get<double>();
    // Most of these values become floats.
    if (!(value > 0) || value > std::numeric_limits<float>::max()) wrong(key, "a positive number");
    return value;
}

double ConfigFile::positive_or_unset(const std::string& key, double fallback) const {
    const nlohmann::json* found = json_->find(key);
    const bool is_zero = found != nullptr && found->is_number() && found->get<double>() == 0.0;
    return is_zero ? fallback : positive_or(key, fallback);
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

std::vector<double> ConfigFile::positives(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    std::vector<double> numbers;
    if (found == nullptr) return numbers;
    if (!found->is_array()) wrong(key, "a list of positive numbers");
    for (const nlohmann::json& item : *found) {
        const double value = item.is_number() ? item.get<double>() : 0.0;
        if (!(value > 0) || value > std::numeric_limits<float>::max())
            wrong(key, "a list of positive numbers");
        numbers.push_back(value);
    }
    return numbers;
}

std::vector<int> ConfigFile::integers(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    std::vector<int> numbers;
    if (found == nullptr) return numbers;
    if (!found->is_array()) wrong(key, "a list of whole numbers");
    for (const nlohmann::json& item : *found) {
        constexpr std::int64_t kMost = 1 << 30;
        if (!item.is_number_integer() || std::abs(item.get<std::int64_t>()) > kMost)
            wrong(key, "a list of whole numbers");
        numbers.push_back(item.get<int>());
    }
    return numbers;
}

std::unique_ptr<ConfigFile> ConfigFile::text_part() const {
    const nlohmann::json* part = json_->find("/text_config");
    if (part == nullptr) return nullptr;
    if (!part->is_object()) wrong("/text_config", "an object");
    nlohmann::json joined = json_->root;
    joined.erase("text_config");
    for (const auto& [key, value] : part->items())
        if (key != "architectures" && !value.is_null()) joined[key] = value;
    return std::make_unique<ConfigFile>(path_, joined.dump());
}

std::vector<int> ConfigFile::ids(const std::string& key) const {
    const nlohmann::json* found = json_->find(key);
    std::vector<int> ids;
    if (found == nullptr) return ids;
    const auto add = [&](const nlohmann::json& item) {
        constexpr std::int64_t kMost = 1 << 30;
        // Some files write -1 for none.
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
