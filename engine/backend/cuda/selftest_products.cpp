// Cases of copies, products, and layers around them.
#include "engine/backend/cuda/selftest_cases.h"

#include "engine/model/quantised_blocks.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>

namespace keyhole::cuda::selftest {

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

namespace {

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

}  // namespace

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

template void weights<float>(Side&);
template void weights<Fp16>(Side&);
template void weights<Bf16>(Side&);

}  // namespace keyhole::cuda::selftest
