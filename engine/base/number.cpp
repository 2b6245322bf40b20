#include "engine/base/number.h"

#include "engine/base/error.h"
#include "engine/base/json_text.h"

#include <charconv>
#include <cmath>
#include <type_traits>

namespace keyhole {

template <class Number>
std::optional<Number> number_from_text(std::string_view text, Number low, Number high) {
    Number value{};
    const char* end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error != std::errc() || rest != end) return std::nullopt;
    // Infinity lies above the highest number, and NaN compares false with every bound.
    return value >= low && value <= high ? std::optional(value) : std::nullopt;
}

template <class Number>
std::string no_number(std::string_view text, Number low, Number high) {
    const std::string shown = shown_text(text);
    if (std::is_integral_v<Number>)
        return fmt::format("'{}' is not a whole number from {} to {}", shown, low, high);
    if (high < kHighest<Number>) return fmt::format("'{}' is not a number from {} to {}", shown, low, high);
    if (low > kLowest<Number>) return fmt::format("'{}' is not a number of at least {}", shown, low);
    return fmt::format("'{}' is not a number", shown);
}

template <class Number>
Number read_number(std::string_view what, std::string_view text, Number low, Number high) {
    if (const auto value = number_from_text(text, low, high)) return *value;
    fail(ErrorCode::wrong_use, "{}: {}", what, no_number(text, low, high));
}

#define KH_NUMBER(Number)                                                                      \
    template std::optional<Number> number_from_text<Number>(std::string_view, Number, Number); \
    template std::string no_number<Number>(std::string_view, Number, Number);                  \
    template Number read_number<Number>(std::string_view, std::string_view, Number, Number);
KH_NUMBER(int)
KH_NUMBER(std::int64_t)
KH_NUMBER(std::uint64_t)
KH_NUMBER(float)
KH_NUMBER(double)
#undef KH_NUMBER

}  // namespace keyhole
