/// Writes bytes as text: base64 with padding (RFC 4648, section 4). Any thread.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace keyhole {

std::string base64(std::span<const std::byte> bytes);

}  // namespace keyhole
