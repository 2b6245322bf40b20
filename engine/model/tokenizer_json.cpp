#include "engine/model/tokenizer_json.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/utf8.h"

#include <nlohmann/json.hpp>

namespace keyhole {

namespace {

/// The longest list of steps: published tokenizers have up to ten. All tokens pass through the decoder's
/// steps while loading.
constexpr std::size_t kMostSteps = 32;

}  // namespace

void TokenizerJson::broken(const std::string& what) const {
    fail(ErrorCode::bad_file, "cannot read {}: {}; copy or download the file again", path_->string(), what);
}

void TokenizerJson::unsupported(const std::string& what) const {
    fail(ErrorCode::unsupported,
         "cannot use {}: {} is not supported; choose a model with a BPE or Unigram tokenizer",
         path_->string(), what);
}

const TokenizerJson::Json& TokenizerJson::member(const Json& object, const char* key) {
    static const Json null;
    const auto found = object.is_object() ? object.find(key) : object.end();
    return !object.is_object() || found == object.end() ? null : *found;
}

std::string TokenizerJson::text(const Json& object, const char* key) const {
    const Json& value = member(object, key);
    if (!value.is_string()) broken(std::string(key) + " is not a text");
    return value.get<std::string>();
}

bool TokenizerJson::flag(const Json& object, const char* key, bool fallback) const {
    const Json& value = member(object, key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) broken(std::string(key) + " is neither true nor false");
    return value.get<bool>();
}

int TokenizerJson::id(const Json& value, const std::string& of) const {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() >= id_limit_)
        broken(fmt::format("the id of {} is {}, wanted a whole number from 0 to {}", shown_text(of),
                           shown_text(value.dump(-1, ' ', true, Json::error_handler_t::replace)),
                           id_limit_ - 1));
    return value.get<int>();
}

std::vector<const TokenizerJson::Json*> TokenizerJson::steps(const Json& object, const char* list) const {
    if (object.is_null()) return {};
    if (text(object, "type") != "Sequence") return {&object};
    const Json& members = member(object, list);
    if (!members.is_array()) broken(std::string(list) + " is not a list");
    std::vector<const Json*> flat;
    for (const Json& one : members) {
        for (const Json* step : steps(one, list)) flat.push_back(step);
        if (flat.size() > kMostSteps) broken(fmt::format("{} has more than {} members", list, kMostSteps));
    }
    return flat;
}

std::string TokenizerJson::literal(const Json& step, const std::string& of) const {
    const Json& pattern = member(step, "pattern");
    if (!member(pattern, "String").is_string()) unsupported(of + " with a regular expression");
    return text(pattern, "String");
}

Regex TokenizerJson::regex(const Json& step) const {
    const Json& pattern = member(step, "pattern");
    try {
        return member(pattern, "Regex").is_string() ? Regex(text(pattern, "Regex"))
                                                    : Regex::literal(text(pattern, "String"));
    } catch (const Error& error) {
        if (error.code() == ErrorCode::bad_file) throw;
        fail(error.code(), "cannot use {}: {}", path_->string(), error.what());
    }
}

std::string TokenizerJson::one_character(const Json& step, const char* key) const {
    std::string sign = text(step, key);
    if (sign.empty() || utf8_length(sign) != sign.size())
        broken(std::string(key) + " is no single character");
    return sign;
}

}  // namespace keyhole
