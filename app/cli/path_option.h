/// Validates options that name a file or folder. Main thread.
#pragma once

#include <CLI/CLI.hpp>

#include <string>

namespace keyhole {

/// Returns a validator for CLI::Option::check. An empty name is refused: it mostly comes from a variable of a
/// script that was never set, and must not count as no option at all.
inline CLI::Validator some_path() {
    return CLI::Validator(
        [](std::string& name) {
            return name.empty()
                       ? std::string("the name is empty; name a file or folder, or leave the option out")
                       : std::string();
        },
        "");
}

}  // namespace keyhole
