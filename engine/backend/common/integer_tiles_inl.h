// Products of several inputs in tiles of AMX, for integer_products.cpp, which includes this file within the
// namespace of the path. A tile product takes 16 rows of inputs, 16 of weights and 64 bytes of each, so that
// types whose codes have four bits take them twice: codes c, and 16 c. Numbers of 24 bits are then two terms
//     q(i) = 4096 (b(i) + 16 u0(i)) + l(i) + 16 a(i)
// instead of three. The terms of an input are rows of the same tile. Sums are those of other paths: exact, so
// that the bits are the same.
//
// A tile product waits for no other, but sums are stored and then scaled by other registers. So products of a
// part of a cell begin before the sums of the part before are scaled.

using integers_avx512_vnni::step_codes;
using Registers = integers_avx512_vnni::Isa;

constexpr int kTileRows = 16;

/// Sizes that follow from a block type.
template <class Block>
struct Tile {
    using L = Laid<Block>;
    static constexpr CodeLayout kCodes = Block::kCodes;
    /// Sums of codes of four bits and 16 bits of a number are exact as floats, so that one sum of two terms
    /// has the bits of 256 times the upper one plus the lower one.
    static constexpr bool kTakesTwice = kCodes.bits <= 4 && !kCodes.looks_up;
    static constexpr bool kSigned = kCodes.zero != 0;
    static constexpr int kTerms = kTakesTwice ? 2 : 3;
    static constexpr int kInputs = kTileRows / kTerms;
    static constexpr int kLeast = L::kParts == 1 ? 3 : 4;  ///< inputs; fewer are faster without tiles
    static constexpr int kPartColumns = kCellColumns / L::kParts;
    static constexpr int kDepth = kPartColumns * (kTakesTwice ? 2 : 1);  ///< bytes of an input in a product
    static constexpr int kSteps = kPartColumns / 4;
    static constexpr int kPartBytes = kDepth * kLaidRows;  ///< of codes
    static constexpr int kCellBytes = kPartBytes * L::kParts;
};

/// A cell of the inputs of a tile, in the order of tiles. Input b has the rows kTerms b and those that
/// follow.
template <class Block>
struct alignas(64) TileInputs {
    using T = Tile<Block>;
    std::int8_t numbers[Laid<Block>::kParts][kTileRows][T::kDepth];
    float scale[T::kInputs];
    float scaled_sums[Laid<Block>::kParts][T::kInputs];
};

/// Rows and bytes of the tiles: 0 holds sums, 1 inputs, 2 codes.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, first_row = 0, zero[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
    TileShapes(int depth, int n_rows) {
        for (int i = 0; i < 3; ++i) {
            bytes[i] = static_cast<std::uint16_t>(i == 1 ? depth : 64);
            rows[i] = static_cast<std::uint8_t>(i == 2 ? depth / 4 : n_rows);
        }
    }
};

// As assembly, since GCC's intrinsics do not say that they read memory.
HWY_INLINE void set_shapes(const TileShapes& shapes) {
    asm volatile("ldtilecfg %0" : : "m"(shapes) : "memory");
}
HWY_INLINE void release_tiles() {
    asm volatile("tilerelease" : : : "memory");
}
#define KH_LOAD_TILE(tile, from, stride) \
    asm volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(from), "r"(std::int64_t{stride}) : "memory")
#define KH_STORE_TILE(tile, to) \
    asm volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(to), "r"(std::int64_t{64}) : "memory")
#define KH_CLEAR_TILE(tile) asm volatile("tilezero %%tmm" #tile : : : "memory")
/// Writes the codes of a step as bytes, and where they are taken twice 16 times them.
template <class Block, int k>
HWY_INLINE void spread_step(const std::uint8_t* cell, std::uint8_t* to) {
    using T = Tile<Block>;
    __m512i codes = step_codes<Block, k>(cell);
    if constexpr (T::kSigned)
        codes = _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(T::kCodes.zero)));
    to += k / T::kSteps * T::kPartBytes + k % T::kSteps * 64;
    _mm512_store_si512(to, codes);
    if constexpr (T::kTakesTwice)
        _mm512_store_si512(to + T::kSteps * 64, Registers::and_all(Registers::template shift<4>(codes), 240));
}

/// Writes the codes of a cell as bytes: for each part its steps, then those of 16 times the codes.
template <class Block>
HWY_INLINE void spread_codes(const std::uint8_t* cell, std::uint8_t* to) {
    spread_step<Block, 0>(cell, to);
    spread_step<Block, 4>(cell, to);
    spread_step<Block, 1>(cell, to);
    spread_step<Block, 5>(cell, to);
    spread_step<Block, 2>(cell, to);
    spread_step<Block, 6>(cell, to);
    spread_step<Block, 3>(cell, to);
    spread_step<Block, 7>(cell, to);
}

HWY_INLINE __m256i load_numbers(const std::int32_t* p) {
    return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

/// Writes the columns of each part.
template <class Block>
HWY_INLINE void store_numbers(__m256i numbers, int term, int input, int at, TileInputs<Block>& to) {
    const int row = Tile<Block>::kTerms * input + term;
    if constexpr (Laid<Block>::kParts == 1) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to.numbers[0][row] + at), numbers);
    } else {
        _mm_store_si128(reinterpret_cast<__m128i*>(to.numbers[0][row] + at), _mm256_castsi256_si128(numbers));
        _mm_store_si128(reinterpret_cast<__m128i*>(to.numbers[1][row] + at),
                        _mm256_extracti128_si256(numbers, 1));
    }
}

template <class Block>
HWY_INLINE void order_input(const NarrowBlock& x, int b, TileInputs<Block>& to) {
    using T = Tile<Block>;
    const __m256i first = load_numbers(x.upper[0]), second = load_numbers(x.upper[1]),
                  lower = load_numbers(x.lower[0]);
    if constexpr (T::kTakesTwice) {
        // second = 16 high + low of four signed bits; 256 low = 16 (16 low).
        const __m256i eight = _mm256_set1_epi8(8), four_bits = _mm256_set1_epi8(15),
                      one = _mm256_set1_epi8(1);
        const __m256i floor = _mm256_and_si256(_mm256_srli_epi16(second, 4), four_bits);
        const __m256i carry = _mm256_and_si256(_mm256_srli_epi16(second, 3), one);
        const __m256i high = _mm256_add_epi8(_mm256_sub_epi8(_mm256_xor_si256(floor, eight), eight), carry);
        const __m256i low = _mm256_andnot_si256(four_bits, _mm256_slli_epi16(second, 4));
        store_numbers<Block>(high, 0, b, 0, to);
        store_numbers<Block>(first, 0, b, T::kPartColumns, to);
        store_numbers<Block>(lower, 1, b, 0, to);
        store_numbers<Block>(low, 1, b, T::kPartColumns, to);
    } else {
        store_numbers<Block>(first, 0, b, 0, to);
        store_numbers<Block>(second, 1, b, 0, to);
        store_numbers<Block>(lower, 2, b, 0, to);
    }
    to.scale[b] = x.scale;
    for (int p = 0; p < Laid<Block>::kParts; ++p)
        to.scaled_sums[p][b] = x.scaled_sums[Laid<Block>::kParts == 2 ? p : 2];
}

constexpr int kCellsAtOnce = 8;    // whose codes as bytes stay in the first-level cache
constexpr int kGroupsAtOnce = 16;  // whose packed codes and totals stay in the second-level cache
constexpr int kMost = 64;          // inputs whose tiles stay there

/// Orders n inputs of `cells` cells; those that a tile lacks are zero.
template <class Block>
void order_inputs(const NarrowBlock* x, std::int64_t cells, int n, TileInputs<Block>* to) {
    static constexpr NarrowBlock kNone{};
    constexpr int kInputs = Tile<Block>::kInputs;
    for (int first = 0; first < n; first += kInputs, to += cells)
        for (std::int64_t c = 0; c < cells; c += kCellsAtOnce)
            for (int b = 0; b < kInputs; ++b)
                for (std::int64_t i = c; i < std::min(cells, c + kCellsAtOnce); ++i)
                    order_input<Block>(first + b < n ? x[(first + b) * cells + i] : kNone, b, to[i]);
}

struct alignas(64) TileSums {
    std::int32_t of[kTileRows][kLaidRows];
};

/// Begins the products of part p of a cell.
template <class Block>
HWY_INLINE void begin_products(const TileInputs<Block>& in, int p, const std::uint8_t* codes) {
    using T = Tile<Block>;
    KH_LOAD_TILE(1, in.numbers[p], T::kDepth);
    KH_LOAD_TILE(2, codes + p * T::kPartBytes, 64);
    KH_CLEAR_TILE(0);
    if constexpr (T::kSigned)
        asm volatile("tdpbssd %%tmm2, %%tmm1, %%tmm0" : : : "memory");
    else
        asm volatile("tdpbsud %%tmm2, %%tmm1, %%tmm0" : : : "memory");
}

template <class Block>
HWY_INLINE __m512 tile_total(const TileSums& sums, int b) {
    using T = Tile<Block>;
    const auto term = [&](int t) { return _mm512_load_si512(sums.of[T::kTerms * b + t]); };
    if constexpr (T::kTerms == 2)
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(term(0)), _mm512_set1_ps(4096.0f),
                               _mm512_cvtepi32_ps(term(1)));
    else
        return Registers::total({term(0), term(1), term(2)});
}

/// Adds part p of cell c, whose sums are there, for n inputs.
template <class Block>
HWY_INLINE void add_part(const TileSums& sums, const std::byte* factors, std::int64_t c, int p,
                         const TileInputs<Block>& in, int n, __m512 (&y)[Tile<Block>::kInputs]) {
    using L = Laid<Block>;
    const std::byte* const head = factors + c / L::kCells * L::kHeadBytes;
    __m512 factor, offset;
    if constexpr (L::kHasExponent)
        factor = Registers::load_exponents(head);
    else
        factor = Registers::load_halves(head);
    if constexpr (Block::kHasOffset) offset = Registers::load_halves(head + L::kOffsetAt);
    if constexpr (L::kHasSteps) {
        const std::int64_t at = (c % L::kCells * L::kParts + p) * kLaidRows;
        factor = Registers::mul(factor, Registers::load_steps(head + L::kStepsAt + at));
        if constexpr (Block::kHasOffset)
            offset = Registers::mul(offset, Registers::load_steps(head + L::kOffsetStepsAt + at));
    }
    HWY_UNROLL(16)
    for (int b = 0; b < Tile<Block>::kInputs; ++b) {
        if (b == n) break;
        const __m512 scaled = Registers::mul(factor, Registers::all(in.scale[b]));
        y[b] = Registers::add(y[b], Registers::mul(scaled, tile_total<Block>(sums, b)));
        if constexpr (Block::kHasOffset)
            y[b] = Registers::add(y[b], Registers::mul(offset, Registers::all(in.scaled_sums[p][b])));
    }
}

/// Adds the products of cells [first, last) of a group, whose codes these are, with n inputs to totals
/// [kInputs, 16]. Fetches packed codes ahead, a cell at a time, between products.
template <class Block>
HWY_INLINE void add_cells(const std::byte* group, std::int64_t cols, std::int64_t first, std::int64_t last,
                          const std::uint8_t* codes, const TileInputs<Block>* in, int n, bool fetches,
                          float* totals) {
    using T = Tile<Block>;
    using L = Laid<Block>;
    constexpr int kParts = L::kParts;
    TileSums sums[2];
    __m512 y[T::kInputs];
    HWY_UNROLL(16)
    for (int b = 0; b < T::kInputs; ++b)
        y[b] = first == 0 ? _mm512_setzero_ps() : _mm512_load_ps(totals + 16 * b);
    const std::byte* const ahead = group + L::factors_bytes(cols) + kBytesAhead;
    const std::int64_t begin = first * kParts, end = last * kParts;
    begin_products<Block>(in[first], 0, codes);
    KH_STORE_TILE(0, sums[0].of);
    for (std::int64_t i = begin + 1; i <= end; ++i) {
        const std::int64_t c = i / kParts, before = (i - 1) / kParts;
        if (i < end)
            begin_products<Block>(in[c], static_cast<int>(i % kParts), codes + (c - first) * T::kCellBytes);
        if (fetches && i % kParts == 0)
            for (int at = 0; at < L::kCellBytes; at += 64)
                __builtin_prefetch(ahead + before * L::kCellBytes + at, 0, kSecondLevel);
        add_part<Block>(sums[(i - begin - 1) & 1], group, before, static_cast<int>((i - 1) % kParts),
                        in[before], n, y);
        if (i < end) KH_STORE_TILE(0, sums[(i - begin) & 1].of);
    }
    HWY_UNROLL(16)
    for (int b = 0; b < T::kInputs; ++b) _mm512_store_ps(totals + 16 * b, y[b]);
}

/// Writes the codes of cells [first, last) of a group as bytes.
template <class Block>
void spread_cells(const std::byte* group, std::int64_t cols, std::int64_t first, std::int64_t last,
                  std::uint8_t* to) {
    using L = Laid<Block>;
    const auto* const codes = reinterpret_cast<const std::uint8_t*>(group + L::factors_bytes(cols));
    for (std::int64_t i = first; i < last; ++i, to += Tile<Block>::kCellBytes)
        spread_codes<Block>(codes + i * L::kCellBytes, to);
}

/// Multiplies groups [first, last), kGroupsAtOnce or fewer, with n inputs of several tiles.
template <class Block>
void multiply_few_groups(const LaidMatrix& w, std::int64_t first, std::int64_t last,
                         const TileInputs<Block>* in, int n, float* totals, float* y, std::int64_t y_stride) {
    constexpr int kInputs = Tile<Block>::kInputs;
    constexpr std::int64_t kFloats = kInputs * kLaidRows;
    alignas(64) std::uint8_t codes[kCellsAtOnce * Tile<Block>::kCellBytes];
    const std::int64_t cells = w.cols / kCellColumns, n_tiles = (n + kInputs - 1) / kInputs;
    const std::int64_t group_bytes = Laid<Block>::group_bytes(w.cols);
    for (std::int64_t c = 0; c < cells; c += kCellsAtOnce) {
        const std::int64_t end = std::min(cells, c + kCellsAtOnce);
        for (std::int64_t g = first; g < last; ++g) {
            const std::byte* const group = w.data + g * group_bytes;
            spread_cells<Block>(group, w.cols, c, end, codes);
            for (std::int64_t t = 0; t < n_tiles; ++t)
                add_cells<Block>(group, w.cols, c, end, codes, in + t * cells,
                                 std::min(n - static_cast<int>(t) * kInputs, kInputs), t == 0,
                                 totals + ((g - first) * n_tiles + t) * kFloats);
        }
    }
    for (std::int64_t g = first; g < last; ++g)
        for (int b = 0; b < n; ++b)
            Registers::store(_mm512_load_ps(totals + ((g - first) * n_tiles * kInputs + b) * kLaidRows),
                             static_cast<int>(std::min<std::int64_t>(kLaidRows, w.rows - g * kLaidRows)),
                             y + b * y_stride + g * kLaidRows);
}

/// Multiplies groups [first, last) with n inputs in tiles of kInputs, kMost or fewer.
template <class Block>
void multiply_in_tiles(const LaidMatrix& w, std::int64_t first, std::int64_t last,
                       const TileInputs<Block>* in, int n, float* y, std::int64_t y_stride) {
    constexpr int kInputs = Tile<Block>::kInputs;
    constexpr int kTiles = (kMost + kInputs - 1) / kInputs;
    alignas(64) float totals[kGroupsAtOnce * kTiles * kInputs * kLaidRows];
    // One tile of inputs reads the weights from one end to the other.
    const std::int64_t together = n <= kInputs ? 1 : kGroupsAtOnce;
    set_shapes(TileShapes(Tile<Block>::kDepth, std::min(n, kInputs) * Tile<Block>::kTerms));
    for (; first < last; first += together)
        multiply_few_groups<Block>(w, first, std::min(last, first + together), in, n, totals, y, y_stride);
    release_tiles();
}

/// Calls part(first, n) for the inputs that are multiplied in tiles: kMost or fewer at a time. Returns how
/// many are left.
template <class Block, class Part>
int for_tiles(int n_batch, Part part) {
    constexpr int kInputs = Tile<Block>::kInputs, kLeast = Tile<Block>::kLeast;
    int first = 0;
    while (n_batch - first >= kLeast) {
        int n = std::min(n_batch - first, kMost);
        if (n % kInputs < kLeast) n -= n % kInputs;
        part(first, n);
        first += n;
    }
    return n_batch - first;
}

template <class Block>
std::int64_t tiles_of(int n, std::int64_t cells) {
    return (n + Tile<Block>::kInputs - 1) / Tile<Block>::kInputs * cells;
}

template <class Block>
void multiply_groups(const LaidMatrix& w, std::int64_t first, std::int64_t last, NarrowInputs x, int n_batch,
                     float* y, std::int64_t y_stride) {
    const std::int64_t cells = w.cols / kCellColumns;
    auto* in = reinterpret_cast<const TileInputs<Block>*>(x.tiles);
    const int left = for_tiles<Block>(n_batch, [&](int b, int n) {
        multiply_in_tiles<Block>(w, first, last, in, n, y + b * y_stride, y_stride);
        in += tiles_of<Block>(n, cells);
    });
    const int done = n_batch - left;
    if (left > 0)
        integers_avx512_vnni::multiply_groups<Block>(w, first, last, x.blocks + done * cells, left,
                                                     y + done * y_stride, y_stride);
}

#undef KH_LOAD_TILE
#undef KH_STORE_TILE
#undef KH_CLEAR_TILE

void multiply(const LaidMatrix& w, std::int64_t first, std::int64_t last, NarrowInputs x, int n_batch,
              float* y, std::int64_t y_stride) {
    with_block(w.dtype,
               [&]<class Block>(Block) { multiply_groups<Block>(w, first, last, x, n_batch, y, y_stride); });
}

std::int64_t tile_bytes(DType type, std::int64_t cols, int n_batch) {
    return with_block(type, [&]<class Block>(Block) {
        std::int64_t bytes = 0;
        for_tiles<Block>(n_batch, [&](int, int n) {
            bytes += tiles_of<Block>(n, cols / kCellColumns) *
                     static_cast<std::int64_t>(sizeof(TileInputs<Block>));
        });
        return bytes;
    });
}

void order(DType type, const NarrowBlock* x, std::int64_t cols, int n_batch, std::byte* tiles) {
    with_block(type, [&]<class Block>(Block) {
        const std::int64_t cells = cols / kCellColumns;
        auto* to = reinterpret_cast<TileInputs<Block>*>(tiles);
        for_tiles<Block>(n_batch, [&](int b, int n) {
            order_inputs<Block>(x + b * cells, cells, n, to);
            to += tiles_of<Block>(n, cells);
        });
    });
}
