/// All kernels of the backend, numbered by their place in one list. Only a kernel's number and the bytes of
/// its arguments pass to an executor, so the rest of the backend is plain C++ that needs no CUDA toolkit.
/// Constants only; any thread.
#pragma once

#include "engine/backend/cuda/kernels/attention.h"
#include "engine/backend/cuda/kernels/choice.h"
#include "engine/backend/cuda/kernels/field.h"
#include "engine/backend/cuda/kernels/integer_tiles.h"
#include "engine/backend/cuda/kernels/integers.h"
#include "engine/backend/cuda/kernels/linear.h"
#include "engine/backend/cuda/kernels/pages.h"
#include "engine/backend/cuda/kernels/prompt.h"
#include "engine/backend/cuda/kernels/prompt_attention.h"
#include "engine/backend/cuda/kernels/queries.h"
#include "engine/backend/cuda/kernels/rows.h"
#include "engine/backend/cuda/kernels/select.h"
#include "engine/backend/cuda/kernels/share.h"
#include "engine/backend/cuda/kernels/store.h"

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

namespace keyhole::cuda {

/// Returns the kernel's name as the compiler writes it, such as "AttendSplit<Bf16>".
template <class Kernel>
constexpr std::string_view kernel_name() {
    std::string_view name = __PRETTY_FUNCTION__;
    name = name.substr(name.find("Kernel = ") + 9);
    name = name.substr(0, name.find_first_of(";]"));
    constexpr std::string_view kScope = "keyhole::cuda::";
    return name.starts_with(kScope) ? name.substr(kScope.size()) : name;
}

template <class... Kernels>
struct KernelList {
    static constexpr int kSize = sizeof...(Kernels);
    static constexpr std::size_t kLargest = [] {
        std::size_t most = 0;
        for (const std::size_t size : {sizeof(Kernels)...}) most = size > most ? size : most;
        return most;
    }();
    template <class Kernel>
    static constexpr int index_of() {
        int index = 0, found = -1;
        ((found = std::is_same_v<Kernel, Kernels> ? index : found, ++index), ...);
        return found;
    }
    /// Calls visit.template operator()<Kernel>() for each kernel, in order.
    template <class Visit>
    static constexpr void for_each(Visit visit) {
        (visit.template operator()<Kernels>(), ...);
    }
    static_assert((std::is_trivially_copyable_v<Kernels> && ...), "arguments reach the executor as bytes");
};

using Kernels = KernelList<
    AddNorm, AddBias, Activate, RotatePrompt, SoftmaxTile, FoldTile, FoldTileByFormula, KeepRows, OrderSlots,
    PackRow, CountBest, ShareBudgets, QueryRanks, WinOfLogits,  //
    Embed<float>, Embed<Fp16>, Embed<Bf16>, Widen<float>, Widen<Fp16>, Widen<Bf16>, AddPositions<float>,
    AddPositions<Fp16>, AddPositions<Bf16>, Narrow<Fp16>, Narrow<Bf16>,  //
    Embed<Stored>, AddPositions<Stored>, WidenStored, MatrixVector<Stored, 1>, MatrixVector<Stored, 2>,
    MatrixVector<Stored, 4>, MatrixVector<Stored, 8>, MatrixVector<float, 1>, MatrixVector<float, 2>,
    MatrixVector<float, 4>, MatrixVector<float, 8>,                                              //
    MatrixVector<Fp16, 1>, MatrixVector<Fp16, 2>, MatrixVector<Fp16, 4>, MatrixVector<Fp16, 8>,  //
    MatrixVector<Bf16, 1>, MatrixVector<Bf16, 2>, MatrixVector<Bf16, 4>, MatrixVector<Bf16, 8>,  //
    NarrowTiles, LaidProducts<1>, LaidProducts<2>, LaidTiles,                                    //
    BeginRow<float>, BeginRow<Fp16>, BeginRow<Bf16>, AttendSplit<float>, AttendSplit<Fp16>, AttendSplit<Bf16>,
    FoldRow<float>, FoldRow<Fp16>, FoldRow<Bf16>,                                                 //
    FoldByFormula<float>, FoldByFormula<Fp16>, FoldByFormula<Bf16>,                               //
    SummarisePages<float>, SummarisePages<Fp16>, SummarisePages<Bf16>,                            //
    BoundPages<float>, BoundPages<Fp16>, BoundPages<Bf16>,                                        //
    ChoosePages<float>, ChoosePages<Fp16>, ChoosePages<Bf16>,                                     //
    KeyDirections<float>, KeyDirections<Fp16>, KeyDirections<Bf16>,                               //
    SimilarKeys<float>, SimilarKeys<Fp16>, SimilarKeys<Bf16>,                                     //
    KeyLikeness<float>, KeyLikeness<Fp16>, KeyLikeness<Bf16>,                                     //
    ShareLikeness<float>, ShareLikeness<Fp16>, ShareLikeness<Bf16>,                               //
    OutputErrors<float>, OutputErrors<Fp16>, OutputErrors<Bf16>,                                  //
    OutputReach<float>, OutputReach<Fp16>, OutputReach<Bf16>,                                     //
    LagRanks<float>, LagRanks<Fp16>, LagRanks<Bf16>,                                              //
    QueryLogits<float>, QueryLogits<Fp16>, QueryLogits<Bf16>,                                     //
    ChooseScores<float>, ChooseScores<Fp16>, ChooseScores<Bf16>,                                  //
    SortShares<float>, SortShares<Fp16>, SortShares<Bf16>,                                        //
    SelectVictims<float>, SelectVictims<Fp16>, SelectVictims<Bf16>,                               //
    CompactHead<float>, CompactHead<Fp16>, CompactHead<Bf16>, DrawNoise<float>, DrawNoise<Fp16>,  //
    DrawNoise<Bf16>, CopySlots<float>, CopySlots<Fp16>, CopySlots<Bf16>, MoveSlots<float>,        //
    MoveSlots<Fp16>, MoveSlots<Bf16>, KeepPrompt<float>, KeepPrompt<Fp16>, KeepPrompt<Bf16>,      //
    MakeWeight<float>, MakeWeight<Fp16>, MakeWeight<Bf16>,                                        //
    PromptSums<Fp16, 64>, PromptSums<Fp16, 128>, PromptSums<Fp16, 256>, PromptSums<Bf16, 64>,
    PromptSums<Bf16, 128>, PromptSums<Bf16, 256>,  //
    PromptAttend<Fp16, 64>, PromptAttend<Fp16, 128>, PromptAttend<Fp16, 256>, PromptAttend<Bf16, 64>,
    PromptAttend<Bf16, 128>, PromptAttend<Bf16, 256>,  //
    PromptColumns<Fp16, 64>, PromptColumns<Fp16, 128>, PromptColumns<Fp16, 256>, PromptColumns<Bf16, 64>,
    PromptColumns<Bf16, 128>, PromptColumns<Bf16, 256>>;

template <class Kernel>
inline constexpr int kKernelIndex = Kernels::index_of<Kernel>();

}  // namespace keyhole::cuda
