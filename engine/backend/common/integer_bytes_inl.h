// Products of codes of at most six bits with AVX2, for integer_products.cpp, which includes this file within
// the namespace of the path. A number of an input is three signed bytes,
//     q(i) = 65536 t0(i) + 256 t1(i) + t2(i),
// and sums of products of codes and bytes fit 16 bits for several steps:
//     |sum of two columns| <= 2 (2^bits - 1) 128
// Both halves of a group's rows share a load of an input. Sums are those of other paths: exact, so that the
// bits are the same.

using integers_avx2::add_part;
using integers_avx2::codes_of;
using integers_avx2::fetch_ahead;
using integers_avx2::load_factors;
using integers_avx2::step_codes;
using Registers = integers_avx2::Isa;

constexpr int kHalves = kLaidRows / Registers::kLanes, kTerms = 3, kInputs = 2;

/// Sizes that follow from a block type.
template <class Block>
struct Bytes {
    static constexpr CodeLayout kCodes = Block::kCodes;
    static constexpr int kParts = Laid<Block>::kParts;
    static constexpr bool kFit = kCodes.bits <= 6 && !kCodes.looks_up;  ///< else products in 16 bits
    static constexpr int kPartSteps = 8 / kParts;
    /// Steps that are summed in 16 bits.
    static constexpr int kSteps = std::min(kPartSteps, 32767 / (2 * 128 * ((1 << kCodes.bits) - 1)));
    /// The order of steps: those that share bytes follow each other, if they are of the same part.
    static constexpr int step(int i) { return kParts == 1 ? i / 2 + i % 2 * 4 : i; }
};

/// A cell of an input, in the order of products.
struct alignas(64) ByteCell {
    std::int32_t terms[kTerms][8];    ///< element [k] has the columns 4 k to 4 k + 3
    std::int32_t upper[2], lower[2];  ///< where the sums of a part begin
    float scale;
    float scaled_sums[2];  ///< of a part
};

template <class Block, int k, bool kFirst, int kN>
HWY_INLINE void add_step(const std::uint8_t* cell, const ByteCell* x, std::int64_t x_stride,
                         __m256i (&sums)[kN][kTerms][kHalves]) {
    const __m256i codes[kHalves] = {step_codes<Block, k>(cell), step_codes<Block, k>(cell + 32)};
    HWY_UNROLL(2)
    for (int b = 0; b < kN; ++b) {
        HWY_UNROLL(3)
        for (int t = 0; t < kTerms; ++t) {
            const __m256i numbers = _mm256_set1_epi32(x[b * x_stride].terms[t][k]);
            HWY_UNROLL(2)
            for (int h = 0; h < kHalves; ++h) {
                const __m256i products = _mm256_maddubs_epi16(codes[h], numbers);
                sums[b][t][h] = kFirst ? products : _mm256_add_epi16(sums[b][t][h], products);
                Registers::keep(sums[b][t][h]);
            }
        }
    }
}

/// Adds the products of steps step(kFrom) and those that follow, as many as fit 16 bits, to sums of 32 bits.
template <class Block, int kFrom, int kN>
HWY_INLINE void add_run(const std::uint8_t* cell, const ByteCell* x, std::int64_t x_stride,
                        __m256i (&upper)[kN][kHalves], __m256i (&lower)[kN][kHalves]) {
    using B = Bytes<Block>;
    __m256i sums[kN][kTerms][kHalves];
    add_step<Block, B::step(kFrom), true>(cell, x, x_stride, sums);
    if constexpr (B::kSteps >= 2) add_step<Block, B::step(kFrom + 1), false>(cell, x, x_stride, sums);
    if constexpr (B::kSteps >= 4) {
        add_step<Block, B::step(kFrom + 2), false>(cell, x, x_stride, sums);
        add_step<Block, B::step(kFrom + 3), false>(cell, x, x_stride, sums);
    }
    if constexpr (B::kSteps == 8) {
        add_step<Block, B::step(kFrom + 4), false>(cell, x, x_stride, sums);
        add_step<Block, B::step(kFrom + 5), false>(cell, x, x_stride, sums);
        add_step<Block, B::step(kFrom + 6), false>(cell, x, x_stride, sums);
        add_step<Block, B::step(kFrom + 7), false>(cell, x, x_stride, sums);
    }
    const __m256i one = _mm256_set1_epi16(1), high = _mm256_set1_epi16(256);
    constexpr bool kBegins = kFrom % B::kPartSteps == 0 && B::kCodes.zero == 0;
    HWY_UNROLL(2)
    for (int b = 0; b < kN; ++b) {
        HWY_UNROLL(2)
        for (int h = 0; h < kHalves; ++h) {
            const __m256i u = _mm256_add_epi32(_mm256_madd_epi16(sums[b][0][h], high),
                                               _mm256_madd_epi16(sums[b][1][h], one));
            const __m256i l = _mm256_madd_epi16(sums[b][2][h], one);
            upper[b][h] = kBegins ? u : _mm256_add_epi32(upper[b][h], u);
            lower[b][h] = kBegins ? l : _mm256_add_epi32(lower[b][h], l);
        }
    }
}

template <class Block, int kPart, int kN>
HWY_INLINE void add_cell_part(const std::uint8_t* cell, const ByteCell* x, std::int64_t x_stride,
                              const Registers::Floats (&factors)[kHalves][2],
                              const Registers::Floats (&offsets)[kHalves][2],
                              Registers::Floats (&of_cell)[kN][kHalves]) {
    using B = Bytes<Block>;
    constexpr int kFrom = kPart * B::kPartSteps;
    __m256i upper[kN][kHalves], lower[kN][kHalves];
    if constexpr (B::kCodes.zero != 0) {
        HWY_UNROLL(2)
        for (int b = 0; b < kN; ++b) {
            HWY_UNROLL(2)
            for (int h = 0; h < kHalves; ++h) {
                upper[b][h] = _mm256_set1_epi32(x[b * x_stride].upper[kPart]);
                lower[b][h] = _mm256_set1_epi32(x[b * x_stride].lower[kPart]);
            }
        }
    }
    add_run<Block, kFrom>(cell, x, x_stride, upper, lower);
    if constexpr (B::kSteps * 2 <= B::kPartSteps)
        add_run<Block, kFrom + B::kSteps>(cell, x, x_stride, upper, lower);
    static_assert(B::kSteps * 4 > B::kPartSteps);
    HWY_UNROLL(2)
    for (int b = 0; b < kN; ++b) {
        HWY_UNROLL(2)
        for (int h = 0; h < kHalves; ++h)
            add_part<Block>(kPart, factors[h][kPart], offsets[h][kPart], x[b * x_stride].scale,
                            x[b * x_stride].scaled_sums[kPart], Registers::joined(upper[b][h], lower[b][h]),
                            of_cell[b][h]);
    }
}

/// Multiplies one group of rows with kN inputs.
template <class Block, int kN>
void multiply_group(const std::byte* group, std::int64_t cols, const ByteCell* x, int n_rows, float* y,
                    std::int64_t y_stride) {
    using L = Laid<Block>;
    const std::int64_t x_stride = cols / kCellColumns;
    const std::uint8_t* cell = codes_of<Block>(group, cols);
    Registers::Floats total[kN][kHalves];
    HWY_UNROLL(2)
    for (int b = 0; b < kN; ++b) total[b][0] = total[b][1] = Registers::all(0.0f);
    const std::byte* head = group;
    for (std::int64_t i = 0; i < cols / Block::kElements; ++i, head += L::kHeadBytes) {
        fetch_ahead<Block, L::kCells>(group, i * L::kCells);
        for (int c = 0; c < L::kCells; ++c, cell += L::kCellBytes, ++x) {
            Registers::Floats factors[kHalves][2], offsets[kHalves][2], of_cell[kN][kHalves];
            HWY_UNROLL(2)
            for (int h = 0; h < kHalves; ++h)
                load_factors<Block>(head, h * Registers::kLanes, c, factors[h], offsets[h]);
            add_cell_part<Block, 0>(cell, x, x_stride, factors, offsets, of_cell);
            if constexpr (L::kParts == 2)
                add_cell_part<Block, 1>(cell, x, x_stride, factors, offsets, of_cell);
            HWY_UNROLL(2)
            for (int b = 0; b < kN; ++b) {
                HWY_UNROLL(2)
                for (int h = 0; h < kHalves; ++h) total[b][h] = Registers::add(total[b][h], of_cell[b][h]);
            }
        }
    }
    HWY_UNROLL(2)
    for (int b = 0; b < kN; ++b) {
        HWY_UNROLL(2)
        for (int h = 0; h < kHalves; ++h) {
            const int row = h * Registers::kLanes;
            if (row < n_rows)
                Registers::store(total[b][h], std::min(Registers::kLanes, n_rows - row),
                                 y + b * y_stride + row);
        }
    }
}

/// Multiplies groups [first, last) with kN inputs.
template <class Block, int kN>
void multiply_inputs(const LaidMatrix& w, std::int64_t first, std::int64_t last, const ByteCell* x, float* y,
                     std::int64_t y_stride) {
    for (std::int64_t g = first; g < last; ++g)
        multiply_group<Block, kN>(w.data + g * Laid<Block>::group_bytes(w.cols), w.cols, x,
                                  static_cast<int>(std::min<std::int64_t>(kLaidRows, w.rows - g * kLaidRows)),
                                  y + g * kLaidRows, y_stride);
}

// A tile of groups stays in the second-level cache.
template <class Block>
void multiply_groups(const LaidMatrix& w, std::int64_t first, std::int64_t last, const ByteCell* x,
                     int n_batch, float* y, std::int64_t y_stride) {
    constexpr std::int64_t kTileBytes = 128 << 10;
    const std::int64_t cells = w.cols / kCellColumns,
                       tile = std::max<std::int64_t>(1, kTileBytes / Laid<Block>::group_bytes(w.cols));
    for (; first < last; first += tile) {
        const std::int64_t end = std::min(last, first + tile);
        int b = 0;
        for (; b + kInputs <= n_batch; b += kInputs)
            multiply_inputs<Block, kInputs>(w, first, end, x + b * cells, y + b * y_stride, y_stride);
        if (b < n_batch) multiply_inputs<Block, 1>(w, first, end, x + b * cells, y + b * y_stride, y_stride);
    }
}

void multiply(const LaidMatrix& w, std::int64_t first, std::int64_t last, NarrowInputs x, int n_batch,
              float* y, std::int64_t y_stride) {
    with_block(w.dtype, [&]<class Block>(Block) {
        if constexpr (Bytes<Block>::kFit)
            multiply_groups<Block>(w, first, last, reinterpret_cast<const ByteCell*>(x.ordered), n_batch, y,
                                   y_stride);
        else
            integers_avx2::multiply_groups<Block>(w, first, last, x.blocks, n_batch, y, y_stride);
    });
}

std::int64_t ordered_bytes(DType type, std::int64_t cols, int n_batch) {
    return with_block(type, [&]<class Block>(Block) {
        return Bytes<Block>::kFit
                   ? n_batch * (cols / kCellColumns) * static_cast<std::int64_t>(sizeof(ByteCell))
                   : 0;
    });
}

HWY_INLINE __m256i load_term(const std::int32_t (&from)[8]) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(from));
}

HWY_INLINE void store_term(__m256i even, __m256i odd, std::int32_t (&term)[8]) {
    const __m256i bytes =
        _mm256_or_si256(_mm256_and_si256(even, _mm256_set1_epi16(255)), _mm256_slli_epi16(odd, 8));
    _mm256_store_si256(reinterpret_cast<__m256i*>(term), bytes);
}

template <class Block>
void order_cells(const NarrowBlock* x, std::int64_t n, ByteCell* to) {
    using B = Bytes<Block>;
    const __m256i half = _mm256_set1_epi16(128);
    for (std::int64_t i = 0; i < n; ++i, ++x, ++to) {
        const __m256i even = load_term(x->upper[0]), odd = load_term(x->upper[1]);
        store_term(_mm256_srai_epi16(_mm256_add_epi16(even, half), 8),
                   _mm256_srai_epi16(_mm256_add_epi16(odd, half), 8), to->terms[0]);
        store_term(even, odd, to->terms[1]);
        store_term(load_term(x->lower[0]), load_term(x->lower[1]), to->terms[2]);
        to->scale = x->scale;
        for (int p = 0; p < B::kParts; ++p) {
            const int from = B::kParts == 2 ? p : 2;
            to->upper[p] = -B::kCodes.zero * x->upper_sums[from];
            to->lower[p] = -B::kCodes.zero * x->lower_sums[from];
            to->scaled_sums[p] = x->scaled_sums[from];
        }
    }
}

void order(DType type, const NarrowBlock* x, std::int64_t cols, int n_batch, std::byte* ordered) {
    with_block(type, [&]<class Block>(Block) {
        if constexpr (Bytes<Block>::kFit)
            order_cells<Block>(x, n_batch * (cols / kCellColumns), reinterpret_cast<ByteCell*>(ordered));
    });
}
