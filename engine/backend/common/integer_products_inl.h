// The loops of integer_products.cpp, which includes this file once for each path, within a namespace that has
// `Isa`: the path's registers. No guard, since it is included several times.

// Returns the stored codes of step k of a cell; w: the cell's bytes for these rows.
template <class Block, int k>
HWY_INLINE typename Isa::Ints step_codes(const std::uint8_t* w) {
    using L = Laid<Block>;
    constexpr int kLow = L::kLowBits, kTwosAt = L::kLowBytes, kOnesAt = L::kLowBytes + L::kTwosBytes;
    typename Isa::Ints code;
    if constexpr (kLow == 8) code = Isa::load(w + 64 * k);
    if constexpr (kLow == 4)
        code = Isa::and_all(Isa::template shift < k < 4 ? 0 : -4 > (Isa::load(w + 64 * (k % 4))), 15);
    if constexpr (L::kCodes.looks_up) code = Isa::look_up(kCodeValues<Block>.data(), L::kCodes.zero, code);
    if constexpr (L::kHasTwos) {
        const auto bits = Isa::template shift<kLow - 2 * (k % 4)>(Isa::load(w + kTwosAt + 64 * (k / 4)));
        const auto two = Isa::and_all(bits, 3 << kLow);
        if constexpr (kLow == 0)
            code = two;
        else
            code = Isa::either(code, two);
    }
    if constexpr (L::kHasOnes) {
        constexpr int kBit = kLow + (L::kHasTwos ? 2 : 0);
        code =
            Isa::either(code, Isa::and_all(Isa::template shift<kBit - k>(Isa::load(w + kOnesAt)), 1 << kBit));
    }
    return code;
}

template <class Block, int k, int kColumns>
HWY_INLINE void add_step(const std::uint8_t* cell, const NarrowBlock* x, std::int64_t x_stride,
                         typename Isa::Sum (&sums)[Laid<Block>::kParts][kColumns]) {
    const typename Isa::Codes codes = Isa::prepare(step_codes<Block, k>(cell));
    HWY_UNROLL(8)
    for (int b = 0; b < kColumns; ++b)
        Isa::template add_products<k>(sums[k * Laid<Block>::kParts / 8][b], codes, x[b * x_stride]);
}

// Returns where the codes of a group begin.
template <class Block>
HWY_INLINE const std::uint8_t* codes_of(const std::byte* group, std::int64_t cols) {
    return reinterpret_cast<const std::uint8_t*>(group + Laid<Block>::factors_bytes(cols));
}

// Fetches what kCells cells from cell c on have of the bytes that lie kBytesAhead behind those of a group,
// factors and codes alike.
template <class Block, int kCells>
HWY_INLINE void fetch_ahead(const std::byte* group, std::int64_t c) {
    using L = Laid<Block>;
    constexpr int kShare = L::kHeadBytes / L::kCells + L::kCellBytes;
    static_assert(L::kHeadBytes % L::kCells == 0);
    const std::byte* const from = group + c * kShare + kBytesAhead;
    HWY_UNROLL(64)
    for (int at = 0; at < kCells * kShare; at += 64) __builtin_prefetch(from + at, 0, kSecondLevel);
}

// Loads the factors and offsets of both parts of cell c of a block.
template <class Block>
HWY_INLINE void load_factors(const std::byte* head, int row, std::int64_t c,
                             typename Isa::Floats (&factors)[2], typename Isa::Floats (&offsets)[2]) {
    using L = Laid<Block>;
    typename Isa::Floats d, m;
    if constexpr (L::kHasExponent)
        d = Isa::load_exponents(head + row);
    else
        d = Isa::load_halves(head + 2 * row);
    if constexpr (Block::kHasOffset) m = Isa::load_halves(head + L::kOffsetAt + 2 * row);
    HWY_UNROLL(2)
    for (int p = 0; p < L::kParts; ++p) {
        factors[p] = d;
        if constexpr (Block::kHasOffset) offsets[p] = m;
        if constexpr (L::kHasSteps) {
            const std::int64_t at = (c * L::kParts + p) * kLaidRows + row;
            factors[p] = Isa::mul(d, Isa::load_steps(head + L::kStepsAt + at));
            if constexpr (Block::kHasOffset)
                offsets[p] = Isa::mul(m, Isa::load_steps(head + L::kOffsetStepsAt + at));
        }
    }
}

// Adds part p to the sum of a cell, or begins it.
template <class Block>
HWY_INLINE void add_part(int p, typename Isa::Floats factor, typename Isa::Floats offset, float scale,
                         float scaled_sum, typename Isa::Floats total, typename Isa::Floats& of_cell) {
    const typename Isa::Floats scaled = Isa::mul(factor, Isa::all(scale));
    if constexpr (Block::kHasOffset) {
        const typename Isa::Floats sum = Isa::all(scaled_sum);
        of_cell = p == 0 ? Isa::mul(offset, sum) : Isa::mul_add(offset, sum, of_cell);
        of_cell = Isa::mul_add(scaled, total, of_cell);
    } else {
        of_cell = p == 0 ? Isa::mul(scaled, total) : Isa::mul_add(scaled, total, of_cell);
    }
}

// Multiplies one block of kLanes rows with kColumns inputs. head: the block's factors for these rows; cell:
// the codes of its first cell for these rows.
template <class Block, int kColumns>
HWY_INLINE void add_block(const std::byte* head, int row, const std::uint8_t* cell, const NarrowBlock* x,
                          std::int64_t x_stride, typename Isa::Floats (&y)[kColumns]) {
    using L = Laid<Block>;
    for (int c = 0; c < L::kCells; ++c, cell += L::kCellBytes, ++x) {
        typename Isa::Sum sums[L::kParts][kColumns];
        HWY_UNROLL(2)
        for (int p = 0; p < L::kParts; ++p) {
            HWY_UNROLL(8)
            for (int b = 0; b < kColumns; ++b)
                sums[p][b] =
                    Isa::sum_from(-L::kCodes.zero * x[b * x_stride].upper_sums[L::kParts == 2 ? p : 2],
                                  -L::kCodes.zero * x[b * x_stride].lower_sums[L::kParts == 2 ? p : 2]);
        }
        add_step<Block, 0>(cell, x, x_stride, sums);
        add_step<Block, 4>(cell, x, x_stride, sums);
        add_step<Block, 1>(cell, x, x_stride, sums);
        add_step<Block, 5>(cell, x, x_stride, sums);
        add_step<Block, 2>(cell, x, x_stride, sums);
        add_step<Block, 6>(cell, x, x_stride, sums);
        add_step<Block, 3>(cell, x, x_stride, sums);
        add_step<Block, 7>(cell, x, x_stride, sums);
        typename Isa::Floats factors[2], offsets[2], of_cell[kColumns];
        load_factors<Block>(head, row, c, factors, offsets);
        HWY_UNROLL(2)
        for (int p = 0; p < L::kParts; ++p) {
            HWY_UNROLL(8)
            for (int b = 0; b < kColumns; ++b)
                add_part<Block>(p, factors[p], offsets[p], x[b * x_stride].scale,
                                x[b * x_stride].scaled_sums[L::kParts == 2 ? p : 2], Isa::total(sums[p][b]),
                                of_cell[b]);
        }
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b) y[b] = Isa::add(y[b], of_cell[b]);
    }
}

// Multiplies one group of rows with kColumns inputs.
template <class Block, int kColumns>
void multiply_group(const std::byte* group, std::int64_t cols, const NarrowBlock* x, int n_rows, float* y,
                    std::int64_t y_stride) {
    using L = Laid<Block>;
    const std::int64_t n_blocks = cols / Block::kElements, x_stride = cols / kCellColumns;
    const std::uint8_t* const codes = codes_of<Block>(group, cols);
    for (int row = 0; row < n_rows; row += Isa::kLanes) {
        typename Isa::Floats total[kColumns];
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b) total[b] = Isa::all(0.0f);
        for (std::int64_t i = 0; i < n_blocks; ++i) {
            const std::uint8_t* cell = codes + i * L::kCells * L::kCellBytes + 4 * row;
            if (row == 0) fetch_ahead<Block, L::kCells>(group, i * L::kCells);
            add_block<Block, kColumns>(group + i * L::kHeadBytes, row, cell, x + i * L::kCells, x_stride,
                                       total);
        }
        HWY_UNROLL(8)
        for (int b = 0; b < kColumns; ++b)
            Isa::store(total[b], std::min(Isa::kLanes, n_rows - row), y + b * y_stride + row);
    }
}

// Multiplies groups [first, last) with inputs from b on, kColumns at once, while so many are left. Returns
// the first that is left.
template <class Block, int kColumns>
int multiply_inputs(const LaidMatrix& w, std::int64_t first, std::int64_t last, const NarrowBlock* x, int b,
                    int n_batch, float* y, std::int64_t y_stride) {
    for (; b + kColumns <= n_batch; b += kColumns)
        for (std::int64_t g = first; g < last; ++g)
            multiply_group<Block, kColumns>(
                w.data + g * Laid<Block>::group_bytes(w.cols), w.cols, x + b * (w.cols / kCellColumns),
                static_cast<int>(std::min<std::int64_t>(kLaidRows, w.rows - g * kLaidRows)),
                y + g * kLaidRows + b * y_stride, y_stride);
    return b;
}

// Inputs are larger than codes, so a tile of groups stays in the second-level cache and each input is read
// once for all of them.
template <class Block>
void multiply_groups(const LaidMatrix& w, std::int64_t first, std::int64_t last, const NarrowBlock* x,
                     int n_batch, float* y, std::int64_t y_stride) {
    // Sums of two parts take twice the registers.
    constexpr int kMost = Laid<Block>::kParts == 2 ? std::min(Isa::kColumns, 2) : Isa::kColumns;
    constexpr std::int64_t kTileBytes = 128 << 10;
    const std::int64_t tile = std::max<std::int64_t>(1, kTileBytes / Laid<Block>::group_bytes(w.cols));
    for (; first < last; first += tile) {
        const std::int64_t end = std::min(last, first + tile);
        int b = multiply_inputs<Block, kMost>(w, first, end, x, 0, n_batch, y, y_stride);
        if constexpr (kMost > 3) b = multiply_inputs<Block, 3>(w, first, end, x, b, n_batch, y, y_stride);
        if constexpr (kMost > 2) b = multiply_inputs<Block, 2>(w, first, end, x, b, n_batch, y, y_stride);
        if constexpr (kMost > 1) multiply_inputs<Block, 1>(w, first, end, x, b, n_batch, y, y_stride);
    }
}

void multiply(const LaidMatrix& w, std::int64_t first, std::int64_t last, NarrowInputs x, int n_batch,
              float* y, std::int64_t y_stride) {
    switch (w.dtype) {
#define KH_MULTIPLY(type, Block, number, name) \
    case DType::type:                          \
        return multiply_groups<Block>(w, first, last, x.blocks, n_batch, y, y_stride);
        KH_BLOCK_TYPES(KH_MULTIPLY)
#undef KH_MULTIPLY
        case DType::f32:
        case DType::f16:
        case DType::bf16:
            break;
    }
}

// Adds the products of four columns, from column 4 k of a cell on, to sums of every eighth column.
template <class Block, int k, int i>
HWY_INLINE void add_column(typename Isa::Ints codes, typename Isa::Floats factor, typename Isa::Floats offset,
                           const float* x, typename Isa::Floats (&sums)[8]) {
    typename Isa::Floats w = Isa::template code_floats<i>(codes);
    if constexpr (Laid<Block>::kCodes.zero != 0)
        w = Isa::add(w, Isa::all(-static_cast<float>(Laid<Block>::kCodes.zero)));
    w = Isa::mul(factor, w);
    if constexpr (Block::kHasOffset) w = Isa::add(w, offset);
    typename Isa::Floats& sum = sums[(4 * k + i) % 8];
    sum = Isa::add(sum, Isa::mul(w, Isa::all(x[4 * k + i])));
}

template <class Block, int k>
HWY_INLINE void add_columns(const std::uint8_t* cell, const typename Isa::Floats (&factors)[2],
                            const typename Isa::Floats (&offsets)[2], const float* x,
                            typename Isa::Floats (&sums)[8]) {
    constexpr int kPart = k * Laid<Block>::kParts / 8;
    const typename Isa::Ints codes = step_codes<Block, k>(cell);
    add_column<Block, k, 0>(codes, factors[kPart], offsets[kPart], x, sums);
    add_column<Block, k, 1>(codes, factors[kPart], offsets[kPart], x, sums);
    add_column<Block, k, 2>(codes, factors[kPart], offsets[kPart], x, sums);
    add_column<Block, k, 3>(codes, factors[kPart], offsets[kPart], x, sums);
}

template <class Block>
void measure_group(const std::byte* group, std::int64_t cols, std::int64_t first, std::int64_t n,
                   const float* x, float* lengths) {
    using L = Laid<Block>;
    const std::uint8_t* const codes = codes_of<Block>(group, cols);
    for (int row = 0; row < kLaidRows; row += Isa::kLanes) {
        typename Isa::Floats sums[8];
        HWY_UNROLL(8)
        for (int i = 0; i < 8; ++i) sums[i] = Isa::all(0.0f);
        for (std::int64_t c = 0; c < n; c += kCellColumns) {
            const std::int64_t at = (first + c) / kCellColumns;
            const std::uint8_t* const cell = codes + at * L::kCellBytes + 4 * row;
            if (row == 0) fetch_ahead<Block, 1>(group, at);
            typename Isa::Floats factors[2], offsets[2];
            load_factors<Block>(group + at / L::kCells * L::kHeadBytes, row, at % L::kCells, factors,
                                offsets);
            add_columns<Block, 0>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 1>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 2>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 3>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 4>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 5>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 6>(cell, factors, offsets, x + c, sums);
            add_columns<Block, 7>(cell, factors, offsets, x + c, sums);
        }
        const auto plus = [&](int i, int j) { return Isa::add(sums[i], sums[j]); };
        const typename Isa::Floats total =
            Isa::add(Isa::add(plus(0, 1), plus(2, 3)), Isa::add(plus(4, 5), plus(6, 7)));
        Isa::store(Isa::magnitude(total), Isa::kLanes, lengths + row);
    }
}

void measure(const LaidMatrix& w, std::int64_t group, std::int64_t first, std::int64_t n, const float* x,
             float* lengths) {
    with_block(w.dtype, [&]<class Block>(Block) {
        measure_group<Block>(w.data + group * Laid<Block>::group_bytes(w.cols), w.cols, first, n, x, lengths);
    });
}

void narrow(const float* x, std::int64_t n, NarrowBlock* out) {
    for (std::int64_t i = 0; i < n / kCellColumns; ++i, x += kCellColumns, ++out) {
        alignas(64) std::int16_t upper[kCellColumns], lower[kCellColumns];
        const std::uint32_t bits = Isa::largest_bits(x);
        const float most = std::bit_cast<float>(bits);
        const bool is_finite = bits < 0x7f800000u;
        const float inverse = is_finite && most >= kLeastInput ? kMostNarrow / most : 0.0f;
        out->scale = !is_finite     ? std::bit_cast<float>(0x7fc00000u)
                     : inverse != 0 ? most / kMostNarrow
                                    : 0.0f;
        if (is_finite) {
            Isa::round_all(x, inverse, upper, lower);
        } else {
            std::memset(upper, 0, sizeof upper);
            std::memset(lower, 0, sizeof lower);
        }
        Isa::pack(upper, lower, *out);
        for (int p = 0; p < 2; ++p) out->upper_sums[p] = Isa::sum_of_16(upper + 16 * p);
        for (int p = 0; p < 2; ++p) out->lower_sums[p] = Isa::sum_of_16(lower + 16 * p);
        out->upper_sums[2] = out->upper_sums[0] + out->upper_sums[1];
        out->lower_sums[2] = out->lower_sums[0] + out->lower_sums[1];
        for (int p = 0; p < 3; ++p)
            out->scaled_sums[p] =
                out->scale * static_cast<float>(256 * out->upper_sums[p] + out->lower_sums[p]);
    }
}
