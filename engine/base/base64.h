/// Bytes as text: base64 with padding (RFC 4648, section 4). Any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace keyhole {

std::string base64(std::span<const std::byte> bytes);
/// Returns the bytes of such a text; nullopt: it is none.
std::optional<std::string> bytes_of_base64(std::string_view text);

}  // namespace keyhole
