/// A lane of two KV heads with two query heads each, as kernels see it: each KV head is a unit of its own,
/// and a formula ranks its tokens. For tests that launch kernels of selection by themselves.
#pragma once

#include "engine/backend/cuda/kernels/lane.h"

#include <cstdint>
#include <vector>

namespace reference {

struct TwoHeadLane {
    std::vector<keyhole::cuda::DeviceUnit> units = {{0, 1, 0, 0}, {1, 2, 0, 0}};
    std::vector<std::int32_t> unit_of_head = {0, 1}, readers = {0, 1, 2, 3}, offset = {0, 2, 4};
    keyhole::cuda::LaneView<float> view{};

    /// order: slots in text order, [2, stride]. All arguments must outlive the lane.
    TwoHeadLane(std::vector<keyhole::cuda::DeviceHead<float>>& heads, const keyhole::cuda::RowRule& rule,
                const keyhole::FormulaTable& choose, const std::vector<std::int32_t>& order, int stride) {
        view.heads = heads.data();
        view.units = units.data();
        view.unit_of_head = unit_of_head.data();
        view.rules = &rule;
        view.n_units = 2;
        view.choose = &choose;
        view.order = order.data();
        view.list_stride = stride;
    }
    TwoHeadLane(const TwoHeadLane&) = delete;
    TwoHeadLane& operator=(const TwoHeadLane&) = delete;

    keyhole::cuda::ReaderTable table() const { return {readers.data(), offset.data()}; }
};

}  // namespace reference
