#include "engine/model/jinja_value.h"

#include "engine/base/error.h"
#include "engine/base/utf8.h"

#include <algorithm>
#include <cmath>

namespace keyhole::jinja {
namespace {

std::string json_text(std::string_view text) {
    std::string out = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            out += '\\';
            out += c;
        } else if (c == '\n') {
            out += "\\n";
        } else if (c == '\r') {
            out += "\\r";
        } else if (c == '\t') {
            out += "\\t";
        } else if (c == '\b') {
            out += "\\b";
        } else if (c == '\f') {
            out += "\\f";
        } else if (byte < 0x20) {
            out += fmt::format("\\u{:04x}", byte);
        } else {
            out += c;
        }
    }
    return out + '"';
}

void append_json(const Value& value, int indent, int level, std::string& out) {
    const auto line = [&](int at) {
        if (indent >= 0) out.append("\n").append(static_cast<std::size_t>(indent * at), ' ');
    };
    const char* comma = indent >= 0 ? "," : ", ";
    if (value.is_none()) {
        out += "null";
    } else if (const bool* flag = value.boolean()) {
        out += *flag ? "true" : "false";
    } else if (const std::string* text = value.text()) {
        out += json_text(*text);
    } else if (const List* list = value.list()) {
        out += '[';
        for (std::size_t i = 0; i < list->size(); ++i) {
            if (i > 0) out += comma;
            line(level + 1);
            append_json((*list)[i], indent, level + 1, out);
        }
        if (!list->empty()) line(level);
        out += ']';
    } else if (const Dict* dict = value.dict()) {
        out += '{';
        for (std::size_t i = 0; i < dict->size(); ++i) {
            if (i > 0) out += comma;
            line(level + 1);
            out += json_text((*dict)[i].first) + ": ";
            append_json((*dict)[i].second, indent, level + 1, out);
        }
        if (!dict->empty()) line(level);
        out += '}';
    } else if (value.is_number()) {
        out += text_of(value);
    } else {
        unsupported(fmt::format("JSON of {}", value.type()));
    }
}

}  // namespace

void unsupported(const std::string& what) {
    fail(ErrorCode::unsupported, "{}", what);
}

void Extent::add(const Extent& item) {
    // Values are copied, compared and destroyed by recursion.
    constexpr int kDeepest = 64;
    constexpr std::size_t kMost = std::size_t{1} << 22;
    depth = std::max(depth, 1 + item.depth);
    n_values += item.n_values;
    if (depth > kDeepest) unsupported("values nested more than 64 deep");
    if (n_values > kMost) unsupported("a list of more than 4 million values");
}

Value::Value(List items) {
    Extent extent;
    for (const Value& item : items) extent.add(item.extent());
    data_ = std::make_shared<const ListValue>(ListValue{std::move(items), extent});
}

Value::Value(Dict items, bool is_namespace) {
    Extent extent;
    for (const auto& [key, item] : items) extent.add(item.extent());
    data_ = std::make_shared<DictValue>(DictValue{std::move(items), extent, is_namespace});
}

Value::Value(Callable callable) : data_(std::make_shared<const Callable>(std::move(callable))) {}

const List* Value::list() const {
    const auto* list = std::get_if<std::shared_ptr<const ListValue>>(&data_);
    return list == nullptr ? nullptr : &(*list)->items;
}

const Dict* Value::dict() const {
    const auto* dict = std::get_if<std::shared_ptr<DictValue>>(&data_);
    return dict == nullptr ? nullptr : &(*dict)->items;
}

const Callable* Value::callable() const {
    const auto* callable = std::get_if<std::shared_ptr<const Callable>>(&data_);
    return callable == nullptr ? nullptr : callable->get();
}

bool Value::is_namespace() const {
    const auto* dict = std::get_if<std::shared_ptr<DictValue>>(&data_);
    return dict != nullptr && (*dict)->is_namespace;
}

const Value* Value::member(std::string_view key) const {
    const Dict* items = dict();
    if (items == nullptr) return nullptr;
    const auto found =
        std::find_if(items->begin(), items->end(), [&](const auto& item) { return item.first == key; });
    return found == items->end() ? nullptr : &found->second;
}

void Value::set_member(const std::string& key, Value value) {
    // A namespace in a namespace could hold itself.
    if (value.is_namespace()) unsupported("a namespace in a namespace");
    DictValue& to = *std::get<std::shared_ptr<DictValue>>(data_);
    to.extent.add(value.extent());
    const auto found =
        std::find_if(to.items.begin(), to.items.end(), [&](const auto& item) { return item.first == key; });
    if (found == to.items.end())
        to.items.emplace_back(key, std::move(value));
    else
        found->second = std::move(value);
}

Extent Value::extent() const {
    if (const auto* list = std::get_if<std::shared_ptr<const ListValue>>(&data_)) return (*list)->extent;
    if (const auto* dict = std::get_if<std::shared_ptr<DictValue>>(&data_)) return (*dict)->extent;
    Extent extent;
    if (callable() != nullptr) extent.add(callable()->self.extent());
    if (text() != nullptr) extent.n_values += text()->size() / sizeof(Value);
    return extent;
}

bool Value::truth() const {
    if (const bool* flag = boolean()) return *flag;
    if (const std::int64_t* whole = integer()) return *whole != 0;
    if (const double* number = real()) return *number != 0.0;
    if (const std::string* string = text()) return !string->empty();
    if (const List* items = list()) return !items->empty();
    if (const Dict* items = dict()) return is_namespace() || !items->empty();
    return callable() != nullptr;
}

const char* Value::type() const {
    if (is_undefined()) return "an undefined value";
    if (is_none()) return "None";
    if (boolean() != nullptr) return "a bool";
    if (is_number()) return "a number";
    if (text() != nullptr) return "a text";
    if (list() != nullptr) return "a list";
    return dict() != nullptr ? "an object" : "a function";
}

bool equal(const Value& a, const Value& b) {
    if (a.is_number() && b.is_number()) {
        if (a.real() == nullptr && b.real() == nullptr) return integer_of(a) == integer_of(b);
        return number_of(a) == number_of(b);
    }
    if (a.text() != nullptr && b.text() != nullptr) return *a.text() == *b.text();
    if (a.list() != nullptr && b.list() != nullptr)
        return std::equal(a.list()->begin(), a.list()->end(), b.list()->begin(), b.list()->end(), equal);
    if (a.dict() != nullptr && b.dict() != nullptr) {
        if (a.dict()->size() != b.dict()->size()) return false;
        return std::all_of(a.dict()->begin(), a.dict()->end(), [&](const auto& item) {
            const Value* other = b.member(item.first);
            return other != nullptr && equal(item.second, *other);
        });
    }
    return (a.is_none() && b.is_none()) || (a.is_undefined() && b.is_undefined());
}

bool less(const Value& a, const Value& b) {
    if (a.text() != nullptr && b.text() != nullptr) return *a.text() < *b.text();
    if (!a.is_number() || !b.is_number())
        unsupported(fmt::format("a comparison of {} with {}", a.type(), b.type()));
    if (a.real() == nullptr && b.real() == nullptr) return integer_of(a) < integer_of(b);
    return number_of(a) < number_of(b);
}

double number_of(const Value& value) {
    if (const double* number = value.real()) return *number;
    return static_cast<double>(integer_of(value));
}

std::int64_t integer_of(const Value& value) {
    if (const bool* flag = value.boolean()) return *flag ? 1 : 0;
    if (value.integer() == nullptr) unsupported(fmt::format("{} where a whole number belongs", value.type()));
    return *value.integer();
}

std::string text_of(const Value& value) {
    if (const std::string* text = value.text()) return *text;
    if (value.is_undefined()) return {};
    if (value.is_none()) return "None";
    if (const bool* flag = value.boolean()) return *flag ? "True" : "False";
    if (const std::int64_t* whole = value.integer()) return fmt::format("{}", *whole);
    if (const double* number = value.real()) {
        std::string text = fmt::format("{}", *number);
        if (text.find_first_of("en") != std::string::npos) unsupported("the text of the number " + text);
        return text.find('.') == std::string::npos ? text + ".0" : text;
    }
    unsupported(fmt::format("the text of {}", value.type()));
}

std::string json_of(const Value& value, int indent) {
    std::string out;
    append_json(value, indent, 0, out);
    return out;
}

std::vector<std::size_t> character_starts(std::string_view text) {
    std::vector<std::size_t> starts;
    for (std::size_t at = 0; at < text.size(); at += std::max<std::size_t>(utf8_length(text.substr(at)), 1))
        starts.push_back(at);
    starts.push_back(text.size());
    return starts;
}

std::string_view stripped(std::string_view text, bool left, bool right, const std::string* characters) {
    const auto goes = [&](std::string_view one) {
        if (one.empty()) return false;
        if (characters != nullptr) return characters->find(one) != std::string::npos;
        const char32_t c = utf8_length(one) > 0 ? utf8_decode(one) : U'\0';
        return is_space(c) || (c >= 0x1c && c <= 0x1f);  // Python counts the separators of ASCII
    };
    while (left && goes(first_character(text))) text.remove_prefix(first_character(text).size());
    while (right && goes(last_character(text))) text.remove_suffix(last_character(text).size());
    return text;
}

}  // namespace keyhole::jinja
