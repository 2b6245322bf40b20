#include "engine/backend/cuda/device_queries.h"

#include "engine/backend/common/shared.h"
#include "engine/base/index.h"

#include <algorithm>
#include <vector>

namespace keyhole::cuda {
namespace {

/// A calibration's numbers are floats, which a file holds, so that none is rounded here.
void append_floats(const std::vector<double>& from, std::vector<float>& to) {
    for (const double x : from) to.push_back(static_cast<float>(x));
}

}  // namespace

DeviceQueries::DeviceQueries(const std::shared_ptr<Executor>& executor, const OnDevice& model,
                             const ResolvedPolicy& policy)
    : of_(policy.calibration.read),
      model_(&model),
      ahead_(policy.ahead),
      pairs_(rotated_pairs(rotary_of(model.model->config(), 0))),
      expected_(rotary_of(model.model->config(), 0), 1, expected_offsets(policy.ahead)),
      tri_(rotary_of(model.model->config(), 0), 1, tri_offsets()) {
    const ModelConfig& c = model.model->config();
    const Calibration& known = *policy.calibration.read;
    std::vector<float> mean, covariance;
    std::vector<double> lacks, scales;
    for (int layer = 0; layer < c.n_layers; ++layer)
        for (int head = 0; head < c.n_heads; ++head) {
            const QueryMoments& of_head = known.heads[to_index(layer * c.n_heads + head)];
            append_floats(of_head.mean, mean);
            if (known.has_covariance) append_floats(of_head.covariance, covariance);
            const std::vector<double> lack = lacking_lengths(of_head, rotary_of(c, layer));
            lacks.insert(lacks.end(), lack.begin(), lack.end());
            scales.push_back(static_cast<double>(attention_rule(c, layer, head).scale));
        }
    mean_ = uploaded(executor, mean);
    covariance_ = uploaded(executor, covariance);
    lacks_ = uploaded(executor, lacks);
    scales_ = uploaded(executor, scales);
}

bool DeviceQueries::serves(const OnDevice& model, const ResolvedPolicy& policy) const {
    return of_.lock() == policy.calibration.read && &model == model_ && policy.ahead == ahead_;
}

LaneQueries DeviceQueries::turns_at(int row, std::span<double> turns, const double* on_device) const {
    const std::vector<double> of_expected = expected_.at(row + 1.0), of_tri = tri_.at(row + 1.0);
    std::copy(of_tri.begin(), of_tri.end(), std::copy(of_expected.begin(), of_expected.end(), turns.begin()));
    return {on_device,
            on_device + of_expected.size(),
            scales_.data(),
            mean_.data(),
            covariance_.data(),
            lacks_.data(),
            pairs_};
}

}  // namespace keyhole::cuda
