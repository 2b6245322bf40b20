/// The values of a Jinja program: what Python's None, bool, int, float, str, list and dict do there. Values
/// are never changed, namespaces aside; lists and objects are shared. Any thread, one at a time.
/// Knows no syntax. Source: https://jinja.palletsprojects.com, version 3.1, and Python's own types.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace keyhole::jinja {

struct Node;
class Value;
using List = std::vector<Value>;
/// In the order of insertion. Keys are texts: templates use no others.
using Dict = std::vector<std::pair<std::string, Value>>;

/// The absence of a value: false, empty as a text and as a list; anything else done with it is an error.
struct Undefined {};
struct None {};
/// The extent of a value, walked as a tree. Values are shared, so that a few lines can make a huge one.
struct Extent {
    int depth = 0;
    std::size_t n_values = 1;
    /// Throws Error(unsupported) beyond the bounds.
    void add(const Extent& item);
};
struct ListValue {
    List items;
    Extent extent;
};
struct DictValue {
    Dict items;
    Extent extent;
    bool is_namespace = false;
};
/// A macro, or a function or method by its name.
struct Callable;

class Value {
  public:
    Value() = default;
    Value(None) : data_(None{}) {}
    Value(bool value) : data_(value) {}
    Value(std::int64_t value) : data_(value) {}
    Value(int value) : data_(std::int64_t{value}) {}
    Value(double value) : data_(value) {}
    Value(std::string value) : data_(std::move(value)) {}
    Value(std::string_view value) : data_(std::string(value)) {}
    Value(const char* value) : data_(std::string(value)) {}
    /// Throw Error(unsupported) for values that are nested too deep.
    Value(List items);
    Value(Dict items, bool is_namespace = false);
    Value(Callable callable);

    bool is_undefined() const { return std::holds_alternative<Undefined>(data_); }
    bool is_none() const { return std::holds_alternative<None>(data_); }
    const bool* boolean() const { return std::get_if<bool>(&data_); }
    const std::int64_t* integer() const { return std::get_if<std::int64_t>(&data_); }
    const double* real() const { return std::get_if<double>(&data_); }
    const std::string* text() const { return std::get_if<std::string>(&data_); }
    const List* list() const;
    const Dict* dict() const;
    const Callable* callable() const;
    bool is_namespace() const;
    bool is_number() const { return boolean() != nullptr || integer() != nullptr || real() != nullptr; }

    /// Returns a member of an object, or null.
    const Value* member(std::string_view key) const;
    /// Sets a member of a namespace. Throws as the constructors.
    void set_member(const std::string& key, Value value);

    bool truth() const;
    /// The name of the type, for messages.
    const char* type() const;
    Extent extent() const;
    std::size_t n_values() const { return extent().n_values; }

  private:
    std::variant<Undefined, None, bool, std::int64_t, double, std::string, std::shared_ptr<const ListValue>,
                 std::shared_ptr<DictValue>, std::shared_ptr<const Callable>>
        data_;
};

struct Callable {
    std::string name;             ///< of a function or a method
    const Node* macro = nullptr;  ///< not null: a macro
    Value self;                   ///< of a method
};

/// Throws Error(unsupported) with what the template needs.
[[noreturn]] void unsupported(const std::string& what);

/// Python's == . Numbers are equal by value, True to 1.
bool equal(const Value& a, const Value& b);
/// Returns a < b of two numbers or two texts. Throws Error(unsupported) for others.
bool less(const Value& a, const Value& b);
/// Returns a number as a double. Throws as less().
double number_of(const Value& value);
/// Returns a whole number; bools count. Throws as less().
std::int64_t integer_of(const Value& value);
/// Python's str(). Throws Error(unsupported) for values that no template prints: lists, objects, functions.
std::string text_of(const Value& value);
/// JSON as json.dumps writes it with ensure_ascii=False. indent: -1: on one line.
std::string json_of(const Value& value, int indent);

/// Returns where the characters of a text begin, its size last. A byte that is not UTF-8 is a character.
std::vector<std::size_t> character_starts(std::string_view text);
/// Python's str.strip() and its halves. characters: those to remove; null: white space.
std::string_view stripped(std::string_view text, bool left, bool right, const std::string* characters);

}  // namespace keyhole::jinja
