/// Draws what a formula would rank of the tokens that the shown head stores after the shown row, while it is
/// being typed: bars of each token by value and by rank, in the colour of whether it stays. Asks the engine
/// for what records lack, at the newest row of a run that stands still. Window thread, within a frame.
#pragma once

#include "app/panels/panel.h"
#include "engine/analysis/formula_preview.h"
#include "engine/policy/option_table.h"

#include <memory>
#include <optional>
#include <string>

namespace keyhole {

/// The last readable text and what it ranks, kept while the text has a fault.
struct FormulaPlot {
    std::string text{};
    FormulaUse use = FormulaUse::choose;
    std::uint64_t generation = 0;
    int lane = -1, kv_head = -1, row = -1;
    bool is_of_head = false;  ///< the shown head has this formula by an override, whatever is typed
    FormulaPreview preview{};
    std::string of{};        ///< the text that the preview is of: an earlier one, while the engine ranks
    bool is_ranked = false;  ///< by the engine
    FormulaRef typed{};
    std::optional<RankFormulas> asks{};    ///< what only the engine can rank
    std::optional<RanksRequest> asked{};   ///< sent to the engine
    std::shared_ptr<const Ranks> ranks{};  ///< its answer, which the preview shows
};

/// option: one whose value is a formula. typed: the lane's; a head that has its own by an override shows
/// that. policy: with the lane's other options. right: edge of the card's content, in pixels.
void draw_formula_plot(FormulaPlot& plot, const PanelContext& context, int lane, const LaneOption& option,
                       const PolicyParams& policy, const std::string& typed, float right);

}  // namespace keyhole
