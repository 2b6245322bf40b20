#include "engine/model/jinja_functions.h"

#include "engine/base/index.h"
#include "engine/base/json_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <optional>

namespace keyhole::jinja {
namespace {

/// A template may repeat texts; one longer than this is no chat.
constexpr std::size_t kLongest = std::size_t{64} << 20;
constexpr std::int64_t kLongestRange = 100'000;

/// Returns a place of a sequence from an index that may count from its end; nullopt beyond it.
std::optional<std::size_t> place_of(const Value& index, std::size_t size) {
    std::int64_t at = integer_of(index);
    const auto n = static_cast<std::int64_t>(size);
    if (at < 0) at += n;
    if (at < 0 || at >= n) return std::nullopt;
    return to_index(at);
}

/// Returns the indices that a slice of a sequence visits: Python's slice.indices().
std::vector<std::size_t> slice_indices(std::size_t size, const Value& from, const Value& to,
                                       const Value& by) {
    const auto is_given = [](const Value& value) { return !value.is_undefined() && !value.is_none(); };
    const std::int64_t n = static_cast<std::int64_t>(size), step = is_given(by) ? integer_of(by) : 1;
    if (step == 0 || std::abs(step) > (std::int64_t{1} << 40)) unsupported("a slice with such a step");
    const std::int64_t least = step > 0 ? 0 : -1, most = step > 0 ? n : n - 1;
    const auto bound = [&](const Value& value, std::int64_t fallback) {
        if (!is_given(value)) return fallback;
        const std::int64_t at = integer_of(value);
        return std::clamp(at < 0 ? std::max(at, -n - 1) + n : at, least, most);
    };
    const std::int64_t begin = bound(from, step > 0 ? least : most), end = bound(to, step > 0 ? most : least);
    std::vector<std::size_t> indices;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end; i += step) indices.push_back(to_index(i));
    return indices;
}

Value repeated(const std::string& text, std::int64_t n) {
    if (n <= 0) return "";
    if (text.size() > kLongest / to_index(n)) unsupported("a text of more than 64 MiB");
    std::string out;
    for (std::int64_t i = 0; i < n; ++i) out += text;
    return out;
}

std::int64_t whole_result(const std::string& sign, std::int64_t a, std::int64_t b) {
    std::int64_t result = 0;
    bool overflows = false;
    if (sign == "+") {
        overflows = __builtin_add_overflow(a, b, &result);
    } else if (sign == "-") {
        overflows = __builtin_sub_overflow(a, b, &result);
    } else if (sign == "*") {
        overflows = __builtin_mul_overflow(a, b, &result);
    } else {
        if (b == 0 || b == -1) {
            if (b == 0) unsupported("a division by 0");
            return sign == "%" ? 0 : whole_result("-", 0, a);
        }
        const bool rounds_up = a % b != 0 && (a < 0) != (b < 0);  // C++ rounds to 0, Python down
        result = sign == "%" ? a % b + (rounds_up ? b : 0) : a / b - (rounds_up ? 1 : 0);
    }
    if (overflows) unsupported("a whole number beyond 64 bits");
    return result;
}

}  // namespace

const Value* Args::find(std::size_t place, std::string_view name) const {
    if (place < values.size()) return &values[place];
    for (const auto& [key, value] : named)
        if (key == name) return &value;
    return nullptr;
}

List items_of(const Value& value) {
    if (const List* list = value.list()) return *list;
    List items;
    if (const Dict* dict = value.dict()) {
        for (const auto& [key, item] : *dict) items.emplace_back(key);
    } else if (const std::string* text = value.text()) {
        const std::vector<std::size_t> starts = character_starts(*text);
        for (std::size_t i = 0; i + 1 < starts.size(); ++i)
            items.emplace_back(text->substr(starts[i], starts[i + 1] - starts[i]));
    } else if (!value.is_undefined()) {
        unsupported(fmt::format("a loop over {}", value.type()));
    }
    return items;
}

Value member_of(const Value& of, const std::string& name) {
    if (of.is_undefined()) unsupported(fmt::format("{} of an undefined value", shown_text(name)));
    if (!of.is_namespace() && is_method(of, name)) return Callable{name, nullptr, of};
    const Value* found = of.member(name);
    return found == nullptr ? Value() : *found;
}

Value item_of(const Value& of, const Value& key) {
    if (of.is_undefined()) unsupported("an item of an undefined value");
    if (const std::string* name = key.text()) {
        if (const Value* found = of.member(*name)) return *found;
        return is_method(of, *name) ? Value(Callable{*name, nullptr, of}) : Value();
    }
    if (const List* list = of.list()) {
        const auto at = place_of(key, list->size());
        return at ? (*list)[*at] : Value();
    }
    if (const std::string* text = of.text()) {
        const std::vector<std::size_t> starts = character_starts(*text);
        const auto at = place_of(key, starts.size() - 1);
        return at ? Value(text->substr(starts[*at], starts[*at + 1] - starts[*at])) : Value();
    }
    return {};
}

Value slice_of(const Value& of, const Value& from, const Value& to, const Value& step) {
    if (const List* list = of.list()) {
        List part;
        for (const std::size_t i : slice_indices(list->size(), from, to, step)) part.push_back((*list)[i]);
        return part;
    }
    if (of.text() == nullptr) unsupported(fmt::format("a slice of {}", of.type()));
    const std::vector<std::size_t> starts = character_starts(*of.text());
    std::string part;
    for (const std::size_t i : slice_indices(starts.size() - 1, from, to, step))
        part += of.text()->substr(starts[i], starts[i + 1] - starts[i]);
    return part;
}

bool contains(const Value& value, const Value& needle) {
    if (const std::string* text = value.text()) {
        if (needle.text() == nullptr) unsupported(fmt::format("{} in a text", needle.type()));
        return text->find(*needle.text()) != std::string::npos;
    }
    if (value.dict() != nullptr) return needle.text() != nullptr && value.member(*needle.text()) != nullptr;
    if (value.list() == nullptr && !value.is_undefined())
        unsupported(fmt::format("a search in {}", value.type()));
    const List items = items_of(value);
    return std::any_of(items.begin(), items.end(), [&](const Value& one) { return equal(one, needle); });
}

Value binary(const std::string& sign, const Value& a, const Value& b) {
    if (sign == "+" && a.text() != nullptr && b.text() != nullptr) return *a.text() + *b.text();
    if (sign == "+" && a.list() != nullptr && b.list() != nullptr) {
        List both = *a.list();
        both.insert(both.end(), b.list()->begin(), b.list()->end());
        return both;
    }
    if (sign == "*" && a.text() != nullptr && b.integer() != nullptr)
        return repeated(*a.text(), *b.integer());
    if (!a.is_number() || !b.is_number()) unsupported(fmt::format("{} {} {}", a.type(), sign, b.type()));
    const bool whole = a.real() == nullptr && b.real() == nullptr;
    if (whole && sign != "/") return whole_result(sign, integer_of(a), integer_of(b));
    const double x = number_of(a), y = number_of(b);
    if (sign == "+") return x + y;
    if (sign == "-") return x - y;
    if (sign == "*") return x * y;
    if (y == 0.0) unsupported("a division by 0");
    if (sign == "/") return x / y;
    return sign == "//" ? std::floor(x / y) : x - y * std::floor(x / y);
}

namespace {

Value range(const Args& args) {
    if (args.values.empty() || args.values.size() > 3 || !args.named.empty())
        unsupported("range with such arguments");
    const std::size_t n = args.values.size();
    const std::int64_t begin = n == 1 ? 0 : integer_of(args.values[0]),
                       end = integer_of(args.values[n == 1 ? 0 : 1]),
                       step = n == 3 ? integer_of(args.values[2]) : 1;
    if (step == 0) unsupported("range with step 0");
    List items;
    for (std::int64_t i = begin; step > 0 ? i < end : i > end;) {
        items.emplace_back(i);
        if (static_cast<std::int64_t>(items.size()) > kLongestRange)
            unsupported("a range of more than 100000");
        if (__builtin_add_overflow(i, step, &i)) break;
    }
    return items;
}

std::string time_now(const Args& args) {
    const Value* form = args.find(0, "format");
    if (form == nullptr || form->text() == nullptr) unsupported("strftime_now with such arguments");
    const std::time_t now = std::time(nullptr);
    std::tm local{};
    localtime_r(&now, &local);
    std::string out(256 + 64 * form->text()->size(), '\0');
    out.resize(std::strftime(out.data(), out.size(), form->text()->c_str(), &local));
    return out;
}

}  // namespace

bool is_function(std::string_view name) {
    return name == "range" || name == "namespace" || name == "dict" || name == "raise_exception" ||
           name == "strftime_now";
}

Value call_function(const std::string& name, const Args& args) {
    if (name == "range") return range(args);
    if (name == "strftime_now") return time_now(args);
    if (name == "raise_exception")
        unsupported("it refuses this conversation: " +
                    shown_text(args.values.empty() ? std::string() : text_of(args.values.front())));
    if ((name != "namespace" && name != "dict") || !args.values.empty())
        unsupported(fmt::format("{} with such arguments", shown_text(name)));
    return Value(args.named, name == "namespace");
}

}  // namespace keyhole::jinja
