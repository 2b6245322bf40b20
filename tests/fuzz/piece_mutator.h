/// A mutation by pieces, for texts of words between separators: lane specs, scripts, tables. libFuzzer's byte
/// mutation seldom gets past the first word of such a text.
#pragma once

#include "engine/base/index.h"

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace keyhole {

/// Numbers that readers have misread or must refuse.
inline constexpr std::string_view kOddNumbers[] = {"0",
                                                   "1",
                                                   "-1",
                                                   "+1",
                                                   "2147483647",
                                                   "-2147483648",
                                                   "2147483648",
                                                   "1000000000",
                                                   "1000000001",
                                                   "4294967295",
                                                   "nan",
                                                   "-nan",
                                                   "inf",
                                                   "-inf",
                                                   "0x1p3",
                                                   "18446744073709551615",
                                                   "1e300",
                                                   "1e-320",
                                                   "1e999",
                                                   "1.5abc",
                                                   "010",
                                                   "0.5",
                                                   "",
                                                   " 1",
                                                   "99999999999999999999",
                                                   "1..2",
                                                   "50%"};

/// Makes one to four random changes. A change removes, repeats or swaps a piece, or replaces it by a word or
/// an odd number. Otherwise libFuzzer mutates the bytes.
inline std::size_t mutate_pieces(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned seed,
                                 std::string_view separators, std::span<const std::string_view> words) {
    std::minstd_rand random(seed);
    const auto below = [&](std::size_t n) { return keyhole::to_index(random()) % n; };
    if (below(3) == 0) return LLVMFuzzerMutate(data, size, max_size);
    std::vector<std::string> pieces;  // words and separators in turn
    bool was_separator = true;
    for (std::size_t i = 0; i < size; ++i) {
        const char c = static_cast<char>(data[i]);
        const bool is_separator = separators.find(c) != std::string_view::npos;
        if (is_separator || was_separator) pieces.emplace_back();
        pieces.back() += c;
        was_separator = is_separator;
    }
    const auto new_piece = [&] {
        if (below(3) == 0) return std::string(kOddNumbers[below(std::size(kOddNumbers))]);
        if (below(4) == 0) return std::string(1, separators[below(separators.size())]);
        return std::string(words[below(words.size())]);
    };
    for (std::size_t changes = 1 + below(4); changes > 0; --changes) {
        if (pieces.empty()) pieces.push_back(new_piece());
        const std::size_t at = below(pieces.size());
        const auto place = pieces.begin() + static_cast<std::ptrdiff_t>(at);
        switch (below(5)) {
            case 0:
                pieces.erase(place);
                break;
            case 1: {
                const std::size_t n = std::min(1 + below(8), pieces.size() - at);
                const std::vector<std::string> copy(place, place + static_cast<std::ptrdiff_t>(n));
                pieces.insert(pieces.begin() + static_cast<std::ptrdiff_t>(below(pieces.size())),
                              copy.begin(), copy.end());
                break;
            }
            case 2:
                std::swap(pieces[at], pieces[below(pieces.size())]);
                break;
            case 3:
                pieces[at] = new_piece();
                break;
            default:
                pieces.insert(place, new_piece());
                break;
        }
    }
    std::string text;
    for (const std::string& piece : pieces) text += piece;
    const std::size_t n = std::min(text.size(), max_size);
    std::memcpy(data, text.data(), n);
    return n;
}

}  // namespace keyhole
