/// Launches the kernels that evaluate formulas for the units of some lanes, in their order. Knows neither
/// executor nor cache: a backend, the self test and tests give memory and a way to launch.
#pragma once

#include "engine/backend/cuda/executor.h"
#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/field.h"
#include "engine/backend/cuda/kernels/queries.h"
#include "engine/backend/cuda/kernels/share.h"

#include <utility>

namespace keyhole::cuda {

struct ChoiceShape {
    int n_lanes = 1, max_units = 0, n_lists = 1;
    int stride = 0;      ///< slots that lists have room for
    int n_kv_heads = 0;  ///< of the model
    int kv_stride = 0;   ///< KV heads that lists have room for
    int n_heads = 0;     ///< query heads of a layer
    int head_dim = 0, group = 1;
    int d_model = 0;    ///< channels of a layer's output
    int n_readers = 0;  ///< query heads of the model
};

/// Device memory, of the shapes that ChooseScores and the others name; null where no formula needs it.
struct ChoiceMemory {
    float *pooled = nullptr, *lists = nullptr, *ties = nullptr;
    std::uint8_t *competes = nullptr, *guarded = nullptr;
    float *lengths = nullptr, *directions = nullptr;  ///< where a formula names keydiff or redundancy
    float* likeness = nullptr;                        ///< redundancy
    std::int32_t* similar = nullptr;
    float* errors = nullptr;  ///< caote
    float* reach = nullptr;   ///< wvnorm, as the next: W_o of each layer
    const Elements<Stored>* outputs = nullptr;
    float* lags = nullptr;  ///< lag, as the next
    double *deviations = nullptr, *lag_values = nullptr;
    double* query_logits = nullptr;                  ///< where a formula names one of the next
    float *expected = nullptr, *tri = nullptr;       ///< where a formula names it
    double *largest = nullptr, *win_sums = nullptr;  ///< `win` of R-KV's code, as the next
    float* code_win = nullptr;
};

/// Device memory of lanes that share budgets, of the shapes that the kernels of share.h name.
struct ShareMemory {
    ShareToken *found = nullptr, *sorted = nullptr;
    std::int32_t *n_free = nullptr, *best = nullptr, *kept = nullptr, *missing = nullptr, *leave = nullptr;
    double *part = nullptr, *rest = nullptr;
};

/// Launches the kernels that share the budgets of some lanes, after launch_choice(). launch(kernel, grid)
template <class T, class Launch>
void launch_shares(const LaneView<T>* lanes, const ReaderTable& table, const ChoiceShape& shape,
                   const ChoiceMemory& ranked, const ShareMemory& memory, Launch launch) {
    const Grid units{shape.max_units, shape.n_lanes};
    launch(SortShares<T>{lanes, table, ranked.pooled, ranked.ties, ranked.guarded, memory.found,
                         memory.sorted, memory.n_free, shape.max_units, shape.stride},
           units);
    const SharedHeads of{reinterpret_cast<const AnyLane*>(lanes), memory.sorted, memory.n_free,
                         shape.max_units, shape.stride};
    launch(CountBest{of, nullptr, nullptr, memory.best, nullptr}, units);
    launch(ShareBudgets{of, memory.best, memory.part, memory.rest, memory.kept, memory.missing}, units);
    launch(CountBest{of, memory.kept, memory.missing, memory.best, memory.leave}, units);
}

/// Launches the kernels that rank by queries. ranks: of `expected` or `tri`. launch(kernel, grid)
template <class T, class Launch>
void launch_queries(const LaneView<T>* lanes, const ReaderTable& table, const ChoiceShape& shape,
                    Quantity quantity, double* logits, float* ranks, Launch launch) {
    const auto q = static_cast<std::int32_t>(quantity);
    launch(QueryLogits<T>{lanes, table, logits, q, shape.n_readers, shape.stride, shape.head_dim},
           Grid{shape.n_kv_heads, shape.n_lanes,
                (shape.stride + QueryLogits<T>::kTokens - 1) / QueryLogits<T>::kTokens});
    launch(QueryRanks{reinterpret_cast<const AnyLane*>(lanes), table, logits, ranks, q, shape.n_readers,
                      shape.kv_stride, shape.stride},
           Grid{shape.n_kv_heads, shape.n_lanes});
}

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
    if (memory.reach != nullptr)
        launch(OutputReach<T>{lanes, table, memory.outputs, memory.reach, shape.kv_stride, shape.stride,
                              shape.head_dim, shape.n_heads, shape.d_model},
               Grid{shape.n_kv_heads, shape.n_lanes,
                    (shape.stride + OutputReach<T>::kTokens - 1) / OutputReach<T>::kTokens});
    if (memory.lags != nullptr)
        launch(LagRanks<T>{lanes, memory.lags, memory.deviations, memory.lag_values, shape.kv_stride,
                           shape.stride, shape.head_dim},
               Grid{shape.n_kv_heads, shape.n_lanes, LagRanks<T>::kBlocks});
    if (memory.code_win != nullptr)
        launch(WinOfLogits{reinterpret_cast<const AnyLane*>(lanes), table, memory.largest, memory.win_sums,
                           memory.code_win, shape.kv_stride, shape.stride},
               heads);
    for (const auto& [quantity, ranks] :
         {std::pair{Quantity::expected, memory.expected}, std::pair{Quantity::tri, memory.tri}})
        if (ranks != nullptr)
            launch_queries(lanes, table, shape, quantity, memory.query_logits, ranks, launch);
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
    choose.reach = memory.reach;
    choose.lags = memory.lags;
    choose.expected = memory.expected;
    choose.tri = memory.tri;
    choose.code_win = memory.code_win;
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
