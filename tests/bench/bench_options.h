/// Command-line options of the bench programs: a list of key and value pairs. Read once at the start of main,
/// before any other thread exists. Does not know what the options mean.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <variant>

namespace keyhole {

/// Maps a key to the variable that receives its value.
using OptionPlaces = std::map<std::string, std::variant<int*, std::string*>>;

/// Reads the options. Returns false when a key is unknown, has no value, or needs a number and has none;
/// stderr then lists all keys.
inline bool read_options(int n_args, char** args, const OptionPlaces& options) {
    for (int i = 1; i < n_args; i += 2) {
        const auto option = options.find(args[i]);
        bool known = option != options.end() && i + 1 < n_args;
        if (known && std::holds_alternative<std::string*>(option->second)) {
            *std::get<std::string*>(option->second) = args[i + 1];
        } else if (known) {
            char* end = nullptr;
            *std::get<int*>(option->second) = static_cast<int>(std::strtol(args[i + 1], &end, 10));
            known = end != args[i + 1] && *end == '\0';
        }
        if (known) continue;
        fmt::print(stderr, "{}: each option takes a value:", args[i]);
        for (const auto& [key, to] : options)
            fmt::print(stderr, " {} {}", key, std::holds_alternative<int*>(to) ? "N" : "TEXT");
        fmt::print(stderr, "\n");
        return false;
    }
    return true;
}

}  // namespace keyhole
