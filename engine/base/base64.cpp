#include "engine/base/base64.h"

#include <string_view>

namespace keyhole {

std::string base64(std::span<const std::byte> bytes) {
    static constexpr std::string_view kDigits =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const auto byte = [&](std::size_t at) {
            return at < bytes.size() ? std::to_integer<unsigned>(bytes[at]) : 0u;
        };
        const unsigned bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        for (unsigned digit = 0; digit < 4; ++digit)
            out += i + digit > bytes.size() ? '=' : kDigits[bits >> (18 - 6 * digit) & 63];
    }
    return out;
}

}  // namespace keyhole
