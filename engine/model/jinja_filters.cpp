// Filters, tests and methods: see jinja_functions.h.
#include "engine/base/index.h"
#include "engine/base/json_text.h"
#include "engine/model/jinja_functions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>

namespace keyhole::jinja {
namespace {

const std::string& text_arg(const Args& args, std::size_t place, const char* name) {
    const Value* value = args.find(place, name);
    if (value == nullptr || value->text() == nullptr) unsupported(fmt::format("no text as {}", name));
    return *value->text();
}

std::int64_t whole_arg(const Args& args, std::size_t place, const char* name, std::int64_t fallback) {
    const Value* value = args.find(place, name);
    return value == nullptr || value->is_none() ? fallback : integer_of(*value);
}

/// Returns a text with other cases. Only ASCII: the cases of other letters depend on their surroundings.
std::string in_case(const std::string& text, const std::string& which) {
    std::string out = text;
    bool begins = true;  // a word, or with capitalize the text
    for (char& c : out) {
        if (static_cast<unsigned char>(c) >= 0x80) unsupported(which + " of a text that is not ASCII");
        const bool is_lower = c >= 'a' && c <= 'z', is_upper = c >= 'A' && c <= 'Z';
        const bool wants_upper = which == "upper" || (which != "lower" && begins);
        if (wants_upper && is_lower) c = static_cast<char>(c - 'a' + 'A');
        if (!wants_upper && is_upper) c = static_cast<char>(c - 'A' + 'a');
        begins = which == "title" && !is_lower && !is_upper;
    }
    return out;
}

std::string replaced_text(const std::string& text, const Args& args) {
    const std::string &from = text_arg(args, 0, "old"), &to = text_arg(args, 1, "new");
    const std::int64_t most = whole_arg(args, 2, "count", -1);
    if (from.empty()) unsupported("replace of an empty text");
    std::string out;
    std::size_t at = 0;
    for (std::int64_t n = 0; n != most; ++n) {
        const std::size_t found = text.find(from, at);
        if (found == std::string::npos) break;
        out.append(text, at, found - at).append(to);
        at = found + from.size();
    }
    return out.append(text, at);
}

std::string indented(const std::string& text, const Args& args) {
    const Value *width = args.find(0, "width"), *first = args.find(1, "first"),
                *blank = args.find(2, "blank");
    const std::string by =
        width == nullptr ? std::string(4, ' ')
        : width->text() != nullptr
            ? *width->text()
            : std::string(to_index(std::clamp<std::int64_t>(integer_of(*width), 0, 1000)), ' ');
    std::string out;
    bool is_first = true;
    for (std::size_t at = 0; at <= text.size(); is_first = false) {
        const std::size_t end = std::min(text.find('\n', at), text.size());
        const bool is_blank = end == at;
        const bool requested =
            is_first ? first != nullptr && first->truth() : !is_blank || (blank != nullptr && blank->truth());
        if (requested) out += by;
        out.append(text, at, end - at);
        if (end < text.size()) out += '\n';
        at = end + 1;
    }
    return out;
}

Value joined(const Value& of, const Args& args) {
    const Value *by = args.find(0, "d"), *attribute = args.find(1, "attribute");
    std::string out;
    bool first = true;
    for (const Value& item : items_of(of)) {
        if (!first && by != nullptr) out += text_of(*by);
        first = false;
        out += text_of(attribute == nullptr ? item : member_of(item, text_of(*attribute)));
    }
    return out;
}

Value pairs_of(const Value& of) {
    List pairs;
    if (of.is_undefined()) return pairs;
    if (of.dict() == nullptr) unsupported(fmt::format("the items of {}", of.type()));
    for (const auto& [key, value] : *of.dict()) pairs.emplace_back(List{key, value});
    return pairs;
}

/// select, reject, selectattr and rejectattr.
Value selected(const std::string& name, const Value& of, const Args& args) {
    const bool by_attribute = name.ends_with("attr"), keeps = name.starts_with("select");
    std::size_t at = 0;
    std::string attribute;
    if (by_attribute) attribute = text_arg(args, at++, "attribute");
    const std::string test = at < args.values.size() ? text_arg(args, at, "test") : "";
    const Args rest{args.values.size() > at + 1
                        ? List(args.values.begin() + static_cast<std::ptrdiff_t>(at + 1), args.values.end())
                        : List(),
                    {}};
    List kept;
    if (!of.truth()) return kept;  // None too
    for (const Value& item : items_of(of)) {
        const Value value = by_attribute ? item_of(item, Value(attribute)) : item;
        if ((test.empty() ? value.truth() : tested(test, value, rest)) == keeps) kept.push_back(item);
    }
    return kept;
}

Value mapped(const Value& of, const Args& args) {
    const Value *attribute = args.find(kByName, "attribute"), *fallback = args.find(kByName, "default");
    List out;
    if (!of.truth()) return out;  // None too
    for (const Value& item : items_of(of)) {
        if (attribute != nullptr) {
            const Value found = item_of(item, *attribute);
            out.push_back(found.is_undefined() && fallback != nullptr ? *fallback : found);
        } else {
            const std::string& name = text_arg(args, 0, "filter");
            out.push_back(
                filtered(name, item, {List(args.values.begin() + 1, args.values.end()), args.named}));
        }
    }
    return out;
}

Value as_integer(const Value& of, const Args& args) {
    const Value* fallback = args.find(0, "default");
    if (of.real() != nullptr) {
        if (!(std::abs(*of.real()) < 9e15)) unsupported("a number beyond whole ones");
        return static_cast<std::int64_t>(*of.real());
    }
    if (of.is_number()) return integer_of(of);
    const std::string_view text = of.text() == nullptr ? "" : stripped(*of.text(), true, true, nullptr);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
    return whole ? Value(value) : fallback == nullptr ? Value(0) : *fallback;
}

Value length_of(const Value& of) {
    if (of.is_undefined()) return 0;
    if (of.text() != nullptr) return static_cast<std::int64_t>(character_starts(*of.text()).size() - 1);
    if (of.list() == nullptr && of.dict() == nullptr) unsupported(fmt::format("the length of {}", of.type()));
    return static_cast<std::int64_t>(of.list() != nullptr ? of.list()->size() : of.dict()->size());
}

Value split_text(const std::string& text, const Args& args, bool from_right) {
    const Value* by = args.find(0, "sep");
    std::int64_t most = whole_arg(args, 1, "maxsplit", -1);
    List parts;
    if (by == nullptr || by->is_none()) {
        if (most >= 0) unsupported("split at white space with a limit");
        std::string_view rest = stripped(text, true, true, nullptr);
        const std::vector<std::size_t> starts = character_starts(rest);
        std::string word;
        for (std::size_t i = 0; i + 1 < starts.size(); ++i) {
            const std::string_view one = rest.substr(starts[i], starts[i + 1] - starts[i]);
            if (!stripped(one, true, false, nullptr).empty()) {
                word += one;
            } else if (!word.empty()) {
                parts.emplace_back(std::exchange(word, {}));
            }
        }
        if (!word.empty()) parts.emplace_back(word);
        return parts;
    }
    const std::string& sign = text_arg(args, 0, "sep");
    if (sign.empty()) unsupported("split at an empty text");
    std::string_view rest = text;
    for (; most != 0; --most) {
        const std::size_t at = from_right ? rest.rfind(sign) : rest.find(sign);
        if (at == std::string_view::npos) break;
        parts.emplace_back(from_right ? rest.substr(at + sign.size()) : rest.substr(0, at));
        rest = from_right ? rest.substr(0, at) : rest.substr(at + sign.size());
    }
    parts.emplace_back(rest);
    if (from_right) std::reverse(parts.begin(), parts.end());
    return parts;
}

bool has_end(const std::string& text, const Args& args, bool front) {
    const Value* wanted = args.find(0, "prefix");
    if (wanted == nullptr || args.n() != 1) unsupported("startswith or endswith with such arguments");
    const auto has = [&](const Value& one) {
        if (one.text() == nullptr) unsupported("no text as the beginning or end of a text");
        return front ? text.starts_with(*one.text()) : text.ends_with(*one.text());
    };
    if (wanted->list() == nullptr) return has(*wanted);
    return std::any_of(wanted->list()->begin(), wanted->list()->end(), has);
}

Value joined_by(const std::string& text, const Args& args) {
    if (args.values.size() != 1) unsupported("join with such arguments");
    std::string out;
    bool first = true;
    for (const Value& item : items_of(args.values.front())) {
        if (item.text() == nullptr) unsupported("join of a list with other values than texts");
        if (!first) out += text;
        first = false;
        out += *item.text();
    }
    return out;
}

constexpr std::array<std::string_view, 15> kTextMethods = {
    "strip", "lstrip", "rstrip",     "split",   "rsplit", "startswith", "endswith", "upper",
    "lower", "title",  "capitalize", "replace", "find",   "count",      "join"};
constexpr std::array<std::string_view, 4> kDictMethods = {"items", "keys", "values", "get"};

}  // namespace

bool is_method(const Value& of, std::string_view name) {
    const auto is_in = [&](const auto& names) {
        return std::find(names.begin(), names.end(), name) != names.end();
    };
    return (of.text() != nullptr && is_in(kTextMethods)) || (of.dict() != nullptr && is_in(kDictMethods));
}

Value call_method(const std::string& name, const Value& of, const Args& args) {
    if (of.dict() != nullptr) {
        if (name == "get") {
            const Value *found = of.member(text_arg(args, 0, "key")), *fallback = args.find(1, "default");
            return found != nullptr ? *found : fallback != nullptr ? *fallback : Value(None{});
        }
        if (name == "items") return pairs_of(of);
        if (name == "keys") return items_of(of);
        List values;
        for (const auto& [key, value] : *of.dict()) values.push_back(value);
        return values;
    }
    const std::string& text = *of.text();
    if (name == "strip" || name == "lstrip" || name == "rstrip") {
        const Value* signs = args.find(0, "chars");
        return stripped(text, name != "rstrip", name != "lstrip", signs == nullptr ? nullptr : signs->text());
    }
    if (name == "split" || name == "rsplit") return split_text(text, args, name == "rsplit");
    if (name == "startswith" || name == "endswith") return has_end(text, args, name == "startswith");
    if (name == "replace") return replaced_text(text, args);
    if (name == "join") return joined_by(text, args);
    if (name == "find") {
        const std::size_t at = text.find(text_arg(args, 0, "sub"));
        if (at == std::string::npos) return -1;
        return static_cast<std::int64_t>(character_starts(std::string_view(text).substr(0, at)).size() - 1);
    }
    if (name == "count") {
        const std::string& sub = text_arg(args, 0, "sub");
        if (sub.empty()) unsupported("count of an empty text");
        int n = 0;
        for (std::size_t at = 0; (at = text.find(sub, at)) != std::string::npos; at += sub.size()) ++n;
        return n;
    }
    return in_case(text, name);
}

Value filtered(const std::string& name, const Value& of, const Args& args) {
    if (name == "trim") {
        const Value* signs = args.find(0, "chars");
        return stripped(text_of(of), true, true, signs == nullptr ? nullptr : signs->text());
    }
    if (name == "default" || name == "d") {
        const Value *fallback = args.find(0, "default_value"), *by_truth = args.find(1, "boolean");
        const bool missing = of.is_undefined() || (by_truth != nullptr && by_truth->truth() && !of.truth());
        return !missing ? of : fallback == nullptr ? Value("") : *fallback;
    }
    if (name == "length" || name == "count") return length_of(of);
    if (name == "string") return text_of(of);
    if (name == "safe") return of;
    if (name == "int") return as_integer(of, args);
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
        return in_case(text_of(of), name);
    if (name == "replace") return replaced_text(text_of(of), args);
    if (name == "join") return joined(of, args);
    if (name == "list") return items_of(of);
    if (name == "items") return pairs_of(of);
    if (name == "indent") return indented(text_of(of), args);
    if (name == "map") return mapped(of, args);
    if (name == "select" || name == "reject" || name == "selectattr" || name == "rejectattr")
        return selected(name, of, args);
    if (name == "first" || name == "last") {
        const List items = items_of(of);
        return items.empty() ? Value() : name == "first" ? items.front() : items.back();
    }
    if (name == "reverse") {
        List items = items_of(of);
        std::reverse(items.begin(), items.end());
        return of.text() == nullptr ? Value(std::move(items)) : joined(Value(std::move(items)), {});
    }
    if (name == "tojson") {
        const std::int64_t indent = whole_arg(args, 1, "indent", -1);
        if (args.n() > (args.find(kByName, "indent") != nullptr ? 1u : 0u))
            unsupported("tojson with such arguments");
        return json_of(of, static_cast<int>(std::clamp<std::int64_t>(indent, -1, 100)));
    }
    unsupported(fmt::format("the filter {}", shown_text(name)));
}

bool tested(const std::string& name, const Value& of, const Args& args) {
    const auto other = [&]() -> const Value& {
        if (args.values.size() != 1)
            unsupported(fmt::format("the test {} with such arguments", shown_text(name)));
        return args.values.front();
    };
    if (name == "defined") return !of.is_undefined();
    if (name == "undefined") return of.is_undefined();
    if (name == "none") return of.is_none();
    if (name == "string") return of.text() != nullptr;
    if (name == "mapping") return of.dict() != nullptr;
    if (name == "iterable")
        return of.text() != nullptr || of.list() != nullptr || of.dict() != nullptr || of.is_undefined();
    if (name == "sequence")
        return of.text() != nullptr || of.list() != nullptr || of.dict() != nullptr || of.is_undefined();
    if (name == "number") return of.is_number();
    if (name == "integer") return of.integer() != nullptr;
    if (name == "float") return of.real() != nullptr;
    if (name == "boolean") return of.boolean() != nullptr;
    if (name == "true") return of.boolean() != nullptr && *of.boolean();
    if (name == "false") return of.boolean() != nullptr && !*of.boolean();
    if (name == "callable") return of.callable() != nullptr;
    if (name == "odd") return integer_of(of) % 2 != 0;
    if (name == "even") return integer_of(of) % 2 == 0;
    if (name == "divisibleby") return integer_of(binary("%", of, other())) == 0;
    if (name == "eq" || name == "equalto" || name == "==") return equal(of, other());
    if (name == "ne" || name == "!=") return !equal(of, other());
    if (name == "in") return contains(other(), of);
    if (name == "lt" || name == "lessthan" || name == "<") return less(of, other());
    if (name == "gt" || name == "greaterthan" || name == ">") return less(other(), of);
    unsupported(fmt::format("the test {}", shown_text(name)));
}

}  // namespace keyhole::jinja
