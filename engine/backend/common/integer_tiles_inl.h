// Products of several inputs in tiles of AMX, for integer_products.cpp, which includes this file within the
// namespace of the path. A tile product takes 16 rows of inputs, 16 of weights and 64 bytes of each, so that
// types whose codes have four bits take them twice: codes c, and 16 c. Numbers of 24 bits are then two terms
//     q(i) = 4096 (b(i) + 16 u0(i)) + l(i) + 16 a(i)
// instead of three. The terms of an input are rows of the same tile. Sums are those of other paths: exact, so
// that the bits are the same.
//
// A tile product waits for no other, but sums are stored and then scaled by other registers. So products of a
// part of a cell begin before the sums of the part before are scaled. Two groups of rows share a load of
// inputs.

using integers_avx512_vnni::codes_of;
using integers_avx512_vnni::fetch_ahead;
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
    static constexpr std::int64_t kFloats = kInputs * kLaidRows;  ///< totals of a tile of inputs and a group
    static constexpr int kLeast = L::kParts == 1 ? 3 : 4;         ///< inputs; fewer are faster without tiles
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

/// Rows and bytes of the tiles: 0 and 4 hold sums, 1 inputs, 2 and 3 codes.
struct alignas(64) TileShapes {
    std::uint8_t palette = 1, first_row = 0, zero[14] = {};
    std::uint16_t bytes[16] = {};
    std::uint8_t rows[16] = {};
    TileShapes(int depth, int n_rows) {
        for (int i = 0; i < 5; ++i) {
            const bool is_codes = i == 2 || i == 3;
            bytes[i] = static_cast<std::uint16_t>(i == 1 ? depth : 64);
            rows[i] = static_cast<std::uint8_t>(is_codes ? depth / 4 : n_rows);
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
#define KH_MULTIPLY_TILES(instruction, sums, numbers, codes) \
    asm volatile(instruction " %%tmm" #codes ", %%tmm" #numbers ", %%tmm" #sums : : : "memory")
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

template <class Block>
constexpr std::int64_t kCodesBytes = Tile<Block>::kCellBytes* kCellsAtOnce;  ///< of a group's codes as bytes

/// Begins the products of part p of a cell of inputs and of kGroups groups, whose codes these are.
template <class Block, int kGroups>
HWY_INLINE void begin_products(const TileInputs<Block>& in, int p, const std::uint8_t* codes) {
    using T = Tile<Block>;
    codes += p * T::kPartBytes;
    KH_LOAD_TILE(1, in.numbers[p], T::kDepth);
    KH_LOAD_TILE(2, codes, 64);
    KH_CLEAR_TILE(0);
    if constexpr (T::kSigned)
        KH_MULTIPLY_TILES("tdpbssd", 0, 1, 2);
    else
        KH_MULTIPLY_TILES("tdpbsud", 0, 1, 2);
    if constexpr (kGroups == 1) return;
    KH_LOAD_TILE(3, codes + kCodesBytes<Block>, 64);
    KH_CLEAR_TILE(4);
    if constexpr (T::kSigned)
        KH_MULTIPLY_TILES("tdpbssd", 4, 1, 3);
    else
        KH_MULTIPLY_TILES("tdpbsud", 4, 1, 3);
}

template <int kGroups>
HWY_INLINE void store_sums(TileSums (&sums)[kGroups]) {
    KH_STORE_TILE(0, sums[0].of);
    if constexpr (kGroups == 2) KH_STORE_TILE(4, sums[1].of);
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

/// Adds part p of cell c, whose sums are there, to the cell's own, for n inputs; the last part adds the cell.
template <class Block>
HWY_INLINE void add_sums(const TileSums& sums, const std::byte* group, std::int64_t c, int p,
                         const TileInputs<Block>& in, int n, __m512 (&of_cell)[Tile<Block>::kInputs],
                         __m512 (&y)[Tile<Block>::kInputs]) {
    using L = Laid<Block>;
    __m512 factors[2], offsets[2];
    integers_avx512_vnni::load_factors<Block>(group + c / L::kCells * L::kHeadBytes, 0, c % L::kCells,
                                              factors, offsets);
    HWY_UNROLL(16)
    for (int b = 0; b < Tile<Block>::kInputs; ++b) {
        if (b == n) break;
        integers_avx512_vnni::add_part<Block>(p, factors[p], offsets[p], in.scale[b], in.scaled_sums[p][b],
                                              tile_total<Block>(sums, b), of_cell[b]);
        if (p + 1 == L::kParts) y[b] = Registers::add(y[b], of_cell[b]);
    }
}

template <class Block>
HWY_INLINE void load_totals(const float* totals, bool begins, __m512 (&y)[Tile<Block>::kInputs]) {
    HWY_UNROLL(16)
    for (int b = 0; b < Tile<Block>::kInputs; ++b)
        y[b] = begins ? _mm512_setzero_ps() : _mm512_load_ps(totals + kLaidRows * b);
}

template <class Block>
HWY_INLINE void store_totals(const __m512 (&y)[Tile<Block>::kInputs], float* totals) {
    HWY_UNROLL(16)
    for (int b = 0; b < Tile<Block>::kInputs; ++b) _mm512_store_ps(totals + kLaidRows * b, y[b]);
}

/// Adds the products of cells [first, last) of kGroups groups, whose codes these are, with n inputs, a tile
/// of inputs after the other, to totals [kGroups, tiles, kInputs, 16]. Fetches packed codes ahead, a cell at
/// a time, between the first tile's products.
template <class Block, int kGroups>
void add_cells(const std::byte* group, std::int64_t cols, std::int64_t first, std::int64_t last,
               const std::uint8_t* codes, const TileInputs<Block>* in, int n, float* totals) {
    using T = Tile<Block>;
    using L = Laid<Block>;
    const std::int64_t cells = cols / kCellColumns, n_tiles = (n + T::kInputs - 1) / T::kInputs;
    const std::byte* const second = group + L::group_bytes(cols);
    float* const second_totals = totals + n_tiles * T::kFloats;
    TileSums sums[2][kGroups];
    int turn = 0;
    begin_products<Block, kGroups>(in[first], 0, codes);
    store_sums(sums[0]);
    for (std::int64_t t = 0; t < n_tiles; ++t, in += cells, n -= T::kInputs) {
        __m512 y[kGroups][T::kInputs];
        load_totals<Block>(totals + t * T::kFloats, first == 0, y[0]);
        if constexpr (kGroups == 2) load_totals<Block>(second_totals + t * T::kFloats, first == 0, y[1]);
        for (std::int64_t c = first; c < last; ++c) {
            __m512 of_cell[kGroups][T::kInputs];
            HWY_UNROLL(2)
            for (int p = 0; p < L::kParts; ++p, turn ^= 1) {
                const bool ends = p + 1 == L::kParts && c + 1 == last && t + 1 == n_tiles;
                if (p + 1 < L::kParts)
                    begin_products<Block, kGroups>(in[c], p + 1, codes + (c - first) * T::kCellBytes);
                else if (c + 1 < last)
                    begin_products<Block, kGroups>(in[c + 1], 0, codes + (c + 1 - first) * T::kCellBytes);
                else if (!ends)
                    begin_products<Block, kGroups>(in[cells + first], 0, codes);
                if (t == 0 && p == 0) {
                    fetch_ahead<Block, 1>(group, c);
                    if constexpr (kGroups == 2) fetch_ahead<Block, 1>(second, c);
                }
                add_sums<Block>(sums[turn][0], group, c, p, in[c], n, of_cell[0], y[0]);
                if constexpr (kGroups == 2)
                    add_sums<Block>(sums[turn][1], second, c, p, in[c], n, of_cell[1], y[1]);
                if (!ends) store_sums(sums[turn ^ 1]);
            }
        }
        store_totals<Block>(y[0], totals + t * T::kFloats);
        if constexpr (kGroups == 2) store_totals<Block>(y[1], second_totals + t * T::kFloats);
    }
}

/// Writes the codes of cells [first, last) of a group as bytes.
template <class Block>
void spread_cells(const std::byte* group, std::int64_t cols, std::int64_t first, std::int64_t last,
                  std::uint8_t* to) {
    using L = Laid<Block>;
    const std::uint8_t* const codes = codes_of<Block>(group, cols);
    for (std::int64_t i = first; i < last; ++i, to += Tile<Block>::kCellBytes)
        spread_codes<Block>(codes + i * L::kCellBytes, to);
}

/// Multiplies groups [first, last), kGroupsAtOnce or fewer, with n inputs of several tiles.
template <class Block>
void multiply_few_groups(const LaidMatrix& w, std::int64_t first, std::int64_t last,
                         const TileInputs<Block>* in, int n, float* totals, float* y, std::int64_t y_stride) {
    constexpr int kInputs = Tile<Block>::kInputs;
    alignas(64) std::uint8_t codes[2 * kCodesBytes<Block>];
    const std::int64_t cells = w.cols / kCellColumns, n_tiles = (n + kInputs - 1) / kInputs;
    const std::int64_t group_bytes = Laid<Block>::group_bytes(w.cols);
    for (std::int64_t c = 0; c < cells; c += kCellsAtOnce) {
        const std::int64_t end = std::min(cells, c + kCellsAtOnce);
        for (std::int64_t g = first; g < last; g += 2) {
            const std::byte* const group = w.data + g * group_bytes;
            float* const to = totals + (g - first) * n_tiles * Tile<Block>::kFloats;
            spread_cells<Block>(group, w.cols, c, end, codes);
            if (g + 1 == last) {
                add_cells<Block, 1>(group, w.cols, c, end, codes, in, n, to);
            } else {
                spread_cells<Block>(group + group_bytes, w.cols, c, end, codes + kCodesBytes<Block>);
                add_cells<Block, 2>(group, w.cols, c, end, codes, in, n, to);
            }
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
    const std::int64_t together = n <= kInputs ? 2 : kGroupsAtOnce;
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
    auto* in = reinterpret_cast<const TileInputs<Block>*>(x.ordered);
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
#undef KH_MULTIPLY_TILES

void multiply(const LaidMatrix& w, std::int64_t first, std::int64_t last, NarrowInputs x, int n_batch,
              float* y, std::int64_t y_stride) {
    with_block(w.dtype,
               [&]<class Block>(Block) { multiply_groups<Block>(w, first, last, x, n_batch, y, y_stride); });
}

std::int64_t ordered_bytes(DType type, std::int64_t cols, int n_batch) {
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
