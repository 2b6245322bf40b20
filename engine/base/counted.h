/// Numbers of things in messages: "1 question", "2 questions". Any thread; knows nothing.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>

namespace keyhole {

/// word: in the singular; an s makes its plural.
template <class Number>
std::string counted(Number n, std::string_view word) {
    return fmt::format("{} {}{}", n, word, n == 1 ? "" : "s");
}

}  // namespace keyhole
