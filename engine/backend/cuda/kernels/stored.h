/// Rows of a matrix, eight neighbours at a time: plain numbers of one type, or whatever type a file stores
/// them in, with the quantised blocks of GGUF files, also where they are laid for products in integers.
/// Widened in registers to the values of model/quantised_blocks.h. Host and device. Knows no product. CPU
/// twin: backend/common/block_kernels.h.
#pragma once

#include "engine/backend/common/laid_layout.h"
#include "engine/backend/cuda/block.h"
#include "engine/backend/cuda/kernels/number.h"
#include "engine/model/quantised_blocks.h"

#include <cstdint>
#include <type_traits>
#ifndef __CUDA_ARCH__
#include <cstring>
#endif

namespace keyhole::cuda {

/// In place of a number's type: each matrix says its own.
struct Stored {};

/// Returns whether the kernels read a type.
constexpr bool is_read_on_device(DType type) {
    return type <= DType::q6_k;
}

/// The elements of a matrix, row-major; rows are whole packs and, where they are quantised, whole blocks.
template <class T>
struct Elements {
    const T* data;
};
template <>
struct Elements<Stored> {
    const void* data;
    DType type;
    std::int32_t laid_cols = 0;  ///< the matrix's columns where it is laid (laid_layout.h); else 0
};

/// Rows of plain numbers. Pack i of the matrix holds elements 8 i to 8 i + 7.
template <class T>
struct PlainPacks {
    using Loaded = Pack<T>;
    static constexpr bool kSharesScales = false;
    const Pack<T>* packs;

    KH_FN explicit PlainPacks(const void* data)
        : packs(in_device_memory(static_cast<const Pack<T>*>(data))) {}
    KH_FN Loaded load(std::int64_t i) const { return packs[i]; }
    /// Every 32nd pack of a row.
    struct Walk {
        const Pack<T>* first;
        KH_FN Loaded load(int k) const { return first[k * 32]; }
    };
    /// From pack i on of those that begin with pack `row`. i: less than 32.
    KH_FN Walk walk(std::int64_t row, int i) const { return {packs + row + i}; }
    KH_FN static void widen_pack(const Loaded& pack, float (&wide)[8]) {
        for (int j = 0; j < 8; ++j) wide[j] = widen(pack.x[j]);
    }
};

/// The codes of elements e to e + 7 of a block, a byte each, Block::kCodes.zero more than code() gives.
struct alignas(8) Codes {
    std::uint32_t word[2];
};

/// Returns four bytes, the first in the lowest bits. The address is a multiple of kAlign.
template <int kAlign>
KH_FN std::uint32_t word_at(const void* p) {
#ifdef __CUDA_ARCH__
    if constexpr (kAlign >= 4) return *static_cast<const std::uint32_t*>(p);
    const auto* halves = static_cast<const std::uint16_t*>(p);
    return halves[0] | static_cast<std::uint32_t>(halves[1]) << 16;
#else
    std::uint32_t word = 0;
    std::memcpy(&word, p, sizeof(word));
    return word;
#endif
}

/// Returns eight bytes, by one read. The address is a multiple of 8.
KH_FN Codes codes_at(const void* p) {
#ifdef __CUDA_ARCH__
    return *static_cast<const Codes*>(p);
#else
    Codes codes{};
    std::memcpy(&codes, p, sizeof(codes));
    return codes;
#endif
}

/// Returns byte j of a word as a float, less a whole number. The device conversion of integers has a quarter
/// of the speed of a sum.
template <int kLess>
KH_FN float float_of_byte(std::uint32_t word, int j) {
#ifdef __CUDA_ARCH__
    const std::uint32_t bits = __byte_perm(word, 0x4b000000u, 0x7650u + static_cast<unsigned>(j));
    return __uint_as_float(bits) - (8388608.0f + kLess);  // 2^23 and the byte: exact
#else
    return static_cast<float>(static_cast<int>(word >> (8 * j) & 255u) - kLess);
#endif
}

KH_FN std::uint32_t low_halves(std::uint32_t bytes, int shift) {
    return bytes >> shift & 0x0f0f0f0fu;
}
/// Returns bit j of four as the fifth bit of byte j.
KH_FN std::uint32_t fifth_bits(std::uint32_t bits) {
    return ((bits & 15u) * 0x00204081u & 0x01010101u) << 4;
}

/// Elements e to e + 7 of a block of 32 with four bits in q.
template <int kAlign>
KH_FN Codes four_bits(const std::uint8_t* q, int e) {
    const int shift = e / 16 * 4;
    return {
        {low_halves(word_at<kAlign>(q + e % 16), shift), low_halves(word_at<kAlign>(q + e % 16 + 4), shift)}};
}
KH_FN Codes with_fifth(Codes codes, std::uint32_t bits) {
    return {{codes.word[0] | fifth_bits(bits), codes.word[1] | fifth_bits(bits >> 4)}};
}

KH_FN Codes codes_of(const BlockQ8_0& b, int e) {
    return {{word_at<2>(b.q + e) ^ 0x80808080u, word_at<2>(b.q + e + 4) ^ 0x80808080u}};
}
KH_FN Codes codes_of(const BlockQ4_0& b, int e) {
    return four_bits<2>(b.q, e);
}
KH_FN Codes codes_of(const BlockQ4_1& b, int e) {
    return four_bits<4>(b.q, e);
}
KH_FN Codes codes_of(const BlockQ5_0& b, int e) {
    return with_fifth(four_bits<2>(b.q, e), b.high[e / 8]);
}
KH_FN Codes codes_of(const BlockQ5_1& b, int e) {
    return with_fifth(four_bits<4>(b.q, e), b.high[e / 8]);
}
KH_FN Codes codes_of(const BlockQ4_K& b, int e) {
    const Codes q = codes_at(b.q + e / 64 * 32 + e % 32);
    const int shift = e / 32 % 2 * 4;
    return {{low_halves(q.word[0], shift), low_halves(q.word[1], shift)}};
}
KH_FN Codes codes_of(const BlockQ5_K& b, int e) {
    const Codes q = codes_at(b.q + e / 64 * 32 + e % 32), high = codes_at(b.high + e % 32);
    const int shift = e / 32 % 2 * 4, part = e / 32;
    return {{low_halves(q.word[0], shift) | (high.word[0] >> part & 0x01010101u) << 4,
             low_halves(q.word[1], shift) | (high.word[1] >> part & 0x01010101u) << 4}};
}
KH_FN Codes codes_of(const BlockQ6_K& b, int e) {
    const int half = e / 128, i = e % 128, shift = i / 64 * 4, part = i / 32 * 2;
    const std::uint8_t *q = b.q + half * 64 + i % 64, *high = b.high + half * 32 + i % 32;
    return {{low_halves(word_at<2>(q), shift) | (word_at<2>(high) >> part & 0x03030303u) << 4,
             low_halves(word_at<2>(q + 4), shift) | (word_at<2>(high + 4) >> part & 0x03030303u) << 4}};
}

/// What all codes of a part of a block are multiplied by, and what is added.
struct Scale {
    float scale, offset;
};
template <class Block>
KH_FN Scale scale_of(const Block& block, int part) {
    Scale of{widen(Fp16{block.d}), 0};
    if constexpr (Block::kPerScale < Block::kElements)
        of.scale = mul(of.scale, static_cast<float>(block.scale(part)));
    if constexpr (Block::kHasOffset)
        of.offset = mul(widen(Fp16{block.m}), static_cast<float>(block.offset(part)));
    return of;
}

/// The first 16 bytes of a block with PackedScales: d and m, then the scales.
struct alignas(16) BlockHead {
    std::uint32_t factors, scales[3];
};
KH_FN BlockHead head_at(const void* block) {
#ifdef __CUDA_ARCH__
    return *static_cast<const BlockHead*>(block);
#else
    BlockHead head{};
    std::memcpy(&head, block, sizeof(head));
    return head;
#endif
}

/// Does so for PackedScales, by one read and without a branch: three bytes may hold bits of the part.
template <class Block>
requires std::is_same_v<decltype(Block::scales), PackedScales> KH_FN Scale scale_of(const Block& block,
                                                                                    int part) {
    const BlockHead head = head_at(&block);
    const bool early = part < 4;
    const int byte = part % 4 * 8;
    const unsigned first = head.scales[0] >> byte, second = head.scales[1] >> byte,
                   third = head.scales[2] >> byte, lower = early ? 63u : 15u, upper = early ? 0u : 48u;
    const unsigned scale = ((early ? first : third) & lower) | (first >> 2 & upper),
                   offset = ((early ? second : third >> 4) & lower) | (second >> 2 & upper);
    return {mul(widen(Fp16{static_cast<std::uint16_t>(head.factors)}),
                static_cast<float>(static_cast<int>(scale))),
            mul(widen(Fp16{static_cast<std::uint16_t>(head.factors >> 16)}),
                -static_cast<float>(static_cast<int>(offset)))};
}

/// Widens the codes of a part of a block. The product of scale and code is exact, so that the sum has the
/// same bits fused or not.
template <class Block>
KH_FN void widen_codes(const Codes& codes, const Scale& of, float (&wide)[8]) {
    for (int j = 0; j < 8; ++j) {
        const float code = float_of_byte<Block::kCodes.zero>(codes.word[j / 4], j % 4);
        wide[j] = Block::kHasOffset ? fused(of.scale, code, of.offset) : mul(of.scale, code);
    }
}

/// Rows of blocks.
template <class Block>
struct BlockPacks {
    struct Loaded {
        Codes codes;
        Scale of;
    };
    static constexpr int kPacks = Block::kElements / 8;  ///< of a block
    /// Four neighbouring packs, which neighbouring threads read, have one scale, whose arithmetic is long.
    static constexpr bool kSharesScales = requires {
        requires std::is_same_v<decltype(Block::scales), PackedScales>;
    };
    const Block* blocks;

    KH_FN explicit BlockPacks(const void* data) : blocks(in_device_memory(static_cast<const Block*>(data))) {}
    KH_FN static Loaded load(const Block& block, int pack) {
        return {codes_of(block, pack * 8), scale_of(block, pack * 8 / Block::kPerScale)};
    }
    KH_FN Loaded load(std::int64_t i) const { return load(blocks[i / kPacks], static_cast<int>(i % kPacks)); }
    /// As PlainPacks. All of them lie at the same place of their blocks, whose arithmetic is done once.
    struct Walk {
        const Block* first;
        int pack;
        KH_FN const Block& block(int k) const { return first[k * (32 / kPacks)]; }
        KH_FN Loaded load(int k) const { return BlockPacks::load(block(k), pack); }
        KH_FN Codes codes(int k) const { return codes_of(block(k), pack * 8); }
        KH_FN Scale scale(int k) const { return scale_of(block(k), pack * 8 / Block::kPerScale); }
    };
    KH_FN Walk walk(std::int64_t row, int i) const {
        return {blocks + row / kPacks + i / kPacks, i % kPacks};
    }
    KH_FN static void widen_pack(const Loaded& loaded, float (&wide)[8]) {
        widen_codes<Block>(loaded.codes, loaded.of, wide);
    }
};

/// Returns the scale of a cell's part from d and m, bits of fp16, and from the whole numbers that multiply
/// them where the type has these.
template <class Block>
KH_FN Scale laid_scale(std::uint16_t d, std::uint16_t m, std::int8_t step, std::int8_t offset_step) {
    using L = Laid<Block>;
    Scale of{widen(Fp16{d}), 0};
    if constexpr (L::kHasSteps) of.scale = mul(of.scale, static_cast<float>(step));
    if constexpr (Block::kHasOffset) {
        static_assert(L::kParts == 1);
        of.offset = widen(Fp16{m});
        if constexpr (L::kHasSteps) of.offset = mul(of.offset, static_cast<float>(offset_step));
    }
    return of;
}

/// What is read of a row's 32 columns in a laid matrix: the planes of its codes, and its factors.
template <class Block>
struct LaidCell {
    using L = Laid<Block>;
    static_assert(!L::kHasExponent && !L::kCodes.looks_up);
    std::uint32_t low[L::kLowBits], twos[2], ones;
    std::uint16_t d, m;
    std::int8_t steps[L::kParts], offset_steps;

    /// bits, head: where the row's codes of the cell and the factors of its block begin; in_block: which cell
    /// of the block it is.
    KH_FN LaidCell(const std::byte* bits, const std::byte* head, unsigned row, unsigned in_block) {
        KH_UNROLL
        for (int k = 0; k < L::kLowBits; ++k) low[k] = word_at<4>(bits + 64 * k);
        KH_UNROLL
        for (int k = 0; k < 2; ++k) twos[k] = L::kHasTwos ? word_at<4>(bits + L::kLowBytes + 64 * k) : 0;
        ones = L::kHasOnes ? word_at<4>(bits + L::kLowBytes + L::kTwosBytes) : 0;
        d = half_at(head + 2 * row);
        m = Block::kHasOffset ? half_at(head + L::kOffsetAt + 2 * row) : std::uint16_t{0};
        offset_steps = 0;
        KH_UNROLL
        for (unsigned p = 0; p < L::kParts; ++p) {
            steps[p] = 1;
            if constexpr (L::kHasSteps) {
                const unsigned at = (in_block * L::kParts + p) * kLaidRows + row;
                steps[p] = step_at(head + L::kStepsAt + at);
                if constexpr (Block::kHasOffset) offset_steps = step_at(head + L::kOffsetStepsAt + at);
            }
        }
    }
    /// Cell number `cell` of a row of a group.
    KH_FN static LaidCell at(const std::byte* group, int cols, unsigned row, unsigned cell) {
        return {group + L::factors_bytes(cols) + cell * L::kCellBytes + 4 * row,
                group + cell / L::kCells * L::kHeadBytes, row, cell % L::kCells};
    }
    /// Returns the stored codes of columns 4 k to 4 k + 3.
    KH_FN std::uint32_t codes(int k) const {
        std::uint32_t four = 0;
        if constexpr (L::kLowBits == 8) four = low[k];
        if constexpr (L::kLowBits == 4) four = low_halves(low[k % 4], k / 4 * 4);
        if constexpr (L::kHasTwos) four |= (twos[k / 4] >> k % 4 * 2 & 0x03030303u) << L::kLowBits;
        if constexpr (L::kHasOnes) four |= (ones >> k & 0x01010101u) << (L::kLowBits + (L::kHasTwos ? 2 : 0));
        return four;
    }
    KH_FN Scale scale(int part) const { return laid_scale<Block>(d, m, steps[part], offset_steps); }

  private:
    KH_FN static std::uint16_t half_at(const std::byte* p) {
#ifdef __CUDA_ARCH__
        return *reinterpret_cast<const std::uint16_t*>(p);
#else
        std::uint16_t half = 0;
        std::memcpy(&half, p, sizeof(half));
        return half;
#endif
    }
    KH_FN static std::int8_t step_at(const std::byte* p) {
        return static_cast<std::int8_t>(*p);
    }
};

/// Rows of a laid matrix.
template <class Block>
struct LaidPacks {
    struct Loaded {
        Codes codes;
        Scale of;
    };
    const std::byte* groups;
    int cols;

    KH_FN LaidPacks(const void* data, int n_cols)
        : groups(in_device_memory(static_cast<const std::byte*>(data))), cols(n_cols) {}
    KH_FN Loaded load(std::int64_t i) const {
        const std::int64_t row = i / (cols / 8);
        const int pack = static_cast<int>(i % (cols / 8)), half = pack % 4;
        const auto cell =
            LaidCell<Block>::at(groups + row / kLaidRows * Laid<Block>::group_bytes(cols), cols,
                                static_cast<unsigned>(row % kLaidRows), static_cast<unsigned>(pack / 4));
        return {{{cell.codes(2 * half), cell.codes(2 * half + 1)}},
                cell.scale(half * Laid<Block>::kParts / 4)};
    }
    KH_FN static void widen_pack(const Loaded& loaded, float (&wide)[8]) {
        widen_codes<Block>(loaded.codes, loaded.of, wide);
    }
};

/// Calls visit.template operator()<Block>() for a type of blocks that kernels read.
template <class Visit>
KH_INLINE void with_read_block(DType type, Visit visit) {
    switch (type) {
        case DType::q8_0:
            return visit.template operator()<BlockQ8_0>();
        case DType::q4_0:
            return visit.template operator()<BlockQ4_0>();
        case DType::q4_1:
            return visit.template operator()<BlockQ4_1>();
        case DType::q5_0:
            return visit.template operator()<BlockQ5_0>();
        case DType::q5_1:
            return visit.template operator()<BlockQ5_1>();
        case DType::q4_k:
            return visit.template operator()<BlockQ4_K>();
        case DType::q5_k:
            return visit.template operator()<BlockQ5_K>();
        case DType::q6_k:
            return visit.template operator()<BlockQ6_K>();
        case DType::f32:
        case DType::f16:
        case DType::bf16:
        case DType::q2_k:
        case DType::q3_k:
        case DType::iq4_nl:
        case DType::iq4_xs:
        case DType::mxfp4:
        case DType::tq1_0:
        case DType::tq2_0:
            return;  // is_read_on_device(): a model with blocks of these is refused
    }
}

/// Calls visit(packs) with the packs of all elements, which are not laid.
template <class T, class Visit>
KH_FN void with_packs(const Elements<T>& elements, Visit visit) {
    visit(PlainPacks<T>(elements.data));
}
template <class Visit>
KH_FN void with_packs(const Elements<Stored>& elements, Visit visit) {
    switch (elements.type) {
        case DType::f32:
            return visit(PlainPacks<float>(elements.data));
        case DType::f16:
            return visit(PlainPacks<Fp16>(elements.data));
        case DType::bf16:
            return visit(PlainPacks<Bf16>(elements.data));
        default:
            with_read_block(elements.type, [&]<class Block>() { visit(BlockPacks<Block>(elements.data)); });
    }
}

/// Does as with_packs(), also where the matrix is laid.
template <class Visit>
KH_FN void with_any_packs(const Elements<Stored>& elements, Visit visit) {
    if (elements.laid_cols == 0) return with_packs(elements, visit);
    with_read_block(elements.type,
                    [&]<class Block>() { visit(LaidPacks<Block>(elements.data, elements.laid_cols)); });
}

}  // namespace keyhole::cuda
