#include "engine/base/json_field.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"
#include "engine/base/utf8.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace keyhole {

namespace {

using Json = nlohmann::json;

/// Appends the path from `at` to the value. Returns false when the value is not inside `at`.
bool find_way(const Json& at, const Json* value, std::string& way) {
    if (&at == value) return true;
    const std::size_t length = way.size();
    std::size_t i = 0;
    for (auto it = at.begin(); it != at.end(); ++it, ++i) {
        if (!it->is_structured() && &*it != value) continue;
        way += at.is_array() ? fmt::format("[{}]", i)
                             : fmt::format("{}{}", length > 0 ? "." : "", shown_text(it.key()));
        if (find_way(*it, value, way)) return true;
        way.resize(length);
    }
    return false;
}

/// Returns a value in a short form for a message.
std::string shown(const Json& value) {
    switch (value.type()) {
        case Json::value_t::array:
            return fmt::format("a list of {}", value.size());
        case Json::value_t::object:
            return "an object";
        case Json::value_t::string:
            return fmt::format("\"{}\"", shown_text(value.get_ref<const std::string&>()));
        default:
            return value.dump();
    }
}

/// Returns what the parser calls to note a key that an object has twice.
Json::parser_callback_t note_repeated_keys(std::string& repeated) {
    return [&repeated, keys = std::vector<std::set<std::string>>()](
               int, Json::parse_event_t event, Json& parsed) mutable {  // keys: of the open objects
        using Event = Json::parse_event_t;
        if (event == Event::object_start) keys.emplace_back();
        if (event == Event::object_end) keys.pop_back();
        if (event != Event::key) return true;
        if (const auto [at, is_new] = keys.back().insert(parsed.get<std::string>()); !is_new) repeated = *at;
        return true;
    };
}

}  // namespace

Json parse_json(std::string_view text, std::string_view name, std::string* repeated) {
    if (!is_shallow_json(text))
        fail(ErrorCode::bad_file, "cannot read {}: its values are nested too deeply", name);
    try {
        return repeated == nullptr ? Json::parse(text) : Json::parse(text, note_repeated_keys(*repeated));
    } catch (const Json::parse_error& error) {
        if (const std::string fault = wide_encoding_fault(text); !fault.empty())
            fail(ErrorCode::bad_file, "cannot read {}: {}", name, fault);
        const std::size_t at = std::min(error.byte, text.size());
        const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n');
        fail(ErrorCode::bad_file, "cannot read {}: it is no JSON at line {}, byte {}", name, line, at);
    } catch (const Json::exception&) {  // a number beyond all bounds
        fail(ErrorCode::bad_file, "cannot read {}: it holds a number that no double can hold", name);
    }
}

JsonField::JsonField(const Json& root, std::string_view name) : JsonField(root, root, name) {}

JsonField::JsonField(const Json& root, const Json& value, std::string_view name)
    : root_(&root), value_(&value), name_(name) {}

JsonField JsonField::operator[](const char* key) const {
    if (const std::optional<JsonField> found = find(key)) return *found;
    bad(fmt::format("{} is missing", key));
}

std::optional<JsonField> JsonField::find(const char* key) const {
    if (!value_->is_object()) wanted("an object");
    const auto it = value_->find(key);
    if (it == value_->end()) return std::nullopt;
    return JsonField(*root_, *it, name_);
}

JsonField JsonField::at(std::size_t i) const {
    if (i >= size()) wanted(fmt::format("a list of at least {}", i + 1));
    return JsonField(*root_, (*value_)[i], name_);
}

std::size_t JsonField::size(std::size_t most) const {
    if (!value_->is_array()) wanted("a list");
    if (value_->size() > most) wanted(fmt::format("a list of at most {}", most));
    return value_->size();
}

bool JsonField::is_null() const {
    return value_->is_null();
}

std::int64_t JsonField::whole(std::int64_t low, std::int64_t high) const {
    const bool is_beyond =
        value_->is_number_unsigned() &&
        value_->get<std::uint64_t>() > std::uint64_t{std::numeric_limits<std::int64_t>::max()};
    if (value_->is_number_integer() && !is_beyond) {
        const auto value = value_->get<std::int64_t>();
        if (value >= low && value <= high) return value;
    }
    wanted(fmt::format("a whole number from {} to {}", low, high));
}

std::uint64_t JsonField::natural() const {
    if (!value_->is_number_unsigned()) wanted("a whole number from 0 on");
    return value_->get<std::uint64_t>();
}

double JsonField::number(double low, double high) const {
    if (value_->is_number()) {
        const auto value = value_->get<double>();
        if (value >= low && value <= high) return value;
    }
    wanted(fmt::format("a number from {:g} to {:g}", low, high));
}

float JsonField::real() const {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    if (value_->is_null()) return std::numeric_limits<float>::quiet_NaN();
    if (*value_ == "inf") return kInfinity;
    if (*value_ == "-inf") return -kInfinity;
    if (!value_->is_number()) wanted("a number, null, \"inf\" or \"-inf\"");
    const auto value = value_->get<double>();
    if (std::abs(value) > std::numeric_limits<float>::max()) return value > 0 ? kInfinity : -kInfinity;
    return static_cast<float>(value);
}

bool JsonField::flag() const {
    if (!value_->is_boolean()) wanted("true or false");
    return value_->get<bool>();
}

const std::string& JsonField::text(std::size_t most_bytes) const {
    if (!value_->is_string()) wanted("a text");
    const auto& text = value_->get_ref<const std::string&>();
    if (text.size() > most_bytes) wanted(fmt::format("a text of at most {} bytes", most_bytes));
    return text;
}

std::string JsonField::place() const {
    std::string way;
    find_way(*root_, value_, way);
    return way.empty() ? "its whole content" : way;
}

void JsonField::wanted(std::string_view what) const {
    fail(ErrorCode::bad_file, "cannot read {}: {} is {}, wanted {}", name_, place(), shown(*value_), what);
}

void JsonField::bad(std::string_view why) const {
    if (value_ == root_) fail(ErrorCode::bad_file, "cannot read {}: {}", name_, why);
    fail(ErrorCode::bad_file, "cannot read {}: {}: {}", name_, place(), why);
}

}  // namespace keyhole
