/// Validates numeric options of the command line. They use the same parser as everything else, so that nan,
/// hexadecimal numbers and values out of range are refused with a clear message. Main thread.
#pragma once

#include "engine/base/number.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <string>

namespace keyhole {

/// Returns a validator for CLI::Option::transform: the text must be one number from low to high.
template <class Number>
CLI::Validator number_in(Number low, Number high) {
    CLI::Validator validator;
    validator.description(high == kHighest<Number> ? fmt::format("{} or more", low)
                                                   : fmt::format("{} to {}", low, high));
    validator.operation([low, high](std::string& text) {
        const auto value = number_from_text<Number>(text, low, high);
        if (!value) return no_number<Number>(text, low, high);
        text = fmt::format("{}", *value);  // CLI11 parses the text again, and would read 010 as octal
        return std::string();
    });
    return validator;
}

template <class Number>
CLI::Validator number_from(Number low) {
    return number_in<Number>(low, kHighest<Number>);
}

}  // namespace keyhole
