#include "engine/backend/cuda/products.h"

#include "engine/base/error.h"
#include "engine/base/index.h"

#include <algorithm>

namespace keyhole::cuda {

namespace {

/// Sets what all kernels for products have, with matrices that they read as V.
template <class V, class Kernel>
void set_products(Kernel& kernel, std::span<const MatrixView> w, std::span<float* const> y, int n_lanes,
                  const ProductUse& use) {
    for (std::size_t i = 0; i < w.size(); ++i) {
        Product<V>& product = kernel.product[i];
        product.w = w[i].elements<V>();
        product.bias = w[i].bias;
        product.y = i < y.size() ? y[i] : nullptr;
        product.rows = product.y_stride = w[i].rows;
    }
    kernel.n_products = static_cast<int>(w.size());
    kernel.cols = w[0].cols;
    kernel.n_lanes = n_lanes;
    kernel.use = use;
}

/// Calls visit.template operator()<kBatch>() for the kernel of so many lanes.
template <class Visit>
void with_batch(int n_lanes, Visit visit) {
    if (n_lanes > 4)
        visit.template operator()<8>();
    else if (n_lanes > 2)
        visit.template operator()<4>();
    else if (n_lanes > 1)
        visit.template operator()<2>();
    else
        visit.template operator()<1>();
}

template <class Kernel>
void launch_laid(Executor& executor, Kernel& kernel) {
    // More rows a block share its norm, and inputs of short rows (LaidProducts); so many keep all SMs busy.
    constexpr int kBlocks = 256;
    kernel.pairs_of_block = std::max(1, kernel.all_pairs() / kBlocks);
    executor.launch(kernel, {kernel.blocks()}, kMaxThreads);
}

void launch_alike(Executor& executor, std::span<const MatrixView> w, const float* x,
                  std::span<float* const> y, int n_lanes, const ProductUse& use, const NarrowTile* tiles) {
    KH_ASSERT(n_lanes >= 1 && n_lanes <= kMostProductLanes, "n_lanes={}", n_lanes);
    if (w[0].is_laid && n_lanes > kMostNormed) {
        LaidTiles kernel{};
        set_products<Stored>(kernel, w, y, n_lanes, use);
        kernel.narrowed = tiles;
        return launch_laid(executor, kernel);
    }
    with_batch(n_lanes, [&]<int kBatch>() {
        if (!w[0].is_laid) {
            with_elements(w, [&]<class V>() {
                MatrixVector<V, kBatch> kernel{};
                set_products<V>(kernel, w, y, n_lanes, use);
                kernel.x = x;
                executor.launch(kernel, {kernel.blocks(kMaxThreads)}, kMaxThreads);
            });
        } else if constexpr (kBatch <= kMostNormed) {
            LaidProducts<kBatch> kernel{};
            set_products<Stored>(kernel, w, y, n_lanes, use);
            kernel.x = x;
            launch_laid(executor, kernel);
        }
    });
}

}  // namespace

std::size_t narrow_tiles(std::int64_t cols, int n_lanes) {
    return n_lanes > kMostNormed ? to_index(cols / kCellColumns) : 0;
}

void launch_products(Executor& executor, std::span<const MatrixView> w, const float* x,
                     std::span<float* const> y, int n_lanes, const ProductUse& use, NarrowTile* tiles) {
    const auto is_laid = [](const MatrixView& m) { return m.is_laid; };
    if (n_lanes > kMostNormed && std::any_of(w.begin(), w.end(), is_laid)) {
        const NarrowTiles narrows{x, tiles, n_lanes, w[0].cols};
        executor.launch(narrows, {narrows.blocks(kMaxThreads)}, kMaxThreads);
    }
    while (!w.empty()) {
        const auto other =
            std::find_if(w.begin(), w.end(), [&](const MatrixView& m) { return m.is_laid != w[0].is_laid; });
        const auto n = static_cast<std::size_t>(other - w.begin());
        KH_ASSERT(use.gated == 0 || n == w.size(), "n={}", n);
        launch_alike(executor, w.first(n), x, y, n_lanes, use, tiles);
        w = w.subspan(n);
        y = y.subspan(std::min(n, y.size()));
    }
}

}  // namespace keyhole::cuda
