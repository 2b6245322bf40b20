/// Typed reading of JSON that nobody vouches for, with errors that name file and field. Any thread. Knows
/// base only.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace keyhole {

/// The value of a whole text. Throws Error(bad_file) naming `name` and the line where it is no JSON, or where
/// its lists and objects lie too deep in one another (is_shallow_json).
nlohmann::json parse_json(std::string_view text, std::string_view name);

/// A value and where it stands. Each reader throws Error(bad_file) where the value is another:
/// "cannot read FILE: steps[3].token is 5000, wanted a whole number from 0 to 2047".
class JsonField {
  public:
    /// Both must outlive the field and those made of it.
    JsonField(const nlohmann::json& root, std::string_view name);

    /// A member of an object. Throws where it is missing.
    JsonField operator[](const char* key) const;
    std::optional<JsonField> find(const char* key) const;
    /// An element of a list.
    JsonField at(std::size_t i) const;
    /// Elements of a list. Throws where it is no list, or one of more than `most`.
    std::size_t size(std::size_t most = SIZE_MAX) const;

    bool is_null() const;
    std::int64_t whole(std::int64_t low, std::int64_t high) const;
    std::uint64_t natural() const;  ///< of 64 bits
    int integer(int low, int high) const { return static_cast<int>(whole(low, high)); }
    /// Finite.
    double number(double low, double high) const;
    /// As files of Keyhole hold floats: null is NaN, "inf" and "-inf" are what they say.
    float real() const;
    bool flag() const;
    const std::string& text(std::size_t most_bytes) const;

    /// The place as messages have it: "steps[3].token".
    std::string place() const;
    /// "cannot read FILE: PLACE is VALUE, wanted WANTED"
    [[noreturn]] void wanted(std::string_view what) const;
    /// "cannot read FILE: PLACE: WHY"
    [[noreturn]] void bad(std::string_view why) const;

  private:
    JsonField(const nlohmann::json& root, const nlohmann::json& value, std::string_view name);

    // The place is looked for only when a message needs it.
    const nlohmann::json* root_;
    const nlohmann::json* value_;
    std::string_view name_;
};

}  // namespace keyhole
