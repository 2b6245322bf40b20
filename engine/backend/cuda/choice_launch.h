/// Launches the kernels that evaluate formulas for the units of some lanes, in their order. Knows neither
/// executor nor cache: a backend, the self test and tests give memory and a way to launch.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/field.h"

namespace keyhole::cuda {

struct ChoiceShape {
    int n_lanes = 1, max_units = 0, n_lists = 1;
    int stride = 0;      ///< slots that lists have room for
    int n_kv_heads = 0;  ///< of the model
    int kv_stride = 0;   ///< KV heads that lists have room for
    int n_heads = 0;     ///< query heads of a layer
    int head_dim = 0, group = 1;
};

/// Device memory, of the shapes that ChooseScores and the others name; null where no formula needs it.
struct ChoiceMemory {
    float *pooled = nullptr, *lists = nullptr, *ties = nullptr;
    std::uint8_t *competes = nullptr, *guarded = nullptr;
    float *lengths = nullptr, *directions = nullptr;  ///< where a formula names keydiff or redundancy
    float* likeness = nullptr;                        ///< redundancy
    std::int32_t* similar = nullptr;
    float* errors = nullptr;  ///< caote
    float* lags = nullptr;    ///< lag, as the next
    double *deviations = nullptr, *lag_values = nullptr;
};

/// launch(kernel, grid)
template <class T, class Launch>
void launch_choice(const LaneView<T>* lanes, const ReaderTable& table, const ChoiceShape& shape,
                   const ChoiceMemory& memory, Launch launch) {
    const Grid heads{shape.n_kv_heads, shape.n_lanes};
    if (memory.lengths != nullptr)
        launch(KeyDirections<T>{lanes, memory.lengths, memory.directions, shape.kv_stride, shape.stride,
                                shape.head_dim},
               heads);
    if (memory.similar != nullptr) {
        const Likeness<T> of{lanes,           memory.lengths, memory.similar, memory.likeness,
                             shape.kv_stride, shape.stride,   shape.head_dim};
        const Grid tokens{shape.n_kv_heads, shape.n_lanes, (shape.stride + of.kTokens - 1) / of.kTokens};
        launch(SimilarKeys<T>{of}, tokens);
        launch(KeyLikeness<T>{of}, tokens);
        launch(ShareLikeness<T>{of}, heads);
    }
    if (memory.errors != nullptr)
        launch(OutputErrors<T>{lanes, table, memory.errors, shape.kv_stride, shape.stride, shape.head_dim},
               heads);
    if (memory.lags != nullptr)
        launch(LagRanks<T>{lanes, memory.lags, memory.deviations, memory.lag_values, shape.kv_stride,
                           shape.stride, shape.head_dim},
               Grid{shape.n_kv_heads, shape.n_lanes, LagRanks<T>::kBlocks});
    ChooseScores<T> choose{};
    choose.lanes = lanes;
    choose.table = table;
    choose.pooled = memory.pooled;
    choose.lists = memory.lists;
    choose.competes = memory.competes;
    choose.guarded = memory.guarded;
    choose.lengths = memory.lengths;
    choose.directions = memory.directions;
    choose.likeness = memory.likeness;
    choose.errors = memory.errors;
    choose.lags = memory.lags;
    choose.ties = memory.ties;
    choose.max_units = shape.max_units;
    choose.stride = shape.stride;
    choose.n_lists = shape.n_lists;
    choose.n_heads = shape.n_heads;
    choose.group = shape.group;
    choose.head_dim = shape.head_dim;
    choose.n_kv_heads = shape.kv_stride;
    launch(choose, Grid{shape.max_units, shape.n_lanes});
}

}  // namespace keyhole::cuda
