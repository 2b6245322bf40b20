/// A calibration in device memory: what `expected` and `tri` rank by after rows. Made once for each model,
/// file and `ahead` that lanes have. Immutable; any thread. Knows no cache.
#pragma once

#include "engine/backend/common/query_statistics.h"
#include "engine/backend/cuda/device_model.h"
#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/kernels/lane.h"
#include "engine/policy/params.h"

#include <memory>
#include <span>

namespace keyhole::cuda {

class DeviceQueries {
  public:
    /// policy: names `expected` or `tri`, and its calibration is read.
    DeviceQueries(const std::shared_ptr<Executor>& executor, const OnDevice& model,
                  const ResolvedPolicy& policy);

    /// Returns whether it serves a lane with that policy.
    bool serves(const OnDevice& model, const ResolvedPolicy& policy) const;
    bool is_expired() const { return of_.expired(); }

    /// How many doubles turns_at() writes.
    std::size_t n_turns() const { return to_index(4 * pairs_.n); }
    /// Writes the mean rotations after a row. Returns what kernels read once these lie at `on_device`.
    LaneQueries turns_at(int row, std::span<double> turns, const double* on_device) const;

  private:
    std::weak_ptr<const Calibration> of_;
    const OnDevice* model_;
    int ahead_;
    RotatedPairs pairs_;
    MeanTurn expected_, tri_;
    Buffer<float> mean_, covariance_;
    Buffer<double> lacks_, scales_;
};

}  // namespace keyhole::cuda
