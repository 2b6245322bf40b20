/// Launches of a step's products: which kernel multiplies which matrices. Engine thread only. Knows no lane.
#pragma once

#include "engine/backend/cuda/device_model.h"

#include <cstddef>
#include <cstdint>
#include <span>

namespace keyhole::cuda {

inline constexpr int kMostProductLanes = NarrowTile::kLanes;  ///< of a launch

/// Returns how many tiles launch_products() needs for inputs of so many columns, with laid matrices.
std::size_t narrow_tiles(std::int64_t cols, int n_lanes);

/// y[i] [n_lanes, rows] = w[i] x + bias, for up to three matrices with the same input x [n_lanes, cols],
/// whose sums have one order, whatever the number of lanes. Those that are laid are multiplied in integers.
/// Matrices that `use` joins are all laid or none. tiles: device memory for narrow_tiles(), free again for
/// the next call.
void launch_products(Executor& executor, std::span<const MatrixView> w, const float* x,
                     std::span<float* const> y, int n_lanes, const ProductUse& use, NarrowTile* tiles);

}  // namespace keyhole::cuda
