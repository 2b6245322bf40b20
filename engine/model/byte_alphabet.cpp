#include "engine/model/byte_alphabet.h"

#include "engine/base/index.h"
#include "engine/base/utf8.h"

#include <array>

namespace keyhole {
namespace {

constexpr int kNone = -1;
constexpr std::size_t kBeyond = 0x144;  // the highest entry is U+0143

bool prints_as_itself(int byte) {
    return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || (byte >= 0xae && byte <= 0xff);
}

/// Returns the code point of each byte. Bytes that do not print take the code points from 256 on, in order.
std::array<std::size_t, 256> make_code_points() {
    std::array<std::size_t, 256> table{};
    std::size_t next = 256;
    for (int byte = 0; byte < 256; ++byte)
        table[to_index(byte)] = prints_as_itself(byte) ? to_index(byte) : next++;
    return table;
}

std::array<int, kBeyond> make_byte_from_code_point() {
    std::array<int, kBeyond> table{};
    table.fill(kNone);
    const std::array<std::size_t, 256> code_points = make_code_points();
    for (std::size_t byte = 0; byte < 256; ++byte) table[code_points[byte]] = static_cast<int>(byte);
    return table;
}

}  // namespace

std::optional<std::string> bytes_from_alphabet(std::string_view text) {
    static const std::array<int, kBeyond> byte_from_code_point = make_byte_from_code_point();
    std::string bytes;
    while (!text.empty()) {
        const std::size_t length = utf8_length(text);
        if (length == 0) return std::nullopt;
        const char32_t code_point = utf8_decode(text.substr(0, length));
        if (code_point >= kBeyond || byte_from_code_point[code_point] == kNone) return std::nullopt;
        bytes.push_back(static_cast<char>(byte_from_code_point[code_point]));
        text.remove_prefix(length);
    }
    return bytes;
}

std::string alphabet_of_bytes(std::string_view bytes) {
    static const std::array<std::size_t, 256> code_points = make_code_points();
    std::string text;
    for (const char byte : bytes) {
        const std::size_t point = code_points[static_cast<unsigned char>(byte)];  // one or two bytes of UTF-8
        if (point >= 0x80) text += static_cast<char>(0xc0 | point >> 6);
        text += static_cast<char>(point < 0x80 ? point : 0x80 | (point & 0x3f));
    }
    return text;
}

}  // namespace keyhole
