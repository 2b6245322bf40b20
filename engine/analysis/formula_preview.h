/// What a formula would rank of the tokens that a KV head stores, before it is in force: from records, and
/// from what the engine says of the newest row. Any thread that owns the history; knows no panel.
///
/// A formula of `choose` or `protect` sees what a selection after the row would see. A formula of `score`
/// makes one row's scores, of the lane's scores before that row. Recorded probabilities are fp16, and where
/// several query heads read a KV head only their pooled scores are recorded, so these values are near the
/// engine's, not equal. A formula that is in force has the engine's own values. Records hold no keys and
/// values: what follows from these the engine ranks, of the tokens that it still stores after the newest row.
#pragma once

#include "engine/policy/formula.h"
#include "engine/run/ranks.h"
#include "engine/trace/run_history.h"

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace keyhole {

struct PreviewedToken {
    std::int32_t position = 0;
    float value = 0;  ///< what is ranked
    int rank = 0;     ///< among the competing tokens, the best is 1; 0: it does not compete
    bool stays = true;
    bool operator==(const PreviewedToken&) const = default;
};

struct FormulaPreview {
    std::string why_not;                 ///< what records lack, one sentence; empty: nothing
    std::vector<PreviewedToken> tokens;  ///< stored ones, in text order; empty with a reason
    int n_competing = 0, n_leaving = 0;
    /// By what the engine would have to rank the head, where records do not hold enough.
    std::optional<RankFormulas> asks{};
};

/// lane: index into history.lanes(); typed: of this use, none: the word that changes nothing (`s`,
/// `attention`, `none`). ranks: the engine's answer to what an earlier call asks, of this row; null: none.
FormulaPreview preview_formula(const RunHistory& history, int lane, int kv_head, int row, FormulaUse use,
                               const FormulaRef& typed, const Ranks* ranks = nullptr);

}  // namespace keyhole
