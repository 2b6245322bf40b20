/// Typed reading of untrusted JSON, with errors that name file and field. Any thread. Knows base only.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// Parses a whole text. Throws Error(bad_file) with `name` and the line of the fault when the text is not
/// JSON, or when its lists and objects are nested too deeply (is_shallow_json). *repeated is set to the last
/// key that an object has twice, of which the last value is kept.
nlohmann::json parse_json(std::string_view text, std::string_view name, std::string* repeated = nullptr);

/// A value and its path in the document. Each reader throws Error(bad_file) when the value has another type
/// or range: "cannot read FILE: steps[3].token is 5000, wanted a whole number from 0 to 2047".
class JsonField {
  public:
    /// `root` and `name` must outlive this field and all fields derived from it.
    JsonField(const nlohmann::json& root, std::string_view name);

    /// Returns a member of an object. Throws when it is missing.
    JsonField operator[](const char* key) const;
    std::optional<JsonField> find(const char* key) const;
    /// Returns an element of a list.
    JsonField at(std::size_t i) const;
    /// Returns the length of a list. Throws when the value is no list or has more than `most` elements.
    std::size_t size(std::size_t most = SIZE_MAX) const;

    bool is_null() const;
    std::int64_t whole(std::int64_t low, std::int64_t high) const;
    std::uint64_t natural() const;  ///< 0 to 2^64 - 1
    int integer(int low, int high) const { return static_cast<int>(whole(low, high)); }
    /// Returns a finite number from low to high.
    double number(double low, double high) const;
    /// Returns a float as Keyhole's files write it: null is NaN, "inf" and "-inf" are the infinities.
    float real() const;
    bool flag() const;
    const std::string& text(std::size_t most_bytes) const;

    /// Returns the path as messages show it: "steps[3].token".
    std::string place() const;
    /// Throws "cannot read FILE: PLACE is VALUE, wanted WHAT".
    [[noreturn]] void wanted(std::string_view what) const;
    /// Throws "cannot read FILE: PLACE: WHY".
    [[noreturn]] void bad(std::string_view why) const;

  private:
    JsonField(const nlohmann::json& root, const nlohmann::json& value, std::string_view name);

    // place() searches for the path only when a message needs it.
    const nlohmann::json* root_;
    const nlohmann::json* value_;
    std::string_view name_;
};

}  // namespace keyhole
