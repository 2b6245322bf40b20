/// Products of quantised matrices in integers. An input becomes whole numbers of 24 bits with one scale for
/// 32 neighbours; sums of their products with codes are exact; scales and offsets follow:
///     x(i) = s q(i) + error,  s = max|x| / 8323072 over a block of 32
///     q(i) = 256 u(i) + l(i),  -128 <= l(i) < 128
///     y = sum over cells of 32 columns of a sum over parts of
///         offset (s sum of q) + (factor s) (256 (sum of code u) + sum of code l)
/// in ascending order of the columns. Each operation is rounded by itself, but a cell's sum takes its first
/// product and adds the others by fused multiplications. So the bits are the same on every instruction set,
/// for every batch and number of threads. No state; any thread.
#pragma once

#include "engine/backend/common/laid_matrix.h"
#include "engine/base/aligned.h"

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace keyhole {

/// How products are computed: `plain` is C++ without vectors. The results are equal.
enum class IntegerPath { plain, avx2, avx_vnni, avx512_vnni, amx };

std::string_view integer_path_name(IntegerPath path);
/// Returns the paths that this processor, Highway's choice of instruction sets and limit_integer_paths()
/// allow, slowest first. Asks Linux once to let the process use tiles.
std::vector<IntegerPath> integer_paths();
/// Leaves out the paths after this one from now on, so that a new processor runs what an older one runs.
void limit_integer_paths(IntegerPath last);
/// Returns this path, the last of all where none was given.
IntegerPath integer_path_limit();
/// Returns the last of them. Asks the processor, which takes long in a virtual machine.
IntegerPath best_integer_path();

/// 32 neighbours of an input.
struct alignas(32) NarrowBlock {
    /// u, then l, as the path multiplies them: element [k] has columns 4 k to 4 k + 3. With products of bytes
    /// u is 256 upper[0] + upper[1], and lower[1] is not used; else [0] has the columns 4 k and 4 k + 2 in
    /// halves of 16 bits, [1] the others.
    std::int32_t upper[2][8], lower[2][8];
    float scale;
    std::int32_t upper_sums[3];  ///< of u: of the first 16 numbers, of the last 16, of all
    std::int32_t lower_sums[3];  ///< of l
    float scaled_sums[3];        ///< scale times the sums of q
};
using NarrowBlocks = std::vector<NarrowBlock, LineAllocator<NarrowBlock>>;
using OrderedBytes = std::vector<std::byte, LineAllocator<std::byte>>;

/// Inputs that are narrowed, and the same in the order of the path's products, where it has one.
struct NarrowInputs {
    const NarrowBlock* blocks = nullptr;
    const std::byte* ordered = nullptr;
};

/// Narrows n numbers, a multiple of 32, to out [n / 32], for this path. A block with a number that is not
/// finite has the scale NaN.
void narrow_input(IntegerPath path, const float* x, std::int64_t n, NarrowBlock* out);

/// Returns the bytes that n_batch inputs have when ordered for products with matrices of this type: in tiles
/// (AMX), or as three signed bytes (AVX2, codes of at most six bits). 0 where the path has no use for it.
std::int64_t ordered_bytes(IntegerPath path, DType type, std::int64_t cols, int n_batch);
/// Orders x [n_batch, cols / 32]: once, since products read them often. to: begins at a multiple of 64 bytes.
void order_inputs(IntegerPath path, DType type, const NarrowBlock* x, std::int64_t cols, int n_batch,
                  std::byte* to);

///     y[b * y_stride + r] = sum_c w[r, c] * x[b, c]
/// for the rows of groups [first, last) and b in [0, n_batch); x [n_batch or more, cols / 32], narrowed and
/// ordered for the path and the matrix's type.
void multiply_laid(IntegerPath path, const LaidMatrix& w, std::int64_t first, std::int64_t last,
                   NarrowInputs x, int n_batch, float* y, std::int64_t y_stride);

/// In floats: writes |sum over n columns from `first` on of w[r, c] x[c]| of the 16 rows of a group, in the
/// order of dot_channels() (policy/formula_maths.h). first and n: multiples of 32. Rows beyond the matrix's
/// give zero.
void measure_laid(IntegerPath path, const LaidMatrix& w, std::int64_t group, std::int64_t first,
                  std::int64_t n, const float* x, float* lengths);

}  // namespace keyhole
