/// The filters, tests, functions and methods that chat templates call, as Jinja 3.1 and Python define them.
/// All throw Error(unsupported) for an unknown name or an argument of another type. Any thread.
#pragma once

#include "engine/model/jinja_value.h"

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace keyhole::jinja {

/// The place of an argument that is given by its name alone.
inline constexpr std::size_t kByName = static_cast<std::size_t>(-1);

struct Args {
    List values;
    Dict named;

    std::size_t n() const { return values.size() + named.size(); }
    /// Returns the argument at a place or of a name; null when it is not given.
    const Value* find(std::size_t place, std::string_view name) const;
};

/// Returns what a for loop visits: items, characters or keys; nothing of an undefined value.
List items_of(const Value& value);
/// Returns of.name or of[key]: undefined when there is none.
Value member_of(const Value& of, const std::string& name);
Value item_of(const Value& of, const Value& key);
/// Returns of[from:to:step]. An undefined bound is not given.
Value slice_of(const Value& of, const Value& from, const Value& to, const Value& step);
/// Returns whether needle is in value, as Python's `in` finds it.
bool contains(const Value& value, const Value& needle);
Value binary(const std::string& sign, const Value& a, const Value& b);

bool is_function(std::string_view name);
Value call_function(const std::string& name, const Args& args);
bool is_method(const Value& of, std::string_view name);
Value call_method(const std::string& name, const Value& of, const Args& args);
Value filtered(const std::string& name, const Value& of, const Args& args);
bool tested(const std::string& name, const Value& of, const Args& args);

}  // namespace keyhole::jinja
