#include "engine/model/seeded_blocks.h"

#include "engine/base/error.h"
#include "engine/base/half.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

namespace keyhole {
namespace {

constexpr int kSample = 32;  // blocks from which the factors are chosen, anew for each chunk of a weight

template <class Block>
constexpr bool kHasFactor = std::is_same_v<decltype(Block::d), std::uint16_t>;

template <class Block>
Block random_block(const SeededWeight& weight, std::int64_t index) {
    constexpr std::uint64_t kDraws = (sizeof(Block) + 15) / 16;
    std::uint32_t words[4 * kDraws];
    for (std::uint64_t draw = 0; draw < kDraws; ++draw) {
        const std::uint64_t i = static_cast<std::uint64_t>(index) * kDraws + draw;
        const PhiloxCounter drawn = philox4x32_10(
            {{static_cast<std::uint32_t>(i), static_cast<std::uint32_t>(i >> 32), weight.index, 1}},
            weight.seed);
        std::memcpy(words + 4 * draw, drawn.x, sizeof drawn.x);
    }
    Block block;
    std::memcpy(&block, words, sizeof block);
    return block;
}

struct Factors {
    std::uint16_t d = 0, m = 0;
};

/// With value = d * scale * code + m * offset: m takes the mean away, and d gives the deviation.
template <class Block>
Factors choose_factors(const SeededWeight& weight) {
    double products = 0, offsets = 0;
    const auto visit = [&](auto add) {
        for (int sample = 0; sample < kSample; ++sample) {
            const auto block = random_block<Block>(weight, sample);
            for (int i = 0; i < Block::kElements; ++i) {
                double offset = 0;
                if constexpr (Block::kHasOffset) offset = block.offset(i / Block::kPerScale);
                add(static_cast<double>(block.scale(i / Block::kPerScale)) * block.code(i), offset);
            }
        }
    };
    visit([&](double product, double offset) { products += product, offsets += offset; });
    const double ratio = Block::kHasOffset ? -products / offsets : 0;
    double squares = 0;
    visit([&](double product, double offset) { squares += std::pow(product + ratio * offset, 2); });
    const double d = weight.spread / std::sqrt(12 * squares / (kSample * Block::kElements));
    return {fp16_from_float(static_cast<float>(d)), fp16_from_float(static_cast<float>(ratio * d))};
}

}  // namespace

bool has_seeded_blocks(DType dtype) {
    return is_quantised(dtype) && with_block(dtype, [](auto block) { return kHasFactor<decltype(block)>; });
}

void seeded_blocks(DType dtype, const SeededWeight& weight, std::int64_t first, std::int64_t n, void* out) {
    KH_ASSERT(has_seeded_blocks(dtype));
    with_block(dtype, [&](auto of_type) {
        using Block = decltype(of_type);
        if constexpr (kHasFactor<Block>) {
            const Factors factors = choose_factors<Block>(weight);
            for (std::int64_t i = 0; i < n; ++i) {
                auto block = random_block<Block>(weight, first + i);
                block.d = factors.d;
                if constexpr (Block::kHasOffset) block.m = factors.m;
                std::memcpy(static_cast<std::byte*>(out) + i * std::int64_t{sizeof block}, &block,
                            sizeof block);
            }
        }
    });
}

}  // namespace keyhole
