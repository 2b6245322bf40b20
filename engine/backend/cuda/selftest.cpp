#include "engine/backend/cuda/selftest.h"

#include "engine/backend/cuda/choice_launch.h"
#include "engine/base/error.h"
#include "engine/base/index.h"
#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <random>

namespace keyhole::cuda {
namespace {

constexpr double kSumTolerance = 2e-6;      // sums in one order; exp, log and division differ
constexpr double kProductTolerance = 2e-5;  // cuBLAS sums in its own order

/// Returns about normally distributed numbers: each is a sum of four uniform ones, which is faster to compute
/// than the exact distribution.
std::vector<float> normal(std::int64_t n, unsigned seed, float scale = 1) {
    std::mt19937_64 generator(seed);
    const float unit = scale * std::sqrt(3.0f) / 65536;
    std::vector<float> values(to_index(n));
    for (float& v : values) {
        const std::uint64_t bits = generator();
        const std::uint64_t sum =
            (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
        v = unit * (static_cast<float>(sum) - 2 * 65535.0f);
    }
    return values;
}

template <class T>
std::vector<T> stored(const std::vector<float>& values) {
    std::vector<T> out(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) narrow(values[i], out[i]);
    return out;
}

/// The output of a kernel, as numbers to compare.
struct Output {
    std::string kernel;
    std::vector<double> values;
    double tolerance = 0;
};

/// One executor that runs a case.
class Side {
  public:
    explicit Side(std::shared_ptr<Executor> on) : executor(std::move(on)) {}

    template <class V>
    Buffer<V> up(const std::vector<V>& values) {
        Buffer<V> buffer(executor, values.size());
        executor->upload(buffer.data(), values.data(), buffer.size_bytes());
        executor->wait();
        return buffer;
    }
    Buffer<float> floats(std::int64_t n) { return up(std::vector<float>(to_index(n), -7.0f)); }

    template <class V>
    std::vector<V> down(const V* data, std::size_t n) {
        std::vector<V> out(n);
        executor->download(out.data(), data, n * sizeof(V));
        executor->wait();
        return out;
    }
    template <class V>
    void note(const std::string_view kernel, double tolerance, const V* data, std::size_t n) {
        Output output{std::string(kernel), {}, tolerance};
        for (const V value : down(data, n)) {
            if constexpr (std::is_same_v<V, Fp16> || std::is_same_v<V, Bf16>)
                output.values.push_back(widen(value));
            else
                output.values.push_back(static_cast<double>(value));
        }
        outputs.push_back(std::move(output));
        if (noted) noted(outputs.size());
    }
    template <class Kernel, class V>
    void note(const Kernel&, double tolerance, const Buffer<V>& buffer) {
        note(kernel_name<Kernel>(), tolerance, buffer.data(), buffer.size());
    }

    std::shared_ptr<Executor> executor;
    std::vector<Output> outputs;
    std::function<void(std::size_t n_outputs)> noted;  ///< called after each output, if not empty
};

using Case = std::function<void(Side&)>;

void copies(Side& side) {
    const std::vector<float> values = normal(999, 1);
    const Buffer<float> a = side.up(values), b = side.floats(999), c = side.floats(999);
    side.executor->copy(b.data(), a.data(), a.size_bytes());
    side.executor->clear(c.data() + 10, 100 * sizeof(float));
    side.note("upload, copy, download", 0, b.data(), b.size());
    side.note("clear", 0, c.data(), c.size());
    std::vector<float> rows(7 * 5, -1.0f);
    side.executor->download_rows(rows.data(), 5 * sizeof(float), a.data() + 3, 21 * sizeof(float),
                                 4 * sizeof(float), 7);
    side.executor->wait();
    side.outputs.push_back({"download of rows", {rows.begin(), rows.end()}, 0});
    const HostBuffer<float> asynchronous(side.executor, 999);
    side.executor->copy(c.data(), a.data(), a.size_bytes());
    side.executor->download_async(asynchronous.data(), c.data(), c.size_bytes());
    side.executor->wait_for_copies();
    side.outputs.push_back({"asynchronous download", {asynchronous.data(), asynchronous.data() + 999}, 0});
}

void products(Side& side) {
    for (const bool transposed : {true, false}) {
        const std::int64_t m = 37, n = 53, k = 65, n_batch = 3;
        const Buffer<float> a = side.up(normal(n_batch * m * k, 1)), b = side.up(normal(n_batch * n * k, 2)),
                            c = side.floats(n_batch * m * (n + 4));
        MatrixProduct p;
        p.a = a.data();
        p.b = b.data();
        p.c = c.data();
        p.m = m;
        p.n = n;
        p.k = k;
        p.a_stride = k;
        p.b_stride = transposed ? k : n;
        p.c_stride = n + 4;
        p.a_batch = m * k;
        p.b_batch = n * k;
        p.c_batch = m * (n + 4);
        p.n_batch = static_cast<int>(n_batch);
        p.b_transposed = transposed ? 1 : 0;
        p.alpha = 0.25f;
        side.executor->multiply(p);
        side.note(transposed ? "product, transposed" : "product", kProductTolerance, c.data(), c.size());
    }
}

void plain_layers(Side& side) {
    const int d = 328, lanes = 3;
    const Buffer<float> x = side.up(normal(lanes * d, 1)), y = side.up(normal(lanes * d, 2)),
                        z = side.up(normal(lanes * d, 4)), gain = side.up(normal(d, 3)),
                        bias = side.up(normal(d, 5)), out = side.floats(lanes * d);
    const NormRule of_rms{gain.data(), nullptr, 1e-5f, 0}, of_layer{gain.data(), bias.data(), 1e-5f, 1},
        nothing{nullptr, nullptr, 1e-5f, 1};
    const AddNorm rms{x.data(), y.data(), nullptr, of_rms, out.data(), d},
        centred{x.data(), y.data(), z.data(), of_layer, out.data(), d},
        none{x.data(), nullptr, z.data(), nothing, out.data(), d};
    for (const AddNorm& norm : {rms, centred, none}) {
        side.executor->launch(norm, {lanes}, 256);
        side.note(norm, kSumTolerance, out);
    }
    const AddBias add_bias{out.data(), bias.data(), lanes * d, d};
    side.executor->launch(add_bias, {(lanes * d + 255) / 256}, 256);
    side.note(add_bias, kSumTolerance, out);
    for (const ActivationKind kind :
         {ActivationKind::silu, ActivationKind::gelu, ActivationKind::gelu_tanh, ActivationKind::relu})
        for (const bool gated : {true, false}) {
            const Buffer<float> values = side.up(normal(lanes * d, 6, 3));
            const Activate activate{values.data(), gated ? y.data() : nullptr, lanes * d, kind};
            side.executor->launch(activate, {(lanes * d + 255) / 256}, 256);
            side.note(activate, kSumTolerance, values);
        }
}

/// Three products with one input, as q, k and v; the second has a bias. weights(i, n): the n elements of
/// matrix i.
template <class V, int kBatch, class Weights>
void three_products(Side& side, const std::array<int, 3>& rows, int cols, int n_lanes, Weights weights) {
    const Buffer<float> x = side.up(normal(n_lanes * cols, 7)),
                        y = side.floats(kBatch * (rows[0] + rows[1] + rows[2])),
                        bias = side.up(normal(rows[1], 8));
    MatrixVector<V, kBatch> kernel{};
    int offset = 0;
    for (int i = 0; i < 3; ++i) {
        const int n = rows[to_index(i)];
        kernel.product[i] = {weights(i, std::int64_t{n} * cols), i == 1 ? bias.data() : nullptr,
                             y.data() + kBatch * offset, n, n};
        offset += n;
    }
    kernel.x = x.data();
    kernel.n_products = 3;
    kernel.cols = cols;
    kernel.n_lanes = n_lanes;
    side.executor->launch(kernel, {kernel.blocks(kMaxThreads)}, kMaxThreads);
    side.note(kernel, kProductTolerance, y);  // the device rounds products and sums together
}

template <class T, int kBatch>
void matrix_vector(Side& side, int cols = 520, int n_lanes = kBatch) {
    std::vector<Buffer<T>> w;
    three_products<T, kBatch>(side, {37, 11, 5}, cols, n_lanes, [&](int i, std::int64_t n) {
        w.push_back(side.up(stored<T>(normal(n, static_cast<unsigned>(i)))));
        return Elements<T>{w.back().data()};
    });
}

/// Two products as a layer launches them: gate and up with a norm before and an activation after, and a
/// product that is added to what is there.
template <class T, int kBatch>
void fused_products(Side& side, const Elements<T>& gate, const Elements<T>& up, int cols,
                    int n_lanes = kBatch) {
    const int rows = 13;
    const Buffer<float> x = side.up(normal(n_lanes * cols, 7)), y = side.up(normal(kBatch * rows, 14)),
                        gain = side.up(normal(cols, 15)), offset = side.up(normal(cols, 16)),
                        bias = side.up(normal(rows, 17));
    MatrixVector<T, kBatch> kernel{};
    kernel.product[0] = {gate, bias.data(), y.data(), rows, rows};
    kernel.product[1] = {up, bias.data(), nullptr, rows, rows};
    kernel.x = x.data();
    kernel.n_products = 2;
    kernel.cols = cols;
    kernel.n_lanes = n_lanes;
    const bool norms = MatrixVector<T, kBatch>::kNorms;
    const NormRule of_layer{gain.data(), offset.data(), 1e-5f, 1}, of_rms{gain.data(), nullptr, 1e-5f, 0};
    kernel.use = {norms ? of_layer : NormRule{}, 0, 1, 1, ActivationKind::silu};
    side.executor->launch(kernel, {kernel.blocks(kMaxThreads)}, kMaxThreads);
    side.note(kernel, kProductTolerance, y);
    kernel.n_products = 1;
    kernel.use = {norms ? of_rms : NormRule{}, 1, 0, 0, ActivationKind::silu};
    side.executor->launch(kernel, {kernel.blocks(kMaxThreads)}, kMaxThreads);
    side.note(kernel, kProductTolerance, y);
}

template <class T>
void fused_products(Side& side) {
    const int cols = 1336;
    const Buffer<T> gate = side.up(stored<T>(normal(13 * cols, 1))),
                    up = side.up(stored<T>(normal(13 * cols, 2)));
    fused_products<T, 1>(side, {gate.data()}, {up.data()}, cols);
    fused_products<T, 2>(side, {gate.data()}, {up.data()}, cols);
    fused_products<T, 4>(side, {gate.data()}, {up.data()}, cols, 3);
    fused_products<T, 8>(side, {gate.data()}, {up.data()}, cols, 5);
}

/// A product of weights as a step computes it, in their type.
template <class T>
void typed_product(Side& side) {
    const int m = 19, n = 53, k = 72;
    const Buffer<T> x = side.up(stored<T>(normal(m * k, 11))), w = side.up(stored<T>(normal(n * k, 12)));
    const Buffer<float> y = side.floats(m * n);
    MatrixProduct p;
    p.a = x.data();
    p.b = w.data();
    p.c = y.data();
    p.m = m;
    p.n = n;
    p.k = k;
    p.a_stride = p.b_stride = k;
    p.c_stride = n;
    p.b_transposed = 1;
    p.type = kNumberType<T>;
    side.executor->multiply(p);
    side.note("product, typed", kProductTolerance, y.data(), y.size());
}

template <class T>
void weights(Side& side) {
    const int d = 72;
    const Buffer<T> table = side.up(stored<T>(normal(9 * d, 1)));
    const Buffer<std::int32_t> tokens = side.up(std::vector<std::int32_t>{8, 0, 3});
    const Buffer<float> x = side.floats(3 * d), wide = side.floats(9 * d);
    const Embed<T> embed{{table.data()}, tokens.data(), x.data(), d};
    side.executor->launch(embed, {3}, 64);
    side.note(embed, 0, x);
    const AddPositions<T> learned{{table.data()}, tokens.data(), x.data(), d, 0},
        prompt{{table.data()}, nullptr, x.data(), d, 2};
    for (const AddPositions<T>& positions : {learned, prompt}) {
        side.executor->launch(positions, {3}, 64);
        side.note(positions, 0, x);
    }
    const Widen<T> widen{table.data(), wide.data(), 9 * d};
    side.executor->launch(widen, {3}, 256);
    side.note(widen, 0, wide);
    if constexpr (!std::is_same_v<T, float>) {
        const Buffer<float> values = side.up(normal(777, 9));
        const Buffer<T> narrow = side.up(stored<T>(std::vector<float>(777, 0)));
        const Narrow<T> narrowing{values.data(), narrow.data(), 777};
        side.executor->launch(narrowing, {4}, 256);
        side.note(narrowing, 0, narrow);
    }
    const Buffer<T> drawn = side.up(stored<T>(std::vector<float>(1003, 0)));
    const MakeWeight<T> make{drawn.data(), 1003, {9, 3, 0.5f}};
    side.executor->launch(make, {1}, 256);
    side.note(make, 0, drawn);
    typed_product<T>(side);
    matrix_vector<T, 1>(side);
    matrix_vector<T, 2>(side);
    matrix_vector<T, 4>(side);
    matrix_vector<T, 8>(side);
    matrix_vector<T, 1>(side, 11008);  // several reads under way
    matrix_vector<T, 4>(side, 4104, 3);
    matrix_vector<T, 8>(side, 1032, 5);
    fused_products<T>(side);
}

/// Blocks of random bytes whose factors are small numbers.
std::vector<std::uint8_t> random_blocks(DType type, std::int64_t n, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<std::uint8_t> bytes(stored_bytes(type, n));
    for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(generator());
    if (!is_quantised(type)) return bytes;
    const auto set_factor = [&](std::uint16_t& factor) {
        Fp16 half;
        narrow(0.001f * static_cast<float>(1 + generator() % 16), half);
        factor = half.bits;
    };
    with_block(type, [&]<class Block>(Block block) {
        for (std::size_t at = 0; at < bytes.size(); at += sizeof(block)) {
            std::memcpy(&block, bytes.data() + at, sizeof(block));
            if constexpr (is_read_on_device(Block::kType)) set_factor(block.d);
            if constexpr (Block::kHasOffset) set_factor(block.m);
            std::memcpy(bytes.data() + at, &block, sizeof(block));
        }
    });
    return bytes;
}

/// Three matrices of two types, as a GGUF file may have them for q, k and v.
template <int kBatch>
void stored_vector(Side& side, DType type, DType other, int cols, int n_lanes = kBatch) {
    std::vector<Buffer<std::uint8_t>> w;
    three_products<Stored, kBatch>(side, {21, 6, 3}, cols, n_lanes, [&](int i, std::int64_t n) {
        const DType of = i == 1 ? other : type;
        w.push_back(side.up(random_blocks(of, n, static_cast<unsigned>(i))));
        return Elements<Stored>{w.back().data(), of};
    });
}

/// Matrices of every quantised type: rows of 3, 5 and 17 blocks.
void stored_weights(Side& side) {
#define KH_TYPE(type, Block, number, name) DType::type,
    const DType types[] = {KH_BLOCK_TYPES(KH_TYPE)};
#undef KH_TYPE
    for (const DType type : types) {
        if (!is_read_on_device(type)) continue;
        const int d = static_cast<int>(3 * block_elements(type));
        const Buffer<std::uint8_t> table = side.up(random_blocks(type, 9 * d, 1));
        const Buffer<std::int32_t> tokens = side.up(std::vector<std::int32_t>{8, 0, 3});
        const Buffer<float> x = side.floats(3 * d), wide = side.floats(9 * d);
        const Embed<Stored> embed{{table.data(), type}, tokens.data(), x.data(), d};
        side.executor->launch(embed, {3}, 64);
        side.note(embed, 0, x);
        const AddPositions<Stored> learned{{table.data(), type}, tokens.data(), x.data(), d, 0};
        side.executor->launch(learned, {3}, 64);
        side.note(learned, 0, x);
        const WidenStored widen{{table.data(), type}, wide.data(), 9 * d / 8};
        side.executor->launch(widen, {(9 * d / 8 + 255) / 256}, 256);
        side.note(widen, 0, wide);
    }
    for (const DType type : types)
        stored_vector<1>(side, type, DType::f32, static_cast<int>(5 * block_elements(type)));
    for (const DType type : types)
        stored_vector<2>(side, type, DType::q8_0, static_cast<int>(5 * block_elements(type)));
    stored_vector<4>(side, DType::q4_k, DType::q6_k, 17 * 256, 3);
    stored_vector<8>(side, DType::q5_0, DType::q4_1, 37 * 32, 5);
    stored_vector<8>(side, DType::q4_k, DType::q5_k, 5 * 256);
    stored_vector<8>(side, DType::q4_k, DType::q5_k, 5 * 256, 7);
    const int cols = 5 * 256;
    const Buffer<std::uint8_t> gate = side.up(random_blocks(DType::q4_k, 13 * cols, 1)),
                               up = side.up(random_blocks(DType::q6_k, 13 * cols, 2));
    const Elements<Stored> of_gate{gate.data(), DType::q4_k}, of_up{up.data(), DType::q6_k};
    fused_products<Stored, 1>(side, of_gate, of_up, cols);
    fused_products<Stored, 2>(side, of_gate, of_up, cols);
    fused_products<Stored, 4>(side, of_gate, of_up, cols);
    fused_products<Stored, 8>(side, of_gate, of_up, cols);
    fused_products<Stored, 1>(side, of_gate, of_gate, cols);
    fused_products<Stored, 8>(side, of_gate, of_gate, cols);
}

/// A laid matrix of random bytes whose factors are small numbers.
std::vector<std::byte> random_laid(DType type, int rows, int cols, unsigned seed) {
    std::mt19937 generator(seed);
    std::vector<std::byte> bytes;
    with_read_block(type, [&]<class Of>() {
        using L = Laid<Of>;
        const int n_groups = (rows + kLaidRows - 1) / kLaidRows;
        bytes.resize(to_index(n_groups * L::group_bytes(cols)));
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(generator());
        for (int group = 0; group < n_groups; ++group)
            for (int block = 0; block < cols / Of::kElements; ++block)
                for (int i = 0; i < kLaidRows * (Of::kHasOffset ? 2 : 1); ++i) {
                    Fp16 half;
                    narrow(0.001f * static_cast<float>(1 + generator() % 16), half);
                    std::memcpy(bytes.data() + group * L::group_bytes(cols) + block * L::kHeadBytes + 2 * i,
                                &half, sizeof(half));
                }
    });
    return bytes;
}

/// Gives a kernel of laid products its inputs. Those of LaidTiles are narrowed on the device before.
template <int kBatch>
Buffer<NarrowTile> set_inputs(Side&, LaidProducts<kBatch>& kernel, const Buffer<float>& x) {
    kernel.x = x.data();
    return {};
}
Buffer<NarrowTile> set_inputs(Side& side, LaidTiles& kernel, const Buffer<float>& x) {
    const int n = kernel.cols / kCellColumns;
    Buffer<NarrowTile> tiles = side.up(std::vector<NarrowTile>(to_index(n)));
    const NarrowTiles narrows{x.data(), tiles.data(), kernel.n_lanes, kernel.cols};
    side.executor->launch(narrows, {narrows.blocks(kMaxThreads)}, kMaxThreads);
    side.note(kernel_name<NarrowTiles>(), 0, reinterpret_cast<const std::int32_t*>(tiles.data()),
              to_index(n) * sizeof(NarrowTile) / sizeof(std::int32_t));
    kernel.narrowed = tiles.data();
    return tiles;
}

/// Three products in integers with one input, whose bits are those of the host.
template <class Kernel>
void laid_vector(Side& side, DType type, DType other, int cols, int n_lanes = Kernel::kLanes) {
    const std::array<int, 3> rows = {37, 16, 3};
    const Buffer<float> x = side.up(normal(n_lanes * cols, 7)),
                        y = side.floats(Kernel::kLanes * (rows[0] + rows[1] + rows[2])),
                        bias = side.up(normal(rows[1], 8));
    Kernel kernel{};
    std::vector<Buffer<std::byte>> w;
    int offset = 0;
    for (int i = 0; i < 3; ++i) {
        const DType of = i == 1 ? other : type;
        const int n = rows[to_index(i)];
        w.push_back(side.up(random_laid(of, n, cols, static_cast<unsigned>(i))));
        kernel.product[i] = {{w.back().data(), of, cols},
                             i == 1 ? bias.data() : nullptr,
                             y.data() + Kernel::kLanes * offset,
                             n,
                             n};
        offset += n;
    }
    kernel.n_products = 3;
    kernel.cols = cols;
    kernel.n_lanes = n_lanes;
    kernel.pairs_of_block = 2;
    const Buffer<NarrowTile> tiles = set_inputs(side, kernel, x);
    side.executor->launch(kernel, {kernel.blocks()}, kMaxThreads);
    side.note(kernel, 0, y);
}

/// Gate and up with a norm before, where the kernel has it, and an activation after, and a product that is
/// added to what is there.
template <class Kernel>
void fused_laid(Side& side, int cols, int n_lanes = Kernel::kLanes) {
    const int rows = 35;
    const Buffer<float> x = side.up(normal(n_lanes * cols, 7)),
                        y = side.up(normal(Kernel::kLanes * rows, 14)), gain = side.up(normal(cols, 15)),
                        offset = side.up(normal(cols, 16)), bias = side.up(normal(rows, 17));
    const Buffer<std::byte> gate = side.up(random_laid(DType::q4_k, rows, cols, 1)),
                            up = side.up(random_laid(DType::q6_k, rows, cols, 2));
    Kernel kernel{};
    kernel.product[0] = {{gate.data(), DType::q4_k, cols}, bias.data(), y.data(), rows, rows};
    kernel.product[1] = {{up.data(), DType::q6_k, cols}, bias.data(), nullptr, rows, rows};
    kernel.n_products = 2;
    kernel.cols = cols;
    kernel.n_lanes = n_lanes;
    const Buffer<NarrowTile> tiles = set_inputs(side, kernel, x);
    const NormRule of_layer{gain.data(), offset.data(), 1e-5f, 1}, of_rms{gain.data(), nullptr, 1e-5f, 0};
    kernel.use = {Kernel::kNorms ? of_layer : NormRule{}, 0, 1, 1, ActivationKind::silu};
    side.executor->launch(kernel, {kernel.blocks()}, kMaxThreads);
    side.note(kernel, kProductTolerance, y);
    kernel.n_products = 1;
    kernel.use = {Kernel::kNorms ? of_rms : NormRule{}, 1, 0, 0, ActivationKind::silu};
    side.executor->launch(kernel, {kernel.blocks()}, kMaxThreads);
    side.note(kernel, kProductTolerance, y);
}

/// Laid matrices of every type that kernels read: a tile of a row and less, and two tiles.
void laid_weights(Side& side) {
    for (const DType type : {DType::q8_0, DType::q4_0, DType::q4_1, DType::q5_0, DType::q5_1, DType::q4_k,
                             DType::q5_k, DType::q6_k}) {
        const int block = static_cast<int>(block_elements(type));
        laid_vector<LaidProducts<1>>(side, type, DType::q8_0, 5 * block);
        laid_vector<LaidTiles>(side, type, DType::q8_0, 3 * block, 7);
        laid_vector<LaidProducts<2>>(side, type, DType::q4_0, 2048 + block);
        const int rows = 19, cols = 3 * block;
        const Buffer<std::byte> table = side.up(random_laid(type, rows, cols, 3));
        const Buffer<float> wide = side.floats(rows * cols);
        const WidenStored widen{{table.data(), type, cols}, wide.data(), rows * cols / 8};
        side.executor->launch(widen, {(rows * cols / 8 + 255) / 256}, 256);
        side.note(widen, 0, wide);
    }
    laid_vector<LaidProducts<1>>(side, DType::q4_k, DType::q6_k, 4096 + 768);
    laid_vector<LaidTiles>(side, DType::q5_0, DType::q8_0, 37 * 32, 4);
    laid_vector<LaidTiles>(side, DType::q4_k, DType::q5_k, 5 * 256);
    fused_laid<LaidProducts<1>>(side, 5 * 256);
    fused_laid<LaidProducts<1>>(side, 17 * 256);
    fused_laid<LaidProducts<2>>(side, 9 * 256);
    fused_laid<LaidTiles>(side, 5 * 256, 3);
    fused_laid<LaidTiles>(side, 17 * 256);
}

/// A layer of two KV heads with two readers each, one lane, filled with noise.
template <class T>
struct LaneCase {
    static constexpr int kHeads = 4, kKv = 2, kWindow = 6;
    int head_dim, n, capacity, row;
    Buffer<T> keys, values;
    Buffer<std::int32_t> positions, order, readers, offset, kv_of_head, unit_of_head, steps, places;
    Buffer<std::uint8_t> pinned;
    Buffer<float> scores, noise, kept, reach, rotations;
    Buffer<DeviceHead<T>> heads;
    Buffer<HeadScores> head_scores;
    Buffer<DeviceUnit> units;
    Buffer<RowRule> rules;
    Buffer<LaneView<T>> lane;
    LaneView<T> view{};  ///< what `lane` holds

    LaneCase(Side& side, int size, int n_stored, RowRule rule, bool turned, bool one_unit)
        : head_dim(size), n(n_stored), capacity(n + 5), row(2 * n + 3) {
        const std::int64_t slots = std::int64_t{kKv} * capacity;
        keys = side.up(stored<T>(normal(slots * head_dim, 1)));
        values = side.up(stored<T>(normal(slots * head_dim, 2)));
        std::vector<std::int32_t> p;
        for (int g = 0; g < kKv; ++g) {  // shuffled, with gaps
            std::vector<std::int32_t> of_head(to_index(capacity));
            std::iota(of_head.begin(), of_head.end(), 0);
            std::shuffle(of_head.begin(), of_head.begin() + n,
                         std::mt19937(one_unit ? 1u : static_cast<unsigned>(g)));
            for (std::int32_t& slot : of_head) slot *= 2;
            p.insert(p.end(), of_head.begin(), of_head.end());
        }
        positions = side.up(p);
        std::vector<std::uint8_t> pins(to_index(slots), 0);
        for (std::size_t i = 0; i < pins.size(); i += 97) pins[i] = 1;
        pinned = side.up(pins);
        scores = side.up(normal(std::int64_t{kHeads} * kScores * capacity, 3));
        noise = side.up(normal(std::int64_t{kHeads} * capacity, 4));
        std::vector<float> of_rows = normal(std::int64_t{kWindow} * kHeads * capacity, 5);
        for (float& share : of_rows) share = std::abs(share);
        kept = side.up(of_rows);
        std::vector<float> far = normal(slots, 6);
        for (std::size_t i = 0; i < far.size(); ++i) far[i] = i % 3 == 0 ? kReachDue : std::abs(far[i]);
        reach = side.up(far);
        std::vector<float> angles;
        for (int position = 0; position <= row; ++position)
            for (const bool is_sine : {false, true})
                for (int i = 0; i < head_dim / 2; ++i) {
                    const double angle = position * std::pow(10000.0, -2.0 * i / head_dim);
                    angles.push_back(static_cast<float>(is_sine ? std::sin(angle) : std::cos(angle)));
                }
        rotations = side.up(angles);
        readers = side.up(std::vector<std::int32_t>{0, 1, 2, 3});
        offset = side.up(std::vector<std::int32_t>{0, 2, 4});
        kv_of_head = side.up(std::vector<std::int32_t>{0, 0, 1, 1});
        std::vector<DeviceHead<T>> h;
        for (std::int64_t g = 0; g < kKv; ++g)
            h.push_back({keys.data() + g * capacity * head_dim, values.data() + g * capacity * head_dim,
                         positions.data() + g * capacity, pinned.data() + g * capacity, n, capacity,
                         reach.data() + g * capacity});
        heads = side.up(h);
        std::vector<HeadScores> s(kHeads);
        for (std::int64_t i = 0; i < kHeads; ++i) {
            for (std::int64_t a = 0; a < kScores; ++a)
                s[to_index(i)].score[a] = a == 1 ? nullptr : scores.data() + (i * kScores + a) * capacity;
            const bool draws = rule.noise_kind != 0 && rule.noise_draw == static_cast<int>(NoiseDraw::token);
            s[to_index(i)].noise = draws ? noise.data() + i * capacity : nullptr;
            s[to_index(i)].kept = kept.data() + i * capacity;
            s[to_index(i)].kept_stride = std::int64_t{kHeads} * capacity;
            s[to_index(i)].variant = 0;
            s[to_index(i)].window = kWindow;
        }
        head_scores = side.up(s);
        units = side.up(one_unit ? std::vector<DeviceUnit>{{0, 2, 0, 0}}
                                 : std::vector<DeviceUnit>{{0, 1, 0, 0}, {1, 2, 0, 0}});
        unit_of_head = side.up(std::vector<std::int32_t>{0, one_unit ? 0 : 1});
        rules = side.up(std::vector<RowRule>{rule});
        std::vector<std::int32_t> in_order(to_index(slots), 0);
        for (int g = 0; g < kKv; ++g)  // position 2 i is in the slot that it was shuffled to
            for (int slot = 0; slot < n; ++slot)
                in_order[to_index(g * capacity + p[to_index(g * capacity + slot)] / 2)] = slot;
        order = side.up(in_order);
        std::vector<std::int32_t> back(to_index(slots));
        for (std::size_t i = 0; i < back.size(); ++i) back[i] = static_cast<std::int32_t>(i % 7);
        steps = side.up(back);
        places = side.up(std::vector<std::int32_t>{row / 2, row / 3});
        view.heads = heads.data();
        view.scores = head_scores.data();
        view.units = units.data();
        view.unit_of_head = unit_of_head.data();
        view.rules = rules.data();
        view.order = order.data();
        view.list_stride = capacity;
        view.n_units = one_unit ? 1 : 2;
        view.row = row;
        view.n_kept_rows = kWindow - 1;
        if (turned) {
            view.steps = steps.data();
            view.places = places.data();
            view.steps_stride = capacity;
        }
        lane = side.up(std::vector<LaneView<T>>{view});
    }
    ReaderTable table() const { return {readers.data(), offset.data()}; }
    /// Two spans, of few rows and of many; the prompt's rows are the newest kWindow of each.
    KeptSpans spans() const {
        KeptSpans two{};
        std::fill(two.begin, two.begin + KeptSpans::kMost, 0x7fffffff);
        two.begin[0] = 0;
        two.begin[1] = 20;
        two.last[0] = two.at[0] = 1;
        two.last[1] = n - 1;
        two.at[1] = kWindow + 1;
        return two;
    }
};

RowRule plain_rule() {
    RowRule rule{};
    rule.seed = 5;
    rule.alpha = 0.5f;
    rule.gain = rule.tau = rule.weight = 1;
    rule.hidden_position = rule.dropped_position = -1;
    rule.stored = ResolvedPolicy::kUnlimited;
    return rule;
}

/// A value that differs in its last bit may be stored one step away.
template <class T>
inline constexpr double rounding = std::is_same_v<T, float>  ? kSumTolerance
                                   : std::is_same_v<T, Fp16> ? 1e-3
                                                             : 8e-3;

/// Runs the kernels of a row, one after the other, and notes the output of each.
template <class T>
void attention(Side& side, int head_dim, int n, RowRule rule, bool turned, bool model = false) {
    const LaneCase<T> c(side, head_dim, n, rule, turned, false);
    const int heads = LaneCase<T>::kHeads, kv = LaneCase<T>::kKv, splits = (c.capacity + kSplit - 1) / kSplit;
    const std::int64_t of_lane = std::int64_t{heads} * c.capacity;
    const BeginRow<T> begin{c.lane.data(), c.table(), heads};
    side.executor->launch(begin, {kv, 1}, 32);
    side.note(begin, kSumTolerance, c.noise);
    side.note(begin, 0, c.positions);
    side.note(begin, 0, c.reach);
    const Buffer<float> q = side.up(normal(heads * head_dim, 21, 2)), k = side.up(normal(kv * head_dim, 22)),
                        v = side.up(normal(kv * head_dim, 23));
    // With `model`, heads use every feature of any family. No model has both ALiBi and rotation, but the
    // kernel reads both.
    const Buffer<float> gains = side.up(normal(head_dim, 24)),
                        slopes = side.up(std::vector<float>{0.5f, 0.25f, 0.1f, 0});
    HeadRule heads_are{};
    heads_are.magnitude = 1;
    heads_are.dims = heads_are.head_dim = head_dim;
    if (model) heads_are = {gains.data(), gains.data(), 1.5f, 1e-5f, 1.25f, head_dim / 2, 1, head_dim};
    const Buffer<float> raw_keys = side.floats(kv * head_dim);
    const Buffer<float> logits = side.floats(of_lane), tempered = side.floats(of_lane),
                        noise = side.floats(of_lane),
                        partial = side.floats(std::int64_t{heads} * splits * head_dim),
                        p = side.floats(of_lane), out = side.floats(heads * head_dim);
    const Buffer<SplitSum> sums = side.up(std::vector<SplitSum>(to_index(heads * splits))),
                           totals = side.up(std::vector<SplitSum>(to_index(heads)));
    const Buffer<std::uint32_t> n_done = side.up(std::vector<std::uint32_t>(to_index(heads)));
    AttendSplit<T> attend{};
    attend.q = q.data();
    attend.k = k.data();
    attend.v = v.data();
    attend.lanes = c.lane.data();
    attend.kv_of_head = c.kv_of_head.data();
    attend.logits = {logits.data(), of_lane};
    attend.tempered = {tempered.data(), of_lane};
    attend.noise = {noise.data(), of_lane};
    attend.sums = sums.data();
    attend.partial_values = partial.data();
    attend.n_done = n_done.data();
    attend.out = out.data();
    attend.totals = {totals.data(), heads};
    attend.n_heads = heads;
    attend.head_dim = head_dim;
    attend.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    attend.row_stride = c.capacity;
    attend.max_splits = splits;
    attend.rotations = c.rotations.data();
    attend.finish = heads_are;
    if (model) attend.slopes = slopes.data();
    if (model) attend.window = n;
    if (model) attend.raw_keys = raw_keys.data();
    attend.n_kv = kv;
    side.executor->launch(attend, {splits, heads, 1}, kSplit);
    side.note(attend, model ? rounding<T> : 0, c.keys);
    side.note(attend, 0, c.values);
    if (model) side.note(attend, kSumTolerance, raw_keys);
    side.note(attend, 5e-6, out);
    // A layer that borrows: it reads its own token's key before rotation, and counts blocks anew.
    attend.k = attend.v = nullptr;
    side.executor->clear(out.data(), out.size_bytes());
    side.executor->launch(attend, {splits, heads, 1}, kSplit);
    side.note(attend, 5e-6, out);
    side.note(attend, 0, n_done);
    side.note(attend, kSumTolerance, logits);
    side.note(attend, kSumTolerance, tempered);
    side.note(attend, kSumTolerance, noise);
    side.note(kernel_name<AttendSplit<T>>(), kSumTolerance, reinterpret_cast<const float*>(sums.data()),
              sums.size() * 4);
    side.note(kernel_name<AttendSplit<T>>(), 5e-6, reinterpret_cast<const float*>(totals.data()),
              totals.size() * 4);
    const FoldRow<T> fold{c.lane.data(),
                          c.kv_of_head.data(),
                          {p.data(), of_lane},
                          attend.logits,
                          attend.tempered,
                          attend.totals,
                          0,
                          c.capacity};
    side.executor->launch(fold, {splits, heads, 1}, kSplit);
    side.note(fold, 5e-6, p);
    side.note(fold, 5e-6, c.kept);
    // A score rounded to bf16 may round either way.
    side.note(fold, rule.score_dtype == static_cast<int>(ScoreType::fp32) ? 5e-6 : 8e-3, c.scores);
}

template <class T>
void attention_cases(Side& side) {
    attention<T>(side, 64, 130, plain_rule(), true, true);
    attention<T>(side, 64, 1, plain_rule(), false);
    attention<T>(side, 80, 255, plain_rule(), false);
    RowRule noisy = plain_rule();
    noisy.tempers = 1;
    noisy.tau = 1.75f;
    noisy.gain = 0.5f;
    noisy.weight = 0.25f;
    noisy.noise_kind = static_cast<int>(NoiseKind::gumbel);
    noisy.noise_draw = static_cast<int>(NoiseDraw::token);
    noisy.hidden_position = 6;
    noisy.as_rkv_code = 1;
    attention<T>(side, 128, 600, noisy, false);
    noisy.noise_kind = static_cast<int>(NoiseKind::gaussian);
    noisy.noise_draw = static_cast<int>(NoiseDraw::row);
    noisy.dilation = 2;
    noisy.as_rkv_code = 0;
    noisy.span = 50;
    noisy.score_dtype = static_cast<int>(ScoreType::bf16);
    attention<T>(side, 16, 300, noisy, true);
}

template <class T>
void selection(Side& side, int stored_after, int dropped, bool one_unit, int unit = 1) {
    const int n = 300;
    RowRule rule = plain_rule();
    rule.stored = stored_after;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = rule.needs_scores = 1;
    rule.dropped_position = dropped;
    rule.unit = unit;
    const LaneCase<T> c(side, 64, n, rule, false, one_unit);
    const int kv = LaneCase<T>::kKv, most = 256, max_units = 2;
    const Buffer<float> pooled = side.floats(max_units * c.capacity), threshold = side.floats(max_units);
    const Buffer<std::uint8_t> leaves =
        side.up(std::vector<std::uint8_t>(to_index(max_units * c.capacity), 9));
    const Buffer<Leaving> leaving = side.up(std::vector<Leaving>(to_index(max_units), Leaving{0, 0}));
    const Buffer<std::int32_t> victims = side.up(std::vector<std::int32_t>(to_index(kv * most), -1)),
                               n_victims = side.up(std::vector<std::int32_t>(to_index(kv), -1));
    const Buffer<BlockRank> blocks =
        side.up(std::vector<BlockRank>(to_index(max_units * c.capacity), {-7, -7, -7, 0}));
    SelectVictims<T> select{c.lane.data(),  c.table(),        pooled.data(), leaves.data(),
                            leaving.data(), threshold.data(), max_units,     c.capacity};
    if (unit > 1) select.blocks = blocks.data();
    side.executor->launch(select, {max_units, 1}, 256);
    side.note(select, 0, pooled);
    side.note(select, 0, threshold);
    side.note(kernel_name<SelectVictims<T>>(), 0, reinterpret_cast<const std::int32_t*>(leaving.data()), 4);
    side.note(select, 0, leaves);
    const CompactHead<T> compact{c.lane.data(),
                                 c.table(),
                                 leaves.data(),
                                 leaving.data(),
                                 victims.data(),
                                 n_victims.data(),
                                 max_units,
                                 c.capacity,
                                 kv,
                                 most,
                                 64};
    side.executor->launch(compact, {kv, 1}, 64);
    side.note(compact, 0, victims);
    side.note(compact, 0, n_victims);
    side.note(compact, 0, c.positions);
    side.note(compact, 0, c.keys);
    side.note(compact, 0, c.values);
    side.note(compact, 0, c.scores);
    side.note(compact, 0, c.kept);
}

constexpr int kChoiceLists = 4;  // of the formulas below

/// Returns keydiff * knorm + smooth(s, avg, 5) - u + win * redundancy + caote + lag + wvnorm + expected +
/// tri; without smoothing, s as it is.
FormulaTable chosen_formula(bool smooths) {
    using Code = FormulaCode;
    FormulaTable table;
    const Code smoothing = smooths ? Code::smooth_average : Code::absolute;
    const FormulaOp ops[] = {
        {Code::quantity, Quantity::keydiff, 0, 0, 0},  {Code::quantity, Quantity::knorm, 1, 0, 0},
        {Code::multiply, Quantity::row, 0, 0, 0},      {Code::quantity, Quantity::s, 1, 0, 0},
        {smoothing, Quantity::row, 1, 5, 0},           {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::u, 1, 0, 0},        {Code::subtract, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::win, 1, 0, 0},      {Code::quantity, Quantity::redundancy, 2, 0, 0},
        {Code::multiply, Quantity::row, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::caote, 1, 0, 0},    {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::lag, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::wvnorm, 1, 0, 0},   {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::expected, 1, 0, 0}, {Code::add, Quantity::row, 0, 0, 0},
        {Code::quantity, Quantity::tri, 1, 0, 0},      {Code::add, Quantity::row, 0, 0, 0}};
    constexpr int kOps = static_cast<int>(std::size(ops));
    const FormulaStep of_smoothing[] = {
        {0, 4, 0, 0}, {4, 5, 0, 0}, {4, 5, 1, 0}, {4, 5, 2, 0}, {5, kOps, 0, 0}};
    table.n_lists = kChoiceLists;
    for (const FormulaOp& op : ops) table.ops[table.n_ops++] = op;
    for (const FormulaStep& step : of_smoothing)
        if (smooths) table.steps[table.n_steps++] = step;
    if (!smooths) table.steps[table.n_steps++] = {0, kOps, 0, 0};
    for (const FormulaOp& op : ops)
        if (op.code == Code::quantity) table.uses |= std::uint64_t{1} << static_cast<int>(op.quantity);
    return table;
}

/// Returns s / 2 + p + ptau / position.
FormulaTable scoring_formula() {
    using Code = FormulaCode;
    FormulaTable table;
    const FormulaOp ops[] = {
        {Code::quantity, Quantity::s, 0, 0, 0},   {Code::constant, Quantity::row, 1, 0, 0.5f},
        {Code::multiply, Quantity::row, 0, 0, 0}, {Code::quantity, Quantity::p, 1, 0, 0},
        {Code::add, Quantity::row, 0, 0, 0},      {Code::quantity, Quantity::ptau, 1, 0, 0},
        {Code::quantity, Quantity::age, 2, 0, 0}, {Code::divide, Quantity::row, 1, 0, 0},
        {Code::add, Quantity::row, 0, 0, 0}};
    for (const FormulaOp& op : ops) table.ops[table.n_ops++] = op;
    table.n_lists = 4;
    return table;
}

/// Returns position < 20.
FormulaTable protecting_formula() {
    FormulaTable table;
    table.n_lists = kChoiceLists;
    table.n_ops = 3;
    table.ops[0] = {FormulaCode::quantity, Quantity::position, 0, 0, 0};
    table.ops[1] = {FormulaCode::constant, Quantity::row, 1, 0, 20};
    table.ops[2] = {FormulaCode::less, Quantity::row, 0, 0, 0};
    table.n_steps = 1;
    table.steps[0] = {0, 3, 0, 0};
    table.uses = std::uint64_t{1} << static_cast<int>(Quantity::position);
    return table;
}

/// Folds scores by a formula, from logits and sums that are as good as any.
template <class T>
void formula_fold(Side& side, const LaneCase<T>& c, const Buffer<LaneView<T>>& lane) {
    const int heads = LaneCase<T>::kHeads, splits = (c.capacity + kSplit - 1) / kSplit;
    const std::int64_t of_lane = std::int64_t{heads} * c.capacity;
    const Buffer<float> logits = side.up(normal(of_lane, 31)), tempered = side.up(normal(of_lane, 32));
    const Buffer<SplitSum> totals = side.up(std::vector<SplitSum>(to_index(heads), {3, 90, 3, 80}));
    const FoldRow<T> fold{lane.data(),
                          c.kv_of_head.data(),
                          {nullptr, 0},
                          {logits.data(), of_lane},
                          {tempered.data(), of_lane},
                          {totals.data(), heads},
                          0,
                          c.capacity};
    const FoldByFormula<T> by_formula{fold, heads, heads / LaneCase<T>::kKv, c.head_dim};
    side.executor->launch(by_formula, {splits, heads, 1}, kSplit);
    side.note(by_formula, 5e-6, c.scores);
}

/// Memory of two KV heads that share their budgets.
struct ShareCase {
    Buffer<ShareRule> rules;
    Buffer<ShareToken> tokens;
    Buffer<std::int32_t> counts;
    Buffer<double> parts;
    ShareMemory memory;

    ShareCase(Side& side, int capacity, double floor, bool rounds)
        : rules(side.up(std::vector<ShareRule>(2, {floor, 0, 2, 1, rounds ? 1 : 0}))),
          tokens(side.up(std::vector<ShareToken>(to_index(4 * capacity), {-7, -7, -7, -7}))),
          counts(side.up(std::vector<std::int32_t>(10, -7))),
          parts(side.up(std::vector<double>(4, -7))) {
        const auto of_kind = [&](int kind) { return counts.data() + 2 * kind; };
        memory = {tokens.data(),   tokens.data() + std::int64_t{2} * capacity,
                  of_kind(0),      of_kind(1),
                  of_kind(2),      of_kind(3),
                  of_kind(4),      parts.data(),
                  parts.data() + 2};
    }
    /// Notes what the kernels wrote.
    template <class T>
    void note(Side& side) const {
        side.note(kernel_name<SortShares<T>>(), 0, reinterpret_cast<const std::int32_t*>(tokens.data()),
                  4 * tokens.size());
        side.note(kernel_name<SortShares<T>>(), 0, memory.n_free, 2);
        side.note(kernel_name<ShareBudgets>(), 0, parts.data(), 4);
        for (const auto* of_heads : {memory.kept, memory.missing})
            side.note(kernel_name<ShareBudgets>(), 0, of_heads, 2);
        for (const auto* of_heads : {memory.best, memory.leave})
            side.note(kernel_name<CountBest>(), 0, of_heads, 2);
    }
};

/// One of two KV heads stores n_second tokens, fewer than its part: the other one gets the rest.
template <class T>
void sharing(Side& side, int n_second, double floor, bool rounds) {
    RowRule rule = plain_rule();
    rule.stored = 150;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = 1;
    const LaneCase<T> c(side, 64, 300, rule, false, false);
    std::vector<DeviceHead<T>> stored = side.down(c.heads.data(), 2);
    stored[1].count = n_second;
    const Buffer<DeviceHead<T>> heads = side.up(stored);
    const ShareCase shares(side, c.capacity, floor, rounds);
    LaneView<T> view = c.view;
    view.heads = heads.data();
    view.shares = shares.rules.data();
    view.n_shared = shares.memory.leave;
    const Buffer<LaneView<T>> lane = side.up(std::vector<LaneView<T>>{view});
    ChoiceShape shape;
    shape.max_units = 2;
    shape.stride = c.capacity;
    launch_shares(lane.data(), c.table(), shape, {}, shares.memory,
                  [&](const auto& kernel, const Grid& grid) { side.executor->launch(kernel, grid, 256); });
    shares.note<T>(side);
}

/// A calibration's statistics of random queries. Not all channels turn.
struct QueryCase {
    RotatedPairs pairs;
    Buffer<double> turns, scales, lacks;
    Buffer<float> mean, covariance;
    Buffer<LaneQueries> queries;

    QueryCase(Side& side, int n_heads, int head_dim, bool interleaved)
        : pairs{head_dim / 2 - 4, interleaved ? 1 : 0},
          turns(doubles(side, 4 * pairs.n, 61)),
          scales(side.up(std::vector<double>(to_index(n_heads), 1 / std::sqrt(double(head_dim))))),
          lacks(doubles(side, n_heads * pairs.n, 62)),
          mean(side.up(normal(n_heads * head_dim, 63))),
          covariance(side.up(normal(n_heads * head_dim * head_dim, 64))),
          queries(side.up(std::vector<LaneQueries>{{turns.data(), turns.data() + 2 * pairs.n, scales.data(),
                                                    mean.data(), covariance.data(), lacks.data(), pairs}})) {}

    static Buffer<double> doubles(Side& side, int n, unsigned seed) {
        const std::vector<float> from = normal(n, seed);
        return side.up(std::vector<double>(from.begin(), from.end()));
    }
};

template <class T>
void choice(Side& side, bool one_unit, bool as_rkv_code = false) {
    const int n = 300, head_dim = 64, kv = LaneCase<T>::kKv, max_units = 2;
    RowRule rule = plain_rule();
    rule.stored = 250;
    rule.due_at = 251;
    rule.newest = 20;
    rule.sinks = 5;
    rule.evicts = rule.needs_scores = 1;
    rule.window = 24;
    rule.as_rkv_code = as_rkv_code ? 1 : 0;
    const LaneCase<T> c(side, head_dim, n, rule, false, one_unit);
    const Buffer<FormulaTable> formulas = side.up(std::vector<FormulaTable>{
        chosen_formula(true), protecting_formula(), chosen_formula(false), scoring_formula()});
    LaneView<T> view = c.view;
    view.choose = formulas.data();
    view.protect = formulas.data() + 1;
    view.unsmoothed = formulas.data() + 2;
    view.score = formulas.data() + 3;
    const QueryCase by_queries(side, LaneCase<T>::kHeads, head_dim, one_unit);
    view.queries = by_queries.queries.data();
    const ShareCase shares(side, c.capacity, 0.2, false);
    if (!one_unit) {
        view.shares = shares.rules.data();
        view.n_shared = shares.memory.leave;
    }
    const Buffer<LaneView<T>> lane = side.up(std::vector<LaneView<T>>{view});
    const Buffer<float> lengths = side.floats(kv * c.capacity), directions = side.floats(kv * kDirection),
                        pooled = side.floats(max_units * c.capacity), threshold = side.floats(max_units),
                        lists = side.floats(max_units * kChoiceLists * c.capacity),
                        ties = side.floats(max_units * c.capacity), likeness = side.floats(kv * c.capacity),
                        errors = side.floats(kv * c.capacity), lags = side.floats(kv * c.capacity),
                        reach = side.floats(kv * c.capacity), expected = side.floats(kv * c.capacity),
                        tri = side.floats(kv * c.capacity), code_win = side.floats(kv * c.capacity);
    const std::vector<double> wide(to_index(kv * c.capacity), NAN);
    const Buffer<double> deviations = side.up(wide), lag_values = side.up(wide), largest = side.up(wide),
                         win_sums = side.up(wide),
                         logits =
                             side.up(std::vector<double>(to_index(LaneCase<T>::kHeads * c.capacity), NAN));
    const Buffer<std::int32_t> similar = side.up(std::vector<std::int32_t>(to_index(kv * c.capacity), -2));
    const std::vector<std::uint8_t> bytes(to_index(max_units * c.capacity), 9);
    const Buffer<std::uint8_t> competes = side.up(bytes), guarded = side.up(bytes), leaves = side.up(bytes);
    const Buffer<Leaving> leaving = side.up(std::vector<Leaving>(to_index(max_units), Leaving{0, 0}));
    ChoiceShape shape;
    shape.max_units = max_units;
    shape.n_lists = kChoiceLists;
    shape.stride = c.capacity;
    shape.n_kv_heads = shape.kv_stride = kv;
    shape.n_heads = LaneCase<T>::kHeads;
    shape.head_dim = head_dim;
    shape.group = LaneCase<T>::kHeads / kv;
    shape.n_readers = LaneCase<T>::kHeads;
    shape.d_model = 20;  // the last tile of OutputReach is not whole
    const Buffer<std::uint8_t> output =
        side.up(random_blocks(DType::q4_k, std::int64_t{shape.d_model} * shape.n_heads * head_dim, 9));
    const int output_cols = shape.n_heads * head_dim;
    const Buffer<std::byte> laid = side.up(random_laid(DType::q5_k, shape.d_model, output_cols, 9));
    const Buffer<Elements<Stored>> outputs = side.up(
        std::vector<Elements<Stored>>{one_unit ? Elements<Stored>{laid.data(), DType::q5_k, output_cols}
                                               : Elements<Stored>{output.data(), DType::q4_k}});
    const ChoiceMemory memory{pooled.data(),   lists.data(),      ties.data(),       competes.data(),
                              guarded.data(),  lengths.data(),    directions.data(), likeness.data(),
                              similar.data(),  errors.data(),     reach.data(),      outputs.data(),
                              lags.data(),     deviations.data(), lag_values.data(), logits.data(),
                              expected.data(), tri.data(),        largest.data(),    win_sums.data(),
                              code_win.data()};
    const auto launch = [&](const auto& kernel, const Grid& grid) {
        side.executor->launch(kernel, grid, 256);
    };
    launch_choice(lane.data(), c.table(), shape, memory, launch);
    if (!one_unit) launch_shares(lane.data(), c.table(), shape, memory, shares.memory, launch);
    side.note(kernel_name<KeyDirections<T>>(), 0, lengths.data(), lengths.size());
    side.note(kernel_name<KeyDirections<T>>(), 0, directions.data(), directions.size());
    side.note(kernel_name<SimilarKeys<T>>(), 0, similar.data(), similar.size());
    side.note(kernel_name<KeyLikeness<T>>(), 0, likeness.data(), likeness.size());
    side.note(kernel_name<ShareLikeness<T>>(), 0, likeness.data(), likeness.size());
    if (as_rkv_code) {
        side.note(kernel_name<WinOfLogits>(), 0, largest.data(), largest.size());
        side.note(kernel_name<WinOfLogits>(), 0, win_sums.data(), win_sums.size());
        side.note(kernel_name<WinOfLogits>(), 0, code_win.data(), code_win.size());
    }
    side.note(kernel_name<OutputErrors<T>>(), 0, errors.data(), errors.size());
    side.note(kernel_name<OutputReach<T>>(), 0, reach.data(), reach.size());
    using Reach = OutputReach<T>;
    const Reach of_rows{lane.data(), c.table(),           outputs.data(), nullptr, kv, c.capacity,
                        head_dim,    LaneCase<T>::kHeads, shape.d_model,  0,       1};
    side.executor->launch(of_rows, {kv, 1, (c.capacity + Reach::kTokens - 1) / Reach::kTokens}, 256);
    side.note(of_rows, 0, c.reach);
    side.note(kernel_name<LagRanks<T>>(), 0, lags.data(), lags.size());
    side.note(kernel_name<QueryLogits<T>>(), 0, logits.data(), logits.size());
    for (const auto* floats : {&expected, &tri})
        side.note(kernel_name<QueryRanks>(), 0, floats->data(), floats->size());
    for (const auto* floats : {&pooled, &ties})
        side.note(kernel_name<ChooseScores<T>>(), 0, floats->data(), floats->size());
    for (const auto* flags : {&competes, &guarded})
        side.note(kernel_name<ChooseScores<T>>(), 0, flags->data(), flags->size());
    if (!one_unit) shares.note<T>(side);
    const SelectVictims<T> select{lane.data(),      c.table(), pooled.data(), leaves.data(),  leaving.data(),
                                  threshold.data(), max_units, c.capacity,    guarded.data(), ties.data()};
    side.executor->launch(select, {max_units, 1}, 256);
    side.note(select, 0, threshold);
    side.note(select, 0, leaves);
    formula_fold(side, c, lane);
}

template <class T>
void selection_cases(Side& side) {
    choice<T>(side, false);
    choice<T>(side, true);
    choice<T>(side, false, true);
    sharing<T>(side, 300, 0.35, false);
    sharing<T>(side, 40, 0.2, false);
    sharing<T>(side, 240, 0.35, true);
    selection<T>(side, 299, -1, false);
    selection<T>(side, 250, -1, true);
    selection<T>(side, 300, 2 * 280, false);
    selection<T>(side, 290, 2 * 280, true);
    selection<T>(side, 290, -1, true, 24);  // positions in steps of 2: 12 tokens a block
}

template <class T>
void rebuilding(Side& side) {
    const int n = 70, head_dim = 64;
    RowRule rule = plain_rule();
    rule.noise_kind = static_cast<int>(NoiseKind::gumbel);
    rule.noise_draw = static_cast<int>(NoiseDraw::token);
    const LaneCase<T> from(side, head_dim, n, rule, false, false), to(side, head_dim, n, rule, false, false);
    std::vector<std::int32_t> kept, offset = {0};
    for (int g = 0; g < 2; ++g) {
        for (int slot = g; slot < n; slot += g + 1) kept.push_back(slot);
        offset.push_back(static_cast<std::int32_t>(kept.size()));
    }
    const Buffer<std::int32_t> device_kept = side.up(kept), device_offset = side.up(offset);
    CopySlots<T> copy{};
    copy.from = from.heads.data();
    copy.to = to.heads.data();
    copy.from_scores = from.head_scores.data();
    copy.to_scores = to.head_scores.data();
    copy.kept = device_kept.data();
    copy.offset = device_offset.data();
    copy.table = from.table();
    for (int a = 0; a < kScores; ++a) copy.relative[a] = a == 1 ? 0 : a;
    copy.head_dim = head_dim;
    copy.spans = to.spans();
    side.executor->launch(copy, {2, 3}, 256);
    side.note(copy, 0, to.keys);
    side.note(copy, 0, to.values);
    side.note(copy, 0, to.positions);
    side.note(copy, 0, to.scores);
    side.note(copy, 0, to.noise);
    side.note(copy, 0, to.kept);
    side.note(copy, 0, to.reach);
    // Removes slots 0, 3 and 6 of the first head and slot 1 of the second.
    const Buffer<std::int32_t> moved = side.up(std::vector<std::int32_t>{67, 68, 69, 69}),
                               holes = side.up(std::vector<std::int32_t>{0, 3, 6, 1}),
                               of_head = side.up(std::vector<std::int32_t>{0, 3, 4});
    const MoveSlots<T> move{from.heads.data(), from.head_scores.data(), from.table(), moved.data(),
                            holes.data(),      of_head.data(),          head_dim};
    side.executor->launch(move, {2}, 64);
    side.note(move, 0, from.keys);
    side.note(move, 0, from.values);
    side.note(move, 0, from.positions);
    side.note(move, 0, from.scores);
    side.note(move, 0, from.noise);
    side.note(move, 0, from.reach);
    const DrawNoise<T> draw{to.heads.data(), to.head_scores.data(), to.rules.data(), to.table(), 4};
    side.executor->launch(draw, {2, 1}, 256);
    side.note(draw, kSumTolerance, to.noise);
    // Stores a prompt of n tokens in the same heads.
    const Buffer<float> keys = side.up(normal(2 * n * head_dim, 31)),
                        values = side.up(normal(2 * n * head_dim, 32)),
                        score = side.up(normal(2 * 4 * n, 33));
    const Buffer<std::int32_t> streams =
        side.up(std::vector<std::int32_t>{0, -1, 1, 0, 1, 1, -1, 0, 1, 0, 0, -1, 1, 1, 0, 1, -1, 0, 0, 1});
    const int n_win_rows = LaneCase<T>::kWindow + 2;
    const Buffer<float> win_rows = side.up(normal(4 * n_win_rows * n, 34));
    const KeepPrompt<T> keep{keys.data(),
                             values.data(),
                             score.data(),
                             streams.data(),
                             to.heads.data(),
                             to.head_scores.data(),
                             device_kept.data(),
                             device_offset.data(),
                             n,
                             head_dim,
                             4,
                             2,
                             nullptr,
                             win_rows.data(),
                             n_win_rows,
                             0,
                             to.spans()};
    side.executor->launch(keep, {2, 3}, 256);
    side.note(keep, 0, to.kept);
    side.note(keep, 0, to.keys);
    side.note(keep, 0, to.values);
    side.note(keep, 0, to.scores);
    side.note(keep, 0, to.positions);
    side.note(keep, 0, to.reach);
}

void prompt(Side& side) {
    const int n = 300, heads = 4, kv = 2, head_dim = 16, first = 171, rows = 33, last = first + rows;
    const Buffer<float> q = side.up(normal(n * heads * head_dim, 1)),
                        k = side.up(normal(n * kv * head_dim, 2)), v = side.up(normal(n * kv * head_dim, 3)),
                        keys = side.floats(n * kv * head_dim), values = side.floats(n * kv * head_dim),
                        rotations = side.up(normal(n * head_dim, 4)), raw = side.floats(n * kv * head_dim);
    HeadRule heads_are{};
    heads_are.magnitude = 1;
    heads_are.clip = 2;
    heads_are.dims = heads_are.head_dim = head_dim;
    const RotatePrompt rotate{
        q.data(), k.data(), v.data(), keys.data(), values.data(), rotations.data(), heads_are,
        n,        heads,    kv,       0,           raw.data()};
    side.executor->launch(rotate, {n, heads + kv}, 64);
    side.note(rotate, 0, q);
    side.note(rotate, 0, keys);
    side.note(rotate, 0, values);
    side.note(rotate, 0, raw);
    heads_are.q_norm = heads_are.k_norm = rotations.data();
    heads_are.eps = 1e-5f;
    heads_are.interleaved = 1;
    const RotatePrompt normed{
        q.data(), k.data(), v.data(), keys.data(), values.data(), rotations.data(), heads_are,
        n,        heads,    kv,       0,           nullptr};
    side.executor->launch(normed, {n, heads + kv}, 64);
    side.note(normed, kSumTolerance, q);
    side.note(normed, kSumTolerance, keys);
    const std::int64_t tile = std::int64_t{heads} * rows * last;
    const Buffer<float> logits = side.up(normal(tile, 5, 3)), p = side.floats(tile), warm = side.floats(tile),
                        noise = side.floats(tile),
                        score = side.up(std::vector<float>(to_index(heads * n), 0.0f)),
                        score_rows = side.floats(tile),
                        slopes = side.up(std::vector<float>{0.5f, 0.25f, 0.1f, 0});
    std::vector<StreamRule> rules(heads);
    for (int h = 0; h < heads; ++h)
        rules[to_index(h)] = {7,
                              h == 0 ? 1.0f : 0.7f,
                              1.5f,
                              1.0f,
                              h < 3 ? 1 : 0,
                              h > 0 ? 1 : 0,
                              h == 2 ? static_cast<int>(ScoreType::fp16) : static_cast<int>(ScoreType::fp32),
                              static_cast<int>(NoiseKind::gumbel),
                              static_cast<int>(h == 1 ? NoiseDraw::row : NoiseDraw::token)};
    const Buffer<StreamRule> streams = side.up(rules);
    const SoftmaxTile plain{logits.data(), p.data(), nullptr, nullptr, slopes.data(),
                            first,         rows,     last,    1,       150};
    side.executor->launch(plain, {rows, heads}, 256);
    side.note(plain, kSumTolerance, p);
    side.note(plain, kSumTolerance, logits);
    const SoftmaxTile tempered{
        logits.data(), warm.data(), noise.data(), streams.data(), nullptr, first, rows, last, 1, 0};
    side.executor->launch(tempered, {rows, heads}, 256);
    side.note(tempered, 1e-5, warm);
    side.note(tempered, kSumTolerance, noise);
    const FoldTile fold{
        p.data(), warm.data(), streams.data(), score.data(), score_rows.data(), first, rows, last, n};
    side.executor->launch(fold, {(last + 255) / 256, heads}, 256);
    side.note(fold, 1e-3, score);  // half types may round either way
    side.note(fold, 1e-3, score_rows);
    const Buffer<FormulaTable> formula = side.up(std::vector<FormulaTable>{scoring_formula()});
    for (StreamRule& rule : rules) rule.score = formula.data();
    const Buffer<StreamRule> by_formula = side.up(rules);
    FoldTile with_formula = fold;
    with_formula.streams = by_formula.data();
    const FoldTileByFormula fold_formula{with_formula, logits.data(), 1, heads / kv};
    side.executor->launch(fold_formula, {(last + 255) / 256, heads}, 256);
    side.note(fold_formula, 1e-3, score);
    side.note(fold_formula, 1e-3, score_rows);
    const int n_last = 110, from = n - n_last - first;  // rows 190 on
    const Buffer<float> win_rows = side.floats(heads * (n_last + 1) * n);
    const KeepRows keep{p.data(), win_rows.data(), first, rows, last, n, n_last + 1, from, 1, 0};
    side.executor->launch(keep, {rows - from, heads}, 256);
    side.note(keep, kSumTolerance, win_rows);
}

/// A whole prompt with score streams of every kind: forgetting, tempered with both draws, none.
template <class T, int kDim>
void prompt_attention(Side& side, int head_dim, int window, bool slopes) {
    const int n = 140, heads = 2, kv = 1, streams = 2;
    const Buffer<T> q = side.up(stored<T>(normal(n * heads * head_dim, 61))),
                    k = side.up(stored<T>(normal(n * kv * head_dim, 62))),
                    v = side.up(stored<T>(normal(n * kv * head_dim, 63)));
    const Buffer<float> of_heads = side.up(std::vector<float>{0.5f, 0.01f}),
                        out = side.floats(n * heads * head_dim), score = side.floats(streams * heads * n);
    const StreamRule none{}, forgets{1, 0.9f, 1, 1, 1, 0, 0, 0, 0};
    StreamRule of_token{7, 1, 1.5f, 1, 1, 1, 0, static_cast<int>(NoiseKind::gumbel), 0}, of_row = of_token;
    of_token.noise_draw = static_cast<int>(NoiseDraw::token);
    of_row.noise_draw = static_cast<int>(NoiseDraw::row);
    of_row.alpha = 0.95f;
    of_row.noise_kind = static_cast<int>(NoiseKind::gaussian);
    const Buffer<StreamRule> rules = side.up(std::vector<StreamRule>{forgets, of_row, of_token, none});
    const Buffer<RowSum> sums = side.up(std::vector<RowSum>(to_index((1 + streams) * heads * n), {0, 0}));
    PromptHeads<T> of{};
    of.q = q.data();
    of.k = k.data();
    of.v = v.data();
    if (slopes) of.slopes = of_heads.data();
    of.scale = 1.0f / std::sqrt(static_cast<float>(head_dim));
    of.n = n;
    of.n_heads = heads;
    of.head_dim = head_dim;
    of.group = heads / kv;
    of.window = window;
    of.layer = 3;
    const auto blocks = [](int of_block) { return (n + of_block - 1) / of_block; };
    using Sums = PromptSums<T, kDim>;
    using Attend = PromptAttend<T, kDim>;
    using Columns = PromptColumns<T, kDim>;
    const Sums of_rows{of, rules.data(), sums.data()};
    side.executor->launch(of_rows, {blocks(Sums::kRows), heads, 1 + streams}, kMaxThreads);
    side.note(kernel_name<Sums>(), kProductTolerance, reinterpret_cast<const float*>(sums.data()),
              2 * sums.size());
    const Attend attend{of, sums.data(), out.data()};
    side.executor->launch(attend, {blocks(Attend::kRows), heads}, kMaxThreads);
    side.note(attend, rounding<T>, out);  // a probability may round either way
    const Columns columns{of, rules.data(), sums.data(), score.data()};
    side.executor->launch(columns, {blocks(Columns::kColumns), heads, streams}, kMaxThreads);
    side.note(columns, 5 * kProductTolerance, score);
}

/// Packs rows of two lanes: one out of text order, over two windows of positions, and one in order without
/// scores.
void packing(Side& side) {
    constexpr int kLanes = 2, kKv = 2, kHeads = 4, kStride = 640, kEntries = 1208;
    const std::array<int, kKv> n = {601, 3};
    std::mt19937 random(9);
    std::vector<std::int32_t> positions(kKv * kStride, -1);
    for (int g = 0; g < kKv; ++g) {
        const auto begin = positions.begin() + g * kStride;
        for (int i = 0; i < n[to_index(g)]; ++i) begin[i] = 2 * OrderSlots::kWindow / n[to_index(g)] * i;
        std::shuffle(begin, begin + n[to_index(g)], random);
    }
    std::vector<float> probabilities = normal(kLanes * kHeads * kStride, 51, 6);
    for (std::size_t i = 0; i < probabilities.size(); ++i) {
        float& p = probabilities[i];  // some are halfway between two numbers in fp16, some below the least
        p = i % 7 == 0 ? 1 + static_cast<float>(i % 64) / 2048 : std::exp(-std::abs(3 * p));
    }
    const Buffer<std::int32_t> at = side.up(positions),
                               of_kv = side.up(std::vector<std::int32_t>{0, 601, 604}),
                               kv_of_head = side.up(std::vector<std::int32_t>{0, 1, 1, 0}),
                               unit_of_head = side.up(std::vector<std::int32_t>{1, 0}),
                               order = side.up(std::vector<std::int32_t>(kKv * kStride, 0));
    const Buffer<std::int64_t> of_head = side.up(std::vector<std::int64_t>{0, 601, 604, 607, kEntries});
    const Buffer<AnyHead> heads =
        side.up(std::vector<AnyHead>{{nullptr, nullptr, at.data(), nullptr, n[0], kStride},
                                     {nullptr, nullptr, at.data() + kStride, nullptr, n[1], kStride}});
    AnyLane lane{};
    lane.heads = heads.data();
    lane.unit_of_head = unit_of_head.data();
    const Buffer<AnyLane> lanes = side.up(std::vector<AnyLane>(kLanes, lane));
    const Buffer<float> row = side.up(probabilities), pooled = side.up(normal(kLanes * kKv * kStride, 52)),
                        scores = side.floats(604), first = side.floats(kLanes * kHeads * PackRow::kFirst);
    const Buffer<Fp16> attention = side.up(std::vector<Fp16>(kLanes * kEntries, Fp16{0xc000}));
    const Buffer<PackedLane> packed = side.up(std::vector<PackedLane>{
        {of_kv.data(), of_head.data(), order.data(), attention.data(), first.data(), scores.data()},
        {of_kv.data(), of_head.data(), nullptr, attention.data() + kEntries,
         first.data() + kHeads * PackRow::kFirst, nullptr}});
    const OrderSlots order_slots{lanes.data(), packed.data(), kStride};
    side.executor->launch(order_slots, {kKv, kLanes, 2}, 256);
    side.note(order_slots, 0, order);
    const PackRow pack{lanes.data(), packed.data(), kv_of_head.data(), row.data(), pooled.data(), kHeads,
                       kKv,          kStride};
    side.executor->launch(pack, {3, kHeads + kKv, kLanes}, kSplit);
    side.note(pack, 0, attention);
    side.note(pack, 0, first);
    side.note(pack, 0, scores);
}

/// Returns the largest difference as a share of the largest value. NaN and infinities must be where the host
/// has them.
double difference(const Output& host, const Output& device) {
    if (host.values.size() != device.values.size()) return INFINITY;
    double scale = 1e-30, worst = 0;
    for (const double v : host.values)
        if (std::isfinite(v)) scale = std::max(scale, std::abs(v));
    for (std::size_t i = 0; i < host.values.size(); ++i) {
        const double a = host.values[i], b = device.values[i];
        if (std::isfinite(a) && std::isfinite(b))
            worst = std::max(worst, std::abs(a - b) / scale);
        else if (!(std::isnan(a) && std::isnan(b)) && a != b)
            return INFINITY;
    }
    return worst;
}

/// Returns what the host computes in a case. Kept, since tests compare many executors with it.
const std::vector<Output>& host_outputs(const std::string& shape, const Case& run) {
    thread_local std::map<std::string, std::vector<Output>> kept;
    const auto [entry, is_new] = kept.try_emplace(shape);
    if (is_new) {
        Side host(make_host_executor(5));
        run(host);
        entry->second = std::move(host.outputs);
    }
    return entry->second;
}

void run_case(const std::string& shape, const Case& run, const std::shared_ptr<Executor>& executor,
              const std::function<void(const std::string&)>& next, std::vector<SelfTestLine>& lines) {
    const std::vector<Output>& host = host_outputs(shape, run);
    Side device(executor);
    device.noted = [&](std::size_t n) {
        if (n < host.size() && (n == 0 || host[n].kernel != host[n - 1].kernel))
            next(host[n].kernel + ", " + shape);
    };
    device.noted(0);
    SelfTestLine failed{"", shape, INFINITY, 0, false, ""};
    try {
        run(device);
    } catch (const Error& error) {
        failed.failure = error.what();
    }
    for (std::size_t i = 0; i < device.outputs.size(); ++i) {
        const Output& output = host[i];
        const double worst = difference(output, device.outputs[i]);
        // Outputs of one kernel share a line.
        if (i > 0 && lines.back().kernel == output.kernel) {
            lines.back().worst = std::max(lines.back().worst, worst);
            lines.back().tolerance = std::max(lines.back().tolerance, output.tolerance);
            lines.back().passed = lines.back().passed && worst <= output.tolerance;
        } else {
            lines.push_back({output.kernel, shape, worst, output.tolerance, worst <= output.tolerance, ""});
        }
    }
    if (failed.failure.empty()) return;
    failed.kernel = device.outputs.size() < host.size() ? host[device.outputs.size()].kernel : "end of case";
    lines.push_back(failed);
}

}  // namespace

std::vector<SelfTestLine> run_selftest(
    const std::shared_ptr<Executor>& executor, std::string_view only,
    const std::function<void(double share, const std::string& what)>& progress) {
    std::vector<SelfTestLine> lines;
    constexpr double kCases = 24;
    int n_run = 0;
    const auto run = [&](const std::string& shape, const Case& c) {
        const double share = std::min(1.0, n_run++ / kCases);
        const auto next = [&](const std::string& what) {
            if (progress) progress(share, what);
        };
        if (shape.starts_with(only)) run_case(shape, c, executor, next, lines);
    };
    run("999 floats", copies);
    run("3 of 37 x 53 x 65", products);
    run("3 lanes, width 328", plain_layers);
    const auto typed = [&]<class T>(const std::string& type) {
        run("520 to 11008 columns, 53 rows, " + type, weights<T>);
        run("1 to 601 slots, head size 16 to 128, " + type, attention_cases<T>);
        run("300 slots, 1 to 50 leave, " + type, selection_cases<T>);
        run("70 slots of 2 KV heads, " + type, rebuilding<T>);
    };
    typed.template operator()<float>("f32");
    typed.template operator()<Fp16>("f16");
    typed.template operator()<Bf16>("bf16");
    run("every type of block, 96 to 4352 columns", stored_weights);
    run("products in integers, 96 to 4864 columns", laid_weights);
    run("rows 171 to 203 of 300", prompt);
    const auto fused = [&]<class T>(const std::string& of_type) {
        run(of_type + ", head size 48, slopes",
            [](Side& side) { prompt_attention<T, 64>(side, 48, 0, true); });
        run(of_type + ", head size 80, window of 50",
            [](Side& side) { prompt_attention<T, 128>(side, 80, 50, false); });
        run(of_type + ", head size 144", [](Side& side) { prompt_attention<T, 256>(side, 144, 0, false); });
    };
    fused.template operator()<Fp16>("140 tokens in f16");
    fused.template operator()<Bf16>("140 tokens in bf16");
    run("2 lanes of 601 and 3 entries", packing);
    return lines;
}

}  // namespace keyhole::cuda
