#include "engine/base/base64.h"

#include <array>

namespace keyhole {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string base64(std::span<const std::byte> bytes) {
    std::string out;
    out.reserve((bytes.size() + 2) / 3 * 4);
    for (std::size_t i = 0; i < bytes.size(); i += 3) {
        const auto byte = [&](std::size_t at) {
            return at < bytes.size() ? std::to_integer<unsigned>(bytes[at]) : 0u;
        };
        const unsigned bits = byte(i) << 16 | byte(i + 1) << 8 | byte(i + 2);
        for (unsigned digit = 0; digit < 4; ++digit)
            out += i + digit > bytes.size() ? '=' : kBase64Digits[bits >> (18 - 6 * digit) & 63];
    }
    return out;
}

std::optional<std::string> bytes_of_base64(std::string_view text) {
    if (text.size() % 4 != 0) return std::nullopt;
    std::array<unsigned char, 256> value_of;
    value_of.fill(64);
    for (std::size_t i = 0; i < kBase64Digits.size(); ++i)
        value_of[static_cast<unsigned char>(kBase64Digits[i])] = static_cast<unsigned char>(i);
    const std::size_t n_padding = text.ends_with("==") ? 2 : text.ends_with('=') ? 1 : 0;
    std::string out;
    out.reserve(text.size() / 4 * 3);
    for (std::size_t i = 0; i < text.size(); i += 4) {
        unsigned bits = 0;
        for (std::size_t digit = i; digit < i + 4; ++digit) {
            const bool is_padding = digit >= text.size() - n_padding;
            const unsigned value = is_padding ? 0u : value_of[static_cast<unsigned char>(text[digit])];
            if (value > 63) return std::nullopt;
            bits = bits << 6 | value;
        }
        for (const unsigned shift : {16u, 8u, 0u}) out += static_cast<char>(bits >> shift & 255);
    }
    out.resize(out.size() - n_padding);
    return out;
}

}  // namespace keyhole
