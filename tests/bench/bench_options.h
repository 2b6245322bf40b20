/// Options of the bench programs: pairs of a key and a value.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <variant>

namespace keyhole {

/// Where a key's value goes.
using OptionPlaces = std::map<std::string, std::variant<int*, std::string*>>;

/// False where a key is unknown, lacks its value or wants a number, after a line on stderr that names all.
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
